/* Linear layers whose algorithms cannot be measured: there is too little memory to try them. */
#include "cuda_testing.h"
#include "op_cases.h"

/* No GPU has the 137 GB of the input twice. */
static const op_case large = {"large",       ABAR_OP_LINEAR, .x = {1 << 24, 4096},
                              .width = 4096, .bias = true,   .activation = ABAR_ACT_GELU_TANH};

/* The plan of a batch that does not fit says how much it would need. */
static void layer_too_large_to_try_is_made(void **unused)
{
    (void)unused;
    for (int precision = ABAR_PRECISION_FP32; precision <= ABAR_PRECISION_BF16; precision++) {
        const abar_device_config config = cuda_config((abar_precision)precision, false);
        const abar__op_desc d = op_case_desc(&large);
        abar_context *ctx;
        abar_device *dev;
        abar__op *op;
        assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
        if (abar_device_open(ctx, "cuda", &config, &dev) != ABAR_OK || abar__op_create(dev, &d, &op) != ABAR_OK)
            fail_msg("%s: %s", cuda_precisions[precision], abar_context_error(ctx));
        assert_true(op->saved_bytes == ((size_t)4096 << 24) * abar_dtype_size(dev->activation));
        abar__op_destroy(op);
        abar_device_close(dev);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        abar_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layer_too_large_to_try_is_made)};
    const int missing = cuda_missing();
    if (missing) return missing;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
