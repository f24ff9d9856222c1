/* The loader: prefetching by worker threads, the next batch, and seeking.
 *
 * Batches are begun one after another under the lock, which decides their samples. A thread claims rows of the batch begun
 * last, the oldest that is not complete, and fills them without the lock. In-memory batches are claimed whole. */
#include "data/loader_impl.h"

#include <signal.h>
#include <string.h>

/* ---- workers -------------------------------------------------------------------------------------------------- */

/* Batches that may be begun before the caller takes them. */
static int64_t ahead(const abar_loader *l) { return l->plan.slot_count > 1 ? l->plan.slot_count - 1 : 1; }

typedef struct claim {
    abar__slot *slot;
    int64_t from, to;
} claim;

/* The next rows to be filled. False: there are none for now. */
static bool claim_rows(abar_loader *l, claim *out)
{
    abar__slot *s = l->claimed > 0 ? &l->slots[(l->claimed - 1) % l->plan.slot_count] : NULL;
    if (!s || s->next == s->wanted) {
        if (l->claimed - l->taken >= ahead(l)) return false;
        s = abar__loader_begin_batch(l);
    }
    const int64_t left = s->wanted - s->next;
    *out = (claim){s, s->next, s->next + (left < l->plan.claim ? left : l->plan.claim)};
    s->next = out->to;
    return true;
}

/* Fills a claim. Called with the lock held, which it gives up meanwhile. */
static void carry_out(abar_loader *l, abar__loader_worker *w, const claim *c)
{
    abar__slot *s = c->slot;
    l->filling++;
    pthread_mutex_unlock(&l->lock);
    const bool filled = abar__loader_fill(l, s, w->stream, c->from, c->to);
    pthread_mutex_lock(&l->lock);
    if (filled) s->filled += c->to - c->from;
    if (filled && s->filled == s->wanted) { /* nobody else has it now */
        pthread_mutex_unlock(&l->lock);
        abar__loader_complete(l, s);
        pthread_mutex_lock(&l->lock);
        s->ready = true;
    }
    if (w->stream) w->bytes = abar__stream_bytes(w->stream);
    l->filling--;
}

static void *work(void *argument)
{
    abar__loader_worker *w = argument;
    abar_loader *l = w->loader;
    claim rows;
    pthread_mutex_lock(&l->lock);
    while (!l->quit) {
        if (l->paused || !claim_rows(l, &rows)) {
            pthread_cond_wait(&l->room, &l->lock);
            continue;
        }
        carry_out(l, w, &rows);
        if (rows.slot->ready || l->paused) pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- create and destroy --------------------------------------------------------------------------------------- */

static void set_pointers(abar_loader *l)
{
    const abar__loader_plan *p = &l->plan;
    char *base = (char *)l;
    l->order = (int32_t *)(void *)(base + p->order);
    l->slots = (abar__slot *)(void *)(base + p->slots);
    l->workers = (abar__loader_worker *)(void *)(base + p->worker);
    l->marks = (uint8_t *)(base + p->marks);
    for (int i = 0; i < p->workers; i++) l->workers[i].loader = l;
    for (int i = 0; i < p->slot_count; i++) {
        char *data = base + p->slot_data + (size_t)i * p->slot_bytes;
        l->slots[i] = (abar__slot){.samples = (int32_t *)(void *)data,
                                   .labels = (int32_t *)(void *)(data + p->labels),
                                   .images = (uint8_t *)(data + p->images),
                                   .tokens = (int32_t *)(void *)(data + p->images),
                                   .repetitions = l->info->streamed ? (uint8_t *)(data + p->repetitions) : NULL,
                                   .damaged = (int32_t *)(void *)(data + p->damaged),
                                   .rows = p->finishes ? (abar_row *)(void *)(data + p->rows) : NULL,
                                   .failed_row = -1};
        if (!p->config.encoded) continue;
        l->slots[i].files = (abar_encoded *)(void *)(data + p->files);
        l->slots[i].blocks = (abar__encoded_block *)(void *)(data + p->blocks);
    }
}

/* Buffers of the threads that read files. The largest image is known once the set was checked. */
static abar_status open_streams(abar_loader *l)
{
    int64_t bytes;
    int32_t width, height;
    if (!l->info->streamed) return ABAR_OK;
    abar__images_largest(l->data->images, &bytes, &width, &height);
    for (int i = 0; i < l->plan.workers; i++) {
        abar__loader_worker *w = &l->workers[i];
        ABAR_TRY(abar__stream_create(l->ctx, l->plan.view.side, width > 0 ? bytes : 0, &w->stream));
        w->bytes = abar__stream_bytes(w->stream);
    }
    return ABAR_OK;
}

/* Workers block all signals, so that the caller's threads receive them. */
static abar_status start_workers(abar_loader *l)
{
    const int wanted = l->plan.config.threads;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (l->started < wanted && error == 0) {
        error = pthread_create(&l->workers[l->started].thread, NULL, work, &l->workers[l->started]);
        if (error == 0) l->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return ABAR_OK;
    return abar__fail(l->ctx, ABAR_E_BACKEND, "loader: only %d of %d threads could be started (%s), free memory or use fewer",
                      l->started, wanted, strerror(error));
}

abar_status abar_loader_create(abar_context *ctx, const abar_dataset *data, const abar_loader_config *config, abar_loader **out)
{
    abar__loader_plan plan;
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__loader_plan_make(ctx, &data->info, config, &plan));
    ABAR_TRY(abar__alloc(ctx, plan.total, &memory));
    abar_loader *l = memory;
    l->ctx = ctx;
    l->data = data;
    l->info = &data->info;
    l->part = &data->part[plan.config.test];
    l->plan = plan;
    atomic_init(&l->abandon, false);
    set_pointers(l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->room, NULL);
    pthread_cond_init(&l->done, NULL);
    abar_status status = open_streams(l);
    if (status == ABAR_OK) status = start_workers(l);
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
    atomic_store(&l->abandon, true);
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->started; i++) pthread_join(l->workers[i].thread, NULL);
    for (int i = 0; i < l->plan.workers; i++) abar__stream_destroy(l->workers[i].stream);
    for (int i = 0; i < l->plan.slot_count && l->plan.config.encoded; i++)
        for (int64_t k = 0; k < l->plan.own_rows; k++) abar__encoded_release(l->ctx, &l->slots[i].blocks[k]);
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->room);
    pthread_mutex_destroy(&l->lock);
    abar__free(l->ctx, l, l->plan.total);
}

int64_t abar_loader_batches(const abar_loader *l) { return l->plan.batches; }
int64_t abar_loader_samples(const abar_loader *l) { return l->plan.samples; }

size_t abar_loader_bytes(const abar_loader *l)
{
    pthread_mutex_t *lock = &((abar_loader *)(uintptr_t)l)->lock;
    size_t bytes = l->plan.total;
    pthread_mutex_lock(lock);
    for (int i = 0; i < l->plan.workers; i++) bytes += l->workers[i].bytes;
    pthread_mutex_unlock(lock);
    return bytes;
}

/* ---- use ------------------------------------------------------------------------------------------------------ */

/* The batch that is next, filled by the threads, or by the caller if there are none. */
static abar__slot *wait_for_next(abar_loader *l)
{
    abar__slot *s = &l->slots[l->taken % l->plan.slot_count];
    claim rows;
    while (!s->ready)
        if (l->started > 0)
            pthread_cond_wait(&l->done, &l->lock);
        else if (claim_rows(l, &rows))
            carry_out(l, &l->workers[0], &rows);
    return s;
}

static abar_status take(abar_loader *l, abar__slot **out)
{
    pthread_mutex_lock(&l->lock);
    abar__slot *s = *out = wait_for_next(l);
    pthread_mutex_unlock(&l->lock);
    ABAR_TRY(abar__loader_inspect(l, s)); /* a failed batch stays the next one */
    pthread_mutex_lock(&l->lock);
    s->ready = false;
    l->taken++; /* the previous slot becomes free and the new one is held: claimed - taken stays below slot_count */
    if (l->info->streamed)
        pthread_cond_broadcast(&l->room); /* many threads fill one batch */
    else
        pthread_cond_signal(&l->room);
    pthread_mutex_unlock(&l->lock);
    return ABAR_OK;
}

abar_status abar_loader_next(abar_loader *l, abar_batch *out)
{
    abar__slot *s;
    ABAR_TRY(abar__struct_check(l->ctx, "abar_batch", out, sizeof *out));
    ABAR_TRY(take(l, &s));
    const bool text = l->info->text, floats = l->info->floats;
    const abar_batch batch = {.images = text || floats ? NULL : s->images,
                              .floats = floats ? (const float *)(const void *)s->images : NULL,
                              .tokens = text ? s->tokens : NULL,
                              .labels = s->labels,
                              .count = s->count,
                              .epoch = s->epoch,
                              .index = s->index,
                              .rows = s->rows,
                              .timm = s->rows && l->plan.config.augment.style == ABAR_STYLE_TIMM,
                              .seed = s->rows ? l->plan.config.seed : 0,
                              .height = l->plan.height,
                              .width = l->plan.width,
                              .first = l->plan.own_first,
                              .files = s->files};
    abar__struct_write(&batch, sizeof batch, out);
    return ABAR_OK;
}

abar_status abar_loader_seek(abar_loader *l, int64_t epoch, int64_t index)
{
    if (epoch < 0 || index < 0 || index > l->plan.batches)
        return abar__fail(l->ctx, ABAR_E_ARGUMENT, "loader: no batch %lld of epoch %lld, choose 0 to %lld", (long long)index,
                          (long long)epoch, (long long)l->plan.batches);
    pthread_mutex_lock(&l->lock);
    l->paused = true;
    atomic_store(&l->abandon, true);
    while (l->filling > 0) pthread_cond_wait(&l->done, &l->lock);
    atomic_store(&l->abandon, false);
    for (int i = 0; i < l->plan.slot_count; i++) l->slots[i].ready = false;
    l->claimed = l->taken = 0;
    l->epoch = index == l->plan.batches ? epoch + 1 : epoch;
    l->index = index == l->plan.batches ? 0 : index;
    abar__loader_begin_epoch(l);
    abar__loader_shuffle_to(l, l->index * l->plan.config.batch);
    l->paused = false;
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    return ABAR_OK;
}
