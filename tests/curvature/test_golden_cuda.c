/* The methods on the cuda back end against the float64 oracle (golden_cases.h): in both orders of memory, and with bfloat16
 * activations, which hold the oracle's inputs exactly. */
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
    run_method(ABAR_PRECISION_FP32, *state, ABAR_LAYOUT_NHWC, ABAR_BF16);
    run_method(ABAR_PRECISION_BF16, *state, ABAR_LAYOUT_NHWC, ABAR_BF16);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        METHOD(golden_cuda_matches_every_case, "mac"),
        METHOD(golden_cuda_matches_every_case, "smac"),
        METHOD(golden_cuda_matches_every_case, "foof"),
        METHOD(golden_cuda_matches_every_case, "kfac"),
        METHOD(golden_cuda_matches_every_case, "eva"),
        METHOD(golden_cuda_matches_every_case, "lngd"),
        METHOD(golden_cuda_matches_every_case, "begun"),
        METHOD(golden_cuda_matches_every_case, "attention"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "mac"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "smac"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "foof"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "kfac"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "eva"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "lngd"),
        METHOD(golden_cuda_matches_every_case_with_bf16_activations, "attention"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
