/* The passes of a resize for AVX2.
 *
 * A weight has 22 bits and a sign, a byte 8. _mm256_madd_epi16 multiplies 16 bits: weights are split into 15 low bits and the
 * rest, whose sums are joined at the end, modulo 2^32. The whole sum fits in 32 bits, so the result is exact. */
#include "image/resize.h"

#ifdef ABAR_HAVE_X86_KERNELS

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline, target("avx2")))

enum { PRECISION = 22, LOW = 15 };

/* The rounded byte of two sums, not clipped. low began with one half. */
INLINE __m256i join(__m256i low, __m256i high)
{
    return _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, LOW)), PRECISION);
}

/* Four weights as eight halves: the low ones, then the high ones. */
INLINE __m128i halves(__m128i weights)
{
    return _mm_packs_epi32(_mm_and_si128(weights, _mm_set1_epi32((1 << LOW) - 1)), _mm_srai_epi32(weights, LOW));
}

/* Twelve bytes of one row in each half, of which four pixels are used. */
INLINE __m256i load_two(const uint8_t *first, const uint8_t *second)
{
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)second), 1);
}

/* One output pixel of 2 * P rows: R G B - of two rows in each of sums[0 ... P-1]. groups: of four taps. */
INLINE void pixel(const int32_t *weights, int32_t groups, const uint8_t *const *rows, size_t at, const int P, __m256i *sums)
{
    const __m256i first = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i second =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    __m256i low[ABAR_RESIZE_ROWS / 2], high[ABAR_RESIZE_ROWS / 2];
    for (int i = 0; i < P; i++) low[i] = _mm256_set1_epi32(1 << (PRECISION - 1)), high[i] = _mm256_setzero_si256();
    for (int32_t g = 0; g < groups; g++, at += 12) {
        __m256i w = _mm256_broadcastsi128_si256(halves(_mm_loadu_si128((const __m128i *)(weights + 4 * g))));
        __m256i low_first = _mm256_shuffle_epi32(w, 0x00), low_second = _mm256_shuffle_epi32(w, 0x55);
        __m256i high_first = _mm256_shuffle_epi32(w, 0xAA), high_second = _mm256_shuffle_epi32(w, 0xFF);
        for (int i = 0; i < P; i++) {
            __m256i bytes = load_two(rows[2 * i] + at, rows[2 * i + 1] + at);
            __m256i a = _mm256_shuffle_epi8(bytes, first), b = _mm256_shuffle_epi8(bytes, second);
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(a, low_first));
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(b, low_second));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(a, high_first));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(b, high_second));
        }
    }
    for (int i = 0; i < P; i++) sums[i] = join(low[i], high[i]);
}

INLINE void store(uint8_t *out, int pixel) { memcpy(out, &pixel, 4); }

/* Four rows. A pixel is stored with a fourth byte, which the next one overwrites. */
INLINE void across_groups(const abar__resize_axis *axis, int32_t groups, const uint8_t *const *rows, uint8_t *out,
                          size_t stride)
{
    const int32_t *weights = axis->weights;
    for (int32_t x = 0; x < axis->n; x++, out += 3, weights += axis->taps) {
        __m256i s[2];
        pixel(weights, groups, rows, 3 * (size_t)axis->first[x], 2, s);
        __m256i words = _mm256_packs_epi32(s[0], s[1]), bytes = _mm256_packus_epi16(words, words);
        __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
        store(out, _mm_cvtsi128_si32(even));
        store(out + stride, _mm_cvtsi128_si32(odd));
        store(out + 2 * stride, _mm_extract_epi32(even, 1));
        store(out + 3 * stride, _mm_extract_epi32(odd, 1));
    }
}

/* The number of groups is a constant where it is small: a loop of so few rounds costs more than what it does. */
AVX2 static void across_four(const abar__resize_axis *axis, const uint8_t *const *rows, uint8_t *out, size_t stride)
{
    switch (axis->taps / 4) {
    case 1: across_groups(axis, 1, rows, out, stride); break;
    case 2: across_groups(axis, 2, rows, out, stride); break;
    case 3: across_groups(axis, 3, rows, out, stride); break;
    default: across_groups(axis, axis->taps / 4, rows, out, stride);
    }
}

/* Fewer rows than four: one and itself. */
AVX2 static void across_one(const abar__resize_axis *axis, const uint8_t *row, uint8_t *out)
{
    const uint8_t *const rows[2] = {row, row};
    for (int32_t x = 0; x < axis->n; x++, out += 3) {
        __m256i s;
        pixel(axis->weights + (size_t)x * (size_t)axis->taps, axis->taps / 4, rows, 3 * (size_t)axis->first[x], 1, &s);
        __m256i words = _mm256_packs_epi32(s, s);
        store(out, _mm_cvtsi128_si32(_mm256_castsi256_si128(_mm256_packus_epi16(words, words))));
    }
}

static void across_avx2(const abar__resize_axis *axis, const uint8_t *const *rows, int32_t n, uint8_t *out, size_t out_stride)
{
    if (n == ABAR_RESIZE_ROWS)
        across_four(axis, rows, out, out_stride);
    else
        for (int32_t i = 0; i < n; i++) across_one(axis, rows[i], out + (size_t)i * out_stride);
}

/* 32 bytes of the result: pairs of rows are interleaved, so that a multiplication takes both. */
INLINE __m256i block(const int32_t *weights, int32_t count, const uint8_t *rows, size_t stride)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i low[4], high[4];
    for (int i = 0; i < 4; i++) low[i] = _mm256_set1_epi32(1 << (PRECISION - 1)), high[i] = zero;
    for (int32_t k = 0; k < count; k += 2, rows += 2 * stride) {
        __m128i w = halves(_mm_loadl_epi64((const __m128i *)(weights + k)));
        __m256i wl = _mm256_broadcastd_epi32(w), wh = _mm256_broadcastd_epi32(_mm_srli_si128(w, 8));
        __m256i a = _mm256_loadu_si256((const __m256i *)rows);
        __m256i b = k + 1 < count ? _mm256_loadu_si256((const __m256i *)(rows + stride)) : zero;
        __m256i l = _mm256_unpacklo_epi8(a, b), h = _mm256_unpackhi_epi8(a, b);
        __m256i values[4] = {_mm256_unpacklo_epi8(l, zero), _mm256_unpackhi_epi8(l, zero), _mm256_unpacklo_epi8(h, zero),
                             _mm256_unpackhi_epi8(h, zero)};
        for (int i = 0; i < 4; i++) {
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(values[i], wl));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(values[i], wh));
        }
    }
    for (int i = 0; i < 4; i++) low[i] = join(low[i], high[i]);
    return _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
}

AVX2 static void down_avx2(const abar__resize_axis *axis, int32_t y, const uint8_t *rows, size_t stride, size_t bytes,
                           uint8_t *out)
{
    const int32_t *weights = axis->weights + (size_t)y * (size_t)axis->taps;
    rows += (size_t)axis->first[y] * stride;
    for (size_t at = 0; at < bytes; at += 32)
        _mm256_storeu_si256((__m256i *)(out + at), block(weights, axis->count[y], rows + at, stride));
}

/* Channel c of 16 pixels in three registers: byte 3 i + c. A mask with bit 7 set yields 0. */
INLINE __m128i channel(const __m128i *rgb, int c)
{
    __m128i out = _mm_setzero_si128(), place = _mm_setr_epi8(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45);
    place = _mm_add_epi8(place, _mm_set1_epi8((char)c));
    for (int i = 0; i < 3; i++) { /* only places 0 to 15 of this register may stay without bit 7 */
        __m128i at = _mm_sub_epi8(place, _mm_set1_epi8((char)(16 * i)));
        at = _mm_or_si128(at, _mm_cmpgt_epi8(at, _mm_set1_epi8(15)));
        out = _mm_or_si128(out, _mm_shuffle_epi8(rgb[i], at));
    }
    return out;
}

AVX2 static void split_avx2(const uint8_t *rgb, int32_t n, uint8_t *out, size_t plane)
{
    int32_t i = 0;
    for (; i + 16 <= n; i += 16, rgb += 48, out += 16) {
        __m128i v[3];
        for (int k = 0; k < 3; k++) v[k] = _mm_loadu_si128((const __m128i *)(rgb + 16 * k));
        for (int c = 0; c < 3; c++) _mm_storeu_si128((__m128i *)(out + (size_t)c * plane), channel(v, c));
    }
    abar__resize_plain.split(rgb, n - i, out, plane);
}

static const abar__resize_kernels kernels = {"avx2", across_avx2, down_avx2, split_avx2};

const abar__resize_kernels *abar__resize_avx2(void) { return __builtin_cpu_supports("avx2") ? &kernels : NULL; }

#else

const abar__resize_kernels *abar__resize_avx2(void) { return NULL; }

#endif
