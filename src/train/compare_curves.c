/* The curves of a comparison, as numbers: for every method the mean over its seeds with a band of one sample standard
 * deviation (of two runs, both), every failed run by itself, and the scales they are drawn on. */
#include "train/compare_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 400 /* of one curve: more than the picture can show */
#define LOG_FROM 8.0   /* times the least loss: where a logarithmic scale begins to pay */

/* ---- curves ----------------------------------------------------------------------------------------------------- */

static bool succeeded(const abar_compare_run *run) { return run->ended && !run->failure; }

static double value_of(const abar__epoch *e, int kind, bool text)
{
    return kind == ABAR_CURVE_LOSS ? e->train_loss : text ? e->test_loss : e->test_accuracy;
}

/* Where trainings shared the device: what it would have taken alone, all epochs alike, since their differences are the
 * neighbours' doing. */
static double elapsed(const abar_compare *c, const abar__compare_record *r, int64_t epochs)
{
    const bool shared = r->run.side_by_side > 1;
    double seconds = 0.0;
    for (int64_t e = 0; e < (shared ? r->run.epochs : epochs); e++) seconds += r->history[e].seconds;
    return shared ? seconds * abar__compare_time_scale(c, &r->run) * (double)epochs / (double)r->run.epochs : seconds;
}

/* Epochs that every successful run of the method has, and how many runs these are. */
static int64_t common_epochs(const abar_compare *c, int method, int64_t *runs)
{
    int64_t n = INT64_MAX;
    *runs = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar_compare_run *run = &c->record[i].run;
        if (run->method != method || !succeeded(run)) continue;
        ++*runs;
        if (run->epochs < n) n = run->epochs;
    }
    return *runs > 0 ? n : 0;
}

/* After epoch e (from 0): run `only`, or where that is -1 all of the curve's method that succeeded. */
static abar__curve_point point_at(const abar_compare *c, const abar__curve *curve, int only, int64_t e)
{
    double value[ABAR_CURVE_KINDS][ABAR_COMPARE_SEEDS_MAX] = {{0.0}}, seconds = 0.0;
    const bool text = c->method[0].setup->model->text;
    int64_t n = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar__compare_record *r = &c->record[i];
        if (only >= 0 ? i != only : r->run.method != curve->method || !succeeded(&r->run)) continue;
        for (int kind = 0; kind < ABAR_CURVE_KINDS; kind++) value[kind][n] = value_of(&r->history[e], kind, text);
        seconds += elapsed(c, r, e + 1);
        n++;
    }
    abar__curve_point p = {.epoch = (double)(e + 1), .seconds = seconds / (double)n};
    for (int kind = 0; kind < ABAR_CURVE_KINDS; kind++) {
        abar_compare_spread spread = abar__spread(value[kind], n);
        double band = n > 2 ? spread.std : n == 2 ? fabs(value[kind][1] - value[kind][0]) / 2 : 0.0;
        p.mean[kind] = spread.mean;
        p.low[kind] = spread.mean - band;
        p.high[kind] = spread.mean + band;
    }
    return p;
}

/* At most POINTS_MAX of n epochs, the last one among them. */
static int64_t stride_of(int64_t n) { return 1 + (n - 1) / POINTS_MAX; }
static int64_t points_of(int64_t n) { return n > 0 ? 1 + (n - 1) / stride_of(n) : 0; }

static void fill_curve(const abar_compare *c, abar__curve *curve, int only, int64_t epochs)
{
    curve->n = points_of(epochs);
    for (int64_t i = 0; i < curve->n; i++)
        curve->point[i] = point_at(c, curve, only, epochs - 1 - (curve->n - 1 - i) * stride_of(epochs));
}

/* Fills what there is room for, or only counts it: curves and points. */
static void lay_out(const abar_compare *c, abar__curves *out, int *count, int64_t *points)
{
    *count = 0;
    *points = 0;
    for (int m = 0; m < c->methods; m++) {
        int64_t runs, epochs = common_epochs(c, m, &runs);
        if (epochs == 0) continue;
        if (out->curve) {
            out->curve[*count] = (abar__curve){.method = m, .runs = runs, .point = out->points + *points};
            fill_curve(c, &out->curve[*count], -1, epochs);
        }
        ++*count;
        *points += points_of(epochs);
    }
    for (int i = 0; i < c->runs; i++) {
        const abar_compare_run *run = &c->record[i].run;
        if (!run->ended || !run->failure || run->epochs == 0) continue;
        if (out->curve) {
            out->curve[*count] =
                (abar__curve){.method = run->method, .failed = true, .runs = 1, .point = out->points + *points};
            fill_curve(c, &out->curve[*count], i, run->epochs);
        }
        ++*count;
        *points += points_of(run->epochs);
    }
}

abar_status abar__curves_make(const abar_compare *c, abar__curves *out)
{
    int64_t points;
    void *memory;
    *out = (abar__curves){.text = c->method[0].setup->model->text};
    lay_out(c, out, &out->count, &points);
    out->point_bytes = (size_t)points * sizeof *out->points;
    out->curve_bytes = (size_t)out->count * sizeof *out->curve;
    ABAR_TRY(abar__alloc(c->ctx, out->point_bytes, &memory));
    out->points = memory;
    abar_status status = abar__alloc(c->ctx, out->curve_bytes, &memory);
    if (status < 0) {
        abar__free(c->ctx, out->points, out->point_bytes);
        return status;
    }
    out->curve = memory;
    if (out->curve) lay_out(c, out, &out->count, &points);
    return ABAR_OK;
}

void abar__curves_free(abar_context *ctx, abar__curves *curves)
{
    abar__free(ctx, curves->points, curves->point_bytes);
    abar__free(ctx, curves->curve, curves->curve_bytes);
}

/* ---- scales ----------------------------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten: the least of them that is at least x > 0. */
static double round_step(double x)
{
    double power = pow(10.0, floor(log10(x))), part = x / power;
    return power * (part <= 1.0 + 1e-9 ? 1.0 : part <= 2.0 + 1e-9 ? 2.0 : part <= 5.0 + 1e-9 ? 5.0 : 10.0);
}

static void place_ticks(abar__axis *axis, double step)
{
    axis->ticks = axis->decimals = 0;
    if (!isfinite(step)) return; /* numbers of both signs at the end of their range */
    int decimals = (int)-floor(log10(step) + 1e-9);
    axis->decimals = decimals > 0 ? decimals : 0;
    for (double k = ceil(axis->low / step - 1e-9); k * step <= axis->high + 1e-9 * step && axis->ticks < ABAR_TICKS_MAX; k++)
        axis->tick[axis->ticks++] = k * step;
}

/* Powers of ten, and 2 and 5 times them where few of those fit. */
static void place_log_ticks(abar__axis *axis)
{
    static const double part[] = {1.0, 2.0, 5.0};
    for (int parts = 3; parts > 0; parts -= 2) {
        axis->ticks = 0;
        axis->decimals = -1;
        for (int k = (int)floor(axis->low); k <= (int)ceil(axis->high); k++) {
            for (int i = 0; i < parts; i++) {
                double at = k + log10(part[i]);
                if (at < axis->low || at > axis->high) continue;
                if (axis->ticks < ABAR_TICKS_MAX) axis->tick[axis->ticks] = part[i] * pow(10.0, k);
                axis->ticks++;
            }
        }
        if (axis->ticks <= 8) return;
    }
    if (axis->ticks > ABAR_TICKS_MAX) axis->ticks = ABAR_TICKS_MAX;
}

double abar__axis_place(const abar__axis *axis, double value)
{
    double at = axis->logarithmic ? log10(fmax(value, 1e-300)) : value;
    return (at - axis->low) / (axis->high - axis->low);
}

/* The largest number of epochs, or of seconds, on any curve. */
static double last_of(const abar__curves *curves, bool time)
{
    double most = 0.0;
    for (int i = 0; i < curves->count; i++) {
        const abar__curve_point *last = &curves->curve[i].point[curves->curve[i].n - 1];
        most = fmax(most, time ? last->seconds : last->epoch);
    }
    return most;
}

abar__axis abar__axis_epochs(const abar__curves *curves)
{
    double last = fmax(last_of(curves, false), 1.0), margin = last > 1.0 ? 0.03 * (last - 1.0) : 0.5;
    abar__axis axis = {.low = 1.0 - margin, .high = last + margin};
    place_ticks(&axis, fmax(1.0, round_step((axis.high - axis.low) / 8.0)));
    if (axis.ticks > 0 && axis.tick[0] == 0.0) memmove(axis.tick, axis.tick + 1, (size_t)--axis.ticks * sizeof *axis.tick);
    return axis;
}

int abar__axis_time_unit(const abar__curves *curves)
{
    double last = last_of(curves, true);
    return last > 3.0 * 3600.0 ? 3 : last > 300.0 ? 2 : 1;
}

abar__axis abar__axis_time(const abar__curves *curves, double unit)
{
    double last = last_of(curves, true) / unit;
    abar__axis axis = {.low = 0.0, .high = last > 0.0 ? 1.03 * last : 1.0};
    place_ticks(&axis, round_step(axis.high / 7.0));
    return axis;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Finite means of the curves; those of failed runs only where there is nothing else. */
static int64_t collect(const abar__curves *curves, int kind, double *out)
{
    int64_t n = 0;
    for (int pass = 0; pass < 2 && n == 0; pass++)
        for (int i = 0; i < curves->count; i++)
            for (int64_t k = 0; k < curves->curve[i].n && curves->curve[i].failed == (pass == 1); k++) {
                double value = curves->curve[i].point[k].mean[kind];
                if (isfinite(value)) out[n++] = value;
            }
    if (n > 1) qsort(out, (size_t)n, sizeof *out, ascending);
    return n;
}

/* Room for the bands, within reason. */
static void include_bands(abar__axis *axis, const abar__curves *curves, int kind)
{
    double room = 0.25 * (axis->high - axis->low), low = axis->low - room, high = axis->high + room;
    abar__axis wide = *axis;
    for (int i = 0; i < curves->count; i++) {
        for (int64_t k = 0; k < curves->curve[i].n && !curves->curve[i].failed; k++) {
            const abar__curve_point *p = &curves->curve[i].point[k];
            double a = axis->logarithmic ? log10(fmax(p->low[kind], 1e-300)) : p->low[kind];
            double b = axis->logarithmic ? log10(fmax(p->high[kind], 1e-300)) : p->high[kind];
            if (a >= low && a < wide.low) wide.low = a;
            if (b <= high && b > wide.high) wide.high = b;
        }
    }
    *axis = wide;
}

/* From the least to the greatest of n ascending numbers, but not as far as those that have run away: several times further
 * from the better three quarters than these are spread. Losses fall far in the first epochs and may. */
static void include_values(abar__axis *axis, const double *value, int64_t n, bool less_is_better)
{
    const double far = less_is_better ? 6.0 : 3.0;
    double low = value[0], high = value[n - 1], fair = value[less_is_better ? (3 * n) / 4 - (n % 4 == 0) : n / 4];
    axis->low = less_is_better || fair == high ? low : fmax(low, fair - far * (high - fair));
    axis->high = !less_is_better || fair == low ? high : fmin(high, fair + far * (fair - low));
}

abar__axis abar__axis_values(const abar__curves *curves, int kind, double *scratch)
{
    int64_t n = collect(curves, kind, scratch);
    bool loss = kind == ABAR_CURVE_LOSS || curves->text;
    abar__axis axis = {.low = 0.0, .high = 1.0};
    if (n > 0) {
        axis.logarithmic = loss && scratch[0] > 0.0 && scratch[n - 1] > LOG_FROM * scratch[0];
        for (int64_t i = 0; i < n && axis.logarithmic; i++) scratch[i] = log10(scratch[i]);
        include_values(&axis, scratch, n, loss);
        include_bands(&axis, curves, kind);
        double margin = axis.high > axis.low ? 0.05 * (axis.high - axis.low) : fmax(0.05 * fabs(axis.high), 1e-6);
        axis.low -= margin;
        axis.high += margin;
    }
    if (axis.logarithmic) place_log_ticks(&axis);
    if (axis.logarithmic && axis.ticks < 2) axis = (abar__axis){.low = pow(10.0, axis.low), .high = pow(10.0, axis.high)};
    if (!axis.logarithmic) place_ticks(&axis, round_step((axis.high - axis.low) / 6.0));
    return axis;
}
