/* What the files of the operations share: the families that abar__image_apply chooses from, and their loops. */
#ifndef ABAR_OPERATIONS_IMPL_H
#define ABAR_OPERATIONS_IMPL_H

#include "image/operations.h"

/* An affine map with interpolation, for the loops. */
typedef struct abar__affine_job {
    const abar__image_change *change;
    int32_t height, width;
    int taps;                     /* neighbours along an axis: 2 or 4 */
    bool rows_stay, columns_stay; /* the input's row is the output's, exactly; the same of columns */
} abar__affine_job;

/* The input's coordinate at column x of a row: (step*(x + 1/2) + across) + offset, rounded three times. */
typedef struct abar__affine_line {
    double step, across, offset;
} abar__affine_line;

static inline double abar__affine_place(const abar__affine_line *l, int32_t x)
{
    return (l->step * ((double)x + 0.5) + l->across) + l->offset;
}

/* Columns of a row. */
typedef struct abar__affine_run {
    int32_t from, to;
} abar__affine_run;

/* The loops, in plain C and for instruction sets. All give the same bytes. */
typedef struct abar__operation_loops {
    const char *name;
    /* A run of row y whose positions are inside. right, down: the lines of the coordinates. clamped: neighbours may be outside.
     */
    void (*interpolate)(const abar__affine_job *job, const abar__affine_line *right, const abar__affine_line *down, int32_t y,
                        abar__affine_run run, bool clamped, const uint8_t *in, uint8_t *out);
    /* Three planes of n pixels blended with their gray. */
    void (*blend_with_gray)(float factor, int64_t n, const uint8_t *in, uint8_t *out);
    /* The sum of their grays. */
    int64_t (*sum_gray)(int64_t n, const uint8_t *in);
    /* n pixels, one after the other. in: the pixel above and to the left of the first. */
    void (*sharpen)(float factor, int32_t width, int32_t n, const uint8_t *in, uint8_t *out);
} abar__operation_loops;

extern const abar__operation_loops abar__operations_plain;
const abar__operation_loops *abar__operations_avx2(void); /* NULL where this machine or build has none */

/* abar__image_apply with these loops. */
void abar__image_apply_by(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                          const uint8_t *in, uint8_t *out);

void abar__image_affine(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                        const uint8_t *in, uint8_t *out);
void abar__image_rotate(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                        const uint8_t *in, uint8_t *out);
/* Brightness, color, contrast and sharpness. */
void abar__image_enhance(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                         const uint8_t *in, uint8_t *out);
/* out[i] = table[in[i]]. */
void abar__image_look_up(const uint8_t table[256], int64_t n, const uint8_t *in, uint8_t *out);

/* Of whole numbers, because vector units have a maximum of those that is the same as C's. Truncating first changes nothing. */
static inline uint8_t abar__image_clip(int v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

/* Between p (factor 0) and q (factor 1), and beyond: two roundings, then truncation. */
static inline uint8_t abar__image_blend(int p, int q, float factor)
{
    return abar__image_clip((int)((float)p + factor * (float)(q - p)));
}

#endif
