/* A product of cuBLASLt: its description, the algorithms that are offered for it, and running it. */
#include "device/cuda/nn/linear.h"

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

void abar__lt_release(const abar_device *dev, abar__lt_product *p)
{
    const abar__blas_api *api = abar__blas_api_of(dev);
    if (p->d) api->cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) api->cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) api->cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) api->cublasLtMatmulDescDestroy(p->desc);
    *p = {};
}

cublasStatus_t abar__lt_set(const abar_device *dev, const abar__lt_product *p, cublasLtMatmulDescAttributes_t what,
                            const void *value, size_t bytes)
{
    return abar__blas_api_of(dev)->cublasLtMatmulDescSetAttribute(p->desc, what, value, bytes);
}

cublasStatus_t abar__lt_ask(const abar__cuda_nn_state *nn, const abar__lt_product *p, int most,
                            cublasLtMatmulHeuristicResult_t *out, int *found)
{
    const uint64_t workspace = ABAR_LT_WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = 16;
    const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const abar__blas_api *api = &nn->blas_api;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = api->cublasLtMatmulPreferenceCreate(&preference);
    if (status) return status;
    status = api->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                       sizeof workspace);
    if (!status)
        status = api->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                           sizeof reductions);
    for (int i = 0; i < 4 && !status; i++)
        status = api->cublasLtMatmulPreferenceSetAttribute(preference, sides[i], &align, sizeof align);
    *found = 0;
    if (!status)
        status = api->cublasLtMatmulAlgoGetHeuristic(nn->blas, p->desc, p->a, p->b, p->d, p->d, preference, most, out, found);
    api->cublasLtMatmulPreferenceDestroy(preference);
    if (status) return status;
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

bool abar__lt_fits(const abar__cuda_nn_state *nn, const abar__lt_product *p, const cublasLtMatmulAlgo_t *algo,
                   size_t *workspace)
{
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        nn->blas_api.cublasLtMatmulAlgoCheck(nn->blas, p->desc, p->a, p->b, p->d, p->d, algo, &result);
    *workspace = result.workspaceSize;
    return !status && !result.state && result.workspaceSize <= ABAR_LT_WORKSPACE;
}

static cublasStatus_t pick(const abar__cuda_nn_state *nn, abar__lt_product *p)
{
    cublasLtMatmulHeuristicResult_t best;
    int found;
    cublasStatus_t status = abar__lt_ask(nn, p, 1, &best, &found);
    if (!status) status = best.state;
    if (status) return status;
    p->algo = best.algo;
    p->workspace = best.workspaceSize;
    return status;
}

cublasStatus_t abar__lt_make(const abar_device *dev, const abar__cuda_nn_state *nn, abar__lt_side a, abar__lt_side b,
                             abar__lt_side d, cublasLtEpilogue_t epilogue, abar__lt_product *p)
{
    const bool tf32 = dev->config.precision == ABAR_PRECISION_TF32;
    const void *aligned = (const void *)(uintptr_t)
        ABAR_ALIGN; /* in place of what the epilogue reads and writes, of which only the alignment matters here */
    const int32_t behind = epilogue;
    const abar__blas_api *api = &nn->blas_api;
    p->epilogue = epilogue;
    cublasStatus_t status =
        api->cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_TRANSA, &a.op, sizeof a.op);
    if (!status) status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_TRANSB, &b.op, sizeof b.op);
    if (!status) status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE, &behind, sizeof behind);
    if (!status && epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB))
        status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
    if (!status && (epilogue & (CUBLASLT_EPILOGUE_GELU | CUBLASLT_EPILOGUE_DGELU))) {
        status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned, sizeof aligned);
        if (!status) status = abar__lt_set(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d.pitch, sizeof d.pitch);
    }
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->a, a.type, (uint64_t)a.width, (uint64_t)a.rows, a.pitch);
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->b, b.type, (uint64_t)b.width, (uint64_t)b.rows, b.pitch);
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->d, d.type, (uint64_t)d.width, (uint64_t)d.rows, d.pitch);
    return status ? status : pick(nn, p);
}

cublasStatus_t abar__lt_run(abar_device *dev, char *workspace, const abar__lt_product *p, const void *a, const void *b,
                            float beta, void *d)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    const abar__cuda_nn_state *nn = (const abar__cuda_nn_state *)cuda->nn;
    const float one = 1.0f;
    return nn->blas_api.cublasLtMatmul(nn->blas, p->desc, &one, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algo, workspace,
                                       p->workspace, cuda->stream);
}

cublasStatus_t abar__lt_make_slope(const abar__op *op, const abar__cuda_nn_state *nn, const abar__lt_linear *l,
                                   const abar__lt_part *p, cublasLtEpilogue_t epilogue, abar__lt_product *to)
{
    const cudaDataType_t type = abar__cuda_is_bf16(op->dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t in = abar__lt_inputs(op), rows = abar__lt_rows(op);
    const abar__lt_side x = {type, rows, in, in, CUBLAS_OP_N}, z_turned = {type, rows, p->outputs, l->pitch, CUBLAS_OP_T};
    const abar__lt_side dw = {CUDA_R_32F, p->outputs, in, in, CUBLAS_OP_N};
    return abar__lt_make(op->dev, nn, x, z_turned, dw, epilogue, to);
}

void abar__lt_make_gelus(const abar__op *op, const abar__cuda_nn_state *nn, abar__lt_linear *l)
{
    const int64_t in = abar__lt_inputs(op), out = abar__lt_outputs(op), rows = abar__lt_rows(op);
    const abar__lt_side x = {CUDA_R_16BF, rows, in, in, CUBLAS_OP_N}, z = {CUDA_R_16BF, rows, out, l->pitch, CUBLAS_OP_N};
    const abar__lt_side w = {CUDA_R_16BF, out, in, in, CUBLAS_OP_N}, w_turned = {CUDA_R_16BF, out, in, in, CUBLAS_OP_T};
    const bool possible = abar__cuda_is_bf16(op->dev) && l->n_parts == 1 && !l->tail;
    const bool ends = op->desc.activation == ABAR_ACT_GELU_TANH && out % 8 == 0; /* rows of 16 bytes beside the result */
    const bool behind = op->desc.input_activation == ABAR_ACT_GELU_TANH && in % 8 == 0;
    abar__lt_release(op->dev, &l->y_gelu);
    abar__lt_release(op->dev, &l->dx_slope);
    if (possible && ends &&
        abar__lt_make(op->dev, nn, w_turned, x, z, op->desc.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX,
                      &l->y_gelu))
        abar__lt_release(op->dev, &l->y_gelu);
    if (possible && behind && op->desc.need_dx[0] && abar__lt_make(op->dev, nn, w, z, x, CUBLASLT_EPILOGUE_DGELU, &l->dx_slope))
        abar__lt_release(op->dev, &l->dx_slope);
}
