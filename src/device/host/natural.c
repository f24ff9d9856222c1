/* The natural gradient by M x M algebra (device/natural.h, optimizers.md section 9), in double for ref and cpu: K over the maps
 * of a block, Cholesky's factor by the ladder of section 9, and the rows combined by its solution. */
#include "device/host/natural.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { PANEL = 512, RAISES = 5 }; /* numbers of a row that are packed at a time; how often the ladder raises rho */

/* A block with the memory it is worked on in. */
typedef struct block {
    abar_device *dev;
    const abar__natural_item *items;
    int n, number;
    int64_t rows, pitch, examples;          /* M, M in whole panels, B */
    double scale, trace;                    /* common to all rows; of K */
    double *k, *square, *inputs;            /* (pitch, pitch) twice, (B in whole panels, the same) */
    double *panels, *x, *weighed, *results; /* (pitch, PANEL), (M), (B, out), G^ of all maps */
} block;

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static int64_t whole(int64_t rows) { return (rows + 7) / 8 * 8; }
static int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t gradient_count(const abar__plan *p) { return p->out * p->d; }

static double *hand_out(char *base, size_t *at, int64_t numbers)
{
    double *out = base ? (double *)(void *)(base + *at) : NULL;
    *at = abar__round_up(*at + (size_t)numbers * sizeof *out, ABAR_ALIGN);
    return out;
}

/* Hands out the scratch of the largest block, or only counts it. */
static size_t place(block *b, int64_t rows, int64_t examples, int64_t outputs, int64_t results, char *base)
{
    size_t at = 0;
    const int64_t side = whole(rows);
    b->k = hand_out(base, &at, side * side);
    b->square = hand_out(base, &at, side * side);
    b->inputs = hand_out(base, &at, whole(examples) * whole(examples));
    b->panels = hand_out(base, &at, side * PANEL);
    b->x = hand_out(base, &at, rows);
    b->weighed = hand_out(base, &at, examples * outputs);
    b->results = hand_out(base, &at, results);
    return at;
}

/* Of the largest of all blocks: every plan's sizes, and all gradients, whatever block they are in. */
static size_t place_for(block *b, const abar__natural_item *items, const abar__plan *plans, int n, char *base)
{
    int64_t rows = 0, examples = 0, outputs = 0, results = 0;
    for (int i = 0; i < n; i++) {
        const abar__plan *p = items ? items[i].plan : &plans[i];
        if (!abar__plan_is_natural(p)) continue;
        rows = greater(rows, abar__natural_most_rows(&p->rows));
        examples = greater(examples, p->rows.examples);
        outputs = greater(outputs, p->out);
        results += gradient_count(p);
    }
    return rows > 0 ? place(b, rows, examples, outputs, results, base) : 0;
}

size_t abar__natural_scratch(const abar__plan *plans, int n)
{
    block ignored;
    return place_for(&ignored, NULL, plans, n, NULL);
}

static bool takes_part(const block *b, const abar__natural_item *item)
{
    return abar__plan_is_natural(item->plan) && item->plan->rows.block == b->number && item->scale > 0.0 && item->grad;
}

/* ---- gradients in memory -------------------------------------------------------------------------------------------- */

static double get(const abar_device *dev, const void *x, int64_t i)
{
    return dev->ops->dtype == ABAR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void set(const abar_device *dev, void *x, int64_t i, double value)
{
    if (dev->ops->dtype == ABAR_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* Element i of a map's gradient (out, d), the bias last; 0 where that has none. */
static double gradient_at(const block *b, const abar__natural_item *item, int64_t i)
{
    const abar__plan *p = item->plan;
    const int64_t o = i / p->d, k = i % p->d;
    if (k < p->columns) return get(b->dev, item->grad, o * p->columns + k);
    return item->bias_grad ? get(b->dev, item->bias_grad, o) : 0.0;
}

/* ---- K ---------------------------------------------------------------------------------------------------------------- */

/* A bias without a gradient is not trained: F does not have it. */
static void drop_bias(const block *b, const abar__natural_item *item)
{
    const abar__plan *p = item->plan;
    double *a = p->rows.a;
    const int64_t rows = abar__natural_is_split(&p->rows) ? b->examples : b->rows * p->out;
    if (p->d == p->columns || item->bias_grad) return;
    for (int64_t i = 0; i < rows; i++) a[i * p->d + p->columns] = 0.0;
}

/* K += (p pT) * (a aT), element by element: of a map with one row per example. */
static void add_split(const block *b, const abar__example_rows *r)
{
    const abar__stats_ops *stats = b->dev->ops->stats;
    const int64_t examples = b->examples, pitch = whole(examples);
    memset(b->square, 0, (size_t)(b->pitch * b->pitch) * sizeof(double));
    memset(b->inputs, 0, (size_t)(pitch * pitch) * sizeof(double));
    stats->rows_gram(b->dev, b->rows, r->outputs, r->p, b->panels, b->square);
    stats->rows_gram(b->dev, examples, r->inputs, r->a, b->panels, b->inputs);
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t j = 0; j <= i; j++) {
            const int64_t m = i % examples, n = j % examples;
            b->k[i * b->pitch + j] += b->square[i * b->pitch + j] * b->inputs[m > n ? m * pitch + n : n * pitch + m];
        }
}

static void make_gram(block *b)
{
    const double square = b->scale * b->scale;
    memset(b->k, 0, (size_t)(b->pitch * b->pitch) * sizeof(double));
    for (int i = 0; i < b->n; i++) {
        const abar__example_rows *r = &b->items[i].plan->rows;
        if (!takes_part(b, &b->items[i])) continue;
        drop_bias(b, &b->items[i]);
        if (abar__natural_is_split(r))
            add_split(b, r);
        else
            b->dev->ops->stats->rows_gram(b->dev, b->rows, r->inputs, r->a, b->panels, b->k);
    }
    b->trace = 0.0;
    for (int64_t i = 0; i < b->rows; i++) {
        for (int64_t j = 0; j <= i; j++) b->k[i * b->pitch + j] *= square;
        b->trace += b->k[i * (b->pitch + 1)];
    }
}

/* ---- R g -------------------------------------------------------------------------------------------------------------- */

/* x += R g of one map: with two vectors a row, pT (G a). */
static void add_products(const block *b, const abar__natural_item *item)
{
    const abar__plan *p = item->plan;
    const abar__example_rows *r = &p->rows;
    const double *a = r->a, *left = r->p;
    const bool split = abar__natural_is_split(r);
    double *g = b->results; /* free until G^ is made */
    for (int64_t i = 0; i < gradient_count(p); i++) g[i] = gradient_at(b, item, i);
#pragma omp parallel for schedule(static) num_threads(b->dev->threads)
    for (int64_t n = 0; n < b->examples; n++)
        for (int64_t o = 0; split && o < p->out; o++) {
            double sum = 0.0;
            for (int64_t k = 0; k < p->d; k++) sum += g[o * p->d + k] * a[n * p->d + k];
            b->weighed[n * p->out + o] = sum;
        }
#pragma omp parallel for schedule(static) num_threads(b->dev->threads)
    for (int64_t m = 0; m < b->rows; m++) {
        double sum = 0.0;
        for (int64_t o = 0; split && o < p->out; o++) sum += left[m * p->out + o] * b->weighed[m % b->examples * p->out + o];
        for (int64_t i = 0; !split && i < r->inputs; i++) sum += a[m * r->inputs + i] * g[i];
        b->x[m] += b->scale * sum;
    }
}

static void make_right_side(const block *b, bool own)
{
    for (int64_t m = 0; m < b->rows; m++) b->x[m] = own ? 1.0 : 0.0;
    for (int i = 0; !own && i < b->n; i++)
        if (takes_part(b, &b->items[i])) add_products(b, &b->items[i]);
}

/* ---- the ladder ------------------------------------------------------------------------------------------------------- */

/* x = (K + rho I)^-1 x; *raised: how often rho was. */
static bool solve(const block *b, double *rho, int *raised)
{
    for (*raised = 0;; ++*raised) {
        if (b->dev->ops->stats->solve_shifted(b->dev, b->rows, b->k, b->pitch, *rho, b->square, b->x)) break;
        if (*raised == RAISES) return false;
        *rho = fmax(10.0 * *rho, 1e-8 * b->trace / (double)b->rows);
    }
    bool finite = true;
    for (int64_t m = 0; m < b->rows; m++) finite = finite && isfinite(b->x[m]);
    return finite;
}

/* ---- G^ --------------------------------------------------------------------------------------------------------------- */

/* to (out, d) = sum over m of x_m times row m. */
static void combine(const block *b, const abar__plan *p, double *to)
{
    const abar__example_rows *r = &p->rows;
    const double *a = r->a, *left = r->p;
    const bool split = abar__natural_is_split(r);
    const int64_t rows = split ? b->examples : b->rows;
#pragma omp parallel for schedule(static) num_threads(b->dev->threads)
    for (int64_t n = 0; n < b->examples; n++)
        for (int64_t o = 0; split && o < p->out; o++) {
            double sum = 0.0;
            for (int64_t m = n; m < b->rows; m += b->examples) sum += b->x[m] * left[m * p->out + o];
            b->weighed[n * p->out + o] = sum;
        }
#pragma omp parallel for schedule(static) num_threads(b->dev->threads)
    for (int64_t o = 0; o < p->out; o++) {
        double *line = to + o * p->d;
        memset(line, 0, (size_t)p->d * sizeof *line);
        for (int64_t m = 0; m < rows; m++) {
            const double weight = split ? b->weighed[m * p->out + o] : b->x[m];
            const double *row = split ? a + m * p->d : a + m * r->inputs + o * p->d;
            for (int64_t k = 0; k < p->d; k++) line[k] += weight * row[k];
        }
    }
}

/* G^ of a map from the solution, of all its elements; false: one is not finite. plain: what G is multiplied by and added. */
static bool make_result(const block *b, const abar__natural_item *item, double plain, double largest, double *to)
{
    const double limit = (b->dev->ops->dtype == ABAR_F64 ? DBL_MAX : (double)FLT_MAX) / fmax(largest, 1.0);
    bool fine = true;
    combine(b, item->plan, to);
    for (int64_t i = 0; i < gradient_count(item->plan); i++) {
        if (plain != 0.0) to[i] += plain * gradient_at(b, item, i);
        fine = fine && fabs(to[i]) < limit;
    }
    return fine;
}

static void take_result(const block *b, const abar__natural_item *item, const double *from)
{
    const abar__plan *p = item->plan;
    double sums[3] = {0.0};
    for (int64_t i = 0; i < gradient_count(p); i++) {
        const int64_t o = i / p->d, k = i % p->d;
        if (k == p->columns && !item->bias_grad) continue;
        const double g = gradient_at(b, item, i), h = from[i];
        sums[0] += g * g;
        sums[1] += g * h;
        sums[2] += h * h;
        set(b->dev, k < p->columns ? item->grad : item->bias_grad, k < p->columns ? o * p->columns + k : o, h);
    }
    memcpy(item->products, sums, sizeof sums);
}

static bool replace_gradients(const block *b, double plain, double largest)
{
    double *at = b->results;
    for (int i = 0; i < b->n; i++) {
        if (!takes_part(b, &b->items[i])) continue;
        if (!make_result(b, &b->items[i], plain, largest, at)) return false;
        at += gradient_count(b->items[i].plan);
    }
    at = b->results;
    for (int i = 0; i < b->n; i++) {
        if (!takes_part(b, &b->items[i])) continue;
        take_result(b, &b->items[i], at);
        at += gradient_count(b->items[i].plan);
    }
    return true;
}

/* ---- a block ---------------------------------------------------------------------------------------------------------- */

static void count(const block *b, int what, int64_t times)
{
    for (int i = 0; i < b->n; i++)
        if (takes_part(b, &b->items[i])) b->items[i].state->count[what] += times;
}

static void run_block(block *b, const abar__example_rows *r, double grad_scale, double largest)
{
    double rho = r->damping;
    int raised;
    make_gram(b);
    if (!isfinite(b->trace)) {
        count(b, ABAR_COUNT_DROPPED, 1);
        return;
    }
    make_right_side(b, r->own);
    const bool solved = solve(b, &rho, &raised);
    count(b, ABAR_COUNT_RAISED, raised);
    const double weight = r->own ? b->scale / (sqrt((double)b->examples) * grad_scale) : -b->scale / rho;
    for (int64_t m = 0; m < b->rows; m++) b->x[m] *= weight;
    if (!solved || !replace_gradients(b, r->own ? 0.0 : 1.0 / rho, largest)) {
        count(b, ABAR_COUNT_KEPT, 1);
        return;
    }
    count(b, ABAR_COUNT_COMMITS, 1);
    for (int i = 0; i < b->n; i++) {
        if (!takes_part(b, &b->items[i])) continue;
        abar__map_state *state = b->items[i].state;
        state->count[ABAR_COUNT_READY] = 1;
        state->real[ABAR_REAL_DAMPING] = rho;
        state->real[ABAR_REAL_CONDITION] = (b->trace + rho) / rho; /* no eigenvalue of K is above its trace */
    }
}

void abar__natural_run(abar_device *dev, const abar__natural_item *items, int n, double grad_scale, double largest,
                       void *scratch)
{
    block b = {.dev = dev, .items = items, .n = n, .number = -1};
    place_for(&b, items, NULL, n, scratch);
    for (int i = 0; i < n; i++)
        if (abar__plan_is_natural(items[i].plan)) items[i].state->count[ABAR_COUNT_READY] = 0;
    for (int i = 0; i < n; i++) {
        const abar__example_rows *r = &items[i].plan->rows;
        if (!abar__plan_is_natural(items[i].plan) || r->block <= b.number) continue;
        const int last = b.number;
        b.number = r->block;
        if (!takes_part(&b, &items[i])) { /* another map of the block may */
            b.number = last;
            continue;
        }
        b.examples = items[i].examples;
        b.rows = r->passes * b.examples;
        b.pitch = whole(b.rows);
        b.scale = items[i].scale;
        run_block(&b, r, grad_scale, largest);
    }
}
