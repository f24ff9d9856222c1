/* Correlations of an activation with its own shifts: the inner loops of the dense statistics (methods.md section 4). */
#ifndef ABAR_STATS_PRODUCT_KERNELS_H
#define ABAR_STATS_PRODUCT_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

/* A lattice of pixels seen from two places, a and b. Pixels hold sixteen numbers: channels of one image, or one channel of
 * sixteen images. Pitches are in floats. */
typedef struct abar__product_run {
    const float *a, *b;                  /* first pixel of either side */
    int64_t groups, rows, columns;       /* groups: images, or sixteens of images */
    int64_t group, row, column, channel; /* pitches; channel: where images are in the lanes */
    const float *weight;                 /* of every image; NULL: 1 */
    int64_t images;                      /* where they are in the lanes: how many count, the rest is padding */
} abar__product_run;

typedef struct abar__product_kernels {
    /* channels in the lanes: block[c][l] += sum of a[c] b[l], c < rows (read up to the next multiple of four) */
    void (*channels)(const abar__product_run *run, int64_t rows, float *block);
    /* images in the lanes: block[c][l] += sum of a_c b_l, both < channels */
    void (*images)(const abar__product_run *run, int64_t channels, float *block);
    /* the same with a = 1: one row of such a block */
    void (*channel_sums)(const abar__product_run *run, float *sums);
    void (*image_sums)(const abar__product_run *run, int64_t channels, float *sums);
    /* sums[l] = sum over rows and columns of a[row * r + column * c + l], l < lanes <= 16 */
    void (*lane_sums)(const abar__product_run *run, int64_t lanes, float *sums);
} abar__product_kernels;

ABAR_ISA_EXTERN(abar__product_kernels, abar__product);

#endif
