/* Schedule-Free AdamW (optimizers.md section 4). Gradients are taken at y, which the network holds; x is tested and exported, a
 * weighted mean of the z:
 *   omega = t^r (largest eta so far)^q;  c = omega / (sum of all omega);  v <- beta2 v + (1 - beta2) G^2;
 *   u = G / (sqrt(v / (1 - beta2^t)) + eps) + lambda y;  y <- (1 - c) y + c z - eta (1 - beta1 (1 - c)) u;  z <- z - eta u;
 *   x = y + (1 - 1 / beta1) (z - y)
 * The state is z - y, which starts at 0 whatever the weights are: z - y <- (1 - c) (z - y - eta beta1 u). */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta2, eps, time_power, rate_power;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

static const abar_option options[] = {
    /* x is divided by beta1 */
    REAL("beta1", beta1, "0.9", 1e-3, 1.0, "share of x in the point that gradients are taken at, the rest is z"),
    REAL("beta2", beta2, "0.999", 0.0, 0.999999, "decay of the squared gradient's running mean"),
    REAL("eps", eps, "1e-8", 1e-30, 1.0, "added to the root of the second moment"),
    REAL("sf-time-power", time_power, "0", 0.0, 100.0, "r: update t has the weight t^r in the average"),
    REAL("sf-rate-power", rate_power, "2", 0.0, 100.0, "q: times the largest learning rate so far to this power"),
    {.name = NULL},
};

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->beta1 = c->beta1;
    s->beta2 = c->beta2;
    s->eps = c->eps;
    s->schedule_free = true;
    s->time_power = c->time_power;
    s->rate_power = c->rate_power;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    (void)settings, (void)param;
    chain->first = ABAR_UPDATE_SFADAMW;
}

const abar__rule_ops abar__rule_sfadamw = {
    .rule = {.name = "sfadamw",
             .summary = "Schedule-Free AdamW: an average of the weights in place of a falling rate",
             .options = options,
             .config_size = sizeof(config),
             .states = 2,
             .averages = true},
    .plan = plan,
    .scalars = scalars,
};
