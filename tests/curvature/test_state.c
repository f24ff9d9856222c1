/* What an optimizer with a curvature method holds: all of its state is named and can be put back, nothing is allocated after
 * creation, plans are exact, and MAC keeps vectors only. */
#include "curvature_lab.h"

static const lab_shape shapes[] = {
    {.name = "fc", .in = 5, .out = 4, .bias = true, .first = true},
    {.name = "tokens", .in = 4, .out = 3, .tokens = 3},
    {.name = "grouped", .in = 4, .out = 4, .bias = true, .image = {4, 3}, .window = {{3, 2}, {1, 1}, {1, 0}, {1, 1}, 2}},
};
enum { LAYERS = sizeof shapes / sizeof *shapes, EXAMPLES = 4 };

/* ---- putting state back ------------------------------------------------------------------------------------------------- */

enum { STOP = 57, END = 80 };

/* Step 56 is a refresh of tinv=8, and skipped: it is due when the state is taken. Others lose statistics, or a gradient. */
static void train(lab *l, int from, int to)
{
    for (int k = from; k < to; k++) {
        lab_draw_batch(l);
        if (k == 21) lab_set(&l->layer[0].x, 2, NAN);
        if (k == 33) lab_set(&l->layer[1].p, 2, INFINITY);
        if (k == 56 || k == 12) lab_set(&l->layer[2].gw, 0, NAN);
        lab_observe(l);
        assert_int_equal(lab_step(l, 0.02).skipped, k == 56 || k == 12);
    }
}

static void assert_same(lab *a, lab *b, const char *what)
{
    lab_state x, y;
    lab_state_take(a, &x);
    lab_state_take(b, &y);
    const char *changed = lab_state_changed(&x, &y);
    if (changed) fail_msg("%s on %s: %s differs", what, abar_device_name(a->dev), changed);
    lab_state_drop(&x);
    lab_state_drop(&y);
}

static void start(lab *l, const char *device, const char *method, const char *options, uint64_t seed)
{
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, seed);
    lab_optimizer(l, method, options);
    for (int i = 0; i < LAYERS; i++) lab_fill(l, &l->layer[i].weight, 1.0);
}

static void check_restore(const char *device, const char *method, const char *options)
{
    lab whole, fresh, used;
    lab_state state;
    char what[200];
    snprintf(what, sizeof what, "%s %.150s", method, options);
    start(&whole, device, method, options, 5);
    start(&fresh, device, method, options, 6);
    start(&used, device, method, options, 7);
    lab_draw_batch(&whole);
    lab_calibrate(&whole);
    lab_draw_batch(&used);
    lab_calibrate(&used);
    train(&whole, 0, STOP);
    train(&used, 0, 4); /* what it has seen must not matter */
    lab_state_take(&whole, &state);
    lab_state_put(&fresh, &state);
    lab_state_put(&used, &state);
    fresh.noise = used.noise = whole.noise;
    train(&whole, STOP, END);
    train(&fresh, STOP, END);
    train(&used, STOP, END);
    assert_same(&whole, &fresh, what);
    assert_same(&whole, &used, what);
    lab_state_drop(&state);
    lab_close(&whole);
    lab_close(&fresh);
    lab_close(&used);
}

static void state_put_back_goes_on_bit_for_bit(void **state)
{
    static const char *const more[][2] = {{"mac", "damping=adaptive first-layer=dataset-mean"},
                                          {"mac", "damping=0.1 first-layer=dataset-cov damping-form=coupled"},
                                          {"smac", "damping=0.1 first-layer=dataset-mean"},
                                          {"smac", "damping=0.1 first-layer=dataset-cov"},
                                          {NULL, NULL}};
    static const char *const frames[] = {"tcov=1 tinv=8 momentum=0.9 weight-decay=0.01",
                                         "tcov=3 tinv=8 refresh=spread rule=adamw weight-decay=0.01",
                                         "tcov=7 tinv=2 momentum=0.9 nesterov=true stat-decay=0.5"};
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++)
        for (int f = 0; f < 3; f++) check_restore(*state, lab_cases[i][0], lab_with(all, lab_cases[i][1], frames[f]));
    for (int i = 0; more[i][0]; i++)
        for (int f = 0; f < 2; f++) check_restore(*state, more[i][0], lab_with(all, more[i][1], frames[f]));
}

static abar_status note(void *user, const char *name, const abar_tensor *t)
{
    lab_state *s = user;
    assert_true(s->n < LAB_STATE_MAX);
    s->tensor[s->n] = *t;
    s->tensor[s->n].data = NULL;
    s->name[s->n++] = strdup(name);
    return ABAR_OK;
}

static void assert_unique_names(const lab *l)
{
    lab_state s = {0};
    NEED(l, abar_optim_visit(l->optim, note, &s));
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(s.name[i], s.name[k]) == 0) fail_msg("two tensors are named %s", s.name[i]);
    lab_state_drop(&s);
}

static void state_tensors_have_names_of_their_own(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        lab_state s;
        start(&l, *state, lab_cases[i][0], "momentum=0.9", 1);
        lab_state_take(&l, &s);
        assert_unique_names(&l);
        static const char *const named[] = {"updates",
                                            "momentum.fc.weight",
                                            "curvature.steps",
                                            "curvature.fc.counts",
                                            "curvature.grouped#0.counts",
                                            "curvature.grouped#1.numbers",
                                            "curvature.tokens.counts"};
        for (size_t k = 0; k < sizeof named / sizeof *named; k++) assert_non_null(lab_state_find(&s, "%s", named[k]));
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* Names as nets and people give them: long, or such that a group's number could be part of another name. Where they cannot be
 * told apart they must be refused. */
static void layers_of_any_names_have_state_of_their_own(void **state)
{
    static char deep[2][300];
    for (int i = 0; i < 2; i++) {
        memset(deep[i], 'x', 298);
        deep[i][297] = i ? 'b' : 'a';
    }
    const struct {
        const char *first, *second;
        bool grouped; /* the first */
    } cases[] = {{deep[0], deep[1], false}, {"conv", "conv.0", true}, {"same", "same", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        lab_request request;
        lab_shape two[] = {shapes[cases[i].grouped ? 2 : 0], shapes[1]};
        two[0].name = cases[i].first;
        two[1].name = cases[i].second;
        lab_open(&l, *state, NULL, two, 2, EXAMPLES, 1);
        lab_request_make(&l, "mac", "", &request);
        snprintf(request.names[2], sizeof request.names[2], "another.weight");
        abar_status status = abar_optim_create(l.dev, &request.config, &l.optim);
        lab_request_drop(&request);
        assert_true(status == ABAR_OK || status == ABAR_E_ARGUMENT);
        if (status == ABAR_OK) assert_unique_names(&l);
        lab_close(&l);
    }
}

static abar_status stop_at(void *user, const char *name, const abar_tensor *t)
{
    (void)name;
    (void)t;
    return --*(int *)user == 0 ? ABAR_E_IO : ABAR_OK;
}

static void visit_ends_at_the_visitors_failure(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab l;
        lab_state s;
        start(&l, *state, lab_methods[m], "momentum=0.9", 1);
        lab_state_take(&l, &s);
        for (int i = 1; i <= s.n - 5; i++) { /* without the five weights and biases */
            int left = i;
            assert_int_equal(abar_optim_visit(l.optim, stop_at, &left), ABAR_E_IO);
            assert_int_equal(left, 0);
        }
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* An allocator that counts, remembers the largest request, and fails when told to. */
typedef struct counter {
    int64_t calls, fail_at; /* 0: never */
    size_t largest, held;
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    if (++c->calls == c->fail_at) return NULL;
    if (bytes > c->largest) c->largest = bytes;
    c->held += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counted_release(void *user, void *memory, size_t bytes)
{
    counter *c = user;
    c->held -= bytes;
    free(memory);
}

static void steps_allocate_nothing(void **state)
{
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        start(&l, *state, lab_cases[i][0], lab_with(all, lab_cases[i][1], "tcov=1 tinv=2 momentum=0.9"), 1);
        const uint64_t before = abar_context_memory(l.ctx).allocations;
        train(&l, 0, 24);
        abar_optim_measure(l.optim);
        train(&l, 24, 26);
        abar_optim_skip(l.optim);
        for (lab_layout lie = LAB_DENSE; lie < LAB_LAYOUTS; lie++) {
            l.lie = lie;
            train(&l, 26, 28);
        }
        assert_int_equal(abar_context_memory(l.ctx).allocations, before);
        lab_close(&l);
    }
}

static void creation_survives_every_failing_allocation(void **state)
{
    static const char *const cases[][2] = {{"mac", "first-layer=dataset-cov"},
                                           {"smac", "damping=adaptive"},
                                           {"foof", ""},
                                           {"kfac", "kfac-inverse=eigen"},
                                           {"eva", "rule=adamw"},
                                           {"lngd", ""},
                                           {"skfac", ""},
                                           {"kpsvd", ""},
                                           {"kpsvd", "kpsvd-terms=2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        lab_request request;
        counter c = {0};
        const abar_allocator allocator = {counted_alloc, counted_release, &c};
        if (!lab_has(cases[i][0])) continue;
        lab_open(&l, *state, &allocator, shapes, LAYERS, EXAMPLES, 1);
        lab_request_make(&l, cases[i][0], cases[i][1], &request);
        const size_t held = c.held;
        int failures = 0;
        for (abar_status status = ABAR_E_MEMORY; status != ABAR_OK; failures++) {
            c.fail_at = c.calls + failures + 1;
            status = abar_optim_create(l.dev, &request.config, &l.optim);
            if (status == ABAR_OK) break;
            assert_int_equal(status, ABAR_E_MEMORY);
            assert_null(l.optim);
            assert_non_null(strstr(abar_context_error(l.ctx), "memory"));
            assert_int_equal(c.held, held);
        }
        assert_in_range(failures, 8, 40);
        c.fail_at = 0;
        assert_non_null(l.optim);
        lab_request_drop(&request);
        lab_close(&l);
        assert_int_equal(c.held, 0);
    }
}

static size_t name_bytes(const lab_request *w)
{
    size_t all = 0;
    for (int i = 0; i < w->config.n_params; i++) all += strlen(w->params[i].name) + 1;
    return all;
}

/* Tensors with shapes and without memory. */
static void forget_memory(lab_request *w)
{
    for (int i = 0; i < w->config.n_params; i++) w->params[i].value.data = w->params[i].grad.data = NULL;
    for (int i = 0; i < w->config.n_layers; i++)
        w->layers[i].weight.data = w->layers[i].bias.data = w->layers[i].weight_grad.data = w->layers[i].bias_grad.data = NULL;
}

static void check_plan(const char *device, const char *method, const char *options)
{
    lab l;
    lab_request request;
    lab_open(&l, device, NULL, shapes, LAYERS, EXAMPLES, 1);
    lab_request_make(&l, method, options, &request);
    const size_t before = abar_context_memory(l.ctx).now;
    size_t plan, again;
    NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &plan));
    assert_int_equal(abar_context_memory(l.ctx).now, before);
    NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
    const size_t taken = abar_context_memory(l.ctx).now - before;
    assert_int_equal(taken, abar_optim_bytes(l.optim));
    assert_in_range(taken - plan, name_bytes(&request), name_bytes(&request) + 64); /* and the longest, for labels */
    assert_true(abar_optim_state_bytes(l.optim) <= taken);
    forget_memory(&request);
    NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &again));
    assert_int_equal(again, plan);
    size_t maps = 0, tensors = 0;
    for (int i = 0; i < abar_optim_map_count(l.optim); i++) maps += abar_optim_map(l.optim, i)->state_bytes;
    assert_true(maps <= abar_optim_state_bytes(l.optim));
    lab_state s;
    lab_state_take(&l, &s);
    for (int i = 0; i < s.n; i++)
        if (strncmp(s.name[i], "momentum.", 9) == 0 || strncmp(s.name[i], "exp_avg", 7) == 0 || strstr(s.name[i], ".average."))
            tensors += abar_tensor_bytes(&s.tensor[i]);
    assert_true(tensors > 0 && tensors <= abar_optim_state_bytes(l.optim));
    lab_state_drop(&s);
    lab_request_drop(&request);
    lab_close(&l);
}

static void plan_is_what_creation_takes(void **state)
{
    static const char *const frames[] = {"momentum=0.9", "rule=adamw", "skip-layers=fc", "skip-layers=* momentum=0.9",
                                         "momentum=0.9 refresh=spread"};
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++)
        for (int f = 0; f < 5; f++)
            if (f != 3 || i == 0) check_plan(*state, lab_cases[i][0], lab_with(all, lab_cases[i][1], frames[f]));
    check_plan(*state, "mac", "first-layer=dataset-cov");
    check_plan(*state, "smac", "first-layer=dataset-mean rule=adamw");
}

static void plan_of_an_impossible_configuration_is_an_error(void **state)
{
    lab l;
    lab_request request;
    lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 1);
    size_t bytes = 1;
    lab_request_make(&l, "lngd", "nu1=0.5", &request);
    assert_int_equal(abar_optim_plan_bytes(l.dev, &request.config, &bytes), ABAR_E_ARGUMENT);
    assert_int_equal(bytes, 0);
    assert_non_null(strstr(abar_context_error(l.ctx), "nu1"));
    assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
    request.config.method = "mak";
    assert_int_equal(abar_optim_plan_bytes(l.dev, &request.config, &bytes), ABAR_E_NOT_FOUND);
    assert_non_null(strstr(abar_context_error(l.ctx), "did you mean mac"));
    lab_request_drop(&request);
    lab_close(&l);
}

/* ---- MAC's memory ---------------------------------------------------------------------------------------------------------
 */

static const lab_shape wide[] = {
    {.name = "linear", .in = 4999, .out = 2, .bias = true},
    {.name = "patches", .in = 200, .out = 2, .image = {6, 6}, .window = {{5, 5}, {1, 1}, {2, 2}, {1, 1}, 1}},
};
enum { WIDE_D = 5000 };

static size_t state_bytes(lab *l, const char *method, const char *options)
{
    lab_optimizer(l, method, options);
    return abar_optim_state_bytes(l->optim);
}

static void mac_keeps_three_vectors_per_map(void **state)
{
    static const char *const options[] = {"momentum=0.9", "momentum=0.9 damping=adaptive", "momentum=0.9 damping-form=coupled"};
    for (int i = 0; i < 3; i++) {
        lab l;
        lab_open(&l, *state, NULL, wide, 2, 2, 1);
        const size_t element = abar_dtype_size(abar_device_dtype(l.dev));
        const size_t more = state_bytes(&l, "mac", options[i]) - state_bytes(&l, NULL, "momentum=0.9");
        assert_true(more >= 2 * WIDE_D * element); /* the mean at least */
        assert_true(more <= 2 * 3 * WIDE_D * element + 4096);
        lab_close(&l);
    }
}

static void mac_never_makes_a_square_or_a_patch_matrix(void **state)
{
    static const char *const cases[][2] = {{"mac", "tcov=1 tinv=1"},
                                           {"mac", "tcov=1 tinv=1 damping=adaptive"},
                                           {"smac", "tcov=1 tinv=1"},
                                           {"eva", "tcov=1 tinv=1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        counter c = {0};
        const abar_allocator allocator = {counted_alloc, counted_release, &c};
        lab_open(&l, *state, &allocator, wide, 2, 2, 1);
        c.largest = 0;
        const size_t held = c.held;
        lab_optimizer(&l, cases[i][0], cases[i][1]);
        for (int k = 0; k < 2; k++) {
            lab_draw_batch(&l);
            lab_observe(&l);
            assert_false(lab_step(&l, 0.1).skipped);
        }
        const size_t vector = WIDE_D * abar_dtype_size(abar_device_dtype(l.dev));
        assert_true(c.largest <= 2 * 3 * vector + 4096);
        assert_true(c.held - held <= 2 * 3 * vector + 32768); /* and books */
        lab_close(&l);
    }
}

/* ---- what is reported ------------------------------------------------------------------------------------------------------
 */

static void check_comparison(lab *l, int layer, int64_t group, bool measured)
{
    const lab_layer *y = &l->layer[layer];
    const abar_map_info info = lab_map(l, y->shape.name, group);
    double *a = lab_taken(l, layer, group), *g = lab_gradient(l, layer, group), aa = 0.0, ag = 0.0, gg = 0.0;
    for (int64_t i = 0; i < y->outputs * y->columns; i++) {
        aa += a[i] * a[i];
        ag += a[i] * g[i];
        gg += g[i] * g[i];
    }
    free(a);
    free(g);
    const bool near = fabs(info.cosine - ag / sqrt(aa * gg)) <= 1e-4 && fabs(info.ratio / sqrt(aa / gg) - 1.0) <= 1e-4;
    if (measured ? !near : near) fail_msg("%s: cosine %g, ratio %g", y->shape.name, info.cosine, info.ratio);
}

static void measured_steps_report_cosine_and_ratio(void **state)
{
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        start(&l, *state, lab_cases[i][0], lab_with(all, lab_cases[i][1], "tcov=1 tinv=1 kl-clip=0"), 1);
        for (int k = 0; k < 4; k++) {
            lab_draw_batch(&l);
            lab_clear_weights(&l);
            lab_observe(&l);
            if (k == 1 || k == 2) abar_optim_measure(l.optim);
            lab_step(&l, 1.0);
            for (int layer = 0; layer < LAYERS; layer++)
                for (int64_t g = 0; g < l.layer[layer].groups; g++) check_comparison(&l, layer, g, k == 1 || k == 2);
        }
        lab_close(&l);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(state_put_back_goes_on_bit_for_bit),
        ON_BOTH(state_tensors_have_names_of_their_own),
        ON_BOTH(layers_of_any_names_have_state_of_their_own),
        ON_BOTH(visit_ends_at_the_visitors_failure),
        ON_BOTH(steps_allocate_nothing),
        ON_BOTH(creation_survives_every_failing_allocation),
        ON_BOTH(plan_is_what_creation_takes),
        ON_BOTH(plan_of_an_impossible_configuration_is_an_error),
        ON_BOTH(mac_keeps_three_vectors_per_map),
        ON_BOTH(mac_never_makes_a_square_or_a_patch_matrix),
        ON_BOTH(measured_steps_report_cosine_and_ratio),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
