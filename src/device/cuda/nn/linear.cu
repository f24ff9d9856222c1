/* y = x W^T + b, ReLU if fused, and its gradients dW = dz^T x, db = sum of dz over rows, dx = dz W, where dz is the gradient
 * before the ReLU. Products are cuBLASLt's, restricted to algorithms whose sums have a fixed order. Its algorithms are
 * measured once per shape, and so is whether computing db together with dW is faster; deterministic runs use cuBLASLt's
 * first suggestion, and our own kernels for db.
 *
 * cuBLASLt is column-major: what is (R, C) here is a C x R matrix there, and every product is transposed.
 *
 * Its fast kernels need rows that begin at, and whose length is, a multiple of 16 bytes. A head with another number of
 * outputs (50257 tokens) writes PADDED rows where their reader allows it, and is split into two parts: as many outputs as
 * are a multiple, and the few that are left. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/cuda_nn_handles.h"

enum {
    MAX_WORKSPACE = 32 << 20,
    FAST_BYTES = 16,
    WIDE = 1024, /* from so many outputs on, a second product for the last few is worthwhile */
    CANDIDATES = 8,
    ROUNDS = 2, /* of REPEAT runs: the better one counts */
    REPEAT = 4,
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
    product dw_db;     /* dw and db at once, written; desc NULL: that is not faster */
    int64_t pitch;     /* from row to row of the output */
    bool tail;         /* bias and ReLU are a pass after the product */
    size_t bias_bytes; /* of the bf16 copy of the bias, before the forward product's workspace; 0: none is needed */
} linear;

/* One matrix of a product: its memory as (rows, width), and whether it is to be transposed. */
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
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuBLASLt: %s",
                      abar__blas_api_of(dev)->cublasLtGetStatusString(status));
}

static void release_product(const abar_device *dev, product *p)
{
    const abar__blas_api *api = abar__blas_api_of(dev);
    if (p->d) api->cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) api->cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) api->cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) api->cublasLtMatmulDescDestroy(p->desc);
}

static void release_parts(const abar_device *dev, linear *l)
{
    for (int i = 0; i < 2; i++) {
        release_product(dev, &l->parts[i].y);
        release_product(dev, &l->parts[i].dx);
        release_product(dev, &l->parts[i].dw);
        l->parts[i] = {};
    }
}

static void destroy(abar__op *op)
{
    linear *l = (linear *)op->priv;
    release_parts(op->dev, l);
    release_product(op->dev, &l->dw_db);
}

static cublasStatus_t set(const abar_device *dev, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t bytes)
{
    return abar__blas_api_of(dev)->cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

/* Up to `most` algorithms whose sums have a fixed order, for memory aligned like the arena, the most promising first. */
static cublasStatus_t ask(const abar__cuda_nn_state *nn, const product *p, int most, cublasLtMatmulHeuristicResult_t *out,
                          int *found)
{
    const uint64_t workspace = MAX_WORKSPACE;
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

static void take(product *p, const cublasLtMatmulHeuristicResult_t *advice)
{
    p->algo = advice->algo;
    p->workspace = advice->workspaceSize;
}

static cublasStatus_t pick(const abar__cuda_nn_state *nn, product *p)
{
    cublasLtMatmulHeuristicResult_t best;
    int found;
    cublasStatus_t status = ask(nn, p, 1, &best, &found);
    if (!status) status = best.state;
    if (!status) take(p, &best);
    return status;
}

/* d (rows, width) = a and b multiplied in cuBLASLt's order, followed by the epilogue. */
static cublasStatus_t make_product(const abar_device *dev, const abar__cuda_nn_state *nn, side a, side b, side d,
                                   cublasLtEpilogue_t epilogue, product *p)
{
    const bool tf32 = dev->config.precision == ABAR_PRECISION_TF32;
    const void *aligned =
        (const void *)(uintptr_t)ABAR_ALIGN; /* in place of the bias, of which only the alignment matters here */
    const int32_t behind = epilogue;
    const abar__blas_api *api = &nn->blas_api;
    cublasStatus_t status =
        api->cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = set(dev, p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a.op, sizeof a.op);
    if (!status) status = set(dev, p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b.op, sizeof b.op);
    if (!status) status = set(dev, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &behind, sizeof behind);
    if (!status && epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB))
        status = set(dev, p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->a, a.type, (uint64_t)a.width, (uint64_t)a.rows, a.pitch);
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->b, b.type, (uint64_t)b.width, (uint64_t)b.rows, b.pitch);
    if (!status) status = api->cublasLtMatrixLayoutCreate(&p->d, d.type, (uint64_t)d.width, (uint64_t)d.rows, d.pitch);
    return status ? status : pick(nn, p);
}

/* dw (and, with the epilogue BGRADB, db) of one part. */
static cublasStatus_t make_slope(const abar__op *op, const abar__cuda_nn_state *nn, const linear *l, const part *p,
                                 cublasLtEpilogue_t epilogue, product *to)
{
    const cudaDataType_t type = abar__cuda_is_bf16(op->dev) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t in = inputs(op), rows = row_count(op);
    const side x = {type, rows, in, in, CUBLAS_OP_N}, z_turned = {type, rows, p->outputs, l->pitch, CUBLAS_OP_T};
    const side dw = {CUDA_R_32F, p->outputs, in, in, CUBLAS_OP_N};
    return make_product(op->dev, nn, x, z_turned, dw, epilogue, to);
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
    cublasStatus_t status = make_product(op->dev, nn, w_turned, x, z, epilogue, &p->y);
    if (!status) status = make_slope(op, nn, l, p, CUBLASLT_EPILOGUE_DEFAULT, &p->dw);
    if (!status && op->desc.need_dx[0]) status = make_product(op->dev, nn, w, z, x, CUBLASLT_EPILOGUE_DEFAULT, &p->dx);
    return status;
}

static cublasStatus_t make_parts(const abar__op *op, const abar__cuda_nn_state *nn, linear *l, int64_t first_part)
{
    const int64_t out = outputs(op);
    release_parts(op->dev, l);
    l->n_parts = first_part < out ? 2 : 1;
    l->parts[0].outputs = l->parts[1].first = first_part;
    l->parts[1].outputs = out - first_part;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < l->n_parts && !status; i++) status = make_part(op, nn, l, &l->parts[i]);
    return status;
}

/* cuBLASLt has no algorithm for such widths. */
static bool is_refusal(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* In two parts where that is faster and possible. */
static cublasStatus_t make_products(const abar__op *op, const abar__cuda_nn_state *nn, linear *l)
{
    const int64_t out = outputs(op), whole = out - out % (int64_t)(FAST_BYTES / element_size(op));
    l->pitch = abar__row_pitch(op->dev, out, op->out_layout);
    if (op->out_layout == ABAR_LAYOUT_PADDED && out >= WIDE) {
        const cublasStatus_t status = make_parts(op, nn, l, whole);
        if (!is_refusal(status)) return status;
    }
    return make_parts(op, nn, l, out);
}

/* With bias and ReLU in the product's epilogue; where that is refused, and in bf16 with both, in a pass of their own. */
static cublasStatus_t make_either(abar__op *op, const abar__cuda_nn_state *nn, linear *l)
{
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    l->tail = op->desc.bias && relu && abar__cuda_is_bf16(op->dev);
    const cublasStatus_t made = make_products(op, nn, l);
    if (!is_refusal(made) || l->tail || !(op->desc.bias || relu)) return made;
    destroy(op);
    *l = {};
    l->tail = true;
    return make_products(op, nn, l);
}

static cublasStatus_t run_product(abar_device *dev, char *workspace, const product *p, const void *a, const void *b, float beta,
                                  void *d)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    const abar__cuda_nn_state *nn = (const abar__cuda_nn_state *)cuda->nn;
    const float one = 1.0f;
    return nn->blas_api.cublasLtMatmul(nn->blas, p->desc, &one, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algo, workspace,
                                       p->workspace, cuda->stream);
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

/* Memory as the layer will have it, filled with small numbers, and events. */
typedef struct trial {
    abar_device *dev;
    const abar__cuda_nn_state *nn;
    void *memory;
    size_t bytes;
    char *x, *z, *w, *dw, *db, *workspace;
    cudaEvent_t begin, end;
} trial;

static void close_trial(trial *t)
{
    if (t->end) cudaEventDestroy(t->end);
    if (t->begin) cudaEventDestroy(t->begin);
    abar_device_free(t->dev, t->memory, t->bytes);
}

static abar_status open_trial(const abar__op *op, const linear *l, trial *t)
{
    const cudaStream_t stream = abar__cuda_of(t->dev)->stream;
    const size_t in = (size_t)inputs(op), out = (size_t)outputs(op), rows = (size_t)row_count(op), element = element_size(op);
    const size_t partials = abar__cuda_bias_partials(t->dev, row_count(op), outputs(op));
    const size_t parts[] = {rows * in * element, rows * (size_t)l->pitch * element,
                            out * in * element,  out * in * sizeof(float),
                            out * sizeof(float), partials > MAX_WORKSPACE ? partials : (size_t)MAX_WORKSPACE};
    char **const places[] = {&t->x, &t->z, &t->w, &t->dw, &t->db, &t->workspace};
    size_t bytes = ABAR_CUDA_ALIGN;
    for (int i = 0; i < 6; i++) bytes += abar__round_up(parts[i], ABAR_CUDA_ALIGN);
    ABAR_TRY(abar_device_alloc(t->dev, bytes, &t->memory));
    t->bytes = bytes;
    char *at = abar__cuda_workspace(t->memory);
    for (int i = 0; i < 6; at += abar__round_up(parts[i++], ABAR_CUDA_ALIGN)) *places[i] = at;
    CUDA_TRY(t->dev, cudaEventCreate(&t->begin));
    CUDA_TRY(t->dev, cudaEventCreate(&t->end));
    CUDA_TRY(t->dev, cudaMemsetAsync(t->memory, 0x3c, bytes, stream)); /* 0.0115, in float32 and bfloat16 */
    return ABAR_OK;
}

/* Milliseconds of work(); negative: it returned false, or the device failed. */
template <typename Work> static float time_of(const trial *t, Work work)
{
    const cudaStream_t stream = abar__cuda_of(t->dev)->stream;
    float best = -1.0f, ms;
    if (!work()) return -1.0f;
    for (int round = 0; round < ROUNDS; round++) {
        bool good = cudaEventRecord(t->begin, stream) == cudaSuccess;
        for (int i = 0; i < REPEAT && good; i++) good = work();
        good = cudaEventRecord(t->end, stream) == cudaSuccess && good;
        good = cudaEventSynchronize(t->end) == cudaSuccess && good;
        if (!good || cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess) return -1.0f;
        if (best < 0.0f || ms < best) best = ms;
    }
    return best / (float)REPEAT;
}

/* Gives p the fastest of its algorithms and returns its milliseconds; negative: none worked, p is unchanged. */
static float take_fastest(const trial *t, product *p, const void *a, const void *b, void *d)
{
    cublasLtMatmulHeuristicResult_t advice[CANDIDATES];
    int found, chosen = -1;
    float best = -1.0f;
    if (ask(t->nn, p, CANDIDATES, advice, &found)) return -1.0f;
    for (int i = 0; i < found; i++) {
        if (advice[i].state) continue;
        product candidate = *p;
        take(&candidate, &advice[i]);
        const float ms = time_of(t, [&] { return !run_product(t->dev, t->workspace, &candidate, a, b, 0.0f, d); });
        if (ms >= 0.0f && (best < 0.0f || ms < best)) best = ms, chosen = i;
    }
    if (chosen >= 0) take(p, &advice[chosen]);
    return best;
}

/* db is computed together with dw, or by a pass of its own: whichever is faster. */
static void join_slope_and_bias(const abar__op *op, linear *l, const trial *t, float dw_ms)
{
    const void *db = t->db;
    if (make_slope(op, t->nn, l, &l->parts[0], CUBLASLT_EPILOGUE_BGRADB, &l->dw_db) ||
        set(t->dev, l->dw_db.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &db, sizeof db)) {
        release_product(t->dev, &l->dw_db);
        l->dw_db = {};
        return;
    }
    const float both = take_fastest(t, &l->dw_db, t->x, t->z, t->dw),
                alone = time_of(t, [&] {
                    abar__cuda_bias_relu_gradient(t->dev, t->z, NULL, (float *)t->db, false, row_count(op), outputs(op),
                                                  (float *)t->workspace, l->pitch);
                    return true;
                });
    if (both >= 0.0f && dw_ms >= 0.0f && both < dw_ms + alone) return;
    release_product(t->dev, &l->dw_db);
    l->dw_db = {};
}

static abar_status measure(const abar__op *op, const abar__cuda_nn_state *nn, linear *l)
{
    trial t = {};
    t.dev = op->dev;
    t.nn = nn;
    abar_status status = open_trial(op, l, &t);
    float dw_ms = -1.0f;
    for (int i = 0; i < l->n_parts && status >= 0; i++) {
        part *p = &l->parts[i];
        const void *bias = t.db;
        if (op->desc.bias && !l->tail) set(op->dev, p->y.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        if (i == 0)
            take_fastest(&t, &p->y, t.w, t.x, t.z); /* the first measurement is discarded: an idle device is slow at first */
        take_fastest(&t, &p->y, t.w, t.x, t.z);
        dw_ms = take_fastest(&t, &p->dw, t.x, t.z, t.dw);
        if (op->desc.need_dx[0]) take_fastest(&t, &p->dx, t.w, t.z, t.x);
    }
    const bool joins = op->desc.bias && op->desc.activation == ABAR_ACT_NONE && l->n_parts == 1;
    if (status >= 0 && joins) join_slope_and_bias(op, l, &t, dw_ms);
    if (status >= 0) status = abar__cuda_status(op->dev);
    close_trial(&t);
    return status;
}

/* ---- remembering -------------------------------------------------------------------------------------------------- */

enum { PRODUCTS = 7 };

/* The choice for a shape: equal layers run equally, and a net runs with the workspaces that were planned for it. */
typedef struct choice {
    struct choice *next;
    int64_t rows, in, out, pitch;
    bool bias, relu, tail, need_dx, joint;
    struct {
        cublasLtMatmulAlgo_t algo;
        size_t workspace;
    } of[PRODUCTS];
} choice;

static void forget(abar_device *dev, void *choices)
{
    for (choice *c = (choice *)choices, *next; c; c = next) {
        next = c->next;
        abar__free(dev->ctx, c, sizeof *c);
    }
}

static void list_products(linear *l, product *out[PRODUCTS])
{
    for (int i = 0; i < 2; i++) {
        out[3 * i] = &l->parts[i].y;
        out[3 * i + 1] = &l->parts[i].dw;
        out[3 * i + 2] = &l->parts[i].dx;
    }
    out[PRODUCTS - 1] = &l->dw_db;
}

static choice describe(const abar__op *op, const linear *l)
{
    choice c = {};
    c.rows = row_count(op);
    c.in = inputs(op);
    c.out = outputs(op);
    c.pitch = l->pitch;
    c.bias = op->desc.bias;
    c.relu = op->desc.activation == ABAR_ACT_RELU;
    c.tail = l->tail;
    c.need_dx = op->desc.need_dx[0];
    return c;
}

static bool are_alike(const choice *a, const choice *b)
{
    return a->rows == b->rows && a->in == b->in && a->out == b->out && a->pitch == b->pitch && a->bias == b->bias &&
           a->relu == b->relu && a->tail == b->tail && a->need_dx == b->need_dx;
}

static abar_status remember(const abar__op *op, abar__cuda_nn_state *nn, linear *l)
{
    product *products[PRODUCTS];
    void *memory;
    list_products(l, products);
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(choice), &memory));
    choice *c = (choice *)memory;
    *c = describe(op, l);
    c->joint = l->dw_db.desc != NULL;
    for (int i = 0; i < PRODUCTS; i++) {
        c->of[i].algo = products[i]->algo;
        c->of[i].workspace = products[i]->workspace;
    }
    c->next = (choice *)nn->products;
    nn->products = c;
    nn->forget_products = forget;
    return ABAR_OK;
}

/* Uses the earlier choice for such a layer, or makes one. */
static abar_status choose(const abar__op *op, abar__cuda_nn_state *nn, linear *l)
{
    const choice wanted = describe(op, l), *c = (const choice *)nn->products;
    product *products[PRODUCTS];
    while (c && !are_alike(c, &wanted)) c = c->next;
    if (!c) {
        ABAR_TRY(measure(op, nn, l));
        return remember(op, nn, l);
    }
    if (c->joint) ABAR_TRY(explain(op->dev, make_slope(op, nn, l, &l->parts[0], CUBLASLT_EPILOGUE_BGRADB, &l->dw_db)));
    list_products(l, products);
    for (int i = 0; i < PRODUCTS; i++) {
        products[i]->algo = c->of[i].algo;
        products[i]->workspace = c->of[i].workspace;
    }
    return ABAR_OK;
}

/* ---- the operation ---------------------------------------------------------------------------------------------- */

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
    const cublasStatus_t made = make_either(op, nn, l);
    abar_status status = is_refusal(made) ? ABAR_E_UNSUPPORTED : explain(op->dev, made);
    if (status >= 0 && !op->dev->config.deterministic) status = choose(op, nn, l);
    if (status < 0) {
        destroy(op);
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    if (op->desc.bias && !l->tail && abar__cuda_is_bf16(op->dev)) /* cuBLASLt needs the bias in the output's type */
        l->bias_bytes = abar__round_up((size_t)outputs(op) * sizeof(bf16), ABAR_CUDA_ALIGN);
    size_t scratch = op->desc.bias ? abar__cuda_bias_partials(op->dev, row_count(op), outputs(op)) : 0;
    if (scratch < l->dw_db.workspace) scratch = l->dw_db.workspace;
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
    return explain(op->dev, run_product(op->dev, workspace, p, a, b, beta, d));
}

/* The rows of the weight that belong to this part. */
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
            ABAR_TRY(explain(op->dev, set(op->dev, p->y.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &behind, sizeof behind)));
        ABAR_TRY(multiply(op, workspace + l->bias_bytes, &p->y, weight_of(op, a, p), a->x[0], 0.0f, columns_of(op, a->y, p)));
    }
    if (l->tail)
        abar__cuda_bias_relu(op->dev, a->y, bias, op->desc.activation == ABAR_ACT_RELU, row_count(op), outputs(op), l->pitch);
    return abar__cuda_status(op->dev);
}

/* dw and db by one product; only where neither is added to an existing gradient. */
static abar_status slope_and_bias(abar__op *op, const abar__op_args *a, char *workspace)
{
    const linear *l = (const linear *)op->priv;
    void *db = a->dparam[1];
    ABAR_TRY(explain(op->dev, set(op->dev, l->dw_db.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &db, sizeof db)));
    return multiply(op, workspace, &l->dw_db, a->x[0], a->dy, 0.0f, a->dparam[0]);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    linear *l = (linear *)op->priv;
    char *workspace = abar__cuda_workspace(a->scratch);
    const bool joint = l->dw_db.desc && !a->accumulate;
    if (joint)
        ABAR_TRY(slope_and_bias(op, a, workspace));
    else
        abar__cuda_bias_relu_gradient(op->dev, a->dy, op->desc.activation == ABAR_ACT_RELU ? a->y : NULL,
                                      op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, row_count(op), outputs(op),
                                      (float *)workspace, l->pitch);
    for (int i = 0; i < l->n_parts; i++) {
        const part *p = &l->parts[i];
        const void *dz = columns_of(op, a->dy, p);
        float *dw = (float *)a->dparam[0] + p->first * inputs(op);
        if (!joint) ABAR_TRY(multiply(op, workspace, &p->dw, a->x[0], dz, a->accumulate ? 1.0f : 0.0f, dw));
        if (op->desc.need_dx[0])
            ABAR_TRY(multiply(op, workspace, &p->dx, weight_of(op, a, p), dz, i > 0 ? 1.0f : 0.0f, a->dx[0]));
    }
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_linear = {"cublaslt-linear", ABAR_OP_LINEAR, create, forward, backward, destroy};
