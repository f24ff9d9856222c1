/* Extra gradients on ref and cpu (device/extra.h). */
#ifndef ABAR_HOST_EXTRA_H
#define ABAR_HOST_EXTRA_H

#include "device/device_impl.h"

/* What a step passes on from one call to the next. */
typedef struct abar__extra_state {
    double step; /* h */
    bool saved;  /* the weights are perturbed, what they were is saved */
    bool fine;   /* the extra gradients are finite */
} abar__extra_state;

/* Weights become W + h z, W - h z or W; k: the step. */
void abar__extra_perturb(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x, int64_t k, int sign);
/* Of a difference: sets x->fine. */
void abar__extra_check(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x);
/* D or h, unless the gradients are not finite or the step is skipped; counts in state. */
void abar__extra_take(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x, abar__step_state *state,
                      double grad_scale, double clip, bool skip);

#endif
