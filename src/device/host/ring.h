/* Rings of gradients (optimizers.md section 8): a row is written at every step, and the gradient becomes its product with the
 * inverse of the damped mean of the rows' outer products. */
#ifndef ABAR_HOST_RING_H
#define ABAR_HOST_RING_H

#include "device/device_impl.h"

/* Replaces the gradients of a ring's pieces. scale: what the passes multiply them by later. products: <G, G>, <G^, G> and <G^,
 * G^>, NaN where the gradients stay as they are. scratch: abar__ring_scratch bytes. */
void abar__ring_run(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__ring_piece *pieces, int n,
                    double scale, double products[3], void *scratch);
size_t abar__ring_scratch(const abar_device *dev, const abar__plan *p);

#endif
