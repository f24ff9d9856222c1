/* AdaHessian (optimizers.md section 3): Adam whose second moment is that of the Hessian's diagonal.
 *     D = |Hz|, z of random signs, by central differences of gradients; of a convolution the mean over its taps
 *     m <- beta1 m + (1 - beta1) G;  v <- beta2 v + (1 - beta2) D^2
 *     W <- W - eta (m / (1 - beta1^t) / ((sqrt(v / (1 - beta2^t)))^kappa + eps) + lambda W) */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

typedef struct config {
    double beta1, beta2, eps, power, fd_step;
    int64_t every;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

static const abar_option options[] = {
    REAL("beta1", beta1, "0.9", 0.0, 0.999999, "decay of the gradient's running mean"),
    REAL("beta2", beta2, "0.999", 0.0, 0.999999, "decay of the running mean of the diagonal's squares"),
    REAL("eps", eps, "1e-4", 0.0, 1.0, "added to the denominator"),
    REAL("hessian-power", power, "1", 0.0, 1.0, "exponent of the denominator"),
    WHOLE("hessian-every", every, "1", 1, 1e9, "steps between two estimates of the diagonal"),
    REAL("fd-step", fd_step, "0", 0.0, 10.0, "length of the differences relative to the weights; 0: by the device's precision"),
    {.name = NULL},
};

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->beta1 = c->beta1;
    s->beta2 = c->beta2;
    s->eps = c->eps;
    s->power = c->power;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    (void)settings, (void)param;
    chain->first = ABAR_UPDATE_ADAHESSIAN;
}

static void extra(const void *settings, abar__extra_request *request)
{
    const config *c = settings;
    *request = (abar__extra_request){.kind = ABAR_EXTRA_DIFFERENCE, .every = c->every, .relative = c->fd_step};
}

const abar__rule_ops abar__rule_adahessian = {
    .rule = {.name = "adahessian",
             .summary = "Adam with the diagonal of the Hessian, from two more gradients",
             .options = options,
             .config_size = sizeof(config),
             .states = 3},
    .plan = plan,
    .scalars = scalars,
    .extra = extra,
};
