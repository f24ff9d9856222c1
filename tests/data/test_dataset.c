/* Data sets by name: specs, the list of names, and probing. */
#include "data/support.h"

static void dataset_every_name_can_be_probed(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    int n = 0;
    for (const char *const *name = abar_dataset_names(); *name; name++, n++) {
        abar_dataset_probe probe = {.size = sizeof probe};
        assert_int_equal(abar_dataset_probe_name(ctx, *name, &probe), ABAR_OK);
        assert_string_equal(probe.info.name, *name);
        assert_true(strlen(probe.summary) > 0);
        assert_true(probe.found || strlen(probe.remedy) > 0);
        if (probe.info.text) { /* has neither shape nor size before a file is named */
            assert_true(!probe.found && probe.remedy[0]);
            continue;
        }
        assert_true(probe.info.channels > 0 && probe.info.std[2] > 0.0);
        if (strcmp(*name, "imagefolder") != 0) /* may be anything before a folder is named */
            assert_true(probe.info.classes > 0 && probe.info.train > 0);
    }
    assert_int_equal(n, 9);
    abar_context_destroy(ctx);
}

static void dataset_probe_tells_what_is_missing(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset_probe probe = {.size = sizeof probe};
    assert_int_equal(abar_dataset_probe_name(ctx, "synthetic", &probe), ABAR_OK);
    assert_true(probe.found);
    assert_string_equal(probe.where, "");
    assert_int_equal(abar_dataset_probe_name(ctx, "mnist", &probe), ABAR_OK);
    assert_false(probe.found);
    assert_string_equal(probe.where, "");
    check_contains(probe.remedy, "mnist:DIR");
    assert_int_equal(abar_dataset_probe_name(ctx, "cifar100:/nowhere", &probe), ABAR_OK);
    assert_false(probe.found);
    assert_string_equal(probe.where, "/nowhere");
    assert_int_equal(probe.info.classes, 100);
    assert_int_equal(abar_dataset_probe_name(ctx, "cifar", &probe), ABAR_E_NOT_FOUND);
    abar_context_destroy(ctx);
}

static void dataset_probe_finds_what_open_would_read(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300], sub[300];
    abar_context *ctx = plain_context();
    abar_dataset_probe probe = {.size = sizeof probe};
    snprintf(spec, sizeof spec, "cifar100:%s", dir.path);
    snprintf(sub, sizeof sub, "%s/cifar-100-binary", dir.path);
    assert_int_equal(mkdir(sub, 0700), 0);
    bytes b = bytes_make(1);
    folder_write(&dir, "cifar-100-binary/train.bin", b);
    assert_int_equal(abar_dataset_probe_name(ctx, spec, &probe), ABAR_OK);
    assert_false(probe.found);
    folder_write(&dir, "cifar-100-binary/test.bin", b);
    assert_int_equal(abar_dataset_probe_name(ctx, spec, &probe), ABAR_OK);
    assert_true(probe.found);
    assert_string_equal(probe.where, sub);
    free(b.data);
    abar_context_destroy(ctx);
    folder_remove(&dir);
}

static void dataset_wrong_specs_are_explained(void **state)
{
    (void)state;
    char long_spec[900] = "mnist:/";
    memset(long_spec + 7, 'a', 800);
    check_open_fails("", ABAR_E_NOT_FOUND, "data set", "unknown",
                     "choose one of fashion-mnist, mnist, cifar10, cifar100, text, synthetic");
    check_open_fails("mnist2:/tmp", ABAR_E_NOT_FOUND, "data set mnist2:", "unknown", "choose one of");
    check_open_fails("mnist", ABAR_E_NOT_FOUND, "mnist:", "no folder", "give mnist:DIR");
    check_open_fails("mnist:", ABAR_E_ARGUMENT, "mnist:", "no folder after the colon", "give mnist:DIR");
    check_open_fails("synthetic:/tmp", ABAR_E_ARGUMENT, "synthetic:", "generated, not read", "without a folder");
    check_open_fails("mnist:/dev/null", ABAR_E_NOT_FOUND, "/dev/null", "not a folder", "give mnist:DIR");
    check_open_fails(long_spec, ABAR_E_ARGUMENT, "mnist:", "longer than", "shorter");
}

static void dataset_config_without_size_is_refused(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data;
    abar_dataset_config config = {0};
    assert_int_equal(abar_dataset_open(ctx, "synthetic", &config, &data), ABAR_E_ARGUMENT);
    check_contains(abar_context_error(ctx), "sizeof(abar_dataset_config)");
    abar_dataset_close(NULL);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dataset_every_name_can_be_probed),         cmocka_unit_test(dataset_probe_tells_what_is_missing),
        cmocka_unit_test(dataset_probe_finds_what_open_would_read), cmocka_unit_test(dataset_wrong_specs_are_explained),
        cmocka_unit_test(dataset_config_without_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
