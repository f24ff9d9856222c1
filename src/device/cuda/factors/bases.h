/* Bases of symmetric factors on the device, all of them together and without host synchronisation (bases.cu). */
#ifndef ABAR_CUDA_FACTORS_BASES_H
#define ABAR_CUDA_FACTORS_BASES_H

#include "device/cuda/factors/roots.h"

typedef struct abar__cuda_basis {
    int64_t n;
    const float *average; /* (n, n): the upper triangle */
    float *basis;         /* (n, n), its vectors by rows; a first row of zeros: none yet. Replaced only by a valid one */
    int32_t *order;       /* (n): row i of the new basis comes of row order[i] of the old one */
} abar__cuda_basis;

typedef struct abar__cuda_turner abar__cuda_turner;

#ifdef __cplusplus
extern "C" {
#endif
/* bases: (n) host memory, copied; call: device memory, of which wanted and kept count. ordered: rows by their quotients. */
abar_status abar__cuda_turner_create(abar_device *dev, const abar__cuda_basis *bases, int n, bool ordered,
                                     abar__cuda_root_call *call, abar__cuda_turner **out);
void abar__cuda_turner_destroy(abar_device *dev, abar__cuda_turner *t);
size_t abar__cuda_turner_bytes(const abar__cuda_turner *t);
/* Where the call wants it when this runs: eigenvectors for a basis that is none yet, else a step of orthogonal iteration
 * (blocks.h). Can be captured. */
abar_status abar__cuda_turner_run(abar_device *dev, abar__cuda_turner *t);
#ifdef __cplusplus
}
#endif

#endif
