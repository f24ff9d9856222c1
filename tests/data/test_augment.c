/* Crop and flip against a pixel-by-pixel definition, the statistics of the draws, and normalisation to the last bit. */
#include "data/support.h"

#include "data/data_impl.h"

enum { C = 3, H = 6, W = 9 };

/* Pads with zeros, crops at (pad + dy, pad + dx), then mirrors: in that order, each step on its own. */
static void augment_naively(abar__augmentation a, int pad, const uint8_t *in, uint8_t *out)
{
    for (int c = 0; c < C; c++) {
        uint8_t padded[3 * H][3 * W] = {{0}}, crop[H][W];
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) padded[pad + y][pad + x] = in[(c * H + y) * W + x];
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) crop[y][x] = padded[pad + a.dy + y][pad + a.dx + x];
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) out[(c * H + y) * W + x] = crop[y][a.flip ? W - 1 - x : x];
    }
}

static void augment_equals_its_definition(void **state)
{
    (void)state;
    enum { PAD = H };
    uint8_t in[C * H * W], out[C * H * W + 1], expected[C * H * W];
    for (int i = 0; i < C * H * W; i++) in[i] = (uint8_t)(1 + i);
    for (int dy = -PAD; dy <= PAD; dy++)
        for (int dx = -PAD; dx <= PAD; dx++)
            for (int flip = 0; flip < 2; flip++) {
                abar__augmentation a = {.dx = dx, .dy = dy, .flip = flip};
                memset(out, 0xee, sizeof out);
                abar__augment_apply(a, C, H, W, in, out);
                augment_naively(a, PAD, in, expected);
                assert_memory_equal(out, expected, sizeof expected);
                assert_int_equal(out[sizeof expected], 0xee);
            }
}

static void augment_crop_off_the_image_is_black(void **state)
{
    (void)state;
    uint8_t in[C * H * W], out[C * H * W], black[C * H * W] = {0};
    memset(in, 9, sizeof in);
    const abar__augmentation off[] = {{.dx = W}, {.dx = -W}, {.dy = H}, {.dy = -H}, {.dx = 1000, .dy = -1000, .flip = true}};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        memset(out, 0xee, sizeof out);
        abar__augment_apply(off[i], C, H, W, in, out);
        assert_memory_equal(out, black, sizeof black);
    }
}

static void augment_draws_cover_the_range_evenly(void **state)
{
    (void)state;
    enum { PAD = 4, SIDE = 2 * PAD + 1, DRAWS = 81000 };
    int seen[SIDE][SIDE] = {{0}}, flips = 0;
    for (int i = 0; i < DRAWS; i++) {
        abar__augmentation a = abar__augment_draw(5, 3, i, PAD, true);
        assert_true(a.dx >= -PAD && a.dx <= PAD && a.dy >= -PAD && a.dy <= PAD);
        seen[a.dy + PAD][a.dx + PAD]++;
        flips += a.flip;
    }
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) assert_in_range(seen[y][x], 1000 - 160, 1000 + 160); /* five standard deviations */
    assert_in_range(flips, DRAWS / 2 - 712, DRAWS / 2 + 712);
}

static void augment_draw_depends_on_seed_epoch_and_sample_only(void **state)
{
    (void)state;
    int by_seed = 0, by_epoch = 0, by_sample = 0;
    for (int i = 0; i < 100; i++) {
        abar__augmentation a = abar__augment_draw(1, 2, i, 8, true), again = abar__augment_draw(1, 2, i, 8, true);
        abar__augmentation seed = abar__augment_draw(2, 2, i, 8, true), epoch = abar__augment_draw(1, 3, i, 8, true);
        abar__augmentation sample = abar__augment_draw(1, 2, i + 1, 8, true);
        assert_true(a.dx == again.dx && a.dy == again.dy && a.flip == again.flip);
        by_seed += a.dx != seed.dx || a.dy != seed.dy;
        by_epoch += a.dx != epoch.dx || a.dy != epoch.dy;
        by_sample += a.dx != sample.dx || a.dy != sample.dy;
    }
    assert_true(by_seed > 90 && by_epoch > 90 && by_sample > 90);
}

static void augment_switches_turn_their_part_off(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        abar__augmentation crop = abar__augment_draw(1, 0, i, 4, false), flip = abar__augment_draw(1, 0, i, 0, true);
        abar__augmentation both = abar__augment_draw(1, 0, i, 4, true);
        assert_true(!crop.flip && crop.dx == both.dx && crop.dy == both.dy);
        assert_true(flip.dx == 0 && flip.dy == 0 && flip.flip == both.flip);
    }
}

/* ---- normalisation --------------------------------------------------------------------------------------------- */

static abar_dataset_info info_of(int64_t channels)
{
    return (abar_dataset_info){.name = "test",
                               .channels = channels,
                               .height = H,
                               .width = W,
                               .mean = {0.4914, 0.4822, 0.4465},
                               .std = {0.2470, 0.2435, 0.2616}};
}

static void normalise_table_is_exact(void **state)
{
    (void)state;
    abar_dataset_info info = info_of(5);
    for (int c = 0; c < 5; c++) {
        double table[256];
        int k = c < 2 ? c : 2;
        abar__normalise_table(&info, c, table);
        for (int v = 0; v < 256; v++) assert_true(table[v] == ((double)v / 255.0 - info.mean[k]) / info.std[k]);
    }
}

static void normalise_fills_both_types_and_shapes(void **state)
{
    (void)state;
    enum { ROWS = 3 };
    abar_context *ctx = plain_context();
    abar_dataset_info info = info_of(C);
    uint8_t images[ROWS * C * H * W];
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * 37);
    abar_batch batch = {.size = sizeof batch, .images = images, .count = ROWS};
    float f32[ROWS * C * H * W];
    double f64[ROWS * C * H * W];
    abar_tensor four = abar_tensor_wrap(NULL, f32, ABAR_F32, 4, (int64_t[]){ROWS, C, H, W});
    abar_tensor two = abar_tensor_wrap(NULL, f64, ABAR_F64, 2, (int64_t[]){ROWS, C * H * W});
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, ROWS, &four), ABAR_OK);
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, ROWS, &two), ABAR_OK);
    for (int i = 0; i < ROWS * C * H * W; i++) {
        int c = i / (H * W) % C;
        double expected = (images[i] / 255.0 - info.mean[c]) / info.std[c];
        assert_true(f64[i] == expected);
        assert_true(f32[i] == (float)expected);
    }
    abar_context_destroy(ctx);
}

static void normalise_refuses_what_does_not_fit(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset_info info = info_of(C);
    uint8_t images[2 * C * H * W] = {0};
    float out[2 * C * H * W];
    abar_batch batch = {.size = sizeof batch, .images = images, .count = 2};
    abar_tensor good = abar_tensor_wrap(NULL, out, ABAR_F32, 4, (int64_t[]){2, C, H, W});
    abar_tensor turned = abar_tensor_wrap(NULL, out, ABAR_F32, 4, (int64_t[]){2, C, W, H});
    abar_tensor flat = abar_tensor_wrap(NULL, out, ABAR_F32, 1, (int64_t[]){2 * C * H * W});
    abar_tensor narrow = abar_tensor_wrap(NULL, out, ABAR_BF16, 4, (int64_t[]){2, C, H, W});
    abar_tensor strided = good;
    strided.stride[0] *= 2;
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 2, &good), ABAR_OK);
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 1, &good), ABAR_E_ARGUMENT);
    check_contains(abar_context_error(ctx), "1 images of 3 x 6 x 9");
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 2, &turned), ABAR_E_ARGUMENT);
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 2, &flat), ABAR_E_ARGUMENT);
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 2, &narrow), ABAR_E_ARGUMENT);
    assert_int_equal(abar_batch_normalise(ctx, &info, &batch, 2, &strided), ABAR_E_ARGUMENT);
    check_contains(abar_context_error(ctx), "dense F32 or F64");
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(augment_equals_its_definition),
        cmocka_unit_test(augment_crop_off_the_image_is_black),
        cmocka_unit_test(augment_draws_cover_the_range_evenly),
        cmocka_unit_test(augment_draw_depends_on_seed_epoch_and_sample_only),
        cmocka_unit_test(augment_switches_turn_their_part_off),
        cmocka_unit_test(normalise_table_is_exact),
        cmocka_unit_test(normalise_fills_both_types_and_shapes),
        cmocka_unit_test(normalise_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
