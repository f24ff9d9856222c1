/* FOOF (methods.md section 4): the activation factor in full, A = E[a aᵀ];  Ĝ = G (Â + ρI)⁻¹. */
#include "curvature/curvature_impl.h"

typedef struct foof_config {
    double damping, kl_clip;
} foof_config;

enum { A = 0, A_INVERSE = 0 };

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(foof_config, damping),
     .fallback = "1",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, added to the diagonal of the factor"},
    ABAR_KL_CLIP_OPTION(foof_config, "0"),
    {.name = NULL},
};

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    out->average[A] = (abar__average_desc){.name = "A", .n = map->d, .square = true, .per = ABAR_PER_ROW};
    out->derived[A_INVERSE] = (abar__derived_desc){"A_inverse", map->d * map->d};
    out->dense = true;
    out->scratch = abar__scratch_bytes(cv, map, ABAR_SCRATCH_PRODUCT | ABAR_SCRATCH_INVERT);
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    cv->stats->input_product(cv->dev, rows, NULL, map->pending[A], cv->scratch);
}

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const foof_config *c = cv->method_config;
    map->real[ABAR_REAL_DAMPING] = c->damping;
    return abar__curvature_invert(cv, map, map->d, map->average[A], unbias, c->damping, map->derived[A_INVERSE]);
}

static bool factors(const abar__curvature *cv, const abar__map *map, abar__dense_gradient *out)
{
    (void)cv;
    out->right = map->derived[A_INVERSE];
    return true;
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const foof_config *c = cv->method_config;
    out->kind = ABAR_KEPT_DENSE;
    abar__keep_average(map, A, out);
    out->inverse[0] = map->derived[A_INVERSE];
    out->rho = c->damping;
}

const abar__curvature_ops abar__method_foof = {
    .method = {.name = "foof",
               .summary = "the full activation factor, the identity for the gradients",
               .keeps = "E[a aT] and its inverse: 2 d x d",
               .options = options,
               .config_size = sizeof(foof_config)},
    .uses = ABAR_USES_INPUT,
    .kl_clip = offsetof(foof_config, kl_clip),
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .factors = factors,
    .keep = keep,
};
