/* Shampoo (optimizers.md section 1): Kronecker-factored AdaGrad. For each block of each parameter, with S_i and R_i for its
 * modes:
 *
 *     S_i ← β₂ S_i + (1−β₂) G₍ᵢ₎G₍ᵢ₎ᵀ;   R_i = (S_i/(1−β₂ᵗ) + εI)^(−1/2o) every f-th update, o the number of modes
 *     Ḡ = Adam's average of G;   P = Ḡ ×₁R₁ ×₂R₂ …, with a graft as long as its direction;   W ← (1 − ηλ)W − ηP
 *
 * The presets are the comparator of the MAC paper, as its authors' code runs, and as it was meant: blocks of 128, sums with a
 * ridge, SGD's length of the whole parameter, and momentum behind it. */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta3, beta2, eps, exponent;
    int64_t block, every, start, graft, decay, preset;
    double graft_beta, graft_eps;
    char split[ABAR_OPTION_TEXT_MAX];
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

enum { GRAFT_NONE, GRAFT_SGD, GRAFT_ADAGRAD, GRAFT_RMSPROP, GRAFT_ADAM };
enum { DECAY_DECOUPLED, DECAY_COUPLED };
enum { PRESET_NONE, PRESET_PAPER, PRESET_INTENDED };

#define PAPER_BLOCK 128
#define PAPER_EPS 1e-12 /* in front of the first sum, and of the ridge */

static const abar_option options[] = {
    REAL("beta1", beta1, "0.9", 0.0, 0.999999, "decay of the gradient's running mean; 0: none"),
    REAL("beta3", beta3, "-1", -1.0, 0.999999, "weight of that mean in the step; -1: beta1"),
    REAL("shampoo-beta", beta2, "1", 0.0, 1.0, "decay of the factors; 1: they are sums"),
    REAL("shampoo-eps", eps, "1e-12", 0.0, 1e6, "added to the eigenvalues of the factors"),
    REAL("shampoo-exponent", exponent, "-1", -1.0, 1.0, "of the factors' inverse roots; -1: 1/2 over the number of modes"),
    WHOLE("shampoo-block", block, "1024", 1, 1 << 20, "largest side of a block"),
    WHOLE("shampoo-freq", every, "1", 1, 1 << 30, "updates from root to root"),
    WHOLE("shampoo-start", start, "0", 0, 1 << 30, "the first update with roots; 0: shampoo-freq"),
    CHOICE("graft", graft, "none", "none|sgd|adagrad|rmsprop|adam", "the rule whose step length each block gets"),
    REAL("graft-beta", graft_beta, "0", 0.0, 0.999999, "decay of the graft's squares; 0: rmsprop 0.99, adam 0.999"),
    REAL("graft-eps", graft_eps, "1e-10", 0.0, 1.0, "added to the root of the graft's squares"),
    CHOICE("decay", decay, "decoupled", "decoupled|coupled", "weight decay beside the gradient, or through it"),
    CHOICE("shampoo-preset", preset, "none", "none|mac-paper|mac-paper-intended",
           "the MAC paper's comparator; of the other options beta1 (momentum) and split count"),
    TEXT("split", split, "qkv", "parts of a fused projection: qkv, heads:N, or none"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *settings)
{
    const config *c = settings;
    if ((c->beta3 < 0.0 && c->beta3 != -1.0) || (c->exponent < 0.0 && c->exponent != -1.0))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--beta3 %g, --shampoo-exponent %g: give numbers from 0 on, or -1", c->beta3,
                          c->exponent);
    if (c->beta1 == 0.0 && c->beta3 > 0.0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--beta3 %g: there is no running mean, set --beta1 above 0", c->beta3);
    return abar__split_check(ctx, c->split);
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    const config *c = settings;
    const int64_t part_rows = abar__split_rows(c->split, param);
    if (c->preset == PRESET_NONE) {
        abar__chain_tensor(chain, param, part_rows, c->block);
        chain->coupled = c->decay == DECAY_COUPLED;
        return;
    }
    abar__chain_tensor_forwards(chain, param, part_rows, PAPER_BLOCK);
    chain->late_decay = true;
    if (c->preset == PRESET_PAPER) chain->decay = 0.0; /* its constructor discards it */
}

static double graft_beta(const config *c)
{
    if (c->graft == GRAFT_ADAGRAD) return 1.0;
    if (c->graft_beta > 0.0) return c->graft_beta;
    return c->graft == GRAFT_ADAM ? 0.999 : 0.99;
}

static void paper_stages(const config *c, abar__block_plan *p)
{
    const bool intended = c->preset == PRESET_INTENDED;
    const int64_t every = intended ? 50 : 1;
    const double mu = c->beta1;

    const abar__factors s = abar__blocks_sum_of_tensors(p, "factors", intended ? 5 : 1);
    const abar__factors r = abar__blocks_inverse_root(p, "roots", s, false, ABAR_BY_ORDER, PAPER_EPS, every, every);
    abar__blocks_ridge(p, PAPER_EPS);
    abar__blocks_measure(p, ABAR_NO_MOMENTS, false, 0.0, 1); /* ‖G‖ */
    abar__blocks_multiply(p, r);                             /* P */
    abar__blocks_rescale_whole(p);
    if (intended)
        abar__blocks_heavy_ball(p, "momentum", mu, 1.0, mu, 1.0); /* v ← μv + P;  μv + P */
    else
        abar__blocks_heavy_ball(p, "momentum", mu * mu, 1.0 + mu, 1.0, 0.0); /* twice m ← μm + P;  m */
}

static void stages(const void *settings, abar__block_plan *p)
{
    const config *c = settings;
    if (c->preset != PRESET_NONE) {
        paper_stages(c, p);
        return;
    }
    const int64_t start = c->start > 0 ? c->start : c->every;
    const bool squares = c->graft == GRAFT_ADAGRAD || c->graft == GRAFT_RMSPROP || c->graft == GRAFT_ADAM;

    const abar__factors s = abar__blocks_average(p, "factors", ABAR_EVERY_MODE, c->beta2);                        /* S_i */
    const abar__moments v = squares ? abar__blocks_squares(p, "squares", graft_beta(c)) : ABAR_NO_MOMENTS;        /* V */
    const abar__factors r = abar__blocks_inverse_root(p, "roots", s, true, c->exponent, c->eps, start, c->every); /* R_i */
    abar__blocks_momentum(p, "momentum", c->beta1, c->beta3 < 0.0 ? c->beta1 : c->beta3);                         /* Ḡ, m */
    if (c->graft != GRAFT_NONE) abar__blocks_measure(p, v, c->graft == GRAFT_ADAM, c->graft_eps, start); /* ‖Ḡ/(√V + ε_g)‖ */
    abar__blocks_multiply(p, r); /* Ḡ ×₁R₁ ×₂R₂ … */
    if (c->graft != GRAFT_NONE) abar__blocks_rescale(p);
}

static void scalars(const void *settings, abar__update_scalars *s) { (void)settings, (void)s; }

const abar__rule_ops abar__rule_shampoo = {
    .rule = {.name = "shampoo",
             .summary = "Kronecker-factored AdaGrad by blocks, with grafted step lengths",
             .options = options,
             .config_size = sizeof(config),
             .states = 4},
    .check = check,
    .plan = plan,
    .scalars = scalars,
    .stages = stages,
};
