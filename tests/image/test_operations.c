/* Operations on pixels against Pillow's bytes (tests/oracle/images_operations.py), and what Pillow does not say: that they
 * write what they must and no more. */
#include "image/change_text.h"

#include "image/operations_impl.h"

#include <math.h>
#include <stdlib.h>
#include <zlib.h>

typedef enum kind { FORMULA, NOISE, FLAT, TWO, KINDS } kind;

/* The oracle's images, planar. */
static void make_image(kind which, int width, int height, uint8_t *out)
{
    uint32_t state = 12345;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int rgb[3] = {7 * x + 3 * y, x * x / 5 + 11 * y, x * y / 3 + 40 * ((x / 9 + y / 7) & 3)};
            for (int c = 0; c < 3; c++) {
                static const int flat[3] = {173, 0, 191};
                state = state * 1664525u + 1013904223u;
                if (which == NOISE) rgb[c] = (int)(state >> 24);
                if (which == FLAT) rgb[c] = flat[c];
                if (which == TWO) rgb[c] = state >> 31 ? 250 - 80 * c : 20 + 60 * c;
                out[(c * height + y) * width + x] = (uint8_t)rgb[c];
            }
        }
}

/* Of the pixels in RGB order. */
static uint32_t crc_of(const uint8_t *planar, int plane, uint32_t before)
{
    uint8_t *rgb = malloc((size_t)plane * 3);
    assert_non_null(rgb);
    for (int i = 0; i < plane; i++)
        for (int c = 0; c < 3; c++) rgb[i * 3 + c] = planar[c * plane + i];
    uint32_t crc = (uint32_t)crc32(before, rgb, (uInt)plane * 3);
    free(rgb);
    return crc;
}

/* On buffers of exactly the image's bytes: the sanitizers see a byte beyond. loops: NULL for what abar__image_apply chooses. */
static uint32_t crc_of_change(const abar__operation_loops *loops, const abar__image_change *change, kind which, int width,
                              int height, uint32_t before)
{
    const size_t bytes = (size_t)(width * height) * 3;
    uint8_t *in = malloc(bytes), *kept = malloc(bytes), *out = malloc(bytes);
    assert_true(in && kept && out);
    make_image(which, width, height, in);
    memcpy(kept, in, bytes);
    memset(out, 0xa5, bytes);
    if (loops)
        abar__image_apply_by(loops, change, height, width, in, out);
    else
        abar__image_apply(change, height, width, in, out);
    assert_memory_equal(in, kept, bytes);
    uint32_t crc = crc_of(out, width * height, before);
    free(in);
    free(kept);
    free(out);
    return crc;
}

static void compare_with_pillow(const abar__operation_loops *loops)
{
    FILE *file = open_golden("images_operations.txt");
    int width, height, cases = 0, different = 0;
    while (fscanf(file, "%d %d", &width, &height) == 2) {
        const abar__image_change change = read_change(file);
        uint32_t expected, found = 0;
        assert_int_equal(fscanf(file, " : %x", &expected), 1);
        for (kind k = FORMULA; k < KINDS; k++) found = crc_of_change(loops, &change, k, width, height, found);
        if (found != expected && different++ < 20)
            print_error("%d x %d, operation %d, filter %d, value %.17g, matrix %g %g %g %g %g %g\n", width, height,
                        (int)change.operation, (int)change.filter, change.value, change.matrix[0], change.matrix[1],
                        change.matrix[2], change.matrix[3], change.matrix[4], change.matrix[5]);
        cases++;
    }
    fclose(file);
    assert_true(cases > 2000);
    assert_int_equal(different, 0);
}

static void operations_in_plain_c_give_pillows_bytes(void **state)
{
    (void)state;
    compare_with_pillow(&abar__operations_plain);
}

static void operations_with_avx2_give_pillows_bytes(void **state)
{
    (void)state;
    if (!abar__operations_avx2()) skip();
    compare_with_pillow(abar__operations_avx2());
}

/* The values of docs/images.md. */
static void operations_give_the_published_crcs(void **state)
{
    (void)state;
    static const struct {
        abar__image_change change;
        uint32_t crc;
    } cases[] = {
        {{.operation = ABAR_OPERATION_NONE}, 0x741a6216},
        {{.operation = ABAR_OPERATION_ROTATE, .value = 90, .filter = ABAR_IMAGE_BILINEAR}, 0x6f60da47},
        {{.operation = ABAR_OPERATION_SHARPNESS, .value = 1 + (double)0.66f}, 0xcbad2adb},
        {{.operation = ABAR_OPERATION_EQUALIZE}, 0xafeb7bd0},
        {{.operation = ABAR_OPERATION_AFFINE, .matrix = {1, 0.6600000262260437, 0, 0, 1, 0}, .filter = ABAR_IMAGE_BILINEAR},
         0x883a0e09},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(crc_of_change(NULL, &cases[i].change, FORMULA, 83, 61, 0), cases[i].crc);
}

/* Widths around the lengths of blocks and vectors, against one pixel at a time. */
static uint8_t bilinear_pixel(const abar__image_change *change, const uint8_t *in, int c, int y, int x, int height, int width)
{
    const double *m = change->matrix;
    double xin = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2], yin = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
    if (!(xin >= 0 && xin < width && yin >= 0 && yin < height)) return change->fill[c];
    const int left = (int)floor(xin - 0.5), top = (int)floor(yin - 0.5);
    const double dx = xin - 0.5 - left, dy = yin - 0.5 - top;
    double row[2];
    for (int k = 0; k < 2; k++) {
        const int r = top + k < 0 ? 0 : top + k < height ? top + k : height - 1;
        const int a = left < 0 ? 0 : left, b = left + 1 < width ? left + 1 : width - 1;
        const double p = in[(c * height + r) * width + a], q = in[(c * height + r) * width + b];
        row[k] = p + (q - p) * dx;
    }
    return (uint8_t)(row[0] + (row[1] - row[0]) * dy);
}

static void compare_with_definition(const abar__operation_loops *loops)
{
    static const double matrices[][6] = {
        {1, .7, 0, 0, 1, 0}, {1, 0, 0, -.4, 1, 0}, {.8, .6, -3, -.6, .8, 5}, {1, 0, .3, 0, 1, 0}, {-1, 0, 200, 0, 1, 0}};
    enum { HEIGHT = 11, WIDEST = 400 };
    static uint8_t in[3 * HEIGHT * WIDEST], out[3 * HEIGHT * WIDEST];
    for (int width = 1; width < WIDEST; width += width < 40 ? 1 : 31)
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            abar__image_change change = {.operation = ABAR_OPERATION_AFFINE, .filter = ABAR_IMAGE_BILINEAR, .fill = {9, 8, 7}};
            memcpy(change.matrix, matrices[i], sizeof change.matrix);
            make_image(NOISE, width, HEIGHT, in);
            abar__image_apply_by(loops, &change, HEIGHT, width, in, out);
            for (int c = 0; c < 3; c++)
                for (int y = 0; y < HEIGHT; y++)
                    for (int x = 0; x < width; x++)
                        assert_int_equal(out[(c * HEIGHT + y) * width + x],
                                         bilinear_pixel(&change, in, c, y, x, HEIGHT, width));
        }
}

static void affine_of_any_width_equals_its_definition(void **state)
{
    (void)state;
    compare_with_definition(&abar__operations_plain);
    if (abar__operations_avx2()) compare_with_definition(abar__operations_avx2());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_in_plain_c_give_pillows_bytes),
        cmocka_unit_test(operations_with_avx2_give_pillows_bytes),
        cmocka_unit_test(operations_give_the_published_crcs),
        cmocka_unit_test(affine_of_any_width_equals_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
