/* An optimizer step that never asks the host (program_impl.h; methods.md sections 0, 8, 9): the norm of all gradients, whose
 * last block decides whether to skip, how much to clip and at which rate; the maps, where there are any (core_maps.cu: one
 * launch for means, core_factors.cu for dense factors); and the update. Everything they pass on lies in device memory, so that
 * a recording of them can be replayed. What they decide is what curvature.c and optim.c decide for the other devices. */
#include "device/cuda/core_program.h"

#include <math.h>
#include <string.h>

#define THREADS 256
#define NORM_SPAN 4096 /* elements of one unit of the norm */
#define WAVE_BYTES ((size_t)32 << 20)

typedef struct norm_item {
    const float *grad;
    int64_t count;
    int64_t vectors; /* 1: aligned */
} norm_item;

struct abar__program {
    int n_items, n_updates;
    int64_t norm_units, units, norm_blocks;
    bool adamw;
    abar__cuda_rule rule;
    abar__cuda_maps m;
    /* device memory: one block, of which the first tables_bytes are sent from p->host */
    char *memory;
    size_t memory_bytes, tables_bytes, vectors;
    int64_t n_tiles;
    void *room; /* results of a wave and what multiplying them needs; or the inverter's; between steps the caller's */
    size_t room_bytes, results_bytes;
    norm_item *norm_items;
    abar__cuda_unit *norm_table, *table;
    abar__cuda_item *items;
    double *partial; /* (norm_blocks) */
    double *rates;   /* (ABAR_PROGRAM_RATES): step k at k modulo that */
    /* pinned */
    char *host;
    size_t host_bytes;
    double *host_rates;
    abar__step_note *notes;          /* (ABAR_PROGRAM_NOTES) */
    int64_t *first_tile;             /* (maps + 1) */
    int32_t *first_dense;            /* (waves + 1), at most (n_dense + 1) */
    abar__cuda_factor *factors;      /* (n_factors) */
    abar__cuda_product *to_multiply; /* (n_dense) */
    cudaEvent_t sent;                /* the tables */
};

/* ---- losses and the norm ------------------------------------------------------------------------------------------ */

static __global__ void add_one_loss(abar__cuda_losses *seen, const abar_loss *result)
{
    const abar_loss r = *result;
    seen->loss += r.loss * (double)r.count;
    seen->correct += r.correct;
    seen->count += r.count;
    if (!isfinite(r.loss)) seen->bad = 1;
}

/* What one thread adds up of a unit. */
__device__ static double unit_squares(const norm_item &item, int64_t first)
{
    const float *x = item.grad + first;
    const int n = (int)(item.count - first < NORM_SPAN ? item.count - first : NORM_SPAN), quads = item.vectors ? n / 4 : 0;
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j < NORM_SPAN / 4 / THREADS; j++) {
        const int q = (int)threadIdx.x + j * THREADS;
        if (q >= quads) continue;
        const pack<float> v = load_pack(x + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; i++) sum += (double)v.v[i] * (double)v.v[i];
    }
    for (int i = 4 * quads + (int)threadIdx.x; i < n; i += THREADS) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The step's decisions, by one thread. total: sum of squares of all gradients. */
__device__ static void decide(abar__cuda_live *l, double total, double grad_scale, double clip, const double *rates,
                              abar__step_note *notes, const abar__cuda_rule &rule)
{
    const int64_t k = l->state.k;
    const double norm = grad_scale * sqrt(total);
    const bool skip = l->seen.bad || !isfinite(norm);
    const double clipping = clip > 0.0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
    l->now = k;
    l->state.k = k + 1;
    l->norm = sqrt(total);
    l->scale = grad_scale * clipping;
    l->numbers.skip = skip;
    if (!skip) {
        l->state.t++;
        l->numbers.lr = rates[k % ABAR_PROGRAM_RATES];
        l->numbers.grad_scale = (float)l->scale;
        l->numbers.first = (float)(1.0 / abar__cuda_correction(rule.beta1, l->state.t));
        l->numbers.second = (float)(1.0 / sqrt(abar__cuda_correction(rule.beta2, l->state.t)));
    }
    abar__step_note note = {l->seen.loss, l->seen.correct, l->seen.count, norm, k, skip};
    notes[k % ABAR_PROGRAM_NOTES] = note;
}

/* Block b adds up units b, b + gridDim, ... into partial[b]; the last to finish adds those up, in their order, and decides. */
static __global__ void __launch_bounds__(THREADS)
    take_norm(const norm_item *items, const abar__cuda_unit *units, int64_t n, double *partial, abar__cuda_live *l,
              double grad_scale, double clip, const double *rates, abar__step_note *notes, abar__cuda_rule rule)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x)
        sum += unit_squares(items[units[i].item], (int64_t)units[i].first * NORM_SPAN);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (!last_block(&l->ticket, gridDim.x)) return;
    sum = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) sum += __ldcg(partial + i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) decide(l, sum, grad_scale, clip, rates, notes, rule);
}

/* ---- tables ------------------------------------------------------------------------------------------------------- */

/* The next n elements of a block whose first bytes are taken; base NULL: only counts. */
template <typename T> static void place(T **out, char *base, size_t *at, size_t n)
{
    *out = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
}

/* Inverses that the program renews. */
static int factors_of(const abar__kept_map *m)
{
    if (m->kind != ABAR_KEPT_DENSE || m->fixed) return 0;
    return m->inverse[1] ? 2 : 1;
}

static int64_t eva_elements(const abar__kept_map *m) { return m->kind == ABAR_KEPT_EVA ? m->out * m->columns : 0; }

static int64_t eva_units(const abar__program *p, const abar__kept_map *m)
{
    return abar__cuda_blocks(eva_elements(m), p->m.span);
}

/* Hands out the device's memory, or only counts it. */
static void place_all(abar__program *p, char *base)
{
    size_t at = 0;
    const size_t maps = (size_t)p->m.n, dense = (size_t)p->m.n_dense;
    place(&p->m.maps, base, &at, maps);
    place(&p->m.forms, base, &at, maps);
    place(&p->norm_items, base, &at, (size_t)p->n_items);
    place(&p->norm_table, base, &at, (size_t)p->norm_units);
    place(&p->items, base, &at, (size_t)p->n_updates);
    place(&p->table, base, &at, (size_t)p->units);
    place(&p->m.units, base, &at, (size_t)p->m.n_units);
    place(&p->m.tiles, base, &at, (size_t)p->n_tiles);
    place(&p->m.dense, base, &at, dense);
    p->tables_bytes = at;
    place(&p->m.now, base, &at, 1);
    place(&p->m.states, base, &at, maps);

    place(&p->m.spoiled, base, &at, maps);
    place(&p->m.products, base, &at, 3 * maps);
    place(&p->partial, base, &at, (size_t)p->norm_blocks);
    place(&p->rates, base, &at, ABAR_PROGRAM_RATES);

    place(&p->m.unit_sums, base, &at, 2 * (size_t)p->m.n_units);
    place(&p->m.map_sums, base, &at, p->m.n_eva > 0 ? 2 * maps : 0);
    place(&p->m.tickets, base, &at, p->m.n_eva > 0 ? maps : 0);
    place(&p->m.tried, base, &at, dense);
    place(&p->m.active, base, &at, dense);
    place(&p->m.broken, base, &at, dense);
    place(&p->m.sums, base, &at, 3 * dense);
    place(&p->m.asked, base, &at, (size_t)p->m.n_factors);
    p->vectors = at;
}

static size_t product_bytes(const abar__kept_map *m) { return abar__round_up((size_t)(m->out * m->d) * sizeof(float), 256); }

/* What the maps have for themselves, behind that, and the room; returns where it ends. */
static size_t place_maps(abar__program *p, const abar__kept_map *maps, abar__cuda_map *out)
{
    size_t at = p->vectors, result = 0;
    int32_t dense = 0, factors = 0, units = 0, wave = 0;
    place((char **)&p->room, p->memory, &at, p->room_bytes);
    for (int i = 0; i < p->m.n; i++) {
        const abar__kept_map *m = &maps[i];
        abar__cuda_map map = {};
        map.map = *m;
        map.dense = map.factor[0] = map.factor[1] = -1;

        map.unit = units;
        map.units = (int32_t)eva_units(p, m);
        units += map.units;
        if (m->u) place(&map.ordered, p->memory, &at, (size_t)m->d);
        if (m->kind == ABAR_KEPT_DENSE) {
            map.dense = dense++;
            map.wave = p->to_multiply[map.dense].wave;
            result = map.wave == wave ? result : 0;
            wave = map.wave;
            map.product = p->room ? (float *)((char *)p->room + result) : NULL;
            result += product_bytes(m);
        }
        for (int f = 0; f < factors_of(m); f++) map.factor[f] = factors++;
        if (out) out[i] = map;
    }
    return at;
}

/* Where the host fills in what the device has at this address. */
template <typename T> static T *host_side(const abar__program *p, T *device)
{
    return (T *)(p->host + ((char *)device - p->memory));
}

/* Tiles along a side of this square; 0: it is none that is committed. */
static int64_t tiles_along(const abar__kept_average *a) { return a->square ? abar__cuda_blocks(a->n, ABAR_TILE) : 0; }

static int64_t tiles_of(const abar__kept_map *m)
{
    const int64_t a = tiles_along(&m->average[0]), p = tiles_along(&m->average[1]);
    return a * (a + 1) / 2 + p * (p + 1) / 2;
}

/* Elements of a unit of Eva's: so that there are about as many units as blocks that run at once, but none too small. */
static int64_t eva_span(const abar__kept_map *maps, int n, int64_t blocks)
{
    int64_t all = 0, span = 4096;
    for (int i = 0; i < n; i++) all += eva_elements(&maps[i]);
    while (span < 65536 && all > span * blocks) span *= 2;
    return span;
}

static void count_maps(abar__program *p, const abar__kept_map *maps)
{
    for (int i = 0; i < p->m.n; i++) {
        p->m.n_linked += maps[i].links > 1;
        p->m.n_eva += maps[i].kind == ABAR_KEPT_EVA;
        p->m.n_dense += maps[i].kind == ABAR_KEPT_DENSE;
        p->m.n_factors += factors_of(&maps[i]);
        p->m.n_units += eva_units(p, &maps[i]);
        p->n_tiles += tiles_of(&maps[i]);
    }
}

/* What stays on the host, behind the tables; or only counts. */
static void place_host(abar__program *p, char *base)
{
    size_t at = p->tables_bytes;
    place(&p->host_rates, base, &at, ABAR_PROGRAM_RATES);
    place(&p->notes, base, &at, ABAR_PROGRAM_NOTES);
    place(&p->first_tile, base, &at, (size_t)p->m.n + 1);
    place(&p->first_dense, base, &at, (size_t)p->m.n_dense + 1);
    place(&p->factors, base, &at, (size_t)p->m.n_factors);
    place(&p->to_multiply, base, &at, (size_t)p->m.n_dense);
    p->host_bytes = at;
}

/* A map's product, without its addresses in this program's memory. */
static abar__cuda_product product_of(const abar__kept_map *m)
{
    abar__cuda_product product = {};
    product.out = m->out;
    product.columns = m->columns;
    product.kernel = m->kernel;
    product.d = m->d;
    product.left = (const float *)m->inverse[1];
    product.right = (const float *)m->inverse[0];
    product.row_scale = (const float *)m->r;
    product.left_values = (const float *)m->values[1];
    product.values = (const float *)m->values[0];
    product.shift = m->rho;
    product.exact = m->fixed; /* a single small map, whose inverse stays for the whole run */
    return product;
}

/* Room that inverting needs; the factors have only their sizes yet. */
static size_t inverter_room(abar_device *dev, const abar__program *p, const abar__kept_map *maps)
{
    abar__cuda_factor *to = p->factors;
    for (int i = 0; i < p->m.n; i++)
        for (int f = 0; f < factors_of(&maps[i]); f++, to++) {
            *to = {};
            to->d = maps[i].average[f].n;
            to->values = (float *)maps[i].values[f];
        }
    return p->m.n_factors > 0 ? abar__cuda_inverter_room(dev, p->factors, p->m.n_factors) : 0;
}

/* Cuts the dense maps into waves whose results take at most so many bytes, or are one map's; returns what they take. */
static size_t cut_waves(abar__program *p, const abar__kept_map *maps, size_t capacity)
{
    size_t own = 0, most = 0;
    int32_t dense = 0, wave = 0;
    for (int i = 0; i < p->m.n; i++) {
        if (maps[i].kind != ABAR_KEPT_DENSE) continue;
        const size_t bytes = product_bytes(&maps[i]);
        if (own > 0 && own + bytes > capacity) {
            own = 0;
            p->first_dense[++wave] = dense;
        }
        own += bytes;
        most = own > most ? own : most;
        abar__cuda_product *to = &p->to_multiply[dense++];
        *to = product_of(&maps[i]);
        to->wave = wave;
    }
    p->m.n_waves = dense > 0 ? wave + 1 : 0;
    p->first_dense[p->m.n_waves] = dense;
    return most;
}

/* Results need no more room than there is for other reasons, or WAVE_BYTES. */
static void plan_room(abar_device *dev, abar__program *p, const abar__program_desc *desc)
{
    const size_t inverting = inverter_room(dev, p, desc->maps);
    size_t most = desc->room_bytes > inverting ? desc->room_bytes : inverting;
    p->results_bytes = cut_waves(p, desc->maps, most > WAVE_BYTES ? most : WAVE_BYTES);
    const size_t multiplying = p->results_bytes + abar__cuda_multiplier_room(p->to_multiply, p->m.n_dense);
    p->room_bytes = most > multiplying ? most : multiplying;
}

static abar_status take_memory(abar_device *dev, abar__program *p, const abar__program_desc *desc)
{
    place_all(p, NULL);
    place_host(p, NULL);
    ABAR_TRY(abar__cuda_pinned(dev, p->host_bytes, (void **)&p->host));
    place_host(p, p->host);
    plan_room(dev, p, desc);
    p->memory_bytes = place_maps(p, desc->maps, NULL);
    ABAR_TRY(abar_device_alloc(dev, p->memory_bytes, (void **)&p->memory));
    place_all(p, p->memory);
    p->m.first_tile = p->first_tile;
    p->m.first_dense = p->first_dense;
    place_maps(p, desc->maps, host_side(p, p->m.maps));
    for (int i = 0; i < p->m.n; i++) host_side(p, p->m.forms)[i].scale = 1.0f;
    return ABAR_OK;
}

static bool is_map(const abar__update_item *update) { return update->map >= 0; }

/* Which block does what: depends on the sizes alone. */
static void fill_tables(abar__program *p, const abar__program_desc *desc)
{
    abar__cuda_unit *unit = host_side(p, p->norm_table);
    for (int i = 0; i < p->n_items; i++)
        for (int64_t u = 0; u < abar__cuda_blocks(desc->items[i].count, NORM_SPAN); u++) *unit++ = {i, (int32_t)u};
    unit = host_side(p, p->table);
    for (int i = 0; i < p->n_updates; i++) {
        const abar__cuda_item item = abar__cuda_item_of(&desc->updates[i], is_map(&desc->updates[i]));
        for (int64_t u = 0; u < abar__cuda_units_of(&item); u++) *unit++ = {i, (int32_t)u};
    }

    unit = host_side(p, p->m.units);
    for (int i = 0; i < p->m.n; i++)
        for (int64_t u = 0; u < eva_units(p, &desc->maps[i]); u++) *unit++ = {i, (int32_t)u};
}

/* The squares' tiles, and which maps are dense. */
static void fill_tiles(abar__program *p, const abar__kept_map *maps)
{
    abar__cuda_unit *unit = host_side(p, p->m.tiles), *const begin = unit;
    int32_t *dense = host_side(p, p->m.dense);
    for (int i = 0; i < p->m.n; i++) {
        p->first_tile[i] = unit - begin;
        if (maps[i].kind == ABAR_KEPT_DENSE) *dense++ = i;
        for (int which = 0; which < 2; which++)
            for (int64_t down = 0; down < tiles_along(&maps[i].average[which]); down++)
                for (int64_t left = 0; left <= down; left++) *unit++ = {2 * i + which, ABAR_TILE_AT(down, left)};
    }
    p->first_tile[p->m.n] = unit - begin;
}

/* ---- dense maps --------------------------------------------------------------------------------------------------- */

static void fill_factors(abar__program *p)
{
    for (int i = 0; i < p->m.n; i++) {
        const abar__cuda_map *map = host_side(p, p->m.maps) + i;
        const abar__kept_map *m = &map->map;
        for (int f = 0; f < factors_of(m); f++) {
            abar__cuda_factor *to = &p->factors[map->factor[f]];
            to->d = m->average[f].n;
            to->average = (const float *)m->average[f].average;
            to->pending = (float *)m->average[f].pending;
            to->inverse = (float *)m->inverse[f];
            to->values = (float *)m->values[f];
            to->partner = map->factor[1 - f];
        }
    }
}

static void fill_products(abar__program *p)
{
    for (int i = 0; i < p->m.n; i++) {
        const abar__cuda_map *map = host_side(p, p->m.maps) + i;
        const abar__kept_map *m = &map->map;
        if (map->dense < 0) continue;
        abar__cuda_product *product = &p->to_multiply[map->dense];
        *product = product_of(m);
        product->grad = map->grad;
        product->bias_grad = map->bias_grad;
        product->result = map->product;
        product->wave = map->wave;
    }
}

static abar_status make_dense(abar_device *dev, abar__program *p)
{
    fill_factors(p);
    if (p->m.n_factors > 0)
        ABAR_TRY(abar__cuda_inverter_create(dev, p->factors, p->m.n_factors, p->m.asked, p->room, &p->m.inverter));
    fill_products(p);
    if (p->m.n_dense == 0) return ABAR_OK;
    return abar__cuda_multiplier_create(dev, p->to_multiply, p->m.n_dense, (char *)p->room + p->results_bytes,
                                        &p->m.multiplier);
}

/* ---- binding ------------------------------------------------------------------------------------------------------ */

static void fill_item(abar__program *p, int i, const abar__update_item *update)
{
    abar__cuda_item item = abar__cuda_item_of(update, is_map(update));
    if (is_map(update)) {
        abar__cuda_map *map = host_side(p, p->m.maps) + update->map;
        map->grad = (float *)update->grad;
        map->bias_grad = update->bias ? (float *)update->bias->grad : NULL;
        item.u = map->ordered;
        item.coefficient = (const float *)map->map.w;
        item.row_scale = map->product ? NULL : (const float *)map->map.r; /* the product has it */
        item.form = p->m.forms + update->map;
        const bool last = map->wave == p->m.n_waves - 1;
        item.dense = last ? map->product : map->grad;
        item.dense_bias = last && map->product ? map->product + map->map.out * map->map.columns : map->bias_grad;
    }
    host_side(p, p->items)[i] = item;
}

static abar_status send_tables(abar_device *dev, abar__program *p)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(p->memory, p->host, p->tables_bytes, cudaMemcpyHostToDevice, cuda->stream));

    abar__cuda_order_maps(dev, &p->m);
    CUDA_TRY(dev, cudaEventRecord(p->sent, cuda->stream));
    return ABAR_OK;
}

/* The tables of units fit these alone. */
static bool same_sizes(const abar__program *p, const abar__update_item *items, const abar__update_item *updates)
{
    bool same = true;
    for (int i = 0; i < p->n_items; i++) same = same && host_side(p, p->norm_items)[i].count == items[i].count;
    for (int i = 0; i < p->n_updates; i++) {
        const abar__cuda_item *item = host_side(p, p->items) + i;
        same = same && item->count == updates[i].count && item->rows == (is_map(&updates[i]) ? updates[i].rows : 0);
    }
    return same;
}

static abar_status bind(abar_device *dev, abar__program *p, const abar__update_item *items, const abar__update_item *updates)
{
    for (int i = 0; i < p->n_items; i++) {
        norm_item *to = host_side(p, p->norm_items) + i;
        to->grad = (const float *)items[i].grad;
        to->count = items[i].count;
        to->vectors = (uintptr_t)items[i].grad % 16 == 0;
    }
    for (int i = 0; i < p->m.n; i++) {
        abar__cuda_map *map = host_side(p, p->m.maps) + i;
        map->grad = map->bias_grad = NULL;
    }
    for (int i = 0; i < p->n_updates; i++) fill_item(p, i, &updates[i]);
    return send_tables(dev, p);
}

static abar_status rebind(abar_device *dev, abar__program *p, const abar__update_item *items, const abar__update_item *updates)
{
    if (!same_sizes(p, items, updates))
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: parameters of other sizes need another program");
    CUDA_TRY(dev, cudaEventSynchronize(p->sent)); /* the tables sent before have left this memory */
    ABAR_TRY(bind(dev, p, items, updates));
    if (p->m.n_dense == 0) return ABAR_OK;
    fill_products(p);
    return abar__cuda_multiplier_rebind(dev, p->m.multiplier, p->to_multiply);
}

static abar_status fetch(abar_device *dev, void *to, const void *from, size_t n)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, cuda->stream));
    CUDA_TRY(dev, cudaStreamSynchronize(cuda->stream));
    return ABAR_OK;
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

static void destroy(abar_device *dev, abar__program *p)
{
    if (!p) return;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    abar__cuda_multiplier_destroy(dev, p->m.multiplier);
    abar__cuda_inverter_destroy(dev, p->m.inverter);
    if (p->sent) cudaEventDestroy(p->sent);
    abar__cuda_pinned_free(dev, p->host, p->host_bytes);
    abar_device_free(dev, p->memory, p->memory_bytes);
    abar__free(dev->ctx, p, sizeof *p);
}

static abar_status make(abar_device *dev, abar__program *p, const abar__program_desc *desc)
{
    p->n_items = desc->n_items;
    p->n_updates = desc->n_updates;
    p->m.n = desc->n_maps;
    p->adamw = desc->rule == ABAR_PROGRAM_ADAMW;
    p->rule = abar__cuda_rule_of(desc->scalars);
    p->m.schedule = {
        desc->stat_decay, desc->tinv > 0 ? desc->tinv : 1, desc->refresh, desc->n_numbers, desc->every_commit, desc->kl_clip,
        desc->base_lr};

    const int64_t most = (int64_t)abar__cuda_of(dev)->processors * 8;
    p->m.span = eva_span(desc->maps, p->m.n, most);
    count_maps(p, desc->maps);
    for (int i = 0; i < p->n_items; i++) p->norm_units += abar__cuda_blocks(desc->items[i].count, NORM_SPAN);
    for (int i = 0; i < p->n_updates; i++) {
        const abar__cuda_item item = abar__cuda_item_of(&desc->updates[i], is_map(&desc->updates[i]));
        p->units += abar__cuda_units_of(&item);
    }

    p->norm_blocks = p->norm_units < 1 ? 1 : p->norm_units < most ? p->norm_units : most;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&p->sent, cudaEventDisableTiming));
    ABAR_TRY(take_memory(dev, p, desc));
    fill_tables(p, desc);
    fill_tiles(p, desc->maps);
    ABAR_TRY(bind(dev, p, desc->items, desc->updates));
    ABAR_TRY(make_dense(dev, p));
    const abar__program_state state = {0, 0, 1.0};
    return fetch(dev, &p->m.now->state, &state, sizeof state);
}

static abar_status create(abar_device *dev, const abar__program_desc *desc, abar__program **out)
{
    *out = NULL;
    abar__program *p;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *p, (void **)&p));
    abar_status status = make(dev, p, desc);
    if (status < 0) {
        destroy(dev, p);
        return status;
    }
    *out = p;
    return ABAR_OK;
}

static size_t bytes(const abar__program *p)
{
    return sizeof *p + p->memory_bytes + p->host_bytes + (p->m.inverter ? abar__cuda_inverter_bytes(p->m.inverter) : 0) +
           (p->m.multiplier ? abar__cuda_multiplier_bytes(p->m.multiplier) : 0);
}

/* ---- stepping ----------------------------------------------------------------------------------------------------- */

/* A ring on both sides: a place is used again only after as many steps as it has. */
static abar_status set_rates(abar_device *dev, abar__program *p, int64_t first, const double *lr, int64_t n)
{
    if (n > ABAR_PROGRAM_RATES)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device cuda: %lld learning rates at once, give at most %d", (long long)n,
                          ABAR_PROGRAM_RATES);
    for (int64_t done = 0; done < n;) {
        const int64_t at = (first + done) % ABAR_PROGRAM_RATES, room = ABAR_PROGRAM_RATES - at, left = n - done;
        const int64_t count = left < room ? left : room;
        memcpy(p->host_rates + at, lr + done, (size_t)count * sizeof *lr);
        CUDA_TRY(dev, cudaMemcpyAsync(p->rates + at, p->host_rates + at, (size_t)count * sizeof *lr, cudaMemcpyHostToDevice,
                                      abar__cuda_of(dev)->stream));
        done += count;
    }
    return ABAR_OK;
}

static abar_status begin(abar_device *dev, abar__program *p)
{
    CUDA_TRY(dev, cudaMemsetAsync(&p->m.now->seen, 0, sizeof p->m.now->seen, abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

static abar_status add_loss(abar_device *dev, abar__program *p, const void *result)
{
    abar__cuda_launch(dev, add_one_loss, dim3(1), dim3(1), 0, &p->m.now->seen, (const abar_loss *)result);
    return abar__cuda_status(dev);
}

static abar_status step(abar_device *dev, abar__program *p, double grad_scale, double clip, const double *to_mean)
{
    abar__cuda_launch(dev, take_norm, dim3((unsigned)p->norm_blocks), dim3(THREADS), 0, p->norm_items, p->norm_table,
                      p->norm_units, p->partial, p->m.now, grad_scale, clip, p->rates, p->notes, p->rule);
    if (p->m.n > 0) ABAR_TRY(abar__cuda_keep_maps(dev, &p->m, to_mean));
    abar__cuda_update(dev, p->adamw, p->items, p->table, p->units, &p->m.now->numbers, p->rule);
    return abar__cuda_status(dev);
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

static abar_status measure(abar_device *dev, abar__program *p, double *products)
{
    if (p->m.n == 0) return ABAR_OK;
    ABAR_TRY(abar__cuda_compare_maps(dev, &p->m));
    return fetch(dev, products, p->m.products, 3 * (size_t)p->m.n * sizeof *products);
}

static void *room(const abar__program *p) { return p->room; }

static const int32_t *skipped(const abar__program *p) { return &p->m.now->numbers.skip; }

static const int64_t *step_now(const abar__program *p) { return &p->m.now->state.k; }

static const abar__step_note *note(const abar__program *p, int64_t k) { return &p->notes[k % ABAR_PROGRAM_NOTES]; }

static abar_status pull(abar_device *dev, abar__program *p, abar__program_state *state, abar__map_state *maps)
{
    ABAR_TRY(abar__cuda_status(dev));
    ABAR_TRY(fetch(dev, state, &p->m.now->state, sizeof *state));
    return p->m.n > 0 ? fetch(dev, maps, p->m.states, (size_t)p->m.n * sizeof *maps) : ABAR_OK;
}

static abar_status push(abar_device *dev, abar__program *p, const abar__program_state *state, const abar__map_state *maps)
{
    ABAR_TRY(fetch(dev, &p->m.now->state, state, sizeof *state));

    if (p->m.n == 0) return ABAR_OK;
    abar__cuda_order_maps(dev, &p->m);
    return fetch(dev, p->m.states, maps, (size_t)p->m.n * sizeof *maps);
}

extern "C" const abar__program_ops abar__cuda_program = {
    .create = create,
    .destroy = destroy,
    .bytes = bytes,
    .room = room,
    .rebind = rebind,
    .rates = set_rates,
    .begin = begin,
    .add_loss = add_loss,
    .step = step,
    .measure = measure,
    .skipped = skipped,
    .step_now = step_now,
    .note = note,
    .pull = pull,
    .push = push,
};
