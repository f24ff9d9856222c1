/* What spectra.cu, which decides, and spectra_solve.cu, which finds rotations, share: factors, their state, and who meets whom.
 */
#ifndef ABAR_CUDA_FACTORS_SPECTRA_IMPL_H
#define ABAR_CUDA_FACTORS_SPECTRA_IMPL_H

#include "device/cuda/factors/double_tiles.h"
#include "device/cuda/factors/spectra.h"

enum { TILE = DOUBLE_TILE, PIECE = TILE / 2 };

typedef enum phase {
    IDLE,
    LOAD,   /* A, and the identity into V */
    ROTATE, /* a round */
    VALUES, /* the diagonal of A */
    POWERS, /* of the values */
    STORE   /* the basis, or the root */
} phase;

typedef struct spectrum {
    abar__cuda_spectrum f;
    int32_t wave, first_pair;
    int32_t tiles; /* along a side: pairs of a round */
    double *memory;
} spectrum;

typedef struct spectrum_state {
    int32_t phase, round, sweep, failed;
    double off, diagonal; /* squares that this sweep has met */
} spectrum_state;

typedef struct pair {
    int32_t spectrum, number;
} pair;

typedef struct tile {
    int32_t spectrum, down, left;
    bool of_v; /* else of A, and left <= down */
} tile;

/* Where a wave begins. */
typedef struct wave {
    int32_t spectrum, pair, tile;
} wave;

typedef struct control {
    int32_t more, wave;
} control;

/* Device memory. */
typedef struct all_spectra {
    int n, n_waves;
    const spectrum *of;
    const pair *pairs;
    const tile *tiles;
    const wave *waves; /* (n_waves + 1) */
    spectrum_state *states;
    double *partial; /* (pairs, 2): squares off the diagonal, and on it; how many powers are not finite */
    control *now;
    abar__cuda_root_call *call;
} all_spectra;

/* ---- a factor's workspace ------------------------------------------------------------------------------------------------ */

typedef struct spectrum_work {
    int64_t n, pitch;
    double *a, *v;           /* (pitch, pitch) */
    double *turns;           /* (tiles, TILE, TILE): J of every pair */
    double *values, *powers; /* (pitch) */
} spectrum_work;

__device__ static inline spectrum_work work_of(const spectrum &f)
{
    const int64_t pitch = (int64_t)f.tiles * TILE;
    double *a = f.memory, *v = a + pitch * pitch, *turns = v + pitch * pitch, *values = turns + pitch * TILE;
    return {f.f.root.n, pitch, a, v, turns, values, values + pitch};
}

__device__ static inline double &lower_at(const spectrum_work &w, int64_t i, int64_t j)
{
    return w.a[i >= j ? i * w.pitch + j : j * w.pitch + i];
}

/* ---- who meets whom --------------------------------------------------------------------------------------------------------
 */

/* Pair t of round r when m players (m even) meet everyone once in m - 1 rounds; smaller first. */
__device__ static inline void meet(int m, int r, int t, int *p, int *q)
{
    const int a = t == 0 ? m - 1 : (r + t) % (m - 1), b = t == 0 ? r : (r - t + m - 1) % (m - 1);
    *p = min(a, b);
    *q = max(a, b);
}

/* The rows of a pair in this round: 32 from each. */
typedef struct rows_of_pair {
    int piece[2];
} rows_of_pair;

__device__ static inline rows_of_pair rows_of(const spectrum &f, int round, int number)
{
    rows_of_pair r;
    meet(2 * f.tiles, round, number, &r.piece[0], &r.piece[1]);
    return r;
}

__device__ static inline int64_t row_at(const rows_of_pair &r, int k)
{
    return (int64_t)r.piece[k / PIECE] * PIECE + k % PIECE;
}

extern "C" {
abar_status abar__cuda_prepare_solve(abar_device *dev); /* before the first launch */
/* Block b: pair b of the wave, of at most so many. Leaves J, and the squares that it found: of elements that no other pair of
 * the sweep has. */
void abar__cuda_solve_pairs(abar_device *dev, const all_spectra *s, int pairs);
}

#endif
