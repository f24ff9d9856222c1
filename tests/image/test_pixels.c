/* The image reader's bytes: Pillow's, for whole images, crops, resizes and test views (golden file images_pixels). */
#include "image/pixels_testing.h"

static abar__image_view golden_view(const int32_t *row)
{
    return (abar__image_view){.crop = {row[0], row[1], row[2], row[3]},
                              .height = row[4],
                              .width = row[5],
                              .window = {row[6], row[7], row[8], row[9]},
                              .filter = (abar__image_filter)row[10],
                              .mirror = row[11] != 0};
}

static const int32_t *golden_numbers(const pixels_rig *rig, const image_file *file, const char *what, int64_t *n)
{
    char name[80];
    abar_tensor tensor;
    snprintf(name, sizeof name, "%s.%s", file->name, what);
    assert_true(abar__safetensors_find(rig->golden, name, &tensor));
    *n = tensor.dim[0];
    return tensor.data;
}

static void check_golden(const abar__resize_kernels *kernels)
{
    pixels_rig rig;
    image_file file;
    int files = 0;
    rig_open(&rig);
    rig.reader->kernels = kernels;
    for (; golden_file(&rig, files, &file); files++, file_free(&file)) {
        int64_t n;
        const int32_t *rows = golden_numbers(&rig, &file, "views", &n);
        for (int64_t i = 0; i < n; i++) {
            abar__image_view view = golden_view(rows + 13 * i);
            uint8_t *planes = read_view(&rig, &file, &view);
            uint32_t crc = (uint32_t)crc32(0, planes, (unsigned)view_bytes(&view));
            if (crc != (uint32_t)rows[13 * i + 12]) fail_msg("%s, view %d: other bytes than Pillow's", file.name, (int)i);
            free(planes);
        }
    }
    assert_true(files > 90);
    rig_close(&rig);
}

static void pixels_of_golden_files_are_pillows(void **state)
{
    (void)state;
    check_golden(&abar__resize_plain);
    check_golden(abar__resize_best());
}

static uint32_t next(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*seed * below) >> 32);
}

static void check_crop(pixels_rig *rig, const image_file *file, const uint8_t *whole, abar__image_box box)
{
    size_t width = (size_t)file->header.width, plane = width * (size_t)file->header.height;
    abar__image_view view = view_of(box, box.height, box.width, ABAR_IMAGE_BILINEAR);
    uint8_t *crop = read_view(rig, file, &view), *row = crop;
    for (size_t c = 0; c < 3; c++)
        for (int32_t y = 0; y < box.height; y++, row += box.width) {
            const uint8_t *expected = whole + c * plane + (size_t)(box.top + y) * width + (size_t)box.left;
            if (memcmp(row, expected, (size_t)box.width) != 0)
                fail_msg("%s: rows %d + %d, columns %d + %d: row %d differs from the whole image's", file->name, box.top,
                         box.height, box.left, box.width, y);
        }
    free(crop);
}

static void check_crops(pixels_rig *rig, const image_file *file)
{
    uint32_t seed = 1, w = (uint32_t)file->header.width, h = (uint32_t)file->header.height;
    abar__image_view all = view_whole(&file->header);
    uint8_t *whole = read_view(rig, file, &all);
    for (int k = 0; k < 60; k++) {
        abar__image_box box = {.height = 1 + (int32_t)next(&seed, k % 3 ? h : (h + 3) / 4),
                               .width = 1 + (int32_t)next(&seed, k % 3 ? w : (w + 3) / 4)};
        box.top = (int32_t)next(&seed, h - (uint32_t)box.height + 1);
        box.left = (int32_t)next(&seed, w - (uint32_t)box.width + 1);
        check_crop(rig, file, whole, box);
    }
    free(whole);
}

static void pixels_of_a_crop_are_those_of_the_whole(void **state)
{
    (void)state;
    pixels_rig rig;
    image_file file;
    rig_open(&rig);
    for (int i = 0; golden_file(&rig, i, &file); i++, file_free(&file)) check_crops(&rig, &file);
    rig_close(&rig);
}

/* Without its last scans a progressive image is smoothed over the borders of blocks. */
static void pixels_of_a_crop_of_an_unfinished_image_are_those_of_the_whole(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_progressive_420");
    int parts = 0;
    for (size_t n = file.n / 4; n < file.n; n += file.n / 16) {
        abar__image_header header;
        abar__image_fault fault;
        int64_t warnings;
        image_file part = file_prefix(&file, n);
        memcpy(part.bytes + n - 2, "\xFF\xD9", 2);
        bool readable =
            abar__image_check(rig.reader, part.bytes, n, &header, &warnings, &fault); /* not cut in a scan's header */
        if (readable) check_crops(&rig, &part);
        parts += readable;
        file_free(&part);
    }
    assert_true(parts >= 8);
    file_free(&file);
    rig_close(&rig);
}

/* An image of 83 x 61 whose checksums Pillow gave: R = 7x + 3y, G = x^2/5 + 11y, B = xy/3 + 40((x/9 + y/7) & 3). */
static image_file known_image(void)
{
    enum { WIDTH = 83, HEIGHT = 61, ROW = 1 + 3 * WIDTH };
    uint8_t *rows = calloc(HEIGHT, ROW);
    assert_non_null(rows);
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            uint8_t *pixel = rows + y * ROW + 1 + 3 * x;
            pixel[0] = (uint8_t)(7 * x + 3 * y);
            pixel[1] = (uint8_t)(x * x / 5 + 11 * y);
            pixel[2] = (uint8_t)(x * y / 3 + 40 * ((x / 9 + y / 7) & 3));
        }
    image_file file = png_make(WIDTH, HEIGHT, 8, 2, rows, (size_t)HEIGHT * ROW);
    file.header = (abar__image_header){.format = ABAR_IMAGE_PNG, .width = WIDTH, .height = HEIGHT, .components = 3};
    free(rows);
    return file;
}

/* Of the bytes in the order R G B R G B. */
static uint32_t interleaved_crc(const uint8_t *planes, size_t plane)
{
    uLong crc = 0;
    for (size_t i = 0; i < plane; i++)
        for (size_t c = 0; c < 3; c++) crc = crc32(crc, planes + c * plane + i, 1);
    return (uint32_t)crc;
}

static void pixels_of_the_known_image_have_their_checksums(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = known_image();
    abar__image_box all = {0, 0, 61, 83};
    const struct {
        abar__image_view view;
        uint32_t crc;
    } cases[] = {
        {view_of(all, 61, 83, ABAR_IMAGE_BILINEAR), 0x741a6216},
        {view_of(all, 32, 32, ABAR_IMAGE_BILINEAR), 0x767b1738},
        {view_of(all, 32, 32, ABAR_IMAGE_BICUBIC), 0x943cbd44},
        {view_of(all, 176, 176, ABAR_IMAGE_BILINEAR), 0x8d0cda9f},
        {view_of(all, 176, 176, ABAR_IMAGE_BICUBIC), 0xf0e9f97b},
        {abar__image_centre(83, 61, 40, 32, ABAR_IMAGE_BILINEAR), 0xeeed84ea},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *planes = read_view(&rig, &file, &cases[i].view);
        assert_int_equal(interleaved_crc(planes, view_bytes(&cases[i].view) / 3), cases[i].crc);
        free(planes);
    }
    file_free(&file);
    rig_close(&rig);
}

static void pixels_of_the_mirror_are_reversed(void **state)
{
    (void)state;
    pixels_rig rig;
    rig_open(&rig);
    image_file file = golden_named(&rig, "jpeg_420_83x61");
    for (int32_t width = 61; width <= 62; width++) { /* with a pass over columns, and without */
        abar__image_view view = view_of((abar__image_box){5, 7, 40, 61}, 33, width, ABAR_IMAGE_BICUBIC);
        view.window = (abar__image_box){3, 9, 20, 31};
        uint8_t *plain = read_view(&rig, &file, &view);
        view.mirror = true;
        uint8_t *mirror = read_view(&rig, &file, &view);
        for (int row = 0; row < 3 * 20; row++)
            for (int x = 0; x < 31; x++) assert_int_equal(plain[row * 31 + x], mirror[row * 31 + 30 - x]);
        free(plain);
        free(mirror);
    }
    file_free(&file);
    rig_close(&rig);
}

static void centre_keeps_the_shape_and_rounds_to_even(void **state)
{
    (void)state;
    const struct {
        int32_t width, height, resize, size;
        int32_t to_height, to_width, top, left;
    } cases[] = {
        {500, 375, 232, 224, 232, 309, 4, 42}, /* 309.33, and 42.5 to even */
        {375, 500, 232, 224, 309, 232, 42, 4},  {64, 64, 64, 64, 64, 64, 0, 0},
        {333, 500, 248, 224, 372, 248, 74, 12}, {1, 65500, 32, 32, 2096000, 32, 1047984, 0},
        {101, 100, 100, 97, 100, 101, 2, 2}, /* 1.5 to even */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__image_view view =
            abar__image_centre(cases[i].width, cases[i].height, cases[i].resize, cases[i].size, ABAR_IMAGE_BICUBIC);
        assert_int_equal(view.height, cases[i].to_height);
        assert_int_equal(view.width, cases[i].to_width);
        assert_int_equal(view.window.top, cases[i].top);
        assert_int_equal(view.window.left, cases[i].left);
        assert_int_equal(view.window.height, cases[i].size);
        assert_int_equal(view.window.width, cases[i].size);
        assert_int_equal(view.crop.width, cases[i].width);
        assert_int_equal(view.crop.height, cases[i].height);
    }
}

static void shrink_gives_the_pixels_of_pillows_copy(void **state)
{
    (void)state;
    pixels_rig rig;
    image_file file;
    rig_open(&rig);
    for (int i = 0; golden_file(&rig, i, &file); i++, file_free(&file)) {
        int64_t n;
        abar__image_fault fault;
        const int32_t *expected = golden_numbers(&rig, &file, "shrunk", &n);
        const uint8_t *bytes;
        size_t bytes_n;
        if (!abar__image_shrink(rig.reader, file.bytes, file.n, expected[0], &bytes, &bytes_n, &fault))
            fail_msg("%s %s", file.name, fault.text);
        image_file copy = {.name = "copy", .bytes = malloc(bytes_n), .n = bytes_n};
        assert_non_null(copy.bytes);
        memcpy(copy.bytes, bytes, bytes_n);
        assert_true(abar__image_look(copy.bytes, copy.n, &copy.header, &fault));
        bool gray = strstr(file.name, "gray") != NULL;
        assert_int_equal(copy.header.components, gray ? 1 : 3);
        abar__image_view view = view_whole(&copy.header);
        uint8_t *planes = read_view(&rig, &copy, &view);
        if ((uint32_t)crc32(0, planes, (unsigned)view_bytes(&view)) != (uint32_t)expected[1])
            fail_msg("%s: other pixels than Pillow's copy", file.name);
        free(planes);
        file_free(&copy);
    }
    rig_close(&rig);
}

static void check_accepts_every_golden_file(void **state)
{
    (void)state;
    pixels_rig rig;
    image_file file;
    rig_open(&rig);
    for (int i = 0; golden_file(&rig, i, &file); i++, file_free(&file)) {
        abar__image_header header;
        abar__image_fault fault;
        int64_t warnings;
        if (!abar__image_check(rig.reader, file.bytes, file.n, &header, &warnings, &fault))
            fail_msg("%s %s", file.name, fault.text);
        assert_int_equal(header.width, file.header.width);
        assert_int_equal(header.height, file.header.height);
        assert_int_equal(header.progressive, strstr(file.name, "progressive") || strstr(file.name, "unfinished"));
        assert_int_equal(warnings > 0, strstr(file.name, "early_end") || strstr(file.name, "unfinished"));
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_of_golden_files_are_pillows),
        cmocka_unit_test(pixels_of_a_crop_are_those_of_the_whole),
        cmocka_unit_test(pixels_of_a_crop_of_an_unfinished_image_are_those_of_the_whole),
        cmocka_unit_test(pixels_of_the_known_image_have_their_checksums),
        cmocka_unit_test(pixels_of_the_mirror_are_reversed),
        cmocka_unit_test(centre_keeps_the_shape_and_rounds_to_even),
        cmocka_unit_test(shrink_gives_the_pixels_of_pillows_copy),
        cmocka_unit_test(check_accepts_every_golden_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
