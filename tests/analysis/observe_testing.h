/* What the tests of the observation pass share: numbers by counter, memory, and tensors on the host. */
#ifndef OBSERVE_TESTING_H
#define OBSERVE_TESTING_H

#include "analysis_testing.h"
#include "base/rng.h"

#include <stdlib.h>

static inline double draw(uint64_t seed, int64_t i)
{
    double pair[2];
    abar__normal(abar__random(seed, ABAR_DRAW_ANALYSIS, 7, (uint64_t)i), pair);
    return pair[0];
}

static inline void *take(int64_t n, size_t size)
{
    void *memory = calloc((size_t)n, size);
    assert_non_null(memory);
    return memory;
}

/* A host copy of a tensor, F32 (or I64 where that is what it holds). */
static inline float *fetch(abar_context *ctx, const abar_tensor *t)
{
    float *data = take(abar_tensor_count(t) * 2, sizeof *data);
    const abar_tensor host = abar_tensor_wrap(NULL, data, t->dtype == ABAR_I64 ? ABAR_I64 : ABAR_F32, t->ndim, t->dim);
    assert_fine(ctx, abar_tensor_copy(ctx, &host, t));
    return data;
}

#endif
