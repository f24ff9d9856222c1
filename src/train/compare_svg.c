/* compare.svg: training loss and test accuracy (of texts: test loss), over epochs and over time, one colour per method.
 * Coordinates are whole tenths of a pixel, so that no locale can spoil them; everything printed is ASCII or a character
 * reference. */
#include "base/number.h"
#include "train/compare_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 10400,
    MARGIN = 380,
    GAP = 380, /* between the two columns */
    TITLE = 580,
    SUBTITLE = 830,
    LEGEND = 1180, /* the base line of its first row */
    LEGEND_ROW = 260,
    PLOT_LEFT = 520, /* of a panel: room for the labels of its axes */
    PLOT_TOP = 500,
    PLOT_BOTTOM = 580,
    PLOT_HEIGHT = 2500,
    PANEL_WIDTH = (WIDTH - 2 * MARGIN - GAP) / 2,
    PANEL_HEIGHT = PLOT_TOP + PLOT_HEIGHT + PLOT_BOTTOM,
    DOTS_MAX = 128,    /* points of a panel that still get a dot each */
    LETTER = 84,       /* width of one, generously, in a legend or label */
    LABEL_HEIGHT = 140 /* of the names beside the curves */
};

/* The baseline is grey. The others are told apart by most colour-blind people, too (after Okabe and Ito, and Tol); past the
 * last colour they begin again, dashed. */
#define BASELINE "#4a4f57"
static const char *const palette[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933"};
enum { COLORS = sizeof palette / sizeof *palette };

/* What is being drawn; after a failure nothing more is appended. */
typedef struct picture {
    const abar_compare *c;
    abar__text *out;
    abar_status status;
    abar__curves curves;
} picture;

static void put(picture *p, const char *format, ...) ABAR_PRINTF(2, 3);
static void put(picture *p, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->status >= 0) p->status = abar__text_append(p->c->ctx, p->out, text, n < 0 ? 0 : (size_t)n);
}

/* A number with so many decimals and a point, in any locale; -1: as many as it needs. */
static const char *number(double value, int decimals, char text[ABAR_REAL_TEXT_MAX])
{
    double scale = pow(10.0, decimals);
    if (decimals < 0 || !(fabs(value) * scale < 1e15)) {
        abar__real_format(value, text);
        return text;
    }
    char digits[ABAR_REAL_TEXT_MAX];
    long long whole = llround(fabs(value) * scale);
    int n = snprintf(digits, sizeof digits, "%0*lld", decimals + 1, whole); /* at least one before the point */
    snprintf(text, ABAR_REAL_TEXT_MAX, "%s%.*s%s%s", value < 0 && whole > 0 ? "-" : "", n - decimals, digits,
             decimals > 0 ? "." : "", digits + n - decimals);
    return text;
}

static const char *color_of(const picture *p, int method)
{
    int baseline = abar_compare_baseline(p->c);
    return method == baseline ? BASELINE : palette[(method - (method > baseline)) % COLORS];
}

static const char *dashes_of(const picture *p, int method)
{
    static const char *const dashes[] = {"", " stroke-dasharray='70 45'", " stroke-dasharray='20 40'",
                                         " stroke-dasharray='90 35 20 35'"};
    int baseline = abar_compare_baseline(p->c);
    return method == baseline ? "" : dashes[(method - (method > baseline)) / COLORS % 4];
}

/* "90.02 +- 0.08 %" */
static void spread_text(abar_compare_spread s, int decimals, const char *unit, char *text, size_t size)
{
    char mean[ABAR_REAL_TEXT_MAX], std[ABAR_REAL_TEXT_MAX];
    if (isnan(s.mean))
        snprintf(text, size, "&#8211;");
    else if (isnan(s.std))
        snprintf(text, size, "%s%s", number(s.mean, decimals, mean), unit);
    else
        snprintf(text, size, "%s &#177; %s%s", number(s.mean, decimals, mean), number(s.std, decimals, std), unit);
}

/* ---- title and legend ------------------------------------------------------------------------------------------- */

static void draw_title(picture *p)
{
    const abar_train_config *t = &p->c->method[0].setup->train;
    const int64_t epochs = abar__compare_epochs(p->c);
    const int ended = abar__compare_ended(p->c);
    put(p, "<text x='%d' y='%d' font-size='230' font-weight='bold' fill='#1c1f23'>%s on %.*s</text>\n", MARGIN, TITLE, t->model,
        (int)strcspn(t->data, ":"), t->data);
    const int64_t seeds = abar__compare_seeds_most(p->c), shared = abar__compare_side_by_side(p->c);
    put(p, "<text x='%d' y='%d' font-size='140' fill='#5b626b'>%lld epoch%s, batch %lld, %s%lld seed%s, %s", MARGIN, SUBTITLE,
        (long long)epochs, epochs > 1 ? "s" : "", (long long)t->batch, p->c->runs < seeds * p->c->methods ? "up to " : "",
        (long long)seeds, seeds > 1 ? "s" : "", t->device);
    if (seeds > 1) put(p, "; line: mean, band: %s", seeds > 2 ? "&#177; one standard deviation" : "both seeds");
    if (shared > 1) put(p, "; %lld shared the device", (long long)shared);
    if (ended < p->c->runs) put(p, "; %d of %d runs so far", ended, p->c->runs);
    put(p, "</text>\n");
}

static int greater(int a, int b) { return a > b ? a : b; }

/* Entries stand in columns as wide as the longest needs. */
static int legend_columns(const picture *p)
{
    int letters = 0;
    for (int m = 0; m < p->c->methods; m++) {
        int failed = abar_compare_row_of(p->c, m)->failures > 0 ? 10 : 0; /* ", 1 failed" after "90.02 +- 0.08 %" */
        letters = greater(letters, (int)strlen(p->c->method[m].label) + (p->c->runs > p->c->methods ? 15 : 8) + failed);
    }
    return greater(1, (WIDTH - 2 * MARGIN) / (600 + letters * LETTER));
}

static int legend_end(const picture *p) { return LEGEND + (p->c->methods - 1) / legend_columns(p) * LEGEND_ROW; }

static void result_text(const picture *p, const abar_compare_row *row, char *text, size_t size)
{
    if (p->curves.text)
        spread_text(row->test_loss, 4, "", text, size);
    else
        spread_text(row->test_accuracy, 2, " %", text, size);
}

static void draw_legend_entry(picture *p, int m)
{
    int columns = legend_columns(p), x = MARGIN + m % columns * ((WIDTH - 2 * MARGIN) / columns);
    int y = LEGEND + m / columns * LEGEND_ROW;
    abar_compare_row row = *abar_compare_row_of(p->c, m);
    char result[96];
    result_text(p, &row, result, sizeof result);
    put(p, "<path d='M%d %dh240' stroke='%s' stroke-width='36' stroke-linecap='round'%s/>", x + 18, y - 48, color_of(p, m),
        dashes_of(p, m));
    put(p, "<text x='%d' y='%d' font-size='140' fill='#1c1f23'><tspan font-weight='bold'>%s</tspan>", x + 350, y, row.label);
    put(p, "<tspan dx='75' fill='#5b626b'>%s", result);
    if (row.failures > 0) put(p, ", %lld failed", (long long)row.failures);
    put(p, "</tspan></text>\n");
}

/* ---- panels ----------------------------------------------------------------------------------------------------- */

typedef struct panel {
    int index, x, y, width; /* x, y: of the plot's upper left corner */
    int kind;               /* of what is shown */
    bool time;              /* over time, not epochs */
    double unit;            /* seconds per unit of time */
    const char *title, *below;
    abar__axis across, up;
} panel;

static int clamp(double place, int length)
{
    double far = 4.0; /* lengths: enough for the right direction, too little to overflow */
    return (int)lround(fmin(fmax(place, -far), far) * length);
}

static int x_of(const panel *a, const abar__curve_point *point)
{
    return a->x + clamp(abar__axis_place(&a->across, a->time ? point->seconds / a->unit : point->epoch), a->width);
}

static int y_of(const panel *a, double value)
{
    return a->y + PLOT_HEIGHT - clamp(isfinite(value) ? abar__axis_place(&a->up, value) : 2.0, PLOT_HEIGHT);
}

static void draw_axes(picture *p, const panel *a)
{
    char text[ABAR_REAL_TEXT_MAX];
    put(p, "<text x='%d' y='%d' font-size='160' font-weight='bold' fill='#1c1f23'>%s</text>\n", a->x, a->y - 190, a->title);
    put(p, "<g font-size='130' fill='#5b626b' stroke-width='10'>\n");
    for (int i = 0; i < a->up.ticks; i++) {
        int y = y_of(a, a->up.tick[i]);
        put(p, "<path d='M%d %dh%d' stroke='#e3e6ea'/><text x='%d' y='%d' text-anchor='end'>%s</text>\n", a->x, y, a->width,
            a->x - 90, y + 45, number(a->up.tick[i], a->up.decimals, text));
    }
    for (int i = 0; i < a->across.ticks; i++) {
        int x = a->x + clamp(abar__axis_place(&a->across, a->across.tick[i]), a->width);
        put(p, "<path d='M%d %dv55' stroke='#9aa1a9'/><text x='%d' y='%d' text-anchor='middle'>%s</text>\n", x,
            a->y + PLOT_HEIGHT, x, a->y + PLOT_HEIGHT + 195, number(a->across.tick[i], a->across.decimals, text));
    }
    put(p, "<path d='M%d %dh%d' stroke='#9aa1a9'/><text x='%d' y='%d' text-anchor='middle'>%s</text>\n</g>\n", a->x,
        a->y + PLOT_HEIGHT, a->width, a->x + a->width / 2, a->y + PLOT_HEIGHT + 400, a->below);
}

/* Along the upper edge, and back along the lower one. The outline shows where a single epoch has no area. */
static void draw_band(picture *p, const panel *a, const abar__curve *curve)
{
    if (curve->runs < 2) return;
    put(p, "<path d='");
    for (int64_t k = 0; k < curve->n; k++)
        put(p, "%s%d %d", k ? " " : "M", x_of(a, &curve->point[k]), y_of(a, curve->point[k].high[a->kind]));
    for (int64_t k = curve->n - 1; k >= 0; k--)
        put(p, " %d %d", x_of(a, &curve->point[k]), y_of(a, curve->point[k].low[a->kind]));
    put(p, "z' fill='%s' fill-opacity='0.13' stroke='%s' stroke-opacity='%s' stroke-width='%d'/>\n", color_of(p, curve->method),
        color_of(p, curve->method), curve->n > 1 ? "0.13" : "0.5", curve->n > 1 ? 6 : 16);
}

static void draw_line(picture *p, const panel *a, const abar__curve *curve)
{
    const abar__compare_method *method = &p->c->method[curve->method];
    char last[96];
    abar_compare_row row = *abar_compare_row_of(p->c, curve->method);
    if (a->kind == ABAR_CURVE_LOSS)
        spread_text(row.train_loss, 4, "", last, sizeof last);
    else
        result_text(p, &row, last, sizeof last);
    put(p, "<g stroke='%s' fill='%s'><title>%s: %s</title><polyline fill='none' stroke-width='24'%s points='",
        color_of(p, curve->method), color_of(p, curve->method), method->label, last, dashes_of(p, curve->method));
    for (int64_t k = 0; k < curve->n; k++)
        put(p, "%s%d,%d", k ? " " : "", x_of(a, &curve->point[k]), y_of(a, curve->point[k].mean[a->kind]));
    put(p, "'/>");
    for (int64_t k = 0; k < curve->n && curve->n * p->curves.count <= DOTS_MAX; k++)
        put(p, "<circle cx='%d' cy='%d' r='34' stroke='#fff' stroke-width='10'/>", x_of(a, &curve->point[k]),
            y_of(a, curve->point[k].mean[a->kind]));
    put(p, "</g>\n");
}

/* Thin and dotted, with a cross where it broke off. */
static void draw_failed(picture *p, const panel *a, const abar__curve *curve)
{
    const abar__curve_point *end = &curve->point[curve->n - 1];
    put(p, "<path fill='none' stroke='%s' stroke-width='14' stroke-linejoin='round' stroke-dasharray='14 26' d='",
        color_of(p, curve->method));
    for (int64_t k = 0; k < curve->n; k++)
        put(p, "%s%d %d", k ? " " : "M", x_of(a, &curve->point[k]), y_of(a, curve->point[k].mean[a->kind]));
    put(p, "'/><path d='M%d %dl110 110m0 -110l-110 110' stroke='%s' stroke-width='22'><title>%s: failed</title></path>\n",
        x_of(a, end) - 55, y_of(a, end->mean[a->kind]) - 55, color_of(p, curve->method), p->c->method[curve->method].label);
}

/* How wide the names beside the curves are; 0: there are too many, the legend must do. */
static int name_width(const picture *p)
{
    int letters = 0;
    for (int m = 0; m < p->c->methods; m++) letters = greater(letters, (int)strlen(p->c->method[m].label));
    return p->c->methods * LABEL_HEIGHT > PLOT_HEIGHT ? 0 : 150 + letters * LETTER;
}

/* The name of a method beside the end of its curve. */
typedef struct name {
    const abar__curve *curve;
    int y;            /* where it stands */
    const char *mark; /* an arrow where the curve has left the plot */
} name;

static void sort_names(name *names, int n)
{
    for (int i = 1; i < n; i++) {
        name moving = names[i];
        int k = i;
        for (; k > 0 && names[k - 1].y > moving.y; k--) names[k] = names[k - 1];
        names[k] = moving;
    }
}

/* From top to bottom, none on another: neighbours part until all have room, then the plot's edges have their say. */
static void spread_names(name *names, int n, int top, int bottom)
{
    sort_names(names, n);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i + 1 < n; i++) {
            int overlap = names[i].y + LABEL_HEIGHT - names[i + 1].y;
            if (overlap <= 0) continue;
            names[i].y -= overlap / 2;
            names[i + 1].y += overlap - overlap / 2;
        }
    }
    for (int i = 0, least = top; i < n; least = names[i++].y + LABEL_HEIGHT)
        if (names[i].y < least) names[i].y = least;
    for (int i = n - 1, most = bottom; i >= 0; most = names[i--].y - LABEL_HEIGHT)
        if (names[i].y > most) names[i].y = most;
}

static void draw_names(picture *p, const panel *a)
{
    name names[ABAR_COMPARE_METHODS_MAX];
    int n = 0, top = a->y, bottom = a->y + PLOT_HEIGHT;
    for (int i = 0; i < p->curves.count; i++) {
        const abar__curve *curve = &p->curves.curve[i];
        if (curve->failed) continue;
        int y = y_of(a, curve->point[curve->n - 1].mean[a->kind]);
        const char *mark = y < top ? " &#8593;" : y > bottom ? " &#8595;" : "";
        names[n++] = (name){curve, y < top ? top : y > bottom ? bottom : y, mark};
    }
    spread_names(names, n, top, bottom);
    for (int i = 0; i < n; i++)
        put(p, "<text x='%d' y='%d' font-size='125' fill='%s'>%s%s</text>\n", a->x + a->width + 80, names[i].y + 42,
            color_of(p, names[i].curve->method), p->c->method[names[i].curve->method].label, names[i].mark);
}

static void draw_panel(picture *p, const panel *a)
{
    draw_axes(p, a);
    put(p, "<clipPath id='plot%d'><rect x='%d' y='%d' width='%d' height='%d'/></clipPath>\n<g clip-path='url(#plot%d)'>\n",
        a->index, a->x, a->y - 60, a->width + 60, PLOT_HEIGHT + 55, a->index);
    for (int i = 0; i < p->curves.count; i++)
        if (!p->curves.curve[i].failed) draw_band(p, a, &p->curves.curve[i]);
    for (int i = 0; i < p->curves.count; i++)
        if (p->curves.curve[i].failed) draw_failed(p, a, &p->curves.curve[i]);
    for (int i = 0; i < p->curves.count; i++)
        if (!p->curves.curve[i].failed) draw_line(p, a, &p->curves.curve[i]);
    put(p, "</g>\n");
    if (!a->time && name_width(p) > 0) draw_names(p, a);
    if (p->curves.count == 0)
        put(p, "<text x='%d' y='%d' font-size='140' fill='#8a9199' text-anchor='middle'>no run has ended yet</text>\n",
            a->x + a->width / 2, a->y + PLOT_HEIGHT / 2);
}

/* What the time axis is not: the time that passed, where trainings shared the device. */
static const char *time_note(const abar_compare *c)
{
    bool known = true;
    for (int m = 0; m < c->methods; m++) known = known && c->method[m].ms_alone > 0.0;
    if (abar__compare_side_by_side(c) < 2) return "";
    return known ? ", scaled to the speed alone" : ", on a shared device";
}

/* Columns share what is shown, rows what it is shown over. All curves end together over epochs: there they are named. */
static void draw_panels(picture *p, double *scratch)
{
    static const char *const units[] = {"", "seconds", "minutes", "hours"};
    char below[96];
    const double unit[] = {1.0, 1.0, 60.0, 3600.0};
    int time = abar__axis_time_unit(&p->curves);
    snprintf(below, sizeof below, "%s of training and testing%s", units[time], time_note(p->c));
    abar__axis across[] = {abar__axis_epochs(&p->curves), abar__axis_time(&p->curves, unit[time])};
    abar__axis up[] = {abar__axis_values(&p->curves, ABAR_CURVE_LOSS, scratch),
                       abar__axis_values(&p->curves, ABAR_CURVE_TEST, scratch)};
    const char *title[] = {up[0].logarithmic ? "Training loss (logarithmic)" : "Training loss",
                           !p->curves.text     ? "Test accuracy, %"
                           : up[1].logarithmic ? "Test loss (logarithmic)"
                                               : "Test loss"};
    for (int i = 0; i < 4; i++) {
        int row = i / 2, column = i % 2;
        panel a = {.index = i,
                   .x = MARGIN + column * (PANEL_WIDTH + GAP) + PLOT_LEFT,
                   .y = legend_end(p) + 80 + row * PANEL_HEIGHT + PLOT_TOP,
                   .width = PANEL_WIDTH - PLOT_LEFT - (row == 0 ? name_width(p) : 0),
                   .kind = column,
                   .time = row == 1,
                   .unit = unit[time],
                   .title = title[column],
                   .below = row == 0 ? "epoch" : below,
                   .across = across[row],
                   .up = up[column]};
        draw_panel(p, &a);
    }
}

static void draw(picture *p, double *scratch)
{
    int height = legend_end(p) + 80 + 2 * PANEL_HEIGHT + 100;
    put(p, "<?xml version='1.0' encoding='UTF-8'?>\n");
    put(p, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' ", WIDTH / 10, height / 10,
        WIDTH, height);
    put(p, "font-family='sans-serif' "
           "stroke-linejoin='round'>\n");
    put(p, "<rect x='5' y='5' width='%d' height='%d' rx='120' fill='#fff' stroke='#dfe3e7' stroke-width='10'/>\n", WIDTH - 10,
        height - 10);
    draw_title(p);
    for (int m = 0; m < p->c->methods; m++) draw_legend_entry(p, m);
    draw_panels(p, scratch);
    put(p, "</svg>\n");
}

abar_status abar__compare_svg_write(const abar_compare *c, abar__text *out)
{
    picture p = {.c = c, .out = out, .status = ABAR_OK};
    void *scratch = NULL;
    ABAR_TRY(abar__curves_make(c, &p.curves));
    size_t bytes = p.curves.point_bytes / sizeof *p.curves.points * sizeof(double);
    p.status = abar__alloc(c->ctx, bytes, &scratch);
    if (p.status >= 0) draw(&p, scratch);
    abar__free(c->ctx, scratch, bytes);
    abar__curves_free(c->ctx, &p.curves);
    return p.status;
}
