/* The natural gradient on ref and cpu (device/natural.h). */
#ifndef ABAR_HOST_NATURAL_H
#define ABAR_HOST_NATURAL_H

#include "device/device_impl.h"

/* A map in one step. */
typedef struct abar__natural_item {
    const abar__plan *plan;
    abar__map_state *state;
    void *grad, *bias_grad; /* NULL: none now */
    double scale;           /* that makes R of the rows in memory; 0: it was not observed */
    int64_t examples;       /* of the batch */
    double *products;       /* <G, G>, <G^, G>, <G^, G^>, where G^ has replaced G */
} abar__natural_item;

size_t abar__natural_scratch(const abar__plan *plans, int n);
/* Replaces the gradients of all maps that have rows and a gradient; READY of their states says whether. A block whose rows are
 * not finite, whose K + rho I cannot be factorised, or whose G^ is not finite, keeps G. grad_scale: that of the gradients in
 * memory; largest: what they are multiplied by later. scratch: abar__natural_scratch bytes. */
void abar__natural_run(abar_device *dev, const abar__natural_item *items, int n, double grad_scale, double largest,
                       void *scratch);

#endif
