/* What the files of the host's step share: a compiled step, and the stage that keep.c has. */
#ifndef ABAR_HOST_COMPILED_STEP_H
#define ABAR_HOST_COMPILED_STEP_H

#include "device/host/extra.h"
#include "device/host/natural.h"
#include "device/owners.h"
#include "device/host/secant.h"
#include "device/step_rules.h"

typedef struct abar__host_control {
    abar__step_state state;
    double norm, scale; /* |G| as gradients are in memory; what the passes multiply them by: */
    double grad_scale;  /* without clipping */
    double lr;
    int64_t now; /* the step being made */
    int32_t skip;
    abar__step_outcome seen; /* losses of the step begun */
    bool bad;                /* one was not finite */
    abar__extra_state extra;
} abar__host_control;

/* A map with its gradients; NULL: none now. */
typedef struct abar__treated_map {
    abar__precondition pre;
    void *grad, *bias_grad;
    abar__map_weights weights;
} abar__treated_map;

struct abar__compiled_step {
    abar__step_desc desc;
    abar__host_control control;
    /* one block of memory */
    abar__plan *plans;
    abar__map_state *states;
    abar__treated_map *maps;
    abar__natural_item *natural; /* of the maps; NULL: they are not */
    double *products;
    abar__update_item *updates; /* the description's, with their preconditioners */
    abar__row_look *looks;      /* of the maps: what check reads them with; right NULL: their products are not to be used */
    char *row_products;         /* of all maps */
    int32_t *verdicts;
    abar__first_pass *first_passes; /* where there is a second one */
    void *memory;
    size_t memory_bytes;
    /* of the device */
    void *workspace;
    size_t workspace_bytes;
    void *saved; /* weights and momenta, until the second pass has been judged */
    size_t saved_bytes;
    double rate, *rates; /* of the next step; of those from first_rate on, where there is more than one */
    int64_t first_rate, n_rates, rates_capacity;
    abar__update_scalars scalars;
    abar__owned *owned; /* refreshes that ranks divide; NULL: one rank */
    double refresh_seconds, apply_seconds;
    abar__step_outcome outcomes[ABAR_STEP_RESULTS];
};

/* Of abar__step_ops (keep.c): commit, share and visit_derived. */
abar_status abar__host_keep(abar_device *dev, abar__compiled_step *s, const double *to_mean, bool divided);
abar_status abar__host_share(abar_device *dev, abar__compiled_step *s, const abar__owners *owners);
abar_status abar__host_visit_derived(abar_device *dev, abar__compiled_step *s, bool all, abar__piece_visitor visit, void *user);

#endif
