/* A product of cuBLASLt: its description, the algorithms that are offered for it, and running it. */
#include "device/cuda/nn/lt_product.h"

abar_status abar__lt_explain(abar_device *dev, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuBLASLt: %s",
                      abar__blas_api_of(dev)->cublasLtGetStatusString(status));
}

bool abar__lt_is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- descriptions -------------------------------------------------------------------------------------------------- */

cublasStatus_t abar__lt_open(const abar_device *dev, const abar__cuda_nn_state *nn, cublasOperation_t a, cublasOperation_t b,
                             abar__lt_product *p)
{
    const bool tf32 = dev->config.precision == ABAR_PRECISION_TF32;
    p->nn = nn;
    cublasStatus_t status =
        nn->blas_api.cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = abar__lt_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!status) status = abar__lt_set(p, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    return status;
}

static cublasStatus_t make_layout(const abar__lt_product *p, const abar__lt_side &s, cublasLtMatrixLayout_t *out)
{
    return p->nn->blas_api.cublasLtMatrixLayoutCreate(out, s.type, (uint64_t)s.width, (uint64_t)s.rows, s.pitch);
}

cublasStatus_t abar__lt_lay_out(abar__lt_product *p, const abar__lt_side &a, const abar__lt_side &b, const abar__lt_side &d)
{
    cublasStatus_t status = make_layout(p, a, &p->a);
    if (!status) status = make_layout(p, b, &p->b);
    if (!status) status = make_layout(p, d, &p->d);
    return status;
}

void abar__lt_release(abar__lt_product *p)
{
    if (p->d) p->nn->blas_api.cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) p->nn->blas_api.cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) p->nn->blas_api.cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) p->nn->blas_api.cublasLtMatmulDescDestroy(p->desc);
    *p = {};
}

cublasStatus_t abar__lt_set(const abar__lt_product *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return p->nn->blas_api.cublasLtMatmulDescSetAttribute(p->desc, what, value, bytes);
}

/* ---- algorithms ---------------------------------------------------------------------------------------------------- */

/* What is asked of an algorithm: sums of a fixed order, memory aligned like the arena. */
static cublasStatus_t prefer(const abar__blas_api *api, cublasLtMatmulPreference_t preference)
{
    const uint64_t workspace = ABAR_LT_WORKSPACE;
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

cublasStatus_t abar__lt_ask(const abar__lt_product *p, int most, cublasLtMatmulHeuristicResult_t *out, int *found)
{
    const abar__blas_api *api = &p->nn->blas_api;
    cublasLtMatmulPreference_t preference;
    *found = 0;
    cublasStatus_t status = api->cublasLtMatmulPreferenceCreate(&preference);
    if (status) return status;
    status = prefer(api, preference);
    if (!status)
        status =
            api->cublasLtMatmulAlgoGetHeuristic(p->nn->blas, p->desc, p->a, p->b, p->d, p->d, preference, most, out, found);
    api->cublasLtMatmulPreferenceDestroy(preference);
    if (status) return status;
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

bool abar__lt_fits(const abar__lt_product *p, const cublasLtMatmulAlgo_t *algo, size_t *workspace)
{
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        p->nn->blas_api.cublasLtMatmulAlgoCheck(p->nn->blas, p->desc, p->a, p->b, p->d, p->d, algo, &result);
    *workspace = result.workspaceSize;
    return !status && !result.state && result.workspaceSize <= ABAR_LT_WORKSPACE;
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

cublasStatus_t abar__lt_run(const abar__lt_product *p, char *workspace, const void *a, const void *b, float beta, void *d,
                            cudaStream_t stream)
{
    const float one = 1.0f;
    return p->nn->blas_api.cublasLtMatmul(p->nn->blas, p->desc, &one, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algo,
                                          workspace, p->workspace, stream);
}
