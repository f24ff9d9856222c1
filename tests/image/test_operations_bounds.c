/* Operations that move the content out of the image write nothing outside of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "image/operations.h"

enum { SIDE = 8, IMAGE = 3 * SIDE * SIDE, GUARD = 64 };

static void operations_shift_by_more_than_the_image_leaves_the_fill(void **state)
{
    (void)state;
    static const double shifts[] = {-100, -9, -8, 8, 9, 100};
    uint8_t in[IMAGE], out[GUARD + IMAGE + GUARD];
    memset(in, 7, sizeof in);
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++)
        for (int axis = 0; axis < 2; axis++) {
            abar__image_change change = {.operation = ABAR_OPERATION_AFFINE,
                                         .matrix = {1, 0, 0, 0, 1, 0},
                                         .filter = ABAR_IMAGE_BILINEAR,
                                         .fill = {1, 2, 3}};
            change.matrix[axis ? 5 : 2] = shifts[i];
            memset(out, 0xee, sizeof out);
            abar__image_apply(&change, SIDE, SIDE, in, out + GUARD);
            for (int k = 0; k < IMAGE; k++) assert_int_equal(out[GUARD + k], 1 + k / (SIDE * SIDE));
            for (int k = 0; k < GUARD; k++) assert_true(out[k] == 0xee && out[GUARD + IMAGE + k] == 0xee);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_shift_by_more_than_the_image_leaves_the_fill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
