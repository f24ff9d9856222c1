/* Eigenvalues and eigenvectors of symmetric factors by Jacobi rotations in double precision, many thread blocks for each.
 *
 * The rows of a factor are cut into pieces of 32. In a round every piece meets one other: a thread block rotates each element
 * off the diagonal of their 64 x 64 matrix away once, in shared memory, and leaves the product J of its rotations. Then, for
 * all pairs (P, Q) of pieces, A_PQ <- J_P A_PQ J_Q^T, and V_P <- J_P V_P: products of 64 x 64 tiles on tensor cores. After as
 * many rounds as there are others to meet, a sweep, all elements have been rotated away; sweeps are repeated until the elements
 * off the diagonal were negligible in all of one. Then the diagonal of A has the eigenvalues, and the rows of V the
 * eigenvectors.
 *
 * Of A the lower triangle alone is kept. Factors are padded to whole tiles with zeros, which no rotation mixes with the rest.
 * Every factor is in some phase, and factors work in waves that share the workspace, as in roots.cu. */
#include "device/cuda/factors/repeat.h"
#include "device/cuda/factors/spectra_impl.h"
#include "device/cuda/stats/stats.h"
#include "device/step_rules.h"

#include <math.h>

enum { SLAB = DOUBLE_SLAB, THREADS = DOUBLE_THREADS, SLABS = TILE / SLAB, DECIDERS = 1024, SWEEPS_MOST = 60 };

#define WAVE_BYTES ((size_t)1 << 30)
#define NEGLIGIBLE 1e-26 /* squares off the diagonal over all squares */
#define TURN_BYTES ((SLABS + 1) * sizeof(double_slab))

struct abar__cuda_spectra {
    all_spectra s;
    wave most; /* of a wave: how many of each */
    char *memory;
    size_t bytes;
    cudaStream_t body;
};

/* ---- rotations of the rest -------------------------------------------------------------------------------------------------
 */

/* Columns of J from k on. */
__device__ static void load_turn(double_slab &to, const spectrum_work &w, int number, int k)
{
    const double *turn = w.turns + (int64_t)number * TILE * TILE + k;
    for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) to[e / SLAB][e % SLAB] = turn[e / SLAB * TILE + e % SLAB];
}

/* Rows of P, columns k on of Q, of A; neighbouring threads read neighbours. */
__device__ static void load_pairs(double_slab &to, const spectrum_work &w, const rows_of_pair &p, const rows_of_pair &q, int k)
{
    for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) {
        const int half = e / (PIECE * SLAB), in = e % (PIECE * SLAB);
        const bool upper = p.piece[half] < q.piece[k / PIECE];
        const int i = PIECE * half + (upper ? in % PIECE : in / SLAB), j = upper ? in / PIECE : in % SLAB;
        to[i][j] = lower_at(w, row_at(p, i), row_at(q, k + j));
    }
}

/* pool (SLABS, TILE, SLAB), transposed: of A, Z = A_PQ J_Q^T; of V, Z = V_P. Then the sum is J_P Z. */
__device__ static void turn_tile(const spectrum &f, int round, const tile &t, double_slab *pool)
{
    const spectrum_work w = work_of(f);
    const rows_of_pair p = rows_of(f, round, t.down), q = rows_of(f, round, t.left);
    double_sums sum = {};
    for (int k = 0; k < TILE && !t.of_v; k += SLAB) {
        load_pairs(pool[SLABS], w, p, q, k);
        load_turn(pool[0], w, t.left, k);
        __syncthreads();
        add_slab(sum, pool[SLABS], pool[0]);
        __syncthreads();
    }
    if (t.of_v)
        for (int e = (int)threadIdx.x; e < TILE * TILE; e += THREADS)
            pool[e / TILE / SLAB][e % TILE][e / TILE % SLAB] =
                w.v[row_at(p, e / TILE) * w.pitch + (int64_t)t.left * TILE + e % TILE];
    else
        for_pairs(sum, [&](int row, int column, const double(&of)[2]) {
            pool[row / SLAB][column][row % SLAB] = of[0];
            pool[row / SLAB][column + 1][row % SLAB] = of[1];
        });
    double_sums turned = {};
    for (int k = 0; k < TILE; k += SLAB) {
        load_turn(pool[SLABS], w, t.down, k);
        __syncthreads();
        add_slab(turned, pool[SLABS], pool[k / SLAB]);
        __syncthreads();
    }
    for_pairs(turned, [&](int row, int column, const double(&of)[2]) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int64_t i = row_at(p, row), j = row_at(q, column + e);
            if (t.of_v)
                w.v[i * w.pitch + (int64_t)t.left * TILE + column + e] = of[e];
            else if (t.down != t.left || i >= j)
                lower_at(w, i, j) = of[e];
        }
    });
}

/* ---- before and after -------------------------------------------------------------------------------------------------- */

/* Calls visit(i, j) for all elements of a tile in memory's order. */
template <typename Visit> __device__ static void for_tile(const tile &t, Visit visit)
{
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += THREADS)
        visit((int64_t)t.down * TILE + e / TILE, (int64_t)t.left * TILE + e % TILE);
}

__device__ static void load_tile(const spectrum &f, double scale, const tile &t)
{
    const spectrum_work w = work_of(f);
    const float *average = f.f.root.average;
    for_tile(t, [&](int64_t i, int64_t j) {
        if (t.of_v)
            w.v[i * w.pitch + j] = i == j ? 1.0 : 0.0;
        else if (j <= i)
            w.a[i * w.pitch + j] = i < w.n ? scale * (double)average[j * w.n + i] : 0.0;
    });
}

/* For the 64 rows of a tile on the diagonal. */
__device__ static void take_values(const spectrum &f, const tile &t)
{
    const spectrum_work w = work_of(f);
    const int64_t k = (int64_t)t.down * TILE + threadIdx.x;
    if (threadIdx.x < TILE && k < w.n) w.values[k] = w.a[k * w.pitch + k];
}

__device__ static double block_largest(double v)
{
    __shared__ double shared[THREADS / 32];
    for (int lane = 16; lane; lane /= 2) v = fmax(v, __shfl_xor_sync(0xffffffffu, v, lane));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) v = fmax(v, shared[i]);
    return v;
}

/* What the ridge adds to the average's diagonal, and what is added to every value. The whole block. */
__device__ static double shift_of(const spectrum &f, const spectrum_work &w, double eps, double *added)
{
    double least = -INFINITY, largest = 0.0, ridge = f.f.root.ridge; /* least: its negative */
    for (int64_t k = threadIdx.x; k < w.n; k += THREADS) {
        least = fmax(least, -w.values[k]);
        largest = fmax(largest, w.values[k]);
    }
    least = -block_largest(least);
    largest = block_largest(largest);
    *added = abar__take_ridge(largest + eps, ridge > 0.0 ? &ridge : NULL);
    return abar__root_shift(least, eps) + *added;
}

/* Leaves how many of its rows have no finite power. */
__device__ static void take_powers(const spectrum &f, double eps, const tile &t, double *partial)
{
    const spectrum_work w = work_of(f);
    const int64_t k = (int64_t)t.down * TILE + threadIdx.x;
    double added;
    const double shift = shift_of(f, w, eps, &added);
    bool bad = false;
    if (threadIdx.x < TILE && k < w.n) {
        w.powers[k] = pow(w.values[k] + shift, -f.f.root.exponent);
        bad = !isfinite(w.powers[k]);
    }
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) partial[2 * (f.first_pair + t.down)] = bad;
}

/* Rows of V, the largest value first; the identity where there are none. */
__device__ static void store_basis(const spectrum &f, bool failed, const tile &t)
{
    __shared__ int64_t places[TILE];
    const spectrum_work w = work_of(f);
    const int64_t row = (int64_t)t.down * TILE + threadIdx.x;
    if (threadIdx.x < TILE && row < w.n) places[threadIdx.x] = failed ? row : abar__place_of(w.n, w.values, row);
    __syncthreads();
    for_tile(t, [&](int64_t i, int64_t j) {
        if (i >= w.n || j >= w.n) return;
        const double v = failed ? (i == j ? 1.0 : 0.0) : w.v[i * w.pitch + j];
        f.f.basis[places[i % TILE] * w.n + j] = (float)v;
    });
}

/* sum over k of power_k v_k v_k^T, and its mirror image. */
__device__ static void store_root(const spectrum &f, double eps, const tile &t, double_slab *pool)
{
    const spectrum_work w = work_of(f);
    const abar__cuda_root &root = f.f.root;
    double_sums sum = {};
    for (int64_t k = 0; k < w.n; k += SLAB) {
        for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) {
            const int i = e % TILE, l = e / TILE;
            const double *v = w.v + (k + l) * w.pitch + i, power = k + l < w.n ? w.powers[k + l] : 0.0;
            pool[0][i][l] = power * v[(int64_t)t.down * TILE];
            pool[1][i][l] = v[(int64_t)t.left * TILE];
        }
        __syncthreads();
        add_slab(sum, pool[0], pool[1]);
        __syncthreads();
    }
    for_pairs(sum, [&](int row, int column, const double(&of)[2]) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int64_t i = (int64_t)t.down * TILE + row, j = (int64_t)t.left * TILE + column + e;
            if (i < w.n && j <= i) root.root[i * w.n + j] = root.root[j * w.n + i] = (float)of[e];
        }
    });
    if (t.down != t.left || !(root.ridge > 0.0)) return;
    double added;
    shift_of(f, w, eps, &added);
    const int64_t k = (int64_t)t.down * TILE + threadIdx.x;
    if (threadIdx.x < TILE && k < w.n) root.average[k * w.n + k] = (float)((double)root.average[k * w.n + k] + added);
}

/* Block b: tile b of the wave, as far as its factor's phase wants it. */
static __global__ void __launch_bounds__(THREADS) advance_tiles(const __grid_constant__ all_spectra s)
{
    extern __shared__ double_slab turn_pool[];
    const int32_t at = s.waves[s.now->wave].tile + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].tile) return;
    const tile t = s.tiles[at];
    const spectrum f = s.of[t.spectrum];
    const spectrum_state state = s.states[t.spectrum];
    const bool diagonal = !t.of_v && t.down == t.left;
    switch (state.phase) {
    case LOAD: load_tile(f, f.f.basis ? 1.0 : s.call->scale, t); break;
    case ROTATE: turn_tile(f, state.round, t, turn_pool); break;
    case VALUES:
        if (diagonal) take_values(f, t);
        break;
    case POWERS:
        if (diagonal) take_powers(f, s.call->eps, t, s.partial);
        break;
    case STORE:
        if (f.f.basis && t.of_v) store_basis(f, state.failed, t);
        if (!f.f.basis && !t.of_v) store_root(f, s.call->eps, t, turn_pool);
        break;
    }
}

/* ---- decisions ----------------------------------------------------------------------------------------------------------- */

/* There are no eigenvectors, or no powers. */
__device__ static void fail(const all_spectra &s, const spectrum &f, spectrum_state *state)
{
    state->failed = 1;
    state->phase = f.f.basis ? STORE : IDLE;
    atomicAdd((unsigned long long *)&s.call->kept, 1ull);
}

__device__ static void follow_round(const all_spectra &s, const spectrum &f, spectrum_state *state)
{
    for (int k = f.first_pair; k < f.first_pair + f.tiles; k++) {
        state->off += s.partial[2 * k];
        if (state->round == 0) state->diagonal += s.partial[2 * k + 1];
    }
    const double all = state->off + state->diagonal;
    if (!isfinite(all)) {
        fail(s, f, state);
        return;
    }
    if (++state->round < 2 * f.tiles - 1) return;
    if (state->off <= NEGLIGIBLE * all)
        state->phase = VALUES;
    else if (++state->sweep == SWEEPS_MOST)
        fail(s, f, state);
    state->round = 0;
    state->off = state->diagonal = 0.0;
}

/* One thread takes factor i into its next phase. */
__device__ static void follow(const all_spectra &s, int i)
{
    const spectrum f = s.of[i];
    spectrum_state state = s.states[i];
    double bad = 0.0;
    switch (state.phase) {
    case LOAD: state.phase = ROTATE; break;
    case ROTATE: follow_round(s, f, &state); break;
    case VALUES: state.phase = f.f.basis ? STORE : POWERS; break;
    case POWERS:
        for (int k = f.first_pair; k < f.first_pair + f.tiles; k++) bad += s.partial[2 * k];
        state.phase = STORE;
        if (bad != 0.0) fail(s, f, &state);
        break;
    default: state.phase = IDLE; break;
    }
    s.states[i] = state;
}

/* The next wave in which something is wanted. The whole block. */
__device__ static void start_wave(const all_spectra &s, int wave, abar__cuda_again again)
{
    bool some = false;
    for (; wave < s.n_waves && !some; wave++) {
        for (int i = s.waves[wave].spectrum + (int)threadIdx.x; i < s.waves[wave + 1].spectrum; i += DECIDERS) {
            const int32_t *wanted = s.of[i].f.wanted;
            const bool own = s.call->wanted && (!wanted || *wanted);
            s.states[i] = {own ? LOAD : IDLE};
            some = some || own;
        }
        some = __syncthreads_or(some);
    }
    if (threadIdx.x != 0) return;
    s.now->wave = some ? wave - 1 : 0;
    abar__cuda_say(&s.now->more, some, again);
}

static __global__ void __launch_bounds__(DECIDERS) begin_spectra(const __grid_constant__ all_spectra s, abar__cuda_again again)
{
    start_wave(s, 0, again);
}

static __global__ void __launch_bounds__(DECIDERS) decide(const __grid_constant__ all_spectra s, abar__cuda_again again)
{
    const int32_t wave = s.now->wave;
    bool more = false;
    for (int i = s.waves[wave].spectrum + (int)threadIdx.x; i < s.waves[wave + 1].spectrum; i += DECIDERS) {
        if (s.states[i].phase == IDLE) continue;
        follow(s, i);
        more = more || s.states[i].phase != IDLE;
    }
    more = __syncthreads_or(more);
    if (!more)
        start_wave(s, wave + 1, again);
    else if (threadIdx.x == 0)
        abar__cuda_say(&s.now->more, true, again);
}

static void launch_begin(abar_device *dev, const void *user, abar__cuda_again again)
{
    abar__cuda_launch(dev, begin_spectra, dim3(1), dim3(DECIDERS), 0, ((const abar__cuda_spectra *)user)->s, again);
}

static void launch_round(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_spectra *r = (const abar__cuda_spectra *)user;
    abar__cuda_solve_pairs(dev, &r->s, r->most.pair);
    abar__cuda_launch(dev, advance_tiles, dim3((unsigned)r->most.tile), dim3(THREADS), TURN_BYTES, r->s);
    abar__cuda_launch(dev, decide, dim3(1), dim3(DECIDERS), 0, r->s, again);
}

extern "C" abar_status abar__cuda_spectra_run(abar_device *dev, abar__cuda_spectra *s)
{
    if (s->s.n == 0) return abar__cuda_status(dev);
    const abar__cuda_rounds rounds = {s, launch_begin, launch_round, &s->s.now->more, s->body};
    return abar__cuda_repeat(dev, &rounds);
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

template <typename T> static T *place(char *base, size_t *at, size_t n)
{
    T *here = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
    return here;
}

/* What the device is sent, in one piece. */
typedef struct tables {
    spectrum *of;
    pair *pairs;
    tile *tiles;
    wave *waves;
    size_t bytes;
} tables;

static tables place_tables(int n, const wave &all, char *base)
{
    tables t = {};
    t.of = place<spectrum>(base, &t.bytes, (size_t)n);
    t.pairs = place<pair>(base, &t.bytes, (size_t)all.pair);
    t.tiles = place<tile>(base, &t.bytes, (size_t)all.tile);
    t.waves = place<wave>(base, &t.bytes, (size_t)n + 1);
    return t;
}

static inline int32_t tiles_along(int64_t n) { return (int32_t)abar__cuda_blocks(n, TILE); }

static inline size_t work_bytes(int64_t n)
{
    const size_t pitch = (size_t)tiles_along(n) * TILE;
    return abar__round_up((2 * pitch * pitch + pitch * TILE + 2 * pitch) * sizeof(double), 256);
}

/* How many of each a factor has: pairs, and tiles of the triangle and of V. */
static int64_t pairs_of(int64_t n) { return tiles_along(n); }
static int64_t tiles_of(int64_t n)
{
    const int64_t along = tiles_along(n);
    return along * (along + 1) / 2 + along * along;
}

/* Into which wave each goes, calling visit(i, wave, bytes of the wave before it); returns the most bytes of a wave. */
template <typename Visit> static size_t cut_waves(const abar__cuda_spectrum *of, int n, Visit visit)
{
    size_t own = 0, most = 0;
    int32_t at = -1;
    for (int i = 0; i < n; i++) {
        const size_t bytes = work_bytes(of[i].root.n);
        if (at < 0 || own + bytes > WAVE_BYTES) {
            own = 0;
            at++;
        }
        visit(i, at, own);
        own += bytes;
        most = own > most ? own : most;
    }
    return most;
}

extern "C" size_t abar__cuda_spectra_workspace(const abar__cuda_spectrum *of, int n)
{
    return cut_waves(of, n, [](int, int32_t, size_t) {});
}

static void list_tiles(int32_t i, int32_t along, tile **out)
{
    for (int32_t down = 0; down < along; down++)
        for (int32_t left = 0; left <= down; left++) *(*out)++ = {i, down, left, false};
    for (int32_t down = 0; down < along; down++)
        for (int32_t left = 0; left < along; left++) *(*out)++ = {i, down, left, true};
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static void fill(abar__cuda_spectra *r, const abar__cuda_spectrum *of, int n, const tables *t, char *workspace)
{
    wave at = {0, 0, 0};
    tile *next = t->tiles;
    cut_waves(of, n, [&](int i, int32_t wave_at, size_t before) {
        if (wave_at == r->s.n_waves) t->waves[r->s.n_waves++] = at;
        const int32_t along = tiles_along(of[i].root.n);
        t->of[i] = {of[i], wave_at, at.pair, along, (double *)(workspace + before)};
        for (int32_t k = 0; k < along; k++) t->pairs[at.pair + k] = {i, k};
        list_tiles(i, along, &next);
        at = {i + 1, at.pair + along, (int32_t)(next - t->tiles)};
        const wave &first = t->waves[wave_at];
        r->most = {larger(r->most.spectrum, at.spectrum - first.spectrum), larger(r->most.pair, at.pair - first.pair),
                   larger(r->most.tile, at.tile - first.tile)};
    });
    t->waves[r->s.n_waves] = at;
}

static abar_status make(abar_device *dev, abar__cuda_spectra *r, const abar__cuda_spectrum *of, int n, void *workspace)
{
    int64_t pairs = 0, all = 0;
    for (int i = 0; i < n; i++) {
        pairs += pairs_of(of[i].root.n);
        all += tiles_of(of[i].root.n);
    }
    if (all > INT32_MAX)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: bases of too many tiles, rotate shorter sides only");
    const wave count = {n, (int32_t)pairs, (int32_t)all};
    const size_t sent = place_tables(n, count, NULL).bytes;
    size_t at = sent;
    char *host;
    place<spectrum_state>(NULL, &at, (size_t)n);
    place<double>(NULL, &at, 2 * (size_t)pairs);
    place<control>(NULL, &at, 1);
    r->bytes = at;
    ABAR_TRY(abar_device_alloc(dev, r->bytes, (void **)&r->memory));
    at = sent;
    r->s.states = place<spectrum_state>(r->memory, &at, (size_t)n);
    r->s.partial = place<double>(r->memory, &at, 2 * (size_t)pairs);
    r->s.now = place<control>(r->memory, &at, 1);
    const tables device = place_tables(n, count, r->memory);
    r->s.of = device.of;
    r->s.pairs = device.pairs;
    r->s.tiles = device.tiles;
    r->s.waves = device.waves;
    ABAR_TRY(abar__alloc(dev->ctx, sent, (void **)&host));
    const tables filled = place_tables(n, count, host);
    fill(r, of, n, &filled, (char *)workspace);
    abar__cuda_carry(dev, r->memory, host, sent);
    abar__free(dev->ctx, host, sent);
    ABAR_TRY(abar__cuda_prepare_solve(dev));
    CUDA_TRY(dev, abar__cuda_allow_shared(dev, (const void *)advance_tiles));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&r->body, cudaStreamNonBlocking));
    return abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_spectra_create(abar_device *dev, const abar__cuda_spectrum *of, int n,
                                                 abar__cuda_root_call *call, void *workspace, abar__cuda_spectra **out)
{
    *out = NULL;
    abar__cuda_spectra *s;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *s, (void **)&s));
    s->s.n = n;
    s->s.call = call;
    const abar_status status = n > 0 ? make(dev, s, of, n, workspace) : ABAR_OK;
    if (status < 0)
        abar__cuda_spectra_destroy(dev, s);
    else
        *out = s;
    return status;
}

extern "C" void abar__cuda_spectra_destroy(abar_device *dev, abar__cuda_spectra *s)
{
    if (!s) return;
    if (s->body) cudaStreamDestroy(s->body);
    abar_device_free(dev, s->memory, s->bytes);
    abar__free(dev->ctx, s, sizeof *s);
}

extern "C" size_t abar__cuda_spectra_bytes(const abar__cuda_spectra *s) { return sizeof *s + s->bytes; }
