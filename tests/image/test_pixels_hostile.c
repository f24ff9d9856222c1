/* Files that are damaged, cut short or made to do harm: each yields a text, and no more memory than its pixels need. */
#include "image/pixels_testing.h"

/* Checks that neither look, read, check nor shrink accepts the bytes, and that the text contains `says`. */
static void refused(pixels_rig *rig, const image_file *file, const char *says)
{
    abar__image_header header;
    abar__image_fault fault = {.text = ""};
    int64_t warnings;
    size_t n;
    const uint8_t *out;
    if (abar__image_check(rig->reader, file->bytes, file->n, &header, &warnings, &fault))
        fail_msg("%s, %zu bytes: accepted", file->name, file->n);
    if (!strstr(fault.text, says)) fail_msg("%s, %zu bytes: \"%s\" lacks \"%s\"", file->name, file->n, fault.text, says);
    assert_false(fault.memory);
    assert_false(abar__image_shrink(rig->reader, file->bytes, file->n, 16, &out, &n, &fault));
}

static image_file file_of(const char *bytes, size_t n)
{
    image_file file = {.name = "bytes", .bytes = (uint8_t *)(uintptr_t)bytes, .n = n};
    return file_prefix(&file, n);
}

static void look_names_what_is_no_image(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {
        {"", 0, "is empty"},
        {"\xFF", 1, "is not an image"},
        {"\xFF\xD8", 2, "is not an image"},
        {"\xFF\xD8\xFF", 3, "cut short"},
        {"\xFF\xD8\xFF\xD9", 4, "no frame header"},
        {"\xFF\xD8\xFF\xE0\x00\x01", 6, "impossible length"},
        {"\x89PNG\r\n\x1A\n", 8, "cut short"},
        {"GIF89a..............", 20, "is a GIF"},
        {"RIFF\1\0\0\0WEBPVP8 ", 16, "is a WebP"},
        {"BM..................", 20, "is a BMP"},
        {"II*\0................", 20, "is a TIFF"},
        {"<!DOCTYPE html><html>", 21, "is not an image"},
    };
    pixels_rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image_file file = file_of(cases[i].bytes, cases[i].n);
        refused(&rig, &file, cases[i].says);
        file_free(&file);
    }
    rig_close(&rig);
}

/* Every prefix of one file of each kind. A PNG may lack what follows its last row: checksums and the end chunk. */
static void check_refuses_files_cut_short(void **state)
{
    (void)state;
    static const char *const names[] = {
        "jpeg_420_17x33", "jpeg_own_restart",  "jpeg_own_separate",     "jpeg_gray_31x18",
        "jpeg_cmyk",      "jpeg_own_gray_2x2", "jpeg_progressive_420",  "png_rgb8",
        "png_palette4",   "png_gray1",         "png_interlaced_rgba16", "png_palette_transparent",
    };
    pixels_rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        image_file file = golden_named(&rig, names[i]);
        size_t needed = file.header.format == ABAR_IMAGE_PNG ? file.n - 12 - 4 - 4 - 3 : file.n;
        for (size_t n = 0; n < needed; n++) {
            image_file part = file_prefix(&file, n);
            refused(&rig, &part, "");
            file_free(&part);
        }
        file_free(&file);
    }
    rig_close(&rig);
}

static void put_u16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* The frame header's precision, height, width, components. */
static uint8_t *frame_of(const image_file *file, uint8_t marker)
{
    for (size_t i = 2; i + 10 < file->n; i++)
        if (file->bytes[i] == 0xFF && file->bytes[i + 1] == marker) return file->bytes + i + 4;
    fail_msg("%s has no frame", file->name);
    return NULL;
}

static void check_refuses_impossible_frames(void **state)
{
    (void)state;
    const struct {
        uint8_t precision;
        unsigned height, width;
        uint8_t components;
        const char *says;
    } cases[] = {
        {8, 65535, 65535, 3, "at most 65500 a side"},
        {8, 65500, 65500, 3, "at most 178956970"},
        {8, 0, 10, 3, "no pixels"},
        {8, 10, 0, 3, "no pixels"},
        {12, 53, 70, 3, "12 bits"},
        {8, 53, 70, 2, "2 colour components"},
        {8, 13000, 13000, 3, "cut short"}, /* accepted, but its data ends */
    };
    pixels_rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image_file whole = golden_named(&rig, "jpeg_restart_444"), file = file_prefix(&whole, whole.n - 2);
        uint8_t *frame = frame_of(&file, 0xC0);
        frame[0] = cases[i].precision;
        put_u16(frame + 1, cases[i].height);
        put_u16(frame + 3, cases[i].width);
        frame[5] = cases[i].components;
        abar__image_header header;
        abar__image_fault fault;
        int64_t warnings;
        assert_false(abar__image_check(rig.reader, file.bytes, file.n, &header, &warnings, &fault));
        if (!strstr(fault.text, cases[i].says)) fail_msg("\"%s\" lacks \"%s\"", fault.text, cases[i].says);
        file_free(&file);
        file_free(&whole);
    }
    assert_true(abar__image_reader_bytes(rig.reader) < 1 << 20); /* rows alone */
    rig_close(&rig);
}

static void check_refuses_other_kinds_of_jpeg(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    for (uint8_t marker = 0xC3; marker <= 0xCF; marker++) { /* lossless, hierarchical, ... */
        if (marker == 0xC4 || (marker >= 0xC8 && marker <= 0xCA) || marker == 0xCC) continue;
        image_file file = golden_named(&rig, "jpeg_444_8x8");
        frame_of(&file, 0xC0)[-3] = marker;
        refused(&rig, &file, "unsupported kind");
        file_free(&file);
    }
    rig_close(&rig);
}

/* A file of two frames, whose sizes differ: look sees the first. */
static void check_refuses_a_second_frame(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_444_8x8"), twice = file_prefix(&file, file.n);
    size_t at = (size_t)(frame_of(&file, 0xC0) - 4 - file.bytes), length = 19;
    twice.bytes = realloc(twice.bytes, file.n + length);
    assert_non_null(twice.bytes);
    memcpy(twice.bytes + at + length, file.bytes + at, file.n - at);
    twice.n = file.n + length;
    put_u16(frame_of(&twice, 0xC0) + 1, 4);
    refused(&rig, &twice, "cannot be decoded");
    file_free(&twice);
    file_free(&file);
    rig_close(&rig);
}

/* Where the last scan's header begins. */
static size_t last_scan(const image_file *file)
{
    for (size_t i = file->n - 2; i > 0; i--)
        if (file->bytes[i] == 0xFF && file->bytes[i + 1] == 0xDA) return i;
    fail_msg("%s has no scan", file->name);
    return 0;
}

static void check_refuses_thousands_of_scans(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_gray_progressive");
    size_t at = last_scan(&file), scan = file.n - 2 - at;
    for (int copies = 400; copies <= 4000; copies += 3600) {
        image_file many = {.name = "many scans", .bytes = malloc(file.n + (size_t)copies * scan), .n = at};
        assert_non_null(many.bytes);
        memcpy(many.bytes, file.bytes, at);
        for (int i = 0; i < copies; i++, many.n += scan) memcpy(many.bytes + many.n, file.bytes + at, scan);
        memcpy(many.bytes + many.n, "\xFF\xD9", 2);
        many.n += 2;
        abar__image_fault fault;
        int64_t warnings;
        bool ok = abar__image_check(rig.reader, many.bytes, many.n, &many.header, &warnings, &fault);
        assert_int_equal(ok, copies == 400);
        if (!ok) assert_string_equal(fault.text, "has more than 500 scans");
        file_free(&many);
    }
    file_free(&file);
    rig_close(&rig);
}

static void check_refuses_png_bombs(void **state)
{
    (void)state;
    pixels_rig rig;
    uint8_t row[4] = {0};
    const struct {
        uint32_t width, height;
        int depth, colour;
        const char *says;
    } cases[] = {
        {65535, 65535, 8, 2, "at most 65500 a side"},
        {4294967295u, 1, 1, 0, "at most 65500 a side"},
        {13000, 13000, 16, 6, "cannot hold"},
        {0, 5, 8, 2, "no pixels"},
        {1, 5, 8, 2, "cut short"}, /* five rows, of which one is there */
        {1, 1, 3, 2, "cannot be decoded"},
        {1, 1, 8, 5, "cannot be decoded"},
        {1, 1, 8, 3, "cannot be decoded"}, /* no palette */
    };
    rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image_file file = png_make(cases[i].width, cases[i].height, cases[i].depth, cases[i].colour, row, sizeof row);
        if (strcmp(cases[i].says, "cut short") == 0) file.n -= 12; /* without the end, the data's end is the file's */
        refused(&rig, &file, cases[i].says);
        file_free(&file);
    }
    assert_true(abar__image_reader_bytes(rig.reader) < 1 << 20);
    rig_close(&rig);
}

/* 3 MB that become 134 million pixels: one crop needs its rows alone. */
static void read_of_a_huge_png_holds_the_rows_of_its_crop(void **state)
{
    (void)state;
    enum { WIDTH = 65500, HEIGHT = 2000 };
    pixels_rig rig;
    rig_open(&rig);
    size_t row = 1 + WIDTH / 8 + 1, n = row * HEIGHT;
    uint8_t *rows = calloc(n, 1);
    assert_non_null(rows);
    image_file file = png_make(WIDTH, HEIGHT, 1, 0, rows, n);
    abar__image_view view = view_of((abar__image_box){1000, 60000, 300, 300}, 64, 64, ABAR_IMAGE_BILINEAR);
    uint8_t *planes = read_view(&rig, &file, &view);
    assert_int_equal(planes[0], 0);
    assert_true(abar__image_reader_bytes(rig.reader) < 2 << 20);
    free(planes);
    free(rows);
    file_free(&file);
    rig_close(&rig);
}

/* A chunk of text that would unpack to gigabytes is not read. */
static void read_ignores_other_chunks(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file plain = golden_named(&rig, "png_gamma_text"), bare = golden_named(&rig, "png_rgb8");
    abar__image_view view = view_whole(&plain.header);
    uint8_t *with = read_view(&rig, &plain, &view), *without = read_view(&rig, &bare, &view);
    assert_memory_equal(with, without, view_bytes(&view));
    free(with);
    free(without);
    file_free(&plain);
    file_free(&bare);
    rig_close(&rig);
}

static void read_refuses_a_view_outside_the_image(void **state)
{
    (void)state;
    const abar__image_box boxes[] = {{0, 0, 62, 83}, {0, 1, 61, 83}, {-1, 0, 10, 10},
                                     {0, 0, 0, 5},   {61, 0, 1, 1},  {INT32_MAX, 0, 1, 1}};
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_420_83x61");
    uint8_t out[3 * 8 * 8];
    abar__image_fault fault;
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        abar__image_view view = view_of(boxes[i], 8, 8, ABAR_IMAGE_BILINEAR);
        assert_false(abar__image_read(rig.reader, file.bytes, file.n, &view, out, &fault));
        assert_non_null(strstr(fault.text, "has 83 x 61 pixels"));
    }
    file_free(&file);
    rig_close(&rig);
}

/* Removes the segments of Huffman tables. */
static void drop_tables(image_file *file)
{
    for (size_t at = 2; file->bytes[at + 1] != 0xDA;) {
        size_t length = 2 + (size_t)(file->bytes[at + 2] << 8 | file->bytes[at + 3]);
        if (file->bytes[at + 1] == 0xC4) {
            memmove(file->bytes + at, file->bytes + at + length, file->n - at - length);
            file->n -= length;
        } else {
            at += length;
        }
    }
}

/* A file without tables means the standard ones (as in Motion JPEG), not those of the file before. */
static void read_keeps_no_tables_of_the_previous_file(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_420_83x61"), other = golden_named(&rig, "jpeg_own_restart");
    abar__image_view view = view_whole(&file.header), other_view = view_whole(&other.header);
    uint8_t *expected = read_view(&rig, &file, &view);
    drop_tables(&file);
    free(read_view(&rig, &other, &other_view));
    uint8_t *found = read_view(&rig, &file, &view);
    assert_memory_equal(found, expected, view_bytes(&view));
    free(expected);
    free(found);
    file_free(&file);
    file_free(&other);
    rig_close(&rig);
}

/* An allocator of which call number `fails` finds no memory. */
typedef struct failing {
    int calls, fails;
} failing;

static void *failing_alloc(void *user, size_t bytes, size_t align)
{
    failing *f = user;
    return f->calls++ == f->fails ? NULL : aligned_alloc(align, abar__round_up(bytes, align));
}

static void failing_release(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static void shrink_without_memory_says_so(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_420_83x61");
    int failures = 0;
    for (int fails = 2;; fails++) { /* after the context and the reader */
        failing f = {.fails = fails};
        abar_context *ctx;
        abar__image_reader *reader;
        abar__image_fault fault;
        const uint8_t *out;
        size_t n;
        abar_allocator allocator = {failing_alloc, failing_release, &f};
        assert_int_equal(abar_context_create(&ABAR_CONFIG(abar_context_config, .allocator = allocator), &ctx), ABAR_OK);
        assert_int_equal(abar__image_reader_create(ctx, &reader), ABAR_OK);
        bool ok = abar__image_shrink(reader, file.bytes, file.n, 20, &out, &n, &fault);
        if (!ok) {
            assert_true(fault.memory && strstr(fault.text, "memory"));
            failures++;
            assert_true(
                abar__image_shrink(reader, file.bytes, file.n, 20, &out, &n, &fault)); /* the reader is as good as new */
        }
        abar__image_reader_destroy(reader);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        abar_context_destroy(ctx);
        if (ok) break;
    }
    assert_true(failures >= 5);
    file_free(&file);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(look_names_what_is_no_image),
        cmocka_unit_test(check_refuses_files_cut_short),
        cmocka_unit_test(check_refuses_impossible_frames),
        cmocka_unit_test(check_refuses_other_kinds_of_jpeg),
        cmocka_unit_test(check_refuses_a_second_frame),
        cmocka_unit_test(check_refuses_thousands_of_scans),
        cmocka_unit_test(check_refuses_png_bombs),
        cmocka_unit_test(read_of_a_huge_png_holds_the_rows_of_its_crop),
        cmocka_unit_test(read_ignores_other_chunks),
        cmocka_unit_test(read_refuses_a_view_outside_the_image),
        cmocka_unit_test(read_keeps_no_tables_of_the_previous_file),
        cmocka_unit_test(shrink_without_memory_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
