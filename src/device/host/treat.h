/* Dense factors on ref and cpu: what a plan makes of a gradient, for devices that have no call for all of it. */
#ifndef ABAR_HOST_TREAT_H
#define ABAR_HOST_TREAT_H

#include "device/device_impl.h"

/* G^ from G joined to one matrix. counts: the step depends on <G^, G>. products: <G, G>, <G^, G>, <G^, G^>; NULL: not wanted.
 * False, leaving G as it was, where G^ is not finite. scratch: abar__treat_scratch bytes. */
bool abar__treat_joined(abar_device *dev, const abar__plan *p, const abar__dense_gradient *g, bool counts, void *scratch,
                        double *products);
size_t abar__treat_scratch(const abar_device *dev, const abar__plan *p); /* 0: its factors are not dense */

#endif
