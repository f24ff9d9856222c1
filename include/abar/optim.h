/* Optimizers: an update rule (methods.md section 8), alone or with a curvature method in front of it, and learning-rate
 * schedules. Usable without the rest of abar: the caller owns weights, gradients and activations, calls observe where the
 * activations are, and step. */
#ifndef ABAR_OPTIM_H
#define ABAR_OPTIM_H

#include "abar/curvature.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_optim abar_optim;

/* One parameter, owned by the caller; value and grad are dense, of the device's dtype. grad.data NULL: it has no gradient
 * until abar_optim_set_param brings one. */
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
/* Whether a configuration of it will do; creating an optimizer checks the same. */
abar_status abar_rule_check(abar_context *ctx, const abar_rule *rule, const void *config);

typedef struct abar_optim_config {
    size_t size;             /* sizeof(abar_optim_config) */
    const char *rule;        /* "sgd" */
    const void *rule_config; /* what its options describe; NULL: the defaults. So for the other two. */
    const char *method;      /* "mac"; NULL: none */
    const void *method_config;
    const void *curvature; /* what abar_curvature_options describe */
    const abar_optim_param *params;
    int n_params;
    const abar_layer *layers; /* with a method: the linear maps; weight and bias are among params, found by address */
    int n_layers;
    double base_lr; /* eta_0 of the KL clip (methods.md section 7) */
    void *const
        *shadows; /* cuda: (n_params) BF16 copies of values in their order, which steps write too, or NULL; NULL: none */
} abar_optim_config;

/* Copies everything it is given but the tensors' memory. Allocates all state. */
abar_status abar_optim_create(abar_device *dev, const abar_optim_config *config, abar_optim **out);
void abar_optim_destroy(abar_optim *optim);

typedef struct abar_step_config {
    size_t size; /* sizeof(abar_step_config) */
    double lr;
    double clip;           /* global gradient norm, 0: off */
    double grad_scale;     /* multiplies every gradient first, 0: 1 */
    double observed_scale; /* multiplies every output gradient observed since the last step, 0: 1. For a loss scale that is
                            * known only now; the same as giving it to every observe. */
} abar_step_config;

typedef struct abar_step_report {
    size_t size;      /* sizeof(abar_step_report) */
    bool skipped;     /* a gradient was not finite: nothing changed */
    double grad_norm; /* before clipping */
} abar_step_report;

/* report may be NULL. Methods that solve with dense factors (foof, kfac, lngd) leave the preconditioned gradient in grad. */
abar_status abar_optim_step(abar_optim *optim, const abar_step_config *step, abar_step_report *report);

/* For callers whose tensors move and whose factors change: new ones for params[index], in force until the next call.
 * grad NULL: the parameter has no gradient now, and steps leave its value, its state and its decay alone. A map without a
 * gradient of its weight is not preconditioned, and its bias goes to the rule as it is; one without a gradient of its bias is
 * preconditioned with zeros in its place. Adam's t counts the optimizer's updates, not the parameter's: one that joins
 * late gets the bias correction of the others. */
abar_status abar_optim_set_param(abar_optim *optim, int index, void *value, void *grad, double lr_scale, double weight_decay);
/* New settings for the rule from the next step on; refused where they need other state (momentum from or to 0). */
abar_status abar_optim_set_rule(abar_optim *optim, const void *rule_config);

/* Instead of a step, when its loss was not finite: counts it and forgets its statistics. */
void abar_optim_skip(abar_optim *optim);

/* Whether the coming step takes statistics: only then need layers be observed. False without a method. */
bool abar_optim_observes(const abar_optim *optim);
/* Adds the rows of layers[index] to its sums. layer brings input, output_grad, output_grad_scale and, to mac and smac where
 * it makes the values of an attention, attention.columns; called once per micro-batch, between the gradients and the step.
 * Input and output_grad may be F64, F32, BF16 or F16 in any layout and with any strides. */
abar_status abar_optim_observe(abar_optim *optim, int index, const abar_layer *layer);

/* Drops what was observed since the last step, as when its gradients are thrown away. */
void abar_optim_forget(abar_optim *optim);

/* To join statistics over ranks, between the last observe and the step: all pending sums and their counts as one host vector
 * that may be added element by element. The count is 0 on a step that takes none, and otherwise the same on all ranks. */
int64_t abar_optim_pending_count(const abar_optim *optim);
abar_status abar_optim_pending_read(abar_optim *optim, double *out);
abar_status abar_optim_pending_write(abar_optim *optim, const double *in);

/* first-layer dataset-mean and dataset-cov: one pass over the training set before step 0. input is what layers[index] reads. */
bool abar_optim_wants_calibration(const abar_optim *optim, int index);
abar_status abar_optim_calibrate(abar_optim *optim, int index, const abar_tensor *input);
abar_status abar_optim_end_calibration(abar_optim *optim);

/* The maps that create would make of this configuration, with the bytes of their state; tensors need no memory. */
abar_status abar_optim_plan_maps(abar_device *dev, const abar_optim_config *config, abar_map_visitor visit, void *user);

int abar_optim_map_count(const abar_optim *optim);
/* Good until the next call. On a queued device it waits. */
const abar_map_info *abar_optim_map(abar_optim *optim, int i);
/* Measure cosine and ratio in the coming step; costs a pass over the gradients. */
void abar_optim_measure(abar_optim *optim);

const abar_phase_times *abar_optim_times(abar_optim *optim); /* on a queued device it waits */

/* Names every state tensor, for checkpoints and memory reports: "momentum.conv1.weight". Counters are host I64. */
abar_status abar_optim_visit(abar_optim *optim, abar_state_visitor visit, void *user);
size_t abar_optim_bytes(const abar_optim *optim);       /* everything it holds */
size_t abar_optim_state_bytes(const abar_optim *optim); /* the tensors of it: moments, averages, factors, scratch */
/* What create would hold for this configuration; tensors need shapes but no memory. Exact but for the
 * characters of the parameters' names. */
abar_status abar_optim_plan_bytes(abar_device *dev, const abar_optim_config *config, size_t *out);

/* sizeof one of the structs of this header and those below it, by name; 0: none of that name. For bindings, which lay them out
 * by hand: a library of another version is told apart before it is called. */
size_t abar_struct_size(const char *name);

/* ---- queued devices ---------------------------------------------------------------------------------------------
 *
 * On cuda a step is given and runs later. abar_optim_step works as everywhere (with a report it waits); a loop that records a
 * whole training step and replays it uses these instead:
 *
 *     rates for the coming steps; then per step  begin, { forward, add_loss, backward }, queue
 *     notes of steps that have run, once the device has been waited for (or a mark after them has passed) */

bool abar_optim_is_queued(const abar_optim *optim);
/* Steps first, first + 1, ... run at lr[0], lr[1], ...; n at most 65536. */
abar_status abar_optim_rates(abar_optim *optim, int64_t first, const double *lr, int64_t n);
abar_status abar_optim_begin(abar_optim *optim);
/* loss: where a forward left it (abar_net_loss). One that is not finite skips the step. */
abar_status abar_optim_add_loss(abar_optim *optim, const abar_loss *loss);
/* The step itself; step->lr is not used, the rates are. */
abar_status abar_optim_queue(abar_optim *optim, const abar_step_config *step);
/* A recording of all that was replayed once more: counts the step on the host's side. */
void abar_optim_replayed(abar_optim *optim);
/* What step k told: loss, hits and norm; k is one of the last 256. */
typedef struct abar_step_note {
    bool skipped;
    double grad_norm;
    abar_loss loss; /* mean over all samples of the step */
} abar_step_note;
const abar_step_note *abar_optim_note(abar_optim *optim, int64_t k); /* good until the next call */
int64_t abar_optim_steps(const abar_optim *optim);                   /* given so far: k of the coming one */
const int32_t *abar_optim_skip_flag(const abar_optim *optim);        /* device memory: 1 after a skipped step, else 0 */
const int64_t *abar_optim_step_now(const abar_optim *optim);         /* device memory: k of the step that is running */

/* ---- schedules ------------------------------------------------------------------------------------------------ */

typedef enum abar_schedule_kind { ABAR_SCHEDULE_COSINE, ABAR_SCHEDULE_STEP, ABAR_SCHEDULE_CONSTANT } abar_schedule_kind;

typedef struct abar_schedule {
    size_t size; /* sizeof(abar_schedule) */
    abar_schedule_kind kind;
    double lr; /* the peak */
    int64_t epochs, steps_per_epoch;
    double warmup_epochs; /* linear, by the step: lr (k+1) / (warmup steps); parts of an epoch round to whole steps */
    bool per_epoch;       /* cosine held within each epoch */
    double final_lr;      /* where the cosine ends */
} abar_schedule;

/* NaN: the size is wrong. */
double abar_schedule_lr(const abar_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
