/* Cores, for threads and for waiting. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/comm.h"

#include <sched.h>
#include <unistd.h>

int abar__cores(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int abar__cores_allowed(void)
{
    cpu_set_t set;
    const int all = abar__cores();
    const int own =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : all; /* of more than 1024 cores: not known */
    return own < all ? own : all;
}
