/* The stages of blocks (device/blocks.h) on the device: every stage is a launch or two over all blocks. X is packed into memory
 * of the object; once that is done the gradients' memory is free for what X is multiplied into, until the step is written
 * there. */
#include "device/cuda/step/blocks.h"

#include "device/cuda/factors/roots.h"

#include <math.h>
#include <string.h>

enum { THREADS = 256, SPAN = 2048 }; /* SPAN: elements of a unit */

/* Passes over the elements of all blocks. */
enum { LOAD, SQUARES, MOMENTUM, MEASURE, COPY_BACK, NORM, RESCALE, STORE };

/* What a pass gets; device memory. */
typedef struct walk {
    const abar__block_item *items;
    abar__block_result *results;
    const abar__cuda_unit *units;
    double *partial;   /* (units) */
    unsigned *tickets; /* (items), zero between launches */
    const abar__cuda_live *now;
    abar__block_stage stage;
    abar__block_state state;
} walk;

struct abar__cuda_block_stages {
    const abar__block_plan *plan;
    int n, order; /* order: the most modes of a block */
    walk w;
    int64_t n_units, n_slots, first_multiply[ABAR_BLOCK_MODES + 1]; /* tiles: averages, then by mode */
    abar__block_tile *tiles;
    float *chunks;
    unsigned *chunk_tickets;
    abar__cuda_root_call *calls;                   /* (stages) */
    abar__cuda_rooter *rooters[ABAR_BLOCK_STAGES]; /* of the stages that take roots; else NULL */
    char *memory, *host;                           /* host: pinned, a copy of the first sent_bytes */
    size_t memory_bytes, sent_bytes;
    cudaEvent_t sent;
};

/* ---- element by element ------------------------------------------------------------------------------------------------- */

__device__ static double unbias(double beta, int64_t t) { return beta == 1.0 ? 1.0 : abar__unbias(beta, t); }

__device__ static double load_one(const abar__block_item &item, int64_t i)
{
    const int64_t at = abar__block_at(&item.b, i);
    double x = ((const float *)item.b.grad)[at];
    if (item.b.decay != 0.0) x += item.b.decay * (double)((const float *)item.b.weight)[at];
    item.x[i] = (float)x;
    return (double)item.x[i] * (double)item.x[i];
}

__device__ static void square_one(const walk &w, const abar__block_item &item, int64_t i)
{
    float *v = (float *)item.b.state[w.stage.state] + abar__block_at(&item.b, i);
    const double x = item.x[i], beta = w.stage.beta;
    *v = (float)(beta * (double)*v + (beta == 1.0 ? 1.0 : 1.0 - beta) * x * x);
}

__device__ static void move_one(const walk &w, const abar__block_item &item, int64_t i, double divisor)
{
    float *m = (float *)item.b.state[w.stage.state] + abar__block_at(&item.b, i);
    const double x = item.x[i], old = *m;
    item.x[i] = (float)((w.stage.ahead * old + (1.0 - w.stage.ahead) * x) / divisor);
    *m = (float)(w.stage.beta * old + (1.0 - w.stage.beta) * x);
}

__device__ static double measure_one(const walk &w, const abar__block_item &item, int64_t i, double scale, bool replace)
{
    double d = item.x[i];
    if (w.stage.state >= 0)
        d /= sqrt(scale * (double)((const float *)item.b.state[w.stage.state])[abar__block_at(&item.b, i)]) + w.stage.eps;
    if (replace) item.x[i] = (float)d;
    return d * d;
}

/* What is the same for all elements of a launch. */
__device__ static double constant_of(const walk &w, int kind, int64_t t)
{
    if (kind == MOMENTUM) return 1.0 - w.stage.ahead * pow(w.stage.beta, (double)(t - 1));
    return kind == MEASURE && w.stage.corrected ? unbias(w.stage.beta, t) : 1.0;
}

/* X is in y after an odd number of products. */
__device__ static bool is_turned(const walk &w, const abar__block &b)
{
    bool turned = false;
    for (int m = 0; m < b.order; m++) turned = turned != abar__block_has(&b, &w.state, m);
    return turned;
}

/* One element; returns its share of the pass's sum. */
template <int KIND>
__device__ static double do_one(const walk &w, const abar__block_item &item, const abar__block_result &result, int64_t i,
                                double constant, bool early)
{
    switch (KIND) {
    case LOAD: return load_one(item, i);
    case SQUARES: square_one(w, item, i); return 0.0;
    case MOMENTUM: move_one(w, item, i, constant); return 0.0;
    case MEASURE: return measure_one(w, item, i, constant, early);
    case COPY_BACK: item.x[i] = item.y[i]; return 0.0;
    case NORM: return (double)item.x[i] * (double)item.x[i];
    case RESCALE: item.x[i] = (float)(constant * (double)item.x[i]); return 0.0;
    default: /* STORE */
        ((float *)item.b.grad)[abar__block_at(&item.b, i)] = isfinite(result.squares) ? item.x[i] : 0.0f;
        return 0.0;
    }
}

/* What becomes of the sum over a block, by one thread. */
template <int KIND> __device__ static void settle(abar__block_result *result, double sum)
{
    if (KIND == LOAD) result->overflows = abar__squares_overflow(sum, false);
    if (KIND == MEASURE) result->length = sqrt(sum);
    if (KIND == NORM) result->squares = sum;
}

/* Block b: unit b. */
template <int KIND> static __global__ void __launch_bounds__(THREADS) walk_blocks(const __grid_constant__ walk w)
{
    __shared__ double shared[32];
    if (w.now->numbers.skip) return;
    const abar__cuda_unit unit = w.units[blockIdx.x];
    const abar__block_item &item = w.items[unit.item];
    const abar__block_result result = w.results[unit.item];
    const int64_t t = w.now->state.t, first = (int64_t)unit.first * SPAN;
    const int64_t end = item.b.count - first < SPAN ? item.b.count : first + SPAN;
    const bool early = t < w.stage.start;
    if ((KIND == SQUARES && result.overflows) || (KIND == COPY_BACK && !is_turned(w, item.b)) || (KIND == RESCALE && early))
        return;
    double constant = constant_of(w, KIND, t), sum = 0.0;
    if (KIND == RESCALE) constant = result.length / (sqrt(result.squares) + ABAR_GRAFT_EPS);
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) sum += do_one<KIND>(w, item, result, i, constant, early);
    if (KIND != LOAD && KIND != MEASURE && KIND != NORM) return;
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) w.partial[blockIdx.x] = sum;
    if (!last_block(&w.tickets[unit.item], (unsigned)item.units)) return;
    sum = 0.0;
    const double *of_item = w.partial + blockIdx.x - unit.first;
    for (int i = (int)threadIdx.x; i < item.units; i += THREADS) sum += __ldcg(of_item + i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) settle<KIND>(&w.results[unit.item], sum);
}

template <int KIND> static void launch(abar_device *dev, const abar__cuda_block_stages *o, const walk &w)
{
    abar__cuda_launch(dev, walk_blocks<KIND>, dim3((unsigned)o->n_units), dim3(THREADS), 0, w);
}

/* ---- decisions --------------------------------------------------------------------------------------------------------------
 */

static __global__ void plan_roots(const abar__cuda_live *now, abar__block_stage stage, abar__cuda_root_call *call)
{
    call->wanted = !now->numbers.skip && abar__root_is_due(&stage, now->state.t);
    call->scale = unbias(stage.beta, now->state.t);
    call->eps = stage.eps;
}

/* One block adds up what happened. */
static __global__ void __launch_bounds__(THREADS)
    count_results(const abar__block_item *items, const abar__block_result *results, int n, abar__cuda_root_call *calls,
                  abar__cuda_live *now)
{
    __shared__ double shared[32];
    if (now->numbers.skip) return;
    double dropped = 0.0, kept = 0.0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        dropped += !isfinite(results[i].squares);
        kept += results[i].overflows ? items[i].averaged : 0;
    }
    dropped = block_sum(dropped, shared);
    kept = block_sum(kept, shared);
    if (threadIdx.x != 0) return;
    now->state.dropped += (int64_t)dropped;
    now->state.kept += (int64_t)kept;
    for (int i = 0; i < ABAR_BLOCK_STAGES; i++) {
        now->state.kept += calls[i].kept;
        calls[i].kept = 0;
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------------------
 */

static void multiply(abar_device *dev, const abar__cuda_block_stages *o, const walk &w)
{
    for (int mode = 0; mode < o->order; mode++) {
        const int64_t first = o->first_multiply[mode], n = o->first_multiply[mode + 1] - first;
        abar__cuda_multiply_blocks(dev, w.items, o->tiles + first, n, &w.state, w.stage.state, w.now);
    }
    launch<COPY_BACK>(dev, o, w);
}

static abar_status take_roots(abar_device *dev, const abar__cuda_block_stages *o, int k, const walk &w)
{
    abar__cuda_launch(dev, plan_roots, dim3(1), dim3(1), 0, w.now, w.stage, o->calls + k);
    return abar__cuda_rooter_run(dev, o->rooters[k]);
}

static abar_status run_stage(abar_device *dev, const abar__cuda_block_stages *o, int k, const walk &w)
{
    switch (w.stage.kind) {
    case ABAR_BLOCK_AVERAGE:
        abar__cuda_average_blocks(dev, w.items, w.results, o->tiles, o->first_multiply[0], &w.state, w.stage.state,
                                  w.stage.beta, o->chunks, o->chunk_tickets, w.now);
        break;
    case ABAR_BLOCK_SQUARES: launch<SQUARES>(dev, o, w); break;
    case ABAR_BLOCK_ROOT: return take_roots(dev, o, k, w);
    case ABAR_BLOCK_MOMENTUM: launch<MOMENTUM>(dev, o, w); break;
    case ABAR_BLOCK_MULTIPLY: multiply(dev, o, w); break;
    case ABAR_BLOCK_MEASURE: launch<MEASURE>(dev, o, w); break;
    case ABAR_BLOCK_RESCALE:
        launch<NORM>(dev, o, w);
        launch<RESCALE>(dev, o, w);
        break;
    }
    return ABAR_OK;
}

extern "C" abar_status abar__cuda_block_stages_run(abar_device *dev, abar__cuda_block_stages *o, abar__cuda_live *now)
{
    walk w = o->w;
    w.now = now;
    launch<LOAD>(dev, o, w);
    for (int k = 0; k < o->plan->n_stages; k++) {
        w.stage = o->plan->stage[k];
        w.state = w.stage.state >= 0 ? o->plan->state[w.stage.state] : abar__block_state{};
        ABAR_TRY(run_stage(dev, o, k, w));
    }
    launch<NORM>(dev, o, w);
    launch<STORE>(dev, o, w);
    abar__cuda_launch(dev, count_results, dim3(1), dim3(THREADS), 0, w.items, w.results, o->n, o->calls, now);
    return abar__cuda_status(dev);
}

/* ---- tables -----------------------------------------------------------------------------------------------------------------
 */

static int64_t along(int64_t n) { return abar__cuda_blocks(n, ABAR_BLOCK_TILE); }

/* The tiles of a block's average along a mode, chunks included; out NULL: only counts. */
static int64_t list_averages(const abar__block *b, int item, int mode, int64_t *slots, abar__block_tile *out)
{
    const int64_t side = along(b->dim[mode]), chunks = abar__cuda_blocks(b->count / b->dim[mode], ABAR_BLOCK_CHUNK);
    int64_t n = 0;
    for (int64_t down = 0; down < side; down++)
        for (int64_t left = 0; left <= down; left++) {
            for (int64_t c = 0; c < chunks; c++, n++)
                if (out)
                    out[n] = {item,
                              mode,
                              (int32_t)down,
                              (int32_t)left,
                              (int32_t)c,
                              (int32_t)chunks,
                              chunks > 1 ? (int32_t)*slots : -1};
            if (chunks > 1) *slots += chunks;
        }
    return n;
}

static int64_t list_products(const abar__block *b, int item, int mode, abar__block_tile *out)
{
    const int64_t across = along(b->count / b->dim[mode]);
    int64_t n = 0;
    for (int64_t down = 0; down < along(b->dim[mode]); down++)
        for (int64_t left = 0; left < across; left++, n++)
            if (out) out[n] = {item, mode, (int32_t)down, (int32_t)left, 0, 1, -1};
    return n;
}

/* All tiles: averages, then products by mode; returns how many. */
static int64_t list_tiles(abar__cuda_block_stages *o, const abar__block *blocks, abar__block_tile *out)
{
    int64_t n = 0;
    o->n_slots = 0;
    for (int i = 0; i < o->n; i++)
        for (int m = 0; m < blocks[i].order; m++) n += list_averages(&blocks[i], i, m, &o->n_slots, out ? out + n : NULL);
    for (int m = 0; m < ABAR_BLOCK_MODES; m++) {
        o->first_multiply[m] = n;
        for (int i = 0; i < o->n; i++)
            if (m < blocks[i].order) n += list_products(&blocks[i], i, m, out ? out + n : NULL);
    }
    o->first_multiply[ABAR_BLOCK_MODES] = n;
    return n;
}

static int32_t averaged_of(const abar__block_plan *plan, const abar__block *b)
{
    int32_t n = 0;
    for (int k = 0; k < plan->n_stages; k++)
        for (int m = 0; plan->stage[k].kind == ABAR_BLOCK_AVERAGE && m < b->order; m++)
            n += abar__block_has(b, &plan->state[plan->stage[k].state], m);
    return n;
}

/* x: memory for all blocks. Blocks of one parameter follow each other. */
static void fill_items(const abar__cuda_block_stages *o, const abar__block *blocks, abar__block_item *out, float *x)
{
    int64_t before = 0; /* elements of the parameter's blocks so far */
    for (int i = 0; i < o->n; i++) {
        if (i > 0 && blocks[i].grad != blocks[i - 1].grad) before = 0;
        out[i] = {blocks[i], x, (float *)blocks[i].grad + before, (int32_t)abar__cuda_blocks(blocks[i].count, SPAN),
                  averaged_of(o->plan, &blocks[i])};
        before += blocks[i].count;
        x += abar__round_up((size_t)blocks[i].count, 4);
    }
}

/* ---- making -----------------------------------------------------------------------------------------------------------------
 */

template <typename T> static T *place(char *base, size_t *at, int64_t n)
{
    T *here = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + (size_t)n * sizeof(T), 256);
    return here;
}

/* Hands out the device's memory, or only counts it; returns where X goes. */
static float *place_all(abar__cuda_block_stages *o, char *base, int64_t tiles, int64_t elements)
{
    size_t at = 0;
    o->w.items = place<abar__block_item>(base, &at, o->n);
    o->w.units = place<abar__cuda_unit>(base, &at, o->n_units);
    o->tiles = place<abar__block_tile>(base, &at, tiles);
    o->sent_bytes = at;
    o->w.results = place<abar__block_result>(base, &at, o->n);
    o->w.partial = place<double>(base, &at, o->n_units);
    o->w.tickets = place<unsigned>(base, &at, o->n);
    o->chunks = place<float>(base, &at, o->n_slots * ABAR_BLOCK_TILE * ABAR_BLOCK_TILE);
    o->chunk_tickets = place<unsigned>(base, &at, o->n_slots);
    o->calls = place<abar__cuda_root_call>(base, &at, ABAR_BLOCK_STAGES);
    float *x = place<float>(base, &at, elements);
    o->memory_bytes = at;
    return x;
}

/* Where the host fills in what the device has at this address. */
template <typename T> static T *host_side(const abar__cuda_block_stages *o, const T *device)
{
    return (T *)(o->host + ((const char *)device - o->memory));
}

static abar_status send(abar_device *dev, abar__cuda_block_stages *o)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    CUDA_TRY(dev, cudaMemcpyAsync(o->memory, o->host, o->sent_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(dev, cudaEventRecord(o->sent, stream));
    return ABAR_OK;
}

/* The roots of stage k. */
static abar_status make_rooter(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks, int k)
{
    const abar__block_stage *stage = &o->plan->stage[k];
    const abar__block_state *state = &o->plan->state[stage->state];
    abar__cuda_root *roots;
    int n = 0;
    const size_t bytes = (size_t)o->n * ABAR_BLOCK_MODES * sizeof *roots;
    ABAR_TRY(abar__alloc(dev->ctx, bytes, (void **)&roots));
    for (int i = 0; i < o->n; i++)
        for (int m = 0; m < blocks[i].order; m++) {
            const abar__block *b = &blocks[i];
            if (!abar__block_has(b, state, m)) continue;
            const int64_t at = abar__block_factor(b, state, m);
            roots[n++] = {b->dim[m], (const float *)b->state[stage->from] + at, (float *)b->state[stage->state] + at,
                          abar__block_exponent(b, stage)};
        }
    const abar_status status = abar__cuda_rooter_create(dev, roots, n, o->calls + k, &o->rooters[k]);
    abar__free(dev->ctx, roots, bytes);
    return status;
}

static abar_status make(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks)
{
    int64_t elements = 0;
    for (int i = 0; i < o->n; i++) {
        o->n_units += abar__cuda_blocks(blocks[i].count, SPAN);
        o->order = blocks[i].order > o->order ? blocks[i].order : o->order;
        elements += (int64_t)abar__round_up((size_t)blocks[i].count, 4);
    }
    const int64_t tiles = list_tiles(o, blocks, NULL);
    if (tiles > INT32_MAX || o->n_units > INT32_MAX)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: blocks of too many tiles, use larger ones");
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&o->sent, cudaEventDisableTiming));
    place_all(o, NULL, tiles, elements);
    ABAR_TRY(abar_device_alloc(dev, o->memory_bytes, (void **)&o->memory)); /* zeroed: tickets start at 0 */
    ABAR_TRY(abar__cuda_pinned(dev, o->sent_bytes, (void **)&o->host));
    float *x = place_all(o, o->memory, tiles, elements);
    fill_items(o, blocks, host_side(o, o->w.items), x);
    abar__cuda_unit *unit = host_side(o, o->w.units);
    for (int i = 0; i < o->n; i++)
        for (int64_t u = 0; u < abar__cuda_blocks(blocks[i].count, SPAN); u++) *unit++ = {i, (int32_t)u};
    list_tiles(o, blocks, host_side(o, o->tiles));
    for (int k = 0; k < o->plan->n_stages; k++)
        if (o->plan->stage[k].kind == ABAR_BLOCK_ROOT) ABAR_TRY(make_rooter(dev, o, blocks, k));
    return send(dev, o);
}

extern "C" abar_status abar__cuda_block_stages_create(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks,
                                                      int n, abar__cuda_block_stages **out)
{
    *out = NULL;
    abar__cuda_block_stages *o;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *o, (void **)&o));
    o->plan = plan;
    o->n = n;
    const abar_status status = make(dev, o, blocks);
    if (status < 0)
        abar__cuda_block_stages_destroy(dev, o);
    else
        *out = o;
    return status;
}

extern "C" void abar__cuda_block_stages_destroy(abar_device *dev, abar__cuda_block_stages *o)
{
    if (!o) return;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    for (int k = 0; k < ABAR_BLOCK_STAGES; k++) abar__cuda_rooter_destroy(dev, o->rooters[k]);
    if (o->sent) cudaEventDestroy(o->sent);
    abar_device_free(dev, o->memory, o->memory_bytes);
    abar__cuda_pinned_free(dev, o->host, o->sent_bytes);
    abar__free(dev->ctx, o, sizeof *o);
}

extern "C" size_t abar__cuda_block_stages_bytes(const abar__cuda_block_stages *o)
{
    size_t bytes = sizeof *o + o->memory_bytes + o->sent_bytes;
    for (int k = 0; k < ABAR_BLOCK_STAGES; k++)
        if (o->rooters[k]) bytes += abar__cuda_rooter_bytes(o->rooters[k]);
    return bytes;
}

extern "C" abar_status abar__cuda_block_stages_rebind(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks)
{
    abar__block_item *items = host_side(o, o->w.items);
    for (int i = 0; i < o->n; i++)
        if (blocks[i].order != items[i].b.order || blocks[i].first != items[i].b.first ||
            memcmp(blocks[i].dim, items[i].b.dim, sizeof blocks[i].dim) != 0 ||
            memcmp(blocks[i].state, items[i].b.state, sizeof blocks[i].state) != 0)
            return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: other blocks need another step");
    CUDA_TRY(dev, cudaEventSynchronize(o->sent)); /* what was sent before has left this memory */
    fill_items(o, blocks, items, items[0].x);
    return send(dev, o);
}
