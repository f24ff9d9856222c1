/* Transposes blocks of floats, to convert one activation layout into another. */
#include "device/cpu/reorder.h"

#if defined(__AVX512F__)
enum { WIDTH = 16, STAGES = 4 };
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
enum { WIDTH = 8, STAGES = 3 };
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
enum { WIDTH = 4, STAGES = 2 };
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vec __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

/* Interleaving rows i and i + WIDTH/2 rotates the bits of an element's position (row, column) by one; doing so once per bit
 * of the row exchanges row and column. */
static inline __attribute__((always_inline)) void tile(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    vec a[WIDTH], b[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) a[i] = *(const vec *)(src + i * src_stride);
    UNROLL for (int stage = 0; stage < STAGES; stage++)
    {
        UNROLL for (int i = 0; i < WIDTH / 2; i++)
        {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + WIDTH / 2], ZIP_LOW);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + WIDTH / 2], ZIP_HIGH);
        }
        UNROLL for (int i = 0; i < WIDTH; i++) a[i] = b[i];
    }
    UNROLL for (int i = 0; i < WIDTH; i++) * (vec *)(dst + i * dst_stride) = a[i];
}

static void transpose(const float *src, int64_t src_stride, float *dst, int64_t dst_stride, int64_t rows, int64_t columns,
                      int64_t padded)
{
    int64_t whole_rows = rows - rows % WIDTH, whole_columns = columns - columns % WIDTH;
    for (int64_t r = 0; r < whole_rows; r += WIDTH)
        for (int64_t q = 0; q < whole_columns; q += WIDTH)
            tile(src + r * src_stride + q, src_stride, dst + q * dst_stride + r, dst_stride);
    for (int64_t q = 0; q < columns; q++) {
        for (int64_t r = q < whole_columns ? whole_rows : 0; r < rows; r++) dst[q * dst_stride + r] = src[r * src_stride + q];
        for (int64_t r = rows; r < padded; r++) dst[q * dst_stride + r] = 0.0f;
    }
}

const abar__reorder_kernels ABAR_ISA_NAME(abar__reorder) = {transpose};
