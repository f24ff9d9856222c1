/* What the maps of a step have in common, whatever preconditions them: a block of ABAR_MAP_THREADS keeps one map, all its
 * threads work on one copy of its state, and thread 0 writes that back. */
#ifndef ABAR_CUDA_MAPS_H
#define ABAR_CUDA_MAPS_H

#include "device/cuda/step/step.h"

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

/* A vector that is committed; n is 0 where the plan has none. */
__device__ static inline bool is_vector(const abar__running_average &a) { return !a.square && !a.calibrated; }

/* Where the plan's number is pending; NULL: it has none, or one that is never committed. */
__device__ static inline double *pending_number(const abar__plan &m)
{
    return m.mean_number.calibrated ? nullptr : (double *)m.mean_number.pending;
}

/* What one thread sees of a vector's pending sum; squares: matrices.cu. */
__device__ static inline bool vector_is_finite(const abar__running_average &a, double scale)
{
    const float *x = (const float *)a.pending;
    bool fine = true;
    for (int64_t i = threadIdx.x; is_vector(a) && i < a.n; i += ABAR_MAP_THREADS)
        fine = fine && isfinite(x[i]) && isfinite((float)(scale * (double)x[i]));
    return fine;
}

__device__ static inline bool vectors_are_finite(const abar__plan &m, const double factor[3])
{
    const double *pending = pending_number(m), number = pending ? *pending * factor[2] : 0.0;
    return vector_is_finite(m.average[0], factor[0]) && vector_is_finite(m.average[1], factor[1]) && isfinite(number);
}

__device__ static inline void forget_vectors(const abar__plan &m)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = threadIdx.x; is_vector(m.average[k]) && i < m.average[k].n; i += ABAR_MAP_THREADS)
            ((float *)m.average[k].pending)[i] = 0.0f;
    if (threadIdx.x == 0 && pending_number(m)) *pending_number(m) = 0.0;
}

/* average = beta * average + add * pending; pending = 0 */
__device__ static inline void commit_vector(const abar__running_average &a, double beta, double add)
{
    float *average = (float *)a.average, *pending = (float *)a.pending;
    for (int64_t i = threadIdx.x; is_vector(a) && i < a.n; i += ABAR_MAP_THREADS) {
        average[i] = (float)(beta * (double)average[i] + add * (double)pending[i]);
        pending[i] = 0.0f;
    }
}

/* Commits the vectors and the number where all of the map's sums are fine, or forgets them; squares go the same way before. All
 * threads of the block come here, having read nothing of the pending number since a barrier. Returns whether. */
__device__ static inline bool commit_vectors(const abar__plan &m, abar__map_state &s, const double factor[3], double beta,
                                             bool fine)
{
    double *pending = pending_number(m);
    const double number = pending ? *pending * factor[2] : 0.0;
    if (!__syncthreads_and(fine)) { /* all threads have read the number */
        s.count[ABAR_COUNT_DROPPED]++;
        forget_vectors(m);
        return false;
    }
    commit_vector(m.average[0], beta, (1.0 - beta) * factor[0]);
    commit_vector(m.average[1], beta, (1.0 - beta) * factor[1]);
    if (pending) {
        s.real[ABAR_REAL_NUMBER] = beta * s.real[ABAR_REAL_NUMBER] + (1.0 - beta) * number;
        if (threadIdx.x == 0) *pending = 0.0;
    }
    s.count[ABAR_COUNT_COMMITS]++;
    return true;
}

__device__ static inline bool was_observed(const double factor[3])
{
    return factor[0] != 0.0 || factor[1] != 0.0 || factor[2] != 0.0;
}

/* ---- when --------------------------------------------------------------------------------------------------------- */

__device__ static inline bool refreshes(const abar__cadence &c, const abar__plan &m, abar__map_state &s, int64_t k,
                                        bool committed)
{
    return abar__refreshes(&c, &s, m.number, abar__plan_is_calibrated(&m), k, committed);
}

/* In a step that is skipped. */
__device__ static inline void skip_map(const abar__cadence &c, const abar__plan &m, abar__map_state *state, int64_t k)
{
    forget_vectors(m);
    if (threadIdx.x == 0 && abar__due_when_skipped(&c, k, m.number)) state->count[ABAR_COUNT_DUE] = 1;
}

__device__ static inline double unbias_of(const abar__plan &m, const abar__map_state &s, double beta)
{
    return abar__plan_unbias(&m, beta, s.count[ABAR_COUNT_COMMITS]);
}

/* ---- deriving ------------------------------------------------------------------------------------------------------- */

/* Mean of the diagonal of an average, or of a vector. */
__device__ static inline double mean_of(const abar__running_average &a, double *shared)
{
    const float *x = (const float *)a.average;
    const int64_t step = a.square ? a.n + 1 : 1;
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < a.n; i += ABAR_MAP_THREADS) sum += (double)x[i * step];
    return block_sum(sum, shared) / (double)a.n;
}

__device__ static inline double square_of(const abar__running_average &a, double *shared)
{
    const float *x = (const float *)a.average;
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < a.n; i += ABAR_MAP_THREADS) sum += (double)x[i] * (double)x[i];
    return block_sum(sum, shared);
}

/* The plan's scalars, (ABAR_PLAN_SCALARS), but for what was calibrated before step 0: by all threads, the same for each. */
__device__ static inline void find_scalars(const abar__plan &m, const abar__map_state &s, double unbias, double *v,
                                           double *shared)
{
    for (int i = 0; i < m.n_scalars; i++) {
        const abar__scalar_op op = m.scalar[i];
        if (op.calibrated) continue;
        switch (op.kind) {
        case ABAR_SCALAR_VALUE: v[i] = op.value; break;
        case ABAR_SCALAR_MEAN: v[i] = unbias * mean_of(m.average[op.a], shared); break;
        case ABAR_SCALAR_SQUARE: v[i] = unbias * unbias * square_of(m.average[op.a], shared); break;
        case ABAR_SCALAR_NUMBER: v[i] = unbias * s.real[ABAR_REAL_NUMBER]; break;
        default: v[i] = abar__scalar_combine(&op, v);
        }
    }
}

/* The plan's vectors, and what the map reports, likewise. */
__device__ static inline void derive_vectors(const abar__plan &m, abar__map_state &s, double unbias, const double *v)
{
    for (int j = 0; j < m.n_derived; j++) {
        const abar__derived_tensor d = m.derived[j];
        if (d.calibrated || (d.kind != ABAR_DERIVED_VECTOR && d.kind != ABAR_DERIVED_RECIPROCAL)) continue;
        const float *x = (const float *)m.average[d.average].average;
        const double scale = unbias * abar__scalar_or(v, d.scale, 1.0), shift = abar__scalar_or(v, d.shift, 0.0);
        const bool reciprocal = d.kind == ABAR_DERIVED_RECIPROCAL;
        for (int64_t i = threadIdx.x; i < d.n; i += ABAR_MAP_THREADS) {
            const double y = scale * (double)x[i];
            ((float *)d.data)[i] = (float)(reciprocal ? 1.0 / (y + shift) : y);
        }
    }
    for (int i = 0; i < ABAR_REALS; i++)
        if (m.report[i] >= 0 && !m.scalar[m.report[i]].calibrated) s.real[i] = v[m.report[i]];
}

/* Whether float32 could not hold what is at most bound times the gradient. */
__device__ static inline bool would_overflow(const abar__cuda_live &l, double bound)
{
    return abar__would_overflow(bound, l.norm, l.scale, 1e36);
}

/* The KL clip of a step, by one block after the forms of all maps: sum is what this thread has of the sum of <G^, G>. Maps
 * without a valid refresh are left alone. */
__device__ static inline void clip_forms(const abar__cuda_maps &m, const abar__cuda_live &l, double sum, double *shared)
{
    const double kl_scale = abar__kl_scale(&m.cadence, block_sum(sum, shared), l.scale);
    for (int at = (int)threadIdx.x; at < m.n; at += ABAR_MAP_THREADS)
        if (m.states[at].count[ABAR_COUNT_READY]) m.forms[at].scale = (float)(kl_scale * (double)m.forms[at].scale);
    if (threadIdx.x == 0) m.now->state.kl_scale = kl_scale;
}

#endif
