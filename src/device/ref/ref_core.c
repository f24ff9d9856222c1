/* The "ref" device: plain C in double precision, one readable loop per operation. The oracle for the other back ends.
 * Update rules: methods.md section 8. */
#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static abar_status ref_open(abar_device *dev)
{
    dev->threads = 1;
    snprintf(dev->description, sizeof dev->description, "ref: plain C, double precision");
    return ABAR_OK;
}

static void ref_close(abar_device *dev) { (void)dev; }

static abar_status ref_alloc(abar_device *dev, size_t bytes, void **out) { return abar__alloc(dev->ctx, bytes, out); }

static void ref_release(abar_device *dev, void *memory, size_t bytes) { abar__free(dev->ctx, memory, bytes); }

static abar_status ref_copy(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    (void)dev;
    abar__tensor_copy_host(dst, src);
    return ABAR_OK;
}

static double largest_element(const abar__update_item *items, int n)
{
    double largest = 0.0;
    for (int k = 0; k < n; k++) {
        const double *grad = items[k].grad;
        for (int64_t i = 0; i < items[k].count; i++) {
            if (!isfinite(grad[i])) return INFINITY;
            largest = fmax(largest, fabs(grad[i]));
        }
    }
    return largest;
}

/* <row o, right>, the element of the bias included; bias NULL: there is none. */
static double row_product(const double *grad, const double *bias, int64_t columns, const double *right, int64_t o)
{
    double c = 0.0;
    for (int64_t i = 0; i < columns; i++) c += grad[o * columns + i] * right[i];
    return bias ? c + bias[o] * right[columns] : c;
}

/* The products of all maps of an item. */
static void take_products(const abar__update_item *item, const abar__row_look *look)
{
    const double *grad = item->grad, *end = grad + item->count;
    for (; grad < end; grad += look->rows * look->columns, look++)
        for (int64_t o = 0; look->right && o < look->rows; o++)
            ((double *)look->products)[o] = row_product(grad, look->bias, look->columns, look->right, o);
}

/* The largest element is brought to [1/2, 1) by a power of 2, which rounds nothing, so that no square overflows. */
static bool ref_norm(abar_device *dev, const abar__update_item *items, int n, const abar__row_look *looks, double *norm)
{
    (void)dev;
    int exponent = 0;
    double sum = 0.0;
    const double largest = largest_element(items, n);
    if (!isfinite(largest)) return false;
    (void)frexp(largest, &exponent);
    for (int k = 0; k < n; k++) {
        const double *grad = items[k].grad;
        for (int64_t i = 0; i < items[k].count; i++) {
            const double x = ldexp(grad[i], -exponent);
            sum += x * x;
        }
        if (looks && items[k].map >= 0 && looks[items[k].map].rows > 0) take_products(&items[k], &looks[items[k].map]);
    }
    *norm = fmin(ldexp(sqrt(sum), exponent), DBL_MAX);
    return true;
}

/* ---- update ------------------------------------------------------------------------------------------------------- */

typedef void rule(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g);

/* Element i of the item, whose gradient is g. */
static void sgd_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *weight = item->weight, *velocity = item->state[0];
    double lr = s->lr * item->lr_scale, w = weight[i];
    if (s->decoupled)
        w *= 1.0 - lr * item->weight_decay;
    else
        g += item->weight_decay * w;
    double step = g;
    if (velocity) {
        velocity[i] = s->momentum * velocity[i] + g;
        step = s->nesterov ? g + s->momentum * velocity[i] : velocity[i];
    }
    weight[i] = w - lr * step;
}

/* The decay of a weight w that is moved against this step. */
static double decay_of(const abar__update_item *item, double w, double step)
{
    return item->cautious && step * w < 0.0 ? 0.0 : item->weight_decay;
}

/* The second moment takes g in; returns its corrected root, with eps. */
static double second_root(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *second = item->state[1];
    second[i] = s->beta2 * second[i] + (1.0 - s->beta2) * g * g;
    return sqrt(second[i] / (1.0 - pow(s->beta2, (double)s->t))) + s->eps;
}

static double clamped(double g) { return fmin(fmax(g, -ABAR_ADAMW_LARGEST_F64), ABAR_ADAMW_LARGEST_F64); }

static void adam_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g, bool ahead)
{
    double *weight = item->weight, *first = item->state[0];
    const double lr = s->lr * item->lr_scale, correction = 1.0 - pow(s->beta1, (double)s->t);
    g = clamped(g);
    first[i] = s->beta1 * first[i] + (1.0 - s->beta1) * g;
    const double mean = ahead ? s->beta1 * first[i] + (1.0 - s->beta1) * g : first[i];
    const double step = mean / correction / second_root(item, s, i, g);
    weight[i] = (1.0 - lr * decay_of(item, weight[i], step)) * weight[i] - lr * step;
}

static void adamw_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    adam_element(item, s, i, g, false);
}

static void nadamw_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    adam_element(item, s, i, g, true);
}

/* The weight is y, the first state z - y. */
static void sfadamw_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *y = item->weight, *apart = item->state[0];
    const double lr = s->lr * item->lr_scale, c = s->share;
    g = clamped(g);
    const double step = g / second_root(item, s, i, g) + item->weight_decay * y[i];
    y[i] += c * apart[i] - lr * (1.0 - s->beta1 * (1.0 - c)) * step;
    apart[i] = (1.0 - c) * (apart[i] - lr * s->beta1 * step);
}

/* methods.md section 11, step 1: the gradient's memory becomes u. */
static void momentum_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *average = item->state[0], *u = item->grad;
    u[i] = g;
    if (!average) return;
    average[i] = s->momentum * average[i] + (1.0 - s->momentum) * g;
    u[i] = s->nesterov ? (1.0 - s->momentum) * g + s->momentum * average[i] : average[i];
}

static void plain_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *weight = item->weight;
    const double lr = s->lr * item->lr_scale;
    weight[i] = (1.0 - lr * decay_of(item, weight[i], g)) * weight[i] - lr * g;
}

/* optimizers.md section 3: the square root of the corrected second moment, to the power kappa. */
static void adahessian_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *weight = item->weight, *first = item->state[0], *second = item->state[1];
    const double *diagonal = item->state[2];
    const double lr = s->lr * item->lr_scale, d = fmin(diagonal[i], ABAR_ADAMW_LARGEST_F64);
    const double correction1 = 1.0 - pow(s->beta1, (double)s->t), correction2 = 1.0 - pow(s->beta2, (double)s->t);
    first[i] = s->beta1 * first[i] + (1.0 - s->beta1) * g;
    second[i] = s->beta2 * second[i] + (1.0 - s->beta2) * d * d;
    const double length = pow(sqrt(second[i] / correction2), s->power) + s->eps;
    const double step = length > 0.0 ? first[i] / correction1 / length : 0.0;
    weight[i] = (1.0 - lr * item->weight_decay) * weight[i] - lr * step;
}

static void sophia_element(const abar__update_item *item, const abar__update_scalars *s, int64_t i, double g)
{
    double *weight = item->weight, *first = item->state[0];
    const double *diagonal = item->state[1];
    const double lr = s->lr * item->lr_scale;
    first[i] = s->beta1 * first[i] + (1.0 - s->beta1) * g;
    const double ratio = fmin(fabs(first[i]) / (s->clip_scale * diagonal[i] + ABAR_SOPHIA_LEAST), 1.0);
    weight[i] = (1.0 - lr * item->weight_decay) * weight[i] - lr * copysign(ratio, first[i]);
}

static rule *const rules[ABAR_UPDATE_KINDS] = {[ABAR_UPDATE_SGD] = sgd_element,
                                               [ABAR_UPDATE_ADAMW] = adamw_element,
                                               [ABAR_UPDATE_MOMENTUM] = momentum_element,
                                               [ABAR_UPDATE_PLAIN] = plain_element,
                                               [ABAR_UPDATE_NADAMW] = nadamw_element,
                                               [ABAR_UPDATE_SFADAMW] = sfadamw_element,
                                               [ABAR_UPDATE_ADAHESSIAN] = adahessian_element,
                                               [ABAR_UPDATE_SOPHIA] = sophia_element};

/* Row o of a map: scale * row_scale * (G_o - c right), its bias as the last element. */
static void update_row(const abar__update_item *item, const abar__update_scalars *s, int64_t o)
{
    const abar__precondition *pre = item->pre;
    int64_t columns = item->count / item->rows;
    const double *right = pre->right, *row_scale = pre->row_scale, *coefficient = pre->coefficient;
    const double *g = (const double *)item->grad + o * columns, *bias = item->bias ? item->bias->grad : NULL;
    const double scale = s->grad_scale * pre->scale * (row_scale ? row_scale[o] : 1.0);
    const double c = coefficient ? coefficient[o] : right ? row_product(item->grad, bias, columns, right, o) : 0.0;
    for (int64_t i = 0; i < columns; i++)
        rules[item->kind](item, s, o * columns + i, scale * (g[i] - (right ? c * right[i] : 0.0)));
    if (bias) rules[item->bias->kind](item->bias, s, o, scale * (bias[o] - (right ? c * right[columns] : 0.0)));
}

static void ref_update(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s)
{
    (void)dev;
    for (int k = 0; k < n; k++) {
        const abar__update_item *item = &items[k];
        const double *grad = item->grad, scale = item->kind == ABAR_UPDATE_PLAIN ? 1.0 : s->grad_scale;
        if (item->block >= 0 && s->verdicts[item->block] == ABAR_NS_NOT_FINITE) continue;
        if (item->pre)
            for (int64_t o = 0; o < item->rows; o++) update_row(item, s, o);
        else
            for (int64_t i = 0; i < item->count; i++) rules[item->kind](item, s, i, scale * grad[i]);
    }
}

extern const abar__stats_ops abar__ref_stats;

static const abar_device_ops device = {
    .name = "ref",
    .dtype = ABAR_F64,
    .open = ref_open,
    .close = ref_close,
    .alloc = ref_alloc,
    .release = ref_release,
    .copy = ref_copy,
    .norm = ref_norm,
    .update = ref_update,
    .stats = &abar__ref_stats,
    .step = &abar__host_step,
};

const abar_device_ops *const abar__ref_device = &device;
