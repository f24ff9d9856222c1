/* Inverse roots of symmetric factors on the device, all of them together and without host synchronisation (roots.cu). */
#ifndef ABAR_CUDA_FACTORS_ROOTS_H
#define ABAR_CUDA_FACTORS_ROOTS_H

#ifdef __cplusplus
#include "device/cuda/core/core_impl.h"
#else
#include "device/device_impl.h" /* tests are C */
#endif

typedef struct abar__cuda_root {
    int64_t n;
    float *average; /* (n, n): the upper triangle */
    float *root;    /* (n, n), full; replaced only by a valid one */
    double exponent;
    double
        ridge; /* not 0: this part of the largest eigenvalue of scale * average + eps I is added to average's diagonal first */
} abar__cuda_root;

/* What is wanted of all roots: (scale * average + eps I)^-exponent. In device memory, written before by a kernel. */
typedef struct abar__cuda_root_call {
    int32_t wanted;
    double scale, eps;
    int64_t kept; /* roots that stayed as they were, so far: added to */
} abar__cuda_root_call;

typedef struct abar__cuda_rooter abar__cuda_rooter;

#ifdef __cplusplus
extern "C" {
#endif
/* roots: (n) host memory, copied; call: device memory. */
abar_status abar__cuda_rooter_create(abar_device *dev, const abar__cuda_root *roots, int n, abar__cuda_root_call *call,
                                     abar__cuda_rooter **out);
void abar__cuda_rooter_destroy(abar_device *dev, abar__cuda_rooter *r);
size_t abar__cuda_rooter_bytes(const abar__cuda_rooter *r);
/* Takes the roots if the call wants them when this runs. Can be captured. */
abar_status abar__cuda_rooter_run(abar_device *dev, abar__cuda_rooter *r);
#ifdef __cplusplus
}
#endif

#endif
