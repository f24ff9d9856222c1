/* The curves of a comparison: for every method the mean over its seeds with a band of one sample standard deviation (for two
 * runs, from one to the other), every failed run by itself, and the axes. */
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 400 /* of one curve: the picture cannot show more */
#define LOG_FROM 8.0   /* the scale is logarithmic if the greatest loss is so many times the least */

/* ---- curves ----------------------------------------------------------------------------------------------------- */

static bool succeeded(const abar_compare_run *run) { return run->ended && !run->failure; }

static double value_of(const abar__epoch *e, int kind, bool text)
{
    return kind == ABAR_CURVE_LOSS ? e->train_loss : text ? e->test_loss : e->test_accuracy;
}

double abar__compare_elapsed(const abar_compare *c, const abar__compare_record *r, int64_t epochs)
{
    const bool shared = r->run.side_by_side > 1;
    double seconds = 0.0;
    for (int64_t e = 0; e < (shared ? r->run.epochs : epochs); e++) seconds += r->history[e].seconds;
    return shared ? seconds * abar__compare_time_scale(c, &r->run) * (double)epochs / (double)r->run.epochs : seconds;
}

/* Epochs that all successful runs of the method have; *runs: the number of these runs. */
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

/* The point after epoch e (from 0) of run `only`; -1: of all successful runs of the curve's method. */
static abar__curve_point point_at(const abar_compare *c, const abar__curve *curve, int only, int64_t e)
{
    double value[ABAR_CURVE_KINDS][ABAR_COMPARE_SEEDS_MAX] = {{0.0}}, seconds = 0.0;
    const bool text = c->method[0].setup->model->text;
    int64_t n = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar__compare_record *r = &c->record[i];
        if (only >= 0 ? i != only : r->run.method != curve->method || !succeeded(&r->run)) continue;
        for (int kind = 0; kind < ABAR_CURVE_KINDS; kind++) value[kind][n] = value_of(&r->history[e], kind, text);
        seconds += abar__compare_elapsed(c, r, e + 1);
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

/* At most POINTS_MAX of n epochs, including the last. */
static int64_t stride_of(int64_t n) { return 1 + (n - 1) / POINTS_MAX; }
static int64_t points_of(int64_t n) { return n > 0 ? 1 + (n - 1) / stride_of(n) : 0; }

static void fill_curve(const abar_compare *c, abar__curve *curve, int only, int64_t epochs)
{
    curve->n = points_of(epochs);
    for (int64_t i = 0; i < curve->n; i++)
        curve->point[i] = point_at(c, curve, only, epochs - 1 - (curve->n - 1 - i) * stride_of(epochs));
}

/* Counts curves and points, and fills them if they are allocated. */
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

/* ---- axes ------------------------------------------------------------------------------------------------------- */

/* The most epochs, or seconds, of any curve. */
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
    abar__axis_ticks(&axis, 1.0);
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
    abar__axis_ticks(&axis, 0.0);
    return axis;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The finite means of the curves in ascending order; those of failed runs only if there are no others. */
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

/* Extends the axis to include the bands, by a quarter on each side at most. */
static void include_bands(abar__axis *axis, const abar__curves *curves, int kind)
{
    const double margin = 0.25 * (axis->high - axis->low), low = axis->low - margin, high = axis->high + margin;
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

/* From the least to the greatest of n ascending numbers, without outliers: worse than the better three quarters by several
 * times their spread. The factor is greater for losses, which fall far in the first epochs. */
static void include_values(abar__axis *axis, const double *value, int64_t n, bool less_is_better)
{
    const double far = less_is_better ? 6.0 : 3.0;
    double low = value[0], high = value[n - 1], fair = value[less_is_better ? (3 * n) / 4 - (n % 4 == 0) : n / 4];
    axis->low = less_is_better || fair == high ? low : fmax(low, fair - far * (high - fair));
    axis->high = !less_is_better || fair == low ? high : fmin(high, fair + far * (fair - low));
}

/* The axis for n numbers in ascending order, which may become logarithms; without margin and ticks. */
static abar__axis axis_of(double *value, int64_t n, bool loss)
{
    abar__axis axis = {.low = 0.0, .high = 1.0};
    if (n == 0) return axis;
    axis.logarithmic = loss && value[0] > 0.0 && value[n - 1] > LOG_FROM * value[0];
    for (int64_t i = 0; i < n && axis.logarithmic; i++) value[i] = log10(value[i]);
    include_values(&axis, value, n, loss);
    return axis;
}

static void finish_axis(abar__axis *axis, int64_t n)
{
    const double margin = axis->high > axis->low ? 0.05 * (axis->high - axis->low) : fmax(0.05 * fabs(axis->high), 1e-6);
    if (n > 0) {
        axis->low -= margin;
        axis->high += margin;
    }
    abar__axis_ticks(axis, 0.0);
}

abar__axis abar__axis_values(const abar__curves *curves, int kind, double *scratch)
{
    const int64_t n = collect(curves, kind, scratch);
    abar__axis axis = axis_of(scratch, n, kind == ABAR_CURVE_LOSS || curves->text);
    if (n > 0) include_bands(&axis, curves, kind);
    finish_axis(&axis, n);
    return axis;
}

abar__axis abar__axis_around(double *value, int64_t n, bool loss)
{
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(value[i])) value[finite++] = value[i];
    if (finite > 1) qsort(value, (size_t)finite, sizeof *value, ascending);
    abar__axis axis = axis_of(value, finite, loss);
    finish_axis(&axis, finite);
    return axis;
}
