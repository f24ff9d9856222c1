/* Streamed batches that the device erases and mixes, against abar_batch_normalise on the host: the same float32 bits, or those
 * rounded to bfloat16, for both styles, every kind of row, odd sizes, all layouts; and two-buffer staging while steps run. */
#include "cuda_testing.h"

#include "base/rng.h"
#include "data/data_impl.h"
#include "data/images/draws.h"
#include "device/feed_impl.h"

enum { CHANNELS = 3, BATCH = 12, SEED = 91 };

static const abar_dataset_info colours = {
    .channels = CHANNELS, .classes = 1000, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}, .streamed = true};

/* What is done to the rows of a batch. Bits: */
enum { ERASE = 1, MIXUP = 2, CUTMIX = 4, NO_ROWS = 8 };
static const int kinds[] = {NO_ROWS, 0, ERASE, MIXUP, CUTMIX, ERASE | MIXUP, ERASE | CUTMIX, ERASE | MIXUP | CUTMIX};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef enum order { CHANNELS_LAST, PLANES, VECTORS } order;

typedef struct rig_request {
    int64_t height, width, micro;
    order order;
    abar_precision precision;
    bool pairs;
} rig_request;

typedef struct rig {
    abar_context *ctx;
    abar_device *dev;
    abar_dataset_info info;
    abar__feed *feed;
    int64_t micro, image;
    abar_tensor input, target, share; /* of one micro-batch, on the device */
    uint8_t *images;                  /* (BATCH, 3, H, W) */
    int32_t labels[BATCH];
    abar_row rows[BATCH];
    float *values, *want; /* (BATCH, 3, H, W): read back; of the host */
} rig;

static void need(const rig *r, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(r->ctx));
}
#define NEED(r, call) need(r, call, #call)

static const abar__feed_ops *ops(const rig *r) { return abar__feed_of(r->dev); }

static void make_feed(rig *r)
{
    float table[CHANNELS][256], noise[ABAR_NOISE_COUNT];
    for (int c = 0; c < CHANNELS; c++) {
        double wide[256];
        abar__normalise_table(&r->info, c, wide);
        for (int v = 0; v < 256; v++) table[c][v] = (float)wide[v];
    }
    abar__noise_table(noise);
    const abar__feed_desc desc = {.channels = CHANNELS,
                                  .height = r->info.height,
                                  .width = r->info.width,
                                  .batch = r->micro,
                                  .step_batch = BATCH,
                                  .table = &table[0][0],
                                  .rows = true,
                                  .noise = noise};
    NEED(r, ops(r)->create(r->dev, &desc, &r->feed));
}

static void open_rig(rig *r, const rig_request *q)
{
    *r = (rig){.info = colours, .micro = q->micro, .image = CHANNELS * q->height * q->width};
    r->info.height = q->height;
    r->info.width = q->width;
    const abar_device_config config = cuda_config(q->precision, true);
    assert_int_equal(abar_context_create(NULL, &r->ctx), ABAR_OK);
    NEED(r, abar_device_open(r->ctx, "cuda", &config, &r->dev));
    make_feed(r);
    const int64_t dim[4] = {q->micro, q->order == VECTORS ? r->image : CHANNELS, q->height, q->width}, pairs[2] = {q->micro, 2};
    r->input = abar_tensor_wrap(r->dev, NULL, r->dev->activation, q->order == VECTORS ? 2 : 4, dim);
    if (q->order == CHANNELS_LAST) r->input.layout = ABAR_LAYOUT_NHWC;
    r->target = abar_tensor_wrap(r->dev, NULL, ABAR_I32, q->pairs ? 2 : 1, pairs);
    r->input.data = cuda_alloc(r->dev, abar_tensor_bytes(&r->input));
    r->target.data = cuda_alloc(r->dev, abar_tensor_bytes(&r->target));
    if (q->pairs) {
        r->share = abar_tensor_wrap(r->dev, NULL, ABAR_F32, 1, &q->micro);
        r->share.data = cuda_alloc(r->dev, abar_tensor_bytes(&r->share));
    }
    r->images = malloc((size_t)(BATCH * r->image));
    r->values = malloc((size_t)(BATCH * r->image) * sizeof *r->values);
    r->want = malloc((size_t)(BATCH * r->image) * sizeof *r->want);
    assert_true(r->images && r->values && r->want);
}

static void close_rig(rig *r)
{
    ops(r)->destroy(r->dev, r->feed);
    abar_device_free(r->dev, r->input.data, abar_tensor_bytes(&r->input));
    abar_device_free(r->dev, r->target.data, abar_tensor_bytes(&r->target));
    if (r->share.ndim) abar_device_free(r->dev, r->share.data, abar_tensor_bytes(&r->share));
    abar_device_close(r->dev);
    assert_int_equal(abar_context_memory(r->ctx).now, 0);
    abar_context_destroy(r->ctx);
    free(r->images);
    free(r->values);
    free(r->want);
}

/* ---- batches ------------------------------------------------------------------------------------------------------- */

static uint32_t below(uint64_t batch, uint64_t index, uint32_t n)
{
    return abar__below(abar__random(SEED, ABAR_DRAW_SYNTHETIC, (uint32_t)batch, index).u[0], n);
}

/* A box within the image: anything from one pixel in a corner to all of it. */
static void draw_box(uint64_t batch, uint64_t index, const abar_dataset_info *info, int16_t box[4])
{
    const uint32_t height = (uint32_t)info->height, width = (uint32_t)info->width;
    const uint32_t how = below(batch, index, 8);
    box[2] = how == 0 ? (int16_t)height : (int16_t)(1 + below(batch, index + 1, height));
    box[3] = how == 0 ? (int16_t)width : (int16_t)(1 + below(batch, index + 2, width));
    if (how == 1) box[2] = box[3] = 1;
    box[0] = (int16_t)below(batch, index + 3, (uint32_t)(info->height - box[2] + 1));
    box[1] = (int16_t)below(batch, index + 4, (uint32_t)(info->width - box[3] + 1));
}

static void draw_row(rig *r, uint64_t batch, int32_t i, int kind)
{
    const uint64_t at = 1000 * (uint64_t)(i + 1);
    abar_row *row = &r->rows[i];
    *row = (abar_row){.partner = i,
                      .share = 1.0f,
                      .epoch = (uint32_t)batch,
                      .sample = below(batch, at, 2000000000),
                      .repetition = below(batch, at + 1, 256)};
    if (kind & ERASE && i % 3 != 2) draw_box(batch, at + 10, &r->info, row->erase);
    const bool cutmix = kind & CUTMIX && (!(kind & MIXUP) || i < BATCH / 2);
    if (cutmix && i != 1) draw_box(batch, at + 20, &r->info, row->box); /* row 1 is mixed up all the same */
    if (!(kind & (MIXUP | CUTMIX))) return;
    const double lambda = (double)below(batch, at + 30, 1000) / 999.0;
    row->share = (float)lambda;
    row->rest = (float)(1.0 - lambda);
}

/* Batch number `batch`. Partners are within the micro-batch; the first row of a group may be its own. */
static void draw_batch(rig *r, uint64_t batch, int kind)
{
    for (int64_t i = 0; i < BATCH * r->image; i++) r->images[i] = (uint8_t)below(batch, 100000 + (uint64_t)i, 256);
    for (int32_t i = 0; i < BATCH; i++) r->labels[i] = (int32_t)below(batch, (uint64_t)i, 1000);
    for (int32_t i = 0; i < BATCH; i++) {
        const int32_t group = (int32_t)r->micro, first = i / group * group;
        draw_row(r, batch, i, kind);
        if (kind & (MIXUP | CUTMIX)) r->rows[i].partner = first + (batch % 2 ? group - 1 - i % group : (i + group - 1) % group);
        r->rows[i].label = r->labels[i];
        r->rows[i].partner_label = r->labels[r->rows[i].partner];
    }
}

static abar_batch batch_of(const rig *r, int kind, bool timm)
{
    return (abar_batch){.size = sizeof(abar_batch),
                        .images = r->images,
                        .labels = r->labels,
                        .count = BATCH,
                        .rows = kind == NO_ROWS ? NULL : r->rows,
                        .timm = timm,
                        .seed = SEED,
                        .height = r->info.height,
                        .width = r->info.width};
}

static void stage(rig *r, const abar_batch *batch)
{
    const abar__feed_batch staged = {
        .samples = batch->images, .labels = batch->labels, .rows = batch->rows, .timm = batch->timm, .seed = batch->seed};
    NEED(r, ops(r)->stage(r->dev, r->feed, &staged));
}

static void fill(rig *r, int64_t first) { NEED(r, ops(r)->fill(r->dev, r->feed, first, &r->input, &r->target, &r->share)); }

static void make_wanted(rig *r, const abar_batch *batch)
{
    const abar_tensor host = abar_tensor_wrap(NULL, r->want, ABAR_F32, 2, (int64_t[]){BATCH, r->image});
    NEED(r, abar_batch_normalise(r->ctx, &r->info, batch, BATCH, &host));
}

/* ---- against the host ------------------------------------------------------------------------------------------------ */

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* r->values has rows first .. first + micro in the order of the host's. */
static void compare_values(const rig *r, int64_t first, const char *what)
{
    for (int64_t i = 0; i < r->micro * r->image; i++) {
        const float v = r->want[first * r->image + i];
        const float want = r->dev->activation == ABAR_BF16 ? abar__bf16_load(abar__bf16_round(v)) : v;
        if (bits_of(r->values[i]) != bits_of(want))
            fail_msg("%s: element %d of row %d is %.9g, not %.9g", what, (int)(i % r->image), (int)(first + i / r->image),
                     (double)r->values[i], (double)want);
    }
}

static void read_values(rig *r, const void *from)
{
    double *wide = malloc((size_t)(r->micro * r->image) * sizeof *wide);
    assert_non_null(wide);
    cuda_get(r->dev, wide, from, r->input);
    for (int64_t i = 0; i < r->micro * r->image; i++) r->values[i] = (float)wide[i];
    free(wide);
}

static void check_target(const rig *r, const abar_batch *batch, int64_t first)
{
    int32_t labels[2 * BATCH];
    float share[BATCH];
    cuda_move(r->dev, labels, r->target.data, abar_tensor_bytes(&r->target));
    if (r->share.ndim) cuda_move(r->dev, share, r->share.data, abar_tensor_bytes(&r->share));
    for (int64_t i = 0; i < r->micro; i++) {
        const int32_t own = batch->labels[first + i];
        if (r->share.ndim == 0) {
            assert_int_equal(labels[i], own);
            continue;
        }
        assert_int_equal(labels[2 * i], own);
        assert_int_equal(labels[2 * i + 1], batch->rows ? batch->rows[first + i].partner_label : own);
        assert_true(share[i] == (batch->rows ? batch->rows[first + i].share : 1.0f));
    }
}

static void check_batch(rig *r, uint64_t number, int kind, bool timm)
{
    char what[64];
    draw_batch(r, number, kind);
    const abar_batch batch = batch_of(r, kind, timm);
    make_wanted(r, &batch);
    stage(r, &batch);
    for (int64_t first = 0; first < BATCH; first += r->micro) {
        fill(r, first);
        cuda_wait(r->dev, "fill");
        read_values(r, r->input.data);
        snprintf(what, sizeof what, "%d x %d, kind %d, %s", (int)r->info.height, (int)r->info.width, kind,
                 timm ? "timm" : "torchvision");
        compare_values(r, first, what);
        check_target(r, &batch, first);
    }
}

static const rig_request requests[] = {
    {16, 16, BATCH, CHANNELS_LAST, ABAR_PRECISION_FP32, true},
    {16, 16, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, true},
    {16, 16, BATCH / 2, PLANES, ABAR_PRECISION_FP32, true},
    {16, 16, BATCH / 2, VECTORS, ABAR_PRECISION_BF16, false},
    {48, 64, BATCH / 3, CHANNELS_LAST, ABAR_PRECISION_BF16, true},
    {48, 64, BATCH, VECTORS, ABAR_PRECISION_FP32, false},
    {4, 2, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, true},
    {7, 5, BATCH, CHANNELS_LAST, ABAR_PRECISION_FP32, true},
    {7, 5, BATCH / 2, PLANES, ABAR_PRECISION_BF16, true},
    {1, 1, BATCH, CHANNELS_LAST, ABAR_PRECISION_FP32, false},
    {33, 21, BATCH, VECTORS, ABAR_PRECISION_BF16, true},
    {12, 10, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, false},
    {1, 24, BATCH, PLANES, ABAR_PRECISION_FP32, true},
    {27, 8, BATCH, CHANNELS_LAST, ABAR_PRECISION_TF32, true},
};

static void rows_are_the_hosts_to_the_bit(void **unused)
{
    (void)unused;
    for (size_t q = 0; q < sizeof requests / sizeof *requests; q++) {
        rig r;
        uint64_t number = 0;
        open_rig(&r, &requests[q]);
        for (int k = 0; k < KINDS; k++)
            for (int timm = 0; timm < 2; timm++)
                for (int again = cuda_only("ABAR_TEST_SMALL"); again < 2; again++) check_batch(&r, number++, kinds[k], timm);
        close_rig(&r);
    }
}

/* A size that trains: 12 images of 176 x 176 and 224 x 224. */
static void rows_of_large_images_are_the_hosts_to_the_bit(void **unused)
{
    (void)unused;
    static const rig_request large[] = {{176, 176, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, true},
                                        {224, 224, BATCH / 2, CHANNELS_LAST, ABAR_PRECISION_FP32, true}};
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    for (int q = 0; q < 2; q++) {
        rig r;
        open_rig(&r, &large[q]);
        for (int timm = 0; timm < 2; timm++) check_batch(&r, 1 + (uint64_t)timm, ERASE | MIXUP | CUTMIX, timm);
        close_rig(&r);
    }
}

/* ---- staging beside the steps ------------------------------------------------------------------------------------------ */

/* Work that keeps the main stream busy: copies of a large block onto itself. */
typedef struct delay {
    void *memory;
    size_t bytes;
    int copies;
} delay;

static delay delay_open(const rig *r, size_t bytes, int copies)
{
    delay d = {.bytes = cuda_only("ABAR_TEST_SMALL") ? (size_t)1 << 20 : bytes, .copies = copies};
    d.memory = cuda_alloc(r->dev, d.bytes);
    return d;
}

static void delay_enqueue(const rig *r, const delay *d)
{
    char *half = (char *)d->memory + d->bytes / 2;
    for (int i = 0; i < d->copies; i++) NEED(r, r->dev->ops->stream->copy_bytes(r->dev, d->memory, half, d->bytes / 2));
}

static void delay_close(const rig *r, delay *d) { abar_device_free(r->dev, d->memory, d->bytes); }

/* One captured step, the delay before or after its fill; every step's input is kept, and looked at when all are done. */
static void check_many_steps(bool late)
{
    enum { STEPS = 40 };
    rig r;
    open_rig(&r, &(rig_request){32, 32, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, true});
    const abar__stream_ops *q = r.dev->ops->stream;
    const size_t input = abar_tensor_bytes(&r.input), target = abar_tensor_bytes(&r.target);
    char *inputs = cuda_alloc(r.dev, STEPS * input), *targets = cuda_alloc(r.dev, STEPS * target);
    delay d = delay_open(&r, (size_t)1 << 28, 8);
    void *graph = NULL;
    NEED(&r, q->capture_begin(r.dev));
    if (late) delay_enqueue(&r, &d);
    fill(&r, 0);
    if (!late) delay_enqueue(&r, &d);
    NEED(&r, q->capture_end(r.dev, &graph));
    for (int step = 0; step < STEPS; step++) {
        const int kind = kinds[step % KINDS];
        draw_batch(&r, (uint64_t)step, kind);
        const abar_batch batch = batch_of(&r, kind, step % 3 == 0);
        stage(&r, &batch);
        memset(r.images, 0, (size_t)(BATCH * r.image)); /* its memory is free again */
        memset(r.rows, 0, sizeof r.rows);
        memset(r.labels, 0, sizeof r.labels);
        NEED(&r, q->replay(r.dev, graph));
        NEED(&r, q->copy_bytes(r.dev, inputs + (size_t)step * input, r.input.data, input));
        NEED(&r, q->copy_bytes(r.dev, targets + (size_t)step * target, r.target.data, target));
    }
    cuda_wait(r.dev, "steps");
    for (int step = 0; step < STEPS; step++) {
        char what[32];
        int32_t labels[2 * BATCH];
        const int kind = kinds[step % KINDS];
        draw_batch(&r, (uint64_t)step, kind);
        const abar_batch batch = batch_of(&r, kind, step % 3 == 0);
        make_wanted(&r, &batch);
        read_values(&r, inputs + (size_t)step * input);
        snprintf(what, sizeof what, "step %d", step);
        compare_values(&r, 0, what);
        cuda_move(r.dev, labels, targets + (size_t)step * target, target);
        for (int i = 0; i < BATCH; i++) assert_int_equal(labels[2 * i], batch.labels[i]);
    }
    q->forget(r.dev, graph);
    delay_close(&r, &d);
    abar_device_free(r.dev, inputs, STEPS * input);
    abar_device_free(r.dev, targets, STEPS * target);
    close_rig(&r);
}

static void replayed_steps_read_their_own_batches(void **unused)
{
    (void)unused;
    check_many_steps(false);
    check_many_steps(true);
}

/* While the main stream is busy the host stages four more batches. The fifth call needs the pinned memory of the second batch,
 * so it returns early only if that one was copied beside the main stream's work. */
static void batches_are_copied_beside_the_step(void **unused)
{
    (void)unused;
    rig r;
    void *busy;
    if (cuda_only("ABAR_TEST_SMALL")) skip(); /* a sanitizer runs one thing after the other */
    open_rig(&r, &(rig_request){32, 32, BATCH, CHANNELS_LAST, ABAR_PRECISION_BF16, true});
    const abar__stream_ops *q = r.dev->ops->stream;
    delay d = delay_open(&r, (size_t)1 << 31, 500); /* some tenths of a second */
    NEED(&r, q->event_create(r.dev, &busy));
    draw_batch(&r, 0, ERASE | MIXUP);
    const abar_batch batch = batch_of(&r, ERASE | MIXUP, false);
    for (int i = 0; i < 5; i++) {
        stage(&r, &batch);
        fill(&r, 0);
        if (i > 0) continue;
        delay_enqueue(&r, &d);
        NEED(&r, q->event_record(r.dev, busy));
    }
    assert_false(q->event_done(r.dev, busy));
    cuda_wait(r.dev, "steps");
    q->event_destroy(r.dev, busy);
    delay_close(&r, &d);
    close_rig(&r);
}

/* ---- mistakes ----------------------------------------------------------------------------------------------------------- */

static void rows_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    rig r;
    open_rig(&r, &(rig_request){8, 8, BATCH, CHANNELS_LAST, ABAR_PRECISION_FP32, true});
    draw_batch(&r, 0, MIXUP);
    abar__feed_batch staged = {.samples = r.images, .labels = r.labels, .rows = r.rows};
    r.rows[3].partner = BATCH;
    assert_int_equal(ops(&r)->stage(r.dev, r.feed, &staged), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(r.ctx), "row 3"));
    r.rows[3].partner = -1;
    assert_int_equal(ops(&r)->stage(r.dev, r.feed, &staged), ABAR_E_ARGUMENT);
    abar__feed *other = NULL;
    const abar__feed_desc grey = {.channels = 1, .height = 8, .width = 8, .batch = 2, .step_batch = 2, .rows = true};
    assert_int_equal(ops(&r)->create(r.dev, &grey, &other), ABAR_E_UNSUPPORTED);
    assert_null(other);
    check_batch(&r, 5, ERASE | CUTMIX, true); /* and the feed still works */
    close_rig(&r);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_hosts_to_the_bit),
        cmocka_unit_test(rows_of_large_images_are_the_hosts_to_the_bit),
        cmocka_unit_test(replayed_steps_read_their_own_batches),
        cmocka_unit_test(batches_are_copied_beside_the_step),
        cmocka_unit_test(rows_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
