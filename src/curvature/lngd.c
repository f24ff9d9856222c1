/* LNGD (methods.md section 6): activations weighted by the size of their gradients, and a diagonal for the gradients.
 *
 *     Φ = E_n[|p̄_n|² E_r(a aᵀ)],   Ψ = E_n[|ā_n|² E_r(p ⊙ p)] / E_n[|ā_n|² |p̄_n|²]  (0 if the denominator is 0)
 *     V = diag(Ψ + δ_Ψ)⁻¹ G (Φ + δ_Φ I)⁻¹,  dampings clip(tr Φ / d, ν1, ν2) and clip(ΣΨ / d_out, ν1, ν2)
 *     Ĝ = c V,  c = ⟨V, G⟩ / (⟨V, G⟩² + μ), per map
 *
 * Averages are of Φ and of Ψ's numerator and denominator: no per-example activations are ever stored. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct lngd_config {
    double nu1, nu2, mu, kl_clip;
} lngd_config;

enum { PHI, PSI };                    /* averages; PSI: its numerator, the map's number: its denominator */
enum { PHI_INVERSE, PSI_RECIPROCAL }; /* derived */

/* Examples whose weights are held at a time. */
#define CHUNK 256         /* by the host */
#define QUEUED_CHUNK 1024 /* by a queued device, behind the scratch of its products */

static const abar_option options[] = {
    {.name = "nu1",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, nu1),
     .fallback = "1e-5",
     .min = 1e-30,
     .max = 1e30,
     .help = "lower bound of both dampings"},
    {.name = "nu2",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, nu2),
     .fallback = "1e-2",
     .min = 1e-30,
     .max = 1e30,
     .help = "upper bound of both dampings"},
    {.name = "mu",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, mu),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "damping of each layer's step length"},
    ABAR_KL_CLIP_OPTION(lngd_config, "0"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    (void)method;
    const lngd_config *c = config;
    if (c->nu1 <= c->nu2) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--nu1 %g: above --nu2 %g, exchange them", c->nu1, c->nu2);
}

/* Where in a queued device's scratch the weights are. */
static size_t weights_at(const abar__curvature *cv, const abar__map *map)
{
    return abar__round_up(abar__scratch_bytes(cv, map, ABAR_SCRATCH_PRODUCT), ABAR_ALIGN);
}

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    out->average[PHI] =
        (abar__average_desc){.name = "Phi", .n = map->d, .square = true, .per = ABAR_PER_EXAMPLE, .grad_power = 2};
    out->average[PSI] = (abar__average_desc){.name = "Psi", .n = map->out, .per = ABAR_PER_EXAMPLE, .grad_power = 2};
    out->number = (abar__average_desc){.name = "Psi_denominator", .per = ABAR_PER_EXAMPLE, .grad_power = 2};
    out->derived[PHI_INVERSE] = (abar__derived_desc){"Phi_inverse", map->d * map->d};
    out->derived[PSI_RECIPROCAL] = (abar__derived_desc){"Psi_reciprocal", map->out};
    out->dense = true;
    out->scratch = abar__scratch_bytes(cv, map, ABAR_SCRATCH_PRODUCT | ABAR_SCRATCH_INVERT);
    if (cv->dev->ops->queue) {
        const size_t observing = weights_at(cv, map) + 2 * QUEUED_CHUNK * sizeof(double);
        if (observing > out->scratch) out->scratch = observing;
    }
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const abar__stats_ops *stats = cv->stats;
    const bool queued = cv->dev->ops->queue != NULL;
    const int64_t chunk = queued ? QUEUED_CHUNK : CHUNK;
    double held[2 * CHUNK];
    double *a = queued ? (double *)(void *)((char *)cv->scratch + weights_at(cv, map)) : held; /* |ā_n|² / R */
    double *p = a + chunk;                                                                     /* |p̄_n|² / R */
    for (int64_t first = 0; first < rows->examples; first += chunk) {
        const int64_t n = rows->examples - first < chunk ? rows->examples - first : chunk;
        const abar__rows part = abar__rows_slice(rows, first, n);
        stats->example_weights(cv->dev, &part, a, p, abar__pending_number(map));
        stats->input_product(cv->dev, &part, p, map->pending[PHI], cv->scratch);
        stats->grad_squares(cv->dev, &part, a, map->pending[PSI]);
    }
}

static double within(double x, const lngd_config *c) { return fmin(fmax(x, c->nu1), c->nu2); }

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const lngd_config *c = cv->method_config;
    const abar__stats_ops *stats = cv->stats;
    const double denominator = map->real[ABAR_REAL_NUMBER]; /* the averages' bias cancels in Ψ */
    const double psi = denominator > 0.0 ? 1.0 / denominator : 0.0;
    const double damping_psi = within(psi * stats->sum(cv->dev, map->out, map->average[PSI]) / (double)map->out, c);
    const double damping_phi = within(unbias * stats->trace(cv->dev, map->d, map->average[PHI]) / (double)map->d, c);
    if (!abar__curvature_invert(cv, map, map->d, map->average[PHI], unbias, damping_phi, map->derived[PHI_INVERSE]))
        return false;
    map->real[ABAR_REAL_DAMPING] = damping_phi;
    stats->reciprocal(cv->dev, map->out, map->average[PSI], psi, damping_psi, map->derived[PSI_RECIPROCAL]);
    return true;
}

static bool factors(const abar__curvature *cv, const abar__map *map, abar__dense_gradient *out)
{
    const lngd_config *c = cv->method_config;
    out->right = map->derived[PHI_INVERSE];
    out->row_scale = map->derived[PSI_RECIPROCAL];
    out->largest = 0.5 / sqrt(c->mu); /* the largest length */
    return true;
}

static double length(const abar__curvature *cv, double inner)
{
    const lngd_config *c = cv->method_config;
    inner *= cv->grad_scale * cv->grad_scale;
    return inner / (inner * inner + c->mu);
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const lngd_config *c = cv->method_config;
    out->kind = ABAR_KEPT_DENSE;
    abar__keep_average(map, PHI, out);
    abar__keep_average(map, PSI, out);
    out->pending_number = map->queued_number;
    out->inverse[0] = map->derived[PHI_INVERSE];
    out->r = map->derived[PSI_RECIPROCAL];
    out->damping = ABAR_DAMPING_CLIPPED;
    out->least = c->nu1;
    out->most = c->nu2;
    out->mu = c->mu;
}

const abar__curvature_ops abar__method_lngd = {
    .method = {.name = "lngd",
               .summary = "layer-wise natural gradient: weighted activations, diagonal gradients",
               .keeps = "Phi and its inverse, Psi: 2 d x d, 3 vectors of d_out",
               .options = options,
               .config_size = sizeof(lngd_config)},
    .uses = ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD,
    .kl_clip = offsetof(lngd_config, kl_clip),
    .check = check,
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .factors = factors,
    .length = length,
    .keep = keep,
};
