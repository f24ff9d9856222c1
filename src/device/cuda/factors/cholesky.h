/* Damped symmetric systems of one side, solved together in double precision (methods.md section 9): x = (K + shift I)^-1 x by
 * Cholesky's factor. Where it does not exist the shift is raised, and the factorisation repeated: by the host, or in a
 * recording by the device. Simple kernels: the systems of the natural gradient are small. */
#ifndef ABAR_CUDA_FACTORS_CHOLESKY_H
#define ABAR_CUDA_FACTORS_CHOLESKY_H

#include "device/cuda/core/core_impl.h"

/* What is asked, and what came of it: one each in device memory. */
typedef struct abar__cuda_system {
    int32_t wanted; /* set by who asks; 0 when it has ended */
    int32_t solved; /* 1: x is the solution, and finite */
    int32_t raised; /* how often the shift was */
    int32_t failed; /* the present attempt */
    double shift;   /* the ladder raises it */
    double trace;   /* of K */
} abar__cuda_system;

/* All of it device memory but n, side and body. */
typedef struct abar__cuda_systems {
    int n;
    int64_t side;               /* M */
    int64_t rows;               /* of them that there are now; K of the others is zero. The ladder takes the mean over these */
    double *k;                  /* (n, M, M): the lower triangles */
    double *l;                  /* (n, M, M): the factors */
    double *x;                  /* (n, M) */
    abar__cuda_system *systems; /* (n) */
    int32_t *more;
    cudaStream_t body; /* into which a round is recorded */
} abar__cuda_systems;

extern "C" {
/* Every system that is wanted when this runs. A trace that is not finite leaves it unsolved. Recordable. */
abar_status abar__cuda_solve_systems(abar_device *dev, const abar__cuda_systems *s);
}

#endif
