/* How symmetric factors are inverted together on the device (methods.md section 9), shared by core_inverse.cu, which decides,
 * core_sweep.cu, which computes, and core_eigen.cu.
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
#ifndef ABAR_CUDA_CORE_INVERSE_H
#define ABAR_CUDA_CORE_INVERSE_H

#include "device/cuda/core_dense.h"

#define ABAR_PANEL 64 /* columns of a panel, and side of a tile */

typedef enum abar__inversion_phase {
    ABAR_INVERSION_IDLE,
    ABAR_INVERSION_LOAD,  /* the damped average into the triangle; its trace */
    ABAR_INVERSION_SWEEP, /* one panel */
    ABAR_INVERSION_CHECK, /* the norm of the result */
    ABAR_INVERSION_STORE, /* the result into `inverse`, zeros into the triangle */
    ABAR_INVERSION_CLEAR, /* zeros into the triangle: nothing came of it */
    ABAR_INVERSION_WAIT,  /* for the room to work in double precision */
    ABAR_INVERSION_EIGEN
} abar__inversion_phase;

/* In device memory, one each. */
typedef struct abar__inversion_state {
    int32_t phase, panel;
    int32_t in_double, failed; /* failed: the present attempt */
    double trace, norm;        /* of the average; of the inverse */
} abar__inversion_state;

/* A factor with the room that belongs to it. */
typedef struct abar__inverted {
    abar__cuda_factor f;
    float *panel;  /* (ABAR_PANEL, abar__panel_pitch(d)): Y and then L, transposed; partial sums between sweeps */
    double *eigen; /* abar__cuda_eigen_scratch bytes where f has values */
} abar__inverted;

typedef struct abar__inversion_control {
    int32_t more;   /* whether another round is needed */
    int32_t holder; /* the factor that works in double precision; -1: none */
} abar__inversion_control;

/* What every kernel gets; all device memory. starts[f]: in its lower 32 bits the tiles of the triangles of the factors before f
 * that have work in this round, in its upper 32 bits the blocks of their panels. In double precision an element is the sum of
 * two floats: one in its usual place and one in the lower triangle of `inverse`, which can be restored from the upper one but
 * for its diagonal, or in low_panel. */
typedef struct abar__inversions {
    int n, raises; /* raises: how often the shift may be raised */
    bool double_first, double_last;
    const abar__inverted *items;   /* (n) */
    abar__cuda_inversion *asked;   /* (n) */
    abar__inversion_state *states; /* (n) */
    int64_t *starts;               /* (n + 1) */
    abar__inversion_control *control;
    float *diagonal, *low_panel; /* for the largest d: (d), and like panel */
} abar__inversions;

__host__ __device__ static inline int64_t abar__panels(int64_t d) { return (d + ABAR_PANEL - 1) / ABAR_PANEL; }

__host__ __device__ static inline int64_t abar__panel_pitch(int64_t d) { return (abar__panels(d) + 1) * ABAR_PANEL; }

extern "C" {
/* The launches of a round that compute: one phase of every factor (core_sweep.cu, core_eigen.cu). */
void abar__cuda_sweep_round(abar_device *dev, const abar__inversions *s);
void abar__cuda_eigen_round(abar_device *dev, const abar__inversions *s);
}

#endif
