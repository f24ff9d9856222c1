/* Rows of attention: softmax over a block of keys, and its gradient. Rows are stored in tiles whose width is a multiple of
 * sixteen; only the first n elements of a row are used, the rest up to width is set to zero. */
#ifndef ABAR_ATTENTION_KERNELS_H
#define ABAR_ATTENTION_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

/* One query of a window: how its scores change before the softmax. */
typedef struct abar__window_row {
    const float *table;    /* relative position bias of one head */
    const int32_t *code;   /* of the keys; the bias is table[here - code[j]], and all codes differ */
    const int32_t *region; /* of the keys: keys of another region than `mine` are not seen */
    int32_t here, mine;
} abar__window_row;

/* The inputs of a row's gradient. p = e^(s - log_sum), s already scaled. */
typedef struct abar__slope_row {
    float log_sum, delta;
    const float *factor; /* dropout's, NULL: none */
    float *column;       /* p is added here, NULL: not wanted */
} abar__slope_row;

typedef struct abar__attention_kernels {
    /* s = s + bias, or -infinity where the key is not seen */
    void (*window)(const abar__window_row *w, float *s, int64_t n);
    /* s = e^(s - top), where top is first raised to the largest of s; returns the sum */
    float (*softmax)(float *top, float *s, int64_t n, int64_t width);
    /* ds = p (factor dp - delta) replaces dp, factor p replaces s */
    void (*slope)(const abar__slope_row *row, float *s, float *dp, int64_t n, int64_t width);
    void (*window_slope)(const abar__window_row *w, const float *ds, float *table, int64_t n); /* table of gradients += ds */
    void (*times)(float factor, float *x, int64_t n);
    void (*times_each)(const float *factor, float *x, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
} abar__attention_kernels;

ABAR_ISA_EXTERN(abar__attention_kernels, abar__attention);

#endif
