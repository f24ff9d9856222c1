/* Every optimizer through the trainer: it learns, stops and resumes bit for bit, skips steps that are not finite, and no
 * other optimizer reads its checkpoint. */
#include "train_support.h"
#include "repeated.h"

#include <math.h>

static const char *const optimizers[] = {"sgd",  "adamw", "mac",   "smac",  "foof", "kfac", "eva",
                                         "lngd", "skfac", "kpsvd", "kbfgs", "mfac", NULL};

/* Those whose learning and micro-batches are tested in files of their own (test_muon_runs.c, test_soap_runs.c, ...). */
static const char *const others[] = {"nadamw", "sfadamw", "muon", "shampoo", "soap", "adahessian", "sophia", "ngd", NULL};

/* The reference device factorises in plain loops: it leaves out the layer with 785 columns. */
#define CPU "device=cpu threads=1 workers=0 limit-test=32 augment=false"
#define REF "device=ref workers=0 limit-test=32 widths=784-12-10 augment=false"

static bool has_method(const char *optim) { return !abar_rule_find(optim); }

typedef void checker(fixture *f, const char *optim);

static void each_optimizer(fixture *f, checker *check)
{
    for (int i = 0; optimizers[i]; i++) check(f, optimizers[i]);
    for (int i = 0; others[i]; i++) check(f, others[i]);
}

/* Statistics often enough for a few steps. A rule alone has no such options. */
static abar_setup *setup_for(fixture *f, const char *device, const char *optim, const char *options)
{
    const bool ref = strcmp(device, "ref") == 0;
    abar_setup *setup = make_setup(f, ref ? "mlp" : "lenet5", optim, ref ? REF : CPU);
    set_all(f, setup, options);
    if (strcmp(optim, "adamw") == 0) set(f, setup, "weight-decay", "0.01");
    if (strcmp(optim, "lngd") == 0) set(f, setup, "lr", "0.003"); /* its steps are of unit length in the metric */
    if (!has_method(optim)) return setup;
    const bool ring = strcmp(optim, "mfac") == 0;
    if (ring) {
        set(f, setup, "mfac-gradients", "24");
        set(f, setup, "lr", "0.005"); /* over the damping it is sgd's */
        set(f, setup, "damping", "0.1");
        set(f, setup, "momentum", "0.9");
    }
    set(f, setup, "tcov", "2");
    set(f, setup, "tinv", "3");
    if (ref && !ring) set(f, setup, "skip-layers", "fc1"); /* a ring is of all parameters together */
    return setup;
}

/* A new optimizer belongs in one of the lists. */
static void every_optimizer_is_listed(void **state)
{
    (void)state;
    int listed = 0, known = 0;
    while (optimizers[listed]) listed++;
    for (int i = 0; others[i]; i++) listed++;
    for (const char *const *name = abar_rule_names(); *name; name++) known++;
    for (const char *const *name = abar_method_names(); *name; name++) known++;
    assert_int_equal(listed, known);
}

/* ---- learning --------------------------------------------------------------------------------------------------------- */

/* Long enough that LeNet-5 leaves the plateau it begins on, whatever the seed: over many seeds the last loss is below three
 * quarters of the first. */
static void check_learns(fixture *f, const char *device, const char *optim)
{
    abar_setup *setup = setup_for(f, device, optim, "limit-train=256 batch=16 epochs=8");
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    const uint64_t before = abar_context_memory(f->ctx).allocations;
    need(f, abar_trainer_run(t));
    assert_int_equal(abar_context_memory(f->ctx).allocations, before);
    assert_int_equal(t->at.epoch, 8);
    assert_int_equal(t->at.skipped, 0);
    const double first = t->history[0].train_loss, last = t->history[7].train_loss;
    if (!(last < 0.9 * first && last < log(10.0))) fail_msg("%s on %s: loss %g, then %g", optim, device, first, last);
    for (int i = 0; i < abar_optim_map_count(t->optim); i++) {
        abar_map_info m = *abar_optim_map(t->optim, i);
        assert_int_equal(m.commits, strcmp(optim, "kbfgs") == 0 || strcmp(optim, "mfac") == 0 ? 128 : 64); /* or every other */
        assert_int_equal(m.dropped + m.kept + m.doubled, 0);
    }
    const int layers = device[0] == 'r' || strcmp(optim, "mfac") == 0 ? 1 : 5;
    assert_int_equal(abar_optim_map_count(t->optim), has_method(optim) ? layers : 0);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void every_optimizer_learns(void **state)
{
    for (int i = 0; optimizers[i]; i++) {
        if (!is_repeated()) check_learns(*state, "ref", optimizers[i]);
        check_learns(*state, "cpu", optimizers[i]);
    }
    check_learns(*state, "cpu", "mac+adamw");
}

/* ---- all state of a trainer, to compare ------------------------------------------------------------------------------- */

typedef struct snapshot {
    int n;
    char *name[128];
    void *bytes[128];
    size_t size[128];
} snapshot;

static abar_status keep(void *user, const char *name, const abar_tensor *t)
{
    snapshot *s = user;
    assert_in_range(s->n, 0, 127);
    s->size[s->n] = abar_tensor_bytes(t);
    s->name[s->n] = strdup(name);
    s->bytes[s->n] = malloc(s->size[s->n] + 1);
    memcpy(s->bytes[s->n++], t->data, abar_tensor_bytes(t));
    return ABAR_OK;
}

static void take(abar_trainer *t, snapshot *s)
{
    s->n = 0;
    for (int i = 0; i < abar_net_tensor_count(t->net); i++) {
        const char *name;
        abar_tensor view;
        abar_net_tensor(t->net, i, &name, &view);
        keep(s, name, &view);
    }
    assert_int_equal(abar_optim_visit(t->optim, keep, s), ABAR_OK);
}

static void drop(snapshot *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->name[i]);
        free(s->bytes[i]);
    }
}

/* The first tensor that differs; NULL: none. counters: those of steps and events too. */
static const char *difference(const snapshot *a, const snapshot *b, bool counters)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        assert_string_equal(a->name[i], b->name[i]);
        const char *dot = strrchr(a->name[i], '.');
        const bool counter = strcmp(a->name[i], "steps") == 0 || strcmp(a->name[i], "curvature.steps") == 0 ||
                             (dot && strcmp(dot, ".counts") == 0);
        if (counter && !counters) continue;
        if (a->size[i] != b->size[i] || memcmp(a->bytes[i], b->bytes[i], a->size[i]) != 0) return a->name[i];
    }
    return NULL;
}

/* ---- stopping and going on ---------------------------------------------------------------------------------------------- */

typedef struct watcher {
    abar_trainer *trainer;
    int64_t calls, stop_at;
} watcher;

static void watch(void *user, const abar_progress *p)
{
    watcher *w = user;
    (void)p;
    if (++w->calls == w->stop_at) abar_trainer_stop(w->trainer);
}

static abar_status run_until(fixture *f, const abar_setup *setup, bool resume, int64_t stop_at, snapshot *out)
{
    watcher w = {.stop_at = stop_at};
    abar_trainer_events events = {sizeof events, watch, &w};
    need(f, abar_trainer_create(f->ctx, setup, resume, &events, &w.trainer));
    abar_status status = abar_trainer_run(w.trainer);
    if (out) take(w.trainer, out);
    abar_trainer_destroy(w.trainer);
    return status;
}

/* What abar train --resume does. */
static abar_status resume(fixture *f, const char *name, int64_t stop_at, snapshot *out)
{
    char dir[PATH_MAX_TEST];
    abar_setup *setup;
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    abar_status status = run_until(f, setup, true, stop_at, out);
    abar_setup_destroy(f->ctx, setup);
    return status;
}

static void check_resume(fixture *f, const char *device, const char *optim, const char *options)
{
    snapshot whole, parts;
    char name[64];
    abar_setup *setup = setup_for(f, device, optim, "limit-train=80 batch=16 epochs=2");
    set_all(f, setup, options);
    assert_int_equal(run_until(f, setup, false, 0, &whole), ABAR_OK);
    static int folder;
    snprintf(name, sizeof name, "run%d", folder++);
    set_out(f, setup, name);
    assert_int_equal(run_until(f, setup, false, 2, NULL), ABAR_STOPPED);
    assert_int_equal(resume(f, name, 5, NULL), ABAR_STOPPED);
    assert_int_equal(resume(f, name, 0, &parts), ABAR_OK);
    const char *changed = difference(&whole, &parts, true);
    if (changed) fail_msg("%s %s on %s: %s differs", optim, options, device, changed);
    drop(&whole);
    drop(&parts);
    abar_setup_destroy(f->ctx, setup);
}

static void every_optimizer_resumes_bit_for_bit(void **state)
{
    for (int i = 0; optimizers[i]; i++) {
        if (!is_repeated()) check_resume(*state, "ref", optimizers[i], "");
        check_resume(*state, "cpu", optimizers[i], "");
    }
    for (int i = 0; others[i]; i++) check_resume(*state, "cpu", others[i], "");
    check_resume(*state, "cpu", "shampoo", "shampoo-freq=2 accumulate=2");
    check_resume(*state, "cpu", "shampoo", "shampoo-preset=mac-paper");
    check_resume(*state, "cpu", "mac+shampoo", "shampoo-freq=3");
    check_resume(*state, "cpu", "mac+adamw", "damping=adaptive refresh=spread");
    check_resume(*state, "cpu", "smac", "damping=adaptive pgrad=per-example accumulate=2");
    check_resume(*state, "cpu", "kfac", "kfac-inverse=eigen kfac=expand skip-layers=conv*");
    check_resume(*state, "cpu", "mac", "first-layer=dataset-mean");
    check_resume(*state, "cpu", "kbfgs", "kbfgs-pairs=3 accumulate=2");
    check_resume(*state, "cpu", "kbfgs", "first-pass=true");
    check_resume(*state, "cpu", "mfac", "mfac-precision=bf16 mfac-gradients=4 mfac-scope=layer accumulate=2");
    check_resume(*state, "cpu", "smac", "first-layer=dataset-cov accumulate=2");
}

/* ---- the first layer -------------------------------------------------------------------------------------------------- */

/* The mean of the training set as the loader yields it, with its homogeneous 1. */
static void mean_of_the_set(fixture *f, abar_trainer *t, double mean[785])
{
    static float images[16 * 784];
    abar_tensor input = abar_tensor_wrap(NULL, images, ABAR_F32, 4, (int64_t[]){16, 1, 28, 28});
    memset(mean, 0, 785 * sizeof *mean);
    need(f, abar_loader_seek(t->train, 0, 0));
    for (int64_t b = 0; b < t->steps; b++) {
        abar_batch batch = {.size = sizeof batch};
        need(f, abar_loader_next(t->train, &batch));
        need(f, abar_batch_normalise(f->ctx, abar_dataset_info_of(t->data), &batch, 16, &input));
        for (int i = 0; i < 16 * 784; i++) mean[i % 784] += (double)images[i] / (double)(16 * t->steps);
    }
    mean[784] = 1.0;
}

static void first_layer_mean_is_that_of_the_training_set(void **state)
{
    fixture *f = *state;
    double mean[785], square = 0.0;
    abar_setup *setup = make_setup(
        f, "mlp", "mac", CPU " widths=784-12-10 batch=16 limit-train=80 epochs=1 first-layer=dataset-mean damping=0.5");
    abar_trainer *t;
    snapshot before, after;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    mean_of_the_set(f, t, mean);
    for (int i = 0; i < 785; i++) square += mean[i] * mean[i];
    take(t, &before);
    need(f, abar_loader_seek(t->train, 0, 0));
    need(f, abar_trainer_run(t));
    take(t, &after);
    int found = 0;
    for (int i = 0; i < before.n; i++) {
        if (strcmp(before.name[i], "curvature.fc1.u") != 0) continue;
        const float *u = before.bytes[i];
        for (int k = 0; k < 785; k++) assert_true(fabs((double)u[k] - mean[k] / sqrt(0.5 + square)) <= 1e-5);
        assert_memory_equal(before.bytes[i], after.bytes[i], before.size[i]); /* and fixed */
        found++;
    }
    assert_int_equal(found, 1);
    drop(&before);
    drop(&after);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* K-BFGS: the last column of E[aaT] is the mean. */
static void first_pass_of_kbfgs_is_over_the_training_set(void **state)
{
    fixture *f = *state;
    double mean[785];
    abar_setup *setup =
        make_setup(f, "mlp", "kbfgs", CPU " widths=784-12-10 batch=16 limit-train=80 epochs=1 first-pass=true accumulate=2");
    abar_trainer *t;
    snapshot s;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    mean_of_the_set(f, t, mean);
    take(t, &s);
    int found = 0;
    for (int i = 0; i < s.n; i++) {
        const float *a = s.bytes[i];
        if (strcmp(s.name[i], "curvature.fc1.average.A") == 0)
            for (int k = 0; k < 785; k++) assert_true(fabs((double)a[k * 785 + 784] - mean[k]) <= 1e-5);
        if (strcmp(s.name[i], "curvature.fc2.average.A") == 0) assert_true(fabs((double)a[12 * 13 + 12] - 1.0) <= 1e-6);
        found += strstr(s.name[i], ".average.A") != NULL;
    }
    assert_int_equal(found, 2);
    drop(&s);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- micro-batches ------------------------------------------------------------------------------------------------------- */

/* The trainer's loss scale must reach the statistics: p is the gradient of the whole batch's mean. */
static void micro_batches_join_for_every_optimizer(void **state)
{
    fixture *f = *state;
    for (int i = 0; optimizers[i]; i++) {
        abar_trainer *t[2];
        abar_setup *setup = setup_for(f, "ref", optimizers[i], "limit-train=64 batch=32 epochs=1");
        if (strcmp(optimizers[i], "smac") == 0) set(f, setup, "damping", "1e-4"); /* of the size of p squared */
        for (int split = 0; split < 2; split++) {
            set(f, setup, "accumulate", split ? "4" : "1");
            need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t[split]));
            need(f, abar_trainer_run(t[split]));
        }
        for (int k = 0; k < abar_net_param_count(t[0]->net); k++) {
            const abar_tensor *a = &abar_net_param(t[0]->net, k)->value, *b = &abar_net_param(t[1]->net, k)->value;
            for (int64_t e = 0; e < abar_tensor_count(a); e++)
                if (!(fabs(((double *)a->data)[e] - ((double *)b->data)[e]) <= 1e-9))
                    fail_msg("%s: weights differ", optimizers[i]);
        }
        abar_trainer_destroy(t[0]);
        abar_trainer_destroy(t[1]);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* ---- numbers going wrong --------------------------------------------------------------------------------------------------
 */

/* Makes a weight infinite after some steps, and restores it after some more. */
typedef struct vandal {
    abar_trainer *trainer;
    int64_t calls, from, to;
    float *weight, kept;
    snapshot before, after; /* of the bad steps */
} vandal;

static void spoil(void *user, const abar_progress *p)
{
    vandal *v = user;
    (void)p;
    v->calls++;
    if (v->calls == v->from) {
        take(v->trainer, &v->before);
        v->kept = *v->weight;
        *v->weight = INFINITY;
    }
    if (v->calls == v->to) {
        *v->weight = v->kept;
        take(v->trainer, &v->after);
    }
}

/* How many steps the curvature has counted. */
static int64_t optimizer_steps(abar_trainer *t)
{
    snapshot s;
    int64_t steps = 0;
    take(t, &s);
    for (int i = 0; i < s.n; i++)
        if (strcmp(s.name[i], "curvature.steps") == 0) steps = *(int64_t *)s.bytes[i];
    drop(&s);
    return steps;
}

static void make_vandal(fixture *f, const abar_setup *setup, vandal *v)
{
    abar_trainer_events events = {sizeof events, spoil, v};
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &v->trainer));
    v->weight = (float *)abar_net_param(v->trainer->net, 0)->value.data + 3;
}

static void assert_finite_weights(abar_trainer *t)
{
    for (int i = 0; i < abar_net_param_count(t->net); i++) {
        const abar_tensor *w = &abar_net_param(t->net, i)->value;
        for (int64_t k = 0; k < abar_tensor_count(w); k++) assert_true(isfinite(((float *)w->data)[k]));
    }
}

static void check_skipped(fixture *f, const char *optim)
{
    abar_setup *setup = setup_for(f, "cpu", optim, "limit-train=256 batch=16 epochs=8");
    vandal v = {.from = 3, .to = 6};
    const char *report;
    make_vandal(f, setup, &v);
    need(f, abar_trainer_run(v.trainer));
    assert_int_equal(v.trainer->at.skipped, 3);
    assert_int_equal(optimizer_steps(v.trainer), has_method(optim) ? 128 : 0); /* skipped ones included */
    const char *changed = difference(&v.before, &v.after, false);
    if (changed) fail_msg("%s: the skipped steps changed %s", optim, changed);
    need(f, abar_trainer_report(v.trainer, &report));
    assert_non_null(strstr(report, "\"skipped_steps\": 3"));
    assert_finite_weights(v.trainer);
    const double first = v.trainer->history[0].train_loss, last = v.trainer->history[7].train_loss;
    if (!(last < 0.99 * first)) fail_msg("%s: loss %g, then %g", optim, first, last); /* it goes on learning */
    drop(&v.before);
    drop(&v.after);
    abar_trainer_destroy(v.trainer);
    abar_setup_destroy(f->ctx, setup);
}

static void steps_that_go_wrong_are_skipped_counted_and_change_nothing(void **state) { each_optimizer(*state, check_skipped); }

static void check_ten_skipped(fixture *f, const char *optim)
{
    abar_setup *setup = setup_for(f, "cpu", optim, "limit-train=256 batch=16 epochs=2");
    vandal v = {.from = 3, .to = 13};
    snapshot end;
    set_out(f, setup, optim);
    make_vandal(f, setup, &v);
    assert_int_equal(abar_trainer_run(v.trainer), ABAR_E_NUMERIC);
    assert_error(f, "10 steps in a row");
    assert_int_equal(v.trainer->at.skipped, 10);
    assert_null(difference(&v.before, &v.after, false));
    drop(&v.before);
    drop(&v.after);
    abar_trainer_destroy(v.trainer);
    assert_int_equal(resume(f, optim, 0, &end), ABAR_OK); /* the weight was restored before it was saved */
    drop(&end);
    abar_setup_destroy(f->ctx, setup);
}

static void ten_steps_gone_wrong_end_the_run_and_leave_a_checkpoint(void **state) { each_optimizer(*state, check_ten_skipped); }

/* ---- whose checkpoint it is ------------------------------------------------------------------------------------------------
 */

static void checkpoint_of_another_optimizer_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const char *const pairs[][2] = {{"mac", "sgd"},  {"sgd", "mac"},    {"mac", "smac"},      {"foof", "kfac"},
                                           {"eva", "lngd"}, {"adamw", "foof"}, {"mac", "mac+adamw"}, {"mac+adamw", "adamw"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char name[32], given[64];
        abar_trainer *t;
        abar_setup *was = setup_for(f, "ref", pairs[i][0], "limit-train=32 batch=16 epochs=1");
        abar_setup *now = setup_for(f, "ref", pairs[i][1], "limit-train=32 batch=16 epochs=1");
        snprintf(name, sizeof name, "run%d", (int)i);
        set_out(f, was, name);
        set_out(f, now, name);
        assert_int_equal(run_until(f, was, false, 1, NULL), ABAR_STOPPED);
        assert_int_equal(abar_trainer_create(f->ctx, now, true, NULL, &t), ABAR_E_ARGUMENT);
        snprintf(given, sizeof given, "--optim %s: ", pairs[i][1]);
        assert_error(f, given);
        assert_error(f, pairs[i][0]);
        assert_int_equal(resume(f, name, 0, NULL), ABAR_OK); /* and the folder is unchanged */
        abar_setup_destroy(f->ctx, was);
        abar_setup_destroy(f->ctx, now);
    }
}

/* Resumes a stopped run with one option changed. */
static abar_status resume_with(fixture *f, const char *optim, const char *option, const char *before, const char *after)
{
    char name[64], dir[PATH_MAX_TEST];
    abar_setup *setup = setup_for(f, "ref", optim, "limit-train=32 batch=16 epochs=1"), *again;
    abar_trainer *t;
    static int folder;
    snprintf(name, sizeof name, "option%d", folder++);
    set_out(f, setup, name);
    set(f, setup, option, before);
    assert_int_equal(run_until(f, setup, false, 1, NULL), ABAR_STOPPED);
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &again));
    set(f, again, option, after);
    abar_status status = abar_trainer_create(f->ctx, again, true, NULL, &t);
    if (status == ABAR_OK) status = abar_trainer_run(t);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, setup);
    return status;
}

/* Averages of other settings mean something else or have other shapes: refused by the option's name, not as damage. */
static void resume_with_other_statistics_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const char *const cases[][4] = {
        {"mac", "stat-decay", "0.95", "0.5"}, {"mac", "damping", "1", "adaptive"},
        {"mac", "skip-layers", "fc1", "fc2"}, {"smac", "pgrad", "batch-mean", "per-example"},
        {"kfac", "kfac", "reduce", "expand"}, {"kfac", "kfac-inverse", "cholesky", "eigen"},
        {"mac", "momentum", "0.9", "0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flag[64];
        abar_status status = resume_with(f, cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
        snprintf(flag, sizeof flag, "--%s", cases[i][1]);
        if (status != ABAR_E_ARGUMENT || !strstr(abar_context_error(f->ctx), flag))
            fail_msg("%s, %s %s to %s: %s, \"%s\"", cases[i][0], flag, cases[i][2], cases[i][3], abar_status_text(status),
                     abar_context_error(f->ctx));
    }
}

static void resume_with_other_dampings_and_intervals_is_allowed(void **state)
{
    fixture *f = *state;
    static const char *const cases[][4] = {{"mac", "damping", "1", "0.5"},      {"kfac", "damping", "0.03", "0.1"},
                                           {"eva", "kl-clip", "0.001", "0.01"}, {"foof", "tinv", "50", "10"},
                                           {"lngd", "mu", "0.03", "0.1"},       {"smac", "tcov", "5", "2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(resume_with(f, cases[i][0], cases[i][1], cases[i][2], cases[i][3]), ABAR_OK);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(every_optimizer_is_listed),
        with_fixture(every_optimizer_learns),
        with_fixture(every_optimizer_resumes_bit_for_bit),
        with_fixture(first_layer_mean_is_that_of_the_training_set),
        with_fixture(first_pass_of_kbfgs_is_over_the_training_set),
        with_fixture(micro_batches_join_for_every_optimizer),
        with_fixture(steps_that_go_wrong_are_skipped_counted_and_change_nothing),
        with_fixture(ten_steps_gone_wrong_end_the_run_and_leave_a_checkpoint),
        with_fixture(checkpoint_of_another_optimizer_is_refused_by_name),
        with_fixture(resume_with_other_statistics_is_refused_by_name),
        with_fixture(resume_with_other_dampings_and_intervals_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
