/* What the maps of a step have in common, whatever their kind: a block of ABAR_MAP_THREADS keeps one map, all its threads work
 * on one copy of its state, and thread 0 writes that back. As curvature.c does for the other devices. */
#ifndef ABAR_CUDA_CORE_MAPS_H
#define ABAR_CUDA_CORE_MAPS_H

#include "device/cuda/step/program.h"

#include <math.h>
#include <string.h>

#define ABAR_MAP_THREADS 256
#define ABAR_MEANS 128 /* maps of one launch: their factors travel as an argument */

/* What turns the pending sums of average[0], average[1] and the number into means: (maps, 3). */
typedef struct abar__cuda_means {
    double factor[3 * ABAR_MEANS];
} abar__cuda_means;

/* Maps of the launch that begins with this one, and their factors; to_mean NULL: none. */
static inline int abar__cuda_maps_from(const abar__cuda_maps *m, int first)
{
    return m->n - first < ABAR_MEANS ? m->n - first : ABAR_MEANS;
}

static inline abar__cuda_means abar__cuda_means_of(const double *to_mean, int first, int n)
{
    abar__cuda_means means = {};
    if (to_mean) memcpy(means.factor, to_mean + 3 * first, 3 * (size_t)n * sizeof *to_mean);
    return means;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------ */

/* What one thread sees of a vector's pending sum; squares: core_factors.cu. */
__device__ static inline bool vector_is_finite(const abar__kept_average &a, double scale)
{
    const float *x = (const float *)a.pending;
    bool fine = true;
    for (int64_t i = threadIdx.x; !a.square && i < a.n; i += ABAR_MAP_THREADS)
        fine = fine && isfinite(x[i]) && isfinite((float)(scale * (double)x[i]));
    return fine;
}

__device__ static inline bool vectors_are_finite(const abar__kept_map &m, const double factor[3])
{
    const double number = m.pending_number ? *m.pending_number * factor[2] : 0.0;
    return vector_is_finite(m.average[0], factor[0]) && vector_is_finite(m.average[1], factor[1]) && isfinite(number);
}

__device__ static inline void forget_vectors(const abar__kept_map &m)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = threadIdx.x; !m.average[k].square && i < m.average[k].n; i += ABAR_MAP_THREADS)
            ((float *)m.average[k].pending)[i] = 0.0f;
    if (threadIdx.x == 0 && m.pending_number) *m.pending_number = 0.0;
}

/* average = beta * average + add * pending; pending = 0 */
__device__ static inline void commit_vector(const abar__kept_average &a, double beta, double add)
{
    float *average = (float *)a.average, *pending = (float *)a.pending;
    for (int64_t i = threadIdx.x; !a.square && i < a.n; i += ABAR_MAP_THREADS) {
        average[i] = (float)(beta * (double)average[i] + add * (double)pending[i]);
        pending[i] = 0.0f;
    }
}

/* Commits the vectors and the number where all of the map's sums are fine, or forgets them; squares go the same way before. All
 * threads of the block come here, having read nothing of the pending number since a barrier. Returns whether. */
__device__ static inline bool commit_vectors(const abar__kept_map &m, abar__map_state &s, const double factor[3], double beta,
                                             bool fine)
{
    const double number = m.pending_number ? *m.pending_number * factor[2] : 0.0;
    if (!__syncthreads_and(fine)) { /* all threads have read the number */
        s.count[ABAR_COUNT_DROPPED]++;
        forget_vectors(m);
        return false;
    }
    commit_vector(m.average[0], beta, (1.0 - beta) * factor[0]);
    commit_vector(m.average[1], beta, (1.0 - beta) * factor[1]);
    if (m.pending_number) {
        s.real[ABAR_REAL_NUMBER] = beta * s.real[ABAR_REAL_NUMBER] + (1.0 - beta) * number;
        if (threadIdx.x == 0) *m.pending_number = 0.0;
    }
    s.count[ABAR_COUNT_COMMITS]++;
    return true;
}

__device__ static inline bool was_observed(const double factor[3])
{
    return factor[0] != 0.0 || factor[1] != 0.0 || factor[2] != 0.0;
}

/* ---- when --------------------------------------------------------------------------------------------------------- */

__device__ static inline bool on_schedule(const abar__cuda_schedule &c, int64_t k, int64_t number)
{
    const int64_t shift = c.spread ? number * c.tinv / c.numbers : 0;
    return k == 0 || (k - shift) % c.tinv == 0;
}

/* Whether to refresh now; what cannot be derived yet stays due. */
__device__ static inline bool refreshes(const abar__cuda_schedule &c, const abar__kept_map &m, abar__map_state &s, int64_t k,
                                        bool committed)
{
    const bool wanted = c.every_commit ? committed : on_schedule(c, k, m.number) || s.count[ABAR_COUNT_DUE];
    if (!wanted) return false;
    const bool possible = s.count[ABAR_COUNT_COMMITS] > 0 && (!m.fixed || s.count[ABAR_COUNT_CALIBRATED]);
    s.count[ABAR_COUNT_DUE] = !possible;
    return possible;
}

/* In a step that is skipped. */
__device__ static inline void skip_map(const abar__cuda_schedule &c, const abar__kept_map &m, abar__map_state *state, int64_t k)
{
    forget_vectors(m);
    if (threadIdx.x == 0 && !c.every_commit && on_schedule(c, k, m.number)) state->count[ABAR_COUNT_DUE] = 1;
}

/* What the averages are multiplied by to be read. */
__device__ static inline double unbias_of(const abar__map_state &s, double beta)
{
    return 1.0 / (1.0 - pow(beta, (double)s.count[ABAR_COUNT_COMMITS]));
}

/* r = 1 / (scale * average[1] + shift). */
__device__ static inline void derive_rows(const abar__kept_map &m, double scale, double shift)
{
    const float *p = (const float *)m.average[1].average;
    for (int64_t i = threadIdx.x; m.r && i < m.out; i += ABAR_MAP_THREADS)
        ((float *)m.r)[i] = (float)(1.0 / (scale * (double)p[i] + shift));
}

/* Whether float32 could not hold what is at most bound times the gradient. */
__device__ static inline bool would_overflow(const abar__cuda_live &l, double bound)
{
    return !(fmax(bound, 1.0) * l.norm * fmax(l.scale, 1.0) < 1e36);
}

/* methods.md section 7, from the sum of <G^, G> as gradients lie in memory. */
__device__ static inline double kl_scale_of(const abar__cuda_schedule &c, const abar__cuda_live &l, double sum)
{
    sum *= l.scale * l.scale * c.base_lr * c.base_lr;
    return c.kl_clip > 0.0 && sum > 0.0 ? fmin(1.0, sqrt(c.kl_clip / sum)) : 1.0;
}

/* The KL clip of a step, by one block after the forms of all maps: sum is what this thread has of the sum of <G^, G>. Maps
 * without a valid refresh are left alone. */
__device__ static inline void clip_forms(const abar__cuda_maps &m, const abar__cuda_live &l, double sum, double *shared)
{
    const double kl_scale = kl_scale_of(m.schedule, l, block_sum(sum, shared));
    for (int at = (int)threadIdx.x; at < m.n; at += ABAR_MAP_THREADS)
        if (m.states[at].count[ABAR_COUNT_READY]) m.forms[at].scale = (float)(kl_scale * (double)m.forms[at].scale);
    if (threadIdx.x == 0) m.now->state.kl_scale = kl_scale;
}

#endif
