/* JPEG by libjpeg-turbo: the header, and the decoding of a box of pixels.
 *
 * Errors of libjpeg return by longjmp to run(), which owns nothing: the decompressor belongs to abar__jpeg_decode, the rows to
 * the reader. */
#include "image/image_impl.h"
#include "image/jpeg_impl.h"

#include <stdlib.h>
#include <string.h>

enum { SCANS_MAX = 500 };

/* --- errors, for decoding and encoding ----------------------------------------------------------------------------------- */
static void on_error(j_common_ptr info)
{
    abar__jpeg_errors *errors = (abar__jpeg_errors *)info->err;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    if (info->err->msg_code == JERR_OUT_OF_MEMORY) {
        abar__image_fail(errors->fault, "needs more memory than there is");
        errors->fault->memory = true;
    } else {
        abar__image_fail(errors->fault, "cannot be %s: %s", errors->done, text);
    }
    longjmp(errors->jump, 1);
}

static void on_message(j_common_ptr info, int level)
{
    if (level < 0) info->err->num_warnings++;
}

static void no_output(j_common_ptr info) { (void)info; }

void abar__jpeg_errors_init(abar__jpeg_errors *errors, const char *done, abar__image_fault *fault)
{
    jpeg_std_error(&errors->manager);
    errors->manager.error_exit = on_error;
    errors->manager.emit_message = on_message;
    errors->manager.output_message = no_output;
    errors->fault = fault;
    errors->done = done;
}

/* --- the header ---------------------------------------------------------------------------------------------------------- */
/* The next marker's code, with *at after it; 0: the file ends before. Bytes between segments are skipped, as by libjpeg. */
static uint8_t next_marker(const uint8_t *bytes, size_t n, size_t *at)
{
    while (*at < n && bytes[*at] != 0xFF) (*at)++;
    while (*at < n && bytes[*at] == 0xFF) (*at)++;
    if (*at == n) return 0;
    uint8_t code = bytes[(*at)++];
    return code ? code : next_marker(bytes, n, at);
}

static bool has_segment(uint8_t marker) { return marker != 0x01 && !(marker >= 0xD0 && marker <= 0xD7); }

static bool is_frame(uint8_t marker)
{
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/* A frame header: precision, height, width, components, after marker and length. */
static bool read_frame(const uint8_t *frame, uint8_t marker, abar__image_header *out, abar__image_fault *fault)
{
    uint32_t height = (uint32_t)(frame[1] << 8 | frame[2]), width = (uint32_t)(frame[3] << 8 | frame[4]);
    bool progressive = marker == 0xC2 || marker == 0xCA;
    if (!progressive && marker != 0xC0 && marker != 0xC1 && marker != 0xC9)
        return abar__image_fail(fault, "is a JPEG of an unsupported kind (frame type %d)", marker - 0xC0);
    if (frame[0] != 8) return abar__image_fail(fault, "has %d bits a sample, only 8 are supported", frame[0]);
    if (frame[5] != 1 && frame[5] != 3 && frame[5] != 4)
        return abar__image_fail(fault, "has %d colour components, only 1, 3 and 4 are supported", frame[5]);
    *out = (abar__image_header){.format = ABAR_IMAGE_JPEG,
                                .width = (int32_t)width,
                                .height = (int32_t)height,
                                .components = frame[5],
                                .progressive = progressive};
    return abar__image_size_check(width, height, fault);
}

bool abar__jpeg_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault)
{
    size_t at = 2; /* after SOI */
    for (uint8_t marker; (marker = next_marker(bytes, n, &at));) {
        if (!has_segment(marker)) continue;
        if (marker == 0xD9 || marker == 0xDA || marker == 0xD8)
            return abar__image_fail(fault, "cannot be decoded: no frame header before the image's data");
        if (n - at < 2) break;
        size_t length = (size_t)(bytes[at] << 8 | bytes[at + 1]);
        if (length < 2) return abar__image_fail(fault, "cannot be decoded: a segment has an impossible length");
        if (length > n - at) break;
        if (is_frame(marker)) {
            if (length < 8) return abar__image_fail(fault, "cannot be decoded: its frame header is too short");
            return read_frame(bytes + at + 2, marker, out, fault);
        }
        at += length;
    }
    return abar__image_fail(fault, "is cut short: its %zu bytes end in the header", n);
}

/* --- decoding ------------------------------------------------------------------------------------------------------------ */
/* All state of one decoding. */
typedef struct job {
    abar__jpeg_errors errors;
    struct jpeg_decompress_struct info;
    struct jpeg_source_mgr input;
    struct jpeg_progress_mgr progress;
    const abar__image_source *source;
    const abar__image_sink *sink;
    uint8_t *rows[ABAR_RESIZE_ROWS];
    size_t skipped; /* bytes of the row before the box */
    size_t held;    /* by libjpeg: bytes of coefficients */
} job;

static void no_input_step(j_decompress_ptr info) { (void)info; }

/* All bytes were there from the start. */
static boolean on_end_of_input(j_decompress_ptr info)
{
    job *j = info->client_data;
    abar__image_fail(j->errors.fault, "is cut short: the image goes on after its %zu bytes", j->source->n);
    longjmp(j->errors.jump, 1);
}

static void skip_input(j_decompress_ptr info, long bytes)
{
    if (bytes <= 0) return;
    if ((size_t)bytes > info->src->bytes_in_buffer) on_end_of_input(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}

/* Each scan passes over all coefficients: a small file with many of them would take hours. */
static void on_progress(j_common_ptr common)
{
    job *j = common->client_data;
    if (j->info.input_scan_number <= SCANS_MAX) return;
    abar__image_fail(j->errors.fault, "has more than %d scans", SCANS_MAX);
    longjmp(j->errors.jump, 1);
}

/* Bytes of the coefficients, which libjpeg keeps where there are several scans. */
static size_t coefficient_bytes(j_decompress_ptr info)
{
    size_t blocks = 0;
    if (!jpeg_has_multiple_scans(info)) return 0;
    for (int i = 0; i < info->num_components; i++)
        blocks += (size_t)info->comp_info[i].width_in_blocks * info->comp_info[i].height_in_blocks;
    return blocks * sizeof(JBLOCK);
}

static void start(job *j)
{
    const abar__image_header *header = &j->source->header;
    j->info.client_data = j;
    j->input = (struct jpeg_source_mgr){.next_input_byte = j->source->bytes,
                                        .bytes_in_buffer = j->source->n,
                                        .init_source = no_input_step,
                                        .fill_input_buffer = on_end_of_input,
                                        .skip_input_data = skip_input,
                                        .resync_to_restart = jpeg_resync_to_restart,
                                        .term_source = no_input_step};
    j->info.src = &j->input;
    j->progress.progress_monitor = on_progress;
    j->info.progress = &j->progress;
    /* coefficients of four components in two bytes each; the constant is for sides that are no multiple of a block */
    j->info.mem->max_memory_to_use = 8 * (long)header->width * header->height + (64L << 20);
    jpeg_read_header(&j->info, TRUE);
    if (j->info.image_width != (JDIMENSION)header->width || j->info.image_height != (JDIMENSION)header->height ||
        j->info.num_components != header->components) {
        abar__image_fail(j->errors.fault, "cannot be decoded: it has two frame headers");
        longjmp(j->errors.jump, 1);
    }
    j->info.dct_method = JDCT_ISLOW;
    j->info.out_color_space = j->info.num_components == 4 ? JCS_CMYK : JCS_RGB;
    j->held = coefficient_bytes(&j->info);
    jpeg_start_decompress(&j->info);
}

/* Decodes columns from some iMCUs left of the box to as many right of it: upsampling uses the neighbouring samples of a
 * component, smoothing of an unfinished progressive image two neighbouring blocks. */
static void choose_columns(job *j)
{
    const abar__image_box *box = &j->source->box;
    JDIMENSION margin = (JDIMENSION)(j->info.max_h_samp_factor * DCTSIZE * (j->source->header.progressive ? 3 : 1));
    JDIMENSION left = (JDIMENSION)box->left, right = left + (JDIMENSION)box->width;
    left = left > margin ? left - margin : 0;
    right = right + margin < j->info.output_width ? right + margin : j->info.output_width;
    if (left > 0 || right < j->info.output_width) {
        JDIMENSION width = right - left;
        jpeg_crop_scanline(&j->info, &left, &width);
    }
    j->skipped = 3 * (size_t)((JDIMENSION)box->left - left);
}

/* CMYK, taken as inverted, to RGB in place. */
static void cmyk_to_rgb(uint8_t *row, JDIMENSION n)
{
    for (JDIMENSION x = 0; x < n; x++) {
        int k = row[4 * x + 3];
        for (JDIMENSION c = 0; c < 3; c++) {
            int u = (255 - row[4 * x + c]) * k + 128, value = k - (((u >> 8) + u) >> 8);
            row[3 * x + c] = (uint8_t)(value < 0 ? 0 : value);
        }
    }
}

static void read_rows(job *j)
{
    const abar__image_box *box = &j->source->box;
    choose_columns(j);
    if (box->top > 0) jpeg_skip_scanlines(&j->info, (JDIMENSION)box->top);
    for (int32_t done = 0; done < box->height;) {
        int32_t n = box->height - done < ABAR_RESIZE_ROWS ? box->height - done : ABAR_RESIZE_ROWS;
        const uint8_t *starts[ABAR_RESIZE_ROWS];
        for (int32_t i = 0; i < n;) i += (int32_t)jpeg_read_scanlines(&j->info, j->rows + i, (JDIMENSION)(n - i));
        for (int32_t i = 0; i < n; i++) {
            if (j->info.out_color_space == JCS_CMYK) cmyk_to_rgb(j->rows[i], j->info.output_width);
            starts[i] = j->rows[i] + j->skipped;
        }
        if (j->sink->take) j->sink->take(j->sink->user, starts, n);
        done += n;
    }
}

static bool run(job *j)
{
    if (setjmp(j->errors.jump)) return false;
    jpeg_create_decompress(&j->info);
    start(j);
    read_rows(j);
    if (j->source->end) jpeg_finish_decompress(&j->info);
    return true;
}

bool abar__jpeg_decode(abar__image_reader *reader, const abar__image_source *source, const abar__image_sink *sink,
                       int64_t *warnings, abar__image_fault *fault)
{
    size_t stride = abar__round_up(4 * (size_t)source->header.width + ABAR_RESIZE_PAD, ABAR_ALIGN);
    if (!abar__image_grow(reader, &reader->rows, stride * ABAR_RESIZE_ROWS, fault)) return false;
    job j = {.source = source, .sink = sink};
    for (size_t i = 0; i < ABAR_RESIZE_ROWS; i++) j.rows[i] = reader->rows.data + i * stride;
    abar__jpeg_errors_init(&j.errors, "decoded", fault);
    j.info.err = &j.errors.manager;
    bool ok = run(&j);
    *warnings = j.errors.manager.num_warnings;
    if (j.held > reader->decoder_bytes) reader->decoder_bytes = j.held;
    jpeg_destroy_decompress(&j.info);
    return ok;
}
