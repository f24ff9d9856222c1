/* Tries cuDNN's plans and cuBLASLt's products on pseudo-random numbers, captured into a graph as they will run later. Those
 * that do not work or cannot be captured are rejected, the others are timed. In float32 their results must also agree with our
 * own loops: some engines are not exact and have no note that says so. */
#include "device/cuda/nn/conv/dnn_conv.h"
#include "device/cuda/nn/trial.h"

#include <string.h>

enum { THREADS = 256, MAX_BLOCKS = 1024, REPEAT = 8, LAUNCHES = 5 };
#define LONG_ENOUGH 1.0f /* milliseconds of a run from which on one run is measured at a time */
#define HOPELESS 1.3f    /* times the best: not launched again */

/* The largest error of a float32 result, relative to its largest element. A sequential float32 sum over the 131072 pixels of
 * 128 images of 32 x 32, of numbers as used here, has an error of up to about 1.7e-5; ours, in slices of 256, of 6e-7. With
 * inputs rounded to TF32 it is 3e-4, for any number of pixels. */
#define TOLERANCE 2e-5f

/* ---- on the device ----------------------------------------------------------------------------------------------- */

/* Threads stride over the elements. The bits of non-negative floats have the order of their values, those of a NaN are above
 * all others: largest (2) becomes the bits of max |got - expected| and max |expected|, for any order of blocks. */
static __global__ void compare(const float *got, const float *expected, int64_t count, unsigned *largest)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    unsigned off = 0, size = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        off = max(off, __float_as_uint(fabsf(got[i] - expected[i])));
        size = max(size, __float_as_uint(fabsf(expected[i])));
    }
    off = __reduce_max_sync(0xffffffffu, off);
    size = __reduce_max_sync(0xffffffffu, size);
    if (threadIdx.x % 32) return;
    atomicMax(&largest[0], off);
    atomicMax(&largest[1], size);
}

static dim3 blocks_for(int64_t count)
{
    const int64_t blocks = abar__cuda_blocks(count, THREADS), most = MAX_BLOCKS;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

/* ---- what has to come out ---------------------------------------------------------------------------------------- */

/* Our own loops for this convolution, without bias or activation; the caller frees priv. */
static abar_status make_loops(abar_device *dev, const abar__dnn_shape *shape, int pass, abar__op *loops)
{
    abar__op_desc *d = &loops->desc;
    loops->dev = dev;
    loops->impl = &abar__cuda_conv_plain;
    d->kind = ABAR_OP_CONV2D;
    d->n_in = 1;
    d->in[0].ndim = d->out.ndim = 4;
    memcpy(d->in[0].dim, shape->in, sizeof shape->in);
    memcpy(d->out.dim, shape->out, sizeof shape->out);
    d->window = shape->window;
    d->need_dx[0] = pass == ABAR_DNN_DATA;
    return loops->impl->create(loops);
}

/* The loops use t's workspace: for the gradient of the weight where it is not wanted, then for their scratch. */
static abar_status run_loops(abar__op *loops, int pass, size_t weight_bytes, const abar__dnn_trial *t)
{
    const abar__run run = {};
    abar__op_args a = {};
    a.run = &run;
    a.x[0] = t->address[0];
    a.param[0] = t->address[1];
    a.scratch = (char *)t->address[3] + weight_bytes;
    if (pass == ABAR_DNN_FORWARD) {
        a.y = t->expected;
        return abar__op_forward(loops, &a);
    }
    a.dy = t->address[2];
    a.dx[0] = pass == ABAR_DNN_DATA ? t->expected : NULL;
    a.dparam[0] = pass == ABAR_DNN_WEIGHTS ? (void *)t->expected : t->address[3];
    return abar__op_backward(loops, &a);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static int64_t count_of(const int64_t dim[4]) { return dim[0] * dim[1] * dim[2] * dim[3]; }

/* Allocates x, w, y, the workspace and, for verification, the expected result; fills the first three. */
static abar_status allocate(abar_device *dev, const int64_t count[3], int result, size_t workspace, abar__dnn_trial *t)
{
    const size_t element = abar_dtype_size(dev->activation), of[3] = {element, sizeof(float), element};
    const bool exact = abar__dnn_exact(dev);
    size_t part[6] = {0, 0, 0, abar__round_up(workspace, ABAR_CUDA_ALIGN), 0, ABAR_CUDA_ALIGN}, bytes = ABAR_CUDA_ALIGN;
    for (int i = 0; i < 3; i++) part[i] = abar__round_up((size_t)count[i] * of[i], ABAR_CUDA_ALIGN);
    if (exact) part[4] = part[result];
    for (int i = 0; i < 6; i++) bytes += part[i];
    ABAR_TRY(abar_device_alloc(dev, bytes, &t->memory));
    t->bytes = bytes;
    char *at = abar__cuda_workspace(t->memory);
    for (int i = 0; i < 4; at += part[i++]) t->address[i] = at;
    t->result = (float *)t->address[result];
    t->count = count[result];
    if (exact) t->expected = (float *)at;
    t->largest = (unsigned *)(at + part[4]);
    const int64_t filled = (int64_t)((part[0] + part[1] + part[2]) / element);
    abar__trial_fill(dev, t->address[0], filled);
    return abar__cuda_status(dev);
}

/* Trials run on the side stream, after all work enqueued on the main stream. */
static abar_status make_clock(abar_device *dev, abar__dnn_trial *t)
{
    CUDA_TRY(dev, cudaEventCreate(&t->begin));
    CUDA_TRY(dev, cudaEventCreate(&t->end));
    CUDA_TRY(dev, cudaStreamSynchronize(abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

abar_status abar__dnn_trial_open(abar_device *dev, const abar__dnn_shape *shape, int pass, size_t workspace,
                                 abar__dnn_trial *out)
{
    static const int results[ABAR_DNN_PASSES] = {2, 0, 1}; /* y, x, w */
    const abar_window *w = &shape->window;
    const int64_t weights = shape->out[1] * (shape->in[1] / w->groups) * w->kernel[0] * w->kernel[1];
    const int64_t count[3] = {count_of(shape->in), weights, count_of(shape->out)};
    const size_t weight_bytes = abar__round_up((size_t)weights * sizeof(float), ABAR_CUDA_ALIGN);
    const bool exact = abar__dnn_exact(dev);
    abar__op loops = {};
    *out = {};
    abar_status status = exact ? make_loops(dev, shape, pass, &loops) : ABAR_OK;
    if (exact && workspace < weight_bytes + loops.scratch_bytes) workspace = weight_bytes + loops.scratch_bytes;
    if (status >= 0) status = allocate(dev, count, results[pass], workspace, out);
    if (status >= 0 && exact) status = run_loops(&loops, pass, weight_bytes, out);
    if (status >= 0) status = make_clock(dev, out);
    if (status < 0) abar__dnn_trial_close(dev, out);
    abar__free(dev->ctx, loops.priv, loops.priv_bytes);
    return status;
}

void abar__dnn_trial_close(abar_device *dev, abar__dnn_trial *t)
{
    if (t->end) cudaEventDestroy(t->end);
    if (t->begin) cudaEventDestroy(t->begin);
    abar_device_free(dev, t->memory, t->bytes);
    *t = {};
}

/* ---- trying ------------------------------------------------------------------------------------------------------ */

/* What is tried, and where. */
typedef struct attempt {
    cudnnHandle_t handle; /* of stream */
    cudaStream_t stream;
    const abar__dnn_choice *choice;
    abar__dnn_pack pack;
} attempt;

static bool run(attempt *a, const abar__dnn_trial *t)
{
    if (a->choice->product.of.desc)
        return abar__conv_product_run(&a->choice->product, t->address, 0.0f, a->stream) == CUBLAS_STATUS_SUCCESS;
    return abar__dnn_run(a->handle, &a->choice->plan, t->address, &a->pack) == CUDNN_STATUS_SUCCESS;
}

/* Runs it once and measures it; false: it does not work. */
static bool run_once(attempt *a, const abar__dnn_trial *t, float *ms)
{
    bool good = cudaEventRecord(t->begin, a->stream) == cudaSuccess;
    good = good && run(a, t);
    good = cudaEventRecord(t->end, a->stream) == cudaSuccess && good;
    good = cudaStreamSynchronize(a->stream) == cudaSuccess && good;
    return good && cudaEventElapsedTime(ms, t->begin, t->end) == cudaSuccess;
}

/* Runs it twice, as the first run loads its kernels, then captures several runs: only one where the second took long. NULL: it
 * does not work, or cannot be captured. */
static cudaGraphExec_t record(attempt *a, const abar__dnn_trial *t, int *repeat)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    float ms;
    bool good = run_once(a, t, &ms) && run_once(a, t, &ms);
    if (!good || cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) return NULL;
    *repeat = ms > LONG_ENOUGH ? 1 : REPEAT;
    for (int i = 0; i < *repeat && good; i++) good = run(a, t);
    good = cudaStreamEndCapture(a->stream, &graph) == cudaSuccess && good && graph;
    if (good && cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess) ready = NULL;
    if (graph) cudaGraphDestroy(graph);
    return ready;
}

/* Milliseconds of the captured runs, the best of several launches; negative: they do not run. A launch that takes longer than
 * limit, if that is not negative, is the last. */
static float time_runs(cudaGraphExec_t runs, cudaStream_t stream, float limit, const abar__dnn_trial *t)
{
    float best = -1.0f;
    for (int i = 0; i < LAUNCHES; i++) {
        float ms;
        cudaError_t error = cudaEventRecord(t->begin, stream);
        if (error == cudaSuccess) error = cudaGraphLaunch(runs, stream);
        if (error == cudaSuccess) error = cudaEventRecord(t->end, stream);
        if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
        if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, t->begin, t->end);
        if (error != cudaSuccess) return -1.0f;
        if (best < 0.0f || ms < best) best = ms;
        if (i > 0 && limit >= 0.0f && ms > limit) break; /* the first launch uploads the graph */
    }
    return best;
}

/* Sets the result to NaN, so that an earlier trial's result does not count for this one. */
static bool spoil_result(cudaStream_t stream, const abar__dnn_trial *t)
{
    return cudaMemsetAsync(t->result, 0xff, (size_t)t->count * sizeof(float), stream) == cudaSuccess;
}

static bool result_is_expected(cudaStream_t stream, const abar__dnn_trial *t)
{
    unsigned bits[2];
    float largest[2];
    cudaError_t error = cudaMemsetAsync(t->largest, 0, sizeof bits, stream);
    if (error != cudaSuccess) return false;
    compare<<<blocks_for(t->count), THREADS, 0, stream>>>(t->result, t->expected, t->count, t->largest);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaMemcpyAsync(bits, t->largest, sizeof bits, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) return false;
    memcpy(largest, bits, sizeof largest);
    return largest[0] <= TOLERANCE * largest[1]; /* false where something is NaN */
}

float abar__dnn_try(abar_device *dev, cudnnHandle_t handle, const abar__dnn_choice *choice, float best,
                    const abar__dnn_trial *t)
{
    attempt a = {handle, abar__cuda_of(dev)->side_stream, choice, {}};
    int repeat = 1;
    cudaGraphExec_t runs = record(&a, t, &repeat);
    bool good = runs && (!t->expected || spoil_result(a.stream, t));
    const float ms = good ? time_runs(runs, a.stream, HOPELESS * best * (float)repeat, t) : -1.0f;
    good = ms >= 0.0f && (!t->expected || result_is_expected(a.stream, t));
    if (runs) cudaGraphExecDestroy(runs);
    abar__dnn_pack_release(&a.pack);
    (void)cudaGetLastError(); /* clears errors that a choice that does not work left behind */
    return good ? ms / (float)repeat : -1.0f;
}
