/* ABAR_ISA: forces an instruction set, and is refused where it cannot. */
#include "isa_testing.h"

#include "device/device_impl.h"

#include <stdint.h>

static abar_context *ctx;

static int set_up(void **state)
{
    *state = isa_save();
    return abar_context_create(NULL, &ctx) == ABAR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    isa_restore(*state);
    abar_context_destroy(ctx);
    return 0;
}

static void isa_that_the_machine_has_is_used(void **state)
{
    (void)state;
    for (int i = 0; i <= (int)abar__isa_supported(); i++) {
        abar_device *dev;
        isa_force(abar__isa_name((abar__isa)i));
        assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_OK);
        assert_int_equal(abar__isa_best(), i);
        char expected[32] = "cpu: ";
        strcat(expected, abar__isa_name((abar__isa)i));
        assert_memory_equal(abar_device_describe(dev), expected, strlen(expected));
        abar_device_close(dev);
    }
}

static void isa_unset_or_empty_is_the_best_of_the_machine(void **state)
{
    (void)state;
    unsetenv("ABAR_ISA");
    assert_int_equal(abar__isa_best(), abar__isa_supported());
    isa_force("");
    assert_int_equal(abar__isa_best(), abar__isa_supported());
    assert_int_equal(abar__isa_check(ctx, abar__isa_supported()), ABAR_OK);
}

static void isa_misspelt_is_refused_where_the_device_is_opened(void **state)
{
    (void)state;
    static const char *const wrong[] = {"AVX2", "avx", "avx5122", " avx2", "sse"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        abar_device *dev = (abar_device *)state;
        isa_force(wrong[i]);
        assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_E_ARGUMENT);
        assert_null(dev);
        assert_non_null(strstr(abar_context_error(ctx), wrong[i]));
        assert_non_null(strstr(abar_context_error(ctx), "use baseline, avx2 or avx512"));
        assert_int_equal(abar_device_open(ctx, "ref", NULL, &dev), ABAR_OK); /* has no vector kernels */
        abar_device_close(dev);
    }
}

static void isa_that_the_machine_lacks_is_refused(void **state)
{
    (void)state;
    isa_force("avx512");
    assert_int_equal(abar__isa_check(ctx, ABAR_ISA_AVX512), ABAR_OK);
    assert_int_equal(abar__isa_check(ctx, ABAR_ISA_AVX2), ABAR_E_UNSUPPORTED);
    assert_non_null(strstr(abar_context_error(ctx), "ABAR_ISA=avx512"));
    assert_non_null(strstr(abar_context_error(ctx), "use avx2"));
    abar_device *dev = (abar_device *)state;
    if (abar__isa_supported() == ABAR_ISA_AVX512) return;
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_E_UNSUPPORTED);
    assert_null(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(isa_that_the_machine_has_is_used, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_unset_or_empty_is_the_best_of_the_machine, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_misspelt_is_refused_where_the_device_is_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_that_the_machine_lacks_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
