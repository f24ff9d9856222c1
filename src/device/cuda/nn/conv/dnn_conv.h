/* Convolutions in cuDNN (graphs of one operation, and the engines that can run them) and, of 1x1 windows, in cuBLASLt; and
 * which of them is taken.
 *
 * A pass has three tensors, in this order: x (or dx) (N, C, H, W), w (or dw) (O, C / groups, kh, kw), y (or dy) (N, O, P,
 * Q), all with their channels last in memory. */
#ifndef ABAR_CUDA_CONV_DNN_CONV_H
#define ABAR_CUDA_CONV_DNN_CONV_H

#include "device/cuda/nn/cuda_nn_handles.h"
#include "device/cuda/nn/lt_product.h"

enum { ABAR_DNN_FORWARD, ABAR_DNN_DATA, ABAR_DNN_WEIGHTS, ABAR_DNN_PASSES };

typedef cudnnBackendDescriptor_t abar__dnn_node;

/* The key of a convolution; compared byte by byte. */
typedef struct abar__dnn_shape {
    int64_t in[4], out[4]; /* (N, C, H, W), (N, O, P, Q) */
    abar_window window;
} abar__dnn_shape;

/* Whether input and output together are larger than the L2 cache. */
static inline bool abar__conv_is_large(const abar_device *dev, const abar__op_desc *desc)
{
    int cache = 0;
    const int64_t elements = abar__shape_count(&desc->in[0]) + abar__shape_count(&desc->out);
    if (cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, dev->ordinal) != cudaSuccess) return false;
    return elements * (int64_t)abar_dtype_size(dev->activation) > cache;
}

/* ---- dnn_plan.cu: what cuDNN offers ------------------------------------------------------------------------------ */

typedef struct abar__dnn_graph {
    const abar__dnn_api *api;
    abar__dnn_node tensor[3], window, operation, graph;
    bool bf16_result; /* the gradient of the weight is rounded to bf16 and must be converted to float32 */
} abar__dnn_graph;

/* data: type of the activations and, except for the gradient of the weight, of the weight; result: type of that gradient. */
cudnnStatus_t abar__dnn_graph_make(const abar__dnn_api *api, cudnnHandle_t handle, const abar__dnn_shape *shape, int pass,
                                   cudnnDataType_t data, cudnnDataType_t result, abar__dnn_graph *out);
void abar__dnn_graph_release(abar__dnn_graph *graph);

typedef struct abar__dnn_plan {
    const abar__dnn_api *api;
    abar__dnn_node config, plan;
    size_t workspace;
} abar__dnn_plan;

typedef struct abar__dnn_query {
    cudnnBackendHeurMode_t mode;
    bool exact;       /* float32 arithmetic: no tensor cores, no rounding of inputs */
    bool compiled;    /* engines that are compiled when a plan is created, and no others; else the others */
    size_t workspace; /* at most */
} abar__dnn_query;

/* Adds plans for graph to the n that are there already, the most promising first, up to max in all; returns how many there
 * are. Leaves out those that are there, and those whose results may differ between runs. */
int abar__dnn_plans(cudnnHandle_t handle, const abar__dnn_graph *graph, const abar__dnn_query *query, int n, int max,
                    abar__dnn_plan *plans);
void abar__dnn_plan_release(abar__dnn_plan *plan);

/* A plan as text (its engine, workspace and the values of its knobs), and the plan for graph from its text; false: there is
 * no such text, or no such plan any more. */
bool abar__dnn_plan_write(const abar__dnn_plan *plan, char *text, size_t size);
bool abar__dnn_plan_read(cudnnHandle_t handle, const abar__dnn_graph *graph, const char *text, abar__dnn_plan *out);

/* Memory bound to a plan; kept from run to run, as a net's addresses do not change. */
typedef struct abar__dnn_pack {
    const abar__dnn_api *api;
    abar__dnn_node pack;
    void *address[4]; /* x, w, y, workspace */
} abar__dnn_pack;

cudnnStatus_t abar__dnn_run(cudnnHandle_t handle, const abar__dnn_plan *plan, void *const address[4], abar__dnn_pack *pack);
void abar__dnn_pack_release(abar__dnn_pack *pack);

/* ---- product.cu: what cuBLASLt offers --------------------------------------------------------------------------- */

enum { ABAR_CONV_ALGOS = 40 }; /* at most, that are tried for a pass */

typedef struct abar__conv_algo {
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} abar__conv_algo;

/* A pass as a product of matrices; of.desc NULL: there is none. */
typedef struct abar__conv_product {
    abar__lt_product of;
    int pass;
    int64_t pixels;
} abar__conv_product;

/* Whether the convolution is a product of matrices: 1x1, stride 1, no padding, one group. */
bool abar__conv_is_product(const abar__dnn_shape *shape);
/* Without an algorithm. nn has blas open. The gradient of the weight is float32 in every precision. */
bool abar__conv_product_make(const abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                             abar__conv_product *out);
void abar__conv_product_release(abar__conv_product *p);

/* Up to max algorithms for p, the most promising first; returns how many. */
int abar__conv_algos(const abar__conv_product *p, int max, abar__conv_algo *out);
/* p's algorithm as text, and from it; false: there is no such text, or it is of another version of cuBLASLt. */
bool abar__conv_algo_write(const abar__conv_product *p, char *text, size_t size);
bool abar__conv_algo_read(const char *text, abar__conv_product *p);

/* address: x, w, y, workspace. The result is written, or added to with beta 1. */
cublasStatus_t abar__conv_product_run(const abar__conv_product *p, void *const address[4], float beta, cudaStream_t stream);

/* ---- the choice ------------------------------------------------------------------------------------------------- */

/* Whose kernels may be chosen. */
enum { ABAR_CONV_DNN = 1, ABAR_CONV_BLAS = 2, ABAR_CONV_EITHER = 3 };

/* How a pass is computed: by a plan of cuDNN, or by a product of cuBLASLt. */
typedef struct abar__dnn_choice {
    bool tried, found;
    abar__dnn_graph graph;
    abar__dnn_plan plan;
    abar__conv_product product; /* of.desc NULL: cuDNN's plan */
} abar__dnn_choice;

static inline size_t abar__dnn_workspace(const abar__dnn_choice *c)
{
    return c->product.of.desc ? c->product.of.workspace : c->plan.workspace;
}

/* ---- dnn_trial.cu: what a choice is worth -------------------------------------------------------------------------- */

/* Whether plans have to compute in float32, and are verified. */
static inline bool abar__dnn_exact(const abar_device *dev) { return dev->config.precision == ABAR_PRECISION_FP32; }

/* Memory and events for trying the choices of one pass. */
typedef struct abar__dnn_trial {
    void *memory;
    size_t bytes;
    void *address[4];  /* x, w, y: pseudo-random numbers; workspace */
    float *result;     /* which of x, w, y the pass writes: count elements; used where expected is set */
    float *expected;   /* the correct result; NULL: any choice that works is accepted */
    unsigned *largest; /* (2), of the differences and of the expected values */
    int64_t count;
    cudaEvent_t begin, end;
} abar__dnn_trial;

/* ABAR_E_MEMORY where there is not enough; ABAR_E_UNSUPPORTED where there is no reference result. */
abar_status abar__dnn_trial_open(abar_device *dev, const abar__dnn_shape *shape, int pass, size_t workspace,
                                 abar__dnn_trial *out);
void abar__dnn_trial_close(abar_device *dev, abar__dnn_trial *t);

/* Milliseconds of a run; negative: it does not work, or its result is wrong. best: milliseconds of the best so far, negative:
 * there is none; what is much slower is measured less carefully. */
float abar__dnn_try(abar_device *dev, cudnnHandle_t handle, const abar__dnn_choice *choice, float best,
                    const abar__dnn_trial *t);

/* ---- dnn_choice.cu: which of it is taken ------------------------------------------------------------------------- */

/* One for every convolution that the device has met: nets repeat their shapes, and share the choices. */
typedef struct abar__dnn_conv {
    abar__dnn_shape shape;
    unsigned from; /* ABAR_CONV_DNN, ... */
    abar__dnn_choice pass[ABAR_DNN_PASSES];
    struct abar__dnn_conv *next;
} abar__dnn_conv;

/* Opens, in nn, what earlier processes measured for this GPU, driver, cuDNN and abar; nothing is kept in deterministic runs. nn
 * has cuDNN open. */
abar_status abar__dnn_cache(abar_device *dev, abar__cuda_nn_state *nn);

/* from: whose kernels may be chosen. ABAR_E_UNSUPPORTED where they cannot run a pass that desc needs. */
abar_status abar__dnn_choose(abar_device *dev, const abar__op_desc *desc, unsigned from, const abar__dnn_conv **out);

#endif
