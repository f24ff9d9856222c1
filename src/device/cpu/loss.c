/* Softmax cross entropy and squared error: the mean over the valid samples, summed in double, and its gradient. A sample of
 * cross entropy has one row of K logits, or T rows.
 * Cross entropy of a row x against q = (1 - s) target + s / K: sum_k q_k (log sum e^x - x_k), dx = softmax(x) - q. A pair of
 * labels is a target with the share of the first in one place and the rest in another. */
#include "base/rng.h"
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/loss_kernels.h"

#include <math.h>
#include <string.h>

typedef struct part_sum { /* of one part of the rows; a cache line each */
    double loss;
    int64_t correct;
    char pad[ABAR_ALIGN - sizeof(double) - sizeof(int64_t)];
} part_sum;

typedef struct loss {
    const abar__loss_kernels *kernels;
    int64_t rows, width, per_sample; /* per_sample: T rows for a text, else one */
    int parts;
} loss;

static abar_status create_with(abar__op *op, int64_t width)
{
    static const abar__loss_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__loss);
    const abar__shape *shape = &op->desc.in[0];
    ABAR_TRY(abar__op_priv(op, sizeof(loss)));
    loss *l = op->priv;
    l->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    l->width = width;
    l->rows = abar__shape_count(shape) / width;
    l->per_sample = l->rows / shape->dim[0];
    l->parts = abar__parts(op->dev, l->rows * l->width, l->rows);
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X;
    op->scratch_bytes = (size_t)l->parts * sizeof(part_sum);
    return ABAR_OK;
}

/* The number of rows of the valid samples. */
static int64_t valid_rows(const loss *l, const abar__op_args *a) { return a->run->valid * l->per_sample; }

/* Adds up the parts, always in the same order. */
static void finish(const loss *l, const abar__op_args *a, double per)
{
    abar_loss result = {.count = valid_rows(l, a)};
    for (int part = 0; part < l->parts; part++) {
        const part_sum *sum = (const part_sum *)a->scratch + part;
        result.loss += sum->loss;
        result.correct += sum->correct;
    }
    result.loss = a->run->valid > 0 ? result.loss / per : 0;
    *a->result = result;
}

static void clear_invalid(const loss *l, const abar__op_args *a)
{
    int64_t begin = valid_rows(l, a) * l->width, n = l->rows * l->width - begin;
    memset((float *)a->dx[0] + begin, 0, (size_t)n * sizeof(float));
}

/* --- softmax cross entropy ----------------------------------------------------------------------------------------- */

static abar_status entropy_create(abar__op *op)
{
    const abar__shape *shape = &op->desc.in[0];
    ABAR_TRY(create_with(op, shape->dim[shape->ndim - 1]));
    op->saved_bytes = (size_t)((loss *)op->priv)->rows * 2 * sizeof(float); /* (rows, 2): largest, 1 / sum of exponentials */
    return ABAR_OK;
}

static abar_status check_labels(const abar__op *op, const abar__op_args *a)
{
    const loss *l = op->priv;
    const int32_t *label = a->target;
    const int64_t each = op->desc.label_pairs ? 2 : 1;
    for (int64_t n = 0; n < valid_rows(l, a) * each; n++)
        if (label[n] < 0 || label[n] >= l->width)
            return abar__fail(op->dev->ctx, ABAR_E_ARGUMENT,
                              "cross entropy: label %d of sample %lld is not among the %lld classes, give the net as many "
                              "outputs as the data has classes",
                              (int)label[n], (long long)(n / each / l->per_sample), (long long)l->width);
    return ABAR_OK;
}

/* A label for each row, from its softmax (nn_impl.h). */
static void draw_labels(const loss *l, const abar__op_args *a)
{
    int32_t *label = (int32_t *)(uintptr_t)a->target; /* the net's own memory */
#pragma omp parallel for num_threads(l->parts) schedule(static) if (l->parts > 1)
    for (int64_t n = 0; n < valid_rows(l, a); n++) {
        const float *x = (const float *)a->x[0] + n * l->width, top = l->kernels->largest(x, l->width);
        const uint64_t row = abar__run_label_index(a->run, a->run->sample0 * l->per_sample + n);
        const double u = abar__uniform(abar__random(a->run->seed, ABAR_DRAW_LABELS, a->run->step, row).u[0]);
        double all = 0.0, sum = 0.0;
        for (int64_t k = 0; k < l->width; k++) all += exp((double)x[k] - (double)top);
        int64_t k = 0;
        for (; k < l->width - 1; k++) {
            sum += exp((double)x[k] - (double)top);
            if (sum > u * all) break;
        }
        label[n] = (int32_t)k;
    }
}

static int64_t first_of(const float *x, float value, int64_t n)
{
    int64_t i = 0;
    while (i < n && x[i] != value) i++;
    return i;
}

/* Minus the log probability of a label. */
static double surprise_of(const float *x, int32_t label, float top, double log_sum)
{
    return log_sum - ((double)x[label] - (double)top);
}

static void entropy_row(const abar__op *op, const abar__op_args *a, int64_t n, part_sum *sum)
{
    const loss *l = op->priv;
    const abar__loss_kernels *k = l->kernels;
    const float *x = (const float *)a->x[0] + n * l->width;
    double smoothing = op->desc.smoothing, cost;
    float top = k->largest(x, l->width);
    double exponentials = k->sum_exp(x, top, l->width), log_sum = log(exponentials);
    int64_t truth;
    if (op->desc.soft_targets) {
        const float *target = (const float *)a->target + n * l->width;
        truth = first_of(target, k->largest(target, l->width), l->width);
        cost = k->surprise(x, target, top, (float)log_sum, l->width);
    } else if (op->desc.label_pairs) {
        const int32_t *pair = (const int32_t *)a->target + 2 * n;
        const double share = (double)a->share[n], rest = 1 - share;
        truth = pair[share < rest];
        cost = surprise_of(x, pair[0], top, log_sum);
        if (rest != 0) cost = share * cost + rest * surprise_of(x, pair[1], top, log_sum);
    } else {
        truth = ((const int32_t *)a->target)[n];
        cost = surprise_of(x, (int32_t)truth, top, log_sum);
    }
    if (smoothing > 0)
        cost = (1 - smoothing) * cost + smoothing / (double)l->width * k->surprise(x, NULL, top, (float)log_sum, l->width);
    sum->loss += cost;
    sum->correct +=
        x[truth] == top && first_of(x, top, truth) == truth; /* of several largest logits the first is the prediction */
    float *saved = a->saved;
    if (!saved) return;
    saved[2 * n] = top;
    saved[2 * n + 1] = (float)(1 / exponentials);
}

static abar_status entropy_forward(abar__op *op, const abar__op_args *a)
{
    const loss *l = op->priv;
    if (a->run->draw_labels) draw_labels(l, a);
    for (int64_t n = 0; a->run->one_class && n < valid_rows(l, a); n++)
        ((int32_t *)(uintptr_t)a->target)[n] = (int32_t)(a->run->one_class - 1); /* the net's own memory */
    if (!op->desc.soft_targets) ABAR_TRY(check_labels(op, a));
    int64_t valid = valid_rows(l, a);
#pragma omp parallel for num_threads(l->parts) schedule(static) if (l->parts > 1)
    for (int part = 0; part < l->parts; part++) {
        part_sum sum = {0};
        int64_t end = abar__part_begin(valid, l->parts, part + 1);
        for (int64_t n = abar__part_begin(valid, l->parts, part); n < end; n++) entropy_row(op, a, n, &sum);
        ((part_sum *)a->scratch)[part] = sum;
    }
    finish(l, a, (double)valid);
    return ABAR_OK;
}

static void entropy_grad_row(const abar__op *op, const abar__op_args *a, int64_t n)
{
    const loss *l = op->priv;
    const float *x = (const float *)a->x[0] + n * l->width, *saved = a->saved;
    float *dx = (float *)a->dx[0] + n * l->width;
    double smoothing = op->desc.smoothing, share = a->run->loss_scale / (double)valid_rows(l, a);
    float certain = (float)((1 - smoothing) * share), even = (float)(smoothing / (double)l->width * share);
    l->kernels->scaled_exp(x, saved[2 * n], (float)((double)saved[2 * n + 1] * share), -even, dx, l->width);
    const int32_t *label = a->target;
    if (op->desc.soft_targets) {
        l->kernels->add_scaled((const float *)a->target + n * l->width, -certain, dx, l->width);
    } else if (op->desc.label_pairs) {
        dx[label[2 * n]] -= certain * a->share[n];
        dx[label[2 * n + 1]] -= certain * (1 - a->share[n]);
    } else {
        dx[label[n]] -= certain;
    }
    if (!a->run->one_class) return;
    const double chance = exp((double)x[a->run->one_class - 1] - (double)saved[2 * n]) * (double)saved[2 * n + 1];
    for (int64_t k = 0; k < l->width; k++) dx[k] *= (float)sqrt(chance);
}

static abar_status entropy_backward(abar__op *op, const abar__op_args *a)
{
    const loss *l = op->priv;
    if (!a->dx[0]) return ABAR_OK;
    clear_invalid(l, a);
#pragma omp parallel for num_threads(l->parts) schedule(static) if (l->parts > 1)
    for (int64_t n = 0; n < valid_rows(l, a); n++) entropy_grad_row(op, a, n);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_cross_entropy = {
    "cpu-cross-entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, entropy_create, entropy_forward, entropy_backward, NULL};

/* --- squared error ---------------------------------------------------------------------------------------------------- */

static abar_status square_create(abar__op *op)
{
    return create_with(op, abar__shape_count(&op->desc.in[0]) / op->desc.in[0].dim[0]);
}

static abar_status square_forward(abar__op *op, const abar__op_args *a)
{
    const loss *l = op->priv;
    const float *x = a->x[0], *target = a->target;
    int64_t valid = a->run->valid;
#pragma omp parallel for num_threads(l->parts) schedule(static) if (l->parts > 1)
    for (int part = 0; part < l->parts; part++) {
        int64_t at = abar__part_begin(valid, l->parts, part) * l->width;
        int64_t end = abar__part_begin(valid, l->parts, part + 1) * l->width;
        ((part_sum *)a->scratch)[part] = (part_sum){.loss = l->kernels->distance(x + at, target + at, end - at)};
    }
    finish(l, a, (double)(valid * l->width));
    return ABAR_OK;
}

static abar_status square_backward(abar__op *op, const abar__op_args *a)
{
    const loss *l = op->priv;
    const float *x = a->x[0], *target = a->target;
    float *dx = a->dx[0];
    int64_t valid = a->run->valid;
    if (!dx) return ABAR_OK;
    clear_invalid(l, a);
    float factor = valid > 0 ? (float)(2 * a->run->loss_scale / (double)(valid * l->width)) : 0;
#pragma omp parallel for num_threads(l->parts) schedule(static) if (l->parts > 1)
    for (int part = 0; part < l->parts; part++) {
        int64_t at = abar__part_begin(valid, l->parts, part) * l->width;
        int64_t end = abar__part_begin(valid, l->parts, part + 1) * l->width;
        l->kernels->difference(x + at, target + at, factor, dx + at, end - at);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_squared_error = {"cpu-squared-error", ABAR_OP_SQUARED_ERROR, square_create,
                                               square_forward,      square_backward,       NULL};
