/* Timing steps on a queued device: each kind of step is captured and replayed as in training, with events between steps; then
 * in its parts; and for a profile without capture, with events between operations. */
#include "train/bench/bench_impl.h"

#define RATES 256 /* learning rates, all 0, that are sent to the device at a time */
#define PARTS_STEPS 40
#define PROFILE_STEPS 12 /* of each kind */
#define BACKLOG 8        /* steps enqueued before a profiled one, so that the device never waits for the host */

enum { PLAIN, OBSERVING, KINDS };

typedef struct abar__replays {
    const abar__stream_ops *stream;
    abar_device *dev;
    const abar__stepper *stepper;
    abar_optim *optim;
    void *whole[KINDS], *forward, *backward[KINDS], *update[KINDS];
    void *part[4]; /* events around the parts of a step */
    void **event;  /* events before the first timed step and after each */
    int64_t events, rates_until, period;
    bool warm;
} recordings;

typedef abar_status (*part)(const abar__stepper *s);

static abar_status backward_plain(const abar__stepper *s) { return abar__stepper_enqueue_backward(s, false); }
static abar_status backward_observing(const abar__stepper *s) { return abar__stepper_enqueue_backward(s, true); }
static const part backward_parts[KINDS] = {backward_plain, backward_observing};

static abar_status send_rates(recordings *r)
{
    static const double zero[RATES] = {0};
    const int64_t k = abar_optim_steps(r->optim);
    if (k < r->rates_until) return ABAR_OK;
    r->rates_until = k + RATES;
    return abar_optim_rates(r->optim, k, zero, RATES);
}

static abar_status record(recordings *r, part p, void **out)
{
    ABAR_TRY(r->stream->capture_begin(r->dev));
    abar_status status = p(r->stepper), ended = r->stream->capture_end(r->dev, out);
    return status < 0 ? status : ended;
}

/* Replays a step. Capturing it counts as a step of the optimizer, replaying does not: abar_optim_replayed adds it. */
static abar_status replay_step(recordings *r, part p, void **recording)
{
    const bool fresh = !*recording;
    if (fresh) ABAR_TRY(record(r, p, recording));
    ABAR_TRY(r->stream->replay(r->dev, *recording));
    if (!fresh) abar_optim_replayed(r->optim);
    return ABAR_OK;
}

/* With statistics or further passes, or without. */
static int kind_of(const recordings *r)
{
    return abar_optim_observes(r->optim) || abar_optim_extra(r->optim) != ABAR_EXTRA_NONE ? OBSERVING : PLAIN;
}

static abar_status whole_step(recordings *r)
{
    ABAR_TRY(send_rates(r));
    return replay_step(r, abar__stepper_enqueue, &r->whole[kind_of(r)]);
}

/* Milliseconds of forward, backward and update. */
static abar_status step_in_parts(recordings *r, double ms[3])
{
    const int kind = kind_of(r);
    ABAR_TRY(send_rates(r));
    if (!r->forward) ABAR_TRY(record(r, abar__stepper_enqueue_forward, &r->forward));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[0]));
    ABAR_TRY(r->stream->replay(r->dev, r->forward));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[1]));
    if (!r->backward[kind]) { /* the host side of a forward pass must come first */
        ABAR_TRY(abar__stepper_enqueue_forward(r->stepper));
        ABAR_TRY(record(r, backward_parts[kind], &r->backward[kind]));
    }
    ABAR_TRY(r->stream->replay(r->dev, r->backward[kind]));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[2]));
    ABAR_TRY(replay_step(r, abar__stepper_enqueue_update, &r->update[kind]));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[3]));
    ABAR_TRY(r->stream->wait(r->dev));
    for (int i = 0; i < 3; i++) ms[i] = r->stream->event_elapsed(r->dev, r->part[i], r->part[i + 1]);
    return ABAR_OK;
}

/* Two steps of each kind before timing: libraries load in the first, the second is captured. */
static abar_status warm_up(recordings *r, int64_t steps)
{
    bool seen[KINDS] = {false, false};
    for (int64_t i = 0; i < steps; i++) {
        const int kind = kind_of(r);
        ABAR_TRY(send_rates(r));
        ABAR_TRY(seen[kind] ? whole_step(r) : abar__stepper_enqueue(r->stepper));
        seen[kind] = true;
    }
    return r->stream->wait(r->dev);
}

static abar_status time_steps(recordings *r, int64_t steps, double *seconds)
{
    ABAR_TRY(r->stream->event_record(r->dev, r->event[0]));
    for (int64_t k = 0; k < steps; k++) {
        ABAR_TRY(whole_step(r));
        ABAR_TRY(r->stream->event_record(r->dev, r->event[k + 1]));
    }
    ABAR_TRY(r->stream->wait(r->dev));
    for (int64_t k = 0; k < steps; k++) seconds[k] = 1e-3 * r->stream->event_elapsed(r->dev, r->event[k], r->event[k + 1]);
    return ABAR_OK;
}

/* Medians per part. The cost of statistics and refreshes is the difference between the kinds, divided among the steps. */
static abar_status time_parts(recordings *r, int64_t period, abar_bench_result *out)
{
    double ms[KINDS][3][PARTS_STEPS];
    int64_t n[KINDS] = {0, 0};
    for (int64_t i = 0; i < PARTS_STEPS; i++) {
        const int kind = kind_of(r);
        double one[3];
        ABAR_TRY(step_in_parts(r, one));
        if (i < 2 * period) continue; /* these are captured */
        for (int k = 0; k < 3; k++) ms[kind][k][n[kind]] = one[k];
        n[kind]++;
    }
    double median[KINDS][3] = {{0}};
    for (int kind = 0; kind < KINDS; kind++)
        for (int k = 0; k < 3 && n[kind] > 0; k++) median[kind][k] = abar__median(ms[kind][k], n[kind]);
    const int base = n[PLAIN] > 0 ? PLAIN : OBSERVING;
    out->ms_forward = median[base][0];
    out->ms_backward = median[base][1];
    out->ms_update = median[base][2];
    if (n[PLAIN] > 0 && n[OBSERVING] > 0) {
        out->ms_observe = (median[OBSERVING][1] - median[PLAIN][1]) / (double)period;
        out->ms_refresh = (median[OBSERVING][2] - median[PLAIN][2]) / (double)period;
    }
    return ABAR_OK;
}

/* One step without capture, with an event after every operation. The time outside the net's passes is added to update. */
static abar_status profiled_step(recordings *r, int kind, double *update)
{
    abar_net *net = r->stepper->net;
    ABAR_TRY(send_rates(r));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[0]));
    ABAR_TRY(abar__stepper_enqueue_forward(r->stepper));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[1]));
    ABAR_TRY(backward_parts[kind](r->stepper));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[2]));
    ABAR_TRY(abar__stepper_enqueue_update(r->stepper));
    ABAR_TRY(r->stream->event_record(r->dev, r->part[3]));
    double forward = 0.0, before = 0.0;
    for (int i = 0; i < abar_net_node_count(net); i++) before += abar_net_node(net, i)->forward.seconds;
    ABAR_TRY(abar_net_profile_take(net));
    for (int i = 0; i < abar_net_node_count(net); i++) forward += abar_net_node(net, i)->forward.seconds;
    const double whole = 1e-3 * r->stream->event_elapsed(r->dev, r->part[0], r->part[1]) - (forward - before);
    *update += (whole > 0.0 ? whole : 0.0) + 1e-3 * r->stream->event_elapsed(r->dev, r->part[2], r->part[3]);
    return ABAR_OK;
}

/* Steps of one kind, each after BACKLOG replays of any kind, so that the host is ahead of the device. */
static abar_status profile_kind(recordings *r, int kind, double *update)
{
    for (int i = 0; i < PROFILE_STEPS; i++) {
        for (int k = 0; k < BACKLOG || kind_of(r) != kind; k++) ABAR_TRY(whole_step(r));
        ABAR_TRY(profiled_step(r, kind, update));
    }
    return ABAR_OK;
}

static abar_status profile_steps(recordings *r, int64_t period, abar__bench_profile *p)
{
    double update[KINDS] = {0}, share[KINDS] = {1.0 - 1.0 / (double)period, 1.0 / (double)period};
    if (!r->whole[OBSERVING]) share[PLAIN] = 1.0;
    ABAR_TRY(abar__bench_rates(r->dev, &p->copy_rate, &p->product_rate));
    ABAR_TRY(abar_net_profile(r->stepper->net, true));
    for (int kind = 0; kind < KINDS; kind++) {
        if (!r->whole[kind]) continue;
        ABAR_TRY(profile_kind(r, kind, &update[kind]));
        p->steps += PROFILE_STEPS;
        p->observed += kind == OBSERVING ? (double)(PROFILE_STEPS * period) : 0.0;
    }
    p->update_seconds = p->steps * (share[PLAIN] * update[PLAIN] + share[OBSERVING] * update[OBSERVING]) / PROFILE_STEPS;
    return ABAR_OK;
}

static void release(recordings *r)
{
    (void)r->stream->wait(r->dev); /* failures were reported where they happened */
    for (int kind = 0; kind < KINDS; kind++) {
        r->stream->forget(r->dev, r->whole[kind]);
        r->stream->forget(r->dev, r->backward[kind]);
        r->stream->forget(r->dev, r->update[kind]);
    }
    r->stream->forget(r->dev, r->forward);
    for (int i = 0; i < 4; i++)
        if (r->part[i]) r->stream->event_destroy(r->dev, r->part[i]);
    for (int64_t i = 0; r->event && i < r->events; i++)
        if (r->event[i]) r->stream->event_destroy(r->dev, r->event[i]);
    abar__free(r->dev->ctx, r->event, r->event ? (size_t)r->events * sizeof *r->event : 0);
}

static abar_status make_events(recordings *r)
{
    ABAR_TRY(abar__alloc(r->dev->ctx, (size_t)r->events * sizeof *r->event, (void **)&r->event));
    for (int64_t i = 0; i < r->events; i++) ABAR_TRY(r->stream->event_create(r->dev, &r->event[i]));
    for (int i = 0; i < 4; i++) ABAR_TRY(r->stream->event_create(r->dev, &r->part[i]));
    return ABAR_OK;
}

abar_status abar__replays_create(abar_device *dev, const abar__stepper *stepper, int64_t period, abar__replays **out)
{
    ABAR_TRY(abar__alloc(dev->ctx, sizeof **out, (void **)out));
    **out = (recordings){.stream = dev->ops->stream, .dev = dev, .stepper = stepper, .optim = stepper->optim, .period = period};
    return ABAR_OK;
}

void abar__replays_destroy(abar__replays *r)
{
    if (!r) return;
    release(r);
    abar__free(r->dev->ctx, r, sizeof *r);
}

abar_status abar__replays_run(abar__replays *r, int64_t steps)
{
    ABAR_TRY(r->stream->wait(r->dev)); /* also makes the device current in this thread */
    if (!r->warm) ABAR_TRY(warm_up(r, 2 * r->period + 2));
    r->warm = true;
    for (int64_t k = 0; k < steps; k++) ABAR_TRY(whole_step(r));
    return r->stream->wait(r->dev);
}

abar_status abar__bench_queued(abar_device *dev, const abar__stepper *stepper, int64_t period, int64_t warmup, int64_t steps,
                               double *seconds, abar_bench_result *out, abar__bench_profile *profile)
{
    recordings r = {.stream = dev->ops->stream, .dev = dev, .stepper = stepper, .optim = stepper->optim, .events = steps + 1};
    const int64_t least = 2 * period + 2;
    abar_status status = make_events(&r);
    if (status == ABAR_OK) status = warm_up(&r, warmup > least ? warmup : least);
    if (status == ABAR_OK) status = time_steps(&r, steps, seconds);
    const bool in_parts = stepper->accumulate == 1 && !stepper->extra; /* which further passes have not */
    if (status == ABAR_OK && in_parts && 3 * period < PARTS_STEPS) status = time_parts(&r, period, out);
    out->peak_bytes = abar_context_memory(dev->ctx).peak; /* of training, without the profile */
    if (status == ABAR_OK && profile && stepper->extra)
        status = abar__fail(dev->ctx, ABAR_E_UNSUPPORTED,
                            "--profile: steps with further passes have no profile on %s, leave it out", abar_device_name(dev));
    else if (status == ABAR_OK && profile)
        status = profile_steps(&r, period, profile);
    release(&r);
    return status;
}
