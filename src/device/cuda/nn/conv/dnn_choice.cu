/* Chooses the cuDNN plan of a convolution: the fastest, measured once per shape and kept for later processes
 * (autotune_cache.h); in deterministic runs the first that works. In float32 only plans whose results were verified
 * (dnn_trial.cu) are used. */
#include "device/cuda/nn/conv/dnn_conv.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PLANS = 16, MAX_FIRST = 10, MAX_COMPILED = 2 };
enum { MAX_WORKSPACE = 256 << 20 };

/* All plans for one pass: in bf16 the gradient of the weight may be computed in float32 or, as a second choice, in bf16. */
typedef struct offer {
    int graphs, plans[2];
    abar__dnn_graph graph[2];
    abar__dnn_plan plan[2][MAX_PLANS];
} offer;

static const cudnnDataType_t results[2] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16}; /* data types of the graphs' results */

/* ---- what is on offer -------------------------------------------------------------------------------------------- */

static void ask(abar_device *dev, cudnnHandle_t handle, offer *o, int g, cudnnBackendHeurMode_t mode, bool compiled, int max)
{
    const abar__dnn_query query = {mode, abar__dnn_exact(dev), compiled, MAX_WORKSPACE};
    const int left = MAX_PLANS - o->plans[g];
    o->plans[g] += abar__dnn_plans(handle, &o->graph[g], &query, max < left ? max : left, &o->plan[g][o->plans[g]]);
}

/* Collects plans with precompiled kernels; where `compiled` is set, all plans. Heuristic mode B takes longer (30 ms) and
 * orders differently; the few engines for exact float32 are also found among the fallbacks. */
static void collect(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass, bool compiled, offer *o)
{
    const bool bf16_data = abar__cuda_is_bf16(dev), exact = abar__dnn_exact(dev);
    const cudnnDataType_t data = bf16_data ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    o->graphs = pass == ABAR_DNN_WEIGHTS && bf16_data ? 2 : 1;
    for (int g = 0; g < o->graphs; g++) {
        if (abar__dnn_graph_make(abar__dnn_api_of(dev), handle, shape, pass, data, results[g], &o->graph[g]) !=
            CUDNN_STATUS_SUCCESS)
            continue;
        ask(dev, handle, o, g, CUDNN_HEUR_MODE_A, compiled, compiled ? MAX_COMPILED : MAX_FIRST);
        if (compiled || exact || !o->plans[g])
            ask(dev, handle, o, g, CUDNN_HEUR_MODE_FALLBACK, compiled, MAX_PLANS);
        else if (!dev->config.deterministic)
            ask(dev, handle, o, g, CUDNN_HEUR_MODE_B, false, MAX_PLANS);
    }
}

static void decline(offer *o)
{
    for (int g = 0; g < o->graphs; g++) {
        for (int i = 0; i < o->plans[g]; i++) abar__dnn_plan_release(&o->plan[g][i]);
        abar__dnn_graph_release(&o->graph[g]);
    }
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static size_t largest_workspace(const offer *o)
{
    size_t bytes = 0;
    for (int g = 0; g < o->graphs; g++)
        for (int i = 0; i < o->plans[g]; i++)
            if (o->plan[g][i].workspace > bytes) bytes = o->plan[g][i].workspace;
    return bytes;
}

/* The best of all plans: (graph, plan) into at; false: none works. A bf16 gradient must also pay for its rounding, and for
 * the pass that converts it to float32. */
static bool judge(abar_device *dev, cudnnHandle_t handle, const offer *o, const abar__dnn_trial *t, int at[2])
{
    float best = -1.0f;
    for (int g = 0; g < o->graphs; g++)
        for (int i = 0; i < o->plans[g]; i++) {
            float ms = abar__dnn_try(dev, handle, &o->plan[g][i], t);
            if (ms < 0.0f) continue;
            if (o->graph[g].bf16_result) ms = 1.1f * ms + 0.003f;
            if (best >= 0.0f && ms >= best) continue;
            best = ms;
            at[0] = g, at[1] = i;
            if (dev->config.deterministic) return true;
        }
    return best >= 0.0f;
}

/* Where there is no memory for trials, as when the memory of too large a batch is planned, the most promising plan is used;
 * but not in float32, where it cannot be verified: ABAR_E_UNSUPPORTED. measured: the choice is based on trials. */
static abar_status pick(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass, const offer *o,
                        bool *found, bool *measured, int at[2])
{
    abar__dnn_trial t;
    *found = *measured = false;
    for (int g = o->graphs - 1; g >= 0; g--)
        if (o->plans[g]) *found = true, at[0] = g, at[1] = 0;
    if (!*found) return ABAR_OK;
    abar_status status = abar__dnn_trial_open(dev, shape, pass, largest_workspace(o), &t);
    if (status == ABAR_E_MEMORY) return abar__dnn_exact(dev) ? ABAR_E_UNSUPPORTED : ABAR_OK;
    ABAR_TRY(status);
    *found = *measured = judge(dev, handle, o, &t, at);
    abar__dnn_trial_close(dev, &t);
    return ABAR_OK;
}

/* ---- remembering -------------------------------------------------------------------------------------------------- */

/* Opens what earlier processes measured for this GPU, driver, cuDNN and abar; NULL: nothing is kept, as in deterministic
 * runs. */
static abar_status open_cache(abar_device *dev, abar__cuda_nn_state *nn)
{
    char title[ABAR_AUTOTUNE_MAX];
    cudaDeviceProp gpu;
    int driver = 0;
    if (nn->asked || dev->config.deterministic) return ABAR_OK;
    CUDA_TRY(dev, cudaGetDeviceProperties(&gpu, dev->ordinal));
    CUDA_TRY(dev, cudaDriverGetVersion(&driver));
    snprintf(title, sizeof title, "%.100s, driver %d, cudnn %zu, abar %s", gpu.name, driver, nn->dnn_api.cudnnGetVersion(),
             abar_version());
    nn->asked = true;
    return abar__autotune_cache_open(dev->ctx, title, &nn->autotune);
}

static void print4(char *text, size_t size, const char *name, const int64_t v[4])
{
    snprintf(text, size, " %s %lldx%lldx%lldx%lld", name, (long long)v[0], (long long)v[1], (long long)v[2], (long long)v[3]);
}

/* "conv forward bf16 in 128x64x32x32 out 128x128x32x32 kernel/stride 1x1x1x1 pad/dilation 0x0x1x1 groups 1" */
static void problem_of(const abar_device *dev, const abar__dnn_shape *shape, int pass, char text[ABAR_AUTOTUNE_MAX])
{
    static const char *const passes[ABAR_DNN_PASSES] = {"forward", "data", "weights"};
    const abar_window *w = &shape->window;
    const char *precision = abar__cuda_is_bf16(dev) ? "bf16" : abar__dnn_exact(dev) ? "fp32" : "tf32";
    const int64_t kernel[4] = {w->kernel[0], w->kernel[1], w->stride[0], w->stride[1]};
    const int64_t pad[4] = {w->pad[0], w->pad[1], w->dilation[0], w->dilation[1]};
    const struct {
        const char *name;
        const int64_t *v;
    } part[4] = {{"in", shape->in}, {"out", shape->out}, {"kernel/stride", kernel}, {"pad/dilation", pad}};
    size_t n = (size_t)snprintf(text, ABAR_AUTOTUNE_MAX, "conv %s %s", passes[pass], precision);
    for (int i = 0; i < 4 && n < ABAR_AUTOTUNE_MAX; n = strlen(text), i++)
        print4(text + n, ABAR_AUTOTUNE_MAX - n, part[i].name, part[i].v);
    snprintf(text + n, ABAR_AUTOTUNE_MAX - n, " groups %lld", (long long)w->groups);
}

/* "float ENGINE ..." or, for a rounded gradient of the weight, "bf16 ENGINE ..." */
static abar_status remember(abar__autotune_cache *cache, const char *problem, const abar__dnn_choice *c)
{
    char text[ABAR_AUTOTUNE_MAX];
    const int n = snprintf(text, sizeof text, c->graph.bf16_result ? "bf16 " : "float ");
    if (!abar__dnn_plan_write(&c->plan, text + n, sizeof text - (size_t)n)) return ABAR_OK;
    return abar__autotune_cache_put(cache, problem, text);
}

/* False: nothing was kept, or the plan no longer exists. */
static bool recall(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass, const char *text,
                   abar__dnn_choice *c)
{
    const cudnnDataType_t data = abar__cuda_is_bf16(dev) ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const bool rounded = text && strncmp(text, "bf16 ", 5) == 0;
    if (!text || (!rounded && strncmp(text, "float ", 6) != 0)) return false;
    if (abar__dnn_graph_make(abar__dnn_api_of(dev), handle, shape, pass, data, results[rounded], &c->graph) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    c->found = abar__dnn_plan_read(handle, &c->graph, text + (rounded ? 5 : 6), &c->plan);
    if (!c->found) abar__dnn_graph_release(&c->graph);
    return c->found;
}

/* ---- a convolution's choices ---------------------------------------------------------------------------------------- */

/* A failure leaves c untried: it may succeed later, with more memory. */
static abar_status measure_pass(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass,
                                abar__dnn_choice *c, bool *measured)
{
    *measured = false;
    for (int compiled = 0; compiled < 2 && !c->found; compiled++) {
        int at[2] = {0, 0};
        bool found = false;
        offer o = {};
        collect(dev, handle, shape, pass, compiled != 0, &o);
        abar_status status = pick(dev, handle, shape, pass, &o, &found, measured, at);
        if (status >= 0 && found) {
            c->found = true;
            c->graph = o.graph[at[0]];
            c->plan = o.plan[at[0]][at[1]];
            o.graph[at[0]] = {}; /* released elsewhere from now on */
            o.plan[at[0]][at[1]] = {};
        }
        decline(&o);
        ABAR_TRY(status);
    }
    return ABAR_OK;
}

static abar_status choose_pass(abar_device *dev, abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                               abar__dnn_choice *c)
{
    char problem[ABAR_AUTOTUNE_MAX];
    bool measured = false;
    ABAR_TRY(open_cache(dev, nn));
    problem_of(dev, shape, pass, problem);
    if (!recall(dev, nn->side, shape, pass, abar__autotune_cache_find(nn->autotune, problem), c))
        ABAR_TRY(measure_pass(dev, nn->side, shape, pass, c, &measured));
    c->tried = true;
    return measured && c->found ? remember(nn->autotune, problem, c) : ABAR_OK;
}

static void forget(abar_device *dev, void *convolutions)
{
    for (abar__dnn_conv *c = (abar__dnn_conv *)convolutions; c;) {
        abar__dnn_conv *next = c->next;
        for (int i = 0; i < ABAR_DNN_PASSES; i++) {
            abar__dnn_plan_release(&c->pass[i].plan);
            abar__dnn_graph_release(&c->pass[i].graph);
        }
        abar__free(dev->ctx, c, sizeof *c);
        c = next;
    }
}

static abar_status find(abar_device *dev, abar__cuda_nn_state *nn, const abar__op_desc *desc, abar__dnn_conv **out)
{
    abar__dnn_shape shape;
    memset(&shape, 0, sizeof shape);
    memcpy(shape.in, desc->in[0].dim, sizeof shape.in);
    memcpy(shape.out, desc->out.dim, sizeof shape.out);
    shape.window = desc->window;
    for (*out = (abar__dnn_conv *)nn->convolutions; *out; *out = (*out)->next)
        if (memcmp(&(*out)->shape, &shape, sizeof shape) == 0) return ABAR_OK;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof **out, (void **)out));
    (*out)->shape = shape;
    (*out)->next = (abar__dnn_conv *)nn->convolutions;
    nn->convolutions = *out;
    nn->forget_convolutions = forget;
    return ABAR_OK;
}

abar_status abar__dnn_choose(abar_device *dev, const abar__op_desc *desc, const abar__dnn_conv **out)
{
    abar__cuda_nn_state *nn;
    abar__dnn_conv *c;
    ABAR_TRY(abar__cuda_dnn(dev, &nn));
    ABAR_TRY(find(dev, nn, desc, &c));
    for (int pass = 0; pass < ABAR_DNN_PASSES; pass++) {
        abar__dnn_choice *choice = &c->pass[pass];
        if (pass == ABAR_DNN_DATA && !desc->need_dx[0]) continue;
        if (!choice->tried) ABAR_TRY(choose_pass(dev, nn, &c->shape, pass, choice));
        if (!choice->found) return ABAR_E_UNSUPPORTED;
    }
    *out = c;
    return ABAR_OK;
}
