/* All state of an optimizer, copied out by abar_optim_visit and put back. */
#ifndef OPTIM_SNAPSHOT_H
#define OPTIM_SNAPSHOT_H

#include "optim/optim_fixture.h"

#define STATE_MAX 32

typedef struct snapshot {
    abar_context *ctx;
    int n, at;
    char names[STATE_MAX][64];
    abar_tensor tensors[STATE_MAX]; /* host copies */
} snapshot;

static inline abar_status save(void *user, const char *name, const abar_tensor *t)
{
    snapshot *s = user;
    assert_in_range(s->n, 0, STATE_MAX - 1);
    snprintf(s->names[s->n], sizeof s->names[s->n], "%s", name);
    s->tensors[s->n] = *t;
    s->tensors[s->n].dev = NULL;
    s->tensors[s->n].data = calloc(1, abar_tensor_bytes(t) + 1);
    assert_int_equal(abar_tensor_copy(s->ctx, &s->tensors[s->n++], t), ABAR_OK);
    return ABAR_OK;
}

static inline abar_status restore(void *user, const char *name, const abar_tensor *t)
{
    snapshot *s = user;
    assert_string_equal(name, s->names[s->at]);
    assert_int_equal(abar_tensor_copy(s->ctx, t, &s->tensors[s->at++]), ABAR_OK);
    return ABAR_OK;
}

static inline snapshot take(fixture *f, abar_optim *optim)
{
    snapshot s = {.ctx = f->ctx};
    assert_int_equal(abar_optim_visit(optim, save, &s), ABAR_OK);
    return s;
}

static inline void drop(snapshot *s)
{
    for (int i = 0; i < s->n; i++) free(s->tensors[i].data);
}

#endif
