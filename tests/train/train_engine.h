/* For tests of single steps: everything a trainer is made of, on any device, and its whole state as bytes. */
#ifndef TRAIN_ENGINE_H
#define TRAIN_ENGINE_H

#include "train_support.h"

typedef struct engine {
    fixture *f;
    abar_setup *setup;
    abar_device *dev;
    abar_dataset *data;
    abar_loader *loader;
    abar_net *net, *extra; /* extra: of further passes; NULL: there are none */
    abar_optim *optim;
    abar__data_feed feed;
    abar__stepper stepper;
} engine;

/* resident: a queued device holds the data set; otherwise batches are sent. */
static inline engine *make_engine_with(fixture *f, abar_setup *setup, bool resident)
{
    engine *e = calloc(1, sizeof *e); /* the stepper points into it */
    *e = (engine){.f = f, .setup = setup};
    const abar_train_config *train = &setup->train;
    abar__net_request request = {.batch = train->batch / train->accumulate, .training = true};
    need(f, abar__data_open(f->ctx, setup, false, NULL, &e->data));
    abar_loader_config loader = abar__loader_request(setup, false);
    need(f, abar_loader_create(f->ctx, e->data, &loader, &e->loader));
    need(f, abar__device_open(f->ctx, setup, &e->dev));
    need(f, abar__net_build(f->ctx, setup, abar_dataset_info_of(e->data), e->dev, &request, &e->net));
    need(f, abar__extra_net_build(f->ctx, setup, abar_dataset_info_of(e->data), e->dev, e->net, false, &e->extra));
    need(f, abar__optim_build(f->ctx, setup, e->dev, e->net, e->extra, &e->optim));
    need(f, abar__data_feed_create(f->ctx, e->dev, e->data, e->loader, &loader, request.batch, !resident, &e->feed));
    e->stepper = (abar__stepper){.ctx = f->ctx,
                                 .net = e->net,
                                 .extra = e->extra,
                                 .optim = e->optim,
                                 .info = abar_dataset_info_of(e->data),
                                 .micro = request.batch,
                                 .accumulate = train->accumulate,
                                 .clip = train->clip,
                                 .seed = (uint64_t)train->seed,
                                 .feed = &e->feed};
    return e;
}

static inline engine *make_engine(fixture *f, abar_setup *setup) { return make_engine_with(f, setup, false); }

static inline void drop_engine(engine *e)
{
    abar__data_feed_release(e->f->ctx, &e->feed);
    abar_optim_destroy(e->optim);
    abar_net_destroy(e->extra);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_loader_destroy(e->loader);
    abar_dataset_close(e->data);
    abar_setup_destroy(e->f->ctx, e->setup);
    free(e);
}

/* Step k on the loader's next batch. */
static inline abar__step_result train_on(engine *e, int64_t k)
{
    abar_batch batch = {.size = sizeof batch};
    abar__step_result r;
    need(e->f, abar_loader_next(e->loader, &batch));
    need(e->f, abar__stepper_run(&e->stepper, &batch, k, e->setup->train.lr, &r));
    return r;
}

/* Writes one element of a tensor on any device. */
static inline void poke(engine *e, const abar_tensor *t, int64_t element, double value)
{
    abar_tensor host = abar_tensor_wrap(NULL, NULL, ABAR_F64, t->ndim, t->dim);
    host.data = calloc((size_t)abar_tensor_count(t), sizeof(double));
    need(e->f, abar_tensor_copy(e->f->ctx, &host, t));
    ((double *)host.data)[element] = value;
    need(e->f, abar_tensor_copy(e->f->ctx, t, &host));
    free(host.data);
}

/* ---- all state of an engine, to compare ----------------------------------------------------------------------- */

typedef struct snapshot {
    fixture *f;
    char *bytes;
    size_t used;
} snapshot;

/* Row-major, of the tensor's own dtype. */
static inline void keep(snapshot *s, const abar_tensor *t)
{
    abar_tensor host = abar_tensor_wrap(NULL, NULL, t->dtype, t->ndim, t->dim);
    size_t n = (size_t)abar_tensor_count(t) * abar_dtype_size(t->dtype);
    s->bytes = realloc(s->bytes, s->used + n);
    host.data = s->bytes + s->used;
    need(s->f, abar_tensor_copy(s->f->ctx, &host, t));
    s->used += n;
}

static inline abar_status keep_state(void *user, const char *name, const abar_tensor *t)
{
    (void)name;
    keep(user, t);
    return ABAR_OK;
}

static inline snapshot take(engine *e)
{
    snapshot s = {.f = e->f};
    need(e->f, abar_device_wait(e->dev));
    for (int i = 0; i < abar_net_tensor_count(e->net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(e->net, i, &name, &t);
        keep(&s, &t);
    }
    need(e->f, abar_optim_visit(e->optim, keep_state, &s));
    return s;
}

static inline void assert_unchanged(engine *e, snapshot *before)
{
    snapshot now = take(e);
    assert_int_equal(now.used, before->used);
    if (memcmp(now.bytes, before->bytes, now.used) != 0) fail_msg("the state is not the same, bit for bit");
    free(now.bytes);
}

#endif
