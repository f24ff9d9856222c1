/* The activation side that MAC and SMAC share (methods.md section 1): Ĝ = G (I − â âᵀ / (ρ + |â|²)), kept as the single vector
 * u = â / sqrt(ρ + |â|²), so that Ĝ = G − (G u) uᵀ. |u| < 1, so nothing overflows whatever the activations are. */
#ifndef ABAR_MEAN_SIDE_H
#define ABAR_MEAN_SIDE_H

#include "curvature/curvature_impl.h"

enum { ABAR_FIRST_RUNNING, ABAR_FIRST_DATASET_MEAN, ABAR_FIRST_DATASET_COV };
enum { ABAR_VALUE_EXPECTATION, ABAR_VALUE_FACTORED, ABAR_VALUE_PER_HEAD, ABAR_VALUE_PLAIN };

typedef struct abar__mean_config {
    char damping[ABAR_OPTION_TEXT_MAX]; /* a number, or adaptive */
    int64_t first_layer, value_stat;
} abar__mean_config;

/* The rows of both methods' option tables. base: offset of the abar__mean_config in the method's config. */
#define ABAR_MEAN_OPTIONS(base)                                                                                       \
    {.name = "damping",                                                                                               \
     .type = ABAR_OPTION_TEXT,                                                                                        \
     .offset = (base) + offsetof(abar__mean_config, damping),                                                         \
     .fallback = "1",                                                                                                 \
     .help = "rho: a number, or adaptive (the trace decides)"},                                                       \
        {.name = "first-layer",                                                                                       \
         .type = ABAR_OPTION_CHOICE,                                                                                  \
         .offset = (base) + offsetof(abar__mean_config, first_layer),                                                 \
         .fallback = "running",                                                                                       \
         .choices = "running|dataset-mean|dataset-cov",                                                               \
         .help = "statistics of the layer that reads the data: like the others, or one pass over the set"},           \
    {                                                                                                                 \
        .name = "value-stat", .type = ABAR_OPTION_CHOICE, .offset = (base) + offsetof(abar__mean_config, value_stat), \
        .fallback = "expectation", .choices = "expectation|factored|per-head|plain",                                  \
        .help = "mean input of attention's values: as attention weighs it, in two factors, by head, or not weighed"   \
    }

/* Positions among a map's averages and derived tensors. */
enum { ABAR_MEAN_AVERAGE = 0, ABAR_MEAN_U = 0 };

/* Rows of v have m = E_b[X_bᵀ t̄_b] in place of ā, one for all of them or one for each head (methods.md section 2). */
int64_t abar__mean_value_parts(const abar__mean_config *c, const abar_layer *layer);
abar_status abar__mean_check(abar_context *ctx, const char *method, const abar__mean_config *c);
/* A first layer that is to be calibrated must be there. */
abar_status abar__mean_check_maps(const abar__curvature *cv, const abar__mean_config *c);
/* rho where it is a number; adaptive: 0. */
double abar__mean_damping(const abar__mean_config *c, bool *adaptive);
void abar__mean_shape(const abar__curvature *cv, const abar__mean_config *c, const abar__map *map, abar__map_shape *out);
/* squares: where p ⊙ p is summed too; NULL: nowhere */
void abar__mean_observe(abar__curvature *cv, const abar__mean_config *c, abar__map *map, const abar__rows *rows, void *squares);
void abar__mean_refresh(abar__curvature *cv, const abar__mean_config *c, abar__map *map, double unbias);
void abar__mean_keep(const abar__mean_config *c, const abar__map *map, abar__kept_map *out);
/* Dense only for the first layer with dataset-cov: out = rho G (E[aaᵀ] + rho I)⁻¹. */
void abar__mean_apply(abar__curvature *cv, abar__map *map, const void *g, void *out);

bool abar__mean_wants_calibration(const abar__mean_config *c, const abar__map *map);
void abar__mean_calibrate(abar__curvature *cv, const abar__mean_config *c, abar__map *map, const abar__rows *rows);
bool abar__mean_end_calibration(abar__curvature *cv, const abar__mean_config *c, abar__map *map);

#endif
