/* The memory of a step (step.cu), and its tables of what is where and which block does what: filled in by the host and sent as
 * a whole. One workspace is shared by waves of products (factors/apply.cu) and by inversions (factors/inverse.cu). */
#include "device/cuda/step/tables.h"

#define WAVE_BYTES ((size_t)32 << 20)

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* The next n elements of a block whose first bytes are taken; base NULL: only counts. */
template <typename T> static void place(T **out, char *base, size_t *at, size_t n)
{
    *out = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
}

static bool is_renewed(const abar__derived_tensor *d)
{
    return !d->calibrated && (d->kind == ABAR_DERIVED_INVERSE || d->kind == ABAR_DERIVED_EIGENVECTORS);
}

/* Matrices that the step renews, at most two, and which of the plan's derived tensors they are. */
static int matrices_of(const abar__plan *m, int32_t which[2])
{
    int n = 0;
    for (int i = 0; i < m->n_derived && n < 2; i++)
        if (is_renewed(&m->derived[i])) which[n++] = i;
    return n;
}

static int factors_of(const abar__plan *m)
{
    int32_t which[2];
    return matrices_of(m, which);
}

static int64_t outer_elements(const abar__plan *m) { return m->apply.w >= 0 ? m->out * m->columns : 0; }

static int64_t outer_units(const abar__compiled_step *p, const abar__plan *m)
{
    return abar__cuda_blocks(outer_elements(m), p->m.span);
}

/* Hands out the device's memory, or only counts it. */
static void place_all(abar__compiled_step *p, char *base)
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
    place(&p->ball_sums, base, &at, (size_t)p->n_balls * ABAR_BALL_SUMS);
    place(&p->rates, base, &at, ABAR_STEP_RATES);

    place(&p->m.unit_sums, base, &at, 2 * (size_t)p->m.n_units);
    place(&p->m.map_sums, base, &at, p->m.n_outer > 0 ? 2 * maps : 0);
    place(&p->m.tickets, base, &at, p->m.n_outer > 0 ? maps : 0);
    place(&p->m.clip_sums, base, &at, clips_means(&p->m) ? ABAR_CLIP_BLOCKS * maps : 0);
    place(&p->m.tried, base, &at, dense);
    place(&p->m.active, base, &at, dense);
    place(&p->m.broken, base, &at, dense);
    place(&p->m.sums, base, &at, 3 * dense);
    place(&p->m.asked, base, &at, (size_t)p->m.n_factors);
    place(&p->verdicts, base, &at, (size_t)p->n_blocks);
    p->vectors = at;
}

static size_t product_bytes(const abar__plan *m) { return abar__round_up((size_t)(m->out * m->d) * sizeof(float), 256); }

/* What the maps have for themselves, behind that, and the workspace; returns where it ends. */
static size_t place_maps(abar__compiled_step *p, const abar__plan *maps, abar__cuda_map *out)
{
    size_t at = p->vectors, result = 0;
    int32_t dense = 0, factors = 0, units = 0, wave = 0;
    place((char **)&p->workspace, p->memory, &at, p->workspace_bytes);
    for (int i = 0; i < p->m.n; i++) {
        const abar__plan *m = &maps[i];
        abar__cuda_map map = {};
        map.plan = *m;
        map.dense = map.factor[0] = map.factor[1] = map.matrix[0] = map.matrix[1] = -1;

        map.unit = units;
        map.units = (int32_t)outer_units(p, m);
        units += map.units;
        if (m->apply.u >= 0) place(&map.ordered, p->memory, &at, (size_t)m->d);
        if (abar__plan_is_dense(m)) {
            map.dense = dense++;
            map.wave = p->to_multiply[map.dense].wave;
            result = map.wave == wave ? result : 0;
            wave = map.wave;
            map.product = p->workspace ? (float *)((char *)p->workspace + result) : NULL;
            result += product_bytes(m);
        }
        for (int f = 0, n = matrices_of(m, map.matrix); f < n; f++) map.factor[f] = factors++;
        if (out) out[i] = map;
    }
    return at;
}

/* Tiles along a side of this square; 0: it is none that is committed. */
static int64_t tiles_along(const abar__running_average *a)
{
    return a->square && !a->calibrated ? abar__cuda_blocks(a->n, ABAR_TILE) : 0;
}

static int64_t tiles_of(const abar__plan *m)
{
    const int64_t a = tiles_along(&m->average[0]), p = tiles_along(&m->average[1]);
    return a * (a + 1) / 2 + p * (p + 1) / 2;
}

/* Elements of a unit of gradients with outer products: so that there are about as many units as blocks that run at once, but
 * none too small. */
static int64_t outer_span(const abar__plan *maps, int n, int64_t blocks)
{
    int64_t all = 0, span = 4096;
    for (int i = 0; i < n; i++) all += outer_elements(&maps[i]);
    while (span < 65536 && all > span * blocks) span *= 2;
    return span;
}

static void count_maps(abar__compiled_step *p, const abar__plan *maps)
{
    for (int i = 0; i < p->m.n; i++) {
        p->m.n_linked += maps[i].links > 1;
        p->m.n_outer += maps[i].apply.w >= 0;
        p->m.n_dense += abar__plan_is_dense(&maps[i]);
        p->m.n_factors += factors_of(&maps[i]);
        p->m.n_units += outer_units(p, &maps[i]);
        p->n_tiles += tiles_of(&maps[i]);
    }
}

/* What stays on the host, behind the tables; or only counts. */
static void place_host(abar__compiled_step *p, char *base)
{
    size_t at = p->tables_bytes;
    place(&p->host_rates, base, &at, ABAR_STEP_RATES);
    place(&p->outcomes, base, &at, ABAR_STEP_RESULTS);
    place(&p->first_tile, base, &at, (size_t)p->m.n + 1);
    place(&p->first_dense, base, &at, (size_t)p->m.n_dense + 1);
    place(&p->factors, base, &at, (size_t)p->m.n_factors);
    place(&p->to_multiply, base, &at, (size_t)p->m.n_dense);
    p->host_bytes = at;
}

/* A map's product, without its addresses in this step's memory. */
static abar__cuda_product product_of(const abar__plan *m)
{
    abar__cuda_product product = {};
    product.out = m->out;
    product.columns = m->columns;
    product.kernel = m->kernel;
    product.d = m->d;
    const abar__treatment *t = &m->apply;
    product.left = (const float *)abar__plan_data(m, t->left);
    product.right = (const float *)abar__plan_data(m, t->right);
    product.row_scale = (const float *)abar__plan_data(m, t->row_scale);
    product.left_values = t->left < 0 ? NULL : (const float *)abar__plan_data(m, m->derived[t->left].values);
    product.values = (const float *)abar__plan_data(m, m->derived[t->right].values);
    product.shift = t->shift;
    product.exact = m->derived[t->right].calibrated; /* a single small map, whose inverse stays for the whole run */
    return product;
}

/* Room that inverting needs; the factors have only their sizes yet. */
static size_t inverter_workspace(abar_device *dev, const abar__compiled_step *p, const abar__plan *maps)
{
    abar__cuda_factor *to = p->factors;
    for (int i = 0; i < p->m.n; i++) {
        int32_t which[2];
        for (int f = 0, n = matrices_of(&maps[i], which); f < n; f++, to++) {
            const abar__derived_tensor *d = &maps[i].derived[which[f]];
            *to = {};
            to->d = maps[i].average[d->average].n;
            to->values = (float *)abar__plan_data(&maps[i], d->values);
        }
    }
    return p->m.n_factors > 0 ? abar__cuda_inverter_workspace(dev, p->factors, p->m.n_factors) : 0;
}

/* Cuts the dense maps into waves whose results take at most so many bytes, or are one map's; returns what they take. */
static size_t cut_waves(abar__compiled_step *p, const abar__plan *maps, size_t capacity)
{
    size_t own = 0, most = 0;
    int32_t dense = 0, wave = 0;
    for (int i = 0; i < p->m.n; i++) {
        if (!abar__plan_is_dense(&maps[i])) continue;
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

/* Results, and what multiplying needs beside them, take no more workspace than there is for other reasons, or a WAVE_BYTES of
 * results. */
static void plan_workspace(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    const size_t inverting = inverter_workspace(dev, p, desc->plans);
    size_t most = desc->workspace_bytes > inverting ? desc->workspace_bytes : inverting;
    const size_t capacity = most > WAVE_BYTES ? most : WAVE_BYTES;
    p->results_bytes = cut_waves(p, desc->plans, capacity);
    size_t multiplying = p->results_bytes + abar__cuda_multiplier_workspace(p->to_multiply, p->m.n_dense);
    if (multiplying > capacity && capacity > WAVE_BYTES) { /* what multiplying needs grows with the waves */
        const size_t share = (size_t)((double)capacity * ((double)p->results_bytes / (double)multiplying));
        p->results_bytes = cut_waves(p, desc->plans, share > WAVE_BYTES ? share : WAVE_BYTES);
        multiplying = p->results_bytes + abar__cuda_multiplier_workspace(p->to_multiply, p->m.n_dense);
    }
    p->workspace_bytes = most > multiplying ? most : multiplying;
}

static abar_status take_memory(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    place_all(p, NULL);
    place_host(p, NULL);
    ABAR_TRY(abar__cuda_pinned(dev, p->host_bytes, (void **)&p->host));
    place_host(p, p->host);
    plan_workspace(dev, p, desc);
    p->memory_bytes = place_maps(p, desc->plans, NULL);
    ABAR_TRY(abar_device_alloc(dev, p->memory_bytes, (void **)&p->memory));
    place_all(p, p->memory);
    p->m.first_tile = p->first_tile;
    p->m.first_dense = p->first_dense;
    place_maps(p, desc->plans, host_side(p, p->m.maps));
    for (int i = 0; i < p->m.n; i++) host_side(p, p->m.forms)[i].scale = 1.0f;
    return ABAR_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------- */

/* Which block does what: depends on the sizes alone. */
static void fill_tables(abar__compiled_step *p, const abar__step_desc *desc)
{
    abar__cuda_unit *unit = host_side(p, p->norm_table);
    for (int i = 0; i < p->n_items; i++)
        for (int64_t u = 0; u < abar__cuda_blocks(desc->items[i].count, ABAR_NORM_SPAN); u++) *unit++ = {i, (int32_t)u};
    abar__cuda_unit *const table = unit = host_side(p, p->table);
    for (int k = 0; k < p->n_passes; k++) { /* updates are in the order of their passes */
        const abar__update_pass *pass = &p->passes[k];
        p->first_unit[k] = unit - table;
        for (int i = pass->first; pass->kind == ABAR_PASS_UPDATE && i < pass->first + pass->n; i++) {
            const abar__cuda_item item = abar__cuda_item_of(&desc->updates[i], is_map(&desc->updates[i]));
            for (int64_t u = 0; u < abar__cuda_units_of(&item); u++) *unit++ = {i, (int32_t)u};
        }
        p->first_unit[k + 1] = unit - table;
    }
    unit = host_side(p, p->m.units);
    for (int i = 0; i < p->m.n; i++)
        for (int64_t u = 0; u < outer_units(p, &desc->plans[i]); u++) *unit++ = {i, (int32_t)u};
}

/* The squares' tiles, and which maps are dense. */
static void fill_tiles(abar__compiled_step *p, const abar__plan *maps)
{
    abar__cuda_unit *unit = host_side(p, p->m.tiles), *const begin = unit;
    int32_t *dense = host_side(p, p->m.dense);
    for (int i = 0; i < p->m.n; i++) {
        p->first_tile[i] = unit - begin;
        if (abar__plan_is_dense(&maps[i])) *dense++ = i;
        for (int which = 0; which < 2; which++)
            for (int64_t down = 0; down < tiles_along(&maps[i].average[which]); down++)
                for (int64_t left = 0; left <= down; left++) *unit++ = {2 * i + which, ABAR_TILE_AT(down, left)};
    }
    p->first_tile[p->m.n] = unit - begin;
}

/* How much of everything there is. */
static void count_all(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    p->n_items = desc->n_items;
    p->n_updates = desc->n_updates;
    p->n_blocks = desc->n_blocks;
    p->n_tensors = desc->n_tensors;
    p->n_passes = desc->n_passes;
    for (int i = 0; i < p->n_passes; i++) {
        p->passes[i] = desc->passes[i];
        if (desc->passes[i].kind == ABAR_PASS_HYPERBALL) p->n_balls = desc->passes[i].n;
    }
    p->m.n = desc->n_maps;
    const int64_t most = (int64_t)abar__cuda_of(dev)->processors * 8;
    p->m.span = outer_span(desc->plans, p->m.n, most);
    count_maps(p, desc->plans);
    for (int i = 0; i < p->n_items; i++) p->norm_units += abar__cuda_blocks(desc->items[i].count, ABAR_NORM_SPAN);
    for (int i = 0; i < p->n_updates; i++) {
        const abar__cuda_item item = abar__cuda_item_of(&desc->updates[i], is_map(&desc->updates[i]));
        p->units += abar__cuda_units_of(&item);
    }
    p->norm_blocks = p->norm_units < 1 ? 1 : p->norm_units < most ? p->norm_units : most;
}

extern "C" abar_status abar__cuda_make_tables(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    count_all(dev, p, desc);
    ABAR_TRY(take_memory(dev, p, desc));
    fill_tables(p, desc);
    fill_tiles(p, desc->plans);
    return ABAR_OK;
}

/* ---- dense maps --------------------------------------------------------------------------------------------------- */

/* What is multiplied on tensor cores is rounded once, here, and kept so in the state. */
static void fill_factors(abar_device *dev, abar__compiled_step *p)
{
    bool exact = dev->config.precision == ABAR_PRECISION_FP32;
    for (int i = 0; i < p->m.n_dense; i++) exact = exact || p->to_multiply[i].exact;
    for (int i = 0; i < p->m.n; i++) {
        const abar__cuda_map *map = host_side(p, p->m.maps) + i;
        const abar__plan *m = &map->plan;
        for (int f = 0; f < factors_of(m); f++) {
            abar__cuda_factor *to = &p->factors[map->factor[f]];
            const abar__derived_tensor *d = &m->derived[map->matrix[f]];
            const abar__running_average *a = &m->average[d->average];
            to->d = a->n;
            to->average = (const float *)a->average;
            to->pending = (float *)a->pending;
            to->inverse = (float *)d->data;
            to->values = (float *)abar__plan_data(m, d->values);
            to->partner = map->factor[1 - f];
            to->rounded = !exact && !to->values;
            to->width = d->width;
            to->gamma = d->width > 0 ? m->scalar[d->scale].value : 0.0;
        }
    }
}

extern "C" void abar__cuda_fill_products(abar__compiled_step *p)
{
    for (int i = 0; i < p->m.n; i++) {
        const abar__cuda_map *map = host_side(p, p->m.maps) + i;
        const abar__plan *m = &map->plan;
        if (map->dense < 0) continue;
        abar__cuda_product *product = &p->to_multiply[map->dense];
        *product = product_of(m);
        product->grad = map->grad;
        product->bias_grad = map->bias_grad;
        product->result = map->product;
        product->wave = map->wave;
    }
}

extern "C" abar_status abar__cuda_make_dense(abar_device *dev, abar__compiled_step *p)
{
    fill_factors(dev, p);
    if (p->m.n_factors > 0)
        ABAR_TRY(abar__cuda_inverter_create(dev, p->factors, p->m.n_factors, p->m.asked, p->workspace, &p->m.inverter));
    abar__cuda_fill_products(p);
    if (p->m.n_dense == 0) return ABAR_OK;
    return abar__cuda_multiplier_create(dev, p->to_multiply, p->m.n_dense, (char *)p->workspace + p->results_bytes,
                                        &p->m.multiplier);
}
