/* sweep.svg. One setting: the result, the training loss and the time of a step over its values, and the result over the time of
 * training. Two: a heat map per optimizer. More, or one at a time: a panel per setting; of a grid with the best of the others.
 * Lines are means over the seeds, bands reach from the least to the greatest, crosses at the bottom are runs that failed. */
#include "base/number.h"
#include "train/sweep/sweep_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE_MAX = 128, POINTS_MAX = ABAR_SWEEP_VALUES_MAX };

/* What is drawn over a value. */
enum { RESULT, LOSS, TIME, QUANTITIES };

/* A value of one optimizer. */
typedef struct point {
    double x;
    double mean[QUANTITIES], low[QUANTITIES], high[QUANTITIES];
    double seconds;
    bool failed; /* at least one of its runs */
} point;

/* The values of one axis. */
typedef struct scale {
    abar__axis axis;
    bool numeric;
    int values; /* that are not numbers: their names, in the order of the cells */
    const char *name[ABAR_TICKS_MAX];
} scale;

/* Memory of a drawing: what panels point to. */
typedef struct drawing {
    const abar_compare *c;
    const abar__sweep *s;
    int baseline; /* optimizer, or -1 */
    char note[ABAR_COMPARE_METHODS_MAX][NOTE_MAX];
    char title[2 * ABAR_OPTION_TEXT_MAX], subtitle[512];
    scale *scale;         /* per axis */
    point *point;         /* scratch: those of one line */
    abar__panel *panel;   /* panels */
    abar__series *series; /* series_each per panel */
    double *number;       /* number_each per panel */
    const char **names;   /* of heat maps: rows and columns */
    int panels, series_each, number_each;
    char heading[ABAR_COMPARE_METHODS_MAX][96];
} drawing;

static bool draws_text(const drawing *d) { return d->c->method[0].setup->model->text; }

/* ---- values ---------------------------------------------------------------------------------------------------------- */

/* NaN: not a number, or the optimizer has no such option. */
static double number_of(const abar__sweep *s, int cell, int axis)
{
    double x;
    return abar__real_parse(s->cell[cell].value[axis], &x) ? x : NAN;
}

static int name_index(const scale *k, const char *value)
{
    for (int i = 0; i < k->values; i++)
        if (strcmp(k->name[i], value) == 0) return i;
    return -1;
}

static bool is_drawn(const drawing *d, int cell, int axis)
{
    const abar__sweep_cell *at = &d->s->cell[cell];
    return at->value[axis][0] && (at->axis < 0 || at->axis == axis);
}

static void name_values(const drawing *d, int axis, scale *k)
{
    for (int i = 0; i < d->s->cells; i++) {
        const char *value = d->s->cell[i].value[axis];
        if (is_drawn(d, i, axis) && name_index(k, value) < 0 && k->values < ABAR_TICKS_MAX) k->name[k->values++] = value;
    }
    k->axis = (abar__axis){.low = -0.5, .high = k->values - 0.5, .ticks = k->values, .names = k->name};
    for (int i = 0; i < k->values; i++) k->axis.tick[i] = i;
}

/* Logarithmic where the values were given so, or span much. */
static void make_scale(const drawing *d, int axis, scale *k)
{
    double low = INFINITY, high = -INFINITY;
    *k = (scale){.numeric = true};
    for (int i = 0; i < d->s->cells; i++) {
        if (!is_drawn(d, i, axis)) continue;
        const double x = number_of(d->s, i, axis);
        k->numeric = k->numeric && isfinite(x);
        low = fmin(low, x);
        high = fmax(high, x);
    }
    k->numeric = k->numeric && low <= high;
    if (!k->numeric) {
        name_values(d, axis, k);
        return;
    }
    const bool logarithmic = low > 0.0 && (d->s->axis[axis].logarithmic || high > 8.0 * low);
    const double around = low < high ? 0.0 : fmax(0.5 * fabs(low), 1e-6);
    k->axis = abar__axis_make(low - around, high + around, logarithmic && around == 0.0);
}

static double place_of(const drawing *d, int cell, int axis)
{
    const scale *k = &d->scale[axis];
    return k->numeric ? number_of(d->s, cell, axis) : (double)name_index(k, d->s->cell[cell].value[axis]);
}

/* ---- points ---------------------------------------------------------------------------------------------------------- */

static double quantity_of(const drawing *d, const abar_compare_run *run, int quantity)
{
    const double alone = d->c->method[run->method].ms_alone;
    if (quantity == TIME) return run->side_by_side > 1 && alone > 0.0 ? alone : run->ms_per_step;
    return quantity == LOSS ? run->train_loss : draws_text(d) ? run->test_loss : run->test_accuracy;
}

static point point_of(const drawing *d, int cell)
{
    point p = {0};
    int n = 0;
    for (int q = 0; q < QUANTITIES; q++) p.low[q] = INFINITY, p.high[q] = -INFINITY;
    for (int i = 0; i < d->c->runs; i++) {
        const abar_compare_run *run = &d->c->record[i].run;
        if (run->method != cell || !run->ended) continue;
        p.failed = p.failed || run->failure;
        if (run->failure) continue;
        n++;
        p.seconds += run->seconds * abar__compare_time_scale(d->c, run);
        for (int q = 0; q < QUANTITIES; q++) {
            const double value = quantity_of(d, run, q);
            p.mean[q] += value;
            p.low[q] = fmin(p.low[q], value);
            p.high[q] = fmax(p.high[q], value);
        }
    }
    for (int q = 0; q < QUANTITIES; q++) p.mean[q] = n > 0 ? p.mean[q] / n : NAN;
    p.seconds = n > 0 ? p.seconds / n : NAN;
    return p;
}

static double merit(const drawing *d, const point *p) { return draws_text(d) ? -p->mean[RESULT] : p->mean[RESULT]; }

static int by_place(const void *a, const void *b)
{
    const double x = ((const point *)a)->x, y = ((const point *)b)->x;
    return (x > y) - (x < y);
}

/* The points of an optimizer over an axis in d->point, ordered by value; of cells with the same value the best one. */
static int collect_points(const drawing *d, int optimizer, int axis)
{
    int n = 0;
    for (int i = 0; i < d->s->cells; i++) {
        if (d->s->cell[i].optimizer != optimizer || !is_drawn(d, i, axis)) continue;
        point p = point_of(d, i);
        int k = 0;
        p.x = place_of(d, i, axis);
        while (k < n && d->point[k].x != p.x) k++;
        if (k == n && n < POINTS_MAX) d->point[n++] = p;
        if (k < n && (isnan(d->point[k].mean[RESULT]) || merit(d, &p) > merit(d, &d->point[k]))) d->point[k] = p;
    }
    if (n > 1) qsort(d->point, (size_t)n, sizeof *d->point, by_place);
    return n;
}

/* The only cell of an optimizer that does not vary along the axis; -1: it does, or varies otherwise. */
static int lone_cell(const drawing *d, int optimizer, int axis)
{
    int found = -1, n = 0;
    for (int i = 0; i < d->s->cells; i++) {
        if (d->s->cell[i].optimizer != optimizer) continue;
        if (is_drawn(d, i, axis)) return -1;
        found = i;
        n++;
    }
    return n == 1 ? found : -1;
}

/* ---- lines ----------------------------------------------------------------------------------------------------------- */

/* Where the next numbers and series of a panel go. */
typedef struct cursor {
    abar__panel *panel;
    abar__series *series;
    double *number;
} cursor;

static double *take(cursor *at, int n)
{
    double *numbers = at->number;
    at->number += n;
    return numbers;
}

static int color_of(const drawing *d, int optimizer)
{
    if (optimizer == d->baseline) return ABAR_GREY;
    return optimizer - (d->baseline >= 0 && optimizer > d->baseline);
}

/* The time of a step of the baseline at its value nearest to x, of those that did not fail; x NaN: at its first. NaN: there is
 * none. */
static double baseline_ms(const drawing *d, int axis, double x)
{
    double nearest = INFINITY, ms = NAN;
    for (int i = 0; i < d->s->cells; i++) {
        if (d->s->cell[i].optimizer != d->baseline) continue;
        const double time = point_of(d, i).mean[TIME], away = fabs(place_of(d, i, axis) - x);
        const double distance = isnan(away) ? 0.0 : away;
        if (!isnan(time) && distance < nearest) nearest = distance, ms = time;
    }
    return ms;
}

/* Whether cells that differ in several settings share an axis, as the trials of a tuning do: a line would connect what has
 * nothing to do with each other. */
static bool is_scatter(const drawing *d) { return !d->s->grid && d->s->axes > 1 && d->s->cell[0].axis < 0; }

/* A line of n points of d->point; over_time: over the seconds of training, in the order of the values. */
static void add_line(const drawing *d, cursor *at, int optimizer, int axis, int n, int quantity, bool over_time)
{
    abar__series s = {
        .name = d->s->optimizer[optimizer], .note = d->note[optimizer], .n = n, .color = color_of(d, optimizer), .dots = true};
    const int each = is_scatter(d) ? 2 : 1; /* a gap after every point */
    s.n = (int64_t)n * each;
    double *x = take(at, n * each), *y = take(at, n * each), *low = take(at, n * each), *high = take(at, n * each);
    for (int i = 0; i < n * each; i++) {
        const point *p = &d->point[i / each];
        const double over = quantity == TIME ? baseline_ms(d, axis, p->x) : 1.0, unit = isnan(over) ? 1.0 : over;
        x[i] = over_time ? p->seconds : p->x;
        y[i] = i % each == 0 ? p->mean[quantity] / unit : NAN;
        low[i] = isnan(y[i]) ? NAN : p->low[quantity] / unit;
        high[i] = isnan(y[i]) ? NAN : p->high[quantity] / unit;
    }
    while (s.n > 0 && isnan(y[s.n - 1])) s.n--; /* a line ends at its last point, where its name is */
    s.x = x;
    s.y = y;
    if (!over_time && each == 1 && abar__compare_seeds_most(d->c) > 1) s.low = low, s.high = high;
    at->series[at->panel->n_series++] = s;
}

/* An optimizer that does not vary: a dashed line over the whole axis, or one point over the time. */
static void add_level(const drawing *d, cursor *at, int optimizer, int axis, int cell, int quantity, bool over_time)
{
    const point p = point_of(d, cell);
    const abar__axis *a = &d->scale[axis].axis;
    const double over = quantity == TIME ? baseline_ms(d, axis, NAN) : 1.0;
    double *x = take(at, 2), *y = take(at, 2);
    x[0] = over_time ? p.seconds : a->logarithmic ? pow(10.0, a->low) : a->low;
    x[1] = a->logarithmic ? pow(10.0, a->high) : a->high;
    y[0] = y[1] = p.mean[quantity] / (isnan(over) ? 1.0 : over);
    at->series[at->panel->n_series++] = (abar__series){.name = d->s->optimizer[optimizer],
                                                       .note = d->note[optimizer],
                                                       .x = x,
                                                       .y = y,
                                                       .n = over_time ? 1 : 2,
                                                       .color = color_of(d, optimizer),
                                                       .dots = over_time,
                                                       .dashed = true};
}

/* The axis of the results of a panel, once its lines are there. */
static abar__axis fit(const abar__panel *p, const abar__series *series, bool loss, double *scratch)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_series; i++)
        for (int64_t k = 0; k < series[i].n; k++) {
            const abar__series *s = &series[i];
            scratch[n++] = s->y[k];
            if (s->low) scratch[n++] = s->low[k], scratch[n++] = s->high[k];
        }
    return abar__axis_around(scratch, n, loss);
}

static abar__axis fit_time(const abar__panel *p, const abar__series *series)
{
    double most = 0.0;
    for (int i = 0; i < p->n_series; i++)
        for (int64_t k = 0; k < series[i].n; k++) most = fmax(most, series[i].x[k]);
    return abar__axis_make(0.0, most > 0.0 ? most : 1.0, false);
}

/* Crosses for values with failed runs, at the bottom; those that share a place stand side by side. */
static void add_crosses(const drawing *d, cursor *at, int axis)
{
    const abar__axis *a = &at->panel->y;
    const double step = 0.05 * (a->high - a->low);
    for (int o = 0, row = 0; o < d->s->optimizers; o++) {
        const int n = collect_points(d, o, axis);
        bool any = false;
        for (int i = 0; i < n; i++) {
            if (!d->point[i].failed) continue;
            double *x = take(at, 1), *y = take(at, 1);
            const double place = a->low + step * (0.8 + row % 4);
            *x = d->point[i].x;
            *y = a->logarithmic ? pow(10.0, place) : place;
            at->series[at->panel->n_series++] =
                (abar__series){.name = d->s->optimizer[o], .x = x, .y = y, .n = 1, .color = color_of(d, o), .broken = true};
            any = true;
        }
        row += any;
    }
}

static void add_panel(drawing *d, const char *title, int axis, int quantity, bool over_time)
{
    const int i = d->panels++;
    cursor at = {&d->panel[i], d->series + i * d->series_each, d->number + i * d->number_each};
    const bool loss = quantity != RESULT || draws_text(d);
    *at.panel = (abar__panel){.title = title,
                              .x_label = over_time ? "seconds of training and testing" : d->s->axis[axis].name,
                              .series = at.series,
                              .names = !over_time};
    for (int o = 0; o < d->s->optimizers; o++) {
        const int lone = lone_cell(d, o, axis);
        const int n = lone < 0 ? collect_points(d, o, axis) : 0;
        if (lone >= 0)
            add_level(d, &at, o, axis, lone, quantity, over_time);
        else
            add_line(d, &at, o, axis, n, quantity, over_time);
    }
    at.panel->y = fit(at.panel, at.series, loss, at.number);
    at.panel->x = over_time ? fit_time(at.panel, at.series) : d->scale[axis].axis;
    if (!over_time && quantity == RESULT) add_crosses(d, &at, axis);
}

/* ---- heat maps ------------------------------------------------------------------------------------------------------- */

/* The distinct values of an optimizer along an axis, in the order of its cells. */
static int list_values(const abar__sweep *s, int optimizer, int axis, const char **names)
{
    int n = 0;
    for (int i = 0; i < s->cells; i++) {
        const char *value = s->cell[i].value[axis];
        if (s->cell[i].optimizer != optimizer) continue;
        int k = 0;
        while (k < n && strcmp(names[k], value) != 0) k++;
        if (k == n && n < ABAR_SWEEP_VALUES_MAX) names[n++] = value;
    }
    return n;
}

static int index_in(const char **names, int n, const char *value)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], value) == 0) return i;
    return 0;
}

/* Rows: the second setting, upwards; columns: the first. */
static void add_heat(drawing *d, int optimizer)
{
    const int i = d->panels++;
    const char **columns = d->names + 2 * i * ABAR_SWEEP_VALUES_MAX, **rows = columns + ABAR_SWEEP_VALUES_MAX;
    double *cell = d->number + i * d->number_each;
    const int across = list_values(d->s, optimizer, 0, columns), up = list_values(d->s, optimizer, 1, rows);
    for (int k = 0; k < up / 2; k++) {
        const char *other = rows[k];
        rows[k] = rows[up - 1 - k];
        rows[up - 1 - k] = other;
    }
    for (int k = 0; k < across * up; k++) cell[k] = NAN;
    for (int k = 0; k < d->s->cells; k++) {
        const abar__sweep_cell *at = &d->s->cell[k];
        if (at->optimizer != optimizer) continue;
        cell[index_in(rows, up, at->value[1]) * across + index_in(columns, across, at->value[0])] = point_of(d, k).mean[RESULT];
    }
    double *scratch = cell + across * up;
    memcpy(scratch, cell, (size_t)(across * up) * sizeof *cell);
    abar__axis colors = abar__axis_around(scratch, across * up, draws_text(d));
    if (colors.logarithmic) colors.low = pow(10.0, colors.low), colors.high = pow(10.0, colors.high);
    colors.decimals = draws_text(d) ? 3 : 1;
    snprintf(d->heading[optimizer], sizeof d->heading[0], "%s: %s", d->s->optimizer[optimizer], d->note[optimizer]);
    d->panel[i] = (abar__panel){.title = d->heading[optimizer],
                                .x_label = columns[0][0] ? d->s->axis[0].name : NULL,
                                .y_label = rows[0][0] ? d->s->axis[1].name : NULL,
                                .y = colors,
                                .limited = true,
                                .numbers = true,
                                .cell = cell,
                                .rows = up,
                                .columns = across,
                                .row_names = rows,
                                .column_names = columns};
}

/* ---- the picture ----------------------------------------------------------------------------------------------------- */

/* "best at lr 0.1: 91.20 %" */
static void write_note(drawing *d, int optimizer)
{
    const abar_sweep_best *best = abar_sweep_best_of(d->c, optimizer);
    char *note = d->note[optimizer], number[ABAR_REAL_TEXT_MAX];
    int n = 0;
    if (best->cell < 0) {
        snprintf(note, NOTE_MAX, "no value without failures yet");
        return;
    }
    const abar__sweep_cell *cell = &d->s->cell[best->cell];
    for (int a = 0; a < d->s->axes && n < NOTE_MAX; a++)
        if (cell->value[a][0] && (cell->axis < 0 || cell->axis == a))
            n += snprintf(note + n, NOTE_MAX - (size_t)n, "%s%s %.20s", n ? ", " : "best at ", d->s->axis[a].name,
                          cell->value[a]);
    if (n < NOTE_MAX)
        snprintf(note + n, NOTE_MAX - (size_t)n, "%s%s%s", n ? ": " : "",
                 abar__plot_number(draws_text(d) ? best->loss.mean : best->accuracy.mean, draws_text(d) ? 4 : 2, number),
                 draws_text(d) ? "" : " %");
}

static void write_titles(drawing *d)
{
    const abar_train_config *t = &d->c->method[0].setup->train;
    const int ended = abar__compare_ended(d->c), seeds = (int)abar__compare_seeds_most(d->c);
    const size_t size = sizeof d->subtitle;
    snprintf(d->title, sizeof d->title, "%s on %.*s", t->model, (int)strcspn(t->data, ":"), t->data);
    int n = snprintf(d->subtitle, size, "%d run%s, %d seed%s, %.32s; %s %s", d->c->runs, d->c->runs > 1 ? "s" : "", seeds,
                     seeds > 1 ? "s" : "", t->device, abar__tested_part(t), draws_text(d) ? "loss" : "accuracy, %");
    if (seeds > 1) n += snprintf(d->subtitle + n, size - (size_t)n, "; mean, band: least to greatest");
    if (ended < d->c->runs) snprintf(d->subtitle + n, size - (size_t)n, "; %d of %d runs so far", ended, d->c->runs);
}

static void add_panels(drawing *d, bool heat)
{
    static const char *const titles[2][2] = {{"Test accuracy, %", "Test loss"}, {"Validation accuracy, %", "Validation loss"}};
    const char *result = titles[d->c->method[0].setup->train.validation > 0.0][draws_text(d)];
    for (int o = 0; heat && o < d->s->optimizers; o++) add_heat(d, o);
    for (int a = 0; !heat && a < d->s->axes; a++) add_panel(d, result, a, RESULT, false);
    if (heat || d->s->axes > 1) return;
    add_panel(d, "Training loss", 0, LOSS, false);
    add_panel(d, isnan(baseline_ms(d, 0, NAN)) ? "Time of a step, ms" : "Time of a step, relative to sgd", 0, TIME, false);
    add_panel(d, result, 0, RESULT, true);
}

static int baseline_of(const abar_compare *c)
{
    const abar__sweep *s = abar__sweep_of(c);
    for (int i = 0; i < s->cells; i++)
        if (strcmp(c->method[i].setup->train.optim, "sgd") == 0) return s->cell[i].optimizer;
    return -1;
}

static abar_status draw(drawing *d, bool heat, abar__text *out)
{
    for (int a = 0; a < d->s->axes; a++) make_scale(d, a, &d->scale[a]);
    for (int o = 0; o < d->s->optimizers; o++) write_note(d, o);
    write_titles(d);
    add_panels(d, heat);
    return abar__picture_write(d->c->ctx,
                               &(abar__picture){.title = d->title,
                                                .subtitle = d->subtitle,
                                                .panels = d->panel,
                                                .n_panels = d->panels,
                                                .columns = d->panels > 1 ? 2 : 1},
                               out);
}

/* Every combination of two settings. A file that was changed by hand may claim so, and have others. */
static bool is_heat(const abar__sweep *s)
{
    const char *names[ABAR_SWEEP_VALUES_MAX];
    bool heat = s->grid && s->axes == 2;
    for (int o = 0; o < s->optimizers && heat; o++) {
        const int across = list_values(s, o, 0, names);
        heat = across > 0 && across * list_values(s, o, 1, names) <= s->cells;
    }
    return heat;
}

abar_status abar__sweep_svg_write(const abar_compare *c, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    const bool heat = is_heat(s);
    const size_t panels = heat ? (size_t)s->optimizers : s->axes > 1 ? (size_t)s->axes : 4;
    drawing d = {.c = c,
                 .s = s,
                 .baseline = baseline_of(c),
                 .series_each = s->optimizers + s->cells,
                 .number_each = 16 * s->cells + 6 * s->optimizers + 2 * ABAR_SWEEP_VALUES_MAX};
    const size_t bytes[] = {(size_t)s->axes * sizeof *d.scale,
                            POINTS_MAX * sizeof *d.point,
                            panels * sizeof *d.panel,
                            panels * (size_t)d.series_each * sizeof *d.series,
                            panels * (size_t)d.number_each * sizeof *d.number,
                            panels * 2 * ABAR_SWEEP_VALUES_MAX * sizeof *d.names};
    void *memory[sizeof bytes / sizeof *bytes] = {NULL};
    const size_t n = sizeof bytes / sizeof *bytes;
    abar_status status = ABAR_OK;
    for (size_t i = 0; i < n && status >= 0; i++) status = abar__alloc(c->ctx, bytes[i], &memory[i]);
    if (status >= 0) {
        d.scale = memory[0];
        d.point = memory[1];
        d.panel = memory[2];
        d.series = memory[3];
        d.number = memory[4];
        d.names = memory[5];
        status = draw(&d, heat, out);
    }
    for (size_t i = 0; i < n; i++)
        if (memory[i]) abar__free(c->ctx, memory[i], bytes[i]);
    return status;
}
