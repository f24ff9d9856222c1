/* One parameter, or one preconditioned map with its bias, as the update kernel sees it; and the numbers of a step, which are in
 * device memory (step.cu). */
#ifndef ABAR_CUDA_UPDATE_H
#define ABAR_CUDA_UPDATE_H

#include "device/cuda/core/core_impl.h"

/* A block has 256 threads. A team of them, 32 to 256, owns one row; a thread at most QUADS times four of its elements, so that
 * the row stays in registers between the product with u and the update. */
#define ABAR_UPDATE_THREADS 256
#define ABAR_UPDATE_QUADS 6
#define ABAR_UPDATE_SPAN (ABAR_UPDATE_THREADS * ABAR_UPDATE_QUADS * 4) /* elements a block updates of a plain parameter */

typedef struct abar__cuda_part {
    float *weight; /* NULL: none */
    float *grad;
    float *state[3];
    bf16 *shadow;
    double lr_scale, decay;
    int32_t cautious; /* 1: decay only where it agrees with the step */
} abar__cuda_part;

/* How a map's gradient is treated in this step. */
enum { ABAR_FORM_PLAIN, ABAR_FORM_RANK1, ABAR_FORM_DENSE };

typedef struct abar__cuda_form {
    int32_t kind;
    float scale;
    float factor; /* of the coefficients, where they are given */
} abar__cuda_form;

typedef struct abar__cuda_item {
    abar__cuda_part body, bias;   /* bias: (rows), for maps only */
    int32_t bias_kind;            /* abar__update_kind */
    const int32_t *verdict;       /* device memory: 1 leaves the weight as it is; NULL: none */
    int64_t count, rows, columns; /* rows 0: no map */
    int32_t team;
    int32_t vectors; /* 1: rows and memory allow 16-byte accesses */
    /* rank 1: scale * row_scale[o] * (G_o - c_o u), c_o = <G_o, u> or factor * coefficient[o]; u in the order of memory, bias
     * last */
    const float *u, *coefficient, *row_scale;
    abar__cuda_form given;
    const abar__cuda_form *form;     /* in device memory; NULL: the given one */
    const float *dense, *dense_bias; /* the preconditioned gradient of a dense map */
} abar__cuda_item;

/* A block's share: rows from `first` times the block's teams on, or elements from `first` times the span on. */
typedef struct abar__cuda_unit {
    int32_t item, first;
} abar__cuda_unit;

/* What changes from step to step. */
typedef struct abar__cuda_numbers {
    double lr;
    float grad_scale;    /* micro-batches and clipping */
    float first, second; /* adamw, nadamw, sfadamw, adahessian: 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
    double share;        /* sfadamw: c */
    int32_t skip;
} abar__cuda_numbers;

/* What does not. */
typedef struct abar__cuda_rule {
    float momentum, rest;                  /* rest: 1 - momentum */
    float nesterov, decoupled;             /* 0 or 1 */
    float beta1, rest1, beta2, rest2, eps; /* rest: 1 - beta */
    int32_t schedule_free;                 /* 1: the share is computed */
    double time_power, rate_power;
    float power;      /* adahessian */
    float clip_scale; /* sophia */
} abar__cuda_rule;

extern "C" {
abar__cuda_rule abar__cuda_rule_of(const abar__update_scalars *s);
/* An item without its form; where it is a map: u, row_scale of the device's order and length. */
abar__cuda_item abar__cuda_item_of(const abar__update_item *item, bool is_map);
int64_t abar__cuda_units_of(const abar__cuda_item *item);
/* All units in one launch; numbers in device memory. */
void abar__cuda_update(abar_device *dev, abar__update_kind kind, const abar__cuda_item *items, const abar__cuda_unit *units,
                       int64_t n_units, const abar__cuda_numbers *numbers, abar__cuda_rule rule);
/* weight += factor * by; shadow NULL: none. */
void abar__cuda_shift(abar_device *dev, int64_t n, float *weight, const float *by, double factor, bf16 *shadow);

/* Plain updates of n items whose weights keep their norms (hyperball.cu); sums: (n, ABAR_BALL_SUMS). */
void abar__cuda_hyperball(abar_device *dev, const abar__cuda_item *items, int n, const abar__cuda_numbers *numbers,
                          double *sums);
}

#define ABAR_BALL_SHARES 32                   /* blocks that share an item */
#define ABAR_BALL_SUMS (3 * ABAR_BALL_SHARES) /* squares of the weight, of the step, of the weight after it */

/* 1 / (1 - beta^t) and its root, from the beta that the moments are made with. */
__host__ __device__ static inline double abar__cuda_correction(float beta, int64_t t)
{
    return 1.0 - pow((double)beta, (double)t);
}

#endif
