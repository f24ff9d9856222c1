/* Extra gradients on cuda (device/extra.h): weights are perturbed and diagonals taken by kernels that read their decisions in
 * device memory. */
#ifndef ABAR_CUDA_STEP_EXTRA_H
#define ABAR_CUDA_STEP_EXTRA_H

#include "device/cuda/step/step.h"

typedef struct abar__cuda_extra abar__cuda_extra;

extern "C" {
abar_status abar__cuda_extra_create(abar_device *dev, const abar__extra_plan *plan, abar__cuda_extra **out);
void abar__cuda_extra_destroy(abar_device *dev, abar__cuda_extra *e); /* NULL: nothing */
size_t abar__cuda_extra_bytes(const abar__cuda_extra *e);
/* New addresses of as many items of the same sizes; ABAR_E_UNSUPPORTED otherwise. */
abar_status abar__cuda_extra_rebind(abar_device *dev, abar__cuda_extra *e, const abar__extra_plan *plan);
/* As in abar__step_ops. */
abar_status abar__cuda_extra_perturb(abar_device *dev, abar__cuda_extra *e, const abar__cuda_live *now, int sign);
abar_status abar__cuda_extra_check(abar_device *dev, abar__cuda_extra *e, abar__cuda_live *now);
abar_status abar__cuda_extra_take(abar_device *dev, abar__cuda_extra *e, abar__cuda_live *now, double grad_scale, double clip);
}

#endif
