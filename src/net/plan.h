/* The arena planner: places buffers into one block such that no two buffers overlap that are alive at the same time. */
#ifndef ABAR_PLAN_H
#define ABAR_PLAN_H

#include "base/base_impl.h"

typedef struct abar__buffer {
    size_t bytes;
    int first, last; /* times of first and last use, inclusive */
    size_t offset;   /* result: a multiple of ABAR_ALIGN */
} abar__buffer;

/* Greedy by size: large buffers first, each at the lowest offset that is free over its whole lifetime. */
abar_status abar__plan_arena(abar_context *ctx, abar__buffer *buffers, int n, size_t *total);

#endif
