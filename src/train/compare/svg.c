/* compare.svg: training loss and test (or validation) accuracy (of texts: loss), over epochs and over time, one colour per
 * method. */
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NOTE_MAX = 96 };

/* One panel's numbers: where each point is drawn. */
typedef struct columns {
    double *x, *y, *low, *high;
} columns;

typedef struct drawing {
    const abar_compare *c;
    abar__curves curves;
    char note[ABAR_COMPARE_METHODS_MAX][NOTE_MAX];
    char subtitle[256], below[96];
    double *numbers; /* 4 panels x 4 columns of all points */
    abar__series *series;
    size_t number_bytes, series_bytes;
    int64_t points;
} drawing;

/* ---- words ---------------------------------------------------------------------------------------------------------- */

/* "90.02 ± 0.08 %" */
static void spread_text(abar_compare_spread s, int decimals, const char *unit, char *text, size_t size)
{
    char mean[ABAR_REAL_TEXT_MAX], std[ABAR_REAL_TEXT_MAX];
    if (isnan(s.mean))
        snprintf(text, size, "–");
    else if (isnan(s.std))
        snprintf(text, size, "%s%s", abar__plot_number(s.mean, decimals, mean), unit);
    else
        snprintf(text, size, "%s ± %s%s", abar__plot_number(s.mean, decimals, mean), abar__plot_number(s.std, decimals, std),
                 unit);
}

static void write_notes(drawing *d)
{
    for (int m = 0; m < d->c->methods; m++) {
        const abar_compare_row *row = abar_compare_row_of(d->c, m);
        char *text = d->note[m];
        if (d->curves.text)
            spread_text(row->test_loss, 4, "", text, NOTE_MAX);
        else
            spread_text(row->test_accuracy, 2, " %", text, NOTE_MAX);
        const size_t used = strlen(text);
        if (row->failures > 0) snprintf(text + used, NOTE_MAX - used, ", %lld failed", (long long)row->failures);
    }
}

static void write_subtitle(drawing *d)
{
    const abar_compare *c = d->c;
    const abar_train_config *t = &c->method[0].setup->train;
    const int64_t epochs = abar__compare_epochs(c, 0), seeds = abar__compare_seeds_most(c),
                  shared = abar__compare_side_by_side(c);
    const int ended = abar__compare_ended(c);
    int n = snprintf(d->subtitle, sizeof d->subtitle, "%lld epoch%s, batch %lld, %s%lld seed%s, %.32s", (long long)epochs,
                     epochs > 1 ? "s" : "", (long long)t->batch, c->runs < seeds * c->methods ? "up to " : "", (long long)seeds,
                     seeds > 1 ? "s" : "", t->device);
    const size_t size = sizeof d->subtitle;
    if (seeds > 1)
        n += snprintf(d->subtitle + n, size - (size_t)n, "; line: mean, band: %s",
                      seeds > 2 ? "± one standard deviation" : "both seeds");
    if (shared > 1) n += snprintf(d->subtitle + n, size - (size_t)n, "; %lld shared the device", (long long)shared);
    if (ended < c->runs) snprintf(d->subtitle + n, size - (size_t)n, "; %d of %d runs so far", ended, c->runs);
}

/* The time axis is not the time that passed where trainings shared the device. */
static const char *time_note(const abar_compare *c)
{
    bool known = true;
    for (int m = 0; m < c->methods; m++) known = known && c->method[m].ms_alone > 0.0;
    if (abar__compare_side_by_side(c) < 2) return "";
    return known ? ", scaled to the speed alone" : ", on a shared device";
}

/* ---- panels ----------------------------------------------------------------------------------------------------------- */

static int color_of(const abar_compare *c, int method)
{
    const int baseline = abar_compare_baseline(c);
    return method == baseline ? ABAR_GREY : method - (method > baseline);
}

static columns columns_of(const drawing *d, int panel)
{
    double *at = d->numbers + 4 * panel * d->points;
    return (columns){at, at + d->points, at + 2 * d->points, at + 3 * d->points};
}

/* A series for every curve, and an empty one for a method that has none yet, so that the legend names it. */
static int fill_series(const drawing *d, int panel, int kind, bool time, double unit, abar__series *out)
{
    const columns at = columns_of(d, panel);
    bool drawn[ABAR_COMPARE_METHODS_MAX] = {false};
    int n = 0;
    int64_t used = 0;
    for (int i = 0; i < d->curves.count; i++) {
        const abar__curve *curve = &d->curves.curve[i];
        const bool band = !curve->failed && curve->runs > 1;
        out[n++] = (abar__series){.name = d->c->method[curve->method].label,
                                  .note = d->note[curve->method],
                                  .x = at.x + used,
                                  .y = at.y + used,
                                  .low = band ? at.low + used : NULL,
                                  .high = band ? at.high + used : NULL,
                                  .n = curve->n,
                                  .color = color_of(d->c, curve->method),
                                  .dots = !curve->failed,
                                  .broken = curve->failed};
        drawn[curve->method] = drawn[curve->method] || !curve->failed;
        for (int64_t k = 0; k < curve->n; k++, used++) {
            const abar__curve_point *p = &curve->point[k];
            at.x[used] = time ? p->seconds / unit : p->epoch;
            at.y[used] = p->mean[kind];
            at.low[used] = p->low[kind];
            at.high[used] = p->high[kind];
        }
    }
    for (int m = 0; m < d->c->methods; m++)
        if (!drawn[m]) out[n++] = (abar__series){.name = d->c->method[m].label, .note = d->note[m], .color = color_of(d->c, m)};
    return n;
}

/* Columns share what is shown, rows what it is shown over. All curves end together over epochs: there they are named. */
static abar_status draw(drawing *d, double *scratch, abar__text *out)
{
    static const char *const units[] = {"", "seconds", "minutes", "hours"};
    static const double unit[] = {1.0, 1.0, 60.0, 3600.0};
    const abar_train_config *t = &d->c->method[0].setup->train;
    const int time = abar__axis_time_unit(&d->curves), each = d->curves.count + d->c->methods;
    char title[2 * ABAR_OPTION_TEXT_MAX];
    const abar__axis across[] = {abar__axis_epochs(&d->curves), abar__axis_time(&d->curves, unit[time])};
    const abar__axis up[] = {abar__axis_values(&d->curves, ABAR_CURVE_LOSS, scratch),
                             abar__axis_values(&d->curves, ABAR_CURVE_TEST, scratch)};
    char result[64];
    snprintf(result, sizeof result, "%s %s", t->validation > 0.0 ? "Validation" : "Test",
             !d->curves.text     ? "accuracy, %"
             : up[1].logarithmic ? "loss (logarithmic)"
                                 : "loss");
    const char *titles[] = {up[0].logarithmic ? "Training loss (logarithmic)" : "Training loss", result};
    abar__panel panels[4];
    snprintf(d->below, sizeof d->below, "%s of training and testing%s", units[time], time_note(d->c));
    snprintf(title, sizeof title, "%s on %.*s", t->model, (int)strcspn(t->data, ":"), t->data);
    write_notes(d);
    write_subtitle(d);
    for (int i = 0; i < 4; i++) {
        abar__series *series = d->series + i * each;
        const int row = i / 2, column = i % 2;
        panels[i] = (abar__panel){.title = titles[column],
                                  .x_label = row == 0 ? "epoch" : d->below,
                                  .x = across[row],
                                  .y = up[column],
                                  .series = series,
                                  .n_series = fill_series(d, i, column, row == 1, unit[time], series),
                                  .names = row == 0};
    }
    return abar__picture_write(
        d->c->ctx, &(abar__picture){.title = title, .subtitle = d->subtitle, .panels = panels, .n_panels = 4, .columns = 2},
        out);
}

abar_status abar__compare_svg_write(const abar_compare *c, abar__text *out)
{
    drawing d = {.c = c};
    void *numbers = NULL, *series = NULL;
    ABAR_TRY(abar__curves_make(c, &d.curves));
    d.points = (int64_t)(d.curves.point_bytes / sizeof *d.curves.points);
    d.number_bytes = (size_t)(17 * d.points + 1) * sizeof(double); /* a column of scratch; not 0 bytes without points */
    d.series_bytes = 4 * (size_t)(d.curves.count + c->methods) * sizeof *d.series;
    abar_status status = abar__alloc(c->ctx, d.number_bytes, &numbers);
    if (status >= 0) status = abar__alloc(c->ctx, d.series_bytes, &series);
    if (status >= 0) {
        d.numbers = numbers;
        d.series = series;
        status = draw(&d, d.numbers + 16 * d.points, out);
    }
    abar__free(c->ctx, series, series ? d.series_bytes : 0);
    abar__free(c->ctx, numbers, numbers ? d.number_bytes : 0);
    abar__curves_free(c->ctx, &d.curves);
    return status;
}
