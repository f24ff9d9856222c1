/* Clocks, in seconds. */
#ifndef ABAR_CLOCK_H
#define ABAR_CLOCK_H

#include <time.h>

/* From an arbitrary start; never runs backwards. */
static inline double abar__seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Since 1970. */
static inline double abar__wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
