/* Losses: the mean over the first run->valid samples of the batch; the gradients of the others are zero. A sample of cross
 * entropy has one row of K logits, or T rows. */
#include "device/ref/ref_nn.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

static abar_status create(abar__op *op)
{
    abar__ref_dense(op);
    op->backward_needs = ABAR_NEEDS_X;
    return ABAR_OK;
}

/* ---- softmax cross entropy: -sum_k q[k] log softmax(x)[k], q = (1 - smoothing) target + smoothing / K ------------ */

static int64_t first_maximum(const double *x, int64_t count)
{
    int64_t best = 0;
    for (int64_t k = 1; k < count; k++)
        if (x[k] > x[best]) best = k;
    return best;
}

/* log sum exp(x) without overflow. */
static double log_sum_exp(const double *x, int64_t count)
{
    double largest = x[first_maximum(x, count)], sum = 0.0;
    for (int64_t k = 0; k < count; k++) sum += exp(x[k] - largest);
    return largest + log(sum);
}

static int64_t class_count(const abar__op_desc *d) { return d->in[0].dim[d->in[0].ndim - 1]; }

/* The number of rows of the valid samples. */
static int64_t valid_rows(const abar__op_desc *d, const abar__run *run)
{
    return d->in[0].ndim == 3 ? run->valid * d->in[0].dim[1] : run->valid;
}

/* The target of row r at class k before smoothing. Soft targets sum to 1 over the classes. */
static double plain_target(const abar__op_desc *d, const abar__op_args *a, int64_t r, int64_t k)
{
    const int32_t *label = a->target;
    if (d->soft_targets) return ((const double *)a->target)[r * class_count(d) + k];
    if (!d->label_pairs) return label[r] == k ? 1.0 : 0.0;
    double share = (double)a->share[r];
    return (label[2 * r] == k ? share : 0.0) + (label[2 * r + 1] == k ? 1.0 - share : 0.0);
}

static double wanted(const abar__op_desc *d, const abar__op_args *a, int64_t r, int64_t k)
{
    return (1.0 - d->smoothing) * plain_target(d, a, r, k) + d->smoothing / (double)class_count(d);
}

/* The class that counts as correct: that of the largest share. */
static int64_t truth_of(const abar__op_desc *d, const abar__op_args *a, int64_t r)
{
    const int32_t *label = a->target;
    if (d->soft_targets) return first_maximum((const double *)a->target + r * class_count(d), class_count(d));
    return d->label_pairs ? label[2 * r + ((double)a->share[r] < 0.5)] : label[r];
}

static abar_status check_labels(abar__op *op, const abar__op_args *a)
{
    int64_t classes = class_count(&op->desc), rows = valid_rows(&op->desc, a->run);
    const int32_t *label = a->target;
    int64_t labels = op->desc.label_pairs ? 2 * rows : rows;
    for (int64_t i = 0; i < labels; i++)
        if (label[i] < 0 || label[i] >= classes)
            return abar__fail(
                op->dev->ctx, ABAR_E_ARGUMENT,
                "cross entropy: label %d of sample %lld is not among the %lld classes, give the net as many outputs "
                "as the data has classes",
                (int)label[i], (long long)(i * a->run->valid / labels), (long long)classes);
    return ABAR_OK;
}

/* A label for each row, from its softmax (nn_impl.h). */
static void draw_labels(const abar__op_desc *d, const abar__op_args *a)
{
    const int64_t classes = class_count(d), rows = valid_rows(d, a->run), each = d->in[0].ndim == 3 ? d->in[0].dim[1] : 1;
    int32_t *label = (int32_t *)(uintptr_t)a->target; /* the net's own memory */
    for (int64_t r = 0; r < rows; r++) {
        const double *x = (const double *)a->x[0] + r * classes, norm = log_sum_exp(x, classes);
        const uint64_t row = abar__run_label_index(a->run, a->run->sample0 * each + r);
        const double u = abar__uniform(abar__random(a->run->seed, ABAR_DRAW_LABELS, a->run->step, row).u[0]);
        double sum = 0.0;
        int64_t k = 0;
        for (; k < classes - 1; k++) {
            sum += exp(x[k] - norm);
            if (sum > u) break;
        }
        label[r] = (int32_t)k;
    }
}

static abar_status entropy_forward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    int64_t classes = class_count(d), rows = valid_rows(d, a->run);
    if (a->run->draw_labels) draw_labels(d, a);
    for (int64_t r = 0; a->run->one_class && r < rows; r++)
        ((int32_t *)(uintptr_t)a->target)[r] = (int32_t)(a->run->one_class - 1); /* the net's own memory */
    if (!d->soft_targets) ABAR_TRY(check_labels(op, a));
    double sum = 0.0;
    int64_t correct = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = (const double *)a->x[0] + r * classes;
        double norm = log_sum_exp(x, classes);
        for (int64_t k = 0; k < classes; k++) sum += wanted(d, a, r, k) * (norm - x[k]);
        correct += first_maximum(x, classes) == truth_of(d, a, r);
    }
    *a->result = (abar_loss){.loss = rows > 0 ? sum / (double)rows : 0.0, .correct = correct, .count = rows};
    return ABAR_OK;
}

static abar_status entropy_backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    int64_t classes = class_count(d), rows = valid_rows(d, a->run);
    if (!a->dx[0]) return ABAR_OK;
    memset(a->dx[0], 0, (size_t)abar__shape_count(&d->in[0]) * sizeof(double));
    for (int64_t r = 0; r < rows; r++) {
        const double *x = (const double *)a->x[0] + r * classes;
        double *dx = (double *)a->dx[0] + r * classes, norm = log_sum_exp(x, classes);
        const double root = a->run->one_class ? exp(0.5 * (x[a->run->one_class - 1] - norm)) : 1.0;
        for (int64_t k = 0; k < classes; k++)
            dx[k] = root * (exp(x[k] - norm) - wanted(d, a, r, k)) / (double)rows * a->run->loss_scale;
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_softmax_cross_entropy = {
    "ref-softmax-cross-entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, create, entropy_forward, entropy_backward, NULL};

/* ---- squared error: mean over all elements of the valid samples ------------------------------------------------- */

static int64_t valid_elements(const abar__op *op, const abar__op_args *a)
{
    return abar__shape_count(&op->desc.in[0]) / op->desc.in[0].dim[0] * a->run->valid;
}

static abar_status square_forward(abar__op *op, const abar__op_args *a)
{
    const double *x = a->x[0], *target = a->target;
    int64_t count = valid_elements(op, a);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += (x[i] - target[i]) * (x[i] - target[i]);
    *a->result = (abar_loss){.loss = count > 0 ? sum / (double)count : 0.0, .count = a->run->valid};
    return ABAR_OK;
}

static abar_status square_backward(abar__op *op, const abar__op_args *a)
{
    const double *x = a->x[0], *target = a->target;
    double *dx = a->dx[0];
    int64_t count = valid_elements(op, a);
    if (!dx) return ABAR_OK;
    memset(dx, 0, (size_t)abar__shape_count(&op->desc.in[0]) * sizeof *dx);
    for (int64_t i = 0; i < count; i++) dx[i] = 2.0 * (x[i] - target[i]) / (double)count * a->run->loss_scale;
    return ABAR_OK;
}

const abar__op_impl abar__ref_squared_error = {"ref-squared-error", ABAR_OP_SQUARED_ERROR, create,
                                               square_forward,      square_backward,       NULL};
