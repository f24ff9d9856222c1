/* Gradients beside that of the batch, for rules that keep the diagonal of a curvature matrix (optimizers.md section 3).
 *
 * Design. A rule says in its `extra` (optim_impl.h) which further gradients it needs, and at which steps. The optimizer tells
 * the caller by abar_optim_extra what the next step needs; the caller (train/step.c, or a program of its own) makes the passes
 * and writes their gradients to the memory it gave as abar_optim_config.extra_grads. Without that memory such a rule is
 * refused when the optimizer is created, and a step whose passes were not made is refused, too.
 *
 *   DIFFERENCE (AdaHessian), before the step. perturb +1: W becomes W + hz, z of random signs, h = c rms(map weights). The
 * caller adds the gradient there to extra_grads. perturb -1: W - hz, whose gradient it subtracts. perturb 0: W is copied back.
 * For micro-batches all of it is repeated, each time on the batch whose gradient was taken last. The step then checks that the
 * difference is finite, and takes D = |difference| / 2h, averaged over the taps of each kernel. The passes run in a second
 * compilation of the net (abar_compile_config.patterns): its ReLUs and maximum pools record their choices in a forward pass at
 * W and repeat them in the passes at W +- hz, because the difference would otherwise measure the kinks. SAMPLED (Sophia-G),
 * after the step, unless it was skipped. The caller runs the batch once more at the new weights with labels drawn from the
 * model's own softmax (abar_run_config.draw_labels) and its gradient is clipped as the step's was, squared and averaged: h <-
 * beta2 h + (1 - beta2) g*g.
 *
 * Everything that a decision depends on (finite or not, the first D or not, h) stays on the device: steps can be captured.
 * z depends on the seed, the step and the element's number in PyTorch's order alone: all devices and ranks draw the same. */
#ifndef ABAR_EXTRA_H
#define ABAR_EXTRA_H

#include "abar/device.h"
#include "base/both.h"

/* What a rule asks for. */
typedef struct abar__extra_request {
    abar_extra kind;
    int64_t every;   /* DIFFERENCE: at steps k with k mod every = 0; SAMPLED: every - 1 */
    double relative; /* DIFFERENCE: c; 0: what suits the precision */
    double decay;    /* SAMPLED: beta2 */
} abar__extra_request;

/* One parameter with a gradient. */
typedef struct abar__extra_item {
    void *weight;
    void *shadow;     /* its bf16 copy, perturbed with it; NULL: none */
    void *saved;      /* DIFFERENCE: its copy while it is perturbed */
    const void *grad; /* the extra gradient */
    void *diagonal;   /* D or h */
    int64_t count;
    int64_t first;  /* number of its first element among those of all parameters */
    int64_t taps;   /* of a convolution: kh * kw; else 1 */
    int64_t inputs; /* channels that a kernel reads, where memory is (O, kh, kw, I); 0: PyTorch's order */
    bool map;       /* counts for the rms that h is relative to */
} abar__extra_item;

typedef struct abar__extra_plan {
    abar__extra_request request;
    const abar__extra_item *items;
    const struct abar__update_item *grads; /* the extra gradients again, for norms */
    int n;
    uint64_t seed;
} abar__extra_plan;

/* Where element i of the item's memory is in PyTorch's order. */
ABAR_BOTH int64_t abar__extra_number(const abar__extra_item *item, int64_t i)
{
    if (item->inputs == 0) return i;
    const int64_t kernel = item->taps * item->inputs, o = i / kernel, tap = i % kernel / item->inputs, c = i % item->inputs;
    return o * kernel + c * item->taps + tap;
}

/* h is at least this, and so the weights may be zero. */
#define ABAR_EXTRA_LEAST_STEP 1e-8

#endif
