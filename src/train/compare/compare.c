/* A comparison: every method with every seed, each an ordinary trainer in its own folder. Results of finished runs are kept; a
 * comparison that is stopped or killed loses only what the runs in progress had not saved. */
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- equal conditions ------------------------------------------------------------------------------------------- */

/* Settings of the optimizer may differ between methods. All others define the problem or its cost. */
static bool may_differ(const char *name)
{
    static const char *const own[] = {"optim",    "lr",     "final-lr",   "weight-decay",       "decay-all", "clip",
                                      "schedule", "warmup", "accumulate", "schedule-per-epoch", "out",       NULL};
    for (const char *const *o = own; *o; o++)
        if (strcmp(name, *o) == 0) return true;
    return false;
}

/* The tables that describe the problem: of the run, the model and the images. They are the same for all that are compared,
 * because model and data are. */
static int problem_tables(const abar_setup *setup, abar_setup_table out[ABAR_SETUP_TABLES_MAX])
{
    const int all = abar_setup_tables(setup, out);
    int n = 2; /* after these come the optimizer's */
    for (int i = n; i < all; i++)
        if (strcmp(out[i].section, "images") == 0) out[n++] = out[i];
    return n;
}

abar_status abar_compare_align(abar_context *ctx, const abar_setup *with, abar_setup *setup)
{
    abar_setup_table from[ABAR_SETUP_TABLES_MAX], to[ABAR_SETUP_TABLES_MAX];
    problem_tables(with, from);
    const int n = problem_tables(setup, to);
    if (with->model != setup->model)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "compare: %s and %s are two models, compare optimizers on one",
                          with->model->name, setup->model->name);
    for (int i = 0; i < n; i++) {
        for (const abar_option *o = from[i].options; o->name; o++) {
            char value[ABAR_OPTION_TEXT_MAX];
            if (may_differ(o->name)) continue;
            ABAR_TRY(abar_options_get(ctx, from[i].options, from[i].config, o->name, value, sizeof value));
            ABAR_TRY(abar_options_set(ctx, to[i].options, to[i].config, o->name, value));
        }
    }
    return ABAR_OK;
}

static bool may_vary(const abar_compare *c, const char *name)
{
    for (int i = 0; i < c->n_varied; i++)
        if (strcmp(c->varied[i], name) == 0) return true;
    return may_differ(name);
}

void abar__compare_allow(abar_compare *c, const char *name)
{
    if (c->n_varied < ABAR_VARIED_MAX && strlen(name) < ABAR_VARIED_NAME_MAX && !may_vary(c, name))
        memcpy(c->varied[c->n_varied++], name, strlen(name) + 1);
}

static abar_status check_same_table(const abar_compare *c, int m, const abar_setup_table *first, const abar_setup_table *other)
{
    for (const abar_option *o = first->options; o->name; o++) {
        char a[ABAR_OPTION_TEXT_MAX], b[ABAR_OPTION_TEXT_MAX];
        if (may_vary(c, o->name)) continue;
        ABAR_TRY(abar_options_get(c->ctx, first->options, first->config, o->name, a, sizeof a));
        ABAR_TRY(abar_options_get(c->ctx, other->options, other->config, o->name, b, sizeof b));
        if (strcmp(a, b) != 0)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT,
                              "--%s: %.80s for %s but %.80s for %s, it must be the same for all that are compared", o->name, a,
                              c->method[0].label, b, c->method[m].label);
    }
    return ABAR_OK;
}

static abar_status check_same_problem(const abar_compare *c, int m)
{
    abar_setup_table first[ABAR_SETUP_TABLES_MAX], other[ABAR_SETUP_TABLES_MAX];
    problem_tables(c->method[0].setup, first);
    const int n = problem_tables(c->method[m].setup, other);
    for (int i = 0; i < n; i++) ABAR_TRY(check_same_table(c, m, &first[i], &other[i]));
    return ABAR_OK;
}

static abar_status check_label(const abar_compare *c, int m)
{
    static const char letters[] = "=.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    const char *label = c->method[m].label,
               *known = letters + (c->kind == &abar__comparison_kind ? 2 : 0); /* only cells have = and points */
    if (!label[0] || label[0] == '.' || label[strspn(label, known)])
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: cannot name a method, use letters, digits, +, - and _", label);
    for (int i = 0; i < m; i++)
        if (strcmp(c->method[i].label, label) == 0)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: is compared twice, give two labels as in a=%s,b=%s", label,
                              c->method[i].setup->train.optim, c->method[m].setup->train.optim);
    return ABAR_OK;
}

static abar_status check_seeds(const abar_compare *c)
{
    const abar_option *seed = abar_options_find(abar_train_options(), "seed");
    for (int m = 0; m < c->methods; m++) {
        const int64_t seeds = c->method[m].seeds;
        if (seeds < 1 || seeds > ABAR_COMPARE_SEEDS_MAX)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seeds %lld: out of range, give a value from 1 to %d",
                              (long long)seeds, ABAR_COMPARE_SEEDS_MAX);
        if ((double)(c->method[m].setup->train.seed + seeds) > seed->max)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seed: too large for %lld seeds from there on, start lower",
                              (long long)seeds);
    }
    return ABAR_OK;
}

static abar_status check(abar_compare *c)
{
    for (int m = 0; m < c->methods; m++) {
        abar_setup *setup = c->method[m].setup;
        ABAR_TRY(check_label(c, m));
        memset(setup->train.out, 0, sizeof setup->train.out);
        ABAR_TRY(abar__settings_check(c->ctx, setup)); /* without the network and data of a program: they may come later */
        ABAR_TRY(check_same_problem(c, m));
    }
    return check_seeds(c);
}

/* ---- creating --------------------------------------------------------------------------------------------------- */

static abar_status copy_dir(abar_compare *c, const char *dir)
{
    size_t n = strlen(dir), most = sizeof c->dir - c->kind->label_max - 32; /* leaves space for LABEL-sSEED */
    while (n > 1 && dir[n - 1] == '/') n--;
    if (n == 0 || n >= most)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%.80s: %s, give another folder", dir,
                          n ? "its path is too long" : "no folder has an empty name");
    memcpy(c->dir, dir, n);
    return ABAR_OK;
}

static abar_status copy_config(abar_compare *c, const abar_compare_config *config)
{
    ABAR_TRY(copy_dir(c, config->out ? config->out : ""));
    if (config->methods < 1 || config->methods > c->kind->methods_max)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: %d methods are %s, give 1 to %d", c->kind->stem, config->methods,
                          config->methods < 1 ? "too few" : "too many", c->kind->methods_max);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)config->methods * sizeof *c->method, &memory));
    c->method = memory;
    c->methods = config->methods;
    c->seeds = config->seeds;
    for (int m = 0; m < c->methods; m++) {
        const char *label = config->labels ? config->labels[m] : config->setups[m]->train.optim;
        if (strlen(label) >= c->kind->label_max)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%.40s: too long for a label, use at most %d letters", label,
                              (int)c->kind->label_max - 1);
        memcpy(c->method[m].label, label, strlen(label));
        c->method[m].ms_alone = NAN;
        c->method[m].seeds = config->method_seeds && config->method_seeds[m] ? config->method_seeds[m] : config->seeds;
        ABAR_TRY(abar__setup_copy(c->ctx, config->setups[m], &c->method[m].setup));
    }
    return ABAR_OK;
}

int64_t abar__compare_seeds_most(const abar_compare *c)
{
    int64_t most = 0;
    for (int m = 0; m < c->methods; m++)
        if (c->method[m].seeds > most) most = c->method[m].seeds;
    return most;
}

int abar__compare_ended(const abar_compare *c)
{
    int n = 0;
    for (int i = 0; i < c->runs; i++) n += c->record[i].run.ended;
    return n;
}

int abar__compare_pending(const abar_compare *c)
{
    int n = 0;
    for (int i = 0; i < c->runs; i++) n += !c->record[i].run.ended && !c->record[i].elsewhere;
    return n;
}

int64_t abar__compare_epochs(const abar_compare *c, int method)
{
    const abar_train_config *t = &c->method[method].setup->train;
    return t->stop_after > 0 && t->stop_after < t->epochs ? t->stop_after : t->epochs;
}

/* Ordered by seed, then by method. */
static abar_status make_records(abar_compare *c)
{
    void *memory;
    int runs = 0;
    for (int m = 0; m < c->methods; m++) runs += (int)c->method[m].seeds;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)runs * sizeof *c->record, &memory));
    c->record = memory;
    for (int64_t s = 0; s < abar__compare_seeds_most(c); s++) {
        for (int m = 0; m < c->methods; m++) {
            const abar__compare_method *method = &c->method[m];
            if (s >= method->seeds) continue;
            c->record[c->runs++].run = (abar_compare_run){.label = method->label,
                                                          .method = m,
                                                          .seed = method->setup->train.seed + s,
                                                          .side_by_side = 1,
                                                          .steps_per_epoch = NAN};
        }
    }
    return ABAR_OK;
}

static abar_status make_pairs(abar_compare *c)
{
    void *memory;
    if (c->kind != &abar__comparison_kind) return ABAR_OK; /* the cells of a sweep are too many to be compared in pairs */
    c->pairs = c->methods * (c->methods - 1) / 2;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)c->pairs * sizeof *c->pair, &memory));
    c->pair = memory;
    return ABAR_OK;
}

/* Refuses folders that contain a run: it was not trained by this comparison. */
static abar_status check_folders(const abar_compare *c)
{
    for (int i = 0; i < c->runs; i++) {
        char dir[ABAR_RUN_PATH_MAX], path[ABAR_RUN_PATH_MAX];
        ABAR_TRY(abar__compare_run_dir(c, i, dir));
        ABAR_TRY(abar__run_path(c->ctx, dir, "state.safetensors", path));
        if (abar__path_exists(path))
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: holds a run already, though %s holds no %s, choose another --out",
                              dir, c->dir, c->kind->noun);
    }
    return ABAR_OK;
}

/* A folder has one thing. */
static abar_status check_folder(const abar_compare *c)
{
    static const char *const other[][2] = {
        {"config.json", "run"}, {"compare.json", "comparison"}, {"sweep.json", "sweep"}, {"tune.json", "tuning"}};
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__compare_config_path(c, path));
    if (abar__path_exists(path))
        return abar__fail(c->ctx, ABAR_E_ARGUMENT,
                          "%s: already holds a %s, continue it with --resume %s or choose another --out", c->dir, c->kind->noun,
                          c->dir);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        ABAR_TRY(abar__run_path(c->ctx, c->dir, other[i][0], path));
        if (abar__path_exists(path))
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: already holds a %s, choose another --out", c->dir, other[i][1]);
    }
    return ABAR_OK;
}

abar_status abar__compare_fill(abar_compare *c, const abar_compare_config *config)
{
    ABAR_TRY(copy_config(c, config));
    ABAR_TRY(check(c));
    ABAR_TRY(check_folder(c));
    ABAR_TRY(make_records(c));
    ABAR_TRY(make_pairs(c));
    return check_folders(c);
}

/* Raises methods with fewer seeds to this number. */
static abar_status grow_seeds(abar_compare *c, int64_t seeds)
{
    int64_t fewest = INT64_MAX;
    for (int m = 0; m < c->methods; m++)
        if (c->method[m].seeds < fewest) fewest = c->method[m].seeds;
    if (seeds > 0 && seeds < fewest)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seeds %lld: %s has %lld already, give more or leave it out",
                          (long long)seeds, c->dir, (long long)fewest);
    for (int m = 0; m < c->methods; m++)
        if (c->method[m].seeds < seeds) c->method[m].seeds = seeds;
    if (c->seeds < seeds) c->seeds = seeds;
    return ABAR_OK;
}

/* Once the methods have been read. */
static abar_status fill_records(abar_compare *c, int64_t seeds)
{
    ABAR_TRY(grow_seeds(c, seeds));
    ABAR_TRY(check(c));
    ABAR_TRY(make_records(c));
    return make_pairs(c);
}

abar_status abar__compare_fill_from_text(abar_compare *c, const char *label, const char *json, size_t n)
{
    ABAR_TRY(abar__compare_config_parse(c, label, json, n));
    return fill_records(c, 0);
}

abar_status abar__compare_fill_from_folder(abar_compare *c, const char *dir, int64_t seeds)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(copy_dir(c, dir));
    ABAR_TRY(abar__compare_config_path(c, path));
    if (!abar__path_exists(path)) return abar__folder_lacks(c->ctx, c->dir, c->kind->noun, path + strlen(c->dir) + 1);
    ABAR_TRY(abar__folder_lock(c->ctx, c->dir, &c->folder));
    ABAR_TRY(abar__compare_config_load(c));
    ABAR_TRY(fill_records(c, seeds));
    return abar__compare_records_load(c);
}

abar_status abar__compare_make(abar_context *ctx, const abar__compare_kind *kind, const abar_compare_events *events,
                               abar_compare **out)
{
    void *memory;
    abar_compare_events known = {.size = sizeof known};
    *out = NULL;
    if (events) ABAR_TRY(abar__struct_read(ctx, "abar_compare_events", events, &known, sizeof known));
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_compare), &memory));
    *out = memory;
    (*out)->kind = kind;
    (*out)->events = known;
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->built, NULL);
    (*out)->ctx = ctx;
    (*out)->folder = -1;
    atomic_init(&(*out)->stop, false);
    atomic_init(&(*out)->handlers, 0);
    for (int i = 0; i < ABAR_COMPARE_JOBS_MAX; i++) {
        (*out)->worker[i].c = *out;
        atomic_init(&(*out)->worker[i].trainer, NULL);
    }
    return ABAR_OK;
}

abar_status abar__compare_finish(abar_status status, abar_compare **out)
{
    if (status >= 0) return ABAR_OK;
    abar_compare_destroy(*out);
    *out = NULL;
    return status;
}

abar_status abar_compare_create(abar_context *ctx, const abar_compare_config *config, const abar_compare_events *events,
                                abar_compare **out)
{
    abar_compare_config c;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_compare_config", config, &c, sizeof c));
    ABAR_TRY(abar__compare_make(ctx, &abar__comparison_kind, events, out));
    return abar__compare_finish(abar__compare_fill(*out, &c), out);
}

abar_status abar_compare_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                              abar_compare **out)
{
    ABAR_TRY(abar__compare_make(ctx, &abar__comparison_kind, events, out));
    return abar__compare_finish(abar__compare_fill_from_folder(*out, dir, seeds), out);
}

abar_status abar__compare_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_compare **out)
{
    ABAR_TRY(abar__compare_make(ctx, &abar__comparison_kind, NULL, out));
    return abar__compare_finish(abar__compare_fill_from_text(*out, label, json, n), out);
}

void abar_compare_destroy(abar_compare *c)
{
    if (!c) return;
    for (int i = 0; i < c->runs; i++) {
        abar__compare_record *r = &c->record[i];
        abar__free(c->ctx, r->history, (size_t)r->run.epochs * sizeof *r->history);
        abar__text_free(c->ctx, &r->failure_text);
    }
    for (int m = 0; m < c->methods; m++) abar_setup_destroy(c->ctx, c->method[m].setup);
    if (c->kind->destroy) c->kind->destroy(c);
    abar__free(c->ctx, c->record, (size_t)c->runs * sizeof *c->record);
    abar__free(c->ctx, c->method, (size_t)c->methods * sizeof *c->method);
    if (c->pair) abar__free(c->ctx, c->pair, (size_t)c->pairs * sizeof *c->pair);
    abar__text_free(c->ctx, &c->text);
    abar__folder_unlock(c->folder);
    pthread_cond_destroy(&c->built);
    pthread_mutex_destroy(&c->lock);
    abar__free(c->ctx, c, sizeof *c);
}

/* ---- a network and data of one's own ---------------------------------------------------------------------------- */

abar_status abar_compare_set_network(abar_compare *c, abar_network_builder builder, void *user)
{
    for (int m = 0; m < c->methods; m++) ABAR_TRY(abar_setup_set_network(c->ctx, c->method[m].setup, builder, user));
    return ABAR_OK;
}

abar_status abar_compare_set_data(abar_compare *c, const abar_dataset *data)
{
    for (int m = 0; m < c->methods; m++) ABAR_TRY(abar_setup_set_data(c->ctx, c->method[m].setup, data));
    return ABAR_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

int abar_compare_method_count(const abar_compare *c) { return c->methods; }
const abar_setup *abar_compare_setup(const abar_compare *c, int method) { return c->method[method].setup; }
int abar_compare_run_count(const abar_compare *c) { return c->runs; }
const abar_compare_run *abar_compare_run_of(const abar_compare *c, int run) { return &c->record[run].run; }
const char *abar_compare_dir(const abar_compare *c) { return c->dir; }

int abar_compare_baseline(const abar_compare *c)
{
    for (int m = 0; m < c->methods; m++)
        if (strcmp(c->method[m].setup->train.optim, "sgd") == 0) return m;
    return 0;
}

abar_status abar_compare_report(abar_compare *c, const char **json)
{
    c->text.length = 0;
    ABAR_TRY(abar__compare_write(c, &c->text));
    *json = c->text.data;
    return ABAR_OK;
}
