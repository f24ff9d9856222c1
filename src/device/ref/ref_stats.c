/* Statistics and dense algebra of the reference device, by the definitions: every element of every row is looked up where it
 * lies, matrices are multiplied and factorised by the textbook. The oracle for the clever versions. */
#include "device/ref/ref_stats.h"

#include "device/device_impl.h"
#include "device/step_rules.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* Element k of the patch under output position r of example n: zero where it hangs over the padding. */
static double patch(const abar__rows *s, int64_t n, int64_t r, int64_t k)
{
    const abar_window *w = &s->window;
    int64_t kw = w->kernel[1], c = k / (w->kernel[0] * kw), i = k / kw % w->kernel[0], j = k % kw;
    int64_t columns = abar_window_out(w, 1, s->input.dim[3]), p = r / columns, q = r % columns;
    int64_t y = p * w->stride[0] - w->pad[0] + i * w->dilation[0], x = q * w->stride[1] - w->pad[1] + j * w->dilation[1];
    if (y < 0 || y >= s->input.dim[2] || x < 0 || x >= s->input.dim[3]) return 0.0;
    int64_t index[4] = {n, s->group * (s->input.dim[1] / w->groups) + c, y, x};
    return abar__tensor_load(&s->input, abar__tensor_offset(&s->input, index));
}

/* Element k of row r of example n: the input, or the homogeneous 1 behind it. */
static double input_at(const abar__rows *s, int64_t n, int64_t r, int64_t k)
{
    if (k == s->in) return 1.0;
    if (s->convolution) return patch(s, n, r, k);
    int64_t index[3] = {n, s->input.ndim == 2 ? k : r, k};
    return abar__tensor_load(&s->input, abar__tensor_offset(&s->input, index));
}

static double grad_at(const abar__rows *s, int64_t n, int64_t r, int64_t o)
{
    const abar_tensor *t = &s->output_grad;
    int64_t rows[3] = {n, t->ndim == 2 ? o : r, o};
    int64_t image[4] = {n, s->group * s->out + o, s->convolution ? r / t->dim[3] : 0, s->convolution ? r % t->dim[3] : 0};
    return s->grad_scale * abar__tensor_load(t, abar__tensor_offset(t, s->convolution ? image : rows));
}

/* ---- sums over rows --------------------------------------------------------------------------------------------- */

static void input_sum(abar_device *dev, const abar__rows *s, void *out)
{
    (void)dev;
    double *sum = out;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t k = 0; k < abar__rows_d(s); k++) sum[k] += input_at(s, n, r, k);
}

static void input_square_add(abar_device *dev, const abar__rows *s, double *sum)
{
    (void)dev;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t k = 0; k < abar__rows_d(s); k++) *sum += input_at(s, n, r, k) * input_at(s, n, r, k);
}

static void grad_sum(abar_device *dev, const abar__rows *s, void *out)
{
    (void)dev;
    double *sum = out;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t o = 0; o < s->out; o++) sum[o] += grad_at(s, n, r, o);
}

static void grad_squares(abar_device *dev, const abar__rows *s, const double *weight, void *out)
{
    (void)dev;
    double *sum = out;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t o = 0; o < s->out; o++)
                sum[o] += (weight ? weight[n] : 1.0) * grad_at(s, n, r, o) * grad_at(s, n, r, o);
}

/* Element k of example n's mean row. */
static double input_mean(const abar__rows *s, int64_t n, int64_t k)
{
    double sum = 0.0;
    for (int64_t r = 0; r < s->per_example; r++) sum += input_at(s, n, r, k);
    return sum / (double)s->per_example;
}

static double grad_mean(const abar__rows *s, int64_t n, int64_t o)
{
    double sum = 0.0;
    for (int64_t r = 0; r < s->per_example; r++) sum += grad_at(s, n, r, o);
    return sum / (double)s->per_example;
}

static void example_weights(abar_device *dev, const abar__rows *s, double *a, double *p, double *number)
{
    (void)dev;
    for (int64_t n = 0; n < s->examples; n++) {
        a[n] = p[n] = 0.0;
        for (int64_t k = 0; k < abar__rows_d(s); k++) a[n] += input_mean(s, n, k) * input_mean(s, n, k);
        for (int64_t o = 0; o < s->out; o++) p[n] += grad_mean(s, n, o) * grad_mean(s, n, o);
        *number += a[n] * p[n];
        a[n] /= (double)s->per_example;
        p[n] /= (double)s->per_example;
    }
}

static void input_mean_product(abar_device *dev, const abar__rows *s, void *out, void *scratch)
{
    (void)dev;
    (void)scratch;
    double *square = out;
    int64_t d = abar__rows_d(s);
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t i = 0; i < d; i++) {
            const double mean = input_mean(s, n, i);
            for (int64_t j = 0; j <= i; j++) square[i * d + j] += mean * input_mean(s, n, j);
        }
}

static void grad_mean_product(abar_device *dev, const abar__rows *s, void *out, void *scratch)
{
    (void)dev;
    (void)scratch;
    double *square = out;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t i = 0; i < s->out; i++) {
            const double mean = grad_mean(s, n, i);
            for (int64_t j = 0; j <= i; j++) square[i * s->out + j] += mean * grad_mean(s, n, j);
        }
}

static void example_means(abar_device *dev, const abar__rows *s, bool of_grads, void *out)
{
    (void)dev;
    double *means = out;
    const int64_t d = of_grads ? s->out : abar__rows_d(s);
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t k = 0; k < d; k++) means[n * d + k] = of_grads ? grad_mean(s, n, k) : input_mean(s, n, k);
}

static void input_product(abar_device *dev, const abar__rows *s, const double *weight, void *out, void *scratch)
{
    (void)dev;
    (void)scratch;
    double *square = out;
    int64_t d = abar__rows_d(s);
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t i = 0; i < d; i++) {
                const double a = (weight ? weight[n] : 1.0) * input_at(s, n, r, i);
                for (int64_t j = 0; j <= i; j++) square[i * d + j] += a * input_at(s, n, r, j);
            }
}

static void grad_product(abar_device *dev, const abar__rows *s, void *out, void *scratch)
{
    (void)dev;
    (void)scratch;
    double *square = out;
    for (int64_t n = 0; n < s->examples; n++)
        for (int64_t r = 0; r < s->per_example; r++)
            for (int64_t i = 0; i < s->out; i++) {
                const double p = grad_at(s, n, r, i);
                for (int64_t j = 0; j <= i; j++) square[i * s->out + j] += p * grad_at(s, n, r, j);
            }
}

static size_t no_product_scratch(abar_device *dev, const abar__rows *s)
{
    (void)dev;
    (void)s;
    return 0;
}

/* ---- averages ----------------------------------------------------------------------------------------------------- */

static bool all_finite(abar_device *dev, int64_t n, bool square, const void *in, double scale)
{
    (void)dev;
    const double *x = in;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= (square ? i : 0); j++)
            if (!isfinite(x[square ? i * n + j : i]) || !isfinite(scale * x[square ? i * n + j : i])) return false;
    return true;
}

static void commit(abar_device *dev, int64_t n, bool square, void *out, void *in, double beta, double add)
{
    (void)dev;
    double *average = out, *pending = in;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= (square ? i : 0); j++) {
            int64_t from = square ? i * n + j : i, to = square ? j * n + i : i;
            average[to] = beta * average[to] + add * pending[from];
            pending[from] = 0.0;
        }
}

static void clear(abar_device *dev, int64_t n, bool square, void *in)
{
    (void)dev;
    double *pending = in;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= (square ? i : 0); j++) pending[square ? i * n + j : i] = 0.0;
}

static double trace(abar_device *dev, int64_t d, const void *in)
{
    (void)dev;
    const double *average = in;
    double sum = 0.0;
    for (int64_t i = 0; i < d; i++) sum += average[i * d + i];
    return sum;
}

/* ---- factorisations --------------------------------------------------------------------------------------------- */

bool abar__ref_cholesky(int64_t d, double *l)
{
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = l[i * d + j];
            for (int64_t k = 0; k < j; k++) sum -= l[i * d + k] * l[j * d + k];
            if (i == j && !(sum > 0.0 && isfinite(sum))) return false;
            l[i * d + j] = i == j ? sqrt(sum) : sum / l[j * d + j];
        }
    return true;
}

/* x becomes (L L^T)^-1 x. */
static void solve(int64_t d, const double *l, double *x)
{
    for (int64_t i = 0; i < d; i++) {
        double sum = x[i];
        for (int64_t k = 0; k < i; k++) sum -= l[i * d + k] * x[k];
        x[i] = sum / l[i * d + i];
    }
    for (int64_t i = d - 1; i >= 0; i--) {
        double sum = x[i];
        for (int64_t k = i + 1; k < d; k++) sum -= l[k * d + i] * x[k];
        x[i] = sum / l[i * d + i];
    }
}

static bool invert(abar_device *dev, int64_t d, const void *in, double scale, double shift, bool in_double, void *out,
                   void *scratch)
{
    (void)in_double; /* it always is */
    const double *average = in;
    double *l = scratch, *inverse = l + d * d;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) l[i * d + j] = scale * average[j * d + i] + (i == j ? shift : 0.0);
    if (!abar__ref_cholesky(d, l)) return false;
    memset(inverse, 0, (size_t)(d * d) * sizeof *inverse);
    for (int64_t c = 0; c < d; c++) {
        inverse[c * (d + 1)] = 1.0;
        solve(d, l, inverse + c * d);
    }
    if (!all_finite(dev, d * d, false, inverse, 1.0)) return false;
    memcpy(out, inverse, (size_t)(d * d) * sizeof *inverse);
    return true;
}

static size_t square_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d) * sizeof(double);
}

/* ---- rows of single examples (natural.h) --------------------------------------------------------------------------- */

static void example_rows(abar_device *dev, const abar__rows *s, void *a, void *p, void *scratch)
{
    (void)dev, (void)scratch;
    const int64_t d = abar__rows_d(s);
    double *left = p, *right = a;
    for (int64_t n = 0; n < s->examples; n++) {
        for (int64_t k = 0; p && k < d; k++) right[n * d + k] = input_at(s, n, 0, k);
        for (int64_t o = 0; p && o < s->out; o++) left[n * s->out + o] = grad_at(s, n, 0, o);
        for (int64_t i = 0; !p && i < s->out * d; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < s->per_example; r++) sum += grad_at(s, n, r, i / d) * input_at(s, n, r, i % d);
            right[n * s->out * d + i] = sum;
        }
    }
}

static void rows_gram(abar_device *dev, int64_t rows, int64_t numbers, const double *x, double *panels, double *sums)
{
    (void)dev, (void)panels;
    const int64_t pitch = (rows + 7) / 8 * 8;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j <= i; j++)
            for (int64_t k = 0; k < numbers; k++) sums[i * pitch + j] += x[i * numbers + k] * x[j * numbers + k];
}

static bool solve_shifted(abar_device *dev, int64_t n, const double *k, int64_t pitch, double shift, double *factor, double *x)
{
    (void)dev;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) factor[i * n + j] = k[i * pitch + j] + (i == j ? shift : 0.0);
    if (!abar__ref_cholesky(n, factor)) return false;
    solve(n, factor, x);
    return true;
}

/* One Jacobi rotation that clears element (p, q) of the symmetric matrix a and turns the rows of v along. */
static void rotate(int64_t d, double *a, double *v, int64_t p, int64_t q)
{
    double theta = (a[q * d + q] - a[p * d + p]) / (2.0 * a[p * d + q]);
    double t = (theta >= 0.0 ? 1.0 : -1.0) / (fabs(theta) + sqrt(theta * theta + 1.0)), c = 1.0 / sqrt(t * t + 1.0), s = t * c;
    for (int64_t k = 0; k < d; k++) {
        double x = a[k * d + p], y = a[k * d + q];
        a[k * d + p] = c * x - s * y;
        a[k * d + q] = s * x + c * y;
    }
    for (int64_t k = 0; k < d; k++) {
        double x = a[p * d + k], y = a[q * d + k];
        a[p * d + k] = c * x - s * y;
        a[q * d + k] = s * x + c * y;
        x = v[p * d + k], y = v[q * d + k];
        v[p * d + k] = c * x - s * y;
        v[q * d + k] = s * x + c * y;
    }
}

static void swap_rows(int64_t d, double *values, double *v, int64_t i, int64_t j)
{
    double t = values[i];
    values[i] = values[j];
    values[j] = t;
    for (int64_t k = 0; k < d; k++) {
        t = v[i * d + k];
        v[i * d + k] = v[j * d + k];
        v[j * d + k] = t;
    }
}

static double off_diagonal(int64_t d, const double *a)
{
    double sum = 0.0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < i; j++) sum += a[i * d + j] * a[i * d + j];
    return sum;
}

bool abar__ref_eigen(abar_device *dev, int64_t d, const void *in, double scale, void *out_values, void *out_vectors,
                     void *scratch)
{
    (void)dev;
    const double *average = in;
    double *a = scratch, *v = a + d * d, *values = out_values, size = 0.0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) {
            a[i * d + j] = a[j * d + i] = scale * average[j * d + i];
            v[i * d + j] = v[j * d + i] = i == j ? 1.0 : 0.0;
            size += a[i * d + j] * a[i * d + j];
        }
    if (!isfinite(size)) return false;
    const double least = 1e-30 * size / (double)(d * d); /* even if all are as small as this their sum is small enough */
    for (int sweep = 0; off_diagonal(d, a) > 1e-30 * size; sweep++) {
        if (sweep == 60) return false;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = p + 1; q < d; q++)
                if (a[p * d + q] * a[p * d + q] > least) rotate(d, a, v, p, q);
    }
    for (int64_t i = 0; i < d; i++) values[i] = a[i * d + i];
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i + 1; j < d; j++)
            if (values[j] < values[i]) swap_rows(d, values, v, i, j);
    memcpy(out_vectors, v, (size_t)(d * d) * sizeof *v);
    return true;
}

/* ---- vectors and matrices ----------------------------------------------------------------------------------------- */

/* y (m, n) = a b with a (m, k), b (k, n), each given or transposed. */
static void multiply(int64_t m, int64_t k, int64_t n, const double *a, bool at, const double *b, bool bt, double *y)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++) sum += a[at ? l * m + i : i * k + l] * b[bt ? j * k + l : l * n + j];
            y[i * n + j] = sum;
        }
}

static void sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x, const void *right,
                     bool right_t, void *y, void *scratch)
{
    (void)dev;
    double *half = right || x == y ? scratch : y;
    if (left)
        multiply(m, m, n, left, left_t, x, false, half);
    else
        memcpy(half, x, (size_t)(m * n) * sizeof(double));
    if (right)
        multiply(m, n, n, half, false, right, right_t, y);
    else if (half != y)
        memcpy(y, half, (size_t)(m * n) * sizeof(double));
}

static double dot(abar_device *dev, int64_t n, const void *px, const void *py)
{
    (void)dev;
    const double *x = px, *y = py;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static double bilinear(abar_device *dev, int64_t m, int64_t n, const void *left, const void *x, const void *right)
{
    const double *l = left;
    double sum = 0.0;
    for (int64_t i = 0; i < m; i++) sum += l[i] * dot(dev, n, (const double *)x + i * n, right);
    return sum;
}

static double total(abar_device *dev, int64_t n, const void *in)
{
    (void)dev;
    const double *x = in;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

static void scale_rows(abar_device *dev, int64_t m, int64_t n, void *px, const void *factor, double scale)
{
    (void)dev;
    double *x = px;
    const double *f = factor;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) x[i * n + j] *= scale * (f ? f[i] : 1.0);
}

static void affine(abar_device *dev, int64_t n, const void *px, double scale, double shift, void *py)
{
    (void)dev;
    const double *x = px;
    double *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = scale * x[i] + shift;
}

static void reciprocal(abar_device *dev, int64_t n, const void *px, double scale, double shift, void *py)
{
    (void)dev;
    const double *x = px;
    double *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = 1.0 / (scale * x[i] + shift);
}

static void divide_outer(abar_device *dev, int64_t m, int64_t n, void *px, const void *rows, const void *columns, double shift,
                         double least)
{
    (void)dev;
    double *x = px;
    const double *a = rows, *b = columns;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) x[i * n + j] /= abar__outer_divisor(a[i], b[j], shift, least);
}

static void compare(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias,
                    const abar__precondition *pre, double result[3])
{
    const double *right = pre->right, *coefficient = pre->coefficient, *row_scale = pre->row_scale, *b = bias;
    double rr = right ? dot(dev, in, right, right) + (bias ? right[in] * right[in] : 0.0) : 0.0;
    result[0] = result[1] = result[2] = 0.0;
    for (int64_t o = 0; o < out; o++) {
        const double *g = (const double *)weight + o * in;
        double gg = dot(dev, in, g, g) + (bias ? b[o] * b[o] : 0.0);
        double gr = right ? dot(dev, in, g, right) + (bias ? b[o] * right[in] : 0.0) : 0.0;
        double c = coefficient ? coefficient[o] : gr, scale = pre->scale * (row_scale ? row_scale[o] : 1.0);
        result[0] += gg;
        result[1] += scale * (gg - c * gr);
        result[2] += scale * scale * (gg - 2.0 * c * gr + c * c * rr);
    }
}

static void gather(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias, void *joined)
{
    (void)dev;
    int64_t d = in + (bias ? 1 : 0);
    double *to = joined;
    for (int64_t o = 0; o < out; o++) {
        memcpy(to + o * d, (const double *)weight + o * in, (size_t)in * sizeof *to);
        if (bias) to[o * d + in] = ((const double *)bias)[o];
    }
}

static void scatter(abar_device *dev, int64_t out, int64_t in, const void *joined, void *weight, void *bias)
{
    (void)dev;
    int64_t d = in + (bias ? 1 : 0);
    const double *from = joined;
    for (int64_t o = 0; o < out; o++) {
        memcpy((double *)weight + o * in, from + o * d, (size_t)in * sizeof *from);
        if (bias) ((double *)bias)[o] = from[o * d + in];
    }
}

const abar__stats_ops abar__ref_stats = {
    .input_sum = input_sum,
    .input_square_add = input_square_add,
    .value_sums = abar__ref_value_sums,
    .position_sums = abar__ref_position_sums,
    .position_product = abar__ref_position_product,
    .grad_sum = grad_sum,
    .grad_squares = grad_squares,
    .example_weights = example_weights,
    .input_product = input_product,
    .grad_product = grad_product,
    .input_mean_product = input_mean_product,
    .grad_mean_product = grad_mean_product,
    .product_scratch = no_product_scratch,
    .example_rows = example_rows,
    .example_rows_scratch = no_product_scratch,
    .rows_gram = rows_gram,
    .solve_shifted = solve_shifted,
    .all_finite = all_finite,
    .commit = commit,
    .clear = clear,
    .trace = trace,
    .invert = invert,
    .invert_scratch = square_scratch,
    .eigen = abar__ref_eigen,
    .eigen_scratch = square_scratch,
    .sandwich = sandwich,
    .dot = dot,
    .bilinear = bilinear,
    .sum = total,
    .compare = compare,
    .scale_rows = scale_rows,
    .affine = affine,
    .reciprocal = reciprocal,
    .divide_outer = divide_outer,
    .gather = gather,
    .scatter = scatter,
    .orthogonalise = abar__ref_orthogonalise,
    .orthogonalise_scratch = abar__ref_orthogonalise_scratch,
    .example_means = example_means,
    .multiply = abar__ref_multiply,
    .solve_rows = abar__ref_solve_rows,
    .solve_rows_scratch = abar__ref_solve_rows_scratch,
    .row_products = abar__ref_row_products,
    .combine_rows = abar__ref_combine_rows,
    .solve_gram = abar__ref_solve_gram,
    .average_mode = abar__ref_average_mode,
    .inverse_root = abar__ref_inverse_root,
    .inverse_root_scratch = abar__ref_inverse_root_scratch,
    .multiply_mode = abar__ref_multiply_mode,
    .eigenbasis = abar__ref_eigenbasis,
    .turn_basis = abar__ref_turn_basis,
    .basis_scratch = abar__ref_basis_scratch,
};
