/* Everything random about images: against the oracle's draws (tests/oracle/images_draws.py), and their distributions. Numbers
 * that pass through exp or log may differ in their last bits; the oracle leaves out what such a bit would round otherwise. */
#include "io/io_test.h"

#include "base/rng.h"
#include "data/images/draws.h"
#include "image/change_text.h"

#include <inttypes.h>
#include <math.h>
#include <zlib.h>

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-10 * fmax(fabs(a), fabs(b)); }

static abar__draw_key read_key(FILE *file)
{
    abar__draw_key key;
    assert_int_equal(
        fscanf(file, "%" SCNu64 " %" SCNu32 " %" SCNu32 " %" SCNu32, &key.seed, &key.epoch, &key.sample, &key.repetition), 4);
    return key;
}

static int64_t read_integer(FILE *file)
{
    long long value;
    assert_int_equal(fscanf(file, "%lld", &value), 1);
    return value;
}

static double read_real(FILE *file)
{
    double value;
    assert_int_equal(fscanf(file, "%lf", &value), 1);
    return value;
}

static void expect_integers(FILE *file, const int64_t *found, int n, int at)
{
    for (int i = 0; i < n; i++) {
        const int64_t expected = read_integer(file);
        if (found[i] != expected)
            fail_msg("line %d, number %d: %lld instead of %lld", at, i, (long long)found[i], (long long)expected);
    }
}

static void check_view(FILE *file, int at)
{
    const abar__draw_key key = read_key(file);
    abar_augment_config config = {.on = true, .style = read_integer(file)};
    config.flip = read_integer(file) != 0;
    config.area_low = read_real(file);
    config.area_high = read_real(file);
    const int32_t width = (int32_t)read_integer(file), height = (int32_t)read_integer(file);
    assert_int_equal(fscanf(file, " :"), 0);
    const abar__image_view v = abar__draw_view(&key, &config, width, height, 33);
    const int64_t found[] = {v.crop.top, v.crop.left, v.crop.height, v.crop.width, v.filter == ABAR_IMAGE_BICUBIC, v.mirror};
    expect_integers(file, found, 6, at);
    assert_true(v.height == 33 && v.width == 33 && v.window.height == 33 && v.window.width == 33);
    assert_true(v.window.top == 0 && v.window.left == 0);
    if (config.area_low == 0.08) { /* the default */
        config.area_low = config.area_high = 0;
        const abar__image_view same = abar__draw_view(&key, &config, width, height, 33);
        assert_memory_equal(&same.crop, &v.crop, sizeof v.crop);
    }
}

static void check_changes(FILE *file, int at)
{
    static const char *const policies[] = {"none", "trivial", "rand", "rand-timm", "jitter"};
    static const char *const filters[] = {"style", "nearest", "bilinear", "bicubic"};
    abar_augment_config config = {.on = true, .policy = read_word(file, policies, 5)};
    const abar__draw_key key = read_key(file);
    config.style = read_integer(file);
    config.policy_magnitude = read_integer(file);
    config.policy_filter = read_word(file, filters, 4);
    config.jitter = read_real(file);
    const int32_t side = (int32_t)read_integer(file);
    assert_int_equal(fscanf(file, " :"), 0);
    abar__image_change found[ABAR_CHANGES_MAX];
    const int64_t count = abar__draw_changes(&key, &config, side, found);
    expect_integers(file, &count, 1, at);
    for (int i = 0; i < count; i++) {
        const abar__image_change expected = read_change(file);
        bool same = found[i].operation == expected.operation && close_to(found[i].value, expected.value) &&
                    found[i].filter == expected.filter && !memcmp(found[i].fill, expected.fill, 3);
        for (int k = 0; k < 6; k++) same = same && close_to(found[i].matrix[k], expected.matrix[k]);
        if (!same)
            fail_msg("line %d: change %d is another: operation %d, value %.17g", at, i, (int)found[i].operation,
                     found[i].value);
    }
}

static void check_erasing(FILE *file, int at)
{
    const abar__draw_key key = read_key(file);
    abar_augment_config config = {.on = true, .style = read_integer(file)};
    config.erase = read_real(file);
    const int32_t side = (int32_t)read_integer(file);
    assert_int_equal(fscanf(file, " :"), 0);
    int16_t box[4];
    abar__draw_erasing(&key, &config, side, box);
    expect_integers(file, (int64_t[]){box[0], box[1], box[2], box[3]}, 4, at);
}

static void check_mixing(FILE *file, int at)
{
    uint64_t seed;
    assert_int_equal(fscanf(file, "%" SCNu64, &seed), 1);
    const uint32_t epoch = (uint32_t)read_integer(file), group = (uint32_t)read_integer(file);
    abar_augment_config config = {.on = true, .style = read_integer(file)};
    config.mixup = read_real(file);
    config.cutmix = read_real(file);
    const int32_t side = (int32_t)read_integer(file);
    assert_int_equal(fscanf(file, " :"), 0);
    abar__mixing m;
    assert_true(abar__draw_mixing(seed, epoch, group, &config, side, &m));
    expect_integers(file, (int64_t[]){m.cutmix}, 1, at);
    const double share = read_real(file);
    if (!close_to(m.share, share)) fail_msg("line %d: share %.17g instead of %.17g", at, m.share, share);
    expect_integers(file, (int64_t[]){m.box[0], m.box[1], m.box[2], m.box[3]}, 4, at);
}

static void draws_equal_the_oracles(void **state)
{
    (void)state;
    static const char *const kinds[] = {"view", "changes", "erase", "mix"};
    FILE *file = open_golden("images_draws.txt");
    int at = 1;
    for (int c; (c = fgetc(file)) != EOF; at++) {
        ungetc(c, file);
        switch (read_word(file, kinds, 4)) {
        case 0: check_view(file, at); break;
        case 1: check_changes(file, at); break;
        case 2: check_erasing(file, at); break;
        default: check_mixing(file, at); break;
        }
        assert_int_equal(fgetc(file), '\n');
    }
    fclose(file);
    assert_true(at > 1000);
}

static void noise_table_is_the_published_one(void **state)
{
    (void)state;
    static float table[ABAR_NOISE_COUNT];
    abar__noise_table(table);
    uint8_t bytes[4 * ABAR_NOISE_COUNT];
    for (int i = 0; i < ABAR_NOISE_COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, &table[i], sizeof bits);
        for (int k = 0; k < 4; k++) bytes[4 * i + k] = (uint8_t)(bits >> (8 * k));
    }
    assert_int_equal(crc32(0, bytes, sizeof bytes), 0xda22b45b);
    for (int i = 0; i < ABAR_NOISE_COUNT; i++) { /* the quantile's definition */
        assert_true(fabs(0.5 * erfc(-table[i] / sqrt(2)) - (i + 0.5) / ABAR_NOISE_COUNT) < 1e-7);
        assert_true(table[i] == -table[ABAR_NOISE_COUNT - 1 - i]);
    }
}

/* ---- distributions ---- */

enum { DRAWS = 20000 };

static int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The integral of x^(a-1) (1-x)^(a-1) from 0 to x <= 1/2, over the whole: by s = x^a, which leaves a smooth integrand,
 * and Simpson's rule. */
static double beta_below(double a, double x)
{
    double whole[2] = {0};
    const double upper[2] = {x, 0.5};
    for (int k = 0; k < 2; k++) {
        enum { STEPS = 200 };
        const double end = pow(upper[k], a), step = end / STEPS;
        for (int i = 0; i <= STEPS; i++) {
            const double weight = i == 0 || i == STEPS ? 1 : i % 2 ? 4 : 2;
            whole[k] += weight * pow(1 - pow(i * step, 1 / a), a - 1) * step / 3;
        }
    }
    return 0.5 * whole[0] / whole[1];
}

static double beta_distribution(double a, double x) { return x <= 0.5 ? beta_below(a, x) : 1 - beta_below(a, 1 - x); }

/* Mean 1/2, variance 1/(4 (2a + 1)), and the largest distance of the distribution functions: a correct generator exceeds
 * 1.95/sqrt(n) once in a thousand times. The draws are fixed, so this either always holds or never. */
static void mixup_shares_are_beta_distributed(void **state)
{
    (void)state;
    static const double alphas[] = {0.2, 0.8, 1.0};
    static double shares[DRAWS];
    for (size_t k = 0; k < 3; k++) {
        const double a = alphas[k];
        const abar_augment_config config = {.on = true, .mixup = a};
        double sum = 0, squares = 0, farthest = 0;
        for (uint32_t g = 0; g < DRAWS; g++) {
            abar__mixing m;
            assert_true(abar__draw_mixing(11, 1, g, &config, 224, &m));
            assert_true(!m.cutmix && m.share >= 0 && m.share <= 1);
            shares[g] = m.share;
            sum += m.share - 0.5;
            squares += (m.share - 0.5) * (m.share - 0.5);
        }
        const double variance = 1 / (4 * (2 * a + 1));
        assert_true(fabs(sum / DRAWS) < 4 * sqrt(variance / DRAWS));
        assert_true(fabs(squares / DRAWS - variance) < 4 * 0.125 / sqrt(DRAWS)); /* squares lie in [0, 1/4] */
        qsort(shares, DRAWS, sizeof *shares, compare_reals);
        for (int i = 0; i < DRAWS; i++) {
            const double f = beta_distribution(a, shares[i]);
            farthest = fmax(farthest, fmax(f - (double)i / DRAWS, (i + 1.0) / DRAWS - f));
        }
        assert_true(farthest < 1.95 / sqrt(DRAWS));
    }
}

/* count of n trials with probability p, within four standard errors */
static bool frequent(int64_t count, int64_t n, double p)
{
    return fabs((double)count - (double)n * p) < 4 * sqrt((double)n * p * (1 - p));
}

static void coins_fall_evenly(void **state)
{
    (void)state;
    const abar_augment_config config = {.on = true, .style = ABAR_STYLE_TIMM, .flip = true, .mixup = 1, .cutmix = 1};
    int64_t mirrored = 0, bicubic = 0, both = 0, cut = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const abar__draw_key key = {.seed = 5, .epoch = 2, .sample = i};
        const abar__image_view v = abar__draw_view(&key, &config, 500, 375, 224);
        abar__mixing m;
        assert_true(abar__draw_mixing(5, 2, i, &config, 224, &m));
        mirrored += v.mirror;
        bicubic += v.filter == ABAR_IMAGE_BICUBIC;
        both += v.mirror && v.filter == ABAR_IMAGE_BICUBIC;
        cut += m.cutmix;
    }
    assert_true(frequent(mirrored, DRAWS, 0.5) && frequent(bicubic, DRAWS, 0.5) && frequent(both, DRAWS, 0.25));
    assert_true(frequent(cut, DRAWS, 0.5));
}

/* A square's crops: the drawn share is even in [0.08, 1] where both sides fit. */
static void crops_have_the_areas_asked_for(void **state)
{
    (void)state;
    const abar_augment_config config = {.on = true, .area_low = 0.25, .area_high = 0.5};
    double sum = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const abar__draw_key key = {.seed = 5, .epoch = 2, .sample = i};
        const abar__image_box box = abar__draw_view(&key, &config, 4000, 4000, 224).crop;
        const double share = (double)box.height * box.width / 16e6, aspect = (double)box.width / box.height;
        assert_true(share > 0.2499 && share < 0.5001 && aspect > 0.7499 && aspect < 1.3339);
        assert_true(box.top >= 0 && box.left >= 0 && box.top + box.height <= 4000 && box.left + box.width <= 4000);
        sum += share;
    }
    assert_true(fabs(sum / DRAWS - 0.375) < 4 * 0.25 / sqrt(12.0 * DRAWS));
}

static void policies_choose_evenly(void **state)
{
    (void)state;
    int64_t counts[2][ABAR_OPERATION_EQUALIZE + 1] = {{0}}, none = 0, negative = 0, rotated = 0, layers = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const abar__draw_key key = {.seed = 1, .epoch = 0, .sample = i};
        for (int k = 0; k < 2; k++) {
            const abar_augment_config config = {.on = true, .policy = k ? ABAR_POLICY_RAND_TIMM : ABAR_POLICY_TRIVIAL};
            abar__image_change changes[ABAR_CHANGES_MAX];
            const int n = abar__draw_changes(&key, &config, 176, changes);
            if (!k) none += n == 0;
            if (k) layers += n;
            for (int j = 0; j < n; j++) {
                counts[k][changes[j].operation]++;
                rotated += changes[j].operation == ABAR_OPERATION_ROTATE && changes[j].value != 0;
                negative += changes[j].operation == ABAR_OPERATION_ROTATE && changes[j].value < 0;
            }
        }
    }
    assert_true(frequent(none, DRAWS, 1.0 / 14) && frequent(layers, 2 * DRAWS, 0.5) && frequent(negative, rotated, 0.5));
    assert_true(frequent(counts[0][ABAR_OPERATION_AFFINE], DRAWS, 4.0 / 14));
    for (abar__operation o = ABAR_OPERATION_ROTATE; o <= ABAR_OPERATION_EQUALIZE; o++) {
        const bool timm_alone = o == ABAR_OPERATION_INVERT || o == ABAR_OPERATION_SOLARIZE_ADD;
        assert_true(timm_alone ? counts[0][o] == 0 : frequent(counts[0][o], DRAWS, 1.0 / 14));
        assert_true(frequent(counts[1][o], 2 * DRAWS, 0.5 / 15));
    }
    assert_true(frequent(counts[1][ABAR_OPERATION_AFFINE], 2 * DRAWS, 0.5 * 4 / 15));
}

static void erasing_happens_as_often_as_asked(void **state)
{
    (void)state;
    for (int timm = 0; timm < 2; timm++) {
        const abar_augment_config config = {.on = true, .style = timm, .erase = timm ? 0.25 : 0.1};
        int64_t erased = 0;
        double area = 0;
        for (uint32_t i = 0; i < DRAWS; i++) {
            const abar__draw_key key = {.seed = 9, .epoch = 4, .sample = i};
            int16_t box[4];
            abar__draw_erasing(&key, &config, 224, box);
            erased += box[2] > 0;
            area += (double)box[2] * box[3] / (224.0 * 224.0);
            assert_true(box[0] >= 0 && box[1] >= 0 && box[0] + box[2] <= 224 && box[1] + box[3] <= 224);
        }
        assert_true(frequent(erased, DRAWS, config.erase));
        const double mean = timm ? (0.02 + 1.0 / 3) / 2 : 0.175; /* boxes that do not fit are drawn again: a little less */
        assert_true(area / (double)erased > mean - 0.02 && area / (double)erased < mean + 0.005);
    }
}

/* ---- what no oracle says ---- */

static void draws_depend_on_every_part_of_the_key(void **state)
{
    (void)state;
    const abar_augment_config config = {.on = true, .erase = 1};
    const abar__draw_key keys[] = {{7, 3, 5, 1}, {8, 3, 5, 1}, {7, 4, 5, 1}, {7, 3, 6, 1}, {7, 3, 5, 2}};
    abar__image_box first = abar__draw_view(&keys[0], &config, 4000, 3000, 224).crop;
    for (int i = 1; i < 5; i++) {
        abar__image_box other = abar__draw_view(&keys[i], &config, 4000, 3000, 224).crop;
        assert_memory_not_equal(&first, &other, sizeof first);
    }
}

static void partners_are_those_of_the_style(void **state)
{
    (void)state;
    const abar_augment_config torchvision = {.style = ABAR_STYLE_TORCHVISION}, timm = {.style = ABAR_STYLE_TIMM};
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(abar__mixing_partner(&torchvision, i, 8), (i + 7) % 8);
        assert_int_equal(abar__mixing_partner(&timm, i, 8), 7 - i);
        assert_int_equal(abar__mixing_partner(&timm, abar__mixing_partner(&timm, i, 8), 8), i);
    }
    assert_int_equal(abar__mixing_partner(&torchvision, 0, 1), 0);
}

static void nothing_is_drawn_where_nothing_is_asked(void **state)
{
    (void)state;
    const abar_augment_config config = {.on = true};
    const abar__draw_key key = {.seed = 1};
    abar__image_change changes[ABAR_CHANGES_MAX];
    abar__mixing m;
    int16_t box[4] = {1, 1, 1, 1};
    assert_int_equal(abar__draw_changes(&key, &config, 32, changes), 0);
    assert_false(abar__draw_mixing(1, 0, 0, &config, 32, &m));
    assert_true(m.share == 1 && m.box[2] == 0);
    for (uint32_t i = 0; i < 200; i++) {
        const abar__draw_key at = {.seed = 1, .sample = i};
        abar__draw_erasing(&at, &config, 32, box);
        assert_int_equal(box[2], 0);
        assert_false(abar__draw_view(&at, &config, 50, 50, 32).mirror);
    }
}

/* Shares stay numbers where almost every draw is 0 or 1. */
static void mixing_of_tiny_parameters_is_finite(void **state)
{
    (void)state;
    const abar_augment_config config = {.on = true, .mixup = 1e-6};
    int64_t ones = 0;
    for (uint32_t g = 0; g < 2000; g++) {
        abar__mixing m;
        assert_true(abar__draw_mixing(3, 0, g, &config, 224, &m));
        assert_true(m.share >= 0 && m.share <= 1);
        ones += m.share > 0.5;
    }
    assert_true(frequent(ones, 2000, 0.5));
}

static void augment_check_names_each_mistake(void **state)
{
    (void)state;
    static const struct {
        abar_augment_config config;
        int32_t side;
        const char *text;
    } cases[] = {
        {{.on = true}, 0, "0 pixels"},
        {{.on = true}, 8193, "8193 pixels"},
        {{.on = false}, 0, "0 pixels"},
        {{.on = true, .style = 2}, 224, "style 2"},
        {{.on = true, .policy = 5}, 224, "policy 5"},
        {{.on = true, .policy = -1}, 224, "policy -1"},
        {{.on = true, .policy_filter = 4}, 224, "policy filter 4"},
        {{.on = true, .policy = ABAR_POLICY_RAND, .policy_magnitude = 31}, 224, "choose 0 to 30"},
        {{.on = true, .policy = ABAR_POLICY_JITTER, .jitter = -0.1}, 224, "jitter -0.1"},
        {{.on = true, .policy = ABAR_POLICY_JITTER, .jitter = NAN}, 224, "jitter"},
        {{.on = true, .area_low = 0.5, .area_high = 0.25}, 224, "crops of 0.5 to 0.25"},
        {{.on = true, .area_low = 0, .area_high = 1}, 224, "crops of 0 to 1"},
        {{.on = true, .area_low = 0.5, .area_high = 1.5}, 224, "crops of 0.5 to 1.5"},
        {{.on = true, .erase = 1.5}, 224, "erase 1.5"},
        {{.on = true, .erase = NAN}, 224, "probability"},
        {{.on = true, .mixup = -1}, 224, "mixup -1"},
        {{.on = true, .cutmix = INFINITY}, 224, "cutmix inf"},
        {{.on = true, .mixup = 1, .mix_group = -2}, 224, "mix group -2"},
        {{.on = true, .style = ABAR_STYLE_TIMM, .mixup = 1, .mix_group = 3}, 224, "choose an even group"},
        {{.on = true, .repeat = 256}, 224, "repeat 256"},
        {{.on = true, .repeat = -1}, 224, "repeat -1"},
    };
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(abar__augment_check(ctx, &cases[i].config, cases[i].side), ABAR_E_ARGUMENT);
        if (!strstr(abar_context_error(ctx), cases[i].text) || strchr(abar_context_error(ctx), '\n'))
            fail_msg("\"%s\" does not say \"%s\"", abar_context_error(ctx), cases[i].text);
    }
    static const abar_augment_config good[] = {
        {.on = false, .style = 9},
        {.on = true},
        {.on = true, .policy = ABAR_POLICY_TRIVIAL, .jitter = 0.4, .policy_magnitude = 99},
        {.on = true, .mixup = 0.2, .cutmix = 1, .mix_group = 3, .repeat = 255, .erase = 1},
        {.on = true, .style = ABAR_STYLE_TIMM, .mix_group = 3},
        {.on = true, .style = ABAR_STYLE_TIMM, .mixup = 0.8, .mix_group = 256, .area_low = 0.25, .area_high = 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_int_equal(abar__augment_check(ctx, &good[i], 224), ABAR_OK);
    test_context_end(ctx, &memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_equal_the_oracles),
        cmocka_unit_test(noise_table_is_the_published_one),
        cmocka_unit_test(mixup_shares_are_beta_distributed),
        cmocka_unit_test(coins_fall_evenly),
        cmocka_unit_test(crops_have_the_areas_asked_for),
        cmocka_unit_test(policies_choose_evenly),
        cmocka_unit_test(erasing_happens_as_often_as_asked),
        cmocka_unit_test(draws_depend_on_every_part_of_the_key),
        cmocka_unit_test(partners_are_those_of_the_style),
        cmocka_unit_test(nothing_is_drawn_where_nothing_is_asked),
        cmocka_unit_test(mixing_of_tiny_parameters_is_finite),
        cmocka_unit_test(augment_check_names_each_mistake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
