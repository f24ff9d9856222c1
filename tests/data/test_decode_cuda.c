/* Files decoded by nvJPEG against a loader that decodes: nearly the same pixels in the same places, and the same bits where the
 * host has decoded. Skipped where there is no nvJPEG. */
#include "cuda_testing.h"

#include "data/data_impl.h"
#include "data/images/draws.h"
#include "data/images/encoded.h"
#include "data/images_support.h"
#include "device/feed_impl.h"

#include <math.h>

enum { SIDE = 24, IMAGE = 3 * SIDE * SIDE, BATCH = 6 };

typedef struct rig {
    abar_context *ctx;
    abar_device *dev;
    folder dir;
    abar_dataset *data;
    abar_loader *files, *images;
    abar__feed *feed;
    abar_tensor input, target; /* channels last, on the device */
} rig;

static void need(const rig *r, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(r->ctx));
}
#define NEED(r, call) need(r, call, #call)

static const abar__feed_ops *ops(const rig *r) { return abar__feed_of(r->dev); }

/* side: of its images. False: there is no nvJPEG. */
static bool make_feed(rig *r, int64_t side, int64_t batch)
{
    float table[3][256], noise[ABAR_NOISE_COUNT];
    for (int c = 0; c < 3; c++) {
        double wide[256];
        abar__normalise_table(&r->data->info, c, wide);
        for (int v = 0; v < 256; v++) table[c][v] = (float)wide[v];
    }
    abar__noise_table(noise);
    const abar__feed_desc desc = {.channels = 3,
                                  .height = side,
                                  .width = side,
                                  .batch = batch,
                                  .step_batch = batch,
                                  .table = &table[0][0],
                                  .rows = true,
                                  .noise = noise,
                                  .encoded = true};
    const abar_status status = ops(r)->create(r->dev, &desc, &r->feed);
    if (status == ABAR_OK) return true;
    assert_int_equal(status, ABAR_E_BACKEND);
    assert_non_null(strstr(abar_context_error(r->ctx), "nvJPEG"));
    print_message("skipped: %s\n", abar_context_error(r->ctx));
    return false;
}

static abar_loader *make_loader(const rig *r, bool encoded)
{
    abar_loader *loader;
    const abar_loader_config config = {
        .size = sizeof config,
        .batch = BATCH,
        .seed = 5,
        .threads = 2,
        .encoded = encoded,
        .augment = {.on = true, .style = ABAR_STYLE_TIMM, .flip = true, .area_low = 0.2, .area_high = 1.0}};
    NEED(r, abar_loader_create(r->ctx, r->data, &config, &loader));
    return loader;
}

static bool open_rig(rig *r, int train, int side)
{
    *r = (rig){.dir = make_images(train, 3, side)};
    const abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    assert_int_equal(abar_context_create(NULL, &r->ctx), ABAR_OK);
    NEED(r, abar_device_open(r->ctx, "cuda", &config, &r->dev));
    r->data = open_images(r->ctx, &r->dir, (abar_dataset_config){.view = SIDE});
    r->files = make_loader(r, true);
    r->images = make_loader(r, false);
    const int64_t dim[4] = {BATCH, 3, SIDE, SIDE};
    r->input = abar_tensor_wrap(r->dev, NULL, ABAR_F32, 4, dim);
    r->input.layout = ABAR_LAYOUT_NHWC;
    r->target = abar_tensor_wrap(r->dev, NULL, ABAR_I32, 1, dim);
    r->input.data = cuda_alloc(r->dev, abar_tensor_bytes(&r->input));
    r->target.data = cuda_alloc(r->dev, abar_tensor_bytes(&r->target));
    return make_feed(r, SIDE, BATCH);
}

static void close_rig(rig *r)
{
    if (r->feed) ops(r)->destroy(r->dev, r->feed);
    abar_device_free(r->dev, r->input.data, abar_tensor_bytes(&r->input));
    abar_device_free(r->dev, r->target.data, abar_tensor_bytes(&r->target));
    abar_loader_destroy(r->files);
    abar_loader_destroy(r->images);
    abar_dataset_close(r->data);
    abar_device_close(r->dev);
    assert_int_equal(abar_context_memory(r->ctx).now, 0);
    abar_context_destroy(r->ctx);
    folder_remove(&r->dir);
}

static abar_status stage(const rig *r, const abar_batch *batch)
{
    const abar__feed_batch staged = {.samples = batch->images, .labels = batch->labels, .files = batch->files};
    return ops(r)->stage(r->dev, r->feed, &staged);
}

/* The mean difference of the rows that nvJPEG decoded, in steps of a byte; of the others none. */
static double compare(rig *r, const abar_batch *files, const abar_batch *images, int64_t *decoded)
{
    static double got[BATCH * IMAGE];
    static float want[BATCH * IMAGE];
    int32_t labels[BATCH];
    double sum = 0.0;
    int64_t rows = 0;
    const abar_tensor host = abar_tensor_wrap(NULL, want, ABAR_F32, 2, (int64_t[]){BATCH, IMAGE});
    NEED(r, abar_batch_normalise(r->ctx, &r->data->info, images, BATCH, &host));
    cuda_get(r->dev, got, r->input.data, r->input);
    cuda_move(r->dev, labels, r->target.data, sizeof labels);
    assert_memory_equal(labels, images->labels, sizeof labels);
    for (int i = 0; i < BATCH; i++) {
        rows += files->files[i].file != NULL;
        for (int k = 0; k < IMAGE; k++) {
            const double off = fabs(got[i * IMAGE + k] - (double)want[i * IMAGE + k]);
            if (!files->files[i].file && off > 0.0) fail_msg("row %d, which the host decoded, differs at %d", i, k);
            sum += off * r->data->info.std[k / (SIDE * SIDE)] * 255.0;
        }
    }
    *decoded += rows;
    return rows ? sum / (double)(rows * IMAGE) : 0.0;
}

/* side: of the files. most: mean difference of a batch, in steps of a byte. A wrong crop or mirror is off by tens. */
static void check_steps(int train, int side, int steps, double most)
{
    const abar_tensor no_share = {0};
    rig r;
    int64_t decoded = 0;
    if (!open_rig(&r, train, side)) {
        close_rig(&r);
        skip();
    }
    for (int step = 0; step < steps; step++) {
        abar_batch files = {.size = sizeof files}, images = {.size = sizeof images};
        NEED(&r, abar_loader_next(r.files, &files));
        NEED(&r, abar_loader_next(r.images, &images));
        NEED(&r, stage(&r, &files));
        NEED(&r, ops(&r)->fill(r.dev, r.feed, 0, &r.input, &r.target, &no_share));
        const double off = compare(&r, &files, &images, &decoded);
        if (!(off <= most)) fail_msg("files of %d pixels, step %d: pixels are off by %.2f in the mean", side, step, off);
    }
    assert_in_range(decoded, steps * BATCH / 2, steps * BATCH - 1); /* every fifth file is a PNG */
    close_rig(&r);
}

static void decoded_rows_are_nearly_the_hosts(void **unused)
{
    (void)unused;
    check_steps(BATCH, 20, 12, 3.0); /* pixels without edges */
}

/* Pixels that wrap from 255 to 0: chroma is off beside these edges. The device's memory grows with the files. */
static void decoded_rows_of_larger_files_are_nearly_the_hosts(void **unused)
{
    (void)unused;
    check_steps(30, 300, 20, 10.0);
}

enum { TALL_VIEW = 264 };

/* The largest mean difference of an output row, in steps of a byte. got: normalised. */
static double worst_row(const abar_dataset_info *info, const double *got, const uint8_t *want)
{
    double worst = 0.0;
    for (int row = 0; row < 3 * TALL_VIEW; row++, got += TALL_VIEW, want += TALL_VIEW) {
        const int c = row / TALL_VIEW;
        double sum = 0.0;
        for (int x = 0; x < TALL_VIEW; x++) sum += fabs((got[x] * info->std[c] + info->mean[c]) * 255.0 - want[x]);
        if (!(sum <= worst)) worst = sum;
    }
    return worst / TALL_VIEW;
}

/* One row of a batch: stages the file and reads the input of the net back. */
static void decode_one(rig *r, const abar_encoded *file, const uint8_t *samples, double *out)
{
    const abar_tensor target = abar_tensor_wrap(r->dev, r->target.data, ABAR_I32, 1, (int64_t[]){1}), no_share = {0};
    abar_tensor input = abar_tensor_wrap(r->dev, NULL, ABAR_F32, 4, (int64_t[]){1, 3, TALL_VIEW, TALL_VIEW});
    const int32_t label = 0;
    input.layout = ABAR_LAYOUT_NHWC;
    input.data = cuda_alloc(r->dev, abar_tensor_bytes(&input));
    NEED(r, ops(r)->stage(r->dev, r->feed, &(abar__feed_batch){.samples = samples, .labels = &label, .files = file}));
    NEED(r, ops(r)->fill(r->dev, r->feed, 0, &input, &target, &no_share));
    cuda_get(r->dev, out, input.data, input);
    abar_device_free(r->dev, input.data, abar_tensor_bytes(&input));
}

/* A tall file in a view of more than 256 pixels: more outputs than a grid of one dimension has threads. */
static void decoded_rows_of_tall_files_are_nearly_the_hosts(void **unused)
{
    (void)unused;
    enum { WIDTH = 16, HEIGHT = 65500, VALUES = 3 * TALL_VIEW * TALL_VIEW };
    static uint8_t want[VALUES];
    static double got[VALUES];
    const abar__image_view view = {.crop = {0, 0, HEIGHT, WIDTH},
                                   .height = TALL_VIEW,
                                   .width = TALL_VIEW,
                                   .window = {0, 0, TALL_VIEW, TALL_VIEW},
                                   .filter = ABAR_IMAGE_BILINEAR};
    rig r;
    if (!open_rig(&r, BATCH, 20)) {
        close_rig(&r);
        skip();
    }
    ops(&r)->destroy(r.dev, r.feed);
    assert_true(make_feed(&r, TALL_VIEW, 1));
    bytes file = make_jpeg(WIDTH, HEIGHT, 3);
    abar__image_header header;
    abar__image_fault fault;
    abar__image_reader *reader;
    abar__encoded_block block = {0};
    abar_encoded encoded;
    NEED(&r, abar__image_reader_create(r.ctx, &reader));
    assert_true(abar__image_look(file.data, file.n, &header, &fault));
    assert_true(abar__encoded_fits(&header, file.data, file.n));
    assert_true(abar__image_read(reader, file.data, file.n, &view, want, &fault));
    assert_true(abar__encoded_make(r.ctx, file.data, file.n, &header, &view, &block, &encoded));
    decode_one(&r, &encoded, want, got);
    const double off = worst_row(&r.data->info, got, want);
    if (!(off <= 10.0)) fail_msg("the pixels of a row are off by %.2f in the mean", off);
    abar__encoded_release(r.ctx, &block);
    abar__image_reader_destroy(reader);
    free(file.data);
    close_rig(&r);
}

static void file_that_is_no_jpeg_is_refused(void **unused)
{
    (void)unused;
    rig r;
    if (!open_rig(&r, BATCH, 64)) {
        close_rig(&r);
        skip();
    }
    abar_batch files = {.size = sizeof files};
    NEED(&r, abar_loader_next(r.files, &files));
    abar_encoded damaged[BATCH];
    uint8_t noise[4096];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(i * 7 + i / 3);
    memcpy(damaged, files.files, sizeof damaged);
    int bad = 0;
    while (!damaged[bad].file) bad++;
    damaged[bad].file = noise;
    damaged[bad].bytes = sizeof noise;
    files.files = damaged;
    char want[32];
    snprintf(want, sizeof want, "image %d of a batch", bad);
    assert_int_equal(stage(&r, &files), ABAR_E_FORMAT);
    if (!strstr(abar_context_error(r.ctx), want)) fail_msg("%s", abar_context_error(r.ctx));
    close_rig(&r);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_rows_are_nearly_the_hosts),
        cmocka_unit_test(decoded_rows_of_larger_files_are_nearly_the_hosts),
        cmocka_unit_test(decoded_rows_of_tall_files_are_nearly_the_hosts),
        cmocka_unit_test(file_that_is_no_jpeg_is_refused),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
