/* Lays out a picture and draws its lines; heat maps are in plot_heat.c, axes in plot_axis.c. */
#include "io/plot.h"

#include "io/plot_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MARGIN = 380,
    GAP = 380, /* between two columns */
    TITLE = 580,
    SUBTITLE = 830,
    LEGEND_ROW = 260,
    PLOT_LEFT = 700, /* of a panel: space for the labels of its axes */
    PLOT_TOP = 480,
    PLOT_BOTTOM = 580,
    PANEL_WIDTH = 4600,
    PANEL_HEIGHT = PLOT_TOP + PLOT_HEIGHT + PLOT_BOTTOM,
    DOTS_MAX = 128, /* points of a panel that still get a dot each */
    NAME_HEIGHT = 140,
    DECIMALS_MAX = 15, /* of a number that is written out: with the digits before them they fit ABAR_REAL_TEXT_MAX */
    SERIES_MAX = 64
};

/* Told apart by most colour-blind people, too (after Okabe and Ito, and Tol); past the last colour they start again, dashed. */
static const char *const palette[ABAR_PALETTE] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#e69f00", "#56b4e9", "#aa4466", "#999933"};
enum { COLORS = ABAR_PALETTE };

/* ---- text ----------------------------------------------------------------------------------------------------------- */

void abar__put(abar__canvas *c, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->status >= 0) c->status = abar__text_append(c->ctx, c->out, text, n < 0 ? 0 : strlen(text));
}

void abar__put_text(abar__canvas *c, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (*s == '<' || *s == '>' || *s == '&' || *s == '\'' || *s == '"')
            abar__put(c, "&#%d;", *s);
        else if (*s >= 0x20)
            abar__put(c, "%c", *s);
    }
}

const char *abar__plot_number(double value, int decimals, char text[ABAR_REAL_TEXT_MAX])
{
    const double scale = pow(10.0, decimals);
    if (decimals < 0 || decimals > DECIMALS_MAX || !(fabs(value) * scale < 1e15)) {
        abar__real_format(value, text);
        return text;
    }
    char digits[ABAR_REAL_TEXT_MAX];
    const long long whole = llround(fabs(value) * scale);
    const int n = snprintf(digits, sizeof digits, "%0*lld", decimals + 1, whole); /* at least one before the point */
    snprintf(text, ABAR_REAL_TEXT_MAX, "%s%.*s%s%s", value < 0 && whole > 0 ? "-" : "", n - decimals, digits,
             decimals > 0 ? "." : "", digits + n - decimals);
    return text;
}

static const char *color_of(const abar__series *s) { return s->color == ABAR_GREY ? "#7a828c" : palette[s->color % COLORS]; }

static const char *dashes_of(const abar__series *s)
{
    static const char *const dashes[] = {"", " stroke-dasharray='70 45'", " stroke-dasharray='20 40'",
                                         " stroke-dasharray='90 35 20 35'"};
    const int round = s->color == ABAR_GREY ? 0 : s->color / COLORS;
    return dashes[(round + s->dashed) % 4];
}

/* ---- legend --------------------------------------------------------------------------------------------------------- */

/* The series that have an entry: those with a name, each name once. */
static int collect_entries(const abar__picture *p, const abar__series *entries[SERIES_MAX])
{
    int n = 0;
    for (int i = 0; i < p->n_panels; i++)
        for (int k = 0; k < p->panels[i].n_series; k++) {
            const abar__series *s = &p->panels[i].series[k];
            bool known = !s->name || s->broken;
            for (int e = 0; e < n && !known; e++) known = strcmp(entries[e]->name, s->name) == 0;
            if (!known && n < SERIES_MAX) entries[n++] = s;
        }
    return n;
}

static int width_of(const abar__picture *p) { return 2 * MARGIN + p->columns * PANEL_WIDTH + (p->columns - 1) * GAP; }

static int entry_width(const abar__series *s)
{
    const int letters = (int)(strlen(s->name) + (s->note ? 2 + strlen(s->note) : 0));
    return 600 + letters * PLOT_LETTER;
}

/* Columns of equal width; 0: all entries fit into one row, each as wide as it is. */
static int legend_columns(const abar__picture *p, const abar__series *const *entries, int n)
{
    const int width = width_of(p) - 2 * MARGIN;
    int widest = 1, sum = 0;
    for (int e = 0; e < n; e++) {
        sum += entry_width(entries[e]);
        widest = entry_width(entries[e]) > widest ? entry_width(entries[e]) : widest;
    }
    return sum <= width ? 0 : widest > width ? 1 : width / widest;
}

static void draw_entry(abar__canvas *c, const abar__series *s, int x, int y)
{
    abar__put(c, "<path d='M%d %dh240' stroke='%s' stroke-width='36' stroke-linecap='round'%s/>", x + 18, y - 48, color_of(s),
              dashes_of(s));
    abar__put(c, "<text class='ink' x='%d' y='%d' font-size='140'><tspan font-weight='bold'>", x + 350, y);
    abar__put_text(c, s->name);
    abar__put(c, "</tspan>");
    if (s->note) {
        abar__put(c, "<tspan class='soft' dx='75'>");
        abar__put_text(c, s->note);
        abar__put(c, "</tspan>");
    }
    abar__put(c, "</text>\n");
}

/* The size at which a text fits into a width, size at most; letters of bold text are about 0.62 of their size wide. */
static int fitting_size(const char *text, int width, int size)
{
    const int letters = (int)strlen(text), fits = letters > 0 ? (int)(width / (0.62 * letters)) : size;
    return fits < size ? fits : size;
}

/* Returns where the panels begin. */
static int draw_head(abar__canvas *c, const abar__picture *p)
{
    const abar__series *entries[SERIES_MAX];
    const int n = collect_entries(p, entries), columns = legend_columns(p, entries, n);
    const int top = (p->subtitle ? SUBTITLE : TITLE) + 350;
    abar__put(c, "<text class='ink' x='%d' y='%d' font-size='%d' font-weight='bold'>", MARGIN, TITLE,
              fitting_size(p->title, width_of(p) - 2 * MARGIN, 230));
    abar__put_text(c, p->title);
    abar__put(c, "</text>\n");
    if (p->subtitle) {
        abar__put(c, "<text class='soft' x='%d' y='%d' font-size='%d'>", MARGIN, SUBTITLE,
                  fitting_size(p->subtitle, width_of(p) - 2 * MARGIN, 140));
        abar__put_text(c, p->subtitle);
        abar__put(c, "</text>\n");
    }
    if (n == 0) return top - 200;
    for (int e = 0, x = MARGIN; e < n && columns == 0; x += entry_width(entries[e++])) draw_entry(c, entries[e], x, top);
    for (int e = 0; e < n && columns > 0; e++)
        draw_entry(c, entries[e], MARGIN + e % columns * ((width_of(p) - 2 * MARGIN) / columns),
                   top + e / columns * LEGEND_ROW);
    return top + (columns > 0 ? (n - 1) / columns * LEGEND_ROW : 0) + 80;
}

/* ---- a panel -------------------------------------------------------------------------------------------------------- */

static int clamp(double place, int length)
{
    const double far = 4.0; /* lengths: enough for the right direction, too little to overflow */
    return (int)lround(fmin(fmax(place, -far), far) * length);
}

static int x_of(const abar__panel *p, const abar__frame *f, double x)
{
    return f->x + clamp(abar__axis_place(&p->x, x), f->width);
}

static int y_of(const abar__panel *p, const abar__frame *f, double y)
{
    return f->y + PLOT_HEIGHT - clamp(isfinite(y) ? abar__axis_place(&p->y, y) : 2.0, PLOT_HEIGHT);
}

static bool drawable(const abar__panel *p, double x, double y)
{
    return isfinite(x) && isfinite(y) && !(p->y.logarithmic && y <= 0.0) && !(p->x.logarithmic && x <= 0.0);
}

static void draw_label(abar__canvas *c, const char *attributes, int x, int y, const char *text)
{
    if (!text) return;
    abar__put(c, "<text x='%d' y='%d' %s>", x, y, attributes);
    abar__put_text(c, text);
    abar__put(c, "</text>\n");
}

static void draw_axes(abar__canvas *c, const abar__panel *p, const abar__frame *f)
{
    char text[ABAR_REAL_TEXT_MAX];
    abar__put(c, "<g class='soft' font-size='130' stroke-width='10'>\n");
    for (int i = 0; i < p->y.ticks; i++) {
        const int y = y_of(p, f, p->y.tick[i]);
        abar__put(c, "<path class='grid' d='M%d %dh%d'/><text x='%d' y='%d' text-anchor='end'>%s</text>\n", f->x, y, f->width,
                  f->x - 90, y + 45, abar__tick_text(&p->y, i, text));
    }
    for (int i = 0; i < p->x.ticks; i++) {
        const int x = x_of(p, f, p->x.tick[i]);
        abar__put(c, "<path class='axis' d='M%d %dv55'/><text x='%d' y='%d' text-anchor='middle'>", x, f->y + PLOT_HEIGHT, x,
                  f->y + PLOT_HEIGHT + 195);
        abar__put_text(c, p->x.names ? p->x.names[i] : abar__tick_text(&p->x, i, text));
        abar__put(c, "</text>\n");
    }
    abar__put(c, "<path class='axis' d='M%d %dh%d'/>\n</g>\n", f->x, f->y + PLOT_HEIGHT, f->width);
}

/* Along the upper edge, and back along the lower one. The outline shows where a single point has no area. */
static void draw_band(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__series *s)
{
    bool any = false;
    if (!s->low || !s->high) return;
    abar__put(c, "<path d='");
    for (int64_t k = 0; k < s->n; k++)
        if (drawable(p, s->x[k], s->high[k])) {
            abar__put(c, "%s%d %d", any ? " " : "M", x_of(p, f, s->x[k]), y_of(p, f, s->high[k]));
            any = true;
        }
    for (int64_t k = s->n - 1; any && k >= 0; k--)
        if (isfinite(s->x[k]) && isfinite(s->low[k])) abar__put(c, " %d %d", x_of(p, f, s->x[k]), y_of(p, f, s->low[k]));
    abar__put(c, "%s' fill='%s' fill-opacity='0.15' stroke='%s' stroke-opacity='%s' stroke-width='%d'/>\n", any ? "z" : "",
              color_of(s), color_of(s), s->n > 1 ? "0.15" : "0.5", s->n > 1 ? 6 : 16);
}

/* M at the first point after a gap, L at the others. */
static void put_path(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__series *s)
{
    bool pen = false;
    for (int64_t k = 0; k < s->n; k++) {
        const bool fine = drawable(p, s->x[k], s->y[k]);
        if (fine) abar__put(c, "%s%d %d", pen ? " L" : "M", x_of(p, f, s->x[k]), y_of(p, f, s->y[k]));
        pen = fine;
    }
}

static void draw_line(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__series *s)
{
    if (s->n == 0) return;
    abar__put(c, "<g stroke='%s' fill='%s'>", color_of(s), color_of(s));
    if (s->name) {
        abar__put(c, "<title>");
        abar__put_text(c, s->name);
        if (s->note || s->broken) abar__put(c, ": ");
        abar__put_text(c, s->broken ? "failed" : s->note ? s->note : "");
        abar__put(c, "</title>");
    }
    if (s->broken)
        abar__put(c, "<path fill='none' stroke-width='14' stroke-dasharray='14 26' d='");
    else
        abar__put(c, "<path class='line' fill='none' stroke-width='24'%s d='", dashes_of(s));
    put_path(c, p, f, s);
    abar__put(c, "'/>");
    for (int64_t k = 0; k < s->n && s->dots && s->n * p->n_series <= DOTS_MAX; k++)
        if (drawable(p, s->x[k], s->y[k]))
            abar__put(c, "<circle class='dot' cx='%d' cy='%d' r='34'/>", x_of(p, f, s->x[k]), y_of(p, f, s->y[k]));
    if (s->broken && s->n > 0)
        abar__put(c, "<path d='M%d %dl110 110m0 -110l-110 110' stroke-width='22'/>", x_of(p, f, s->x[s->n - 1]) - 55,
                  y_of(p, f, s->y[s->n - 1]) - 55);
    abar__put(c, "</g>\n");
}

/* ---- names beside the ends of lines --------------------------------------------------------------------------------- */

typedef struct line_name {
    const abar__series *series;
    int y;
    const char *arrow; /* where the line has left the plot */
} line_name;

/* 0: there are none, or too many: the legend must do. */
static int name_width(const abar__panel *p)
{
    int letters = 0, n = 0;
    for (int i = 0; p->names && i < p->n_series; i++) {
        if (!p->series[i].name || p->series[i].broken) continue;
        const int length = (int)strlen(p->series[i].name);
        letters = length > letters ? length : letters;
        n++;
    }
    return n == 0 || n * NAME_HEIGHT > PLOT_HEIGHT ? 0 : 150 + letters * PLOT_LETTER;
}

static void sort_names(line_name *names, int n)
{
    for (int i = 1; i < n; i++) {
        const line_name moving = names[i];
        int k = i;
        for (; k > 0 && names[k - 1].y > moving.y; k--) names[k] = names[k - 1];
        names[k] = moving;
    }
}

/* From top to bottom without overlap: neighbours are pushed apart, then kept inside the plot. */
static void spread_names(line_name *names, int n, int top, int bottom)
{
    sort_names(names, n);
    for (int round = 0; round < 100; round++)
        for (int i = 0; i + 1 < n; i++) {
            const int overlap = names[i].y + NAME_HEIGHT - names[i + 1].y;
            if (overlap <= 0) continue;
            names[i].y -= overlap / 2;
            names[i + 1].y += overlap - overlap / 2;
        }
    for (int i = 0, least = top; i < n; least = names[i++].y + NAME_HEIGHT)
        if (names[i].y < least) names[i].y = least;
    for (int i = n - 1, most = bottom; i >= 0; most = names[i--].y - NAME_HEIGHT)
        if (names[i].y > most) names[i].y = most;
}

static void draw_line_names(abar__canvas *c, const abar__panel *p, const abar__frame *f)
{
    line_name names[SERIES_MAX];
    int n = 0;
    const int top = f->y, bottom = f->y + PLOT_HEIGHT;
    for (int i = 0; i < p->n_series && n < SERIES_MAX; i++) {
        const abar__series *s = &p->series[i];
        if (s->broken || !s->name || s->n < 1) continue;
        const int y = y_of(p, f, s->y[s->n - 1]);
        const char *arrow = y < top ? " &#8593;" : y > bottom ? " &#8595;" : "";
        names[n++] = (line_name){s, y < top ? top : y > bottom ? bottom : y, arrow};
    }
    spread_names(names, n, top, bottom);
    for (int i = 0; i < n; i++) {
        abar__put(c, "<text x='%d' y='%d' font-size='125' fill='%s'>", f->x + f->width + 80, names[i].y + 42,
                  color_of(names[i].series));
        abar__put_text(c, names[i].series->name);
        abar__put(c, "%s</text>\n", names[i].arrow);
    }
}

/* ---- everything ----------------------------------------------------------------------------------------------------- */

static void draw_lines(abar__canvas *c, const abar__panel *p, const abar__frame *f)
{
    draw_axes(c, p, f);
    abar__put(c,
              "<clipPath id='plot%d'><rect x='%d' y='%d' width='%d' height='%d'/></clipPath>\n<g clip-path='url(#plot%d)'>\n",
              f->index, f->x, f->y - 60, f->width + 60, PLOT_HEIGHT + 65, f->index);
    for (int i = 0; i < p->n_series; i++) draw_band(c, p, f, &p->series[i]);
    for (int i = 0; i < p->n_series; i++)
        if (p->series[i].broken) draw_line(c, p, f, &p->series[i]);
    for (int i = 0; i < p->n_series; i++)
        if (!p->series[i].broken) draw_line(c, p, f, &p->series[i]);
    abar__put(c, "</g>\n");
    if (name_width(p) > 0) draw_line_names(c, p, f);
    bool empty = true;
    for (int i = 0; i < p->n_series; i++) empty = empty && p->series[i].n == 0;
    if (empty)
        draw_label(c, "class='soft' font-size='140' text-anchor='middle'", f->x + f->width / 2, f->y + PLOT_HEIGHT / 2,
                   "nothing to draw yet");
}

static void draw_panel(abar__canvas *c, const abar__panel *p, const abar__frame *f)
{
    char style[96];
    snprintf(style, sizeof style, "class='ink' font-size='%d' font-weight='bold'",
             p->title ? fitting_size(p->title, PANEL_WIDTH - PLOT_LEFT, 160) : 160);
    draw_label(c, style, f->x, f->y - 190, p->title);
    if (p->cell)
        abar__draw_heat(c, p, f);
    else
        draw_lines(c, p, f);
    draw_label(c, "class='soft' font-size='130' text-anchor='middle'", f->x + f->width / 2, f->y + PLOT_HEIGHT + 400,
               p->x_label);
    if (!p->y_label) return;
    char place[160];
    snprintf(place, sizeof place, "class='soft' font-size='130' text-anchor='middle' transform='rotate(-90 %d %d)'", f->x - 560,
             f->y + PLOT_HEIGHT / 2);
    draw_label(c, place, f->x - 560, f->y + PLOT_HEIGHT / 2, p->y_label);
}

static void open_picture(abar__canvas *c, int width, int height)
{
    abar__put(c, "<?xml version='1.0' encoding='UTF-8'?>\n<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' ",
              width / 10, height / 10);
    abar__put(c, "viewBox='0 0 %d %d' font-family='sans-serif' stroke-linejoin='round'>\n<style>", width, height);
    abar__put(c,
              ".card{fill:#fff;stroke:#dfe3e7}.ink{fill:#1c1f23}.soft{fill:#5b626b}.grid{stroke:#e3e6ea}.axis{stroke:#9aa1a9}"
              ".dot{stroke:#fff;stroke-width:10}");
    abar__put(c, "@media(prefers-color-scheme:dark){.card{fill:#15181c;stroke:#343a42}.ink{fill:#eceff2}.soft{fill:#a9b1ba}"
                 ".grid{stroke:#2a2f36}.axis{stroke:#6b737d}.dot{stroke:#15181c}}</style>\n");
    abar__put(c, "<rect class='card' x='5' y='5' width='%d' height='%d' rx='120' stroke-width='10'/>\n", width - 10,
              height - 10);
}

abar_status abar__picture_write(abar_context *ctx, const abar__picture *p, abar__text *out)
{
    abar__canvas head = {.ctx = ctx, .out = out}, c = head;
    abar__text scratch = {0};
    head.out = &scratch;
    const int top = draw_head(&head, p), rows = (p->n_panels + p->columns - 1) / p->columns;
    open_picture(&c, width_of(p), top + rows * PANEL_HEIGHT + 100);
    if (c.status >= 0) c.status = head.status;
    if (c.status >= 0) c.status = abar__text_append(ctx, out, scratch.data, scratch.length);
    abar__text_free(ctx, &scratch);
    for (int i = 0; i < p->n_panels; i++) {
        const abar__panel *panel = &p->panels[i];
        const abar__frame f = {.index = i,
                               .x = MARGIN + i % p->columns * (PANEL_WIDTH + GAP) + PLOT_LEFT,
                               .y = top + i / p->columns * PANEL_HEIGHT + PLOT_TOP,
                               .width = PANEL_WIDTH - PLOT_LEFT - name_width(panel)};
        draw_panel(&c, panel, &f);
    }
    abar__put(&c, "</svg>\n");
    return c.status;
}
