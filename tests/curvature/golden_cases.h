/* Every method and option against the float64 oracle (tests/oracle/curvature.py), through the public interface: with sgd at
 * rate 1 and nothing else, what a step takes off a weight is the preconditioned gradient. */
#ifndef GOLDEN_CASES_H
#define GOLDEN_CASES_H

#include "abar/optim.h"

/* Runs all cases of a method ("attention": those of mac and smac on layers that feed attention) on a device, with activations
 * offered in this layout (images; with NHWC the weights have channels last, too) and dtype; fails the test where one is further
 * from the oracle than 1e-9 in double precision, 1e-4 or five times numpy's own float32 error otherwise. */
void golden_run_method(const char *device, const abar_device_config *config, const char *method, abar_layout layout,
                       abar_dtype dtype);

/* A test for a method, given as its state. */
#define METHOD(test, name)                                               \
    {                                                                    \
        "" #test "(" name ")", test, NULL, NULL, (void *)(uintptr_t)name \
    }

#endif
