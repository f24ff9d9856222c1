/* Carrying out a tuning: round by round, then the chosen settings. Every round is a sweep in a folder of its own, and who goes
 * on follows from its results alone: a tuning that was killed finds its way by reading them again. */
#include "train/sweep/tune_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- events ------------------------------------------------------------------------------------------------------------ */

static void say(const abar_tune *t, const char *text)
{
    const abar_compare_progress p = {.runs = t->compare ? t->compare->runs : 0, .news = text};
    if (t->events.progress) t->events.progress(t->events.user, &p);
}

/* Once the first run trains there is something to resume. */
static abar_status claim(abar_tune *t)
{
    if (t->folder >= 0) return ABAR_OK;
    ABAR_TRY(abar__folder_make(t->ctx, t->dir));
    ABAR_TRY(abar__folder_lock(t->ctx, t->dir, &t->folder));
    return abar__tune_save(t);
}

static void pass(void *user, const abar_compare_progress *p)
{
    abar_tune *t = user;
    if (!p->news && t->claimed >= 0) {
        t->claimed = claim(t);
        if (t->claimed < 0) abar_compare_stop(t->compare);
    }
    if (t->events.progress) t->events.progress(t->events.user, p);
}

/* ---- one comparison ---------------------------------------------------------------------------------------------------- */

static abar_status run_current(abar_tune *t)
{
    abar_compare_jobs(t->compare, t->jobs);
    ABAR_TRY(abar_compare_ranks(t->compare, t->comm));
    atomic_store(&t->running, t->compare);
    t->claimed = ABAR_OK;
    if (atomic_load(&t->stop)) abar_compare_stop(t->compare);
    abar_status status = abar_compare_run_all(t->compare);
    atomic_store(&t->running, NULL);
    while (atomic_load(&t->handlers) > 0) {}
    if (status < 0) return status;
    ABAR_TRY(t->claimed);
    ABAR_TRY(claim(t));
    return status;
}

static void close_current(abar_tune *t)
{
    abar_compare_destroy(t->compare);
    t->compare = NULL;
}

abar_status abar__tune_setup(const abar_tune *t, int optimizer, int trial, int64_t epochs, abar_setup **out)
{
    const abar__tuned *o = &t->optimizer[optimizer];
    ABAR_TRY(abar__setup_copy(t->ctx, o->setup, out));
    abar_status status = ABAR_OK;
    for (int a = 0; a < t->axes && status >= 0; a++)
        if (o->trial[trial].value[a][0]) status = abar_setup_set(t->ctx, *out, t->axis[a].name, o->trial[trial].value[a]);
    abar_train_config *train = &(*out)->train;
    train->warmup *= (double)epochs / (double)train->epochs;
    train->epochs = epochs;
    train->recipe_warmup = 0.0;
    if (status >= 0) return ABAR_OK;
    abar_setup_destroy(t->ctx, *out);
    *out = NULL;
    return status;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------------ */

static void round_dir(const abar_tune *t, int round, char dir[ABAR_OPTION_TEXT_MAX])
{
    snprintf(dir, ABAR_OPTION_TEXT_MAX, "%.400s/round%d", t->dir, round + 1);
}

/* The cells of a round: the trials that go on, optimizer by optimizer. */
static abar_status make_cells(const abar_tune *t, int64_t epochs, abar__sweep *s, abar_setup **setup)
{
    int n = 0;
    for (int o = 0; o < t->optimizers; o++)
        for (int i = 0; i < t->optimizer[o].n_left; i++, n++) {
            const int trial = t->optimizer[o].left[i];
            ABAR_TRY(abar__tune_setup(t, o, trial, epochs, &setup[n]));
            s->cell[n] = (abar__sweep_cell){.optimizer = o, .axis = -1};
            memcpy(s->cell[n].value, t->optimizer[o].trial[trial].value, sizeof s->cell[n].value);
        }
    return ABAR_OK;
}

static int trials_left(const abar_tune *t)
{
    int n = 0;
    for (int o = 0; o < t->optimizers; o++) n += t->optimizer[o].n_left;
    return n;
}

static abar_status make_sweep(const abar_tune *t, abar__sweep **out)
{
    void *memory;
    ABAR_TRY(abar__alloc(t->ctx, sizeof **out, &memory));
    *out = memory;
    (*out)->axes = t->axes;
    (*out)->optimizers = t->optimizers;
    (*out)->untested = true;
    memcpy((*out)->axis, t->axis, sizeof t->axis);
    for (int o = 0; o < t->optimizers; o++) memcpy((*out)->optimizer[o], t->optimizer[o].label, sizeof(*out)->optimizer[o]);
    return abar__sweep_alloc(t->ctx, *out, trials_left(t));
}

static abar_status check_cells(const abar_tune *t, const abar__sweep *wanted, const char *dir)
{
    const abar__sweep *found = abar__sweep_of(t->compare);
    bool same = wanted->cells == found->cells && wanted->axes == found->axes;
    for (int i = 0; same && i < wanted->cells; i++) {
        const abar__sweep_cell *a = &wanted->cell[i], *b = &found->cell[i];
        same = a->optimizer == b->optimizer;
        for (int k = 0; same && k < wanted->axes; k++) same = strcmp(a->value[k], b->value[k]) == 0;
    }
    if (same) return ABAR_OK;
    return abar__fail(t->ctx, ABAR_E_FORMAT, "%s: holds other trials than the rounds before it lead to, move it away", dir);
}

/* Loads the round in its folder, or makes it. s and setups are its cells. */
static abar_status open_sweep(abar_tune *t, const char *dir, abar__sweep *s, abar_setup *const *setups)
{
    char path[ABAR_RUN_PATH_MAX];
    const abar_compare_events events = {sizeof events, pass, t};
    abar_status status = abar__run_path(t->ctx, dir, "sweep.json", path);
    if (status >= 0 && !abar__path_exists(path)) {
        const abar_compare_config config = {
            .size = sizeof config, .out = dir, .setups = (const abar_setup *const *)setups, .seeds = 1};
        return abar__sweep_make(t->ctx, &config, s, &events, &t->compare);
    }
    if (status >= 0) status = abar_sweep_load(t->ctx, dir, 0, &events, &t->compare);
    if (status >= 0) status = check_cells(t, s, dir);
    abar__sweep_free(t->ctx, s);
    return status;
}

static abar_status open_round(abar_tune *t, int round)
{
    char dir[ABAR_OPTION_TEXT_MAX];
    const int cells = trials_left(t);
    void *memory = NULL;
    abar__sweep *s = NULL;
    close_current(t);
    round_dir(t, round, dir);
    abar_status status = abar__alloc(t->ctx, (size_t)cells * sizeof(abar_setup *), &memory);
    abar_setup **setup = memory;
    if (status >= 0) status = make_sweep(t, &s);
    if (status >= 0) status = make_cells(t, t->round[round].epochs, s, setup);
    if (status >= 0)
        status = open_sweep(t, dir, s, setup);
    else
        abar__sweep_free(t->ctx, s);
    for (int i = 0; setup && i < cells; i++) abar_setup_destroy(t->ctx, setup[i]);
    if (setup) abar__free(t->ctx, setup, (size_t)cells * sizeof *setup);
    return status;
}

/* Orders the trials of an optimizer by their results in the current round and keeps the best, none that failed. */
static void keep_best(abar_tune *t, int optimizer, int most)
{
    abar__tuned *o = &t->optimizer[optimizer];
    const abar__sweep *s = abar__sweep_of(t->compare);
    abar__score score[ABAR_TUNE_TRIALS_MAX];
    int kept = 0, trial[ABAR_TUNE_TRIALS_MAX], seen = 0;
    for (int i = 0; i < s->cells; i++) {
        if (s->cell[i].optimizer != optimizer) continue;
        const abar__score its = abar__sweep_score(t->compare, i);
        const int which = o->left[seen++];
        int k = kept;
        if (isnan(its.accuracy)) continue;
        for (; k > 0 && abar__score_is_better(its, score[k - 1]); k--) score[k] = score[k - 1], trial[k] = trial[k - 1];
        score[k] = its;
        trial[k] = which;
        kept++;
    }
    o->n_left = kept < most ? kept : most;
    memcpy(o->left, trial, (size_t)o->n_left * sizeof *trial);
    o->score = kept > 0 ? score[0] : (abar__score){NAN, NAN};
}

static void count_costs(abar_tune *t)
{
    const abar__sweep *s = abar__sweep_of(t->compare);
    for (int i = 0; i < t->compare->runs; i++) {
        const abar_compare_run *run = &t->compare->record[i].run;
        abar__tuned *o = &t->optimizer[s->cell[run->method].optimizer];
        o->failures += run->failure != NULL;
        o->epochs += run->epochs;
        o->seconds += run->seconds;
    }
}

static abar_status run_round(abar_tune *t, int round)
{
    char text[160];
    const int trials = t->round[round].trials;
    const int64_t epochs = t->round[round].epochs;
    const bool last = round == t->rounds - 1;
    if (!t->open) ABAR_TRY(open_round(t, round));
    t->open = true;
    ABAR_TRY(abar__compare_check(t->compare));
    snprintf(text, sizeof text, "round %d of %d: %d trial%s of each optimizer, %lld epoch%s", round + 1, t->rounds, trials,
             trials > 1 ? "s" : "", (long long)epochs, epochs > 1 ? "s" : "");
    say(t, text);
    const abar_status status = run_current(t);
    if (status != ABAR_OK) return status;
    count_costs(t);
    for (int o = 0; o < t->optimizers; o++) keep_best(t, o, last ? 1 : t->round[round + 1].trials);
    return ABAR_OK;
}

/* ---- the choice -------------------------------------------------------------------------------------------------------- */

static void choose(abar__tuned *o, const abar_tune *t)
{
    size_t n = 0;
    o->chosen = o->n_left > 0;
    for (int a = 0; a < t->axes && o->chosen && n < sizeof o->values; a++) {
        const char *value = o->trial[o->left[0]].value[a];
        if (value[0])
            n += (size_t)snprintf(o->values + n, sizeof o->values - n, "%s%s %s", n ? ", " : "", t->axis[a].name, value);
    }
}

/* A comparison of the chosen settings on the whole training set, with seeds that no trial had. */
static abar_status make_final(abar_tune *t, const char *dir, const abar_compare_events *events, abar_setup **setup)
{
    const char *label[ABAR_COMPARE_METHODS_MAX];
    int n = 0;
    for (int o = 0; o < t->optimizers; o++) {
        const abar__tuned *tuned = &t->optimizer[o];
        if (!tuned->chosen) continue;
        ABAR_TRY(abar__tune_setup(t, o, tuned->left[0], tuned->setup->train.epochs, &setup[n]));
        setup[n]->train.validation = 0.0;
        setup[n]->train.seed++;
        label[n++] = tuned->label;
    }
    const abar_compare_config config = {.size = sizeof config,
                                        .out = dir,
                                        .setups = (const abar_setup *const *)setup,
                                        .labels = label,
                                        .methods = n,
                                        .seeds = t->seeds};
    abar_compare *c;
    ABAR_TRY(abar__compare_make(t->ctx, &abar__comparison_kind, events, &c));
    for (int a = 0; a < t->axes; a++) abar__compare_allow(c, t->axis[a].name);
    const abar_status status = abar__compare_finish(abar__compare_fill(c, &config), &c);
    t->compare = c;
    return status;
}

static abar_status open_final(abar_tune *t)
{
    char dir[ABAR_OPTION_TEXT_MAX], path[ABAR_RUN_PATH_MAX];
    const abar_compare_events events = {sizeof events, pass, t};
    abar_setup *setup[ABAR_COMPARE_METHODS_MAX] = {NULL};
    close_current(t);
    snprintf(dir, sizeof dir, "%.400s/final", t->dir);
    ABAR_TRY(abar__run_path(t->ctx, dir, "compare.json", path));
    if (abar__path_exists(path)) return abar_compare_load(t->ctx, dir, t->seeds, &events, &t->compare);
    const abar_status status = make_final(t, dir, &events, setup);
    for (int i = 0; i < ABAR_COMPARE_METHODS_MAX; i++) abar_setup_destroy(t->ctx, setup[i]);
    return status;
}

static abar_status run_final(abar_tune *t)
{
    char text[160];
    bool any = false;
    for (int o = 0; o < t->optimizers; o++) {
        if (!t->open) choose(&t->optimizer[o], t);
        any = any || t->optimizer[o].chosen;
    }
    if (!any) return abar__fail(t->ctx, ABAR_E_NUMERIC, "tune: every trial failed, give a space with lower rates");
    if (!t->open) ABAR_TRY(open_final(t));
    t->open = true;
    ABAR_TRY(abar__compare_check(t->compare));
    snprintf(text, sizeof text, "the chosen settings with %lld new seed%s, on the whole training set and the test set",
             (long long)t->seeds, t->seeds > 1 ? "s" : "");
    say(t, text);
    return run_current(t);
}

/* ---- all --------------------------------------------------------------------------------------------------------------- */

static void begin(abar_tune *t)
{
    t->complete = false;
    for (int o = 0; o < t->optimizers; o++) {
        abar__tuned *tuned = &t->optimizer[o];
        tuned->n_left = t->trials;
        for (int i = 0; i < t->trials; i++) tuned->left[i] = i;
        tuned->chosen = false;
        tuned->score = (abar__score){NAN, NAN};
        tuned->values[0] = '\0';
        tuned->failures = 0;
        tuned->epochs = 0;
        tuned->seconds = 0.0;
    }
}

abar_status abar__tune_check_final(abar_tune *t)
{
    char dir[ABAR_OPTION_TEXT_MAX];
    const abar_compare_events events = {sizeof events, pass, t};
    abar_setup *setup[ABAR_COMPARE_METHODS_MAX] = {NULL};
    begin(t);
    for (int o = 0; o < t->optimizers; o++) t->optimizer[o].chosen = true;
    snprintf(dir, sizeof dir, "%.400s/final", t->dir);
    const abar_status status = make_final(t, dir, &events, setup);
    for (int i = 0; i < ABAR_COMPARE_METHODS_MAX; i++) abar_setup_destroy(t->ctx, setup[i]);
    close_current(t);
    begin(t);
    return status;
}

abar_status abar_tune_run(abar_tune *t)
{
    abar_status status = ABAR_OK;
    if (t->next == 0 && !t->open) begin(t);
    while (t->next < t->rounds && status == ABAR_OK) {
        status = run_round(t, t->next);
        if (status != ABAR_OK) break;
        t->next++;
        t->open = false;
        status = abar__tune_save(t);
    }
    if (status == ABAR_OK) status = run_final(t);
    atomic_store(&t->stop, false);
    if (status != ABAR_OK) return status;
    t->complete = true;
    return abar__tune_save(t);
}

void abar_tune_stop(abar_tune *t)
{
    atomic_fetch_add(&t->handlers, 1);
    atomic_store(&t->stop, true);
    abar_compare *running = atomic_load(&t->running);
    if (running) abar_compare_stop(running);
    atomic_fetch_sub(&t->handlers, 1);
}

const abar_tune_result *abar_tune_result_of(const abar_tune *t, int optimizer)
{
    abar__tuned *o = (abar__tuned *)(uintptr_t)&t->optimizer[optimizer];
    const bool text = o->setup->model->text;
    o->result = (abar_tune_result){.label = o->label,
                                   .space = o->space,
                                   .trials = t->trials,
                                   .failures = o->failures,
                                   .epochs = o->epochs,
                                   .seconds = o->seconds,
                                   .values = o->values,
                                   .validation = text ? o->score.loss : o->score.accuracy,
                                   .test_accuracy = {NAN, NAN},
                                   .test_loss = {NAN, NAN}};
    const bool final = t->compare && t->compare->kind == &abar__comparison_kind;
    for (int m = 0; final && m < t->compare->methods; m++) {
        const abar_compare_row *row = abar_compare_row_of(t->compare, m);
        if (strcmp(row->label, o->label) != 0) continue;
        o->result.runs = row->runs - row->failures;
        o->result.test_accuracy = row->test_accuracy;
        o->result.test_loss = row->test_loss;
    }
    return &o->result;
}
