/* Figures over layers and snapshots: spectra, alignment, covariance, convergence. */
#include "analysis/figures.h"

#include "analysis/sheet.h"
#include "io/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int abar__pick(int n, int most, int *chosen)
{
    const int count = n < most ? n : most;
    for (int i = 0; i < count; i++) chosen[i] = count > 1 ? i * (n - 1) / (count - 1) : 0;
    return count;
}

static abar_status save_picture(const abar__figures *f, const abar__picture *p, const char *name)
{
    return abar__save_picture(f->ctx, f->dir, name, p);
}

static const char *map_name(const abar__figures *f, int map) { return f->collection->maps[map].name; }

const char *abar__figure_subtitle(const abar__figures *f, const char *snapshot, char text[256])
{
    const abar_train_config *t = &f->setup->train;
    const abar__pass *p = f->collection->pass;
    snprintf(text, 256, "%.64s on %.*s, %s%s%lld %s samples", t->model,
             (int)(strcspn(t->data, ":") < 64 ? strcspn(t->data, ":") : 64), t->data, snapshot ? snapshot : "",
             snapshot ? ", " : "", (long long)(p->batches * p->config.batch), p->config.test ? "test" : "training");
    return text;
}

/* Of inputs: they depend on the mode, and that of an untrained network may differ. */
static const char *subtitle(const abar__figures *f, char text[256])
{
    const abar__snapshot *last = &f->snapshots[f->n_snapshots - 1];
    abar__figure_subtitle(f, NULL, text);
    size_t used = strlen(text);
    snprintf(text + used, 256 - used, ", %s mode", last->training ? "training" : "evaluation");
    for (int i = 0; i < f->n_snapshots; i++) {
        used = strlen(text);
        if (f->snapshots[i].training != last->training)
            snprintf(text + used, 256 - used, " (%.32s: %s mode)", f->snapshots[i].name,
                     f->snapshots[i].training ? "training" : "evaluation");
    }
    return text;
}

/* Least and largest positive number, the least not below 1e-16 of the largest. */
typedef struct range {
    double low, high;
} range;

static void widen(range *r, double v)
{
    if (!isfinite(v) || v <= 0.0) return;
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

static abar__axis log_axis(range r) { return abar__axis_make(fmax(r.low, 1e-16 * r.high), r.high, true); }

abar__axis abar__whole_axis(double low, double high)
{
    abar__axis axis = abar__axis_make(low, high, false);
    int kept = 0;
    abar__axis_ticks(&axis, 1.0);
    for (int i = 0; i < axis.ticks; i++)
        if (axis.tick[i] >= low && axis.tick[i] <= high) axis.tick[kept++] = axis.tick[i];
    axis.ticks = kept;
    return axis;
}

/* ---- spectra ------------------------------------------------------------------------------------------------------------ */

static void spectra_rows(abar__sheet *s, const abar__snapshot *snap, const char *layer, const char *matrix,
                         const abar__top *top)
{
    for (int64_t i = 0; i < top->n; i++) {
        const abar__cell cells[] = {abar__word(layer), abar__word(snap->name), abar__word(matrix),
                                    abar__number((double)(i + 1)), abar__number(top->value[i])};
        abar__sheet_row(s, cells);
    }
}

static abar_status spectra_table(const abar__figures *f)
{
    static const char *const columns[] = {"layer", "snapshot", "matrix", "index", "eigenvalue"};
    abar__sheet s;
    abar__sheet_begin(f->ctx, columns, 5, &s);
    for (int k = 0; k < f->n_snapshots; k++)
        for (int m = 0; m < f->collection->n; m++) {
            const abar__map_result *r = &f->snapshots[k].map[m];
            spectra_rows(&s, &f->snapshots[k], map_name(f, m), "A", &r->a);
            spectra_rows(&s, &f->snapshots[k], map_name(f, m), "P", &r->p);
            spectra_rows(&s, &f->snapshots[k], map_name(f, m), "P-reduce", &r->p_reduce);
            spectra_rows(&s, &f->snapshots[k], map_name(f, m), "AxP", &r->kfac);
            spectra_rows(&s, &f->snapshots[k], map_name(f, m), "Fisher", &r->fisher);
        }
    const abar_status status = abar__sheet_save(&s, f->dir, "spectra");
    abar__sheet_free(&s);
    return status;
}

static abar_status ranks_table(const abar__figures *f)
{
    static const char *const columns[] = {
        "layer",      "snapshot",   "effective rank of A", "entropy rank of A", "l50/l1 of A",         "effective rank of P",
        "median A/P", "AxP over P", "rms decades",         "AxP over Fisher",   "rms decades (Fisher)"};
    abar__sheet s;
    abar__sheet_begin(f->ctx, columns, 11, &s);
    for (int k = 0; k < f->n_snapshots; k++)
        for (int m = 0; m < f->collection->n; m++) {
            const abar__map_result *r = &f->snapshots[k].map[m];
            const abar__cell cells[] = {abar__word(map_name(f, m)),
                                        abar__word(f->snapshots[k].name),
                                        abar__number(r->inputs.effective_rank),
                                        abar__number(r->inputs.entropy_rank),
                                        abar__number(r->a.n == ABAR_TOP ? r->a.value[ABAR_TOP - 1] / r->a.value[0] : NAN),
                                        abar__number(r->p_effective_rank),
                                        abar__number(r->a_over_p),
                                        abar__number(r->rescaled.factor),
                                        abar__number(r->rescaled.rms),
                                        abar__number(r->fisher.n ? r->exact.factor : NAN),
                                        abar__number(r->fisher.n ? r->exact.rms : NAN)};
            abar__sheet_row(&s, cells);
        }
    const abar_status status = abar__sheet_save(&s, f->dir, "ranks");
    abar__sheet_free(&s);
    return status;
}

/* How many of a spectrum are more than rounding. */
static int64_t solid_of(const abar__top *top)
{
    int64_t n = 0;
    while (n < top->n && top->value[n] > ABAR_NOISE * top->value[0]) n++;
    return n;
}

/* The lines of one layer at one snapshot. */
static int spectra_series(const abar__map_result *r, const double *index, abar__series *out)
{
    const struct {
        const char *name;
        const abar__top *top;
    } lines[] = {
        {"A = E[aaᵀ]", &r->a}, {"P = E[ppᵀ]", &r->p}, {"A ⊗ P (KFAC)", &r->kfac}, {"Fisher matrix of the layer", &r->fisher}};
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (lines[i].top->n > 0)
            out[n++] = (abar__series){.name = lines[i].name,
                                      .x = index,
                                      .y = lines[i].top->value,
                                      .n = solid_of(lines[i].top),
                                      .color = i,
                                      .dashed = i == 3};
    return n;
}

abar_status abar__figure_spectra(const abar__figures *f)
{
    enum { PANELS = ABAR_FIGURE_LAYERS * ABAR_FIGURE_SNAPSHOTS };
    int layer[ABAR_FIGURE_LAYERS], snap[ABAR_FIGURE_SNAPSHOTS];
    const int layers = abar__pick(f->collection->n, ABAR_FIGURE_LAYERS, layer);
    const int snaps = abar__pick(f->n_snapshots, ABAR_FIGURE_SNAPSHOTS, snap);
    double index[ABAR_TOP];
    char title[PANELS][288], text[256];
    abar__series series[PANELS][4];
    abar__panel panels[PANELS];
    for (int i = 0; i < ABAR_TOP; i++) index[i] = i + 1.0;
    for (int l = 0; l < layers; l++) {
        range r = {INFINITY, 0.0};
        int n[ABAR_FIGURE_SNAPSHOTS];
        for (int s = 0; s < snaps; s++) {
            n[s] = spectra_series(&f->snapshots[snap[s]].map[layer[l]], index, series[l * snaps + s]);
            for (int i = 0; i < n[s]; i++)
                for (int64_t k = 0; k < series[l * snaps + s][i].n; k++) widen(&r, series[l * snaps + s][i].y[k]);
        }
        for (int s = 0; s < snaps; s++) {
            const int at = l * snaps + s;
            snprintf(title[at], sizeof title[at], "%s, %s", map_name(f, layer[l]), f->snapshots[snap[s]].name);
            panels[at] = (abar__panel){.title = title[at],
                                       .x_label = "index",
                                       .y_label = "eigenvalue",
                                       .x = abar__whole_axis(1.0, ABAR_TOP),
                                       .y = log_axis(r),
                                       .series = series[at],
                                       .n_series = n[s]};
        }
    }
    ABAR_TRY(spectra_table(f));
    ABAR_TRY(ranks_table(f));
    return save_picture(f,
                        &(abar__picture){.title = "Eigenvalues of the Kronecker factors and of the Fisher matrix",
                                         .subtitle = subtitle(f, text),
                                         .panels = panels,
                                         .n_panels = layers * snaps,
                                         .columns = snaps},
                        "spectra.svg");
}

/* ---- numbers per layer -------------------------------------------------------------------------------------------------- */

static abar_status summary_table(const abar__figures *f, const char *name)
{
    static const char *const columns[] = {"layer",         "snapshot",      "epoch",      "rows",        "side",
                                          "trace",         "largest",       "second",     "least",       "mean square",
                                          "cosine",        "gap",           "distance",   "davis-kahan", "davis-kahan sharp",
                                          "|S|_F",         "|S|_2",         "tr S",       "rank1 error", "rank1 share",
                                          "adaptive rho",  "rho",           "kappa kfac", "kappa mac",   "condition sgd",
                                          "condition mac", "condition foof"};
    abar__sheet s;
    abar__sheet_begin(f->ctx, columns, (int)(sizeof columns / sizeof *columns), &s);
    for (int k = 0; k < f->n_snapshots; k++)
        for (int m = 0; m < f->collection->n; m++) {
            const abar_moments_summary *a = &f->snapshots[k].map[m].inputs;
            const double numbers[] = {f->snapshots[k].epoch,
                                      a->rows,
                                      (double)abar_moments_side(f->collection->maps[m].inputs),
                                      a->trace,
                                      a->largest,
                                      a->second,
                                      a->least,
                                      a->mean_square,
                                      a->cosine,
                                      a->gap,
                                      a->distance,
                                      a->davis_kahan,
                                      a->davis_kahan_sharp,
                                      a->covariance_norm,
                                      a->covariance_spectral,
                                      a->covariance_trace,
                                      a->rank1_error,
                                      a->rank1_share,
                                      a->adaptive_damping,
                                      f->damping,
                                      a->kappa_kfac,
                                      a->kappa_mac,
                                      a->condition_sgd,
                                      a->condition_mac,
                                      a->condition_foof};
            abar__cell cells[sizeof columns / sizeof *columns] = {abar__word(map_name(f, m)), abar__word(f->snapshots[k].name)};
            for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) cells[2 + i] = abar__number(numbers[i]);
            abar__sheet_row(&s, cells);
        }
    const abar_status status = abar__sheet_save(&s, f->dir, name);
    abar__sheet_free(&s);
    return status;
}

/* A number of every layer at one snapshot. */
typedef double (*abar__pick_number)(const abar__map_result *r);

static double cosine_of(const abar__map_result *r) { return r->inputs.cosine; }
static double distance_of(const abar__map_result *r) { return r->inputs.distance; }
static double bound_of(const abar__map_result *r) { return r->inputs.davis_kahan; }
static double sharp_of(const abar__map_result *r) { return r->inputs.davis_kahan_sharp; }
static double covariance_of(const abar__map_result *r) { return r->inputs.covariance_norm; }
static double square_of(const abar__map_result *r) { return r->inputs.mean_square; }
static double error_of(const abar__map_result *r) { return r->inputs.rank1_error; }
static double kfac_of(const abar__map_result *r) { return r->inputs.kappa_kfac; }
static double mac_of(const abar__map_result *r) { return r->inputs.kappa_mac; }
static double condition_sgd_of(const abar__map_result *r) { return r->inputs.condition_sgd; }
static double condition_mac_of(const abar__map_result *r) { return r->inputs.condition_mac; }
static double condition_foof_of(const abar__map_result *r) { return r->inputs.condition_foof; }

static void fill(const abar__figures *f, int snapshot, abar__pick_number pick, double *out)
{
    for (int m = 0; m < f->collection->n; m++) out[m] = pick(&f->snapshots[snapshot].map[m]);
}

/* Numbers of a figure: rows of n each, behind an index 1 ... n. */
typedef struct numbers {
    abar_context *ctx;
    int64_t n, rows, used;
    double *data;
    size_t bytes;
} numbers;

static abar_status numbers_make(abar_context *ctx, int64_t n, int64_t rows, numbers *out)
{
    void *memory;
    *out = (numbers){.ctx = ctx, .n = n, .rows = rows, .bytes = (size_t)(n * (rows + 1)) * sizeof(double)};
    ABAR_TRY(abar__alloc(ctx, out->bytes, &memory));
    out->data = memory;
    for (int64_t i = 0; i < n; i++) out->data[i] = (double)(i + 1);
    return ABAR_OK;
}

static double *numbers_row(numbers *x) { return x->data + ++x->used * x->n; }
static void numbers_free(numbers *x) { abar__free(x->ctx, x->data, x->bytes); }

static abar__series line(const numbers *x, const char *name, const double *y, int color)
{
    return (abar__series){.name = name, .x = x->data, .y = y, .n = x->n, .color = color, .dots = true};
}

static range range_of(const abar__series *series, int n)
{
    range r = {INFINITY, 0.0};
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < series[i].n; k++) widen(&r, series[i].y[k]);
    return r;
}

/* ---- alignment ---------------------------------------------------------------------------------------------------------- */

static abar_status draw_alignment(const abar__figures *f, numbers *x)
{
    const int n = f->collection->n, last = f->n_snapshots - 1;
    int snap[ABAR_FIGURE_SNAPSHOTS];
    const int snaps = abar__pick(f->n_snapshots, ABAR_FIGURE_SNAPSHOTS, snap);
    abar__series cosines[ABAR_FIGURE_SNAPSHOTS], bounds[3];
    enum { NAMES = 192 };
    const char *names[NAMES], *snapshot_names[NAMES];
    char text[256];
    double lowest = 1.0;
    for (int s = 0; s < snaps; s++) {
        double *y = numbers_row(x);
        fill(f, snap[s], cosine_of, y);
        for (int m = 0; m < n; m++)
            if (isfinite(y[m])) lowest = fmin(lowest, y[m]);
        cosines[s] = line(x, f->snapshots[snap[s]].name, y, s);
    }
    static const abar__pick_number pick[3] = {distance_of, bound_of, sharp_of};
    static const char *const bound_names[3] = {"distance of mean and top eigenvector", "Davis-Kahan bound",
                                               "bound with the spectral norm"};
    for (int i = 0; i < 3; i++) {
        double *y = numbers_row(x);
        fill(f, last, pick[i], y);
        bounds[i] = line(x, bound_names[i], y, 4 + i);
        bounds[i].dashed = i > 0;
    }
    for (int k = 0; k < f->n_snapshots; k++) snapshot_names[k % NAMES] = f->snapshots[k].name;
    double *cells = numbers_row(x); /* the rest of the numbers: (layers, snapshots) */
    for (int m = 0; m < n; m++) {
        names[m % NAMES] = map_name(f, m);
        for (int k = 0; k < f->n_snapshots; k++) cells[m * f->n_snapshots + k] = f->snapshots[k].map[m].inputs.cosine;
    }
    const abar__panel panels[] = {{.title = "|cos| of mean and top eigenvector",
                                   .x_label = "layer",
                                   .y_label = "|cos|",
                                   .x = abar__whole_axis(1.0, n),
                                   .y = abar__axis_make(fmin(lowest, 0.95), 1.0, false),
                                   .series = cosines,
                                   .n_series = snaps},
                                  {.title = "Distance and its bounds at the end",
                                   .x_label = "layer",
                                   .y_label = "distance of unit vectors",
                                   .x = abar__whole_axis(1.0, n),
                                   .y = log_axis(range_of(bounds, 3)),
                                   .series = bounds,
                                   .n_series = 3},
                                  {.title = "|cos| of every layer and snapshot",
                                   .cell = cells,
                                   .rows = n,
                                   .columns = f->n_snapshots,
                                   .row_names = n <= NAMES ? names : NULL,
                                   .column_names = f->n_snapshots <= NAMES ? snapshot_names : NULL}};
    return save_picture(f,
                        &(abar__picture){.title = "Alignment of the mean activation with the top eigenvector",
                                         .subtitle = subtitle(f, text),
                                         .panels = panels,
                                         .n_panels = f->n_snapshots > 1 ? 3 : 2,
                                         .columns = f->n_snapshots > 1 ? 3 : 2},
                        "alignment.svg");
}

abar_status abar__figure_alignment(const abar__figures *f)
{
    numbers x;
    ABAR_TRY(summary_table(f, "alignment"));
    ABAR_TRY(numbers_make(f->ctx, f->collection->n, ABAR_FIGURE_SNAPSHOTS + 3 + f->n_snapshots, &x));
    const abar_status status = draw_alignment(f, &x);
    numbers_free(&x);
    return status;
}

/* ---- covariance --------------------------------------------------------------------------------------------------------- */

static abar_status draw_covariance(const abar__figures *f, numbers *x)
{
    int snap[ABAR_FIGURE_SNAPSHOTS];
    const int n = f->collection->n, snaps = abar__pick(f->n_snapshots, ABAR_FIGURE_SNAPSHOTS, snap);
    abar__series pairs[ABAR_FIGURE_SNAPSHOTS][2], errors[ABAR_FIGURE_SNAPSHOTS];
    abar__panel panels[ABAR_FIGURE_SNAPSHOTS + 1];
    char title[ABAR_FIGURE_SNAPSHOTS][96], text[256];
    for (int s = 0; s < snaps; s++) {
        double *norm = numbers_row(x), *square = numbers_row(x), *error = numbers_row(x);
        fill(f, snap[s], covariance_of, norm);
        fill(f, snap[s], square_of, square);
        fill(f, snap[s], error_of, error);
        pairs[s][0] = line(x, "|Σ|, norm of the covariance", norm, 0);
        pairs[s][1] = line(x, "|mean|²", square, 1);
        errors[s] = line(x, f->snapshots[snap[s]].name, error, 2 + s);
        snprintf(title[s], sizeof title[s], "Covariance and mean, %s", f->snapshots[snap[s]].name);
        panels[s] = (abar__panel){.title = title[s],
                                  .x_label = "layer",
                                  .x = abar__whole_axis(1.0, n),
                                  .y = log_axis(range_of(pairs[s], 2)),
                                  .series = pairs[s],
                                  .n_series = 2};
    }
    panels[snaps] = (abar__panel){.title = "Relative error of A ≈ mean meanᵀ",
                                  .x_label = "layer",
                                  .x = abar__whole_axis(1.0, n),
                                  .y = log_axis(range_of(errors, snaps)),
                                  .series = errors,
                                  .n_series = snaps};
    return save_picture(f,
                        &(abar__picture){.title = "How much of the second moment is the mean?",
                                         .subtitle = subtitle(f, text),
                                         .panels = panels,
                                         .n_panels = snaps + 1,
                                         .columns = 2},
                        "covariance.svg");
}

abar_status abar__figure_covariance(const abar__figures *f)
{
    numbers x;
    ABAR_TRY(summary_table(f, "covariance"));
    ABAR_TRY(numbers_make(f->ctx, f->collection->n, 3 * ABAR_FIGURE_SNAPSHOTS, &x));
    const abar_status status = draw_covariance(f, &x);
    numbers_free(&x);
    return status;
}

/* ---- convergence -------------------------------------------------------------------------------------------------------- */

/* Geometric mean over the layers, with the least and the largest, at each snapshot. */
static abar__series over_snapshots(const abar__figures *f, numbers *x, const char *name, abar__pick_number pick, int color)
{
    double *mean = numbers_row(x), *low = numbers_row(x), *high = numbers_row(x);
    for (int k = 0; k < f->n_snapshots; k++) {
        double sum = 0.0;
        int n = 0;
        low[k] = INFINITY;
        high[k] = 0.0;
        for (int m = 0; m < f->collection->n; m++) {
            const double v = pick(&f->snapshots[k].map[m]);
            if (!isfinite(v) || v <= 0.0) continue;
            sum += log(v);
            low[k] = fmin(low[k], v);
            high[k] = fmax(high[k], v);
            n++;
        }
        mean[k] = n > 0 ? exp(sum / n) : NAN;
        if (n == 0) low[k] = high[k] = NAN;
    }
    abar__series s = line(x, name, mean, color);
    s.low = low;
    s.high = high;
    return s;
}

static abar__panel snapshot_panel(const abar__figures *f, const numbers *x, const char *title, const abar__series *series,
                                  int n)
{
    range r = {INFINITY, 0.0};
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < series[i].n; k++) {
            widen(&r, series[i].low[k]);
            widen(&r, series[i].high[k]);
        }
    const bool epochs = isfinite(f->snapshots[f->n_snapshots - 1].epoch);
    return (abar__panel){.title = title,
                         .x_label = epochs ? "epoch" : "snapshot",
                         .x = abar__whole_axis(x->data[0], x->data[x->n - 1]),
                         .y = log_axis(r),
                         .series = series,
                         .n_series = n};
}

static abar_status draw_convergence(const abar__figures *f, numbers *x)
{
    char text[256];
    for (int k = 0; k < f->n_snapshots; k++)
        if (isfinite(f->snapshots[k].epoch)) x->data[k] = f->snapshots[k].epoch;
    const abar__series paper[] = {over_snapshots(f, x, "KFAC: (λmax + ρ) / (λmin + ρ)", kfac_of, 0),
                                  over_snapshots(f, x, "MAC: (|mean|² + ρ) / (λmin + ρ)", mac_of, 1)};
    const abar__series honest[] = {over_snapshots(f, x, "SGD", condition_sgd_of, 2),
                                   over_snapshots(f, x, "MAC", condition_mac_of, 3),
                                   over_snapshots(f, x, "FOOF", condition_foof_of, 4)};
    const abar__panel panels[] = {snapshot_panel(f, x, "The paper's factor", paper, 2),
                                  snapshot_panel(f, x, "Condition number after preconditioning", honest, 3)};
    return save_picture(f,
                        &(abar__picture){.title = "Convergence factors: geometric mean over layers, and range",
                                         .subtitle = subtitle(f, text),
                                         .panels = panels,
                                         .n_panels = 2,
                                         .columns = 2},
                        "convergence.svg");
}

abar_status abar__figure_convergence(const abar__figures *f)
{
    numbers x;
    ABAR_TRY(summary_table(f, "convergence"));
    ABAR_TRY(numbers_make(f->ctx, f->n_snapshots, 15, &x));
    const abar_status status = draw_convergence(f, &x);
    numbers_free(&x);
    return status;
}
