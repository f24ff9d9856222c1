/* Refreshes that several ranks divide: each derives the maps that it owns, and all have the results. What is due is the same on
 * all ranks, so that owners follow from it alone; the longest first, each to the rank that has least (longest processing time
 * first). A matrix of n rows costs n^3. */
#ifndef ABAR_DEVICE_OWNERS_H
#define ABAR_DEVICE_OWNERS_H

#include "device/device_impl.h"

typedef struct abar__owned {
    int rank, ranks;
    int maps, n_due;
    int *due;     /* (maps): whose refresh is due in this step */
    int *owner;   /* (maps), of each of them: the rank */
    double *load; /* (ranks): cost of what each has */
    size_t bytes; /* of this and the arrays behind it */
} abar__owned;

/* *out is NULL where nothing is divided. */
abar_status abar__owned_make(abar_device *dev, const abar__owners *ranks, int maps, abar__owned **out);
void abar__owned_release(abar_device *dev, abar__owned *o);
/* Whether ranks divide the refreshes of such maps: those with matrices. */
bool abar__owned_divides(const abar__owned *o, const abar__plan *plan);
/* Gives every map that is due an owner. */
void abar__owned_assign(abar__owned *o, const abar__plan *plans);

#endif
