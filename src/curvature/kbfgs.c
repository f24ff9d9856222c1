/* K-BFGS (optimizers.md section 7): the inverses of both Kronecker factors, learnt by BFGS from a second pass over each batch.
 *
 *     M ← μM + (1−μ)(G + λ_w W);   W⁺ = W − η H_p M H_a;   s = E[z] − E[z⁺], y = E[p] − E[p⁺];
 *     H_p ← BFGS(H_p, s, y), damped twice;   H_a ← BFGS(H_a, H_a ā, (Â + √λ I) H_a ā)
 *
 * The average of gradients is preconditioned, not the gradient: sgd's momentum runs before it. The second pass is judged in
 * device/host/secant.c. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct kbfgs_config {
    double damping, difference_decay;
    int64_t pairs;
    bool first_pass;
} kbfgs_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(kbfgs_config, damping),
     .fallback = "0.3",
     .min = 1e-30,
     .max = 0.999999,
     .help = "lambda, below 1: its root is added to the factor of activations and bounds differences from below"},
    {.name = "kbfgs-pairs",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(kbfgs_config, pairs),
     .fallback = "0",
     .min = 0,
     .max = 10000,
     .help = "K-BFGS(L): the inverse of the other factor is made of so many differences, such as 100; 0: it is kept whole"},
    {.name = "kbfgs-decay",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(kbfgs_config, difference_decay),
     .fallback = "0.9",
     .min = 0.0,
     .max = 0.999999,
     .help = "weight of the old value in the averages of differences; 0 where a batch is the whole training set"},
    {.name = "first-pass",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(kbfgs_config, first_pass),
     .fallback = "false",
     .help = "the factor of activations begins as its mean over one pass of the training set"},
    {.name = NULL},
};

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    static const char *const whole[3] = {"H_p", "s", "y"}, *const limited[3] = {"pairs", "s", "y"};
    const kbfgs_config *c = map->config;
    const double root = sqrt(c->damping);
    const abar__stat a = abar__plan_average(p, "A", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    const abar__factor right = abar__plan_inverse(p, "H_a", a, abar__plan_value(p, root));
    const abar__factor left = abar__plan_secant(p, c->pairs > 0 ? limited : whole, right, c->pairs, root, c->difference_decay);
    if (c->first_pass) abar__plan_first_pass(p);
    abar__plan_sandwich(p, left, right);
    abar__plan_report(p, ABAR_REAL_DAMPING, abar__plan_value(p, c->damping));
}

const abar__curvature_ops abar__method_kbfgs = {
    .method = {.name = "kbfgs",
               .summary = "inverse Kronecker factors learnt from two passes over each batch (Goldfarb et al. 2020)",
               .keeps = "A, H_a: 2 d x d; H_p: d_out x d_out, or pairs of d_out",
               .options = options,
               .config_size = sizeof(kbfgs_config)},
    .reads_output_grad = true,
    .second_pass = true,
    .plan = plan,
};
