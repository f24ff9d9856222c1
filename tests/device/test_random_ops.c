/* Operations of random shapes on the cpu against ref: convolutions with any window and groups, batch norms, pools,
 * concatenations and linear layers, in random layouts, on random numbers of threads. op_cases.c has those that somebody has
 * thought of. ABAR_TEST_SEED draws others, SHAPES=N more of each kind. */
#include "base/rng.h"
#include "op_instance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOLERANCE 1e-4
#define SHAPES 12             /* of each kind */
#define ELEMENTS_MAX 60000    /* of an input or output */
#define PRODUCTS_MAX 20000000 /* multiplications of ref */

typedef struct source {
    uint64_t seed, at;
} source;

static int64_t below(source *s, int64_t n)
{
    return (int64_t)abar__below(abar__random(s->seed, ABAR_DRAW_SYNTHETIC, 1, s->at++).u[0], (uint32_t)n);
}

static bool coin(source *s) { return below(s, 2); }

static int64_t one_of(source *s, int n, const int64_t *choice) { return choice[below(s, n)]; }

/* Often whole blocks of 8 or 16, or next to them. */
static int64_t channels(source *s)
{
    static const int64_t usual[] = {1, 3, 7, 8, 9, 15, 16, 17, 24, 32, 33, 40, 48, 64};
    return coin(s) ? one_of(s, 14, usual) : 1 + below(s, 70);
}

static int64_t batch(source *s)
{
    static const int64_t usual[] = {1, 2, 3, 15, 16, 17};
    return one_of(s, 6, usual);
}

/* Output rows or columns; less than 1: the window does not fit. */
static int64_t slide(const op_case *c, int i)
{
    const int64_t reach = c->dilation[i] * (c->kernel[i] - 1) + 1;
    return c->x[2 + i] + 2 * c->pad[i] < reach ? 0 : (c->x[2 + i] + 2 * c->pad[i] - reach) / c->stride[i] + 1;
}

static bool draw_window(source *s, op_case *c, bool winograd)
{
    for (int i = 0; i < 2; i++) {
        c->kernel[i] = winograd ? 3 : 1 + below(s, i ? 5 : 4);
        c->stride[i] = winograd || coin(s) ? 1 : 1 + below(s, 3);
        c->dilation[i] = winograd || below(s, 4) ? 1 : 2;
        c->pad[i] = below(s, winograd ? 3 : c->kernel[i]);
        if (slide(c, i) < 1) return false;
    }
    return true;
}

/* What Winograd's kernels accept with vectors of 16: the padding of channels and tiles costs less than is saved. */
static bool suits_winograd(const op_case *c)
{
    const int64_t rows = slide(c, 0), columns = slide(c, 1), tiles = (rows + 3) / 4 * ((columns + 3) / 4);
    const int64_t padded = (c->x[1] + 15) / 16 * 16 * ((c->width + 15) / 16 * 16) * tiles * 16;
    return tiles * c->x[0] >= 32 && (double)(c->x[1] * c->width * rows * columns) > 0.6 * (double)padded;
}

static op_case draw_conv(source *s, bool winograd)
{
    op_case c = {.name = winograd ? "winograd" : "conv", .kind = ABAR_OP_CONV2D};
    for (;;) {
        c.groups = winograd || below(s, 4) ? 1 : 1 + below(s, 8);
        c.x[0] = batch(s);
        c.x[1] = c.groups * (c.groups > 1 ? 1 + below(s, 16) : channels(s));
        c.x[2] = 1 + below(s, winograd ? 40 : 13);
        c.x[3] = 1 + below(s, winograd ? 40 : 13);
        c.width = c.groups * (c.groups > 1 ? 1 + below(s, 16) : channels(s));
        if (!draw_window(s, &c, winograd)) continue;
        const int64_t out = c.x[0] * c.width * slide(&c, 0) * slide(&c, 1), in = c.x[0] * c.x[1] * c.x[2] * c.x[3];
        const int64_t products = out * c.x[1] / c.groups * c.kernel[0] * c.kernel[1];
        if (winograd && !suits_winograd(&c)) continue;
        if (out <= ELEMENTS_MAX && in <= ELEMENTS_MAX && products <= PRODUCTS_MAX) break;
    }
    c.bias = coin(s);
    c.activation = coin(s) ? ABAR_ACT_RELU : ABAR_ACT_NONE;
    c.accumulate = coin(s);
    c.skip_dx = below(s, 4) == 0;
    return c;
}

static void draw_image(source *s, op_case *c)
{
    do {
        c->x[0] = batch(s);
        c->x[1] = channels(s);
        c->x[2] = 1 + below(s, 12);
        c->x[3] = 1 + below(s, 12);
    } while (c->x[0] * c->x[1] * c->x[2] * c->x[3] > ELEMENTS_MAX);
}

static op_case draw_norm(source *s)
{
    op_case c = {.name = "norm", .kind = ABAR_OP_BATCH_NORM};
    draw_image(s, &c);
    if (c.x[0] * c.x[2] * c.x[3] < 4) c.x[0] = 4; /* of two values the variance may be next to nothing */
    c.residual = coin(s);
    c.activation = coin(s) ? ABAR_ACT_RELU : ABAR_ACT_NONE;
    c.accumulate = coin(s);
    c.second_dy = coin(s);
    c.skip_dx = below(s, 4) == 0;
    return c;
}

static op_case draw_concat(source *s)
{
    op_case c = {.name = "concat", .kind = ABAR_OP_CONCAT};
    const int64_t more = 1 + below(s, 4), block = one_of(s, 3, (const int64_t[]){1, 8, 16});
    draw_image(s, &c);
    c.x[1] = block * (1 + below(s, 4));
    for (int64_t i = 0; i < more; i++) c.more[i] = i + 1 < more ? block * (1 + below(s, 4)) : channels(s);
    c.skip_dx = below(s, 4) == 0 ? 2 : 0;
    return c;
}

static op_case draw_pool(source *s)
{
    op_case c = {.name = "pool", .kind = ABAR_OP_POOL2D, .average = coin(s)};
    do draw_image(s, &c);
    while (!draw_window(s, &c, false));
    for (int i = 0; i < 2; i++) c.pad[i] = below(s, c.kernel[i] / 2 + 1);
    return c;
}

static op_case draw_linear(source *s)
{
    static const abar__activation activations[] = {ABAR_ACT_NONE, ABAR_ACT_RELU, ABAR_ACT_GELU_ERF, ABAR_ACT_GELU_TANH};
    op_case c = {.name = "linear", .kind = ABAR_OP_LINEAR, .x = {1 + below(s, 70), 1 + below(s, 200)}};
    c.width = 1 + below(s, 200);
    c.bias = coin(s);
    c.activation = activations[below(s, 4)];
    c.accumulate = coin(s);
    c.skip_dx = below(s, 4) == 0;
    return c;
}

static op_case draw(source *s, int kind)
{
    switch (kind) {
    case 0: return draw_conv(s, true);
    case 1: return draw_conv(s, false);
    case 2: return draw_norm(s);
    case 3: return draw_concat(s);
    case 4: return draw_pool(s);
    default: return draw_linear(s);
    }
}

enum { KINDS = 6 };

/* The case in words: its random numbers depend on them. */
static void describe(op_case *c, int number, char text[240])
{
    snprintf(text, 240,
             "%s %d: x %lldx%lldx%lldx%lld width %lld more %lld,%lld,%lld,%lld kernel %lldx%lld stride %lldx%lld pad %lldx%lld "
             "dilation %lldx%lld groups %lld%s act %d skip %u%s%s%s",
             c->name, number, (long long)c->x[0], (long long)c->x[1], (long long)c->x[2], (long long)c->x[3],
             (long long)c->width, (long long)c->more[0], (long long)c->more[1], (long long)c->more[2], (long long)c->more[3],
             (long long)c->kernel[0], (long long)c->kernel[1], (long long)c->stride[0], (long long)c->stride[1],
             (long long)c->pad[0], (long long)c->pad[1], (long long)c->dilation[0], (long long)c->dilation[1],
             (long long)c->groups, c->bias ? " bias" : "", (int)c->activation, c->skip_dx, c->accumulate ? " acc" : "",
             c->second_dy ? " dy2" : "", c->residual ? " residual" : "");
    c->name = text;
}

/* Inputs in one layout, whichever the operation prefers. */
static int run_on(abar_device *cpu, op_case *c, abar_layout layout, const op_inputs *in, const op_outputs *expected)
{
    abar__op_desc d = op_case_desc(c);
    const abar__run run = op_case_run(c);
    op_instance t;
    op_outputs out;
    for (int i = 0; i < d.n_in; i++) d.in_layout[i] = layout;
    op_instance_create(cpu, &d, &run, &t);
    op_instance_load(&t, in);
    op_instance_forward(&t);
    op_instance_backward(&t, in);
    op_instance_read(&t, in, &out);
    const int bad = op_compare(c->name, &d, &out, expected, TOLERANCE);
    if (bad) print_error("... by %s, layout %d, %d threads\n", t.op->impl->name, (int)layout, cpu->threads);
    op_instance_destroy(&t);
    op_outputs_free(&out);
    return bad;
}

static int check(abar_context *ctx, abar_device *ref, source *s, int kind, int number)
{
    char text[240];
    op_case c = draw(s, kind);
    describe(&c, number, text);
    const abar_device_config config = {.size = sizeof config, .threads = 1 + (int)below(s, 5)};
    const abar__op_desc d = op_case_desc(&c);
    const abar__run run = op_case_run(&c);
    const abar_layout layout = d.in[0].ndim == 4 ? (abar_layout)below(s, 4) : ABAR_LAYOUT_STRIDED;
    abar_device *cpu;
    op_inputs in;
    op_outputs expected;
    assert_int_equal(abar_device_open(ctx, "cpu", &config, &cpu), ABAR_OK);
    op_inputs_create(&c, &in);
    op_quiet_kinks(ref, &d, &run, TOLERANCE, &in);
    op_run(ref, &d, &run, &in, &expected);
    const int bad = run_on(cpu, &c, layout, &in, &expected);
    op_outputs_free(&expected);
    op_inputs_free(&in);
    abar_device_close(cpu);
    return bad;
}

static int64_t number_in(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : otherwise;
}

static void operations_of_random_shapes_match_ref(void **state)
{
    const int64_t seed = number_in("ABAR_TEST_SEED", 0), shapes = number_in("SHAPES", SHAPES);
    abar_context *ctx;
    abar_device *ref;
    int bad = 0;
    (void)state;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        source s = {.seed = (uint64_t)(seed * KINDS + kind)};
        for (int i = 0; i < shapes; i++) bad += check(ctx, ref, &s, kind, i);
    }
    abar_device_close(ref);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_of_random_shapes_match_ref)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
