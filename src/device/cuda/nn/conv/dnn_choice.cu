/* Chooses how a convolution is computed, among cuDNN's plans and, where it is a product of matrices, cuBLASLt's algorithms:
 * the fastest, measured once per shape and kept for later processes (autotune_cache.h); in deterministic runs the first that
 * works. In float32 only those whose results were verified (dnn_trial.cu) are used. */
#include "device/cuda/nn/conv/dnn_conv.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PLANS = 20, MAX_FIRST = 10, MAX_COMPILED = 2 };
enum { MAX_WORKSPACE = 256 << 20 };

/* Which of cuDNN's plans are collected: those with precompiled kernels; where none of them works, those that are compiled when
 * they are made, which takes about a second each. */
typedef enum round_of { PRECOMPILED, COMPILED, ROUNDS } round_of;

/* All there is for one pass: cuDNN's plans (in bf16 the gradient of the weight may be computed in float32 or, as a second
 * choice, in bf16), and the algorithms of a product. */
typedef struct offer {
    int graphs, plans[2], algos;
    abar__dnn_graph graph[2];
    abar__dnn_plan plan[2][MAX_PLANS];
    abar__conv_product product;
    abar__conv_algo algo[ABAR_CONV_ALGOS];
} offer;

static const cudnnDataType_t results[2] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16}; /* data types of the graphs' results */

/* ---- what is on offer -------------------------------------------------------------------------------------------- */

static void ask(abar_device *dev, cudnnHandle_t handle, offer *o, int g, cudnnBackendHeurMode_t mode, bool compiled, int max)
{
    const abar__dnn_query query = {mode, abar__dnn_exact(dev), compiled, MAX_WORKSPACE};
    o->plans[g] = abar__dnn_plans(handle, &o->graph[g], &query, o->plans[g], max, o->plan[g]);
}

static void collect_algos(abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass, offer *o)
{
    if (abar__conv_product_make(dev, nn, shape, pass, &o->product))
        o->algos = abar__conv_algos(&o->product, ABAR_CONV_ALGOS, o->algo);
}

static void collect_precompiled(abar_device *dev, cudnnHandle_t handle, int g, offer *o)
{
    ask(dev, handle, o, g, CUDNN_HEUR_MODE_A, false, MAX_FIRST);
    if (abar__dnn_exact(dev) || !o->plans[g])
        ask(dev, handle, o, g, CUDNN_HEUR_MODE_FALLBACK, false, MAX_PLANS);
    else if (!dev->config.deterministic)
        ask(dev, handle, o, g, CUDNN_HEUR_MODE_B, false, MAX_PLANS);
}

/* Heuristic mode B takes longer (30 ms) and orders differently; the few engines for exact float32 are also found among the
 * fallbacks. */
static void collect_plans(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass, round_of round,
                          offer *o)
{
    const bool bf16_data = abar__cuda_is_bf16(dev);
    const cudnnDataType_t data = bf16_data ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    o->graphs = pass == ABAR_DNN_WEIGHTS && bf16_data ? 2 : 1;
    for (int g = 0; g < o->graphs; g++) {
        if (abar__dnn_graph_make(abar__dnn_api_of(dev), handle, shape, pass, data, results[g], &o->graph[g]) !=
            CUDNN_STATUS_SUCCESS)
            continue;
        if (round == PRECOMPILED) {
            collect_precompiled(dev, handle, g, o);
            continue;
        }
        ask(dev, handle, o, g, CUDNN_HEUR_MODE_A, true, MAX_COMPILED);
        ask(dev, handle, o, g, CUDNN_HEUR_MODE_FALLBACK, true, MAX_PLANS);
    }
}

static void decline(offer *o)
{
    for (int g = 0; g < o->graphs; g++) {
        for (int i = 0; i < o->plans[g]; i++) abar__dnn_plan_release(&o->plan[g][i]);
        abar__dnn_graph_release(&o->graph[g]);
    }
    abar__conv_product_release(&o->product);
}

/* The i-th of what is on offer, borrowed: cuDNN's plans first. False: there are no more. */
static bool pick_out(const offer *o, int i, abar__dnn_choice *out)
{
    *out = {};
    for (int g = 0; g < o->graphs; i -= o->plans[g++])
        if (i < o->plans[g]) {
            out->graph = o->graph[g];
            out->plan = o->plan[g][i];
            return true;
        }
    if (i >= o->algos) return false;
    out->product = o->product;
    out->product.of.algo = o->algo[i].algo;
    out->product.of.workspace = o->algo[i].workspace;
    return true;
}

/* The same, taken out of the offer: it is released by whoever has it. */
static void take_out(offer *o, int i, abar__dnn_choice *out)
{
    pick_out(o, i, out);
    if (out->product.of.desc) {
        o->product = {};
        return;
    }
    int g = 0;
    while (i >= o->plans[g]) i -= o->plans[g++];
    o->graph[g] = {};
    o->plan[g][i] = {};
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static size_t largest_workspace(const offer *o)
{
    size_t bytes = 0;
    abar__dnn_choice c;
    for (int i = 0; pick_out(o, i, &c); i++)
        if (abar__dnn_workspace(&c) > bytes) bytes = abar__dnn_workspace(&c);
    return bytes;
}

/* The fastest on offer, if it takes fewer milliseconds than *best (negative: there is no other), which becomes its time;
 * negative: none. A bf16 gradient must also pay for its rounding, and for the pass that converts it to float32. */
static int judge(abar_device *dev, cudnnHandle_t handle, const offer *o, const abar__dnn_trial *t, float *best)
{
    abar__dnn_choice c;
    int chosen = -1;
    bool warm = dev->config.deterministic;
    for (int i = 0; pick_out(o, i, &c); i++) {
        float ms = abar__dnn_try(dev, handle, &c, *best, t);
        if (ms >= 0.0f && !warm) ms = abar__dnn_try(dev, handle, &c, *best, t); /* an idle device is slow at first */
        if (ms < 0.0f) continue;
        warm = true;
        if (c.graph.bf16_result) ms = 1.1f * ms + 0.003f;
        if (*best >= 0.0f && ms >= *best) continue;
        *best = ms;
        chosen = i;
        if (dev->config.deterministic) break;
    }
    return chosen;
}

/* Which of the offer is taken, negative: none, and its milliseconds in *best, as in judge. Where there is no memory for
 * trials, as when the memory of too large a batch is planned, the most promising is used, and *best stays negative; but not
 * in float32, where it cannot be verified: ABAR_E_UNSUPPORTED. */
static abar_status pick(abar_device *dev, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass, const offer *o,
                        float *best, int *chosen)
{
    abar__dnn_trial t;
    abar__dnn_choice first;
    *chosen = -1;
    if (!pick_out(o, 0, &first)) return ABAR_OK;
    abar_status status = abar__dnn_trial_open(dev, shape, pass, largest_workspace(o), &t);
    if (status == ABAR_E_MEMORY && abar__dnn_exact(dev)) return ABAR_E_UNSUPPORTED;
    if (status == ABAR_E_MEMORY) {
        *chosen = *best < 0.0f ? 0 : -1;
        return ABAR_OK;
    }
    ABAR_TRY(status);
    *chosen = judge(dev, handle, o, &t, best);
    abar__dnn_trial_close(dev, &t);
    return ABAR_OK;
}

/* ---- remembering -------------------------------------------------------------------------------------------------- */

abar_status abar__dnn_cache(abar_device *dev, abar__cuda_nn_state *nn)
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

/* "conv forward bf16 in 128x64x32x32 out 128x128x32x32 kernel/stride 1x1x1x1 pad/dilation 0x0x1x1 groups 1"; the first word
 * says whose kernels may be chosen. */
static void problem_of(const abar_device *dev, const abar__dnn_shape *shape, unsigned from, int pass,
                       char text[ABAR_AUTOTUNE_MAX])
{
    static const char *const names[] = {"", "conv", "product", "conv/product"};
    static const char *const passes[ABAR_DNN_PASSES] = {"forward", "data", "weights"};
    const abar_window *w = &shape->window;
    const char *precision = abar__cuda_is_bf16(dev) ? "bf16" : abar__dnn_exact(dev) ? "fp32" : "tf32";
    const int64_t kernel[4] = {w->kernel[0], w->kernel[1], w->stride[0], w->stride[1]};
    const int64_t pad[4] = {w->pad[0], w->pad[1], w->dilation[0], w->dilation[1]};
    const struct {
        const char *name;
        const int64_t *v;
    } part[4] = {{"in", shape->in}, {"out", shape->out}, {"kernel/stride", kernel}, {"pad/dilation", pad}};
    size_t n = (size_t)snprintf(text, ABAR_AUTOTUNE_MAX, "%s %s %s", names[from], passes[pass], precision);
    for (int i = 0; i < 4 && n < ABAR_AUTOTUNE_MAX; n = strlen(text), i++)
        print4(text + n, ABAR_AUTOTUNE_MAX - n, part[i].name, part[i].v);
    snprintf(text + n, ABAR_AUTOTUNE_MAX - n, " groups %lld", (long long)w->groups);
}

static const char *kind_of(const abar__dnn_choice *c)
{
    if (c->product.of.desc) return "product";
    return c->graph.bf16_result ? "bf16" : "float";
}

/* "float WORKSPACE ENGINE ..." or, for a rounded gradient of the weight, "bf16 WORKSPACE ENGINE ..."; or "product ALGORITHM
 * ..." */
static abar_status remember(abar__autotune_cache *cache, const char *problem, const abar__dnn_choice *c)
{
    char text[ABAR_AUTOTUNE_MAX];
    if (!cache) return ABAR_OK;
    const size_t n = (size_t)snprintf(text, sizeof text, "%s ", kind_of(c));
    const bool whole = c->product.of.desc ? abar__conv_algo_write(&c->product, text + n, sizeof text - n)
                                          : abar__dnn_plan_write(&c->plan, text + n, sizeof text - n);
    if (!whole) return ABAR_OK;
    return abar__autotune_cache_put(cache, problem, text);
}

static bool recall_product(abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                           const char *text, abar__dnn_choice *c)
{
    if (!abar__conv_product_make(dev, nn, shape, pass, &c->product)) return false;
    c->found = abar__conv_algo_read(text, &c->product);
    if (!c->found) abar__conv_product_release(&c->product);
    return c->found;
}

/* Whether text begins with the word; then behind is what follows. */
static bool begins(const char *text, const char *word, const char **behind)
{
    const size_t n = strlen(word);
    *behind = text + n + 1;
    return strncmp(text, word, n) == 0 && text[n] == ' ';
}

static bool recall_plan(const abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                        const char *text, abar__dnn_choice *c)
{
    const cudnnDataType_t data = abar__cuda_is_bf16(dev) ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const char *rest;
    const cudnnDataType_t result = begins(text, "bf16", &rest) ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    if (result == CUDNN_DATA_FLOAT && !begins(text, "float", &rest)) return false;
    if (abar__dnn_graph_make(&nn->dnn_api, nn->side, shape, pass, data, result, &c->graph) != CUDNN_STATUS_SUCCESS)
        return false;
    c->found = abar__dnn_plan_read(nn->side, &c->graph, rest, &c->plan);
    if (!c->found) abar__dnn_graph_release(&c->graph);
    return c->found;
}

/* False: nothing was kept, or it no longer exists. */
static bool recall(abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_conv *conv, int pass, const char *problem,
                   abar__dnn_choice *c)
{
    const char *text = abar__autotune_cache_find(nn->autotune, problem), *rest;
    if (!text) return false;
    if (begins(text, "product", &rest))
        return conv->from & ABAR_CONV_BLAS && recall_product(dev, nn, &conv->shape, pass, rest, c);
    return conv->from & ABAR_CONV_DNN && recall_plan(dev, nn, &conv->shape, pass, text, c);
}

/* ---- a convolution's choices ---------------------------------------------------------------------------------------- */

static void release_choice(abar__dnn_choice *c)
{
    abar__dnn_plan_release(&c->plan);
    abar__dnn_graph_release(&c->graph);
    abar__conv_product_release(&c->product);
}

/* The best of one round becomes c. */
static abar_status measure_round(abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_conv *conv, int pass,
                                 round_of round, abar__dnn_choice *c, float *ms)
{
    int chosen;
    offer o = {};
    if (conv->from & ABAR_CONV_DNN) collect_plans(dev, nn->side, &conv->shape, pass, round, &o);
    if (conv->from & ABAR_CONV_BLAS && round == PRECOMPILED) collect_algos(dev, nn, &conv->shape, pass, &o);
    const abar_status status = pick(dev, nn->side, &conv->shape, pass, &o, ms, &chosen);
    if (status >= 0 && chosen >= 0) {
        take_out(&o, chosen, c);
        c->found = true;
    }
    decline(&o);
    return status;
}

/* A failure leaves c untried: it may succeed later, with more memory. ms: of a run; negative: nothing was measured. */
static abar_status measure_pass(abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_conv *conv, int pass,
                                abar__dnn_choice *c, float *ms)
{
    abar_status status = ABAR_OK;
    *ms = -1.0f;
    for (int round = PRECOMPILED; round < ROUNDS && status >= 0 && !c->found; round++)
        status = measure_round(dev, nn, conv, pass, (round_of)round, c, ms);
    if (status >= 0) return ABAR_OK;
    release_choice(c);
    *c = {};
    return status;
}

static abar_status choose_pass(abar_device *dev, abar__cuda_nn_state *nn, const abar__dnn_conv *conv, int pass,
                               abar__dnn_choice *c)
{
    char problem[ABAR_AUTOTUNE_MAX];
    float ms = -1.0f;
    ABAR_TRY(abar__dnn_cache(dev, nn));
    problem_of(dev, &conv->shape, conv->from, pass, problem);
    if (!recall(dev, nn, conv, pass, problem, c)) ABAR_TRY(measure_pass(dev, nn, conv, pass, c, &ms));
    c->tried = true;
    return ms >= 0.0f && c->found ? remember(nn->autotune, problem, c) : ABAR_OK;
}

static void forget(abar_device *dev, void *convolutions)
{
    for (abar__dnn_conv *c = (abar__dnn_conv *)convolutions; c;) {
        abar__dnn_conv *next = c->next;
        for (int i = 0; i < ABAR_DNN_PASSES; i++) release_choice(&c->pass[i]);
        abar__free(dev->ctx, c, sizeof *c);
        c = next;
    }
}

static abar__dnn_shape shape_of(const abar__op_desc *desc)
{
    abar__dnn_shape shape;
    memset(&shape, 0, sizeof shape);
    memcpy(shape.in, desc->in[0].dim, sizeof shape.in);
    memcpy(shape.out, desc->out.dim, sizeof shape.out);
    shape.window = desc->window;
    return shape;
}

static abar_status find(abar_device *dev, abar__cuda_nn_state *nn, const abar__dnn_shape *shape, unsigned from,
                        abar__dnn_conv **out)
{
    for (*out = (abar__dnn_conv *)nn->convolutions; *out; *out = (*out)->next)
        if ((*out)->from == from && memcmp(&(*out)->shape, shape, sizeof *shape) == 0) return ABAR_OK;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof **out, (void **)out));
    (*out)->shape = *shape;
    (*out)->from = from;
    (*out)->next = (abar__dnn_conv *)nn->convolutions;
    nn->convolutions = *out;
    nn->forget_convolutions = forget;
    return ABAR_OK;
}

abar_status abar__dnn_choose(abar_device *dev, const abar__op_desc *desc, unsigned from, const abar__dnn_conv **out)
{
    const abar__dnn_shape shape = shape_of(desc);
    abar__cuda_nn_state *nn;
    abar__dnn_conv *c;
    if (from & ABAR_CONV_BLAS && !abar__conv_is_product(&shape)) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__cuda_dnn(dev, &nn));
    if (from & ABAR_CONV_BLAS) ABAR_TRY(abar__cuda_blas(dev, &nn));
    ABAR_TRY(find(dev, nn, &shape, from, &c));
    for (int pass = 0; pass < ABAR_DNN_PASSES; pass++) {
        abar__dnn_choice *choice = &c->pass[pass];
        if (pass == ABAR_DNN_DATA && !desc->need_dx[0]) continue;
        if (!choice->tried) ABAR_TRY(choose_pass(dev, nn, c, pass, choice));
        if (!choice->found) return ABAR_E_UNSUPPORTED;
    }
    *out = c;
    return ABAR_OK;
}
