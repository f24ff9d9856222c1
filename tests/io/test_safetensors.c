/* Reading and writing named tensors: round trips, PyTorch's own file, every kind of damage, and every way a write can fail. */
#include "io/io_test.h"

#include "io/io.h"
#include "tensor/tensor_impl.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static abar_context *ctx;
static test_memory memory;

static int setup(void **state)
{
    ctx = test_context(&memory);
    return test_folder_setup(state);
}

static int teardown(void **state)
{
    test_context_end(ctx, &memory);
    return test_folder_teardown(state);
}

/* ---- a file to write ------------------------------------------------------------------------------------------- */

static unsigned char bytes_of_tensors[4096];

static const struct {
    const char *name;
    abar_dtype dtype;
    int ndim;
    int64_t dim[ABAR_MAX_DIM];
} samples[] = {
    {"u8", ABAR_U8, 1, {3}}, /* odd: what follows is unaligned */
    {"f64", ABAR_F64, 2, {2, 3}},
    {"f32.weight", ABAR_F32, 4, {3, 1, 5, 2}},
    {"bf16", ABAR_BF16, 1, {7}},
    {"f16", ABAR_F16, 6, {1, 2, 1, 2, 1, 2}},
    {"scalar", ABAR_I64, 0, {0}},
    {"empty", ABAR_F32, 3, {2, 0, 4}},
    {"i32", ABAR_I32, 1, {1}},
    {"nothing", ABAR_U8, 1, {0}},
    {"\xC4\x81 \"quoted\" \\ \n\x01", ABAR_U8, 1, {1}},
};
#define SAMPLES ((int)(sizeof samples / sizeof *samples))

static const char *const metadata[][2] = {
    {"format", "pt"}, {"say \"hi\"", "tab\there, new\nline, \\, \xE2\x88\x9E, \xF0\x9F\x98\x80"}, {"", ""}, {"empty", ""}};
#define PAIRS ((int)(sizeof metadata / sizeof *metadata))

static abar_tensor sample(int i)
{
    for (size_t k = 0; k < sizeof bytes_of_tensors; k++) bytes_of_tensors[k] = (unsigned char)(k * 37 + 11);
    return abar_tensor_wrap(NULL, bytes_of_tensors + 64 * i, samples[i].dtype, samples[i].ndim, samples[i].dim);
}

/* Returns the first failure and frees everything, as a caller would. */
static abar_status write_samples(const char *path)
{
    abar__safetensors_writer *w;
    ABAR_TRY(abar__safetensors_writer_create(ctx, &w));
    abar_status status = ABAR_OK;
    for (int i = 0; i < PAIRS && status == ABAR_OK; i++)
        status = abar__safetensors_writer_metadata(w, metadata[i][0], metadata[i][1]);
    for (int i = 0; i < SAMPLES && status == ABAR_OK; i++) {
        abar_tensor t = sample(i);
        status = abar__safetensors_writer_add(w, samples[i].name, &t);
    }
    if (status == ABAR_OK) status = abar__safetensors_writer_write(w, path);
    abar__safetensors_writer_destroy(w);
    return status;
}

static void check_samples(const char *path)
{
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_OK);
    assert_int_equal(abar__safetensors_count(file), SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        abar_tensor t, expected = sample(i);
        assert_true(abar__safetensors_find(file, samples[i].name, &t));
        assert_int_equal(t.dtype, samples[i].dtype);
        assert_true(abar__same_shape(&t, &expected) && abar_tensor_is_dense(&t));
        size_t n = abar_tensor_bytes(&t);
        if (n > 0) assert_memory_equal(t.data, expected.data, n);
    }
    for (int i = 0; i < PAIRS; i++) assert_string_equal(abar__safetensors_metadata(file, metadata[i][0]), metadata[i][1]);
    abar_tensor none;
    assert_false(abar__safetensors_find(file, "F64", &none));
    assert_null(abar__safetensors_metadata(file, "Format"));
    abar__safetensors_close(file);
}

static void safetensors_written_reads_back(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(write_samples(test_path(state, "x.safetensors", path)), ABAR_OK);
    check_samples(path);
    assert_int_equal(write_samples(path), ABAR_OK); /* over itself */
    check_samples(path);
    assert_int_equal(test_folder_files(*state, 0), 1);
    abar__safetensors_close(NULL);
    abar__safetensors_writer_destroy(NULL);
}

static void safetensors_order_is_that_of_the_data(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(write_samples(test_path(state, "x.safetensors", path)), ABAR_OK);
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_OK);
    const char *at = NULL;
    for (int i = 0; i < SAMPLES; i++) {
        abar_tensor t;
        const char *name = abar__safetensors_get(file, i, &t);
        assert_true(at == NULL || (const char *)t.data == at);
        at = (const char *)t.data + abar_tensor_bytes(&t);
        if (i == 0) {
            assert_string_equal(name, "u8");
            assert_int_equal((uintptr_t)t.data % 8, 0); /* the data begins aligned */
        }
    }
    abar__safetensors_close(file);
}

static void safetensors_without_tensors_is_a_file(void **state)
{
    char path[TEST_PATH];
    abar__safetensors_writer *w;
    abar__safetensors *file;
    abar_tensor t;
    assert_int_equal(abar__safetensors_writer_create(ctx, &w), ABAR_OK);
    assert_int_equal(abar__safetensors_writer_write(w, test_path(state, "none", path)), ABAR_OK);
    abar__safetensors_writer_destroy(w);
    assert_file(path, "\x08\0\0\0\0\0\0\0{}      ", 16);
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_OK);
    assert_int_equal(abar__safetensors_count(file), 0);
    assert_false(abar__safetensors_find(file, "a", &t));
    assert_null(abar__safetensors_metadata(file, "a"));
    abar__safetensors_close(file);
}

/* Written by Python's safetensors from a torch module. */
static void safetensors_of_torch_reads(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int ndim;
        int64_t dim[4];
        double first, sum;
    } expected[] = {
        {"conv1.bias", 1, {6}, 0.04087091, -0.3740910990163684},
        {"conv1.weight", 4, {6, 1, 5, 5}, 0.05177859, 0.24163810978643596},
        {"conv2.bias", 1, {16}, -0.04370783, -0.26328339893370867},
        {"conv2.weight", 4, {16, 6, 5, 5}, -0.05754797, 0.24069768384288182},
        {"fc1.bias", 1, {120}, 0.03899775, 0.15335555039928295},
        {"fc1.weight", 2, {120, 400}, -0.04576203, 8.088047824542514},
        {"fc2.bias", 1, {84}, -0.0472534, -0.0028279246762394905},
        {"fc2.weight", 2, {84, 120}, 0.00670304, -2.3105600210383272},
        {"fc3.bias", 1, {10}, -0.0282912, -0.026757093786727637},
        {"fc3.weight", 2, {10, 84}, 0.01717676, -0.6560970470127359},
    };
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(ctx, ABAR_TEST_DATA "/golden/lenet5_torch.safetensors", &file), ABAR_OK);
    assert_int_equal(abar__safetensors_count(file), 10);
    for (int i = 0; i < 10; i++) {
        abar_tensor t;
        assert_string_equal(abar__safetensors_get(file, i, &t), expected[i].name);
        assert_int_equal(t.dtype, ABAR_F32);
        assert_int_equal(t.ndim, expected[i].ndim);
        assert_memory_equal(t.dim, expected[i].dim, (size_t)t.ndim * sizeof *t.dim);
        double sum = 0;
        for (int64_t k = 0; k < abar_tensor_count(&t); k++) sum += abar__tensor_load(&t, k);
        assert_true(fabs(abar__tensor_load(&t, 0) - expected[i].first) < 1e-7);
        assert_true(fabs(sum - expected[i].sum) < 1e-9);
    }
    abar__safetensors_close(file);
}

/* ---- damage ---------------------------------------------------------------------------------------------------- */

/* A file in memory that the sanitizer watches the end of. */
static abar_status open_header(const char *header, size_t header_bytes, size_t data, abar__safetensors **out)
{
    size_t n = 8 + header_bytes + data;
    char *file = calloc(1, n);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (char)(header_bytes >> 8 * i & 0xFF);
    memcpy(file + 8, header, header_bytes);
    abar_status status = abar__safetensors_open_memory(ctx, "m", file, n, out);
    if (status == ABAR_OK)
        abar__safetensors_close(*out);
    else
        assert_null(*out);
    free(file);
    return status;
}

#define A(fields) "{\"a\":{" fields "}}"
#define F32_2 "\"dtype\":\"F32\",\"shape\":[2]"

static const struct {
    const char *header;
    size_t data;
    abar_status status;
    const char *error;
} headers[] = {
    {A(F32_2 ",\"data_offsets\":[0,8]"), 8, ABAR_OK, ""},
    {" " A(F32_2 ",\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "does not begin with {"},
    {A(F32_2 ",\"data_offsets\":[0,8]") " \n\t ", 8, ABAR_OK, ""},
    {A(F32_2 ",\"data_offsets\":[0,8]") " x", 8, ABAR_E_FORMAT, "goes on after"},
    {A(F32_2 ",\"data_offsets\":[0,8],\"more\":[{}]"), 8, ABAR_OK, ""},
    {"", 0, ABAR_E_FORMAT, "does not begin with {"},
    {"{", 0, ABAR_E_FORMAT, "not JSON"},
    {"{\"a\":", 0, ABAR_E_FORMAT, "not JSON"},
    {"[]", 0, ABAR_E_FORMAT, "does not begin with {"},
    {"{\"\xFF\":1}", 0, ABAR_E_FORMAT, "not UTF-8"},
    {"{\"a\\u0000b\":{}}", 0, ABAR_E_FORMAT, "bad \\u escape"},
    {"{\"a\\u00zz\":{}}", 0, ABAR_E_FORMAT, "bad \\u escape"},
    {"{\"a\\u00", 0, ABAR_E_FORMAT, "bad \\u escape"},
    {"{\"\\\\u0000\":{" F32_2 ",\"data_offsets\":[0,8]}}", 8, ABAR_OK, ""}, /* a backslash and "u0000" */
    {"{\"a\":1}", 0, ABAR_E_FORMAT, "m: tensor a is not described by an object, the file is damaged"},
    {A("\"shape\":[2],\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "tensor a has no dtype"},
    {A("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "tensor a has no dtype"},
    {A("\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, ABAR_E_UNSUPPORTED, "dtype F8_E4M3, convert it"},
    {A("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, ABAR_E_UNSUPPORTED, "dtype f32, convert it"},
    {A("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "tensor a has no shape"},
    {A("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "tensor a has no shape"},
    {A("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "not made of whole numbers"},
    {A("\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,10]"), 10, ABAR_E_FORMAT, "not made of whole numbers"},
    {A("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "not made of whole numbers"},
    {A("\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,8]"), 8, ABAR_E_FORMAT, "not made of whole numbers"},
    {A("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, ABAR_E_UNSUPPORTED, "more than 6 dimensions"},
    {A("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, ABAR_E_FORMAT,
     "shape of tensor a overflows"},
    {A("\"dtype\":\"F64\",\"shape\":[2147483648,1073741824],\"data_offsets\":[0,0]"), 0, ABAR_E_FORMAT, "overflows"},
    {A("\"dtype\":\"F32\",\"shape\":[0,9007199254740992,9007199254740992],\"data_offsets\":[0,0]"), 0, ABAR_E_FORMAT,
     "overflows"},
    {A("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, ABAR_OK, ""},
    {A("\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[0,0]"), 0, ABAR_OK, ""},
    {A(F32_2), 8, ABAR_E_FORMAT, "tensor a has no data_offsets"},
    {A(F32_2 ",\"data_offsets\":[0]"), 8, ABAR_E_FORMAT, "has no data_offsets"},
    {A(F32_2 ",\"data_offsets\":[0,8,8]"), 8, ABAR_E_FORMAT, "has no data_offsets"},
    {A(F32_2 ",\"data_offsets\":[-8,0]"), 8, ABAR_E_FORMAT, "has no data_offsets"},
    {A(F32_2 ",\"data_offsets\":{\"x\":0,\"y\":8}"), 8, ABAR_E_FORMAT, "has no data_offsets"},
    {A(F32_2 ",\"data_offsets\":[8,0]"), 8, ABAR_E_FORMAT, "tensor a is at 8 to 0 of 8 bytes of data"},
    {A(F32_2 ",\"data_offsets\":[0,8]"), 7, ABAR_E_FORMAT, "tensor a is at 0 to 8 of 7 bytes of data"},
    {A(F32_2 ",\"data_offsets\":[9007199254740984,9007199254740992]"), 8, ABAR_E_FORMAT, "tensor a is at 9007199254740984"},
    {A(F32_2 ",\"data_offsets\":[0,4]"), 8, ABAR_E_FORMAT, "tensor a has 4 bytes, where its shape needs 8"},
    {A(F32_2 ",\"data_offsets\":[1,9]"), 9, ABAR_E_FORMAT, "tensor a begins at byte 1 of the data instead of 0"},
    {A(F32_2 ",\"data_offsets\":[0,8]"), 9, ABAR_E_FORMAT, "its tensors end at byte 8 of 9 bytes of data"},
    {"{}", 1, ABAR_E_FORMAT, "its tensors end at byte 0 of 1 bytes of data"},
    {A(F32_2 ",\"data_offsets\":[0,8],\"shape\":[2]"), 8, ABAR_E_FORMAT, "tensor a has two fields shape"},
    {"{\"a\":{" F32_2 ",\"data_offsets\":[0,8]},\"a\":{" F32_2 ",\"data_offsets\":[8,16]}}", 16, ABAR_E_FORMAT,
     "names a twice"},
    {"{\"a\":{" F32_2 ",\"data_offsets\":[0,8]},\"b\":{" F32_2 ",\"data_offsets\":[4,12]}}", 12, ABAR_E_FORMAT,
     "tensor b begins at byte 4 of the data instead of 8"},
    {"{\"a\":{" F32_2 ",\"data_offsets\":[0,8]},\"b\":{" F32_2 ",\"data_offsets\":[0,8]}}", 8, ABAR_E_FORMAT, "instead of 8"},
    {"{\"a\":{" F32_2 ",\"data_offsets\":[12,20]},\"b\":{" F32_2 ",\"data_offsets\":[0,8]}}", 20, ABAR_E_FORMAT,
     "tensor a begins at byte 12 of the data instead of 8"},
    {"{\"b\":{" F32_2 ",\"data_offsets\":[8,16]},\"a\":{" F32_2 ",\"data_offsets\":[0,8]}}", 16, ABAR_OK, ""},
    {"{\"__metadata__\":{\"k\":\"v\"}}", 0, ABAR_OK, ""},
    {"{\"__metadata__\":[]}", 0, ABAR_E_FORMAT, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, ABAR_E_FORMAT, "metadata k is not a string"},
    {"{\"__metadata__\":{\"k\":\"v\",\"l\":\"w\",\"k\":\"v\"}}", 0, ABAR_E_FORMAT, "names k twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, ABAR_E_FORMAT, "names __metadata__ twice"},
};

static void safetensors_each_damage_has_its_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        abar__safetensors *file;
        abar_status status = open_header(headers[i].header, strlen(headers[i].header), headers[i].data, &file);
        if (status != headers[i].status) fail_msg("%s: status %d, %s", headers[i].header, status, abar_context_error(ctx));
        if (status < 0) assert_error(ctx, headers[i].error);
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
}

static void safetensors_length_is_checked_first(void **state)
{
    (void)state;
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "", 0, &file), ABAR_E_FORMAT);
    assert_error(ctx, "m: it has only 0 bytes");
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "\x02\0\0\0\0\0\0", 7, &file), ABAR_E_FORMAT);
    assert_error(ctx, "it has only 7 bytes");
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "\x03\0\0\0\0\0\0\0{}", 10, &file), ABAR_E_FORMAT);
    assert_error(ctx, "its header of 3 bytes does not fit into a file of 10");
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "\x01\xE1\xF5\x05\0\0\0\0{}", 10, &file), ABAR_E_FORMAT);
    assert_error(ctx, "its header of 100000001 bytes exceeds 100000000");
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, &file), ABAR_E_FORMAT);
    assert_error(ctx, "its header of 18446744073709551615 bytes");
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", "\x02\0\0\0\0\0\0\0{}", 10, &file), ABAR_OK);
    abar__safetensors_close(file);
}

static void safetensors_cut_anywhere_is_refused(void **state)
{
    char path[TEST_PATH];
    abar__text whole;
    assert_int_equal(write_samples(test_path(state, "x", path)), ABAR_OK);
    assert_int_equal(abar__file_read(ctx, path, 1 << 20, &whole), ABAR_OK);
    for (size_t n = 0; n < whole.length; n++) {
        abar__safetensors *file;
        char *copy = malloc(n + 1);
        memcpy(copy, whole.data, n);
        copy = realloc(copy, n > 0 ? n : 1);
        assert_int_equal(abar__safetensors_open_memory(ctx, "cut", copy, n, &file), ABAR_E_FORMAT);
        free(copy);
    }
    abar__text_free(ctx, &whole);
}

/* A flip in the data is reported with the tensor's name; one in the header may leave it unreadable. */
static void safetensors_with_any_bit_flipped_is_refused(void **state)
{
    char path[TEST_PATH];
    abar__text whole;
    abar__safetensors *file;
    assert_int_equal(write_samples(test_path(state, "x", path)), ABAR_OK);
    assert_int_equal(abar__file_read(ctx, path, 1 << 20, &whole), ABAR_OK);
    size_t data = 8 + (size_t)(unsigned char)whole.data[0] + 256 * (size_t)(unsigned char)whole.data[1];
    for (size_t bit = 0; bit < 8 * whole.length; bit++) {
        whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ 1 << bit % 8);
        abar_status status = abar__safetensors_open_memory(ctx, "m", whole.data, whole.length, &file);
        if (status != ABAR_E_FORMAT && status != ABAR_E_UNSUPPORTED) fail_msg("bit %zu: status %d", bit, status);
        if (bit / 8 >= data) { /* in a tensor: it is named */
            assert_error(ctx, "m: tensor ");
            assert_error(ctx, "does not match its checksum");
        }
        whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ 1 << bit % 8);
    }
    assert_int_equal(abar__safetensors_open_memory(ctx, "m", whole.data, whole.length, &file), ABAR_OK);
    abar__safetensors_close(file);
    abar__text_free(ctx, &whole);
}

#define GOOD_A "9ee542be" /* Python's zlib.crc32(b"F32[2]" + bytes(8)) */
#define GOOD_V "6b643b84" /* zlib.crc32(b"v") */
#define SUMS(count, tensor, value) \
    "\"abar.crc32\":\"" count "\",\"abar.crc32.tensor.a\":\"" tensor "\",\"abar.crc32.metadata.k\":\"" value "\""
#define SUMMED(metadata) "{\"__metadata__\":{" metadata "},\"a\":{" F32_2 ",\"data_offsets\":[0,8]}}"

static void safetensors_with_a_wrong_checksum_names_what_it_is_of(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        abar_status status;
        const char *error;
    } cases[] = {
        {SUMMED("\"k\":\"v\"," SUMS("2", GOOD_A, GOOD_V)), ABAR_OK, ""},
        {SUMMED("\"k\":\"v\",\"more\":\"of others\"," SUMS("2", GOOD_A, GOOD_V)), ABAR_OK, ""},
        {SUMMED("\"k\":\"v\"," SUMS("2", "00000000", GOOD_V)), ABAR_E_FORMAT, "m: tensor a does not match its checksum"},
        {SUMMED("\"k\":\"v\"," SUMS("2", "", GOOD_V)), ABAR_E_FORMAT, "m: tensor a does not match its checksum"},
        {SUMMED("\"k\":\"w\"," SUMS("2", GOOD_A, GOOD_V)), ABAR_E_FORMAT, "m: metadata k does not match its checksum"},
        {SUMMED("\"l\":\"v\"," SUMS("2", GOOD_A, GOOD_V)), ABAR_E_FORMAT, "m: metadata k has a checksum but is missing"},
        {SUMMED("\"k\":\"v\"," SUMS("3", GOOD_A, GOOD_V)), ABAR_E_FORMAT, "abar.crc32 does not count"},
        {SUMMED("\"abar.crc32\":\"0\""), ABAR_E_FORMAT, "m: tensor a has no checksum"},
        {SUMMED("\"abar.crc32.tensor.a\":\"" GOOD_A "\""), ABAR_E_FORMAT, "abar.crc32 does not count"},
        {SUMMED("\"abar.crc32.tensor.b\":\"" GOOD_A "\""), ABAR_E_FORMAT, "m: tensor b has a checksum but is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__safetensors *file;
        abar_status status = open_header(cases[i].header, strlen(cases[i].header), 8, &file);
        if (status != cases[i].status) fail_msg("%s: status %d, %s", cases[i].header, status, abar_context_error(ctx));
        if (status < 0) assert_error(ctx, cases[i].error);
    }
}

static void safetensors_of_no_file_says_why(void **state)
{
    char path[TEST_PATH];
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(ctx, test_path(state, "absent", path), &file), ABAR_E_NOT_FOUND);
    assert_error(ctx, "absent: no such file or folder, check the path");
    assert_int_equal(abar__safetensors_open(ctx, *state, &file), ABAR_E_IO);
    assert_error(ctx, "is a folder, give a file");
    assert_int_equal(mkfifo(test_path(state, "pipe", path), 0600), 0);
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_E_FORMAT); /* at once, without a writer */
    assert_error(ctx, "not a regular file");
    test_write(test_path(state, "text", path), "just some text\n", 15);
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_E_FORMAT);
    assert_error(ctx, "the file is damaged or no safetensors file");
}

/* ---- the writer's own checks ----------------------------------------------------------------------------------- */

static void writer_refuses_what_it_cannot_write(void **state)
{
    (void)state;
    float data[16] = {0};
    abar_tensor good = abar_tensor_wrap(NULL, data, ABAR_F32, 2, (int64_t[]){2, 3}), bad = good;
    abar__safetensors_writer *w;
    assert_int_equal(abar__safetensors_writer_create(ctx, &w), ABAR_OK);
    bad.stride[0] = 4;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &bad), ABAR_E_ARGUMENT);
    assert_error(ctx, "tensor a: it is not dense");
    bad = abar_tensor_wrap(NULL, data, ABAR_F32, 4, (int64_t[]){1, 1, 1, 1});
    bad.layout = ABAR_LAYOUT_C8;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &bad), ABAR_E_ARGUMENT);
    bad = good;
    bad.dev = (abar_device *)&bad;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &bad), ABAR_E_ARGUMENT);
    assert_error(ctx, "not in host memory");
    bad = good;
    bad.data = NULL;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &bad), ABAR_E_ARGUMENT);
    bad = good;
    bad.ndim = 7;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &bad), ABAR_E_ARGUMENT);
    assert_int_equal(abar__safetensors_writer_add(w, "__metadata__", &good), ABAR_E_ARGUMENT);
    assert_int_equal(abar__safetensors_writer_add(w, "\xFF", &good), ABAR_E_ARGUMENT);
    assert_int_equal(abar__safetensors_writer_add(w, "a", &good), ABAR_OK);
    assert_int_equal(abar__safetensors_writer_add(w, "a", &good), ABAR_E_ARGUMENT);
    assert_error(ctx, "tensor a: it was added already");
    assert_int_equal(abar__safetensors_writer_metadata(w, "k", "v"), ABAR_OK);
    assert_int_equal(abar__safetensors_writer_metadata(w, "k", "w"), ABAR_E_ARGUMENT);
    assert_int_equal(abar__safetensors_writer_metadata(w, "\xFF", "w"), ABAR_E_ARGUMENT);
    assert_int_equal(abar__safetensors_writer_metadata(w, "l", "\xFF"), ABAR_E_ARGUMENT);
    abar__safetensors_writer_destroy(w);
}

/* ---- writes that fail ------------------------------------------------------------------------------------------ */

static const char old[] = "what was there before";

/* The old file is unchanged and the only one in the folder. */
static void assert_untouched(void **state, const char *path)
{
    assert_file(path, old, sizeof old);
    assert_int_equal(test_folder_files(*state, 0), 1);
}

static void writer_beyond_the_size_limit_keeps_the_old_file(void **state)
{
    char path[TEST_PATH];
    struct stat whole;
    assert_int_equal(write_samples(test_path(state, "x", path)), ABAR_OK);
    assert_int_equal(stat(path, &whole), 0);
    test_write(path, old, sizeof old);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < (rlim_t)whole.st_size; limit += 50) { /* in the header, at its end, in the data */
        small = (struct rlimit){limit, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        abar_status status = write_samples(path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, ABAR_E_IO);
        assert_error(ctx, "x: file too large");
        assert_error(ctx, "; the old file is unchanged");
        assert_untouched(state, path);
    }
    signal(SIGXFSZ, handler);
}

static void writer_into_no_folder_fails(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(write_samples(test_path(state, "absent/x", path)), ABAR_E_NOT_FOUND);
    assert_error(ctx, "absent/x: no such file or folder, check the path");
    assert_int_equal(test_folder_files(*state, 0), 0);
}

static void writer_onto_a_folder_fails(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(mkdir(test_path(state, "sub", path), 0755), 0);
    assert_int_equal(write_samples(path), ABAR_E_IO);
    assert_error(ctx, "sub: is a folder, give a file");
    assert_int_equal(test_folder_files(*state, 0), 1);
}

static void writer_into_a_read_only_folder_fails(void **state)
{
    char path[TEST_PATH];
    test_write(test_path(state, "x", path), old, sizeof old);
    assert_int_equal(chmod(*state, 0555), 0);
    bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0); /* permissions do not bind root */
    abar_status status = write_samples(path);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, ABAR_E_IO);
    assert_error(ctx, "permission denied, change the permissions or choose another path; the old file is unchanged");
    assert_untouched(state, path);
}

/* ---- memory that fails ------------------------------------------------------------------------------------------ */

static void writer_with_every_allocation_failing_in_turn(void **state)
{
    char path[TEST_PATH];
    test_write(test_path(state, "x", path), old, sizeof old);
    abar_status status = ABAR_E_MEMORY;
    long k = 0;
    for (; status != ABAR_OK; k++) {
        memory.calls = 0;
        memory.fail_at = k + 1;
        status = write_samples(path);
        if (status == ABAR_OK) break;
        assert_int_equal(status, ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        assert_untouched(state, path);
    }
    memory.fail_at = 0;
    assert_true(k >= 5);
    check_samples(path);
}

static void reader_with_every_allocation_failing_in_turn(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(write_samples(test_path(state, "x", path)), ABAR_OK);
    abar_status status = ABAR_E_MEMORY;
    long k = 0;
    for (; status != ABAR_OK; k++) {
        abar__safetensors *file;
        memory.calls = 0;
        memory.fail_at = k + 1;
        status = abar__safetensors_open(ctx, path, &file);
        if (status == ABAR_OK) {
            abar__safetensors_close(file);
            break;
        }
        assert_int_equal(status, ABAR_E_MEMORY);
        assert_null(file);
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
    memory.fail_at = 0;
    assert_true(k >= 5);
}

/* cJSON's memory is malloc's, not the context's: its hooks make one allocation after the other fail. */
static long json_calls, json_fail_at;

static void *json_malloc(size_t n) { return ++json_calls == json_fail_at ? NULL : malloc(n); }

static void reader_with_every_json_allocation_failing_in_turn(void **state)
{
    char path[TEST_PATH];
    assert_int_equal(write_samples(test_path(state, "x", path)), ABAR_OK);
    cJSON_Hooks hooks = {json_malloc, free};
    abar_status status = ABAR_E_MEMORY;
    for (json_fail_at = 1; status != ABAR_OK; json_fail_at++) {
        abar__safetensors *file;
        json_calls = 0;
        cJSON_InitHooks(&hooks);
        status = abar__safetensors_open(ctx, path, &file);
        cJSON_InitHooks(NULL);
        if (status == ABAR_OK) {
            abar__safetensors_close(file);
            break;
        }
        if (status != ABAR_E_MEMORY) fail_msg("allocation %ld: %s", json_fail_at, abar_context_error(ctx));
        assert_error(ctx, "x: not enough memory to read its header");
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
    assert_true(json_fail_at > 50);
}

/* A writer that once ran out of memory can still be used. */
static void writer_goes_on_after_a_failed_add(void **state)
{
    char path[TEST_PATH];
    abar__safetensors_writer *w;
    abar_tensor t = sample(0);
    char key[300], value[2000];
    memset(key, 'k', sizeof key);
    memset(value, 'v', sizeof value);
    key[299] = value[1999] = '\0';
    assert_int_equal(abar__safetensors_writer_create(ctx, &w), ABAR_OK);
    memory.fail_at = memory.calls + 2; /* the key fits, the value does not */
    assert_int_equal(abar__safetensors_writer_metadata(w, key, value), ABAR_E_MEMORY);
    memory.fail_at = memory.calls + 2; /* the name fits, the item does not */
    assert_int_equal(abar__safetensors_writer_add(w, "a", &t), ABAR_E_MEMORY);
    memory.fail_at = 0;
    assert_int_equal(abar__safetensors_writer_add(w, "a", &t), ABAR_OK);
    assert_int_equal(abar__safetensors_writer_metadata(w, key, "short"), ABAR_OK);
    assert_int_equal(abar__safetensors_writer_write(w, test_path(state, "x", path)), ABAR_OK);
    abar__safetensors_writer_destroy(w);
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(ctx, path, &file), ABAR_OK);
    assert_int_equal(abar__safetensors_count(file), 1);
    assert_string_equal(abar__safetensors_metadata(file, key), "short");
    abar__safetensors_close(file);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(safetensors_written_reads_back),
        TEST(safetensors_order_is_that_of_the_data),
        TEST(safetensors_without_tensors_is_a_file),
        TEST(safetensors_of_torch_reads),
        TEST(safetensors_each_damage_has_its_error),
        TEST(safetensors_length_is_checked_first),
        TEST(safetensors_cut_anywhere_is_refused),
        TEST(safetensors_with_any_bit_flipped_is_refused),
        TEST(safetensors_with_a_wrong_checksum_names_what_it_is_of),
        TEST(safetensors_of_no_file_says_why),
        TEST(writer_refuses_what_it_cannot_write),
        TEST(writer_beyond_the_size_limit_keeps_the_old_file),
        TEST(writer_into_no_folder_fails),
        TEST(writer_onto_a_folder_fails),
        TEST(writer_into_a_read_only_folder_fails),
        TEST(writer_with_every_allocation_failing_in_turn),
        TEST(reader_with_every_allocation_failing_in_turn),
        TEST(reader_with_every_json_allocation_failing_in_turn),
        TEST(writer_goes_on_after_a_failed_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
