/* The plan of a tuning: which values each trial of an optimizer has, and how many trials of how many epochs a round has. */
#include "base/number.h"
#include "train/sweep/tune_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEPT 3      /* one of so many trials goes on */
#define TRIES 10000 /* to find a trial that is not there yet */

/* The space of an axis for an optimizer, and its option; NULL: it has none. */
static const abar__space *trial_space(const abar_tune *t, int optimizer, int axis, const abar_option **option)
{
    const abar__tuned *o = &t->optimizer[optimizer];
    const int i = abar__space_for(t->over, t->n_over, o->label, t->axis[axis].name);
    *option = abar__setup_option(o->setup, t->axis[axis].name, NULL);
    return i >= 0 && *option ? &t->over[i] : NULL;
}

/* ---- trials ------------------------------------------------------------------------------------------------------------ */

/* The value at a place from 0 to 1. Each value of a list has an equal share. */
static void write_value(const abar__space *s, const abar_option *option, double place, char value[ABAR_VALUE_MAX])
{
    if (s->values == 0) {
        abar__space_write(option, abar__space_at(s, place), value);
        return;
    }
    const int i = (int)(place * s->values);
    memcpy(value, s->value[i < s->values ? i : s->values - 1], ABAR_VALUE_MAX);
}

static bool is_known(const abar__tuned *o, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&o->trial[i], &o->trial[n], sizeof o->trial[0]) == 0) return true;
    return false;
}

/* One setting: equal distances, both ends included. */
static void fill_line(abar_tune *t, int optimizer, int axis, int trial)
{
    const abar_option *option;
    const abar__space *s = trial_space(t, optimizer, axis, &option);
    const double place = s->values > 0   ? ((double)trial + 0.5) / t->trials
                         : t->trials > 1 ? (double)trial / (t->trials - 1)
                                         : 0.5;
    write_value(s, option, place, t->optimizer[optimizer].trial[trial].value[axis]);
}

/* The digits of k in a base, mirrored at the point: van der Corput's sequence. */
static double mirrored(int64_t k, int base)
{
    double place = 0.0, weight = 1.0 / base;
    for (; k > 0; k /= base, weight /= base) place += weight * (double)(k % base);
    return place;
}

/* Several settings: point k, from 1, of Halton's sequence. */
static void fill_point(abar_tune *t, int optimizer, int trial, int64_t k)
{
    static const int base[ABAR_SWEEP_AXES_MAX] = {2, 3, 5, 7, 11, 13, 17, 19};
    int d = 0;
    for (int a = 0; a < t->axes; a++) {
        const abar_option *option;
        const abar__space *s = trial_space(t, optimizer, a, &option);
        if (s) write_value(s, option, mirrored(k, base[d++]), t->optimizer[optimizer].trial[trial].value[a]);
    }
}

/* Returns how many different trials there are. */
static int fill_different(abar_tune *t, int optimizer, int settings, int only)
{
    const abar__tuned *o = &t->optimizer[optimizer];
    int64_t k = 1;
    int different = 0;
    for (int i = 0; i < t->trials; i++) {
        if (settings == 1) fill_line(t, optimizer, only, i);
        bool known = settings == 1 ? is_known(o, i) : true;
        for (int tries = 0; settings > 1 && known && tries < TRIES; tries++, k++) {
            fill_point(t, optimizer, i, k);
            known = is_known(o, i);
        }
        different += !known;
        if (known && settings > 1) break;
    }
    return different;
}

static abar_status fill_trials(abar_tune *t, int optimizer)
{
    const char *label = t->optimizer[optimizer].label;
    int settings = 0, only = 0;
    for (int a = 0; a < t->axes; a++) {
        const abar_option *option;
        if (trial_space(t, optimizer, a, &option)) settings++, only = a;
    }
    if (settings == 0)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                          "--over: nothing varies for %s, give it a space, as in --over %s.lr=0.01:1:log", label, label);
    const int wanted = t->trials, n = fill_different(t, optimizer, settings, only);
    if (n == wanted) return ABAR_OK;
    /* of whole numbers spaced by logarithm, n trials may share values again */
    for (t->trials = n; fill_different(t, optimizer, settings, only) < t->trials;) t->trials--;
    const int most = t->trials;
    t->trials = wanted;
    return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--trials %d: the space of %s has only %d different values, give at most %d",
                      wanted, label, n, most);
}

/* Refuses values before anything is trained. */
static abar_status check_trials(const abar_tune *t, int optimizer)
{
    for (int i = 0; i < t->trials; i++) {
        abar_setup *setup;
        ABAR_TRY(abar__tune_setup(t, optimizer, i, t->optimizer[optimizer].setup->train.epochs, &setup));
        const abar_status status = abar_setup_check(t->ctx, setup);
        abar_setup_destroy(t->ctx, setup);
        if (status < 0) return status;
    }
    return ABAR_OK;
}

/* "lr=0.01:1:log damping=0.1,1" */
static void write_space(const abar_tune *t, int optimizer, char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    for (int a = 0; a < t->axes && n < size; a++) {
        const abar_option *option;
        const abar__space *s = trial_space(t, optimizer, a, &option);
        if (s) n += (size_t)snprintf(text + n, size - n, "%s%s=%.200s", n ? " " : "", s->name, s->text);
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------------ */

/* A third of the trials goes on until three or fewer are left; the last round has all epochs, each before it a third. */
static void plan_rounds(abar_tune *t)
{
    int64_t epochs = t->optimizer[0].setup->train.epochs;
    int n = t->trials;
    t->rounds = 0;
    for (;; n = (n + KEPT - 1) / KEPT) {
        t->round[t->rounds++].trials = n;
        if (n <= KEPT || t->rounds == ABAR_TUNE_ROUNDS_MAX) break;
    }
    for (int r = t->rounds - 1; r >= 0; r--) {
        t->round[r].epochs = epochs;
        epochs = epochs > KEPT ? (epochs + KEPT / 2) / KEPT : 1;
    }
}

static abar_status read_spaces(abar_tune *t, const char *const *over)
{
    const abar_setup *setups[ABAR_COMPARE_METHODS_MAX];
    const char *labels[ABAR_COMPARE_METHODS_MAX];
    for (int o = 0; o < t->optimizers; o++) setups[o] = t->optimizer[o].setup, labels[o] = t->optimizer[o].label;
    ABAR_TRY(abar__spaces_read(t->ctx, over, t->n_over, &(abar__subjects){setups, labels, t->optimizers}, true, t->over));
    for (int i = 0; i < t->n_over; i++)
        if (strcmp(t->over[i].name, "epochs") == 0 || strcmp(t->over[i].name, "stop-after") == 0)
            return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--over %s: cannot be tuned, epochs are the budget", t->over[i].name);
    return abar__spaces_axes(t->ctx, t->over, t->n_over, t->axis, &t->axes);
}

abar_status abar__tune_plan(abar_tune *t, const char *const *over, int n)
{
    void *memory;
    if (n < 1 || n > ABAR_SWEEP_AXES_MAX * ABAR_COMPARE_METHODS_MAX)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--over: %d are too %s", n, n < 1 ? "few" : "many");
    ABAR_TRY(abar__alloc(t->ctx, (size_t)n * sizeof *t->over, &memory));
    t->over = memory;
    t->n_over = n;
    ABAR_TRY(read_spaces(t, over));
    for (int o = 0; o < t->optimizers; o++) {
        abar__tuned *tuned = &t->optimizer[o];
        ABAR_TRY(abar__alloc(t->ctx, (size_t)t->trials * sizeof *tuned->trial, &memory));
        tuned->trial = memory;
        ABAR_TRY(fill_trials(t, o));
        ABAR_TRY(check_trials(t, o));
        write_space(t, o, tuned->space, sizeof tuned->space);
    }
    plan_rounds(t);
    return ABAR_OK;
}

/* ---- creating ---------------------------------------------------------------------------------------------------------- */

abar_status abar__tune_make(abar_context *ctx, const abar_compare_events *events, abar_tune **out)
{
    void *memory;
    abar_compare_events known = {.size = sizeof known};
    *out = NULL;
    if (events) ABAR_TRY(abar__struct_read(ctx, "abar_compare_events", events, &known, sizeof known));
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    *out = memory;
    (*out)->ctx = ctx;
    (*out)->events = known;
    (*out)->folder = -1;
    atomic_init(&(*out)->running, NULL);
    atomic_init(&(*out)->stop, false);
    atomic_init(&(*out)->handlers, 0);
    return ABAR_OK;
}

static abar_status copy_dir(abar_tune *t, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    if (n == 0 || n + ABAR_LABEL_MAX + 64 >= sizeof t->dir)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%.80s: %s, give another folder", dir,
                          n ? "its path is too long" : "no folder has an empty name");
    memcpy(t->dir, dir, n);
    t->dir[n] = '\0';
    return ABAR_OK;
}

static abar_status check_request(abar_context *ctx, const abar_tune_config *config)
{
    if (config->optimizers < 1 || config->optimizers > ABAR_COMPARE_METHODS_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "tune: %d optimizers, give 1 to %d", config->optimizers,
                          ABAR_COMPARE_METHODS_MAX);
    if (config->n_over < 1)
        return abar__fail(
            ctx, ABAR_E_ARGUMENT,
            "--over: says what is tuned, give NAME=VALUES, as in --over lr=0.01:1:log or --over damping=0.1,1,10");
    if (config->trials < 1 || config->trials > ABAR_TUNE_TRIALS_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--trials %d: out of range, give a value from 1 to %d", config->trials,
                          ABAR_TUNE_TRIALS_MAX);
    if (config->seeds < 1 || config->seeds > ABAR_COMPARE_SEEDS_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--seeds %lld: out of range, give a value from 1 to %d",
                          (long long)config->seeds, ABAR_COMPARE_SEEDS_MAX);
    return ABAR_OK;
}

static abar_status copy_optimizer(abar_tune *t, const abar_tune_config *config, int o)
{
    abar__tuned *to = &t->optimizer[o];
    const char *label = config->labels ? config->labels[o] : config->setups[o]->train.optim;
    if (strlen(label) >= sizeof to->label)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%.40s: too long for a label, use at most %d letters", label,
                          ABAR_COMPARE_LABEL_MAX - 1);
    memcpy(to->label, label, strlen(label) + 1);
    for (int k = 0; k < o; k++)
        if (strcmp(t->optimizer[k].label, label) == 0)
            return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%s: is tuned twice, give two labels as in a=%s,b=%s", label, label,
                              label);
    ABAR_TRY(abar__setup_copy(t->ctx, config->setups[o], &to->setup));
    t->optimizers = o + 1;
    memset(to->setup->train.out, 0, sizeof to->setup->train.out);
    if (to->setup->train.validation <= 0.0)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                          "--validation 0: trials are chosen on a validation part, give 0.1 for example");
    if (to->setup->train.stop_after > 0)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--stop-after %lld: trials are whole runs of --epochs, leave it out",
                          (long long)to->setup->train.stop_after);
    return abar_setup_check(t->ctx, to->setup);
}

static abar_status check_folder(const abar_tune *t)
{
    static const char *const there[][2] = {{"tune.json", "tuning"},
                                           {"config.json", "run"},
                                           {"compare.json", "comparison"},
                                           {"sweep.json", "sweep"},
                                           {"round1/sweep.json", "round of another tuning"}};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char path[ABAR_RUN_PATH_MAX];
        ABAR_TRY(abar__run_path(t->ctx, t->dir, there[i][0], path));
        if (abar__path_exists(path) && i == 0)
            return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                              "%s: already holds a tuning, continue it with --resume %s or choose another --out", t->dir,
                              t->dir);
        if (abar__path_exists(path))
            return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%s: already holds a %s, choose another --out", t->dir, there[i][1]);
    }
    return ABAR_OK;
}

static abar_status fill_new(abar_tune *t, const abar_tune_config *config)
{
    ABAR_TRY(copy_dir(t, config->out ? config->out : ""));
    for (int o = 0; o < config->optimizers; o++) ABAR_TRY(copy_optimizer(t, config, o));
    t->trials = config->trials;
    t->seeds = config->seeds;
    ABAR_TRY(abar__tune_plan(t, config->over, config->n_over));
    ABAR_TRY(check_folder(t));
    return abar__tune_check_final(t);
}

static abar_status fill_from_folder(abar_tune *t, const char *dir, int64_t seeds)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(copy_dir(t, dir));
    ABAR_TRY(abar__run_path(t->ctx, t->dir, "tune.json", path));
    if (!abar__path_exists(path)) return abar__folder_lacks(t->ctx, t->dir, "tuning", "tune.json");
    ABAR_TRY(abar__folder_lock(t->ctx, t->dir, &t->folder));
    ABAR_TRY(abar__tune_load(t));
    if (seeds > 0 && seeds < t->seeds)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--seeds %lld: %s has %lld already, give more or leave it out",
                          (long long)seeds, t->dir, (long long)t->seeds);
    if (seeds > 0) t->seeds = seeds;
    return ABAR_OK;
}

static abar_status finish(abar_status status, abar_tune **out)
{
    if (status >= 0) return ABAR_OK;
    abar_tune_destroy(*out);
    *out = NULL;
    return status;
}

abar_status abar_tune_create(abar_context *ctx, const abar_tune_config *config, const abar_compare_events *events,
                             abar_tune **out)
{
    abar_tune_config known;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_tune_config", config, &known, sizeof known));
    ABAR_TRY(check_request(ctx, &known));
    ABAR_TRY(abar__tune_make(ctx, events, out));
    return finish(fill_new(*out, &known), out);
}

abar_status abar_tune_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                           abar_tune **out)
{
    ABAR_TRY(abar__tune_make(ctx, events, out));
    return finish(fill_from_folder(*out, dir, seeds), out);
}

void abar_tune_destroy(abar_tune *t)
{
    if (!t) return;
    abar_compare_destroy(t->compare);
    for (int o = 0; o < t->optimizers; o++) {
        abar__tuned *tuned = &t->optimizer[o];
        if (tuned->trial) abar__free(t->ctx, tuned->trial, (size_t)t->trials * sizeof *tuned->trial);
        abar_setup_destroy(t->ctx, tuned->setup);
    }
    if (t->over) abar__free(t->ctx, t->over, (size_t)t->n_over * sizeof *t->over);
    abar__text_free(t->ctx, &t->text);
    abar__folder_unlock(t->folder);
    abar__free(t->ctx, t, sizeof *t);
}

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

void abar_tune_jobs(abar_tune *t, int jobs) { t->jobs = jobs; }

/* Trials have the settings of their optimizer, with values of their own. */
abar_status abar_tune_ranks(abar_tune *t, abar_comm *comm)
{
    if (abar_comm_size(comm) == 1) return ABAR_OK;
    int64_t batch = t->optimizer[0].setup->train.batch;
    for (int o = 1; o < t->optimizers; o++)
        if (t->optimizer[o].setup->train.batch < batch) batch = t->optimizer[o].setup->train.batch;
    for (int o = 0; o < t->optimizers; o++)
        ABAR_TRY(abar__compare_settle(t->ctx, comm, t->optimizer[o].setup, batch, t->dir, t->folder >= 0));
    t->comm = comm;
    return ABAR_OK;
}

const char *abar_tune_dir(const abar_tune *t) { return t->dir; }
const abar_compare *abar_tune_current(const abar_tune *t) { return t->compare; }
int abar_tune_trials(const abar_tune *t) { return t->trials; }
int abar_tune_round_count(const abar_tune *t) { return t->rounds; }
const abar_tune_round *abar_tune_round_of(const abar_tune *t, int round) { return &t->round[round]; }
int abar_tune_optimizer_count(const abar_tune *t) { return t->optimizers; }

abar_status abar_tune_report(abar_tune *t, const char **json)
{
    t->text.length = 0;
    ABAR_TRY(abar__tune_write(t, &t->text));
    *json = t->text.data;
    return ABAR_OK;
}
