/* Looking at a laboratory: matrices, differences, and the optimizer's whole state. */
#include "curvature_lab.h"

#include "tensor/tensor_impl.h"

/* ---- matrices ------------------------------------------------------------------------------------------------------ */

static double *room(int64_t rows, int64_t columns)
{
    double *m = calloc((size_t)(rows * columns) + 1, sizeof *m);
    assert_non_null(m);
    return m;
}

/* The rows of one map in weight and bias, joined. */
static double *join(const lab_layer *y, int64_t group, const abar_tensor *weight, const abar_tensor *bias, double factor)
{
    const int64_t d = y->columns, in = d - (y->shape.bias ? 1 : 0);
    double *m = room(y->outputs, d);
    abar_tensor w = lab_host_copy(weight), b = y->shape.bias ? lab_host_copy(bias) : (abar_tensor){0};
    for (int64_t o = 0; o < y->outputs; o++) {
        const int64_t row = group * y->outputs + o;
        for (int64_t k = 0; k < in; k++) m[o * d + k] = factor * lab_get(&w, row * in + k);
        if (y->shape.bias) m[o * d + in] = factor * lab_get(&b, row);
    }
    free(w.data);
    free(b.data);
    return m;
}

double *lab_taken(const lab *l, int layer, int64_t group)
{
    const lab_layer *y = &l->layer[layer];
    return join(y, group, &y->weight, &y->bias, -1.0);
}

double *lab_gradient(const lab *l, int layer, int64_t group)
{
    const lab_layer *y = &l->layer[layer];
    return join(y, group, &y->gw, &y->gb, 1.0);
}

/* Element k of the patch under output position r of example n. */
static double patch_at(const lab_layer *y, int64_t group, int64_t n, int64_t r, int64_t k)
{
    const abar_window *w = &y->shape.window;
    const int64_t kh = w->kernel[0], kw = w->kernel[1], columns = y->p.dim[3];
    const int64_t c = group * (y->shape.in / y->groups) + k / (kh * kw);
    const int64_t i = r / columns * w->stride[0] + k / kw % kh * w->dilation[0] - w->pad[0];
    const int64_t j = r % columns * w->stride[1] + k % kw * w->dilation[1] - w->pad[1];
    if (i < 0 || j < 0 || i >= y->x.dim[2] || j >= y->x.dim[3]) return 0.0;
    return lab_get(&y->x, ((n * y->x.dim[1] + c) * y->x.dim[2] + i) * y->x.dim[3] + j);
}

double *lab_rows(const lab *l, int layer, int64_t group)
{
    const lab_layer *y = &l->layer[layer];
    const int64_t d = y->columns, in = d - (y->shape.bias ? 1 : 0);
    double *m = room(l->examples * y->rows, d);
    for (int64_t n = 0; n < l->examples; n++)
        for (int64_t r = 0; r < y->rows; r++) {
            double *row = m + (n * y->rows + r) * d;
            for (int64_t k = 0; k < in; k++)
                row[k] = y->x.ndim == 4 ? patch_at(y, group, n, r, k) : lab_get(&y->x, (n * y->rows + r) * in + k);
            if (y->shape.bias) row[in] = 1.0;
        }
    return m;
}

double *lab_row_grads(const lab *l, int layer, int64_t group)
{
    const lab_layer *y = &l->layer[layer];
    double *m = room(l->examples * y->rows, y->outputs);
    for (int64_t n = 0; n < l->examples; n++)
        for (int64_t r = 0; r < y->rows; r++)
            for (int64_t o = 0; o < y->outputs; o++) {
                const int64_t c = group * y->outputs + o, out = y->shape.out;
                m[(n * y->rows + r) * y->outputs + o] =
                    y->p.ndim == 4 ? lab_get(&y->p, (n * out + c) * y->rows + r) : lab_get(&y->p, (n * y->rows + r) * out + c);
            }
    return m;
}

int lab_map_index(const lab *l, const char *layer, int64_t group)
{
    for (int i = 0; i < abar_optim_map_count(l->optim); i++) {
        abar_map_info m = *abar_optim_map(l->optim, i);
        if (strcmp(m.layer, layer) == 0 && m.group == group) return i;
    }
    return -1;
}

abar_map_info lab_map(const lab *l, const char *layer, int64_t group)
{
    int i = lab_map_index(l, layer, group);
    assert_true(i >= 0);
    return *abar_optim_map(l->optim, i);
}

void lab_solve(int64_t n, double *m, int64_t columns, double *b)
{
    for (int64_t c = 0; c < n; c++) {
        int64_t best = c;
        for (int64_t r = c + 1; r < n; r++)
            if (fabs(m[r * n + c]) > fabs(m[best * n + c])) best = r;
        for (int64_t k = 0; k < n; k++) {
            double t = m[c * n + k];
            m[c * n + k] = m[best * n + k];
            m[best * n + k] = t;
        }
        for (int64_t k = 0; k < columns; k++) {
            double t = b[c * columns + k];
            b[c * columns + k] = b[best * columns + k];
            b[best * columns + k] = t;
        }
        for (int64_t r = 0; r < n; r++) {
            const double f = r == c ? 0.0 : m[r * n + c] / m[c * n + c];
            for (int64_t k = c; k < n && f != 0.0; k++) m[r * n + k] -= f * m[c * n + k];
            for (int64_t k = 0; k < columns && f != 0.0; k++) b[r * columns + k] -= f * b[c * columns + k];
        }
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = 0; k < columns; k++) b[r * columns + k] /= m[r * n + r];
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

double lab_difference(const double *a, const double *b, int64_t n)
{
    double off = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        off += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return size > 0.0 ? sqrt(off / size) : sqrt(off);
}

void lab_check(const lab *l, const char *what, const double *a, const double *b, int64_t n, double exact, double rounded)
{
    const double allowed = abar_device_dtype(l->dev) == ABAR_F64 ? exact : rounded, off = lab_difference(a, b, n);
    if (!(off <= allowed)) fail_msg("%s on %s: off by %.2e, allowed %.2e", what, abar_device_name(l->dev), off, allowed);
}

void lab_check_same(const lab *a, const lab *b, const char *what, double exact, double rounded)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        for (int64_t g = 0; g < a->layer[i].groups; g++) {
            char text[200];
            snprintf(text, sizeof text, "%.100s, layer %.60s group %d", what, a->layer[i].shape.name, (int)g);
            double *x = lab_taken(a, i, g), *y = lab_taken(b, i, g);
            lab_check(a, text, x, y, a->layer[i].outputs * a->layer[i].columns, exact, rounded);
            free(x);
            free(y);
        }
}

/* ---- the whole state -------------------------------------------------------------------------------------------------- */

static abar_status keep(void *user, const char *name, const abar_tensor *t)
{
    lab_state *s = user;
    assert_in_range(s->n, 0, LAB_STATE_MAX - 1);
    s->name[s->n] = strdup(name);
    abar_tensor *copy = &s->tensor[s->n++];
    *copy = *t;
    copy->dev = NULL;
    copy->data = calloc(1, abar_tensor_bytes(t) + 1);
    lab_copy(copy, t);
    return ABAR_OK;
}

static abar_status put_back(void *user, const char *name, const abar_tensor *t)
{
    const lab_state *s = user;
    const abar_tensor *kept = lab_state_find(s, "%s", name);
    if (!kept) fail_msg("%s was not there to keep", name);
    assert_true(abar__same_shape(t, kept));
    assert_int_equal(t->dtype, kept->dtype);
    lab_copy(t, kept);
    return ABAR_OK;
}

static void visit_weights(lab *l, abar_state_visitor visit, void *user)
{
    for (int i = 0; i < l->n; i++) {
        char name[512];
        snprintf(name, sizeof name, "weight of %s", l->layer[i].shape.name);
        visit(user, name, &l->layer[i].weight);
        snprintf(name, sizeof name, "bias of %s", l->layer[i].shape.name);
        if (l->layer[i].shape.bias) visit(user, name, &l->layer[i].bias);
    }
}

void lab_state_take(lab *l, lab_state *out)
{
    memset(out, 0, sizeof *out);
    visit_weights(l, keep, out);
    NEED(l, abar_optim_visit(l->optim, keep, out));
}

void lab_state_put(lab *l, const lab_state *state)
{
    visit_weights(l, put_back, (void *)(uintptr_t)state);
    NEED(l, abar_optim_visit(l->optim, put_back, (void *)(uintptr_t)state));
}

void lab_state_drop(lab_state *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->name[i]);
        free(s->tensor[i].data);
    }
    s->n = 0;
}

const abar_tensor *lab_state_find(const lab_state *s, const char *format, ...)
{
    char name[600];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0) return &s->tensor[i];
    return NULL;
}

const char *lab_state_changed(const lab_state *a, const lab_state *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        assert_string_equal(a->name[i], b->name[i]);
        if (memcmp(a->tensor[i].data, b->tensor[i].data, abar_tensor_bytes(&a->tensor[i])) != 0) return a->name[i];
    }
    return NULL;
}

/* Numbers of a map are NaN where the method has none of the kind. */
const char *lab_state_not_finite(const lab_state *s)
{
    for (int i = 0; i < s->n; i++) {
        const size_t length = strlen(s->name[i]);
        if (s->tensor[i].dtype == ABAR_I64 || (length > 8 && strcmp(s->name[i] + length - 8, ".numbers") == 0)) continue;
        for (int64_t k = 0; k < abar_tensor_count(&s->tensor[i]); k++)
            if (!isfinite(lab_get(&s->tensor[i], k))) return s->name[i];
    }
    return NULL;
}
