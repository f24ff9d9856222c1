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

/* A context in which ABAR_ISA has this value; NULL: none. */
static void renew(const char *value)
{
    abar_context_destroy(ctx);
    if (value)
        isa_force(value);
    else
        unsetenv("ABAR_ISA");
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
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
        renew(abar__isa_name((abar__isa)i));
        assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_OK);
        assert_int_equal(abar__isa_best(ctx), i);
        char expected[32] = "cpu: ";
        strcat(expected, abar__isa_name((abar__isa)i));
        assert_memory_equal(abar_device_describe(dev), expected, strlen(expected));
        abar_device_close(dev);
    }
}

static void isa_unset_or_empty_is_the_best_of_the_machine(void **state)
{
    (void)state;
    renew(NULL);
    assert_int_equal(abar__isa_best(ctx), abar__isa_supported());
    renew("");
    assert_int_equal(abar__isa_best(ctx), abar__isa_supported());
    assert_int_equal(abar__isa_check(ctx, abar__isa_supported()), ABAR_OK);
}

static void isa_misspelt_is_refused_where_the_device_is_opened(void **state)
{
    (void)state;
    static const char *const wrong[] = {"AVX2", "avx", "avx5122", " avx2", "sse"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        abar_device *dev = (abar_device *)state;
        renew(wrong[i]);
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
    renew("avx512");
    assert_int_equal(abar__isa_check(ctx, ABAR_ISA_AVX512), ABAR_OK);
    assert_int_equal(abar__isa_check(ctx, ABAR_ISA_AVX2), ABAR_E_UNSUPPORTED);
    assert_non_null(strstr(abar_context_error(ctx), "ABAR_ISA=avx512"));
    assert_non_null(strstr(abar_context_error(ctx), "use avx2"));
    abar_device *dev = (abar_device *)state;
    if (abar__isa_supported() == ABAR_ISA_AVX512) return;
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_E_UNSUPPORTED);
    assert_null(dev);
}

/* A device, and what is created on it later, keep to the set of their context. */
static void isa_is_read_once_per_context(void **state)
{
    (void)state;
    abar_device *dev, *later;
    abar_context *beside;
    renew("baseline");
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_OK);
    isa_force("nonsense");
    assert_int_equal(abar__isa_best(ctx), ABAR_ISA_BASELINE);
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &later), ABAR_OK);
    assert_string_equal(abar_device_describe(dev), abar_device_describe(later));
    assert_int_equal(abar__context_beside(ctx, NULL, NULL, &beside), ABAR_OK);
    assert_int_equal(abar__isa_best(beside), ABAR_ISA_BASELINE);
    abar_context_destroy(beside);
    abar_device_close(dev);
    abar_device_close(later);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(isa_that_the_machine_has_is_used, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_unset_or_empty_is_the_best_of_the_machine, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_misspelt_is_refused_where_the_device_is_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_that_the_machine_lacks_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(isa_is_read_once_per_context, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
