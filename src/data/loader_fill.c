/* The rows of a batch. Threads fill different rows of one batch at the same time; the last one completes the batch. */
#include "data/loader_impl.h"

#include <string.h>

/* Nobody waits for what is being filled any more. */
static bool abandoned(const abar_loader *l) { return atomic_load_explicit(&l->abandon, memory_order_relaxed); }

/* ---- images in memory, windows of a text -------------------------------------------------------------------------- */

static void fill_window(const abar_loader *l, abar__slot *s, int64_t i)
{
    const int64_t context = l->plan.config.context;
    const uint16_t *from = l->part->tokens + s->samples[i];
    int32_t *tokens = s->tokens + i * context, *labels = s->labels + i * context;
    for (int64_t t = 0; t < context; t++) {
        tokens[t] = from[t];
        labels[t] = from[t + 1];
    }
}

static void fill_image(const abar_loader *l, abar__slot *s, int64_t i)
{
    const abar_dataset_info *info = l->info;
    const abar_loader_config *c = &l->plan.config;
    const int64_t image = abar__image_bytes(info), sample = s->samples[i];
    const size_t element = info->floats ? sizeof(float) : 1;
    const uint8_t *from = l->part->images + sample * image;
    s->labels[i] = l->part->labels[sample];
    if (c->crop_pad > 0 || c->flip) {
        abar__augmentation a = abar__augment_draw(c->seed, s->epoch, sample, c->crop_pad, c->flip);
        abar__augment_apply(a, info->channels, info->height, info->width, element, from, s->images + i * image);
    } else {
        memcpy(s->images + i * image, from, (size_t)image);
    }
}

/* ---- streamed images ---------------------------------------------------------------------------------------------- */

static int64_t streamed_bytes(const abar_loader *l) { return l->info->channels * l->plan.height * l->plan.width; }

/* More than 1 % of a part ends a run. */
static bool too_many(const abar_loader *l, int64_t damaged) { return damaged * 100 > l->part->count; }

/* Whether a row may go without its own sample, the last of so many damaged ones in succession. */
static bool may_skip(const abar_loader *l, int64_t damaged) { return l->plan.config.skip_damaged && !too_many(l, damaged); }

/* The failure of the first row stays: which one that is does not depend on threads. */
static void keep_failure(abar_loader *l, abar__slot *s, int64_t row, int64_t sample, abar__stream_result failure,
                         const abar__stream_fault *fault)
{
    pthread_mutex_lock(&l->lock);
    if (s->failed_row < 0 || row < s->failed_row) {
        s->failed_row = row;
        s->failed_sample = sample;
        s->failure = failure;
        s->fault = *fault;
    }
    pthread_mutex_unlock(&l->lock);
}

static void describe_row(const abar_loader *l, const abar__draw_key *key, int64_t i, int32_t label, abar_row *out)
{
    *out = (abar_row){.partner = (int32_t)(l->plan.own_first + i),
                      .partner_label = label,
                      .share = 1.0f,
                      .epoch = key->epoch,
                      .sample = key->sample,
                      .repetition = key->repetition,
                      .label = label};
    abar__draw_erasing(key, &l->plan.view.augment, l->plan.view.side, out->erase);
}

static abar__stream_result read_row(const abar_loader *l, abar__slot *s, abar__stream *stream, int64_t i, int64_t sample,
                                    const abar__draw_key *key, abar__stream_fault *fault)
{
    const abar__images_index *index = l->data->images;
    const int64_t file = abar__streamed_file(l->part, sample);
    uint8_t *out = s->images + i * streamed_bytes(l);
    if (!s->files) return abar__stream_read(stream, index, l->part->side, file, &l->plan.view, key, out, fault);
    return abar__stream_read_encoded(stream, index, l->part->side, file, &l->plan.view, key, out, &s->blocks[i], &s->files[i],
                                     fault);
}

/* A damaged file's place is taken by the next sample that can be read, with the draws of the place. Testing leaves the place
 * empty. False: the row failed. */
static bool fill_streamed(abar_loader *l, abar__slot *s, abar__stream *stream, int64_t i)
{
    const abar__draw_key key = {.seed = l->plan.config.seed,
                                .epoch = (uint32_t)s->epoch,
                                .sample = (uint32_t)s->samples[i],
                                .repetition = s->repetitions[i]};
    const bool test = l->plan.config.test;
    abar__stream_fault fault;
    int32_t damaged = 0;
    int64_t sample = s->samples[i];
    for (;; sample = (sample + 1) % l->part->count) {
        const abar__stream_result result = read_row(l, s, stream, i, sample, &key, &fault);
        if (result == ABAR_STREAM_READ) break;
        if (result == ABAR_STREAM_DAMAGED && may_skip(l, ++damaged)) {
            if (test) break;
            if (abandoned(l)) return false;
            continue;
        }
        keep_failure(l, s, i, sample, result, &fault);
        return false;
    }
    s->damaged[i] = damaged;
    s->labels[i] = abar__streamed_label(l->data, l->part, sample);
    if (s->rows) describe_row(l, &key, i, s->labels[i], &s->rows[i]);
    return true;
}

bool abar__loader_fill(abar_loader *l, abar__slot *s, abar__stream *stream, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        if (abandoned(l)) return false;
        if (l->info->text)
            fill_window(l, s, i);
        else if (!stream)
            fill_image(l, s, i);
        else if (!fill_streamed(l, s, stream, i))
            return !abandoned(l); /* later rows of the claim are of no use */
    }
    return true;
}

/* ---- completing ------------------------------------------------------------------------------------------------- */

static size_t row_bytes(const abar_loader *l)
{
    if (l->info->text) return (size_t)l->plan.config.context * sizeof(int32_t);
    return (size_t)(l->info->streamed ? streamed_bytes(l) : abar__image_bytes(l->info));
}

static void copy_row(const abar_loader *l, abar__slot *s, int64_t to, int64_t from)
{
    const size_t bytes = row_bytes(l), labels = l->info->text ? (size_t)l->plan.config.context : 1;
    memcpy(s->images + (size_t)to * bytes, s->images + (size_t)from * bytes, bytes);
    memcpy(s->labels + (size_t)to * labels, s->labels + (size_t)from * labels, labels * sizeof *s->labels);
}

/* Rows of damaged files are left out: the others move up. */
static void leave_out(const abar_loader *l, abar__slot *s)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < s->wanted; i++) {
        if (s->damaged[i]) continue;
        if (kept < i) copy_row(l, s, kept, i);
        kept++;
    }
    s->count = kept;
    if (kept > 0) return;
    memset(s->images, 0, row_bytes(l));
    s->labels[0] = 0;
}

static void mix_group(const abar_loader *l, abar__slot *s, int64_t first, uint32_t number)
{
    const abar_augment_config *a = &l->plan.view.augment;
    const int32_t n = (int32_t)l->plan.group;
    abar__mixing mixing;
    if (!abar__draw_mixing(l->plan.config.seed, (uint32_t)s->epoch, number, a, l->plan.view.side, &mixing)) return;
    for (int32_t i = 0; i < n; i++) {
        const int64_t partner = first + abar__mixing_partner(a, i, n);
        abar_row *row = &s->rows[first + i];
        if (partner == first + i) continue;
        row->partner = (int32_t)(l->plan.own_first + partner);
        row->partner_label = s->labels[partner];
        row->share = (float)mixing.share;
        row->rest = (float)(1.0 - mixing.share);
        if (mixing.cutmix) memcpy(row->box, mixing.box, sizeof row->box);
    }
}

void abar__loader_complete(const abar_loader *l, abar__slot *s)
{
    const int64_t rows = l->plan.own_rows, groups = l->plan.mixes ? rows / l->plan.group : 0;
    const int64_t all = l->plan.mixes ? l->plan.config.batch / l->plan.group : 0,
                  before = l->plan.mixes ? l->plan.own_first / l->plan.group : 0;
    if (s->failed_row >= 0) return;
    if (l->info->streamed && l->plan.config.test) leave_out(l, s);
    for (int64_t i = s->count > 0 ? s->count : 1; i < rows; i++) copy_row(l, s, i, 0);
    for (int64_t g = 0; g < groups; g++) mix_group(l, s, g * l->plan.group, (uint32_t)(s->index * all + before + g));
}

/* ---- damaged files ------------------------------------------------------------------------------------------------ */

#define NAME_MAX_PRINTED 1024

static const char *part_name(const abar_loader *l)
{
    return !l->plan.config.test ? "training" : l->info->validation ? "validation" : "test";
}

static abar_status fail_damaged(const abar_loader *l, int64_t sample, int64_t damaged)
{
    char name[NAME_MAX_PRINTED];
    abar_dataset_sample_name(l->data, l->plan.config.test, sample, name, sizeof name);
    return abar__fail(
        l->ctx, ABAR_E_FORMAT,
        "%s: is damaged; %lld of the %lld files of the %s part are so far, more than 1 %%, repair or remove them, "
        "`abar data` lists them",
        name, (long long)damaged, (long long)l->part->count, part_name(l));
}

static abar_status report_failure(const abar_loader *l, const abar__slot *s)
{
    char name[NAME_MAX_PRINTED];
    abar_dataset_sample_name(l->data, l->plan.config.test, s->failed_sample, name, sizeof name);
    switch (s->failure) {
    case ABAR_STREAM_DAMAGED:
        if (l->plan.config.skip_damaged) return fail_damaged(l, s->failed_sample, l->part->count / 100 + 1);
        return abar__fail(l->ctx, ABAR_E_FORMAT, "%s: %s, replace it, or use other images for damaged ones with --damaged skip",
                          name, s->fault.image.text);
    case ABAR_STREAM_CHANGED:
        abar__images_drop_cache(l->data->images);
        return abar__fail(l->ctx, ABAR_E_IO, "%s: changed since it was indexed, begin again with the files as they are now",
                          name);
    case ABAR_STREAM_MEMORY:
        return abar__fail(l->ctx, ABAR_E_MEMORY, "%s: no memory to decode it, free some or use fewer --workers", name);
    default: return abar__fail(l->ctx, ABAR_E_IO, "%s: %s, check the disk and try again", name, strerror(s->fault.error));
    }
}

static void count_file(abar_loader *l, int64_t sample)
{
    uint8_t *mark = &l->marks[sample / 8];
    const uint8_t bit = (uint8_t)(1u << (sample % 8));
    if (*mark & bit) return;
    *mark |= bit;
    char name[NAME_MAX_PRINTED];
    if (l->damage.files < ABAR_DAMAGE_NAMED) {
        l->damage.first[l->damage.files] = sample;
        abar_dataset_sample_name(l->data, l->plan.config.test, sample, name, sizeof name);
        abar__log(l->ctx, ABAR_LOG_WARNING, "%s: is damaged and %s, `abar data` says why", name,
                  l->plan.config.test ? "left out" : "replaced by the next image");
    }
    l->damage.files++;
}

abar_status abar__loader_inspect(abar_loader *l, abar__slot *s)
{
    if (!l->info->streamed) return ABAR_OK;
    if (s->failed_row >= 0) return report_failure(l, s);
    for (int64_t i = 0; i < s->wanted && !s->counted; i++) {
        for (int32_t k = 0; k < s->damaged[i]; k++) count_file(l, (s->samples[i] + k) % l->part->count);
        l->damage.places += s->damaged[i] > 0;
    }
    s->counted = true;
    return too_many(l, l->damage.files) ? fail_damaged(l, l->damage.first[0], l->damage.files) : ABAR_OK;
}

abar_status abar_loader_damage(const abar_loader *l, abar_damage *out)
{
    ABAR_TRY(abar__struct_check(l->ctx, "abar_damage", out, sizeof *out));
    abar__struct_write(&l->damage, sizeof l->damage, out);
    return ABAR_OK;
}
