/* The rows of a profile: the time of each operation, its bytes and flops, and its floor: the time for them at the best rates of
 * the device. These rates are measured by a copy within its memory and a product of large matrices. */
#include "base/rng.h"
#include "device/nn_impl.h"
#include "optim/optim_impl.h"
#include "train/bench/bench_impl.h"

enum { LARGEST = 8192, SMALLEST = 64, RUNS = 8, SEEDS = 4096 };

/* ---- the device's rates ------------------------------------------------------------------------------------------- */

typedef struct workshop {
    abar_device *dev;
    const abar__stream_ops *stream;
    int64_t side; /* of the matrices */
    size_t bytes; /* of each */
    char *matrix[3];
    abar__op *op;
    void *scratch, *event[2];
} workshop;

static void clear(workshop *w)
{
    (void)w->stream->wait(w->dev); /* failures were reported where they happened */
    for (int i = 0; i < 2; i++)
        if (w->event[i]) w->stream->event_destroy(w->dev, w->event[i]);
    if (w->op) abar_device_free(w->dev, w->scratch, w->op->scratch_bytes);
    abar__op_destroy(w->op);
    for (int i = 0; i < 3; i++) abar_device_free(w->dev, w->matrix[i], w->bytes);
}

/* Random numbers: products of zeros take less power and would run faster than those of a network. A few, then copies of them.
 */
static abar_status fill(workshop *w, char *to)
{
    float seed[SEEDS];
    const int64_t count = SEEDS;
    for (int64_t i = 0; i < SEEDS; i += 2) {
        double normal[2];
        abar__normal(abar__random(0, ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i), normal);
        seed[i] = (float)normal[0], seed[i + 1] = (float)normal[1];
    }
    const abar_tensor from = abar_tensor_wrap(NULL, seed, ABAR_F32, 1, &count),
                      first = abar_tensor_wrap(w->dev, to, w->dev->activation, 1, &count);
    ABAR_TRY(abar_tensor_copy(w->dev->ctx, &first, &from));
    for (size_t done = abar_tensor_bytes(&first); done < w->bytes; done *= 2)
        ABAR_TRY(w->stream->copy_bytes(w->dev, to + done, to, 2 * done <= w->bytes ? done : w->bytes - done));
    return ABAR_OK;
}

/* Allocates matrices that leave most of the memory free. */
static abar_status furnish(workshop *w)
{
    const size_t element = abar_dtype_size(w->dev->activation), most = w->stream->memory_free(w->dev) / 4;
    w->side = LARGEST;
    while (w->side > SMALLEST && 3 * (size_t)(w->side * w->side) * element > most) w->side /= 2;
    w->bytes = (size_t)(w->side * w->side) * element;
    for (int i = 0; i < 3; i++) ABAR_TRY(abar_device_alloc(w->dev, w->bytes, (void **)&w->matrix[i]));
    for (int i = 0; i < 3; i++) ABAR_TRY(fill(w, w->matrix[i]));
    for (int i = 0; i < 2; i++) ABAR_TRY(w->stream->event_create(w->dev, &w->event[i]));
    abar__op_desc d = {.kind = ABAR_OP_LINEAR, .n_in = 1, .window = abar_window_unit()};
    d.in[0] = d.out = (abar__shape){2, {w->side, w->side}};
    ABAR_TRY(abar__op_create(w->dev, &d, &w->op));
    return abar_device_alloc(w->dev, w->op->scratch_bytes, &w->scratch);
}

/* Copies each matrix to the next, so that no copy finds its source in a cache. */
static abar_status copy_round(workshop *w)
{
    for (int i = 0; i < 3; i++) ABAR_TRY(w->stream->copy_bytes(w->dev, w->matrix[(i + 1) % 3], w->matrix[i], w->bytes));
    return ABAR_OK;
}

static abar_status multiply_once(workshop *w)
{
    const abar__run run = {.valid = w->side, .loss_scale = 1.0};
    abar__op_args a = {.run = &run, .y = w->matrix[2], .scratch = w->scratch};
    a.x[0] = w->matrix[0];
    a.param[0] = a.shadow[0] = w->matrix[1];
    return abar__op_forward(w->op, &a);
}

/* The least seconds of several calls. */
static abar_status best_of(workshop *w, abar_status (*once)(workshop *w), double *seconds)
{
    ABAR_TRY(once(w)); /* libraries load at the first call */
    for (int i = 0; i < RUNS; i++) {
        ABAR_TRY(w->stream->event_record(w->dev, w->event[0]));
        ABAR_TRY(once(w));
        ABAR_TRY(w->stream->event_record(w->dev, w->event[1]));
        ABAR_TRY(w->stream->wait(w->dev));
        const double took = 1e-3 * w->stream->event_elapsed(w->dev, w->event[0], w->event[1]);
        if (i == 0 || took < *seconds) *seconds = took;
    }
    return ABAR_OK;
}

abar_status abar__bench_rates(abar_device *dev, double *copy_rate, double *product_rate)
{
    workshop w = {.dev = dev, .stream = dev->ops->stream};
    double copy = 0.0, product = 0.0;
    abar_status status = furnish(&w);
    if (status == ABAR_OK) status = best_of(&w, copy_round, &copy);
    if (status == ABAR_OK) status = best_of(&w, multiply_once, &product);
    clear(&w);
    const double side = (double)w.side;
    *copy_rate = copy > 0.0 ? 3.0 * 2.0 * (double)w.bytes / copy : 0.0; /* read and written */
    *product_rate = product > 0.0 ? 2.0 * side * side * side / product : 0.0;
    return status;
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* spread: number of steps that the cost is divided by. */
static abar_bench_cost cost(const abar__bench_profile *p, const abar_work *work, double steps, double spread)
{
    abar_bench_cost c = {.bytes = work->bytes / spread, .flops = work->flops / spread};
    if (steps > 0.0) c.us = 1e6 * work->seconds / steps;
    if (p->copy_rate <= 0.0 || p->product_rate <= 0.0) return c;
    const double move = 1e6 * c.bytes / p->copy_rate, multiply = 1e6 * c.flops / p->product_rate;
    c.floor_us = move > multiply ? move : multiply;
    return c;
}

/* Gradients are read, weights and the rule's state read and written, bf16 copies written. */
static abar_work update_work(const abar__stepper *s, const abar__bench_profile *p)
{
    abar_work w = {.bytes = 2.0 * (double)abar__optim_rule_bytes(s->optim), .seconds = p->update_seconds};
    for (int i = 0; i < abar_net_param_count(s->net); i++) {
        const abar_param *param = abar_net_param(s->net, i);
        w.bytes += 3.0 * (double)abar_tensor_bytes(&param->value);
        if (param->shadow.ndim) w.bytes += (double)abar_tensor_bytes(&param->shadow);
    }
    return w;
}

abar_bench_row abar__bench_row(const abar__stepper *s, const abar__bench_profile *p, int64_t period, int i)
{
    if (i >= abar_net_node_count(s->net)) {
        const abar_work work = update_work(s, p);
        abar_bench_row row = {.name = "", .operation = "update", .implementation = s->optim->rule->rule.name};
        row.phase[ABAR_BENCH_UPDATE] = cost(p, &work, p->steps, 1.0);
        return row;
    }
    const abar_node_info node = *abar_net_node(s->net, i);
    abar_bench_row row = {.name = node.name, .operation = node.operation, .implementation = node.implementation};
    row.phase[ABAR_BENCH_FORWARD] = cost(p, &node.forward, p->steps, 1.0);
    row.phase[ABAR_BENCH_BACKWARD] = cost(p, &node.backward, p->steps, 1.0);
    if (period > 0) row.phase[ABAR_BENCH_STATISTICS] = cost(p, &node.observe, p->observed, (double)period);
    return row;
}
