/* What an optimizer step on the device passes on from launch to launch (step.cu), and the maps whose plans it carries out:
 * those preconditioned by vectors (vectors.cu), and by matrices (matrices.cu). */
#ifndef ABAR_CUDA_STEP_H
#define ABAR_CUDA_STEP_H

#include "device/cuda/factors/dense.h"
#include "device/cuda/step/update.h"
#include "device/step_rules.h"

typedef struct abar__cuda_losses {
    double loss;
    int64_t correct, count;
    int32_t bad;   /* one was not finite */
    int32_t stops; /* a rank wants to stop */
} abar__cuda_losses;

/* What a step leaves for the launches after it, and for the next step. */
typedef struct abar__cuda_live {
    abar__cuda_numbers numbers;
    abar__step_state state;
    int64_t now;        /* the step being made */
    double norm, scale; /* |G| as it is in memory; what the update multiplies it by: */
    double grad_scale;  /* without clipping */
    abar__cuda_losses seen;
    unsigned ticket;
} abar__cuda_live;

/* The plan of a map with what the step adds to it. */
typedef struct abar__cuda_map {
    abar__plan plan;
    float *ordered;          /* (d): u in the order of the weight's memory */
    float *grad, *bias_grad; /* NULL: none now */
    int32_t unit, units;     /* where an outer product is subtracted: its units of m->span elements */
    /* dense maps */
    int32_t dense;     /* which of them; -1: none */
    int32_t factor[2]; /* which of the inverter's; -1: none */
    int32_t matrix[2]; /* the plan's derived tensors of these factors */
    int32_t wave;      /* of multiplications; all but the last leave G^ in the place of G */
    float *product;    /* (out, columns), then (out): G^ before any scale; shared by waves */
    int32_t elsewhere; /* 1: where ranks divide refreshes, another one makes its inverses */
} abar__cuda_map;

#define ABAR_CLIP_BLOCKS 32 /* that share the rows of a map */

/* Device memory, (n) each unless said otherwise. */
typedef struct abar__cuda_maps {
    int n, n_linked, n_outer, n_dense, n_factors;
    abar__cadence cadence;
    abar__cuda_map *maps;
    abar__map_state *states;
    abar__cuda_form *forms;

    int32_t *spoiled; /* what is pending is not finite: of linked maps, and of those with squares */
    double *products; /* (n, 3) */
    abar__cuda_live *now;
    /* outer products: units of all gradients, and what they add to <G, G> and wT G u */
    int64_t n_units, span;  /* span: elements of a unit */
    abar__cuda_unit *units; /* (n_units): map, which of its units */
    double *unit_sums;      /* (n_units, 2) */
    double *map_sums;       /* (n, 2) */
    unsigned *tickets;      /* (n), zero between launches */
    double *clip_sums;      /* (n, ABAR_CLIP_BLOCKS): <G^, G> of maps with means, for the KL clip; zero for the others */
    /* dense maps, (n_dense) each */
    int32_t *dense;              /* which map */
    int32_t *tried;              /* is to be refreshed in this step */
    int32_t *active, *broken;    /* as abar__cuda_multiply wants them */
    double *sums;                /* likewise: (n_dense, 3) */
    abar__cuda_inversion *asked; /* (n_factors) */
    abar__cuda_unit *tiles;      /* of all squares that are committed: 2 map + which, place (ABAR_TILE) */
    const int64_t *first_tile;   /* host: (n + 1), of each map */
    int n_waves;
    const int32_t *first_dense;    /* host: (n_waves + 1), of each wave */
    abar__cuda_inverter *inverter; /* NULL: nothing to invert */
    abar__cuda_multiplier *multiplier;
} abar__cuda_maps;

/* Whether the KL clip needs <G^, G> of maps with means: they have clip_sums then. */
static inline bool clips_means(const abar__cuda_maps *m) { return m->cadence.kl_clip > 0.0 && m->n_outer + m->n_dense < m->n; }

/* Tile (down, left) of the lower triangle of a square. */
#define ABAR_TILE 64
#define ABAR_TILE_AT(down, left) ((int32_t)((down) << 16 | (left)))

extern "C" {
/* Copies u of every map into the order of the weight's memory: call when u came from outside. */
void abar__cuda_order_maps(abar_device *dev, const abar__cuda_maps *m);
/* Commits where to_mean is given, refreshes what is due; of matrices their inverses, but for those made elsewhere where it is
 * divided. When all are there they are settled. */
abar_status abar__cuda_keep_vectors(abar_device *dev, const abar__cuda_maps *m, const double *to_mean);
abar_status abar__cuda_keep_matrices(abar_device *dev, const abar__cuda_maps *m, const double *to_mean, bool divided);
abar_status abar__cuda_settle_matrices(abar_device *dev, const abar__cuda_maps *m);
/* Decides how the passes shall treat every map. */
void abar__cuda_treat_vectors(abar_device *dev, const abar__cuda_maps *m);
abar_status abar__cuda_treat_matrices(abar_device *dev, const abar__cuda_maps *m);
/* <G,G>, <G^,G>, <G^,G^> of every map as it was treated, into m->products. */
abar_status abar__cuda_compare_maps(abar_device *dev, const abar__cuda_maps *m);
}

#endif
