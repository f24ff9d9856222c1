/* Weight decay that is part of the gradient from the beginning (--decay inside, methods.md section 8). */
#ifndef ABAR_HOST_INSIDE_H
#define ABAR_HOST_INSIDE_H

#include "device/device_impl.h"

/* G <- G + (lambda / scale) W of all items; the passes multiply G by scale later. */
void abar__decay_inside(const abar_device *dev, const abar__update_item *items, int n, double scale);

#endif
