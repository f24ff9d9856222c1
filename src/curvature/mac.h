/* What SMAC (smac.c) shares with MAC (mac.c): its config begins with MAC's, so that both tables name the same functions. */
#ifndef ABAR_MAC_H
#define ABAR_MAC_H

#include "curvature/curvature_impl.h"

typedef struct abar__mac_config {
    char damping[ABAR_OPTION_TEXT_MAX]; /* a number, or adaptive */
    int64_t first_layer, value_stat, form;
    double kl_clip;
} abar__mac_config;

/* The rows of both option tables. */
#define ABAR_MAC_OPTIONS                                                                                             \
    {.name = "damping",                                                                                              \
     .type = ABAR_OPTION_TEXT,                                                                                       \
     .offset = offsetof(abar__mac_config, damping),                                                                  \
     .fallback = "1",                                                                                                \
     .help = "rho: a number, or adaptive (from the trace, per layer)"},                                              \
        {.name = "first-layer",                                                                                      \
         .type = ABAR_OPTION_CHOICE,                                                                                 \
         .offset = offsetof(abar__mac_config, first_layer),                                                          \
         .fallback = "running",                                                                                      \
         .choices = "running|dataset-mean|dataset-cov",                                                              \
         .help = "statistics of the first layer: like the others, or from one pass over the data"},                  \
        {.name = "value-stat",                                                                                       \
         .type = ABAR_OPTION_CHOICE,                                                                                 \
         .offset = offsetof(abar__mac_config, value_stat),                                                           \
         .fallback = "expectation",                                                                                  \
         .choices = "expectation|factored|per-head|plain",                                                           \
         .help = "mean input for the values of attention: weighted by attention, in two factors, per head, or not"}, \
        {.name = "damping-form",                                                                                     \
         .type = ABAR_OPTION_CHOICE,                                                                                 \
         .offset = offsetof(abar__mac_config, form),                                                                 \
         .fallback = "decoupled",                                                                                    \
         .choices = "decoupled|coupled",                                                                             \
         .help = "coupled: divided by rho, the exact inverse of the damped rank-1 matrix"},                          \
        ABAR_KL_CLIP_OPTION(abar__mac_config, "0")

/* Positions among a map's averages and derived tensors. */
enum { ABAR_MAC_MEAN = 0, ABAR_MAC_U = 0 };

/* rho where it is a number; adaptive: 0. */
double abar__mac_damping(const abar__mac_config *c, bool *adaptive);
/* Whether the map's mean is summed over plain rows: it is neither calibrated nor weighed by attention. */
bool abar__mac_sums_rows(const abar__curvature *cv, const abar__map *map);
/* Adds the rows' |a|^2 where the map's damping is adaptive. */
void abar__mac_add_square(abar__curvature *cv, abar__map *map, const abar__rows *rows);
/* What the whole is multiplied by: 1 / rho with --damping-form coupled, else 1. */
double abar__mac_outer_scale(const abar__curvature *cv, const abar__map *map);

/* MAC's own functions, as abar__curvature_ops describes them. */
abar_status abar__mac_check(abar_context *ctx, const char *method, const void *config);
abar_status abar__mac_check_maps(const abar__curvature *cv);
int64_t abar__mac_value_parts(const abar__curvature *cv, const abar_layer *layer);
void abar__mac_shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out);
void abar__mac_observe(abar__curvature *cv, abar__map *map, const abar__rows *rows);
bool abar__mac_refresh(abar__curvature *cv, abar__map *map, double unbias);
void abar__mac_describe(abar__curvature *cv, abar__map *map);
void abar__mac_apply(abar__curvature *cv, abar__map *map, const void *g, void *out);
void abar__mac_calibrate(abar__curvature *cv, abar__map *map, const abar__rows *rows);
bool abar__mac_end_calibration(abar__curvature *cv, abar__map *map);
void abar__mac_keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out);

#endif
