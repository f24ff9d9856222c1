/* What dense methods may hold on a cuda device: twice the squares of all maps, and beside them no more than 2 % of what a
 * training run holds in all. Networks are planned, not built; what a run of plain SGD holds (batch 128 in bf16) was measured.
 */
#include "abar/optim.h"
#include "cuda_testing.h"

#include <stdlib.h>

enum { MAX_LAYERS = 128, MIB = 1 << 20 };

typedef struct network {
    const char *name;
    double sgd_mib;
    int n;
    int64_t out[MAX_LAYERS], in[MAX_LAYERS], kernel[MAX_LAYERS];
} network;

static void add(network *n, int times, int64_t out, int64_t in, int64_t kernel)
{
    for (int i = 0; i < times; i++, n->n++) {
        assert_true(n->n < MAX_LAYERS);
        n->out[n->n] = out;
        n->in[n->n] = in;
        n->kernel[n->n] = kernel;
    }
}

static network resnet_110(void)
{
    network n = {.name = "ResNet-110", .sgd_mib = 555.0};
    add(&n, 1, 16, 3, 3);
    add(&n, 36, 16, 16, 3);
    add(&n, 1, 32, 16, 3);
    add(&n, 35, 32, 32, 3);
    add(&n, 1, 64, 32, 3);
    add(&n, 35, 64, 64, 3);
    add(&n, 1, 10, 64, 1);
    return n;
}

static network wide_resnet(void)
{
    network n = {.name = "WRN-28-10", .sgd_mib = 1638.0};
    add(&n, 1, 16, 3, 3);
    for (int64_t width = 160, before = 16; width <= 640; before = width, width *= 2) {
        add(&n, 1, width, before, 3);
        add(&n, 7, width, width, 3);
        add(&n, 1, width, before, 1);
    }
    add(&n, 1, 10, 640, 1);
    return n;
}

/* Bytes that an optimizer would hold; method NULL: none. */
static size_t plan(abar_device *dev, const network *n, const char *method)
{
    abar_layer *layers = calloc(MAX_LAYERS, sizeof *layers);
    abar_optim_param *params = calloc(MAX_LAYERS, sizeof *params);
    char(*names)[8] = calloc(MAX_LAYERS, sizeof *names);
    assert_true(layers && params && names);
    for (int i = 0; i < n->n; i++) {
        const int64_t dim[4] = {n->out[i], n->in[i], n->kernel[i], n->kernel[i]};
        const abar_tensor weight = abar_tensor_wrap_channels_last(dev, NULL, ABAR_F32, dim);
        snprintf(names[i], sizeof names[i], "l%d", i);
        layers[i].name = params[i].name = names[i];
        layers[i].weight = layers[i].weight_grad = params[i].value = params[i].grad = weight;
        layers[i].window = abar_window_unit();
        for (int k = 0; k < 2; k++) layers[i].window.kernel[k] = n->kernel[i];
        for (int k = 0; k < 2; k++) layers[i].window.pad[k] = n->kernel[i] / 2;
        params[i].lr_scale = 1.0;
    }
    const abar_optim_config config = {.size = sizeof config,
                                      .rule = "sgd",
                                      .method = method,
                                      .params = params,
                                      .n_params = n->n,
                                      .layers = layers,
                                      .n_layers = n->n,
                                      .base_lr = 0.1};
    size_t bytes;
    if (abar_optim_plan_bytes(dev, &config, &bytes) < 0) fail_msg("%s: %s", n->name, abar_context_error(dev->ctx));
    free(layers);
    free(params);
    free(names);
    return bytes;
}

static void check(const network *n)
{
    static const char *const methods[] = {"foof", "lngd"};
    abar_context *ctx;
    abar_device *dev;
    const abar_device_config bf16 = cuda_config(ABAR_PRECISION_BF16, false);
    double squares = 0.0;
    for (int i = 0; i < n->n; i++) {
        const double d = (double)(n->in[i] * n->kernel[i] * n->kernel[i]);
        squares += 2.0 * d * d * 4.0;
    }
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    if (abar_device_open(ctx, "cuda", &bf16, &dev) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    const size_t sgd = plan(dev, n, NULL);
    for (int m = 0; m < 2; m++) {
        const double extra = (double)(plan(dev, n, methods[m]) - sgd), base = n->sgd_mib * MIB;
        printf("%s, %s: %.1f MiB beside squares of %.1f\n", n->name, methods[m], (extra - squares) / MIB, squares / MIB);
        assert_true(extra > squares);
        assert_true(extra - squares <= 0.02 * (base + squares));
    }
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

static void resnet_110_is_within_its_bound(void **unused)
{
    (void)unused;
    const network n = resnet_110();
    check(&n);
}

static void wide_resnet_is_within_its_bound(void **unused)
{
    (void)unused;
    const network n = wide_resnet();
    check(&n);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet_110_is_within_its_bound),
        cmocka_unit_test(wide_resnet_is_within_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
