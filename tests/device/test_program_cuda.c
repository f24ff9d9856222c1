/* The optimizer step that the device runs by itself (program_impl.h) against abar_optim on ref: every rule and method, bad
 * numbers, clipping, micro-batches; and what replaying, moving and restoring must not change, bit for bit. */
#include "program_rig.h"

#include <math.h>

#define TOLERANCE 2e-5 /* of the largest weight: 12 steps in float32 */

/* tcov and tinv are different, and neither divides the other: refreshes fall between commits. */
#define CADENCE .tcov = 2, .tinv = 3
#define SGD .rule = "sgd", .momentum = 0.9, .weight_decay = 0.01, .lr = 0.05

static const rig_wish wishes[] = {
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
};
enum {
    WISHES = sizeof wishes / sizeof *wishes,
    MAC = 5,
    SMAC = 12,
    SMAC_ADAPTIVE = 13,
    EVA = 15,
    FOOF = 17,
    KFAC = 19,
    EIGEN = 21,
    LNGD = 23
};

/* Under compute-sanitizer some will do: sgd twice, mac twice, smac. */
static int stride(void) { return cuda_only("ABAR_TEST_SMALL") ? 3 : 1; }

/* Twelve steps beside ref; returns how many were skipped. */
static int run_beside_ref(const rig_wish *wish)
{
    rig r;
    int skipped = 0;
    rig_open(&r, wish);
    while (r.k < RIG_STEPS) {
        rig_draw(&r);
        const abar_step_report expected = rig_ref_step(&r);
        rig_device_step(&r);
        cuda_wait(r.dev, "step");
        const abar__step_note *note = rig_ops(&r)->note(r.program, r.k);
        assert_int_equal(note->k, r.k);
        assert_int_equal(note->skipped != 0, expected.skipped);
        if (!expected.skipped && !(fabs(note->grad_norm - expected.grad_norm) <= 1e-5 * expected.grad_norm))
            fail_msg("step %d: the norm is %g, not %g", (int)r.k, note->grad_norm, expected.grad_norm);
        skipped += expected.skipped;
        r.k++;
        rig_check_weights(&r, TOLERANCE);
        rig_check_maps(&r, r.k - skipped);
    }
    rig_close(&r);
    return skipped;
}

static void steps_of_every_rule_and_method_equal_ref(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += stride()) {
        print_message("%s%s%s, case %d\n", wishes[i].rule, wishes[i].method ? " with " : "",
                      wishes[i].method ? wishes[i].method : "", i);
        assert_int_equal(run_beside_ref(&wishes[i]), 0);
    }
}

static void steps_with_clipping_equal_ref(void **state)
{
    (void)state;
    static const int cases[] = {0, MAC + 1, SMAC, EVA, FOOF, KFAC, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_wish wish = wishes[cases[i]];
        wish.clip = 0.5;
        assert_int_equal(run_beside_ref(&wish), 0);
        wish.clip = 1e6;
        wish.grad_scale = 0.25;
        assert_int_equal(run_beside_ref(&wish), 0);
    }
}

static void steps_from_micro_batches_equal_ref(void **state)
{
    (void)state;
    static const int cases[] = {MAC, SMAC, SMAC_ADAPTIVE, EVA, FOOF, KFAC, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_wish wish = wishes[cases[i]];
        wish.parts = 4; /* of 1, 2, 1 and 2 examples */
        wish.grad_scale = 0.5;
        assert_int_equal(run_beside_ref(&wish), 0);
    }
}

/* At a step that would commit and refresh, at one that does neither. */
static void steps_with_bad_gradients_are_skipped_as_on_ref(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += stride())
        for (int bad = 5; bad <= 6; bad++) {
            rig_wish wish = wishes[i];
            wish.bad_step = bad;
            assert_int_equal(run_beside_ref(&wish), 1);
        }
}

static void statistics_with_bad_numbers_are_dropped_as_on_ref(void **state)
{
    (void)state;
    static const int cases[] = {MAC, 7, SMAC, SMAC_ADAPTIVE, EVA, FOOF, KFAC, EIGEN, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int layer = 0; layer < RIG_LAYERS; layer++) {
            rig_wish wish = wishes[cases[i]];
            wish.bad_input_step = 6;
            wish.bad_layer = layer;
            assert_int_equal(run_beside_ref(&wish), 0);
        }
}

/* ---- bit for bit -------------------------------------------------------------------------------------------------------- */

static void assert_snapshot(rig *r, const unsigned char *expected, size_t bytes, const char *what)
{
    size_t now_bytes;
    unsigned char *now = rig_snapshot(r, &now_bytes);
    assert_int_equal(now_bytes, bytes);
    if (memcmp(now, expected, bytes) != 0) fail_msg("%s: not the same bits", what);
    free(now);
}

static void one_step(rig *r)
{
    rig_draw(r);
    rig_device_step(r);
    cuda_wait(r->dev, "step");
    r->k++;
}

static void skipped_step_changes_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += stride()) {
        rig r;
        size_t bytes;
        rig_wish wish = wishes[i];
        wish.bad_step = 6;
        rig_open(&r, &wish);
        while (r.k < 6) one_step(&r);
        unsigned char *before = rig_snapshot(&r, &bytes);
        one_step(&r);
        assert_true(rig_ops(&r)->note(r.program, 6)->skipped);
        int32_t flag = 0;
        cuda_move(r.dev, &flag, rig_ops(&r)->skipped(r.program), sizeof flag);
        assert_true(flag);
        assert_snapshot(&r, before, bytes, "a skipped step"); /* pending sums are zero before and after */
        one_step(&r);
        cuda_move(r.dev, &flag, rig_ops(&r)->skipped(r.program), sizeof flag);
        assert_false(flag);
        free(before);
        rig_close(&r);
    }
}

/* The state after all steps, taken eagerly. */
static unsigned char *eager(const rig_wish *wish, size_t *bytes)
{
    rig r;
    rig_open(&r, wish);
    while (r.k < RIG_STEPS) one_step(&r);
    unsigned char *end = rig_snapshot(&r, bytes);
    rig_close(&r);
    return end;
}

/* A step that observes and one that does not are each recorded once, when they first come, and replayed from then on. */
static void replayed_steps_equal_eager_ones_bit_for_bit(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += stride()) {
        rig r;
        size_t bytes;
        void *graph[2] = {NULL, NULL};
        rig_wish wish = wishes[i];
        wish.bad_step = 7;
        unsigned char *expected = eager(&wish, &bytes);
        rig_open(&r, &wish);
        const abar__queue_ops *q = r.dev->ops->queue;
        for (; r.k < RIG_STEPS; r.k++) {
            const int kind = rig_observes(&r);
            rig_draw(&r);
            if (!graph[kind]) {
                assert_int_equal(q->record_begin(r.dev), ABAR_OK);
                rig_device_step(&r);
                if (q->record_end(r.dev, &graph[kind]) != ABAR_OK) fail_msg("%s", abar_context_error(r.ctx));
            }
            if (q->replay(r.dev, graph[kind]) != ABAR_OK) fail_msg("%s", abar_context_error(r.ctx));
            cuda_wait(r.dev, "replay");
            assert_int_equal(rig_ops(&r)->note(r.program, r.k)->k, r.k);
            assert_int_equal(rig_ops(&r)->note(r.program, r.k)->skipped != 0, r.k == 7);
        }
        assert_snapshot(&r, expected, bytes, "replayed");
        for (int kind = 0; kind < 2; kind++) q->forget(r.dev, graph[kind]);
        free(expected);
        rig_close(&r);
    }
}

static void program_restored_from_what_was_pulled_goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += stride()) {
        rig r;
        size_t bytes;
        abar__program_state pulled, back;
        abar__map_state states[RIG_MAPS], again[RIG_MAPS];
        unsigned char *expected = eager(&wishes[i], &bytes);
        rig_open(&r, &wishes[i]);
        while (r.k < 5) one_step(&r);
        assert_int_equal(rig_ops(&r)->pull(r.dev, r.program, &pulled, states), ABAR_OK);
        assert_int_equal(pulled.k, 5);
        rig_ops(&r)->destroy(r.dev, r.program);
        rig_make_program(&r);
        assert_int_equal(rig_ops(&r)->push(r.dev, r.program, &pulled, states), ABAR_OK);
        assert_int_equal(rig_ops(&r)->pull(r.dev, r.program, &back, again), ABAR_OK);
        assert_memory_equal(&pulled, &back, sizeof pulled);
        assert_memory_equal(states, again, (size_t)r.n_maps * sizeof *states);
        while (r.k < RIG_STEPS) one_step(&r);
        assert_snapshot(&r, expected, bytes, "restored");
        free(expected);
        rig_close(&r);
    }
}

/* Two parameters change places with fresh memory; the snapshot follows them through the rig's list of blocks. */
static void parameters_that_moved_are_updated_where_they_are(void **state)
{
    (void)state;
    static const int cases[] = {0, MAC, SMAC, EVA, FOOF, KFAC, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(&wishes[cases[i]], &bytes);
        rig_open(&r, &wishes[cases[i]]);
        while (r.k < 5) one_step(&r);
        for (int index = 2; index < 4; index++) {
            rig_param *p = &r.param[index];
            const size_t size = (size_t)p->count * sizeof(float);
            float *fresh = cuda_alloc(r.dev, size);
            cuda_move(r.dev, fresh, p->weight_d, size);
            for (int b = 0; b < r.n_blocks; b++)
                if (r.blocks[b].memory == p->weight_d) r.blocks[b].memory = fresh;
            abar_device_free(r.dev, p->weight_d, size);
            p->weight_d = fresh;
        }
        rig_rebind(&r);
        while (r.k < RIG_STEPS) one_step(&r);
        assert_snapshot(&r, expected, bytes, "moved");
        free(expected);
        rig_close(&r);
    }
}

/* ---- notes, shadows, measurements ---------------------------------------------------------------------------------------- */

static void losses_of_micro_batches_are_summed_in_the_note(void **state)
{
    (void)state;
    rig r;
    void *memory;
    rig_open(&r, &wishes[MAC]);
    assert_int_equal(r.dev->ops->queue->shared_alloc(r.dev, 2 * sizeof(abar_loss), &memory), ABAR_OK);
    abar_loss *losses = memory;
    const abar__program_ops *ops = rig_ops(&r);
    for (; r.k < 4; r.k++) {
        losses[0] = (abar_loss){1.5, 3, 8};
        losses[1] = (abar_loss){r.k == 2 ? NAN : 2.0 + (double)r.k, 1, 4};
        rig_draw(&r);
        assert_int_equal(ops->begin(r.dev, r.program), ABAR_OK);
        for (int i = 0; i < 2; i++) assert_int_equal(ops->add_loss(r.dev, r.program, &losses[i]), ABAR_OK);
        assert_int_equal(ops->step(r.dev, r.program, 1.0, 0.0, NULL), ABAR_OK);
        cuda_wait(r.dev, "step");
        const abar__step_note *note = ops->note(r.program, r.k);
        assert_int_equal(note->skipped != 0, r.k == 2); /* a loss that is not finite skips the step */
        if (r.k == 2) continue;
        assert_true(fabs(note->loss - (1.5 * 8 + (2.0 + (double)r.k) * 4)) < 1e-9);
        assert_int_equal(note->correct, 4);
        assert_int_equal(note->count, 12);
    }
    r.dev->ops->queue->shared_free(r.dev, memory, 2 * sizeof(abar_loss));
    rig_close(&r);
}

static void shadows_are_the_rounded_weights(void **state)
{
    (void)state;
    for (int i = 0; i < WISHES; i += 4) {
        rig r;
        rig_open(&r, &wishes[i]);
        while (r.k < 3) one_step(&r);
        for (int k = 0; k < r.n_params; k++) {
            const rig_param *p = &r.param[k];
            if (!p->shadow_d) continue;
            const size_t n = (size_t)p->count;
            float *weight = malloc(n * sizeof *weight);
            uint16_t *shadow = malloc(n * sizeof *shadow);
            cuda_move(r.dev, weight, p->weight_d, n * sizeof *weight);
            cuda_move(r.dev, shadow, p->shadow_d, n * sizeof *shadow);
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

/* With sgd and nothing else, what a step takes off is the preconditioned gradient, which measure sees without the KL clip. */
static void measured_products_are_those_of_what_the_step_takes_off(void **state)
{
    (void)state;
    static const int cases[] = {MAC, SMAC, EVA, FOOF, KFAC, EIGEN, LNGD};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_wish wish = wishes[cases[i]];
        wish.momentum = wish.weight_decay = 0.0;
        wish.tcov = wish.tinv = 1;
        double products[RIG_MAPS][3];
        abar__program_state program;
        abar__map_state states[RIG_MAPS];
        rig_open(&r, &wish);
        while (r.k < 3) one_step(&r);
        const rig_param *w = &r.param[r.layer[3].weight]; /* the last map, alone and without a bias */
        double *before = malloc((size_t)(2 * w->count) * sizeof *before), *after = before + w->count;
        cuda_get(r.dev, before, w->weight_d, w->view);
        one_step(&r);
        cuda_get(r.dev, after, w->weight_d, w->view);
        assert_int_equal(rig_ops(&r)->measure(r.dev, r.program, &products[0][0]), ABAR_OK);
        assert_int_equal(rig_ops(&r)->pull(r.dev, r.program, &program, states), ABAR_OK);
        const double rate = wish.lr * (1.0 - 3.0 / (2.0 * RIG_STEPS)) * (1.0 + 0.1 * r.layer[3].weight) * program.kl_scale;
        double sum[3] = {0};
        for (int64_t e = 0; e < w->count; e++) {
            const double g = w->grad[e], taken = (before[e] - after[e]) / rate;
            sum[0] += g * g;
            sum[1] += g * taken;
            sum[2] += taken * taken;
        }
        for (int k = 0; k < 3; k++)
            if (!(fabs(products[RIG_MAPS - 1][k] - sum[k]) <= 1e-3 * sum[k]))
                fail_msg("%s: product %d is %g, not %g", wish.method, k, products[RIG_MAPS - 1][k], sum[k]);
        free(before);
        rig_close(&r);
    }
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_every_rule_and_method_equal_ref),
        cmocka_unit_test(steps_with_clipping_equal_ref),
        cmocka_unit_test(steps_from_micro_batches_equal_ref),
        cmocka_unit_test(steps_with_bad_gradients_are_skipped_as_on_ref),
        cmocka_unit_test(statistics_with_bad_numbers_are_dropped_as_on_ref),
        cmocka_unit_test(skipped_step_changes_no_bit),
        cmocka_unit_test(replayed_steps_equal_eager_ones_bit_for_bit),
        cmocka_unit_test(program_restored_from_what_was_pulled_goes_on_bit_for_bit),
        cmocka_unit_test(parameters_that_moved_are_updated_where_they_are),
        cmocka_unit_test(losses_of_micro_batches_are_summed_in_the_note),
        cmocka_unit_test(shadows_are_the_rounded_weights),
        cmocka_unit_test(measured_products_are_those_of_what_the_step_takes_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
