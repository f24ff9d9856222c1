/* Greedy-by-size offset assignment. */
#include "net/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct ranked {
    abar__buffer *buffer;
    int index;
} ranked;

static int by_size(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    if (a->buffer->bytes != b->buffer->bytes) return a->buffer->bytes < b->buffer->bytes ? 1 : -1;
    return a->index - b->index;
}

static bool meet(const abar__buffer *a, const abar__buffer *b) { return a->first <= b->last && b->first <= a->last; }

abar_status abar__plan_arena(abar_context *ctx, abar__buffer *buffers, int n, size_t *total)
{
    *total = 0;
    if (n == 0) return ABAR_OK;
    size_t order_bytes = (size_t)n * sizeof(ranked), placed_bytes = (size_t)n * sizeof(abar__buffer *);
    ranked *order;
    abar__buffer **placed; /* sorted by offset */
    ABAR_TRY(abar__alloc(ctx, order_bytes, (void **)&order));
    abar_status status = abar__alloc(ctx, placed_bytes, (void **)&placed);
    if (status < 0) {
        abar__free(ctx, order, order_bytes);
        return status;
    }
    for (int i = 0; i < n; i++) order[i] = (ranked){&buffers[i], i};
    qsort(order, (size_t)n, sizeof *order, by_size);

    for (int i = 0; i < n; i++) {
        abar__buffer *b = order[i].buffer;
        size_t bytes = abar__round_up(b->bytes, ABAR_ALIGN), offset = 0;
        for (int j = 0; j < i; j++) { /* move past every buffer in the way that is alive at the same time */
            if (!meet(b, placed[j])) continue;
            if (offset + bytes <= placed[j]->offset) break;
            size_t end = placed[j]->offset + abar__round_up(placed[j]->bytes, ABAR_ALIGN);
            if (end > offset) offset = end;
        }
        b->offset = offset;
        if (offset + bytes > *total) *total = offset + bytes;
        int at = i;
        while (at > 0 && placed[at - 1]->offset > offset) at--;
        memmove(placed + at + 1, placed + at, (size_t)(i - at) * sizeof *placed);
        placed[at] = b;
    }
    abar__free(ctx, placed, placed_bytes);
    abar__free(ctx, order, order_bytes);
    return ABAR_OK;
}
