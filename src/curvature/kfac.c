/* KFAC (methods.md section 5): both Kronecker factors.
 *
 *     Ĝ = (P̂ + (√ρ/π) I)⁻¹ G (Â + (π√ρ) I)⁻¹,   π = sqrt((tr Â / d) / (tr P̂ / d_out)),   then the KL clip.
 *
 * π stays within [1e-10, 1e10], and is 1 where a trace is 0.
 *
 * reduce: A = E_n[ā_n ā_nᵀ], P = E_n[p̄_n p̄_nᵀ] from per-example means (under per-example gradients rows are summed: R² P);
 * expand: A = E[a aᵀ], P = R E[p pᵀ]. eigen divides by λ_P λ_Aᵀ + ρ in the factors' eigenbases instead. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct kfac_config {
    double damping, kl_clip;
    int64_t approximation, inverse;
} kfac_config;

enum { REDUCE, EXPAND };
enum { CHOLESKY, EIGEN };
enum { A, P };                                     /* averages */
enum { A_INVERSE, P_INVERSE };                     /* derived: cholesky */
enum { A_VECTORS, P_VECTORS, A_VALUES, P_VALUES }; /* derived: eigen */

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(kfac_config, damping),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, split between the two factors"},
    ABAR_KL_CLIP_OPTION(kfac_config, "0.001"),
    {.name = "kfac",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(kfac_config, approximation),
     .fallback = "reduce",
     .choices = "reduce|expand",
     .help = "shared weights: average the rows before the product, or after"},
    {.name = "kfac-inverse",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(kfac_config, inverse),
     .fallback = "cholesky",
     .choices = "cholesky|eigen",
     .help = "damp each factor, or their product in the eigenbasis"},
    {.name = NULL},
};

#define SCRATCH (ABAR_SCRATCH_PRODUCT | ABAR_SCRATCH_EIGEN | ABAR_SCRATCH_INVERT)

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    const kfac_config *c = cv->method_config;
    const bool eigen = c->inverse == EIGEN;
    out->average[A] = (abar__average_desc){.name = "A", .n = map->d, .square = true, .per = ABAR_PER_EXAMPLE};
    out->average[P] =
        (abar__average_desc){.name = "P", .n = map->out, .square = true, .per = ABAR_PER_EXAMPLE, .grad_power = 2};
    if (c->approximation == EXPAND) out->average[A].per = ABAR_PER_ROW;
    out->derived[A_INVERSE] = (abar__derived_desc){eigen ? "A_vectors" : "A_inverse", map->d * map->d};
    out->derived[P_INVERSE] = (abar__derived_desc){eigen ? "P_vectors" : "P_inverse", map->out * map->out};
    if (eigen) {
        out->derived[A_VALUES] = (abar__derived_desc){"A_values", map->d};
        out->derived[P_VALUES] = (abar__derived_desc){"P_values", map->out};
    }
    out->dense = true;
    out->scratch = abar__scratch_bytes(cv, map, SCRATCH);
    if (!cv->dev->ops->queue) /* P's new, until A's is there */
        out->scratch += abar__vector_bytes(cv, map->out * map->out) + abar__vector_bytes(cv, map->out);
}

/* Sums of P are divided by N at the commit. expand wants R E[p pᵀ] = (1/N) Σ p pᵀ as it is; reduce wants E_n[p̄_n p̄_nᵀ], and
 * under per-example gradients R² times that: then p is scaled by R beforehand. */
static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const kfac_config *c = cv->method_config;
    if (c->approximation == EXPAND) {
        cv->stats->input_product(cv->dev, rows, NULL, map->pending[A], cv->scratch);
        cv->stats->grad_product(cv->dev, rows, map->pending[P], cv->scratch);
        return;
    }
    abar__rows summed = *rows;
    if (cv->config.pgrad) summed.grad_scale *= (double)rows->per_example;
    abar__add_mean_products(cv, &summed, map->pending[A], map->pending[P]);
}

/* Both factors are renewed, or neither: where P's waits until A's is there. */
static void *new_p(const abar__curvature *cv, const abar__map *map)
{
    return (char *)cv->scratch + abar__scratch_bytes(cv, map, SCRATCH);
}

static bool refresh_cholesky(abar__curvature *cv, abar__map *map, double unbias, double rho)
{
    double trace_a = unbias * cv->stats->trace(cv->dev, map->d, map->average[A]) / (double)map->d;
    double trace_p = unbias * cv->stats->trace(cv->dev, map->out, map->average[P]) / (double)map->out;
    double pi = trace_a > 0.0 && trace_p > 0.0 ? fmin(fmax(sqrt(trace_a / trace_p), 1e-10), 1e10) : 1.0;
    void *p_inverse = new_p(cv, map);
    if (!abar__curvature_invert(cv, map, map->out, map->average[P], unbias, sqrt(rho) / pi, p_inverse)) return false;
    if (!abar__curvature_invert(cv, map, map->d, map->average[A], unbias, pi * sqrt(rho), map->derived[A_INVERSE]))
        return false;
    cv->stats->affine(cv->dev, map->out * map->out, p_inverse, 1.0, 0.0, map->derived[P_INVERSE]);
    return true;
}

static bool refresh_eigen(abar__curvature *cv, abar__map *map, double unbias)
{
    const abar__stats_ops *stats = cv->stats;
    void *vectors = new_p(cv, map), *values = (char *)vectors + abar__vector_bytes(cv, map->out * map->out);
    if (!stats->eigen(cv->dev, map->out, map->average[P], unbias, values, vectors, cv->scratch)) return false;
    if (!stats->eigen(cv->dev, map->d, map->average[A], unbias, map->derived[A_VALUES], map->derived[A_VECTORS], cv->scratch))
        return false;
    stats->affine(cv->dev, map->out, values, 1.0, 0.0, map->derived[P_VALUES]);
    stats->affine(cv->dev, map->out * map->out, vectors, 1.0, 0.0, map->derived[P_VECTORS]);
    return true;
}

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const kfac_config *c = cv->method_config;
    map->real[ABAR_REAL_DAMPING] = c->damping;
    return c->inverse == EIGEN ? refresh_eigen(cv, map, unbias) : refresh_cholesky(cv, map, unbias, c->damping);
}

static bool factors(const abar__curvature *cv, const abar__map *map, abar__dense_gradient *out)
{
    const kfac_config *c = cv->method_config;
    out->left = map->derived[P_INVERSE];
    out->right = map->derived[A_INVERSE];
    return c->inverse == CHOLESKY;
}

/* Rows of the vectors are eigenvectors: V_P G V_Aᵀ is G in the eigenbasis. */
static void apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    const kfac_config *c = cv->method_config;
    const abar__stats_ops *stats = cv->stats;
    const int64_t m = map->out, n = map->d;
    stats->sandwich(cv->dev, m, n, map->derived[P_VECTORS], false, g, map->derived[A_VECTORS], true, out, cv->spare);
    stats->divide_outer(cv->dev, m, n, out, map->derived[P_VALUES], map->derived[A_VALUES], c->damping);
    stats->sandwich(cv->dev, m, n, map->derived[P_VECTORS], true, out, map->derived[A_VECTORS], false, out, cv->spare);
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const kfac_config *c = cv->method_config;
    out->kind = ABAR_KEPT_DENSE;
    out->damping = ABAR_DAMPING_SHARED;
    out->rho = c->damping;
    for (int i = A; i <= P; i++) {
        abar__keep_average(map, i, out);
        out->inverse[i] = map->derived[A_INVERSE + i];
        if (c->inverse == EIGEN) out->values[i] = map->derived[A_VALUES + i];
    }
}

const abar__curvature_ops abar__method_kfac = {
    .method = {.name = "kfac",
               .summary = "both Kronecker factors of the Fisher matrix",
               .keeps = "E[a aT], E[p pT] and their inverses: 2 d x d, 2 d_out x d_out",
               .options = options,
               .config_size = sizeof(kfac_config)},
    .uses = ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD,
    .kl_clip = offsetof(kfac_config, kl_clip),
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .factors = factors,
    .apply = apply,
    .keep = keep,
};
