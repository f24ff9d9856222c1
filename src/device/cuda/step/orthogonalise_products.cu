/* The products of Newton-Schulz for large blocks: batches of equal size, by cuBLASLt.
 *
 * cuBLASLt is column-major: X (r, c) is a c x r matrix there, with X X^T = (its transposed) (itself) and B X = (itself) B,
 * since B is symmetric. Sums have a fixed order. */
#include "device/cuda/step/orthogonalise_impl.h"

enum { CANDIDATES = 8, ROUNDS = 2, REPEAT = 3 }; /* of REPEAT runs: the better round counts */

static abar_status explain(abar_device *dev, const abar__ns_blas *blas, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuBLASLt: %s", blas->api.cublasLtGetStatusString(status));
}

abar_status abar__ns_blas_open(abar_device *dev, abar__ns_blas *blas)
{
    ABAR_TRY(abar__blas_load(dev->ctx, &blas->api));
    const cublasStatus_t status = blas->api.cublasLtCreate(&blas->handle);
    if (status) blas->handle = NULL;
    return explain(dev, blas, status);
}

void abar__ns_blas_close(abar__ns_blas *blas)
{
    if (blas->handle) blas->api.cublasLtDestroy(blas->handle);
    blas->handle = NULL;
}

/* ---- descriptions --------------------------------------------------------------------------------------------- */

static cublasStatus_t make_layout(const abar__ns_blas *blas, int64_t rows, int64_t columns, int32_t batch,
                                  cublasLtMatrixLayout_t *out)
{
    const int64_t stride = rows * columns;
    cublasStatus_t status = blas->api.cublasLtMatrixLayoutCreate(out, blas->exact ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)rows,
                                                                 (uint64_t)columns, rows);
    if (!status)
        status = blas->api.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (!status)
        status = blas->api.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                            sizeof stride);
    return status;
}

static cublasStatus_t make_desc(const abar__ns_blas *blas, cublasOperation_t op_a, abar__ns_product *p)
{
    const cublasOperation_t op_b = CUBLAS_OP_N;
    cublasStatus_t status = blas->api.cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = blas->api.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    if (!status) status = blas->api.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    return status;
}

static cublasStatus_t set(const abar__ns_blas *blas, cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what,
                          const void *value, size_t bytes)
{
    return blas->api.cublasLtMatmulPreferenceSetAttribute(p, what, value, bytes);
}

/* Algorithms for d = a b + c, c and d of one layout, the most promising first. splits: they may cut sums into parts. */
static cublasStatus_t ask(const abar__ns_blas *blas, const abar__ns_product *p, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d, bool splits, cublasLtMatmulHeuristicResult_t *out,
                          int *found)
{
    const uint64_t workspace = ABAR_NS_WORKSPACE;
    const uint32_t reductions = splits ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = blas->api.cublasLtMatmulPreferenceCreate(&preference);
    if (status) return status;
    status = set(blas, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!status) status = set(blas, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    *found = 0;
    if (!status)
        status =
            blas->api.cublasLtMatmulAlgoGetHeuristic(blas->handle, p->desc, a, b, d, d, preference, CANDIDATES, out, found);
    blas->api.cublasLtMatmulPreferenceDestroy(preference);
    if (status) return status;
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- running -------------------------------------------------------------------------------------------------- */

/* One product of a group: d = alpha a b + beta c. */
typedef struct operands {
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
    cublasLtMatrixLayout_t of_a, of_b, of_d;
} operands;

static cublasStatus_t multiply(abar_device *dev, const abar__ns_blas *blas, const abar__ns_product *p, const operands *o)
{
    return blas->api.cublasLtMatmul(blas->handle, p->desc, &o->alpha, o->a, o->of_a, o->b, o->of_b, &o->beta, o->c, o->of_d,
                                    o->d, o->of_d, &p->algo, blas->workspace, p->workspace, abar__cuda_of(dev)->stream);
}

/* The three products of a step, from x[from] to the other one. */
static void list_operands(const abar__ns_blas *blas, const abar__ns_products *p, const float c[3], int from, operands out[3])
{
    void *x = blas->x[from], *y = blas->x[1 - from];
    out[0] = {1.0f, 0.0f, x, x, blas->s, blas->s, p->x, p->x, p->s};
    out[1] = {c[2], c[1], blas->s, blas->s, blas->s, blas->b, p->s, p->s, p->s};
    out[2] = {1.0f, c[0], x, blas->b, x, y, p->x, p->s, p->x};
    if (c[2] != 0.0f) return;
    out[2].alpha = c[1]; /* B is a multiple of S: the second product is not needed */
    out[2].b = blas->s;
}

abar_status abar__ns_products_run(abar_device *dev, const abar__ns_blas *blas, const abar__ns_products *p,
                                  const abar__ns_polynomial *polynomial, int *result)
{
    const abar__ns_product *const of[3] = {&p->of_s, &p->of_b, &p->of_y};
    for (int k = 0; k < polynomial->steps; k++) {
        operands list[3];
        list_operands(blas, p, polynomial->c[k], k % 2, list);
        for (int i = 0; i < 3; i++)
            if (i != 1 || list[1].alpha != 0.0f) ABAR_TRY(explain(dev, blas, multiply(dev, blas, of[i], &list[i])));
    }
    *result = polynomial->steps % 2;
    return ABAR_OK;
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* Milliseconds of REPEAT runs; negative: it does not run. */
static float time_of(abar_device *dev, const abar__ns_blas *blas, const abar__ns_product *p, const operands *o,
                     cudaEvent_t const event[2])
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    float best = -1.0f, ms;
    if (multiply(dev, blas, p, o)) return -1.0f;
    for (int round = 0; round < ROUNDS; round++) {
        bool good = cudaEventRecord(event[0], stream) == cudaSuccess;
        for (int i = 0; i < REPEAT && good; i++) good = !multiply(dev, blas, p, o);
        good = cudaEventRecord(event[1], stream) == cudaSuccess && good;
        good = cudaEventSynchronize(event[1]) == cudaSuccess && good;
        if (!good || cudaEventElapsedTime(&ms, event[0], event[1]) != cudaSuccess) return -1.0f;
        if (best < 0.0f || ms < best) best = ms;
    }
    return best;
}

/* Gives p the fastest of cuBLASLt's suggestions. */
static cublasStatus_t choose_fastest(abar_device *dev, const abar__ns_blas *blas, abar__ns_product *p, const operands *o,
                                     cudaEvent_t const *events)
{
    cublasLtMatmulHeuristicResult_t advice[CANDIDATES];
    int found, chosen = -1;
    float best = -1.0f;
    const cublasStatus_t status = ask(blas, p, o->of_a, o->of_b, o->of_d, true, advice, &found);
    if (status) return status;
    for (int i = 0; i < found; i++) {
        if (advice[i].state) continue;
        abar__ns_product candidate = *p;
        candidate.algo = advice[i].algo;
        candidate.workspace = advice[i].workspaceSize;
        const float ms = time_of(dev, blas, &candidate, o, events);
        if (ms < 0.0f) (void)cudaGetLastError(); /* the next launch is not to be blamed for it */
        if (ms < 0.0f || (chosen >= 0 && ms >= best)) continue;
        chosen = i;
        best = ms;
        *p = candidate;
    }
    return chosen < 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

/* Gives p the first suggestion for a single block, of which o has the layouts: ranks that divide a group (--zero 1) compute a
 * block in the same way, however many each of them has. */
static cublasStatus_t choose_first(abar_device *dev, const abar__ns_blas *blas, abar__ns_product *p, const operands *o,
                                   const operands *all)
{
    cublasLtMatmulHeuristicResult_t advice[CANDIDATES];
    int found;
    const cublasStatus_t status = ask(blas, p, o->of_a, o->of_b, o->of_d, false, advice, &found);
    if (status) return status;
    for (int i = 0; i < found; i++) {
        if (advice[i].state) continue;
        p->algo = advice[i].algo;
        p->workspace = ABAR_NS_WORKSPACE;
        if (!multiply(dev, blas, p, all)) return CUBLAS_STATUS_SUCCESS; /* it runs on the whole group, too */
        (void)cudaGetLastError();                                       /* the next launch is not to be blamed for it */
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

static const float some[3] = {3.0f, -4.0f, 2.0f}; /* coefficients */

static abar_status choose_all(abar_device *dev, const abar__ns_blas *blas, abar__ns_products *p, cudaEvent_t const *events)
{
    operands list[3];
    list_operands(blas, p, some, 0, list);
    choose_fastest(dev, blas, &p->of_s, &list[0], events); /* not counted: an idle device is slow at first */
    ABAR_TRY(explain(dev, blas, choose_fastest(dev, blas, &p->of_s, &list[0], events)));
    ABAR_TRY(explain(dev, blas, choose_fastest(dev, blas, &p->of_b, &list[1], events)));
    return explain(dev, blas, choose_fastest(dev, blas, &p->of_y, &list[2], events));
}

static abar_status choose_fixed(abar_device *dev, const abar__ns_blas *blas, const abar__ns_group *group, abar__ns_products *p)
{
    abar__ns_products one = {};
    operands single[3], list[3];
    cublasStatus_t status = make_layout(blas, group->c, group->r, 1, &one.x);
    if (!status) status = make_layout(blas, group->r, group->r, 1, &one.s);
    list_operands(blas, &one, some, 0, single);
    list_operands(blas, p, some, 0, list);
    if (!status) status = choose_first(dev, blas, &p->of_s, &single[0], &list[0]);
    if (!status) status = choose_first(dev, blas, &p->of_b, &single[1], &list[1]);
    if (!status) status = choose_first(dev, blas, &p->of_y, &single[2], &list[2]);
    abar__ns_products_destroy(blas, &one);
    return explain(dev, blas, status);
}

static abar_status choose_measured(abar_device *dev, const abar__ns_blas *blas, const abar__ns_group *group,
                                   abar__ns_products *p)
{
    const size_t x = (size_t)group->count * (size_t)group->r * (size_t)group->c * (blas->exact ? sizeof(float) : sizeof(bf16));
    cudaEvent_t events[2] = {NULL, NULL};
    cudaError_t error = cudaEventCreate(&events[0]);
    if (!error) error = cudaEventCreate(&events[1]);
    if (!error) error = cudaMemsetAsync(blas->x[0], 0x3c, x, abar__cuda_of(dev)->stream); /* 0.0115 in either type */
    abar_status status = error ? abar__cuda_fail(dev, error, "measuring products") : choose_all(dev, blas, p, events);
    for (int i = 0; i < 2; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    return status;
}

abar_status abar__ns_products_create(abar_device *dev, const abar__ns_blas *blas, const abar__ns_group *group, bool measured,
                                     abar__ns_products *out)
{
    cublasStatus_t status = make_layout(blas, group->c, group->r, group->count, &out->x);
    if (!status) status = make_layout(blas, group->r, group->r, group->count, &out->s);
    if (!status) status = make_desc(blas, CUBLAS_OP_T, &out->of_s);
    if (!status) status = make_desc(blas, CUBLAS_OP_T, &out->of_b);
    if (!status) status = make_desc(blas, CUBLAS_OP_N, &out->of_y);
    ABAR_TRY(explain(dev, blas, status));
    return measured ? choose_measured(dev, blas, group, out) : choose_fixed(dev, blas, group, out);
}

void abar__ns_products_destroy(const abar__ns_blas *blas, abar__ns_products *p)
{
    const abar__ns_product *const of[3] = {&p->of_s, &p->of_b, &p->of_y};
    for (int i = 0; i < 3; i++)
        if (of[i]->desc) blas->api.cublasLtMatmulDescDestroy(of[i]->desc);
    if (p->s) blas->api.cublasLtMatrixLayoutDestroy(p->s);
    if (p->x) blas->api.cublasLtMatrixLayoutDestroy(p->x);
    *p = {};
}
