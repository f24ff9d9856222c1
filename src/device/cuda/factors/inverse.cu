/* Which factors are inverted, and what becomes of attempts that fail (methods.md section 9): the phases of inverse.h, the
 * ladder of host/derive.c's climb() in device memory, and rounds repeated by the host, or within a recording by the device. */
#include "device/cuda/factors/inverse.h"
#include "device/cuda/factors/repeat.h"
#include "device/cuda/stats/stats.h"

#include <math.h>
#include <string.h>

#define THREADS 1024

struct abar__cuda_inverter {
    abar__inversions s;
    bool eigen; /* whether a factor has values */
    char *memory;
    size_t bytes;
    cudaStream_t body; /* into which a round is recorded */
};

/* ---- what a round is made of -------------------------------------------------------------------------------------- */

/* The units of factor f with work in the coming round, each kind where starts has it. */
__device__ static int64_t units_of(const abar__inversions &s, int f)
{
    const abar__inversion_state &state = s.states[f];
    const int64_t panels = abar__panels(s.items[f].f.d), tiles = panels * (panels + 1) / 2, two = (panels + 1) / 2;
    if (s.items[f].f.values) return 0; /* eigen.cu has its own */
    switch (state.phase) {
    case ABAR_INVERSION_SWEEP:
        if (!state.in_double && abar__in_pairs(s.items[f].f))
            return (panels - 1) << ABAR_UNITS_PANEL | two * (two + 1) << ABAR_UNITS_PAIR;
        return (panels - 1) << ABAR_UNITS_PANEL | tiles << ABAR_UNITS_TILE;
    case ABAR_INVERSION_LOAD:
    case ABAR_INVERSION_CHECK:
    case ABAR_INVERSION_STORE:
    case ABAR_INVERSION_YIELD:
    case ABAR_INVERSION_CLEAR: return tiles << ABAR_UNITS_TILE;
    default: return 0;
    }
}

/* The block writes s.starts: sums of units over the factors before. */
__device__ static void add_units(const abar__inversions &s)
{
    __shared__ int64_t sums[THREADS];
    int64_t before = 0;
    for (int first = 0; first < s.n; first += THREADS) {
        const int f = first + (int)threadIdx.x;
        const int64_t own = f < s.n ? units_of(s, f) : 0;
        sums[threadIdx.x] = own;
        __syncthreads();
        for (unsigned step = 1; step < THREADS; step *= 2) {
            const int64_t other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        if (f < s.n) s.starts[f] = before + sums[threadIdx.x] - own;
        before += sums[THREADS - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) s.starts[s.n] = before;
}

/* The block plans the next round, if there is one. more: whether this thread knows of a factor that is not idle. */
__device__ static void plan(const abar__inversions &s, bool more, abar__cuda_again again)
{
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (more) any = 1;
    __syncthreads();
    if (any) add_units(s);
    if (threadIdx.x != 0) return;
    abar__cuda_say(&s.control->more, any, again);
}

/* One block: every factor whose inversion is wanted begins. What the others were told of an earlier one is over. */
static __global__ void __launch_bounds__(THREADS) begin(const __grid_constant__ abar__inversions s, abar__cuda_again again)
{
    bool more = false;
    if (threadIdx.x == 0) s.control->holder = -1;
    for (int f = (int)threadIdx.x; f < s.n; f += THREADS) {
        abar__cuda_inversion *asked = &s.asked[f];
        abar__inversion_state state = {};
        const int partner = s.items[f].f.partner;
        state.partner = partner >= 0 && s.asked[partner].wanted ? partner : -1;
        asked->valid = asked->raised = asked->doubled = 0;
        if (asked->wanted) state.phase = s.items[f].f.values ? ABAR_INVERSION_EIGEN : ABAR_INVERSION_LOAD;
        if (s.double_first) state.in_double = 1; /* there is but one */
        s.states[f] = state;
        more = more || asked->wanted;
    }
    plan(s, more, again);
}

/* ---- the ladder --------------------------------------------------------------------------------------------------- */

__device__ static void end(abar__cuda_inversion *asked, abar__inversion_state *state, bool valid)
{
    asked->valid = valid;
    asked->wanted = 0;
    state->phase = ABAR_INVERSION_IDLE;
}

/* The result is fine. */
__device__ static void be_ready(abar__inversion_state *state)
{
    state->phase = state->partner < 0 ? ABAR_INVERSION_STORE : ABAR_INVERSION_READY;
}

/* An attempt has failed: with ten times the shift, then in double precision, then not at all. */
__device__ static void fall(const abar__inversions &s, abar__cuda_inversion *asked, abar__inversion_state *state, int64_t d)
{
    state->failed = 0;
    state->panel = 0;
    if (!state->in_double && asked->raised < s.raises) {
        asked->raised++;
        asked->shift = fmax(10.0 * asked->shift, 1e-8 * asked->scale * state->trace / (double)d);
        state->phase = ABAR_INVERSION_LOAD;
    } else if (!state->in_double && s.double_last) {
        asked->doubled = 1;
        state->in_double = 1;
        state->phase = ABAR_INVERSION_WAIT;
    } else {
        state->failed = 1;
        state->phase = state->in_double ? ABAR_INVERSION_YIELD : ABAR_INVERSION_CLEAR;
    }
}

/* The trace of what is inverted, shifts of diagonal blocks included. */
__device__ static double largest_of(const abar__cuda_factor &f, const abar__cuda_inversion &asked, double trace)
{
    const double own = f.width ? f.gamma * pow(10.0, asked.raised) : 0.0;
    return asked.scale * trace * (1.0 + own) + asked.shift * (double)f.d;
}

/* One thread takes factor f into its next phase. sum: of its partial sums, where the last one left any. */
__device__ static void follow(const abar__inversions &s, int f, double sum)
{
    const int64_t d = s.items[f].f.d;
    abar__cuda_inversion *asked = &s.asked[f];
    abar__inversion_state *state = &s.states[f];
    switch (state->phase) {
    case ABAR_INVERSION_LOAD:
        state->trace = sum;
        state->phase = ABAR_INVERSION_SWEEP;
        break;
    case ABAR_INVERSION_SWEEP:
        if (state->failed)
            fall(s, asked, state, d);
        else if (++state->panel == abar__panels(d))
            state->phase = ABAR_INVERSION_CHECK;
        break;
    case ABAR_INVERSION_CHECK:
        state->norm = sqrt(sum);
        if (!isfinite(sum))
            fall(s, asked, state, d);
        else if (state->in_double)
            state->phase = ABAR_INVERSION_YIELD;
        else
            be_ready(state);
        break;
    case ABAR_INVERSION_YIELD: state->in_double = 0; [[fallthrough]];
    case ABAR_INVERSION_EIGEN:
        if (state->failed)
            state->phase = ABAR_INVERSION_CLEAR;
        else
            be_ready(state);
        break;
    case ABAR_INVERSION_STORE:
        /* the largest eigenvalue is at most the trace, that of the inverse at most its Frobenius norm */
        if (!s.items[f].f.values) asked->condition = largest_of(s.items[f].f, *asked, state->trace) * state->norm;
        end(asked, state, true);
        break;
    case ABAR_INVERSION_CLEAR: end(asked, state, false); break;
    default: break;
    }
}

/* A warp adds up, in a fixed order, what the tiles of factor f left: a trace or a sum of squares. */
__device__ static double partial_sum(const abar__inversions &s, int f, int32_t phase)
{
    const int64_t panels = abar__panels(s.items[f].f.d);
    const int64_t n = phase == ABAR_INVERSION_LOAD ? panels : phase == ABAR_INVERSION_CHECK ? panels * (panels + 1) / 2 : 0;
    const double *partial = (const double *)s.items[f].panel;
    double sum = 0.0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) sum += partial[i];
    return warp_sum(sum);
}

__device__ static bool has_nothing(const abar__inversion_state &state)
{
    return state.phase == ABAR_INVERSION_CLEAR || state.phase == ABAR_INVERSION_IDLE;
}

/* One thread: both of them store what they have, once both have something, or neither does. */
__device__ static void join(abar__inversion_state *a, abar__inversion_state *b)
{
    const bool a_ready = a->phase == ABAR_INVERSION_READY, b_ready = b->phase == ABAR_INVERSION_READY;
    if (a_ready && b_ready) a->phase = b->phase = ABAR_INVERSION_STORE;
    if (a_ready && has_nothing(*b)) a->phase = ABAR_INVERSION_CLEAR;
    if (b_ready && has_nothing(*a)) b->phase = ABAR_INVERSION_CLEAR;
}

/* One block, a warp per factor: everything takes its next phase. */
static __global__ void __launch_bounds__(THREADS) advance(const __grid_constant__ abar__inversions s, abar__cuda_again again)
{
    __shared__ int waiting; /* the first that waits for its turn */
    bool more = false;
    if (threadIdx.x == 0) waiting = s.n;
    __syncthreads();
    for (int f = (int)threadIdx.x / 32; f < s.n; f += THREADS / 32) {
        const int32_t phase = s.states[f].phase;
        const double sum = partial_sum(s, f, phase);
        if (threadIdx.x % 32 != 0 || phase == ABAR_INVERSION_IDLE) continue;
        follow(s, f, sum);
        if (s.states[f].phase == ABAR_INVERSION_WAIT) atomicMin(&waiting, f);
        if (!s.states[f].in_double && s.control->holder == f) s.control->holder = -1;
        more = more || s.states[f].phase != ABAR_INVERSION_IDLE;
    }
    __syncthreads();
    if (threadIdx.x == 0 && waiting < s.n && s.control->holder < 0) {
        s.control->holder = waiting;
        s.states[waiting].phase = ABAR_INVERSION_LOAD;
    }
    __syncthreads();
    for (int f = (int)threadIdx.x; f < s.n; f += THREADS)
        if (s.states[f].partner > f) join(&s.states[f], &s.states[s.states[f].partner]);
    __syncthreads();
    plan(s, more, again);
}

/* ---- repeating ---------------------------------------------------------------------------------------------------- */

static void launch_begin(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_inverter *v = (const abar__cuda_inverter *)user;
    abar__cuda_launch(dev, begin, dim3(1), dim3(THREADS), 0, v->s, again);
}

static void launch_round(abar_device *dev, const void *user, abar__cuda_again again)
{
    const abar__cuda_inverter *v = (const abar__cuda_inverter *)user;
    if (v->eigen) abar__cuda_eigen_round(dev, &v->s);
    abar__cuda_sweep_round(dev, &v->s);
    abar__cuda_launch(dev, advance, dim3(1), dim3(THREADS), 0, v->s, again);
}

static abar__cuda_rounds rounds_of(const abar__cuda_inverter *v)
{
    return {v, launch_begin, launch_round, &v->s.control->more, v->body};
}

extern "C" abar_status abar__cuda_invert_wanted(abar_device *dev, abar__cuda_inverter *v)
{
    if (v->s.n == 0) return ABAR_OK;
    const abar__cuda_rounds rounds = rounds_of(v);
    return abar__cuda_repeat(dev, &rounds);
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* The next n elements behind the first *at bytes. base NULL: only counts. */
template <typename T> static T *place(char *base, size_t *at, int64_t n)
{
    T *out = base ? (T *)(base + *at) : NULL;
    *at = abar__round_up(*at + (size_t)n * sizeof(T), 256);
    return out;
}

/* Hands out what lasts from call to call, or only counts it; returns the bytes. */
static size_t place_lasting(abar__inversions *s, char *base)
{
    size_t at = 0;
    s->items = place<abar__inverted>(base, &at, s->n);
    s->states = place<abar__inversion_state>(base, &at, s->n);
    s->starts = place<int64_t>(base, &at, s->n + 1);
    s->control = place<abar__inversion_control>(base, &at, 1);
    return at;
}

/* Likewise the workspace to work in. items: (n) host memory, NULL: only counts. */
static size_t place_workspace(abar_device *dev, abar__inversions *s, const abar__cuda_factor *factors, abar__inverted *items,
                              char *base)
{
    size_t at = 0;
    int64_t most = 0;
    for (int i = 0; i < s->n; i++) {
        const int64_t d = factors[i].d;
        abar__inverted item = {factors[i], NULL, NULL};
        if (factors[i].values) {
            item.eigen = place<double>(base, &at, (int64_t)(abar__cuda_eigen_scratch(dev, d) / sizeof(double)));
        } else {
            item.panel = place<float>(base, &at, ABAR_PANEL * abar__panel_pitch(d));
            most = d > most ? d : most;
        }
        if (items) items[i] = item;
    }
    s->diagonal = place<float>(base, &at, most);
    s->low_panel = place<float>(base, &at, ABAR_PANEL * abar__panel_pitch(most));
    return at;
}

extern "C" size_t abar__cuda_inverter_workspace(abar_device *dev, const abar__cuda_factor *factors, int n)
{
    abar__inversions s = {};
    s.n = n;
    return place_workspace(dev, &s, factors, NULL, NULL);
}

/* Whether pairs are swept, and whether all tiles can be counted. factors: (n) */
static abar_status choose_units(abar_device *dev, abar__inversions *s, const abar__cuda_factor *factors)
{
    int64_t tiles = 0;
    for (int i = 0; i < s->n; i++) {
        const int64_t panels = abar__panels(factors[i].d);
        tiles += panels * (panels + 1) / 2;
        s->pairs = s->pairs || abar__in_pairs(factors[i]);
    }
    if (tiles > ABAR_UNITS_MOST) return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: factors of too many tiles");
    return s->pairs ? abar__cuda_prepare_pairs(dev) : ABAR_OK;
}

static abar_status make(abar_device *dev, abar__cuda_inverter *v, const abar__cuda_factor *factors, abar__inverted *items,
                        char *workspace)
{
    ABAR_TRY(choose_units(dev, &v->s, factors));
    for (int i = 0; i < v->s.n; i++) v->eigen = v->eigen || factors[i].values;
    const size_t lasting = place_lasting(&v->s, NULL);
    v->bytes = lasting + (workspace ? 0 : place_workspace(dev, &v->s, factors, NULL, NULL));
    ABAR_TRY(abar_device_alloc(dev, v->bytes, (void **)&v->memory));
    place_lasting(&v->s, v->memory);
    place_workspace(dev, &v->s, factors, items, workspace ? workspace : v->memory + lasting);
    abar__cuda_carry(dev, (void *)v->s.items, items, (size_t)v->s.n * sizeof *items);
    ABAR_TRY(abar__cuda_status(dev));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&v->body, cudaStreamNonBlocking));
    return ABAR_OK;
}

extern "C" abar_status abar__cuda_inverter_create(abar_device *dev, const abar__cuda_factor *factors, int n,
                                                  abar__cuda_inversion *asked, void *workspace, abar__cuda_inverter **out)
{
    void *memory = NULL, *items = NULL;
    *out = NULL;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof(abar__cuda_inverter), &memory));
    abar__cuda_inverter *v = (abar__cuda_inverter *)memory;
    v->s.n = n;
    v->s.raises = 5;
    v->s.double_last = true;
    v->s.asked = asked;
    abar_status status = n ? abar__alloc(dev->ctx, (size_t)n * sizeof(abar__inverted), &items) : ABAR_OK;
    if (status == ABAR_OK && n) status = make(dev, v, factors, (abar__inverted *)items, (char *)workspace);
    abar__free(dev->ctx, items, (size_t)n * sizeof(abar__inverted));
    if (status < 0)
        abar__cuda_inverter_destroy(dev, v);
    else
        *out = v;
    return status;
}

extern "C" void abar__cuda_inverter_destroy(abar_device *dev, abar__cuda_inverter *v)
{
    if (!v) return;
    if (v->body) cudaStreamDestroy(v->body);
    abar_device_free(dev, v->memory, v->bytes);
    abar__free(dev->ctx, v, sizeof *v);
}

extern "C" size_t abar__cuda_inverter_bytes(const abar__cuda_inverter *v) { return sizeof *v + v->bytes; }

/* ---- one factor, for the statistics table ------------------------------------------------------------------------- */

/* What it needs of its scratch, behind the workspace for the triangle: (d, d). */
static abar__cuda_inverter place_one(abar_device *dev, int64_t d, abar__inverted *item, char *base, size_t *bytes)
{
    abar__cuda_inverter v = {};
    size_t at = 0;
    v.s.n = 1;
    item->f.d = d;
    item->f.partner = -1;
    item->f.pending = place<float>(base, &at, d * d);
    v.s.asked = place<abar__cuda_inversion>(base, &at, 1);
    at += place_lasting(&v.s, base ? base + at : NULL);
    const abar__cuda_factor f = item->f;
    *bytes = at + place_workspace(dev, &v.s, &f, item, base ? base + at : NULL);
    return v;
}

extern "C" size_t abar__cuda_invert_scratch(abar_device *dev, int64_t d)
{
    abar__inverted item = {};
    size_t bytes;
    place_one(dev, d, &item, NULL, &bytes);
    return bytes;
}

extern "C" bool abar__cuda_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                                  void *inverse, void *scratch)
{
    abar__inverted item = {};
    size_t bytes;
    abar__cuda_inverter v = place_one(dev, d, &item, (char *)scratch, &bytes);
    abar__cuda_inversion asked = {};
    item.f.average = (const float *)average;
    item.f.inverse = (float *)inverse;
    v.s.double_first = in_double;
    asked.wanted = 1;
    asked.scale = scale;
    asked.shift = shift;
    const abar__cuda_rounds rounds = rounds_of(&v);
    return choose_units(dev, &v.s, &item.f) == ABAR_OK && abar__cuda_carry(dev, (void *)v.s.items, &item, sizeof item) &&
           abar__cuda_carry(dev, v.s.asked, &asked, sizeof asked) && abar__cuda_repeat_here(dev, &rounds) &&
           abar__cuda_carry(dev, &asked, v.s.asked, sizeof asked) && asked.valid;
}
