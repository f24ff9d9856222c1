/* A sample from its file to the bytes of a row. Runs in the loader's threads: no text goes to the context. */
#include "data/images/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_MIN ((size_t)1 << 16)

struct abar__stream {
    abar_context *ctx;
    abar__image_reader *reader;
    uint8_t *scratch; /* (3, side, side): operations are not done in place */
    size_t scratch_bytes;
    uint8_t *file;
    size_t file_bytes;
    size_t block_bytes; /* by which blocks of encoded rows have grown here */
};

/* A buffer for n bytes of a file. Doubling keeps the number of allocations small. */
static bool grow_file(abar__stream *s, size_t n)
{
    if (n <= s->file_bytes) return true;
    size_t wanted = s->file_bytes > FILE_MIN ? s->file_bytes : FILE_MIN;
    while (wanted < n) wanted *= 2;
    abar__free(s->ctx, s->file, s->file_bytes);
    s->file = abar__alloc_in_thread(s->ctx, wanted);
    s->file_bytes = s->file ? wanted : 0;
    return s->file != NULL;
}

static abar_status make(abar__stream *s, int32_t side, int64_t file_bytes)
{
    void *memory;
    s->scratch_bytes = 3 * (size_t)side * (size_t)side;
    abar_status status = abar__alloc(s->ctx, s->scratch_bytes, &memory);
    if (status != ABAR_OK) {
        s->scratch_bytes = 0;
        return status;
    }
    s->scratch = memory;
    const size_t known = file_bytes > 0 && (uint64_t)file_bytes <= ABAR_IMAGE_BYTES_MAX ? (size_t)file_bytes : 0;
    if (!grow_file(s, known > 0 ? known : 1))
        return abar__fail(s->ctx, ABAR_E_MEMORY, "memory: too little to read the image files, use fewer --workers");
    return abar__image_reader_create(s->ctx, &s->reader);
}

abar_status abar__stream_create(abar_context *ctx, int32_t side, int64_t file_bytes, abar__stream **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar__stream), &memory));
    abar__stream *s = memory;
    s->ctx = ctx;
    abar_status status = make(s, side, file_bytes);
    if (status != ABAR_OK) {
        abar__stream_destroy(s);
        return status;
    }
    *out = s;
    return ABAR_OK;
}

void abar__stream_destroy(abar__stream *s)
{
    if (!s) return;
    abar__image_reader_destroy(s->reader);
    abar__free(s->ctx, s->file, s->file_bytes);
    abar__free(s->ctx, s->scratch, s->scratch_bytes);
    abar__free(s->ctx, s, sizeof *s);
}

size_t abar__stream_bytes(const abar__stream *s)
{
    return sizeof *s + s->scratch_bytes + s->file_bytes + s->block_bytes + abar__image_reader_bytes(s->reader);
}

static abar__stream_result load(abar__stream *s, const abar__images_index *index, int part, int64_t i,
                                abar__stream_fault *fault)
{
    const int64_t n = abar__images_size(index, part, i);
    if ((uint64_t)n > ABAR_IMAGE_BYTES_MAX) {
        snprintf(fault->image.text, sizeof fault->image.text, "has %lld bytes, more than the %zu that an image may have",
                 (long long)n, ABAR_IMAGE_BYTES_MAX);
        return ABAR_STREAM_DAMAGED;
    }
    if (!grow_file(s, (size_t)n)) return ABAR_STREAM_MEMORY;
    switch (abar__images_read(index, part, i, s->file)) {
    case ABAR_IMAGES_READ: return ABAR_STREAM_READ;
    case ABAR_IMAGES_CHANGED: return ABAR_STREAM_CHANGED;
    default: fault->error = errno; return ABAR_STREAM_FAILED;
    }
}

static abar__stream_result blame(const abar__stream_fault *fault)
{
    return fault->image.memory ? ABAR_STREAM_MEMORY : ABAR_STREAM_DAMAGED;
}

/* A file that was loaded: its header, and the pixels and operations that make the row. */
typedef struct row_request {
    abar__image_header header;
    abar__image_view pixels;
    abar__image_change changes[ABAR_CHANGES_MAX];
    int count;
} row_request;

static abar__stream_result look(abar__stream *s, const abar__images_index *index, int part, int64_t i,
                                const abar__stream_view *view, const abar__draw_key *key, row_request *out,
                                abar__stream_fault *fault)
{
    *fault = (abar__stream_fault){0};
    const abar__stream_result loaded = load(s, index, part, i, fault);
    if (loaded != ABAR_STREAM_READ) return loaded;
    if (!abar__image_look(s->file, (size_t)abar__images_size(index, part, i), &out->header, &fault->image)) return blame(fault);
    const int32_t width = out->header.width, height = out->header.height;
    out->count = view->augment.on ? abar__draw_changes(key, &view->augment, view->side, out->changes) : 0;
    out->pixels = view->augment.on ? abar__draw_view(key, &view->augment, width, height, view->side)
                                   : abar__image_centre(width, height, view->resize, view->side, view->filter);
    return ABAR_STREAM_READ;
}

static abar__stream_result decode(abar__stream *s, size_t n, const row_request *row, const abar__stream_view *view,
                                  uint8_t *out, abar__stream_fault *fault)
{
    const int count = row->count;
    uint8_t *now = count % 2 ? s->scratch : out, *next = count % 2 ? out : s->scratch; /* the last one writes out */
    if (!abar__image_read(s->reader, s->file, n, &row->pixels, now, &fault->image)) return blame(fault);
    for (int k = 0; k < count; k++) {
        abar__image_apply(&row->changes[k], view->side, view->side, now, next);
        uint8_t *made = next;
        next = now;
        now = made;
    }
    return ABAR_STREAM_READ;
}

abar__stream_result abar__stream_read(abar__stream *s, const abar__images_index *index, int part, int64_t i,
                                      const abar__stream_view *view, const abar__draw_key *key, uint8_t *out,
                                      abar__stream_fault *fault)
{
    row_request row;
    const abar__stream_result found = look(s, index, part, i, view, key, &row, fault);
    return found == ABAR_STREAM_READ ? decode(s, (size_t)abar__images_size(index, part, i), &row, view, out, fault) : found;
}

abar__stream_result abar__stream_read_encoded(abar__stream *s, const abar__images_index *index, int part, int64_t i,
                                              const abar__stream_view *view, const abar__draw_key *key, uint8_t *out,
                                              abar__encoded_block *block, abar_encoded *encoded, abar__stream_fault *fault)
{
    row_request row;
    *encoded = (abar_encoded){0};
    const abar__stream_result found = look(s, index, part, i, view, key, &row, fault);
    const size_t n = (size_t)abar__images_size(index, part, i), had = block->bytes;
    if (found != ABAR_STREAM_READ) return found;
    if (!abar__encoded_fits(&row.header, s->file, n)) return decode(s, n, &row, view, out, fault);
    if (!abar__encoded_make(s->ctx, s->file, n, &row.header, &row.pixels, block, encoded)) return ABAR_STREAM_MEMORY;
    s->block_bytes += block->bytes - had;
    return ABAR_STREAM_READ;
}
