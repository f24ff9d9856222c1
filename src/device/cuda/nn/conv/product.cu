/* 1x1 convolutions of stride 1 as products of matrices, by cuBLASLt (lt_product.h). With channels last x is (N H W, C) and y
 * (N H W, O), so
 *     y = x w^T    dx = dy w    dw = dy^T x    w: (O, C) */
#include "device/cuda/nn/conv/dnn_conv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
    ADVICE = 24,        /* algorithms that are asked for, */
    CUT = 3,            /* those of them whose pixels are cut otherwise, too, */
    SLICE_PIXELS = 128, /* and pixels of a slice, at least: with fewer, algorithms that cuBLASLt accepts may fail */
};

bool abar__conv_is_product(const abar__dnn_shape *shape)
{
    const abar_window *w = &shape->window;
    for (int i = 0; i < 2; i++)
        if (w->kernel[i] != 1 || w->stride[i] != 1 || w->pad[i] != 0) return false;
    return w->groups == 1;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

bool abar__conv_product_make(const abar_device *dev, const abar__cuda_nn_state *nn, const abar__dnn_shape *shape, int pass,
                             abar__conv_product *out)
{
    const cudaDataType_t type = abar__cuda_is_bf16(dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t pixels = shape->in[0] * shape->in[2] * shape->in[3], c = shape->in[1], o = shape->out[1];
    const cublasOperation_t as_is = CUBLAS_OP_N, turned = CUBLAS_OP_T;
    const abar__lt_side sides[ABAR_DNN_PASSES][3] = {
        {{type, o, c, c, turned}, {type, pixels, c, c, as_is}, {type, pixels, o, o, as_is}},       /* w, x, y */
        {{type, o, c, c, as_is}, {type, pixels, o, o, as_is}, {type, pixels, c, c, as_is}},        /* w, dy, dx */
        {{type, pixels, c, c, as_is}, {type, pixels, o, o, turned}, {CUDA_R_32F, o, c, c, as_is}}, /* x, dy, dw */
    };
    const abar__lt_side *side = sides[pass];
    *out = {};
    out->pass = pass;
    out->pixels = pixels;
    cublasStatus_t status = abar__lt_open(dev, nn, side[0].op, side[1].op, &out->of);
    if (!status) status = abar__lt_lay_out(&out->of, side[0], side[1], side[2]);
    if (status) abar__conv_product_release(out);
    return !status;
}

void abar__conv_product_release(abar__conv_product *p)
{
    abar__lt_release(&p->of);
    *p = {};
}

/* ---- algorithms --------------------------------------------------------------------------------------------------- */

/* Adds the first of n algorithms with sums over other numbers of slices; returns how many there are then. A weight gradient is
 * a small matrix and sums over all pixels: it fills the device only in slices, and the heuristics offer few numbers of them. */
static int add_cuts(const abar__conv_product *p, abar__conv_algo *algos, int n, int max)
{
    static const int32_t cuts[] = {4, 8, 16, 32, 64};
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const abar__blas_api *api = &p->of.nn->blas_api;
    const int first = n < CUT ? n : CUT;
    for (int i = 0; i < first; i++)
        for (const int32_t cut : cuts) {
            abar__conv_algo a = algos[i];
            if (n == max) return n;
            if (p->pixels < (int64_t)cut * SLICE_PIXELS) break;
            if (api->cublasLtMatmulAlgoConfigSetAttribute(&a.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &cut, sizeof cut) ||
                api->cublasLtMatmulAlgoConfigSetAttribute(&a.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                          sizeof scheme))
                continue;
            if (abar__lt_fits(&p->of, &a.algo, &a.workspace)) algos[n++] = a;
        }
    return n;
}

int abar__conv_algos(const abar__conv_product *p, int max, abar__conv_algo *out)
{
    cublasLtMatmulHeuristicResult_t advice[ADVICE];
    int found, taken = 0;
    if (abar__lt_ask(&p->of, max < ADVICE ? max : ADVICE, advice, &found)) found = 0;
    for (int i = 0; i < found; i++)
        if (advice[i].state == CUBLAS_STATUS_SUCCESS) out[taken++] = {advice[i].algo, advice[i].workspaceSize};
    return p->pass == ABAR_DNN_WEIGHTS ? add_cuts(p, out, taken, max) : taken;
}

/* "131000 4096 0123456789abcdef...": the library's version, bytes of workspace, and the algorithm, which this version may be
 * given again. */
bool abar__conv_algo_write(const abar__conv_product *p, char *text, size_t size)
{
    int length = snprintf(text, size, "%zu %zu ", p->of.nn->blas_api.cublasLtGetVersion(), p->of.workspace);
    for (size_t i = 0; i < WORDS && (size_t)length < size; i++)
        length += snprintf(text + length, size - (size_t)length, "%016" PRIx64, p->of.algo.data[i]);
    return (size_t)length < size;
}

bool abar__conv_algo_read(const char *text, abar__conv_product *p)
{
    size_t version, workspace, needed;
    int used = 0;
    cublasLtMatmulAlgo_t algo = {};
    if (sscanf(text, "%zu %zu %n", &version, &workspace, &used) != 2) return false;
    if (version != p->of.nn->blas_api.cublasLtGetVersion()) return false;
    if (strlen(text + used) != 16 * WORDS) return false;
    for (size_t i = 0; i < WORDS; i++)
        if (sscanf(text + used + 16 * i, "%16" SCNx64, &algo.data[i]) != 1) return false;
    if (!abar__lt_fits(&p->of, &algo, &needed) || needed > workspace || workspace > ABAR_LT_WORKSPACE) return false;
    p->of.algo = algo;
    p->of.workspace = workspace; /* the heuristics' may be larger */
    return true;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

cublasStatus_t abar__conv_product_run(const abar__conv_product *p, void *const address[4], float beta, cudaStream_t stream)
{
    static const int places[ABAR_DNN_PASSES][3] = {{1, 0, 2}, {1, 2, 0}, {0, 2, 1}}; /* of a, b, d among x, w, y */
    const int *at = places[p->pass];
    return abar__lt_run(&p->of, (char *)address[3], address[at[0]], address[at[1]], beta, address[at[2]], stream);
}
