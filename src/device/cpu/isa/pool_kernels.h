/* Pooling of one plane of pixels, each of `lanes` floats: (H, W, lanes) to (H', W', lanes). */
#ifndef ABAR_POOL_KERNELS_H
#define ABAR_POOL_KERNELS_H

#include "abar/tensor.h"
#include "device/cpu/isa.h"

typedef struct abar__pool {
    abar_window window;
    int64_t in[2], out[2]; /* pixels: vertical, horizontal */
    int lanes;             /* 1, 8 or 16 */
    bool tiles;            /* the windows cover every input pixel exactly once */
    bool wide;             /* cells of the window are numbered in int32_t, else in uint8_t */
} abar__pool;

typedef struct abar__pool_kernels {
    /* cell, unless NULL: the index within its window of each maximum, (H', W', lanes) of uint8_t or int32_t. */
    void (*max)(const abar__pool *p, const float *x, float *y, void *cell);
    void (*chosen)(const abar__pool *p, const float *x, float *y, const void *cell); /* the pixels that cell names */
    void (*max_grad)(const abar__pool *p, const float *dy, const void *cell, float *dx);
    void (*average)(const abar__pool *p, const float *x, float *y);
    void (*average_grad)(const abar__pool *p, const float *dy, float *dx);
} abar__pool_kernels;

ABAR_ISA_EXTERN(abar__pool_kernels, abar__pool);

#endif
