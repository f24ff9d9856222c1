#include "image/pixels_testing.h"

void rig_open(pixels_rig *rig)
{
    assert_int_equal(abar_context_create(NULL, &rig->ctx), ABAR_OK);
    assert_int_equal(abar__image_reader_create(rig->ctx, &rig->reader), ABAR_OK);
    const char *path = ABAR_TEST_DATA "/golden/images_pixels.safetensors";
    assert_int_equal(abar__safetensors_open(rig->ctx, path, &rig->golden), ABAR_OK);
}

void rig_close(pixels_rig *rig)
{
    abar__safetensors_close(rig->golden);
    abar__image_reader_destroy(rig->reader);
    assert_int_equal(abar_context_memory(rig->ctx).now, 0);
    abar_context_destroy(rig->ctx);
}

static image_file file_copy(const char *name, const uint8_t *bytes, size_t n)
{
    image_file file = {.n = n, .bytes = malloc(n ? n : 1)};
    assert_non_null(file.bytes);
    if (n) memcpy(file.bytes, bytes, n);
    snprintf(file.name, sizeof file.name, "%s", name);
    return file;
}

static image_file file_look(const char *name, const abar_tensor *tensor)
{
    abar__image_fault fault;
    image_file file = file_copy(name, tensor->data, (size_t)tensor->dim[0]);
    if (!abar__image_look(file.bytes, file.n, &file.header, &fault)) fail_msg("%s %s", file.name, fault.text);
    return file;
}

bool golden_file(const pixels_rig *rig, int i, image_file *out)
{
    for (int at = 0; at < abar__safetensors_count(rig->golden); at++) {
        abar_tensor tensor;
        const char *name = abar__safetensors_get(rig->golden, at, &tensor), *dot = strrchr(name, '.');
        if (strcmp(dot, ".file") != 0 || i-- > 0) continue;
        char stem[64];
        snprintf(stem, sizeof stem, "%.*s", (int)(dot - name), name);
        *out = file_look(stem, &tensor);
        return true;
    }
    return false;
}

image_file golden_named(const pixels_rig *rig, const char *name)
{
    char full[80];
    abar_tensor tensor;
    snprintf(full, sizeof full, "%s.file", name);
    assert_true(abar__safetensors_find(rig->golden, full, &tensor));
    return file_look(name, &tensor);
}

void file_free(image_file *file)
{
    free(file->bytes);
    file->bytes = NULL;
}

image_file file_prefix(const image_file *file, size_t n)
{
    image_file prefix = file_copy(file->name, file->bytes, n);
    prefix.header = file->header;
    return prefix;
}

abar__image_view view_of(abar__image_box crop, int32_t height, int32_t width, abar__image_filter filter)
{
    return (abar__image_view){
        .crop = crop, .height = height, .width = width, .window = {0, 0, height, width}, .filter = filter};
}

abar__image_view view_whole(const abar__image_header *header)
{
    abar__image_box all = {0, 0, header->height, header->width};
    return view_of(all, header->height, header->width, ABAR_IMAGE_BILINEAR);
}

size_t view_bytes(const abar__image_view *view) { return 3 * (size_t)view->window.height * (size_t)view->window.width; }

uint8_t *read_view(pixels_rig *rig, const image_file *file, const abar__image_view *view)
{
    abar__image_fault fault;
    uint8_t *out = malloc(view_bytes(view));
    assert_non_null(out);
    if (!abar__image_read(rig->reader, file->bytes, file->n, view, out, &fault)) fail_msg("%s %s", file->name, fault.text);
    return out;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Appends a chunk whose n bytes of body are in place already. */
static void end_chunk(image_file *file, const char *name, size_t n)
{
    uint8_t *chunk = file->bytes + file->n;
    put_u32(chunk, (uint32_t)n);
    memcpy(chunk + 4, name, 4);
    put_u32(chunk + 8 + n, (uint32_t)crc32(0, chunk + 4, (unsigned)n + 4));
    file->n += n + 12;
}

image_file png_make(uint32_t width, uint32_t height, int depth, int colour, const uint8_t *rows, size_t n)
{
    uLongf packed = compressBound(n);
    image_file file = {.name = "made.png", .bytes = malloc(packed + 100), .n = 8};
    assert_non_null(file.bytes);
    memcpy(file.bytes, "\x89PNG\r\n\x1A\n", 8);
    put_u32(file.bytes + 16, width);
    put_u32(file.bytes + 20, height);
    memcpy(file.bytes + 24, (uint8_t[]){(uint8_t)depth, (uint8_t)colour, 0, 0, 0}, 5);
    end_chunk(&file, "IHDR", 13);
    assert_int_equal(compress2(file.bytes + file.n + 8, &packed, rows, n, 9), Z_OK);
    end_chunk(&file, "IDAT", packed);
    end_chunk(&file, "IEND", 0);
    return file;
}
