/* The natural gradient by M x M algebra on the device (device/natural.h, optimizers.md section 9): K of every block tile by
 * tile, the solution of the damped systems (factors/cholesky.cu), the rows combined by it. The same steps as host/natural.c.
 * Rows and results are float32, their sums and the systems double. */
#include "device/cuda/step/natural.h"

#include "device/cuda/factors/cholesky.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { THREADS = 256, TILE = 16, SPAN = 1024, MAPS_MAX = 2048 }; /* SPAN: elements of a unit of results */

/* Which maps have been observed, as an argument of kernels. */
typedef struct observed_maps {
    uint32_t bits[MAPS_MAX / 32];
} observed_maps;

/* What every kernel gets; all pointers are device memory. */
typedef struct natural {
    const abar__cuda_map *maps;
    abar__map_state *states;
    abar__cuda_form *forms;
    double *products; /* (n, 3) */
    abar__cuda_live *now;
    abar__cadence cadence;
    int n;
    int64_t rows, examples; /* of this step: M, B */
    double scale;           /* that makes R of the rows in memory */
    observed_maps seen;
    abar__cuda_systems s; /* of the blocks */
    float *results;       /* G^ of all maps, one after the other */
    const int64_t *first; /* (n): where each begins */
    const abar__cuda_unit *units;
    double *sums;    /* (units, 3) */
    int32_t *broken; /* (blocks): a result is not finite */
} natural;

struct abar__cuda_natural {
    natural k;
    int64_t n_units, passes;
    char *memory;
    size_t bytes;
};

__device__ static bool takes_part(const natural &k, int map)
{
    return k.scale > 0.0 && k.maps[map].grad && (k.seen.bits[map / 32] >> (map % 32) & 1);
}

/* ---- rows and gradients -------------------------------------------------------------------------------------------- */

__device__ static bool has_dropped_bias(const abar__cuda_map &map) { return map.plan.d > map.plan.columns && !map.bias_grad; }

/* Number i of the vector a of row m. A bias without a gradient is not trained: F does not have it. */
__device__ static float a_at(const natural &k, const abar__cuda_map &map, int64_t m, int64_t i)
{
    const abar__example_rows &r = map.plan.rows;
    if (has_dropped_bias(map) && i % map.plan.d == map.plan.columns) return 0.0f;
    return ((const float *)r.a)[(r.outputs > 0 ? m % k.examples : m) * r.inputs + i];
}

/* Element (o, i) of row m. */
__device__ static double row_at(const natural &k, const abar__cuda_map &map, int64_t m, int64_t o, int64_t i)
{
    const abar__example_rows &r = map.plan.rows;
    if (r.outputs == 0) return (double)a_at(k, map, m, o * map.plan.d + i);
    return (double)((const float *)r.p)[m * r.outputs + o] * (double)a_at(k, map, m, i);
}

/* Where element (o, i) of a gradient is, i in PyTorch's order; NULL: it has none. */
__device__ static float *gradient_at(const abar__cuda_map &map, int64_t o, int64_t i)
{
    const abar__plan &p = map.plan;
    if (i == p.columns) return map.bias_grad ? map.bias_grad + o : NULL;
    const int64_t channels = p.columns / p.kernel;
    return map.grad + o * p.columns + (p.kernel == 1 ? i : i % p.kernel * channels + i / p.kernel);
}

/* ---- K ------------------------------------------------------------------------------------------------------------- */

/* Whose vectors of a map are multiplied. */
enum { OF_INPUTS, OF_OUTPUTS };

__device__ static float number_at(const natural &k, const abar__cuda_map &map, int which, int64_t m, int64_t i)
{
    const abar__example_rows &r = map.plan.rows;
    const int64_t numbers = which == OF_INPUTS ? r.inputs : r.outputs;
    if (m >= k.rows || i >= numbers) return 0.0f;
    return which == OF_INPUTS ? a_at(k, map, m, i) : ((const float *)r.p)[m * r.outputs + i];
}

/* Products of the vectors of rows down + y and left + x, for thread (x, y) of a tile. All threads of the block come here. */
__device__ static double multiply_rows(const natural &k, const abar__cuda_map &map, int which, int64_t down, int64_t left)
{
    __shared__ float own[TILE][TILE + 1], other[TILE][TILE + 1];
    const int64_t numbers = which == OF_INPUTS ? map.plan.rows.inputs : map.plan.rows.outputs;
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    double sum = 0.0;
    for (int64_t first = 0; first < numbers; first += TILE) {
        own[y][x] = number_at(k, map, which, down + y, first + x);
        other[y][x] = number_at(k, map, which, left + y, first + x);
        __syncthreads();
        double part = 0.0;
        for (int t = 0; t < TILE; t++) part += (double)own[y][t] * (double)other[x][t];
        sum += part;
        __syncthreads();
    }
    return sum;
}

/* Block (i, j, b), (TILE, TILE) threads: tile (i, j) of the lower triangle of K of block b, over its maps in their order. */
static __global__ void __launch_bounds__(TILE *TILE) make_gram(const __grid_constant__ natural k)
{
    const int64_t down = (int64_t)blockIdx.x * TILE, left = (int64_t)blockIdx.y * TILE, side = k.s.side;
    if (blockIdx.y > blockIdx.x || k.now->numbers.skip) return; /* the whole block */
    double sum = 0.0;
    for (int i = 0; i < k.n; i++) {
        const abar__cuda_map &map = k.maps[i];
        if (map.plan.rows.block != (int)blockIdx.z || !takes_part(k, i)) continue; /* the same for all threads */
        double product = multiply_rows(k, map, OF_INPUTS, down, left);
        if (map.plan.rows.outputs > 0) product *= multiply_rows(k, map, OF_OUTPUTS, down, left);
        sum += product;
    }
    const int64_t row = down + threadIdx.y, column = left + threadIdx.x;
    if (row < side && column <= row) k.s.k[((int64_t)blockIdx.z * side + row) * side + column] = k.scale * k.scale * sum;
}

/* ---- right sides --------------------------------------------------------------------------------------------------- */

/* Block (m, b): element m of block b: 1 where the rows are the batch's own, else R g. Rows beyond those of this step: 0. */
static __global__ void __launch_bounds__(THREADS) make_right_side(const __grid_constant__ natural k)
{
    __shared__ double shared[32];
    const int64_t m = blockIdx.x;
    if (k.now->numbers.skip) return;
    double sum = 0.0;
    bool own = false;
    for (int i = 0; i < k.n; i++) {
        const abar__cuda_map &map = k.maps[i];
        if (map.plan.rows.block != (int)blockIdx.y || !takes_part(k, i) || m >= k.rows) continue;
        own = map.plan.rows.own;
        for (int64_t e = threadIdx.x; !own && e < map.plan.out * map.plan.d; e += THREADS) {
            const int64_t o = e / map.plan.d, c = e % map.plan.d;
            const float *g = gradient_at(map, o, c);
            if (g) sum += row_at(k, map, m, o, c) * (double)*g;
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) k.s.x[(int64_t)blockIdx.y * k.s.side + m] = own ? 1.0 : k.scale * sum;
}

/* One thread: which blocks are to be solved. */
static __global__ void ask(const __grid_constant__ natural k)
{
    for (int b = 0; b < k.s.n; b++) k.s.systems[b].wanted = k.s.systems[b].solved = k.broken[b] = 0;
    if (k.now->numbers.skip) return;
    for (int i = 0; i < k.n; i++) {
        const abar__example_rows &r = k.maps[i].plan.rows;
        k.states[i].count[ABAR_COUNT_READY] = 0;
        if (!takes_part(k, i)) continue;
        k.s.systems[r.block].wanted = 1;
        k.s.systems[r.block].shift = r.damping;
    }
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* Block u: the elements of unit u of G^, and what they add to <G, G>, <G^, G> and <G^, G^>. */
static __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ natural k)
{
    __shared__ double shared[32];
    const abar__cuda_unit unit = k.units[blockIdx.x];
    const abar__cuda_map &map = k.maps[unit.item];
    const abar__example_rows &r = map.plan.rows;
    const abar__cuda_system system = k.s.systems[r.block];
    if (k.now->numbers.skip || !system.solved || !takes_part(k, unit.item)) return; /* the whole block */
    const double *x = k.s.x + (int64_t)r.block * k.s.side;
    const double weight = r.own ? k.scale / (sqrt((double)k.examples) * k.now->grad_scale) : -k.scale / system.shift;
    const double plain = r.own ? 0.0 : 1.0 / system.shift, limit = (double)FLT_MAX / fmax(k.now->scale, 1.0);
    const int64_t first = (int64_t)unit.first * SPAN, all = map.plan.out * map.plan.d;
    double sums[3] = {0.0, 0.0, 0.0};
    bool fine = true;
    for (int64_t e = first + threadIdx.x; e < first + SPAN && e < all; e += THREADS) {
        const int64_t o = e / map.plan.d, c = e % map.plan.d;
        const float *g = gradient_at(map, o, c);
        double h = 0.0;
        for (int64_t m = 0; m < k.rows; m++) h += x[m] * row_at(k, map, m, o, c);
        const double old = g ? (double)*g : 0.0;
        h = weight * h + plain * old;
        fine = fine && fabs(h) < limit;
        k.results[k.first[unit.item] + e] = (float)h;
        if (!g) continue;
        sums[0] += old * old;
        sums[1] += old * h;
        sums[2] += h * h;
    }
    for (int i = 0; i < 3; i++) {
        const double sum = block_sum(sums[i], shared);
        if (threadIdx.x == 0) k.sums[3 * (int64_t)blockIdx.x + i] = sum;
    }
    if (!__syncthreads_and(fine) && threadIdx.x == 0) atomicOr(k.broken + r.block, 1);
}

/* Block u: unit u into the place of the gradient, where all of its block is finite. */
static __global__ void __launch_bounds__(THREADS) take_results(const __grid_constant__ natural k)
{
    const abar__cuda_unit unit = k.units[blockIdx.x];
    const abar__cuda_map &map = k.maps[unit.item];
    const int block = map.plan.rows.block;
    if (k.now->numbers.skip || !k.s.systems[block].solved || k.broken[block] || !takes_part(k, unit.item)) return;
    const int64_t first = (int64_t)unit.first * SPAN, all = map.plan.out * map.plan.d;
    for (int64_t e = first + threadIdx.x; e < first + SPAN && e < all; e += THREADS) {
        float *g = gradient_at(map, e / map.plan.d, e % map.plan.d);
        if (g) *g = k.results[k.first[unit.item] + e];
    }
}

/* What became of a map, by one thread; whether its gradient was replaced. */
__device__ static bool settle(const natural &k, int i)
{
    const int block = k.maps[i].plan.rows.block;
    const abar__cuda_system system = k.s.systems[block];
    abar__map_state *state = &k.states[i];
    if (!takes_part(k, i)) return false;
    state->count[ABAR_COUNT_RAISED] += system.raised;
    if (!isfinite(system.trace)) {
        state->count[ABAR_COUNT_DROPPED]++;
    } else if (!system.solved || k.broken[block]) {
        state->count[ABAR_COUNT_KEPT]++;
    } else {
        state->count[ABAR_COUNT_COMMITS]++;
        state->count[ABAR_COUNT_READY] = 1;
        state->real[ABAR_REAL_DAMPING] = system.shift;
        state->real[ABAR_REAL_CONDITION] = (system.trace + system.shift) / system.shift;
        return true;
    }
    return false;
}

/* One block: counts, products and the KL clip. */
static __global__ void __launch_bounds__(THREADS) conclude(const __grid_constant__ natural k, int64_t n_units)
{
    __shared__ double shared[32];
    for (int i = (int)threadIdx.x; i < k.n; i += THREADS) {
        for (int j = 0; j < 3; j++) k.products[3 * i + j] = NAN;
        k.forms[i] = {ABAR_FORM_PLAIN, 1.0f, 1.0f};
    }
    if (k.now->numbers.skip) return;
    double clipped = 0.0;
    for (int i = (int)threadIdx.x; i < k.n; i += THREADS) {
        double sums[3] = {0.0, 0.0, 0.0};
        if (!settle(k, i)) continue;
        for (int64_t u = 0; u < n_units; u++) /* in order */
            for (int j = 0; j < 3 && k.units[u].item == i; j++) sums[j] += k.sums[3 * u + j];
        for (int j = 0; j < 3; j++) k.products[3 * i + j] = sums[j];
        clipped += sums[1];
    }
    const double kl_scale = abar__kl_scale(&k.cadence, block_sum(clipped, shared), k.now->scale);
    for (int i = (int)threadIdx.x; i < k.n; i += THREADS)
        if (k.states[i].count[ABAR_COUNT_READY]) k.forms[i].scale = (float)kl_scale;
    if (threadIdx.x == 0) k.now->state.kl_scale = kl_scale;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

template <typename T> static T *place(char *base, size_t *at, int64_t n)
{
    T *out = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + (size_t)n * sizeof(T), 256);
    return out;
}

static int64_t units_of(const abar__plan *p) { return abar__cuda_blocks(p->out * p->d, SPAN); }

/* Hands out the device's memory, or only counts it. */
static size_t place_all(abar__cuda_natural *v, int64_t results, char *base)
{
    natural *k = &v->k;
    size_t at = 0;
    const int64_t blocks = k->s.n, square = blocks * k->s.side * k->s.side;
    k->first = place<int64_t>(base, &at, k->n);
    k->units = place<abar__cuda_unit>(base, &at, v->n_units);
    k->s.systems = place<abar__cuda_system>(base, &at, blocks);
    k->s.more = place<int32_t>(base, &at, 1);
    k->broken = place<int32_t>(base, &at, blocks);
    k->s.k = place<double>(base, &at, square);
    k->s.l = place<double>(base, &at, square);
    k->s.x = place<double>(base, &at, blocks * k->s.side);
    k->sums = place<double>(base, &at, 3 * v->n_units);
    k->results = place<float>(base, &at, results);
    return at;
}

/* Where the results are and which block does what; the tables are at the beginning of the memory. */
static abar_status send_tables(abar_device *dev, const abar__cuda_natural *v, const abar__plan *plans)
{
    const natural *k = &v->k;
    void *memory;
    const size_t bytes = (size_t)((char *)k->s.systems - v->memory);
    ABAR_TRY(abar__alloc(dev->ctx, bytes, &memory));
    int64_t *first = (int64_t *)memory, at = 0;
    abar__cuda_unit *unit = (abar__cuda_unit *)((char *)memory + ((char *)k->units - v->memory));
    for (int i = 0; i < k->n; i++) {
        first[i] = at;
        at += plans[i].out * plans[i].d;
        for (int64_t u = 0; u < units_of(&plans[i]); u++) *unit++ = {i, (int32_t)u};
    }
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    cudaError_t error = cudaMemcpyAsync(v->memory, memory, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    abar__free(dev->ctx, memory, bytes);
    CUDA_TRY(dev, error);
    return ABAR_OK;
}

static abar_status make(abar_device *dev, abar__cuda_natural *v, const abar__plan *plans)
{
    natural *k = &v->k;
    int64_t results = 0;
    void *memory;
    for (int i = 0; i < k->n; i++) {
        const abar__example_rows *r = &plans[i].rows;
        k->s.n = r->block + 1 > k->s.n ? r->block + 1 : k->s.n;
        k->s.side = abar__natural_most_rows(r);
        v->passes = r->passes;
        v->n_units += units_of(&plans[i]);
        results += plans[i].out * plans[i].d;
    }
    v->bytes = place_all(v, results, NULL);
    ABAR_TRY(abar_device_alloc(dev, v->bytes, &memory)); /* zeroed */
    v->memory = (char *)memory;
    place_all(v, results, v->memory);
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&k->s.body, cudaStreamNonBlocking));
    return send_tables(dev, v, plans);
}

extern "C" abar_status abar__cuda_natural_create(abar_device *dev, const abar__plan *plans, const abar__cuda_maps *maps,
                                                 abar__cuda_natural **out)
{
    void *memory;
    *out = NULL;
    if (maps->n > MAPS_MAX)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: the natural gradient of %d maps, it has place for %d",
                          maps->n, (int)MAPS_MAX);
    ABAR_TRY(abar__alloc(dev->ctx, sizeof **out, &memory));
    abar__cuda_natural *v = (abar__cuda_natural *)memory;
    v->k.maps = maps->maps;
    v->k.states = maps->states;
    v->k.forms = maps->forms;
    v->k.products = maps->products;
    v->k.now = maps->now;
    v->k.cadence = maps->cadence;
    v->k.n = maps->n;
    const abar_status status = make(dev, v, plans);
    if (status < 0) {
        abar__cuda_natural_destroy(dev, v);
        return status;
    }
    *out = v;
    return ABAR_OK;
}

extern "C" void abar__cuda_natural_destroy(abar_device *dev, abar__cuda_natural *v)
{
    if (!v) return;
    if (v->k.s.body) cudaStreamDestroy(v->k.s.body);
    abar_device_free(dev, v->memory, v->memory ? v->bytes : 0);
    abar__free(dev->ctx, v, sizeof *v);
}

extern "C" size_t abar__cuda_natural_bytes(const abar__cuda_natural *v) { return sizeof *v + v->bytes; }

/* ---- running ------------------------------------------------------------------------------------------------------- */

extern "C" void abar__cuda_natural_offer(abar__cuda_natural *v, const double *to_mean)
{
    natural *k = &v->k;
    k->scale = 0.0;
    k->examples = k->rows = 0;
    k->seen = {};
    for (int i = 0; i < k->n && to_mean; i++) {
        if (!(to_mean[3 * i] > 0.0)) continue;
        k->scale = to_mean[3 * i]; /* the same for all */
        k->examples = (int64_t)to_mean[3 * i + 1];
        k->seen.bits[i / 32] |= 1u << (i % 32);
    }
}

extern "C" abar_status abar__cuda_natural_run(abar_device *dev, abar__cuda_natural *v)
{
    natural *k = &v->k;
    const unsigned blocks = (unsigned)k->s.n, tiles = (unsigned)abar__cuda_blocks(k->s.side, TILE);
    k->rows = k->s.rows = k->examples * v->passes; /* where there are none, nothing is solved */
    abar__cuda_launch(dev, make_gram, dim3(tiles, tiles, blocks), dim3(TILE, TILE), 0, *k);
    abar__cuda_launch(dev, make_right_side, dim3((unsigned)k->s.side, blocks), dim3(THREADS), 0, *k);
    abar__cuda_launch(dev, ask, dim3(1), dim3(1), 0, *k);
    ABAR_TRY(abar__cuda_solve_systems(dev, &k->s));
    abar__cuda_launch(dev, combine, dim3((unsigned)v->n_units), dim3(THREADS), 0, *k);
    abar__cuda_launch(dev, take_results, dim3((unsigned)v->n_units), dim3(THREADS), 0, *k);
    abar__cuda_launch(dev, conclude, dim3(1), dim3(THREADS), 0, *k, v->n_units);
    return abar__cuda_status(dev);
}
