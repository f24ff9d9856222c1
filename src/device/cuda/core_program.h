/* What an optimizer step on the device passes on from launch to launch (core_program.cu), and the maps it keeps
 * (core_maps.cu). */
#ifndef ABAR_CUDA_CORE_PROGRAM_H
#define ABAR_CUDA_CORE_PROGRAM_H

#include "device/cuda/core_update.h"

typedef struct abar__cuda_losses {
    double loss;
    int64_t correct, count;
    int32_t bad; /* one was not finite */
} abar__cuda_losses;

/* What a step leaves for the launches after it, and for the next step. */
typedef struct abar__cuda_live {
    abar__cuda_numbers numbers;
    int64_t k, t;       /* steps so far; updates performed */
    int64_t now;        /* the step being made */
    double norm, scale; /* |G| as it lies in memory; what the update multiplies it by */
    abar__cuda_losses seen;
    unsigned ticket;
} abar__cuda_live;

/* A kept map with what the program adds to it. */
typedef struct abar__cuda_map {
    abar__kept_map map;
    int64_t columns;               /* of the weight: d without the bias */
    float *ordered;                /* (d): u in the order of the weight's memory */
    float *product;                /* (out, columns), then (out): G times the inverse; NULL: rank 1 */
    const float *grad, *bias_grad; /* NULL: none now */
} abar__cuda_map;

typedef struct abar__cuda_schedule {
    double beta;
    int64_t tinv, spread, numbers; /* numbers: of maps, linked ones counting as one */
} abar__cuda_schedule;

/* Device memory, (n) each but the last; host: the same as maps, as it was sent. */
typedef struct abar__cuda_maps {
    int n, n_dense, n_linked;
    abar__cuda_map *maps;
    const abar__cuda_map *host;
    abar__map_state *states;
    abar__cuda_form *forms;
    int32_t *stale;   /* u came from outside: order it again */
    int32_t *broken;  /* the product with the inverse is not finite */
    int32_t *spoiled; /* what is pending is not finite: of linked maps */
    double *products; /* (n, 3) */
    abar__cuda_live *now;
} abar__cuda_maps;

extern "C" {
/* Commits where to_mean is given, refreshes what is due, decides how the update shall treat every map. */
void abar__cuda_keep_maps(abar_device *dev, const abar__cuda_maps *m, const double *to_mean, abar__cuda_schedule schedule);
/* <G,G>, <G^,G>, <G^,G^> of every map as it is treated now, into m->products. */
abar_status abar__cuda_compare_maps(abar_device *dev, const abar__cuda_maps *m);
}

#endif
