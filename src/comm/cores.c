/* Cores, for threads and for waiting. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/comm_impl.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

abar__core_set abar__cores_own(void)
{
    abar__core_set own = {{0}};
    cpu_set_t set;
    _Static_assert(sizeof own == sizeof set, "a core each bit");
    if (sched_getaffinity(0, sizeof set, &set) == 0) memcpy(&own, &set, sizeof own); /* of more than 1024 cores: not known */
    return own;
}

void abar__cores_join(abar__core_set *to, const abar__core_set *from)
{
    for (int i = 0; i < ABAR_CORE_WORDS; i++) to->word[i] |= from->word[i];
}

/* All cores of the machine where the set is not known. */
static int count(const abar__core_set *set)
{
    int n = 0;
    for (int i = 0; i < ABAR_CORE_WORDS; i++) n += __builtin_popcountll(set->word[i]);
    const long all = n > 0 ? n : sysconf(_SC_NPROCESSORS_ONLN);
    return all > 0 ? (int)all : 1;
}

int abar__cores_each(const abar__core_set *together, const abar__core_set *own, int ranks)
{
    const int share = count(together) / ranks, most = count(own);
    return share < 1 ? 1 : share < most ? share : most;
}

int abar__cores_allowed(void)
{
    const abar__core_set own = abar__cores_own();
    return count(&own);
}
