/* The stages of blocks (device/blocks.h) on the device: every stage is a launch or two over all blocks. X is packed into memory
 * of the object; once that is done the gradients' memory is free for what X is multiplied into, until the step is written
 * there. */
#include "device/cuda/factors/bases.h"
#include "device/cuda/step/blocks_walk.h"

#include <math.h>
#include <string.h>

enum { THREADS = 256 };

struct abar__cuda_block_stages {
    const abar__block_plan *plan;
    int n, order; /* order: the most modes of a block */
    abar__block_walk w;
    int64_t n_units, n_slots, first_multiply[ABAR_BLOCK_MODES + 1]; /* tiles: averages, then by mode */
    abar__block_tile *tiles;
    float *chunks;
    unsigned *chunk_tickets;
    abar__cuda_root_call *calls;                   /* (stages) */
    abar__cuda_rooter *rooters[ABAR_BLOCK_STAGES]; /* of the stages that take roots; else NULL */
    abar__cuda_turner *turners[ABAR_BLOCK_STAGES]; /* likewise that renew bases */
    float *x, *z;                                  /* of all blocks; z NULL: there are no bases */
    int32_t *orders;
    char *memory, *host; /* host: pinned, a copy of the first sent_bytes */
    size_t memory_bytes, sent_bytes;
    cudaEvent_t sent;
};

/* ---- decisions --------------------------------------------------------------------------------------------------------------
 */

static __global__ void plan_roots(const abar__cuda_live *now, abar__block_stage stage, abar__cuda_root_call *call)
{
    call->wanted = !now->numbers.skip && abar__root_is_due(&stage, now->state.t);
    call->scale = stage.beta == 1.0 ? 1.0 : abar__unbias(stage.beta, now->state.t);
    call->eps = stage.eps;
}

static __global__ void plan_bases(const abar__cuda_live *now, abar__block_stage stage, abar__cuda_root_call *call)
{
    call->wanted = !now->numbers.skip && abar__basis_is_due(&stage, now->state.t);
}

/* Lengths of parameters: the first block of each has a thread. */
static __global__ void __launch_bounds__(THREADS)
    join_lengths(const abar__block_item *items, abar__block_result *results, int n, const abar__cuda_live *now)
{
    const int first = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (now->numbers.skip || first >= n) return;
    double length = 0.0, squares = 0.0;
    for (int i = first; i < first + items[first].together; i++) {
        length += results[i].length * results[i].length;
        squares += results[i].squares;
    }
    for (int i = first; i < first + items[first].together; i++) {
        results[i].length = sqrt(length);
        results[i].squares = squares;
    }
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

static void walk(abar_device *dev, const abar__cuda_block_stages *o, abar__walk_kind kind, const abar__block_walk &w)
{
    abar__cuda_walk_blocks(dev, kind, o->n_units, &w);
}

static void multiply_all(abar_device *dev, const abar__cuda_block_stages *o, const abar__block_walk &w,
                         const abar__block_product &p)
{
    for (int mode = 0; mode < o->order; mode++) {
        const int64_t first = o->first_multiply[mode], n = o->first_multiply[mode + 1] - first;
        abar__cuda_multiply_blocks(dev, w.items, o->tiles + first, n, &p, w.now);
    }
}

/* Roots are symmetric, and read faster as their transposes. */
static bool is_symmetric(const abar__block_plan *plan, int state)
{
    for (int k = 0; k < plan->n_stages; k++)
        if (plan->stage[k].kind == ABAR_BLOCK_ROOT && plan->stage[k].state == state) return true;
    return false;
}

static void multiply(abar_device *dev, const abar__cuda_block_stages *o, const abar__block_walk &w)
{
    abar__block_product p = {};
    p.state = w.state;
    p.which = w.stage.state;
    p.transposed = w.stage.transposed || is_symmetric(o->plan, w.stage.state);
    multiply_all(dev, o, w, p);
    walk(dev, o, ABAR_WALK_COPY_BACK, w);
}

static void average(abar_device *dev, const abar__cuda_block_stages *o, const abar__block_walk &w)
{
    abar__block_average a = {};
    a.state = w.state;
    a.which = w.stage.state;
    a.beta = w.stage.beta;
    a.every = w.stage.every;
    a.mode = -1;
    abar__cuda_average_blocks(dev, w.items, w.results, o->tiles, o->first_multiply[0], &a, o->chunks, o->chunk_tickets, w.now);
}

static void average_whitened(abar_device *dev, const abar__cuda_block_stages *o, const abar__block_walk &w)
{
    abar__block_average a = {};
    abar__block_product p = {};
    a.state = w.state;
    a.which = w.stage.state;
    a.beta = w.stage.beta;
    a.every = 1;
    a.whitened = p.alone = true;
    a.basis = p.state = o->plan->state[w.stage.basis];
    p.which = w.stage.basis;
    p.scales = o->plan->state[w.stage.scales];
    p.which_scales = w.stage.scales;
    for (int mode = 0; mode < 2 && mode < o->order; mode++) {
        const int64_t first = o->first_multiply[1 - mode], n = o->first_multiply[2 - mode] - first;
        abar__cuda_multiply_blocks(dev, w.items, o->tiles + first, n, &p, w.now);
        a.mode = mode;
        abar__cuda_average_blocks(dev, w.items, w.results, o->tiles, o->first_multiply[0], &a, o->chunks, o->chunk_tickets,
                                  w.now);
    }
}

/* m leaves the old bases and goes into the new ones, and v is put into their order. */
static abar_status turn_bases(abar_device *dev, const abar__cuda_block_stages *o, int k, const abar__block_walk &w)
{
    abar__block_product p = {};
    p.state = w.state;
    p.which = w.stage.state;
    p.transposed = p.of_mean = true;
    p.every = w.stage.every;
    walk(dev, o, ABAR_WALK_PACK_MEAN, w);
    multiply_all(dev, o, w, p);
    abar__cuda_launch(dev, plan_bases, dim3(1), dim3(1), 0, w.now, w.stage, o->calls + k);
    ABAR_TRY(abar__cuda_turner_run(dev, o->turners[k]));
    if (w.stage.squares >= 0) {
        walk(dev, o, ABAR_WALK_PACK_SQUARES, w);
        walk(dev, o, ABAR_WALK_PERMUTE, w);
    }
    p.transposed = false;
    p.again = true;
    multiply_all(dev, o, w, p);
    walk(dev, o, ABAR_WALK_UNPACK_MEAN, w);
    return ABAR_OK;
}

static abar_status take_roots(abar_device *dev, const abar__cuda_block_stages *o, int k, const abar__block_walk &w)
{
    abar__cuda_launch(dev, plan_roots, dim3(1), dim3(1), 0, w.now, w.stage, o->calls + k);
    return abar__cuda_rooter_run(dev, o->rooters[k]);
}

static abar_status run_stage(abar_device *dev, const abar__cuda_block_stages *o, int k, const abar__block_walk &w)
{
    switch (w.stage.kind) {
    case ABAR_BLOCK_AVERAGE: average(dev, o, w); break;
    case ABAR_BLOCK_SQUARES: walk(dev, o, ABAR_WALK_SQUARES, w); break;
    case ABAR_BLOCK_ROOT: return take_roots(dev, o, k, w);
    case ABAR_BLOCK_MOMENTUM: walk(dev, o, ABAR_WALK_MOMENTUM, w); break;
    case ABAR_BLOCK_MULTIPLY: multiply(dev, o, w); break;
    case ABAR_BLOCK_MEASURE: walk(dev, o, ABAR_WALK_MEASURE, w); break;
    case ABAR_BLOCK_RESCALE:
        walk(dev, o, ABAR_WALK_NORM, w);
        if (w.stage.whole)
            abar__cuda_launch(dev, join_lengths, dim3((unsigned)abar__cuda_blocks(o->n, THREADS)), dim3(THREADS), 0, w.items,
                              w.results, o->n, w.now);
        walk(dev, o, ABAR_WALK_RESCALE, w);
        break;
    case ABAR_BLOCK_HEAVY:
        walk(dev, o, ABAR_WALK_NORM, w);
        walk(dev, o, ABAR_WALK_HEAVY, w);
        break;
    case ABAR_BLOCK_WHITENED: average_whitened(dev, o, w); break;
    case ABAR_BLOCK_SCALES: abar__cuda_scale_blocks(dev, w.items, w.results, o->n, &w.state, &w.stage, w.now); break;
    case ABAR_BLOCK_ADAM: walk(dev, o, ABAR_WALK_ADAM, w); break;
    case ABAR_BLOCK_EVEN:
        walk(dev, o, ABAR_WALK_NORM, w);
        walk(dev, o, ABAR_WALK_EVEN, w);
        break;
    case ABAR_BLOCK_STEP:
        if (w.stage.ball) {
            walk(dev, o, ABAR_WALK_NORM, w);
            walk(dev, o, ABAR_WALK_WEIGHT, w);
            walk(dev, o, ABAR_WALK_INNER, w);
        }
        walk(dev, o, ABAR_WALK_STEP, w);
        break;
    case ABAR_BLOCK_BASIS: return turn_bases(dev, o, k, w);
    }
    return ABAR_OK;
}

extern "C" abar_status abar__cuda_block_stages_run(abar_device *dev, abar__cuda_block_stages *o, abar__cuda_live *now)
{
    abar__block_walk w = o->w;
    w.now = now;
    walk(dev, o, ABAR_WALK_LOAD, w);
    for (int k = 0; k < o->plan->n_stages; k++) {
        w.stage = o->plan->stage[k];
        w.state = w.stage.state >= 0 ? o->plan->state[w.stage.state] : abar__block_state{};
        ABAR_TRY(run_stage(dev, o, k, w));
    }
    walk(dev, o, ABAR_WALK_NORM, w);
    walk(dev, o, ABAR_WALK_STORE, w);
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

/* Whether the plan has a matrix of the mode: sides that are too long have none, and no tiles. */
static bool has_matrix(const abar__block_plan *plan, const abar__block *b, int mode)
{
    for (int k = 0; k < plan->n_states; k++)
        if (plan->state[k].modes && abar__block_has(b, &plan->state[k], mode)) return true;
    return false;
}

/* All tiles: averages, then products by mode; returns how many. */
static int64_t list_tiles(abar__cuda_block_stages *o, const abar__block *blocks, abar__block_tile *out)
{
    int64_t n = 0;
    o->n_slots = 0;
    for (int i = 0; i < o->n; i++)
        for (int m = 0; m < blocks[i].order; m++)
            if (has_matrix(o->plan, &blocks[i], m)) n += list_averages(&blocks[i], i, m, &o->n_slots, out ? out + n : NULL);
    for (int m = 0; m < ABAR_BLOCK_MODES; m++) {
        o->first_multiply[m] = n;
        for (int i = 0; i < o->n; i++)
            if (m < blocks[i].order && has_matrix(o->plan, &blocks[i], m))
                n += list_products(&blocks[i], i, m, out ? out + n : NULL);
    }
    o->first_multiply[ABAR_BLOCK_MODES] = n;
    return n;
}

static int32_t averaged_of(const abar__block_plan *plan, const abar__block *b)
{
    int32_t n = 0;
    for (int k = 0; k < plan->n_stages; k++)
        for (int m = 0;
             (plan->stage[k].kind == ABAR_BLOCK_AVERAGE || plan->stage[k].kind == ABAR_BLOCK_WHITENED) && m < b->order; m++)
            n += abar__block_has(b, &plan->state[plan->stage[k].state], m);
    return n;
}

/* The state that holds the bases; NULL: there are none. */
static const abar__block_state *bases_of(const abar__block_plan *plan)
{
    for (int k = 0; k < plan->n_stages; k++)
        if (plan->stage[k].kind == ABAR_BLOCK_BASIS) return &plan->state[plan->stage[k].state];
    return NULL;
}

/* Entries of the block's modes in front of this one that have a basis. */
static int64_t ordered_before(const abar__block *b, const abar__block_state *bases, int mode)
{
    int64_t n = 0;
    for (int m = 0; bases && m < mode; m++) n += abar__block_has(b, bases, m) ? b->dim[m] : 0;
    return n;
}

static int32_t together_of(const abar__block *blocks, int i, int n)
{
    int32_t together = 1;
    if (i > 0 && blocks[i].grad == blocks[i - 1].grad) return 0;
    while (i + together < n && blocks[i + together].grad == blocks[i].grad) together++;
    return together;
}

/* Blocks of one parameter follow each other. */
static void fill_items(const abar__cuda_block_stages *o, const abar__block *blocks, abar__block_item *out)
{
    const abar__block_state *bases = bases_of(o->plan);
    int64_t before = 0, at = 0; /* elements of the parameter's blocks so far, and of all */
    int32_t *order = o->orders;
    for (int i = 0; i < o->n; i++) {
        if (i > 0 && blocks[i].grad != blocks[i - 1].grad) before = 0;
        out[i] = {blocks[i],
                  o->x + at,
                  (float *)blocks[i].grad + before,
                  (int32_t)abar__cuda_blocks(blocks[i].count, ABAR_WALK_SPAN),
                  averaged_of(o->plan, &blocks[i]),
                  o->z ? o->z + at : NULL,
                  order,
                  together_of(blocks, i, o->n)};
        before += blocks[i].count;
        at += (int64_t)abar__round_up((size_t)blocks[i].count, 4);
        order += ordered_before(&blocks[i], bases, blocks[i].order);
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

/* Hands out the device's memory, or only counts it. */
static void place_all(abar__cuda_block_stages *o, char *base, int64_t tiles, int64_t elements, int64_t ordered)
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
    o->x = place<float>(base, &at, elements);
    o->orders = place<int32_t>(base, &at, ordered);
    if (bases_of(o->plan)) o->z = place<float>(base, &at, elements);
    o->memory_bytes = at;
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
            roots[n++] = {b->dim[m], (float *)b->state[stage->from] + at, (float *)b->state[stage->state] + at,
                          abar__block_exponent(b, stage), stage->ridge};
        }
    const abar_status status = abar__cuda_rooter_create(dev, roots, n, o->calls + k, &o->rooters[k]);
    abar__free(dev->ctx, roots, bytes);
    return status;
}

static abar_status make_turner(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks, int k)
{
    const abar__block_stage *stage = &o->plan->stage[k];
    const abar__block_state *state = &o->plan->state[stage->state];
    abar__cuda_basis *bases;
    int32_t *order = o->orders;
    int n = 0;
    const size_t bytes = (size_t)o->n * ABAR_BLOCK_MODES * sizeof *bases;
    ABAR_TRY(abar__alloc(dev->ctx, bytes, (void **)&bases));
    for (int i = 0; i < o->n; i++)
        for (int m = 0; m < blocks[i].order; m++) {
            const abar__block *b = &blocks[i];
            if (!abar__block_has(b, state, m)) continue;
            const int64_t at = abar__block_factor(b, state, m);
            bases[n++] = {b->dim[m], (const float *)b->state[stage->from] + at, (float *)b->state[stage->state] + at, order};
            order += b->dim[m];
        }
    const abar_status status = abar__cuda_turner_create(dev, bases, n, stage->squares >= 0, o->calls + k, &o->turners[k]);
    abar__free(dev->ctx, bases, bytes);
    return status;
}

static abar_status make(abar_device *dev, abar__cuda_block_stages *o, const abar__block *blocks)
{
    int64_t elements = 0, ordered = 0;
    for (int i = 0; i < o->n; i++) {
        o->n_units += abar__cuda_blocks(blocks[i].count, ABAR_WALK_SPAN);
        o->order = blocks[i].order > o->order ? blocks[i].order : o->order;
        elements += (int64_t)abar__round_up((size_t)blocks[i].count, 4);
        ordered += ordered_before(&blocks[i], bases_of(o->plan), blocks[i].order);
    }
    const int64_t tiles = list_tiles(o, blocks, NULL);
    if (tiles > INT32_MAX || o->n_units > INT32_MAX)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: blocks of too many tiles, use larger ones");
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&o->sent, cudaEventDisableTiming));
    place_all(o, NULL, tiles, elements, ordered);
    ABAR_TRY(abar_device_alloc(dev, o->memory_bytes, (void **)&o->memory)); /* zeroed: tickets start at 0 */
    ABAR_TRY(abar__cuda_pinned(dev, o->sent_bytes, (void **)&o->host));
    place_all(o, o->memory, tiles, elements, ordered);
    fill_items(o, blocks, host_side(o, o->w.items));
    abar__cuda_unit *unit = host_side(o, o->w.units);
    for (int i = 0; i < o->n; i++)
        for (int64_t u = 0; u < abar__cuda_blocks(blocks[i].count, ABAR_WALK_SPAN); u++) *unit++ = {i, (int32_t)u};
    list_tiles(o, blocks, host_side(o, o->tiles));
    for (int k = 0; k < o->plan->n_stages; k++) {
        if (o->plan->stage[k].kind == ABAR_BLOCK_ROOT) ABAR_TRY(make_rooter(dev, o, blocks, k));
        if (o->plan->stage[k].kind == ABAR_BLOCK_BASIS) ABAR_TRY(make_turner(dev, o, blocks, k));
    }
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
    for (int k = 0; k < ABAR_BLOCK_STAGES; k++) {
        abar__cuda_rooter_destroy(dev, o->rooters[k]);
        abar__cuda_turner_destroy(dev, o->turners[k]);
    }
    if (o->sent) cudaEventDestroy(o->sent);
    abar_device_free(dev, o->memory, o->memory_bytes);
    abar__cuda_pinned_free(dev, o->host, o->sent_bytes);
    abar__free(dev->ctx, o, sizeof *o);
}

extern "C" size_t abar__cuda_block_stages_bytes(const abar__cuda_block_stages *o)
{
    size_t bytes = sizeof *o + o->memory_bytes + o->sent_bytes;
    for (int k = 0; k < ABAR_BLOCK_STAGES; k++) {
        if (o->rooters[k]) bytes += abar__cuda_rooter_bytes(o->rooters[k]);
        if (o->turners[k]) bytes += abar__cuda_turner_bytes(o->turners[k]);
    }
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
    fill_items(o, blocks, items);
    return send(dev, o);
}
