/* Random resized crops, erased boxes, mixing and its noise (docs/images.md), each by counter. */
#include "data/images/draws_impl.h"

#include <math.h>

enum { TRIES = 10 };

abar__draw abar__draw_block(const abar__draw_key *key, abar__purpose purpose, uint32_t block)
{
    return abar__random(key->seed, purpose, key->epoch, key->sample | (uint64_t)key->repetition << 32 | (uint64_t)block << 40);
}

/* low to high by u in [0, 1) */
static double between(double low, double high, double u) { return low + (high - low) * u; }

/* ---- random resized crop ---- */

#define ASPECT_LOW (3.0 / 4.0)
#define ASPECT_HIGH (4.0 / 3.0)

/* The largest centred box of an allowed aspect. */
static abar__image_box centred_crop(int32_t width, int32_t height)
{
    abar__image_box box = {.height = height, .width = width};
    const double aspect = (double)width / height;
    if (aspect < ASPECT_LOW)
        box.height = (int32_t)rint(width / ASPECT_LOW);
    else if (aspect > ASPECT_HIGH)
        box.width = (int32_t)rint(height * ASPECT_HIGH);
    box.top = (height - box.height) / 2;
    box.left = (width - box.width) / 2;
    return box;
}

static abar__image_box draw_crop(const abar__draw_key *key, const abar_augment_config *config, int32_t width, int32_t height)
{
    const bool given = config->area_low != 0 || config->area_high != 0;
    const double low = given ? config->area_low : 0.08, high = given ? config->area_high : 1.0;
    for (uint32_t t = 0; t < TRIES; t++) {
        const abar__draw d = abar__draw_block(key, ABAR_DRAW_CROP, t);
        const double area = (double)width * height * between(low, high, abar__uniform(d.u[0]));
        const double aspect = exp(between(log(ASPECT_LOW), log(ASPECT_HIGH), abar__uniform(d.u[1])));
        const double w = rint(sqrt(area * aspect)), h = rint(sqrt(area / aspect));
        if (!(w > 0 && w <= width && h > 0 && h <= height)) continue;
        abar__image_box box = {.height = (int32_t)h, .width = (int32_t)w};
        box.top = (int32_t)abar__below(d.u[2], (uint32_t)(height - box.height) + 1);
        box.left = (int32_t)abar__below(d.u[3], (uint32_t)(width - box.width) + 1);
        return box;
    }
    return centred_crop(width, height);
}

abar__image_view abar__draw_view(const abar__draw_key *key, const abar_augment_config *config, int32_t width, int32_t height,
                                 int32_t side)
{
    const abar__draw d = abar__draw_block(key, ABAR_DRAW_CROP, TRIES);
    const bool bicubic = config->style == ABAR_STYLE_TIMM && d.u[1] >> 31;
    return (abar__image_view){.crop = draw_crop(key, config, width, height),
                              .height = side,
                              .width = side,
                              .window = {.height = side, .width = side},
                              .filter = bicubic ? ABAR_IMAGE_BICUBIC : ABAR_IMAGE_BILINEAR,
                              .mirror = config->flip && d.u[0] >> 31};
}

/* ---- erasing ---- */

void abar__draw_erasing(const abar__draw_key *key, const abar_augment_config *config, int32_t side, int16_t out[4])
{
    const bool timm = config->style == ABAR_STYLE_TIMM;
    const double most = timm ? 1.0 / 3.0 : 0.33, aspect_low = 0.3, aspect_high = timm ? 1.0 / 0.3 : 3.3;
    for (int i = 0; i < 4; i++) out[i] = 0;
    if (!(abar__uniform(abar__draw_block(key, ABAR_DRAW_ERASE, 0).u[0]) < config->erase)) return;
    for (uint32_t t = 0; t < TRIES; t++) {
        const abar__draw d = abar__draw_block(key, ABAR_DRAW_ERASE, 1 + t);
        const double area = (double)side * side * between(0.02, most, abar__uniform(d.u[0]));
        const double aspect = exp(between(log(aspect_low), log(aspect_high), abar__uniform(d.u[1])));
        const double h = rint(sqrt(area * aspect)), w = rint(sqrt(area / aspect));
        if (!(h < side && w < side)) continue;
        if (h < 1 || w < 1) return; /* an empty box, in an image of a few pixels */
        out[0] = (int16_t)abar__below(d.u[2], (uint32_t)(side - (int32_t)h) + 1);
        out[1] = (int16_t)abar__below(d.u[3], (uint32_t)(side - (int32_t)w) + 1);
        out[2] = (int16_t)h;
        out[3] = (int16_t)w;
        return;
    }
}

/* ---- mixing ---- */

/* The logarithm of a Gamma(alpha) number: Marsaglia and Tsang (2000) for alpha + 1, times U^(1/alpha). In logarithms nothing
 * underflows, however small alpha is. *block: of the next draw. */
static double log_gamma_number(const abar__draw_key *key, double alpha, uint32_t *block)
{
    const double d = (alpha + 1) - 1.0 / 3.0, c = 1 / sqrt(9 * d);
    for (;;) {
        double x[2];
        abar__normal(abar__draw_block(key, ABAR_DRAW_MIX, *block), x);
        const abar__draw words = abar__draw_block(key, ABAR_DRAW_MIX, *block + 1);
        const double accept = ((double)words.u[0] + 0.5) * 0x1p-32, boost = ((double)words.u[1] + 0.5) * 0x1p-32;
        *block += 2;
        const double t = 1 + c * x[0], v = t * t * t;
        if (t <= 0) continue;
        if (log(accept) < x[0] * x[0] / 2 + d - d * v + d * log(v)) return log(d * v) + log(boost) / alpha;
    }
}

/* A Beta(alpha, alpha) number. */
static double beta_number(const abar__draw_key *key, double alpha)
{
    uint32_t block = 1;
    const double first = log_gamma_number(key, alpha, &block), second = log_gamma_number(key, alpha, &block);
    return 1 / (1 + exp(second - first));
}

/* One axis of the box: centre +- half, clipped to [0, side). */
static void clip_box(int32_t centre, int32_t half, int32_t side, int16_t *from, int16_t *count)
{
    const int32_t low = centre - half < 0 ? 0 : centre - half, high = centre + half > side ? side : centre + half;
    *from = (int16_t)low;
    *count = (int16_t)(high - low);
}

bool abar__draw_mixing(uint64_t seed, uint32_t epoch, uint32_t group, const abar_augment_config *config, int32_t side,
                       abar__mixing *out)
{
    const abar__draw_key key = {.seed = seed, .epoch = epoch, .sample = group};
    const abar__draw d = abar__draw_block(&key, ABAR_DRAW_MIX, 0);
    *out = (abar__mixing){.share = 1};
    if (!(config->mixup > 0 || config->cutmix > 0)) return false;
    out->cutmix = config->cutmix > 0 && (!(config->mixup > 0) || abar__uniform(d.u[0]) < 0.5);
    out->share = beta_number(&key, out->cutmix ? config->cutmix : config->mixup);
    if (!out->cutmix) return true;
    const int32_t half = (int32_t)(0.5 * sqrt(1 - out->share) * side); /* timm's (int)(side * sqrt) / 2 is the same */
    clip_box((int32_t)abar__below(d.u[2], (uint32_t)side), half, side, &out->box[0], &out->box[2]);
    clip_box((int32_t)abar__below(d.u[1], (uint32_t)side), half, side, &out->box[1], &out->box[3]);
    out->share = 1 - (double)(out->box[2] * out->box[3]) / ((double)side * side);
    return true;
}

int32_t abar__mixing_partner(const abar_augment_config *config, int32_t i, int32_t n)
{
    if (config->style == ABAR_STYLE_TIMM) return n - 1 - i;
    return i == 0 ? n - 1 : i - 1;
}
