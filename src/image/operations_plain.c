/* The loops of operations for every machine. */
#include "image/operations_loops.h"

static void interpolate(const abar__affine_job *job, const abar__affine_line *right, const abar__affine_line *down, int32_t y,
                        abar__affine_run run, bool clamped, const uint8_t *in, uint8_t *out)
{
    interpolate_loop(job, right, down, y, run, clamped, in, out);
}

static void blend_with_gray(float factor, int64_t n, const uint8_t *in, uint8_t *out) { gray_loop(factor, n, in, out); }

static int64_t sum_gray(int64_t n, const uint8_t *in) { return sum_loop(n, in); }

static void sharpen(float factor, int32_t width, int32_t n, const uint8_t *in, uint8_t *out)
{
    sharpen_loop(factor, width, n, in, out);
}

const abar__operation_loops abar__operations_plain = {"plain", interpolate, blend_with_gray, sum_gray, sharpen};
