/* Resampling with Pillow's bytes: integer weights per output, a horizontal pass over RGB rows, a vertical pass over those. */
#ifndef ABAR_RESIZE_H
#define ABAR_RESIZE_H

#include "image/image.h"

#define ABAR_RESIZE_ROWS 4 /* that the horizontal pass takes at once */
#define ABAR_RESIZE_PAD 32 /* bytes that the kernels may read and write after the end of a row */

/* One axis: output i is the sum of inputs first[i] ... with weights[i * taps ...], in units of 2^-22. Unneeded weights are 0,
 * and are placed so that first[i] + taps goes past the last input only where there are fewer inputs than taps. */
typedef struct abar__resize_axis {
    int32_t n;      /* outputs */
    int32_t taps;   /* weights of an output, a multiple of 4 */
    int32_t *first; /* n; from the first input that any output needs */
    int32_t *count; /* n; weights up to the last that is needed */
    int32_t *weights;
} abar__resize_axis;

/* Inputs that outputs [from, from + n) of a resize from `in` to `out` need: [*first, *last). */
void abar__resize_range(int32_t in, int32_t out, abar__image_filter filter, int32_t from, int32_t n, int32_t *first,
                        int32_t *last);
/* Bytes of an axis' arrays. */
size_t abar__resize_axis_bytes(int32_t in, int32_t out, abar__image_filter filter, int32_t n);
/* The weights of outputs [from, from + n), the last one first if reversed. memory: of abar__resize_axis_bytes. */
void abar__resize_axis_make(int32_t in, int32_t out, abar__image_filter filter, int32_t from, int32_t n, bool reversed,
                            void *memory, abar__resize_axis *axis);

/* The loops, in plain C and for instruction sets. All give the same bytes. */
typedef struct abar__resize_kernels {
    const char *name;
    /* Resamples n (at most ABAR_RESIZE_ROWS) rows of RGB bytes to out rows, out_stride bytes apart. */
    void (*across)(const abar__resize_axis *axis, const uint8_t *const *rows, int32_t n, uint8_t *out, size_t out_stride);
    /* Output y of the axis: `bytes` weighted sums of rows that are stride bytes apart. out has padding. */
    void (*down)(const abar__resize_axis *axis, int32_t y, const uint8_t *rows, size_t stride, size_t bytes, uint8_t *out);
    /* n RGB pixels into three planes, plane bytes apart. */
    void (*split)(const uint8_t *rgb, int32_t n, uint8_t *out, size_t plane);
} abar__resize_kernels;

extern const abar__resize_kernels abar__resize_plain;
/* The fastest this machine runs. */
const abar__resize_kernels *abar__resize_best(void);
/* NULL where this machine or build has none. */
const abar__resize_kernels *abar__resize_avx2(void);

#endif
