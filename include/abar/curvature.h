/* Curvature methods (methods.md): which there are, their settings, and the statistics they report. An optimizer (optim.h) runs
 * them: a method preconditions the gradients of linear maps before the update rule is applied. */
#ifndef ABAR_CURVATURE_H
#define ABAR_CURVATURE_H

#include "abar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_method {
    const char *name, *summary;
    const char *keeps; /* what it stores per map, in words */
    const abar_option *options;
    size_t config_size; /* bytes of the config that the options describe */
} abar_method;

const abar_method *abar_method_find(const char *name); /* NULL: no such method */
const char *const *abar_method_names(void);            /* NULL-terminated */
/* Checks a config. abar_optim_create does so too, and checks that the layers suit the method. */
abar_status abar_method_check(abar_context *ctx, const abar_method *method, const void *config);
/* Whether observe needs output gradients besides inputs; false for an unknown name. */
bool abar_method_reads_output_grad(const char *name);
/* Whether a step's batch must be one backward pass: ngd, which needs the gradients of its examples together; false for an
 * unknown name. */
bool abar_method_takes_whole_batch(const char *name);
/* The passes that a method with this config needs beside the batch's own (abar/optim.h). */
abar_extra abar_method_extra(const abar_method *method, const void *config);

/* The settings that all methods share (methods.md section 0): their table, and the bytes of the config that it describes. */
const abar_option *abar_curvature_options(void);
size_t abar_curvature_config_size(void);

/* The statistics of one map, for logs and reports. A map is a linear map or one group of a grouped convolution. */
typedef struct abar_map_info {
    const char *layer;
    int64_t group, rows, columns;           /* rows, columns: of the preconditioned matrix, with the bias column */
    size_t state_bytes;                     /* of ngd, which has no state: of the rows that a step works on */
    int64_t commits;                        /* updates of its averages so far */
    int64_t dropped, raised, doubled, kept; /* counts of the events of methods.md section 9 */
    double damping, mean_square, condition; /* rho, |a|^2, an upper bound; NaN: not of this method */
    double cosine, ratio;                   /* between gradient and preconditioned gradient, as of abar_optim_measure */
} abar_map_info;

typedef void (*abar_map_visitor)(void *user, const abar_map_info *map);
/* Sees the rows of a step's examples that a method keeps: so many bytes of each. */
typedef abar_status (*abar_rows_visitor)(void *user, void *rows, size_t bytes);

typedef struct abar_phase_times {
    double observe, refresh, apply; /* total seconds since creation */
    double kl_scale;                /* of the last step; 1 without KL clip */
} abar_phase_times;

/* Called with every state tensor of an optimizer. */
typedef abar_status (*abar_state_visitor)(void *user, const char *name, const abar_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
