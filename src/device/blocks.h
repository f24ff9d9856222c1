/* Blocks: parameters cut into tensors that a rule treats one by one (Shampoo, SOAP), and the stages that it runs on each.
 *
 * X is a block's gradient, already preconditioned, clipped and scaled. X_(i), of dim[i] rows, is its unfolding along mode i. A
 * matrix has two modes: X_(0) X_(0)^T = X X^T belongs to its rows (ABAR_LEFT), X_(1) X_(1)^T = X^T X to its columns
 * (ABAR_RIGHT). X x_i R multiplies mode i by R: of a matrix R X for i = 0, X R^T for i = 1.
 *
 * Stages run in the order in which plan/block_plan.h added them; what they leave of X becomes the step: W <- (1 - eta lambda) W
 * - eta X. t is the number of this update, from 1. B_i is a basis, orthogonal, its vectors by rows: X x_i B_i rotates into it,
 * X x_i B_i^T out of it. */
#ifndef ABAR_BLOCKS_H
#define ABAR_BLOCKS_H

#include "abar/tensor.h"

#define ABAR_BLOCK_MODES ABAR_MAX_DIM
#define ABAR_BLOCK_STAGES 12
#define ABAR_BLOCK_STATES 6
#define ABAR_GRAFT_EPS 1e-16
#define ABAR_RMS_EPS 1e-30
#define ABAR_SCALE_FIRST 3.1622776601683795 /* 0.1^-1/2 */
#define ABAR_SCALE_MOST 4000.0

/* Bit i: mode i. ABAR_SHORTEST: of each block the mode with the least dim, the first of equals. */
enum { ABAR_LEFT = 1, ABAR_RIGHT = 2, ABAR_EVERY_MODE = (1 << ABAR_BLOCK_MODES) - 1, ABAR_SHORTEST = 1 << ABAR_BLOCK_MODES };

typedef enum abar__block_stage_kind {
    ABAR_BLOCK_AVERAGE,  /* S_i <- beta S_i + (1 - beta) X_(i) X_(i)^T; beta 1: S_i + X_(i) X_(i)^T; when `every` divides t */
    ABAR_BLOCK_SQUARES,  /* V <- beta V + (1 - beta) X * X; beta 1: V + X * X */
    ABAR_BLOCK_ROOT,     /* R_i <- (S_i / (1 - beta^t) + eps I)^-exponent, when it is due; beta 1: of S_i + eps I. First, with a
                            ridge: S_i <- S_i + ridge (largest eigenvalue of S_i + eps I) I */
    ABAR_BLOCK_MOMENTUM, /* X <- (ahead m + (1 - ahead) X) / (1 - ahead beta^(t-1)), m <- beta m + (1 - beta) X, X the old one
                          */
    ABAR_BLOCK_MULTIPLY, /* X <- X x_0 R_0 x_1 R_1 ..., or by R_i^T; a mode without matrix is left alone */
    ABAR_BLOCK_MEASURE,  /* length = |D|, D = X, or X / (sqrt(V) + eps) with squares; before update `start`: X <- D, too */
    ABAR_BLOCK_RESCALE,  /* from update `start` on: X <- X length / (|X| + ABAR_GRAFT_EPS); whole: both lengths are those of all
                            blocks of the parameter together */
    ABAR_BLOCK_HEAVY,    /* X <- X + late W, then m <- beta m + gain X, X <- ahead m + rest X */
    /* Stages of SOAP, whose update 1 leaves m, v and the weight as they are. */
    ABAR_BLOCK_WHITENED, /* of a matrix, j the other mode: S_i <- beta S_i + (1 - beta) Y Y^T / dim_j, Y = X x_j w_j B_j,
                            unfolded along i; update 1: S_i = X_(i) X_(i)^T / dim_j */
    ABAR_BLOCK_SCALES,   /* X rotated: w_i <- min((beta / w_i^2 + (1 - beta) d_i)^-1/2, ABAR_SCALE_MOST), d_i the mean over j of
                            (X w_j)^2; update 1: ABAR_SCALE_FIRST */
    ABAR_BLOCK_ADAM,     /* m <- beta m + (1 - beta) X, v <- beta2 v + (1 - beta2) X * X, X <- m / (sqrt(v) + eps) */
    ABAR_BLOCK_EVEN,     /* X <- X / (ABAR_RMS_EPS + rms of X) */
    ABAR_BLOCK_STEP,     /* X <- (1 - eta late) c X + late W, c = sqrt(1 - beta2^(t-1)) / (1 - beta^(t-1)) or 1: the decay
                            follows the step; update 1: X <- 0. cautious: X <- c X + late W where X W >= 0, else c X. ball, of
                            blocks with more than one mode: X takes W to (W - eta |W| X / |X|), scaled to the norm of W */
    ABAR_BLOCK_BASIS /* when it is due: B_i <- the eigenvectors of S_i, at first; later orthonormalised rows of B_i S_i, first
                        ordered by the diagonal of B_i S_i B_i^T, and v with them; m is rotated along */
} abar__block_stage_kind;

typedef struct abar__block_stage {
    abar__block_stage_kind kind;
    int32_t state;         /* that it renews, or reads; -1: none */
    int32_t from;          /* ROOT, BASIS: S */
    int32_t basis, scales; /* WHITENED, SCALES: B and w */
    int32_t mean, squares; /* ADAM, BASIS: m and v; -1: BASIS does not order */
    double beta, beta2, ahead, eps;
    double gain, rest; /* HEAVY */
    double ridge;      /* ROOT: 0: none */
    double exponent;   /* negative: 1 / (2 modes of the block) */
    bool corrected;    /* MEASURE: V / (1 - beta^t) for V; STEP: c is not 1 */
    bool cautious;     /* STEP */
    bool ball;         /* STEP */
    bool transposed;   /* MULTIPLY */
    bool whole;        /* RESCALE */
    int64_t start,
        every; /* ROOT is due at t = start, and later at multiples of every; BASIS at t = 1, and when every divides t - 1 */
} abar__block_stage;

/* What a rule keeps of its blocks: a number for each element, like the parameter, or a matrix for each of these modes, (dim,
 * dim) row-major, one behind the other. Averages are symmetric, their upper triangle counts. A root or basis that is all zeros
 * is none yet. */
typedef struct abar__block_state {
    const char *name;
    uint32_t modes;  /* 0: like the parameter */
    bool root;       /* or a basis */
    bool vector;     /* (dim) for each mode in place of a matrix */
    bool of_tensors; /* blocks of one mode have none, nor have modes of one entry */
    int64_t longest; /* nor have modes with more entries; 0: all have */
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
    double late_decay, lr_scale;    /* of STEP and HEAVY: lambda where the stages apply it, and what multiplies eta */
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
    if (s->of_tensors && (b->order == 1 || (mode < b->order && b->dim[mode] == 1))) return false;
    if (s->longest > 0 && mode < b->order && b->dim[mode] > s->longest) return false;
    if (s->modes & ABAR_SHORTEST) return mode == abar__block_shortest(b);
    return mode < b->order && (s->modes >> mode & 1);
}

/* Elements of the block's matrices in front of this mode's; mode = order: of all. */
ABAR_BLOCK_BOTH int64_t abar__block_factor(const abar__block *b, const abar__block_state *s, int mode)
{
    int64_t at = 0;
    for (int m = 0; m < mode; m++)
        if (abar__block_has(b, s, m)) at += s->vector ? b->dim[m] : b->dim[m] * b->dim[m];
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

ABAR_BLOCK_BOTH bool abar__average_is_due(int64_t every, int64_t t) { return t % every == 0; }

ABAR_BLOCK_BOTH bool abar__basis_is_due(const abar__block_stage *s, int64_t t) { return (t - 1) % s->every == 0; }

#endif
