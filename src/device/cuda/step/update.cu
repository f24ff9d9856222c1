/* The update: one pass over all parameters (methods.md section 8) that preconditions the rows of rank-1 maps on the way
 * (sections 1 and 3), so that MAC moves the bytes of plain SGD: gradient, weight and state in, weight, state and the weight's
 * bf16 copy out. */
#include "device/cuda/step/update.h"

#include <math.h>

/* ---- the rules ---------------------------------------------------------------------------------------------------- */

/* One element: g is preconditioned and scaled, s0 and s1 its state. Returns the new weight. */
struct sgd_rule {
    static const int states = 1;
    static const bool to_grad = false, scaled = true;
    float coupled, decoupled, momentum, lr_grad, lr_velocity;
    __device__ sgd_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &k)
    {
        const double lr = n.lr * part.lr_scale;
        coupled = (float)((1.0 - (double)k.decoupled) * part.decay);
        decoupled = (float)((double)k.decoupled * lr * part.decay);
        momentum = k.momentum;
        const bool velocity = part.state[0] != nullptr;
        lr_grad = velocity ? (float)lr * k.nesterov : (float)lr;
        lr_velocity = !velocity ? 0.0f : k.nesterov > 0.0f ? (float)(lr * (double)k.momentum) : (float)lr;
    }
    __device__ float operator()(float w, float g, float &s0, float &) const
    {
        g += coupled * w;
        s0 = momentum * s0 + g;
        return w - (decoupled * w + lr_grad * g + lr_velocity * s0);
    }
};

__device__ static inline float clamped(float g)
{
    const float largest = (float)ABAR_ADAMW_LARGEST_F32;
    return fminf(fmaxf(g, -largest), largest);
}

/* AHEAD: nadamw. */
template <bool AHEAD> struct adam_rule {
    static const int states = 2;
    static const bool to_grad = false, scaled = true;
    float decay, against, lr, beta1, rest1, beta2, rest2, root,
        eps; /* against: the decay where step and weight differ in sign */
    __device__ adam_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &k)
        : beta1(k.beta1), rest1(k.rest1), beta2(k.beta2), rest2(k.rest2), root(n.second), eps(k.eps)
    {
        const double rate = n.lr * part.lr_scale;
        decay = (float)(rate * part.decay);
        against = part.cautious ? 0.0f : decay;
        lr = (float)(rate * (double)n.first);
    }
    __device__ float operator()(float w, float g, float &s0, float &s1) const
    {
        g = clamped(g);
        s0 = beta1 * s0 + rest1 * g;
        s1 = beta2 * s1 + rest2 * g * g;
        const float mean = AHEAD ? beta1 * s0 + rest1 * g : s0;
        return w - ((mean * w < 0.0f ? against : decay) * w + lr * mean / (root * sqrtf(s1) + eps));
    }
};
typedef adam_rule<false> adamw_rule;
typedef adam_rule<true> nadamw_rule;

/* The weight is y, s0 is z - y. */
struct sfadamw_rule {
    static const int states = 2;
    static const bool to_grad = false, scaled = true;
    float decay, beta2, rest2, root, eps, share, step, keep, apart;
    __device__ sfadamw_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &k)
        : decay((float)part.decay), beta2(k.beta2), rest2(k.rest2), root(n.second), eps(k.eps), share((float)n.share)
    {
        const double rate = n.lr * part.lr_scale, rest = 1.0 - n.share;
        step = (float)(rate * (1.0 - (double)k.beta1 * rest));
        keep = (float)rest;
        apart = (float)(rate * (double)k.beta1);
    }
    __device__ float operator()(float w, float g, float &s0, float &s1) const
    {
        g = clamped(g);
        s1 = beta2 * s1 + rest2 * g * g;
        const float u = g / (root * sqrtf(s1) + eps) + decay * w, y = w + (share * s0 - step * u);
        s0 = keep * (s0 - apart * u);
        return y;
    }
};

/* Not the weight but the gradient's memory is written: with the average that is orthogonalised next (methods.md section 11). */
struct momentum_rule {
    static const int states = 1;
    static const bool to_grad = true, scaled = true;
    float momentum, rest, of_grad, of_average;
    __device__ momentum_rule(const abar__cuda_part &part, const abar__cuda_numbers &, const abar__cuda_rule &k)
    {
        const bool averages = part.state[0] != nullptr;
        momentum = averages ? k.momentum : 0.0f;
        rest = averages ? k.rest : 1.0f;
        of_grad = averages ? k.nesterov * k.rest : 1.0f;
        of_average = !averages ? 0.0f : k.nesterov > 0.0f ? k.momentum : 1.0f;
    }
    __device__ float operator()(float, float g, float &s0, float &) const
    {
        s0 = momentum * s0 + rest * g;
        return of_grad * g + of_average * s0;
    }
};

struct plain_rule {
    static const int states = 0;
    static const bool to_grad = false, scaled = false; /* the gradient is as it is in memory */
    float decay, against, lr;
    __device__ plain_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &)
    {
        const double rate = n.lr * part.lr_scale;
        decay = (float)(rate * part.decay);
        against = part.cautious ? 0.0f : decay;
        lr = (float)rate;
    }
    __device__ float operator()(float w, float g, float &, float &) const
    {
        return w - ((g * w < 0.0f ? against : decay) * w + lr * g);
    }
};

/* Reads the diagonal beside its two moments. */
struct adahessian_rule {
    static const int states = 2;
    static const bool to_grad = false, scaled = true;
    float decay, lr, beta1, rest1, beta2, rest2, root, eps, power;
    __device__ adahessian_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &k)
        : beta1(k.beta1), rest1(k.rest1), beta2(k.beta2), rest2(k.rest2), root(n.second), eps(k.eps), power(k.power)
    {
        const double rate = n.lr * part.lr_scale;
        decay = (float)(rate * part.decay);
        lr = (float)(rate * (double)n.first);
    }
    __device__ float operator()(float w, float g, float &s0, float &s1, float d) const
    {
        d = fminf(d, (float)ABAR_ADAMW_LARGEST_F32);
        s0 = beta1 * s0 + rest1 * g;
        s1 = beta2 * s1 + rest2 * d * d;
        const float length = root * sqrtf(s1), all = (power == 1.0f ? length : powf(length, power)) + eps;
        return w - (decay * w + (all > 0.0f ? lr * s0 / all : 0.0f));
    }
};

/* Its second state is the diagonal, which the step does not change. */
struct sophia_rule {
    static const int states = 2;
    static const bool to_grad = false, scaled = true;
    float decay, lr, beta1, rest1, scale;
    __device__ sophia_rule(const abar__cuda_part &part, const abar__cuda_numbers &n, const abar__cuda_rule &k)
        : beta1(k.beta1), rest1(k.rest1), scale(k.clip_scale)
    {
        const double rate = n.lr * part.lr_scale;
        decay = (float)(rate * part.decay);
        lr = (float)rate;
    }
    __device__ float operator()(float w, float g, float &s0, float &s1) const
    {
        s0 = beta1 * s0 + rest1 * g;
        const float ratio = fminf(fabsf(s0) / (scale * s1 + (float)ABAR_SOPHIA_LEAST), 1.0f);
        return w - (decay * w + lr * copysignf(ratio, s0));
    }
};

/* One element by any rule; those with a diagonal get it, too. */
template <class Rule>
__device__ static inline float apply(const Rule &rule, const abar__cuda_part &, int64_t, float w, float g, float &s0, float &s1)
{
    return rule(w, g, s0, s1);
}

__device__ static inline float apply(const adahessian_rule &rule, const abar__cuda_part &p, int64_t i, float w, float g,
                                     float &s0, float &s1)
{
    return rule(w, g, s0, s1, p.state[2][i]);
}

/* ---- one element, four elements ----------------------------------------------------------------------------------- */

template <class Rule> __device__ static inline void update_one(const abar__cuda_part &p, const Rule &rule, int64_t i, float g)
{
    const bool has_state = Rule::states > 0 && p.state[0];
    float s0 = has_state ? p.state[0][i] : 0.0f, s1 = Rule::states > 1 ? p.state[1][i] : 0.0f;
    const float w = apply(rule, p, i, Rule::to_grad ? 0.0f : p.weight[i], g, s0, s1);
    (Rule::to_grad ? p.grad : p.weight)[i] = w;
    if (has_state) p.state[0][i] = s0;
    if (Rule::states > 1) p.state[1][i] = s1;
    if (!Rule::to_grad && p.shadow) p.shadow[i] = __float2bfloat16_rn(w);
}

/* Elements i .. i + 3; w and the states were loaded before. */
template <class Rule>
__device__ static inline void update_four(const abar__cuda_part &p, const Rule &rule, int64_t i, const pack<float> &g,
                                          pack<float> w, pack<float> s0, pack<float> s1)
{
#pragma unroll
    for (int j = 0; j < 4; j++) w.v[j] = apply(rule, p, i + j, w.v[j], g.v[j], s0.v[j], s1.v[j]);
    store_pack((Rule::to_grad ? p.grad : p.weight) + i, w);
    if (Rule::states > 0 && p.state[0]) store_pack(p.state[0] + i, s0);
    if (Rule::states > 1) store_pack(p.state[1] + i, s1);
    if (Rule::to_grad || !p.shadow) return;
    const __nv_bfloat162 low = __floats2bfloat162_rn(w.v[0], w.v[1]), high = __floats2bfloat162_rn(w.v[2], w.v[3]);
    *reinterpret_cast<uint2 *>(p.shadow + i) =
        make_uint2(*reinterpret_cast<const uint32_t *>(&low), *reinterpret_cast<const uint32_t *>(&high));
}

/* ---- a block's unit ----------------------------------------------------------------------------------------------- */

/* The sum over a team of whole warps; every thread of the block must come. shared: one float per warp. */
__device__ static inline float team_sum(float v, int team, float *shared)
{
    v = warp_sum(v);
    if (team == 32) return v; /* the same for the whole block */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    const int first = threadIdx.x / team * (team / 32);
    float sum = 0.0f;
    for (int i = 0; i < team / 32; i++) sum += shared[first + i];
    return sum;
}

/* The elements of one row (or, without a map, of one span) that a team updates. */
struct segment {
    int64_t base; /* of its first element in the parameter */
    int64_t n;    /* elements; 0: nothing to do, but take part in the sum */
    int64_t row;
    int lane, team;
};

/* c of the row where it is not given: its product with u, the bias's element included. */
__device__ static float coefficient_of(const abar__cuda_item &it, const segment &s, float part, float *shared)
{
    if (s.lane == 0 && s.n > 0 && it.bias.weight) part += it.bias.grad[s.row] * it.u[s.n];
    return team_sum(part, s.team, shared);
}

/* Element by element, reading the gradient twice: memory that is not aligned, and very long rows. */
template <class Rule>
__device__ static void update_slowly(const abar__cuda_item &it, const segment &s, const float *grad, bool rank1, float scale,
                                     const Rule &rule, float *shared, float *c)
{
    if (rank1 && !it.coefficient) {
        float part = 0.0f;
        for (int64_t i = s.lane; i < s.n; i += s.team) part += grad[s.base + i] * it.u[i];
        *c = coefficient_of(it, s, part, shared);
    }
    for (int64_t i = s.lane; i < s.n; i += s.team) {
        const float g = grad[s.base + i];
        update_one(it.body, rule, s.base + i, scale * (rank1 ? g - *c * it.u[i] : g));
    }
}

/* Quads of a thread that are loaded together: all, so that gradient, weight and state wait in registers for c; with two states
 * a third of them, so that more blocks share a multiprocessor, and a gradient that c needs is read again (from the cache).
 * Loads come before stores, which might reach the same memory for all that the compiler knows. */
template <class Rule> static constexpr int quads_at_once = Rule::states > 1 ? ABAR_UPDATE_QUADS / 3 : ABAR_UPDATE_QUADS;
template <class Rule> static constexpr int blocks_at_once = Rule::states > 1 ? 3 : 2;

/* N quads, from the thread's quad `first` of the segment on; zeros past the end of `quads`, and where from is NULL. */
template <int N>
__device__ static inline void load_quads(pack<float> (&to)[N], const float *from, const segment &s, int first, int quads)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int q = s.lane + (first + j) * s.team;
        to[j] = pack<float>{};
        if (from && q < quads) to[j] = load_pack(from + 4 * q);
    }
}

/* Their product with those of u. */
template <int N>
__device__ static inline float dot_quads(const pack<float> (&g)[N], const float *u, const segment &s, int first, int quads)
{
    float part = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int q = s.lane + (first + j) * s.team;
        if (q >= quads) continue;
        const pack<float> v = load_pack(u + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; i++) part += g[j].v[i] * v.v[i];
    }
    return part;
}

/* Four by four. */
template <class Rule>
__device__ static void update_quickly(const abar__cuda_item &it, const segment &s, const float *grad, bool rank1, float scale,
                                      const Rule &rule, float *shared, float *c)
{
    constexpr int N = quads_at_once<Rule>;
    const int quads = (int)(s.n / 4);
    const bool finds_c = rank1 && !it.coefficient, one_pass = N == ABAR_UPDATE_QUADS;
    const bool has_state = Rule::states > 0 && it.body.state[0] != nullptr;
    const float *weight = Rule::to_grad ? nullptr : it.body.weight + s.base;
    const float *state0 = has_state ? it.body.state[0] + s.base : nullptr;
    const float *state1 = Rule::states > 1 ? it.body.state[1] + s.base : nullptr;
    pack<float> g[N], w[N], s0[N], s1[N];
    if (finds_c && !one_pass) {
        float part = 0.0f;
        for (int first = 0; first < ABAR_UPDATE_QUADS; first += N) {
            load_quads(g, grad + s.base, s, first, quads);
            part += dot_quads(g, it.u, s, first, quads);
        }
        *c = coefficient_of(it, s, part, shared);
    }
#pragma unroll 1
    for (int first = 0; first < ABAR_UPDATE_QUADS; first += N) {
        load_quads(g, grad + s.base, s, first, quads);
        load_quads(w, weight, s, first, quads);
        load_quads(s0, state0, s, first, quads);
        load_quads(s1, state1, s, first, quads);
        if (finds_c && one_pass) *c = coefficient_of(it, s, dot_quads(g, it.u, s, first, quads), shared);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int q = s.lane + (first + j) * s.team;
            if (q >= quads) continue;
            pack<float> u = {};
            if (rank1) u = load_pack(it.u + 4 * q);
#pragma unroll
            for (int i = 0; i < 4; i++) g[j].v[i] = scale * (rank1 ? g[j].v[i] - *c * u.v[i] : g[j].v[i]);
            update_four(it.body, rule, s.base + 4 * q, g[j], w[j], s0[j], s1[j]);
        }
    }
    const int64_t tail = 4 * (int64_t)quads + s.lane; /* of a plain parameter: rows are whole */
    if (tail < s.n) update_one(it.body, rule, s.base + tail, scale * grad[s.base + tail]);
}

/* An element of a map's bias, whose rule may be another than the weight's. */
template <class Rule>
__device__ static void update_bias(const abar__cuda_item &it, int64_t row, float g, const abar__cuda_numbers &n,
                                   const abar__cuda_rule &k)
{
    if (!Rule::to_grad)
        update_one(it.bias, Rule(it.bias, n, k), row, g);
    else if (it.bias_kind == ABAR_UPDATE_MOMENTUM)
        update_one(it.bias, momentum_rule(it.bias, n, k), row, g);
    else if (it.bias_kind == ABAR_UPDATE_ADAMW)
        update_one(it.bias, adamw_rule(it.bias, n, k), row, g);
    else
        update_one(it.bias, sgd_rule(it.bias, n, k), row, g);
}

template <class Rule>
__device__ static void update_unit(const abar__cuda_item &it, int64_t first, const abar__cuda_numbers &n,
                                   const abar__cuda_rule &k)
{
    __shared__ float shared[ABAR_UPDATE_THREADS / 32];
    const abar__cuda_form form = it.form ? *it.form : it.given;
    const bool rank1 = form.kind == ABAR_FORM_RANK1 && it.u, dense = form.kind == ABAR_FORM_DENSE;
    const float *grad = dense ? it.dense : it.body.grad;
    segment s = {0, 0, 0, (int)threadIdx.x % it.team, it.team};
    if (it.rows) {
        s.row = first * (ABAR_UPDATE_THREADS / it.team) + threadIdx.x / it.team;
        s.base = s.row * it.columns;
        s.n = s.row < it.rows ? it.columns : 0;
    } else {
        s.base = first * ABAR_UPDATE_SPAN;
        s.n = it.count - s.base < ABAR_UPDATE_SPAN ? it.count - s.base : ABAR_UPDATE_SPAN;
    }
    float scale = Rule::scaled ? n.grad_scale * form.scale : 1.0f, c = 0.0f; /* c: the coefficient, given or to be found */
    if (rank1 && it.coefficient && s.n > 0) c = form.factor * it.coefficient[s.row];
    if (form.kind != ABAR_FORM_PLAIN && it.row_scale && s.n > 0) scale *= it.row_scale[s.row];
    if (it.vectors && s.n <= (int64_t)s.team * ABAR_UPDATE_QUADS * 4)
        update_quickly(it, s, grad, rank1, scale, Rule(it.body, n, k), shared, &c);
    else
        update_slowly(it, s, grad, rank1, scale, Rule(it.body, n, k), shared, &c);
    if (!it.bias.weight || s.lane != 0 || s.n == 0) return;
    const float g = (dense ? it.dense_bias : it.bias.grad)[s.row];
    update_bias<Rule>(it, s.row, scale * (rank1 ? g - c * it.u[s.n] : g), n, k);
}

/* Block b does unit b of the table. */
template <class Rule>
static __global__ void __launch_bounds__(ABAR_UPDATE_THREADS, blocks_at_once<Rule>)
    update_table(const abar__cuda_item *items, const abar__cuda_unit *units, const abar__cuda_numbers *numbers,
                 abar__cuda_rule k)
{
    const abar__cuda_numbers n = *numbers;
    if (n.skip) return;
    const abar__cuda_unit unit = units[blockIdx.x];
    const abar__cuda_item item = items[unit.item]; /* a copy: stores to a weight cannot change it */
    if (!Rule::scaled && item.verdict && *item.verdict == ABAR_NS_NOT_FINITE) return;
    update_unit<Rule>(item, unit.first, n, k);
}

/* Between steps: whatever the last one decided. */
static __global__ void __launch_bounds__(ABAR_UPDATE_THREADS)
    shift_weights(int64_t n, float *weight, const float *by, float factor, bf16 *shadow)
{
    const int64_t i = (int64_t)blockIdx.x * ABAR_UPDATE_THREADS + threadIdx.x;
    if (i >= n) return;
    const float w = weight[i] + factor * by[i];
    weight[i] = w;
    if (shadow) shadow[i] = __float2bfloat16_rn(w);
}

/* ---- the host's side ---------------------------------------------------------------------------------------------- */

extern "C" abar__cuda_rule abar__cuda_rule_of(const abar__update_scalars *s)
{
    abar__cuda_rule k = {};
    k.momentum = (float)s->momentum;
    k.rest = (float)(1.0 - (double)k.momentum);
    k.nesterov = s->nesterov ? 1.0f : 0.0f;
    k.decoupled = s->decoupled ? 1.0f : 0.0f;
    k.beta1 = (float)s->beta1;
    k.rest1 = (float)(1.0 - (double)k.beta1);
    k.beta2 = (float)s->beta2;
    k.rest2 = (float)(1.0 - (double)k.beta2);
    k.eps = (float)s->eps;
    k.schedule_free = s->schedule_free;
    k.time_power = s->time_power;
    k.rate_power = s->rate_power;
    k.power = (float)s->power;
    k.clip_scale = (float)s->clip_scale;
    return k;
}

static abar__cuda_part part_of(const abar__update_item *item)
{
    abar__cuda_part p = {};
    p.weight = (float *)item->weight;
    p.grad = (float *)item->grad;
    p.state[0] = (float *)item->state[0];
    p.state[1] = (float *)item->state[1];
    p.state[2] = (float *)item->state[2];
    p.shadow = (bf16 *)item->shadow;
    p.lr_scale = item->lr_scale;
    p.decay = item->weight_decay;
    p.cautious = item->cautious;
    return p;
}

static bool aligned(const abar__cuda_part *p)
{
    const uintptr_t all = (uintptr_t)p->weight | (uintptr_t)p->grad | (uintptr_t)p->state[0] | (uintptr_t)p->state[1];
    return all % 16 == 0 && (uintptr_t)p->shadow % 8 == 0;
}

extern "C" abar__cuda_item abar__cuda_item_of(const abar__update_item *item, bool is_map)
{
    abar__cuda_item it = {};
    it.body = part_of(item);
    it.count = item->count;
    it.team = ABAR_UPDATE_THREADS;
    it.vectors = aligned(&it.body);
    it.given.scale = 1.0f;
    if (!is_map) return it;
    it.rows = item->rows;
    it.columns = item->count / item->rows;
    if (item->bias) {
        it.bias = part_of(item->bias);
        it.bias_kind = item->bias->kind;
    }
    it.vectors = it.vectors && it.columns % 4 == 0;
    it.team = 32;
    while (it.team < ABAR_UPDATE_THREADS && it.columns > (int64_t)it.team * ABAR_UPDATE_QUADS * 4) it.team *= 2;
    return it;
}

extern "C" int64_t abar__cuda_units_of(const abar__cuda_item *item)
{
    return item->rows ? abar__cuda_blocks(item->rows, ABAR_UPDATE_THREADS / item->team)
                      : abar__cuda_blocks(item->count, ABAR_UPDATE_SPAN);
}

typedef void (*update_kernel)(const abar__cuda_item *, const abar__cuda_unit *, const abar__cuda_numbers *, abar__cuda_rule);

static update_kernel kernel_of(abar__update_kind kind)
{
    switch (kind) {
    case ABAR_UPDATE_SGD: return update_table<sgd_rule>;
    case ABAR_UPDATE_ADAMW: return update_table<adamw_rule>;
    case ABAR_UPDATE_MOMENTUM: return update_table<momentum_rule>;
    case ABAR_UPDATE_PLAIN: return update_table<plain_rule>;
    case ABAR_UPDATE_NADAMW: return update_table<nadamw_rule>;
    case ABAR_UPDATE_SFADAMW: return update_table<sfadamw_rule>;
    case ABAR_UPDATE_ADAHESSIAN: return update_table<adahessian_rule>;
    case ABAR_UPDATE_SOPHIA: return update_table<sophia_rule>;
    case ABAR_UPDATE_KINDS: break; /* no kind */
    }
    return NULL;
}

extern "C" void abar__cuda_update(abar_device *dev, abar__update_kind kind, const abar__cuda_item *items,
                                  const abar__cuda_unit *units, int64_t n_units, const abar__cuda_numbers *numbers,
                                  abar__cuda_rule rule)
{
    if (n_units == 0) return;
    abar__cuda_launch(dev, kernel_of(kind), dim3((unsigned)n_units), dim3(ABAR_UPDATE_THREADS), 0, items, units, numbers, rule);
}

extern "C" void abar__cuda_shift(abar_device *dev, int64_t n, float *weight, const float *by, double factor, bf16 *shadow)
{
    if (n == 0) return;
    abar__cuda_launch(dev, shift_weights, dim3((unsigned)abar__cuda_blocks(n, ABAR_UPDATE_THREADS)), dim3(ABAR_UPDATE_THREADS),
                      0, n, weight, by, (float)factor, shadow);
}
