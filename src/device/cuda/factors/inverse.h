/* How symmetric factors are inverted together on the device (methods.md section 9), shared by inverse.cu, which decides,
 * sweep.cu, which computes, and eigen.cu.
 *
 * Every factor is in some phase, and one *round*, the same few launches over all of them, takes each a phase further, or a
 * panel of its sweep: factors of different sizes and at different attempts run side by side. Rounds are repeated until all are
 * idle.
 *
 * The sweep is Gauss-Jordan's by panels of ABAR_PANEL columns, within the lower triangle of `pending`. With L L^T the diagonal
 * block of panel k, P_i the block of panel k in row i (for i < k: the transpose of the block of row k) and Y_i = P_i L^-T:
 *
 *     A_ij -= Y_i Y_j^T for all others,   A_ik = Y_i L^-1,   A_kk = -L^-T L^-1
 *
 * and after the last panel the triangle holds -A^-1. Y comes from substitution: with an explicit inverse the error would grow
 * with the square of the condition number. Pivots are those of Cholesky's factorisation: all positive exactly for a positive
 * definite matrix. */
#ifndef ABAR_CUDA_FACTORS_INVERSE_H
#define ABAR_CUDA_FACTORS_INVERSE_H

#include "device/cuda/factors/dense.h"

#define ABAR_PANEL 64 /* columns of a panel, and side of a tile */

typedef enum abar__inversion_phase {
    ABAR_INVERSION_IDLE,
    ABAR_INVERSION_LOAD,  /* the damped average into the triangle; its trace */
    ABAR_INVERSION_SWEEP, /* one panel */
    ABAR_INVERSION_CHECK, /* the norm of the result */
    ABAR_INVERSION_STORE, /* the result into `inverse`, zeros into the triangle */
    ABAR_INVERSION_CLEAR, /* zeros into the triangle: nothing came of it */
    ABAR_INVERSION_WAIT,  /* for the workspace to work in double precision */
    ABAR_INVERSION_YIELD, /* that workspace to others, and what was lent of `inverse` back */
    ABAR_INVERSION_READY, /* the result is fine; waits for what becomes of the partner */
    ABAR_INVERSION_EIGEN  /* eigenvalues and eigenvectors, which stay in scratch until they are stored */
} abar__inversion_phase;

/* In device memory, one each. */
typedef struct abar__inversion_state {
    int32_t phase, panel;
    int32_t in_double, failed; /* failed: the present attempt */
    int32_t partner;           /* that is wanted too; -1: none */
    double trace, norm;        /* of the average; of the inverse */
} abar__inversion_state;

/* A factor with the workspace that belongs to it. */
typedef struct abar__inverted {
    abar__cuda_factor f;
    float *panel;  /* (ABAR_PANEL, abar__panel_pitch(d)): Y and then L, transposed; partial sums between sweeps */
    double *eigen; /* abar__cuda_eigen_scratch bytes where f has values */
} abar__inverted;

typedef struct abar__inversion_control {
    int32_t more;   /* whether another round is needed */
    int32_t holder; /* the factor that works in double precision; -1: none */
} abar__inversion_control;

/* What is shared out in a round, and where in starts its numbers are. */
typedef enum abar__inversion_units {
    ABAR_UNITS_TILE = 0,   /* tiles of triangles */
    ABAR_UNITS_PANEL = 21, /* blocks of panels */
    ABAR_UNITS_PAIR = 42   /* two tiles below each other of triangles that are swept so */
} abar__inversion_units;

#define ABAR_UNITS_MOST 0x1fffff /* of each */

/* What every kernel gets; all device memory. starts[f]: of the factors before f the tiles that have work in this round, with
 * blocks of panels and pairs 21 bits above each other. In double precision an element is the sum of two
 * floats: one in its usual place and one in the lower triangle of `inverse`, which the upper one restores but for its diagonal,
 * or in low_panel. */
typedef struct abar__inversions {
    int n, raises; /* raises: how often the shift may be raised */
    bool double_first, double_last;
    bool pairs;                    /* whether a factor is swept by them */
    const abar__inverted *items;   /* (n) */
    abar__cuda_inversion *asked;   /* (n) */
    abar__inversion_state *states; /* (n) */
    int64_t *starts;               /* (n + 1) */
    abar__inversion_control *control;
    float *diagonal, *low_panel; /* for the largest d: (d), and like panel */
} abar__inversions;

__host__ __device__ static inline int64_t abar__panels(int64_t d) { return (d + ABAR_PANEL - 1) / ABAR_PANEL; }

__host__ __device__ static inline int64_t abar__panel_pitch(int64_t d) { return (abar__panels(d) + 1) * ABAR_PANEL; }

/* Large triangles are swept on tensor cores (sweep_pairs.cu), where four floats are adjacent everywhere. */
__host__ __device__ static inline bool abar__in_pairs(const abar__cuda_factor &f)
{
    return abar__panels(f.d) >= 10 && f.d % 4 == 0 && (uintptr_t)f.pending % 16 == 0 && !f.values;
}

/* Units of all factors before f. */
__device__ static inline int64_t abar__units_before(const abar__inversions &s, int f, abar__inversion_units kind)
{
    return s.starts[f] >> kind & ABAR_UNITS_MOST;
}

/* The factor that unit t of this round belongs to; *t becomes its number there. */
__device__ static inline int abar__find_factor(const abar__inversions &s, abar__inversion_units kind, int64_t *t)
{
    int first = 0, end = s.n;
    while (end - first > 1) {
        const int middle = (first + end) / 2;
        if (abar__units_before(s, middle, kind) <= *t)
            first = middle;
        else
            end = middle;
    }
    *t -= abar__units_before(s, first, kind);
    return first;
}

/* Tile t of those on and below the diagonal, by rows. */
__device__ static inline void abar__find_tile(int64_t t, int64_t *i, int64_t *j)
{
    int64_t row = (int64_t)((sqrtf(8.0f * (float)t + 1.0f) - 1.0f) * 0.5f);
    while (row * (row + 1) / 2 > t) row--;
    while ((row + 1) * (row + 2) / 2 <= t) row++;
    *i = row;
    *j = t - row * (row + 1) / 2;
}

extern "C" {
/* The launches of a round that compute: one phase of every factor (sweep.cu, eigen.cu). */
void abar__cuda_sweep_round(abar_device *dev, const abar__inversions *s);
void abar__cuda_sweep_pairs(abar_device *dev, const abar__inversions *s);
abar_status abar__cuda_prepare_pairs(abar_device *dev); /* before the first launch */
void abar__cuda_eigen_round(abar_device *dev, const abar__inversions *s);
}

#endif
