/* Passes over the elements of all blocks (blocks_walk.cu). */
#ifndef ABAR_CUDA_BLOCKS_WALK_H
#define ABAR_CUDA_BLOCKS_WALK_H

#include "device/cuda/step/blocks.h"

#define ABAR_WALK_SPAN 2048 /* elements of a unit */

typedef enum abar__walk_kind {
    ABAR_WALK_LOAD,
    ABAR_WALK_SQUARES,
    ABAR_WALK_MOMENTUM,
    ABAR_WALK_MEASURE,
    ABAR_WALK_COPY_BACK,
    ABAR_WALK_NORM,
    ABAR_WALK_WEIGHT,
    ABAR_WALK_INNER,
    ABAR_WALK_RESCALE,
    ABAR_WALK_HEAVY,
    ABAR_WALK_ADAM,
    ABAR_WALK_EVEN,
    ABAR_WALK_STEP,
    ABAR_WALK_STORE,
    /* when a basis is due: m into z, v into what m is not in, v in its new order, m out of z */
    ABAR_WALK_PACK_MEAN,
    ABAR_WALK_PACK_SQUARES,
    ABAR_WALK_PERMUTE,
    ABAR_WALK_UNPACK_MEAN
} abar__walk_kind;

/* What a pass gets; device memory. */
typedef struct abar__block_walk {
    const abar__block_item *items;
    abar__block_result *results;
    const abar__cuda_unit *units;
    double *partial;   /* (units) */
    unsigned *tickets; /* (items), zero between launches */
    const abar__cuda_live *now;
    abar__block_stage stage;
    abar__block_state state;
} abar__block_walk;

extern "C" {
/* n: units. */
void abar__cuda_walk_blocks(abar_device *dev, abar__walk_kind kind, int64_t n, const abar__block_walk *w);
}

#endif
