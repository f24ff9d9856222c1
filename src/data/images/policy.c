/* The policies: which operations change a sample, with the parameters of torchvision's TrivialAugmentWide, RandAugment and
 * ColorJitter, and of timm's rand-m9-mstd0.5-inc1 (docs/images.md). */
#include "data/images/draws_impl.h"

#include <math.h>

#define PI 3.141592653589793

static bool coin(uint32_t u) { return u >> 31; }

/* The filter of an operation and the colour of what comes from outside. u: the coin of timm's style. */
static abar__image_change start(const abar_augment_config *config, abar__operation operation, uint32_t u)
{
    const bool timm = config->style == ABAR_STYLE_TIMM;
    abar__image_change change = {.operation = operation, .filter = ABAR_IMAGE_BILINEAR};
    if (config->policy_filter != ABAR_FILTER_STYLE)
        change.filter = (abar__image_filter)config->policy_filter;
    else if (timm && coin(u))
        change.filter = ABAR_IMAGE_BICUBIC;
    if (timm) { /* 255 times ImageNet's mean */
        change.fill[0] = 124;
        change.fill[1] = 116;
        change.fill[2] = 104;
    }
    return change;
}

static void set_matrix(abar__image_change *change, double b, double c, double d, double f)
{
    const double matrix[6] = {1, b, c, d, 1, f};
    for (int i = 0; i < 6; i++) change->matrix[i] = matrix[i];
}

/* ---- torchvision ---- */

enum { BINS = 31 };

/* torch.linspace(low, high, 31)[i]: float32, built from both ends. */
static double linspace(double low, double high, int i)
{
    const float from = (float)low, to = (float)high, step = (to - from) / (BINS - 1);
    return i < BINS / 2 ? fmaf(step, (float)i, from) : fmaf(-step, (float)(BINS - 1 - i), to);
}

/* The largest magnitudes of both policies. */
typedef struct ranges {
    double shear, translate, rotate, enhance, posterize; /* posterize: bins per bit */
} ranges;

static ranges ranges_of(int64_t policy, int32_t side)
{
    if (policy == ABAR_POLICY_TRIVIAL) return (ranges){.99, 32, 135, .99, 5.0};
    return (ranges){.3, 150.0 / 331.0 * side, 30, .9, 7.5};
}

/* torchvision turns a shear into degrees and back, and divides sines by cosines in the vertical one. */
static void set_shear(abar__image_change *change, bool vertical, double magnitude)
{
    const double angle = (atan(magnitude) * (180.0 / PI)) * (PI / 180.0);
    if (vertical)
        set_matrix(change, 0, 0, sin(angle) / cos(angle), 0);
    else
        set_matrix(change, tan(angle), 0, 0, 0);
}

enum { /* torchvision's order */
       TV_IDENTITY,
       TV_SHEAR_X,
       TV_SHEAR_Y,
       TV_TRANSLATE_X,
       TV_TRANSLATE_Y,
       TV_ROTATE,
       TV_BRIGHTNESS,
       TV_COLOR,
       TV_CONTRAST,
       TV_SHARPNESS,
       TV_POSTERIZE,
       TV_SOLARIZE,
       TV_AUTOCONTRAST,
       TV_EQUALIZE,
       TV_COUNT
};

/* Operation which with magnitude bin. filter: the coin of timm's style. */
static abar__image_change torchvision_change(const abar_augment_config *config, int32_t side, uint32_t which, int bin,
                                             bool negate, uint32_t filter)
{
    static const abar__operation operations[TV_COUNT] = {
        [TV_IDENTITY] = ABAR_OPERATION_NONE,
        [TV_SHEAR_X] = ABAR_OPERATION_AFFINE,
        [TV_SHEAR_Y] = ABAR_OPERATION_AFFINE,
        [TV_TRANSLATE_X] = ABAR_OPERATION_AFFINE,
        [TV_TRANSLATE_Y] = ABAR_OPERATION_AFFINE,
        [TV_ROTATE] = ABAR_OPERATION_ROTATE,
        [TV_BRIGHTNESS] = ABAR_OPERATION_BRIGHTNESS,
        [TV_COLOR] = ABAR_OPERATION_COLOR,
        [TV_CONTRAST] = ABAR_OPERATION_CONTRAST,
        [TV_SHARPNESS] = ABAR_OPERATION_SHARPNESS,
        [TV_POSTERIZE] = ABAR_OPERATION_POSTERIZE,
        [TV_SOLARIZE] = ABAR_OPERATION_SOLARIZE,
        [TV_AUTOCONTRAST] = ABAR_OPERATION_AUTOCONTRAST,
        [TV_EQUALIZE] = ABAR_OPERATION_EQUALIZE,
    };
    const ranges most = ranges_of(config->policy, side);
    const double sign = negate ? -1 : 1;
    abar__image_change change = start(config, operations[which], filter);
    switch (which) {
    case TV_SHEAR_X:
    case TV_SHEAR_Y: set_shear(&change, which == TV_SHEAR_Y, sign * linspace(0, most.shear, bin)); break;
    case TV_TRANSLATE_X: set_matrix(&change, 0, -trunc(sign * linspace(0, most.translate, bin)), 0, 0); break;
    case TV_TRANSLATE_Y: set_matrix(&change, 0, 0, 0, -trunc(sign * linspace(0, most.translate, bin))); break;
    case TV_ROTATE: change.value = sign * linspace(0, most.rotate, bin); break;
    case TV_BRIGHTNESS:
    case TV_COLOR:
    case TV_CONTRAST:
    case TV_SHARPNESS: change.value = 1 + sign * linspace(0, most.enhance, bin); break;
    case TV_POSTERIZE: change.value = 8 - rint(bin / most.posterize); break;
    case TV_SOLARIZE: change.value = linspace(255, 0, bin); break;
    default: break;
    }
    return change;
}

static int trivial(const abar__draw_key *key, const abar_augment_config *config, int32_t side, abar__image_change *out)
{
    const abar__draw d = abar__draw_block(key, ABAR_DRAW_POLICY, 0);
    const uint32_t which = abar__below(d.u[0], TV_COUNT);
    if (which == TV_IDENTITY) return 0;
    out[0] = torchvision_change(config, side, which, (int)abar__below(d.u[1], BINS), coin(d.u[2]), d.u[3]);
    return 1;
}

enum { LAYERS = 2 };

static int rand_torchvision(const abar__draw_key *key, const abar_augment_config *config, int32_t side, abar__image_change *out)
{
    int count = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const abar__draw d = abar__draw_block(key, ABAR_DRAW_POLICY, layer);
        const uint32_t which = abar__below(d.u[0], TV_COUNT);
        if (which == TV_IDENTITY) continue;
        out[count++] = torchvision_change(config, side, which, (int)config->policy_magnitude, coin(d.u[2]), d.u[3]);
    }
    return count;
}

/* ---- timm ---- */

enum { /* timm's order */
       TIMM_AUTOCONTRAST,
       TIMM_EQUALIZE,
       TIMM_INVERT,
       TIMM_ROTATE,
       TIMM_POSTERIZE,
       TIMM_SOLARIZE,
       TIMM_SOLARIZE_ADD,
       TIMM_COLOR,
       TIMM_CONTRAST,
       TIMM_BRIGHTNESS,
       TIMM_SHARPNESS,
       TIMM_SHEAR_X,
       TIMM_SHEAR_Y,
       TIMM_TRANSLATE_X,
       TIMM_TRANSLATE_Y,
       TIMM_COUNT
};

/* level: 0 to 1. */
static abar__image_change timm_change(const abar_augment_config *config, int32_t side, uint32_t which, double level,
                                      bool negate, uint32_t filter)
{
    static const abar__operation operations[TIMM_COUNT] = {
        [TIMM_AUTOCONTRAST] = ABAR_OPERATION_AUTOCONTRAST,
        [TIMM_EQUALIZE] = ABAR_OPERATION_EQUALIZE,
        [TIMM_INVERT] = ABAR_OPERATION_INVERT,
        [TIMM_ROTATE] = ABAR_OPERATION_ROTATE,
        [TIMM_POSTERIZE] = ABAR_OPERATION_POSTERIZE,
        [TIMM_SOLARIZE] = ABAR_OPERATION_SOLARIZE,
        [TIMM_SOLARIZE_ADD] = ABAR_OPERATION_SOLARIZE_ADD,
        [TIMM_COLOR] = ABAR_OPERATION_COLOR,
        [TIMM_CONTRAST] = ABAR_OPERATION_CONTRAST,
        [TIMM_BRIGHTNESS] = ABAR_OPERATION_BRIGHTNESS,
        [TIMM_SHARPNESS] = ABAR_OPERATION_SHARPNESS,
        [TIMM_SHEAR_X] = ABAR_OPERATION_AFFINE,
        [TIMM_SHEAR_Y] = ABAR_OPERATION_AFFINE,
        [TIMM_TRANSLATE_X] = ABAR_OPERATION_AFFINE,
        [TIMM_TRANSLATE_Y] = ABAR_OPERATION_AFFINE,
    };
    const double sign = negate ? -1 : 1;
    abar__image_change change = start(config, operations[which], filter);
    switch (which) {
    case TIMM_ROTATE: change.value = sign * (level * 30); break;
    case TIMM_POSTERIZE: change.value = 4 - trunc(level * 4); break;
    case TIMM_SOLARIZE: change.value = 256 - fmin(256, trunc(level * 256)); break;
    case TIMM_SOLARIZE_ADD: change.value = fmin(128, trunc(level * 110)); break;
    case TIMM_COLOR:
    case TIMM_CONTRAST:
    case TIMM_BRIGHTNESS:
    case TIMM_SHARPNESS: change.value = fmax(0.1, 1 + sign * (level * .9)); break;
    case TIMM_SHEAR_X: set_matrix(&change, sign * (level * .3), 0, 0, 0); break;
    case TIMM_SHEAR_Y: set_matrix(&change, 0, 0, sign * (level * .3), 0); break;
    case TIMM_TRANSLATE_X: set_matrix(&change, 0, sign * (level * .45) * side, 0, 0); break;
    case TIMM_TRANSLATE_Y: set_matrix(&change, 0, 0, 0, sign * (level * .45) * side); break;
    default: break;
    }
    return change;
}

static int rand_timm(const abar__draw_key *key, const abar_augment_config *config, int32_t side, abar__image_change *out)
{
    int count = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const abar__draw d = abar__draw_block(key, ABAR_DRAW_POLICY, 2 * layer);
        if (abar__uniform(d.u[1]) > 0.5) continue;
        double normal[2];
        abar__normal(abar__draw_block(key, ABAR_DRAW_POLICY, 2 * layer + 1), normal);
        const double magnitude = fmax(0, fmin(9 + normal[0] * 0.5, 10));
        out[count++] = timm_change(config, side, abar__below(d.u[0], TIMM_COUNT), magnitude / 10, coin(d.u[2]), d.u[3]);
    }
    return count;
}

/* ---- jitter ---- */

static int jitter(const abar__draw_key *key, const abar_augment_config *config, abar__image_change *out)
{
    static const abar__operation operations[3] = {ABAR_OPERATION_BRIGHTNESS, ABAR_OPERATION_CONTRAST, ABAR_OPERATION_COLOR};
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const abar__draw d = abar__draw_block(key, ABAR_DRAW_JITTER, 0);
    const double low = fmax(0, 1 - config->jitter), high = 1 + config->jitter;
    const int *order = orders[abar__below(d.u[3], 6)];
    for (int i = 0; i < 3; i++) {
        out[i] = start(config, operations[order[i]], 0);
        out[i].value = low + (high - low) * abar__uniform(d.u[order[i]]);
    }
    return 3;
}

int abar__draw_changes(const abar__draw_key *key, const abar_augment_config *config, int32_t side,
                       abar__image_change out[ABAR_CHANGES_MAX])
{
    switch (config->policy) {
    case ABAR_POLICY_TRIVIAL: return trivial(key, config, side, out);
    case ABAR_POLICY_RAND: return rand_torchvision(key, config, side, out);
    case ABAR_POLICY_RAND_TIMM: return rand_timm(key, config, side, out);
    case ABAR_POLICY_JITTER: return jitter(key, config, out);
    default: return 0;
    }
}
