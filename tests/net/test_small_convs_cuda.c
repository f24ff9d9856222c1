/* Networks of convolutions with few channels or small images on cuda, bf16: the moments that a convolution computes for the
 * batch norm behind it are those of its output as it is stored; the sums that it takes in its backward pass for the batch norm
 * before it are those that this one takes itself; and gradients of weights that are computed beside later layers are, to the
 * bit, those of layers that run one by one. */
#include "cuda_testing.h"
#include "net/net_impl.h"
#include "net_testing.h"

#include <stdio.h>

#define ROUNDING 2e-5    /* float32 sums within tiles, double ones beyond */
#define BF16_SUMS 8e-3   /* 2^-7: the numbers of one of two sums are rounded to bf16 */
#define BF16_LAYERS 4e-2 /* and what comes of it through some layers */

/* side: of the images; c1 channels, then c2 behind a convolution of this kernel and stride. given: whether batch norms get
 * their moments from convolutions; of very many tiles, or of cuDNN, they do not. */
typedef struct network {
    int64_t batch, side, c1, c2, kernel, stride;
    bool bias, given;
} network;

static const network networks[] = {
    {4, 8, 16, 16, 3, 1, false, true},    {5, 6, 16, 32, 3, 1, true, true},      {7, 9, 32, 64, 3, 2, false, true},
    {3, 13, 64, 48, 1, 2, false, true},   {2, 3, 48, 16, 1, 1, false, true},     {1, 5, 32, 32, 3, 2, true, true},
    {2, 100, 16, 16, 3, 1, false, true},  {1, 300, 16, 32, 3, 2, false, true},   {128, 32, 16, 32, 3, 2, false, true},
    {128, 16, 32, 64, 3, 2, false, true}, {600, 32, 16, 16, 3, 1, false, false}, {8, 12, 96, 80, 3, 1, true, false},
    {4, 9, 128, 256, 1, 2, false, false}, {16, 14, 72, 136, 1, 1, false, false},
};

static abar_value conv(abar_net *net, abar_value x, const char *name, int64_t out, int64_t kernel, int64_t stride, bool bias)
{
    return abar_conv2d(
        net, x, name,
        &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2, .bias = bias));
}

static void build(abar_net *net, const network *n)
{
    const int64_t image[3] = {3, n->side, n->side};
    abar_value x = abar_input(net, 3, image), y;
    x = abar_relu(net, abar_batch_norm(net, conv(net, x, "conv1", n->c1, 3, 1, n->bias), "bn1"));
    x = abar_relu(net, abar_batch_norm(net, conv(net, x, "conv2", n->c2, n->kernel, n->stride, n->bias), "bn2"));
    for (int block = 0; block < 2; block++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", block);
        abar_scope_push(net, name);
        y = abar_relu(net, abar_batch_norm(net, conv(net, x, "conv1", n->c2, 3, 1, false), "bn1"));
        y = abar_batch_norm(net, conv(net, y, "conv2", n->c2, 3, 1, false), "bn2");
        x = abar_relu(net, abar_add(net, y, x));
        abar_scope_pop(net);
    }
    x = abar_flatten(net, abar_global_average_pool(net, x));
    abar_softmax_cross_entropy(net, abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = 10, .bias = true)), 0.0);
}

/* fill_batch for a queued device. */
static void fill(fixture *f)
{
    const abar_tensor x = abar_net_input(f->net), y = abar_net_target(f->net);
    abar_tensor values = abar_tensor_wrap(NULL, NULL, ABAR_F64, x.ndim, x.dim);
    double *number = calloc((size_t)abar_tensor_count(&x), sizeof *number);
    int32_t *label = calloc((size_t)abar_tensor_count(&y), sizeof *label);
    assert_true(number && label);
    for (int64_t i = 0; i < abar_tensor_count(&x); i++)
        number[i] = 2.0 * abar__uniform(abar__random(5, ABAR_DRAW_SYNTHETIC, 1, (uint64_t)i).u[0]) - 0.5;
    for (int64_t i = 0; i < abar_tensor_count(&y); i++)
        label[i] = (int32_t)abar__below(abar__random(5, ABAR_DRAW_SYNTHETIC, 2, (uint64_t)i).u[0], 10);
    values.data = number;
    OK(f->ctx, abar_tensor_copy(f->ctx, &x, &values));
    cuda_move(f->dev, y.data, label, (size_t)abar_tensor_count(&y) * sizeof *label);
    free(number);
    free(label);
}

static void pass(fixture *f)
{
    forward(f, true);
    OK(f->ctx, abar_net_backward(f->net, false, NULL));
    OK(f->ctx, abar_device_wait(f->dev));
}

/* ---- moments ------------------------------------------------------------------------------------------------------------ */

static double bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &wide, sizeof v);
    return (double)v;
}

/* What forward has saved, (means, reciprocal deviations), against the input, (pixels, channels). */
static void check_moments(const fixture *f, const abar__step *step)
{
    const abar__op_desc *d = &step->op->desc;
    const int64_t channels = d->in[0].dim[1], pixels = abar__shape_count(&d->in[0]) / channels;
    uint16_t *x = malloc((size_t)(pixels * channels) * sizeof *x);
    float *saved = malloc((size_t)(2 * channels) * sizeof *saved);
    assert_true(x && saved);
    cuda_move(f->dev, x, step->args.x[0], (size_t)(pixels * channels) * sizeof *x);
    cuda_move(f->dev, saved, step->args.saved, (size_t)(2 * channels) * sizeof *saved);
    for (int64_t c = 0; c < channels; c++) {
        double mean = 0.0, variance = 0.0;
        for (int64_t p = 0; p < pixels; p++) mean += bf16_value(x[p * channels + c]) / (double)pixels;
        for (int64_t p = 0; p < pixels; p++) {
            const double off = bf16_value(x[p * channels + c]) - mean;
            variance += off * off / (double)pixels;
        }
        const double rstd = 1.0 / sqrt(variance + d->eps);
        if (!(fabs((double)saved[c] - mean) * rstd <= ROUNDING))
            fail_msg("%s: the mean of channel %d is %.8g, not %.8g", f->net->nodes[step->node].name, (int)c, (double)saved[c],
                     mean);
        if (!(fabs((double)saved[channels + c] / rstd - 1.0) <= ROUNDING))
            fail_msg("%s: the deviation of channel %d is 1 / %.8g, not 1 / %.8g", f->net->nodes[step->node].name, (int)c,
                     (double)saved[channels + c], rstd);
    }
    free(x);
    free(saved);
}

static void check_norms(const fixture *f, bool given)
{
    int norms = 0;
    for (int s = 0; s < f->net->n_steps; s++) {
        const abar__step *step = &f->net->steps[s];
        if (step->op->desc.kind != ABAR_OP_BATCH_NORM) continue;
        check_moments(f, step);
        if (given) assert_true(step->args.moments && step->args.moment_parts > 0);
        norms++;
    }
    assert_int_equal(norms, 6);
}

/* ---- gradients ---------------------------------------------------------------------------------------------------------- */

/* All of them, in one block of float32, which the caller frees. */
static float *take_gradients(const fixture *f)
{
    float *all = malloc(f->net->param_bytes);
    assert_non_null(all);
    cuda_move(f->dev, all, f->net->grad_block, f->net->param_bytes);
    return all;
}

static void check_bits(const fixture *f, const float *got, const float *expected, const char *when)
{
    for (int i = 0; i < f->net->n_params; i++) {
        const size_t at = f->net->params[i].offset / sizeof *got;
        const int64_t count = abar_tensor_count(&f->net->params[i].public.grad);
        bool any = false;
        for (int64_t k = 0; k < count; k++) any = any || got[at + (size_t)k] != 0.0f;
        if (!any && f->net->params[i].public.kind == ABAR_PARAM_WEIGHT)
            fail_msg("%s: all of the gradient of %s is zero", when, f->net->params[i].name);
        if (memcmp(got + at, expected + at, (size_t)count * sizeof *got) != 0)
            fail_msg("%s: the gradient of %s has other bits", when, f->net->params[i].name);
    }
}

/* Makes batch norms take their sums themselves; returns how many did not. */
static int drop_sums(fixture *f)
{
    int given = 0;
    for (int s = 0; s < f->net->n_steps; s++) {
        abar__step *step = &f->net->steps[s];
        if (step->op->desc.kind == ABAR_OP_BATCH_NORM && step->args.sums) given++;
        step->args.norm = NULL;
        if (step->op->desc.kind == ABAR_OP_BATCH_NORM) step->args.sums = NULL;
    }
    return given;
}

/* |a - b| / |b| of every gradient. A bias before a batch norm has none but noise. The gradient of the last batch norm that is
 * given sums has come through no other. */
static void check_near(const fixture *f, const float *got, const float *expected)
{
    for (int i = 0; i < f->net->n_params; i++) {
        const char *name = f->net->params[i].name;
        const size_t at = f->net->params[i].offset / sizeof *got;
        const double tolerance = strncmp(name, "block1.bn1.", 11) == 0 ? BF16_SUMS : BF16_LAYERS;
        double off = 0.0, size = 0.0;
        if (strstr(name, "conv") && strstr(name, ".bias")) continue;
        for (int64_t k = 0; k < abar_tensor_count(&f->net->params[i].public.grad); k++) {
            const double a = got[at + (size_t)k], b = expected[at + (size_t)k];
            off += (a - b) * (a - b);
            size += b * b;
        }
        if (!(sqrt(off) <= tolerance * sqrt(size)))
            fail_msg("with given sums the gradient of %s is off by %.2e of %.2e", name, sqrt(off), sqrt(size));
    }
}

static void small_convolutions_train_as_layers_alone(void **state)
{
    const network *n = *state;
    const abar_device_config config = cuda_config(ABAR_PRECISION_BF16, true);
    fixture f = {0};
    assert_int_equal(abar_context_create(NULL, &f.ctx), ABAR_OK);
    OK(f.ctx, abar_device_open(f.ctx, "cuda", &config, &f.dev));
    OK(f.ctx, abar_net_create(f.ctx, &f.net));
    build(f.net, n);
    OK(f.ctx, compile(&f, n->batch, true));
    fill(&f);
    forward(&f, true);
    check_norms(&f, n->given);
    OK(f.ctx, abar_net_backward(f.net, false, NULL));
    OK(f.ctx, abar_device_wait(f.dev));
    float *late = take_gradients(&f);
    OK(f.ctx, abar_net_profile(f.net, true)); /* each operation alone */
    pass(&f);
    float *alone = take_gradients(&f);
    check_bits(&f, late, alone, "beside each other");
    OK(f.ctx, abar_net_profile(f.net, false));
    for (int again = 0; again < 3; again++) {
        pass(&f);
        free(late);
        late = take_gradients(&f);
        check_bits(&f, late, alone, "again");
    }
    assert_int_equal(drop_sums(&f), n->given ? 5 : 0);
    pass(&f);
    float *own = take_gradients(&f);
    check_near(&f, late, own);
    free(own);
    free(late);
    free(alone);
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    const int count = (int)(sizeof networks / sizeof *networks), missing = cuda_missing();
    struct CMUnitTest tests[sizeof networks / sizeof *networks] = {{0}};
    static char names[sizeof networks / sizeof *networks][96];
    if (missing) return missing;
    cuda_choose_tests(argc, argv);
    for (int i = 0; i < count; i++) {
        const network *n = &networks[i];
        if (cuda_only("ABAR_TEST_SMALL") && n->batch * n->side * n->side > 6000) continue;
        snprintf(names[i], sizeof names[i], "%d images of %d x %d, %d and %d channels, kernel %d, stride %d", (int)n->batch,
                 (int)n->side, (int)n->side, (int)n->c1, (int)n->c2, (int)n->kernel, (int)n->stride);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = small_convolutions_train_as_layers_alone, .initial_state = (void *)n};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
