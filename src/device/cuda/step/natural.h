/* The natural gradient within an optimizer step on the device (device/natural.h). */
#ifndef ABAR_CUDA_STEP_NATURAL_H
#define ABAR_CUDA_STEP_NATURAL_H

#include "device/cuda/step/step.h"

typedef struct abar__cuda_natural abar__cuda_natural;

extern "C" {
/* plans: (maps->n) host memory, all with rows of single examples; *maps: where the step has them. */
abar_status abar__cuda_natural_create(abar_device *dev, const abar__plan *plans, const abar__cuda_maps *maps,
                                      abar__cuda_natural **out);
void abar__cuda_natural_destroy(abar_device *dev, abar__cuda_natural *v);
size_t abar__cuda_natural_bytes(const abar__cuda_natural *v);
/* The rows of this step: (maps, 3) as commit has them; NULL: there are none. */
void abar__cuda_natural_offer(abar__cuda_natural *v, const double *to_mean);
/* Replaces gradients, decides the KL clip, counts what happened. Recordable. */
abar_status abar__cuda_natural_run(abar_device *dev, abar__cuda_natural *v);
}

#endif
