/* Rows of attention: softmax over a block of keys, and its gradient. Rows lie in tiles whose width is a multiple of sixteen;
 * the first n elements of a row count, the rest up to width are made zero. */
#ifndef ABAR_ATTENTION_KERNELS_H
#define ABAR_ATTENTION_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

/* One query of a window: what its scores get before the softmax. */
typedef struct abar__window_row {
    const float *table;    /* relative position bias of one head */
    const int32_t *code;   /* of the keys; the bias is table[here - code[j]], and no two codes are equal */
    const int32_t *region; /* of the keys: those of another region than mine are not seen */
    int32_t here, mine;
} abar__window_row;

/* What the gradient of a row needs. p = e^(s - log_sum), s already scaled. */
typedef struct abar__slope_row {
    float log_sum, delta;
    const float *factor; /* dropout's, NULL: none */
    float *column;       /* where p is added to, NULL: not wanted */
} abar__slope_row;

typedef struct abar__attention_kernels {
    /* s = s + bias, or -infinity where the key is not seen */
    void (*window)(const abar__window_row *w, float *s, int64_t n);
    /* s = e^(s - top), where top is first raised to the largest of s; returns the sum */
    float (*softmax)(float *top, float *s, int64_t n, int64_t width);
    /* ds = p (factor dp - delta) in dp's place, factor p in s's */
    void (*slope)(const abar__slope_row *row, float *s, float *dp, int64_t n, int64_t width);
    void (*window_slope)(const abar__window_row *w, const float *ds, float *table, int64_t n); /* table of gradients += ds */
    void (*times)(float factor, float *x, int64_t n);
    void (*times_each)(const float *factor, float *x, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
} abar__attention_kernels;

ABAR_ISA_EXTERN(abar__attention_kernels, abar__attention);

#endif
