/* The plot writer: ticks, texts that fit, heat maps as rectangles and as an image. */
#include "io/plot.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int open_context(void **state)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) < 0) return -1;
    *state = ctx;
    return 0;
}

static int close_context(void **state)
{
    const size_t held = abar_context_memory(*state).now;
    abar_context_destroy(*state);
    return held == 0 ? 0 : -1;
}

static void assert_ticks(double low, double high, bool logarithmic, const char *const *expected)
{
    char text[ABAR_REAL_TEXT_MAX];
    const abar__axis axis = abar__axis_make(low, high, logarithmic);
    int n = 0;
    for (; expected[n]; n++) {
        assert_true(n < axis.ticks);
        assert_string_equal(abar__tick_text(&axis, n, text), expected[n]);
        const double at = abar__axis_place(&axis, axis.tick[n]);
        assert_true(at > -1e-6 && at < 1.0 + 1e-6);
    }
    assert_int_equal(axis.ticks, n);
}

static void ticks_are_round_and_short(void **state)
{
    (void)state;
    assert_ticks(0.0, 3.0, false, (const char *const[]){"0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0", NULL});
    assert_ticks(0.1, 30.0, true, (const char *const[]){"0.1", "0.2", "0.5", "1", "2", "5", "10", "20", NULL});
    assert_ticks(1e-5, 1e3, true, (const char *const[]){"10⁻⁴", "0.01", "1", "100", NULL});
    assert_ticks(1e-4, 1e2, true, (const char *const[]){"10⁻⁴", "10⁻³", "0.01", "0.1", "1", "10", "100", NULL});
    assert_ticks(1.0, 1e10, true, (const char *const[]){"1", "100", "10⁴", "10⁶", "10⁸", "10¹⁰", NULL});
    assert_ticks(1e-12, 3e-11, true, (const char *const[]){"10⁻¹²", "2·10⁻¹²", "5·10⁻¹²", "10⁻¹¹", "2·10⁻¹¹", NULL});
}

static void ticks_can_be_whole_numbers_only(void **state)
{
    char text[ABAR_REAL_TEXT_MAX];
    abar__axis axis = abar__axis_make(0.0, 3.0, false);
    (void)state;
    abar__axis_ticks(&axis, 1.0);
    assert_int_equal(axis.ticks, 4);
    assert_string_equal(abar__tick_text(&axis, 3, text), "3");
}

static void ticks_at_the_end_of_the_range_of_numbers_are_finite(void **state)
{
    static const double ranges[][2] = {
        {1e30, 1e308}, {1e-308, 1e308}, {1.7e308, 1.7e308}, {5e-324, 1e-320}, {-1.7e308, 1.7e308}};
    char text[ABAR_REAL_TEXT_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int logarithmic = 0; logarithmic < 2; logarithmic++) {
            const abar__axis axis = abar__axis_make(ranges[i][0], ranges[i][1], logarithmic);
            assert_true(isfinite(axis.low) && isfinite(axis.high) && axis.low < axis.high);
            for (int k = 0; k < axis.ticks; k++) {
                assert_true(isfinite(axis.tick[k]));
                assert_null(strstr(abar__tick_text(&axis, k, text), "inf"));
            }
            assert_true(isfinite(abar__axis_place(&axis, ranges[i][1])));
        }
}

static void ticks_of_an_axis_beyond_the_range_of_numbers_are_finite(void **state)
{
    char text[ABAR_REAL_TEXT_MAX];
    abar__axis axis = {.low = 0.3, .high = 319.8, .logarithmic = true}; /* of a curve whose margin goes beyond 1e308 */
    (void)state;
    abar__axis_ticks(&axis, 0.0);
    assert_true(axis.ticks >= 2);
    for (int k = 0; k < axis.ticks; k++) {
        assert_true(isfinite(axis.tick[k]));
        assert_null(strstr(abar__tick_text(&axis, k, text), "inf"));
    }
}

/* The number after the first occurrence of a text. */
static int number_after(const char *svg, const char *text)
{
    const char *at = strstr(svg, text);
    assert_non_null(at);
    return atoi(at + strlen(text));
}

static void write(abar_context *ctx, const abar__picture *p, abar__text *svg)
{
    if (abar__picture_write(ctx, p, svg) < 0) fail_msg("%s", abar_context_error(ctx));
    assert_memory_equal(svg->data + svg->length - 7, "</svg>\n", 7);
}

static void titles_shrink_to_fit(void **state)
{
    static const double x[2] = {0.0, 1.0};
    const abar__series line = {.name = "a < b & \"c\"", .x = x, .y = x, .n = 2};
    const abar__panel panel = {
        .title = "panel", .x = abar__axis_make(0, 1, false), .y = abar__axis_make(0, 1, false), .series = &line, .n_series = 1};
    abar__picture p = {.title = "short", .panels = &panel, .n_panels = 1, .columns = 1};
    abar__text svg = {0};
    write(*state, &p, &svg);
    assert_int_equal(number_after(svg.data, "<text class='ink' x='380' y='580' font-size='"), 230);
    assert_null(strstr(svg.data, "a < b"));
    assert_non_null(strstr(svg.data, "a &#60; b &#38; &#34;c&#34;"));
    svg.length = 0;
    p.title = "a title that is far too long for a picture of one panel, which is five hundred pixels wide";
    write(*state, &p, &svg);
    const int size = number_after(svg.data, "<text class='ink' x='380' y='580' font-size='");
    assert_true(size > 40 && size < 110);
    abar__text_free(*state, &svg);
}

static void heat_maps_are_rectangles_or_an_image(void **state)
{
    enum { SIDE = 40 };
    static double cells[SIDE * SIDE];
    static const char *const rows[2] = {"blocks.10.attn.qkv", "b<"}, *const columns[2] = {"initial", "end"};
    for (int i = 0; i < SIDE * SIDE; i++) cells[i] = i == 3 ? NAN : 1.0 + i;
    abar__panel panel = {.title = "small", .cell = cells, .rows = 2, .columns = 2, .row_names = rows, .column_names = columns};
    const abar__picture p = {.title = "heat", .panels = &panel, .n_panels = 1, .columns = 1};
    abar__text svg = {0};
    write(*state, &p, &svg);
    assert_null(strstr(svg.data, "<image"));
    assert_non_null(strstr(svg.data, ">blocks.10.attn.qkv<"));
    assert_non_null(strstr(svg.data, ">b&#60;<"));
    assert_non_null(strstr(svg.data, ">end<"));
    svg.length = 0;
    panel = (abar__panel){.title = "large", .cell = cells, .rows = SIDE, .columns = SIDE, .logarithmic = true};
    write(*state, &p, &svg);
    assert_non_null(strstr(svg.data, "<image"));
    assert_non_null(strstr(svg.data, "width='2500' height='2500'")); /* a square matrix is drawn as a square */
    assert_non_null(strstr(svg.data, "data:image/png;base64,iVBORw0KGgo"));
    abar__text_free(*state, &svg);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_context, close_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ticks_are_round_and_short),
        TEST(ticks_can_be_whole_numbers_only),
        TEST(ticks_at_the_end_of_the_range_of_numbers_are_finite),
        TEST(ticks_of_an_axis_beyond_the_range_of_numbers_are_finite),
        TEST(titles_shrink_to_fit),
        TEST(heat_maps_are_rectangles_or_an_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
