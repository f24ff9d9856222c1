/* Wide products (products.h): what their kernel (products_wide.cu) and who shares out their work
 * (products_plan.cu) agree on. */
#ifndef ABAR_CUDA_STATS_PRODUCTS_WIDE_H
#define ABAR_CUDA_STATS_PRODUCTS_WIDE_H

#include "device/cuda/stats/products.h"

#include <cuda.h>

#define ABAR_WIDE_DEPTH 64 /* positions of a step */
#define ABAR_WIDE_MAPS 4

/* How the positions of a part are cut into steps. */
typedef struct abar__cut {
    int wide, high, examples; /* of a box: ABAR_WIDE_DEPTH positions */
    int right, down, steps;   /* boxes side by side, below each other, and all */
    int map;
} abar__cut;

/* A product, and what there is beside it. */
typedef struct abar__wide_products {
    abar__products s;
    abar__cut cuts[ABAR_PRODUCT_PARTS];
    int weights;                        /* examples */
    int line;                           /* positions of an example, where those of all are one line; 0: they are not */
    unsigned *turns;                    /* all zero between launches: blocks that have begun; then of every part (tiles, lanes),
                                         * for lanes with several splits */
    int turn[ABAR_PRODUCT_PARTS];       /* a part's first of these */
    CUtensorMap map[ABAR_WIDE_MAPS][2]; /* boxes of 64 and 32 channels */
} abar__wide_products;

/* Tiles side by side in row down of a part's. */
__host__ __device__ static inline int tiles_across(const abar__product_part &q, int columns, int down)
{
    const int all = q.across ? q.across : (q.columns + columns - 1) / columns;
    const int reach = (ABAR_PANEL_TILE * (down + 1) + columns - 1) / columns;
    return q.across || all < reach ? all : reach;
}

/* Which products these are, and how: all but partial, turns and the maps. Sums have workspace for so many floats. Returns the
 * columns of a in a tile, 128, 160 or 192; 0: not this one. A part without lanes has no workspace for sums. */
extern "C" int abar__cuda_plan_wide(const abar_device *dev, abar__wide_products *p, int64_t workspace, unsigned *blocks);

#endif
