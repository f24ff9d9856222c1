/* y = x W^T + b, ReLU if fused, and its gradients dW = dz^T x, db = sum of dz over rows, dx = dz W, where dz is dy before the
 * ReLU: products by cuBLASLt, algorithms picked when the layer is made, none that adds in an order of its own.
 *
 * cuBLASLt counts columns first: what is (R, C) here is a C x R matrix there, and every product is written transposed. */
#include "device/cuda/bias_relu.h"
#include "device/cuda/cuda_nn_handles.h"

enum { MAX_WORKSPACE = 32 << 20 };

typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} product;

typedef struct linear {
    product y, dx, dw;
    bool tail;         /* bias and ReLU follow the product in a pass of their own */
    size_t bias_bytes; /* of the bf16 copy of the bias in front of the forward product's workspace; 0: none is needed */
} linear;

/* One side of a product: how it lies in memory as (rows, width), and whether it is to be transposed. */
typedef struct side {
    cudaDataType_t type;
    int64_t rows, width;
    cublasOperation_t op;
} side;

static int64_t inputs(const abar__op *op) { return op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t outputs(const abar__op *op) { return op->desc.out.dim[op->desc.out.ndim - 1]; }
static int64_t row_count(const abar__op *op) { return abar__shape_count(&op->desc.out) / outputs(op); }

/* ---- making ----------------------------------------------------------------------------------------------------- */

static abar_status explain(abar_device *dev, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuBLASLt: %s", cublasLtGetStatusString(status));
}

static void release_product(product *p)
{
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) cublasLtMatmulDescDestroy(p->desc);
}

static void destroy(abar__op *op)
{
    linear *l = (linear *)op->priv;
    release_product(&l->y);
    release_product(&l->dx);
    release_product(&l->dw);
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

/* The best algorithm of those whose sums have one order, for memory aligned as the arena is. */
static cublasStatus_t pick(cublasLtHandle_t blas, product *p)
{
    const uint64_t workspace = MAX_WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = 16;
    const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t wish;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&wish);
    if (status) return status;
    status = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!status)
        status = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                      sizeof reductions);
    for (int i = 0; i < 4 && !status; i++) status = cublasLtMatmulPreferenceSetAttribute(wish, sides[i], &align, sizeof align);
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    if (!status) status = cublasLtMatmulAlgoGetHeuristic(blas, p->desc, p->a, p->b, p->d, p->d, wish, 1, &best, &found);
    cublasLtMatmulPreferenceDestroy(wish);
    if (status) return status;
    if (!found) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (best.state) return best.state;
    p->algo = best.algo;
    p->workspace = best.workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

/* d (rows, width) = a and b multiplied as cuBLASLt sees them; epilogue: behind it. */
static cublasStatus_t make_product(const abar_device *dev, cublasLtHandle_t blas, side a, side b, side d,
                                   cublasLtEpilogue_t epilogue, product *p)
{
    const bool tf32 = dev->config.precision == ABAR_PRECISION_TF32;
    const void *aligned =
        (const void *)(uintptr_t)ABAR_ALIGN; /* stands for the bias, of which only the alignment is looked at */
    const int32_t behind = epilogue;
    cublasStatus_t status =
        cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a.op, sizeof a.op);
    if (!status) status = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b.op, sizeof b.op);
    if (!status) status = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &behind, sizeof behind);
    if (!status && epilogue & CUBLASLT_EPILOGUE_BIAS)
        status = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
    if (!status) status = cublasLtMatrixLayoutCreate(&p->a, a.type, (uint64_t)a.width, (uint64_t)a.rows, a.width);
    if (!status) status = cublasLtMatrixLayoutCreate(&p->b, b.type, (uint64_t)b.width, (uint64_t)b.rows, b.width);
    if (!status) status = cublasLtMatrixLayoutCreate(&p->d, d.type, (uint64_t)d.width, (uint64_t)d.rows, d.width);
    return status ? status : pick(blas, p);
}

static cublasStatus_t make_products(const abar__op *op, cublasLtHandle_t blas, linear *l)
{
    const bool bias = op->desc.bias && !l->tail, relu = op->desc.activation == ABAR_ACT_RELU && !l->tail;
    const cublasLtEpilogue_t epilogue = bias && relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                        : bias       ? CUBLASLT_EPILOGUE_BIAS
                                        : relu       ? CUBLASLT_EPILOGUE_RELU
                                                     : CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t type = abar__cuda_is_bf16(op->dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t in = inputs(op), out = outputs(op), rows = row_count(op);
    const side x = {type, rows, in, CUBLAS_OP_N}, w = {type, out, in, CUBLAS_OP_N}, z = {type, rows, out, CUBLAS_OP_N};
    const side w_turned = {type, out, in, CUBLAS_OP_T}, z_turned = {type, rows, out, CUBLAS_OP_T};
    const side dw = {CUDA_R_32F, out, in, CUBLAS_OP_N};
    cublasStatus_t status = make_product(op->dev, blas, w_turned, x, z, epilogue, &l->y);
    if (!status) status = make_product(op->dev, blas, x, z_turned, dw, CUBLASLT_EPILOGUE_DEFAULT, &l->dw);
    if (!status && op->desc.need_dx[0]) status = make_product(op->dev, blas, w, z, x, CUBLASLT_EPILOGUE_DEFAULT, &l->dx);
    return status;
}

/* cuBLASLt knows no algorithm for such widths. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* With bias and ReLU behind the product; where that is refused, and in bf16 where there are both, with a pass of their own. */
static cublasStatus_t make_either(abar__op *op, cublasLtHandle_t blas, linear *l)
{
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    l->tail = op->desc.bias && relu && abar__cuda_is_bf16(op->dev);
    const cublasStatus_t made = make_products(op, blas, l);
    if (!is_refusal(made) || l->tail || !(op->desc.bias || relu)) return made;
    destroy(op);
    *l = {};
    l->tail = true;
    return make_products(op, blas, l);
}

static abar_status create(abar__op *op)
{
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    abar__cuda_nn_state *nn;
    if (!relu && op->desc.activation != ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__cuda_blas(op->dev, &nn));
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(linear), &op->priv));
    op->priv_bytes = sizeof(linear);
    linear *l = (linear *)op->priv;
    const cublasStatus_t made = make_either(op, nn->blas, l);
    abar_status status = is_refusal(made) ? ABAR_E_UNSUPPORTED : explain(op->dev, made);
    if (status < 0) {
        destroy(op);
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    if (op->desc.bias && !l->tail && abar__cuda_is_bf16(op->dev)) /* cuBLASLt adds a bias of the output's type */
        l->bias_bytes = abar__round_up((size_t)outputs(op) * sizeof(bf16), ABAR_CUDA_ALIGN);
    size_t scratch = op->desc.bias ? abar__cuda_bias_partials(op->dev, row_count(op), outputs(op)) : 0;
    const size_t needs[] = {l->bias_bytes + l->y.workspace, l->dx.workspace, l->dw.workspace};
    for (int i = 0; i < 3; i++) scratch = needs[i] > scratch ? needs[i] : scratch;
    op->scratch_bytes = scratch ? scratch + ABAR_CUDA_ALIGN : 0;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X | (relu ? (unsigned)ABAR_NEEDS_Y : 0u);
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static abar_status multiply(abar__op *op, char *workspace, const product *p, const void *a, const void *b, float beta, void *d)
{
    const abar__cuda *cuda = abar__cuda_of(op->dev);
    const abar__cuda_nn_state *nn = (const abar__cuda_nn_state *)cuda->nn;
    const float one = 1.0f;
    return explain(op->dev, cublasLtMatmul(nn->blas, p->desc, &one, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algo,
                                           workspace, p->workspace, cuda->stream));
}

static const void *weight_of(const abar__op *op, const abar__op_args *a)
{
    return abar__cuda_is_bf16(op->dev) ? a->shadow[0] : a->param[0];
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    const void *bias = op->desc.bias ? a->param[1] : NULL;
    if (l->bias_bytes) {
        abar__cuda_round_bias(op->dev, outputs(op), (const float *)bias, workspace);
        bias = workspace;
    }
    if (bias && !l->tail) ABAR_TRY(explain(op->dev, set(l->y.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)));
    ABAR_TRY(multiply(op, workspace + l->bias_bytes, &l->y, weight_of(op, a), a->x[0], 0.0f, a->y));
    if (l->tail)
        abar__cuda_bias_relu(op->dev, a->y, (const float *)bias, op->desc.activation == ABAR_ACT_RELU, row_count(op),
                             outputs(op));
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    abar__cuda_bias_relu_gradient(op->dev, a->dy, op->desc.activation == ABAR_ACT_RELU ? a->y : NULL,
                                  op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, row_count(op), outputs(op),
                                  (float *)workspace);
    ABAR_TRY(multiply(op, workspace, &l->dw, a->x[0], a->dy, a->accumulate ? 1.0f : 0.0f, a->dparam[0]));
    if (op->desc.need_dx[0]) ABAR_TRY(multiply(op, workspace, &l->dx, weight_of(op, a), a->dy, 0.0f, a->dx[0]));
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_linear = {"cublaslt-linear", ABAR_OP_LINEAR, create, forward, backward, destroy};
