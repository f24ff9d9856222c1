/* The last stage of a batch on the host: erasing and mixing against their definitions, value by value. */
#include "data/support.h"

#include "base/rng.h"
#include "data/data_impl.h"
#include "data/images/draws.h"

#include <math.h>

enum { ROWS = 6, C = 3, H = 9, W = 9, AREA = H * W, IMAGE = C * AREA };

static const abar_dataset_info info = {
    .channels = C, .height = H, .width = W, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}};

typedef struct fixture {
    abar_context *ctx;
    uint8_t images[ROWS * IMAGE];
    int32_t labels[ROWS];
    abar_row rows[ROWS];
    float f32[ROWS * IMAGE];
    double f64[ROWS * IMAGE];
    abar_batch batch;
} fixture;

/* Rows 0 to 3: mixup, cutmix, erased or not; rows 4 and 5 are not mixed. */
static fixture *begin(bool timm)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->ctx = plain_context();
    for (int i = 0; i < ROWS * IMAGE; i++)
        f->images[i] = (uint8_t)(abar__random(1, ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i).u[0] >> 24);
    static const int32_t partner[ROWS] = {1, 0, 3, 2, 4, 5};
    static const double share[ROWS] = {0.3, 0.3, 0.75, 0.75, 1, 1};
    for (int r = 0; r < ROWS; r++)
        f->rows[r] = (abar_row){.partner = partner[r],
                                .share = (float)share[r],
                                .rest = (float)(1 - share[r]),
                                .epoch = 3,
                                .sample = 70u + (uint32_t)r,
                                .repetition = (uint32_t)r % 3};
    const int16_t boxes[3][4] = {{2, 1, 5, 4}, {0, 0, 3, 7}, {4, 2, 5, 7}}, cut[4] = {1, 3, 6, 5};
    memcpy(f->rows[0].erase, boxes[0], sizeof boxes[0]);
    memcpy(f->rows[3].erase, boxes[1], sizeof boxes[1]);
    memcpy(f->rows[5].erase, boxes[2], sizeof boxes[2]);
    for (int r = 2; r < 4; r++) memcpy(f->rows[r].box, cut, sizeof cut);
    f->batch = (abar_batch){.size = sizeof f->batch,
                            .images = f->images,
                            .labels = f->labels,
                            .count = ROWS,
                            .rows = f->rows,
                            .timm = timm,
                            .seed = 77,
                            .height = H,
                            .width = W};
    return f;
}

static void end(fixture *f)
{
    abar_context_destroy(f->ctx);
    free(f);
}

static abar_status normalise(fixture *f, const abar_batch *batch, int64_t rows, bool wide)
{
    const abar_tensor to = abar_tensor_wrap(NULL, wide ? (void *)f->f64 : (void *)f->f32, wide ? ABAR_F64 : ABAR_F32, 4,
                                            (int64_t[]){rows, C, H, W});
    return abar_batch_normalise(f->ctx, &info, batch, rows, &to);
}

static bool inside(const int16_t box[4], int y, int x)
{
    return box[2] > 0 && y >= box[0] && y < box[0] + box[2] && x >= box[1] && x < box[1] + box[3];
}

/* Each assignment to a volatile float rounds. */
static float mix(float own, float other, const abar_row *row)
{
    volatile float a = own * row->share, b = other * row->rest, sum = a + b;
    return sum;
}

static float normal(int channel, uint8_t byte) { return (float)((byte / 255.0 - info.mean[channel]) / info.std[channel]); }

static uint8_t byte_at(const fixture *f, int r, int c, int y, int x) { return f->images[r * IMAGE + c * AREA + y * W + x]; }

static float torchvision_value(const fixture *f, int r, int c, int y, int x)
{
    const abar_row *row = &f->rows[r], *other = &f->rows[row->partner];
    const float own = inside(row->erase, y, x) ? 0.0f : normal(c, byte_at(f, r, c, y, x));
    const float partner = inside(other->erase, y, x) ? 0.0f : normal(c, byte_at(f, row->partner, c, y, x));
    if (row->partner == r) return own;
    if (row->box[2] > 0) return inside(row->box, y, x) ? partner : own;
    return mix(own, partner, row);
}

static float noise_value(const fixture *f, const float table[ABAR_NOISE_COUNT], const abar_row *row, int c, int y, int x)
{
    const uint32_t e = (uint32_t)((c * row->erase[2] + (y - row->erase[0])) * row->erase[3] + (x - row->erase[1]));
    const uint64_t index = row->sample | (uint64_t)row->repetition << 32 | (uint64_t)(e / 8) << 40;
    const abar__draw d = abar__random(f->batch.seed, ABAR_DRAW_NOISE, row->epoch, index);
    uint16_t half[8];
    for (int i = 0; i < 4; i++) {
        half[2 * i] = (uint16_t)(d.u[i] & 0xffff);
        half[2 * i + 1] = (uint16_t)(d.u[i] >> 16);
    }
    return table[half[e % 8] >> 4];
}

static float timm_value(const fixture *f, const float table[ABAR_NOISE_COUNT], int r, int c, int y, int x)
{
    const abar_row *row = &f->rows[r];
    if (inside(row->erase, y, x)) return noise_value(f, table, row, c, y, x);
    uint8_t own = byte_at(f, r, c, y, x), partner = byte_at(f, row->partner, c, y, x);
    if (row->partner != r && row->box[2] > 0)
        own = inside(row->box, y, x) ? partner : own;
    else if (row->partner != r)
        own = (uint8_t)rintf(mix(own, partner, row));
    return normal(c, own);
}

static void check_values(bool timm)
{
    static float table[ABAR_NOISE_COUNT];
    fixture *f = begin(timm);
    abar__noise_table(table);
    assert_int_equal(normalise(f, &f->batch, ROWS, false), ABAR_OK);
    assert_int_equal(normalise(f, &f->batch, ROWS, true), ABAR_OK);
    for (int r = 0, i = 0; r < ROWS; r++)
        for (int c = 0; c < C; c++)
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++, i++) {
                    const float expected = timm ? timm_value(f, table, r, c, y, x) : torchvision_value(f, r, c, y, x);
                    assert_memory_equal(&f->f32[i], &expected, sizeof expected);
                    assert_true(fabs(f->f64[i] - (double)expected) <= 1e-6);
                }
    end(f);
}

static void finish_torchvision_erases_with_zero_and_then_mixes(void **state)
{
    (void)state;
    check_values(false);
}

static void finish_timm_mixes_bytes_and_then_erases_with_noise(void **state)
{
    (void)state;
    check_values(true);
}

/* 0.5 x 1 + 0.5 x 2 = 1.5 and 0.5 x 2 + 0.5 x 3 = 2.5 both become 2. */
static void finish_timm_rounds_half_to_even(void **state)
{
    (void)state;
    fixture *f = begin(true);
    for (int r = 0; r < 2; r++) {
        f->rows[r] = (abar_row){.partner = 1 - r, .share = 0.5f, .rest = 0.5f};
        for (int i = 0; i < IMAGE; i++) f->images[r * IMAGE + i] = (uint8_t)(i % 2 ? 1 + r : 2 + r);
    }
    assert_int_equal(normalise(f, &f->batch, ROWS, false), ABAR_OK);
    for (int i = 0; i < 2 * IMAGE; i++) assert_true(f->f32[i] == normal(i % IMAGE / AREA, 2));
    end(f);
}

static void finish_parts_equal_the_whole(void **state)
{
    (void)state;
    for (int timm = 0; timm < 2; timm++) {
        fixture *f = begin(timm);
        float whole[ROWS * IMAGE];
        assert_int_equal(normalise(f, &f->batch, ROWS, false), ABAR_OK);
        memcpy(whole, f->f32, sizeof whole);
        for (int64_t first = 0; first < ROWS; first += 2) {
            const abar_batch part = abar__batch_part(&info, &f->batch, first);
            assert_int_equal(normalise(f, &part, 2, false), ABAR_OK);
            assert_memory_equal(f->f32, whole + first * IMAGE, 2 * IMAGE * sizeof(float));
        }
        const abar_batch part = abar__batch_part(&info, &f->batch, 1); /* row 1 without its partner */
        assert_int_equal(normalise(f, &part, 2, false), ABAR_E_ARGUMENT);
        check_contains(abar_context_error(f->ctx), "row 1 is mixed with row 0");
        end(f);
    }
}

/* A batch of another size than the data set's view. */
static void finish_takes_the_size_of_the_batch(void **state)
{
    (void)state;
    fixture *f = begin(false);
    abar_batch small = f->batch;
    small.rows = NULL;
    small.height = 3;
    small.width = 5;
    const abar_tensor to = abar_tensor_wrap(NULL, f->f32, ABAR_F32, 4, (int64_t[]){2, C, 3, 5});
    assert_int_equal(abar_batch_normalise(f->ctx, &info, &small, 2, &to), ABAR_OK);
    for (int i = 0; i < 2 * C * 15; i++) assert_true(f->f32[i] == normal(i / 15 % C, f->images[i]));
    assert_int_equal(normalise(f, &small, 2, false), ABAR_E_ARGUMENT);
    end(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finish_torchvision_erases_with_zero_and_then_mixes),
        cmocka_unit_test(finish_timm_mixes_bytes_and_then_erases_with_noise),
        cmocka_unit_test(finish_timm_rounds_half_to_even),
        cmocka_unit_test(finish_parts_equal_the_whole),
        cmocka_unit_test(finish_takes_the_size_of_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
