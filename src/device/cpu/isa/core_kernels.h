/* The vector kernels of the cpu's core operations, one table per instruction set. Each works on one span: consecutive
 * elements of one parameter. Constants of a span are passed as coefficients, rounded to float once. */
#ifndef ABAR_CORE_KERNELS_H
#define ABAR_CORE_KERNELS_H

#include "device/cpu/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* g <- grad_scale g + coupled w;  v <- momentum v + g;  w <- w - (decoupled w + lr_grad g + lr_velocity v) */
typedef struct abar__sgd_coefficients {
    float grad_scale, coupled, decoupled, momentum, lr_grad, lr_velocity;
} abar__sgd_coefficients;

/* g <- grad_scale g, between -largest and largest;  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
 * w <- w - (decay w + lr m / (root sqrt(v) + eps)), where lr and root hold the bias corrections */
typedef struct abar__adamw_coefficients {
    float grad_scale, largest, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, root, lr, decay;
} abar__adamw_coefficients;

/* g <- grad_scale g;  m <- momentum m + rest g;  g <- of_grad g + of_average m */
typedef struct abar__momentum_coefficients {
    float grad_scale, momentum, rest, of_grad, of_average;
} abar__momentum_coefficients;

/* A row of a preconditioned map: g is grad[i] - c right[i] instead of grad[i]. */
typedef struct abar__row {
    const float *right;
    float c;
} abar__row;

typedef struct abar__core_kernels {
    double (*sum_squares)(const float *grad, int64_t n);
    void (*sgd)(float *weight, const float *grad, int64_t n, const abar__sgd_coefficients *c);
    void (*sgd_momentum)(float *weight, const float *grad, float *velocity, int64_t n, const abar__sgd_coefficients *c);
    void (*adamw)(float *weight, const float *grad, float *first, float *second, int64_t n, const abar__adamw_coefficients *c);

    float (*dot)(const float *x, const float *y, int64_t n);
    void (*sgd_row)(float *weight, const float *grad, const abar__row *row, int64_t n, const abar__sgd_coefficients *c);
    void (*sgd_momentum_row)(float *weight, const float *grad, float *velocity, const abar__row *row, int64_t n,
                             const abar__sgd_coefficients *c);
    void (*adamw_row)(float *weight, const float *grad, float *first, float *second, const abar__row *row, int64_t n,
                      const abar__adamw_coefficients *c);

    /* In place of the gradient. average NULL: there is none, of_grad alone. row NULL: the gradient as it is. */
    void (*momentum)(float *grad, float *average, const abar__row *row, int64_t n, const abar__momentum_coefficients *c);

    void (*add)(float *acc, const float *x, int64_t n); /* acc[i] += x[i] */
    /* lanes (1, 8 or 16) sums over n pixels of lanes numbers each, of x or of x * x */
    void (*lane_sums)(const float *x, int64_t n, int64_t lanes, bool squares, float *sum);
} abar__core_kernels;

ABAR_ISA_EXTERN(abar__core_kernels, abar__core);

#endif
