/* AdaHessian (optimizers.md section 3): Adam whose second moment is that of the Hessian's diagonal.
 *     D = |Hz|, z of random signs, by central differences of gradients; of a convolution the mean over its taps
 *     m <- beta1 m + (1 - beta1) G;  v <- beta2 v + (1 - beta2) D^2
 *     W <- W - eta (m / (1 - beta1^t) / ((sqrt(v / (1 - beta2^t)))^kappa + eps) + lambda W) */
#include "optim/optim_impl.h"

typedef struct config {
    double beta1, beta2, eps, power, fd_step;
    int64_t every;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

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
     .help = "decay of the running mean of the diagonal's squares"},
    {.name = "eps",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, eps),
     .fallback = "1e-4",
     .min = 0.0,
     .max = 1.0,
     .help = "added to the denominator"},
    {.name = "hessian-power",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, power),
     .fallback = "1",
     .min = 0.0,
     .max = 1.0,
     .help = "exponent of the denominator"},
    {.name = "hessian-every",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(config, every),
     .fallback = "1",
     .min = 1,
     .max = 1e9,
     .help = "steps between two estimates of the diagonal"},
    {.name = "fd-step",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(config, fd_step),
     .fallback = "0",
     .min = 0.0,
     .max = 10.0,
     .help = "length of the differences relative to the weights; 0: by the device's precision"},
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
