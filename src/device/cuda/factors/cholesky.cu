/* Solving damped systems (cholesky.h), by panels of PANEL columns: factorise the diagonal block, solve the rows below for the
 * panel, subtract its products from what is right of it. */
#include "device/cuda/factors/cholesky.h"

#include "device/cuda/factors/repeat.h"

#include <math.h>

enum { PANEL = 32, THREADS = 256, RAISES = 5 };

/* ---- factorising ------------------------------------------------------------------------------------------------------- */

/* One block: traces, and which systems take part. */
static __global__ void __launch_bounds__(THREADS) begin(const __grid_constant__ abar__cuda_systems s, abar__cuda_again again)
{
    __shared__ double shared[32];
    bool any = false;
    for (int i = 0; i < s.n; i++) {
        const double *k = s.k + i * s.side * s.side;
        abar__cuda_system *system = &s.systems[i];
        double sum = 0.0;
        for (int64_t m = threadIdx.x; m < s.side; m += THREADS) sum += k[m * (s.side + 1)];
        sum = block_sum(sum, shared);
        const bool wanted = system->wanted && isfinite(sum);
        any = any || wanted;
        __syncthreads(); /* all have read what thread 0 will write */
        if (threadIdx.x != 0) continue;
        system->trace = sum;
        system->solved = system->raised = system->failed = 0;
        system->wanted = wanted;
    }
    if (threadIdx.x == 0) abar__cuda_say(s.more, any, again);
}

/* Block (b, i): system i. l = K + shift I, below and on the diagonal. */
static __global__ void __launch_bounds__(THREADS) load_damped(const __grid_constant__ abar__cuda_systems s)
{
    const abar__cuda_system system = s.systems[blockIdx.y];
    const int64_t all = s.side * s.side, first = blockIdx.y * all;
    if (!system.wanted) return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / s.side, column = i % s.side;
        if (column <= row) s.l[first + i] = s.k[first + i] + (row == column ? system.shift : 0.0);
    }
}

/* Block i, (PANEL, PANEL) threads: the diagonal block of system i that begins at row `from`, in place. */
static __global__ void __launch_bounds__(PANEL *PANEL)
    factor_diagonal(const __grid_constant__ abar__cuda_systems s, int64_t from)
{
    __shared__ double a[PANEL][PANEL + 1];
    abar__cuda_system *system = &s.systems[blockIdx.x];
    double *l = s.l + (int64_t)blockIdx.x * s.side * s.side + from * (s.side + 1);
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int n = (int)(s.side - from < PANEL ? s.side - from : PANEL);
    const bool inside = y < n && x <= y;
    if (!system->wanted || system->failed) return; /* the whole block */
    if (inside) a[y][x] = l[y * s.side + x];
    __syncthreads();
    for (int j = 0; j < n; j++) {
        const double pivot = a[j][j];
        if (!(pivot > 0.0 && isfinite(pivot))) { /* the same for all threads */
            if (x == 0 && y == 0) system->failed = 1;
            return;
        }
        __syncthreads(); /* all have read the pivot */
        if (x == j && inside) a[y][j] = y == j ? sqrt(pivot) : a[y][j] / sqrt(pivot);
        __syncthreads();
        if (inside && x > j) a[y][x] -= a[y][j] * a[x][j];
        __syncthreads();
    }
    if (inside) l[y * s.side + x] = a[y][x];
}

/* Block (b, i): PANEL rows below the diagonal block of system i, a thread each: X L^T = A. */
static __global__ void __launch_bounds__(PANEL) solve_panel(const __grid_constant__ abar__cuda_systems s, int64_t from)
{
    const abar__cuda_system system = s.systems[blockIdx.y];
    const double *diagonal = s.l + (int64_t)blockIdx.y * s.side * s.side + from * (s.side + 1);
    const int64_t row = from + PANEL + (int64_t)blockIdx.x * PANEL + threadIdx.x;
    if (!system.wanted || system.failed || row >= s.side) return;
    double *a = s.l + (int64_t)blockIdx.y * s.side * s.side + row * s.side + from;
    for (int j = 0; j < PANEL; j++) { /* a panel with rows below it is whole */
        double sum = a[j];
        for (int t = 0; t < j; t++) sum -= a[t] * diagonal[j * s.side + t];
        a[j] = sum / diagonal[j * (s.side + 1)];
    }
}

/* Block (b, c, i), (PANEL, PANEL) threads: tile (b, c) right of and below the panel, on and below the diagonal: A -= X X^T. */
static __global__ void __launch_bounds__(PANEL *PANEL)
    subtract_products(const __grid_constant__ abar__cuda_systems s, int64_t from)
{
    __shared__ double rows[PANEL][PANEL + 1], columns[PANEL][PANEL + 1];
    const abar__cuda_system system = s.systems[blockIdx.z];
    if (blockIdx.y > blockIdx.x || !system.wanted || system.failed) return; /* the whole block */
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t behind = from + PANEL, down = behind + (int64_t)blockIdx.x * PANEL,
                  left = behind + (int64_t)blockIdx.y * PANEL;
    double *l = s.l + (int64_t)blockIdx.z * s.side * s.side;
    rows[y][x] = down + y < s.side ? l[(down + y) * s.side + from + x] : 0.0;
    columns[y][x] = left + y < s.side ? l[(left + y) * s.side + from + x] : 0.0;
    __syncthreads();
    if (down + y >= s.side || left + x > down + y) return;
    double sum = 0.0;
    for (int t = 0; t < PANEL; t++) sum += rows[y][t] * columns[x][t];
    l[(down + y) * s.side + left + x] -= sum;
}

/* ---- solving ----------------------------------------------------------------------------------------------------------- */

/* Block i: x = L^-T L^-1 x of a system whose factor is there, column by column. */
static __global__ void __launch_bounds__(THREADS) substitute(const __grid_constant__ abar__cuda_systems s)
{
    abar__cuda_system *system = &s.systems[blockIdx.x];
    const double *l = s.l + (int64_t)blockIdx.x * s.side * s.side;
    double *x = s.x + (int64_t)blockIdx.x * s.side;
    if (!system->wanted || system->failed) return;
    for (int64_t j = 0; j < s.side; j++) {
        const double value = x[j] / l[j * (s.side + 1)];
        __syncthreads(); /* all have read x[j] */
        if (threadIdx.x == 0) x[j] = value;
        for (int64_t i = j + 1 + threadIdx.x; i < s.side; i += THREADS) x[i] -= l[i * s.side + j] * value;
        __syncthreads();
    }
    for (int64_t j = s.side - 1; j >= 0; j--) {
        const double value = x[j] / l[j * (s.side + 1)];
        __syncthreads();
        if (threadIdx.x == 0) x[j] = value;
        for (int64_t i = threadIdx.x; i < j; i += THREADS) x[i] -= l[j * s.side + i] * value;
        __syncthreads();
    }
    bool fine = true;
    for (int64_t i = threadIdx.x; i < s.side; i += THREADS) fine = fine && isfinite(x[i]);
    fine = __syncthreads_and(fine);
    if (threadIdx.x == 0) system->solved = fine;
}

/* One thread: a system whose factorisation failed gets ten times the shift, or is given up. */
static __global__ void climb(const __grid_constant__ abar__cuda_systems s, abar__cuda_again again)
{
    bool any = false;
    for (int i = 0; i < s.n; i++) {
        abar__cuda_system *system = &s.systems[i];
        if (!system->wanted) continue;
        if (system->failed && system->raised < RAISES) {
            system->raised++;
            system->shift = fmax(10.0 * system->shift, 1e-8 * system->trace / (double)s.rows);
            system->failed = 0;
            any = true;
        } else {
            system->wanted = 0;
        }
    }
    abar__cuda_say(s.more, any, again);
}

/* ---- the host's side --------------------------------------------------------------------------------------------------- */

static void launch_begin(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_systems *s = (const abar__cuda_systems *)user;
    abar__cuda_launch(dev, begin, dim3(1), dim3(THREADS), 0, *s, again);
}

/* An attempt at every system that is still wanted. */
static void launch_round(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_systems *s = (const abar__cuda_systems *)user;
    const unsigned n = (unsigned)s->n;
    const int64_t blocks = abar__cuda_blocks(s->side * s->side, THREADS);
    abar__cuda_launch(dev, load_damped, dim3((unsigned)(blocks < 1024 ? blocks : 1024), n), dim3(THREADS), 0, *s);
    for (int64_t from = 0; from < s->side; from += PANEL) {
        const int64_t below = s->side - from - PANEL;
        const unsigned tiles = below > 0 ? (unsigned)abar__cuda_blocks(below, PANEL) : 0;
        abar__cuda_launch(dev, factor_diagonal, dim3(n), dim3(PANEL, PANEL), 0, *s, from);
        if (tiles == 0) break;
        abar__cuda_launch(dev, solve_panel, dim3(tiles, n), dim3(PANEL), 0, *s, from);
        abar__cuda_launch(dev, subtract_products, dim3(tiles, tiles, n), dim3(PANEL, PANEL), 0, *s, from);
    }
    abar__cuda_launch(dev, substitute, dim3(n), dim3(THREADS), 0, *s);
    abar__cuda_launch(dev, climb, dim3(1), dim3(1), 0, *s, again);
}

extern "C" abar_status abar__cuda_solve_systems(abar_device *dev, const abar__cuda_systems *s)
{
    const abar__cuda_rounds rounds = {s, launch_begin, launch_round, s->more, s->body};
    return abar__cuda_repeat(dev, &rounds);
}
