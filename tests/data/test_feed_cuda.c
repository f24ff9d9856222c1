/* Batches made on the device against the loader's, bit for bit: order, crop, flip, normalisation and windows of a text, over
 * two epochs, after seeking, replayed, in micro-batches, and streamed. test_feed_rows_cuda has what is erased and mixed. */
#include "cuda_testing.h"

#include "base/rng.h"
#include "data/data_impl.h"
#include "device/feed_impl.h"

enum { SAMPLES = 50, TESTS = 13, BATCH = 8, STEPS = SAMPLES / BATCH, SIDE = 12, CHANNELS = 3, IMAGE = CHANNELS * SIDE * SIDE };

typedef struct bench {
    abar_context *ctx;
    abar_device *dev;
    abar_dataset *data;
    abar_loader *loader;
    abar__feed *feed;
    int64_t micro;
    abar_tensor input, target; /* of one micro-batch, on the device */
    float table[CHANNELS][256];
    abar_dataset *bytes; /* where data has floats: what they were made of */
    float train[SAMPLES * IMAGE], test[TESTS * IMAGE];
} bench;

static void need(const bench *b, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(b->ctx));
}
#define NEED(b, call) need(b, call, #call)

static const abar_tensor no_share = {0}; /* targets are labels */

static const abar__feed_ops *ops(const bench *b) { return abar__feed_of(b->dev); }

typedef struct bench_request {
    abar_precision precision;
    int64_t micro, pad;
    bool flip, vectors, streamed, test, floats;
} bench_request;

static void make_feed(bench *b, const bench_request *w)
{
    for (int c = 0; c < CHANNELS; c++) {
        double table[256];
        abar__normalise_table(&b->data->info, c, table);
        for (int v = 0; v < 256; v++) b->table[c][v] = (float)table[v];
    }
    const abar__part *part = &b->data->part[w->test];
    const abar__feed_desc desc = {.images = w->streamed ? NULL : part->images,
                                  .labels = w->streamed ? NULL : part->labels,
                                  .floats = w->floats,
                                  .count = part->count,
                                  .channels = CHANNELS,
                                  .height = SIDE,
                                  .width = SIDE,
                                  .batch = w->micro,
                                  .step_batch = BATCH,
                                  .table = w->floats ? NULL : &b->table[0][0],
                                  .seed = 77,
                                  .crop_pad = w->streamed ? 0 : w->pad, /* streamed images are already cropped */
                                  .flip = !w->streamed && w->flip};
    const size_t element = w->floats ? sizeof(float) : 1;
    assert_true(ops(b)->bytes(&desc) >= (size_t)(w->streamed ? BATCH : part->count) * IMAGE * element);
    NEED(b, ops(b)->create(b->dev, &desc, &b->feed));
}

/* Puts a data set of floats in the place of the one of bytes: numbers that no byte's table has. */
static void make_floats(bench *b)
{
    b->bytes = b->data;
    for (int i = 0; i < SAMPLES * IMAGE; i++) b->train[i] = (float)b->bytes->part[0].images[i] / 3.0f - 40.0f;
    for (int i = 0; i < TESTS * IMAGE; i++) b->test[i] = (float)b->bytes->part[1].images[i] / 7.0f - 10.0f;
    const abar_dataset_images images = {.size = sizeof images,
                                        .channels = CHANNELS,
                                        .height = SIDE,
                                        .width = SIDE,
                                        .classes = 7,
                                        .train = SAMPLES,
                                        .test = TESTS,
                                        .train_images = b->train,
                                        .test_images = b->test,
                                        .train_labels = b->bytes->part[0].labels,
                                        .test_labels = b->bytes->part[1].labels,
                                        .floats = true};
    NEED(b, abar_dataset_wrap(b->ctx, &images, &b->data));
}

static void open_bench(bench *b, const bench_request *w)
{
    *b = (bench){.micro = w->micro};
    const abar_device_config config = cuda_config(w->precision, true);
    const abar_dataset_config data = {.size = sizeof data,
                                      .channels = CHANNELS,
                                      .height = SIDE,
                                      .width = SIDE,
                                      .classes = 7,
                                      .train = SAMPLES,
                                      .test = TESTS,
                                      .seed = 5};
    const abar_loader_config loader = {
        .size = sizeof loader, .test = w->test, .batch = BATCH, .seed = 77, .crop_pad = w->pad, .flip = w->flip};
    assert_int_equal(abar_context_create(NULL, &b->ctx), ABAR_OK);
    NEED(b, abar_device_open(b->ctx, "cuda", &config, &b->dev));
    NEED(b, abar_dataset_open(b->ctx, "synthetic", &data, &b->data));
    if (w->floats) make_floats(b);
    NEED(b, abar_loader_create(b->ctx, b->data, &loader, &b->loader));
    make_feed(b, w);
    const int64_t dim[4] = {w->micro, w->vectors ? IMAGE : CHANNELS, SIDE, SIDE};
    b->input = abar_tensor_wrap(b->dev, NULL, b->dev->activation, w->vectors ? 2 : 4, dim);
    if (!w->vectors) b->input.layout = ABAR_LAYOUT_NHWC;
    b->target = abar_tensor_wrap(b->dev, NULL, ABAR_I32, 1, dim);
    b->input.data = cuda_alloc(b->dev, abar_tensor_bytes(&b->input));
    b->target.data = cuda_alloc(b->dev, abar_tensor_bytes(&b->target));
}

static void close_bench(bench *b)
{
    ops(b)->destroy(b->dev, b->feed);
    abar_device_free(b->dev, b->input.data, abar_tensor_bytes(&b->input));
    abar_device_free(b->dev, b->target.data, abar_tensor_bytes(&b->target));
    abar_loader_destroy(b->loader);
    abar_dataset_close(b->data);
    abar_dataset_close(b->bytes);
    abar_device_close(b->dev);
    assert_int_equal(abar_context_memory(b->ctx).now, 0);
    abar_context_destroy(b->ctx);
}

/* The samples of an epoch in their order: a Fisher-Yates shuffle from the front (loader.c says so). */
static void begin_epoch(bench *b, int64_t epoch, int64_t first)
{
    int32_t order[SAMPLES];
    for (int32_t i = 0; i < SAMPLES; i++) order[i] = i;
    for (uint32_t p = 0; p < SAMPLES; p++) {
        const uint32_t q = p + abar__below(abar__random(77, ABAR_DRAW_ORDER, (uint32_t)epoch, p).u[0], SAMPLES - p);
        const int32_t moved = order[p];
        order[p] = order[q];
        order[q] = moved;
    }
    NEED(b, ops(b)->epoch(b->dev, b->feed, epoch, first, order, SAMPLES));
}

/* The device's input and target hold samples first .. first + micro of the batch. */
static void check_part(bench *b, const abar_batch *batch, int64_t first)
{
    double got[BATCH * IMAGE], want[BATCH * IMAGE];
    float normalised[BATCH * IMAGE];
    int32_t labels[BATCH];
    const int64_t count = b->micro * IMAGE;
    cuda_wait(b->dev, "fill");
    cuda_get(b->dev, got, b->input.data, b->input);
    cuda_move(b->dev, labels, b->target.data, abar_tensor_bytes(&b->target));
    const abar_tensor host = abar_tensor_wrap(NULL, normalised, ABAR_F32, 2, (int64_t[]){BATCH, IMAGE});
    NEED(b, abar_batch_normalise(b->ctx, &b->data->info, batch, BATCH, &host));
    for (int64_t i = 0; i < count; i++) {
        const float v = normalised[first * IMAGE + i];
        want[i] = b->dev->activation == ABAR_BF16 ? (double)abar__bf16_load(abar__bf16_round(v)) : (double)v;
        if (got[i] != want[i])
            fail_msg("epoch %d, batch %d: element %d of sample %d is %.9g, not %.9g", (int)batch->epoch, (int)batch->index,
                     (int)(i % IMAGE), (int)(first + i / IMAGE), got[i], want[i]);
    }
    for (int64_t i = 0; i < b->micro; i++) assert_int_equal(labels[i], batch->labels[first + i]);
}

static void check_step(bench *b)
{
    abar_batch batch = {.size = sizeof batch};
    NEED(b, abar_loader_next(b->loader, &batch));
    for (int64_t first = 0; first < BATCH; first += b->micro) {
        NEED(b, ops(b)->fill(b->dev, b->feed, first, &b->input, &b->target, &no_share));
        check_part(b, &batch, first);
    }
    NEED(b, ops(b)->advance(b->dev, b->feed));
}

static const bench_request requests[] = {
    {.micro = BATCH},
    {.micro = BATCH, .pad = 4, .flip = true},
    {.micro = BATCH / 4, .pad = 4, .flip = true},
    {.micro = BATCH, .pad = 11},
    {.micro = BATCH / 2, .flip = true, .vectors = true},
    {.micro = BATCH, .pad = 2, .flip = true, .precision = ABAR_PRECISION_BF16},
    {.micro = BATCH, .pad = 2, .vectors = true, .precision = ABAR_PRECISION_BF16},
    {.micro = BATCH / 2, .pad = 4, .flip = true, .floats = true},
    {.micro = BATCH, .vectors = true, .floats = true, .precision = ABAR_PRECISION_BF16},
};
enum { WISHES = sizeof requests / sizeof *requests };

static void batches_of_two_epochs_are_the_loaders(void **unused)
{
    (void)unused;
    for (int i = 0; i < WISHES; i++) {
        bench b;
        open_bench(&b, &requests[i]);
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            begin_epoch(&b, epoch, 0);
            for (int step = 0; step < STEPS; step++) check_step(&b);
        }
        close_bench(&b);
    }
}

static void batches_after_seeking_are_the_loaders(void **unused)
{
    (void)unused;
    bench b;
    open_bench(&b, &requests[1]);
    static const int64_t places[][2] = {{1, 3}, {0, 5}, {4, 0}, {0, 1}};
    for (int i = 0; i < 4; i++) {
        begin_epoch(&b, places[i][0], places[i][1]);
        NEED(&b, abar_loader_seek(b.loader, places[i][0], places[i][1]));
        for (int64_t step = places[i][1]; step < STEPS; step++) check_step(&b);
    }
    close_bench(&b);
}

/* One captured fill and advance is replayed for all steps and epochs. */
static void batches_from_a_recording_are_the_loaders(void **unused)
{
    (void)unused;
    bench b;
    void *graph = NULL;
    open_bench(&b, &requests[1]);
    const abar__stream_ops *q = b.dev->ops->stream;
    begin_epoch(&b, 0, 0);
    NEED(&b, q->capture_begin(b.dev));
    NEED(&b, ops(&b)->fill(b.dev, b.feed, 0, &b.input, &b.target, &no_share));
    NEED(&b, ops(&b)->advance(b.dev, b.feed));
    NEED(&b, q->capture_end(b.dev, &graph));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        if (epoch > 0) begin_epoch(&b, epoch, 0);
        for (int step = 0; step < STEPS; step++) {
            abar_batch batch = {.size = sizeof batch};
            NEED(&b, abar_loader_next(b.loader, &batch));
            NEED(&b, q->replay(b.dev, graph));
            check_part(&b, &batch, 0);
        }
    }
    q->forget(b.dev, graph);
    close_bench(&b);
}

/* Test samples come in their order, and the last batch is filled up with its first. */
static void batches_of_the_test_part_are_the_loaders(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        bench b;
        int32_t order[2 * BATCH];
        open_bench(&b,
                   &(bench_request){.micro = BATCH, .test = true, .precision = i ? ABAR_PRECISION_BF16 : ABAR_PRECISION_FP32});
        assert_int_equal(abar_loader_order_count(b.loader), 2 * BATCH);
        for (int pass = 0; pass < 2; pass++) {
            abar_loader_order(b.loader, 0, order);
            NEED(&b, abar_loader_seek(b.loader, 0, 0));
            NEED(&b, ops(&b)->epoch(b.dev, b.feed, 0, 0, order, 2 * BATCH));
            for (int step = 0; step < 2; step++) check_step(&b);
        }
        close_bench(&b);
    }
}

/* The host augments, the device normalises; the bytes may be overwritten as soon as stage returns. */
static void streamed_batches_are_the_loaders(void **unused)
{
    (void)unused;
    static const bench_request streamed[] = {{.micro = BATCH / 2, .pad = 4, .flip = true, .streamed = true},
                                             {.micro = BATCH, .pad = 4, .streamed = true, .precision = ABAR_PRECISION_BF16},
                                             {.micro = BATCH, .pad = 4, .flip = true, .streamed = true, .floats = true},
                                             {.micro = BATCH, .streamed = true, .test = true}};
    for (int i = 0; i < 4; i++) {
        bench b;
        open_bench(&b, &streamed[i]);
        for (int step = 0; step < 2 * STEPS; step++) {
            abar_batch batch = {.size = sizeof batch};
            float images[BATCH * IMAGE]; /* room for either kind */
            int32_t labels[BATCH];
            NEED(&b, abar_loader_next(b.loader, &batch));
            if (streamed[i].floats)
                memcpy(images, batch.floats, sizeof images);
            else
                memcpy(images, batch.images, BATCH * IMAGE);
            memcpy(labels, batch.labels, sizeof labels);
            const abar__feed_batch staged = {.samples = images, .labels = labels};
            NEED(&b, ops(&b)->stage(b.dev, b.feed, &staged));
            memset(images, 0, sizeof images);
            memset(labels, 0, sizeof labels);
            for (int64_t first = 0; first < BATCH; first += b.micro) {
                NEED(&b, ops(&b)->fill(b.dev, b.feed, first, &b.input, &b.target, &no_share));
                check_part(&b, &batch, first);
            }
        }
        close_bench(&b);
    }
}

/* ---- texts -------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 3000, CONTEXT = 300, TEXT_BATCH = 6, TEXT_STEPS = 5 }; /* windows longer than a block of threads */

/* A device, a text and its loader; input and target are those of one micro-batch. */
typedef struct text_bench {
    bench b;
    char path[64];
    int64_t count; /* of the order */
    int32_t *order;
} text_bench;

static void write_text(text_bench *t)
{
    snprintf(t->path, sizeof t->path, "/tmp/abar-feed-XXXXXX");
    const int fd = mkstemp(t->path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    for (uint64_t i = 0; i < TOKENS; i++)
        fputc(' ' + (int)abar__below(abar__random(3, ABAR_DRAW_SYNTHETIC, 0, i).u[0], 90), file);
    assert_int_equal(fclose(file), 0);
}

static void open_text(text_bench *t, int64_t micro, bool test, bool streamed)
{
    bench *b = &t->b;
    char spec[80];
    *t = (text_bench){.b = {.micro = micro}};
    write_text(t);
    snprintf(spec, sizeof spec, "text:%s", t->path);
    const abar_device_config config = cuda_config(ABAR_PRECISION_BF16, true);
    const abar_loader_config loader = {.size = sizeof loader,
                                       .test = test,
                                       .batch = TEXT_BATCH,
                                       .seed = 11,
                                       .context = test ? 20 : CONTEXT,
                                       .steps = TEXT_STEPS};
    assert_int_equal(abar_context_create(NULL, &b->ctx), ABAR_OK);
    NEED(b, abar_device_open(b->ctx, "cuda", &config, &b->dev));
    NEED(b, abar_dataset_open(b->ctx, spec, NULL, &b->data));
    NEED(b, abar_loader_create(b->ctx, b->data, &loader, &b->loader));
    t->count = abar_loader_order_count(b->loader);
    t->order = malloc((size_t)t->count * sizeof *t->order);
    const abar__feed_desc desc = {.tokens = streamed ? NULL : abar_dataset_tokens(b->data, test),
                                  .count = b->data->part[test].count,
                                  .context = loader.context,
                                  .windows = t->count,
                                  .batch = micro,
                                  .step_batch = TEXT_BATCH,
                                  .seed = 11};
    NEED(b, ops(b)->create(b->dev, &desc, &b->feed));
    const int64_t dim[2] = {micro, loader.context}, rows = micro * loader.context;
    b->input = abar_tensor_wrap(b->dev, NULL, ABAR_I32, 2, dim);
    b->target = abar_tensor_wrap(b->dev, NULL, ABAR_I32, 1, &rows);
    b->input.data = cuda_alloc(b->dev, abar_tensor_bytes(&b->input));
    b->target.data = cuda_alloc(b->dev, abar_tensor_bytes(&b->target));
}

static void close_text(text_bench *t)
{
    free(t->order);
    remove(t->path);
    close_bench(&t->b);
}

static void begin_text(text_bench *t, int64_t epoch, int64_t first)
{
    abar_loader_order(t->b.loader, epoch, t->order);
    NEED(&t->b, ops(&t->b)->epoch(t->b.dev, t->b.feed, epoch, first, t->order, t->count));
}

static void check_windows(text_bench *t, const abar_batch *batch, int64_t first)
{
    static int32_t tokens[TEXT_BATCH * CONTEXT], labels[TEXT_BATCH * CONTEXT];
    bench *b = &t->b;
    const int64_t context = b->input.dim[1];
    cuda_wait(b->dev, "fill");
    cuda_move(b->dev, tokens, b->input.data, abar_tensor_bytes(&b->input));
    cuda_move(b->dev, labels, b->target.data, abar_tensor_bytes(&b->target));
    assert_memory_equal(tokens, batch->tokens + first * context, abar_tensor_bytes(&b->input));
    assert_memory_equal(labels, batch->labels + first * context, abar_tensor_bytes(&b->target));
}

static void check_text_step(text_bench *t, bool streamed)
{
    bench *b = &t->b;
    abar_batch batch = {.size = sizeof batch};
    NEED(b, abar_loader_next(b->loader, &batch));
    const abar__feed_batch staged = {.samples = batch.tokens, .labels = batch.labels};
    if (streamed) NEED(b, ops(b)->stage(b->dev, b->feed, &staged));
    for (int64_t first = 0; first < TEXT_BATCH; first += b->micro) {
        NEED(b, ops(b)->fill(b->dev, b->feed, first, &b->input, &b->target, &no_share));
        check_windows(t, &batch, first);
    }
    if (!streamed) NEED(b, ops(b)->advance(b->dev, b->feed));
}

static void windows_of_a_text_are_the_loaders(void **unused)
{
    (void)unused;
    static const int64_t places[][2] = {{0, 0}, {1, 0}, {3, 2}, {0, 4}};
    for (int64_t micro = TEXT_BATCH; micro >= 2; micro /= 3) {
        text_bench t;
        open_text(&t, micro, false, false);
        for (int i = 0; i < 4; i++) {
            begin_text(&t, places[i][0], places[i][1]);
            NEED(&t.b, abar_loader_seek(t.b.loader, places[i][0], places[i][1]));
            for (int64_t step = places[i][1]; step < TEXT_STEPS; step++) check_text_step(&t, false);
        }
        close_text(&t);
    }
}

/* 300 tokens for testing hold 14 windows of 20 and a label each: the last batch is filled up. */
static void test_windows_of_a_text_are_the_loaders(void **unused)
{
    (void)unused;
    text_bench t;
    open_text(&t, TEXT_BATCH, true, false);
    assert_int_equal(abar_loader_samples(t.b.loader), 14);
    for (int pass = 0; pass < 2; pass++) {
        begin_text(&t, 0, 0);
        NEED(&t.b, abar_loader_seek(t.b.loader, 0, 0));
        for (int step = 0; step < 3; step++) check_text_step(&t, false);
    }
    close_text(&t);
}

static void streamed_windows_are_the_loaders(void **unused)
{
    (void)unused;
    text_bench t;
    open_text(&t, TEXT_BATCH / 2, false, true);
    for (int step = 0; step < 2 * TEXT_STEPS; step++) check_text_step(&t, true);
    close_text(&t);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_of_two_epochs_are_the_loaders),    cmocka_unit_test(batches_after_seeking_are_the_loaders),
        cmocka_unit_test(batches_from_a_recording_are_the_loaders), cmocka_unit_test(batches_of_the_test_part_are_the_loaders),
        cmocka_unit_test(streamed_batches_are_the_loaders),         cmocka_unit_test(windows_of_a_text_are_the_loaders),
        cmocka_unit_test(test_windows_of_a_text_are_the_loaders),   cmocka_unit_test(streamed_windows_are_the_loaders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
