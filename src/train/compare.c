/* A comparison: every method with every seed, one run after the other, each an ordinary trainer in a folder of its own. What
 * has ended is kept, so that stopping and being killed cost at most what the run in progress had not saved. */
#include "train/compare_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* ---- equal conditions ------------------------------------------------------------------------------------------- */

/* Settings that may differ between methods: how an optimizer is driven. All others make the problem, or its cost. */
static bool may_differ(const char *name)
{
    static const char *const own[] = {"optim",    "lr",     "final-lr",   "weight-decay",       "decay-all", "clip",
                                      "schedule", "warmup", "accumulate", "schedule-per-epoch", "out",       NULL};
    for (const char *const *o = own; *o; o++)
        if (strcmp(name, *o) == 0) return true;
    return false;
}

abar_status abar_compare_align(abar_context *ctx, const abar_setup *with, abar_setup *setup)
{
    abar_setup_table from[ABAR_SETUP_TABLES_MAX], to[ABAR_SETUP_TABLES_MAX];
    abar_setup_tables(with, from);
    abar_setup_tables(setup, to);
    if (with->model != setup->model)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "compare: %s and %s are two models, compare optimizers on one",
                          with->model->name, setup->model->name);
    for (int i = 0; i < 2; i++) { /* the run's own settings, and the model's */
        for (const abar_option *o = from[i].options; o->name; o++) {
            char value[ABAR_OPTION_TEXT_MAX];
            if (may_differ(o->name)) continue;
            ABAR_TRY(abar_options_get(ctx, from[i].options, from[i].config, o->name, value, sizeof value));
            ABAR_TRY(abar_options_set(ctx, to[i].options, to[i].config, o->name, value));
        }
    }
    return ABAR_OK;
}

static abar_status check_same_table(const abar_compare *c, int m, const abar_setup_table *first, const abar_setup_table *other)
{
    for (const abar_option *o = first->options; o->name; o++) {
        char a[ABAR_OPTION_TEXT_MAX], b[ABAR_OPTION_TEXT_MAX];
        if (may_differ(o->name)) continue;
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
    abar_setup_tables(c->method[0].setup, first);
    abar_setup_tables(c->method[m].setup, other);
    ABAR_TRY(check_same_table(c, m, &first[0], &other[0]));
    return check_same_table(c, m, &first[1], &other[1]); /* the same model by now, so the same table */
}

static abar_status check_label(const abar_compare *c, int m)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    const char *label = c->method[m].label;
    if (!label[0] || label[strspn(label, letters)])
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: cannot name a method, use letters, digits, +, - and _", label);
    for (int i = 0; i < m; i++)
        if (strcmp(c->method[i].label, label) == 0)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: is compared twice, tell the two apart as in a=%s,b=%s", label,
                              label, label);
    return ABAR_OK;
}

static abar_status check_seeds(const abar_compare *c)
{
    const abar_option *seed = abar_options_find(abar_train_options, "seed");
    if (c->seeds < 1 || c->seeds > ABAR_COMPARE_SEEDS_MAX)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seeds %lld: out of range, give a value from 1 to %d", (long long)c->seeds,
                          ABAR_COMPARE_SEEDS_MAX);
    if ((double)(c->method[0].setup->train.seed + c->seeds) > seed->max)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seed: too large for %lld seeds from there on, start lower",
                          (long long)c->seeds);
    return ABAR_OK;
}

static abar_status check(abar_compare *c)
{
    for (int m = 0; m < c->methods; m++) {
        abar_setup *setup = c->method[m].setup;
        ABAR_TRY(check_label(c, m));
        snprintf(setup->train.out, sizeof setup->train.out, "."); /* there will be one */
        ABAR_TRY(abar_setup_check(c->ctx, setup));
        memset(setup->train.out, 0, sizeof setup->train.out);
        ABAR_TRY(check_same_problem(c, m));
    }
    return check_seeds(c);
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static abar_status copy_dir(abar_compare *c, const char *dir)
{
    size_t n = strlen(dir), most = sizeof c->dir - ABAR_COMPARE_LABEL_MAX - 32; /* room for LABEL-sSEED */
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
    if (config->methods < 1 || config->methods > ABAR_COMPARE_METHODS_MAX)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "compare: %d methods are %s, give 1 to %d", config->methods,
                          config->methods < 1 ? "too few" : "too many", ABAR_COMPARE_METHODS_MAX);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)config->methods * sizeof *c->method, &memory));
    c->method = memory;
    c->methods = config->methods;
    c->seeds = config->seeds;
    for (int m = 0; m < c->methods; m++) {
        const char *label = config->labels ? config->labels[m] : config->setups[m]->train.optim;
        if (strlen(label) >= sizeof c->method[m].label)
            return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%.40s: too long for a label, use at most %d letters", label,
                              ABAR_COMPARE_LABEL_MAX - 1);
        memcpy(c->method[m].label, label, strlen(label));
        ABAR_TRY(abar__setup_copy(c->ctx, config->setups[m], &c->method[m].setup));
    }
    return ABAR_OK;
}

static abar_status make_records(abar_compare *c)
{
    void *memory;
    int runs = c->methods * (int)c->seeds;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)runs * sizeof *c->record, &memory));
    c->record = memory;
    c->runs = runs;
    for (int i = 0; i < runs; i++) {
        const abar__compare_method *method = &c->method[i % c->methods];
        c->record[i].run.label = method->label;
        c->record[i].run.seed = method->setup->train.seed + i / c->methods;
    }
    return ABAR_OK;
}

static abar_status fill_new(abar_compare *c, const abar_compare_config *config)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(copy_config(c, config));
    ABAR_TRY(check(c));
    ABAR_TRY(abar__run_path(c->ctx, c->dir, "compare.json", path));
    if (exists(path))
        return abar__fail(c->ctx, ABAR_E_ARGUMENT,
                          "%s: already holds a comparison, go on with --resume %s or choose another --out", c->dir, c->dir);
    return make_records(c);
}

static abar_status fill_from_folder(abar_compare *c, const char *dir, int64_t seeds)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(copy_dir(c, dir));
    ABAR_TRY(abar__run_path(c->ctx, c->dir, "compare.json", path));
    if (!exists(path))
        return abar__fail(c->ctx, ABAR_E_NOT_FOUND, "%s: holds no comparison (no compare.json), check the path", c->dir);
    ABAR_TRY(abar__folder_lock(c->ctx, c->dir, &c->lock));
    ABAR_TRY(abar__compare_config_load(c));
    if (seeds > 0 && seeds < c->seeds)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--seeds %lld: %s has %lld already, give more or leave it out",
                          (long long)seeds, c->dir, (long long)c->seeds);
    if (seeds > 0) c->seeds = seeds;
    ABAR_TRY(check(c));
    ABAR_TRY(make_records(c));
    return abar__compare_records_load(c);
}

static abar_status make(abar_context *ctx, const abar_compare_events *events, abar_compare **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_compare), &memory));
    *out = memory;
    (*out)->ctx = ctx;
    (*out)->lock = -1;
    if (events) (*out)->events = *events;
    atomic_init(&(*out)->stop, false);
    atomic_init(&(*out)->handlers, 0);
    atomic_init(&(*out)->running, NULL);
    return ABAR_OK;
}

/* What was made so far, or nothing after a failure. */
static abar_status finish_making(abar_status status, abar_compare **out)
{
    if (status >= 0) return ABAR_OK;
    abar_compare_destroy(*out);
    *out = NULL;
    return status;
}

abar_status abar_compare_create(abar_context *ctx, const abar_compare_config *config, const abar_compare_events *events,
                                abar_compare **out)
{
    ABAR_TRY(make(ctx, events, out));
    return finish_making(fill_new(*out, config), out);
}

abar_status abar_compare_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                              abar_compare **out)
{
    ABAR_TRY(make(ctx, events, out));
    return finish_making(fill_from_folder(*out, dir, seeds), out);
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
    abar__free(c->ctx, c->record, (size_t)c->runs * sizeof *c->record);
    abar__free(c->ctx, c->method, (size_t)c->methods * sizeof *c->method);
    abar__text_free(c->ctx, &c->text);
    abar__folder_unlock(c->lock);
    abar__free(c->ctx, c, sizeof *c);
}

/* ---- watching --------------------------------------------------------------------------------------------------- */

/* What is left of this run (NULL: it has ended), and for every other what its method's runs took; where none of these has
 * ended yet, what all others took. */
static double seconds_left(const abar_compare *c, const abar_progress *p)
{
    double sum = p ? p->seconds + p->seconds_left : 0.0, total = p ? p->seconds_left : 0.0;
    int64_t known = p ? 1 : 0;
    for (int m = 0; m < c->methods; m++) {
        sum += c->method[m].seconds;
        known += c->method[m].ended;
    }
    double usual = known > 0 ? sum / (double)known : 0.0;
    for (int i = c->at + 1; i < c->runs; i++) {
        const abar__compare_method *method = &c->method[i % c->methods];
        if (!c->record[i].run.ended) total += method->ended > 0 ? method->seconds / (double)method->ended : usual;
    }
    return total;
}

static double share_done(const abar_compare *c, const abar_progress *p)
{
    const abar_train_config *train = &c->method[0].setup->train;
    int64_t epochs = train->stop_after > 0 && train->stop_after < train->epochs ? train->stop_after : train->epochs;
    double within = 0.0;
    int ended = 0;
    for (int i = 0; i < c->runs; i++) ended += c->record[i].run.ended;
    if (p) within = ((double)p->epoch + (p->epoch_done ? 1.0 : (double)p->step / (double)p->steps)) / (double)epochs;
    return ((double)ended + within) / (double)c->runs;
}

static void tell(const abar_compare *c, const abar_progress *training, const abar_compare_run *result)
{
    if (!c->events.progress) return;
    const abar_compare_run *run = &c->record[c->at].run;
    abar_compare_progress p = {.run = c->at,
                               .runs = c->runs,
                               .label = run->label,
                               .seed = run->seed,
                               .training = training,
                               .result = result,
                               .done = share_done(c, training),
                               .seconds_left = seconds_left(c, training)};
    c->events.progress(c->events.user, &p);
}

static void watch(void *user, const abar_progress *p) { tell(user, p, NULL); }

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* The setup of run i: its method's, with its own seed and folder. */
static abar_status setup_of(abar_compare *c, int i, abar_setup **out)
{
    char dir[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__compare_run_dir(c, i, dir));
    ABAR_TRY(abar__setup_copy(c->ctx, c->method[i % c->methods].setup, out));
    abar_train_config *train = &(*out)->train;
    train->seed = c->record[i].run.seed;
    abar_status status = abar_options_set(c->ctx, abar_train_options, train, "out", dir);
    if (status < 0) abar_setup_destroy(c->ctx, *out);
    return status;
}

/* What a run that ended leaves. */
static abar_status take_numbers(abar_compare *c, const abar_trainer *t)
{
    abar__compare_record *r = &c->record[c->at];
    const abar__epoch *last = t->at.epoch > 0 ? &t->history[t->at.epoch - 1] : NULL;
    double steps = (double)(t->at.epoch * t->steps + t->at.step);
    size_t bytes = (size_t)t->at.epoch * sizeof *r->history;
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    r->history = memory;
    if (bytes) memcpy(r->history, t->history, bytes);
    r->run.epochs = t->at.epoch;
    r->run.best_accuracy = last ? abar__best_accuracy(t->history, t->at.epoch) : NAN;
    r->run.test_accuracy = last ? last->test_accuracy : NAN;
    r->run.test_loss = last ? last->test_loss : NAN;
    r->run.train_accuracy = last ? last->train_accuracy : NAN;
    r->run.train_loss = last ? last->train_loss : NAN;
    r->run.seconds = t->at.seconds;
    r->run.ms_per_step = steps > 0 ? 1e3 * t->at.step_seconds / steps : NAN;
    r->run.optimizer_bytes = (int64_t)abar_optim_state_bytes(t->optim);
    r->run.skipped_steps = t->at.skipped;
    return ABAR_OK;
}

static void take_nothing(abar__compare_record *r)
{
    abar_compare_run *run = &r->run;
    run->test_accuracy = run->best_accuracy = run->test_loss = run->train_accuracy = run->train_loss = NAN;
    run->ms_per_step = NAN;
}

static abar_status end_run(abar_compare *c, abar_status status)
{
    abar__compare_record *r = &c->record[c->at];
    if (status < 0) {
        const char *why = abar_context_error(c->ctx);
        ABAR_TRY(abar__text_append(c->ctx, &r->failure_text, why, strlen(why)));
        r->run.failure = r->failure_text.data;
    }
    r->run.ended = true;
    ABAR_TRY(abar__compare_record_save(c, c->at));
    if (status >= 0) {
        c->method[c->at % c->methods].seconds += r->run.seconds;
        c->method[c->at % c->methods].ended++;
    }
    ABAR_TRY(abar__compare_save(c));
    tell(c, NULL, &r->run);
    return ABAR_OK;
}

/* What says something about the method; the rest is the machine's or the user's trouble and ends the comparison. */
static bool is_result(abar_status status)
{
    return status == ABAR_E_NUMERIC || status == ABAR_E_MEMORY || status == ABAR_E_UNSUPPORTED;
}

/* The first run has made the folder: from now on it is ours, and can be resumed. */
static abar_status claim(abar_compare *c)
{
    if (c->lock >= 0) return ABAR_OK;
    ABAR_TRY(abar__folder_lock(c->ctx, c->dir, &c->lock));
    return abar__compare_save(c);
}

static abar_status train(abar_compare *c, abar_trainer *t)
{
    ABAR_TRY(claim(c));
    atomic_store(&c->running, t);
    if (atomic_load(&c->stop)) abar_trainer_stop(t); /* asked before there was anything to stop */
    abar_status status = abar_trainer_run(t);
    atomic_store(&c->running, NULL);
    while (atomic_load(&c->handlers) > 0) {}
    return status;
}

static abar_status run_one(abar_compare *c, int i)
{
    abar_setup *setup;
    abar_trainer *t = NULL;
    abar_trainer_events events = {watch, c};
    c->at = i;
    ABAR_TRY(setup_of(c, i, &setup));
    size_t base = abar_context_memory(c->ctx).now;
    abar_status status = abar_trainer_create(c->ctx, setup, exists(setup->train.out), &events, &t);
    c->record[i].run.memory_bytes = (int64_t)(abar_context_memory(c->ctx).now - base); /* it takes no more from here on */
    if (status >= 0) status = train(c, t);
    if (status == ABAR_OK || is_result(status)) {
        abar_status ended = ABAR_OK;
        if (t)
            ended = take_numbers(c, t);
        else
            take_nothing(&c->record[i]);
        if (ended >= 0) ended = end_run(c, status);
        status = ended;
    }
    abar_trainer_destroy(t);
    abar_setup_destroy(c->ctx, setup);
    return status;
}

abar_status abar_compare_run_all(abar_compare *c)
{
    for (int i = 0; i < c->runs; i++) {
        if (c->record[i].run.ended) continue;
        abar_status status = atomic_load(&c->stop) ? ABAR_STOPPED : run_one(c, i);
        if (status == ABAR_STOPPED) atomic_store(&c->stop, false);
        if (status != ABAR_OK) return status;
    }
    return abar__compare_save(c);
}

void abar_compare_stop(abar_compare *c)
{
    atomic_fetch_add(&c->handlers, 1);
    atomic_store(&c->stop, true);
    abar_trainer *t = atomic_load(&c->running);
    if (t) abar_trainer_stop(t);
    atomic_fetch_sub(&c->handlers, 1);
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

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
