/* Stages of blocks (plan/block_plan.h) in the step of every device, whatever rules there are: factors on one side, on the
 * other, on both one after the other; pieces of a matrix, and tensors. Ref by the formula, the others beside ref; cuda where
 * there is one. */
#include "cuda_testing.h"
#include "plan/block_plan.h"

#include <math.h>

enum { STEPS = 5, MOST = 4096, BLOCKS_MOST = 16 };
#define RATE 0.1
#define DECAY 0.05

typedef void (*description)(abar__block_plan *p);

/* A parameter (dims), cut into pieces. */
typedef struct shape {
    int order;
    int64_t dim[3], piece;
} shape;

static uint64_t noise = 1;

static double uniform(void) /* -1 .. 1, a float */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(float)((double)(int64_t)noise / 9223372036854775808.0);
}

static int64_t count_of(const shape *s)
{
    int64_t n = 1;
    for (int m = 0; m < s->order; m++) n *= s->dim[m];
    return n;
}

static int cut(const shape *s, abar__block *out)
{
    int pieces[3], n = 1;
    for (int m = 0; m < s->order; m++) n *= pieces[m] = (int)((s->dim[m] - 1) / s->piece + 1);
    assert_in_range(n, 1, BLOCKS_MOST);
    for (int k = 0; k < n; k++) {
        abar__block b = {.order = s->order, .count = 1, .columns = count_of(s) / s->dim[0], .kernel = 1};
        int64_t stride = 1;
        int rest = k;
        for (int m = s->order - 1; m >= 0; m--) {
            const int64_t from = rest % pieces[m] * s->piece, left = s->dim[m] - from;
            rest /= pieces[m];
            b.dim[m] = left < s->piece ? left : s->piece;
            b.stride[m] = stride;
            b.first += from * stride;
            b.count *= b.dim[m];
            stride *= s->dim[m];
        }
        out[k] = b;
    }
    return n;
}

/* ---- a device's step -------------------------------------------------------------------------------------------------------
 */

typedef struct rig {
    abar_context *ctx;
    abar_device *dev;
    void *weight, *grad, *state[ABAR_BLOCK_STATES];
    size_t bytes, state_bytes[ABAR_BLOCK_STATES];
    abar__block_plan plan;
    abar__block blocks[BLOCKS_MOST];
    abar__update_item updates[2];
    abar__update_pass passes[3];
    abar__update_scalars scalars;
    abar__compiled_step *step;
} rig;

static void need(const rig *r, abar_status status)
{
    if (status != ABAR_OK) fail_msg("%s", abar_context_error(r->ctx));
}

static void copy(const rig *r, void *device, double *host, int64_t n, bool to_device)
{
    const abar_tensor theirs = abar_tensor_wrap(r->dev, device, r->dev->ops->dtype, 1, &n);
    const abar_tensor ours = abar_tensor_wrap(NULL, host, ABAR_F64, 1, &n);
    need(r, abar_tensor_copy(r->ctx, to_device ? &theirs : &ours, to_device ? &ours : &theirs));
}

static void place_states(rig *r, int n)
{
    const size_t element = abar_dtype_size(r->dev->ops->dtype);
    for (int k = 0; k < r->plan.n_states; k++) {
        const abar__block_state *s = &r->plan.state[k];
        int64_t at = 0;
        r->state_bytes[k] = r->bytes;
        for (int i = 0; i < n && s->modes; i++) at += abar__block_factor(&r->blocks[i], s, r->blocks[i].order);
        if (s->modes) r->state_bytes[k] = (size_t)at * element;
        need(r, abar_device_alloc(r->dev, r->state_bytes[k], &r->state[k]));
        at = 0;
        for (int i = 0; i < n; i++) {
            r->blocks[i].state[k] = (char *)r->state[k] + (size_t)at * element;
            if (s->modes) at += abar__block_factor(&r->blocks[i], s, r->blocks[i].order);
        }
    }
}

static void open_rig(rig *r, abar_context *ctx, abar_device *dev, const shape *s, description describe, bool coupled)
{
    *r = (rig){.ctx = ctx, .dev = dev, .bytes = (size_t)count_of(s) * abar_dtype_size(dev->ops->dtype)};
    const int n = cut(s, r->blocks);
    describe(&r->plan);
    assert_null(r->plan.wrong);
    need(r, abar_device_alloc(dev, r->bytes, &r->weight));
    need(r, abar_device_alloc(dev, r->bytes, &r->grad));
    for (int i = 0; i < n; i++) {
        r->blocks[i].grad = r->grad;
        r->blocks[i].weight = r->weight;
        r->blocks[i].decay = coupled ? DECAY : 0.0;
        r->blocks[i].late_decay = DECAY; /* of heavy balls */
    }
    place_states(r, n);
    const abar__update_item item = {.kind = ABAR_UPDATE_MOMENTUM,
                                    .weight = r->weight,
                                    .grad = r->grad,
                                    .count = count_of(s),
                                    .lr_scale = 1.0,
                                    .weight_decay = coupled ? 0.0 : DECAY,
                                    .map = -1,
                                    .block = -1};
    r->updates[0] = r->updates[1] = item;
    r->updates[1].kind = ABAR_UPDATE_PLAIN;
    r->passes[0] = (abar__update_pass){ABAR_PASS_UPDATE, ABAR_UPDATE_MOMENTUM, 0, 1};
    r->passes[1] = (abar__update_pass){ABAR_PASS_BLOCKS, ABAR_UPDATE_PLAIN, 0, n};
    r->passes[2] = (abar__update_pass){ABAR_PASS_UPDATE, ABAR_UPDATE_PLAIN, 1, 1};
    const abar__step_desc desc = {.items = r->updates,
                                  .n_items = 1,
                                  .updates = r->updates,
                                  .n_updates = 2,
                                  .passes = r->passes,
                                  .n_passes = 3,
                                  .tensors = r->blocks,
                                  .n_tensors = n,
                                  .block_plan = &r->plan,
                                  .scalars = &r->scalars,
                                  .cadence = {.tinv = 1}};
    need(r, dev->ops->step->create(dev, &desc, &r->step));
}

static void close_rig(rig *r)
{
    r->dev->ops->step->destroy(r->dev, r->step);
    abar_device_free(r->dev, r->weight, r->bytes);
    abar_device_free(r->dev, r->grad, r->bytes);
    for (int k = 0; k < r->plan.n_states; k++) abar_device_free(r->dev, r->state[k], r->state_bytes[k]);
}

static void make_step(rig *r, int64_t k, double *grad, int64_t n, double scale)
{
    const abar__step_ops *ops = r->dev->ops->step;
    const double rate = RATE;
    copy(r, r->grad, grad, n, true);
    need(r, ops->rates(r->dev, r->step, k, &rate, 1));
    need(r, ops->begin(r->dev, r->step));
    need(r, ops->check(r->dev, r->step, scale, 0.0));
    for (int i = 0; i < 3; i++) need(r, ops->pass(r->dev, r->step, i));
    need(r, abar_device_wait(r->dev));
}

/* Weights (STEPS, count) after every step. */
static void run(abar_context *ctx, abar_device *dev, const shape *s, description describe, bool coupled, double *out)
{
    rig r;
    const int64_t n = count_of(s);
    double numbers[MOST];
    noise = 17;
    assert_in_range(n, 1, MOST);
    open_rig(&r, ctx, dev, s, describe, coupled);
    for (int64_t i = 0; i < n; i++) numbers[i] = uniform();
    copy(&r, r.weight, numbers, n, true);
    for (int k = 0; k < STEPS; k++) {
        for (int64_t i = 0; i < n; i++) numbers[i] = 2.0 * uniform();
        make_step(&r, k, numbers, n, 0.5);
        copy(&r, r.weight, out + k * n, n, false);
    }
    close_rig(&r);
}

/* ---- descriptions
 * ------------------------------------------------------------------------------------------------------------ */

static void left(abar__block_plan *p)
{
    const abar__factors l = abar__blocks_average(p, "L", ABAR_LEFT, 0.9);
    abar__blocks_multiply(p, abar__blocks_inverse_root(p, "L_root", l, true, 0.5, 0.1, 1, 1));
}

static void right(abar__block_plan *p)
{
    const abar__factors r = abar__blocks_average(p, "R", ABAR_RIGHT, 1.0);
    abar__blocks_multiply(p, abar__blocks_inverse_root(p, "R_root", r, true, 0.5, 0.1, 2, 2));
}

static void right_then_left(abar__block_plan *p)
{
    const abar__factors r = abar__blocks_average(p, "R", ABAR_RIGHT, 0.9), l = abar__blocks_average(p, "L", ABAR_LEFT, 0.8);
    const abar__factors r_root = abar__blocks_inverse_root(p, "R_root", r, true, 0.25, 0.1, 1, 2);
    abar__blocks_momentum(p, "m", 0.9, 0.5);
    abar__blocks_multiply(p, r_root);
    abar__blocks_multiply(p, abar__blocks_inverse_root(p, "L_root", l, true, 0.4, 0.1, 1, 1));
}

/* The average of what has been multiplied: stages run as written. */
static void chained(abar__block_plan *p)
{
    const abar__factors l = abar__blocks_average(p, "L", ABAR_LEFT, 0.9);
    abar__blocks_multiply(p, abar__blocks_inverse_root(p, "L_root", l, true, 0.5, 0.1, 1, 1));
    const abar__factors r = abar__blocks_average(p, "R", ABAR_RIGHT, 0.9);
    abar__blocks_measure(p, ABAR_NO_MOMENTS, false, 0.0, 1);
    abar__blocks_multiply(p, abar__blocks_inverse_root(p, "R_root", r, true, 0.5, 0.1, 1, 1));
    abar__blocks_rescale(p);
}

static void every_mode(abar__block_plan *p)
{
    const abar__factors s = abar__blocks_average(p, "S", ABAR_EVERY_MODE, 0.9);
    const abar__moments v = abar__blocks_squares(p, "V", 0.95);
    const abar__factors r = abar__blocks_inverse_root(p, "R", s, true, ABAR_BY_ORDER, 0.05, 2, 2);
    abar__blocks_measure(p, v, true, 1e-3, 2);
    abar__blocks_multiply(p, r);
    abar__blocks_rescale(p);
}

/* Lengths of all blocks together, with momentum behind them. */
static void whole(abar__block_plan *p)
{
    const abar__factors s = abar__blocks_sum_of_tensors(p, "S", 2);
    const abar__factors r = abar__blocks_inverse_root(p, "R", s, false, ABAR_BY_ORDER, 0.1, 2, 2);
    abar__blocks_ridge(p, 0.05);
    abar__blocks_measure(p, ABAR_NO_MOMENTS, false, 0.0, 1);
    abar__blocks_multiply(p, r);
    abar__blocks_rescale_whole(p);
    abar__blocks_heavy_ball(p, "m", 0.8, 1.5, 0.9, 0.5);
}

static const description descriptions[] = {left, right, right_then_left, chained, every_mode, whole};
static const shape shapes[] = {{2, {12, 20}, 100}, {2, {9, 30}, 8}, {3, {6, 7, 10}, 6}, {1, {40}, 25}, {2, {70, 50}, 66}};

static void check_beside_ref(const char *name)
{
    abar_context *ctx;
    abar_device *ref, *dev;
    static double expected[STEPS * MOST], found[STEPS * MOST];
    const int step = cuda_only("ABAR_TEST_SMALL") ? 2 : 1; /* small: each with coupled decay or without */
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
    if (abar_device_open(ctx, name, NULL, &dev) != ABAR_OK) {
        assert_false(cuda_only("ABAR_TEST_REQUIRE_CUDA"));
        print_message("%s is not there\n", name);
    } else {
        for (size_t d = 0; d < sizeof descriptions / sizeof *descriptions; d++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (int coupled = (int)(d + s) % step; coupled < 2; coupled += step) {
                    const int64_t n = STEPS * count_of(&shapes[s]);
                    double error = 0.0;
                    run(ctx, ref, &shapes[s], descriptions[d], coupled, expected);
                    run(ctx, dev, &shapes[s], descriptions[d], coupled, found);
                    for (int64_t i = 0; i < n; i++) error = fmax(error, fabs(expected[i] - found[i]));
                    if (!(error <= 1e-4)) fail_msg("description %d, shape %d: error %g", (int)d, (int)s, error);
                }
        abar_device_close(dev);
    }
    abar_device_close(ref);
    abar_context_destroy(ctx);
}

static void stages_on_cpu_equal_ref(void **state)
{
    (void)state;
    check_beside_ref("cpu");
}

static void stages_on_cuda_equal_ref(void **state)
{
    (void)state;
    check_beside_ref("cuda");
}

/* One update of left and right from zero, by hand: a matrix X = diag(a) has L = R = diag(a^2). */
static void factors_multiply_from_their_side(void **state)
{
    (void)state;
    const shape s = {2, {2, 3}, 10};
    const description sides[] = {left, every_mode};
    for (int d = 0; d < 2; d++) {
        abar_context *ctx;
        abar_device *ref;
        rig r;
        double x[6] = {3.0, 0.0, 0.0, 0.0, 0.0, 2.0}, w[6] = {0.0};
        assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
        assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
        open_rig(&r, ctx, ref, &s, sides[d], false);
        make_step(&r, 0, x, 6, 1.0);
        copy(&r, r.weight, w, 6, false);
        for (int i = 0; i < 6; i++) { /* L corrected is diag(9, 4); before its start the graft is Adam's step */
            const double expected = x[i] == 0.0 ? 0.0 : d == 0 ? x[i] / sqrt(x[i] * x[i] + 0.1) : x[i] / (fabs(x[i]) + 1e-3);
            assert_true(fabs(w[i] + RATE * expected) <= 1e-12);
        }
        close_rig(&r);
        abar_device_close(ref);
        abar_context_destroy(ctx);
    }
}

/* The step of a whole parameter is as long as its gradient, whatever its blocks are. */
static void lengths_of_whole_parameters_are_those_of_gradients(void **state)
{
    (void)state;
    const shape s = {2, {9, 30}, 8};
    abar_context *ctx;
    abar_device *ref;
    rig r;
    double x[270], w[270], before[270];
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
    open_rig(&r, ctx, ref, &s, whole, false);
    for (int k = 0; k < 2; k++) {
        double moved = 0.0, length = 0.0, inner = 0.0;
        for (int i = 0; i < 270; i++) x[i] = sin(7.0 * i + k), before[i] = 0.0, length += x[i] * x[i];
        copy(&r, r.weight, before, 270, true);
        for (int m = 0; m < 270; m++) w[m] = 0.0;
        copy(&r, r.state[2], w, 270, true); /* no momentum */
        make_step(&r, k, x, 270, 1.0);
        copy(&r, r.weight, w, 270, false);
        for (int i = 0; i < 270; i++) moved += w[i] * w[i], inner -= w[i] * x[i];
        const double factor = RATE * (0.9 * 1.5 + 0.5);
        assert_true(fabs(sqrt(moved) - factor * sqrt(length)) <= 1e-12);
        /* without roots the step is the gradient, with them it is not */
        assert_true(k == 0 ? fabs(inner - factor * length) <= 1e-10 : inner < 0.99 * factor * length);
    }
    close_rig(&r);
    abar_device_close(ref);
    abar_context_destroy(ctx);
}

/* A block's step that is not finite is dropped, the others are made; the weight of the dropped one only decays. */
static void steps_that_are_not_finite_are_dropped(void **state)
{
    (void)state;
    const shape s = {2, {2, 4}, 2};
    abar_context *ctx;
    abar_device *ref;
    rig r;
    double x[8] = {1.0, 1.0, 1e200, 1e200, 1.0, -1.0, 1e200, 1e200}, w[8];
    abar__step_state seen;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
    open_rig(&r, ctx, ref, &s, left, false);
    for (int i = 0; i < 8; i++) w[i] = 1.0;
    copy(&r, r.weight, w, 8, true);
    make_step(&r, 0, x, 8, 1.0);
    copy(&r, r.weight, w, 8, false);
    need(&r, ref->ops->step->pull(ref, r.step, &seen, NULL));
    assert_int_equal(seen.dropped, 1);
    assert_int_equal(seen.kept, 1); /* its products would not be finite: the average stays zero */
    for (int i = 0; i < 8; i++) assert_true(i % 4 < 2 ? fabs(w[i] - 1.0) > 0.02 : fabs(w[i] - (1.0 - RATE * DECAY)) <= 1e-12);
    close_rig(&r);
    abar_device_close(ref);
    abar_context_destroy(ctx);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_multiply_from_their_side),
        cmocka_unit_test(lengths_of_whole_parameters_are_those_of_gradients),
        cmocka_unit_test(steps_that_are_not_finite_are_dropped),
        cmocka_unit_test(stages_on_cpu_equal_ref),
        cmocka_unit_test(stages_on_cuda_equal_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
