/* Adam with decoupled weight decay, as torch.optim.AdamW (methods.md section 8):
 *   m <- beta1 m + (1 - beta1) G;  v <- beta2 v + (1 - beta2) G^2;
 *   W <- (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * cautious: lambda = 0 where m and W have different signs */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta2, eps;
    bool cautious;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

/* The ranges keep every denominator above zero, in float too. */
static const abar_option options[] = {
    REAL("beta1", beta1, "0.9", 0.0, 0.999999, "decay of the gradient's running mean"),
    REAL("beta2", beta2, "0.999", 0.0, 0.999999, "decay of the squared gradient's running mean"),
    REAL("eps", eps, "1e-8", 1e-30, 1.0, "added to the root of the second moment"),
    FLAG("cautious", cautious, "false", "weight decay only where it agrees with the step"),
    {.name = NULL},
};

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->beta1 = c->beta1;
    s->beta2 = c->beta2;
    s->eps = c->eps;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    (void)param;
    chain->first = ABAR_UPDATE_ADAMW;
    chain->cautious = ((const config *)settings)->cautious;
}

const abar__rule_ops abar__rule_adamw = {
    .rule = {.name = "adamw",
             .summary = "Adam with decoupled weight decay",
             .options = options,
             .config_size = sizeof(config),
             .states = 2},
    .plan = plan,
    .scalars = scalars,
};
