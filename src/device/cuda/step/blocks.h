/* The stages of blocks on the device (device/blocks.h): an object that is created once, for blocks of given sizes, and whose
 * run can be captured. blocks.cu has the object, blocks_walk.cu what is done element by element, blocks_products.cu the
 * products. */
#ifndef ABAR_CUDA_BLOCKS_H
#define ABAR_CUDA_BLOCKS_H

#include "device/cuda/step/step.h"

/* A block as kernels see it. */
typedef struct abar__block_item {
    abar__block b;
    float *x, *y;     /* X packed, (count): in memory of the object, and in that of the parameter's gradient */
    int32_t units;    /* of its elements */
    int32_t averaged; /* matrices that the plan averages */
    float *z;         /* (count), NULL: the plan has no bases */
    int32_t *order;   /* of the modes with a basis, one behind the other: where their new vectors come from (bases.h) */
    int32_t together; /* of the first block of a parameter: how many blocks it has; of others 0 */
} abar__block_item;

/* What kernels find out about a block. */
typedef struct abar__block_result {
    double length, squares; /* that was measured; of X */
    double weight, inner;   /* squares of the weight; its product with X */
    int32_t overflows;      /* products of X are too large to be averaged */
} abar__block_result;

/* A tile of a product along a mode: (down, left) of the average, or of the unfolding. Averages of very long unfoldings are
 * summed up in chunks. */
typedef struct abar__block_tile {
    int32_t item, mode, down, left;
    int32_t chunk, chunks;
    int32_t slot; /* where its first chunk's partial sum goes; -1: there is one chunk */
} abar__block_tile;

#define ABAR_BLOCK_TILE 64
#define ABAR_BLOCK_CHUNK 8192 /* columns of an unfolding */

typedef struct abar__cuda_block_stages abar__cuda_block_stages;

extern "C" {
/* plan and blocks: host memory; the plan must stay. */
abar_status abar__cuda_block_stages_create(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n,
                                           abar__cuda_block_stages **out);
void abar__cuda_block_stages_destroy(abar_device *dev, abar__cuda_block_stages *o);
size_t abar__cuda_block_stages_bytes(const abar__cuda_block_stages *o);
/* New addresses for blocks of the same sizes, (n) host memory. ABAR_E_UNSUPPORTED: they have others. */
abar_status abar__cuda_block_stages_rebind(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks);
abar_status abar__cuda_block_stages_run(abar_device *dev, abar__cuda_block_stages *o, abar__cuda_live *now);

/* blocks_products.cu: n tiles. tickets and partial: of chunks, by their slots. */
typedef struct abar__block_average {
    abar__block_state state;
    int32_t which; /* of the block's states */
    double beta;
    int64_t every;           /* updates from sum to sum */
    bool whitened;           /* X of matrices is in y where the other mode has a basis; divided by its entries */
    int32_t mode;            /* -1: all */
    abar__block_state basis; /* whitened: of the other mode */
} abar__block_average;
void abar__cuda_average_blocks(abar_device *dev, const abar__block_item *items, const abar__block_result *results,
                               const abar__block_tile *tiles, int64_t n, const abar__block_average *a, float *partial,
                               unsigned *tickets, const abar__cuda_live *now);
/* One mode of every block that has it; the block's number of earlier modes with a matrix says whether X is in x or y. */
typedef struct abar__block_product {
    abar__block_state state;
    int32_t which;
    bool transposed;
    bool of_mean;             /* z in place of x, when a basis is due */
    bool again;               /* all modes have been multiplied once before: X is where that has left it */
    bool alone;               /* from x to y, whatever the mode, and times the scales */
    abar__block_state scales; /* alone */
    int32_t which_scales;
    int64_t every; /* of_mean: updates from basis to basis */
} abar__block_product;
void abar__cuda_multiply_blocks(abar_device *dev, const abar__block_item *items, const abar__block_tile *tiles, int64_t n,
                                const abar__block_product *p, const abar__cuda_live *now);
/* KL-SOAP's scales of all n blocks. */
void abar__cuda_scale_blocks(abar_device *dev, const abar__block_item *items, const abar__block_result *results, int n,
                             const abar__block_state *state, const abar__block_stage *stage, const abar__cuda_live *now);
}

#endif
