/* cuDNN's graph interface, for graphs of one convolution: descriptors, engines and their notes, plans, and running them. The
 * only file that knows its attributes. */
#include "device/cuda/nn/conv/dnn_conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENGINES = 128 }; /* considered for one graph and mode */

/* The attributes of one direction. */
typedef struct direction {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t tensor[3], window, alpha, beta; /* tensors: x, w, y */
} direction;

static const direction directions[ABAR_DNN_PASSES] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* ---- descriptors -------------------------------------------------------------------------------------------------- */

/* Descriptors are opened, filled and finished; after the first failure, which stays in status, the calls do nothing. */
typedef struct maker {
    const abar__dnn_api *api;
    cudnnStatus_t status;
} maker;

static maker begin(const abar__dnn_api *api) { return {api, CUDNN_STATUS_SUCCESS}; }

static bool succeeded(const maker *m) { return m->status == CUDNN_STATUS_SUCCESS; }

static abar__dnn_node open_node(cudnnBackendDescriptorType_t type, maker *m)
{
    abar__dnn_node node = NULL;
    if (succeeded(m)) m->status = m->api->cudnnBackendCreateDescriptor(type, &node);
    return succeeded(m) ? node : NULL;
}

static void put(abar__dnn_node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *values, maker *m)
{
    if (succeeded(m)) m->status = m->api->cudnnBackendSetAttribute(node, name, type, n, values);
}

/* Up to max values, and how many there are. */
static void get(abar__dnn_node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t max,
                int64_t *n, void *values, maker *m)
{
    if (succeeded(m)) m->status = m->api->cudnnBackendGetAttribute(node, name, type, max, n, values);
}

static void finish(abar__dnn_node node, maker *m)
{
    if (succeeded(m)) m->status = m->api->cudnnBackendFinalize(node);
}

static void drop(const abar__dnn_api *api, abar__dnn_node *node)
{
    if (*node) api->cudnnBackendDestroyDescriptor(*node);
    *node = NULL;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* dim: (N, C, H, W), in memory (N, H, W, C). */
static abar__dnn_node make_tensor(int64_t id, cudnnDataType_t type, const int64_t dim[4], maker *m)
{
    const int64_t stride[4] = {dim[1] * dim[2] * dim[3], 1, dim[1] * dim[3], dim[1]}, alignment = 16;
    abar__dnn_node t = open_node(CUDNN_BACKEND_TENSOR_DESCRIPTOR, m);
    put(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, m);
    put(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, m);
    put(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim, m);
    put(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride, m);
    put(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, m);
    finish(t, m);
    return t;
}

static abar__dnn_node make_window(const abar_window *w, maker *m)
{
    const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t axes = 2;
    abar__dnn_node c = open_node(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, m);
    put(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic, m);
    put(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode, m);
    put(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes, m);
    put(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, w->pad, m);
    put(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, w->pad, m);
    put(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, w->stride, m);
    put(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, w->dilation, m);
    finish(c, m);
    return c;
}

static abar__dnn_node make_operation(const abar__dnn_graph *g, int pass, maker *m)
{
    const direction *d = &directions[pass];
    const float one = 1.0f, zero = 0.0f;
    abar__dnn_node o = open_node(d->operation, m);
    for (int i = 0; i < 3; i++) put(o, d->tensor[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensor[i], m);
    put(o, d->window, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->window, m);
    put(o, d->alpha, CUDNN_TYPE_FLOAT, 1, &one, m);
    put(o, d->beta, CUDNN_TYPE_FLOAT, 1, &zero, m);
    finish(o, m);
    return o;
}

cudnnStatus_t abar__dnn_graph_make(const abar__dnn_api *api, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass,
                                   cudnnDataType_t data, cudnnDataType_t result, abar__dnn_graph *out)
{
    const abar_window *w = &shape->window;
    const int64_t weight[4] = {shape->out[1], shape->in[1] / w->groups, w->kernel[0], w->kernel[1]};
    const cudnnDataType_t weight_type = pass == ABAR_DNN_WEIGHTS ? result : data;
    maker m = begin(api);
    abar__dnn_graph g = {};
    g.api = api;
    g.bf16_result = pass == ABAR_DNN_WEIGHTS && result == CUDNN_DATA_BFLOAT16;
    g.tensor[0] = make_tensor('x', data, shape->in, &m);
    g.tensor[1] = make_tensor('w', weight_type, weight, &m);
    g.tensor[2] = make_tensor('y', data, shape->out, &m);
    g.window = make_window(w, &m);
    g.operation = make_operation(&g, pass, &m);
    g.graph = open_node(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &m);
    put(g.graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, &m);
    put(g.graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g.operation, &m);
    finish(g.graph, &m);
    if (!succeeded(&m)) abar__dnn_graph_release(&g);
    *out = g;
    return m.status;
}

void abar__dnn_graph_release(abar__dnn_graph *g)
{
    drop(g->api, &g->graph);
    drop(g->api, &g->operation);
    drop(g->api, &g->window);
    for (int i = 0; i < 3; i++) drop(g->api, &g->tensor[i]);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

/* Whether the engine has the note; an engine that reports no notes is taken to have it. */
static bool has_numerical(const abar__dnn_api *api, abar__dnn_node engine, cudnnBackendNumericalNote_t note)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    maker m = begin(api);
    get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes, &m);
    if (!succeeded(&m)) return true;
    for (int64_t i = 0; i < n && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] == note) return true;
    return false;
}

static bool has_behaviour(const abar__dnn_api *api, abar__dnn_node engine, cudnnBackendBehaviorNote_t note)
{
    cudnnBackendBehaviorNote_t notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t n = 0;
    maker m = begin(api);
    get(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &n, notes, &m);
    if (!succeeded(&m)) return true;
    for (int64_t i = 0; i < n && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        if (notes[i] == note) return true;
    return false;
}

static bool acceptable(const abar__dnn_api *api, abar__dnn_node config, const abar__dnn_query *query)
{
    static const cudnnBackendNumericalNote_t never[] = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                                                        CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                                                        CUDNN_NUMERICAL_NOTE_FFT,
                                                        CUDNN_NUMERICAL_NOTE_WINOGRAD,
                                                        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
                                                        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
                                                        CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
    static const cudnnBackendNumericalNote_t inexact[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                          CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};
    maker m = begin(api);
    abar__dnn_node engine = open_node(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &m);
    int64_t n = 0;
    get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine, &m);
    bool good = succeeded(&m) && n == 1;
    for (size_t i = 0; i < sizeof never / sizeof *never && good; i++) good = !has_numerical(api, engine, never[i]);
    for (size_t i = 0; i < sizeof inexact / sizeof *inexact && good && query->exact; i++)
        good = !has_numerical(api, engine, inexact[i]);
    if (good) good = has_behaviour(api, engine, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) == query->compiled;
    drop(api, &engine);
    return good;
}

/* Engine configurations for graph, the most promising first; returns how many. */
static int ask(const abar__dnn_graph *graph, cudnnBackendHeurMode_t mode, abar__dnn_node config[MAX_ENGINES])
{
    maker m = begin(graph->api);
    abar__dnn_node heuristic = open_node(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &m);
    put(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph->graph, &m);
    put(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, &m);
    finish(heuristic, &m);
    int64_t n = 0;
    for (int i = 0; i < MAX_ENGINES; i++) config[i] = open_node(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &m);
    get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &n, config, &m);
    if (!succeeded(&m)) n = 0;
    if (n > MAX_ENGINES) n = MAX_ENGINES;
    for (int64_t i = n; i < MAX_ENGINES; i++) drop(graph->api, &config[i]);
    drop(graph->api, &heuristic);
    return (int)n;
}

/* Owns config from now on, whether it succeeds or not. */
static bool make_plan(const abar__dnn_api *api, cudnnHandle_t handle, abar__dnn_node config, size_t most, abar__dnn_plan *out)
{
    maker m = begin(api);
    int64_t workspace = 0, n = 0;
    abar__dnn_plan p = {api, config, NULL, 0, false};
    p.plan = open_node(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &m);
    put(p.plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, &m);
    put(p.plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config, &m);
    finish(p.plan, &m);
    get(p.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &workspace, &m);
    p.workspace = (size_t)workspace;
    if (!succeeded(&m) || workspace < 0 || p.workspace > most) {
        abar__dnn_plan_release(&p);
        return false;
    }
    *out = p;
    return true;
}

void abar__dnn_plan_release(abar__dnn_plan *p)
{
    drop(p->api, &p->plan);
    drop(p->api, &p->config);
}

/* ---- plans as text ------------------------------------------------------------------------------------------------ */

typedef struct knob {
    int64_t type, value;
} knob;

/* The number of the configuration's engine; negative: unknown. */
static int64_t engine_number(const abar__dnn_api *api, abar__dnn_node config)
{
    maker m = begin(api);
    int64_t n = 0, number = -1;
    abar__dnn_node engine = open_node(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &m);
    get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine, &m);
    if (n == 1) get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &number, &m);
    drop(api, &engine);
    return succeeded(&m) ? number : -1;
}

/* The knobs of a configuration; returns how many, negative: unknown. */
static int knobs_of(const abar__dnn_api *api, abar__dnn_node config, knob knobs[CUDNN_KNOB_TYPE_COUNTS])
{
    maker m = begin(api);
    abar__dnn_node node[CUDNN_KNOB_TYPE_COUNTS];
    int64_t n = 0, one = 0;
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++) node[i] = open_node(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &m);
    get(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, &n, node, &m);
    for (int64_t i = 0; i < n && i < CUDNN_KNOB_TYPE_COUNTS && succeeded(&m); i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        get(node[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type, &m);
        knobs[i].type = (int64_t)type;
        get(node[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &knobs[i].value, &m);
    }
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++) drop(api, &node[i]);
    return succeeded(&m) && n <= CUDNN_KNOB_TYPE_COUNTS ? (int)n : -1;
}

/* "34 0:1 3:2": engine, knobs. False: unknown, or too long. */
static bool write_config(const abar__dnn_api *api, abar__dnn_node config, char *text, size_t size)
{
    knob knobs[CUDNN_KNOB_TYPE_COUNTS];
    const int64_t engine = engine_number(api, config);
    const int n = knobs_of(api, config, knobs);
    if (engine < 0 || n < 0) return false;
    int length = snprintf(text, size, "%lld", (long long)engine);
    for (int i = 0; i < n && (size_t)length < size; i++)
        length +=
            snprintf(text + length, size - (size_t)length, " %lld:%lld", (long long)knobs[i].type, (long long)knobs[i].value);
    return (size_t)length < size;
}

/* "4096 34 0:1 3:2": bytes of workspace, engine, knobs. */
bool abar__dnn_plan_write(const abar__dnn_plan *plan, char *text, size_t size)
{
    const int length = snprintf(text, size, "%zu ", plan->workspace);
    return (size_t)length < size && write_config(plan->api, plan->config, text + length, size - (size_t)length);
}

/* Parses such a text; returns the number of knobs, negative: it is malformed. */
static int parse(const char *text, long long *engine, size_t *workspace, knob knobs[CUDNN_KNOB_TYPE_COUNTS])
{
    int used = 0, n = 0;
    if (sscanf(text, "%zu %lld%n", workspace, engine, &used) != 2) return -1;
    for (text += used; *text; text += used, n++) {
        long long type, value;
        if (n == CUDNN_KNOB_TYPE_COUNTS || sscanf(text, " %lld:%lld%n", &type, &value, &used) != 2) return -1;
        knobs[n] = {type, value};
    }
    return n;
}

static abar__dnn_node make_knob(const knob *k, maker *m)
{
    const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)k->type;
    abar__dnn_node node = open_node(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, m);
    put(node, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type, m);
    put(node, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &k->value, m);
    finish(node, m);
    return node;
}

bool abar__dnn_plan_read(cudnnHandle_t handle, const abar__dnn_graph *graph, const char *text, abar__dnn_plan *out)
{
    knob knobs[CUDNN_KNOB_TYPE_COUNTS];
    abar__dnn_node node[CUDNN_KNOB_TYPE_COUNTS] = {};
    maker m = begin(graph->api);
    long long number;
    size_t workspace;
    const int n = parse(text, &number, &workspace, knobs);
    if (n < 0) return false;
    const int64_t index = number;
    abar__dnn_node engine = open_node(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &m);
    put(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph->graph, &m);
    put(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index, &m);
    finish(engine, &m);
    abar__dnn_node config = open_node(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &m);
    put(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine, &m);
    for (int i = 0; i < n; i++) node[i] = make_knob(&knobs[i], &m);
    if (n > 0) put(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, node, &m);
    finish(config, &m);
    for (int i = 0; i < n; i++) drop(graph->api, &node[i]);
    drop(graph->api, &engine);
    if (!succeeded(&m)) drop(graph->api, &config);
    if (!config || !make_plan(graph->api, handle, config, workspace, out)) return false;
    if (out->workspace == workspace) return true;
    abar__dnn_plan_release(out);
    return false;
}

/* ---- lists of plans ------------------------------------------------------------------------------------------------ */

/* Whether one of the n plans has this configuration: the heuristics offer some of the same. */
static bool is_there(abar__dnn_node config, const abar__dnn_plan *plans, int n)
{
    char text[256], other[256];
    if (n == 0 || !write_config(plans->api, config, text, sizeof text)) return false;
    for (int i = 0; i < n; i++)
        if (write_config(plans->api, plans[i].config, other, sizeof other) && strcmp(text, other) == 0) return true;
    return false;
}

int abar__dnn_plans(cudnnHandle_t handle, const abar__dnn_graph *graph, const abar__dnn_query *query, int n, int max,
                    abar__dnn_plan *plans)
{
    abar__dnn_node config[MAX_ENGINES];
    const int found = ask(graph, query->mode, config);
    for (int i = 0; i < found; i++) {
        if (n >= max || !acceptable(graph->api, config[i], query) || is_there(config[i], plans, n))
            drop(graph->api, &config[i]);
        else if (make_plan(graph->api, handle, config[i], query->workspace, &plans[n]))
            plans[n++].compiled = query->compiled;
    }
    return n;
}

/* ---- packed plans --------------------------------------------------------------------------------------------------- */

bool abar__dnn_plan_pack(abar_context *ctx, const abar__dnn_plan *plan, abar__text *text)
{
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    maker m = begin(plan->api);
    int64_t n = 0;
    void *bytes;
    get(plan->plan, name, CUDNN_TYPE_CHAR, 0, &n, NULL, &m);
    if (!succeeded(&m) || n <= 0 || abar__alloc(ctx, (size_t)n, &bytes) < 0) return false;
    const size_t size = (size_t)n;
    get(plan->plan, name, CUDNN_TYPE_CHAR, n, &n, bytes, &m);
    const bool good = succeeded(&m) && (size_t)n <= size && abar__text_append(ctx, text, bytes, (size_t)n) >= 0;
    abar__free(ctx, bytes, size);
    return good;
}

bool abar__dnn_plan_unpack(const abar__dnn_api *api, cudnnHandle_t handle, const abar__text *text, abar__dnn_plan *out)
{
    maker m = begin(api);
    int64_t workspace = 0, n = 0;
    abar__dnn_plan p = {api, NULL, NULL, 0, true};
    p.plan = open_node(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &m);
    put(p.plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, &m);
    put(p.plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)text->length, text->data, &m);
    finish(p.plan, &m);
    get(p.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &workspace, &m);
    p.workspace = (size_t)workspace;
    const bool good = succeeded(&m) && workspace >= 0;
    if (good)
        *out = p;
    else
        abar__dnn_plan_release(&p);
    return good;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t abar__dnn_run(cudnnHandle_t handle, const abar__dnn_plan *plan, void *const address[4], abar__dnn_pack *pack)
{
    static const int64_t ids[3] = {'x', 'w', 'y'};
    maker m = begin(plan->api);
    if (!pack->pack || memcmp(pack->address, address, sizeof pack->address) != 0) {
        abar__dnn_pack_release(pack);
        pack->api = plan->api;
        memcpy(pack->address, address, sizeof pack->address);
        pack->pack = open_node(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &m);
        put(pack->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids, &m);
        put(pack->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, address, &m);
        put(pack->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &address[3], &m);
        finish(pack->pack, &m);
        if (!succeeded(&m)) abar__dnn_pack_release(pack);
    }
    return succeeded(&m) ? plan->api->cudnnBackendExecute(handle, plan->plan, pack->pack) : m.status;
}

void abar__dnn_pack_release(abar__dnn_pack *pack) { drop(pack->api, &pack->pack); }
