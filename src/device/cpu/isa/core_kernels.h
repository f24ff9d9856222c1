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
 * n = of_first m + of_grad g;  w <- w - (d w + lr n / (root sqrt(v) + eps)), where lr and root hold the bias corrections, and
 * d is decay, or against where n and w have different signs */
typedef struct abar__adamw_coefficients {
    float grad_scale, largest, beta1, one_minus_beta1, beta2, one_minus_beta2, of_first, of_grad, eps, root, lr, decay, against;
} abar__adamw_coefficients;

/* g and v likewise;  u = g / (root sqrt(v) + eps) + decay w;  w <- w + share a - step u;  a <- keep (a - apart u) */
typedef struct abar__sfadamw_coefficients {
    float grad_scale, largest, beta2, one_minus_beta2, eps, root, decay, share, step, keep, apart;
} abar__sfadamw_coefficients;

/* w <- w - (d w + lr g), d as in adamw */
typedef struct abar__plain_coefficients {
    float lr, decay, against;
} abar__plain_coefficients;

/* g <- grad_scale g;  m <- momentum m + rest g;  g <- of_grad g + of_average m */
typedef struct abar__momentum_coefficients {
    float grad_scale, momentum, rest, of_grad, of_average;
} abar__momentum_coefficients;

/* m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) d^2, d at most largest;
 * w <- w - (decay w + lr m / ((root sqrt(v))^power + eps)) */
typedef struct abar__adahessian_coefficients {
    float grad_scale, largest, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, root, power, lr, decay;
} abar__adahessian_coefficients;

/* m <- beta1 m + (1 - beta1) g;  w <- w - (decay w + lr sign(m) min(|m| / (scale h + least), 1)) */
typedef struct abar__sophia_coefficients {
    float grad_scale, beta1, one_minus_beta1, scale, least, lr, decay;
} abar__sophia_coefficients;

/* A row of a preconditioned map: g is grad[i] - c right[i] instead of grad[i]. The gradients `ahead` elements further are
 * wanted soon. */
typedef struct abar__row {
    const float *right;
    float c;
    int64_t ahead;
} abar__row;

#define ABAR_CORE_AHEAD 512 /* floats: what is updated is fetched so far ahead */

typedef struct abar__core_kernels {
    double (*sum_squares)(const float *grad, int64_t n);
    /* Of (rows, columns); the same sum whether or not there is a right, whose products with the rows go to c. */
    double (*sum_squares_rows)(const float *grad, int64_t rows, int64_t columns, const float *right, float *c);
    void (*sgd)(float *weight, const float *grad, int64_t n, const abar__sgd_coefficients *c);
    void (*sgd_momentum)(float *weight, const float *grad, float *velocity, int64_t n, const abar__sgd_coefficients *c);
    void (*adamw)(float *weight, const float *grad, float *first, float *second, int64_t n, const abar__adamw_coefficients *c);

    void (*adahessian)(float *weight, const float *grad, float *first, float *second, const float *diagonal, int64_t n,
                       const abar__adahessian_coefficients *c);
    void (*sophia)(float *weight, const float *grad, float *first, const float *diagonal, int64_t n,
                   const abar__sophia_coefficients *c);

    float (*dot)(const float *x, const float *y, int64_t n);
    void (*sgd_row)(float *weight, const float *grad, const abar__row *row, int64_t n, const abar__sgd_coefficients *c);
    void (*sgd_momentum_row)(float *weight, const float *grad, float *velocity, const abar__row *row, int64_t n,
                             const abar__sgd_coefficients *c);
    void (*adamw_row)(float *weight, const float *grad, float *first, float *second, const abar__row *row, int64_t n,
                      const abar__adamw_coefficients *c);

    /* row NULL: the gradient as it is. */
    void (*sfadamw)(float *weight, const float *grad, float *apart, float *second, const abar__row *row, int64_t n,
                    const abar__sfadamw_coefficients *c);
    void (*plain)(float *weight, const float *grad, int64_t n, const abar__plain_coefficients *c);

    /* In place of the gradient. average NULL: there is none, of_grad alone. row NULL: the gradient as it is. */
    void (*momentum)(float *grad, float *average, const abar__row *row, int64_t n, const abar__momentum_coefficients *c);

    void (*add)(float *acc, const float *x, int64_t n); /* acc[i] += x[i] */
    /* lanes (1, 8 or 16) sums over n pixels of lanes numbers each, of x or of x * x */
    void (*lane_sums)(const float *x, int64_t n, int64_t lanes, bool squares, float *sum);
} abar__core_kernels;

ABAR_ISA_EXTERN(abar__core_kernels, abar__core);

#endif
