/* Gradients multiplied by dense inverses (dense.h; methods.md sections 4 to 6): one launch per stage for all maps of a
 * wave,
 *
 *   without left              G^ = G R
 *   with left                 Y = G R                 G^ = L Y
 *   with eigenvalues          Y = V_P G   W = Y V_A^T / (l_P l_A + shift)   Y = W V_A   G^ = V_P^T Y
 *
 * A launch is a table of tiles, one block each: tile of step (m, n) = a (m, k) b (k, n). G is in the order of the weight's
 * memory (out, kernel, channels), inverses in PyTorch's (channels, kernel): a sum may run in any order, so G R takes the rows
 * of R in the order of memory, and what is in PyTorch's order is ordered again when a tile of G^ is written. */
#include "device/cuda/factors/apply_tile.h"

#define STAGES 4

/* The tiles of one stage of a wave: from the first on wide ones, then the others. */
typedef struct launch {
    int64_t first, wide, others;
    size_t shared;
} launch;

struct abar__cuda_multiplier {
    int n, n_waves;
    int64_t processors;
    bool exact, large, wide; /* float32's own accuracy; tiles of 128 x 128 among the others; wide ones apart */
    int64_t n_tiles, n_slots;
    char *memory; /* on the device */
    size_t memory_bytes;
    step *steps; /* (STAGES, n) */
    tile *tiles;
    wide_maps *maps; /* (STAGES, n): where tiles are wide */
    account told;
    float *middle; /* what maps need between stages, middle_of() each, those of a wave beside each other */
    char *host;    /* pinned: steps, tiles, maps, and behind what is sent launches */
    size_t sent_bytes, host_bytes;
    launch *launches; /* (n_waves, STAGES) */
    cudaEvent_t sent;
};

/* Block b: tile b. steps: (n) of this stage. */
template <bool EXACT, bool LARGE>
static __global__ void __launch_bounds__(THREADS, LARGE || EXACT ? 2 : 4)
    multiply_tiles(const step *steps, const tile *tiles, const int32_t *active, account all, double *sums, int32_t *broken)
{
    extern __shared__ __align__(16) float pool[];
    __shared__ step s;
    const tile t = tiles[blockIdx.x];
    if (!active[t.map]) return;
    for (unsigned i = threadIdx.x; i < sizeof s / 4; i += THREADS) ((uint32_t *)&s)[i] = ((const uint32_t *)&steps[t.map])[i];
    __syncthreads();
    if (LARGE && t.shape == SHAPE_LARGE)
        do_tile<large_shape, EXACT>(s, t, pool, all, sums, broken);
    else if (t.shape == SHAPE_MIDDLE)
        do_tile<middle_shape, EXACT>(s, t, pool, all, sums, broken);
    else
        do_tile<low_shape, EXACT>(s, t, pool, all, sums, broken);
}

/* ---- the host's side: steps ----------------------------------------------------------------------------------------- */

typedef void (*tiles_kernel)(const step *, const tile *, const int32_t *, account, double *, int32_t *);

static tiles_kernel kernel_of(const abar__cuda_multiplier *m)
{
    return m->exact ? multiply_tiles<true, false> : m->large ? multiply_tiles<false, true> : multiply_tiles<false, false>;
}

static int stages_of(const abar__cuda_product *p) { return p->values ? 4 : p->left ? 2 : 1; }

static int64_t pitch_of(const abar__cuda_product *p) { return (p->d + 3) / 4 * 4; }

/* Floats: Y, (out, d rounded up to 4), of maps with left; a copy of the gradient beside it where tiles are wide. */
static size_t middle_of(const abar__cuda_product *p, bool wide)
{
    const size_t one = (size_t)(p->out * pitch_of(p));
    return (stages_of(p) > 1 ? one : 0) + (wide ? one : 0);
}

static ordering order_of(const abar__cuda_product *p)
{
    const int64_t channels = p->columns / p->kernel;
    ordering o = {(int32_t)p->columns, 1, (int32_t)p->columns, 0}; /* one channel, or a kernel of 1: nothing to order */
    if (p->kernel == 1 || channels == 1) return o;
    o.kernel = (int32_t)p->kernel;
    o.channels = (int32_t)channels;
    o.part = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)channels - 1) / (uint64_t)channels);
    return o;
}

/* A matrix by rows, `row` floats apart. */
static operand matrix(const float *data, int64_t row, int64_t columns)
{
    operand o = {};
    o.data = data;
    o.row = (int32_t)row;
    o.column = 1;
    o.columns = (int32_t)columns;
    o.rows.kernel = 1;
    o.vectors = (uintptr_t)data % 16 == 0 && row % 4 == 0;
    return o;
}

static operand transposed(const float *data, int64_t side)
{
    operand o = matrix(data, side, side);
    o.row = 1;
    o.column = (int32_t)side;
    o.vectors = 0;
    return o;
}

static operand gradient(const abar__cuda_product *p)
{
    operand o = matrix(p->grad, p->columns, p->columns);
    if (p->d > p->columns) o.last = p->bias_grad;
    return o;
}

static step blank_step(const abar__cuda_product *p, int map, int64_t k)
{
    step s = {};
    s.m = (int32_t)p->out;
    s.n = (int32_t)p->d;
    s.k = (int32_t)k;
    s.map = map;
    return s;
}

static void end_in(step *s, float *to, int64_t pitch)
{
    s->end = END_MIDDLE;
    s->to = to;
    s->pitch = (int32_t)pitch;
}

static void end_with_result(step *s, const abar__cuda_product *p)
{
    s->end = END_RESULT;
    s->columns = order_of(p);
    s->to = p->result;
    s->grad = p->grad;
    s->bias_grad = p->bias_grad;
    s->row_scale = p->row_scale;
}

/* out: (STAGES) */
static void make_steps(const abar__cuda_product *p, int map, float *middle, step *out)
{
    const int64_t pitch = pitch_of(p);
    for (int i = 0; i < STAGES; i++) out[i] = blank_step(p, map, i % 3 == 0 ? p->out : p->d);
    if (p->values) {
        out[0].a = matrix(p->left, p->out, p->out);
        out[0].b = gradient(p);
        end_in(&out[0], middle, pitch);
        out[0].columns = order_of(p);
        out[1].a = matrix(middle, pitch, p->d);
        out[1].b = transposed(p->right, p->d);
        end_in(&out[1], p->result, p->d); /* lent until the last stage */
        out[1].end = END_DIVIDE;
        out[1].left_values = p->left_values;
        out[1].values = p->values;
        out[1].shift = p->shift;
        out[2].a = matrix(p->result, p->d, p->d);
        out[2].b = matrix(p->right, p->d, p->d);
        end_in(&out[2], middle, pitch);
        out[3].a = transposed(p->left, p->out);
        out[3].b = matrix(middle, pitch, p->d);
        end_with_result(&out[3], p);
        return;
    }
    out[0].k = (int32_t)p->d;
    out[0].a = gradient(p);
    out[0].b = matrix(p->right, p->d, p->d);
    out[0].b.rows = order_of(p);
    if (!p->left) {
        end_with_result(&out[0], p);
        return;
    }
    end_in(&out[0], middle, pitch);
    out[1].k = (int32_t)p->out;
    out[1].a = matrix(p->left, p->out, p->out);
    out[1].b = matrix(middle, pitch, p->d);
    end_with_result(&out[1], p);
}

/* The same for wide tiles: apply_wide.cu's head. d and, with left, out are multiples of 4. out: (STAGES) */
static void make_wide_steps(const abar__cuda_product *p, int map, float *middle, step *out)
{
    float *y = middle + p->out * p->d;
    step *last = p->left ? &out[1] : &out[0];
    for (int i = 0; i < STAGES; i++) out[i] = blank_step(p, map, p->d);
    out[0].copy = {p->grad, middle, order_of(p), p->left != NULL};
    last->wide_a = {p->left ? y : middle, p->out, p->d};
    last->wide_b = {p->right, p->d, p->d};
    end_with_result(last, p);
    if (!p->left) return;
    out[0].k = (int32_t)p->out;
    out[0].wide_a = {p->left, p->out, p->out};
    out[0].wide_b = {middle, p->d, p->out};
    end_in(&out[0], y, p->d);
    out[0].rounded = 1;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------ */

static const int32_t shape_m[SHAPES] = {low_shape::m, middle_shape::m, large_shape::m, wide_shape::m, wider_shape::m};
static const int32_t shape_n[SHAPES] = {low_shape::n, middle_shape::n, large_shape::n, wide_shape::n, wider_shape::n};
static const size_t shape_bytes[SHAPES] = {low_shape::bytes, middle_shape::bytes, large_shape::bytes, wide_shape::bytes,
                                           wider_shape::bytes};

static double work_of(const abar__cuda_product *p) { return (double)p->out * (double)p->d * (double)p->d; }

/* Large tiles read less for the same work, where they are mostly full. */
static bool suits_large(const abar__cuda_product *p)
{
    const int64_t m = abar__cuda_blocks(p->out, 128) * 128, n = abar__cuda_blocks(p->d, 128) * 128;
    return p->out >= 256 && 4 * m * n <= 5 * (abar__cuda_blocks(p->out, 64) * 64) * (abar__cuda_blocks(p->d, 64) * 64);
}

/* Wide ones read the least, and multiply the fastest. Gradients are copied: they need not be aligned. */
static bool suits_wide(const abar__cuda_product *p)
{
    return p->out >= 128 && p->d >= 512 && p->d == p->columns && p->d % 4 == 0 && (!p->left || p->out % 4 == 0) && !p->values &&
           (uintptr_t)p->right % 16 == 0 && (uintptr_t)p->left % 16 == 0;
}

/* Large tiles leaves space for two blocks on a multiprocessor, wide ones for one: bad for many small maps, which wait for
 * memory.
 */
static bool mostly(const abar__cuda_product *products, int n, bool (*suits)(const abar__cuda_product *))
{
    double own = 0.0, all = 0.0;
    for (int i = 0; i < n; i++) {
        all += work_of(&products[i]);
        if (suits(&products[i])) own += work_of(&products[i]);
    }
    return own > 0.5 * all;
}

/* Whether there are wide tiles, where the device has them. */
static bool wants_wide(const abar__cuda_product *products, int n)
{
    for (int i = 0; i < n; i++)
        if (products[i].exact) return false;
    return mostly(products, n, suits_wide);
}

/* How long the wide maps of a wave with sums as long as map i's take, if all have tiles of this shape: rounds of tiles on all
 * processors, times what a tile takes. */
static int64_t rounds_of(const abar__cuda_multiplier *m, const abar__cuda_product *products, int i, int shape)
{
    int64_t tiles = 0;
    for (int j = 0; j < m->n; j++) {
        const abar__cuda_product *p = &products[j];
        if (p->wave == products[i].wave && p->d == products[i].d && suits_wide(p))
            tiles += abar__cuda_blocks(p->out, shape_m[shape]) * abar__cuda_blocks(p->d, shape_n[shape]);
    }
    return abar__cuda_blocks(tiles, m->processors) * shape_m[shape];
}

/* Wider ones read less for the same work. */
static int wide_shape_of(const abar__cuda_multiplier *m, const abar__cuda_product *products, int i)
{
    return rounds_of(m, products, i, SHAPE_WIDER) <= rounds_of(m, products, i, SHAPE_WIDE) ? SHAPE_WIDER : SHAPE_WIDE;
}

static bool is_wide(int shape) { return shape == SHAPE_WIDE || shape == SHAPE_WIDER; }

static int shape_of(const abar__cuda_multiplier *m, const abar__cuda_product *products, int i)
{
    const abar__cuda_product *p = &products[i];
    if (m->wide && suits_wide(p)) return wide_shape_of(m, products, i);
    return m->large && suits_large(p) ? SHAPE_LARGE : p->out > low_shape::m ? SHAPE_MIDDLE : SHAPE_LOW;
}

static int64_t tiles_of(const abar__cuda_multiplier *m, const abar__cuda_product *products, int i)
{
    const abar__cuda_product *p = &products[i];
    const int shape = shape_of(m, products, i);
    return abar__cuda_blocks(p->out, shape_m[shape]) * abar__cuda_blocks(p->d, shape_n[shape]);
}

/* The tiles of one step; those that read the same columns of b stand together. */
static tile *fill_tiles(const step *s, int shape, tile *to)
{
    int32_t slot = s->first;
    for (int32_t column = 0; column < s->n; column += shape_n[shape])
        for (int32_t row = 0; row < s->m; row += shape_m[shape]) *to++ = {s->map, row, column, shape, slot++};
    return to;
}

/* Of this stage of a wave, the longest sum below k. */
static int64_t next_longest(const abar__cuda_multiplier *m, const abar__cuda_product *products, const step *steps, int wave,
                            int stage, int64_t k)
{
    int64_t next = 0;
    for (int i = 0; i < m->n; i++)
        if (products[i].wave == wave && stage < stages_of(&products[i]) && steps[i].k < k && steps[i].k > next)
            next = steps[i].k;
    return next;
}

/* The tiles of one stage of a wave, wide ones or the others; longest sums first, so that short ones fill the end. steps: (n) of
 * it. Returns how many. */
static int64_t fill_stage(const abar__cuda_multiplier *m, const abar__cuda_product *products, const step *steps, int wave,
                          int stage, bool wide, tile *tiles, size_t *shared)
{
    tile *to = tiles;
    int64_t k = INT64_MAX;
    while ((k = next_longest(m, products, steps, wave, stage, k)) > 0)
        for (int i = 0; i < m->n; i++) {
            const int shape = shape_of(m, products, i);
            if (products[i].wave != wave || stage >= stages_of(&products[i]) || steps[i].k != k) continue;
            if (wide != is_wide(shape)) continue;
            to = fill_tiles(&steps[i], shape, to);
            if (!wide && *shared < shape_bytes[shape]) *shared = shape_bytes[shape];
        }
    return to - tiles;
}

/* steps: (STAGES, n) */
static void fill_table(abar__cuda_multiplier *m, const abar__cuda_product *products, const step *steps, tile *tiles)
{
    int64_t first = 0;
    for (int wave = 0; wave < m->n_waves; wave++)
        for (int stage = 0; stage < STAGES; stage++) {
            const step *own = steps + (size_t)stage * (size_t)m->n;
            launch *l = &m->launches[wave * STAGES + stage];
            *l = {first, 0, 0, 0};
            l->wide = fill_stage(m, products, own, wave, stage, true, tiles + first, &l->shared);
            l->others = fill_stage(m, products, own, wave, stage, false, tiles + first + l->wide, &l->shared);
            first += l->wide + l->others;
        }
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

template <typename T> static void place(T **out, char *base, size_t *at, size_t n)
{
    *out = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
}

/* Hands out the device's memory, or only counts it; steps, tiles and maps come first, as on the host. */
static size_t place_all(abar__cuda_multiplier *m, char *base)
{
    size_t at = 0;
    place(&m->steps, base, &at, (size_t)STAGES * (size_t)m->n);
    place(&m->tiles, base, &at, (size_t)m->n_tiles);
    place(&m->maps, base, &at, m->wide ? (size_t)STAGES * (size_t)m->n : 0);
    m->sent_bytes = at;
    place(&m->told.partial, base, &at, 3 * (size_t)m->n_slots);
    place(&m->told.bad, base, &at, (size_t)m->n_slots);
    place(&m->told.tickets, base, &at, (size_t)m->n);
    return at;
}

static abar_status check(abar_device *dev, const abar__cuda_product *p, int32_t wave)
{
    const char *wrong = NULL;
    if (p->out < 1 || p->columns < 1 || p->kernel < 1 || p->columns % p->kernel != 0)
        wrong = "sizes";
    else if (p->d != p->columns && p->d != p->columns + 1)
        wrong = "columns";
    else if (p->d > INT32_MAX / 4 || p->out > INT32_MAX / 4 ||
             (p->kernel > 1 && p->columns / p->kernel * p->columns > UINT32_MAX))
        wrong = "size";
    else if (!p->right || !p->result)
        wrong = "matrices";
    else if (p->values && (!p->left || !p->left_values))
        wrong = "left eigenvectors";
    else if (p->wave < wave || p->wave > wave + 1)
        wrong = "wave";
    if (!wrong) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device cuda: a product of %lld x %lld has the wrong %s", (long long)p->out,
                      (long long)p->d, wrong);
}

static abar_status send(abar_device *dev, abar__cuda_multiplier *m, size_t bytes)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    CUDA_TRY(dev, cudaMemcpyAsync(m->memory, m->host, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(dev, cudaEventRecord(m->sent, stream));
    return ABAR_OK;
}

static void fill_steps(abar__cuda_multiplier *m, const abar__cuda_product *products)
{
    step *steps = (step *)m->host, own[STAGES];
    float *middle = m->middle;
    int32_t first = 0;
    for (int i = 0; i < m->n; i++) {
        if (i > 0 && products[i].wave != products[i - 1].wave) middle = m->middle;
        const bool wide = is_wide(shape_of(m, products, i));
        (wide ? make_wide_steps : make_steps)(&products[i], i, middle, own);
        middle += middle_of(&products[i], wide);
        for (int stage = 0; stage < STAGES; stage++) {
            own[stage].first = first;
            own[stage].all = (int32_t)tiles_of(m, products, i);
            steps[stage * m->n + i] = own[stage];
        }
        first += own[0].all;
    }
}

/* Behind fill_steps. */
static abar_status fill_maps(abar_device *dev, abar__cuda_multiplier *m, const abar__cuda_product *products)
{
    const step *steps = (const step *)m->host;
    wide_maps *to = (wide_maps *)(m->host + ((char *)m->maps - m->memory));
    for (int i = 0; i < m->n; i++) {
        const int shape = shape_of(m, products, i);
        for (int at = i; is_wide(shape) && at < stages_of(&products[i]) * m->n; at += m->n)
            ABAR_TRY(abar__cuda_map_wide(dev, &steps[at], shape_m[shape], &to[at]));
    }
    return ABAR_OK;
}

extern "C" size_t abar__cuda_multiplier_workspace(const abar__cuda_product *products, int n)
{
    const bool wide = n > 0 && wants_wide(products, n);
    size_t most = 0, own = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && products[i].wave != products[i - 1].wave) own = 0;
        own += middle_of(&products[i], wide && suits_wide(&products[i]));
        most = own > most ? own : most;
    }
    return most * sizeof(float);
}

static abar_status take_memory(abar_device *dev, abar__cuda_multiplier *m, size_t own_workspace, void *workspace)
{
    const size_t lasting = place_all(m, NULL);
    m->memory_bytes = lasting + own_workspace;
    ABAR_TRY(abar_device_alloc(dev, m->memory_bytes, (void **)&m->memory));
    place_all(m, m->memory);
    m->middle = (float *)(workspace ? workspace : m->memory + lasting);
    m->host_bytes = m->sent_bytes;
    place(&m->launches, NULL, &m->host_bytes, (size_t)m->n_waves * STAGES);
    ABAR_TRY(abar__cuda_pinned(dev, m->host_bytes, (void **)&m->host));
    m->launches = (launch *)(m->host + m->sent_bytes);
    return ABAR_OK;
}

static abar_status make(abar_device *dev, abar__cuda_multiplier *m, const abar__cuda_product *products, void *workspace)
{
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    m->processors = abar__cuda_of(dev)->processors;
    m->exact = dev->config.precision == ABAR_PRECISION_FP32;
    for (int i = 0; i < m->n; i++) m->exact = m->exact || products[i].exact;
    m->large = !m->exact && mostly(products, m->n, suits_large);
    if (!m->exact && wants_wide(products, m->n)) ABAR_TRY(abar__cuda_prepare_wide(dev, &m->wide));
    for (int i = 0; i < m->n; i++) {
        ABAR_TRY(check(dev, &products[i], i > 0 ? products[i - 1].wave : 0));
        m->n_slots += tiles_of(m, products, i);
        m->n_tiles += tiles_of(m, products, i) * stages_of(&products[i]);
    }
    m->n_waves = products[m->n - 1].wave + 1;
    if (m->n_tiles > INT32_MAX) return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: products of too many tiles");
    CUDA_TRY(dev, cudaFuncSetAttribute(kernel_of(m), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       (int)shape_bytes[m->large ? SHAPE_LARGE : SHAPE_MIDDLE]));
    CUDA_TRY(dev,
             cudaFuncSetAttribute(kernel_of(m), cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared)); /* as many blocks as fit; nothing is read by way of L1 */
    CUDA_TRY(dev, cudaEventCreateWithFlags(&m->sent, cudaEventDisableTiming));
    ABAR_TRY(take_memory(dev, m, workspace ? 0 : abar__cuda_multiplier_workspace(products, m->n), workspace));
    fill_steps(m, products);
    fill_table(m, products, (const step *)m->host, (tile *)(m->host + ((char *)m->tiles - m->memory)));
    if (m->wide) ABAR_TRY(fill_maps(dev, m, products));
    return send(dev, m, m->sent_bytes);
}

extern "C" void abar__cuda_multiplier_destroy(abar_device *dev, abar__cuda_multiplier *m)
{
    if (!m) return;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    if (m->sent) cudaEventDestroy(m->sent);
    abar__cuda_pinned_free(dev, m->host, m->host_bytes);
    abar_device_free(dev, m->memory, m->memory_bytes);
    abar__free(dev->ctx, m, sizeof *m);
}

extern "C" abar_status abar__cuda_multiplier_create(abar_device *dev, const abar__cuda_product *products, int n,
                                                    void *workspace, abar__cuda_multiplier **out)
{
    *out = NULL;
    abar__cuda_multiplier *m;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *m, (void **)&m));
    m->n = n;
    const abar_status status = n > 0 ? make(dev, m, products, workspace) : ABAR_OK;
    if (status < 0) {
        abar__cuda_multiplier_destroy(dev, m);
        return status;
    }
    *out = m;
    return ABAR_OK;
}

extern "C" size_t abar__cuda_multiplier_bytes(const abar__cuda_multiplier *m)
{
    return m ? sizeof *m + m->memory_bytes + m->host_bytes : 0;
}

extern "C" abar_status abar__cuda_multiplier_rebind(abar_device *dev, abar__cuda_multiplier *m,
                                                    const abar__cuda_product *products)
{
    if (m->n == 0) return ABAR_OK;
    const step *steps = (const step *)m->host;
    for (int i = 0; i < m->n; i++)
        if (steps[i].m != products[i].out || steps[i].n != products[i].d)
            return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: products of other sizes need another multiplier");
    CUDA_TRY(dev, cudaEventSynchronize(m->sent)); /* what was sent before has left this memory */
    fill_steps(m, products);
    return send(dev, m, (size_t)STAGES * (size_t)m->n * sizeof(step));
}

extern "C" abar_status abar__cuda_multiply(abar_device *dev, abar__cuda_multiplier *m, int wave, const int32_t *active,
                                           double *sums, int32_t *broken)
{
    for (int stage = 0; stage < STAGES && wave < m->n_waves; stage++) {
        const launch l = m->launches[wave * STAGES + stage];
        const step *steps = m->steps + (size_t)stage * (size_t)m->n;
        const wide_maps *maps = m->maps + (size_t)stage * (size_t)m->n;
        if (l.wide > 0 && stage == 0) abar__cuda_copy_gradients(dev, steps, m->tiles + l.first, l.wide, active);
        if (l.wide > 0) abar__cuda_multiply_wide(dev, steps, maps, m->tiles + l.first, l.wide, active, &m->told, sums, broken);
        if (l.others == 0) continue;
        abar__cuda_launch(dev, kernel_of(m), dim3((unsigned)l.others), dim3(THREADS), l.shared, steps,
                          m->tiles + l.first + l.wide, active, m->told, sums, broken);
    }
    return abar__cuda_status(dev);
}
