/* SOAP (optimizers.md section 2): Adam in the eigenbasis of Shampoo's factors. For each block of each parameter, with S_i and
 * Q_i for its modes, and rot(x) = x ×₁Q₁ᵀ ×₂Q₂ᵀ …:
 *
 *     g′ = rot(G);   m ← β₁m + (1−β₁)g′;   v ← β₂v + (1−β₂)g′⊙g′;   N = unrot(m/(√v + ε))
 *     W ← (1 − ηλ)(W − η√(1−β₂ᵗ)/(1−β₁ᵗ) N);   S_i ← β_s S_i + (1−β_s) G₍ᵢ₎G₍ᵢ₎ᵀ
 *     cautious: λ = 0 where N and W have different signs; hyperball: W ← W − η(‖W‖/‖N‖)N, scaled to the norm it had
 *     every f-th update: Q_i ← Q of qr(S_i Q_i), and m = rot_new(unrot_old(m))
 *
 * The first update makes no step: Q_i are the eigenvectors of the first S_i. */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta2, factor_beta, eps;
    int64_t every, longest, factors, conv;
    bool normalize, correct_bias, cautious, hyperball;
    char split[ABAR_OPTION_TEXT_MAX];
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

enum { FACTORS_SHAMPOO, FACTORS_KL };
enum { CONV_MATRIX, CONV_MODES };

static const abar_option options[] = {
    REAL("beta1", beta1, "0.95", 0.0, 0.999999, "decay of the rotated gradient's running mean"),
    REAL("beta2", beta2, "0.95", 0.0, 0.999999, "decay of its square's running mean"),
    REAL("shampoo-beta", factor_beta, "-1", -1.0, 0.999999, "decay of the factors; -1: beta2"),
    REAL("eps", eps, "1e-8", 0.0, 1.0, "added to the root of the second moment"),
    WHOLE("soap-freq", every, "10", 1, 1 << 30, "updates from basis to basis"),
    WHOLE("max-dim", longest, "10000", 0, 1 << 20, "longest side that is rotated; 0: none"),
    CHOICE("soap-factors", factors, "shampoo", "shampoo|kl", "of the gradient as it is, or whitened along the other side"),
    CHOICE("soap-conv", conv, "matrix", "matrix|modes", "a convolution as a matrix, or with a basis for each dimension"),
    FLAG("normalize", normalize, "false", "each block's step gets the root mean square 1"),
    FLAG("correct-bias", correct_bias, "true", "bias correction of the running means"),
    FLAG("cautious", cautious, "false", "weight decay only where it agrees with the step"),
    FLAG("hyperball", hyperball, "false", "every matrix keeps its norm, and the rate is relative to it; without weight decay"),
    TEXT("split", split, "qkv", "parts of a fused projection: qkv, heads:N, or none"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *settings)
{
    const config *c = settings;
    if (c->factor_beta < 0.0 && c->factor_beta != -1.0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--shampoo-beta %g: give a number from 0 on, or -1", c->factor_beta);
    if (c->factors == FACTORS_KL && c->conv == CONV_MODES)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--soap-factors kl: is for matrices, leave out --soap-conv modes");
    if (c->cautious && c->hyperball)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--cautious: --hyperball has no weight decay to be cautious with, leave one out");
    return abar__split_check(ctx, c->split);
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    const config *c = settings;
    abar__chain_modes(chain, param, abar__split_rows(c->split, param), param->ndim != 4 || c->conv == CONV_MATRIX);
    chain->late_decay = true;
    chain->hyperball = c->hyperball && chain->cut.order > 1;
}

static void stages(const void *settings, abar__block_plan *p)
{
    const config *c = settings;
    const bool rotates = c->longest > 0;
    const double beta = c->factor_beta < 0.0 ? c->beta2 : c->factor_beta;
    abar__basis q = {.scales = {-1}};

    if (rotates && c->factors == FACTORS_KL)
        q = abar__blocks_whitened_basis(p, "factors", "bases", "scales", c->longest, beta);
    else if (rotates)
        q = abar__blocks_basis(p, "factors", "bases", c->longest, beta); /* S_i, Q_i */
    if (rotates) abar__blocks_rotate(p, q);                              /* g′ */
    const abar__adam adam = abar__blocks_adam(p, "momentum", "squares", c->beta1, c->beta2, c->eps);
    if (rotates) abar__blocks_rotate_back(p, q); /* N */
    if (c->normalize) abar__blocks_even(p);
    abar__blocks_step(p, adam, c->correct_bias);
    if (c->cautious) abar__blocks_cautious(p);
    if (c->hyperball) abar__blocks_ball(p);
    if (rotates) abar__blocks_turn(p, q, adam, c->every);
}

static void scalars(const void *settings, abar__update_scalars *s) { (void)settings, (void)s; }

const abar__rule_ops abar__rule_soap = {
    .rule = {.name = "soap",
             .summary = "Adam in the eigenbasis of Shampoo's factors",
             .options = options,
             .config_size = sizeof(config),
             .states = 5},
    .check = check,
    .plan = plan,
    .scalars = scalars,
    .stages = stages,
};
