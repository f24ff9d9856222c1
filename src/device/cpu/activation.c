/* ReLU, tanh and GELU as separate operations, in the layout of their input: all of them map zero to zero, so padding stays
 * zero. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/activation_kernels.h"

typedef struct activation {
    abar__act_forward *forward;
    abar__act_backward *backward;
    int64_t vectors, floats; /* vectors of sixteen floats, and floats in all */
    int parts;
} activation;

static abar_status create(abar__op *op)
{
    static const abar__activation_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__activation);
    const abar__activation_kernels *k = by_isa[abar__isa_best(op->dev->ctx)];
    activation act = {0};
    switch (op->desc.activation) {
    case ABAR_ACT_NONE: return ABAR_E_UNSUPPORTED;
    case ABAR_ACT_RELU: act = (activation){.forward = k->relu, .backward = k->relu_grad}; break;
    case ABAR_ACT_TANH: act = (activation){.forward = k->tanh, .backward = k->tanh_grad}; break;
    case ABAR_ACT_GELU_ERF: act = (activation){.forward = k->gelu_erf, .backward = k->gelu_erf_grad}; break;
    case ABAR_ACT_GELU_TANH: act = (activation){.forward = k->gelu_tanh, .backward = k->gelu_tanh_grad}; break;
    }
    abar__planes p = abar__planes_of(&op->desc.in[0], op->in_layout[0]);
    act.floats = abar__planes_floats(&p);
    act.vectors = (act.floats + 15) / 16;
    act.parts = abar__parts(op->dev, act.floats, act.vectors);
    ABAR_TRY(abar__op_priv(op, sizeof act));
    *(activation *)op->priv = act;
    op->out_layout = op->in_layout[0];
    op->takes_dy2 = true;
    bool from_y = op->desc.activation == ABAR_ACT_RELU || op->desc.activation == ABAR_ACT_TANH;
    op->backward_needs = from_y ? ABAR_NEEDS_Y : ABAR_NEEDS_X;
    return ABAR_OK;
}

/* A ReLU whose choices are kept: a byte per float. */
static abar_status pattern_create(abar__op *op)
{
    if (!op->desc.patterned) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(create(op));
    op->backward_needs = 0;
    op->pattern_bytes = (size_t)((const activation *)op->priv)->floats;
    return ABAR_OK;
}

/* First float of a part. */
static int64_t begin_of(const activation *act, int part)
{
    int64_t at = abar__part_begin(act->vectors, act->parts, part) * 16;
    return at < act->floats ? at : act->floats;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const activation *act = op->priv;
    const float *x = a->x[0];
    float *y = a->y;
#pragma omp parallel for num_threads(act->parts) schedule(static) if (act->parts > 1)
    for (int part = 0; part < act->parts; part++) {
        int64_t begin = begin_of(act, part);
        act->forward(x + begin, y + begin, begin_of(act, part + 1) - begin);
    }
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const activation *act = op->priv;
    const float *dy = a->dy, *dy2 = a->dy2, *value = op->backward_needs == ABAR_NEEDS_Y ? a->y : a->x[0];
    float *dx = a->dx[0];
    if (!dx) return ABAR_OK;
#pragma omp parallel for num_threads(act->parts) schedule(static) if (act->parts > 1)
    for (int part = 0; part < act->parts; part++) {
        int64_t at = begin_of(act, part);
        act->backward(dy + at, dy2 ? dy2 + at : NULL, value + at, dx + at, begin_of(act, part + 1) - at);
    }
    return ABAR_OK;
}

/* One that records lets a NaN through. What is not passed is read all the same: without branches on a pattern, which no
 * processor predicts, compilers make vectors of these loops. */
static void pass(const float *restrict x, float *restrict y, uint8_t *restrict pattern, int64_t n, bool repeat)
{
    if (!repeat)
        for (int64_t i = 0; i < n; i++) pattern[i] = !(x[i] <= 0.0f);
    for (int64_t i = 0; i < n; i++) {
        const float value = x[i];
        y[i] = pattern[i] ? value : 0.0f;
    }
}

static void pass_back(const float *restrict dy, const float *restrict dy2, const uint8_t *restrict pattern, float *restrict dx,
                      int64_t n)
{
    for (int64_t i = 0; i < n && !dy2; i++) {
        const float value = dy[i];
        dx[i] = pattern[i] ? value : 0.0f;
    }
    for (int64_t i = 0; i < n && dy2; i++) {
        const float value = dy[i] + dy2[i];
        dx[i] = pattern[i] ? value : 0.0f;
    }
}

static abar_status pattern_forward(abar__op *op, const abar__op_args *a)
{
    const activation *act = op->priv;
#pragma omp parallel for num_threads(act->parts) schedule(static) if (act->parts > 1)
    for (int part = 0; part < act->parts; part++) {
        const int64_t at = begin_of(act, part);
        pass((const float *)a->x[0] + at, (float *)a->y + at, (uint8_t *)a->pattern + at, begin_of(act, part + 1) - at,
             a->run->repeat);
    }
    return ABAR_OK;
}

static abar_status pattern_backward(abar__op *op, const abar__op_args *a)
{
    const activation *act = op->priv;
    const float *dy = a->dy, *dy2 = a->dy2;
    const uint8_t *pattern = a->pattern;
    float *dx = a->dx[0];
    if (!dx) return ABAR_OK;
#pragma omp parallel for num_threads(act->parts) schedule(static) if (act->parts > 1)
    for (int part = 0; part < act->parts; part++) {
        const int64_t at = begin_of(act, part);
        pass_back(dy + at, dy2 ? dy2 + at : NULL, pattern + at, dx + at, begin_of(act, part + 1) - at);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_pattern = {"cpu-pattern",   ABAR_OP_ACTIVATION, pattern_create,
                                         pattern_forward, pattern_backward,   NULL};
const abar__op_impl abar__cpu_activation = {"cpu-activation", ABAR_OP_ACTIVATION, create, forward, backward, NULL};
