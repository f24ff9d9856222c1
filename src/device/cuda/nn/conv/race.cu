/* A convolution of few channels on large images: by our own tiles (tiles.cu) or by the libraries (cudnn.cu), for each direction
 * by what is faster there, measured once per layer and kept for later processes (autotune_cache.h).
 *
 * The tiles are made for values that stay in the L2 cache, and are always taken for them. Deterministic runs take them, too. */
#include "device/cuda/nn/conv/dnn_conv.h"
#include "device/cuda/nn/trial.h"

#include <stdio.h>
#include <string.h>

enum { FORWARD, BACKWARD, DIRECTIONS };
enum { OURS, LIBRARY, SIDES };
enum { REPEAT = 8, LAUNCHES = 5 };

/* Who runs each direction. */
typedef struct verdict {
    int winner[DIRECTIONS];
} verdict;

/* What the device has measured so far; where there is no cache, it is only here. */
typedef struct memory {
    struct memory *next;
    char problem[ABAR_AUTOTUNE_MAX];
    verdict v;
} memory;

typedef struct race {
    abar__op side[SIDES]; /* impl NULL: it runs neither direction */
    verdict v;
} race;

/* ---- the two sides ---------------------------------------------------------------------------------------------- */

static const abar__op_impl *const sides[SIDES][2] = {{&abar__cuda_conv_tiles},
                                                     {&abar__cuda_conv_either, &abar__cuda_conv_cudnn}};

/* ABAR_E_UNSUPPORTED where nobody takes it. */
static abar_status make_side(const abar__op *op, int which, abar__op *out)
{
    abar_status status = ABAR_E_UNSUPPORTED;
    for (int i = 0; i < 2 && sides[which][i] && status == ABAR_E_UNSUPPORTED; i++) {
        *out = {};
        out->dev = op->dev;
        out->impl = sides[which][i];
        out->desc = op->desc;
        out->out_layout = op->desc.out_layout;
        memcpy(out->in_layout, op->desc.in_layout, sizeof out->in_layout);
        status = out->impl->create(out);
    }
    if (status < 0) *out = {};
    return status;
}

static void release_side(abar__op *side)
{
    if (!side->impl) return;
    if (side->impl->destroy) side->impl->destroy(side);
    abar__free(side->dev->ctx, side->priv, side->priv_bytes);
    *side = {};
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

enum { X, Y, DY, DX, SHADOW, DW, BIAS, DB, SCRATCH, PARTS };

/* Memory as the layer will have it, random numbers in it, a stream that can be captured, and events. */
typedef struct trial {
    void *memory;
    size_t bytes;
    abar__op_args args;
    abar__run run;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} trial;

static void close_trial(abar_device *dev, trial *t)
{
    if (t->end) cudaEventDestroy(t->end);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->stream) cudaStreamDestroy(t->stream);
    abar_device_free(dev, t->memory, t->bytes);
}

static void set_arguments(const abar__op *op, char *const at[PARTS], trial *t)
{
    abar__op_args *a = &t->args;
    t->run.training = true;
    t->run.valid = op->desc.in[0].dim[0];
    t->run.loss_scale = 1.0;
    a->run = &t->run;
    a->x[0] = at[X], a->y = at[Y], a->dy = at[DY], a->dx[0] = op->desc.need_dx[0] ? at[DX] : NULL;
    a->shadow[0] = at[SHADOW], a->param[1] = at[BIAS];
    a->dparam[0] = at[DW], a->dparam[1] = at[DB];
    a->scratch = at[SCRATCH];
}

/* The parts that hold bf16 numbers come first. */
static abar_status open_trial(const abar__op *op, const race *r, trial *t)
{
    abar_device *dev = op->dev;
    const abar_window *w = &op->desc.window;
    const size_t x = (size_t)abar__shape_count(&op->desc.in[0]), y = (size_t)abar__shape_count(&op->desc.out);
    const size_t outputs = (size_t)op->desc.out.dim[1];
    const size_t weights = outputs * (size_t)(op->desc.in[0].dim[1] * w->kernel[0] * w->kernel[1]);
    const size_t scratch[SIDES] = {r->side[OURS].scratch_bytes, r->side[LIBRARY].scratch_bytes};
    const size_t part[PARTS] = {
        x * sizeof(bf16),        y * sizeof(bf16),        y * sizeof(bf16),
        x * sizeof(bf16),        weights * sizeof(bf16),  weights * sizeof(float),
        outputs * sizeof(float), outputs * sizeof(float), scratch[OURS] > scratch[LIBRARY] ? scratch[OURS] : scratch[LIBRARY],
    };
    size_t numbers = 0;
    char *at[PARTS];
    t->bytes = ABAR_CUDA_ALIGN;
    for (int i = 0; i < PARTS; i++) t->bytes += abar__round_up(part[i], ABAR_CUDA_ALIGN);
    ABAR_TRY(abar_device_alloc(dev, t->bytes, &t->memory));
    at[0] = abar__cuda_workspace(t->memory);
    for (int i = 0; i + 1 < PARTS; i++) at[i + 1] = at[i] + abar__round_up(part[i], ABAR_CUDA_ALIGN);
    for (int i = 0; i <= SHADOW; i++) numbers += abar__round_up(part[i], ABAR_CUDA_ALIGN) / sizeof(bf16);
    set_arguments(op, at, t);
    abar__trial_fill(dev, at[0], (int64_t)numbers);
    CUDA_TRY(dev, cudaMemsetAsync(at[DW], 0, (size_t)(at[SCRATCH] - at[DW]), abar__cuda_of(dev)->stream));
    CUDA_TRY(dev, cudaEventCreate(&t->begin));
    CUDA_TRY(dev, cudaEventCreate(&t->end));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    CUDA_TRY(dev, cudaStreamSynchronize(abar__cuda_of(dev)->stream));
    return abar__cuda_status(dev);
}

/* Milliseconds of one of several captured calls, the best of several launches. */
static abar_status time_calls(abar__op *side, int direction, const trial *t, float *best)
{
    abar_device *dev = side->dev;
    const abar__stream_ops *queue = dev->ops->stream;
    abar_status (*const call)(abar__op *, const abar__op_args *) =
        direction == FORWARD ? side->impl->forward : side->impl->backward;
    void *graph = NULL;
    float ms;
    *best = -1.0f;
    ABAR_TRY(call(side, &t->args)); /* loads the kernels */
    CUDA_TRY(dev, cudaStreamSynchronize(t->stream));
    ABAR_TRY(queue->capture_begin(dev));
    abar_status status = ABAR_OK;
    for (int i = 0; i < REPEAT && status >= 0; i++) status = call(side, &t->args);
    const abar_status ended = queue->capture_end(dev, &graph);
    if (status >= 0) status = ended;
    for (int i = 0; i < LAUNCHES && status >= 0; i++) {
        cudaError_t error = cudaEventRecord(t->begin, t->stream);
        if (error == cudaSuccess) status = queue->replay(dev, graph);
        if (error == cudaSuccess) error = cudaEventRecord(t->end, t->stream);
        if (error == cudaSuccess) error = cudaStreamSynchronize(t->stream);
        if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, t->begin, t->end);
        if (error != cudaSuccess) status = abar__cuda_fail(dev, error, "timing a convolution");
        if (status >= 0 && (*best < 0.0f || ms < *best)) *best = ms;
    }
    queue->forget(dev, graph);
    return status;
}

static abar_status run_race(race *r, const trial *t)
{
    float ms[SIDES];
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        for (int i = 0; i < SIDES; i++) ABAR_TRY(time_calls(&r->side[i], direction, t, &ms[i]));
        r->v.winner[direction] = ms[LIBRARY] < ms[OURS] ? LIBRARY : OURS;
    }
    return ABAR_OK;
}

/* measured: false where there is no memory for it, as when the memory of too large a batch is planned, or for its graphs. */
static abar_status measure(const abar__op *op, race *r, bool *measured)
{
    abar__cuda *cuda = abar__cuda_of(op->dev);
    const cudaStream_t stream = cuda->stream;
    abar__cuda_nn_state *nn;
    trial t = {};
    abar_status status = open_trial(op, r, &t);
    if (status >= 0) {
        cuda->stream = t.stream;
        status = run_race(r, &t);
        cuda->stream = stream;
        const abar_status bound = abar__cuda_dnn(op->dev, &nn); /* cuDNN leaves t's stream */
        if (status >= 0) status = bound;
    }
    close_trial(op->dev, &t);
    *measured = status >= 0;
    return status == ABAR_E_MEMORY ? ABAR_OK : status;
}

/* ---- remembering ------------------------------------------------------------------------------------------------ */

/* "race in 256x64x44x44 out 256x64x44x44 kernel 3 stride 1 bias 0 act 0 dx 1" */
static void problem_of(const abar__op_desc *d, char text[ABAR_AUTOTUNE_MAX])
{
    const int64_t *in = d->in[0].dim, *out = d->out.dim;
    snprintf(text, ABAR_AUTOTUNE_MAX,
             "race in %lldx%lldx%lldx%lld out %lldx%lldx%lldx%lld kernel %lld stride %lld bias %d act %d dx %d",
             (long long)in[0], (long long)in[1], (long long)in[2], (long long)in[3], (long long)out[0], (long long)out[1],
             (long long)out[2], (long long)out[3], (long long)d->window.kernel[0], (long long)d->window.stride[0], d->bias,
             (int)d->activation, d->need_dx[0]);
}

static void forget(abar_device *dev, void *memories)
{
    for (memory *m = (memory *)memories, *next; m; m = next) {
        next = m->next;
        abar__free(dev->ctx, m, sizeof *m);
    }
}

/* "ours library": who runs forward and backward. */
static abar_status remember(abar_device *dev, abar__cuda_nn_state *nn, const char *problem, const verdict *v)
{
    static const char *const names[SIDES] = {"ours", "library"};
    char text[32];
    void *made;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof(memory), &made));
    memory *m = (memory *)made;
    snprintf(m->problem, sizeof m->problem, "%s", problem);
    m->v = *v;
    m->next = (memory *)nn->races;
    nn->races = m;
    nn->forget_races = forget;
    snprintf(text, sizeof text, "%s %s", names[v->winner[FORWARD]], names[v->winner[BACKWARD]]);
    return abar__autotune_cache_put(nn->autotune, problem, text);
}

static bool recall(const abar__cuda_nn_state *nn, const char *problem, verdict *v)
{
    static const char *const texts[SIDES][SIDES] = {{"ours ours", "ours library"}, {"library ours", "library library"}};
    for (const memory *m = (const memory *)nn->races; m; m = m->next)
        if (strcmp(m->problem, problem) == 0) {
            *v = m->v;
            return true;
        }
    const char *kept = abar__autotune_cache_find(nn->autotune, problem);
    for (int i = 0; kept && i < SIDES * SIDES; i++)
        if (strcmp(kept, texts[i / SIDES][i % SIDES]) == 0) {
            *v = {{i / SIDES, i % SIDES}};
            return true;
        }
    return false;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static bool runs(const race *r, int side) { return r->v.winner[FORWARD] == side || r->v.winner[BACKWARD] == side; }

/* Makes the sides that run: those known to be faster, else both, of which the faster ones stay. */
static abar_status decide(const abar__op *op, abar__cuda_nn_state *nn, race *r)
{
    char problem[ABAR_AUTOTUNE_MAX];
    bool measured = false;
    ABAR_TRY(abar__dnn_cache(op->dev, nn));
    problem_of(&op->desc, problem);
    const bool known = recall(nn, problem, &r->v);
    for (int i = 0; i < SIDES; i++)
        if (!known || runs(r, i)) ABAR_TRY(make_side(op, i, &r->side[i]));
    if (known) return ABAR_OK;
    ABAR_TRY(measure(op, r, &measured));
    if (measured) ABAR_TRY(remember(op->dev, nn, problem, &r->v));
    for (int i = 0; i < SIDES; i++)
        if (!runs(r, i)) release_side(&r->side[i]);
    return ABAR_OK;
}

static void destroy(abar__op *op)
{
    race *r = (race *)op->priv;
    for (int i = 0; i < SIDES; i++) release_side(&r->side[i]);
}

/* Where one of the sides cannot run the layer, or its library is missing, there is no race: the next in the list takes it. */
static abar_status create(abar__op *op)
{
    abar__cuda_nn_state *nn;
    abar__op ours;
    if (op->dev->config.deterministic || !abar__cuda_is_bf16(op->dev) || !abar__conv_is_large(op->dev, &op->desc))
        return ABAR_E_UNSUPPORTED;
    ABAR_TRY(make_side(op, OURS, &ours));
    release_side(&ours);
    const abar_status opened = abar__cuda_dnn(op->dev, &nn);
    if (opened < 0) return opened == ABAR_E_BACKEND ? ABAR_E_UNSUPPORTED : opened;
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(race), &op->priv));
    op->priv_bytes = sizeof(race);
    race *r = (race *)op->priv;
    const abar_status status = decide(op, nn, r);
    if (status < 0) {
        destroy(op);
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    for (int i = 0; i < SIDES; i++) {
        const abar__op *side = &r->side[i];
        op->backward_needs |= side->backward_needs;
        if (side->scratch_bytes > op->scratch_bytes) op->scratch_bytes = side->scratch_bytes;
    }
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    race *r = (race *)op->priv;
    abar__op *side = &r->side[r->v.winner[FORWARD]];
    return side->impl->forward(side, a);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    race *r = (race *)op->priv;
    abar__op *side = &r->side[r->v.winner[BACKWARD]];
    return side->impl->backward(side, a);
}

const abar__op_impl abar__cuda_conv_race = {"cuda-cudnn-conv", ABAR_OP_CONV2D, create, forward, backward, destroy};
