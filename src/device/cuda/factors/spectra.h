/* Eigenvectors of large symmetric factors, many thread blocks each, without host synchronisation (spectra.cu): first bases
 * (bases.cu), and inverse roots of any exponent (roots.cu). */
#ifndef ABAR_CUDA_FACTORS_SPECTRA_H
#define ABAR_CUDA_FACTORS_SPECTRA_H

#include "device/cuda/factors/roots.h"

typedef struct abar__cuda_spectrum {
    abar__cuda_root root;  /* its root is taken; where there is a basis only n and average count */
    float *basis;          /* (n, n): its eigenvectors by rows, the largest value first; NULL: the root */
    const int32_t *wanted; /* device memory: whether it is, if the call wants any; NULL: it is */
} abar__cuda_spectrum;

typedef struct abar__cuda_spectra abar__cuda_spectra;

extern "C" {
size_t abar__cuda_spectra_workspace(const abar__cuda_spectrum *of, int n);
/* of: (n) host memory, copied; call and workspace: device memory. Between runs the workspace is free for others. */
abar_status abar__cuda_spectra_create(abar_device *dev, const abar__cuda_spectrum *of, int n, abar__cuda_root_call *call,
                                      void *workspace, abar__cuda_spectra **out);
void abar__cuda_spectra_destroy(abar_device *dev, abar__cuda_spectra *s);
size_t abar__cuda_spectra_bytes(const abar__cuda_spectra *s); /* without the workspace */
/* What cannot be had is counted as kept: the basis becomes the identity, the root stays. Can be captured. */
abar_status abar__cuda_spectra_run(abar_device *dev, abar__cuda_spectra *s);
}

#endif
