/* The cuda back end against ref, case by case and precision by precision, with every implementation that takes the case:
 * values, gradients, running statistics and losses to 1e-4 (fp32), 2e-3 (tf32) or 2e-2 (bf16) of the largest element, and the
 * same bits from a second run. test_ops_cuda [fp32|tf32|bf16] [PART]    one precision; the cases with PART in their names */
#include "cuda_testing.h"
#include "op_instance.h"

#include <math.h>

#define MAX_TESTS 2000

static const double tolerances[] = {[ABAR_PRECISION_FP32] = 1e-4, [ABAR_PRECISION_TF32] = 2e-3, [ABAR_PRECISION_BF16] = 2e-2};
static const abar_layout layouts[] = {ABAR_LAYOUT_STRIDED, ABAR_LAYOUT_NHWC};

typedef struct devices {
    abar_context *ctx;
    abar_device *ref, *cuda[3][2]; /* by precision; kernels measured, kernels fixed */
} devices;

static devices on;

/* What one test runs. */
typedef struct trial {
    const op_case *c;
    abar_precision precision;
    bool deterministic;
    char name[96];
} trial;

/* Opened once: handles of the libraries take their time. */
static abar_device *cuda_of(const trial *t)
{
    abar_device **dev = &on.cuda[t->precision][t->deterministic];
    abar_device_config config = cuda_config(t->precision, t->deterministic);
    if (!*dev && abar_device_open(on.ctx, "cuda", &config, dev) != ABAR_OK) fail_msg("%s", abar_context_error(on.ctx));
    return *dev;
}

static void run_once(op_instance *t, const op_inputs *in, op_outputs *out)
{
    op_instance_load(t, in);
    op_instance_forward(t);
    if (in->dy) op_instance_backward(t, in);
    op_instance_read(t, in, out);
}

/* Runs d twice, from poisoned memory; both runs must agree with each other to the bit and with ref. */
static int check(op_instance *made, const char *label, const op_inputs *in, const op_outputs *expected, double tolerance)
{
    const abar__op_desc *d = &made->op->desc;
    op_outputs first, second;
    char name[160];
    run_once(made, in, &first);
    run_once(made, in, &second);
    snprintf(name, sizeof name, "%s (%s)", label, made->op->impl->name);
    int bad = op_compare(name, d, &first, expected, tolerance);
    snprintf(name, sizeof name, "%s (%s), again", label, made->op->impl->name);
    bad += op_compare(name, d, &second, &first, 0.0);
    op_outputs_free(&first);
    op_outputs_free(&second);
    return bad;
}

/* What a library carries out is left out in our own kernels' turn; only a library has something to measure. */
static bool is_wanted(const trial *t, const abar__op_impl *impl)
{
    const bool library = cuda_is_library(impl->name);
    return library ? !cuda_only("ABAR_TEST_OWN") : t->deterministic;
}

static int check_implementations(const trial *t, const abar__op_desc *d, const abar__run *run, const op_inputs *in,
                                 const op_outputs *expected)
{
    int bad = 0, taken = 0;
    for (const abar__op_impl *const *impl = abar__cuda_nn; *impl; impl++) {
        op_instance made;
        if (!is_wanted(t, *impl) || !op_instance_create_with(cuda_of(t), *impl, d, run, &made)) continue;
        bad += check(&made, t->name, in, expected, tolerances[t->precision]);
        op_instance_destroy(&made);
        taken++;
    }
    if (taken == 0 && t->deterministic) print_error("%s: no implementation takes it\n", t->name);
    return bad + (taken == 0 && t->deterministic);
}

/* Images come channels last, logits also in padded rows; a reorder is asked from and to both orders. */
static int check_layouts(const trial *t, abar__op_desc *d, const abar__run *run, const op_inputs *in,
                         const op_outputs *expected)
{
    int bad = 0;
    bool reorder = d->kind == ABAR_OP_REORDER;
    if (d->kind == ABAR_OP_SOFTMAX_CROSS_ENTROPY) {
        d->in_layout[0] = ABAR_LAYOUT_PADDED;
        bad += check_implementations(t, d, run, in, expected);
    }
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++) {
            if (!reorder && (from == 0 || to == 0)) continue;
            for (int i = 0; i < d->n_in; i++) d->in_layout[i] = d->in[i].ndim == 4 ? layouts[from] : ABAR_LAYOUT_STRIDED;
            d->out_layout = reorder ? layouts[to] : ABAR_LAYOUT_STRIDED;
            bad += check_implementations(t, d, run, in, expected);
        }
    return bad;
}

static void cuda_matches_ref(void **state)
{
    const trial *t = *state;
    abar__op_desc d = op_case_desc(t->c);
    abar__run run = op_case_run(t->c);
    op_inputs in;
    op_outputs expected;
    op_inputs_create(t->c, &in);
    op_inputs_round(cuda_of(t), &d, &in);
    op_quiet_kinks(on.ref, &d, &run, tolerances[t->precision], &in);
    op_run(on.ref, &d, &run, &in, &expected);
    int bad = check_layouts(t, &d, &run, &in, &expected);
    op_outputs_free(&expected);
    op_inputs_free(&in);
    if (bad) fail_msg("%s: %d differences", t->name, bad);
}

/* ---- everything given back ----------------------------------------------------------------------------------------- */

static int open_ref(void **unused)
{
    (void)unused;
    return abar_context_create(NULL, &on.ctx) != ABAR_OK || abar_device_open(on.ctx, "ref", NULL, &on.ref) != ABAR_OK;
}

static int close_all(void **unused)
{
    (void)unused;
    for (int i = 0; i < 6; i++) abar_device_close(on.cuda[i / 2][i % 2]);
    abar_device_close(on.ref);
    size_t held = abar_context_memory(on.ctx).now;
    if (held) fprintf(stderr, "%zu bytes still held\n", held);
    abar_context_destroy(on.ctx);
    return held != 0;
}

/* ---- which ones ------------------------------------------------------------------------------------------------------ */

static trial trials[MAX_TESTS];
static struct CMUnitTest tests[MAX_TESTS + 1]; /* cmocka skips the empty ones at the end */
static int n_tests;

static void add(const op_case *c, abar_precision precision, bool deterministic)
{
    if (n_tests == MAX_TESTS) {
        fprintf(stderr, "more than %d tests: raise MAX_TESTS\n", MAX_TESTS);
        exit(1);
    }
    trial *t = &trials[n_tests];
    *t = (trial){.c = c, .precision = precision, .deterministic = deterministic};
    snprintf(t->name, sizeof t->name, "%s %s%s", cuda_precisions[precision], c->name, deterministic ? "" : ", measured");
    tests[n_tests++] = (struct CMUnitTest){.name = t->name, .test_func = cuda_matches_ref, .initial_state = t};
}

/* Kernels are fixed, which is quick; where there is a choice worth measuring, measured as well. */
static void add_precision(abar_precision precision, const char *part)
{
    for (const op_case *c = op_cases; c->name; c++) {
        if (part && !strstr(c->name, part)) continue;
        if (cuda_only("ABAR_TEST_SMALL") && !op_case_is_modest(c)) continue;
        add(c, precision, true);
        const bool choice = c->kind == ABAR_OP_LINEAR || (c->kind == ABAR_OP_CONV2D && !op_case_is_modest(c));
        if (choice) add(c, precision, false);
    }
}

int main(int argc, char **argv)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const char *only = NULL, *part = NULL;
    for (int i = 1; i < argc; i++) {
        bool precision = false;
        for (int p = 0; p < 3; p++) precision = precision || strcmp(argv[i], cuda_precisions[p]) == 0;
        *(precision ? &only : &part) = argv[i];
    }
    for (int p = 0; p < 3; p++)
        if (!only || strcmp(only, cuda_precisions[p]) == 0) add_precision((abar_precision)p, part);
    return cmocka_run_group_tests(tests, open_ref, close_all);
}
