/* The derive stage on the host: scalars first, then matrices by the ladder of methods.md section 9, then vectors. */
#include "device/host/derive.h"

#include "device/step_rules.h"

static size_t element(const abar_device *dev) { return abar_dtype_size(dev->ops->dtype); }

static size_t vector_bytes(const abar_device *dev, int64_t n) { return abar__round_up((size_t)n * element(dev), ABAR_ALIGN); }

static bool is_wanted(abar__derive_what what, bool calibrated) { return what == ABAR_DERIVE_ALL || !calibrated; }

static bool is_vector(const abar__derived_tensor *d)
{
    return d->kind == ABAR_DERIVED_VECTOR || d->kind == ABAR_DERIVED_RECIPROCAL;
}

bool abar__is_renewed(const abar__plan *p, const abar__derived_tensor *d)
{
    if (abar__derived_is_renewed(d) || (is_vector(d) && !d->calibrated)) return true;
    for (int i = 0; i < p->n_derived; i++) /* the values of one */
        if (abar__derived_is_renewed(&p->derived[i]) && p->derived[i].values >= 0 && &p->derived[p->derived[i].values] == d)
            return true;
    return false;
}

/* ---- scalars ------------------------------------------------------------------------------------------------------ */

static double mean_of(abar_device *dev, const abar__running_average *a)
{
    const abar__stats_ops *stats = dev->ops->stats;
    return (a->square ? stats->trace(dev, a->n, a->average) : stats->sum(dev, a->n, a->average)) / (double)a->n;
}

static double square_of(abar_device *dev, const abar__running_average *a)
{
    return dev->ops->stats->dot(dev, a->n, a->average, a->average);
}

static void find_scalars(abar_device *dev, const abar__plan *p, const abar__map_state *state, double unbias,
                         abar__derive_what what, double *v)
{
    for (int i = 0; i < p->n_scalars; i++) {
        const abar__scalar_op *s = &p->scalar[i];
        if (!is_wanted(what, s->calibrated)) continue;
        switch (s->kind) { /* a is an average, or a scalar */
        case ABAR_SCALAR_VALUE: v[i] = s->value; break;
        case ABAR_SCALAR_MEAN: v[i] = unbias * mean_of(dev, &p->average[s->a]); break;
        case ABAR_SCALAR_SQUARE: v[i] = unbias * unbias * square_of(dev, &p->average[s->a]); break;
        case ABAR_SCALAR_NUMBER: v[i] = unbias * state->real[ABAR_REAL_NUMBER]; break;
        default: v[i] = abar__scalar_combine(s, v);
        }
    }
}

/* ---- inverses ----------------------------------------------------------------------------------------------------- */

/* The trace of what is inverted. */
static double trace_of(abar_device *dev, const abar__running_average *a, double unbias)
{
    return a->square ? unbias * dev->ops->stats->trace(dev, a->n, a->average) : unbias * unbias * square_of(dev, a);
}

static bool factorise(abar_device *dev, const abar__running_average *a, double unbias, double shift, bool in_double, void *out,
                      void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    return a->square ? stats->invert(dev, a->n, a->average, unbias, shift, in_double, out, scratch)
                     : stats->solve_rows(dev, a->kept, a->row, a->average, unbias, shift, out, scratch);
}

/* methods.md section 9: raise the damping tenfold, at most five times, then factorise in double. */
static bool climb(abar_device *dev, const abar__running_average *a, abar__map_state *state, double unbias, double *shift,
                  void *out, void *scratch)
{
    const double least = 1e-8 * trace_of(dev, a, unbias) / (double)a->row;
    for (int raised = 0; raised < 5; raised++) {
        if (factorise(dev, a, unbias, *shift, false, out, scratch)) return true;
        state->count[ABAR_COUNT_RAISED]++;
        *shift = fmax(10.0 * *shift, least);
    }
    if (factorise(dev, a, unbias, *shift, false, out, scratch)) return true;
    state->count[ABAR_COUNT_DOUBLED]++;
    return factorise(dev, a, unbias, *shift, true, out, scratch);
}

/* own: where solved rows leave their shift. */
static bool invert(abar_device *dev, const abar__running_average *a, abar__map_state *state, double unbias, double shift,
                   void *out, void *own, void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    if (!climb(dev, a, state, unbias, &shift, out, scratch)) return false;
    /* the largest eigenvalue is at most the trace, that of the inverse at most its Frobenius norm; with fewer rows than columns
     * it is 1 / shift */
    const double largest = trace_of(dev, a, unbias) + shift * (double)a->row;
    state->real[ABAR_REAL_CONDITION] = largest * (a->square ? sqrt(stats->dot(dev, a->n * a->n, out, out)) : 1.0 / shift);
    if (!a->square) stats->affine(dev, 1, out, 0.0, shift, own);
    return true;
}

/* ---- inverses of parts -------------------------------------------------------------------------------------------------- */

static char *row_at(const abar_device *dev, const void *matrix, int64_t n, int64_t row, int64_t column)
{
    return (char *)matrix + (size_t)(row * n + column) * element(dev);
}

/* Rows of matrix (n, n) from its first-th diagonal element on, to block (w, w), or back. */
static void copy_block(abar_device *dev, int64_t n, int64_t first, int64_t w, void *matrix, void *block, bool back)
{
    for (int64_t i = 0; i < w; i++) {
        char *whole = row_at(dev, matrix, n, first + i, first), *part = row_at(dev, block, w, i, 0);
        dev->ops->stats->affine(dev, w, back ? part : whole, 1.0, 0.0, back ? whole : part);
    }
}

/* Every diagonal block by itself, by its own ladder; zeros elsewhere. All are renewed, or none. The condition told is that of
 * all together. */
static bool invert_blocks(abar_device *dev, const abar__derived_tensor *d, const abar__running_average *a,
                          abar__map_state *state, double unbias, double shift, double gamma, void *out, char *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const int64_t n = a->n, most = d->width < n ? d->width : n;
    const size_t each = vector_bytes(dev, most * most);
    const double before = state->real[ABAR_REAL_CONDITION];
    char *own = scratch, *inverses = own + each, *work = inverses + (size_t)((n + most - 1) / most) * each;
    double largest = 0.0, squares = 0.0;
    for (int64_t first = 0; first < n; first += most) {
        const int64_t w = n - first < most ? n - first : most;
        const abar__running_average block = {.n = w, .row = w, .square = true, .average = own};
        char *inverse = inverses + (size_t)(first / most) * each;
        copy_block(dev, n, first, w, a->average, own, false);
        const double mean = unbias * stats->trace(dev, w, own) / (double)w;
        if (!invert(dev, &block, state, unbias, shift + gamma * mean, inverse, NULL, work)) {
            state->real[ABAR_REAL_CONDITION] = before;
            return false;
        }
        const double square = stats->dot(dev, w * w, inverse, inverse);
        largest += state->real[ABAR_REAL_CONDITION] / sqrt(square);
        squares += square;
    }
    stats->clear(dev, n * n, false, out);
    for (int64_t first = 0; first < n; first += most)
        copy_block(dev, n, first, n - first < most ? n - first : most, out, inverses + (size_t)(first / most) * each, true);
    state->real[ABAR_REAL_CONDITION] = largest * sqrt(squares);
    return true;
}

/* I/shift + U^T diag(1/(values + shift) - 1/shift) U, the rows of U the eigenvectors of the largest eigenvalues. */
static bool invert_of_rank(abar_device *dev, const abar__derived_tensor *d, const abar__running_average *a,
                           abar__map_state *state, double unbias, double shift, void *out, char *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const int64_t n = a->n, rank = d->rank < n ? d->rank : n;
    const double least = 1e-8 * trace_of(dev, a, unbias) / (double)n;
    char *vectors = scratch, *scaled = vectors + vector_bytes(dev, n * n), *values = scaled + vector_bytes(dev, n * n);
    char *work = values + vector_bytes(dev, n), *top = row_at(dev, vectors, n, n - rank, 0);
    if (!stats->eigen(dev, n, a->average, unbias, values, vectors, work)) return false;
    const double smallest = stats->sum(dev, 1, row_at(dev, values, n, 0, n - rank));
    for (int raised = 0; !(smallest + shift > 0.0); raised++) { /* values ascend */
        if (raised == 5) return false;
        state->count[ABAR_COUNT_RAISED]++;
        shift = fmax(10.0 * shift, least);
    }
    for (int64_t i = 0; i < rank; i++) {
        const double value = stats->sum(dev, 1, row_at(dev, values, n, 0, n - rank + i));
        stats->affine(dev, n, row_at(dev, top, n, i, 0), 1.0 / (value + shift) - 1.0 / shift, 0.0,
                      row_at(dev, scaled, n, i, 0));
        state->real[ABAR_REAL_CONDITION] = (value + shift) / fmin(shift, smallest + shift);
    }
    stats->multiply(dev, n, n, rank, 1.0, top, true, scaled, false, 0.0, out);
    for (int64_t i = 0; i < n; i++)
        stats->affine(dev, 1, row_at(dev, out, n, i, i), 1.0, 1.0 / shift, row_at(dev, out, n, i, i));
    return true;
}

static size_t parts_scratch(abar_device *dev, const abar__derived_tensor *d, int64_t n)
{
    const int64_t w = d->width < n ? d->width : n;
    if (d->rank > 0) return 2 * vector_bytes(dev, n * n) + vector_bytes(dev, n) + dev->ops->stats->eigen_scratch(dev, n);
    return (size_t)(1 + (n + w - 1) / w) * vector_bytes(dev, w * w) + dev->ops->stats->invert_scratch(dev, w);
}

/* ---- matrices ----------------------------------------------------------------------------------------------------- */

/* The memory of matrix d and its eigenvalues; at: where the result goes. */
static size_t matrix_bytes(const abar_device *dev, const abar__plan *p, const abar__derived_tensor *d)
{
    return vector_bytes(dev, d->n) + (d->values >= 0 ? vector_bytes(dev, p->derived[d->values].n) : 0);
}

static size_t paired_scratch(abar_device *dev, int64_t n)
{
    return 3 * vector_bytes(dev, n * n) + vector_bytes(dev, n) + dev->ops->stats->eigen_scratch(dev, n);
}

/* W (A + shift I) W^T = I, by the eigenvectors of A; B = E W, the rows of E those of W P W^T. */
static bool derive_paired(abar_device *dev, const abar__plan *p, const abar__derived_tensor *d, abar__map_state *state,
                          double unbias, double shift, void *matrix, void *values, void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const int64_t n = p->average[d->average].n;
    char *w = scratch, *t = w + vector_bytes(dev, n * n), *u = t + vector_bytes(dev, n * n);
    char *own = u + vector_bytes(dev, n * n), *work = own + vector_bytes(dev, n);
    double largest = 0.0, least = 0.0;
    if (!stats->eigen(dev, n, p->average[d->average].average, unbias, own, w, work)) return false;
    for (int64_t i = 0; i < n; i++) {
        char *row = w + (size_t)(i * n) * element(dev);
        const double value = fmax(stats->sum(dev, 1, own + (size_t)i * element(dev)), 0.0) + shift;
        if (i == 0) least = value;
        largest = value;
        stats->affine(dev, n, row, 1.0 / sqrt(value), 0.0, row);
    }
    stats->multiply(dev, n, n, n, unbias, w, false, abar__plan_data(p, p->second[d->average]), false, 0.0, u);
    stats->multiply(dev, n, n, n, 1.0, u, false, w, true, 0.0, t);
    if (!stats->eigen(dev, n, t, 1.0, values, u, work)) return false;
    stats->multiply(dev, n, n, n, 1.0, u, false, w, false, 0.0, matrix);
    state->real[ABAR_REAL_CONDITION] = largest / least;
    return true;
}

static bool derive_matrix(abar_device *dev, const abar__plan *p, const abar__derived_tensor *d, abar__map_state *state,
                          double unbias, const double *v, void *matrix, void *values, void *scratch)
{
    const abar__running_average *a = &p->average[d->average];
    if (d->kind == ABAR_DERIVED_EIGENVECTORS)
        return dev->ops->stats->eigen(dev, a->n, a->average, unbias, values, matrix, scratch);
    const double shift = abar__scalar_or(v, d->shift, 0.0);
    if (d->kind == ABAR_DERIVED_PAIRED) return derive_paired(dev, p, d, state, unbias, shift, matrix, values, scratch);
    if (d->width > 0) return invert_blocks(dev, d, a, state, unbias, shift, abar__scalar_or(v, d->scale, 0.0), matrix, scratch);
    if (d->rank > 0) return invert_of_rank(dev, d, a, state, unbias, shift, matrix, scratch);
    return invert(dev, a, state, unbias, shift, matrix, values, scratch);
}

/* The first of a plan's matrices is derived last, in its place; the others before it, into scratch, so that all are renewed or
 * none. */
static int first_matrix(const abar__plan *p, abar__derive_what what)
{
    for (int i = 0; i < p->n_derived; i++)
        if (abar__derived_is_matrix(&p->derived[i]) && is_wanted(what, p->derived[i].calibrated)) return i;
    return p->n_derived;
}

static size_t matrix_scratch(abar_device *dev, const abar__running_average *a, const abar__derived_tensor *d)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__derived_kind kind = d->kind;
    if (d->width > 0 || d->rank > 0) return parts_scratch(dev, d, a->n);
    if (kind == ABAR_DERIVED_PAIRED) return paired_scratch(dev, a->n);
    if (kind == ABAR_DERIVED_SOLVED) return stats->solve_rows_scratch(dev, a->kept, a->row);
    return kind == ABAR_DERIVED_INVERSE ? stats->invert_scratch(dev, a->n) : stats->eigen_scratch(dev, a->n);
}

static size_t call_scratch(abar_device *dev, const abar__plan *p, abar__derive_what what)
{
    size_t most = 0;
    for (int i = 0; i < p->n_derived; i++) {
        const abar__derived_tensor *d = &p->derived[i];
        if (!abar__derived_is_matrix(d) || !is_wanted(what, d->calibrated)) continue;
        const size_t need = matrix_scratch(dev, &p->average[d->average], d);
        if (need > most) most = need;
    }
    return abar__round_up(most, ABAR_ALIGN);
}

size_t abar__derive_scratch(abar_device *dev, const abar__plan *p, abar__derive_what what)
{
    size_t bytes = call_scratch(dev, p, what);
    for (int i = first_matrix(p, what) + 1; i < p->n_derived; i++)
        if (abar__derived_is_matrix(&p->derived[i]) && is_wanted(what, p->derived[i].calibrated))
            bytes += matrix_bytes(dev, p, &p->derived[i]);
    return bytes;
}

static bool derive_matrices(abar_device *dev, const abar__plan *p, abar__map_state *state, double unbias,
                            abar__derive_what what, const double *v, char *scratch)
{
    const int first = first_matrix(p, what);
    char *const held = scratch + call_scratch(dev, p, what);
    char *at = held;
    for (int i = p->n_derived - 1; i > first; i--) {
        const abar__derived_tensor *d = &p->derived[i];
        if (!abar__derived_is_matrix(d) || !is_wanted(what, d->calibrated)) continue;
        if (!derive_matrix(dev, p, d, state, unbias, v, at, at + vector_bytes(dev, d->n), scratch)) return false;
        at += matrix_bytes(dev, p, d);
    }
    if (first == p->n_derived) return true;
    const abar__derived_tensor *d = &p->derived[first];
    if (!derive_matrix(dev, p, d, state, unbias, v, d->data, abar__plan_data(p, d->values), scratch)) return false;
    at = held;
    for (int i = p->n_derived - 1; i > first; i--) {
        d = &p->derived[i];
        if (!abar__derived_is_matrix(d) || !is_wanted(what, d->calibrated)) continue;
        dev->ops->stats->affine(dev, d->n, at, 1.0, 0.0, d->data);
        if (d->values >= 0)
            dev->ops->stats->affine(dev, p->derived[d->values].n, at + vector_bytes(dev, d->n), 1.0, 0.0,
                                    p->derived[d->values].data);
        at += matrix_bytes(dev, p, d);
    }
    return true;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

bool abar__derive(abar_device *dev, const abar__plan *p, abar__map_state *state, double unbias, abar__derive_what what,
                  void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    double v[ABAR_PLAN_SCALARS];
    find_scalars(dev, p, state, unbias, what, v);
    if (!derive_matrices(dev, p, state, unbias, what, v, scratch)) return false;
    for (int i = 0; i < p->n_derived; i++) {
        const abar__derived_tensor *d = &p->derived[i];
        if (!is_wanted(what, d->calibrated) || !is_vector(d)) continue;
        const double scale = unbias * abar__scalar_or(v, d->scale, 1.0);
        const void *average = p->average[d->average].average;
        if (d->kind == ABAR_DERIVED_VECTOR) stats->affine(dev, d->n, average, scale, 0.0, d->data);
        if (d->kind == ABAR_DERIVED_RECIPROCAL)
            stats->reciprocal(dev, d->n, average, scale, abar__scalar_or(v, d->shift, 0.0), d->data);
    }
    for (int i = 0; i < ABAR_REALS; i++)
        if (p->report[i] >= 0 && is_wanted(what, p->scalar[p->report[i]].calibrated)) state->real[i] = v[p->report[i]];
    return true;
}
