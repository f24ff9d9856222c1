/* The rotations of a round (spectra.cu): each pair of pieces' 64 x 64 matrix is in shared memory, where all its elements off
 * the diagonal are rotated away once, 32 at a time. */
#include "device/cuda/factors/spectra_impl.h"

enum { SOLVERS = 512, PITCH = TILE + 1 };

#define SOLVE_BYTES ((2 * TILE * PITCH + TILE) * sizeof(double) + TILE * sizeof(int))

typedef struct solver {
    double (*a)[PITCH], (*j)[PITCH]; /* (TILE, TILE) */
    double *cosine, *sine;           /* (PIECE) */
    int *first, *second;             /* (PIECE) */
} solver;

__device__ static solver solver_in(double *pool)
{
    solver w;
    w.a = (double(*)[PITCH])pool;
    w.j = w.a + TILE;
    w.cosine = pool + 2 * TILE * PITCH;
    w.sine = w.cosine + PIECE;
    w.first = (int *)(w.sine + PIECE);
    w.second = w.first + PIECE;
    return w;
}

/* One warp: the rotation of pair t that clears element (p, q). */
__device__ static void find_rotation(const solver &w, int round, int t)
{
    int p, q;
    double c = 1.0, s = 0.0;
    meet(TILE, round, t, &p, &q);
    const double off = w.a[p][q];
    if (off != 0.0) {
        const double theta = (w.a[q][q] - w.a[p][p]) / (2.0 * off);
        const double tangent = (theta >= 0.0 ? 1.0 : -1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
        c = 1.0 / sqrt(tangent * tangent + 1.0);
        s = tangent * c;
    }
    w.cosine[t] = c;
    w.sine[t] = s;
    w.first[t] = p;
    w.second[t] = q;
}

__device__ static void rotate(double *x, double *y, double c, double s)
{
    const double u = *x, v = *y;
    *x = c * u - s * v;
    *y = s * u + c * v;
}

/* Every 2 x 2 piece of A belongs to one thread: its rows turn by rotation t, its columns by u. */
__device__ static void rotate_matrix(const solver &w)
{
    for (int e = (int)threadIdx.x; e < PIECE * PIECE; e += SOLVERS) {
        const int t = e / PIECE, u = e % PIECE, p = w.first[t], q = w.second[t], k = w.first[u], l = w.second[u];
        double pk = w.a[p][k], pl = w.a[p][l], qk = w.a[q][k], ql = w.a[q][l];
        rotate(&pk, &qk, w.cosine[t], w.sine[t]);
        rotate(&pl, &ql, w.cosine[t], w.sine[t]);
        rotate(&pk, &pl, w.cosine[u], w.sine[u]);
        rotate(&qk, &ql, w.cosine[u], w.sine[u]);
        w.a[p][k] = pk;
        w.a[q][l] = ql;
        w.a[p][l] = t == u ? 0.0 : pl;
        w.a[q][k] = t == u ? 0.0 : qk;
    }
    for (int e = (int)threadIdx.x; e < PIECE * TILE; e += SOLVERS) {
        const int t = e / TILE, k = e % TILE;
        rotate(&w.j[w.first[t]][k], &w.j[w.second[t]][k], w.cosine[t], w.sine[t]);
    }
}

static __global__ void __launch_bounds__(SOLVERS) solve_pairs(const __grid_constant__ all_spectra s)
{
    extern __shared__ double solve_pool[];
    __shared__ double shared[32];
    const int32_t at = s.waves[s.now->wave].pair + (int32_t)blockIdx.x;
    if (at >= s.waves[s.now->wave + 1].pair) return;
    const pair own = s.pairs[at];
    const spectrum f = s.of[own.spectrum];
    const spectrum_state state = s.states[own.spectrum];
    if (state.phase != ROTATE) return;
    const spectrum_work w = work_of(f);
    const rows_of_pair rows = rows_of(f, state.round, own.number);
    const solver x = solver_in(solve_pool);
    double off = 0.0, diagonal = 0.0;
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += SOLVERS) {
        const int i = e / TILE, j = e % TILE;
        x.j[i][j] = i == j ? 1.0 : 0.0;
        if (j > i) continue;
        const double v = lower_at(w, row_at(rows, i), row_at(rows, j));
        x.a[i][j] = x.a[j][i] = v;
        if (i == j)
            diagonal += v * v;
        else if (state.round == 0 || i / PIECE != j / PIECE)
            off += v * v;
    }
    off = block_sum(off, shared);
    diagonal = block_sum(diagonal, shared);
    if (threadIdx.x == 0) s.partial[2 * at] = off;
    if (threadIdx.x == 0) s.partial[2 * at + 1] = diagonal;
    __syncthreads();
    for (int round = 0; round < TILE - 1; round++) {
        if (threadIdx.x < PIECE) find_rotation(x, round, (int)threadIdx.x);
        __syncthreads();
        rotate_matrix(x);
        __syncthreads();
    }
    double *turn = w.turns + (int64_t)own.number * TILE * TILE;
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += SOLVERS) turn[e] = x.j[e / TILE][e % TILE];
}

extern "C" abar_status abar__cuda_prepare_solve(abar_device *dev)
{
    CUDA_TRY(dev, abar__cuda_allow_shared(dev, (const void *)solve_pairs));
    return ABAR_OK;
}

extern "C" void abar__cuda_solve_pairs(abar_device *dev, const all_spectra *s, int pairs)
{
    abar__cuda_launch(dev, solve_pairs, dim3((unsigned)pairs), dim3(SOLVERS), SOLVE_BYTES, *s);
}
