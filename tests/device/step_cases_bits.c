/* What skipping, recording, restoring and moving must not change, bit for bit. */
#include "step_rig.h"

#include "step_cases.h"

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
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride()) {
        rig r;
        size_t bytes;
        rig_config config = rig_configs[i];
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
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride()) {
        rig r;
        size_t bytes;
        rig_config config = rig_configs[i];
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
    static const int cases[] = {0, 4, RIG_MAC, RIG_NORMUON, RIG_SHAMPOO, RIG_SFADAMW, RIG_SOAP};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &rig_configs[cases[i]], &bytes);
        rig_open(&r, *state, &rig_configs[cases[i]]);
        rig_give_rates(&r, 0, 5);
        while (r.k < 5) rig_one_step(&r);
        rig_give_rates(&r, 5, RIG_STEPS);
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "rates in two parts");
        free(expected);
        rig_close(&r);
    }
}

static void step_called_between_enqueued_ones_leaves_their_rates(void **state)
{
    static const int cases[] = {RIG_SGD, RIG_ADAMW, RIG_MAC, RIG_NORMUON, RIG_SHAMPOO_ADAM, RIG_SFADAMW, RIG_SOAP};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &rig_configs[cases[i]], &bytes);
        rig_open(&r, *state, &rig_configs[cases[i]]);
        while (r.k < 5) rig_one_step(&r);
        rig_draw(&r);
        (void)rig_step(&r, &r.side);
        r.k++;
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "one step called");
        free(expected);
        rig_close(&r);
    }
}

static void calibration_that_ends_late_changes_no_bit(void **state)
{
    static const int cases[] = {RIG_ADAMW, RIG_MAC, RIG_FOOF, RIG_MUON_MAC, RIG_SHAMPOO_ADAM, RIG_SOAP};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &rig_configs[cases[i]], &bytes);
        rig_open(&r, *state, &rig_configs[cases[i]]);
        while (r.k < 5) rig_one_step(&r);
        NEED(&r, abar_optim_end_calibration(r.side.optim)); /* nothing wanted one */
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "calibration");
        free(expected);
        rig_close(&r);
    }
}

/* A step that observes and one that does not are each recorded once, when they first come, and replayed from then on. */
static void replayed_steps_equal_eager_ones_bit_for_bit(void **state)
{
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride()) {
        rig r;
        size_t bytes;
        void *graph[2] = {NULL, NULL};
        rig_config config = rig_configs[i];
        config.bad_step = 7;
        unsigned char *expected = eager(*state, &config, &bytes);
        rig_open(&r, *state, &config);
        const abar__stream_ops *q = r.side.dev->ops->stream;
        for (; r.k < RIG_STEPS; r.k++) {
            const int kind = abar_optim_observes(r.side.optim) || abar_optim_extra(r.side.optim) != ABAR_EXTRA_NONE;
            rig_draw(&r);
            if (graph[kind]) {
                abar_optim_replayed(r.side.optim);
            } else { /* recording counts the step */
                NEED(&r, q->capture_begin(r.side.dev));
                rig_enqueue(&r);
                NEED(&r, q->capture_end(r.side.dev, &graph[kind]));
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
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &rig_configs[i], &bytes);
        rig_open(&r, *state, &rig_configs[i]);
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

/* The weights of two parameters move, then the gradients of all. */
static void parameters_that_moved_are_updated_where_they_are(void **state)
{
    static const int cases[] = {0,        RIG_MAC,     RIG_SMAC,       RIG_EVA,         RIG_FOOF,      RIG_KFAC,
                                RIG_LNGD, RIG_NORMUON, RIG_MUON_MAC,   RIG_SFADAMW_MAC, RIG_HYPERBALL, RIG_SHAMPOO_ADAM,
                                RIG_SOAP, RIG_SOAP_KL, RIG_ADAHESSIAN, RIG_SOPHIA,      RIG_NGD,       RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        size_t bytes;
        unsigned char *expected = eager(*state, &rig_configs[cases[i]], &bytes);
        rig_open(&r, *state, &rig_configs[cases[i]]);
        while (r.k < 5) rig_one_step(&r);
        for (int p = 2; p < 4; p++) {
            move_tensor(&r, &r.side.value[p]);
            rig_set_param(&r, &r.side, p, true);
        }
        while (r.k < 8) rig_one_step(&r);
        for (int p = 0; p < r.n_params; p++) {
            move_tensor(&r, &r.side.grad[p]);
            rig_set_param(&r, &r.side, p, true);
        }
        while (r.k < RIG_STEPS) rig_one_step(&r);
        assert_snapshot(&r, expected, bytes, "moved");
        free(expected);
        rig_close(&r);
    }
}

#define CASE(f) cmocka_unit_test_prestate(f, (void *)(uintptr_t)device)

int step_cases_bits(const char *device, struct CMUnitTest *out)
{
    const struct CMUnitTest cases[] = {
        CASE(skipped_step_changes_no_bit),
        CASE(steps_called_one_by_one_equal_enqueued_ones_bit_for_bit),
        CASE(rates_given_in_two_parts_equal_one_list_bit_for_bit),
        CASE(step_called_between_enqueued_ones_leaves_their_rates),
        CASE(calibration_that_ends_late_changes_no_bit),
        CASE(optimizer_restored_from_its_state_goes_on_bit_for_bit),
        CASE(parameters_that_moved_are_updated_where_they_are),
        CASE(replayed_steps_equal_eager_ones_bit_for_bit), /* of a device with a queue */
    };
    memcpy(out, cases, sizeof cases);
    return (int)(sizeof cases / sizeof *cases) - (abar__device_find(device)->stream ? 0 : 1);
}
