/* M-FAC (optimizers.md section 8): the inverse of the mean outer product of the last m gradients, damped.
 *
 *     Ĝ = (λI + (1/m) Σ g_i g_iᵀ)⁻¹ g = Γᵀ(λI + ΓΓᵀ/m)⁻¹e_j,   Γ (m, P) the ring of gradients, g in its slot j
 *
 * over all parameters as one vector, or over each map's. The rest is in device/host/ring.c. */
#include "curvature/curvature_impl.h"

enum { SCOPE_FULL, SCOPE_LAYER };
enum { RING_DEVICE, RING_BF16 };

typedef struct mfac_config {
    double damping;
    int64_t gradients, scope, precision;
} mfac_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(mfac_config, damping),
     .fallback = "1e-5",
     .min = 1e-30,
     .max = 1e30,
     .help = "lambda: its multiple of the identity is added to the mean outer product"},
    {.name = "mfac-gradients",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(mfac_config, gradients),
     .fallback = "1024",
     .min = 1,
     .max = 65536,
     .help = "m: the gradients that are kept, each as large as the parameters"},
    {.name = "mfac-scope",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(mfac_config, scope),
     .fallback = "full",
     .choices = "full|layer",
     .help = "all parameters as one vector, or each layer's; other parameters pass as they are then"},
    {.name = "mfac-precision",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(mfac_config, precision),
     .fallback = "device",
     .choices = "device|bf16",
     .help = "of the gradients that are kept"},
    {.name = NULL},
};

static bool is_joint(const void *config) { return ((const mfac_config *)config)->scope == SCOPE_FULL; }

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    static const char *const names[2] = {"ring", "gram"};
    const mfac_config *c = map->config;
    abar__plan_ring(p, names, c->gradients, c->precision == RING_BF16, c->damping);
}

const abar__curvature_ops abar__method_mfac = {
    .method = {.name = "mfac",
               .summary = "the inverse Fisher matrix of the last gradients (Frantar et al. 2021)",
               .keeps = "the last m gradients, each as large as the parameters, and m x m",
               .options = options,
               .config_size = sizeof(mfac_config)},
    .is_joint = is_joint,
    .plan = plan,
};
