/* Update rules and learning-rate schedules. A rule updates all parameters in one fused pass (methods.md section 8). */
#ifndef ABAR_OPTIM_H
#define ABAR_OPTIM_H

#include "abar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_optim abar_optim;

/* One parameter, owned by the caller; value and grad are dense, of the device's dtype. */
typedef struct abar_optim_param {
    const char *name;
    abar_tensor value, grad;
    double lr_scale; /* multiplies the step's learning rate */
    double weight_decay;
} abar_optim_param;

/* A rule as the registry knows it. */
typedef struct abar_rule {
    const char *name, *summary;
    const abar_option *options;
    size_t config_size;
    int states; /* tensors of the parameter's size it keeps */
} abar_rule;

const abar_rule *abar_rule_find(const char *name);
const char *const *abar_rule_names(void);

/* Copies params; rule_config is what rule->options describe (NULL: defaults). Allocates all state. */
abar_status abar_optim_create(abar_device *dev, const char *rule, const void *rule_config, const abar_optim_param *params,
                              int n, abar_optim **out);
void abar_optim_destroy(abar_optim *optim);

typedef struct abar_step_config {
    size_t size; /* sizeof(abar_step_config) */
    double lr;
    double clip;       /* global gradient norm, 0: off */
    double grad_scale; /* multiplies every gradient first, 0: 1 */
} abar_step_config;

typedef struct abar_step_report {
    bool skipped;     /* a gradient was not finite: nothing changed */
    double grad_norm; /* before clipping */
} abar_step_report;

/* report may be NULL. */
abar_status abar_optim_step(abar_optim *optim, const abar_step_config *step, abar_step_report *report);

/* Names every state tensor, for checkpoints and memory reports: "momentum.conv1.weight". counter tensors are host I64. */
typedef abar_status (*abar_state_visitor)(void *user, const char *name, const abar_tensor *tensor);
abar_status abar_optim_visit(abar_optim *optim, abar_state_visitor visit, void *user);
size_t abar_optim_bytes(const abar_optim *optim); /* state held for these parameters */
/* What create would hold for n tensors of these many elements, but for the characters of their names; 0 after an error. */
size_t abar_optim_plan_bytes(const abar_device *dev, const char *rule, const void *rule_config, const int64_t *counts, int n);

/* ---- schedules ------------------------------------------------------------------------------------------------ */

typedef enum abar_schedule_kind { ABAR_SCHEDULE_COSINE, ABAR_SCHEDULE_STEP, ABAR_SCHEDULE_CONSTANT } abar_schedule_kind;

typedef struct abar_schedule {
    abar_schedule_kind kind;
    double lr; /* the peak */
    int64_t epochs, steps_per_epoch;
    int64_t warmup_epochs; /* linear, by the step: lr (k+1) / (warmup steps) */
    bool per_epoch;        /* cosine held within each epoch */
} abar_schedule;

double abar_schedule_lr(const abar_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
