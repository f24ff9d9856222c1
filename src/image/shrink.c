/* A smaller copy of an image as a JPEG of quality 90, by libjpeg-turbo.
 *
 * Errors of libjpeg return by longjmp to run(), which owns nothing: the compressor belongs to encode, the bytes to the reader.
 */
#include "image/image_impl.h"
#include "image/jpeg_impl.h"

#include <string.h>

enum { QUALITY = 90, FIRST_BYTES = 64 << 10 };

/* All state of one encoding. */
typedef struct job {
    abar__jpeg_errors errors;
    struct jpeg_compress_struct info;
    struct jpeg_destination_mgr output;
    abar__image_reader *reader;
    int32_t height, width, components;
    size_t bytes; /* of the file */
} job;

static void begin_output(j_compress_ptr info)
{
    job *j = info->client_data;
    j->output.next_output_byte = j->reader->encoded.data;
    j->output.free_in_buffer = j->reader->encoded.bytes;
}

/* Doubles the buffer, which is full. */
static boolean on_full_output(j_compress_ptr info)
{
    job *j = info->client_data;
    abar__image_buffer *encoded = &j->reader->encoded, larger = {0};
    size_t used = encoded->bytes;
    if (!abar__image_grow(j->reader, &larger, 2 * used, j->errors.fault)) longjmp(j->errors.jump, 1);
    memcpy(larger.data, encoded->data, used);
    abar__free(j->reader->ctx, encoded->data, encoded->bytes);
    *encoded = larger;
    j->output.next_output_byte = encoded->data + used;
    j->output.free_in_buffer = encoded->bytes - used;
    return TRUE;
}

static void end_output(j_compress_ptr info)
{
    job *j = info->client_data;
    j->bytes = j->reader->encoded.bytes - j->output.free_in_buffer;
}

static void write_rows(job *j)
{
    size_t width = (size_t)j->width, plane = width * (size_t)j->height;
    const uint8_t *pixels = j->reader->planes.data;
    uint8_t *line = j->reader->line.data;
    for (int32_t y = 0; y < j->height; y++, pixels += width) {
        if (j->components == 1)
            memcpy(line, pixels, width);
        else
            for (size_t x = 0; x < width; x++)
                for (size_t c = 0; c < 3; c++) line[3 * x + c] = pixels[c * plane + x];
        jpeg_write_scanlines(&j->info, &line, 1);
    }
}

static bool run(job *j)
{
    if (setjmp(j->errors.jump)) return false;
    jpeg_create_compress(&j->info);
    j->info.client_data = j;
    j->output = (struct jpeg_destination_mgr){
        .init_destination = begin_output, .empty_output_buffer = on_full_output, .term_destination = end_output};
    j->info.dest = &j->output;
    j->info.image_width = (JDIMENSION)j->width;
    j->info.image_height = (JDIMENSION)j->height;
    j->info.input_components = j->components;
    j->info.in_color_space = j->components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&j->info); /* 4:2:0 */
    jpeg_set_quality(&j->info, QUALITY, TRUE);
    j->info.dct_method = JDCT_ISLOW;
    jpeg_start_compress(&j->info, TRUE);
    write_rows(j);
    jpeg_finish_compress(&j->info);
    return true;
}

/* reader->planes, (3, height, width) bytes, to reader->encoded. */
static bool encode(abar__image_reader *reader, int32_t height, int32_t width, int32_t components, size_t *bytes,
                   abar__image_fault *fault)
{
    if (!abar__image_grow(reader, &reader->encoded, FIRST_BYTES, fault)) return false;
    job j = {.reader = reader, .height = height, .width = width, .components = components};
    abar__jpeg_errors_init(&j.errors, "encoded", fault);
    j.info.err = &j.errors.manager;
    bool ok = run(&j);
    jpeg_destroy_compress(&j.info);
    *bytes = j.bytes;
    return ok;
}

/* The whole image with its short side at most `side`. */
static abar__image_view shrunk(const abar__image_header *header, int32_t side)
{
    abar__image_view view = {.crop = {0, 0, header->height, header->width},
                             .height = header->height,
                             .width = header->width,
                             .filter = ABAR_IMAGE_BICUBIC};
    int32_t least = header->width < header->height ? header->width : header->height;
    if (least > side) {
        abar__image_view centre = abar__image_centre(header->width, header->height, side, side, ABAR_IMAGE_BICUBIC);
        view.height = centre.height;
        view.width = centre.width;
    }
    view.window = (abar__image_box){0, 0, view.height, view.width};
    return view;
}

bool abar__image_shrink(abar__image_reader *reader, const uint8_t *bytes, size_t n, int32_t side, const uint8_t **out,
                        size_t *out_bytes, abar__image_fault *fault)
{
    abar__image_header header;
    if (!abar__image_look(bytes, n, &header, fault)) return false;
    abar__image_view view = shrunk(&header, side);
    size_t pixels = (size_t)view.height * (size_t)view.width;
    if (!abar__image_grow(reader, &reader->planes, 3 * pixels, fault)) return false;
    if (!abar__image_read_to(reader, bytes, n, &view, true, reader->planes.data, fault)) return false;
    if (!encode(reader, view.height, view.width, header.components <= 2 ? 1 : 3, out_bytes, fault)) return false;
    *out = reader->encoded.data;
    return true;
}
