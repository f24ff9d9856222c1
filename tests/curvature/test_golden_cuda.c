/* MAC and SMAC on the cuda back end against the float64 oracle (golden_cases.h): in both orders of memory, and with bfloat16
 * activations, which hold the oracle's inputs exactly. Methods that the device does not have are refused by name. */
#include "cuda_testing.h"
#include "golden_cases.h"

static void run_method(abar_precision precision, const char *method, abar_layout layout, abar_dtype dtype)
{
    const abar_device_config config = cuda_config(precision, true);
    golden_run_method("cuda", &config, method, layout, dtype);
}

static void golden_cuda_matches_every_case(void **state)
{
    run_method(ABAR_PRECISION_FP32, *state, ABAR_LAYOUT_NHWC, ABAR_F32);
    run_method(ABAR_PRECISION_FP32, *state, ABAR_LAYOUT_STRIDED, ABAR_F32);
}

static void golden_cuda_matches_every_case_with_bf16_activations(void **state)
{
    run_method(ABAR_PRECISION_BF16, *state, ABAR_LAYOUT_NHWC, ABAR_BF16);
}

static void methods_the_device_does_not_have_are_refused(void **state)
{
    static const char *const methods[] = {"foof", "kfac", "eva", "lngd"};
    (void)state;
    abar_context *ctx;
    abar_device *dev;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cuda", NULL, &dev), ABAR_OK);
    const int64_t dim[2] = {3, 4};
    abar_tensor value = abar_tensor_wrap(dev, NULL, ABAR_F32, 2, dim), grad = value;
    value.data = cuda_alloc(dev, abar_tensor_bytes(&value));
    grad.data = cuda_alloc(dev, abar_tensor_bytes(&grad));
    const abar_optim_param param = {"fc.weight", value, grad, 1.0, 0.0};
    const abar_layer layer = {
        .name = "fc", .weight = value, .weight_grad = grad, .output_grad_scale = 1.0, .window = abar_window_unit()};
    for (int i = 0; i < 4; i++) {
        abar_optim *optim = NULL;
        const abar_optim_config config = {.size = sizeof config,
                                          .rule = "sgd",
                                          .method = methods[i],
                                          .params = &param,
                                          .n_params = 1,
                                          .layers = &layer,
                                          .n_layers = 1,
                                          .base_lr = 0.1};
        assert_int_equal(abar_optim_create(dev, &config, &optim), ABAR_E_UNSUPPORTED);
        assert_non_null(strstr(abar_context_error(ctx), methods[i]));
        assert_null(optim);
    }
    abar_device_free(dev, value.data, abar_tensor_bytes(&value));
    abar_device_free(dev, grad.data, abar_tensor_bytes(&grad));
    abar_device_close(dev);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        METHOD(golden_cuda_matches_every_case, "mac"),
        METHOD(golden_cuda_matches_every_case, "smac"),
        METHOD(golden_cuda_matches_every_case, "attention"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "mac"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "smac"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "attention"),
        cmocka_unit_test(methods_the_device_does_not_have_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
