/* The cpu back end against ref, case by case, with its inputs offered in every layout and, where the case is small, with the
 * kernels of every instruction set: values, gradients, running statistics and losses to 1e-4 of the largest element, and
 * the same bits from a second run. */
#include "isa_testing.h"
#include "op_instance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOLERANCE 1e-4
#define MAX_CASES 600

static const char *const layout_names[] = {"strided", "c8", "c16", "n16"};

/* Runs d on cpu twice, from poisoned memory; both runs must agree with each other to the bit and with ref. */
static int check(abar_device *cpu, const char *label, const abar__op_desc *d, const abar__run *run, const op_inputs *in,
                 const op_outputs *expected)
{
    op_instance t;
    op_outputs first, second;
    op_instance_create(cpu, d, run, &t);
    op_instance_load(&t, in);
    op_instance_forward(&t);
    if (in->dy) op_instance_backward(&t, in);
    op_instance_read(&t, in, &first);
    op_instance_load(&t, in);
    op_instance_forward(&t);
    if (in->dy) op_instance_backward(&t, in);
    op_instance_read(&t, in, &second);
    char name[160];
    snprintf(name, sizeof name, "%s (%s)", label, t.op->impl->name);
    int bad = op_compare(name, d, &first, expected, TOLERANCE);
    snprintf(name, sizeof name, "%s (%s), again", label, t.op->impl->name);
    bad += op_compare(name, d, &second, &first, 0.0);
    op_outputs_free(&first);
    op_outputs_free(&second);
    op_instance_destroy(&t);
    return bad;
}

/* Offers the first input in one layout and the others in another. A reorder is asked for every layout as its output. */
static int check_layouts(abar_device *cpu, abar__op_desc *d, abar_layout first, abar_layout others, const abar__run *run,
                         const op_inputs *in, const op_outputs *expected)
{
    int bad = 0;
    abar_layout last = d->kind == ABAR_OP_REORDER ? ABAR_LAYOUT_N16 : ABAR_LAYOUT_STRIDED;
    for (int i = 0; i < d->n_in; i++) d->in_layout[i] = i == 0 ? first : others;
    for (abar_layout out = ABAR_LAYOUT_STRIDED; out <= last; out++) {
        char label[80];
        d->out_layout = out;
        snprintf(label, sizeof label, "%s%s%s%s%s", layout_names[first], d->n_in > 1 ? " and " : "",
                 d->n_in > 1 ? layout_names[others] : "", last ? " to " : "", last ? layout_names[out] : "");
        bad += check(cpu, label, d, run, in, expected);
    }
    return bad;
}

static int check_case(abar_device *cpu, abar_device *ref, const op_case *c)
{
    abar__op_desc d = op_case_desc(c);
    abar__run run = op_case_run(c);
    op_inputs in;
    op_outputs expected;
    op_inputs_create(c, &in);
    op_quiet_kinks(ref, &d, &run, 1e-4, &in);
    op_run(ref, &d, &run, &in, &expected);
    int bad = 0;
    abar_layout last = d.in[0].ndim == 4 ? ABAR_LAYOUT_N16 : ABAR_LAYOUT_STRIDED;
    for (abar_layout first = ABAR_LAYOUT_STRIDED; first <= last; first++)
        for (abar_layout others = ABAR_LAYOUT_STRIDED; others <= last; others++)
            if (first == others || (d.n_in > 1 && op_case_is_modest(c)))
                bad += check_layouts(cpu, &d, first, others, &run, &in, &expected);
    op_outputs_free(&expected);
    op_inputs_free(&in);
    return bad;
}

typedef struct devices {
    abar_context *ctx;
    abar_device *ref, *cpu;
} devices;

/* Three threads whatever the machine has, so that work is cut at odd places. */
static devices open_devices(const abar_context_config *config)
{
    const abar_device_config three = {.size = sizeof three, .threads = 3};
    devices on;
    assert_int_equal(abar_context_create(config, &on.ctx), ABAR_OK);
    assert_int_equal(abar_device_open(on.ctx, "ref", NULL, &on.ref), ABAR_OK);
    assert_int_equal(abar_device_open(on.ctx, "cpu", &three, &on.cpu), ABAR_OK);
    return on;
}

static void close_devices(devices on)
{
    abar_device_close(on.cpu);
    abar_device_close(on.ref);
    assert_int_equal(abar_context_memory(on.ctx).now, 0);
    abar_context_destroy(on.ctx);
}

static void cpu_in_every_layout_matches_ref(void **state)
{
    const op_case *c = *state;
    devices on = open_devices(NULL);
    char *outer = isa_save();
    const abar__isa first = abar__isa_best(on.ctx); /* the most costly cases run with this one alone */
    close_devices(on);
    for (int i = (int)first; i >= 0 && (i == (int)first || op_case_is_modest(c)); i--) {
        isa_force(abar__isa_name((abar__isa)i));
        on = open_devices(NULL);
        int bad = check_case(on.cpu, on.ref, c);
        if (bad) fail_msg("%d differences with ABAR_ISA=%s", bad, abar__isa_name((abar__isa)i));
        close_devices(on);
    }
    isa_restore(outer);
}

static void cpu_foreign_label_is_an_argument_error(void **state)
{
    (void)state;
    devices on = open_devices(NULL);
    const op_case c = {"entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {3, 4}};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    for (int32_t wrong = -1; wrong <= 4; wrong += 5) {
        op_instance t;
        op_inputs in;
        op_inputs_create(&c, &in);
        in.labels[2] = wrong;
        op_instance_create(on.cpu, &d, &run, &t);
        op_instance_load(&t, &in);
        abar__op_args a = {
            .run = &run, .x = {t.x[0]}, .target = t.target, .result = &t.result, .saved = t.saved, .scratch = t.scratch};
        assert_int_equal(abar__op_forward(t.op, &a), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(on.ctx), "label"));
        op_instance_destroy(&t);
        op_inputs_free(&in);
    }
    close_devices(on);
}

/* ---- running out of memory -------------------------------------------------------------------------------------- */

static void *rationed_alloc(void *user, size_t bytes, size_t align)
{
    int *left = user;
    if (*left == 0) return NULL;
    if (*left > 0) --*left;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void rationed_release(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

/* Every allocation of every create fails once: the failure is reported and nothing is kept. */
static void cpu_create_without_memory_fails_cleanly(void **state)
{
    (void)state;
    int left = -1; /* no limit */
    abar_context_config config = {.size = sizeof config, .allocator = {rationed_alloc, rationed_release, &left}};
    devices on = open_devices(&config);
    size_t before = abar_context_memory(on.ctx).now;
    for (const op_case *c = op_cases; c->name; c++) {
        abar__op_desc d = op_case_desc(c);
        abar_status status = ABAR_E_MEMORY;
        for (int ration = 0; status != ABAR_OK; ration++) {
            abar__op *op;
            left = ration;
            status = abar__op_create(on.cpu, &d, &op);
            left = -1;
            if (status != ABAR_OK && status != ABAR_E_MEMORY) fail_msg("%s: %s", c->name, abar_context_error(on.ctx));
            abar__op_destroy(op);
            if (abar_context_memory(on.ctx).now != before) fail_msg("%s: keeps memory", c->name);
        }
    }
    close_devices(on);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MAX_CASES] = {
        cmocka_unit_test(cpu_foreign_label_is_an_argument_error),
        cmocka_unit_test(cpu_create_without_memory_fails_cleanly),
    }; /* cmocka skips the empty ones at the end */
    int n = 2;
    for (const op_case *c = op_cases; c->name; c++) {
        if (argc > 1 && !strstr(c->name, argv[1])) continue; /* test_ops_cpu conv: the cases with "conv" in their names */
        if (n == MAX_CASES) return 1;
        tests[n++] = (struct CMUnitTest){
            .name = c->name, .test_func = cpu_in_every_layout_matches_ref, .initial_state = (void *)(uintptr_t)c};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
