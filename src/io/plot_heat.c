/* Heat maps: rectangles, or beyond a few thousand cells one embedded PNG, with a colour bar. */
#include "io/plot_impl.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

enum {
    RECTANGLES_MAX = 1024,
    IMAGE_SIDE = 480, /* pixels of an embedded image, about: many a cell, because some programs smooth what they enlarge */
    BAR_WIDTH = 160,
    BAR_GAP = 160,
    BAR_STEPS = 32,
    NAME_LETTER = 66, /* of row and column names */
    NAME_SPACE = 640  /* left of the plot */
};

/* Dark to light with even steps of brightness, told apart by most colour-blind people, too. */
static const unsigned char colors[][3] = {{52, 16, 78},   {64, 70, 136},  {43, 117, 142},
                                          {36, 160, 135}, {110, 206, 88}, {251, 231, 60}};

static void color_at(double t, unsigned char rgb[3])
{
    const int last = (int)(sizeof colors / sizeof *colors) - 1;
    const double at = fmin(fmax(t, 0.0), 1.0) * last;
    const int i = at >= last ? last - 1 : (int)at;
    for (int k = 0; k < 3; k++)
        rgb[k] = (unsigned char)lround((double)colors[i][k] + (at - i) * ((double)colors[i + 1][k] - (double)colors[i][k]));
}

/* What the colours span. */
static abar__axis color_axis(const abar__panel *p)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        const double v = p->cell[i];
        if (!isfinite(v) || (p->logarithmic && v <= 0.0)) continue;
        low = fmin(low, v);
        high = fmax(high, v);
    }
    if (!(low <= high)) low = high = 1.0;
    if (p->limited) low = fmax(low, p->y.low), high = fmin(high, p->y.high);
    abar__axis axis = {
        .low = p->logarithmic ? log10(low) : low, .high = p->logarithmic ? log10(high) : high, .logarithmic = p->logarithmic};
    if (!(axis.high > axis.low)) axis.high = axis.low + 1e-12 + 1e-12 * fabs(axis.low);
    abar__axis ticked = axis;
    abar__axis_ticks(&ticked, 0.0);
    return ticked;
}

static void draw_cells(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__axis *axis, int width)
{
    abar__put(c, "<g shape-rendering='crispEdges'>\n");
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            const double v = p->cell[i * p->columns + j];
            unsigned char rgb[3];
            if (!isfinite(v)) continue;
            color_at(abar__axis_place(axis, v), rgb);
            const int x0 = (int)(j * width / p->columns), x1 = (int)((j + 1) * width / p->columns);
            const int y0 = (int)(i * PLOT_HEIGHT / p->rows), y1 = (int)((i + 1) * PLOT_HEIGHT / p->rows);
            abar__put(c, "<rect x='%d' y='%d' width='%d' height='%d' fill='#%02x%02x%02x'/>\n", f->x + x0, f->y + y0, x1 - x0,
                      y1 - y0, rgb[0], rgb[1], rgb[2]);
        }
    abar__put(c, "</g>\n");
}

/* Dark on light colours, light on dark ones; a cross where there is no number. */
static void draw_numbers(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__axis *axis, int width)
{
    char text[ABAR_REAL_TEXT_MAX];
    size_t letters = 1;
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        const size_t n = isfinite(p->cell[i]) ? strlen(abar__plot_number(p->cell[i], p->y.decimals, text)) : 1;
        letters = n > letters ? n : letters;
    }
    const int across = (int)(width / p->columns / (int64_t)letters * 3 / 2), up = (int)(PLOT_HEIGHT / p->rows * 3 / 5);
    const int size = across < up ? (across < 120 ? across : 120) : (up < 120 ? up : 120);
    if (size < 50) return; /* not readable */
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            const double v = p->cell[i * p->columns + j];
            const bool known = isfinite(v), light = known && abar__axis_place(axis, v) > 0.55;
            abar__put(c, "<text text-anchor='middle' font-size='%d' x='%d' y='%d' %s>%s</text>\n", size,
                      f->x + (int)((2 * j + 1) * width / (2 * p->columns)),
                      f->y + (int)((2 * i + 1) * PLOT_HEIGHT / (2 * p->rows)) + size * 35 / 100,
                      !known  ? "class='soft'"
                      : light ? "fill='#1c1f23'"
                              : "fill='#fff'",
                      known ? abar__plot_number(v, p->y.decimals, text) : "&#215;");
        }
}

/* ---- PNG ---------------------------------------------------------------------------------------------------------- */

static void big_endian(unsigned char *out, uint32_t v)
{
    for (int i = 0; i < 4; i++) out[i] = (unsigned char)(v >> (24 - 8 * i));
}

static abar_status append_chunk(abar_context *ctx, abar__text *png, const char *kind, const void *bytes, size_t n)
{
    unsigned char word[4];
    uLong crc = crc32(crc32(0, NULL, 0), (const Bytef *)kind, 4);
    if (n) crc = crc32(crc, bytes, (uInt)n);
    big_endian(word, (uint32_t)n);
    ABAR_TRY(abar__text_append(ctx, png, word, 4));
    ABAR_TRY(abar__text_append(ctx, png, kind, 4));
    ABAR_TRY(abar__text_append(ctx, png, bytes, n));
    big_endian(word, (uint32_t)crc);
    return abar__text_append(ctx, png, word, 4);
}

/* Pixels of a cell. */
static int64_t cell_pixels(const abar__panel *p)
{
    const int64_t most = p->rows > p->columns ? p->rows : p->columns;
    return most < IMAGE_SIDE ? IMAGE_SIDE / most : 1;
}

enum { SHADES = 255 }; /* colours of an image; 0 is transparent */

/* Rows of a filter byte and colour numbers. */
static void paint(const abar__panel *p, const abar__axis *axis, unsigned char *raw)
{
    const int64_t pixels = cell_pixels(p);
    for (int64_t y = 0; y < p->rows * pixels; y++) {
        *raw++ = 0;
        for (int64_t x = 0; x < p->columns * pixels; x++) {
            const double v = p->cell[y / pixels * p->columns + x / pixels];
            const double at = isfinite(v) ? fmin(fmax(abar__axis_place(axis, v), 0.0), 1.0) : -1.0;
            *raw++ = at < 0.0 ? 0 : (unsigned char)(1 + lround(at * (SHADES - 1)));
        }
    }
}

static void fill_palette(unsigned char *rgb)
{
    memset(rgb, 0, 3);
    for (int i = 0; i < SHADES; i++) color_at((double)i / (SHADES - 1), rgb + 3 * (i + 1));
}

static abar_status encode_png(abar_context *ctx, const abar__panel *p, const unsigned char *raw, size_t raw_bytes,
                              unsigned char *packed, uLong packed_bytes, abar__text *png)
{
    static const unsigned char signature[8] = {137, 'P', 'N', 'G', 13, 10, 26, 10};
    unsigned char header[13] = {[8] = 8, [9] = 3}, rgb[3 * (SHADES + 1)]; /* eight bits, by palette */
    big_endian(header, (uint32_t)(p->columns * cell_pixels(p)));
    big_endian(header + 4, (uint32_t)(p->rows * cell_pixels(p)));
    fill_palette(rgb);
    if (compress2(packed, &packed_bytes, raw, (uLong)raw_bytes, 9) != Z_OK)
        return abar__fail(ctx, ABAR_E_MEMORY, "picture: zlib could not compress a heat map, free some memory");
    ABAR_TRY(abar__text_append(ctx, png, signature, sizeof signature));
    ABAR_TRY(append_chunk(ctx, png, "IHDR", header, sizeof header));
    ABAR_TRY(append_chunk(ctx, png, "PLTE", rgb, sizeof rgb));
    ABAR_TRY(append_chunk(ctx, png, "tRNS", "", 1));
    ABAR_TRY(append_chunk(ctx, png, "IDAT", packed, packed_bytes));
    return append_chunk(ctx, png, "IEND", "", 0);
}

static abar_status make_png(abar_context *ctx, const abar__panel *p, const abar__axis *axis, abar__text *png)
{
    const int64_t pixels = cell_pixels(p);
    const size_t raw_bytes = (size_t)(p->rows * pixels * (1 + p->columns * pixels)),
                 packed_bytes = compressBound((uLong)raw_bytes);
    void *raw = NULL, *packed = NULL;
    abar_status status = abar__alloc(ctx, raw_bytes, &raw);
    if (status >= 0) status = abar__alloc(ctx, packed_bytes, &packed);
    if (status >= 0) {
        paint(p, axis, raw);
        status = encode_png(ctx, p, raw, raw_bytes, packed, packed_bytes, png);
    }
    abar__free(ctx, packed, packed ? packed_bytes : 0);
    abar__free(ctx, raw, raw ? raw_bytes : 0);
    return status;
}

static void put_base64(abar__canvas *c, const abar__text *bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes->length; i += 3) {
        unsigned char in[3] = {0};
        const size_t n = bytes->length - i < 3 ? bytes->length - i : 3;
        memcpy(in, bytes->data + i, n);
        const unsigned word = (unsigned)in[0] << 16 | (unsigned)in[1] << 8 | in[2];
        abar__put(c, "%c%c%c%c", digits[word >> 18], digits[word >> 12 & 63], n > 1 ? digits[word >> 6 & 63] : '=',
                  n > 2 ? digits[word & 63] : '=');
    }
}

static void draw_image(abar__canvas *c, const abar__panel *p, const abar__frame *f, const abar__axis *axis, int width)
{
    abar__text png = {0};
    if (c->status >= 0) c->status = make_png(c->ctx, p, axis, &png);
    abar__put(c, "<image x='%d' y='%d' width='%d' height='%d' preserveAspectRatio='none' image-rendering='pixelated' ", f->x,
              f->y, width, PLOT_HEIGHT);
    abar__put(c, "href='data:image/png;base64,");
    if (c->status >= 0) put_base64(c, &png);
    abar__put(c, "'/>\n");
    abar__text_free(c->ctx, &png);
}

/* ---- around it ------------------------------------------------------------------------------------------------------ */

static void draw_bar(abar__canvas *c, const abar__frame *f, const abar__axis *axis, int x)
{
    char text[ABAR_REAL_TEXT_MAX];
    for (int i = 0; i < BAR_STEPS; i++) {
        unsigned char rgb[3];
        color_at((BAR_STEPS - 0.5 - i) / BAR_STEPS, rgb);
        const int y0 = i * PLOT_HEIGHT / BAR_STEPS, y1 = (i + 1) * PLOT_HEIGHT / BAR_STEPS;
        abar__put(c, "<rect x='%d' y='%d' width='%d' height='%d' fill='#%02x%02x%02x'/>\n", x, f->y + y0, BAR_WIDTH,
                  y1 - y0 + 4, rgb[0], rgb[1], rgb[2]);
    }
    for (int i = 0; i < axis->ticks; i++) {
        const double at = abar__axis_place(axis, axis->tick[i]);
        if (at < -1e-6 || at > 1.0 + 1e-6) continue;
        abar__put(c, "<text class='soft' font-size='120' x='%d' y='%d'>%s</text>\n", x + BAR_WIDTH + 60,
                  f->y + (int)lround((1.0 - at) * PLOT_HEIGHT) + 42, abar__tick_text(axis, i, text));
    }
}

static int longest(const char *const *names, int64_t n)
{
    size_t letters = 0;
    for (int64_t i = 0; names && i < n; i++) letters = strlen(names[i]) > letters ? strlen(names[i]) : letters;
    return (int)letters * NAME_LETTER;
}

/* Every few of them where there are many. */
static void draw_names(abar__canvas *c, const abar__panel *p, const abar__frame *f, int width)
{
    const int64_t every_row = 1 + (p->rows - 1) / 20, fit = width / (longest(p->column_names, p->columns) + NAME_LETTER);
    const int64_t every_column = fit > 0 ? (p->columns + fit - 1) / fit : p->columns;
    for (int64_t i = 0; p->row_names && i < p->rows; i += every_row) {
        abar__put(c, "<text class='soft' font-size='110' text-anchor='end' x='%d' y='%d'>", f->x - 60,
                  f->y + (int)((2 * i + 1) * PLOT_HEIGHT / (2 * p->rows)) + 38);
        abar__put_text(c, p->row_names[i]);
        abar__put(c, "</text>\n");
    }
    for (int64_t i = 0; p->column_names && i < p->columns; i += every_column) {
        abar__put(c, "<text class='soft' font-size='110' text-anchor='middle' x='%d' y='%d'>",
                  f->x + (int)((2 * i + 1) * width / (2 * p->columns)), f->y + PLOT_HEIGHT + 170);
        abar__put_text(c, p->column_names[i]);
        abar__put(c, "</text>\n");
    }
}

void abar__draw_heat(abar__canvas *c, const abar__panel *p, const abar__frame *frame)
{
    const abar__axis axis = color_axis(p);
    const int names = longest(p->row_names, p->rows), extra = names > NAME_SPACE ? names - NAME_SPACE : 0;
    const abar__frame f = {.index = frame->index, .x = frame->x + extra, .y = frame->y, .width = frame->width - extra};
    int width = f.width - BAR_WIDTH - BAR_GAP - 7 * PLOT_LETTER;
    if (p->rows == p->columns && width > PLOT_HEIGHT) width = PLOT_HEIGHT;
    if (p->rows * p->columns <= RECTANGLES_MAX)
        draw_cells(c, p, &f, &axis, width);
    else
        draw_image(c, p, &f, &axis, width);
    if (p->numbers) draw_numbers(c, p, &f, &axis, width);
    draw_bar(c, &f, &axis, f.x + width + BAR_GAP);
    draw_names(c, p, &f, width);
}
