/* A block while its stages run on the host (blocks.c), and the stages of Adam in an eigenbasis (blocks_basis.c). */
#ifndef ABAR_HOST_BLOCKS_IMPL_H
#define ABAR_HOST_BLOCKS_IMPL_H

#include "device/host/blocks.h"

typedef struct work {
    abar_device *dev;
    const abar__block_plan *plan;
    const abar__block *block;
    bool wide;       /* double, else float */
    bool overflows;  /* squares of these gradients do not fit: what is averaged stays as it is */
    char *x, *y, *z; /* (count); z NULL: the plan has no bases */
    void *scratch;   /* of roots and bases */
    double length;   /* that was measured */
    double squares;  /* of X, where lengths are those of whole parameters */
    double lr;
    int64_t t, kept; /* this update; matrices that stayed as they were */
} work;

static inline double get(const work *w, const void *p, int64_t i)
{
    return w->wide ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static inline void set(const work *w, void *p, int64_t i, double v)
{
    if (w->wide)
        ((double *)p)[i] = v;
    else
        ((float *)p)[i] = (float)v;
}

static inline size_t abar__block_element(const abar_device *dev) { return abar_dtype_size(dev->ops->dtype); }

/* Elements of a block that follow each other in the parameter's memory: element first + i is at + i there. */
typedef struct run {
    int64_t first, at, n;
} run;

static inline run run_from(const abar__block *b, int64_t first)
{
    const int64_t n = b->kernel == 1 && b->stride[b->order - 1] == 1 ? b->dim[b->order - 1] : 1;
    return (run){first, first < b->count ? abar__block_at(b, first) : 0, n};
}

static inline void *factor_of(const work *w, int state, int mode)
{
    const int64_t at = abar__block_factor(w->block, &w->plan->state[state], mode);
    return (char *)w->block->state[state] + (size_t)at * abar__block_element(w->dev);
}

/* y = x times the root or basis along the mode; false, leaving y alone, where there is none yet. */
bool abar__block_multiply(const work *w, int state, int mode, bool transposed, const void *x, void *y);
size_t abar__block_order_bytes(int64_t n); /* of scratch, in front of what the device needs for bases */
void abar__block_whitened(work *w, const abar__block_stage *s, int mode);
void abar__block_scales(work *w, const abar__block_stage *s);
void abar__block_adam(work *w, const abar__block_stage *s);
void abar__block_turn(work *w, const abar__block_stage *s);

#endif
