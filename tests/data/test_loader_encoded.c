/* Batches whose files are left to a device that decodes: what the loader hands over, resampled here in plain C, gives the bytes
 * of a loader that decodes. */
#include "data/loader_testing.h"

#include "data/data_impl.h"
#include "data/images/encoded.h"

enum { TRAIN = 23, SIDE = 24, BATCH = 8, PRECISION = 22 };

static fixture begin(void) { return fixture_open(make_images(TRAIN, 5, 30), SIDE); }

static abar_loader_config request(bool encoded, bool on, abar_style style, int threads)
{
    return (abar_loader_config){.size = sizeof(abar_loader_config),
                                .batch = BATCH,
                                .seed = 3,
                                .threads = threads,
                                .encoded = encoded,
                                .test_resize = 28,
                                .test_size = SIDE,
                                .augment = {.on = on, .style = style, .flip = true, .erase = 0.5}};
}

/* All pixels of a file, as (3, height, width). */
static uint8_t *decode(const fixture *f, const abar_encoded *e)
{
    abar__image_reader *reader;
    abar__image_fault fault;
    const abar__image_box all = {0, 0, e->height, e->width};
    const abar__image_view view = {
        .crop = all, .height = e->height, .width = e->width, .window = all, .filter = ABAR_IMAGE_BILINEAR};
    uint8_t *out = malloc(3 * (size_t)e->width * (size_t)e->height);
    assert_non_null(out);
    assert_int_equal(abar__image_reader_create(f->ctx, &reader), ABAR_OK);
    assert_true(abar__image_read(reader, e->file, e->bytes, &view, out, &fault));
    abar__image_reader_destroy(reader);
    return out;
}

static uint8_t clip(int64_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static uint8_t weigh(const abar_resampling *axis, int i, const uint8_t *from, int64_t stride)
{
    int64_t sum = 1 << (PRECISION - 1);
    for (int k = 0; k < axis->count[i]; k++)
        sum += from[(axis->begin[i] + k) * stride] * (int64_t)axis->weights[i * axis->taps + k];
    return clip(sum);
}

/* First along rows, then along columns, each time rounded to a byte. */
static void resample(const fixture *f, const abar_encoded *e, uint8_t *out)
{
    uint8_t *pixels = decode(f, e), *rows = malloc((size_t)e->height * SIDE);
    assert_non_null(rows);
    for (int c = 0; c < 3; c++) {
        const uint8_t *plane = pixels + (size_t)c * (size_t)e->width * (size_t)e->height;
        for (int y = 0; y < e->height; y++)
            for (int x = 0; x < SIDE; x++) rows[y * SIDE + x] = weigh(&e->x, x, plane + (size_t)y * (size_t)e->width, 1);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) out[(c * SIDE + y) * SIDE + x] = weigh(&e->y, y, rows + x, SIDE);
    }
    free(rows);
    free(pixels);
}

static void check_batch(const fixture *f, const abar_batch *files, const abar_batch *images, int *decoded)
{
    enum { IMAGE = 3 * SIDE * SIDE };
    uint8_t row[IMAGE];
    assert_non_null(files->files);
    assert_null(images->files);
    assert_memory_equal(files->labels, images->labels, BATCH * sizeof(int32_t));
    assert_int_equal(files->rows != NULL, images->rows != NULL);
    if (files->rows) assert_memory_equal(files->rows, images->rows, BATCH * sizeof(abar_row));
    for (int i = 0; i < BATCH; i++) {
        const abar_encoded *e = &files->files[i];
        if (e->file)
            resample(f, e, row);
        else
            memcpy(row, files->images + i * IMAGE, IMAGE);
        assert_memory_equal(row, images->images + i * IMAGE, IMAGE);
        *decoded += e->file == NULL;
    }
}

/* Every fifth file is a PNG, which is decoded here. */
static void files_resampled_are_the_images(void **state)
{
    (void)state;
    fixture f = begin();
    for (int way = 0; way < 6; way++) {
        const bool on = way < 4;
        const abar_style style = way % 2 ? ABAR_STYLE_TIMM : ABAR_STYLE_TORCHVISION;
        const abar_loader_config encoded = request(true, on, style, way / 2), plain = request(false, on, style, 0);
        abar_loader *a = make_loader(&f, encoded), *b = make_loader(&f, plain);
        int decoded = 0;
        for (int i = 0; i < 3 * (TRAIN / BATCH); i++) {
            const abar_batch files = next(a), images = next(b);
            check_batch(&f, &files, &images, &decoded);
        }
        assert_in_range(decoded, 1, 3 * (TRAIN / BATCH) * BATCH / 2);
        size_t planned;
        assert_int_equal(abar_loader_plan_bytes(f.ctx, abar_dataset_info_of(f.data), &encoded, &planned), ABAR_OK);
        assert_true(abar_loader_bytes(a) > planned); /* with the files */
        abar_loader_destroy(a);
        abar_loader_destroy(b);
    }
    fixture_end(&f);
}

/* ---- which files a device decodes ---------------------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    J_COLOR_SPACE colours; /* in the file */
    int across, down;      /* sampling of the first component */
    bool progressive, optimised, restarts, jfif, fits;
} kind;

static bytes encode(const kind *k)
{
    enum { WIDTH = 37, HEIGHT = 29 };
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long n = 0;
    uint8_t rgb[3 * WIDTH * HEIGHT];
    paint(rgb, WIDTH, HEIGHT, 1);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width = WIDTH;
    c.image_height = HEIGHT;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_colorspace(&c, k->colours);
    c.comp_info[0].h_samp_factor = k->across;
    c.comp_info[0].v_samp_factor = k->down;
    c.optimize_coding = k->optimised;
    c.restart_interval = k->restarts;
    if (k->colours == JCS_YCbCr) c.write_JFIF_header = k->jfif;
    if (k->progressive) jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < HEIGHT; y++) {
        JSAMPROW row = rgb + 3 * WIDTH * y;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    bytes b = bytes_make(n);
    memcpy(b.data, out, n);
    free(out);
    return b;
}

static void baseline_colour_files_fit(void **state)
{
    (void)state;
    static const kind kinds[] = {{"4:2:0", JCS_YCbCr, 2, 2, .jfif = true, .fits = true},
                                 {"4:2:2", JCS_YCbCr, 2, 1, .jfif = true, .fits = true},
                                 {"4:4:0", JCS_YCbCr, 1, 2, .jfif = true, .fits = true},
                                 {"4:4:4", JCS_YCbCr, 1, 1, .jfif = true, .optimised = true, .fits = true},
                                 {"restarts, without JFIF", JCS_YCbCr, 2, 2, .restarts = true, .fits = true},
                                 {"4:1:1", JCS_YCbCr, 4, 1, .jfif = true},
                                 {"RGB", JCS_RGB, 1, 1, .fits = false},
                                 {"gray", JCS_GRAYSCALE, 1, 1, .jfif = true},
                                 {"progressive", JCS_YCbCr, 2, 2, .jfif = true, .progressive = true}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        abar__image_header header;
        abar__image_fault fault;
        bytes b = encode(&kinds[i]);
        assert_true(abar__image_look(b.data, b.n, &header, &fault));
        if (abar__encoded_fits(&header, b.data, b.n) != kinds[i].fits) fail_msg("%s", kinds[i].name);
        for (size_t n = 0; n < b.n && n < 700; n++) { /* cut short: nothing is read beyond the end */
            bytes part = bytes_make(n);
            memcpy(part.data, b.data, n);
            if (abar__encoded_fits(&header, part.data, n)) assert_true(kinds[i].fits);
            free(part.data);
        }
        free(b.data);
    }
}

/* The file with n bytes before its first scan. */
static bytes insert_before_scan(const bytes *b, const uint8_t *more, size_t n)
{
    size_t at = 2;
    while (b->data[at + 1] != 0xda) at += 2 + ((size_t)b->data[at + 2] << 8 | b->data[at + 3]);
    bytes out = bytes_make(b->n + n);
    memcpy(out.data, b->data, at);
    memcpy(out.data + at, more, n);
    memcpy(out.data + at + n, b->data + at, b->n - at);
    return out;
}

static void files_that_change_before_the_scan_do_not_fit(void **state)
{
    (void)state;
    static const uint8_t second[] = {0xff, 0xc0, 0, 17, 8, 4, 0, 4, 0, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1}; /* 1024 x 1024 */
    static const uint8_t rgb[] = {0xff, 0xee, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 0};
    static const uint8_t comment[] = {0xff, 0xfe, 0, 4, 'h', 'i'};
    const struct {
        const uint8_t *more;
        size_t n;
        bool fits;
    } cases[] = {{second, sizeof second, false}, {rgb, sizeof rgb, false}, {comment, sizeof comment, true}};
    bytes b = encode(&(kind){"4:2:0 without JFIF", JCS_YCbCr, 2, 2, .fits = true});
    abar__image_header header;
    abar__image_fault fault;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes file = insert_before_scan(&b, cases[i].more, cases[i].n);
        assert_true(abar__image_look(file.data, file.n, &header, &fault));
        assert_int_equal(abar__encoded_fits(&header, file.data, file.n), cases[i].fits);
        free(file.data);
    }
    assert_true(abar__image_look(b.data, b.n, &header, &fault));
    header.width--;
    assert_false(abar__encoded_fits(&header, b.data, b.n));
    free(b.data);
}

static void test_images_are_always_decoded(void **state)
{
    (void)state;
    fixture f = begin();
    abar_loader_config config = request(true, true, ABAR_STYLE_TORCHVISION, 0);
    abar_batch batch = {.size = sizeof batch};
    config.test = true;
    config.batch = 5;
    abar_loader *loader = make_loader(&f, config);
    assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
    assert_null(batch.files);
    abar_loader_destroy(loader);
    fixture_end(&f);
}

static void refuse(const fixture *f, const abar_loader_config *config, const char *part)
{
    abar_loader *loader = NULL;
    assert_int_equal(abar_loader_create(f->ctx, f->data, config, &loader), ABAR_E_ARGUMENT);
    assert_null(loader);
    if (!strstr(abar_context_error(f->ctx), part)) fail_msg("%s", abar_context_error(f->ctx));
}

static void what_needs_pixels_is_refused(void **state)
{
    (void)state;
    fixture f = begin();
    abar_loader_config config = request(true, true, ABAR_STYLE_TORCHVISION, 0);
    config.augment.policy = ABAR_POLICY_TRIVIAL;
    refuse(&f, &config, "--policy none");
    config = request(true, true, ABAR_STYLE_TORCHVISION, 0);
    config.skip_damaged = true;
    refuse(&f, &config, "--damaged fail");

    config = request(true, true, ABAR_STYLE_TORCHVISION, 0);
    abar_loader *loader = make_loader(&f, config);
    abar_batch batch = {.size = sizeof batch};
    static float values[BATCH * 3 * SIDE * SIDE];
    const abar_tensor input = abar_tensor_wrap(NULL, values, ABAR_F32, 2, (int64_t[]){BATCH, 3 * SIDE * SIDE});
    assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
    assert_int_equal(abar_batch_normalise(f.ctx, abar_dataset_info_of(f.data), &batch, BATCH, &input), ABAR_E_ARGUMENT);
    abar_loader_destroy(loader);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_resampled_are_the_images),
        cmocka_unit_test(baseline_colour_files_fit),
        cmocka_unit_test(files_that_change_before_the_scan_do_not_fit),
        cmocka_unit_test(test_images_are_always_decoded),
        cmocka_unit_test(what_needs_pixels_is_refused),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
