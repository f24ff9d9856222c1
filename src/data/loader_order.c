/* Which samples are in which batch. A sample is an image, given by its index, or a window of a text, given by its first token.
 *
 * The order of an epoch is a Fisher-Yates shuffle from the front: after step p, place p is final. So beginning a batch takes
 * only the steps up to its end, no epoch begins with a stall, and one order array serves however many epochs the batches made
 * ahead may span.
 *
 * With r repetitions, place p of an epoch is repetition p mod r of the sample at place p / r of the order. A batch has its
 * first copies first, so that copies of an image are no neighbours, which would be mixed with each other. */
#include "data/loader_impl.h"

#include "base/rng.h"

#include <string.h>

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

static bool is_shuffled(const abar_loader *l) { return !l->plan.config.test && !l->info->text; }

/* Places of the order that so many places of an epoch need. */
static int64_t order_places(const abar_loader *l, int64_t places) { return (places + l->plan.repeat - 1) / l->plan.repeat; }

void abar__loader_begin_epoch(abar_loader *l)
{
    l->shuffled = 0;
    if (is_shuffled(l)) in_order(l->order, l->plan.samples);
}

void abar__loader_shuffle_to(abar_loader *l, int64_t end)
{
    const int64_t needed = order_places(l, end);
    if (!is_shuffled(l) || needed <= l->shuffled) return;
    shuffle(l->plan.config.seed, l->epoch, l->order, l->plan.samples, l->shuffled, needed);
    l->shuffled = needed;
}

/* The first token of the window at this place of the epoch: drawn for training, consecutive for testing. */
static int32_t window_start(const abar_loader *l, int64_t epoch, int64_t place)
{
    const abar_loader_config *c = &l->plan.config;
    if (c->test) return (int32_t)(place * c->context);
    const uint32_t u = abar__random(c->seed, ABAR_DRAW_WINDOW, (uint32_t)epoch, (uint64_t)place).u[0];
    return (int32_t)abar__below(u, (uint32_t)(l->part->count - c->context));
}

/* The sample at this place of the order. */
static int32_t sample_at(const abar_loader *l, int64_t place)
{
    if (l->info->text) return window_start(l, l->epoch, place);
    return l->plan.config.test ? (int32_t)place : l->order[place];
}

/* The first place at or after start that has this repetition. */
static int64_t first_place(int64_t start, int64_t repetition, int64_t repeat)
{
    return start + (repetition - start % repeat + repeat) % repeat;
}

/* Of the whole batch, which ends before `end`. */
static void choose_samples(const abar_loader *l, abar__slot *s, int64_t start, int64_t end)
{
    const int64_t repeat = l->plan.repeat;
    int64_t row = 0;
    for (int64_t k = 0; k < repeat; k++)
        for (int64_t p = first_place(start, k, repeat); p < end; p += repeat, row++) {
            s->samples[row] = sample_at(l, p / repeat);
            if (s->repetitions) s->repetitions[row] = (uint8_t)k;
        }
}

/* The samples of this loader's rows, at the front. */
static void keep_own(const abar_loader *l, abar__slot *s)
{
    if (l->plan.own_first == 0) return;
    const size_t n = (size_t)s->wanted;
    memmove(s->samples, s->samples + l->plan.own_first, n * sizeof *s->samples);
    if (s->repetitions) memmove(s->repetitions, s->repetitions + l->plan.own_first, n);
}

abar__slot *abar__loader_begin_batch(abar_loader *l)
{
    abar__slot *s = &l->slots[l->claimed++ % l->plan.slot_count];
    const int64_t batch = l->plan.config.batch, start = l->index * batch, left = l->plan.samples - start;
    if (l->index == 0) abar__loader_begin_epoch(l);
    s->epoch = l->epoch;
    s->index = l->index;
    const int64_t whole = left < batch ? left : batch;
    s->count = s->wanted = l->plan.own_rows < batch ? l->plan.own_rows : whole;
    s->next = s->filled = 0;
    s->counted = false;
    s->failed_row = -1;
    abar__loader_shuffle_to(l, start + whole);
    choose_samples(l, s, start, start + whole);
    keep_own(l, s);
    if (++l->index == l->plan.batches) {
        l->index = 0;
        l->epoch++;
    }
    return s;
}

int64_t abar_loader_order_count(const abar_loader *l)
{
    const int64_t taken = l->plan.batches * l->plan.config.batch;
    return taken > l->plan.samples ? taken : l->plan.samples;
}

/* Replaces an order by the samples of the batches, in place: the last batch first, since a batch's samples are at earlier
 * places; in the first batch, the first copies are where they belong. */
static void repeat_order(const abar_loader *l, int32_t *out)
{
    const int64_t batch = l->plan.config.batch, repeat = l->plan.repeat;
    for (int64_t b = l->plan.batches - 1; b >= 0; b--) {
        int64_t row = b * batch;
        for (int64_t k = 0; k < repeat; k++)
            for (int64_t p = first_place(b * batch, k, repeat); p < (b + 1) * batch; p += repeat) out[row++] = out[p / repeat];
    }
}

void abar_loader_order(const abar_loader *l, int64_t epoch, int32_t *out)
{
    const int64_t n = l->plan.samples, batch = l->plan.config.batch, taken = l->plan.batches * batch;
    if (!l->info->text) in_order(out, n);
    for (int64_t i = 0; i < n && l->info->text; i++) out[i] = window_start(l, epoch, i);
    if (is_shuffled(l)) shuffle(l->plan.config.seed, epoch, out, n, 0, order_places(l, taken));
    if (l->plan.repeat > 1) repeat_order(l, out);
    for (int64_t i = n; i < taken; i++) out[i] = out[n / batch * batch];
}
