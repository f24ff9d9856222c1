/* The cases. What replaying, moving and restoring must not change is compared bit for bit. */
#include "step_cases.h"

#include "step_rig.h"

#include <math.h>

#define TOLERANCE 2e-5      /* of the largest weight: 12 steps in float32 */
#define MUON_TOLERANCE 1e-5 /* of the largest change: each step is as large as any other */

/* tcov and tinv are different, and neither divides the other: refreshes fall between commits. */
#define CADENCE .tcov = 2, .tinv = 3
#define SGD .rule = "sgd", .momentum = 0.9, .weight_decay = 0.01, .lr = 0.05
#define MUON .rule = "muon", .momentum = 0.95, .weight_decay = 0.1, .lr = 0.05

static const rig_config configs[] = {
    {SGD},
    {.rule = "sgd", .lr = 0.05},
    {SGD, .nesterov = true},
    {SGD, .decoupled = true},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01},
    {SGD, CADENCE, .method = "mac", .rho = 0.3},
    {SGD, CADENCE, .method = "mac", .rho = 0.2, .coupled = true},
    {SGD, CADENCE, .method = "mac"},
    {SGD, CADENCE, .method = "mac", .coupled = true},
    {SGD, .tcov = 1, .tinv = 1, .method = "mac", .rho = 0.3, .nesterov = true},
    {SGD, .tcov = 3, .tinv = 2, .method = "mac", .rho = 0.3, .spread = true},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "mac", .rho = 0.3},
    {SGD, CADENCE, .method = "smac", .rho = 0.1},
    {SGD, CADENCE, .method = "smac", .diagonal = 0.05},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "smac", .rho = 0.5},
    {SGD, CADENCE, .method = "eva", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, .tcov = 3, .tinv = 2, .method = "eva", .rho = 0.5},
    {SGD, CADENCE, .method = "foof", .rho = 0.2},
    {SGD, .tcov = 3, .tinv = 2, .method = "foof", .rho = 0.2, .spread = true},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .expand = true},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .eigen = true, .kl_clip = 1e-3},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "kfac", .rho = 0.3},
    {SGD, CADENCE, .method = "lngd"},
    {SGD, CADENCE, .method = "mac", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "mac", .coupled = true, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "smac", .rho = 0.2, .coupled = true},
    {SGD, CADENCE, .method = "smac", .diagonal = 0.05, .coupled = true, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "foof", .rho = 0.2, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "lngd", .kl_clip = 1e-4},
    {MUON},
    {MUON, .nesterov = true, .normuon = true, .take = "grouped.*"},
    {MUON, .nesterov = true, CADENCE, .method = "mac", .rho = 0.3},
    {MUON, .nesterov = true, CADENCE, .method = "foof", .rho = 0.2, .take = "grouped.*"},
    {MUON, .nesterov = true, CADENCE, .method = "kfac", .rho = 0.3, .kl_clip = 1e-3},
};
enum {
    CONFIGS = sizeof configs / sizeof *configs,
    MAC = 5,
    SMAC = 12,
    SMAC_ADAPTIVE = 13,
    EVA = 15,
    FOOF = 17,
    KFAC = 19,
    EIGEN = 21,
    LNGD = 23,
    NORMUON = 31,
    MUON_MAC = 32
};

/* Under compute-sanitizer some will do: sgd twice, mac twice, smac. */
static int stride(void) { return cuda_only("ABAR_TEST_SMALL") ? 3 : 1; }

static bool is_muon(const rig_config *config) { return strcmp(config->rule, "muon") == 0; }

/* Twelve steps beside ref; returns how many were skipped. */
static int run_beside_ref(const char *device, const rig_config *config)
{
    rig r;
    int skipped = 0;
    rig_open(&r, device, config);
    while (r.k < RIG_STEPS) {
        rig_draw(&r);
        const abar_step_report expected = rig_step(&r, &r.ref);
        rig_enqueue(&r);
        NEED(&r, abar_device_wait(r.side.dev));
        assert_int_equal(rig_outcome(&r, r.k)->k, r.k);
        const abar_step_note note = *abar_optim_note(r.side.optim, r.k);
        assert_int_equal(note.skipped, expected.skipped);
        if (!expected.skipped && !(fabs(note.grad_norm - expected.grad_norm) <= 1e-5 * expected.grad_norm))
            fail_msg("step %d: the norm is %g, not %g", (int)r.k, note.grad_norm, expected.grad_norm);
        skipped += expected.skipped;
        r.k++;
        rig_check_weights(&r, is_muon(config) ? MUON_TOLERANCE : TOLERANCE, is_muon(config));
        rig_check_maps(&r, r.k - skipped);
    }
    rig_close(&r);
    return skipped;
}

static void steps_of_every_rule_and_method_equal_ref(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride()) {
        print_message("%s%s%s, case %d\n", configs[i].rule, configs[i].method ? " with " : "",
                      configs[i].method ? configs[i].method : "", i);
        assert_int_equal(run_beside_ref(*state, &configs[i]), 0);
    }
}

static void steps_with_clipping_equal_ref(void **state)
{
    static const int cases[] = {0, MAC + 1, SMAC, EVA, FOOF, KFAC, LNGD, NORMUON, MUON_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_config config = configs[cases[i]];
        config.clip = 0.5;
        assert_int_equal(run_beside_ref(*state, &config), 0);
        config.clip = 1e6;
        config.grad_scale = 0.25;
        assert_int_equal(run_beside_ref(*state, &config), 0);
    }
}

static void steps_from_micro_batches_equal_ref(void **state)
{
    static const int cases[] = {MAC, SMAC, SMAC_ADAPTIVE, EVA, FOOF, KFAC, LNGD, MUON_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_config config = configs[cases[i]];
        config.parts = 4; /* of 1, 2, 1 and 2 examples */
        config.grad_scale = 0.5;
        assert_int_equal(run_beside_ref(*state, &config), 0);
    }
}

/* At a step that would commit and refresh, at one that does neither. */
static void steps_with_bad_gradients_are_skipped_as_on_ref(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride())
        for (int bad = 5; bad <= 6; bad++) {
            rig_config config = configs[i];
            config.bad_step = bad;
            assert_int_equal(run_beside_ref(*state, &config), 1);
        }
}

static void statistics_with_bad_numbers_are_dropped_as_on_ref(void **state)
{
    static const int cases[] = {MAC, 7, SMAC, SMAC_ADAPTIVE, EVA, FOOF, KFAC, EIGEN, LNGD, MUON_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int layer = 0; layer < RIG_LAYERS; layer++) {
            rig_config config = configs[cases[i]];
            config.bad_input_step = 6;
            config.bad_layer = layer;
            assert_int_equal(run_beside_ref(*state, &config), 0);
        }
}

/* ---- bit for bit -------------------------------------------------------------------------------------------------------- */

static void assert_snapshot(const rig *r, const unsigned char *expected, size_t bytes, const char *what)
{
    size_t now_bytes;
    unsigned char *now = rig_snapshot(r, &now_bytes);
    assert_int_equal(now_bytes, bytes);
    if (memcmp(now, expected, bytes) != 0) fail_msg("%s: not the same bits", what);
    free(now);
}

static int32_t skip_flag(const rig *r)
{
    int32_t flag = -1;
    rig_read(r, &flag, r->side.dev, abar_optim_skip_flag(r->side.optim), sizeof flag);
    return flag;
}

static void skipped_step_changes_no_bit(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride()) {
        rig r;
        size_t bytes;
        rig_config config = configs[i];
        config.bad_step = 6;
        rig_open(&r, *state, &config);
        while (r.k < 6) rig_one_step(&r);
        unsigned char *before = rig_snapshot(&r, &bytes);
        rig_one_step(&r);
        assert_true(abar_optim_note(r.side.optim, 6)->skipped);
        assert_int_equal(skip_flag(&r), 1);
        assert_snapshot(&r, before, bytes, "a skipped step"); /* pending sums are zero before and after */
        rig_one_step(&r);
        assert_int_equal(skip_flag(&r), 0);
        free(before);
        rig_close(&r);
    }
}

/* The state after all steps, enqueued one after the other. */
static unsigned char *eager(const char *device, const rig_config *config, size_t *bytes)
{
    rig r;
    rig_open(&r, device, config);
    while (r.k < RIG_STEPS) rig_one_step(&r);
    unsigned char *end = rig_snapshot(&r, bytes);
    rig_close(&r);
    return end;
}

/* With a rate for each step, in place of one list for all. */
static void steps_called_one_by_one_equal_enqueued_ones_bit_for_bit(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride()) {
        rig r;
        size_t bytes;
        rig_config config = configs[i];
        config.bad_step = 7;
        unsigned char *expected = eager(*state, &config, &bytes);
        rig_open(&r, *state, &config);
        for (; r.k < RIG_STEPS; r.k++) {
            rig_draw(&r);
            assert_int_equal(rig_step(&r, &r.side).skipped, r.k == 7);
        }
        assert_snapshot(&r, expected, bytes, "one by one");
        free(expected);
        rig_close(&r);
    }
}

static void rates_given_in_two_parts_equal_one_list_bit_for_bit(void **state)
{
    static const int cases[] = {0, 4, MAC, NORMUON};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &configs[cases[i]], &bytes);
        rig_open(&r, *state, &configs[cases[i]]);
        rig_give_rates(&r, 0, 5);
        while (r.k < 5) rig_one_step(&r);
        rig_give_rates(&r, 5, RIG_STEPS);
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "rates in two parts");
        free(expected);
        rig_close(&r);
    }
}

/* A step that observes and one that does not are each recorded once, when they first come, and replayed from then on. */
static void replayed_steps_equal_eager_ones_bit_for_bit(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride()) {
        rig r;
        size_t bytes;
        void *graph[2] = {NULL, NULL};
        rig_config config = configs[i];
        config.bad_step = 7;
        unsigned char *expected = eager(*state, &config, &bytes);
        rig_open(&r, *state, &config);
        const abar__queue_ops *q = r.side.dev->ops->queue;
        for (; r.k < RIG_STEPS; r.k++) {
            const int kind = abar_optim_observes(r.side.optim);
            rig_draw(&r);
            if (graph[kind]) {
                abar_optim_replayed(r.side.optim);
            } else { /* recording counts the step */
                NEED(&r, q->record_begin(r.side.dev));
                rig_enqueue(&r);
                NEED(&r, q->record_end(r.side.dev, &graph[kind]));
            }
            NEED(&r, q->replay(r.side.dev, graph[kind]));
            NEED(&r, q->wait(r.side.dev));
            assert_int_equal(rig_outcome(&r, r.k)->k, r.k);
            assert_int_equal(rig_outcome(&r, r.k)->skipped != 0, r.k == 7);
        }
        assert_snapshot(&r, expected, bytes, "replayed");
        for (int kind = 0; kind < 2; kind++) q->forget(r.side.dev, graph[kind]);
        free(expected);
        rig_close(&r);
    }
}

/* ---- saved and restored ---------------------------------------------------------------------------------------------------
 */

typedef struct saved {
    const rig *r;
    int n, at;
    struct {
        char name[96];
        abar_tensor value; /* dense, on the host */
    } tensor[96];
} saved;

static abar_status save(void *user, const char *name, const abar_tensor *t)
{
    saved *s = user;
    assert_in_range(s->n, 0, sizeof s->tensor / sizeof *s->tensor - 1);
    abar_tensor *value = &s->tensor[s->n].value;
    snprintf(s->tensor[s->n++].name, sizeof s->tensor->name, "%s", name);
    *value = abar_tensor_wrap(NULL, NULL, t->dtype, t->ndim, t->dim);
    value->data = calloc(1, abar_tensor_bytes(value) + 1);
    assert_non_null(value->data);
    return abar_tensor_copy(s->r->ctx, value, t);
}

static abar_status restore(void *user, const char *name, const abar_tensor *t)
{
    saved *s = user;
    assert_in_range(s->at, 0, s->n - 1);
    assert_string_equal(name, s->tensor[s->at].name);
    return abar_tensor_copy(s->r->ctx, t, &s->tensor[s->at++].value);
}

static void assert_saved_equal(const saved *a, const saved *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const abar_tensor *t = &a->tensor[i].value;
        assert_string_equal(a->tensor[i].name, b->tensor[i].name);
        assert_int_equal(abar_tensor_bytes(t), abar_tensor_bytes(&b->tensor[i].value));
        if (memcmp(t->data, b->tensor[i].value.data, abar_tensor_bytes(t)) != 0)
            fail_msg("%s was not restored", a->tensor[i].name);
    }
}

static void free_saved(saved *s)
{
    for (int i = 0; i < s->n; i++) free(s->tensor[i].value.data);
}

typedef struct pulled {
    abar__step_state step;
    abar__map_state maps[RIG_MAPS];
} pulled;

static pulled pull(const rig *r)
{
    pulled p = {0};
    NEED(r, r->side.dev->ops->step->pull(r->side.dev, r->side.optim->step, &p.step, p.maps));
    return p;
}

/* A new optimizer in place of the old one, with its state. */
static void restart(rig *r)
{
    const abar__step_ops *ops = r->side.dev->ops->step;
    saved before = {.r = r}, after = {.r = r};
    const pulled old = pull(r);
    assert_int_equal(old.step.k, r->k);
    NEED(r, abar_optim_visit(r->side.optim, save, &before));
    abar_optim_destroy(r->side.optim);
    rig_make_optim(r, &r->side);
    NEED(r, abar_optim_visit(r->side.optim, restore, &before));
    rig_give_rates(r, r->k, RIG_STEPS);
    NEED(r, abar_optim_visit(r->side.optim, save, &after));
    assert_saved_equal(&before, &after);
    const pulled restored = pull(r);
    assert_int_equal(restored.step.k, old.step.k);
    assert_int_equal(restored.step.t, old.step.t);
    assert_memory_equal(restored.maps, old.maps, sizeof old.maps);
    NEED(r, ops->push(r->side.dev, r->side.optim->step, &old.step, old.maps));
    const pulled back = pull(r);
    assert_memory_equal(&back.step, &old.step, sizeof old.step);
    assert_memory_equal(back.maps, old.maps, sizeof old.maps);
    free_saved(&before);
    free_saved(&after);
}

static void optimizer_restored_from_its_state_goes_on_bit_for_bit(void **state)
{
    for (int i = 0; i < CONFIGS; i += stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &configs[i], &bytes);
        rig_open(&r, *state, &configs[i]);
        while (r.k < 5) rig_one_step(&r);
        restart(&r);
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "restored");
        free(expected);
        rig_close(&r);
    }
}

/* ---- moved parameters ------------------------------------------------------------------------------------------------------
 */

/* The same numbers at a new address. */
static void move_tensor(const rig *r, abar_tensor *t)
{
    abar_tensor fresh = *t;
    NEED(r, abar_device_alloc(t->dev, abar_tensor_bytes(t), &fresh.data));
    NEED(r, abar_tensor_copy(r->ctx, &fresh, t));
    NEED(r, abar_device_wait(t->dev));
    abar_device_free(t->dev, t->data, abar_tensor_bytes(t));
    *t = fresh;
}

static void set_param(rig *r, int i, bool with_grad)
{
    rig_side *s = &r->side;
    NEED(r, abar_optim_set_param(s->optim, i, s->value[i].data, with_grad ? s->grad[i].data : NULL, r->param[i].lr_scale,
                                 r->config.weight_decay));
}

/* The weights of two parameters move, then the gradients of all. */
static void parameters_that_moved_are_updated_where_they_are(void **state)
{
    static const int cases[] = {0, MAC, SMAC, EVA, FOOF, KFAC, LNGD, NORMUON, MUON_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &configs[cases[i]], &bytes);
        rig_open(&r, *state, &configs[cases[i]]);
        while (r.k < 5) rig_one_step(&r);
        for (int p = 2; p < 4; p++) {
            move_tensor(&r, &r.side.value[p]);
            set_param(&r, p, true);
        }
        while (r.k < 8) rig_one_step(&r);
        for (int p = 0; p < r.n_params; p++) {
            move_tensor(&r, &r.side.grad[p]);
            set_param(&r, p, true);
        }
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "moved");
        free(expected);
        rig_close(&r);
    }
}

/* One has no gradient for three steps: nothing of it changes, and the others go on as on ref. */
static void parameters_without_gradient_stay_as_on_ref(void **state)
{
    static const int cases[] = {0, 4, MAC, FOOF, NORMUON, MUON_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 1; p < 6; p += 2) { /* the biases of fc and conv, the weight of wide */
            rig r;
            rig_open(&r, *state, &configs[cases[i]]);
            for (; r.k < RIG_STEPS; r.k++) {
                const bool with_grad = r.k < 4 || r.k >= 7;
                if (r.k == 4 || r.k == 7) {
                    set_param(&r, p, with_grad);
                    NEED(&r, abar_optim_set_param(r.ref.optim, p, r.ref.value[p].data, with_grad ? r.ref.grad[p].data : NULL,
                                                  r.param[p].lr_scale, r.config.weight_decay));
                }
                rig_draw(&r);
                (void)rig_step(&r, &r.ref);
                (void)rig_step(&r, &r.side);
                rig_check_weights(&r, is_muon(&r.config) ? MUON_TOLERANCE : TOLERANCE, is_muon(&r.config));
            }
            rig_check_maps(&r, RIG_STEPS);
            rig_close(&r);
        }
}

/* ---- losses, copies, measurements ------------------------------------------------------------------------------------------
 */

/* Memory that host and device both address. */
static abar_loss *shared_losses(const rig *r, int n)
{
    void *memory;
    const abar__queue_ops *q = r->side.dev->ops->queue;
    const size_t bytes = (size_t)n * sizeof(abar_loss);
    NEED(r, q ? q->shared_alloc(r->side.dev, bytes, &memory) : abar_device_alloc(r->side.dev, bytes, &memory));
    return memory;
}

static void free_losses(const rig *r, abar_loss *losses, int n)
{
    const abar__queue_ops *q = r->side.dev->ops->queue;
    const size_t bytes = (size_t)n * sizeof *losses;
    if (q)
        q->shared_free(r->side.dev, losses, bytes);
    else
        abar_device_free(r->side.dev, losses, bytes);
}

static void losses_of_micro_batches_are_summed_in_the_result(void **state)
{
    rig r;
    rig_open(&r, *state, &configs[MAC]);
    abar_loss *losses = shared_losses(&r, 2);
    abar_optim *o = r.side.optim;
    for (; r.k < 4; r.k++) {
        const double second = 2.0 + (double)r.k;
        losses[0] = (abar_loss){1.5, 3, 8};
        losses[1] = (abar_loss){r.k == 2 ? NAN : second, 1, 4};
        rig_draw(&r);
        NEED(&r, abar_optim_begin(o));
        for (int i = 0; i < 2; i++) NEED(&r, abar_optim_add_loss(o, &losses[i]));
        NEED(&r, abar_optim_queue(o, &(abar_step_config){.size = sizeof(abar_step_config)}));
        NEED(&r, abar_device_wait(r.side.dev));
        const abar__step_outcome *outcome = rig_outcome(&r, r.k);
        assert_int_equal(outcome->skipped != 0, r.k == 2); /* a loss that is not finite skips the step */
        if (r.k == 2) continue;
        assert_true(fabs(outcome->loss - (1.5 * 8 + second * 4)) < 1e-9);
        assert_int_equal(outcome->correct, 4);
        assert_int_equal(outcome->count, 12);
        const abar_step_note *note = abar_optim_note(o, r.k);
        assert_true(fabs(note->loss.loss - (1.5 * 8 + second * 4) / 12) < 1e-9);
        assert_int_equal(note->loss.correct, 4);
        assert_int_equal(note->loss.count, 12);
    }
    free_losses(&r, losses, 2);
    rig_close(&r);
}

static void shadows_are_the_rounded_weights(void **state)
{
    for (int i = 0; i < CONFIGS; i += i + 4 < NORMUON ? 4 : 1) {
        rig r;
        rig_open(&r, *state, &configs[i]);
        while (r.k < 3) rig_one_step(&r);
        for (int k = 0; k < r.n_params; k++) {
            const rig_param *p = &r.param[k];
            if (!p->has_shadow) continue;
            const size_t n = (size_t)p->count;
            float *weight = malloc(n * sizeof *weight);
            uint16_t *shadow = malloc(n * sizeof *shadow);
            assert_true(weight && shadow);
            rig_read(&r, weight, r.side.dev, r.side.value[k].data, n * sizeof *weight);
            rig_read(&r, shadow, r.side.dev, r.side.shadow[k], n * sizeof *shadow);
            for (size_t e = 0; e < n; e++)
                if (shadow[e] != abar__bf16_round(weight[e]))
                    fail_msg("%s: element %d is %g, its copy %g", p->name, (int)e, (double)weight[e],
                             (double)abar__bf16_load(shadow[e]));
            free(weight);
            free(shadow);
        }
        rig_close(&r);
    }
}

/* The products <G, G>, <G, T>, <T, T> of a parameter's gradient and what the step took off, divided by rate. */
static void products_of_step(const rig *r, int param, const double *before, double rate, double sum[3])
{
    const rig_param *p = &r->param[param];
    double *after = malloc((size_t)p->count * sizeof *after);
    assert_non_null(after);
    rig_get(r, after, &r->side.value[param]);
    sum[0] = sum[1] = sum[2] = 0.0;
    for (int64_t e = 0; e < p->count; e++) {
        const double g = p->grad[e], taken = (before[e] - after[e]) / rate;
        sum[0] += g * g;
        sum[1] += g * taken;
        sum[2] += taken * taken;
    }
    free(after);
}

/* With sgd and nothing else, what a step takes off is the preconditioned gradient, which measure sees without the KL clip. */
static void measured_products_are_those_of_what_the_step_takes_off(void **state)
{
    static const int cases[] = {MAC, SMAC, EVA, FOOF, KFAC, EIGEN, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_config config = configs[cases[i]];
        config.momentum = config.weight_decay = 0.0;
        config.tcov = config.tinv = 1;
        double products[RIG_MAPS][3], sum[3];
        rig_open(&r, *state, &config);
        while (r.k < 3) rig_one_step(&r);
        const int w = r.layer[3].weight; /* the last map, alone and without a bias */
        double *before = malloc((size_t)r.param[w].count * sizeof *before);
        assert_non_null(before);
        rig_get(&r, before, &r.side.value[w]);
        abar_optim_measure(r.side.optim);
        rig_one_step(&r);
        NEED(&r, r.side.dev->ops->step->measured(r.side.dev, r.side.optim->step, &products[0][0]));
        const double kl_scale = abar_optim_times(r.side.optim)->kl_scale;
        products_of_step(&r, w, before, rig_rate(&r, 3) * r.param[w].lr_scale * kl_scale, sum);
        for (int k = 0; k < 3; k++)
            if (!(fabs(products[RIG_MAPS - 1][k] - sum[k]) <= 1e-3 * sum[k]))
                fail_msg("%s: product %d is %g, not %g", config.method, k, products[RIG_MAPS - 1][k], sum[k]);
        const abar_map_info *info = abar_optim_map(r.side.optim, RIG_MAPS - 1);
        assert_true(fabs(info->cosine - sum[1] / sqrt(sum[0] * sum[2])) <= 2e-3);
        assert_true(fabs(info->ratio - sqrt(sum[2] / sum[0])) <= 2e-3 * info->ratio);
        free(before);
        rig_close(&r);
    }
}

#define CASE(f) cmocka_unit_test_prestate(f, (void *)(uintptr_t)device)

int step_cases_run(const char *device)
{
    const struct CMUnitTest all[] = {
        CASE(steps_of_every_rule_and_method_equal_ref),
        CASE(steps_with_clipping_equal_ref),
        CASE(steps_from_micro_batches_equal_ref),
        CASE(steps_with_bad_gradients_are_skipped_as_on_ref),
        CASE(statistics_with_bad_numbers_are_dropped_as_on_ref),
        CASE(skipped_step_changes_no_bit),
        CASE(steps_called_one_by_one_equal_enqueued_ones_bit_for_bit),
        CASE(rates_given_in_two_parts_equal_one_list_bit_for_bit),
        CASE(optimizer_restored_from_its_state_goes_on_bit_for_bit),
        CASE(parameters_that_moved_are_updated_where_they_are),
        CASE(parameters_without_gradient_stay_as_on_ref),
        CASE(losses_of_micro_batches_are_summed_in_the_result),
        CASE(measured_products_are_those_of_what_the_step_takes_off),
    };
    const struct CMUnitTest queued[] = {
        CASE(replayed_steps_equal_eager_ones_bit_for_bit),
        CASE(shadows_are_the_rounded_weights),
    };
    const int failed = cmocka_run_group_tests_name(device, all, NULL, NULL);
    if (!abar__device_find(device)->queue) return failed;
    return failed + cmocka_run_group_tests_name("cuda, captured and in bf16", queued, NULL, NULL);
}
