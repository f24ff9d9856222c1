/* Decisions of ReLUs and of maximum pooling, carried over from one net to another. */
#include "decisions.h"

#include "net/net_impl.h"

/* ---- what the net computed ---------------------------------------------------------------------------------------------- */

static bool decides(const abar__op_desc *d) { return d->activation == ABAR_ACT_RELU; }
static bool chooses(const abar__op_desc *d) { return d->kind == ABAR_OP_POOL2D && !d->average; }

/* Whether a decision of ref depends on this value. */
static bool matters(const abar_net *ref, int value)
{
    for (int s = 0; s < ref->n_steps; s++) {
        const abar__step *step = &ref->steps[s];
        if ((decides(&step->op->desc) && step->out == value) || (chooses(&step->op->desc) && step->in[0] == value)) return true;
    }
    return false;
}

/* Dense, in memory that the caller frees. */
static double *copy_of(const abar_tensor *t)
{
    const int64_t count = abar_tensor_count(t);
    double *copy = malloc((size_t)count * sizeof *copy);
    assert_non_null(copy);
    const abar_tensor to = abar_tensor_wrap(NULL, copy, ABAR_F64, t->ndim, t->dim);
    abar__tensor_copy_host(&to, t);
    return copy;
}

/* Runs the forward steps again, one by one, because memory is used again after the last reader: copies of the values that
 * matter to ref, one per value; NULL: it does not. */
static double **look(const abar_net *net, const abar_net *ref)
{
    double **seen = calloc((size_t)ref->n_values, sizeof *seen);
    assert_non_null(seen);
    for (int s = 0; s < net->n_steps; s++) {
        abar__step *step = &net->steps[s];
        step->args.scratch = step->forward_scratch < 0 ? NULL : (char *)net->arena + net->buffers[step->forward_scratch].offset;
        if (!step->op->y_is_x) OK(net->ctx, abar__op_forward(step->op, &step->args));
        if (step->out >= ref->n_values || !matters(ref, step->out)) continue;
        const abar_tensor y = abar__net_view(net, step->out, step->args.y);
        seen[step->out] = copy_of(&y);
    }
    return seen;
}

/* ---- what ref decides -----------------------------------------------------------------------------------------------------
 */

/* As the step that makes the value left it in memory, where it must be until the backward pass. */
static abar_tensor value_of(const abar_net *ref, int value)
{
    for (int s = 0; s < ref->n_steps; s++) {
        const abar__step *step = &ref->steps[s];
        if (step->out != value) continue;
        assert_true(ref->buffers[ref->values[value].buffer].last >= ref->n_steps);
        return abar__net_view(ref, value, step->args.y);
    }
    fail_msg("value %d is made by no step", value);
    return (abar_tensor){0};
}

static double largest(const abar_tensor *t)
{
    double size = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(t); i++) size = fmax(size, fabs(load(t, i)));
    return size;
}

/* The sign of y decides in the backward pass of ref. */
static int64_t decide_relu(const double *theirs, abar_net *ref, const abar__step *step, double tolerance)
{
    const abar_tensor ours = value_of(ref, step->out);
    const double size = largest(&ours);
    int64_t changed = 0;
    for (int64_t i = 0; i < abar_tensor_count(&ours); i++) {
        const double a = theirs[i], b = load(&ours, i);
        if (!(fabs(a - b) <= tolerance * size))
            fail_msg("%s: element %lld is %.9g, not %.9g", ref->nodes[step->node].name, (long long)i, a, b);
        if ((a > 0.0) == (b > 0.0)) continue;
        store(&ours, i, a);
        changed++;
    }
    return changed;
}

/* The first largest element of the window of output position (p, q) in a plane of x, (planes, height, width); -1: none. */
static int64_t first_largest(const abar__op_desc *d, const double *x, int64_t plane, int64_t p, int64_t q)
{
    const abar_window *w = &d->window;
    const int64_t height = d->in[0].dim[2], width = d->in[0].dim[3];
    int64_t best = -1;
    for (int64_t k = 0; k < w->kernel[0] * w->kernel[1]; k++) {
        const int64_t row = p * w->stride[0] - w->pad[0] + k / w->kernel[1] * w->dilation[0];
        const int64_t column = q * w->stride[1] - w->pad[1] + k % w->kernel[1] * w->dilation[1];
        if (row < 0 || row >= height || column < 0 || column >= width) continue;
        const int64_t at = (plane * height + row) * width + column;
        if (best < 0 || x[at] > x[best]) best = at;
    }
    return best;
}

/* ref keeps the position of every maximum. */
static int64_t decide_maximum(const double *theirs, abar_net *ref, const abar__step *step, double tolerance)
{
    const abar__op_desc *d = &step->op->desc;
    const abar_tensor ours = value_of(ref, step->in[0]);
    const double size = largest(&ours);
    int64_t *argmax = step->args.saved, changed = 0;
    const int64_t planes = d->out.dim[0] * d->out.dim[1], rows = d->out.dim[2], columns = d->out.dim[3];
    for (int64_t i = 0; i < planes * rows * columns; i++) {
        const int64_t best = first_largest(d, theirs, i / (rows * columns), i / columns % rows, i % columns);
        if (best == argmax[i]) continue;
        if (!(load(&ours, argmax[i]) - load(&ours, best) <= tolerance * size))
            fail_msg("%s: maximum %lld is at %lld, not %lld", ref->nodes[step->node].name, (long long)i, (long long)best,
                     (long long)argmax[i]);
        argmax[i] = best;
        changed++;
    }
    return changed;
}

int64_t decide_alike(fixture *f, abar_net *ref, double tolerance)
{
    double **seen = look(f->net, ref);
    int64_t changed = 0;
    abar_net_rollback(f->net); /* the running statistics were updated twice */
    forward(f, true);
    for (int s = 0; s < ref->n_steps; s++) {
        const abar__step *step = &ref->steps[s];
        if (decides(&step->op->desc)) changed += decide_relu(seen[step->out], ref, step, tolerance);
    }
    for (int s = 0; s < ref->n_steps; s++) {
        const abar__step *step = &ref->steps[s];
        if (chooses(&step->op->desc)) changed += decide_maximum(seen[step->in[0]], ref, step, tolerance);
    }
    for (int v = 0; v < ref->n_values; v++) free(seen[v]);
    free(seen);
    return changed;
}
