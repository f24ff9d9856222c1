/* The products of a linear layer: which there are, and what follows them. */
#include "device/cuda/nn/linear.h"

/* Gives p the first suggestion. */
static cublasStatus_t pick(abar__lt_product *p)
{
    cublasLtMatmulHeuristicResult_t best;
    int found;
    cublasStatus_t status = abar__lt_ask(p, 1, &best, &found);
    if (!status) status = best.state;
    if (status) return status;
    p->algo = best.algo;
    p->workspace = best.workspaceSize;
    return status;
}

/* A GELU's epilogue reads or writes besides what lies in memory as the result does. */
static cublasStatus_t set_epilogue(const abar__lt_product *p, int64_t pitch)
{
    /* in place of what the epilogue reads and writes, of which only the alignment matters here */
    const void *aligned = (const void *)(uintptr_t)ABAR_ALIGN;
    const int32_t behind = p->epilogue;
    cublasStatus_t status = abar__lt_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &behind, sizeof behind);
    if (!status && p->epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB))
        status = abar__lt_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
    if (status || !(p->epilogue & (CUBLASLT_EPILOGUE_GELU | CUBLASLT_EPILOGUE_DGELU))) return status;
    status = abar__lt_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned, sizeof aligned);
    return status ? status : abar__lt_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pitch, sizeof pitch);
}

cublasStatus_t abar__lt_make(const abar_device *dev, const abar__cuda_nn_state *nn, abar__lt_side a, abar__lt_side b,
                             abar__lt_side d, cublasLtEpilogue_t epilogue, abar__lt_product *p)
{
    p->epilogue = epilogue;
    cublasStatus_t status = abar__lt_open(dev, nn, a.op, b.op, p);
    if (!status) status = set_epilogue(p, d.pitch);
    if (!status) status = abar__lt_lay_out(p, a, b, d);
    return status ? status : pick(p);
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
    abar__lt_release(&l->y_gelu);
    abar__lt_release(&l->dx_slope);
    if (possible && ends &&
        abar__lt_make(op->dev, nn, w_turned, x, z, op->desc.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX,
                      &l->y_gelu))
        abar__lt_release(&l->y_gelu);
    if (possible && behind && op->desc.need_dx[0] && abar__lt_make(op->dev, nn, w, z, x, CUBLASLT_EPILOGUE_DGELU, &l->dx_slope))
        abar__lt_release(&l->dx_slope);
}
