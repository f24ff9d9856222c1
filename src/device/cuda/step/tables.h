/* A step's memory and tables (tables.cu), which step.cu binds and runs. */
#ifndef ABAR_CUDA_TABLES_H
#define ABAR_CUDA_TABLES_H

#include "device/cuda/step/blocks.h"
#include "device/cuda/step/extra.h"
#include "device/cuda/step/natural.h"
#include "device/cuda/step/orthogonalise.h"
#include "device/cuda/step/step.h"

extern "C" {
#include "device/owners.h"
}

#define ABAR_NORM_SPAN 4096 /* elements of one unit of the norm */

typedef struct abar__norm_item {
    const float *grad;
    int64_t count;
    int64_t vectors; /* 1: aligned */
} abar__norm_item;

struct abar__compiled_step {
    int n_items, n_updates;
    int64_t norm_units, units, norm_blocks;
    int n_passes, n_blocks, n_tensors, n_balls;
    abar__update_pass passes[ABAR_PASSES_MAX];
    int64_t first_unit[ABAR_PASSES_MAX + 1]; /* of the table, of each pass */
    abar__cuda_rule rule;
    double row_decay;
    abar__cuda_orthogonaliser *orthogonaliser; /* NULL: no blocks */
    int32_t *verdicts;                         /* (n_blocks) */
    abar__cuda_block_stages *blocks;           /* NULL: no stages */
    abar__cuda_extra *extra;                   /* NULL: the rule needs no extra gradients */
    abar__cuda_natural *natural;               /* NULL: the method is another */
    abar__cuda_maps m;
    /* device memory: one block, of which the first tables_bytes are sent from p->host */
    char *memory;
    size_t memory_bytes, tables_bytes, vectors;
    int64_t n_tiles;
    void *workspace; /* results of a wave and what multiplying them needs; or the inverter's; between steps the caller's */
    size_t workspace_bytes, results_bytes;
    abar__norm_item *norm_items;
    abar__cuda_unit *norm_table, *table;
    abar__cuda_item *items;
    double *partial;   /* (norm_blocks) */
    double *ball_sums; /* (items of passes that keep norms, ABAR_BALL_SUMS) */
    double *rates;     /* (ABAR_STEP_RATES): step k at k modulo that */
    /* pinned */
    char *host;
    size_t host_bytes;
    double *host_rates;
    abar__step_outcome *outcomes;    /* (ABAR_STEP_RESULTS) */
    int64_t *first_tile;             /* (maps + 1) */
    int32_t *first_dense;            /* (waves + 1), at most (n_dense + 1) */
    abar__cuda_factor *factors;      /* (n_factors) */
    abar__cuda_product *to_multiply; /* (n_dense) */
    cudaEvent_t sent;                /* the tables */
    abar__owned *owned;              /* refreshes that ranks divide; NULL: every rank makes all */
};

/* Where the host fills in what the device has at this address. */
template <typename T> static inline T *host_side(const abar__compiled_step *p, T *device)
{
    return (T *)(p->host + ((char *)device - p->memory));
}

static inline bool is_map(const abar__update_item *update) { return update->map >= 0; }

extern "C" {
/* All memory, and the tables that depend on sizes alone, on the host's side. p knows its schedule and is otherwise empty. */
abar_status abar__cuda_make_tables(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc);
/* What inverts and multiplies for dense maps; their gradients are bound. */
abar_status abar__cuda_make_dense(abar_device *dev, abar__compiled_step *p);
/* p->to_multiply anew, with the gradients of now. */
void abar__cuda_fill_products(abar__compiled_step *p);
/* owners.cu: gives each dense map whose inverses are renewed to a rank, in the tables on the host's side; and abar__step_ops.
 */
abar_status abar__cuda_give_owners(abar_device *dev, abar__compiled_step *p, const abar__owners *owners);
abar_status abar__cuda_visit_derived(abar_device *dev, abar__compiled_step *p, bool all, abar__piece_visitor visit, void *user);
}

#endif
