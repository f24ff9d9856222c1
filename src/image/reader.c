/* Views of images: which pixels are decoded, and their way through the two passes of the resize. */
#include "image/image_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool abar__image_fail(abar__image_fault *fault, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(fault->text, sizeof fault->text, format, list);
    va_end(list);
    fault->memory = false;
    return false;
}

/* --- buffers ------------------------------------------------------------------------------------------------------------- */
abar_status abar__image_reader_create(abar_context *ctx, abar__image_reader **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar__image_reader), &memory));
    *out = memory;
    **out = (abar__image_reader){.ctx = ctx, .kernels = abar__resize_best()};
    return ABAR_OK;
}

enum { BUFFERS = 6 };

static void list_buffers(const abar__image_reader *reader, const abar__image_buffer *out[BUFFERS])
{
    out[0] = &reader->rows, out[1] = &reader->between, out[2] = &reader->weights;
    out[3] = &reader->line, out[4] = &reader->planes, out[5] = &reader->encoded;
}

void abar__image_reader_destroy(abar__image_reader *reader)
{
    if (!reader) return;
    const abar__image_buffer *buffers[BUFFERS];
    list_buffers(reader, buffers);
    for (int i = 0; i < BUFFERS; i++) abar__free(reader->ctx, buffers[i]->data, buffers[i]->bytes);
    abar__free(reader->ctx, reader, sizeof *reader);
}

size_t abar__image_reader_bytes(const abar__image_reader *reader)
{
    const abar__image_buffer *buffers[BUFFERS];
    size_t bytes = sizeof *reader + reader->decoder_bytes;
    list_buffers(reader, buffers);
    for (int i = 0; i < BUFFERS; i++) bytes += buffers[i]->bytes;
    return bytes;
}

bool abar__image_grow(abar__image_reader *reader, abar__image_buffer *buffer, size_t bytes, abar__image_fault *fault)
{
    if (bytes <= buffer->bytes) return true;
    abar__free(reader->ctx, buffer->data, buffer->bytes);
    *buffer = (abar__image_buffer){0};
    void *memory = abar__alloc_in_thread(reader->ctx, bytes);
    if (!memory) {
        abar__image_fail(fault, "needs %zu bytes more memory than there is", bytes);
        fault->memory = true;
        return false;
    }
    *buffer = (abar__image_buffer){memory, bytes};
    return true;
}

/* --- headers ------------------------------------------------------------------------------------------------------------- */
bool abar__image_size_check(uint32_t width, uint32_t height, abar__image_fault *fault)
{
    if (width == 0 || height == 0) return abar__image_fail(fault, "has no pixels (%u x %u)", width, height);
    if (width > ABAR_IMAGE_SIDE_MAX || height > ABAR_IMAGE_SIDE_MAX)
        return abar__image_fail(fault, "has %u x %u pixels, at most %d a side are supported", width, height,
                                ABAR_IMAGE_SIDE_MAX);
    if ((uint64_t)width * height > ABAR_IMAGE_PIXELS_MAX)
        return abar__image_fail(fault, "has %u x %u pixels, at most %d are supported", width, height, ABAR_IMAGE_PIXELS_MAX);
    return true;
}

static bool begins(const uint8_t *bytes, size_t n, const char *with, size_t length)
{
    return n >= length && memcmp(bytes, with, length) == 0;
}

static const char *other_format(const uint8_t *bytes, size_t n)
{
    if (begins(bytes, n, "GIF8", 4)) return "is a GIF, only JPEG and PNG are supported";
    if (begins(bytes, n, "BM", 2)) return "is a BMP, only JPEG and PNG are supported";
    if (begins(bytes, n, "RIFF", 4) && n >= 12 && memcmp(bytes + 8, "WEBP", 4) == 0)
        return "is a WebP, only JPEG and PNG are supported";
    if (begins(bytes, n, "II*\0", 4) || begins(bytes, n, "MM\0*", 4)) return "is a TIFF, only JPEG and PNG are supported";
    return "is not an image";
}

bool abar__image_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault)
{
    *out = (abar__image_header){0};
    if (n == 0) return abar__image_fail(fault, "is empty");
    if (n > ABAR_IMAGE_BYTES_MAX)
        return abar__image_fail(fault, "has %zu MiB, at most %zu are supported", n >> 20, ABAR_IMAGE_BYTES_MAX >> 20);
    if (begins(bytes, n, "\xFF\xD8\xFF", 3)) return abar__jpeg_look(bytes, n, out, fault);
    if (begins(bytes, n, "\x89PNG\r\n\x1A\n", 8)) return abar__png_look(bytes, n, out, fault);
    return abar__image_fail(fault, "%s", other_format(bytes, n));
}

/* --- views --------------------------------------------------------------------------------------------------------------- */
abar__image_view abar__image_centre(int32_t width, int32_t height, int32_t resize, int32_t size, abar__image_filter filter)
{
    abar__image_view view = {.crop = {0, 0, height, width}, .height = resize, .width = resize, .filter = filter};
    if (width <= height)
        view.height = (int32_t)((double)resize * height / width);
    else
        view.width = (int32_t)((double)resize * width / height);
    view.window = (abar__image_box){.top = (int32_t)rint((view.height - size) / 2.0),
                                    .left = (int32_t)rint((view.width - size) / 2.0),
                                    .height = size,
                                    .width = size};
    return view;
}

static bool inside(const abar__image_box *box, int32_t height, int32_t width)
{
    return box->top >= 0 && box->left >= 0 && box->height > 0 && box->width > 0 && box->height <= height - box->top &&
           box->width <= width - box->left;
}

/* One view on its way: rows come in, are resampled horizontally and kept in `between`. Without a vertical pass they go out. */
typedef struct passes {
    abar__image_reader *reader;
    const abar__image_view *view;
    uint8_t *out;      /* (3, height, width) of the window */
    bool across, down; /* which passes there are */
    abar__resize_axis x, y;
    size_t stride; /* of the rows in between */
    int32_t rows;  /* that came */
} passes;

/* n pixels, the last one first. */
static void copy_reversed(const uint8_t *from, int32_t n, uint8_t *to)
{
    for (from += 3 * (size_t)n; n > 0; n--, to += 3) {
        from -= 3;
        to[0] = from[0], to[1] = from[1], to[2] = from[2];
    }
}

/* Row y of the window, RGB, into the planes. */
static void put_row(const passes *p, const uint8_t *rgb, int32_t y)
{
    size_t width = (size_t)p->view->window.width, plane = width * (size_t)p->view->window.height;
    p->reader->kernels->split(rgb, p->view->window.width, p->out + (size_t)y * width, plane);
}

static void take_rows(void *user, const uint8_t *const *rows, int32_t n)
{
    passes *p = user;
    int32_t width = p->view->window.width;
    uint8_t *between = p->reader->between.data + (p->down ? (size_t)p->rows * p->stride : 0);
    if (p->across) p->reader->kernels->across(&p->x, rows, n, between, p->stride);
    for (int32_t i = 0; i < n; i++, between += p->stride) {
        const uint8_t *row = p->across ? between : rows[i];
        if (!p->across && p->view->mirror) {
            copy_reversed(rows[i], width, between);
            row = between;
        }
        if (!p->down)
            put_row(p, row, p->rows + i);
        else if (row != between)
            memcpy(between, row, 3 * (size_t)width);
    }
    p->rows += n;
}

/* The weights of both passes, and the box of pixels that they need. */
static bool plan(passes *p, abar__image_box *box, abar__image_fault *fault)
{
    const abar__image_view *v = p->view;
    const abar__image_box *crop = &v->crop, *window = &v->window;
    int32_t left = window->left, right = left + window->width, top = window->top, bottom = top + window->height;
    size_t x_bytes = 0, y_bytes = 0;
    if (p->across) {
        abar__resize_range(crop->width, v->width, v->filter, window->left, window->width, &left, &right);
        x_bytes = abar__round_up(abar__resize_axis_bytes(crop->width, v->width, v->filter, window->width), ABAR_ALIGN);
    }
    if (p->down) {
        abar__resize_range(crop->height, v->height, v->filter, window->top, window->height, &top, &bottom);
        y_bytes = abar__resize_axis_bytes(crop->height, v->height, v->filter, window->height);
    }
    *box = (abar__image_box){.top = crop->top + top, .left = crop->left + left, .height = bottom - top, .width = right - left};
    int32_t kept = p->down && box->height > ABAR_RESIZE_ROWS ? box->height : ABAR_RESIZE_ROWS;
    p->stride = abar__round_up(3 * (size_t)window->width, ABAR_RESIZE_PAD) + ABAR_RESIZE_PAD;
    if (!abar__image_grow(p->reader, &p->reader->weights, x_bytes + y_bytes, fault) ||
        !abar__image_grow(p->reader, &p->reader->line, p->stride, fault) ||
        !abar__image_grow(p->reader, &p->reader->between, (size_t)kept * p->stride, fault))
        return false;
    uint8_t *weights = p->reader->weights.data;
    if (p->across)
        abar__resize_axis_make(crop->width, v->width, v->filter, window->left, window->width, v->mirror, weights, &p->x);
    if (p->down)
        abar__resize_axis_make(crop->height, v->height, v->filter, window->top, window->height, false, weights + x_bytes,
                               &p->y);
    return true;
}

static void pass_down(const passes *p)
{
    const abar__image_box *window = &p->view->window;
    uint8_t *line = p->reader->line.data;
    for (int32_t y = 0; y < window->height; y++) {
        p->reader->kernels->down(&p->y, y, p->reader->between.data, p->stride, 3 * (size_t)window->width, line);
        put_row(p, line, y);
    }
}

static bool decode(abar__image_reader *reader, const abar__image_source *source, const abar__image_sink *sink,
                   int64_t *warnings, abar__image_fault *fault)
{
    *warnings = 0;
    if (source->header.format == ABAR_IMAGE_PNG) return abar__png_decode(reader, source, sink, fault);
    return abar__jpeg_decode(reader, source, sink, warnings, fault);
}

bool abar__image_read(abar__image_reader *reader, const uint8_t *bytes, size_t n, const abar__image_view *view, uint8_t *out,
                      abar__image_fault *fault)
{
    return abar__image_read_to(reader, bytes, n, view, false, out, fault);
}

bool abar__image_read_to(abar__image_reader *reader, const uint8_t *bytes, size_t n, const abar__image_view *view, bool end,
                         uint8_t *out, abar__image_fault *fault)
{
    abar__image_source source = {.bytes = bytes, .n = n, .end = end};
    int64_t warnings;
    if (!abar__image_look(bytes, n, &source.header, fault)) return false;
    if (!inside(&view->crop, source.header.height, source.header.width) || !inside(&view->window, view->height, view->width))
        return abar__image_fail(fault, "has %d x %d pixels, less than the view that is asked for", source.header.width,
                                source.header.height);
    passes p = {.reader = reader,
                .view = view,
                .out = out,
                .across = view->crop.width != view->width,
                .down = view->crop.height != view->height};
    abar__image_sink sink = {&p, take_rows};
    if (!plan(&p, &source.box, fault) || !decode(reader, &source, &sink, &warnings, fault)) return false;
    if (p.down) pass_down(&p);
    return true;
}

bool abar__image_check(abar__image_reader *reader, const uint8_t *bytes, size_t n, abar__image_header *out, int64_t *warnings,
                       abar__image_fault *fault)
{
    abar__image_source source = {.bytes = bytes, .n = n, .end = true};
    abar__image_sink sink = {0};
    *warnings = 0;
    if (!abar__image_look(bytes, n, out, fault)) return false;
    source.header = *out;
    source.box = (abar__image_box){0, 0, out->height, out->width};
    return decode(reader, &source, &sink, warnings, fault);
}
