/* The launches of a round of inversions (inverse.h): the diagonal block of every panel that is swept, the other blocks of
 * those panels, and all tiles of the triangles. Within the triangle of `pending` nothing above the diagonal is read or written:
 * averages lie there. */
#include "device/cuda/factors/inverse.h"
#include "device/cuda/core/tf32.h"

#include <math.h>

#define SIDE ABAR_PANEL
#define THREADS 128 /* of a block that works on tiles: 16 across x 8 down, each 4 columns x 8 rows */
#define PIVOTERS 256
#define PITCH (SIDE + 4) /* of a tile in shared memory: rows stay aligned, columns are written without conflicts */
#define STAGE (SIDE + 1) /* of a tile that is transposed there */
#define RESIDENT 4       /* blocks that share a multiprocessor */

/* What fit in one tile of shared memory: so many columns of a panel (depth), or so many rows of all its columns (strip).
 * rows: of its eight, that a thread adds up at once. ahead: columns of L that a thread reads before it uses the first. */
template <typename T> struct share;
template <> struct share<float> {
    static const int depth = SIDE, rows = 8, strip = SIDE, strip_pitch = PITCH, ahead = 4;
};
template <> struct share<double> {
    static const int depth = SIDE / 2, rows = 4, strip = SIDE / 2, strip_pitch = SIDE / 2 + 2, ahead = 1;
};

/* ---- elements ----------------------------------------------------------------------------------------------------- */

/* A matrix of floats, or of doubles as sums of two floats: the triangle, or the panel. */
typedef struct matrix {
    float *high, *low;
    int64_t pitch;
    bool vectors; /* 4 floats at once where the column is a multiple of 4 */
} matrix;

__device__ static void get(const matrix &m, int64_t row, int64_t column, float *v) { *v = m.high[row * m.pitch + column]; }

__device__ static void get(const matrix &m, int64_t row, int64_t column, double *v)
{
    *v = (double)m.high[row * m.pitch + column] + (double)m.low[row * m.pitch + column];
}

__device__ static void put(const matrix &m, int64_t row, int64_t column, float v) { m.high[row * m.pitch + column] = v; }

__device__ static void put(const matrix &m, int64_t row, int64_t column, double v)
{
    const float high = (float)v;
    m.high[row * m.pitch + column] = high;
    m.low[row * m.pitch + column] = (float)(v - (double)high);
}

/* Four elements of a row, all within the matrix. */
__device__ static void get4(const matrix &m, int64_t row, int64_t column, float v[4])
{
    if (m.vectors) {
        const pack<float> p = load_pack(m.high + row * m.pitch + column);
        for (int i = 0; i < 4; i++) v[i] = p.v[i];
    } else {
        for (int i = 0; i < 4; i++) get(m, row, column + i, &v[i]);
    }
}

__device__ static void get4(const matrix &m, int64_t row, int64_t column, double v[4])
{
    for (int i = 0; i < 4; i++) get(m, row, column + i, &v[i]);
}

__device__ static void put4(const matrix &m, int64_t row, int64_t column, const float v[4])
{
    if (m.vectors) {
        store_pack(m.high + row * m.pitch + column, pack<float>{{v[0], v[1], v[2], v[3]}});
    } else {
        for (int i = 0; i < 4; i++) put(m, row, column + i, v[i]);
    }
}

__device__ static void put4(const matrix &m, int64_t row, int64_t column, const double v[4])
{
    for (int i = 0; i < 4; i++) put(m, row, column + i, v[i]);
}

__device__ static matrix triangle_of(const abar__inverted &item)
{
    const bool vectors = item.f.d % 4 == 0 && (uintptr_t)item.f.pending % 16 == 0;
    return {item.f.pending, item.f.inverse, item.f.d, vectors};
}

__device__ static matrix panel_of(const abar__inversions &s, const abar__inverted &item)
{
    return {item.panel, s.low_panel, abar__panel_pitch(item.f.d), true};
}

/* ---- products of tiles -------------------------------------------------------------------------------------------- */

/* to[k][c] = m(row + k, column + c); to: (depth, PITCH). All is read before the first is written, as far as the compiler knows
 * to the same memory: else every read would wait for the one before. So do others below. */
template <typename T> __device__ static void load_rows(const matrix &m, int64_t row, int64_t column, T *to)
{
    constexpr int each = share<T>::depth * (SIDE / 4) / THREADS, apart = THREADS / (SIDE / 4);
    const int k = threadIdx.x / (SIDE / 4), c = threadIdx.x % (SIDE / 4) * 4;
    T v[each][4];
#pragma unroll
    for (int n = 0; n < each; n++) get4(m, row + k + n * apart, column + c, v[n]);
#pragma unroll
    for (int n = 0; n < each; n++)
        for (int i = 0; i < 4; i++) to[(k + n * apart) * PITCH + c + i] = v[n][i];
}

__device__ static void take4(const float *from, float to[4])
{
    const pack<float> p = load_pack(from);
    for (int i = 0; i < 4; i++) to[i] = p.v[i];
}

__device__ static void take4(const double *from, double to[4])
{
    for (int i = 0; i < 4; i++) to[i] = from[i];
}

/* sum[r][c] += column r of left times column c of right, each from this thread's first on; (depth, PITCH) both. */
template <typename T> __device__ static void add_up(const T *left, const T *right, T (*sum)[4])
{
#pragma unroll 8
    for (int k = 0; k < share<T>::depth; k++) {
        T a[share<T>::rows], b[4];
#pragma unroll
        for (int r = 0; r < share<T>::rows; r += 4) take4(left + k * PITCH + r, a + r);
        take4(right + k * PITCH, b);
#pragma unroll
        for (int r = 0; r < share<T>::rows; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[r][c] += a[r] * b[c];
    }
}

/* Tile (i, j) of the triangle -= left^T right; left, right: (depth, PITCH). Off the diagonal all columns of a tile are within
 * the matrix. */
template <typename T>
__device__ static void subtract(const T *left, const T *right, const matrix &m, int64_t d, int64_t i, int64_t j)
{
    const int rows = share<T>::rows, across = threadIdx.x % 16 * 4, below = (int)(d - i * SIDE); /* rows that there are */
    for (int part = 0; part < 8; part += rows) {
        const int down = threadIdx.x / 16 * 8 + part;
        T sum[rows][4] = {}, v[rows][4] = {};
        add_up(left + down, right + across, sum);
        if (i == j) {
            for (int r = 0; r < rows && down + r < below; r++)
                for (int c = 0; c < 4 && across + c <= down + r; c++) {
                    get(m, i * SIDE + down + r, j * SIDE + across + c, &v[r][c]);
                    put(m, i * SIDE + down + r, j * SIDE + across + c, v[r][c] - sum[r][c]);
                }
            continue;
        }
#pragma unroll
        for (int r = 0; r < rows; r++) /* all of them before the first is written */
            if (down + r < below) get4(m, i * SIDE + down + r, j * SIDE + across, v[r]);
#pragma unroll
        for (int r = 0; r < rows; r++) {
            for (int c = 0; c < 4; c++) v[r][c] -= sum[r][c];
            if (down + r < below) put4(m, i * SIDE + down + r, j * SIDE + across, v[r]);
        }
    }
}

/* ---- the diagonal block ------------------------------------------------------------------------------------------- */

/* Sweeps the SIDE x SIDE matrix of which every thread holds a 4 x 4 piece, one column after the other, so that it becomes the
 * negative of its inverse. The columns of L come by, times L_kk: they stay in column, (SIDE, SIDE). False where a pivot is not
 * positive. */
__device__ static bool sweep_block(double a[4][4], double (*column)[SIDE])
{
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int group = 0; group < SIDE / 4; group++) {
#pragma unroll
        for (int own = 0; own < 4; own++) {
            const int k = group * 4 + own;
            double *now = column[k];
            if (x == group)
                for (int r = 0; r < 4; r++) now[4 * y + r] = a[r][own];
            __syncthreads();
            const double pivot = now[k];
            if (!(pivot > 0.0) || !isfinite(pivot)) return false; /* the same for all threads */
            const double over = 1.0 / pivot;
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int i = 4 * y + r, j = 4 * x + c;
                    if (i == k || j == k)
                        a[r][c] = i == j ? -over : now[i == k ? j : i] * over;
                    else
                        a[r][c] -= now[i] * over * now[j];
                }
        }
    }
    return true;
}

/* L goes to kept, from column `first` on, with 1 / L_kk for L_kk. column: (SIDE + 1, SIDE), as it was left, with workspace
 * below.
 */
template <typename T> __device__ static void keep_l(double (*column)[SIDE], const matrix &kept, int64_t first)
{
    double *root = column[SIDE]; /* 1 / L_kk */
    if (threadIdx.x < SIDE) root[threadIdx.x] = sqrt(1.0 / column[threadIdx.x][threadIdx.x]);
    __syncthreads();
    for (int e = threadIdx.x; e < SIDE * SIDE; e += PIVOTERS) {
        const int k = e / SIDE, i = e % SIDE;
        if (i >= k) put(kept, k, first + i, (T)(i == k ? root[k] : column[k][i] * root[k]));
    }
}

template <typename T>
__device__ static void invert_block(const abar__inversions &s, const abar__inverted &item, abar__inversion_state *state,
                                    double (*column)[SIDE])
{
    const matrix m = triangle_of(item);
    const int64_t d = item.f.d, first = (int64_t)state->panel * SIDE;
    const int64_t down = first + threadIdx.x / 16 * 4, across = first + threadIdx.x % 16 * 4;
    double a[4][4];
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            const int64_t i = down + r, j = across + c;
            T v = i == j ? T(1) : T(0); /* the identity beyond the last column */
            if (i < d && j < d) get(m, i > j ? i : j, i > j ? j : i, &v);
            a[r][c] = (double)v;
        }
    const bool fine = sweep_block(a, column);
    if (fine) keep_l<T>(column, panel_of(s, item), abar__panels(d) * SIDE);
    if (!fine && threadIdx.x == 0) state->failed = 1;
    for (int r = 0; fine && r < 4; r++)
        for (int c = 0; c < 4; c++)
            if (down + r < d && across + c <= down + r) put(m, down + r, across + c, (T)a[r][c]);
}

/* Block f: the diagonal block of factor f's panel; always in double precision, which its few numbers can afford. */
static __global__ void __launch_bounds__(PIVOTERS) run_pivots(const __grid_constant__ abar__inversions s)
{
    __shared__ double column[SIDE + 1][SIDE];
    abar__inversion_state *state = &s.states[blockIdx.x];
    if (state->phase != ABAR_INVERSION_SWEEP) return;
    if (state->in_double)
        invert_block<double>(s, s.items[blockIdx.x], state, column);
    else
        invert_block<float>(s, s.items[blockIdx.x], state, column);
}

/* ---- the panel ---------------------------------------------------------------------------------------------------- */

/* Two tiles in shared memory, or one that is transposed. */
typedef struct __align__(16) tiles { char left[SIDE * PITCH * sizeof(float)], right[SIDE * PITCH * sizeof(float)]; }
tiles;

/* Where element e / 4 of a strip's packs of four lies: in the triangle, and in shared memory, `step` from one to the next. */
typedef struct strip_place {
    int64_t row, column;
    int at, step;
} strip_place;

/* Where the triangle has rows of the panel's block i as columns, a warp moves 8 of 16 rows: whole sectors, and no two lanes
 * share a bank. */
template <typename T> __device__ static strip_place place_in_strip(int64_t i, int64_t panel, int first, int e)
{
    const int strip = share<T>::strip, pitch = share<T>::strip_pitch;
    const bool columns = i > panel;
    const int r = columns ? e % 16 + e / 32 % (strip / 16) * 16 : e % (strip / 4) * 4;
    const int k = columns ? (e / 16 % 2 + e / (2 * strip) * 2) * 4 : e / (strip / 4);
    return {columns ? i * SIDE + first + r : panel * SIDE + k, columns ? panel * SIDE + k : i * SIDE + first + r, k * pitch + r,
            columns ? pitch : 1};
}

/* p[k][r] = element (first + r, k) of block i of the panel, for `strip` rows and all columns. */
template <typename T> __device__ static void load_strip(const matrix &m, int64_t d, int64_t i, int64_t panel, int first, T *p)
{
    for (int e = threadIdx.x; e < SIDE * share<T>::strip / 4; e += 4 * THREADS) {
        T v[4][4] = {};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const strip_place place = place_in_strip<T>(i, panel, first, e + n * THREADS);
            if (place.row < d) get4(m, place.row, place.column, v[n]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const strip_place place = place_in_strip<T>(i, panel, first, e + n * THREADS);
            for (int c = 0; c < 4; c++) p[place.at + c * place.step] = v[n][c];
        }
    }
}

/* The other way. */
template <typename T>
__device__ static void store_strip(const matrix &m, int64_t d, int64_t i, int64_t panel, int first, const T *p)
{
    for (int e = threadIdx.x; e < SIDE * share<T>::strip / 4; e += THREADS) {
        const strip_place place = place_in_strip<T>(i, panel, first, e);
        T v[4];
        for (int c = 0; c < 4; c++) v[c] = p[place.at + c * place.step];
        if (place.row < d) put4(m, place.row, place.column, v);
    }
}

/* Where L_ik is in a tile of shared memory: columns one after the other, doubles without what is above the diagonal. */
__device__ static int l_at(const float *, int k, int i) { return k * PITCH + i; }
__device__ static int l_at(const double *, int k, int i) { return k * SIDE - k * (k - 1) / 2 + i - k; }

/* y = L^-1 x in place, one thread: elements are strip_pitch apart. Eight of them at a time. */
template <typename T> __device__ static void substitute_forward(const T *l, T *x)
{
    const int pitch = share<T>::strip_pitch;
    for (int g = 0; g < SIDE; g += 8) {
        T v[8];
#pragma unroll
        for (int q = 0; q < 8; q++) v[q] = x[(g + q) * pitch];
#pragma unroll(share <T>::ahead)
        for (int k = 0; k < g; k++) {
            const T y = x[k * pitch];
            T a[8];
            take4(l + l_at(l, k, g), a);
            take4(l + l_at(l, k, g + 4), a + 4);
#pragma unroll
            for (int q = 0; q < 8; q++) v[q] -= a[q] * y;
        }
#pragma unroll
        for (int q = 0; q < 8; q++) {
            x[(g + q) * pitch] = v[q] *= l[l_at(l, g + q, g + q)];
#pragma unroll
            for (int o = q + 1; o < 8; o++) v[o] -= l[l_at(l, g + q, g + o)] * v[q];
        }
    }
}

/* x = L^-T y likewise. */
template <typename T> __device__ static void substitute_back(const T *l, T *x)
{
    const int pitch = share<T>::strip_pitch;
    for (int g = SIDE - 8; g >= 0; g -= 8) {
        T v[8];
#pragma unroll
        for (int q = 0; q < 8; q++) v[q] = x[(g + q) * pitch];
        for (int i = g + 8; i < SIDE; i += 4) {
            T w[4], a[4];
#pragma unroll
            for (int c = 0; c < 4; c++) w[c] = x[(i + c) * pitch];
#pragma unroll
            for (int q = 0; q < 8; q++) {
                take4(l + l_at(l, g + q, i), a);
#pragma unroll
                for (int c = 0; c < 4; c++) v[q] -= a[c] * w[c];
            }
        }
#pragma unroll
        for (int q = 7; q >= 0; q--) {
            x[(g + q) * pitch] = v[q] *= l[l_at(l, g + q, g + q)];
#pragma unroll
            for (int o = 0; o < q; o++) v[o] -= l[l_at(l, g + o, g + q)] * v[q];
        }
    }
}

/* L from the panel: column k is its row k, from column `from` on. */
template <typename T> __device__ static void load_l(const matrix &kept, int64_t from, T *l)
{
    for (int first = threadIdx.x; first < SIDE * SIDE; first += 8 * THREADS) {
        T v[8];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int k = (first + n * THREADS) / SIDE, i = (first + n * THREADS) % SIDE;
            if (k <= i) get(kept, k, from + i, &v[n]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int k = (first + n * THREADS) / SIDE, i = (first + n * THREADS) % SIDE;
            if (k <= i) l[l_at(l, k, i)] = v[n];
        }
    }
}

/* Block i of the panel: Y_i goes to item's panel, transposed, and Y_i L^-1 into the place of P_i. A thread has one row. */
template <typename T>
__device__ static void sweep_panel(const abar__inversions &s, const abar__inverted &item, int64_t i, int64_t panel,
                                   tiles *shared)
{
    const int strip = share<T>::strip, pitch = share<T>::strip_pitch;
    const matrix m = triangle_of(item), kept = panel_of(s, item);
    const int64_t d = item.f.d, to = abar__panels(d) * SIDE;
    T *l = (T *)shared->left, *p = (T *)shared->right;
    load_l(kept, to, l);
    for (int first = 0; first < SIDE; first += strip) {
        load_strip(m, d, i, panel, first, p);
        __syncthreads();
        if (threadIdx.x < strip) substitute_forward(l, p + threadIdx.x);
        __syncthreads();
        for (int e = threadIdx.x; e < SIDE * strip / 4; e += THREADS) {
            const int k = e / (strip / 4), r = e % (strip / 4) * 4;
            put4(kept, k, i * SIDE + first + r, p + k * pitch + r);
        }
        __syncthreads();
        if (threadIdx.x < strip) substitute_back(l, p + threadIdx.x);
        __syncthreads();
        store_strip(m, d, i, panel, first, p);
        __syncthreads();
    }
}

/* Blocks share the blocks of all panels, one at a time. */
static __global__ void __launch_bounds__(THREADS, RESIDENT) run_panels(const __grid_constant__ abar__inversions s)
{
    __shared__ tiles shared;
    const int64_t count = abar__units_before(s, s.n, ABAR_UNITS_PANEL);
    for (int64_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        int64_t i = unit;
        const int f = abar__find_factor(s, ABAR_UNITS_PANEL, &i);
        const abar__inversion_state state = s.states[f];
        const abar__inverted item = s.items[f];
        if (state.failed) continue;
        if (i >= state.panel) i++;
        if (state.in_double)
            sweep_panel<double>(s, item, i, state.panel, &shared);
        else
            sweep_panel<float>(s, item, i, state.panel, &shared);
    }
}

/* ---- all tiles ---------------------------------------------------------------------------------------------------- */

/* A_ij -= Y_i Y_j^T, but in the panel itself, which is done. */
template <typename T>
__device__ static void sweep_tile(const abar__inversions &s, const abar__inverted &item, int64_t i, int64_t j, int64_t panel,
                                  tiles *shared)
{
    if (i == panel || j == panel) return;
    const matrix kept = panel_of(s, item);
    T *left = (T *)shared->left, *right = (T *)shared->right;
    for (int first = 0; first < SIDE; first += share<T>::depth) {
        load_rows(kept, first, i * SIDE, left);
        load_rows(kept, first, j * SIDE, right);
        __syncthreads();
        subtract(left, right, triangle_of(item), item.f.d, i, j);
        __syncthreads();
    }
}

__device__ static bool is_in_block(const abar__cuda_factor &f, int64_t row, int64_t column)
{
    return f.width == 0 || row / f.width == column / f.width;
}

/* What is added to the diagonal in this row: the ladder raises all of it. */
__device__ static double shift_at(const abar__cuda_factor &f, const abar__cuda_inversion &asked, int64_t row)
{
    if (f.width == 0) return asked.shift;
    const int64_t first = row / f.width * f.width, end = first + f.width < f.d ? first + f.width : f.d;
    double sum = 0.0;
    for (int64_t k = first; k < end; k++) sum += (double)__ldg(&f.average[k * (f.d + 1)]);
    return asked.shift + f.gamma * pow(10.0, asked.raised) * asked.scale * sum / (double)(end - first);
}

/* scale * average + shift * I; row i of the sums gets the part of the average's trace that diagonal tile i has. */
template <typename T>
__device__ static void load_tile(const abar__inversions &s, const abar__inverted &item, const abar__cuda_inversion &asked,
                                 int64_t i, int64_t j, tiles *shared)
{
    __shared__ double sums[32];
    const matrix m = triangle_of(item);
    const int64_t d = item.f.d;
    float *stage = (float *)shared->left; /* (columns, rows) */
    double trace = 0.0;
#pragma unroll 4
    for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e % SIDE, column = j * SIDE + e / SIDE;
        const float v = row < d && column <= row ? __ldg(&item.f.average[column * d + row]) : 0.0f;
        stage[e / SIDE * STAGE + e % SIDE] = v;
        if (row == column) trace += (double)v;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e / SIDE, column = j * SIDE + e % SIDE;
        if (row >= d || column > row) continue;
        const double own = is_in_block(item.f, row, column) ? (double)stage[e % SIDE * STAGE + e / SIDE] : 0.0;
        const double v = asked.scale * own + (row == column ? shift_at(item.f, asked, row) : 0.0);
        if (sizeof(T) > sizeof(float) && row == column) s.diagonal[row] = item.f.inverse[row * d + row];
        put(m, row, column, (T)v);
    }
    if (i != j) return;
    trace = block_sum(trace, sums);
    if (threadIdx.x == 0) ((double *)item.panel)[i] = trace;
}

/* The sum of squares of what tile (i, j) contributes to the full inverse, as floats. */
__device__ static void check_tile(const abar__inverted &item, int64_t i, int64_t j, int64_t t)
{
    __shared__ double sums[32];
    const int64_t d = item.f.d;
    double sum = 0.0;
#pragma unroll 4
    for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e / SIDE, column = j * SIDE + e % SIDE;
        const double v = row < d && column <= row ? (double)item.f.pending[row * d + column] : 0.0;
        sum += row == column ? v * v : 2.0 * v * v;
    }
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) ((double *)item.panel)[t] = sum;
}

/* The tile and its mirror image into the inverse (keep), and zeros into its place. */
__device__ static void leave_tile(const abar__inverted &item, int64_t i, int64_t j, bool keep, tiles *shared)
{
    const int64_t d = item.f.d;
    float *stage = (float *)shared->left; /* (rows, columns) */
    for (int first = threadIdx.x; first < SIDE * SIDE; first += 8 * THREADS) {
        float v[8];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int64_t row = i * SIDE + (first + n * THREADS) / SIDE, column = j * SIDE + (first + n * THREADS) % SIDE;
            v[n] = row < d && column <= row ? -item.f.pending[row * d + column] : 0.0f;
            if (item.f.rounded) v[n] = __uint_as_float(tf32_of(v[n]));
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int e = first + n * THREADS;
            const int64_t row = i * SIDE + e / SIDE, column = j * SIDE + e % SIDE;
            stage[e / SIDE * STAGE + e % SIDE] = v[n];
            if (row >= d || column > row) continue;
            if (keep) item.f.inverse[row * d + column] = v[n];
            item.f.pending[row * d + column] = 0.0f;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; keep && e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e % SIDE, column = j * SIDE + e / SIDE;
        if (row < d && column < row) item.f.inverse[column * d + row] = stage[e % SIDE * STAGE + e / SIDE];
    }
}

/* What was lent of the inverse, again the mirror image of what was not. */
__device__ static void restore_tile(const abar__inversions &s, const abar__inverted &item, int64_t i, int64_t j, tiles *shared)
{
    const int64_t d = item.f.d;
    float *stage = (float *)shared->left; /* (columns, rows) */
    for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e % SIDE, column = j * SIDE + e / SIDE;
        if (row >= d || column > row) continue;
        stage[e / SIDE * STAGE + e % SIDE] = row == column ? s.diagonal[row] : item.f.inverse[column * d + row];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
        const int64_t row = i * SIDE + e / SIDE, column = j * SIDE + e % SIDE;
        if (row < d && column <= row) item.f.inverse[row * d + column] = stage[e % SIDE * STAGE + e / SIDE];
    }
}

/* Blocks share the tiles of all triangles that have work, one at a time; but for those that are swept by pairs. */
static __global__ void __launch_bounds__(THREADS, RESIDENT) run_tiles(const __grid_constant__ abar__inversions s)
{
    __shared__ tiles shared;
    const int64_t count = abar__units_before(s, s.n, ABAR_UNITS_TILE);
    for (int64_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        int64_t t = unit, i, j;
        const int f = abar__find_factor(s, ABAR_UNITS_TILE, &t);
        abar__find_tile(t, &i, &j);
        const abar__inversion_state state = s.states[f]; /* copies: what is written elsewhere could be they */
        const abar__inverted item = s.items[f];
        if (state.phase == ABAR_INVERSION_SWEEP && !state.failed) {
            if (state.in_double)
                sweep_tile<double>(s, item, i, j, state.panel, &shared);
            else
                sweep_tile<float>(s, item, i, j, state.panel, &shared);
        } else if (state.phase == ABAR_INVERSION_LOAD) {
            if (state.in_double)
                load_tile<double>(s, item, s.asked[f], i, j, &shared);
            else
                load_tile<float>(s, item, s.asked[f], i, j, &shared);
        } else if (state.phase == ABAR_INVERSION_CHECK) {
            check_tile(item, i, j, t);
        } else if (state.phase == ABAR_INVERSION_STORE || state.phase == ABAR_INVERSION_CLEAR) {
            leave_tile(item, i, j, state.phase == ABAR_INVERSION_STORE, &shared);
        } else if (state.phase == ABAR_INVERSION_YIELD) {
            restore_tile(s, item, i, j, &shared);
        }
        __syncthreads(); /* before the next tile comes to where this one lay */
    }
}

extern "C" void abar__cuda_sweep_round(abar_device *dev, const abar__inversions *s)
{
    const dim3 all((unsigned)(abar__cuda_of(dev)->processors * RESIDENT));
    abar__cuda_launch(dev, run_pivots, dim3((unsigned)s->n), dim3(PIVOTERS), 0, *s);
    abar__cuda_launch(dev, run_panels, all, dim3(THREADS), 0, *s);
    abar__cuda_launch(dev, run_tiles, all, dim3(THREADS), 0, *s);
    if (s->pairs) abar__cuda_sweep_pairs(dev, s);
}
