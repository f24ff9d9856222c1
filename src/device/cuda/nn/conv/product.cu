/* 1x1 convolutions of stride 1 as products of matrices, by cuBLASLt. With channels last x is (N H W, C) and y (N H W, O), so
 *     y = x w^T    dx = dy w    dw = dy^T x    w: (O, C)
 * Only algorithms whose sums have a fixed order are used. cuBLASLt is column-major: what is (R, C) here is a C x R matrix
 * there, and every product is transposed. */
#include "device/cuda/nn/conv/dnn_conv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WORKSPACE = 32 << 20, WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

/* One matrix: its memory as dense (rows, width), and whether cuBLASLt is to transpose it. */
typedef struct side {
    cudaDataType_t type;
    int64_t rows, width;
    cublasOperation_t op;
} side;

bool abar__conv_is_product(const abar__dnn_shape *shape)
{
    const abar_window *w = &shape->window;
    for (int i = 0; i < 2; i++)
        if (w->kernel[i] != 1 || w->stride[i] != 1 || w->pad[i] != 0) return false;
    return w->groups == 1;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

static cublasStatus_t make_layout(const abar__blas_api *api, const side *s, cublasLtMatrixLayout_t *out)
{
    return api->cublasLtMatrixLayoutCreate(out, s->type, (uint64_t)s->width, (uint64_t)s->rows, s->width);
}

static cublasStatus_t make(const side sides[3], bool tf32, abar__conv_product *p)
{
    const abar__blas_api *api = p->api;
    cublasLtMatrixLayout_t *const layouts[3] = {&p->a, &p->b, &p->d};
    const cublasLtMatmulDescAttributes_t turns[2] = {CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
    cublasStatus_t status =
        api->cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (int i = 0; i < 2 && !status; i++)
        status = api->cublasLtMatmulDescSetAttribute(p->desc, turns[i], &sides[i].op, sizeof sides[i].op);
    for (int i = 0; i < 3 && !status; i++) status = make_layout(api, &sides[i], layouts[i]);
    return status;
}

bool abar__conv_product_make(const abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                             abar__conv_product *out)
{
    const cudaDataType_t type = abar__cuda_is_bf16(dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t pixels = shape->in[0] * shape->in[2] * shape->in[3], c = shape->in[1], o = shape->out[1];
    const cublasOperation_t as_is = CUBLAS_OP_N, turned = CUBLAS_OP_T;
    const side sides[ABAR_DNN_PASSES][3] = {
        {{type, o, c, turned}, {type, pixels, c, as_is}, {type, pixels, o, as_is}},       /* w, x, y */
        {{type, o, c, as_is}, {type, pixels, o, as_is}, {type, pixels, c, as_is}},        /* w, dy, dx */
        {{type, pixels, c, as_is}, {type, pixels, o, turned}, {CUDA_R_32F, o, c, as_is}}, /* x, dy, dw */
    };
    abar__conv_product p = {};
    p.api = &nn->blas_api;
    p.blas = nn->blas;
    p.pass = pass;
    const bool good = make(sides[pass], dev->config.precision == ABAR_PRECISION_TF32, &p) == CUBLAS_STATUS_SUCCESS;
    if (!good) abar__conv_product_release(&p);
    *out = p;
    return good;
}

void abar__conv_product_release(abar__conv_product *p)
{
    if (p->d) p->api->cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) p->api->cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) p->api->cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) p->api->cublasLtMatmulDescDestroy(p->desc);
    *p = {};
}

/* ---- algorithms --------------------------------------------------------------------------------------------------- */

/* What is asked of an algorithm: sums of a fixed order, memory aligned like the arena. */
static cublasStatus_t prefer(const abar__blas_api *api, cublasLtMatmulPreference_t preference)
{
    const uint64_t workspace = MAX_WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = 16;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } wish[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof wish / sizeof *wish && !status; i++)
        status = api->cublasLtMatmulPreferenceSetAttribute(preference, wish[i].name, wish[i].value, wish[i].bytes);
    return status;
}

int abar__conv_algos(const abar__conv_product *p, int max, abar__conv_algo *out)
{
    cublasLtMatmulHeuristicResult_t advice[ABAR_CONV_ALGOS];
    cublasLtMatmulPreference_t preference;
    int found = 0, taken = 0;
    if (max > ABAR_CONV_ALGOS) max = ABAR_CONV_ALGOS;
    if (p->api->cublasLtMatmulPreferenceCreate(&preference)) return 0;
    cublasStatus_t status = prefer(p->api, preference);
    if (!status)
        status =
            p->api->cublasLtMatmulAlgoGetHeuristic(p->blas, p->desc, p->a, p->b, p->d, p->d, preference, max, advice, &found);
    p->api->cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < found && !status; i++)
        if (advice[i].state == CUBLAS_STATUS_SUCCESS) out[taken++] = {advice[i].algo, advice[i].workspaceSize};
    return taken;
}

/* "131000 4096 0123456789abcdef...": the library's version, bytes of workspace, and the algorithm, which this version may be
 * given again. */
bool abar__conv_algo_write(const abar__conv_product *p, char *text, size_t size)
{
    int length = snprintf(text, size, "%zu %zu ", p->api->cublasLtGetVersion(), p->algo.workspace);
    for (size_t i = 0; i < WORDS && (size_t)length < size; i++)
        length += snprintf(text + length, size - (size_t)length, "%016" PRIx64, p->algo.algo.data[i]);
    return (size_t)length < size;
}

bool abar__conv_algo_read(const char *text, abar__conv_product *p)
{
    size_t version, workspace;
    int used = 0;
    cublasLtMatmulHeuristicResult_t check = {};
    abar__conv_algo read = {};
    if (sscanf(text, "%zu %zu %n", &version, &workspace, &used) != 2 || version != p->api->cublasLtGetVersion()) return false;
    if (workspace > MAX_WORKSPACE || strlen(text + used) != 16 * WORDS) return false;
    read.workspace = workspace;
    for (size_t i = 0; i < WORDS; i++)
        if (sscanf(text + used + 16 * i, "%16" SCNx64, &read.algo.data[i]) != 1) return false;
    if (p->api->cublasLtMatmulAlgoCheck(p->blas, p->desc, p->a, p->b, p->d, p->d, &read.algo, &check) ||
        check.workspaceSize > workspace)
        return false;
    p->algo = read;
    return true;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

cublasStatus_t abar__conv_product_run(const abar__conv_product *p, void *const address[4], float beta, cudaStream_t stream)
{
    static const int places[ABAR_DNN_PASSES][3] = {{1, 0, 2}, {1, 2, 0}, {0, 2, 1}}; /* of a, b, d among x, w, y */
    const int *at = places[p->pass];
    const float one = 1.0f;
    return p->api->cublasLtMatmul(p->blas, p->desc, &one, address[at[0]], p->a, address[at[1]], p->b, &beta, address[at[2]],
                                  p->d, address[at[2]], p->d, &p->algo.algo, address[3], p->algo.workspace, stream);
}
