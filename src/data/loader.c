/* The loader: which samples are in which batch, prefetching by worker threads, and seeking. A sample is an image, given by its
 * index, or a window of a text, given by its first token.
 *
 * Batches are claimed one after another under the lock; claiming decides their samples. Filling a claimed batch needs no
 * lock. The order of an epoch is a Fisher-Yates shuffle from the front: after step p, place p is final. So claiming a batch
 * takes only the steps up to its end, no epoch begins with a stall, and one order array serves however many epochs the
 * batches made ahead may span. */
#include "data/data_impl.h"

#include "base/rng.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#define THREADS_MAX 1024
#define PREFETCH_MAX 1024

typedef struct slot {
    uint8_t *images;  /* (batch, C, H, W), or ... */
    int32_t *tokens;  /* ... (batch, context), in the same place */
    int32_t *labels;  /* (batch), or (batch, context) */
    int32_t *samples; /* (batch): indices into the data set */
    int64_t count, epoch, index;
    bool ready;
} slot;

struct abar_loader {
    abar_context *ctx;
    const abar_dataset_info *info;
    const abar__part *part;
    abar_loader_config config;
    size_t bytes;
    int64_t batches, samples; /* per epoch */
    int slot_count;           /* prefetch, and the one the caller holds */
    slot *slots;
    int worker_count;
    pthread_t *workers;

    pthread_mutex_t lock; /* over everything below, and ready of the slots */
    pthread_cond_t room;  /* signalled to workers: a slot is free */
    pthread_cond_t done;  /* signalled to the caller: a batch was filled */
    int32_t *order;       /* (samples): final up to shuffled */
    int64_t shuffled;
    int64_t epoch, index;   /* the batch to be claimed next */
    int64_t claimed, taken; /* counts since create or seek; batch number n is in slot n mod slot_count */
    int filling;
    bool paused, quit;
};

/* ---- memory: one block, planned --------------------------------------------------------------------------------- */

typedef struct layout {
    size_t order, slots, workers, slot_data, images, labels, slot_bytes, total; /* offsets; the last two are sizes */
    int slot_count;
} layout;

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
    if (c->test) return (n + c->batch - 1) / c->batch;
    if (info->text && c->steps > 0) return c->steps;
    return info->text && n < c->batch ? 1 : n / c->batch;
}

static int64_t sample_count(const abar_dataset_info *info, const abar_loader_config *c)
{
    if (!info->text) return part_count(info, c);
    return c->test ? window_count(info, c) : batch_count(info, c) * c->batch;
}

static size_t sample_bytes(const abar_dataset_info *info, const abar_loader_config *c)
{
    return info->text ? (size_t)c->context * sizeof(int32_t) : (size_t)abar__image_bytes(info);
}

static int64_t labels_each(const abar_dataset_info *info, const abar_loader_config *c) { return info->text ? c->context : 1; }

static size_t place(size_t *at, size_t bytes)
{
    size_t start = *at;
    *at = abar__round_up(start + bytes, ABAR_ALIGN);
    return start;
}

/* False when the sizes overflow. */
static bool plan(const abar_dataset_info *info, const abar_loader_config *c, layout *out)
{
    *out = (layout){.slot_count = c->threads == 0 ? 1 : (c->prefetch == 0 ? 2 : c->prefetch) + 1};
    size_t batch = (size_t)c->batch, sample = sample_bytes(info, c), labels = (size_t)labels_each(info, c);
    if ((double)batch * ((double)sample + 4.0 * (double)labels + 64.0) * out->slot_count > (double)(SIZE_MAX / 4)) return false;
    size_t one = 0, shuffled = c->test || info->text ? 0 : (size_t)sample_count(info, c);
    place(&one, batch * sizeof(int32_t));
    out->labels = place(&one, batch * labels * sizeof(int32_t));
    out->images = place(&one, batch * sample);
    out->slot_bytes = one;
    place(&out->total, sizeof(abar_loader));
    out->order = place(&out->total, shuffled * sizeof(int32_t));
    out->slots = place(&out->total, (size_t)out->slot_count * sizeof(slot));
    out->workers = place(&out->total, (size_t)c->threads * sizeof(pthread_t));
    out->slot_data = place(&out->total, (size_t)out->slot_count * one);
    return true;
}

static abar_status copy_config(abar_context *ctx, const abar_loader_config *from, abar_loader_config *to)
{
    ABAR_TRY(abar__struct_read(ctx, "abar_loader_config", from, to, sizeof *to));
    if (to->test) {
        to->crop_pad = 0;
        to->flip = false;
    }
    return ABAR_OK;
}

abar_status abar_loader_plan_bytes(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   size_t *out)
{
    abar_loader_config c;
    layout l = {0};
    *out = 0;
    ABAR_TRY(copy_config(ctx, config, &c));
    if (c.batch < 1 || c.threads < 0 || c.prefetch < 0 || c.context < 0 || !plan(info, &c, &l))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: a number is negative or the batch is more than any memory holds");
    *out = l.total;
    return ABAR_OK;
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

/* The order before the shuffle. */
static void in_order(int32_t *order, int64_t n)
{
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
}

/* Fisher-Yates over n samples, steps from .. to of it. */
static void shuffle(uint64_t seed, int64_t epoch, int32_t *order, int64_t n, int64_t from, int64_t to)
{
    for (int64_t p = from; p < to; p++) {
        uint32_t u = abar__random(seed, ABAR_DRAW_ORDER, (uint32_t)epoch, (uint64_t)p).u[0];
        int64_t q = p + abar__below(u, (uint32_t)(n - p));
        int32_t moved = order[p];
        order[p] = order[q];
        order[q] = moved;
    }
}

static bool is_shuffled(const abar_loader *l) { return !l->config.test && !l->info->text; }

static void begin_epoch(abar_loader *l)
{
    l->shuffled = 0;
    if (is_shuffled(l)) in_order(l->order, l->samples);
}

/* Shuffles until places 0 .. end of the order are final. */
static void shuffle_to(abar_loader *l, int64_t end)
{
    if (!is_shuffled(l) || end <= l->shuffled) return;
    shuffle(l->config.seed, l->epoch, l->order, l->samples, l->shuffled, end);
    l->shuffled = end;
}

/* The first token of the window at this place of the epoch: drawn for training, consecutive for testing. */
static int32_t window_start(const abar_loader *l, int64_t epoch, int64_t place)
{
    if (l->config.test) return (int32_t)(place * l->config.context);
    const uint32_t u = abar__random(l->config.seed, ABAR_DRAW_WINDOW, (uint32_t)epoch, (uint64_t)place).u[0];
    return (int32_t)abar__below(u, (uint32_t)(l->part->count - l->config.context));
}

/* The sample at this place of the epoch being claimed. */
static int32_t sample_at(const abar_loader *l, int64_t place)
{
    if (l->info->text) return window_start(l, l->epoch, place);
    return l->config.test ? (int32_t)place : l->order[place];
}

/* Assigns the next batch its epoch, index and samples. */
static slot *claim(abar_loader *l)
{
    slot *s = &l->slots[l->claimed++ % l->slot_count];
    int64_t batch = l->config.batch, start = l->index * batch, left = l->samples - start;
    if (l->index == 0) begin_epoch(l);
    s->epoch = l->epoch;
    s->index = l->index;
    s->count = left < batch ? left : batch;
    shuffle_to(l, start + s->count);
    for (int64_t i = 0; i < s->count; i++) s->samples[i] = sample_at(l, start + i);
    if (++l->index == l->batches) {
        l->index = 0;
        l->epoch++;
    }
    return s;
}

/* ---- filling -------------------------------------------------------------------------------------------------- */

static void fill_windows(const abar_loader *l, slot *s)
{
    const int64_t context = l->config.context;
    for (int64_t i = 0; i < l->config.batch; i++) {
        const uint16_t *from = l->part->tokens + s->samples[i < s->count ? i : 0];
        int32_t *tokens = s->tokens + i * context, *labels = s->labels + i * context;
        for (int64_t t = 0; t < context; t++) {
            tokens[t] = from[t];
            labels[t] = from[t + 1];
        }
    }
}

static void fill_images(const abar_loader *l, slot *s)
{
    const abar_dataset_info *info = l->info;
    const abar_loader_config *c = &l->config;
    const int64_t image = abar__image_bytes(info);
    const size_t element = info->floats ? sizeof(float) : 1;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t sample = s->samples[i];
        const uint8_t *from = l->part->images + sample * image;
        s->labels[i] = l->part->labels[sample];
        if (c->crop_pad > 0 || c->flip) {
            abar__augmentation a = abar__augment_draw(c->seed, s->epoch, sample, c->crop_pad, c->flip);
            abar__augment_apply(a, info->channels, info->height, info->width, element, from, s->images + i * image);
        } else {
            memcpy(s->images + i * image, from, (size_t)image);
        }
    }
    for (int64_t i = s->count; i < c->batch; i++) {
        s->labels[i] = s->labels[0];
        memcpy(s->images + i * image, s->images, (size_t)image);
    }
}

static void fill(const abar_loader *l, slot *s)
{
    if (l->info->text)
        fill_windows(l, s);
    else
        fill_images(l, s);
}

static void *work(void *argument)
{
    abar_loader *l = argument;
    int ahead = l->slot_count - 1;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->quit && (l->paused || l->claimed - l->taken >= ahead)) pthread_cond_wait(&l->room, &l->lock);
        if (l->quit) break;
        slot *s = claim(l);
        l->filling++;
        pthread_mutex_unlock(&l->lock);
        fill(l, s);
        pthread_mutex_lock(&l->lock);
        l->filling--;
        s->ready = true;
        pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- create and destroy --------------------------------------------------------------------------------------- */

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

static abar_status check(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *c, layout *out)
{
    int64_t samples = sample_count(info, c), side = info->height < info->width ? info->height : info->width;
    if (c->batch < 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: holds no sample, choose at least 1", (long long)c->batch);
    if (info->text) ABAR_TRY(check_windows(ctx, info, c));
    if (!c->test && c->batch > samples)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: the training set has only %lld samples, choose a smaller batch",
                          (long long)c->batch, (long long)samples);
    if (c->crop_pad < 0 || (c->crop_pad > 0 && c->crop_pad >= side))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "crop padding %lld: the images are %lld x %lld, choose 0 to %lld",
                          (long long)c->crop_pad, (long long)info->height, (long long)info->width, (long long)side - 1);
    if (c->threads < 0 || c->threads > THREADS_MAX || c->prefetch < 0 || c->prefetch > PREFETCH_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "loader: %d threads, %d batches ahead, choose 0 to %d and 0 to %d", c->threads,
                          c->prefetch, THREADS_MAX, PREFETCH_MAX);
    if (!plan(info, c, out))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "batch %lld: is more than any memory holds, choose a smaller batch",
                          (long long)c->batch);
    return ABAR_OK;
}

static void lay_out(abar_loader *l, const layout *at)
{
    char *base = (char *)l;
    l->order = (int32_t *)(void *)(base + at->order);
    l->slots = (slot *)(void *)(base + at->slots);
    l->workers = (pthread_t *)(void *)(base + at->workers);
    l->slot_count = at->slot_count;
    for (int i = 0; i < at->slot_count; i++) {
        char *data = base + at->slot_data + (size_t)i * at->slot_bytes;
        l->slots[i].samples = (int32_t *)(void *)data;
        l->slots[i].labels = (int32_t *)(void *)(data + at->labels);
        l->slots[i].images = (uint8_t *)(data + at->images);
        l->slots[i].tokens = (int32_t *)(void *)(data + at->images);
    }
}

/* Workers block all signals, so that the caller's threads receive them. */
static abar_status start_workers(abar_loader *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (l->worker_count < l->config.threads && error == 0) {
        error = pthread_create(&l->workers[l->worker_count], NULL, work, l);
        if (error == 0) l->worker_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return ABAR_OK;
    return abar__fail(l->ctx, ABAR_E_BACKEND, "loader: only %d of %d threads could be started (%s), free memory or use fewer",
                      l->worker_count, l->config.threads, strerror(error));
}

abar_status abar_loader_create(abar_context *ctx, const abar_dataset *data, const abar_loader_config *config, abar_loader **out)
{
    abar_loader_config c;
    layout at = {0};
    void *memory;
    *out = NULL;
    ABAR_TRY(copy_config(ctx, config, &c));
    ABAR_TRY(check(ctx, &data->info, &c, &at));
    ABAR_TRY(abar__alloc(ctx, at.total, &memory));
    abar_loader *l = memory;
    l->ctx = ctx;
    l->info = &data->info;
    l->part = &data->part[c.test];
    l->config = c;
    l->bytes = at.total;
    l->batches = batch_count(&data->info, &c);
    l->samples = sample_count(&data->info, &c);
    lay_out(l, &at);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->room, NULL);
    pthread_cond_init(&l->done, NULL);
    abar_status status = start_workers(l);
    if (status != ABAR_OK) {
        abar_loader_destroy(l);
        return status;
    }
    *out = l;
    return ABAR_OK;
}

void abar_loader_destroy(abar_loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->quit = true;
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->worker_count; i++) pthread_join(l->workers[i], NULL);
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->room);
    pthread_mutex_destroy(&l->lock);
    abar__free(l->ctx, l, l->bytes);
}

int64_t abar_loader_order_count(const abar_loader *l)
{
    const int64_t taken = l->batches * l->config.batch;
    return taken > l->samples ? taken : l->samples;
}

void abar_loader_order(const abar_loader *l, int64_t epoch, int32_t *out)
{
    const int64_t n = l->samples, batch = l->config.batch, taken = l->batches * batch;
    if (!l->info->text) in_order(out, n);
    for (int64_t i = 0; i < n && l->info->text; i++) out[i] = window_start(l, epoch, i);
    if (is_shuffled(l)) shuffle(l->config.seed, epoch, out, n, 0, taken);
    for (int64_t i = n; i < taken; i++) out[i] = out[n / batch * batch];
}

int64_t abar_loader_batches(const abar_loader *l) { return l->batches; }
int64_t abar_loader_samples(const abar_loader *l) { return l->samples; }
size_t abar_loader_bytes(const abar_loader *l) { return l->bytes; }

/* ---- use ------------------------------------------------------------------------------------------------------ */

static slot *wait_for_next(abar_loader *l)
{
    pthread_mutex_lock(&l->lock);
    slot *s = &l->slots[l->taken % l->slot_count];
    while (!s->ready) pthread_cond_wait(&l->done, &l->lock);
    s->ready = false;
    l->taken++; /* the previous slot becomes free and the new one is held: claimed - taken stays below slot_count */
    pthread_cond_signal(&l->room);
    pthread_mutex_unlock(&l->lock);
    return s;
}

abar_status abar_loader_next(abar_loader *l, abar_batch *out)
{
    slot *s;
    ABAR_TRY(abar__struct_check(l->ctx, "abar_batch", out, sizeof *out));
    if (l->worker_count > 0) {
        s = wait_for_next(l);
    } else {
        s = claim(l);
        fill(l, s);
    }
    const bool text = l->info->text, floats = l->info->floats;
    const abar_batch batch = {.images = text || floats ? NULL : s->images,
                              .floats = floats ? (const float *)(const void *)s->images : NULL,
                              .tokens = text ? s->tokens : NULL,
                              .labels = s->labels,
                              .count = s->count,
                              .epoch = s->epoch,
                              .index = s->index};
    abar__struct_write(&batch, sizeof batch, out);
    return ABAR_OK;
}

abar_status abar_loader_seek(abar_loader *l, int64_t epoch, int64_t index)
{
    if (epoch < 0 || index < 0 || index > l->batches)
        return abar__fail(l->ctx, ABAR_E_ARGUMENT, "loader: no batch %lld of epoch %lld, choose 0 to %lld", (long long)index,
                          (long long)epoch, (long long)l->batches);
    pthread_mutex_lock(&l->lock);
    l->paused = true;
    while (l->filling > 0) pthread_cond_wait(&l->done, &l->lock);
    for (int i = 0; i < l->slot_count; i++) l->slots[i].ready = false;
    l->claimed = l->taken = 0;
    l->epoch = index == l->batches ? epoch + 1 : epoch;
    l->index = index == l->batches ? 0 : index;
    begin_epoch(l);
    shuffle_to(l, l->index * l->config.batch);
    l->paused = false;
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    return ABAR_OK;
}
