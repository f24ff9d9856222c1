/* Tensor views: sizes, the 16-bit floats over all their values, and every layout's offsets and copies. */
#include "io/io_test.h"

#include "tensor/tensor_impl.h"

#include <math.h>

static void dtype_names_and_sizes_match(void **state)
{
    (void)state;
    static const struct {
        abar_dtype dtype;
        const char *name;
        size_t size;
    } cases[] = {{ABAR_F64, "F64", 8}, {ABAR_F32, "F32", 4}, {ABAR_BF16, "BF16", 2}, {ABAR_F16, "F16", 2},
                 {ABAR_I64, "I64", 8}, {ABAR_I32, "I32", 4}, {ABAR_U8, "U8", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(abar_dtype_name(cases[i].dtype), cases[i].name);
        assert_int_equal(abar_dtype_size(cases[i].dtype), cases[i].size);
    }
}

static void bf16_every_pattern_round_trips(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = abar__bf16_load((uint16_t)bits);
        uint16_t back = abar__bf16_round(value);
        if (isnan(value))
            assert_true(isnan(abar__bf16_load(back)));
        else
            assert_int_equal(back, bits);
    }
}

/* Between every two neighbours: the middle rounds to the even one, a little less down, a little more up. */
static void bf16_ties_go_to_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f80; bits++) {
        uint32_t middle = bits << 16 | 0x8000;
        for (int off = -1; off <= 1; off++) {
            uint32_t wide = middle + (uint32_t)off;
            float value;
            memcpy(&value, &wide, sizeof value);
            uint32_t expected = off < 0 ? bits : off > 0 ? bits + 1 : bits + (bits & 1);
            assert_int_equal(abar__bf16_round(value), expected);
            assert_int_equal(abar__bf16_round(-value), expected | 0x8000);
        }
    }
}

static void f16_every_pattern_round_trips(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = abar__f16_load((uint16_t)bits);
        uint16_t back = abar__f16_round(value);
        if (isnan(value))
            assert_true(isnan(abar__f16_load(back)));
        else
            assert_int_equal(back, bits);
    }
    assert_true(abar__f16_load(0x3c00) == 1.0f);
    assert_true(abar__f16_load(0x7bff) == 65504.0f);
    assert_true(abar__f16_load(0x0001) == 0x1p-24f);
    assert_true(abar__f16_load(0x3555) == 0.333251953125f);
    assert_true(isinf(abar__f16_load(0xfc00)) && abar__f16_load(0xfc00) < 0);
}

static void f16_ties_go_to_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        float low = abar__f16_load((uint16_t)bits);
        float high = bits + 1 < 0x7c00 ? abar__f16_load((uint16_t)(bits + 1)) : 65536.0f; /* from where on infinity is nearer */
        float middle = (low + high) / 2;
        assert_int_equal(abar__f16_round(nextafterf(middle, 0)), bits);
        assert_int_equal(abar__f16_round(middle), bits + (bits & 1));
        assert_int_equal(abar__f16_round(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(abar__f16_round(-middle), (bits + (bits & 1)) | 0x8000);
    }
    assert_int_equal(abar__f16_round(1e30f), 0x7c00);
    assert_int_equal(abar__f16_round(-INFINITY), 0xfc00);
    assert_int_equal(abar__f16_round(1e-30f), 0);
}

static void tensor_wrap_is_dense_row_major(void **state)
{
    (void)state;
    float data[24];
    int64_t dim[] = {2, 3, 4};
    abar_tensor t = abar_tensor_wrap(NULL, data, ABAR_F32, 3, dim);
    assert_int_equal(t.stride[0], 12);
    assert_int_equal(t.stride[1], 4);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(abar_tensor_count(&t), 24);
    assert_int_equal(abar_tensor_bytes(&t), 96);
    assert_true(abar_tensor_is_dense(&t));
    t.stride[0] = 16; /* rows with a gap */
    assert_false(abar_tensor_is_dense(&t));
    assert_int_equal(abar_tensor_bytes(&t), 4 * (16 + 12));
    abar_tensor scalar = abar_tensor_wrap(NULL, data, ABAR_F64, 0, NULL);
    assert_int_equal(abar_tensor_count(&scalar), 1);
    assert_int_equal(abar_tensor_bytes(&scalar), 8);
    abar_tensor empty = abar_tensor_wrap(NULL, data, ABAR_F32, 3, (int64_t[]){2, 0, 4});
    assert_int_equal(abar_tensor_bytes(&empty), 0);
    assert_true(abar_tensor_is_dense(&empty));
    abar_tensor one = abar_tensor_wrap(NULL, data, ABAR_F32, 2, (int64_t[]){1, 4});
    one.stride[0] = 999; /* of a dimension of length 1: without effect */
    assert_true(abar_tensor_is_dense(&one));
}

static void window_out_counts_positions(void **state)
{
    (void)state;
    abar_window w = {.kernel = {3, 5}, .stride = {2, 1}, .pad = {1, 2}, .dilation = {1, 2}, .groups = 1};
    assert_int_equal(abar_window_out(&w, 0, 7), 4);
    assert_int_equal(abar_window_out(&w, 0, 8), 4);
    assert_int_equal(abar_window_out(&w, 1, 7), 3);
    assert_true(abar_window_out(&w, 1, 4) <= 0);
    abar_window unit = abar_window_unit();
    assert_int_equal(abar_window_out(&unit, 0, 9), 9);
}

/* ---- blocked layouts ------------------------------------------------------------------------------------------- */

static const int64_t shapes[][4] = {{1, 1, 1, 1}, {3, 5, 2, 3}, {2, 8, 3, 1}, {5, 17, 1, 4}, {17, 3, 2, 2}, {32, 16, 1, 1}};
static const abar_layout layouts[] = {ABAR_LAYOUT_C8, ABAR_LAYOUT_C16, ABAR_LAYOUT_N16, ABAR_LAYOUT_NHWC};
#define SHAPES (sizeof shapes / sizeof *shapes)
#define LAYOUTS (sizeof layouts / sizeof *layouts)
#define ROOM (32 * 32 * 16 * 2)

/* The definition in tensor.h's comments, written out. */
static int64_t expected_offset(abar_layout layout, const int64_t *d, const int64_t *i)
{
    int64_t c_blocks = (d[1] + 7) / 8;
    switch (layout) {
    case ABAR_LAYOUT_C8: return (((i[0] * c_blocks + i[1] / 8) * d[2] + i[2]) * d[3] + i[3]) * 8 + i[1] % 8;
    case ABAR_LAYOUT_C16:
        c_blocks = (d[1] + 15) / 16;
        return (((i[0] * c_blocks + i[1] / 16) * d[2] + i[2]) * d[3] + i[3]) * 16 + i[1] % 16;
    case ABAR_LAYOUT_N16: return (((i[0] / 16 * d[1] + i[1]) * d[2] + i[2]) * d[3] + i[3]) * 16 + i[0] % 16;
    case ABAR_LAYOUT_NHWC: return ((i[0] * d[2] + i[2]) * d[3] + i[3]) * d[1] + i[1];
    case ABAR_LAYOUT_PADDED: /* described by strides */
    case ABAR_LAYOUT_STRIDED: break;
    }
    return ((i[0] * d[1] + i[1]) * d[2] + i[2]) * d[3] + i[3];
}

/* Every element has an offset of its own, and all are within the bytes. */
static void layout_offsets_are_distinct_and_inside(void **state)
{
    (void)state;
    static unsigned char seen[ROOM];
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t l = 0; l < LAYOUTS; l++) {
            abar_tensor t = abar_tensor_wrap(NULL, NULL, ABAR_U8, 4, shapes[s]);
            t.layout = layouts[l];
            size_t bytes = abar_tensor_bytes(&t);
            const size_t block = layouts[l] == ABAR_LAYOUT_NHWC ? 1 : layouts[l] == ABAR_LAYOUT_C8 ? 8 : 16;
            assert_true(bytes <= ROOM && bytes % block == 0);
            assert_false(abar_tensor_is_dense(&t));
            memset(seen, 0, sizeof seen);
            const int64_t *d = shapes[s];
            for (int64_t n = 0; n < abar_tensor_count(&t); n++) {
                int64_t index[4] = {n / (d[1] * d[2] * d[3]), n / (d[2] * d[3]) % d[1], n / d[3] % d[2], n % d[3]};
                int64_t at = abar__tensor_offset(&t, index);
                assert_int_equal(at, expected_offset(layouts[l], d, index));
                assert_true(at >= 0 && (size_t)at < bytes && !seen[at]);
                seen[at] = 1;
            }
        }
    }
}

static void copy_through_every_layout_returns_the_same(void **state)
{
    (void)state;
    static float from[ROOM], blocked[ROOM], to[ROOM];
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t l = 0; l < LAYOUTS; l++) {
            abar_tensor a = abar_tensor_wrap(NULL, from, ABAR_F32, 4, shapes[s]), b = a, c = a;
            int64_t count = abar_tensor_count(&a);
            for (int64_t i = 0; i < count; i++) from[i] = (float)(i + 1);
            b.data = blocked;
            b.layout = layouts[l];
            c.data = to;
            memset(blocked, 0xFF, sizeof blocked);
            abar__tensor_copy_host(&b, &a);
            size_t spanned = abar_tensor_bytes(&b) / sizeof(float);
            double sum = 0;
            for (size_t i = 0; i < spanned; i++) sum += (double)blocked[i]; /* a NaN left in the padding would show */
            assert_true(sum == (double)count * (double)(count + 1) / 2);
            memset(to, 0, sizeof to);
            abar__tensor_copy_host(&c, &b);
            assert_memory_equal(to, from, (size_t)count * sizeof(float));
        }
    }
}

/* What a pass on a GPU fetches: bfloat16, channels last. */
static void copy_of_bf16_in_every_layout_widens(void **state)
{
    (void)state;
    static uint16_t from[ROOM], blocked[ROOM];
    static float to[ROOM];
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t l = 0; l < LAYOUTS; l++) {
            abar_tensor a = abar_tensor_wrap(NULL, from, ABAR_BF16, 4, shapes[s]), b = a,
                        c = abar_tensor_wrap(NULL, to, ABAR_F32, 4, shapes[s]);
            int64_t count = abar_tensor_count(&a);
            for (int64_t i = 0; i < count; i++) from[i] = abar__bf16_round((float)(i % 256 - 128));
            b.data = blocked;
            b.layout = layouts[l];
            abar__tensor_copy_host(&b, &a);
            abar__tensor_copy_host(&c, &b);
            for (int64_t i = 0; i < count; i++) assert_true(to[i] == (float)(i % 256 - 128));
        }
    }
}

static void copy_between_dtypes_rounds(void **state)
{
    (void)state;
    double from[4] = {1.0, 1.00390625 /* half a bf16 step: ties to even */, -65520.0, 0x1p-25};
    uint16_t half[4];
    float back[4];
    int64_t dim[] = {2, 2};
    abar_tensor a = abar_tensor_wrap(NULL, from, ABAR_F64, 2, dim), b = abar_tensor_wrap(NULL, half, ABAR_BF16, 2, dim);
    abar__tensor_copy_host(&b, &a);
    assert_int_equal(half[0], 0x3f80);
    assert_int_equal(half[1], 0x3f80);
    b.dtype = ABAR_F16;
    abar__tensor_copy_host(&b, &a);
    assert_int_equal(half[2], 0xfc00);
    assert_int_equal(half[3], 0x0000);
    abar_tensor c = abar_tensor_wrap(NULL, back, ABAR_F32, 2, dim);
    abar__tensor_copy_host(&c, &b);
    assert_true(back[0] == 1.0f && back[1] == 1.00390625f);
}

/* A transposed view, strides in reverse. */
static void copy_from_strides_transposes(void **state)
{
    (void)state;
    int32_t from[6] = {1, 2, 3, 4, 5, 6}, to[6];
    static const int32_t expected[6] = {1, 4, 2, 5, 3, 6};
    abar_tensor a = abar_tensor_wrap(NULL, from, ABAR_I32, 2, (int64_t[]){3, 2});
    a.stride[0] = 1;
    a.stride[1] = 3;
    abar_tensor b = abar_tensor_wrap(NULL, to, ABAR_I32, 2, (int64_t[]){3, 2});
    abar__tensor_copy_host(&b, &a);
    assert_memory_equal(to, expected, sizeof to);
}

static void load_and_store_every_dtype_unaligned(void **state)
{
    (void)state;
    char room[64];
    static const double values[] = {-1.5, -1.5, -1.5, -1.5, -7, -7, 200};
    for (abar_dtype dtype = ABAR_F64; dtype <= ABAR_U8; dtype++) {
        abar_tensor t = abar_tensor_wrap(NULL, room + 1, dtype, 1, (int64_t[]){3});
        abar__tensor_store(&t, 2, values[dtype]);
        assert_true(abar__tensor_load(&t, 2) == values[dtype]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_names_and_sizes_match),
        cmocka_unit_test(bf16_every_pattern_round_trips),
        cmocka_unit_test(bf16_ties_go_to_even),
        cmocka_unit_test(f16_every_pattern_round_trips),
        cmocka_unit_test(f16_ties_go_to_even),
        cmocka_unit_test(tensor_wrap_is_dense_row_major),
        cmocka_unit_test(window_out_counts_positions),
        cmocka_unit_test(layout_offsets_are_distinct_and_inside),
        cmocka_unit_test(copy_through_every_layout_returns_the_same),
        cmocka_unit_test(copy_of_bf16_in_every_layout_widens),
        cmocka_unit_test(copy_between_dtypes_rounds),
        cmocka_unit_test(copy_from_strides_transposes),
        cmocka_unit_test(load_and_store_every_dtype_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
