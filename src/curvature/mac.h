/* What SMAC (smac.c) shares with MAC (mac.c): its config begins with MAC's, so that both tables name the same functions. */
#ifndef ABAR_MAC_H
#define ABAR_MAC_H

#include "curvature/damping.h"

typedef struct abar__mac_config {
    char damping[ABAR_OPTION_TEXT_MAX]; /* damping.h; or adaptive */
    int64_t first_layer, value_stat, form;
    double kl_clip;
} abar__mac_config;

/* The rows of both option tables. */
#define ABAR_MAC_OPTIONS                                                                                             \
    {.name = "damping",                                                                                              \
     .type = ABAR_OPTION_TEXT,                                                                                       \
     .offset = offsetof(abar__mac_config, damping),                                                                  \
     .fallback = "1",                                                                                                \
     .help = "rho: a number, trace:G (G times the mean of E[a aT]'s diagonal), or adaptive"},                        \
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

/* MAC's own functions, as abar__curvature_ops describes them. */
abar_status abar__mac_check(abar_context *ctx, const char *method, const void *config);
abar_status abar__mac_check_maps(const abar__curvature *cv);
int64_t abar__mac_value_parts(const void *config, const abar_layer *layer);
void abar__mac_plan(const abar__curvature *cv, const abar__map *map, abar__plan *p);

#endif
