/* Convolutions whose kernels are chosen by measurement: a second start finds the choices of the first, measures nothing, and
 * computes the same bits. What the file of choices says is looked at. */
#include "io/io_test.h"

#include "base/clock.h"
#include "base/hash.h"
#include "cuda_testing.h"
#include "op_instance.h"

#include <sys/stat.h>

/* cuDNN's alone (the first two); with cuBLASLt's products; large enough that our tiles compete with the libraries (the last
 * two, in bf16). */
static const op_case cases[] = {
    {"3x3", ABAR_OP_CONV2D, .x = {64, 256, 28, 28}, .width = 256, .kernel = {3, 3}, .pad = {1, 1}},
    {"3x3 / 2", ABAR_OP_CONV2D, .x = {64, 256, 28, 28}, .width = 256, .kernel = {3, 3}, .pad = {1, 1}, .stride = {2, 2}},
    {"1x1", ABAR_OP_CONV2D, .x = {64, 256, 28, 28}, .width = 64, .accumulate = true},
    {"1x1, few channels", ABAR_OP_CONV2D, .x = {128, 64, 44, 44}, .width = 64, .bias = true, .skip_dx = 1},
    {"3x3, few channels", ABAR_OP_CONV2D, .x = {128, 64, 44, 44}, .width = 64, .kernel = {3, 3}, .pad = {1, 1}},
};

/* A number for the names, identities and times of the files in the folder. */
static uint64_t files_number(const char *folder)
{
    uint64_t number = 0;
    DIR *files = opendir(folder);
    assert_non_null(files);
    for (struct dirent *entry; (entry = readdir(files));) {
        char path[1024];
        struct stat of;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.500s/%.255s", folder, entry->d_name);
        assert_int_equal(stat(path, &of), 0);
        number += ((uint64_t)of.st_ino * 31 + (uint64_t)of.st_mtim.tv_sec) * 1000000007u + (uint64_t)of.st_mtim.tv_nsec;
    }
    closedir(files);
    return number;
}

/* Opens the device anew, runs the case on it, and closes it; returns the seconds that creating the operation took. */
static double start(abar_context *ctx, const op_case *c, abar_precision precision, op_inputs *in, op_outputs *out)
{
    const abar_device_config config = cuda_config(precision, false);
    const abar__run run = op_case_run(c);
    abar__op_desc d = op_case_desc(c);
    abar_device *dev;
    op_instance t;
    d.in_layout[0] = d.out_layout = ABAR_LAYOUT_NHWC;
    if (abar_device_open(ctx, "cuda", &config, &dev) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    op_inputs_round(dev, &d, in);
    const double before = abar__seconds();
    op_instance_create(dev, &d, &run, &t);
    const double seconds = abar__seconds() - before;
    op_instance_load(&t, in);
    op_instance_forward(&t);
    op_instance_backward(&t, in);
    op_instance_read(&t, in, out);
    op_instance_destroy(&t);
    abar_device_close(dev);
    return seconds;
}

static void check_second_start(abar_context *ctx, const char *folder, const op_case *c, abar_precision precision, op_inputs *in)
{
    const abar__op_desc d = op_case_desc(c);
    op_outputs first, second;
    const double measured = start(ctx, c, precision, in, &first);
    const uint64_t files = files_number(folder);
    const double kept = start(ctx, c, precision, in, &second);
    print_message("%s %s: %.2f s, then %.2f s\n", cuda_precisions[precision], c->name, measured, kept);
    assert_true(files == files_number(folder));
    assert_int_equal(op_compare(c->name, &d, &second, &first, 0.0), 0);
    op_outputs_free(&first);
    op_outputs_free(&second);
}

static void second_start_measures_nothing(void **state)
{
    const char *folder = *state;
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(setenv("ABAR_CACHE", folder, 1), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_inputs in;
        op_inputs_create(&cases[i], &in);
        for (int precision = ABAR_PRECISION_FP32; precision <= ABAR_PRECISION_BF16; precision++)
            check_second_start(ctx, folder, &cases[i], (abar_precision)precision, &in);
        op_inputs_free(&in);
    }
    unsetenv("ABAR_CACHE");
    abar_context_destroy(ctx);
}

/* ---- a file of somebody else's ------------------------------------------------------------------------------------------- */

/* Says "product" of every convolution whose plan is cuDNN's alone, with a sum that is right. */
static void change_choices(const char *path)
{
    static char text[1 << 16], changed[1 << 16];
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (char *line = strtok(text, "\n"); line && strncmp(line, "sum ", 4) != 0; line = strtok(NULL, "\n")) {
        const int kept = strncmp(line, "conv ", 5) == 0 ? (int)strcspn(line, "\t") : (int)strlen(line);
        n += (size_t)snprintf(changed + n, sizeof changed - n, "%.*s%s\n", kept, line,
                              kept < (int)strlen(line) ? "\tproduct 130000 0 00" : "");
        assert_true(n < sizeof changed);
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%ssum %016llx\n", changed, (unsigned long long)abar__hash(ABAR_HASH_START, changed, n));
    assert_int_equal(fclose(file), 0);
}

/* Every file in the folder; returns how many there are. */
static int change_files(const char *folder)
{
    int changed = 0;
    DIR *files = opendir(folder);
    assert_non_null(files);
    for (struct dirent *entry; (entry = readdir(files));) {
        char path[1024];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.500s/%.255s", folder, entry->d_name);
        change_choices(path);
        changed++;
    }
    closedir(files);
    return changed;
}

/* cuBLASLt is not even open where a plan of cuDNN's is looked for. */
static void choice_of_a_library_that_was_not_asked_is_not_taken(void **state)
{
    const char *folder = *state;
    abar_context *ctx;
    op_inputs in;
    op_outputs out;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(setenv("ABAR_CACHE", folder, 1), 0);
    op_inputs_create(&cases[0], &in);
    for (int i = 0; i < 2; i++) {
        start(ctx, &cases[0], ABAR_PRECISION_TF32, &in, &out);
        op_outputs_free(&out);
        if (i == 0) assert_in_range(change_files(folder), 1, 9);
    }
    op_inputs_free(&in);
    unsetenv("ABAR_CACHE");
    abar_context_destroy(ctx);
}

/* ---- too little memory -------------------------------------------------------------------------------------------------- */

/* Opens a device and makes the operation, whose k-th allocation of the host's memory fails; returns whether it came to that. */
static bool make_with_failure(const op_case *c, long k)
{
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    const abar_device_config config = cuda_config(ABAR_PRECISION_BF16, false);
    abar__op_desc d = op_case_desc(c);
    abar_device *dev;
    abar__op *op;
    d.in_layout[0] = d.out_layout = ABAR_LAYOUT_NHWC;
    assert_int_equal(abar_device_open(ctx, "cuda", &config, &dev), ABAR_OK);
    memory.calls = 0;
    memory.fail_at = k;
    const abar_status status = abar__op_create(dev, &d, &op);
    const bool failed = memory.calls >= k;
    memory.fail_at = 0;
    if (status != ABAR_OK && !(failed && status == ABAR_E_MEMORY)) fail_msg("allocation %ld: %s", k, abar_context_error(ctx));
    abar__op_destroy(op);
    abar_device_close(dev);
    test_context_end(ctx, &memory);
    return failed;
}

/* The choices are there, so that nothing is measured. */
static void operation_without_memory_is_not_made_and_leaves_nothing(void **state)
{
    const op_case *c = &cases[sizeof cases / sizeof *cases - 1];
    abar_context *ctx;
    op_inputs in;
    op_outputs out;
    long k = 1;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(setenv("ABAR_CACHE", *state, 1), 0);
    op_inputs_create(c, &in);
    start(ctx, c, ABAR_PRECISION_BF16, &in, &out);
    op_outputs_free(&out);
    op_inputs_free(&in);
    abar_context_destroy(ctx);
    while (make_with_failure(c, k)) k++;
    assert_in_range(k, 4, 1000);
    unsetenv("ABAR_CACHE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(operation_without_memory_is_not_made_and_leaves_nothing, test_folder_setup,
                                        test_folder_teardown),
        cmocka_unit_test_setup_teardown(second_start_measures_nothing, test_folder_setup, test_folder_teardown),
        cmocka_unit_test_setup_teardown(choice_of_a_library_that_was_not_asked_is_not_taken, test_folder_setup,
                                        test_folder_teardown),
    };
    const int missing = cuda_missing();
    if (missing) return missing;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
