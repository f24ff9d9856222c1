/* Steps enqueued ahead of a queued device. A step is captured once per kind (plain, or with statistics or further passes) and
 * then replayed; the host enqueues steps ahead and reads their results when they are done. On the host device a step runs when
 * it is enqueued. */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

abar_status abar__pipeline_create(const abar__stepper *stepper, abar_device *dev, abar_loader *loader, abar__pipeline *out)
{
    *out = (abar__pipeline){.stepper = stepper, .loader = loader, .dev = dev, .stream = dev->ops->stream};
    out->steps = abar_loader_batches(loader);
    if (!out->stream) return ABAR_OK;
    ABAR_TRY(abar__alloc(stepper->ctx, (size_t)out->steps * sizeof *out->rates, (void **)&out->rates));
    for (int i = 0; i < ABAR_STEPS_AHEAD; i++) {
        ABAR_TRY(out->stream->event_create(dev, &out->event[i]));
        ABAR_TRY(out->stream->event_create(dev, &out->began[i]));
    }
    return ABAR_OK;
}

void abar__pipeline_release(abar_context *ctx, abar__pipeline *p)
{
    if (!p->stream) return;
    (void)p->stream->wait(p->dev); /* failures were reported to the caller that ran the steps */
    for (int kind = 0; kind < ABAR_STEP_KINDS; kind++)
        for (int stage = 0; stage < ABAR_STAGES; stage++) p->stream->forget(p->dev, p->graph[kind][stage]);
    for (int i = 0; i < ABAR_STEPS_AHEAD; i++) {
        if (p->event[i]) p->stream->event_destroy(p->dev, p->event[i]);
        if (p->began[i]) p->stream->event_destroy(p->dev, p->began[i]);
    }
    abar__free(ctx, p->rates, p->rates ? (size_t)p->steps * sizeof *p->rates : 0);
}

/* Sends the learning rates of an epoch's steps from `step` on, as many as the device holds. */
static abar_status send_rates(abar__pipeline *p, int64_t step)
{
    const int64_t left = p->steps - step, n = left < ABAR_STEP_RATES ? left : ABAR_STEP_RATES;
    return n > 0 ? abar_optim_rates(p->stepper->optim, p->enqueued, p->rates + step, n) : ABAR_OK;
}

abar_status abar__pipeline_seek(abar__pipeline *p, const abar_schedule *schedule, int64_t epoch, int64_t step)
{
    p->enqueued = p->collected = p->first = epoch * p->steps + step;
    if (!p->stream) return ABAR_OK;
    for (int64_t i = 0; i < p->steps; i++) p->rates[i] = abar_schedule_lr(schedule, epoch * p->steps + i);
    ABAR_TRY(abar__data_feed_seek(p->stepper->feed, p->loader, epoch, step));
    return send_rates(p, step);
}

static abar_status run_on_host(abar__pipeline *p, double lr)
{
    abar_batch batch = {.size = sizeof batch};
    const double began = abar__seconds();
    const abar_status status = abar_loader_next(p->loader, &batch);
    if (status < 0) return p->stepper->join ? abar__join_fail(p->stepper->join, status) : status;
    const double waited = abar__seconds() - began;
    ABAR_TRY(abar__stepper_run(p->stepper, &batch, p->enqueued, lr, &p->result));
    p->result.waited_seconds = waited;
    return ABAR_OK;
}

/* Whether exchanges with other ranks are in the queue. */
static bool exchanges_in_queue(const abar__pipeline *p)
{
    const abar__join *j = p->stepper->join;
    return j && j->config.nccl && j->ranks > 1;
}

static abar_status wait_for(const abar__pipeline *p, int64_t k)
{
    void *event = p->event[k % ABAR_STEPS_AHEAD];
    return exchanges_in_queue(p) ? abar__join_wait(p->stepper->join, event) : p->stream->event_wait(p->dev, event);
}

/* Data that is not resident: the batch is staged before its step is enqueued, and copied while the step before runs. Staging
 * may wait for the step before that one, which itself may wait for a rank that is gone. */
static abar_status send_batch(abar__pipeline *p)
{
    const abar__data_feed *f = p->stepper->feed;
    abar_batch batch = {.size = sizeof batch};
    if (f->resident) return ABAR_OK;
    if (exchanges_in_queue(p) && p->enqueued - p->first >= 2) ABAR_TRY(wait_for(p, p->enqueued - 2));
    ABAR_TRY(abar_loader_next(p->loader, &batch));
    ABAR_TRY(abar__data_feed_stage(f, &batch));
    return p->stream->event_record(p->dev, p->began[p->enqueued % ABAR_STEPS_AHEAD]);
}

static abar_status capture(abar__pipeline *p, const abar__step_parts *parts, int first, int last, void **graph)
{
    ABAR_TRY(p->stream->capture_begin(p->dev));
    abar_status status = abar__stepper_enqueue_part(p->stepper, parts, first, last);
    abar_status ended = p->stream->capture_end(p->dev, graph);
    return status < 0 ? status : ended;
}

/* Enqueues a part of a step, or replays it. A captured update has counted its step, a replayed one has not. */
static abar_status run_part(abar__pipeline *p, const abar__step_parts *parts, bool alone, int first, int last)
{
    void **graph = &p->graph[parts->kind][first];
    if (alone || !p->warm[parts->kind]) return abar__stepper_enqueue_part(p->stepper, parts, first, last);
    const bool fresh = !*graph, updates = first <= ABAR_STAGE_UPDATE && last >= ABAR_STAGE_UPDATE;
    if (fresh) ABAR_TRY(capture(p, parts, first, last, graph));
    ABAR_TRY(p->stream->replay(p->dev, *graph));
    if (!fresh && updates) abar_optim_replayed(p->stepper->optim);
    return ABAR_OK;
}

static abar_status enqueue_device(abar__pipeline *p, bool alone)
{
    abar__step_parts parts;
    abar_status status = abar__stepper_begin(p->stepper, &parts);
    if (status == ABAR_OK) status = send_batch(p);
    for (int first = 0, last; first < ABAR_STAGES; first = last + 1) {
        last = abar__parts_last(&parts, first);
        if (status == ABAR_OK) status = run_part(p, &parts, alone, first, last);
        if (abar__parts_meet(&parts, last)) /* tells of a failure, too */
            status = abar__stepper_meet(p->stepper, last, status);
        else if (p->stepper->join)
            status = abar__join_tell(p->stepper->join, status);
        ABAR_TRY(status);
    }
    p->warm[parts.kind] = true;
    return p->stream->event_record(p->dev, p->event[p->enqueued % ABAR_STEPS_AHEAD]);
}

abar_status abar__pipeline_enqueue(abar__pipeline *p, double lr, bool alone)
{
    const int64_t step = p->enqueued % p->steps;
    if (p->stream && step > 0 && step % ABAR_STEP_RATES == 0) ABAR_TRY(send_rates(p, step));
    const abar_status status = p->stream ? enqueue_device(p, alone) : run_on_host(p, lr);
    if (status < 0 && exchanges_in_queue(p)) return abar__join_tell(p->stepper->join, status);
    ABAR_TRY(status);
    p->enqueued++;
    return ABAR_OK;
}

/* Seconds from the end of the step before to the beginning of this one. With every event in use the device has not waited. */
static double waited_for_batch(const abar__pipeline *p)
{
    const int64_t k = p->collected;
    if (p->stepper->feed->resident || k == p->first || p->enqueued - k >= ABAR_STEPS_AHEAD) return 0.0;
    return 1e-3 * p->stream->event_elapsed(p->dev, p->event[(k - 1) % ABAR_STEPS_AHEAD], p->began[k % ABAR_STEPS_AHEAD]);
}

static void read_result(abar__pipeline *p, abar__step_result *out)
{
    const abar__stepper *s = p->stepper;
    const abar_step_note note = *abar_optim_note(s->optim, p->collected);
    *out = (abar__step_result){.skipped = note.skipped, .loss = note.loss, .waited_seconds = waited_for_batch(p)};
    out->stops = exchanges_in_queue(p) && abar__optim_stops(s->optim, p->collected);
    abar_net_count_batches(s->net, note.skipped ? 0 : abar__stepper_passes(s));
}

abar_status abar__pipeline_collect(abar__pipeline *p, bool wait, abar__step_result *out, bool *got)
{
    *got = p->collected < p->enqueued;
    if (!*got) return ABAR_OK;
    if (p->stream) {
        void *event = p->event[p->collected % ABAR_STEPS_AHEAD];
        wait = wait || p->enqueued - p->collected >= ABAR_STEPS_AHEAD;
        *got = wait || p->stream->event_done(p->dev, event);
        if (!*got) return ABAR_OK;
        const abar_status status = wait_for(p, p->collected);
        if (status < 0) return p->stepper->join ? abar__join_tell(p->stepper->join, status) : status;
        read_result(p, out);
    } else {
        *out = p->result;
    }
    p->collected++;
    return ABAR_OK;
}
