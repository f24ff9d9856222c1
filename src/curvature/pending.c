/* What observe has added up since the last step, as one vector of doubles on the host: to be joined over ranks, whose sums and
 * counts simply add (methods.md section 0). Per map: examples, rows, the single number, then its sums, those by position last;
 * of a square statistic the triangle that is in use, row by row. */
#include "curvature/curvature_impl.h"

enum { NUMBERS = 3 };

static int64_t average_count(const abar__running_average *a)
{
    if (!a->name || a->kept) return 0; /* rows are gathered, not summed */
    return a->square ? a->n * (a->n + 1) / 2 : a->n;
}

static int64_t position_count(const abar__map *map)
{
    return map->plan.positions * (map->in + 1 + (map->plan.mean_number.name ? 1 : 0));
}

/* Sums over the rows of the pass that is observed. */
static int64_t secant_count(const abar__map *map) { return map->plan.secant.used ? map->d + map->out : 0; }

int64_t abar__curvature_pending_count(const abar__curvature *cv)
{
    int64_t count = 0;
    for (int m = 0; m < cv->n_maps; m++) {
        count += NUMBERS + secant_count(&cv->maps[m]);
        if (cv->second) continue;
        for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) count += average_count(&cv->maps[m].plan.average[i]);
        count += position_count(&cv->maps[m]);
    }
    return count;
}

typedef enum direction { READ, WRITE } direction;

/* n consecutive elements of device memory to or from the host. */
static abar_status move(const abar__curvature *cv, void *device, double *host, int64_t n, direction way)
{
    const abar_tensor there = abar_tensor_wrap(cv->dev, device, cv->dev->ops->dtype, 1, &n);
    const abar_tensor here = abar_tensor_wrap(NULL, host, ABAR_F64, 1, &n);
    return way == READ ? abar_tensor_copy(cv->dev->ctx, &here, &there) : abar_tensor_copy(cv->dev->ctx, &there, &here);
}

static abar_status move_average(const abar__curvature *cv, const abar__running_average *a, void *pending, double *host,
                                direction way)
{
    if (!a->square) return move(cv, pending, host, a->n, way);
    for (int64_t row = 0; row < a->n; row++) {
        void *at = (char *)pending + (size_t)(row * a->n) * abar__element(cv);
        ABAR_TRY(move(cv, at, host + row * (row + 1) / 2, row + 1, way));
    }
    return ABAR_OK;
}

/* Examples and rows, which the host counts, and the single number, which is a double in the device's memory. */
static abar_status move_numbers(const abar__curvature *cv, abar__map *map, double *host, direction way)
{
    double *const counted[] = {&map->examples, &map->rows};
    for (int i = 0; i < NUMBERS - 1; i++) *(way == READ ? &host[i] : counted[i]) = way == READ ? *counted[i] : host[i];
    double *there = map->plan.mean_number.pending, *here = &host[NUMBERS - 1];
    if (!there) {
        if (way == READ) *here = 0.0;
        return ABAR_OK;
    }
    const abar_tensor device = abar_tensor_wrap(cv->dev, there, ABAR_F64, 0, NULL);
    const abar_tensor own = abar_tensor_wrap(NULL, here, ABAR_F64, 0, NULL);
    return way == READ ? abar_tensor_copy(cv->dev->ctx, &own, &device) : abar_tensor_copy(cv->dev->ctx, &device, &own);
}

/* Sums by position: inputs, columns and, in double on every device, squares. */
static abar_status move_positions(const abar__curvature *cv, const abar__map *map, double *host, direction way)
{
    const abar__position_sums *p = &map->by_position;
    const int64_t n = map->plan.positions;
    ABAR_TRY(move(cv, p->sum, host, n * map->in, way));
    host += n * map->in;
    ABAR_TRY(move(cv, p->columns, host, n, way));
    if (!p->square) return ABAR_OK;
    const abar_tensor there = abar_tensor_wrap(cv->dev, p->square, ABAR_F64, 1, &n);
    const abar_tensor here = abar_tensor_wrap(NULL, host + n, ABAR_F64, 1, &n);
    return way == READ ? abar_tensor_copy(cv->dev->ctx, &here, &there) : abar_tensor_copy(cv->dev->ctx, &there, &here);
}

static abar_status move_all(abar__curvature *cv, double *host, direction way)
{
    if (cv->ops->by_example)
        return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                          "optimizer %s: gradients of single examples are not joined over ranks, train in one process",
                          cv->ops->method.name);
    for (int m = 0; m < cv->n_maps; m++) {
        abar__map *map = &cv->maps[m];
        ABAR_TRY(move_numbers(cv, map, host, way));
        host += NUMBERS;
        if (map->plan.secant.used) {
            ABAR_TRY(move(cv, map->plan.secant.inputs[cv->second], host, map->d, way));
            ABAR_TRY(move(cv, map->plan.secant.grads[cv->second], host + map->d, map->out, way));
            host += secant_count(map);
        }
        if (cv->second) continue; /* that is all that a second pass adds up */
        for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
            const abar__running_average *a = &map->plan.average[i];
            if (!a->name || a->kept) continue;
            ABAR_TRY(move_average(cv, a, a->pending, host, way));
            host += average_count(a);
        }
        if (map->plan.positions) ABAR_TRY(move_positions(cv, map, host, way));
        host += position_count(map);
    }
    return ABAR_OK;
}

/* ---- where it is in the memory of a queued device ------------------------------------------------------------------------ */

typedef struct span_walk {
    abar__pending_visitor visit;
    void *user;
    int64_t at;
} span_walk;

static abar_status give_span(span_walk *w, abar__pending_kind kind, void *memory, int64_t n, int64_t count)
{
    const abar__pending_span span = {.kind = kind, .memory = memory, .n = n, .at = w->at};
    w->at += count;
    return memory && n > 0 ? w->visit(w->user, &span) : ABAR_OK;
}

static abar_status give_map(span_walk *w, const abar__map *map)
{
    const abar__position_sums *p = &map->by_position;
    const int64_t positions = map->plan.positions;
    w->at += NUMBERS - 1; /* the host counts these */
    ABAR_TRY(give_span(w, ABAR_PENDING_DOUBLES, map->plan.mean_number.pending, 1, 1));
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &map->plan.average[i];
        if (!a->name || a->kept) continue;
        ABAR_TRY(give_span(w, a->square ? ABAR_PENDING_TRIANGLE : ABAR_PENDING_VECTOR, a->pending, a->n, average_count(a)));
    }
    if (!positions) return ABAR_OK;
    ABAR_TRY(give_span(w, ABAR_PENDING_VECTOR, p->sum, positions * map->in, positions * map->in));
    ABAR_TRY(give_span(w, ABAR_PENDING_VECTOR, p->columns, positions, positions));
    return map->plan.mean_number.name ? give_span(w, ABAR_PENDING_DOUBLES, p->square, positions, positions) : ABAR_OK;
}

abar_status abar__curvature_visit_pending(const abar__curvature *cv, abar__pending_visitor visit, void *user)
{
    span_walk w = {visit, user, 0};
    for (int m = 0; m < cv->n_maps; m++)
        if (cv->ops->by_example || cv->maps[m].plan.secant.used || abar__plan_keeps_rows(&cv->maps[m].plan))
            return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                              "%s: micro-batches are not joined on device %s, use --device cpu", cv->ops->method.name,
                              cv->dev->ops->name);
        else
            ABAR_TRY(give_map(&w, &cv->maps[m]));
    return ABAR_OK;
}

void abar__curvature_scale_counts(abar__curvature *cv, int64_t ranks)
{
    for (int m = 0; m < cv->n_maps; m++) {
        cv->maps[m].examples *= (double)ranks;
        cv->maps[m].rows *= (double)ranks;
    }
}

/* ---- on the host --------------------------------------------------------------------------------------------------------- */

/* Rows do not add up over ranks: the caller must know that it has to gather them, and to join the second pass, too. */
static abar_status check_rows(const abar__curvature *cv)
{
    if (cv->in_parts) return ABAR_OK;
    for (int m = 0; m < cv->n_maps; m++)
        if (cv->maps[m].plan.secant.used)
            return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                              "%s: it compares two passes, which ranks do not exchange, train in one process",
                              cv->ops->method.name);
        else if (abar__plan_keeps_rows(&cv->maps[m].plan))
            return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                              "%s: it keeps the rows of a step, which ranks do not exchange, train in one process",
                              cv->ops->method.name);
    return ABAR_OK;
}

void abar__curvature_begin_part(abar__curvature *cv, int64_t first)
{
    cv->in_parts = true;
    cv->first = first;
}

abar_status abar__curvature_visit_rows(abar__curvature *cv, abar_rows_visitor visit, void *user)
{
    if (cv->second) return ABAR_OK;
    for (int m = 0; m < cv->n_maps; m++)
        for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
            const abar__running_average *a = &cv->maps[m].plan.average[i];
            if (a->name && a->kept) ABAR_TRY(visit(user, a->rows, (size_t)a->row * abar__element(cv)));
        }
    return ABAR_OK;
}

abar_status abar__curvature_pending_read(abar__curvature *cv, double *out)
{
    ABAR_TRY(check_rows(cv));
    return move_all(cv, out, READ);
}

abar_status abar__curvature_pending_write(abar__curvature *cv, const double *in)
{
    ABAR_TRY(check_rows(cv));
    return move_all(cv, (double *)in, WRITE); /* only read from */
}
