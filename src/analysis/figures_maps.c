/* Figures of single maps: attention and heat maps of P; and the theorem's. */
#include "analysis/figures.h"

#include "analysis/sheet.h"
#include "io/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

enum { BLOCKS_MAX = 128, SPECTRUM_MAX = 1100 };

/* The maps that feed attention, in order. */
static int attention_maps(const abar__figures *f, int *maps)
{
    int n = 0;
    for (int m = 0; m < f->collection->n && n < BLOCKS_MAX; m++)
        if (f->collection->maps[m].attention.sum) maps[n++] = m;
    return n;
}

static abar_status attention_tables(const abar__figures *f, const int *maps, int n)
{
    static const char *const columns[] = {"layer",
                                          "snapshot",
                                          "tokens",
                                          "matrices",
                                          "cosine stationary",
                                          "cosine singular",
                                          "cosine lower triangle",
                                          "largest eigenvalue of the lower triangle",
                                          "top share",
                                          "error of 1 t^T",
                                          "error of t t^T"};
    static const char *const spectrum[] = {"layer", "snapshot", "index", "eigenvalue", "singular value", "column mean"};
    abar__sheet s, v;
    abar__sheet_begin(f->ctx, columns, 11, &s);
    abar__sheet_begin(f->ctx, spectrum, 6, &v);
    for (int k = 0; k < f->n_snapshots; k++)
        for (int i = 0; i < n; i++) {
            const abar__map_result *r = &f->snapshots[k].map[maps[i]];
            const abar__attention_summary *a = &r->attention;
            const char *layer = f->collection->maps[maps[i]].name, *snap = f->snapshots[k].name;
            const abar__cell cells[] = {abar__word(layer),
                                        abar__word(snap),
                                        abar__number((double)a->n),
                                        abar__number(a->count),
                                        abar__number(a->cosine_stationary),
                                        abar__number(a->cosine_singular),
                                        abar__number(a->cosine_lower),
                                        abar__number(a->lower_largest),
                                        abar__number(a->share),
                                        abar__number(a->rank1),
                                        abar__number(a->printed)};
            abar__sheet_row(&s, cells);
            for (int64_t j = 0; j < a->n; j++)
                abar__sheet_row(&v, (const abar__cell[]){abar__word(layer), abar__word(snap), abar__number((double)(j + 1)),
                                                         abar__number(r->attention_values[j]),
                                                         abar__number(r->attention_values[a->n + j]),
                                                         abar__number(r->attention_values[2 * a->n + j])});
        }
    abar_status status = abar__sheet_save(&s, f->dir, "attention");
    if (status >= 0) status = abar__sheet_save(&v, f->dir, "attention-spectrum");
    abar__sheet_free(&s);
    abar__sheet_free(&v);
    return status;
}

static abar__panel spectrum_panel(const abar__figures *f, int map, const double *index, abar__series series[2], char title[256])
{
    const abar__map_result *r = &f->snapshots[f->n_snapshots - 1].map[map];
    const int64_t n = r->attention.n < SPECTRUM_MAX ? r->attention.n : SPECTRUM_MAX;
    series[0] = (abar__series){.name = "|eigenvalues| of mean T", .x = index, .y = r->attention_values, .n = n, .color = 0};
    series[1] =
        (abar__series){.name = "singular values", .x = index, .y = r->attention_values + r->attention.n, .n = n, .color = 1};
    double low = 1.0, high = 1.0;
    for (int i = 0; i < 2; i++)
        for (int64_t j = 0; j < n; j++) {
            if (series[i].y[j] > 1e-9) low = fmin(low, series[i].y[j]);
            high = fmax(high, series[i].y[j]);
        }
    snprintf(title, 256, "%s", f->collection->maps[map].name);
    return (abar__panel){.title = title,
                         .x_label = "index",
                         .x = abar__whole_axis(1.0, (double)n),
                         .y = abar__axis_make(low, high, true),
                         .series = series,
                         .n_series = 2};
}

abar_status abar__figure_attention(const abar__figures *f)
{
    int maps[BLOCKS_MAX];
    const int n = attention_maps(f, maps);
    double index[SPECTRUM_MAX], y[5][BLOCKS_MAX];
    char title[2][256], text[256];
    abar__series spectra[2][2], cosines[3], errors[2];
    static const char *const names[5] = {"cos(stationary distribution, column means)",
                                         "cos(top right singular vector, column means)", "published code: lower triangle only",
                                         "T ≈ 1 tᵀ", "T ≈ t tᵀ, as printed"};
    ABAR_TRY(attention_tables(f, maps, n));
    for (int i = 0; i < SPECTRUM_MAX; i++) index[i] = i + 1.0;
    for (int i = 0; i < n; i++) {
        const abar__attention_summary *a = &f->snapshots[f->n_snapshots - 1].map[maps[i]].attention;
        const double numbers[5] = {a->cosine_stationary, a->cosine_singular, a->cosine_lower, a->rank1, a->printed};
        for (int k = 0; k < 5; k++) y[k][i] = numbers[k];
    }
    double lowest = 1.0;
    for (int k = 0; k < 3; k++) {
        cosines[k] =
            (abar__series){.name = names[k], .x = index, .y = y[k], .n = n, .color = 2 + k, .dots = true, .dashed = k == 2};
        for (int i = 0; i < n; i++) lowest = fmin(lowest, y[k][i]);
    }
    for (int k = 0; k < 2; k++)
        errors[k] = (abar__series){.name = names[3 + k], .x = index, .y = y[3 + k], .n = n, .color = 5 + k, .dots = true};
    const abar__panel panels[] = {spectrum_panel(f, maps[0], index, spectra[0], title[0]),
                                  spectrum_panel(f, maps[n - 1], index, spectra[1], title[1]),
                                  {.title = "Agreement with the column means",
                                   .x_label = "block",
                                   .x = abar__whole_axis(1.0, n),
                                   .y = abar__axis_make(fmin(lowest, 0.9), 1.0, false),
                                   .series = cosines,
                                   .n_series = 3},
                                  {.title = "Mean relative error of a rank-1 form",
                                   .x_label = "block",
                                   .x = abar__whole_axis(1.0, n),
                                   .y = abar__axis_make(0.0, 1.0, false),
                                   .series = errors,
                                   .n_series = 2}};
    const abar__picture picture = {.title = "Attention probabilities",
                                   .subtitle = abar__figure_subtitle(f, f->snapshots[f->n_snapshots - 1].name, text),
                                   .panels = panels,
                                   .n_panels = 4,
                                   .columns = 2};
    return abar__save_picture(f->ctx, f->dir, "attention.svg", &picture);
}

/* ---- heat maps ----------------------------------------------------------------------------------------------------- */

static abar_status heatmap_table(const abar__figures *f)
{
    static const char *const columns[] = {"layer",
                                          "snapshot",
                                          "outputs",
                                          "diagonal over off-diagonal",
                                          "share of the diagonal",
                                          "mean |correlation|",
                                          "share of the diagonal (correlations)",
                                          "largest row sum"};
    abar__sheet s;
    abar__sheet_begin(f->ctx, columns, 8, &s);
    for (int k = 0; k < f->n_snapshots; k++)
        for (int m = 0; m < f->collection->n; m++) {
            const abar__diagonality *d = &f->snapshots[k].map[m].diagonality;
            abar__sheet_row(&s,
                            (const abar__cell[]){abar__word(f->collection->maps[m].name), abar__word(f->snapshots[k].name),
                                                 abar__number((double)f->collection->maps[m].shape.out), abar__number(d->ratio),
                                                 abar__number(d->share), abar__number(d->correlation_mean),
                                                 abar__number(d->correlation_share), abar__number(d->row_sum)});
        }
    const abar_status status = abar__sheet_save(&s, f->dir, "heatmap");
    abar__sheet_free(&s);
    return status;
}

/* |P| of one layer; of a large one the means of blocks, so that a picture stays small. */
typedef struct heat {
    int64_t block, side; /* entries a side of a block; blocks a side */
    double *cell;
    size_t bytes;
    char title[ABAR_MAP_NAME_MAX + 64];
} heat;

enum { HEAT_SIDE = 200 };

static abar_status make_heat(const abar__figures *f, int map, const double *p, heat *h)
{
    const int64_t out = f->collection->maps[map].shape.out;
    void *memory;
    h->block = (out + HEAT_SIDE - 1) / HEAT_SIDE;
    h->side = (out + h->block - 1) / h->block;
    h->bytes = (size_t)(h->side * h->side) * sizeof *h->cell;
    ABAR_TRY(abar__alloc(f->ctx, h->bytes, &memory));
    h->cell = memory;
    double most = 0.0;
    for (int64_t i = 0; i < h->side * h->side; i++) {
        const int64_t top = i / h->side * h->block, left = i % h->side * h->block;
        double sum = 0.0, n = 0.0;
        for (int64_t y = top; y < out && y < top + h->block; y++)
            for (int64_t x = left; x < out && x < left + h->block; x++, n += 1.0) sum += fabs(p[y * out + x]);
        h->cell[i] = sum / n;
        most = fmax(most, h->cell[i]);
    }
    for (int64_t i = 0; i < h->side * h->side; i++) h->cell[i] = fmax(h->cell[i], 1e-8 * most); /* eight decades of colour */
    const int used = snprintf(h->title, sizeof h->title, "%s", f->collection->maps[map].name);
    if (h->block > 1)
        snprintf(h->title + used, sizeof h->title - (size_t)used, " (%lld x %lld, means of %lld x %lld)", (long long)out,
                 (long long)out, (long long)h->block, (long long)h->block);
    return ABAR_OK;
}

abar_status abar__figure_heatmap(const abar__figures *f)
{
    int chosen[ABAR_FIGURE_LAYERS];
    const int n = abar__pick(f->collection->n, ABAR_FIGURE_LAYERS, chosen);
    const abar__snapshot *last = &f->snapshots[f->n_snapshots - 1];
    abar__panel panels[ABAR_FIGURE_LAYERS];
    heat heats[ABAR_FIGURE_LAYERS] = {0};
    char text[256];
    abar__figure_subtitle(f, last->name, text);
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "; rows and columns are a layer's outputs");
    abar_status status = heatmap_table(f);
    for (int i = 0; i < n && status >= 0; i++) {
        status = make_heat(f, chosen[i], last->map[chosen[i]].p_matrix, &heats[i]);
        panels[i] = (abar__panel){.title = heats[i].title,
                                  .cell = heats[i].cell,
                                  .rows = heats[i].side,
                                  .columns = heats[i].side,
                                  .logarithmic = true};
    }
    if (status >= 0)
        status = abar__save_picture(f->ctx, f->dir, "heatmap.svg",
                                    &(abar__picture){.title = "|P|, second moment of the output gradients",
                                                     .subtitle = text,
                                                     .panels = panels,
                                                     .n_panels = n,
                                                     .columns = n < 3 ? n : 3});
    for (int i = 0; i < n; i++) abar__free(f->ctx, heats[i].cell, heats[i].cell ? heats[i].bytes : 0);
    return status;
}

/* ---- the theorem --------------------------------------------------------------------------------------------------- */

static abar_status theory_table(const abar__theory *t, const char *dir)
{
    static const char *const columns[] = {
        "k",     "residual",        "corrected", "printed", "lambda_min S", "lambda_min G", "lambda_max G",
        "error", "jacobian change", "distance",  "sgd",     "foof",         "kfac"};
    abar__sheet s;
    abar__sheet_begin(t->ctx, columns, 13, &s);
    for (int64_t k = 0; k <= t->config.steps; k++) {
        const abar__theory_step *p = &t->step[k];
        const double numbers[] = {(double)k,
                                  p->residual,
                                  p->corrected,
                                  p->paper,
                                  p->sigma_min,
                                  p->g_min,
                                  p->g_max,
                                  p->error,
                                  p->jacobian,
                                  p->moved,
                                  t->residual[ABAR_THEORY_SGD][k],
                                  t->residual[ABAR_THEORY_FOOF][k],
                                  t->residual[ABAR_THEORY_KFAC][k]};
        abar__cell cells[13];
        for (int i = 0; i < 13; i++) cells[i] = abar__number(numbers[i]);
        abar__sheet_row(&s, cells);
    }
    const abar_status status = abar__sheet_save(&s, dir, "bounds");
    abar__sheet_free(&s);
    return status;
}

enum { THEORY_POINTS = 400 };

abar_status abar__figure_theory(const abar__theory *t, const char *dir)
{
    static const char *const names[3 + ABAR_THEORY_METHODS] = {"MAC", "corrected bound", "printed bound", "MAC", "SGD", "FOOF",
                                                               "KFAC"};
    double x[THEORY_POINTS], y[3 + ABAR_THEORY_METHODS][THEORY_POINTS], high = 0.0, low = INFINITY;
    const int64_t stride = 1 + t->config.steps / THEORY_POINTS, n = t->config.steps / stride + 1;
    abar__series series[3 + ABAR_THEORY_METHODS];
    char text[256];
    for (int64_t i = 0; i < n; i++) {
        const abar__theory_step *p = &t->step[i * stride];
        x[i] = (double)(i * stride);
        y[0][i] = p->residual;
        y[1][i] = p->corrected;
        y[2][i] = p->paper;
        for (int m = 0; m < ABAR_THEORY_METHODS; m++) y[3 + m][i] = t->residual[m][i * stride];
        for (int m = 0; m < 3 + ABAR_THEORY_METHODS; m++)
            if (isfinite(y[m][i]) && y[m][i] > 0.0) {
                high = fmax(high, y[m][i]);
                low = fmin(low, y[m][i]);
            }
    }
    /* MAC is the same in both panels. Methods may coincide, so SGD is dashed and FOOF (a second round of colours) dotted. */
    static const int colors[3 + ABAR_THEORY_METHODS] = {0, 1, 2, 0, 5, 6 + ABAR_PALETTE, 7};
    static const bool dashed[3 + ABAR_THEORY_METHODS] = {false, true, true, false, true, true, false};
    for (int m = 0; m < 3 + ABAR_THEORY_METHODS; m++)
        series[m] = (abar__series){.name = names[m], .x = x, .y = y[m], .n = n, .color = colors[m], .dashed = dashed[m]};
    const abar__axis up = abar__axis_make(fmax(low, 1e-28 * high), high, true),
                     across = abar__axis_make(0.0, (double)t->config.steps, false);
    const abar__panel panels[] = {{.title = "Residual and bounds",
                                   .x_label = "step",
                                   .y_label = "squared residual",
                                   .x = across,
                                   .y = up,
                                   .series = series,
                                   .n_series = 3},
                                  {.title = "Residual of all methods",
                                   .x_label = "step",
                                   .y_label = "squared residual",
                                   .x = across,
                                   .y = up,
                                   .series = series + 3,
                                   .n_series = ABAR_THEORY_METHODS}};
    char width[32] = "infinite width";
    if (t->config.m > 0) snprintf(width, sizeof width, "width %lld", (long long)t->config.m);
    snprintf(text, sizeof text, "%lld points in %lld dimensions, %s; the rate of each method is the same part of 1/λ_max(G)",
             (long long)t->config.n, (long long)t->config.d, width);
    ABAR_TRY(theory_table(t, dir));
    return abar__save_picture(
        t->ctx, dir, "theory.svg",
        &(abar__picture){.title = "The convergence theorem", .subtitle = text, .panels = panels, .n_panels = 2, .columns = 2});
}
