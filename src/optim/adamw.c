/* Adam with decoupled weight decay, as torch.optim.AdamW (methods.md section 8):
 *   m <- beta1 m + (1 - beta1) G;  v <- beta2 v + (1 - beta2) G^2;
 *   W <- (1 - eta lambda) W - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * cautious: lambda = 0 where m and W have different signs */
#include "optim/optim_impl.h"

typedef struct config {
    double beta1, beta2, eps;
    bool cautious;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

/* The ranges keep every denominator above zero, in float too. */
static const abar_option options[] = {
    {.name = "beta1",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, beta1),
     .fallback = "0.9",
     .min = 0.0,
     .max = 0.999999,
     .help = "decay of the gradient's running mean"},
    {.name = "beta2",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, beta2),
     .fallback = "0.999",
     .min = 0.0,
     .max = 0.999999,
     .help = "decay of the squared gradient's running mean"},
    {.name = "eps",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, eps),
     .fallback = "1e-8",
     .min = 1e-30,
     .max = 1.0,
     .help = "added to the root of the second moment"},
    {.name = "cautious",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(config, cautious),
     .fallback = "false",
     .help = "weight decay only where it agrees with the step"},
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
