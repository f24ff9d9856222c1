/* Two devices that round differently may decide differently where an activation is nearly 0 (does a ReLU let the gradient
 * through?) or where two elements of a window are nearly equal (which one is the maximum?). One such decision changes every
 * gradient before it. So gradients are compared for the same decisions. */
#ifndef DECISIONS_H
#define DECISIONS_H

#include "net_testing.h"

/* After forward(f, true) and the same on ref, a net of the ref device that was built and compiled like that of f: every output
 * of a ReLU must agree to tolerance, relative to the largest; where ref decided differently, which must be within that of the
 * border, it decides as f's net did from now on. Returns the number of decisions that were changed. */
int64_t decide_alike(fixture *f, abar_net *ref, double tolerance);

#endif
