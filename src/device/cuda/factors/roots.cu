/* Inverse p-th roots by the coupled Newton iteration in double precision: of A = scale * average + eps I, with |A| its
 * Frobenius norm,
 *
 *     M = z A,  X = z^(1/p) I,  z = (p + 1) / (2 |A|);     T = ((p + 1) I - M) / p,   X <- X T,   M <- T^p M,   until M is I
 *
 * and X is A^(-1/p). It is products alone: eigenvalues would take a thread block per factor and seconds for sides of 1000. All
 * matrices are polynomials of A: symmetric, and they commute, so a product is known by its lower triangle.
 *
 * Every factor is in some phase, and one round, a launch over the tiles of all factors and a launch of one block that decides,
 * takes each a phase further. Where eigenvalues are negative (rounding of a singular average), M grows; then eps is raised as
 * by the ladder of methods.md section 9. Factors work in waves that share the workspace.
 *
 * Other exponents are those of eigen.cu. */
#include "device/cuda/factors/repeat.h"
#include "device/cuda/factors/roots.h"
#include "device/cuda/stats/stats.h"

#include <math.h>

enum { TILE = 64, SLAB = 16, THREADS = 256, DECIDERS = 1024, BUFFERS = 5 };

#define WAVE_BYTES ((size_t)64 << 20)
#define LARGEST_P 64
#define TOLERANCE 1e-8 /* of M: the next M would be its square away from I */
#define DIVERGED 1e3
#define ITERATIONS 100
#define RAISES 5

typedef enum phase {
    IDLE,
    NORM,   /* sums of A's squares, and its trace */
    BEGIN,  /* M and X */
    APPLY,  /* X T */
    FIRST,  /* T T */
    SQUARE, /* P P */
    TIMES,  /* P T */
    FINISH, /* P M, or T M: the next M */
    STORE   /* X into the root */
} phase;

/* Which of a factor's buffers is what: M, P and the next P, X and the next X. */
enum { OF_M, OF_P, OF_NEXT_P, OF_X, OF_NEXT_X };

typedef struct factor {
    abar__cuda_root f;
    int32_t p, wave;
    int32_t first, tiles; /* its tiles in the table */
    double *memory;       /* (BUFFERS, n, n), shared with other waves */
} factor;

typedef struct factor_state {
    int32_t phase, at[BUFFERS];
    int32_t bit; /* of p, that is being raised to */
    int32_t iterations, raised;
    double eps, norm, trace;
} factor_state;

typedef struct tile {
    int32_t factor, down, left;
} tile;

typedef struct control {
    int32_t more, wave;
} control;

/* Device memory. */
typedef struct all_roots {
    int n, n_waves;
    const factor *factors;
    const tile *tiles;
    const int32_t *first_tile; /* (n_waves + 1) */
    factor_state *states;
    double *partial; /* (tiles, 2): of a phase that sums up */
    control *now;
    abar__cuda_root_call *call;
} all_roots;

struct abar__cuda_rooter {
    all_roots s;
    int most_tiles; /* of a wave */
    int n_eigen;
    const abar__cuda_eigen_root *eigen; /* (n_eigen) device memory */
    char *memory;
    size_t bytes;
    cudaStream_t body;
};

/* ---- tiles ---------------------------------------------------------------------------------------------------------- */

/* A side of a product: factor * matrix + diagonal * I. */
typedef struct side {
    const double *matrix;
    double factor, diagonal;
} side;

__device__ static double element_of(const side &a, int64_t n, int64_t i, int64_t j)
{
    if (i >= n || j >= n) return 0.0;
    return a.factor * a.matrix[i * n + j] + (i == j ? a.diagonal : 0.0);
}

__device__ static double a_at(const factor &f, const abar__cuda_root_call &call, double eps, int64_t i, int64_t j)
{
    const int64_t n = f.f.n;
    return call.scale * (double)f.f.average[i <= j ? i * n + j : j * n + i] + (i == j ? eps : 0.0);
}

/* Calls visit(i, j) for the elements of the tile that are in the lower triangle. */
template <typename Visit> __device__ static void for_lower(int64_t n, const tile &t, Visit visit)
{
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += THREADS) {
        const int64_t i = (int64_t)t.down * TILE + e / TILE, j = (int64_t)t.left * TILE + e % TILE;
        if (i < n && j <= i) visit(i, j);
    }
}

__device__ static void sum_up(const factor &f, const abar__cuda_root_call &call, double eps, const tile &t, double *out)
{
    __shared__ double shared[32];
    double squares = 0.0, trace = 0.0;
    for_lower(f.f.n, t, [&](int64_t i, int64_t j) {
        const double a = a_at(f, call, eps, i, j);
        squares += i == j ? a * a : 2.0 * a * a;
        if (i == j) trace += a - eps;
    });
    squares = block_sum(squares, shared);
    trace = block_sum(trace, shared);
    if (threadIdx.x == 0) out[0] = squares;
    if (threadIdx.x == 0) out[1] = trace;
}

__device__ static void begin_tile(const factor &f, const abar__cuda_root_call &call, const factor_state &s, const tile &t)
{
    const int64_t n = f.f.n;
    const double z = (f.p + 1) / (2.0 * s.norm), x = pow(z, 1.0 / f.p);
    double *of_m = f.memory + s.at[OF_M] * n * n, *of_x = f.memory + s.at[OF_X] * n * n;
    for_lower(n, t, [&](int64_t i, int64_t j) {
        of_m[i * n + j] = of_m[j * n + i] = z * a_at(f, call, s.eps, i, j);
        of_x[i * n + j] = of_x[j * n + i] = i == j ? x : 0.0;
    });
}

__device__ static void store_tile(const factor &f, const factor_state &s, const tile &t)
{
    const int64_t n = f.f.n;
    const double *x = f.memory + s.at[OF_X] * n * n;
    for_lower(n, t, [&](int64_t i, int64_t j) { f.f.root[i * n + j] = f.f.root[j * n + i] = (float)x[i * n + j]; });
}

/* A slab of a tile's rows into shared memory, transposed: to[k][row]. */
__device__ static void load_slab(double (&to)[SLAB][TILE + 1], const side &a, int64_t n, int64_t row, int64_t column)
{
    for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS)
        to[e % SLAB][e / SLAB] = element_of(a, n, row + e / SLAB, column + e % SLAB);
}

/* to = a b, both triangles; returns this thread's largest |to - I|, or infinity where an element is not finite. */
__device__ static double multiply_tile(int64_t n, const side &a, const side &b, const tile &t, double *to)
{
    __shared__ double left[SLAB][TILE + 1], right[SLAB][TILE + 1];
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    const int64_t down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    double sum[4][4] = {}, farthest = 0.0;
    for (int64_t k = 0; k < n; k += SLAB) {
        load_slab(left, a, n, down, k);
        load_slab(right, b, n, across, k); /* b is symmetric */
        __syncthreads();
#pragma unroll
        for (int l = 0; l < SLAB; l++) {
            double u[4], v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) u[i] = left[l][y + 16 * i];
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = right[l][x + 16 * j];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += u[i] * v[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t row = down + y + 16 * i, column = across + x + 16 * j;
            if (row >= n || column > row) continue;
            to[row * n + column] = to[column * n + row] = sum[i][j];
            const double apart = fabs(sum[i][j] - (row == column ? 1.0 : 0.0));
            farthest = isfinite(apart) ? fmax(farthest, apart) : INFINITY;
        }
    return farthest;
}

__device__ static double block_largest(double v)
{
    __shared__ double shared[THREADS / 32];
    for (int lane = 16; lane; lane /= 2) v = fmax(v, __shfl_xor_sync(0xffffffffu, v, lane));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) v = fmax(v, shared[i]);
    return v;
}

/* What is multiplied in this phase, and where the product goes. */
__device__ static void operands_of(const factor &f, const factor_state &s, side *a, side *b, double **to)
{
    const int64_t square = f.f.n * f.f.n;
    double *const of_m = f.memory + s.at[OF_M] * square, *const of_p = f.memory + s.at[OF_P] * square;
    double *const of_x = f.memory + s.at[OF_X] * square;
    const side t = {of_m, -1.0 / f.p, (f.p + 1.0) / f.p}, p = {of_p, 1.0, 0.0}, m = {of_m, 1.0, 0.0}, x = {of_x, 1.0, 0.0};
    *to = f.memory + s.at[s.phase == APPLY ? OF_NEXT_X : OF_NEXT_P] * square;
    *b = t;
    switch (s.phase) {
    case APPLY: *a = x; break;
    case FIRST: *a = t; break;
    case SQUARE: *a = *b = p; break;
    case TIMES: *a = p; break;
    default: /* FINISH */ *a = f.p == 1 ? t : p; *b = m;
    }
}

/* Block b: tile b of the wave, as far as its factor's phase wants it. */
static __global__ void __launch_bounds__(THREADS) advance_tiles(const __grid_constant__ all_roots r)
{
    const int32_t wave = r.now->wave, at = r.first_tile[wave] + (int32_t)blockIdx.x;
    if (at >= r.first_tile[wave + 1]) return;
    const tile t = r.tiles[at];
    const factor f = r.factors[t.factor];
    const factor_state s = r.states[t.factor];
    const abar__cuda_root_call call = *r.call;
    switch (s.phase) {
    case IDLE: return;
    case NORM: sum_up(f, call, s.eps, t, r.partial + 2 * at); return;
    case BEGIN: begin_tile(f, call, s, t); return;
    case STORE: store_tile(f, s, t); return;
    }
    side a, b;
    double *to;
    operands_of(f, s, &a, &b, &to);
    const double farthest = block_largest(multiply_tile(f.f.n, a, b, t, to));
    if (threadIdx.x == 0) r.partial[2 * at] = farthest;
}

/* ---- decisions -------------------------------------------------------------------------------------------------------- */

__device__ static void swap(factor_state *s, int a, int b)
{
    const int32_t kept = s->at[a];
    s->at[a] = s->at[b];
    s->at[b] = kept;
}

__device__ static void start(factor_state *s, double eps)
{
    s->phase = NORM;
    s->iterations = 0;
    s->eps = eps;
    for (int i = 0; i < BUFFERS; i++) s->at[i] = i;
}

/* An attempt has failed: with ten times the eps, or not at all. */
__device__ static void fall(const all_roots &r, const factor &f, factor_state *s)
{
    if (s->raised++ < RAISES) {
        start(s, fmax(10.0 * s->eps, 1e-8 * s->trace / (double)f.f.n));
        return;
    }
    s->phase = IDLE;
    atomicAdd((unsigned long long *)&r.call->kept, 1ull);
}

/* After X T: T^p by squaring, from the bit below the highest on. */
__device__ static void begin_power(const factor &f, factor_state *s)
{
    s->bit = 30 - __clz(f.p);
    s->phase = f.p == 1 ? FINISH : FIRST;
}

__device__ static void go_on(const factor &f, factor_state *s, bool squared)
{
    if (squared && f.p >> s->bit & 1) {
        s->phase = TIMES;
        return;
    }
    s->phase = s->bit-- == 0 ? FINISH : SQUARE;
}

/* One thread takes factor i into its next phase. */
__device__ static void follow(const all_roots &r, int i)
{
    const factor f = r.factors[i];
    factor_state s = r.states[i];
    double sum = 0.0, trace = 0.0, farthest = 0.0;
    for (int k = f.first; k < f.first + f.tiles && (s.phase == NORM || s.phase == FINISH); k++) {
        sum += r.partial[2 * k];
        trace += r.partial[2 * k + 1];
        farthest = fmax(farthest, r.partial[2 * k]);
    }
    switch (s.phase) {
    case NORM:
        s.norm = sqrt(sum);
        s.trace = trace;
        s.phase = BEGIN;
        if (!(s.norm > 0.0) || !isfinite(s.norm)) fall(r, f, &s);
        break;
    case BEGIN: s.phase = APPLY; break;
    case APPLY:
        swap(&s, OF_X, OF_NEXT_X);
        begin_power(f, &s);
        break;
    case FIRST:
    case SQUARE:
    case TIMES:
        swap(&s, OF_P, OF_NEXT_P);
        go_on(f, &s, s.phase != TIMES);
        break;
    case FINISH:
        swap(&s, OF_M, OF_NEXT_P);
        s.phase = farthest <= TOLERANCE ? STORE : APPLY;
        if (!(farthest <= DIVERGED) || (s.phase == APPLY && ++s.iterations == ITERATIONS)) fall(r, f, &s);
        break;
    default: s.phase = IDLE;
    }
    r.states[i] = s;
}

/* The block starts the first wave from `wave` on; there may be none. */
__device__ static void start_wave(const all_roots &r, int wave, abar__cuda_again again)
{
    for (int i = (int)threadIdx.x; i < r.n; i += DECIDERS)
        if (r.factors[i].wave == wave) {
            r.states[i].raised = 0;
            start(&r.states[i], r.call->eps);
        }
    if (threadIdx.x != 0) return;
    r.now->wave = wave < r.n_waves ? wave : 0;
    abar__cuda_say(&r.now->more, wave < r.n_waves, again);
}

static __global__ void __launch_bounds__(DECIDERS) begin_roots(const __grid_constant__ all_roots r, abar__cuda_again again)
{
    start_wave(r, r.call->wanted ? 0 : r.n_waves, again);
}

static __global__ void __launch_bounds__(DECIDERS) decide(const __grid_constant__ all_roots r, abar__cuda_again again)
{
    const int wave = r.now->wave;
    bool more = false;
    for (int i = (int)threadIdx.x; i < r.n; i += DECIDERS) {
        if (r.factors[i].wave != wave || r.states[i].phase == IDLE) continue;
        follow(r, i);
        more = more || r.states[i].phase != IDLE;
    }
    more = __syncthreads_or(more);
    if (!more)
        start_wave(r, wave + 1, again);
    else if (threadIdx.x == 0)
        abar__cuda_say(&r.now->more, true, again);
}

static void launch_begin(abar_device *dev, const void *user, abar__cuda_again again)
{
    abar__cuda_launch(dev, begin_roots, dim3(1), dim3(DECIDERS), 0, ((const abar__cuda_rooter *)user)->s, again);
}

static void launch_round(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_rooter *r = (const abar__cuda_rooter *)user;
    abar__cuda_launch(dev, advance_tiles, dim3((unsigned)r->most_tiles), dim3(THREADS), 0, r->s);
    abar__cuda_launch(dev, decide, dim3(1), dim3(DECIDERS), 0, r->s, again);
}

extern "C" abar_status abar__cuda_rooter_run(abar_device *dev, abar__cuda_rooter *r)
{
    if (r->n_eigen > 0) abar__cuda_eigen_roots(dev, r->eigen, r->n_eigen, r->s.call);
    if (r->s.n == 0) return abar__cuda_status(dev);
    const abar__cuda_rounds rounds = {r, launch_begin, launch_round, &r->s.now->more, r->body};
    return abar__cuda_repeat(dev, &rounds);
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

/* p, where the exponent is 1 / p; 0: it is not. */
static int32_t p_of(double exponent)
{
    const double p = exponent > 0.0 ? round(1.0 / exponent) : 0.0;
    return p >= 1.0 && p <= LARGEST_P && fabs(exponent * p - 1.0) < 1e-12 ? (int32_t)p : 0;
}

/* What the device is sent, in one piece: host is its copy, memory NULL: only counts. */
typedef struct tables {
    factor *factors;
    tile *tiles;
    int32_t *first_tile;
    abar__cuda_eigen_root *eigen;
    size_t bytes;
} tables;

template <typename T> static T *place(char *base, size_t *at, size_t n)
{
    T *here = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
    return here;
}

static tables place_tables(const abar__cuda_rooter *r, size_t n_tiles, char *base)
{
    tables t = {};
    t.factors = place<factor>(base, &t.bytes, (size_t)r->s.n);
    t.tiles = place<tile>(base, &t.bytes, n_tiles);
    t.first_tile = place<int32_t>(base, &t.bytes, (size_t)r->s.n + 1);
    t.eigen = place<abar__cuda_eigen_root>(base, &t.bytes, (size_t)r->n_eigen);
    return t;
}

static size_t factor_bytes(int64_t n) { return abar__round_up(BUFFERS * (size_t)(n * n) * sizeof(double), 256); }

static int32_t tiles_of(int64_t n)
{
    const int64_t along = abar__cuda_blocks(n, TILE);
    return (int32_t)(along * (along + 1) / 2);
}

/* Fills the tables, cutting factors into waves; returns the bytes of workspace. base: the workspace, NULL: only counts. */
static size_t fill(abar_device *dev, abar__cuda_rooter *r, const abar__cuda_root *roots, int n, const tables *t, char *base)
{
    size_t own = 0, most = 0;
    int32_t tiles = 0, at = 0, e = 0;
    r->s.n_waves = r->most_tiles = 0;
    for (int i = 0; i < n; i++) {
        const int32_t p = p_of(roots[i].exponent);
        if (!p) continue;
        const size_t bytes = factor_bytes(roots[i].n);
        if (at == 0 || (own > 0 && own + bytes > WAVE_BYTES)) {
            own = 0;
            if (t->first_tile) t->first_tile[r->s.n_waves] = tiles;
            r->s.n_waves++;
        }
        if (t->factors) t->factors[at] = {roots[i], p, r->s.n_waves - 1, tiles, tiles_of(roots[i].n), (double *)(base + own)};
        for (int32_t down = 0, k = tiles; t->tiles && down < abar__cuda_blocks(roots[i].n, TILE); down++)
            for (int32_t left = 0; left <= down; left++) t->tiles[k++] = {at, down, left};
        tiles += tiles_of(roots[i].n);
        if (t->first_tile) t->first_tile[r->s.n_waves] = tiles;
        own += bytes;
        most = own > most ? own : most;
        at++;
    }
    for (int w = 0; t->first_tile && w < r->s.n_waves; w++)
        if (t->first_tile[w + 1] - t->first_tile[w] > r->most_tiles) r->most_tiles = t->first_tile[w + 1] - t->first_tile[w];
    for (int i = 0; i < n; i++) { /* behind the waves */
        if (p_of(roots[i].exponent)) continue;
        if (t->eigen) t->eigen[e++] = {roots[i], (double *)(base + most)};
        most += abar__round_up(abar__cuda_eigen_scratch(dev, roots[i].n), 256);
    }
    return most;
}

static abar_status make(abar_device *dev, abar__cuda_rooter *r, const abar__cuda_root *roots, int n)
{
    size_t n_tiles = 0;
    for (int i = 0; i < n; i++) {
        const bool newton = p_of(roots[i].exponent) != 0;
        r->s.n += newton;
        r->n_eigen += !newton;
        n_tiles += newton ? (size_t)tiles_of(roots[i].n) : 0;
    }
    tables none = {}, sent = place_tables(r, n_tiles, NULL);
    const size_t workspace = fill(dev, r, roots, n, &none, NULL);
    size_t at = sent.bytes;
    char *host;
    r->s.states = place<factor_state>(NULL, &at, (size_t)r->s.n);
    r->s.partial = place<double>(NULL, &at, 2 * n_tiles);
    r->s.now = place<control>(NULL, &at, 1);
    r->bytes = at + workspace;
    ABAR_TRY(abar_device_alloc(dev, r->bytes, (void **)&r->memory));
    at = sent.bytes;
    r->s.states = place<factor_state>(r->memory, &at, (size_t)r->s.n);
    r->s.partial = place<double>(r->memory, &at, 2 * n_tiles);
    r->s.now = place<control>(r->memory, &at, 1);
    const tables device = place_tables(r, n_tiles, r->memory);
    r->s.factors = device.factors;
    r->s.tiles = device.tiles;
    r->s.first_tile = device.first_tile;
    r->eigen = device.eigen;
    ABAR_TRY(abar__alloc(dev->ctx, sent.bytes, (void **)&host));
    const tables filled = place_tables(r, n_tiles, host);
    fill(dev, r, roots, n, &filled, r->memory + at);
    abar__cuda_carry(dev, r->memory, host, sent.bytes);
    abar__free(dev->ctx, host, sent.bytes);
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&r->body, cudaStreamNonBlocking));
    return abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_rooter_create(abar_device *dev, const abar__cuda_root *roots, int n,
                                                abar__cuda_root_call *call, abar__cuda_rooter **out)
{
    *out = NULL;
    abar__cuda_rooter *r;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *r, (void **)&r));
    r->s.call = call;
    const abar_status status = make(dev, r, roots, n);
    if (status < 0)
        abar__cuda_rooter_destroy(dev, r);
    else
        *out = r;
    return status;
}

extern "C" void abar__cuda_rooter_destroy(abar_device *dev, abar__cuda_rooter *r)
{
    if (!r) return;
    if (r->body) cudaStreamDestroy(r->body);
    abar_device_free(dev, r->memory, r->bytes);
    abar__free(dev->ctx, r, sizeof *r);
}

extern "C" size_t abar__cuda_rooter_bytes(const abar__cuda_rooter *r) { return sizeof *r + r->bytes; }
