/* Curvature methods: what there is, their settings, and what can be seen of them. They work inside an optimizer (optim.h). */
#ifndef ABAR_CURVATURE_H
#define ABAR_CURVATURE_H

#include "abar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A curvature method as the registry knows it. It preconditions the gradients of linear maps before the rule runs. */
typedef struct abar_method {
    const char *name, *summary;
    const char *keeps; /* its state per map, as a person would say it */
    const abar_option *options;
    size_t config_size;
} abar_method;

const abar_method *abar_method_find(const char *name);
const char *const *abar_method_names(void);
/* Whether a configuration of it will do; creating an optimizer checks the same, and what the layers must have for it. */
abar_status abar_method_check(abar_context *ctx, const abar_method *method, const void *config);
/* Whether observe must bring the output gradients too; false for an unknown name. */
bool abar_method_reads_output_grad(const char *name);

/* The settings that all methods share (methods.md section 0): their table, and the bytes of the config that it describes. */
const abar_option *abar_curvature_options(void);
size_t abar_curvature_config_size(void);

/* One row per map, for `abar models --optim`, logs and reports. */
typedef struct abar_map_info {
    const char *layer;
    int64_t group, rows, columns; /* of the preconditioned matrix, bias column included */
    size_t state_bytes;
    int64_t commits;                        /* statistics taken so far */
    int64_t dropped, raised, doubled, kept; /* events of methods.md section 9 */
    double damping, mean_square, condition; /* rho in use, |a|^2, upper estimate; NaN: the method has none */
    double cosine, ratio;                   /* between G and its preconditioned form at the last step that measured */
} abar_map_info;

typedef void (*abar_map_visitor)(void *user, const abar_map_info *map);

typedef struct abar_phase_times {
    double observe, refresh, apply; /* seconds since creation */
    double kl_scale;                /* of the last step; 1 without a KL clip */
} abar_phase_times;

/* Called with every state tensor of an optimizer. */
typedef abar_status (*abar_state_visitor)(void *user, const char *name, const abar_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
