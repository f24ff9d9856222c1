/* y = act(z), z = x W^T + b, act: ReLU or GELU if fused, and its gradients dW = dz^T x, db = sum of dz over rows, dx = dz W. A
 * GELU's z is saved. The GELU is the product's epilogue or a pass; its derivative that of the product which makes the gradient
 * (the next layer's dx_slope), or a pass together with db. Products are cuBLASLt's, restricted to algorithms whose sums have a
 * fixed order. Its algorithms are measured once per shape, and so is whether computing db together with dW is faster;
 * deterministic runs use cuBLASLt's first suggestion, and our own kernels for db.
 *
 * Its fast kernels need rows that begin at, and whose length is, a multiple of 16 bytes. A head with another number of
 * outputs (50257 tokens) writes PADDED rows where their reader allows it, and is split into two parts: as many outputs as
 * are a multiple, and the few that are left. */
#include "device/cuda/nn/activation.h"
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/linear.h"

enum {
    FAST_BYTES = 16,
    WIDE = 1024, /* from so many outputs on, a second product for the last few is worthwhile */
};

typedef abar__lt_linear linear;
typedef abar__lt_part part;
typedef abar__lt_side side;
typedef abar__lt_product product;

static int64_t inputs(const abar__op *op) { return abar__lt_inputs(op); }
static int64_t outputs(const abar__op *op) { return abar__lt_outputs(op); }
static int64_t row_count(const abar__op *op) { return abar__lt_rows(op); }

/* ---- making ----------------------------------------------------------------------------------------------------- */

static void release_parts(linear *l)
{
    for (int i = 0; i < 2; i++) {
        abar__lt_release(&l->parts[i].y);
        abar__lt_release(&l->parts[i].dx);
        abar__lt_release(&l->parts[i].dw);
        l->parts[i] = {};
    }
}

static void destroy(abar__op *op)
{
    linear *l = (linear *)op->priv;
    release_parts(l);
    abar__lt_release(&l->dw_db);
    abar__lt_release(&l->y_gelu);
    abar__lt_release(&l->dx_slope);
}

/* The products of one part: z is its columns of the output, w and dw are its rows. */
static cublasStatus_t make_part(const abar__op *op, const abar__cuda_nn_state *nn, const linear *l, part *p)
{
    const bool bias = op->desc.bias && !l->tail, relu = op->desc.activation == ABAR_ACT_RELU && !l->tail;
    const cublasLtEpilogue_t epilogue = bias && relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                        : bias       ? CUBLASLT_EPILOGUE_BIAS
                                        : relu       ? CUBLASLT_EPILOGUE_RELU
                                                     : CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t type = abar__cuda_is_bf16(op->dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t in = inputs(op), out = p->outputs, rows = row_count(op);
    const side x = {type, rows, in, in, CUBLAS_OP_N}, z = {type, rows, out, l->pitch, CUBLAS_OP_N};
    const side w = {type, out, in, in, CUBLAS_OP_N}, w_turned = {type, out, in, in, CUBLAS_OP_T};
    cublasStatus_t status = abar__lt_make(op->dev, nn, w_turned, x, z, epilogue, &p->y);
    if (!status) status = abar__lt_make_slope(op, nn, l, p, CUBLASLT_EPILOGUE_DEFAULT, &p->dw);
    if (!status && op->desc.need_dx[0]) status = abar__lt_make(op->dev, nn, w, z, x, CUBLASLT_EPILOGUE_DEFAULT, &p->dx);
    return status;
}

static cublasStatus_t make_parts(const abar__op *op, const abar__cuda_nn_state *nn, linear *l, int64_t first_part)
{
    const int64_t out = outputs(op);
    release_parts(l);
    l->n_parts = first_part < out ? 2 : 1;
    l->parts[0].outputs = l->parts[1].first = first_part;
    l->parts[1].outputs = out - first_part;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < l->n_parts && !status; i++) status = make_part(op, nn, l, &l->parts[i]);
    return status;
}

/* In two parts where that is faster and possible. */
static cublasStatus_t make_products(const abar__op *op, const abar__cuda_nn_state *nn, linear *l)
{
    const int64_t out = outputs(op), whole = out - out % (int64_t)(FAST_BYTES / abar__lt_element(op));
    l->pitch = abar__row_pitch(op->dev, out, op->out_layout);
    if (op->out_layout == ABAR_LAYOUT_PADDED && out >= WIDE) {
        const cublasStatus_t status = make_parts(op, nn, l, whole);
        if (!abar__lt_is_refusal(status)) return status;
    }
    return make_parts(op, nn, l, out);
}

/* With bias and ReLU in the product's epilogue; where that is refused, and in bf16 with both, in a pass of their own. */
static cublasStatus_t make_either(abar__op *op, const abar__cuda_nn_state *nn, linear *l)
{
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    l->tail = op->desc.bias && relu && abar__cuda_is_bf16(op->dev);
    const cublasStatus_t made = make_products(op, nn, l);
    if (!abar__lt_is_refusal(made) || l->tail || !(op->desc.bias || relu)) return made;
    destroy(op);
    *l = {};
    l->tail = true;
    return make_products(op, nn, l);
}

/* ---- the operation ---------------------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Workspaces of the passes, one at a time but for those of a backward pass on two streams. Sets l->dx_scratch. */
static size_t scratch_of(const abar__op *op, linear *l)
{
    size_t forward = l->y_gelu.workspace, slope = l->dw_db.workspace, dx = l->dx_slope.workspace;
    for (int i = 0; i < l->n_parts; i++) {
        forward = larger(forward, l->parts[i].y.workspace);
        slope = larger(slope, l->parts[i].dw.workspace);
        dx = larger(dx, l->parts[i].dx.workspace);
    }
    l->dx_scratch = l->beside ? abar__round_up(slope, ABAR_CUDA_ALIGN) : 0;
    size_t most = larger(larger(forward, slope), l->dx_scratch + dx);
    if (op->desc.bias) most = larger(most, abar__cuda_bias_partials(op->dev, row_count(op), outputs(op)));
    return most ? most + ABAR_CUDA_ALIGN : 0;
}

static abar_status create(abar__op *op)
{
    const bool relu = op->desc.activation == ABAR_ACT_RELU, gelu = abar__lt_is_gelu(op->desc.activation);
    const bool odd = (size_t)outputs(op) * abar__lt_element(op) % FAST_BYTES != 0;
    abar__cuda_nn_state *nn;
    if (!relu && !gelu && op->desc.activation != ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__cuda_blas(op->dev, &nn));
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(linear), &op->priv));
    op->priv_bytes = sizeof(linear);
    linear *l = (linear *)op->priv;
    op->in_layout[0] = ABAR_LAYOUT_STRIDED;
    op->out_layout = op->desc.pad && odd && !gelu ? ABAR_LAYOUT_PADDED : ABAR_LAYOUT_STRIDED;
    const cublasStatus_t made = make_either(op, nn, l);
    abar_status status = abar__lt_is_refusal(made) ? ABAR_E_UNSUPPORTED : abar__lt_explain(op->dev, made);
    if (status >= 0 && op->dev->config.deterministic)
        abar__lt_make_gelus(op, nn, l);
    else if (status >= 0)
        status = abar__lt_choose(op, nn, l);
    if (status < 0) {
        destroy(op);
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    op->scratch_bytes = scratch_of(op, l);
    op->saved_bytes = gelu ? abar__shape_bytes(op->dev, &op->desc.out, op->out_layout) : 0;
    op->slopes_dx = l->dx_slope.desc != NULL;
    op->backward_needs = ABAR_NEEDS_X | (relu ? (unsigned)ABAR_NEEDS_Y : 0u);
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static abar_status multiply(abar__op *op, char *workspace, const product *p, const void *a, const void *b, float beta, void *d)
{
    return abar__lt_explain(op->dev, abar__lt_run(p, workspace, a, b, beta, d, abar__cuda_of(op->dev)->stream));
}

/* The rows of the weight that belong to this part. */
static const void *weight_of(const abar__op *op, const abar__op_args *a, const part *p)
{
    const void *weight = abar__cuda_is_bf16(op->dev) ? a->shadow[0] : a->param[0];
    return (const char *)weight + (size_t)(p->first * inputs(op)) * abar__lt_element(op);
}

static void *columns_of(const abar__op *op, void *z, const part *p)
{
    return (char *)z + (size_t)p->first * abar__lt_element(op);
}

static abar_status set_pointer(const abar__op *op, const product *p, cublasLtMatmulDescAttributes_t what, const void *pointer)
{
    return abar__lt_explain(op->dev, abar__lt_set(p, what, &pointer, sizeof pointer));
}

/* z, and y where it is another value, by one product. */
static abar_status product_and_gelu(abar__op *op, const abar__op_args *a, char *workspace, const void *bias)
{
    const linear *l = (const linear *)op->priv;
    const product *p = &l->y_gelu;
    if (bias) ABAR_TRY(set_pointer(op, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    ABAR_TRY(set_pointer(op, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, a->saved));
    return multiply(op, workspace, p, weight_of(op, a, &l->parts[0]), a->x[0], 0.0f, a->y);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    const bool gelu = abar__lt_is_gelu(op->desc.activation), relu = op->desc.activation == ABAR_ACT_RELU;
    const float *bias = op->desc.bias ? (const float *)a->param[1] : NULL;
    const char *behind =
        (const char *)(abar__cuda_is_bf16(op->dev) ? a->shadow[1] : bias); /* cuBLASLt's is of the output's type */
    void *z = gelu ? a->saved : a->y;
    if (l->y_gelu.desc) {
        ABAR_TRY(product_and_gelu(op, a, workspace, bias ? behind : NULL));
        return abar__cuda_status(op->dev);
    }
    for (int i = 0; i < l->n_parts; i++) {
        part *p = &l->parts[i];
        if (bias && !l->tail)
            ABAR_TRY(
                set_pointer(op, &p->y, CUBLASLT_MATMUL_DESC_BIAS_POINTER, behind + (size_t)p->first * abar__lt_element(op)));
        ABAR_TRY(multiply(op, workspace, &p->y, weight_of(op, a, p), a->x[0], 0.0f, columns_of(op, z, p)));
    }
    if (l->tail) abar__cuda_bias_relu(op->dev, z, bias, relu, row_count(op), outputs(op), l->pitch);
    if (gelu) abar__cuda_activate(op->dev, op->desc.activation, z, a->y, abar__shape_count(&op->desc.out));
    return abar__cuda_status(op->dev);
}

/* dw and db by one product; only where neither is added to an existing gradient. */
static abar_status slope_and_bias(abar__op *op, const abar__op_args *a, char *workspace)
{
    const linear *l = (const linear *)op->priv;
    ABAR_TRY(set_pointer(op, &l->dw_db, CUBLASLT_MATMUL_DESC_BIAS_POINTER, a->dparam[1]));
    return multiply(op, workspace, &l->dw_db, a->x[0], a->dy, 0.0f, a->dparam[0]);
}

static abar_status weight_gradient(abar__op *op, const abar__op_args *a, char *workspace, bool joint)
{
    const linear *l = (const linear *)op->priv;
    if (joint) return slope_and_bias(op, a, workspace);
    for (int i = 0; i < l->n_parts; i++) {
        const part *p = &l->parts[i];
        float *dw = (float *)a->dparam[0] + p->first * inputs(op);
        ABAR_TRY(multiply(op, workspace, &p->dw, a->x[0], columns_of(op, a->dy, p), a->accumulate ? 1.0f : 0.0f, dw));
    }
    return ABAR_OK;
}

/* Times the derivative of the GELU before it where that is this layer's part. */
static abar_status input_gradient(abar__op *op, const abar__op_args *a, char *workspace)
{
    const linear *l = (const linear *)op->priv;
    if (op->slopes_dx) {
        ABAR_TRY(set_pointer(op, &l->dx_slope, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, a->input_z));
        return multiply(op, workspace, &l->dx_slope, weight_of(op, a, &l->parts[0]), a->dy, 0.0f, a->dx[0]);
    }
    for (int i = 0; i < l->n_parts; i++) {
        const part *p = &l->parts[i];
        ABAR_TRY(multiply(op, workspace, &p->dx, weight_of(op, a, p), columns_of(op, a->dy, p), i > 0 ? 1.0f : 0.0f, a->dx[0]));
    }
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const linear *l = (const linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    const abar__activation kind = a->dz_given ? ABAR_ACT_NONE : op->desc.activation;
    const bool joint = l->dw_db.desc && !a->accumulate && kind == ABAR_ACT_NONE;
    if (!joint)
        abar__cuda_activation_gradient(op->dev, kind, a->dy, abar__lt_is_gelu(kind) ? a->saved : a->y,
                                       op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, row_count(op), outputs(op),
                                       (float *)workspace, l->pitch);
    if (l->beside)
        ABAR_TRY(abar__lt_aside(op->dev, [&] { return weight_gradient(op, a, workspace, joint); }));
    else
        ABAR_TRY(weight_gradient(op, a, workspace, joint));
    if (op->desc.need_dx[0]) ABAR_TRY(input_gradient(op, a, workspace + l->dx_scratch));
    if (l->beside) ABAR_TRY(abar__lt_join(op->dev));
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_linear = {"cublaslt-linear", ABAR_OP_LINEAR, create, forward, backward, destroy};
