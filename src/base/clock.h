/* The monotonic clock. */
#ifndef ABAR_CLOCK_H
#define ABAR_CLOCK_H

#include <time.h>

static inline double abar__seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
