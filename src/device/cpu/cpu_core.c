/* The "cpu" device: float32, threads, and the fused update: one pass over all parameters (methods.md section 8).
 *
 * The pass sees the parameters as one line of elements, each padded to whole vectors, cut into pieces that do not depend on
 * the number of threads. So the threads share parameters of any sizes evenly, and every thread count gives the same bits. */
#include "device/cpu/isa/core_kernels.h"
#include "device/cpu/stats.h"
#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

#define VECTOR 16      /* floats in a cache line: spans begin on one */
#define PIECES_MAX 256 /* enough to share among many threads */
#define PIECE_MIN 4096 /* elements; less is not worth a call */
#define ROWS_ELEMENTS 4096
#define ROWS_MAX 64
#define AHEAD_MIN 2048    /* gradients of maps are fetched so many elements ahead, or as many as are read at once, */
#define AHEAD_MAX 65536   /* unless the second-level cache may not hold them until then */
#define SERIAL_MAX 131072 /* elements; waking threads takes longer than updating this many */

static abar_status cpu_open(abar_device *dev)
{
    static const abar__core_kernels *const tables[] = ABAR_ISA_TABLE(abar__core);
    ABAR_TRY(abar__isa_check(dev->ctx, abar__isa_supported()));
    abar__isa isa = abar__isa_best(dev->ctx);
    const char *coretype = abar_blas_coretype();
    if (coretype)
        abar__log(dev->ctx, ABAR_LOG_WARNING,
                  "OpenBLAS does not know this processor and uses slow kernels, set OPENBLAS_CORETYPE=%s", coretype);
    dev->impl = (void *)tables[isa];
    /* OpenMP counts the processors of the affinity mask, also where it has bound this thread to one of them */
    int own = omp_get_num_procs() < omp_get_max_threads() ? omp_get_num_procs() : omp_get_max_threads();
    int request = dev->config.threads ? dev->config.threads : own, limit = omp_get_thread_limit();
    dev->threads = request < limit ? request : limit;
    snprintf(dev->description, sizeof dev->description, "cpu: %s, %d thread%s", abar__isa_name(isa), dev->threads,
             dev->threads == 1 ? "" : "s");
    return ABAR_OK;
}

static void cpu_close(abar_device *dev) { (void)dev; }

static abar_status cpu_alloc(abar_device *dev, size_t bytes, void **out) { return abar__alloc(dev->ctx, bytes, out); }

static void cpu_release(abar_device *dev, void *memory, size_t bytes) { abar__free(dev->ctx, memory, bytes); }

static abar_status cpu_copy(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    (void)dev;
    abar__tensor_copy_host(dst, src);
    return ABAR_OK;
}

/* ---- the line of all parameters -------------------------------------------------------------------------------- */

typedef struct line {
    const abar__update_item *items;
    int n;
    int64_t length, piece; /* in elements, padding included */
    int pieces, threads;
} line;

static int64_t padded(int64_t count) { return (count + VECTOR - 1) / VECTOR * VECTOR; }

static line lay_out(const abar_device *dev, const abar__update_item *items, int n)
{
    line l = {.items = items, .n = n};
    for (int k = 0; k < n; k++) l.length += padded(items[k].count);
    l.piece = padded((l.length + PIECES_MAX - 1) / PIECES_MAX);
    if (l.piece < PIECE_MIN) l.piece = PIECE_MIN;
    l.pieces = (int)((l.length + l.piece - 1) / l.piece);
    l.threads = l.length <= SERIAL_MAX ? 1 : dev->threads;
    return l;
}

/* Consecutive elements of one parameter. */
typedef struct span {
    const abar__update_item *item;
    int64_t first, count;
} span;

/* Walks the line from one place to another. */
typedef struct walk {
    const abar__update_item *item;
    int64_t at;   /* in the item */
    int64_t left; /* to the goal, padding included */
} walk;

static walk walk_from(const line *l, int64_t from)
{
    walk w = {.item = l->items, .at = from};
    while (w.at > 0 && w.at >= padded(w.item->count)) w.at -= padded(w.item++->count);
    return w;
}

/* The next span on the way; false at the goal, or at the end of the line. */
static bool walk_next(const line *l, walk *w, span *out)
{
    while (w->left > 0 && w->item < l->items + l->n) {
        int64_t rest = padded(w->item->count) - w->at, step = rest < w->left ? rest : w->left;
        *out = (span){w->item, w->at, w->item->count - w->at < step ? w->item->count - w->at : step};
        w->left -= step;
        w->at += step;
        if (step == rest) {
            w->item++;
            w->at = 0;
        }
        if (out->count > 0) return true;
    }
    return false;
}

/* Where a thread of a team begins; it ends where the next one begins. */
static int first_piece(const line *l, int thread, int team) { return (int)((int64_t)l->pieces * thread / team); }

/* ---- gradient norm ---------------------------------------------------------------------------------------------- */

/* Rows that begin in a span. */
typedef struct row_range {
    int64_t from, to;
} row_range;

static row_range rows_of(const span *s, int64_t columns)
{
    return (row_range){(s->first + columns - 1) / columns, (s->first + s->count + columns - 1) / columns};
}

/* The sum of the squares of some rows of a map, whose gradient is grad, and their products. */
static double look_at_rows(const abar__core_kernels *kernels, const abar__row_look *look, const float *grad, row_range r)
{
    const float *right = look->right, *bias = look->bias;
    float *c = look->products;
    const int64_t columns = look->columns;
    const double sum = kernels->sum_squares_rows(grad + r.from * columns, r.to - r.from, columns, right, c + r.from);
    for (int64_t o = r.from; right && bias && o < r.to; o++) c[o] += bias[o] * right[columns];
    return sum;
}

/* The sum of a span's squares, and the products of the rows that begin in it. */
static double look_at(const abar__core_kernels *kernels, const abar__row_look *looks, const span *s)
{
    const float *grad = s->item->grad;
    const abar__row_look *look = looks && s->item->map >= 0 ? &looks[s->item->map] : NULL;
    if (!look || look->rows == 0) return kernels->sum_squares(grad + s->first, s->count);
    const row_range all = rows_of(s, look->columns);
    double sum = 0.0;
    for (int64_t before = 0; before < all.to; before += look++->rows) {
        const row_range own = {all.from > before ? all.from - before : 0,
                               all.to - before < look->rows ? all.to - before : look->rows};
        if (own.from < own.to) sum += look_at_rows(kernels, look, grad + before * look->columns, own);
    }
    return sum;
}

/* Squares of floats are far from overflowing in double: their sum is finite where every element is. */
static bool cpu_norm(abar_device *dev, const abar__update_item *items, int n, const abar__row_look *looks, double *norm)
{
    const abar__core_kernels *kernels = dev->impl;
    const line l = lay_out(dev, items, n);
    double sums[PIECES_MAX] = {0.0};
#pragma omp parallel num_threads(l.threads) if (l.threads > 1)
    {
        int piece = first_piece(&l, omp_get_thread_num(), omp_get_num_threads());
        int end = first_piece(&l, omp_get_thread_num() + 1, omp_get_num_threads());
        walk w = walk_from(&l, piece * l.piece);
        for (; piece < end; piece++) {
            w.left = l.piece;
            for (span s; walk_next(&l, &w, &s);) sums[piece] += look_at(kernels, looks, &s);
        }
    }
    double sum = 0.0;
    for (int piece = 0; piece < l.pieces; piece++) sum += sums[piece];
    *norm = sqrt(sum);
    return isfinite(sum);
}

/* ---- update ------------------------------------------------------------------------------------------------------- */

typedef struct update {
    const abar__core_kernels *kernels;
    const abar__update_scalars *scalars;
    double correction1, correction2; /* adamw, nadamw, sfadamw: of the two moments' bias */
} update;

/* Consecutive rows of a preconditioned map, each with its c (isa/core_kernels.h). */
typedef struct rows {
    const float *right, *c;
    int64_t n, columns, ahead;
} rows;

static abar__row row_of(const rows *r, int64_t i) { return (abar__row){r->right, r->c[i], r->ahead}; }

/* An update of n consecutive elements. rows NULL: the gradient as it is; otherwise these are those rows. scale multiplies the
 * gradient. */
static void run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale);

/* Rows are read twice, for their products with right and for their update; meanwhile those behind them are fetched. Once, where
 * the products are given. */
static int64_t rows_ahead(const abar__precondition *pre, int64_t elements)
{
    if (pre->coefficient) return ABAR_CORE_AHEAD;
    return elements > AHEAD_MAX ? 0 : elements > AHEAD_MIN ? elements : AHEAD_MIN;
}

/* c of rows first to first + n. */
static const float *row_products(const update *u, const abar__update_item *item, int64_t first, int64_t n, float *c)
{
    const float *right = item->pre->right, *given = item->pre->coefficient, *grad = item->grad;
    const int64_t columns = item->count / item->rows;
    if (given) return given + first;
    for (int64_t o = first; o < first + n; o++) {
        c[o - first] = u->kernels->dot(grad + o * columns, right, columns);
        if (item->bias) c[o - first] += ((const float *)item->bias->grad)[o] * right[columns];
    }
    return c;
}

/* Rows first to first + n of a map, then their elements of the bias. */
static void update_rows(const update *u, const abar__update_item *item, int64_t first, int64_t n)
{
    const abar__precondition *pre = item->pre;
    const abar__update_item *bias = item->bias;
    const float *right = pre->right;
    const int64_t columns = item->count / item->rows;
    const double scale =
        u->scalars->grad_scale * pre->scale * (pre->row_scale ? (double)((const float *)pre->row_scale)[first] : 1.0);
    if (!right) { /* n is 1 */
        run(u, item, first * columns, columns, NULL, scale);
        if (bias) run(u, bias, first, 1, NULL, scale);
        return;
    }
    float memory[ROWS_MAX];
    const float *c = row_products(u, item, first, n, memory);
    run(u, item, first * columns, n * columns, &(rows){right, c, n, columns, rows_ahead(pre, n * columns)}, scale);
    if (bias) run(u, bias, first, n, &(rows){right + columns, c, n, 1, 0}, scale);
}

/* So many rows at once as the first-level cache holds from the first reading to the second; one where each has its own scale.
 */
static int64_t rows_at_once(const abar__update_item *item)
{
    const int64_t columns = item->count / item->rows, fit = ROWS_ELEMENTS / columns;
    if (!item->pre->right || item->pre->row_scale || fit < 1) return 1;
    return fit < ROWS_MAX ? fit : ROWS_MAX;
}

/* A span of a map stands for the rows that begin in it. */
static void update_span(const update *u, const span *s)
{
    const abar__update_item *item = s->item;
    if (item->block >= 0 && u->scalars->verdicts[item->block] == ABAR_NS_NOT_FINITE) return;
    if (!item->pre) {
        run(u, item, s->first, s->count, NULL, item->kind == ABAR_UPDATE_PLAIN ? 1.0 : u->scalars->grad_scale);
        return;
    }
    const row_range r = rows_of(s, item->count / item->rows);
    const int64_t most = rows_at_once(item);
    for (int64_t o = r.from; o < r.to; o += most) update_rows(u, item, o, most < r.to - o ? most : r.to - o);
}

static void update_all(const abar_device *dev, const abar__update_item *items, int n, const update *u)
{
    const line l = lay_out(dev, items, n);
#pragma omp parallel num_threads(l.threads) if (l.threads > 1)
    {
        int begin = first_piece(&l, omp_get_thread_num(), omp_get_num_threads());
        int end = first_piece(&l, omp_get_thread_num() + 1, omp_get_num_threads());
        walk w = walk_from(&l, begin * l.piece);
        w.left = (end - begin) * l.piece;
        for (span s; walk_next(&l, &w, &s);) update_span(u, &s);
    }
}

static void sgd_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale)
{
    const abar__update_scalars *k = u->scalars;
    const double lr = k->lr * item->lr_scale;
    const bool momentum = item->state[0] != NULL;
    const abar__sgd_coefficients c = {
        .grad_scale = (float)scale,
        .coupled = k->decoupled ? 0.0f : (float)item->weight_decay,
        .decoupled = k->decoupled ? (float)(lr * item->weight_decay) : 0.0f,
        .momentum = (float)k->momentum,
        .lr_grad = !momentum || k->nesterov ? (float)lr : 0.0f,
        .lr_velocity = (float)(k->nesterov ? lr * k->momentum : lr),
    };
    float *weight = (float *)item->weight + first, *velocity = momentum ? (float *)item->state[0] + first : NULL;
    const float *grad = (const float *)item->grad + first;
    if (!r && momentum) u->kernels->sgd_momentum(weight, grad, velocity, n, &c);
    if (!r && !momentum) u->kernels->sgd(weight, grad, n, &c);
    for (int64_t i = 0, at = 0; r && i < r->n; i++, at += r->columns) {
        const abar__row row = row_of(r, i);
        if (momentum)
            u->kernels->sgd_momentum_row(weight + at, grad + at, velocity + at, &row, r->columns, &c);
        else
            u->kernels->sgd_row(weight + at, grad + at, &row, r->columns, &c);
    }
}

/* The betas are rounded to float before anything is derived from them: a moment's weights and its bias correction must
 * agree, and 1 - 0.999 differs by 1e-5 from what the rounded 0.999 leaves. */
static double rounded(double beta) { return (double)(float)beta; }

/* ahead: nadamw. */
static void adamw_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale,
                      bool ahead)
{
    const abar__update_scalars *k = u->scalars;
    const double lr = k->lr * item->lr_scale;
    const float decay = (float)(lr * item->weight_decay);
    const abar__adamw_coefficients c = {
        .grad_scale = (float)scale,
        .largest = (float)ABAR_ADAMW_LARGEST_F32,
        .beta1 = (float)k->beta1,
        .one_minus_beta1 = (float)(1.0 - rounded(k->beta1)),
        .beta2 = (float)k->beta2,
        .one_minus_beta2 = (float)(1.0 - rounded(k->beta2)),
        .of_first = ahead ? (float)k->beta1 : 1.0f,
        .of_grad = ahead ? (float)(1.0 - rounded(k->beta1)) : 0.0f,
        .eps = (float)k->eps,
        .root = (float)(1.0 / sqrt(u->correction2)),
        .lr = (float)(lr / u->correction1),
        .decay = decay,
        .against = item->cautious ? 0.0f : decay,
    };
    float *weight = (float *)item->weight + first, *m = (float *)item->state[0] + first, *v = (float *)item->state[1] + first;
    const float *grad = (const float *)item->grad + first;
    if (!r) u->kernels->adamw(weight, grad, m, v, n, &c);
    for (int64_t i = 0, at = 0; r && i < r->n; i++, at += r->columns) {
        const abar__row row = row_of(r, i);
        u->kernels->adamw_row(weight + at, grad + at, m + at, v + at, &row, r->columns, &c);
    }
}

static void sfadamw_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale)
{
    const abar__update_scalars *k = u->scalars;
    const double lr = k->lr * item->lr_scale, keep = 1.0 - k->share;
    const abar__sfadamw_coefficients c = {
        .grad_scale = (float)scale,
        .largest = (float)ABAR_ADAMW_LARGEST_F32,
        .beta2 = (float)k->beta2,
        .one_minus_beta2 = (float)(1.0 - rounded(k->beta2)),
        .eps = (float)k->eps,
        .root = (float)(1.0 / sqrt(u->correction2)),
        .decay = (float)item->weight_decay,
        .share = (float)k->share,
        .step = (float)(lr * (1.0 - k->beta1 * keep)),
        .keep = (float)keep,
        .apart = (float)(lr * k->beta1),
    };
    float *weight = (float *)item->weight + first, *apart = (float *)item->state[0] + first;
    float *second = (float *)item->state[1] + first;
    const float *grad = (const float *)item->grad + first;
    if (!r) u->kernels->sfadamw(weight, grad, apart, second, NULL, n, &c);
    for (int64_t i = 0, at = 0; r && i < r->n; i++, at += r->columns) {
        const abar__row row = row_of(r, i);
        u->kernels->sfadamw(weight + at, grad + at, apart + at, second + at, &row, r->columns, &c);
    }
}

static void momentum_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale)
{
    const abar__update_scalars *k = u->scalars;
    const double rest = 1.0 - rounded(k->momentum);
    const abar__momentum_coefficients c = {.grad_scale = (float)scale,
                                           .momentum = (float)k->momentum,
                                           .rest = (float)rest,
                                           .of_grad = k->nesterov ? (float)rest : 0.0f,
                                           .of_average = k->nesterov ? (float)k->momentum : 1.0f};
    float *grad = (float *)item->grad + first, *average = item->state[0] ? (float *)item->state[0] + first : NULL;
    if (!r) u->kernels->momentum(grad, average, NULL, n, &c);
    for (int64_t i = 0, at = 0; r && i < r->n; i++, at += r->columns) {
        const abar__row row = row_of(r, i);
        u->kernels->momentum(grad + at, average ? average + at : NULL, &row, r->columns, &c);
    }
}

/* No method is in front of the rules with a diagonal: their gradients are never preconditioned. */
static void adahessian_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, double scale)
{
    const abar__update_scalars *k = u->scalars;
    const double lr = k->lr * item->lr_scale;
    const abar__adahessian_coefficients c = {.grad_scale = (float)scale,
                                             .largest = (float)ABAR_ADAMW_LARGEST_F32,
                                             .beta1 = (float)k->beta1,
                                             .one_minus_beta1 = (float)(1.0 - rounded(k->beta1)),
                                             .beta2 = (float)k->beta2,
                                             .one_minus_beta2 = (float)(1.0 - rounded(k->beta2)),
                                             .eps = (float)k->eps,
                                             .root = (float)(1.0 / sqrt(u->correction2)),
                                             .power = (float)k->power,
                                             .lr = (float)(lr / u->correction1),
                                             .decay = (float)(lr * item->weight_decay)};
    u->kernels->adahessian((float *)item->weight + first, (const float *)item->grad + first, (float *)item->state[0] + first,
                           (float *)item->state[1] + first, (const float *)item->state[2] + first, n, &c);
}

static void sophia_run(const update *u, const abar__update_item *item, int64_t first, int64_t n, double scale)
{
    const abar__update_scalars *k = u->scalars;
    const double lr = k->lr * item->lr_scale;
    const abar__sophia_coefficients c = {.grad_scale = (float)scale,
                                         .beta1 = (float)k->beta1,
                                         .one_minus_beta1 = (float)(1.0 - rounded(k->beta1)),
                                         .scale = (float)k->clip_scale,
                                         .least = (float)ABAR_SOPHIA_LEAST,
                                         .lr = (float)lr,
                                         .decay = (float)(lr * item->weight_decay)};
    u->kernels->sophia((float *)item->weight + first, (const float *)item->grad + first, (float *)item->state[0] + first,
                       (const float *)item->state[1] + first, n, &c);
}

static void plain_run(const update *u, const abar__update_item *item, int64_t first, int64_t n)
{
    const double lr = u->scalars->lr * item->lr_scale;
    const float decay = (float)(lr * item->weight_decay);
    const abar__plain_coefficients c = {.lr = (float)lr, .decay = decay, .against = item->cautious ? 0.0f : decay};
    u->kernels->plain((float *)item->weight + first, (const float *)item->grad + first, n, &c);
}

static void run(const update *u, const abar__update_item *item, int64_t first, int64_t n, const rows *r, double scale)
{
    switch (item->kind) {
    case ABAR_UPDATE_SGD: sgd_run(u, item, first, n, r, scale); break;
    case ABAR_UPDATE_ADAMW: adamw_run(u, item, first, n, r, scale, false); break;
    case ABAR_UPDATE_NADAMW: adamw_run(u, item, first, n, r, scale, true); break;
    case ABAR_UPDATE_SFADAMW: sfadamw_run(u, item, first, n, r, scale); break;
    case ABAR_UPDATE_MOMENTUM: momentum_run(u, item, first, n, r, scale); break;
    case ABAR_UPDATE_PLAIN: plain_run(u, item, first, n); break;
    case ABAR_UPDATE_ADAHESSIAN: adahessian_run(u, item, first, n, scale); break;
    case ABAR_UPDATE_SOPHIA: sophia_run(u, item, first, n, scale); break;
    case ABAR_UPDATE_KINDS: break; /* no kind */
    }
}

static void cpu_update(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s)
{
    const double t = (double)s->t;
    update_all(dev, items, n,
               &(update){.kernels = dev->impl,
                         .scalars = s,
                         .correction1 = 1.0 - pow(rounded(s->beta1), t),
                         .correction2 = 1.0 - pow(rounded(s->beta2), t)});
}

static const abar_device_ops device = {
    .name = "cpu",
    .dtype = ABAR_F32,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .copy = cpu_copy,
    .norm = cpu_norm,
    .update = cpu_update,
    .stats = &abar__cpu_stats,
    .step = &abar__host_step,
};

const abar_device_ops *const abar__cpu_device = &device;
