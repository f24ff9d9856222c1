/* What a loader's config means for a data set, what is refused, and the layout of the loader's one block of memory. */
#include "data/loader_impl.h"

#include <math.h>

#define THREADS_MAX 1024
#define PREFETCH_MAX 1024
#define REPEAT_MAX 255
#define CLAIM_MAX 16        /* images: enough to leave the lock alone */
#define CLAIMS_PER_THREAD 4 /* at least, in the batches that are made ahead: all threads are busy */

/* ---- numbers of samples ----------------------------------------------------------------------------------------- */

/* Tokens, or images, of the part. */
static int64_t part_count(const abar_dataset_info *info, const abar_loader_config *c)
{
    return c->test ? info->test : info->train;
}

/* The number of disjoint windows; each is followed by one more token, its last label. */
static int64_t window_count(const abar_dataset_info *info, const abar_loader_config *c)
{
    return c->context > 0 ? (part_count(info, c) - 1) / c->context : 0;
}

static int64_t batch_count(const abar_dataset_info *info, const abar_loader_config *c)
{
    const int64_t n = info->text ? window_count(info, c) : part_count(info, c);
    if (c->batch < 1) return 0;
    if (c->test) return n / c->batch + (n % c->batch > 0);
    if (info->text && c->steps > 0) return c->steps;
    return info->text && n < c->batch ? 1 : n / c->batch;
}

static int64_t sample_count(const abar_dataset_info *info, const abar_loader_config *c)
{
    if (!info->text) return part_count(info, c);
    return c->test ? window_count(info, c) : batch_count(info, c) * c->batch;
}

/* ---- streamed images -------------------------------------------------------------------------------------------- */

static abar_status check_test_view(abar_context *ctx, int64_t resize, int64_t size, int64_t filter)
{
    if (size < 1 || size > ABAR_VIEW_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--test-size %lld: is no size of an image, choose 1 to %d", (long long)size,
                          ABAR_VIEW_MAX);
    if (resize < size || resize > ABAR_VIEW_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--test-resize %lld: the centre of %lld x %lld pixels must fit into it, choose %lld to %d",
                          (long long)resize, (long long)size, (long long)size, (long long)size, ABAR_VIEW_MAX);
    if (filter != ABAR_FILTER_STYLE && filter != ABAR_FILTER_BILINEAR && filter != ABAR_FILTER_BICUBIC)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--test-filter %lld: choose bilinear or bicubic", (long long)filter);
    return ABAR_OK;
}

/* The test view; and without augmentation the training view, which is the same at its own size. */
static abar_status plan_view(abar_context *ctx, const abar_dataset_info *info, abar__loader_plan *p)
{
    const abar_loader_config *c = &p->config;
    const int64_t size = c->test_size == 0 ? info->height : c->test_size;
    const int64_t resize = c->test_resize == 0 ? size : c->test_resize;
    ABAR_TRY(check_test_view(ctx, resize, size, c->test_filter));
    const int64_t side = c->test ? size : info->height;
    p->height = p->width = side;
    p->view = (abar__stream_view){.side = (int32_t)side,
                                  .augment = c->augment,
                                  .resize = (int32_t)rint((double)side * (double)resize / (double)size),
                                  .filter = c->test_filter == ABAR_FILTER_BICUBIC ? ABAR_IMAGE_BICUBIC : ABAR_IMAGE_BILINEAR};
    return ABAR_OK;
}

static int64_t claim_size(const abar__loader_plan *p)
{
    const int64_t ahead = p->slot_count > 1 ? p->slot_count - 1 : 1, claims = CLAIMS_PER_THREAD * (int64_t)p->workers;
    const int64_t fair = p->own_rows / claims * ahead + p->own_rows % claims * ahead / claims;
    return fair < 1 ? 1 : fair < CLAIM_MAX ? fair : CLAIM_MAX;
}

/* A device decodes, but the operations of a policy and what stands in for a damaged file are the host's. */
static abar_status check_encoded(abar_context *ctx, const abar_loader_config *c)
{
    if (c->augment.on && c->augment.policy != ABAR_POLICY_NONE)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--decode gpu: operations of a policy need pixels on the host, use --policy none "
                          "or --decode cpu");
    if (c->skip_damaged)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--damaged skip: --decode gpu does not tell which file is damaged, use --damaged "
                          "fail or --decode cpu");
    return ABAR_OK;
}

static abar_status plan_streamed(abar_context *ctx, const abar_dataset_info *info, abar__loader_plan *p)
{
    abar_augment_config *a = &p->config.augment;
    if (a->repeat < 0 || a->repeat > REPEAT_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--repeat %lld: choose 1 to %d", (long long)a->repeat, REPEAT_MAX);
    p->repeat = a->repeat > 0 && !p->config.test ? a->repeat : 1;
    if (p->config.test) *a = (abar_augment_config){0};
    ABAR_TRY(plan_view(ctx, info, p));
    if (p->config.encoded) ABAR_TRY(check_encoded(ctx, &p->config));
    if (a->on) {
        ABAR_TRY(abar__augment_check(ctx, a, p->view.side));
        p->mixes = a->mixup > 0.0 || a->cutmix > 0.0;
        p->finishes = p->mixes || a->erase > 0.0;
    }
    const int64_t batch = p->config.batch;
    p->group = abar__mix_group_of(a->mix_group, batch);
    if (p->mixes) ABAR_TRY(abar__mix_group_check(ctx, a->style, p->group, batch, 1));
    if (p->mixes && (p->own_first % p->group != 0 || p->own_rows % p->group != 0))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "loader: rows %lld to %lld of a batch cut groups of %lld rows that are mixed, choose others",
                          (long long)p->own_first, (long long)(p->own_first + p->own_rows), (long long)p->group);
    p->claim = claim_size(p);
    return ABAR_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static size_t place(size_t *at, size_t bytes)
{
    size_t start = *at;
    *at = abar__round_up(start + bytes, ABAR_ALIGN);
    return start;
}

/* False when the sizes overflow. */
static bool lay_out(const abar_dataset_info *info, abar__loader_plan *p)
{
    const abar_loader_config *c = &p->config;
    const size_t batch = (size_t)p->own_rows, labels = info->text ? (size_t)c->context : 1;
    const size_t sample = info->text ? (size_t)c->context * sizeof(int32_t)
                                     : (size_t)(info->channels * p->height * p->width) * (info->floats ? sizeof(float) : 1);
    if ((double)batch * ((double)sample + 4.0 * (double)labels + 256.0) * p->slot_count > (double)(SIZE_MAX / 4)) return false;
    const size_t streamed = info->streamed ? batch : 0, whole = (size_t)c->batch,
                 shuffled = c->test || info->text ? 0 : (size_t)p->samples;
    place(&p->slot_bytes, whole * sizeof(int32_t));
    p->labels = place(&p->slot_bytes, batch * labels * sizeof(int32_t));
    p->repetitions = place(&p->slot_bytes, info->streamed ? whole : 0);
    p->damaged = place(&p->slot_bytes, streamed * sizeof(int32_t));
    p->rows = place(&p->slot_bytes, p->finishes ? batch * sizeof(abar_row) : 0);
    p->files = place(&p->slot_bytes, c->encoded ? batch * sizeof(abar_encoded) : 0);
    p->blocks = place(&p->slot_bytes, c->encoded ? batch * sizeof(abar__encoded_block) : 0);
    p->images = place(&p->slot_bytes, batch * sample);
    place(&p->total, sizeof(abar_loader));
    p->order = place(&p->total, shuffled * sizeof(int32_t));
    p->slots = place(&p->total, (size_t)p->slot_count * sizeof(abar__slot));
    p->worker = place(&p->total, (size_t)p->workers * sizeof(abar__loader_worker));
    p->marks = place(&p->total, info->streamed ? (size_t)p->samples / 8 + 1 : 0);
    p->slot_data = place(&p->total, (size_t)p->slot_count * p->slot_bytes);
    return true;
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static abar_status check_windows(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *c)
{
    const int64_t tokens = part_count(info, c);
    const char *part = !c->test ? "training" : info->validation ? "validation" : "test";
    const char *flag = !c->test ? "limit-train" : info->validation ? "validation" : "limit-test";
    if (c->context < 1 || c->steps < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: windows of %lld tokens, %lld steps an epoch, choose at least 1 and 0",
                          (long long)c->context, (long long)c->steps);
    if (tokens > c->context) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "%s: its %s part has %lld characters, a window and what follows it %lld, give a longer text, a smaller "
                      "--context or a larger --%s",
                      info->where, part, (long long)tokens, (long long)c->context + 1, flag);
}

static abar_status check_threads(abar_context *ctx, const abar_loader_config *c)
{
    if (c->threads >= 0 && c->threads <= THREADS_MAX && c->prefetch >= 0 && c->prefetch <= PREFETCH_MAX) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: %d threads, %d batches ahead, choose 0 to %d and 0 to %d", c->threads,
                      c->prefetch, THREADS_MAX, PREFETCH_MAX);
}

static abar_status check(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *c)
{
    int64_t samples = sample_count(info, c), side = info->height < info->width ? info->height : info->width;
    if (c->batch < 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: holds no sample, choose at least 1", (long long)c->batch);
    if (c->rows < 0 || c->first_row < 0 || c->first_row > c->batch - c->rows || (c->rows > 0 && c->test))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: rows %lld to %lld of a batch of %lld, give some of a training batch",
                          (long long)c->first_row, (long long)(c->first_row + c->rows), (long long)c->batch);
    if (info->text) ABAR_TRY(check_windows(ctx, info, c));
    if (!c->test && c->batch > samples)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: the training set has only %lld samples, choose a smaller batch",
                          (long long)c->batch, (long long)samples);
    if (c->crop_pad < 0 || (c->crop_pad > 0 && c->crop_pad >= side))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "crop padding %lld: the images are %lld x %lld, choose 0 to %lld",
                          (long long)c->crop_pad, (long long)info->height, (long long)info->width, (long long)side - 1);
    return check_threads(ctx, c);
}

/* Options without meaning for this part of this data set are cleared. */
static abar_status read_config(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *from,
                               abar_loader_config *to)
{
    ABAR_TRY(abar__struct_read(ctx, "abar_loader_config", from, to, sizeof *to));
    if (to->test || info->streamed) {
        to->crop_pad = 0;
        to->flip = false;
    }
    if (!info->streamed) to->augment = (abar_augment_config){0};
    if (!info->streamed || to->test) to->encoded = false;
    return ABAR_OK;
}

/* What follows from a config whose numbers are possible. */
static abar_status fill_in(abar_context *ctx, const abar_dataset_info *info, abar__loader_plan *p)
{
    const abar_loader_config *c = &p->config;
    p->batches = batch_count(info, c);
    p->samples = sample_count(info, c);
    p->slot_count = c->threads == 0 ? 1 : (c->prefetch == 0 ? 2 : c->prefetch) + 1;
    p->workers = c->threads > 0 ? c->threads : 1;
    p->repeat = 1;
    p->own_first = c->rows > 0 ? c->first_row : 0;
    p->own_rows = c->rows > 0 ? c->rows : c->batch;
    p->claim = p->own_rows; /* images in memory are made faster than threads can agree on them */
    p->height = info->text ? 0 : info->height;
    p->width = info->text ? 0 : info->width;
    if (info->streamed) ABAR_TRY(plan_streamed(ctx, info, p));
    if (lay_out(info, p)) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: is more than any memory holds, choose a smaller batch",
                      (long long)c->batch);
}

abar_status abar__loader_plan_make(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   abar__loader_plan *out)
{
    *out = (abar__loader_plan){0};
    ABAR_TRY(read_config(ctx, info, config, &out->config));
    ABAR_TRY(check(ctx, info, &out->config));
    return fill_in(ctx, info, out);
}

abar_status abar_loader_plan_bytes(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   size_t *out)
{
    abar__loader_plan p = {0};
    *out = 0;
    ABAR_TRY(read_config(ctx, info, config, &p.config));
    if (p.config.batch < 1 || p.config.context < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: a batch of %lld, windows of %lld tokens, choose at least 1 and 0",
                          (long long)p.config.batch, (long long)p.config.context);
    ABAR_TRY(check_threads(ctx, &p.config));
    ABAR_TRY(fill_in(ctx, info, &p));
    *out = p.total;
    return ABAR_OK;
}
