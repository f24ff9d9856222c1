/* The validation part: training samples that are held out and take the place of the test part.
 *
 * Images are drawn without replacement: a Fisher-Yates shuffle from the back, stopped when the last places are filled. So the
 * training part comes first in the block, the validation part follows, and nothing is copied. Of image files their numbers are
 * drawn. The end of a text is taken, because neighbouring windows overlap: the two parts then share no token. */
#include "data/data_impl.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

int64_t abar__validation_count(int64_t train, double fraction) { return (int64_t)floor(fraction * (double)train + 0.5); }

/* Borrowed images must not be moved. */
static abar_status copy_images(abar_dataset *data)
{
    const abar__part from = data->part[0];
    data->part[0] = (abar__part){0};
    data->borrowed = false;
    ABAR_TRY(abar__part_alloc(data, &data->part[0], from.count));
    memcpy(data->part[0].images, from.images, (size_t)(from.count * abar__image_bytes(&data->info)));
    memcpy(data->part[0].labels, from.labels, (size_t)from.count * sizeof *from.labels);
    return ABAR_OK;
}

static void drop_test_images(abar_dataset *data)
{
    abar__part *test = &data->part[1];
    if (!data->borrowed) {
        abar__free(data->ctx, test->images, (size_t)(test->count * abar__image_bytes(&data->info)));
        abar__free(data->ctx, test->labels, (size_t)test->count * sizeof *test->labels);
    }
    *test = (abar__part){0};
}

static void swap_bytes(uint8_t *a, uint8_t *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint8_t moved = a[i];
        a[i] = b[i];
        b[i] = moved;
    }
}

int64_t abar__hold_out_place(uint64_t seed, int64_t p)
{
    const uint32_t u = abar__random(seed, ABAR_DRAW_HOLD_OUT, 0, (uint64_t)p).u[0];
    return abar__below(u, (uint32_t)(p + 1));
}

static void draw_images(const abar__part *part, int64_t image, int64_t kept, uint64_t seed)
{
    for (int64_t p = part->count - 1; p >= kept; p--) {
        const int64_t q = abar__hold_out_place(seed, p);
        const int32_t label = part->labels[p];
        part->labels[p] = part->labels[q];
        part->labels[q] = label;
        if (q != p) swap_bytes(part->images + p * image, part->images + q * image, image);
    }
}

static abar_status hold_out_images(abar_dataset *data, int64_t kept, uint64_t seed)
{
    const int64_t image = abar__image_bytes(&data->info);
    abar__part *train = &data->part[0];
    drop_test_images(data);
    if (data->borrowed) ABAR_TRY(copy_images(data));
    draw_images(train, image, kept, seed);
    data->part[1].images = train->images + kept * image;
    data->part[1].labels = train->labels + kept;
    return ABAR_OK;
}

abar_status abar__dataset_hold_out(abar_dataset *data, double fraction, uint64_t seed)
{
    const int64_t n = data->part[0].count;
    if (!(fraction > 0.0 && fraction < 0.5))
        return abar__fail(data->ctx, ABAR_E_ARGUMENT, "validation %g: give a fraction of the training samples below 0.5",
                          fraction);
    const int64_t held = abar__validation_count(n, fraction);
    if (held == 0)
        return abar__fail(data->ctx, ABAR_E_ARGUMENT, "--validation %g: holds out none of the %lld training %s, choose more",
                          fraction, (long long)n, data->info.text ? "tokens" : "samples");
    if (data->info.text)
        data->part[1].tokens = data->part[0].tokens + (n - held);
    else if (data->info.streamed)
        ABAR_TRY(abar__streamed_hold_out(data, n - held, seed));
    else
        ABAR_TRY(hold_out_images(data, n - held, seed));
    data->info.train = data->part[0].count = n - held;
    data->info.test = data->part[1].count = held;
    data->info.validation = true;
    return ABAR_OK;
}
