/* PNG by libpng: the header, and the decoding of a box of pixels.
 *
 * Errors of libpng return by longjmp to run(), which owns nothing: libpng's structs belong to abar__png_decode, the rows to the
 * reader. */
#include "image/image_impl.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

enum { SIGNATURE = 8, HEADER_END = 33, CHUNK_MAX = 8 << 20 };

/* What IHDR says. */
typedef struct header {
    uint32_t width, height;
    uint8_t depth, colour, interlaced;
} header;

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static header read_header(const uint8_t *bytes)
{
    return (header){.width = big_endian(bytes + 16),
                    .height = big_endian(bytes + 20),
                    .depth = bytes[24],
                    .colour = bytes[25],
                    .interlaced = bytes[28]};
}

/* Samples of a pixel as it is stored. */
static uint32_t samples(const header *h)
{
    switch (h->colour) {
    case PNG_COLOR_TYPE_GRAY_ALPHA: return 2;
    case PNG_COLOR_TYPE_RGB: return 3;
    case PNG_COLOR_TYPE_RGB_ALPHA: return 4;
    default: return 1;
    }
}

bool abar__png_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault)
{
    if (n < HEADER_END) return abar__image_fail(fault, "is cut short: its %zu bytes end in the header", n);
    if (big_endian(bytes + SIGNATURE) != 13 || memcmp(bytes + SIGNATURE + 4, "IHDR", 4) != 0)
        return abar__image_fail(fault, "cannot be decoded: it does not begin with its header");
    header h = read_header(bytes);
    if (!abar__image_size_check(h.width, h.height, fault)) return false;
    /* A deflated byte is at most 1032 bytes: a file too short for its pixels is refused before memory is taken. */
    uint64_t row = ((uint64_t)h.width * samples(&h) * h.depth + 7) / 8;
    if (row * h.height / 1032 > n)
        return abar__image_fail(fault, "is cut short: its %zu bytes cannot hold %u x %u pixels", n, h.width, h.height);
    *out = (abar__image_header){.format = ABAR_IMAGE_PNG,
                                .width = (int32_t)h.width,
                                .height = (int32_t)h.height,
                                .components = h.colour == PNG_COLOR_TYPE_PALETTE ? 3 : (int32_t)samples(&h)};
    return true;
}

/* All state of one decoding. */
typedef struct job {
    jmp_buf jump;
    png_structp png;
    png_infop info;
    const abar__image_source *source;
    const abar__image_sink *sink;
    abar__image_fault *fault;
    size_t at;     /* next byte of the file */
    uint8_t *rows; /* of the box, or ABAR_RESIZE_ROWS of them */
    size_t stride;
} job;

static void fail(png_structp png, const char *text)
{
    job *j = png_get_error_ptr(png);
    if (!j->fault->text[0]) abar__image_fail(j->fault, "cannot be decoded: %s", text);
    longjmp(j->jump, 1);
}

static void no_warning(png_structp png, const char *text) { (void)png, (void)text; }

static void *allocate(png_structp png, png_alloc_size_t bytes)
{
    job *j = png_get_mem_ptr(png);
    void *memory = malloc(bytes);
    if (!memory) {
        abar__image_fail(j->fault, "needs more memory than there is");
        j->fault->memory = true;
    }
    return memory;
}

static void release(png_structp png, void *memory)
{
    (void)png;
    free(memory);
}

static void read_bytes(png_structp png, png_bytep out, size_t n)
{
    job *j = png_get_io_ptr(png);
    if (n > j->source->n - j->at) {
        abar__image_fail(j->fault, "is cut short: the image goes on after its %zu bytes", j->source->n);
        longjmp(j->jump, 1);
    }
    memcpy(out, j->source->bytes + j->at, n);
    j->at += n;
}

/* Rows as RGB of 8 bits: palettes looked up, few bits spread, many cut, alpha dropped. Returns the passes of interlacing. */
static int start(job *j)
{
    png_set_user_limits(j->png, ABAR_IMAGE_SIDE_MAX, ABAR_IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(j->png, CHUNK_MAX);
    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1); /* texts, profiles, gamma */
    png_set_option(j->png, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON);     /* whatever the stream claims, as Pillow */
    png_set_read_fn(j->png, j, read_bytes);
    png_read_info(j->png, j->info);
    png_set_crc_action(j->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE); /* of the data, as Pillow */
    int colour = png_get_color_type(j->png, j->info);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(j->png);
    if (!(colour & PNG_COLOR_MASK_COLOR)) {
        if (png_get_bit_depth(j->png, j->info) < 8) png_set_expand_gray_1_2_4_to_8(j->png);
        png_set_gray_to_rgb(j->png);
    }
    png_set_strip_16(j->png);
    png_set_strip_alpha(j->png);
    int passes = png_set_interlace_handling(j->png);
    png_read_update_info(j->png, j->info);
    if (png_get_rowbytes(j->png, j->info) != 3 * (size_t)j->source->header.width)
        fail(j->png, "its pixels are of an unknown kind");
    return passes;
}

static void pass_on(job *j, int32_t n)
{
    const uint8_t *starts[ABAR_RESIZE_ROWS];
    for (int32_t i = 0; i < n; i++) starts[i] = j->rows + (size_t)i * j->stride + 3 * (size_t)j->source->box.left;
    if (j->sink->take) j->sink->take(j->sink->user, starts, n);
}

/* Rows in order; those above the box are decoded and dropped. */
static void read_rows(job *j)
{
    const abar__image_box *box = &j->source->box;
    int32_t kept = 0;
    for (int32_t y = 0; y < box->top; y++) png_read_row(j->png, j->rows, NULL);
    for (int32_t y = 0; y < box->height; y++) {
        png_read_row(j->png, j->rows + (size_t)kept * j->stride, NULL);
        if (++kept < ABAR_RESIZE_ROWS && y + 1 < box->height) continue;
        pass_on(j, kept);
        kept = 0;
    }
}

/* Every pass goes over all rows; those of the box are kept. */
static void read_passes(job *j, int passes)
{
    const abar__image_box *box = &j->source->box;
    for (int pass = 0; pass < passes; pass++)
        for (int32_t y = 0; y < j->source->header.height; y++) {
            bool inside = y >= box->top && y - box->top < box->height;
            png_read_row(j->png, inside ? j->rows + (size_t)(y - box->top) * j->stride : NULL, NULL);
        }
    for (int32_t y = 0; y < box->height; y += ABAR_RESIZE_ROWS) {
        pass_on(j, box->height - y < ABAR_RESIZE_ROWS ? box->height - y : ABAR_RESIZE_ROWS);
        j->rows += ABAR_RESIZE_ROWS * j->stride;
    }
}

static bool run(job *j)
{
    if (setjmp(j->jump)) return false;
    int passes = start(j);
    if (passes == 1)
        read_rows(j);
    else
        read_passes(j, passes);
    return true;
}

bool abar__png_decode(abar__image_reader *reader, const abar__image_source *source, const abar__image_sink *sink,
                      abar__image_fault *fault)
{
    size_t stride = abar__round_up(3 * (size_t)source->header.width + ABAR_RESIZE_PAD, ABAR_ALIGN);
    size_t rows = read_header(source->bytes).interlaced ? (size_t)source->box.height : ABAR_RESIZE_ROWS;
    if (!abar__image_grow(reader, &reader->rows, rows * stride, fault)) return false;
    fault->text[0] = '\0';
    job j = {.source = source, .sink = sink, .fault = fault, .rows = reader->rows.data, .stride = stride};
    j.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &j, fail, no_warning, &j, allocate, release);
    j.info = j.png ? png_create_info_struct(j.png) : NULL;
    if (!j.info && !fault->text[0]) abar__image_fail(fault, "cannot be decoded: libpng is not the one this was built for");
    bool ok = j.info && run(&j);
    png_destroy_read_struct(&j.png, &j.info, NULL);
    return ok;
}
