/* What a step that learns from a second pass over its batch does on ref and cpu (optimizers.md section 7): what the first pass
 * leaves, the weights and momenta it may have to put back, and the updates of both inverses. */
#ifndef ABAR_HOST_SECANT_H
#define ABAR_HOST_SECANT_H

#include "device/device_impl.h"

/* What the second pass has to know of a map's first. */
typedef struct abar__first_pass {
    double to_mean[2]; /* of activations, of output gradients; 0: it was not observed, or dropped */
    bool committed;    /* its first average was committed at once, */
    bool ready;        /* and its inverses begun */
    abar__map_state before;
} abar__first_pass;

/* The map's weight and bias as they are now; NULL: none that is trained. */
typedef struct abar__map_weights {
    const void *weight, *bias;
} abar__map_weights;

/* Before the update. to_mean: (3), NULL: no statistics. The average of a map that has none is committed, and inverses begun
 * where there are none; other averages stay pending. */
void abar__secant_begin(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__map_weights *w,
                        const double *to_mean, double stat_decay, abar__first_pass *first, void *scratch);
/* Whether all numbers of the second pass are. to_mean: (3) of it. */
bool abar__secant_is_finite(abar_device *dev, const abar__plan *p, const double *to_mean);
/* At the weights of the second pass, w: commits the average and updates the inverses. */
void abar__secant_learn(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__map_weights *w,
                        const double *to_mean, double stat_decay, const abar__first_pass *first, void *scratch);
/* As if the step had not been. */
void abar__secant_undo(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__first_pass *first);
/* Both passes' sums are over. */
void abar__secant_forget(abar_device *dev, const abar__plan *p);
size_t abar__secant_scratch(const abar_device *dev, const abar__plan *p);

/* x (out, d) <- H_p x, where pairs stand for it. */
void abar__secant_multiply(const abar_device *dev, const abar__plan *p, void *x, void *scratch);

/* Weights and states of all items to saved, or back. Returns the bytes of saved; saved NULL: counts. */
size_t abar__items_save(const abar_device *dev, const abar__update_item *items, int n, char *saved);
void abar__items_restore(const abar_device *dev, const abar__update_item *items, int n, const char *saved);

#endif
