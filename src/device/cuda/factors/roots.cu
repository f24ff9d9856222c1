/* Inverse p-th roots by the coupled Newton iteration in double precision: of A = scale * average + eps I, with |A| its
 * Frobenius norm,
 *
 *     M = A / |A|,  X = |A|^(-1/p) I;     T = a I - b M,   X <- X T,   M <- T^p M,   until M is I
 *
 * and X is A^(-1/p). Newton's a = (p + 1) / p, b = 1 / p multiply a small eigenvalue of M by ((p + 1) / p)^p, which is 2.4 for
 * p = 4: 30 iterations for a condition number of 1e12. So the first a and b are others, which bring all eigenvalues from
 * FARTHEST to 1 as close to 1 as one T can: they multiply the small ones by 11. Eigenvalues below FARTHEST are left to
 * Newton's.
 *
 * It is products alone, on tensor cores: eigenvalues take a hundred times as many. All
 * matrices are polynomials of A: symmetric, and they commute, so a product is known by its lower triangle. They are padded with
 * zeros to whole tiles.
 *
 * Every factor is in some phase, and one round, a launch over the tiles of all factors and a launch of one block that decides,
 * takes each a phase further. Where eigenvalues are negative (rounding of a singular average), M grows; then eps is raised as
 * by the ladder of methods.md section 9. Factors work in waves that share the workspace.
 *
 * Other exponents, and roots with a ridge, are taken by eigenvalues (spectra.cu). */
#include "device/cuda/factors/double_tiles.h"
#include "device/cuda/factors/repeat.h"
#include "device/cuda/factors/roots.h"
#include "device/cuda/factors/spectra.h"
#include "device/cuda/stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = DOUBLE_TILE, THREADS = DOUBLE_THREADS, DECIDERS = 1024, BUFFERS = 5, STEPS_MOST = 24 };

#define WAVE_BYTES ((size_t)256 << 20)
#define LARGEST_P 64
#define FARTHEST 1e-10 /* the smallest eigenvalue over |A| that the first steps are made for */
#define LEAST 1e-4     /* T^p M of the largest eigenvalue over that of others: below, it would lose digits */
#define NEAR 0.8       /* smallest over largest eigenvalue, from where on Newton's steps are as good */
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

typedef struct step {
    double a, b;
} step;

/* The first steps for one p. */
typedef struct schedule {
    int32_t n;
    step of[STEPS_MOST];
} schedule;

typedef struct factor {
    abar__cuda_root f;
    int32_t p, wave;
    int32_t first, tiles; /* its tiles in the table */
    int64_t pitch;        /* of its buffers' rows: whole tiles */
    double *memory;       /* (BUFFERS, pitch, pitch), shared with other waves */
} factor;

typedef struct factor_state {
    int32_t phase, at[BUFFERS];
    int32_t bit; /* of p, that is being raised to */
    int32_t iterations, raised;
    unsigned long long farthest; /* bits of the largest |M - I| of the tiles so far; those of numbers >= 0 have their order */
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
    const schedule *schedules; /* (LARGEST_P + 1), of those p that there are */
    factor_state *states;
    double *partial; /* (tiles, 2): of the phase NORM */
    control *now;
    abar__cuda_root_call *call;
} all_roots;

struct abar__cuda_rooter {
    all_roots s;
    int most_tiles;              /* of a wave */
    abar__cuda_spectra *spectra; /* of those that are taken by eigenvalues; their workspace is that of the others */
    char *memory;
    size_t bytes;
    cudaStream_t body;
};

/* ---- the first steps -------------------------------------------------------------------------------------------------- */

/* Extremes of m (1 - r m)^p for m from q to 1. */
static void extremes(int p, double q, double r, double *least, double *most)
{
    const double ends[] = {q * pow(1.0 - r * q, p), pow(1.0 - r, p)}, peak = 1.0 / (r * (p + 1));
    *least = fmin(ends[0], ends[1]);
    *most = peak > q && peak < 1.0 ? peak * pow(1.0 - r * peak, p) : fmax(ends[0], ends[1]);
}

/* The r that brings the ends of the range to one value, or the upper end to LEAST of the largest. The upper end falls with r.
 */
static double best_ratio(int p, double q)
{
    double low = 1.0 / (p + 1), high = 1.0;
    for (int i = 0; i < 60; i++) {
        const double r = 0.5 * (low + high);
        double least, most;
        extremes(p, q, r, &least, &most);
        if (pow(1.0 - r, p) > fmax(q * pow(1.0 - r * q, p), LEAST * most))
            low = r;
        else
            high = r;
    }
    return low;
}

/* Each step takes eigenvalues of a range into a shorter one around 1. */
static schedule make_schedule(int p)
{
    schedule s = {};
    double low = FARTHEST, high = 1.0;
    while (low / high < NEAR && s.n < STEPS_MOST) {
        const double r = best_ratio(p, low / high);
        double least, most;
        extremes(p, low / high, r, &least, &most);
        const double scale = 2.0 / (least + most), a = pow(scale / high, 1.0 / p);
        s.of[s.n++] = {a, a * r / high};
        low = scale * least;
        high = scale * most;
    }
    return s;
}

__device__ static step step_of(const all_roots &r, const factor &f, const factor_state &s)
{
    const schedule *steps = &r.schedules[f.p];
    if (s.iterations < steps->n) return steps->of[s.iterations];
    return {(f.p + 1.0) / f.p, 1.0 / f.p};
}

/* ---- tiles ---------------------------------------------------------------------------------------------------------- */

__device__ static double a_at(const factor &f, const abar__cuda_root_call &call, double eps, int64_t i, int64_t j)
{
    const int64_t n = f.f.n;
    return call.scale * (double)f.f.average[i <= j ? i * n + j : j * n + i] + (i == j ? eps : 0.0);
}

/* Calls visit(i, j) for the elements of the tile that are in the lower triangle of n rows. */
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

__device__ static double *buffer_of(const factor &f, const factor_state &s, int which)
{
    return f.memory + s.at[which] * f.pitch * f.pitch;
}

__device__ static void begin_tile(const factor &f, const abar__cuda_root_call &call, const factor_state &s, const tile &t)
{
    const int64_t pitch = f.pitch;
    const double x = pow(s.norm, -1.0 / f.p);
    double *of_m = buffer_of(f, s, OF_M), *of_x = buffer_of(f, s, OF_X);
    for_lower(pitch, t, [&](int64_t i, int64_t j) {
        of_m[i * pitch + j] = of_m[j * pitch + i] = i < f.f.n ? a_at(f, call, s.eps, i, j) / s.norm : 0.0;
        of_x[i * pitch + j] = of_x[j * pitch + i] = i == j && i < f.f.n ? x : 0.0;
    });
}

__device__ static void store_tile(const factor &f, const factor_state &s, const tile &t)
{
    const int64_t n = f.f.n;
    const double *x = buffer_of(f, s, OF_X);
    for_lower(n, t, [&](int64_t i, int64_t j) { f.f.root[i * n + j] = f.f.root[j * n + i] = (float)x[i * f.pitch + j]; });
}

/* to = product * left right + also * added + diagonal * I. */
typedef struct operation {
    const double *left, *right, *added;
    double *to;
    double product, also, diagonal;
} operation;

/* What is done in this phase: products with T are made of those with M. */
__device__ static operation operation_of(const all_roots &r, const factor &f, const factor_state &s)
{
    const step t = step_of(r, f, s);
    const double *m = buffer_of(f, s, OF_M), *p = buffer_of(f, s, OF_P), *x = buffer_of(f, s, OF_X);
    double *to = buffer_of(f, s, s.phase == APPLY ? OF_NEXT_X : OF_NEXT_P);
    switch (s.phase) {
    case APPLY: return {x, m, x, to, -t.b, t.a, 0.0};
    case FIRST: return {m, m, m, to, t.b * t.b, -2.0 * t.a * t.b, t.a * t.a};
    case SQUARE: return {p, p, p, to, 1.0, 0.0, 0.0};
    case TIMES: return {p, m, p, to, -t.b, t.a, 0.0};
    default: /* FINISH */ break;
    }
    if (f.p == 1) return {m, m, m, to, -t.b, t.a, 0.0};
    return {p, m, p, to, 1.0, 0.0, 0.0};
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

/* Both triangles; returns the block's largest |to - I|, or infinity where an element is not finite. */
__device__ static double operate(const factor &f, const operation &o, const tile &t)
{
    const int64_t pitch = f.pitch, down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    double_sums sum = {};
    double farthest = 0.0;
    add_product(sum, o.left + down * pitch, o.right + across * pitch, pitch,
                (f.f.n + DOUBLE_SLAB - 1) / DOUBLE_SLAB * DOUBLE_SLAB);
    for_pairs(sum, [&](int row, int column, const double(&of)[2]) {
        const int64_t i = down + row;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int64_t j = across + column + e;
            if (j > i) continue;
            const double diagonal = i == j && i < f.f.n ? 1.0 : 0.0;
            const double value = o.product * of[e] + o.also * o.added[i * pitch + j] + o.diagonal * diagonal;
            o.to[i * pitch + j] = o.to[j * pitch + i] = value;
            farthest = isfinite(value) ? fmax(farthest, fabs(value - diagonal)) : INFINITY;
        }
    });
    return block_largest(farthest);
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
    const double farthest = operate(f, operation_of(r, f, s), t);
    if (threadIdx.x == 0 && s.phase == FINISH)
        atomicMax(&r.states[t.factor].farthest, (unsigned long long)__double_as_longlong(farthest));
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
    s->farthest = 0;
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
    double sum = 0.0, trace = 0.0;
    const double farthest = __longlong_as_double((long long)s.farthest);
    for (int k = f.first; k < f.first + f.tiles && s.phase == NORM; k++) {
        sum += r.partial[2 * k];
        trace += r.partial[2 * k + 1];
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
        s.farthest = 0;
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
    ABAR_TRY(abar__cuda_spectra_run(dev, r->spectra));
    if (r->s.n == 0) return abar__cuda_status(dev);
    const abar__cuda_rounds rounds = {r, launch_begin, launch_round, &r->s.now->more, r->body};
    return abar__cuda_repeat(dev, &rounds);
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

/* p, where the exponent is 1 / p and there is no ridge; 0: by eigenvalues. */
static int32_t p_of(const abar__cuda_root *root)
{
    const double p = root->exponent > 0.0 ? round(1.0 / root->exponent) : 0.0;
    const bool newton = root->ridge == 0.0 && p >= 1.0 && p <= LARGEST_P && fabs(root->exponent * p - 1.0) < 1e-12;
    return newton ? (int32_t)p : 0;
}

/* What the device is sent, in one piece: host is its copy, memory NULL: only counts. */
typedef struct tables {
    factor *factors;
    tile *tiles;
    int32_t *first_tile;
    schedule *schedules;
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
    t.schedules = place<schedule>(base, &t.bytes, LARGEST_P + 1);
    return t;
}

static int64_t pitch_of(int64_t n) { return abar__cuda_blocks(n, TILE) * TILE; }
static size_t factor_bytes(int64_t n) { return BUFFERS * (size_t)(pitch_of(n) * pitch_of(n)) * sizeof(double); }

static int32_t tiles_of(int64_t n)
{
    const int64_t along = abar__cuda_blocks(n, TILE);
    return (int32_t)(along * (along + 1) / 2);
}

/* Fills the tables, cutting factors into waves; returns the bytes of workspace. base: the workspace, NULL: only counts. */
static size_t fill(abar__cuda_rooter *r, const abar__cuda_root *roots, int n, const tables *t, char *base)
{
    size_t own = 0, most = 0;
    int32_t tiles = 0, at = 0;
    r->s.n_waves = r->most_tiles = 0;
    for (int i = 0; i < n; i++) {
        const int32_t p = p_of(&roots[i]);
        if (!p) continue;
        const size_t bytes = factor_bytes(roots[i].n);
        if (at == 0 || (own > 0 && own + bytes > WAVE_BYTES)) {
            own = 0;
            if (t->first_tile) t->first_tile[r->s.n_waves] = tiles;
            r->s.n_waves++;
        }
        if (t->factors)
            t->factors[at] = {
                roots[i], p, r->s.n_waves - 1, tiles, tiles_of(roots[i].n), pitch_of(roots[i].n), (double *)(base + own)};
        if (t->schedules && t->schedules[p].n == 0) t->schedules[p] = make_schedule(p);
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
    return most;
}

/* Hands out the device's memory behind the tables, or only counts it: returns where the workspace begins. */
static size_t place_rest(abar__cuda_rooter *r, size_t at, size_t n_tiles)
{
    r->s.states = place<factor_state>(r->memory, &at, (size_t)r->s.n);
    r->s.partial = place<double>(r->memory, &at, 2 * n_tiles);
    r->s.now = place<control>(r->memory, &at, 1);
    return at;
}

/* by_values: those without a p. */
static abar_status make_parts(abar_device *dev, abar__cuda_rooter *r, const abar__cuda_root *roots, int n,
                              const abar__cuda_spectrum *by_values, int n_values)
{
    size_t n_tiles = 0;
    for (int i = 0; i < n; i++) n_tiles += p_of(&roots[i]) ? (size_t)tiles_of(roots[i].n) : 0;
    const tables none = {}, sent = place_tables(r, n_tiles, NULL);
    const size_t own = fill(r, roots, n, &none, NULL), theirs = abar__cuda_spectra_workspace(by_values, n_values);
    char *host;
    r->bytes = place_rest(r, sent.bytes, n_tiles) + (own > theirs ? own : theirs);
    ABAR_TRY(abar_device_alloc(dev, r->bytes, (void **)&r->memory));
    char *workspace = r->memory + place_rest(r, sent.bytes, n_tiles);
    const tables device = place_tables(r, n_tiles, r->memory);
    r->s.factors = device.factors;
    r->s.tiles = device.tiles;
    r->s.first_tile = device.first_tile;
    r->s.schedules = device.schedules;
    ABAR_TRY(abar__alloc(dev->ctx, sent.bytes, (void **)&host));
    const tables filled = place_tables(r, n_tiles, host);
    fill(r, roots, n, &filled, workspace);
    abar__cuda_carry(dev, r->memory, host, sent.bytes);
    abar__free(dev->ctx, host, sent.bytes);
    ABAR_TRY(abar__cuda_spectra_create(dev, by_values, n_values, r->s.call, workspace, &r->spectra));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&r->body, cudaStreamNonBlocking));
    return abar__cuda_status(dev);
}

static abar_status make(abar_device *dev, abar__cuda_rooter *r, const abar__cuda_root *roots, int n)
{
    abar__cuda_spectrum *by_values;
    int n_values = 0;
    const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof *by_values;
    ABAR_TRY(abar__alloc(dev->ctx, bytes, (void **)&by_values));
    for (int i = 0; i < n; i++) {
        if (p_of(&roots[i]))
            r->s.n++;
        else
            by_values[n_values++] = {roots[i], NULL, NULL};
    }
    const abar_status status = make_parts(dev, r, roots, n, by_values, n_values);
    abar__free(dev->ctx, by_values, bytes);
    return status;
}

static int larger_first(const void *a, const void *b)
{
    const int64_t x = ((const abar__cuda_root *)a)->n, y = ((const abar__cuda_root *)b)->n;
    return (x < y) - (x > y);
}

extern "C" abar_status abar__cuda_rooter_create(abar_device *dev, const abar__cuda_root *roots, int n,
                                                abar__cuda_root_call *call, abar__cuda_rooter **out)
{
    *out = NULL;
    abar__cuda_rooter *r;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *r, (void **)&r));
    r->s.call = call;
    /* Singular factors take the most rounds. Most are small: sorted, they share a wave in which only they are left at last. */
    abar__cuda_root *sorted = NULL;
    const size_t bytes = (size_t)n * sizeof *sorted;
    abar_status status = abar__alloc(dev->ctx, bytes, (void **)&sorted);
    if (status == ABAR_OK) {
        if (n > 0) memcpy(sorted, roots, bytes);
        qsort(sorted, (size_t)n, sizeof *sorted, larger_first);
        status = make(dev, r, sorted, n);
        abar__free(dev->ctx, sorted, bytes);
    }
    if (status < 0)
        abar__cuda_rooter_destroy(dev, r);
    else
        *out = r;
    return status;
}

extern "C" void abar__cuda_rooter_destroy(abar_device *dev, abar__cuda_rooter *r)
{
    if (!r) return;
    abar__cuda_spectra_destroy(dev, r->spectra);
    if (r->body) cudaStreamDestroy(r->body);
    abar_device_free(dev, r->memory, r->bytes);
    abar__free(dev->ctx, r, sizeof *r);
}

extern "C" size_t abar__cuda_rooter_bytes(const abar__cuda_rooter *r)
{
    return sizeof *r + r->bytes + abar__cuda_spectra_bytes(r->spectra);
}
