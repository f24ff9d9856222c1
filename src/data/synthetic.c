/* A data set made from a seed. Every class and channel has a periodic 4 x 4 grid of random heights. A sample scales its
 * class's grids, adds fresh random grids of its own (so that classes overlap), shifts the whole, draws it bilinearly over
 * the image and adds noise per pixel. All in integers: the same bytes on every machine. */
#include "data/data_impl.h"

#include "base/rng.h"

#define GRID 4 /* a power of two; GRID * GRID heights are one draw of 16 bytes */
#define SIDE_MAX 4096
#define IMAGE_MAX ((int64_t)1 << 28)
#define CLASSES_MAX ((int64_t)1 << 20)

/* Fixed point: a position is in 1/65536 of a grid cell, so positions repeat after GRID << 16. */
#define POSITION_MASK (((uint32_t)GRID << 16) - 1)

typedef struct recipe {
    uint64_t seed;
    int64_t channels, height, width, classes;
} recipe;

static int32_t byte_of(const abar__draw *d, int i) { return (int32_t)(d->u[i / 4] >> (8 * (i % 4)) & 255u); }
static int32_t height_of(const abar__draw *d, int i) { return 2 * byte_of(d, i) - 255; } /* -255 .. 255, mean 0 */

/* Heights of the class's pattern times gain/256 plus the sample's own, in bytes of brightness times 256. */
static void mix_grids(const abar__draw *pattern, const abar__draw *own, int32_t gain, int32_t grid[GRID][GRID])
{
    for (int i = 0; i < GRID * GRID; i++) grid[i / GRID][i % GRID] = height_of(pattern, i) * gain + height_of(own, i) * 112;
}

/* One image row: grid rows above and below blended by fy/256, then along x. next: draw number of the row's first noise. */
static void draw_row(const int32_t above[GRID], const int32_t below[GRID], int32_t fy, uint32_t x0, int64_t width,
                     const recipe *r, uint64_t *next, uint8_t *out)
{
    int32_t blend[GRID + 1];
    for (int i = 0; i < GRID; i++) blend[i] = (above[i] * (256 - fy) + below[i] * fy) / 256;
    blend[GRID] = blend[0];
    uint32_t step = ((uint32_t)GRID << 16) / (uint32_t)width;
    abar__draw noise = {{0}};
    for (int64_t x = 0; x < width; x++) {
        if (x % 16 == 0) noise = abar__random(r->seed, ABAR_DRAW_SYNTHETIC, 0, (*next)++);
        uint32_t position = (x0 + (uint32_t)x * step) & POSITION_MASK;
        int32_t cell = (int32_t)(position >> 16), fx = (int32_t)(position >> 8 & 255u);
        int32_t smooth = blend[cell] * (256 - fx) + blend[cell + 1] * fx;
        int32_t value = 128 * 65536 + smooth + (byte_of(&noise, (int)(x % 16)) - 128) * 16384; /* brightness << 16 */
        value = value < 0 ? 0 : value >> 16;
        out[x] = (uint8_t)(value > 255 ? 255 : value);
    }
}

/* out: (C, H, W). Draw numbers from key on belong to this sample alone. */
static void draw_sample(const recipe *r, int64_t label, uint64_t key, uint8_t *out)
{
    uint64_t next = key;
    abar__draw d = abar__random(r->seed, ABAR_DRAW_SYNTHETIC, 0, next++);
    int32_t gain = 72 + (int32_t)abar__below(d.u[0], 65);
    uint32_t x0 = abar__below(d.u[1], 1u << 16), y0 = abar__below(d.u[2], 1u << 16); /* shifts by up to one cell */
    uint32_t step = ((uint32_t)GRID << 16) / (uint32_t)r->height;
    for (int64_t c = 0; c < r->channels; c++) {
        abar__draw pattern = abar__random(r->seed, ABAR_DRAW_SYNTHETIC, (uint32_t)label + 1, (uint64_t)c);
        abar__draw own = abar__random(r->seed, ABAR_DRAW_SYNTHETIC, 0, next++);
        int32_t grid[GRID][GRID];
        mix_grids(&pattern, &own, gain, grid);
        for (int64_t y = 0; y < r->height; y++, out += r->width) {
            uint32_t position = (y0 + (uint32_t)y * step) & POSITION_MASK;
            uint32_t cell = position >> 16;
            draw_row(grid[cell], grid[(cell + 1) % GRID], (int32_t)(position >> 8 & 255u), x0, r->width, r, &next, out);
        }
    }
}

static int64_t chosen(int64_t request, int64_t fallback) { return request == 0 ? fallback : request; }

static abar_status make_part(abar_dataset *data, const recipe *r, bool test, int64_t count)
{
    abar__part *part = &data->part[test];
    int64_t image = r->channels * r->height * r->width;
    ABAR_TRY(abar__part_alloc(data, part, count));
    for (int64_t i = 0; i < count; i++) {
        part->labels[i] = (int32_t)(i % r->classes);
        draw_sample(r, part->labels[i], (uint64_t)test << 63 | (uint64_t)i << 32, part->images + i * image);
    }
    return ABAR_OK;
}

abar_status abar__synthetic_make(abar_dataset *data, const abar_dataset_config *config)
{
    abar_dataset_info *info = &data->info;
    info->channels = chosen(config->channels, info->channels);
    info->height = chosen(config->height, info->height);
    info->width = chosen(config->width, info->width);
    info->classes = chosen(config->classes, info->classes);
    info->train = chosen(config->train, info->train);
    info->test = chosen(config->test, info->test);
    bool sane = info->channels >= 1 && info->channels <= SIDE_MAX && info->height >= 1 && info->height <= SIDE_MAX &&
                info->width >= 1 && info->width <= SIDE_MAX && abar__image_bytes(info) <= IMAGE_MAX;
    if (!sane)
        return abar__fail(
            data->ctx, ABAR_E_ARGUMENT, "synthetic: images of %lld x %lld x %lld, choose 1 to %d a side and at most %lld bytes",
            (long long)info->channels, (long long)info->height, (long long)info->width, SIDE_MAX, (long long)IMAGE_MAX);
    if (info->classes < 1 || info->classes > CLASSES_MAX || info->train < 1 || info->train > INT32_MAX || info->test < 1 ||
        info->test > INT32_MAX)
        return abar__fail(data->ctx, ABAR_E_ARGUMENT,
                          "synthetic: %lld classes, %lld + %lld samples, choose 1 to %lld classes and 1 to %lld samples",
                          (long long)info->classes, (long long)info->train, (long long)info->test, (long long)CLASSES_MAX,
                          (long long)INT32_MAX);
    recipe r = {config->seed, info->channels, info->height, info->width, info->classes};
    ABAR_TRY(make_part(data, &r, false, abar__limited(info->train, config->limit_train)));
    return make_part(data, &r, true, abar__limited(info->test, config->limit_test));
}
