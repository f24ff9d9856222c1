/* What the tests of cross entropy with pairs of labels share. */
#ifndef LOSS_PAIRS_CASES_H
#define LOSS_PAIRS_CASES_H

#include "device/nn_impl.h"

/* A device, and how near it comes to distributions that are written out. */
typedef struct loss_pairs_place {
    const char *device;
    abar_precision precision;
    double tolerance;
} loss_pairs_place;

/* Runs all cases on n devices; what main returns. */
int loss_pairs_run(const loss_pairs_place *on, int n);

#endif
