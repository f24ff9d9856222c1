/* Chooses the algorithms of a linear layer's products: the fastest, measured on random numbers once per shape and kept for
 * later processes (autotune_cache.h). Equal layers run equally, with the workspaces that were planned for them.
 *
 * Candidates are what cuBLASLt suggests. A gradient of the weight is a short product with many rows to add: for its best
 * candidates the number of parts into which these are cut is varied, too. Parts are added in a fixed order. */
#include "device/cuda/nn/activation.h"
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/linear.h"
#include "device/cuda/nn/trial.h"

#include <stdio.h>
#include <string.h>

enum {
    CANDIDATES = 32,
    LEADERS = 3,     /* whose cuts are varied */
    PART_ROWS = 128, /* at least, of what is cut: with fewer rows than parts need, kernels that cuBLASLt accepts fail */
    ROUNDS = 2,      /* of REPEAT runs: the better one counts */
    REPEAT = 4,
    DW_DB = 6, /* in the list of products */
    Y_GELU,
    DX_SLOPE,
    PRODUCTS,
    ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
};

static const int cuts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

/* ---- measuring -------------------------------------------------------------------------------------------------- */

/* Memory as the layer will have it, filled with random numbers, and events. */
typedef struct trial {
    abar_device *dev;
    const abar__cuda_nn_state *nn;
    void *memory;
    size_t bytes;
    char *x, *z, *w, *dw, *db, *workspace;
    char *beside; /* what the epilogue of a GELU reads or writes, or its pass; else another x */
    cudaEvent_t begin, end;
} trial;

static void close_trial(trial *t)
{
    if (t->end) cudaEventDestroy(t->end);
    if (t->begin) cudaEventDestroy(t->begin);
    abar_device_free(t->dev, t->memory, t->bytes);
}

static abar_status open_trial(const abar__op *op, const abar__lt_linear *l, trial *t)
{
    const size_t in = (size_t)abar__lt_inputs(op), out = (size_t)abar__lt_outputs(op), rows = (size_t)abar__lt_rows(op);
    const size_t element = abar__lt_element(op), widest = in > out ? in : out;
    const size_t partials = abar__cuda_bias_partials(t->dev, (int64_t)rows, (int64_t)widest);
    const bool gelu = abar__lt_is_gelu(op->desc.activation) || abar__lt_is_gelu(op->desc.input_activation);
    const size_t parts[] = {rows * in * element,
                            rows * (size_t)l->pitch * element,
                            out * in * element,
                            out * in * sizeof(float),
                            widest * sizeof(float),
                            rows * (gelu ? widest : in) * element,
                            partials > 2 * ABAR_LT_WORKSPACE ? partials : 2 * ABAR_LT_WORKSPACE};
    char **const places[] = {&t->x, &t->z, &t->w, &t->dw, &t->db, &t->beside, &t->workspace};
    size_t bytes = ABAR_CUDA_ALIGN;
    for (int i = 0; i < 7; i++) bytes += abar__round_up(parts[i], ABAR_CUDA_ALIGN);
    ABAR_TRY(abar_device_alloc(t->dev, bytes, &t->memory));
    t->bytes = bytes;
    char *at = abar__cuda_workspace(t->memory);
    for (int i = 0; i < 7; at += abar__round_up(parts[i++], ABAR_CUDA_ALIGN)) *places[i] = at;
    CUDA_TRY(t->dev, cudaEventCreate(&t->begin));
    CUDA_TRY(t->dev, cudaEventCreate(&t->end));
    abar__trial_fill(t->dev, t->x, (int64_t)((size_t)(t->workspace - t->x) / element));
    return abar__cuda_status(t->dev);
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

/* Enqueued on the stream in use. */
static cublasStatus_t run(const trial *t, char *workspace, const abar__lt_product *p, const void *a, const void *b, void *d)
{
    return abar__lt_run(p, workspace, a, b, 0.0f, d, abar__cuda_of(t->dev)->stream);
}

/* The same of what its epilogue reads or writes. */
static cublasStatus_t set_pointer(const abar__lt_product *p, cublasLtMatmulDescAttributes_t what, const void *pointer)
{
    return abar__lt_set(p, what, &pointer, sizeof pointer);
}

/* The factors of a product and its result. */
typedef struct operands {
    const void *a, *b;
    void *d;
} operands;

/* One algorithm for a product, and what it takes. */
typedef struct candidate {
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    float ms; /* negative: it does not work */
} candidate;

static void time_candidate(const trial *t, const abar__lt_product *p, const operands *of, candidate *c)
{
    abar__lt_product with = *p;
    with.algo = c->algo;
    with.workspace = c->workspace;
    c->ms = time_of(t, [&] { return !run(t, t->workspace, &with, of->a, of->b, of->d); });
    if (c->ms < 0.0f) (void)cudaGetLastError(); /* of one that does not work; the next launch is not to be blamed for it */
}

static bool is_faster(const candidate *a, const candidate *b) { return a->ms >= 0.0f && (b->ms < 0.0f || a->ms < b->ms); }

/* Puts c among the n best, the fastest first. */
static void rank(candidate *best, int n, candidate c)
{
    for (int i = 0; i < n; i++)
        if (is_faster(&c, &best[i])) {
            const candidate next = best[i];
            best[i] = c;
            c = next;
        }
}

/* The leader's algorithm with its rows cut otherwise, where that is possible and faster. */
static void vary_cuts(const trial *t, const abar__lt_product *p, const operands *of, int64_t rows, const candidate *leader,
                      candidate *best)
{
    const abar__blas_api *api = &t->nn->blas_api;
    for (const int cut : cuts) {
        if (cut > 1 && rows < (int64_t)cut * PART_ROWS) break;
        const uint32_t scheme = cut > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
        candidate c = *leader;
        if (api->cublasLtMatmulAlgoConfigSetAttribute(&c.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &cut, sizeof cut) ||
            api->cublasLtMatmulAlgoConfigSetAttribute(&c.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme) ||
            !abar__lt_fits(p, &c.algo, &c.workspace))
            continue;
        time_candidate(t, p, of, &c);
        if (is_faster(&c, best)) *best = c;
    }
}

/* Gives p the fastest of its algorithms and returns its milliseconds; negative: none worked, p is unchanged. rows: those that
 * may be cut into parts; 0: none. */
static float take_fastest(const trial *t, abar__lt_product *p, int64_t rows, operands of)
{
    cublasLtMatmulHeuristicResult_t advice[CANDIDATES];
    candidate leaders[LEADERS] = {};
    int found;
    for (candidate &c : leaders) c.ms = -1.0f;
    if (abar__lt_ask(p, CANDIDATES, advice, &found)) return -1.0f;
    for (int i = 0; i < found; i++) {
        if (advice[i].state) continue;
        candidate c = {advice[i].algo, advice[i].workspaceSize, -1.0f};
        time_candidate(t, p, &of, &c);
        rank(leaders, LEADERS, c);
    }
    candidate best = leaders[0];
    for (int i = 0; i < LEADERS; i++)
        if (rows > 0 && leaders[i].ms >= 0.0f) vary_cuts(t, p, &of, rows, &leaders[i], &best);
    if (best.ms < 0.0f) return -1.0f;
    p->algo = best.algo;
    p->workspace = best.workspace;
    return best.ms;
}

/* db is computed together with dw, or by a pass of its own: whichever is faster. */
static void join_slope_and_bias(const abar__op *op, abar__lt_linear *l, const trial *t, float dw_ms)
{
    if (abar__lt_make_slope(op, t->nn, l, &l->parts[0], CUBLASLT_EPILOGUE_BGRADB, &l->dw_db) ||
        set_pointer(&l->dw_db, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t->db)) {
        abar__lt_release(&l->dw_db);
        return;
    }
    const float both = take_fastest(t, &l->dw_db, abar__lt_rows(op), {t->x, t->z, t->dw}),
                alone = time_of(t, [&] {
                    abar__cuda_bias_relu_gradient(t->dev, t->z, NULL, (float *)t->db, false, abar__lt_rows(op),
                                                  abar__lt_outputs(op), (float *)t->workspace, l->pitch);
                    return true;
                });
    if (both < 0.0f || dw_ms < 0.0f || both >= dw_ms + alone) abar__lt_release(&l->dw_db);
}

/* Milliseconds of the gradient of a bias and of an activation's argument, in one pass over dy (rows, width). */
static float time_gradient(const abar__op *op, const trial *t, abar__activation kind, void *dy, int64_t width)
{
    return time_of(t, [&] {
        abar__cuda_activation_gradient(t->dev, kind, dy, t->beside, (float *)t->db, false, abar__lt_rows(op), width,
                                       (float *)t->workspace);
        return true;
    });
}

/* z and its GELU come from one product, or from a product and a pass: whichever is faster. */
static void join_gelu(const abar__op *op, abar__lt_linear *l, const trial *t, float y_ms)
{
    if (!l->y_gelu.desc) return;
    if ((op->desc.bias && set_pointer(&l->y_gelu, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t->db)) ||
        set_pointer(&l->y_gelu, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, t->beside)) {
        abar__lt_release(&l->y_gelu);
        return;
    }
    const float both = take_fastest(t, &l->y_gelu, 0, {t->w, t->x, t->z}),
                pass = time_of(t, [&] {
                    abar__cuda_activate(t->dev, op->desc.activation, t->z, t->beside, abar__lt_rows(op) * abar__lt_outputs(op));
                    return true;
                });
    if (both < 0.0f || y_ms < 0.0f || both >= y_ms + pass) abar__lt_release(&l->y_gelu);
}

/* The derivative of the GELU before is applied by the product that makes dx, or by that map, together with the gradient of its
 * bias, which otherwise is a pass of its own: whichever is faster. */
static void join_slope(const abar__op *op, abar__lt_linear *l, const trial *t, float dx_ms)
{
    if (!l->dx_slope.desc) return;
    if (set_pointer(&l->dx_slope, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, t->beside)) {
        abar__lt_release(&l->dx_slope);
        return;
    }
    const float both = take_fastest(t, &l->dx_slope, 0, {t->w, t->z, t->x}),
                bias_alone = time_gradient(op, t, ABAR_ACT_NONE, t->x, abar__lt_inputs(op)),
                apart = time_gradient(op, t, op->desc.input_activation, t->x, abar__lt_inputs(op));
    if (both < 0.0f || dx_ms < 0.0f || both + bias_alone >= dx_ms + apart) abar__lt_release(&l->dx_slope);
}

/* The products of the backward pass run on two streams where that is faster by more than measurements differ. */
static bool is_faster_beside(const abar__op *op, const abar__lt_linear *l, const trial *t)
{
    const abar__lt_product *slope = abar__lt_slope(l, op->desc.activation == ABAR_ACT_NONE), *dx = abar__lt_dx(l);
    char *to = l->dx_slope.desc ? t->x : t->beside; /* not what is read meanwhile, if possible */
    const auto make_slope = [&] { return abar__lt_explain(t->dev, run(t, t->workspace, slope, t->x, t->z, t->dw)); };
    const auto make_dx = [&] { return abar__lt_explain(t->dev, run(t, t->workspace + ABAR_LT_WORKSPACE, dx, t->w, t->z, to)); };
    if (l->n_parts != 1 || !op->desc.need_dx[0]) return false;
    const float apart = time_of(t, [&] { return make_slope() == ABAR_OK && make_dx() == ABAR_OK; });
    const float beside = time_of(t, [&] {
        return abar__lt_aside(t->dev, make_slope) == ABAR_OK && make_dx() == ABAR_OK && abar__lt_join(t->dev) == ABAR_OK;
    });
    return apart >= 0.0f && beside >= 0.0f && beside < 0.97f * apart;
}

/* A GELU's gradient may have been applied before: then dw and db remain. */
static bool may_join_bias(const abar__op *op, const abar__lt_linear *l)
{
    const abar__activation kind = op->desc.activation;
    return op->desc.bias && l->n_parts == 1 && (kind == ABAR_ACT_NONE || kind == ABAR_ACT_GELU_TANH);
}

static abar_status measure(const abar__op *op, const abar__cuda_nn_state *nn, abar__lt_linear *l)
{
    trial t = {};
    t.dev = op->dev;
    t.nn = nn;
    abar_status status = open_trial(op, l, &t);
    float y_ms = -1.0f, dw_ms = -1.0f, dx_ms = -1.0f;
    for (int i = 0; i < l->n_parts && status >= 0; i++) {
        abar__lt_part *p = &l->parts[i];
        if (op->desc.bias && !l->tail)
            status = abar__lt_explain(op->dev, set_pointer(&p->y, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t.db));
        if (status < 0) break;
        if (i == 0) /* the first measurement is discarded: an idle device is slow at first */
            take_fastest(&t, &p->y, 0, {t.w, t.x, t.z});
        y_ms = take_fastest(&t, &p->y, 0, {t.w, t.x, t.z});
        dw_ms = take_fastest(&t, &p->dw, abar__lt_rows(op), {t.x, t.z, t.dw});
        if (op->desc.need_dx[0]) dx_ms = take_fastest(&t, &p->dx, 0, {t.w, t.z, t.x});
    }
    if (status >= 0 && may_join_bias(op, l)) join_slope_and_bias(op, l, &t, dw_ms);
    if (status >= 0) join_gelu(op, l, &t, y_ms);
    if (status >= 0) join_slope(op, l, &t, dx_ms); /* its pass makes x smaller and smaller */
    l->beside = status >= 0 && is_faster_beside(op, l, &t);
    if (status >= 0) status = abar__cuda_status(op->dev);
    close_trial(&t);
    return status;
}

/* ---- remembering -------------------------------------------------------------------------------------------------- */

/* Opens what earlier processes measured for this GPU, driver, cuBLASLt and abar. */
static abar_status open_cache(abar_device *dev, abar__cuda_nn_state *nn)
{
    char title[ABAR_AUTOTUNE_MAX];
    cudaDeviceProp gpu;
    int driver = 0;
    if (nn->products) return ABAR_OK;
    CUDA_TRY(dev, cudaGetDeviceProperties(&gpu, dev->ordinal));
    CUDA_TRY(dev, cudaDriverGetVersion(&driver));
    snprintf(title, sizeof title, "%.100s, driver %d, cublaslt %zu, abar %s", gpu.name, driver,
             nn->blas_api.cublasLtGetVersion(), abar_version());
    ABAR_TRY(abar__autotune_cache_open(dev->ctx, title, &nn->products));
    return nn->products ? ABAR_OK : abar__autotune_cache_create(dev->ctx, title, &nn->products);
}

static void list_products(abar__lt_linear *l, abar__lt_product *out[PRODUCTS])
{
    for (int i = 0; i < 2; i++) {
        out[3 * i] = &l->parts[i].y;
        out[3 * i + 1] = &l->parts[i].dw;
        out[3 * i + 2] = &l->parts[i].dx;
    }
    out[DW_DB] = &l->dw_db;
    out[Y_GELU] = &l->y_gelu;
    out[DX_SLOPE] = &l->dx_slope;
}

/* "linear dw bf16 50432x384 to 1536 pitch 1536 bias 1 activations 0 0 epilogue 1": with what decides whether there is a product
 * of several results, whose epilogue has no number here. */
static void problem_of(const abar__op *op, const abar__lt_linear *l, const char *name, int epilogue,
                       char text[ABAR_AUTOTUNE_MAX])
{
    const bool tf32 = op->dev->config.precision == ABAR_PRECISION_TF32;
    const char *precision = abar__cuda_is_bf16(op->dev) ? "bf16" : tf32 ? "tf32" : "fp32";
    snprintf(text, ABAR_AUTOTUNE_MAX,
             "linear %s %s %lldx%lld to %lld pitch %lld bias %d activations %d %d gradient %d epilogue %d", name, precision,
             (long long)abar__lt_rows(op), (long long)abar__lt_inputs(op), (long long)abar__lt_outputs(op), (long long)l->pitch,
             op->desc.bias, (int)op->desc.activation, (int)op->desc.input_activation, op->desc.need_dx[0], epilogue);
}

static void problem_of_product(const abar__op *op, abar__lt_linear *l, int i, char text[ABAR_AUTOTUNE_MAX])
{
    static const char *const names[PRODUCTS] = {
        "y", "dw", "dx", "y of the rest", "dw of the rest", "dx of the rest", "dw and db", "y and z", "dx of z"};
    abar__lt_product *products[PRODUCTS];
    list_products(l, products);
    problem_of(op, l, names[i], i < DW_DB ? (int)products[i]->epilogue : 0, text);
}

static const char beside_name[] = "dw beside dx";

/* "none", or the words of the algorithm. */
static abar_status remember(const abar__op *op, abar__autotune_cache *cache, abar__lt_linear *l)
{
    abar__lt_product *products[PRODUCTS];
    char problem[ABAR_AUTOTUNE_MAX], text[ABAR_AUTOTUNE_MAX];
    list_products(l, products);
    for (int i = 0; i < PRODUCTS; i++) {
        const abar__lt_product *p = products[i];
        if (!p->desc && i < DW_DB) continue;
        uint64_t words[ALGORITHM_WORDS];
        memcpy(words, &p->algo, sizeof words);
        snprintf(text, sizeof text, "none");
        for (int w = 0; w < ALGORITHM_WORDS && p->desc; w++)
            snprintf(text + 17 * w, sizeof text - 17 * (size_t)w, "%016llx ", (unsigned long long)words[w]);
        problem_of_product(op, l, i, problem);
        ABAR_TRY(abar__autotune_cache_put(cache, problem, text));
    }
    problem_of(op, l, beside_name, 0, problem);
    return abar__autotune_cache_put(cache, problem, l->beside ? "yes" : "no");
}

/* Gives p what was kept; false: it is no longer possible. */
static bool recall_product(const char *text, abar__lt_product *p)
{
    uint64_t words[ALGORITHM_WORDS];
    int used = 0;
    for (int w = 0; w < ALGORITHM_WORDS; w++) {
        unsigned long long word;
        if (sscanf(text, "%16llx%n", &word, &used) != 1) return false;
        words[w] = word;
        text += used;
    }
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    memcpy(&algo, words, sizeof algo);
    if (!abar__lt_fits(p, &algo, &workspace)) return false;
    p->algo = algo;
    p->workspace = workspace;
    return true;
}

/* All that was kept for such a layer; false: something is missing. */
static bool recall(const abar__op *op, const abar__cuda_nn_state *nn, abar__lt_linear *l)
{
    abar__lt_product *products[PRODUCTS];
    char problem[ABAR_AUTOTUNE_MAX];
    list_products(l, products);
    for (int i = 0; i < PRODUCTS; i++) {
        abar__lt_product *p = products[i];
        if (!p->desc && i < DW_DB) continue;
        problem_of_product(op, l, i, problem);
        const char *text = abar__autotune_cache_find(nn->products, problem);
        if (!text) return false;
        if (i >= DW_DB && strcmp(text, "none") == 0) {
            abar__lt_release(p);
            continue;
        }
        if (i == DW_DB && abar__lt_make_slope(op, nn, l, &l->parts[0], CUBLASLT_EPILOGUE_BGRADB, p)) return false;
        if (!p->desc || !recall_product(text, p)) return false;
    }
    problem_of(op, l, beside_name, 0, problem);
    const char *beside = abar__autotune_cache_find(nn->products, problem);
    l->beside = beside && strcmp(beside, "yes") == 0;
    return beside != NULL;
}

/* Without memory for trials, as when the memory of too large a batch is planned, cuBLASLt's first suggestions stay. */
abar_status abar__lt_choose(const abar__op *op, abar__cuda_nn_state *nn, abar__lt_linear *l)
{
    ABAR_TRY(open_cache(op->dev, nn));
    abar__lt_make_gelus(op, nn, l);
    if (recall(op, nn, l)) return ABAR_OK;
    abar__lt_release(&l->dw_db);
    abar__lt_make_gelus(op, nn, l);
    const abar_status status = measure(op, nn, l);
    if (status == ABAR_E_MEMORY) return ABAR_OK;
    return status < 0 ? status : remember(op, nn->products, l);
}
