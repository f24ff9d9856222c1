/* Building plans. Nothing here computes: see device/host/step.c and the step of cuda. */
#include "plan/plan.h"

#include "base/base_impl.h"

static void fail(abar__plan *p, const char *what)
{
    if (!p->wrong) p->wrong = what;
}

abar__plan abar__plan_begin(int64_t out, int64_t columns, int64_t d)
{
    abar__plan p = {
        .d = d, .columns = columns, .out = out, .links = 1, .kernel = 1, .start = -1, .second = {-1, -1}, .second_start = -1};
    p.apply = (abar__treatment){
        .u = -1, .w = -1, .coefficient = -1, .left = -1, .right = -1, .row_scale = -1, .scale = 1.0, .bound = 1.0};
    for (int i = 0; i < ABAR_REALS; i++) p.report[i] = -1;
    return p;
}

/* Each of the three is summed with the other two. */
static bool weighed_alone(const abar__plan *p)
{
    const int weighed = (p->average[0].source == ABAR_INPUT_WEIGHED_PRODUCT) +
                        (p->average[1].source == ABAR_GRAD_WEIGHED_SQUARES) + (p->mean_number.source == ABAR_NUMBER_WEIGHTS);
    return weighed != 0 && weighed != 3;
}

bool abar__plan_reads_grad(const abar__plan *p)
{
    return abar__plan_is_natural(p) || p->average[1].name || p->average[0].grad_power > 0 || p->secant.used;
}

abar_status abar__plan_check(abar_context *ctx, const abar__plan *p, const char *method)
{
    const abar__treatment *t = &p->apply;
    const char *wrong = p->wrong;
    const bool natural = abar__plan_is_natural(p), treated = t->u >= 0 || t->right >= 0 || t->row_scale >= 0 || p->slots > 0;
    if (!wrong && natural && (treated || p->average[0].name || p->average[1].name))
        wrong = "the natural gradient keeps no averages, and treats the gradient in no other way";
    if (!wrong && !natural && !treated) wrong = "it never says what becomes of the gradient";
    if (!wrong && t->u >= 0 && t->right >= 0) wrong = "it treats the gradient in two ways";
    if (!wrong && t->mu > 0.0 && t->right < 0) wrong = "a length of its own needs a dense factor";
    if (!wrong && t->over_damping && p->report[ABAR_REAL_DAMPING] < 0) wrong = "it divides by a damping that it never reports";
    if (!wrong && weighed_alone(p))
        wrong = "weighed statistics come together: of inputs, of output gradients, and their number";
    if (!wrong) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_STATE, "plan of %s: %s", method, wrong);
}

/* ---- averages ----------------------------------------------------------------------------------------------------- */

/* How often p is a factor. */
static int grad_power(abar__statistic source)
{
    switch (source) {
    case ABAR_GRAD_MEAN:
    case ABAR_GRAD_ROWS:
    case ABAR_GRAD_NEAREST: return 1;
    case ABAR_GRAD_SQUARES:
    case ABAR_GRAD_WEIGHED_SQUARES:
    case ABAR_GRAD_PRODUCT:
    case ABAR_GRAD_MEAN_PRODUCT:
    case ABAR_INPUT_WEIGHED_PRODUCT:
    case ABAR_NUMBER_WEIGHTS: return 2;
    default: return 0;
    }
}

static bool is_product(abar__statistic source)
{
    return source == ABAR_INPUT_PRODUCT || source == ABAR_INPUT_MEAN_PRODUCT || source == ABAR_INPUT_WEIGHED_PRODUCT ||
           source == ABAR_GRAD_PRODUCT || source == ABAR_GRAD_MEAN_PRODUCT || source == ABAR_INPUT_NEAREST ||
           source == ABAR_GRAD_NEAREST;
}

static bool is_of_inputs(abar__statistic source)
{
    return source == ABAR_INPUT_MEAN || source == ABAR_ATTENTION_MEAN || source == ABAR_INPUT_PRODUCT ||
           source == ABAR_INPUT_MEAN_PRODUCT || source == ABAR_INPUT_WEIGHED_PRODUCT || source == ABAR_INPUT_ROWS ||
           source == ABAR_INPUT_NEAREST;
}

abar__stat abar__plan_average(abar__plan *p, const char *name, abar__statistic source, abar__per per)
{
    const int32_t at = is_of_inputs(source) ? 0 : 1;
    if (p->average[at].name) fail(p, "it averages two statistics of one side");
    p->average[at] = (abar__running_average){.name = name,
                                             .source = source,
                                             .n = at == 0 ? p->d : p->out,
                                             .row = at == 0 ? p->d : p->out,
                                             .square = is_product(source),
                                             .per = per,
                                             .grad_power = grad_power(source)};
    return (abar__stat){at};
}

void abar__plan_own_loss(abar__plan *p, abar__stat g) { p->average[g.index].own_loss = true; }

static abar__stat kept(abar__plan *p, const char *name, abar__statistic source, int64_t examples)
{
    const abar__stat s = abar__plan_average(p, name, source, ABAR_PER_EXAMPLE);
    p->average[s.index].kept = examples;
    abar__plan_own_loss(p, s);
    return s;
}

abar__stat abar__plan_rows(abar__plan *p, const char *name, abar__statistic source, int64_t examples)
{
    const abar__stat s = kept(p, name, source, examples);
    p->average[s.index].n = examples * p->average[s.index].row;
    return s;
}

static abar__scalar scalar(abar__plan *p, abar__scalar_kind kind, int32_t a, int32_t b, bool calibrated, double value)
{
    if (p->n_scalars == ABAR_PLAN_SCALARS) {
        fail(p, "it has too many scalars, raise ABAR_PLAN_SCALARS");
        return (abar__scalar){0};
    }
    p->scalar[p->n_scalars] =
        (abar__scalar_op){.kind = (int32_t)kind, .a = a, .b = b, .calibrated = calibrated, .value = value};
    return (abar__scalar){p->n_scalars++};
}

abar__scalar abar__plan_mean_number(abar__plan *p, const char *name, abar__statistic source, abar__per per)
{
    if (p->mean_number.name) fail(p, "it averages two numbers");
    p->mean_number =
        (abar__running_average){.name = name, .source = source, .n = 1, .per = per, .grad_power = grad_power(source)};
    return scalar(p, ABAR_SCALAR_NUMBER, 0, 0, false, 0.0);
}

void abar__plan_calibrate(abar__plan *p)
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) p->average[i].calibrated = p->average[i].name != NULL;
    p->mean_number.calibrated = p->mean_number.name != NULL;
    for (int i = 0; i < p->n_scalars; i++)
        if (p->scalar[i].kind == ABAR_SCALAR_NUMBER) p->scalar[i].calibrated = true;
}

void abar__plan_begin_at(abar__plan *p, double identity)
{
    if (p->positions || identity < 0.0) fail(p, "its averages begin where they cannot");
    p->identity = identity;
}

void abar__plan_by_position(abar__plan *p, int64_t positions) { p->positions = positions; }

/* ---- scalars ------------------------------------------------------------------------------------------------------ */

static abar__scalar of_two(abar__plan *p, abar__scalar_kind kind, abar__scalar a, abar__scalar b)
{
    return scalar(p, kind, a.index, b.index, p->scalar[a.index].calibrated || p->scalar[b.index].calibrated, 0.0);
}

static abar__scalar of_average(abar__plan *p, abar__scalar_kind kind, abar__stat a)
{
    return scalar(p, kind, a.index, 0, p->average[a.index].calibrated, 0.0);
}

abar__scalar abar__plan_value(abar__plan *p, double value) { return scalar(p, ABAR_SCALAR_VALUE, 0, 0, false, value); }
abar__scalar abar__plan_mean(abar__plan *p, abar__stat a) { return of_average(p, ABAR_SCALAR_MEAN, a); }
abar__scalar abar__plan_square(abar__plan *p, abar__stat a)
{
    if (p->average[a.index].square) fail(p, "it squares a matrix");
    return of_average(p, ABAR_SCALAR_SQUARE, a);
}
abar__scalar abar__plan_add(abar__plan *p, abar__scalar a, abar__scalar b) { return of_two(p, ABAR_SCALAR_ADD, a, b); }
abar__scalar abar__plan_subtract(abar__plan *p, abar__scalar a, abar__scalar b)
{
    return of_two(p, ABAR_SCALAR_SUBTRACT, a, b);
}
abar__scalar abar__plan_multiply(abar__plan *p, abar__scalar a, abar__scalar b)
{
    return of_two(p, ABAR_SCALAR_MULTIPLY, a, b);
}
abar__scalar abar__plan_divide(abar__plan *p, abar__scalar a, abar__scalar b) { return of_two(p, ABAR_SCALAR_DIVIDE, a, b); }
abar__scalar abar__plan_sqrt(abar__plan *p, abar__scalar a) { return of_two(p, ABAR_SCALAR_SQRT, a, a); }
abar__scalar abar__plan_max(abar__plan *p, abar__scalar a, abar__scalar b) { return of_two(p, ABAR_SCALAR_MAX, a, b); }
abar__scalar abar__plan_clamp(abar__plan *p, abar__scalar a, double least, double most)
{
    const abar__scalar raised = of_two(p, ABAR_SCALAR_MAX, a, abar__plan_value(p, least));
    return of_two(p, ABAR_SCALAR_MIN, raised, abar__plan_value(p, most));
}
abar__scalar abar__plan_ratio(abar__plan *p, abar__scalar a, abar__scalar b) { return of_two(p, ABAR_SCALAR_RATIO, a, b); }
abar__scalar abar__plan_reciprocal(abar__plan *p, abar__scalar a) { return of_two(p, ABAR_SCALAR_RECIPROCAL, a, a); }
abar__scalar abar__plan_share(abar__plan *p, abar__scalar a, abar__scalar b) { return of_two(p, ABAR_SCALAR_SHARE, a, b); }

void abar__plan_report(abar__plan *p, int real, abar__scalar a) { p->report[real] = a.index; }

/* ---- derived tensors ---------------------------------------------------------------------------------------------- */

static abar__factor derived(abar__plan *p, const char *name, abar__derived_kind kind, int32_t average, int64_t n)
{
    if (p->n_derived == ABAR_PLAN_DERIVED) {
        fail(p, "it derives too many tensors, raise ABAR_PLAN_DERIVED");
        return ABAR_IDENTITY;
    }
    p->derived[p->n_derived] = (abar__derived_tensor){.name = name,
                                                      .kind = kind,
                                                      .n = n,
                                                      .average = average,
                                                      .scale = -1,
                                                      .shift = -1,
                                                      .values = -1,
                                                      .calibrated = average >= 0 && p->average[average].calibrated};
    return (abar__factor){p->n_derived++};
}

static void depend(abar__plan *p, abar__factor f, int32_t *slot, abar__scalar s)
{
    if (f.index < 0) return;
    *slot = s.index;
    if (p->scalar[s.index].calibrated) p->derived[f.index].calibrated = true;
}

abar__factor abar__plan_vector(abar__plan *p, const char *name, abar__stat a, abar__scalar scale)
{
    if (p->average[a.index].square) fail(p, "it makes a vector of a matrix");
    const abar__factor f = derived(p, name, ABAR_DERIVED_VECTOR, a.index, p->average[a.index].n);
    depend(p, f, &p->derived[f.index < 0 ? 0 : f.index].scale, scale);
    return f;
}

abar__factor abar__plan_reciprocals(abar__plan *p, const char *name, abar__stat a, const abar__scalar *scale,
                                    abar__scalar shift)
{
    if (p->average[a.index].square) fail(p, "it takes reciprocals of a matrix");
    const abar__factor f = derived(p, name, ABAR_DERIVED_RECIPROCAL, a.index, p->average[a.index].n);
    abar__derived_tensor *d = &p->derived[f.index < 0 ? 0 : f.index];
    depend(p, f, &d->shift, shift);
    if (scale) depend(p, f, &d->scale, *scale);
    return f;
}

static int64_t matrix_count(abar__plan *p, abar__stat a)
{
    if (!p->average[a.index].square) fail(p, "it inverts a vector");
    return p->average[a.index].n * p->average[a.index].n;
}

abar__factor abar__plan_inverse(abar__plan *p, const char *name, abar__stat a, abar__scalar shift)
{
    const abar__factor f = derived(p, name, ABAR_DERIVED_INVERSE, a.index, matrix_count(p, a));
    depend(p, f, &p->derived[f.index < 0 ? 0 : f.index].shift, shift);
    return f;
}

abar__factor abar__plan_inverse_by_blocks(abar__plan *p, const char *name, abar__stat a, abar__scalar shift, abar__scalar gamma,
                                          int64_t width)
{
    const abar__factor f = abar__plan_inverse(p, name, a, shift);
    if (width < 1) fail(p, "it inverts blocks of no columns");
    if (p->scalar[gamma.index].kind != ABAR_SCALAR_VALUE) fail(p, "it damps blocks by a part that is no number");
    if (f.index < 0) return f;
    p->derived[f.index].width = (int32_t)width;
    depend(p, f, &p->derived[f.index].scale, gamma);
    return f;
}

abar__factor abar__plan_inverse_of_rank(abar__plan *p, const char *name, abar__stat a, abar__scalar shift, int64_t rank)
{
    const abar__factor f = abar__plan_inverse(p, name, a, shift);
    if (rank < 1) fail(p, "it inverts by no eigenvectors");
    if (f.index >= 0) p->derived[f.index].rank = (int32_t)rank;
    return f;
}

abar__factor abar__plan_inverse_by_rows(abar__plan *p, const char *name, const char *shift_name, abar__stat rows,
                                        abar__scalar shift)
{
    const abar__factor f = derived(p, name, ABAR_DERIVED_SOLVED, rows.index, p->average[rows.index].n);
    const abar__factor own = derived(p, shift_name, ABAR_DERIVED_BUFFER, -1, 1);
    depend(p, f, &p->derived[f.index < 0 ? 0 : f.index].shift, shift);
    if (f.index >= 0) p->derived[f.index].values = own.index;
    return f;
}

void abar__plan_nearest(abar__plan *p, const char *const names[3], int64_t examples, int rounds, abar__stat *a, abar__stat *g)
{
    *a = kept(p, names[0], ABAR_INPUT_NEAREST, examples);
    *g = kept(p, names[1], ABAR_GRAD_NEAREST, examples);
    p->start = derived(p, names[2], ABAR_DERIVED_BUFFER, -1, p->out * p->out).index;
    p->rounds = rounds;
}

void abar__plan_second_nearest(abar__plan *p, const char *const names[3])
{
    p->second[0] = derived(p, names[0], ABAR_DERIVED_BUFFER, -1, p->d * p->d).index;
    p->second[1] = derived(p, names[1], ABAR_DERIVED_BUFFER, -1, p->out * p->out).index;
    p->second_start = derived(p, names[2], ABAR_DERIVED_BUFFER, -1, p->out * p->out).index;
    if (p->start < 0) fail(p, "it has a second nearest product and no first");
}

abar__factor abar__plan_paired(abar__plan *p, const char *name, const char *values, abar__stat a, abar__scalar shift)
{
    const abar__factor f = derived(p, name, ABAR_DERIVED_PAIRED, a.index, matrix_count(p, a));
    const abar__factor v = derived(p, values, ABAR_DERIVED_BUFFER, -1, p->average[a.index].n);
    if (p->second[a.index] < 0) fail(p, "it pairs a factor with none");
    depend(p, f, &p->derived[f.index < 0 ? 0 : f.index].shift, shift);
    if (f.index >= 0) p->derived[f.index].values = v.index;
    return f;
}

abar__factor abar__plan_eigenbasis(abar__plan *p, const char *vectors, const char *values, abar__stat a)
{
    const abar__factor f = derived(p, vectors, ABAR_DERIVED_EIGENVECTORS, a.index, matrix_count(p, a));
    const abar__factor v = derived(p, values, ABAR_DERIVED_BUFFER, -1, p->average[a.index].n);
    if (f.index >= 0) p->derived[f.index].values = v.index;
    return f;
}

abar__factor abar__plan_secant(abar__plan *p, const char *const names[3], abar__factor right, int64_t pairs, double shift,
                               double decay)
{
    if (right.index != 0) fail(p, "the inverse that is learnt must be the first that it derives");
    const int64_t n = pairs > 0 ? 2 * pairs * p->out : p->out * p->out;
    const abar__factor left = derived(p, names[0], ABAR_DERIVED_BUFFER, -1, n);
    derived(p, names[1], ABAR_DERIVED_BUFFER, -1, p->out);
    derived(p, names[2], ABAR_DERIVED_BUFFER, -1, p->out);
    p->secant = (abar__secant){.used = true, .pairs = pairs, .shift = shift, .decay = decay};
    return pairs > 0 ? ABAR_IDENTITY : left;
}

void abar__plan_first_pass(abar__plan *p) { p->secant.first_pass = true; }

void abar__plan_ring(abar__plan *p, const char *const names[2], int64_t slots, bool narrow, double damping)
{
    if (p->n_derived > 0) fail(p, "a ring must be all that it has");
    derived(p, names[0], ABAR_DERIVED_RING, -1, slots * p->out * p->d);
    derived(p, names[1], ABAR_DERIVED_GRAM, -1, slots * slots);
    p->slots = slots;
    p->narrow = narrow;
    p->ring_damping = damping;
}

/* ---- treatment ---------------------------------------------------------------------------------------------------- */

static void expect(abar__plan *p, abar__factor f, int64_t n)
{
    if (f.index < 0 || p->derived[f.index].n != n) fail(p, "a factor does not fit the gradient");
}

void abar__plan_subtract_rank1(abar__plan *p, abar__factor u)
{
    expect(p, u, p->d);
    p->apply.u = u.index;
}

void abar__plan_subtract_outer(abar__plan *p, const char *name, abar__factor w, abar__factor u)
{
    expect(p, w, p->out);
    expect(p, u, p->d);
    p->apply.u = u.index;
    p->apply.w = w.index;
    p->apply.coefficient = derived(p, name, ABAR_DERIVED_BUFFER, -1, p->out).index;
}

/* A factor of this side, (n, n), or rows of that length that stand for it. */
static void expect_side(abar__plan *p, abar__factor f, int64_t n)
{
    const abar__derived_tensor *d = f.index < 0 ? NULL : &p->derived[f.index];
    if (!d || d->kind != ABAR_DERIVED_SOLVED)
        expect(p, f, n * n);
    else if (p->average[d->average].row != n)
        fail(p, "the rows of a factor do not fit the gradient");
}

void abar__plan_sandwich(abar__plan *p, abar__factor left, abar__factor right)
{
    if (left.index >= 0) expect_side(p, left, p->out);
    expect_side(p, right, p->d);
    p->apply.left = left.index;
    p->apply.right = right.index;
}

void abar__plan_divide_in_basis(abar__plan *p, abar__factor left, abar__factor right, double shift)
{
    expect(p, left, p->out * p->out);
    abar__plan_sandwich(p, left, right);
    p->apply.shift = shift;
}

void abar__plan_divide_paired(abar__plan *p, abar__factor left, abar__factor right, double least)
{
    abar__plan_divide_in_basis(p, left, right, 1.0);
    p->apply.least = least;
}

void abar__plan_scale_rows(abar__plan *p, abar__factor r, double least)
{
    expect(p, r, p->out);
    p->apply.row_scale = r.index;
    p->apply.bound /= least;
}

void abar__plan_natural(abar__plan *p, const abar__example_rows *rows)
{
    if (rows->examples < 1 || rows->passes < 1 || rows->inputs < 1) fail(p, "its natural gradient has no rows");
    p->rows = *rows;
}

void abar__plan_scale(abar__plan *p, double scale) { p->apply.scale *= scale; }
void abar__plan_over_damping(abar__plan *p) { p->apply.over_damping = true; }
void abar__plan_own_length(abar__plan *p, double mu) { p->apply.mu = mu; }
