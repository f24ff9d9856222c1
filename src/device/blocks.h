/* Blocks: parameters cut into tensors that a rule treats one by one (Shampoo, SOAP), and the stages that it runs on each.
 *
 * X is a block's gradient, already preconditioned, clipped and scaled. X_(i), of dim[i] rows, is its unfolding along mode i. A
 * matrix has two modes: X_(0) X_(0)^T = X X^T belongs to its rows (ABAR_LEFT), X_(1) X_(1)^T = X^T X to its columns
 * (ABAR_RIGHT). X x_i R multiplies mode i by R: of a matrix R X for i = 0, X R^T for i = 1.
 *
 * Stages run in the order in which plan/block_plan.h added them; what they leave of X becomes the step: W <- (1 - eta lambda) W
 * - eta X. t is the number of this update, from 1. */
#ifndef ABAR_BLOCKS_H
#define ABAR_BLOCKS_H

#include "abar/tensor.h"

#define ABAR_BLOCK_MODES ABAR_MAX_DIM
#define ABAR_BLOCK_STAGES 12
#define ABAR_BLOCK_STATES 6
#define ABAR_GRAFT_EPS 1e-16

/* Bit i: mode i. ABAR_SHORTEST: of each block the mode with the least dim, the first of equals. */
enum { ABAR_LEFT = 1, ABAR_RIGHT = 2, ABAR_EVERY_MODE = (1 << ABAR_BLOCK_MODES) - 1, ABAR_SHORTEST = 1 << ABAR_BLOCK_MODES };

typedef enum abar__block_stage_kind {
    ABAR_BLOCK_AVERAGE,  /* S_i <- beta S_i + (1 - beta) X_(i) X_(i)^T; beta 1: S_i + X_(i) X_(i)^T */
    ABAR_BLOCK_SQUARES,  /* V <- beta V + (1 - beta) X * X; beta 1: V + X * X */
    ABAR_BLOCK_ROOT,     /* R_i <- (S_i / (1 - beta^t) + eps I)^-exponent, when it is due; beta 1: of S_i + eps I */
    ABAR_BLOCK_MOMENTUM, /* X <- (ahead m + (1 - ahead) X) / (1 - ahead beta^(t-1)), m <- beta m + (1 - beta) X, X the old one
                          */
    ABAR_BLOCK_MULTIPLY, /* X <- X x_0 R_0 x_1 R_1 ...; a mode without root is left alone */
    ABAR_BLOCK_MEASURE,  /* length = |D|, D = X, or X / (sqrt(V) + eps) with squares; before update `start`: X <- D, too */
    ABAR_BLOCK_RESCALE   /* from update `start` on: X <- X length / (|X| + ABAR_GRAFT_EPS) */
} abar__block_stage_kind;

typedef struct abar__block_stage {
    abar__block_stage_kind kind;
    int32_t state; /* that it renews, or reads; -1: none */
    int32_t from;  /* ROOT: S */
    double beta, ahead, eps;
    double exponent;      /* negative: 1 / (2 modes of the block) */
    bool corrected;       /* MEASURE: V / (1 - beta^t) for V */
    int64_t start, every; /* ROOT is due at t = start, and later at multiples of every */
} abar__block_stage;

/* What a rule keeps of its blocks: a number for each element, like the parameter, or a symmetric matrix for each of these
 * modes, (dim, dim) row-major, one behind the other. Of averages the upper triangle counts. A root that is all zeros is none
 * yet. */
typedef struct abar__block_state {
    const char *name;
    uint32_t modes; /* 0: like the parameter */
    bool root;
} abar__block_state;

typedef struct abar__block_plan {
    int32_t n_stages, n_states;
    abar__block_stage stage[ABAR_BLOCK_STAGES];
    abar__block_state state[ABAR_BLOCK_STATES];
    const char *wrong; /* NULL, or what the description got wrong */
} abar__block_plan;

/* One block. Elements are counted in PyTorch's order of the parameter. */
typedef struct abar__block {
    int32_t order;
    int64_t dim[ABAR_BLOCK_MODES], stride[ABAR_BLOCK_MODES];
    int64_t first, count;    /* its first element in the parameter; how many it has */
    int64_t columns, kernel; /* of the parameter: its memory is (O, kh, kw, I) where kernel = kh * kw is not 1 */
    void *grad;              /* of the parameter: X at first, the step at last */
    const void *weight;
    double decay;                   /* coupled: X = grad + decay * weight */
    void *state[ABAR_BLOCK_STATES]; /* like the parameter: its own; matrices: of this block */
} abar__block;

#ifdef __CUDACC__
#define ABAR_BLOCK_BOTH __host__ __device__ static inline
#else
#define ABAR_BLOCK_BOTH static inline
#endif

/* Where in the parameter's memory element i of the block is, its elements being counted with the last mode fastest. */
ABAR_BLOCK_BOTH int64_t abar__block_at(const abar__block *b, int64_t i)
{
    int64_t at = b->first;
    for (int m = b->order - 1; m >= 0; m--) {
        at += i % b->dim[m] * b->stride[m];
        i /= b->dim[m];
    }
    if (b->kernel == 1) return at;
    const int64_t row = at / b->columns, column = at % b->columns, channels = b->columns / b->kernel;
    return row * b->columns + column % b->kernel * channels + column / b->kernel;
}

ABAR_BLOCK_BOTH int abar__block_shortest(const abar__block *b)
{
    int shortest = 0;
    for (int m = 1; m < b->order; m++)
        if (b->dim[m] < b->dim[shortest]) shortest = m;
    return shortest;
}

/* Modes with a matrix of this state. */
ABAR_BLOCK_BOTH bool abar__block_has(const abar__block *b, const abar__block_state *s, int mode)
{
    if (s->modes & ABAR_SHORTEST) return mode == abar__block_shortest(b);
    return mode < b->order && (s->modes >> mode & 1);
}

/* Elements of the block's matrices in front of this mode's; mode = order: of all. */
ABAR_BLOCK_BOTH int64_t abar__block_factor(const abar__block *b, const abar__block_state *s, int mode)
{
    int64_t at = 0;
    for (int m = 0; m < mode; m++)
        if (abar__block_has(b, s, m)) at += b->dim[m] * b->dim[m];
    return at;
}

/* X as (before, dim, behind) for this mode. */
ABAR_BLOCK_BOTH int64_t abar__block_behind(const abar__block *b, int mode)
{
    int64_t behind = 1;
    for (int m = mode + 1; m < b->order; m++) behind *= b->dim[m];
    return behind;
}

ABAR_BLOCK_BOTH double abar__block_exponent(const abar__block *b, const abar__block_stage *s)
{
    return s->exponent < 0.0 ? 1.0 / (2.0 * b->order) : s->exponent;
}

ABAR_BLOCK_BOTH bool abar__root_is_due(const abar__block_stage *s, int64_t t)
{
    return t == s->start || (t > s->start && t % s->every == 0);
}

#endif
