/* y = x W^T + b, ReLU if fused, and its gradients dW = dz^T x, db = sum of dz over rows, dx = dz W, where dz is dy before the
 * ReLU: products by cuBLASLt, algorithms picked when the layer is made, none that adds in an order of its own.
 *
 * cuBLASLt counts columns first: what is (R, C) here is a C x R matrix there, and every product is written transposed.
 *
 * Its fast kernels want 16 bytes to divide every row, and where it begins. A head whose number of outputs does not (50257
 * tokens) leaves PADDED rows where their reader allows, and its outputs are two parts: as many as can be had so, and the few
 * left over. */
#include "device/cuda/bias_relu.h"
#include "device/cuda/cuda_nn_handles.h"

enum {
    MAX_WORKSPACE = 32 << 20,
    FAST_BYTES = 16,
    WIDE = 1024, /* outputs from which on a second product for the last few pays */
};

typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} product;

/* Outputs first .. first + outputs - 1. */
typedef struct part {
    product y, dx, dw;
    int64_t first, outputs;
} part;

typedef struct linear {
    part parts[2];
    int n_parts;
    int64_t pitch;     /* from row to row of the output */
    bool tail;         /* bias and ReLU follow the product in a pass of their own */
    size_t bias_bytes; /* of the bf16 copy of the bias in front of the forward product's workspace; 0: none is needed */
} linear;

/* One side of a product: how it lies in memory as (rows, width), and whether it is to be transposed. */
typedef struct side {
    cudaDataType_t type;
    int64_t rows, width, pitch;
    cublasOperation_t op;
} side;

static int64_t inputs(const abar__op *op) { return op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t outputs(const abar__op *op) { return op->desc.out.dim[op->desc.out.ndim - 1]; }
static size_t element_size(const abar__op *op) { return abar_dtype_size(op->dev->activation); }
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
    for (int i = 0; i < l->n_parts; i++) {
        release_product(&l->parts[i].y);
        release_product(&l->parts[i].dx);
        release_product(&l->parts[i].dw);
    }
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
    if (!status) status = cublasLtMatrixLayoutCreate(&p->a, a.type, (uint64_t)a.width, (uint64_t)a.rows, a.pitch);
    if (!status) status = cublasLtMatrixLayoutCreate(&p->b, b.type, (uint64_t)b.width, (uint64_t)b.rows, b.pitch);
    if (!status) status = cublasLtMatrixLayoutCreate(&p->d, d.type, (uint64_t)d.width, (uint64_t)d.rows, d.pitch);
    return status ? status : pick(blas, p);
}

/* The products of one part: z has its columns of the output, w and dw their rows. */
static cublasStatus_t make_part(const abar__op *op, cublasLtHandle_t blas, const linear *l, part *p)
{
    const bool bias = op->desc.bias && !l->tail, relu = op->desc.activation == ABAR_ACT_RELU && !l->tail;
    const cublasLtEpilogue_t epilogue = bias && relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                        : bias       ? CUBLASLT_EPILOGUE_BIAS
                                        : relu       ? CUBLASLT_EPILOGUE_RELU
                                                     : CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t type = abar__cuda_is_bf16(op->dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t in = inputs(op), out = p->outputs, rows = row_count(op);
    const side x = {type, rows, in, in, CUBLAS_OP_N}, w = {type, out, in, in, CUBLAS_OP_N};
    const side z = {type, rows, out, l->pitch, CUBLAS_OP_N}, dw = {CUDA_R_32F, out, in, in, CUBLAS_OP_N};
    side w_turned = w, z_turned = z;
    w_turned.op = z_turned.op = CUBLAS_OP_T;
    cublasStatus_t status = make_product(op->dev, blas, w_turned, x, z, epilogue, &p->y);
    if (!status) status = make_product(op->dev, blas, x, z_turned, dw, CUBLASLT_EPILOGUE_DEFAULT, &p->dw);
    if (!status && op->desc.need_dx[0]) status = make_product(op->dev, blas, w, z, x, CUBLASLT_EPILOGUE_DEFAULT, &p->dx);
    return status;
}

static cublasStatus_t make_products(const abar__op *op, cublasLtHandle_t blas, linear *l)
{
    const int64_t out = outputs(op), whole = out - out % (int64_t)(FAST_BYTES / element_size(op));
    const bool two = op->out_layout == ABAR_LAYOUT_PADDED && out >= WIDE && whole < out;
    l->pitch = abar__row_pitch(op->dev, out, op->out_layout);
    l->n_parts = two ? 2 : 1;
    l->parts[0].outputs = two ? whole : out;
    l->parts[1].first = whole;
    l->parts[1].outputs = out - whole;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < l->n_parts && !status; i++) status = make_part(op, blas, l, &l->parts[i]);
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
    const bool relu = op->desc.activation == ABAR_ACT_RELU, odd = (size_t)outputs(op) * element_size(op) % FAST_BYTES != 0;
    abar__cuda_nn_state *nn;
    if (!relu && op->desc.activation != ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__cuda_blas(op->dev, &nn));
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(linear), &op->priv));
    op->priv_bytes = sizeof(linear);
    linear *l = (linear *)op->priv;
    op->in_layout[0] = ABAR_LAYOUT_STRIDED;
    op->out_layout = op->desc.pad && odd ? ABAR_LAYOUT_PADDED : ABAR_LAYOUT_STRIDED;
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
    for (int i = 0; i < l->n_parts; i++) {
        const part *p = &l->parts[i];
        const size_t needs[] = {l->bias_bytes + p->y.workspace, p->dx.workspace, p->dw.workspace};
        for (int k = 0; k < 3; k++) scratch = needs[k] > scratch ? needs[k] : scratch;
    }
    op->scratch_bytes = scratch ? scratch + ABAR_CUDA_ALIGN : 0;
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

/* The rows of the weight that make this part. */
static const void *weight_of(const abar__op *op, const abar__op_args *a, const part *p)
{
    const void *weight = abar__cuda_is_bf16(op->dev) ? a->shadow[0] : a->param[0];
    return (const char *)weight + (size_t)(p->first * inputs(op)) * element_size(op);
}

static void *columns_of(const abar__op *op, void *z, const part *p) { return (char *)z + (size_t)p->first * element_size(op); }

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    const float *bias = op->desc.bias ? (const float *)a->param[1] : NULL;
    const size_t bias_element = l->bias_bytes ? sizeof(bf16) : sizeof(float);
    if (l->bias_bytes) abar__cuda_round_bias(op->dev, outputs(op), bias, workspace);
    for (int i = 0; i < l->n_parts; i++) {
        part *p = &l->parts[i];
        const void *behind = (l->bias_bytes ? workspace : (const char *)bias) + (size_t)p->first * bias_element;
        if (bias && !l->tail)
            ABAR_TRY(explain(op->dev, set(p->y.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &behind, sizeof behind)));
        ABAR_TRY(multiply(op, workspace + l->bias_bytes, &p->y, weight_of(op, a, p), a->x[0], 0.0f, columns_of(op, a->y, p)));
    }
    if (l->tail)
        abar__cuda_bias_relu(op->dev, a->y, bias, op->desc.activation == ABAR_ACT_RELU, row_count(op), outputs(op), l->pitch);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    abar__cuda_bias_relu_gradient(op->dev, a->dy, op->desc.activation == ABAR_ACT_RELU ? a->y : NULL,
                                  op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, row_count(op), outputs(op),
                                  (float *)workspace, l->pitch);
    for (int i = 0; i < l->n_parts; i++) {
        const part *p = &l->parts[i];
        const void *dz = columns_of(op, a->dy, p);
        float *dw = (float *)a->dparam[0] + p->first * inputs(op);
        ABAR_TRY(multiply(op, workspace, &p->dw, a->x[0], dz, a->accumulate ? 1.0f : 0.0f, dw));
        if (op->desc.need_dx[0])
            ABAR_TRY(multiply(op, workspace, &p->dx, weight_of(op, a, p), dz, i > 0 ? 1.0f : 0.0f, a->dx[0]));
    }
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_linear = {"cublaslt-linear", ABAR_OP_LINEAR, create, forward, backward, destroy};
