/* The CIFAR reader: both binary versions, the sub-folder of the archive, and every fault it must name. */
#include "data/support.h"

#include "data/data_impl.h"

enum { IMAGE = 3 * 32 * 32, RECORDS = 3 };
static const char *const ten_files[] = {
    "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin", NULL};
static const char *const hundred_files[] = {"train.bin", "test.bin", NULL};

static uint8_t pixel(int file, int record, int i) { return (uint8_t)(31 * file + 7 * record + i); }

/* RECORDS records; the class of record r in file f is (3 f + r) mod classes. */
static bytes make_records(int file, int label_bytes, int classes)
{
    size_t record = (size_t)label_bytes + IMAGE;
    bytes b = bytes_make(RECORDS * record);
    for (int r = 0; r < RECORDS; r++) {
        uint8_t *p = b.data + (size_t)r * record;
        p[0] = (uint8_t)(19 - r); /* the coarse label, where there are two */
        p[label_bytes - 1] = (uint8_t)((3 * file + r) % classes);
        for (int i = 0; i < IMAGE; i++) p[label_bytes + i] = pixel(file, r, i);
    }
    return b;
}

static void write_set(const folder *dir, const char *prefix, const char *const *files, int label_bytes, int classes)
{
    for (int f = 0; files[f]; f++) {
        char name[128];
        bytes b = make_records(f, label_bytes, classes);
        snprintf(name, sizeof name, "%s%s", prefix, files[f]);
        folder_write(dir, name, b);
        free(b.data);
    }
}

static void check_sample(const abar_dataset *data, bool test, int i, int file, int record, int classes)
{
    const uint8_t *image = abar_dataset_image(data, test, i);
    for (int j = 0; j < IMAGE; j++) assert_int_equal(image[j], pixel(file, record, j));
    assert_int_equal(abar_dataset_label(data, test, i), (3 * file + record) % classes);
}

static void cifar_ten_reads_five_files_in_order(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300];
    write_set(&dir, "", ten_files, 1, 10);
    snprintf(spec, sizeof spec, "cifar10:%s", dir.path);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, spec, NULL, &data), ABAR_OK);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_int_equal(info->train, 5 * RECORDS);
    assert_int_equal(info->test, RECORDS);
    assert_int_equal(info->classes, 10);
    assert_int_equal(info->channels, 3);
    for (int i = 0; i < 5 * RECORDS; i++) check_sample(data, false, i, i / RECORDS, i % RECORDS, 10);
    for (int i = 0; i < RECORDS; i++) check_sample(data, true, i, 5, i, 10);
    assert_int_equal(abar_context_memory(ctx).now, abar_dataset_bytes(data));
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    folder_remove(&dir);
}

static void cifar_hundred_uses_the_fine_label_and_finds_the_subfolder(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300], sub[300];
    snprintf(sub, sizeof sub, "%s/cifar-100-binary", dir.path);
    assert_int_equal(mkdir(sub, 0700), 0);
    write_set(&dir, "cifar-100-binary/", hundred_files, 2, 100);
    snprintf(spec, sizeof spec, "cifar100:%s", dir.path);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, spec, NULL, &data), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(data)->classes, 100);
    assert_string_equal(abar_dataset_info_of(data)->where, sub);
    for (int i = 0; i < RECORDS; i++) {
        check_sample(data, false, i, 0, i, 100);
        check_sample(data, true, i, 1, i, 100);
    }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
    folder_remove(&dir);
}

static void cifar_limit_ends_in_the_middle_of_a_file(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300];
    write_set(&dir, "", ten_files, 1, 10);
    snprintf(spec, sizeof spec, "cifar10:%s", dir.path);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    abar_dataset_config config = {.size = sizeof config, .limit_train = RECORDS + 1, .limit_test = 99};
    assert_int_equal(abar_dataset_open(ctx, spec, &config, &data), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(data)->train, RECORDS + 1);
    assert_int_equal(abar_dataset_info_of(data)->test, RECORDS);
    check_sample(data, false, RECORDS, 1, 0, 10);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
    folder_remove(&dir);
}

static void cifar_missing_file_is_named(void **state)
{
    (void)state;
    for (int f = 0; ten_files[f]; f++) {
        folder dir = folder_make();
        char spec[300], path[400];
        write_set(&dir, "", ten_files, 1, 10);
        snprintf(path, sizeof path, "%s/%s", dir.path, ten_files[f]);
        assert_int_equal(unlink(path), 0);
        snprintf(spec, sizeof spec, "cifar10:%s", dir.path);
        check_open_fails(spec, ABAR_E_NOT_FOUND, dir.path, ten_files[f], "give cifar10:DIR");
        folder_remove(&dir);
    }
    check_open_fails("cifar10", ABAR_E_NOT_FOUND, "cifar10:", "no folder", "give cifar10:DIR");
    check_open_fails("cifar100:/nowhere/at/all", ABAR_E_NOT_FOUND, "/nowhere/at/all", "no folder", "give cifar100:DIR");
}

/* Opens a set of which one file was replaced. */
static void check_fault(int f, bytes file, const char *reason)
{
    folder dir = folder_make();
    char spec[300];
    write_set(&dir, "", ten_files, 1, 10);
    folder_write(&dir, ten_files[f], file);
    free(file.data);
    snprintf(spec, sizeof spec, "cifar10:%s", dir.path);
    check_open_fails(spec, ABAR_E_FORMAT, ten_files[f], reason, "replace it");
    folder_remove(&dir);
}

static void cifar_file_faults_are_named(void **state)
{
    (void)state;
    for (int f = 0; ten_files[f]; f++) {
        check_fault(f, bytes_make(0), "is empty");
        check_fault(f, bytes_make(IMAGE), "3072 bytes are not a whole number of 3073-byte records");
        check_fault(f, bytes_make(2 * (IMAGE + 1) + 1), "not a whole number");
        bytes b = make_records(f, 1, 10);
        b.data[2 * (IMAGE + 1)] = 10;
        check_fault(f, b, "label 10 of record 2 is not in 0..9");
    }
}

static void cifar_hundred_checks_both_labels(void **state)
{
    (void)state;
    const abar__data_kind *kind = abar__data_find("cifar100", 8);
    abar_context *ctx = plain_context();
    bytes b = make_records(0, 2, 100);
    uint8_t *images = malloc(RECORDS * IMAGE);
    int32_t labels[RECORDS];
    int64_t count;
    assert_non_null(images);
    assert_int_equal(abar__cifar_count(ctx, "x.bin", b.n, kind, &count), ABAR_OK);
    assert_int_equal(count, RECORDS);
    assert_int_equal(abar__cifar_parse(ctx, "x.bin", b.data, count, kind, count, images, labels), ABAR_OK);
    b.data[0] = 20;
    assert_int_equal(abar__cifar_parse(ctx, "x.bin", b.data, count, kind, count, images, labels), ABAR_E_FORMAT);
    check_contains(abar_context_error(ctx), "label 20 of record 0 is not in 0..19");
    b.data[0] = 19;
    b.data[1] = 100;
    assert_int_equal(abar__cifar_parse(ctx, "x.bin", b.data, count, kind, count, images, labels), ABAR_E_FORMAT);
    check_contains(abar_context_error(ctx), "label 100 of record 0 is not in 0..99");
    free(images);
    free(b.data);
    abar_context_destroy(ctx);
}

static void cifar_failing_allocations_are_reported_and_leak_nothing(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300];
    write_set(&dir, "", ten_files, 1, 10);
    snprintf(spec, sizeof spec, "cifar10:%s", dir.path);
    check_every_allocation_failing(spec, NULL);
    folder_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cifar_ten_reads_five_files_in_order),
        cmocka_unit_test(cifar_hundred_uses_the_fine_label_and_finds_the_subfolder),
        cmocka_unit_test(cifar_limit_ends_in_the_middle_of_a_file),
        cmocka_unit_test(cifar_missing_file_is_named),
        cmocka_unit_test(cifar_file_faults_are_named),
        cmocka_unit_test(cifar_hundred_checks_both_labels),
        cmocka_unit_test(cifar_failing_allocations_are_reported_and_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
