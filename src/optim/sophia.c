/* Sophia-G (optimizers.md section 3): momentum over a diagonal of the Gauss-Newton matrix, clipped element by element.
 *     m <- beta1 m + (1 - beta1) G;  W <- (1 - eta lambda) W - eta sign(m) min(|m| / (rho T h + 1e-15), 1)
 *     after every K-th step:  h <- beta2 h + (1 - beta2) g*g, g the gradient on labels drawn from the model */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta2, rho;
    int64_t every;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

static const abar_option options[] = {
    REAL("beta1", beta1, "0.965", 0.0, 0.999999, "decay of the gradient's running mean"),
    REAL("beta2", beta2, "0.99", 0.0, 0.999999, "decay of the diagonal"),
    REAL("sophia-rho", rho, "0.04", 1e-12, 1e12, "bound on the ratio of momentum and diagonal"),
    WHOLE("hessian-every", every, "10", 1, 1e9, "steps between two estimates of the diagonal"),
    {.name = NULL},
};

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->beta1 = c->beta1;
    s->clip_scale = c->rho;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    (void)settings, (void)param;
    chain->first = ABAR_UPDATE_SOPHIA;
}

static void extra(const void *settings, abar__extra_request *request)
{
    const config *c = settings;
    *request = (abar__extra_request){.kind = ABAR_EXTRA_SAMPLED, .every = c->every, .decay = c->beta2};
}

const abar__rule_ops abar__rule_sophia = {
    .rule = {.name = "sophia",
             .summary = "clipped momentum over a diagonal of the Gauss-Newton matrix",
             .options = options,
             .config_size = sizeof(config),
             .states = 2},
    .plan = plan,
    .scalars = scalars,
    .extra = extra,
};
