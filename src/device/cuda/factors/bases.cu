/* A step of orthogonal iteration on many bases at once: with B the old basis by rows and S the average, the rows of A = B S,
 * ordered by the diagonal of A B^T, are made orthonormal one after the other, which is Q of a QR factorisation.
 *
 * By Householder reflections in double precision. S is often singular (the longer side of a matrix whose gradient has fewer
 * columns), so that rows of A are rounding noise: reflections give an orthonormal basis all the same, while the Cholesky factor
 * of A A^T, whose condition number is that of S squared, does not exist.
 *
 * Reflections H_k = I - tau_k v_k^T v_k are made in panels of 32 rows, by one thread block for each basis. Together those of a
 * panel are I - V^T T V, V their rows and T (32, 32) upper triangular, so that the rows below are multiplied by all of them on
 * tensor cores. Q is what the panels, from the last to the first and transposed, make of I.
 *
 * Bases work in waves that share the workspace; a round is a wave. Those that are none yet become eigenvectors first
 * (spectra.cu). */
#include "device/cuda/factors/bases.h"
#include "device/cuda/factors/double_tiles.h"
#include "device/cuda/factors/repeat.h"
#include "device/cuda/factors/spectra.h"
#include "device/cuda/stats/stats.h"
#include "device/step_rules.h"

#include <math.h>

enum { TILE = DOUBLE_TILE, SLAB = DOUBLE_SLAB, THREADS = DOUBLE_THREADS, MAKERS = 512, WARPS = MAKERS / 32, PANEL = 32 };

#define WAVE_BYTES ((size_t)1 << 30)

/* A basis as kernels see it. */
typedef struct turned {
    abar__cuda_basis f;
    double *work;   /* shared with other waves */
    int32_t *begin; /* whether it is none yet, and has an average that is not zero */
    int32_t *turn;  /* whether there is something to orthonormalise */
} turned;

typedef struct tile {
    int32_t basis, down, left; /* of a product; left -1: 64 rows */
} tile;

/* Where a wave begins: in the bases, the tiles, the groups of rows. */
typedef struct wave {
    int32_t basis, tile, group;
} wave;

typedef struct control {
    int32_t more, wave;
} control;

/* Device memory. */
typedef struct all_bases {
    int n, n_waves;
    bool ordered;
    const turned *bases;
    const tile *tiles, *groups;
    const wave *waves; /* (n_waves + 1) */
    control *now;
    abar__cuda_root_call *call;
} all_bases;

struct abar__cuda_turner {
    all_bases s;
    wave most;                 /* of a wave: how many of each */
    int panels;                /* of the longest side */
    abar__cuda_spectra *first; /* the eigenvectors; they have the same workspace */
    char *memory;
    size_t bytes;
    cudaStream_t body;
};

/* ---- a basis' workspace ------------------------------------------------------------------------------------------------ */

/* A, whose row k is the order[k]-th in memory and becomes v_k; Q, before that the quotients; T of every panel. */
typedef struct basis_work {
    int64_t n;
    double *a, *q, *t;
    const int32_t *order;
} basis_work;

static int64_t panels_of(int64_t n) { return abar__cuda_blocks(n, PANEL); }

static size_t work_bytes(int64_t n) { return (size_t)(2 * n * n + panels_of(n) * PANEL * PANEL) * sizeof(double); }

__device__ static basis_work work_of(const turned &item)
{
    const int64_t n = item.f.n;
    return {n, item.work, item.work + n * n, item.work + 2 * n * n, item.f.order};
}

__device__ static double *row_of(const basis_work &w, int64_t k) { return w.a + w.order[k] * w.n; }

__device__ static double *panel_t(const basis_work &w, int panel) { return w.t + (int64_t)panel * PANEL * PANEL; }

/* ---- bases that are none yet ------------------------------------------------------------------------------------------- */

/* Block b: basis b. One whose average is zero becomes the identity. */
static __global__ void __launch_bounds__(MAKERS) look_at_bases(const __grid_constant__ all_bases s)
{
    const turned item = s.bases[blockIdx.x];
    const int64_t n = item.f.n;
    bool some = false, zero = true;
    for (int64_t i = threadIdx.x; i < n; i += MAKERS) {
        some = some || item.f.basis[i] != 0.0f;
        zero = zero && item.f.average[i * n + i] == 0.0f;
        if (s.call->wanted) item.f.order[i] = (int32_t)i;
    }
    some = __syncthreads_or(some);
    zero = __syncthreads_and(zero);
    if (threadIdx.x == 0) *item.turn = some;
    if (threadIdx.x == 0) *item.begin = !some && !zero;
    if (some || !zero || !s.call->wanted) return;
    for (int64_t i = threadIdx.x; i < n * n; i += MAKERS) item.f.basis[i] = i % (n + 1) == 0 ? 1.0f : 0.0f;
}

/* ---- A = B S ---------------------------------------------------------------------------------------------------------- */

__device__ static double average_at(const abar__cuda_basis &f, int64_t i, int64_t j)
{
    return i < f.n && j < f.n ? (double)f.average[i < j ? i * f.n + j : j * f.n + i] : 0.0;
}

/* Block b: tile b of the wave. */
static __global__ void __launch_bounds__(THREADS) multiply_bases(const __grid_constant__ all_bases s)
{
    __shared__ double_slab left, right;
    const int32_t at = s.waves[s.now->wave].tile + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].tile) return;
    const tile t = s.tiles[at];
    const turned item = s.bases[t.basis];
    if (!*item.turn) return;
    const int64_t n = item.f.n, down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    double_sums sum = {};
    for (int64_t k = 0; k < n; k += SLAB) {
        for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) {
            const int64_t row = down + e / SLAB, column = k + e % SLAB;
            left[e / SLAB][e % SLAB] = row < n && column < n ? (double)item.f.basis[row * n + column] : 0.0;
            const int i = k < across ? e % TILE : e / SLAB, j = k < across ? e / TILE : e % SLAB; /* neighbours in memory */
            right[i][j] = average_at(item.f, across + i, k + j);
        }
        __syncthreads();
        add_slab(sum, left, right);
        __syncthreads();
    }
    for_pairs(sum, [&](int row, int column, const double(&of)[2]) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (down + row < n && across + column + e < n) item.work[(down + row) * n + across + column + e] = of[e];
    });
}

/* ---- the order of the rows ---------------------------------------------------------------------------------------------- */

/* The diagonal of A B^T, (n); returns whether it is finite. */
__device__ static bool take_quotients(const turned &item, double *quotients)
{
    const int64_t n = item.f.n;
    bool fine = true;
    for (int64_t k = threadIdx.x / 32; k < n; k += WARPS) {
        double sum = 0.0;
        for (int64_t i = threadIdx.x % 32; i < n; i += 32) sum += item.work[k * n + i] * (double)item.f.basis[k * n + i];
        sum = warp_sum(sum);
        fine = fine && isfinite(sum);
        if (threadIdx.x % 32 == 0) quotients[k] = sum;
    }
    return __syncthreads_and(fine);
}

/* Block b: basis b of the wave. One that is not finite stays as it was. */
static __global__ void __launch_bounds__(MAKERS) order_bases(const __grid_constant__ all_bases s)
{
    const int32_t at = s.waves[s.now->wave].basis + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].basis) return;
    const turned item = s.bases[at];
    const int64_t n = item.f.n;
    if (!*item.turn) return;
    double *quotients = work_of(item).q;
    const bool fine = take_quotients(item, quotients);
    for (int64_t k = threadIdx.x; k < n; k += MAKERS)
        item.f.order[fine && s.ordered ? abar__place_of(n, quotients, k) : k] = (int32_t)k;
    if (fine || threadIdx.x != 0) return;
    *item.turn = 0;
    atomicAdd((unsigned long long *)&s.call->kept, 1ull);
}

/* ---- a panel of reflections --------------------------------------------------------------------------------------------- */

/* tau, and v_k of row k's length beyond k. */
__device__ static double reflection_of(double first, double rest, double *divisor)
{
    const double length = first > 0.0 ? -sqrt(first * first + rest) : sqrt(first * first + rest);
    *divisor = first - length;
    return rest > 0.0 ? (length - first) / length : 0.0;
}

typedef double panel_square[PANEL][PANEL + 1];

/* Rows in registers: row (warp + WARPS q) of the panel in x[q], 32 e + lane of it in x[q][e]. v: (2, 32 EACH). */
template <int EACH>
__device__ static void make_short_panel(const basis_work &w, int64_t first, int rows, double *v, panel_square &gram,
                                        double *tau)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    double x[PANEL / WARPS][EACH];
#pragma unroll
    for (int q = 0; q < PANEL / WARPS; q++)
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int j = warp + WARPS * q, i = 32 * e + lane;
            x[q][e] = j < rows && i < w.n ? row_of(w, first + j)[i] : 0.0;
        }
#pragma unroll
    for (int own = 0; own < PANEL / WARPS; own++) /* a constant index keeps x in registers */
        for (int k = WARPS * own; k < WARPS * (own + 1) && k < rows; k++) {
            double *now = v + k % 2 * 32 * EACH;
            const int64_t at = first + k;
            if (k % WARPS == warp) {
                double rest = 0.0, head = 0.0, divisor;
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    const int i = 32 * e + lane;
                    if (i == at) head = x[own][e];
                    if (i > at) rest += x[own][e] * x[own][e];
                }
                rest = warp_sum(rest);
                head = warp_sum(head);
                const double t = reflection_of(head, rest, &divisor);
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    const int i = 32 * e + lane;
                    x[own][e] = i == at ? 1.0 : i > at && t != 0.0 ? x[own][e] / divisor : 0.0;
                    now[i] = x[own][e];
                }
                if (lane == 0) tau[k] = t;
            }
            __syncthreads(); /* the other half of v is written only after all have read it: one is enough */
#pragma unroll
            for (int q = 0; q < PANEL / WARPS; q++) {
                const int j = warp + WARPS * q;
                if (j == k || j >= rows) continue;
                double sum = 0.0;
#pragma unroll
                for (int e = 0; e < EACH; e++) sum += now[32 * e + lane] * x[q][e];
                sum = warp_sum(sum);
                if (j < k && lane == 0) gram[j][k] = sum;
                if (j < k) continue;
#pragma unroll
                for (int e = 0; e < EACH; e++) x[q][e] -= tau[k] * sum * now[32 * e + lane];
            }
        }
#pragma unroll
    for (int q = 0; q < PANEL / WARPS; q++)
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int j = warp + WARPS * q, i = 32 * e + lane;
            if (j < rows && i < w.n) row_of(w, first + j)[i] = x[q][e];
        }
}

/* Rows of any length, in memory. */
__device__ static void make_long_panel(const basis_work &w, int64_t first, int rows, panel_square &gram, double *tau)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int k = 0; k < rows; k++) {
        double *v = row_of(w, first + k);
        const int64_t at = first + k;
        if (k % WARPS == warp) {
            double rest = 0.0, divisor;
            const double head = v[at];
            for (int64_t i = at + 1 + lane; i < w.n; i += 32) rest += v[i] * v[i];
            rest = warp_sum(rest);
            const double t = reflection_of(head, rest, &divisor);
            __syncwarp();
            for (int64_t i = lane; i < w.n; i += 32) v[i] = i == at ? 1.0 : i > at && t != 0.0 ? v[i] / divisor : 0.0;
            if (lane == 0) tau[k] = t;
        }
        __syncthreads();
        for (int j = warp; j < rows; j += WARPS) {
            double *x = row_of(w, first + j), sum = 0.0;
            if (j == k) continue;
            for (int64_t i = at + lane; i < w.n; i += 32) sum += v[i] * x[i];
            sum = warp_sum(sum);
            if (j < k && lane == 0) gram[j][k] = sum;
            for (int64_t i = at + lane; j > k && i < w.n; i += 32) x[i] -= tau[k] * sum * v[i];
            __syncwarp();
        }
    }
}

/* The first warp: T, from tau and the products of the v. Column k of T is -tau_k T (V v_k) above tau_k. */
__device__ static void make_t(int rows, const panel_square &gram, const double *tau, panel_square &t)
{
    const int i = (int)threadIdx.x;
    for (int k = 0; k < PANEL; k++) {
        double sum = 0.0;
        for (int l = i; l < k && k < rows; l++) sum += t[i][l] * gram[l][k];
        __syncwarp();
        t[i][k] = k >= rows || i > k ? 0.0 : i == k ? tau[k] : -tau[k] * sum;
        __syncwarp();
    }
}

#define SHORT 128
#define MIDDLE 768 /* the longest row in registers */

/* Block b: basis b of the wave. */
static __global__ void __launch_bounds__(MAKERS) make_panels(const __grid_constant__ all_bases s, int panel)
{
    __shared__ panel_square gram, t;
    __shared__ double tau[PANEL], v[2 * MIDDLE];
    const int32_t at = s.waves[s.now->wave].basis + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].basis) return;
    const turned item = s.bases[at];
    const basis_work w = work_of(item);
    const int64_t first = (int64_t)panel * PANEL;
    if (!*item.turn || first >= w.n) return;
    const int rows = w.n - first < PANEL ? (int)(w.n - first) : PANEL;
    if (w.n <= SHORT)
        make_short_panel<SHORT / 32>(w, first, rows, v, gram, tau);
    else if (w.n <= MIDDLE)
        make_short_panel<MIDDLE / 32>(w, first, rows, v, gram, tau);
    else
        make_long_panel(w, first, rows, gram, tau);
    __syncthreads();
    if (threadIdx.x < 32) make_t(rows, gram, tau, t);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < PANEL * PANEL; e += MAKERS) panel_t(w, panel)[e] = t[e / PANEL][e % PANEL];
}

/* ---- many rows times a panel -------------------------------------------------------------------------------------------- */

/* 64 rows from `first` on: of A, or of Q. */
typedef struct row_group {
    basis_work w;
    bool of_q;
    int64_t first;
} row_group;

__device__ static double *group_row(const row_group &g, int i)
{
    return g.of_q ? g.w.q + (g.first + i) * g.w.n : row_of(g.w, g.first + i);
}

/* sum (64, 32) += a b^T: warp w has rows 16 w on. */
__device__ static void add_narrow(double_piece (&sum)[4], const double_slab &a, const double_slab &b)
{
    double u[4][2];
    load_left(u, a, 16 * ((int)threadIdx.x / 32));
#pragma unroll
    for (int j = 0; j < 4; j++) {
        double v[4];
        load_right(v, b, 8 * j);
        multiply_add(sum[j], u, v);
    }
}

/* to (64, 32), the columns 16 on in to[1], = rows V^T. */
__device__ static void multiply_by_v(const row_group &g, int64_t top, int count, double_slab (&to)[2], double_slab (&from)[2])
{
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, pair = (int)threadIdx.x % 4;
    const int64_t n = g.w.n;
    double_piece sum[4] = {};
    for (int64_t k = top; k < n; k += SLAB) {
        for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) {
            const int i = e / SLAB, j = e % SLAB;
            const bool inside = k + j < n;
            from[0][i][j] = inside && g.first + i < n ? group_row(g, i)[k + j] : 0.0;
            if (i < PANEL) from[1][i][j] = inside && i < count ? row_of(g.w, top + i)[k + j] : 0.0;
        }
        __syncthreads();
        add_narrow(sum, from[0], from[1]);
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) to[j / 2][16 * warp + 8 * i + group][8 * (j % 2) + 2 * pair + e] = sum[j][i][e];
    __syncthreads();
}

/* x (64, 32) = x T, or x T^T. A thread has half a row. */
__device__ static void multiply_by_t(double_slab (&x)[2], const double (&t)[PANEL][PANEL], bool transposed)
{
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    double sum[SLAB] = {};
    for (int l = 0; l < PANEL; l++) {
        const double value = x[l / SLAB][row][l % SLAB];
#pragma unroll
        for (int c = 0; c < SLAB; c++) sum[c] += value * (transposed ? t[SLAB * half + c][l] : t[l][SLAB * half + c]);
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < SLAB; c++) x[half][row][c] = sum[c];
    __syncthreads();
}

/* Block b: group b of the wave. of_q: rows of Q times the panel's transpose; else those of A behind the panel. */
static __global__ void __launch_bounds__(THREADS) reflect_rows(const __grid_constant__ all_bases s, int panel, bool of_q)
{
    __shared__ double_slab x[2], other[2];
    __shared__ double t[PANEL][PANEL];
    const int32_t at = s.waves[s.now->wave].group + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].group) return;
    const turned item = s.bases[s.groups[at].basis];
    const int64_t n = item.f.n, top = (int64_t)panel * PANEL;
    const row_group g = {work_of(item), of_q, top + (of_q ? 0 : PANEL) + (int64_t)s.groups[at].down * TILE};
    if (!*item.turn || top >= n || g.first >= n) return;
    const int count = n - top < PANEL ? (int)(n - top) : PANEL;
    for (int e = (int)threadIdx.x; e < PANEL * PANEL; e += THREADS) t[e / PANEL][e % PANEL] = panel_t(g.w, panel)[e];
    multiply_by_v(g, top, count, x, other);
    multiply_by_t(x, t, of_q);
    for (int64_t column = top; column < n; column += TILE) {
        double_sums sum = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            for (int e = (int)threadIdx.x; e < TILE * SLAB; e += THREADS) {
                const int i = e % TILE, k = SLAB * half + e / TILE;
                other[half][i][e / TILE] = column + i < n && k < count ? row_of(g.w, top + k)[column + i] : 0.0;
            }
        }
        __syncthreads();
        add_slab(sum, x[0], other[0]);
        add_slab(sum, x[1], other[1]);
        for_pairs(sum, [&](int row, int i, const double(&of)[2]) {
            if (g.first + row >= n) return;
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (column + i + e < n) group_row(g, row)[column + i + e] -= of[e];
        });
        __syncthreads();
    }
}

/* Block b: group b of the wave. Q = I, or the basis = Q. */
static __global__ void __launch_bounds__(THREADS) move_rows(const __grid_constant__ all_bases s, bool out)
{
    const int32_t at = s.waves[s.now->wave].group + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].group) return;
    const turned item = s.bases[s.groups[at].basis];
    const int64_t n = item.f.n, first = (int64_t)s.groups[at].down * TILE, end = n - first < TILE ? n : first + TILE;
    double *q = work_of(item).q;
    if (!*item.turn) return;
    for (int64_t e = first * n + threadIdx.x; e < end * n; e += THREADS) {
        if (out)
            item.f.basis[e] = (float)q[e];
        else
            q[e] = e / n == e % n ? 1.0 : 0.0;
    }
}

/* ---- running ------------------------------------------------------------------------------------------------------------ */

static __global__ void begin_bases(const __grid_constant__ all_bases s, abar__cuda_again again)
{
    s.now->wave = 0;
    abar__cuda_say(&s.now->more, s.call->wanted && s.n_waves > 0, again);
}

static __global__ void next_wave(const __grid_constant__ all_bases s, abar__cuda_again again)
{
    const int32_t wave = ++s.now->wave;
    abar__cuda_say(&s.now->more, wave < s.n_waves, again);
}

static void launch_begin(abar_device *dev, const void *user, abar__cuda_again again)
{
    abar__cuda_launch(dev, begin_bases, dim3(1), dim3(1), 0, ((const abar__cuda_turner *)user)->s, again);
}

static void launch_round(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_turner *t = (const abar__cuda_turner *)user;
    const dim3 groups((unsigned)t->most.group), bases((unsigned)t->most.basis);
    abar__cuda_launch(dev, multiply_bases, dim3((unsigned)t->most.tile), dim3(THREADS), 0, t->s);
    abar__cuda_launch(dev, order_bases, bases, dim3(MAKERS), 0, t->s);
    for (int panel = 0; panel < t->panels; panel++) {
        abar__cuda_launch(dev, make_panels, bases, dim3(MAKERS), 0, t->s, panel);
        if (panel + 1 < t->panels) abar__cuda_launch(dev, reflect_rows, groups, dim3(THREADS), 0, t->s, panel, false);
    }
    abar__cuda_launch(dev, move_rows, groups, dim3(THREADS), 0, t->s, false);
    for (int panel = t->panels - 1; panel >= 0; panel--)
        abar__cuda_launch(dev, reflect_rows, groups, dim3(THREADS), 0, t->s, panel, true);
    abar__cuda_launch(dev, move_rows, groups, dim3(THREADS), 0, t->s, true);
    abar__cuda_launch(dev, next_wave, dim3(1), dim3(1), 0, t->s, again);
}

extern "C" abar_status abar__cuda_turner_run(abar_device *dev, abar__cuda_turner *t)
{
    if (t->s.n == 0) return abar__cuda_status(dev);
    abar__cuda_launch(dev, look_at_bases, dim3((unsigned)t->s.n), dim3(MAKERS), 0, t->s);
    ABAR_TRY(abar__cuda_spectra_run(dev, t->first));
    const abar__cuda_rounds rounds = {t, launch_begin, launch_round, &t->s.now->more, t->body};
    return abar__cuda_repeat(dev, &rounds);
}

/* ---- making ------------------------------------------------------------------------------------------------------------- */

template <typename T> static T *place(char *base, size_t *at, size_t n)
{
    T *here = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + n * sizeof(T), 256);
    return here;
}

/* What the device is sent, in one piece. */
typedef struct tables {
    turned *bases;
    tile *tiles, *groups;
    wave *waves;
    size_t bytes;
} tables;

static tables place_tables(int n, size_t n_tiles, size_t n_groups, char *base)
{
    tables t = {};
    t.bases = place<turned>(base, &t.bytes, (size_t)n);
    t.tiles = place<tile>(base, &t.bytes, n_tiles);
    t.groups = place<tile>(base, &t.bytes, n_groups);
    t.waves = place<wave>(base, &t.bytes, (size_t)n + 1);
    return t;
}

static int32_t along(int64_t n) { return (int32_t)abar__cuda_blocks(n, TILE); }

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Fills the tables, cutting bases into waves; returns the bytes of workspace. flags (2 n), base: device memory. t NULL: only
 * counts. */
static size_t fill(abar__cuda_turner *r, const abar__cuda_basis *bases, int n, const tables *t, int32_t *flags, char *base)
{
    size_t own = 0, most = 0;
    wave at = {0, 0, 0}, first = {0, 0, 0};
    r->s.n_waves = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes = abar__round_up(work_bytes(bases[i].n), 256);
        if (i == 0 || own + bytes > WAVE_BYTES) {
            own = 0;
            first = at;
            if (t) t->waves[r->s.n_waves] = at;
            r->s.n_waves++;
        }
        if (t) t->bases[i] = {bases[i], (double *)(base + own), flags + 2 * i, flags + 2 * i + 1};
        for (int32_t down = 0; down < along(bases[i].n); down++)
            for (int32_t left = 0; left < along(bases[i].n); left++, at.tile++)
                if (t) t->tiles[at.tile] = {i, down, left};
        for (int32_t down = 0; down < along(bases[i].n); down++, at.group++)
            if (t) t->groups[at.group] = {i, down, -1};
        at.basis++;
        own += bytes;
        most = own > most ? own : most;
        r->panels = larger(r->panels, (int32_t)panels_of(bases[i].n));
        r->most = {larger(r->most.basis, at.basis - first.basis), larger(r->most.tile, at.tile - first.tile),
                   larger(r->most.group, at.group - first.group)};
    }
    if (t) t->waves[r->s.n_waves] = at;
    return most;
}

/* of: (n) memory for what becomes of bases that are none yet. */
static abar_status make_parts(abar_device *dev, abar__cuda_turner *r, const abar__cuda_basis *bases, int n,
                              abar__cuda_spectrum *of)
{
    size_t n_tiles = 0, n_groups = 0;
    for (int i = 0; i < n; i++) {
        n_tiles += (size_t)along(bases[i].n) * (size_t)along(bases[i].n);
        n_groups += (size_t)along(bases[i].n);
        of[i] = {{bases[i].n, (float *)bases[i].average, NULL, 0.0, 0.0}, bases[i].basis, NULL};
    }
    if (n_tiles > INT32_MAX)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: bases of too many tiles, rotate shorter sides only");
    const size_t own = fill(r, bases, n, NULL, NULL, NULL), first = abar__cuda_spectra_workspace(of, n);
    const size_t sent = place_tables(n, n_tiles, n_groups, NULL).bytes;
    size_t at = sent;
    char *host;
    place<int32_t>(NULL, &at, 2 * (size_t)n);
    place<control>(NULL, &at, 1);
    r->bytes = at + (own > first ? own : first);
    ABAR_TRY(abar_device_alloc(dev, r->bytes, (void **)&r->memory));
    at = sent;
    int32_t *flags = place<int32_t>(r->memory, &at, 2 * (size_t)n);
    r->s.now = place<control>(r->memory, &at, 1);
    const tables device = place_tables(n, n_tiles, n_groups, r->memory);
    r->s.bases = device.bases;
    r->s.tiles = device.tiles;
    r->s.groups = device.groups;
    r->s.waves = device.waves;
    ABAR_TRY(abar__alloc(dev->ctx, sent, (void **)&host));
    const tables filled = place_tables(n, n_tiles, n_groups, host);
    fill(r, bases, n, &filled, flags, r->memory + at);
    abar__cuda_carry(dev, r->memory, host, sent);
    abar__free(dev->ctx, host, sent);
    for (int i = 0; i < n; i++) of[i].wanted = flags + 2 * i;
    ABAR_TRY(abar__cuda_spectra_create(dev, of, n, r->s.call, r->memory + at, &r->first));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&r->body, cudaStreamNonBlocking));
    return abar__cuda_status(dev);
}

static abar_status make(abar_device *dev, abar__cuda_turner *r, const abar__cuda_basis *bases, int n)
{
    abar__cuda_spectrum *of;
    const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof *of;
    ABAR_TRY(abar__alloc(dev->ctx, bytes, (void **)&of));
    const abar_status status = make_parts(dev, r, bases, n, of);
    abar__free(dev->ctx, of, bytes);
    return status;
}

extern "C" abar_status abar__cuda_turner_create(abar_device *dev, const abar__cuda_basis *bases, int n, bool ordered,
                                                abar__cuda_root_call *call, abar__cuda_turner **out)
{
    *out = NULL;
    abar__cuda_turner *t;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *t, (void **)&t));
    t->s.n = n;
    t->s.ordered = ordered;
    t->s.call = call;
    const abar_status status = make(dev, t, bases, n);
    if (status < 0)
        abar__cuda_turner_destroy(dev, t);
    else
        *out = t;
    return status;
}

extern "C" void abar__cuda_turner_destroy(abar_device *dev, abar__cuda_turner *t)
{
    if (!t) return;
    abar__cuda_spectra_destroy(dev, t->first);
    if (t->body) cudaStreamDestroy(t->body);
    abar_device_free(dev, t->memory, t->bytes);
    abar__free(dev->ctx, t, sizeof *t);
}

extern "C" size_t abar__cuda_turner_bytes(const abar__cuda_turner *t)
{
    return sizeof *t + t->bytes + abar__cuda_spectra_bytes(t->first);
}
