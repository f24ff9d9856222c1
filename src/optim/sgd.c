/* Stochastic gradient descent with momentum (methods.md section 8):
 *   g <- G + lambda W (coupled decay);  v <- mu v + g;  W <- W - eta v, or with Nesterov W <- W - eta (g + mu v);
 * decoupled decay: W <- (1 - eta lambda) W - eta v; inside: lambda W is added before a method gets the gradient. A new rule
 * starts as a copy of this file. */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

enum { DECAY_COUPLED, DECAY_DECOUPLED, DECAY_INSIDE };

typedef struct config {
    double momentum;
    bool nesterov;
    int64_t decay;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

static const abar_option options[] = {
    REAL("momentum", momentum, "0.9", 0.0, 1.0, "momentum coefficient, 0: none"),
    FLAG("nesterov", nesterov, "false", "Nesterov momentum"),
    CHOICE("decay", decay, "coupled", "coupled|decoupled|inside",
           "weight decay through the gradient that a method leaves, beside it, or through the one that it gets"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *settings)
{
    const config *c = settings;
    if (c->nesterov && c->momentum == 0.0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--nesterov: there is no momentum, set --momentum above 0");
    return ABAR_OK;
}

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->momentum = c->momentum;
    s->nesterov = c->nesterov;
    s->decoupled = c->decay == DECAY_DECOUPLED;
    s->inside = c->decay == DECAY_INSIDE;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    (void)settings, (void)param;
    chain->first = ABAR_UPDATE_SGD;
}

const abar__rule_ops abar__rule_sgd = {
    .rule = {.name = "sgd",
             .summary = "stochastic gradient descent with momentum",
             .options = options,
             .config_size = sizeof(config),
             .states = 1},
    .check = check,
    .plan = plan,
    .scalars = scalars,
};
