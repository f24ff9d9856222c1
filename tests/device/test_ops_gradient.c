/* ref's backward against central differences of its forward: d(sum dy y)/dx by (f(x + h) - f(x - h)) / 2h, for every input
 * and parameter of every case of modest size. */
#include "op_instance.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEP 1e-5
#define TOLERANCE 1e-6
#define EVERY 60 /* tensors up to this size are perturbed element by element, */
#define SOME 40  /* larger ones at so many random places */
#define MAX_CASES 600

/* What the gradients are those of: the loss, or the outputs weighted by dy + dy2, and the stream by its own. */
static double objective(op_instance *t, const op_inputs *in)
{
    const abar__op_desc *d = &t->op->desc;
    op_instance_forward(t);
    if (op_is_loss(d)) return t->result.loss * t->run.loss_scale;
    const double *y = t->y;
    double sum = 0.0;
    for (int64_t i = 0; i < abar__shape_count(&d->out); i++) sum += y[i] * (in->dy[i] + (in->dy2 ? in->dy2[i] : 0.0));
    const double *stream = t->stream;
    for (int64_t i = 0; in->dstream && i < abar__shape_count(&d->out); i++) sum += stream[i] * in->dstream[i];
    return sum;
}

/* Checks gradient (count elements) of the values the operation reads at tensor. before: what gradient was added to. */
static void check_gradient(op_instance *t, const op_inputs *in, const char *what, double *tensor, const double *gradient,
                           const double *before, int64_t count)
{
    int64_t places = count <= EVERY ? count : SOME;
    double error = 0.0, size = 0.0;
    for (int64_t k = 0; k < places; k++) {
        abar__draw draw = abar__random(1, ABAR_DRAW_SYNTHETIC, 0, (uint64_t)k);
        int64_t i = count <= EVERY ? k : (int64_t)abar__below(draw.u[0], (uint32_t)count);
        double was = tensor[i];
        tensor[i] = was + STEP;
        double above = objective(t, in);
        tensor[i] = was - STEP;
        double below = objective(t, in);
        tensor[i] = was;
        double numeric = (above - below) / (2.0 * STEP), analytic = gradient[i] - (before ? before[i] : 0.0);
        error += (numeric - analytic) * (numeric - analytic);
        size += analytic * analytic;
    }
    double limit = size > 0.0 ? TOLERANCE * sqrt(size) : TOLERANCE;
    if (!(sqrt(error) <= limit)) fail_msg("%s: off by %.3g of a gradient of size %.3g", what, sqrt(error), sqrt(size));
}

static void gradient_of_case_matches_differences(void **state)
{
    const op_case *c = *state;
    abar_context *ctx;
    abar_device *dev;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &dev), ABAR_OK);
    abar__op_desc d = op_case_desc(c);
    abar__run run = op_case_run(c);
    op_inputs in;
    op_outputs out;
    op_instance t;
    op_inputs_create(c, &in);
    op_instance_create(dev, &d, &run, &t);
    op_instance_load(&t, &in);
    op_instance_forward(&t);
    op_instance_backward(&t, &in);
    op_instance_read(&t, &in, &out);
    for (int i = 0; i < d.n_in; i++)
        if (d.need_dx[i]) check_gradient(&t, &in, "dx", t.x[i], out.dx[i], NULL, abar__shape_count(&d.in[i]));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++)
        if (out.dparam[i]) check_gradient(&t, &in, "dparam", t.param[i], out.dparam[i], in.dparam[i], op_param_count(&d, i));
    op_instance_destroy(&t);
    op_outputs_free(&out);
    op_inputs_free(&in);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

int main(void)
{
    static struct CMUnitTest tests[MAX_CASES]; /* cmocka skips the empty ones at the end */
    int n = 0;
    for (const op_case *c = op_cases; c->name; c++) {
        if (c->evaluate || c->ties || !op_case_is_modest(c)) continue;     /* at a tie there is no derivative */
        if (c->dz_given || c->input_activation != ABAR_ACT_NONE) continue; /* test_ops_ref: a part of two maps' derivative */
        if (n == MAX_CASES) return 1;
        tests[n++] = (struct CMUnitTest){
            .name = c->name, .test_func = gradient_of_case_matches_differences, .initial_state = (void *)(uintptr_t)c};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
