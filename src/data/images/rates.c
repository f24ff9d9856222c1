#include "data/images/rates.h"
#include "base/clock.h"
#include "base/rng.h"
#include "data/data_impl.h"
#include "data/images/crew.h"
#include "data/images/draws.h"
#include "data/images/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 4608

typedef struct worker {
    abar__image_reader *reader;
    uint8_t *file, *pixels[2]; /* (3, side, side) */
    double read, view, policy; /* seconds */
} worker;

typedef struct rates {
    abar_context *ctx;
    const abar_dataset *data;
    abar_augment_config augment;
    uint64_t seed;
    int32_t side;
    int threads;
    size_t file_bytes, pixel_bytes;
    worker workers[ABAR_CREW_MAX];
    bool timed;             /* else files are read, and no more */
    atomic_llong failed;    /* the sample that could not be read or decoded; -1: none */
    atomic_bool of_decoder; /* why */
} rates;

/* The number in the index of image k. */
static int64_t draw_file(const rates *r, int64_t k)
{
    const abar__part *part = &r->data->part[0];
    const uint64_t word = abar__random(r->seed, ABAR_DRAW_ANALYSIS, 0, (uint64_t)k).u[0];
    return abar__streamed_file(part, (int64_t)((word * (uint64_t)part->count) >> 32));
}

static bool fail(rates *r, int64_t i, bool of_decoder)
{
    atomic_store(&r->failed, i);
    atomic_store(&r->of_decoder, of_decoder);
    return false;
}

static abar__image_view view_of(const rates *r, const abar__draw_key *key, const abar__image_header *h)
{
    if (r->augment.on) return abar__draw_view(key, &r->augment, h->width, h->height, r->side);
    return abar__image_centre(h->width, h->height, r->side, r->side, ABAR_IMAGE_BILINEAR);
}

static bool work(void *user, int number, int64_t k)
{
    rates *r = user;
    worker *w = &r->workers[number];
    const abar__images_index *index = r->data->images;
    const int part = r->data->part[0].side;
    const int64_t i = draw_file(r, k);
    const abar__draw_key key = {.seed = r->seed, .sample = (uint32_t)i};
    const size_t bytes = (size_t)abar__images_size(index, part, i);
    abar__image_header header;
    abar__image_fault fault;
    abar__image_change changes[ABAR_CHANGES_MAX];
    const double began = abar__seconds();
    if (bytes > r->file_bytes) return fail(r, i, true);
    if (abar__images_read(index, part, i, w->file) != ABAR_IMAGES_READ) return fail(r, i, false);
    if (!r->timed) return true;
    const double read = abar__seconds();
    if (!abar__image_look(w->file, bytes, &header, &fault)) return fail(r, i, true);
    const abar__image_view view = view_of(r, &key, &header);
    if (!abar__image_read(w->reader, w->file, bytes, &view, w->pixels[0], &fault)) return fail(r, i, true);
    const double viewed = abar__seconds();
    const int n = r->augment.on ? abar__draw_changes(&key, &r->augment, r->side, changes) : 0;
    for (int c = 0; c < n; c++) abar__image_apply(&changes[c], r->side, r->side, w->pixels[c % 2], w->pixels[(c + 1) % 2]);
    w->read += read - began;
    w->view += viewed - read;
    w->policy += abar__seconds() - viewed;
    return true;
}

static abar_status run(rates *r, int64_t count, bool timed)
{
    char name[NAME_MAX_BYTES];
    const abar__crew_job job = {.threads = r->threads, .count = count, .work = work, .user = r};
    r->timed = timed;
    atomic_store(&r->failed, -1);
    abar__crew_run(&job);
    const int64_t failed = atomic_load(&r->failed);
    if (failed < 0) return ABAR_OK;
    abar__images_name(r->data->images, r->data->part[0].side, failed, name, sizeof name);
    return abar__fail(r->ctx, ABAR_E_FORMAT, "%s: cannot be %s, check the data set with abar data", name,
                      atomic_load(&r->of_decoder) ? "decoded" : "read");
}

static abar_status measure(rates *r, int64_t count, abar__image_rates *out)
{
    double read = 0.0, view = 0.0, policy = 0.0;
    for (int i = 0; i < r->threads; i++) {
        worker *w = &r->workers[i];
        ABAR_TRY(abar__image_reader_create(r->ctx, &w->reader));
        ABAR_TRY(abar__alloc(r->ctx, r->file_bytes, (void **)&w->file));
        for (int k = 0; k < 2; k++) ABAR_TRY(abar__alloc(r->ctx, r->pixel_bytes, (void **)&w->pixels[k]));
    }
    ABAR_TRY(run(r, count, false));
    ABAR_TRY(run(r, count, true));
    for (int i = 0; i < r->threads; i++) {
        read += r->workers[i].read;
        view += r->workers[i].view;
        policy += r->workers[i].policy;
    }
    const double images = (double)count * r->threads;
    const bool changes = r->augment.on && r->augment.policy != ABAR_POLICY_NONE;
    *out = (abar__image_rates){images / read, images / view, changes ? images / policy : 0.0};
    return ABAR_OK;
}

abar_status abar__image_rates_measure(const abar_dataset *data, const abar_augment_config *augment, uint64_t seed, int threads,
                                      int64_t count, abar__image_rates *out)
{
    int64_t largest;
    int32_t width, height;
    void *memory;
    ABAR_TRY(abar__alloc(data->ctx, sizeof(rates), &memory));
    rates *r = memory;
    abar__images_largest(data->images, &largest, &width, &height);
    if ((size_t)largest > ABAR_IMAGE_BYTES_MAX) largest = (int64_t)ABAR_IMAGE_BYTES_MAX;
    *r = (rates){.ctx = data->ctx,
                 .data = data,
                 .augment = *augment,
                 .seed = seed,
                 .side = (int32_t)data->info.height,
                 .threads = abar__crew_threads(threads),
                 .file_bytes = (size_t)largest,
                 .pixel_bytes = (size_t)(3 * data->info.height * data->info.width)};
    abar_status status = measure(r, count, out);
    for (int i = 0; i < r->threads; i++) {
        worker *w = &r->workers[i];
        abar__image_reader_destroy(w->reader);
        abar__free(r->ctx, w->file, r->file_bytes);
        for (int k = 0; k < 2; k++) abar__free(r->ctx, w->pixels[k], r->pixel_bytes);
    }
    abar__free(r->ctx, r, sizeof *r);
    return status;
}
