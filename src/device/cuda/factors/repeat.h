/* Rounds of launches that are repeated until a kernel says that there is nothing left to do: by the host, which looks after
 * every round, or within a recording by a conditional node of the graph, without host synchronisation. */
#ifndef ABAR_CUDA_FACTORS_REPEAT_H
#define ABAR_CUDA_FACTORS_REPEAT_H

#include "device/cuda/core/core_impl.h"

/* Where the last kernel of a round says whether there will be another one. */
typedef struct abar__cuda_again {
    bool recorded; /* else the host reads `more` */
    cudaGraphConditionalHandle handle;
} abar__cuda_again;

typedef struct abar__cuda_rounds {
    const void *user;
    /* What comes first, and a round; the last kernel of each calls abar__cuda_say. */
    void (*begin)(abar_device *dev, const void *user, abar__cuda_again again);
    void (*round)(abar_device *dev, const void *user, abar__cuda_again again);
    int32_t *more;     /* device memory */
    cudaStream_t body; /* into which a round is recorded */
} abar__cuda_rounds;

/* By one thread. */
__device__ static inline void abar__cuda_say(int32_t *more, bool another, abar__cuda_again again)
{
    *more = another;
    if (again.recorded) cudaGraphSetConditional(again.handle, (unsigned)another);
}

extern "C" {
/* Recorded where the device is capturing, else here. */
abar_status abar__cuda_repeat(abar_device *dev, const abar__cuda_rounds *r);
bool abar__cuda_repeat_here(abar_device *dev, const abar__cuda_rounds *r); /* needs no body */
}

#endif
