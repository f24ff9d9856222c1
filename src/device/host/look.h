/* What check reads, and decay inside of gradients. */
#ifndef ABAR_HOST_LOOK_H
#define ABAR_HOST_LOOK_H

#include "device/host/compiled_step.h"

size_t abar__look_bytes(const abar_device *dev, const abar__plan *plans, int n); /* of row_products */
/* After maps have their gradients. */
void abar__look_bind(const abar_device *dev, abar__compiled_step *s);
/* As norm of device_impl.h, of all gradients; and takes the products of rows. */
bool abar__look(abar_device *dev, abar__compiled_step *s, double *norm);
/* G <- G + (lambda / scale) W of all items; the passes multiply G by scale later. */
void abar__decay_inside(const abar_device *dev, const abar__update_item *items, int n, double scale);

#endif
