/* Every method and option against the float64 oracle, on ref and on the cpu (golden_cases.h). */
#include "golden_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void run_method(const char *device, int threads, const char *method, abar_layout layout, abar_dtype dtype)
{
    const abar_device_config config = {.size = sizeof config, .threads = threads};
    golden_run_method(device, &config, method, layout, dtype);
}

static void golden_ref_matches_every_case(void **state) { run_method("ref", 1, *state, ABAR_LAYOUT_STRIDED, ABAR_F64); }

static void golden_cpu_matches_every_case_in_every_layout(void **state)
{
    run_method("cpu", 1, *state, ABAR_LAYOUT_STRIDED, ABAR_F32);
    run_method("cpu", 2, *state, ABAR_LAYOUT_C16, ABAR_F32);
    run_method("cpu", 3, *state, ABAR_LAYOUT_C8, ABAR_F32);
    run_method("cpu", 2, *state, ABAR_LAYOUT_N16, ABAR_F32);
    run_method("cpu", 2, *state, ABAR_LAYOUT_STRIDED, ABAR_BF16); /* the oracle's inputs are exact in bfloat16 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        METHOD(golden_ref_matches_every_case, "mac"),
        METHOD(golden_ref_matches_every_case, "smac"),
        METHOD(golden_ref_matches_every_case, "foof"),
        METHOD(golden_ref_matches_every_case, "kfac"),
        METHOD(golden_ref_matches_every_case, "eva"),
        METHOD(golden_ref_matches_every_case, "lngd"),
        METHOD(golden_ref_matches_every_case, "skfac"),
        METHOD(golden_ref_matches_every_case, "kpsvd"),
        METHOD(golden_ref_matches_every_case, "mfac"),
        METHOD(golden_ref_matches_every_case, "kbfgs"),
        METHOD(golden_ref_matches_every_case, "mfac_authors"),
        METHOD(golden_ref_matches_every_case, "calibrated"),
        METHOD(golden_ref_matches_every_case, "begun"),
        METHOD(golden_ref_matches_every_case, "parts"),
        METHOD(golden_ref_matches_every_case, "attention"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "mac"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "smac"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "foof"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "kfac"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "eva"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "lngd"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "skfac"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "kpsvd"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "mfac"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "kbfgs"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "mfac_authors"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "calibrated"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "begun"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "parts"),
        METHOD(golden_cpu_matches_every_case_in_every_layout, "attention"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
