/* Optimizers: an update rule (methods.md section 8), alone or with a curvature method, and learning-rate schedules. They can be
 * used without the rest of abar: the caller owns weights, gradients and activations, and calls observe for each layer whose
 * activations are at hand, then step. examples/embed.c is a whole program. */
#ifndef ABAR_OPTIM_H
#define ABAR_OPTIM_H

#include "abar/curvature.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_optim abar_optim;

/* One parameter, owned by the caller. value and grad are dense, of the device's dtype. grad.data NULL: no gradient until
 * abar_optim_set_param provides one. */
typedef struct abar_optim_param {
    const char *name;
    abar_tensor value, grad;
    double lr_scale; /* multiplies the step's learning rate */
    double weight_decay;
} abar_optim_param;

/* An update rule. */
typedef struct abar_rule {
    const char *name, *summary;
    const abar_option *options;
    size_t config_size; /* bytes of the config that the options describe */
    int states;         /* at most so many tensors are kept per parameter */
    bool averages; /* gradients are taken at other weights than are tested: abar_optim_average. The rate must be constant */
} abar_rule;

const abar_rule *abar_rule_find(const char *name); /* NULL: no such rule */
const char *const *abar_rule_names(void);          /* NULL-terminated */
/* The gradients that a rule needs beside that of the batch: see "rules and methods that need further gradients" below. */
abar_extra abar_rule_extra(const abar_rule *rule);
/* Checks a config, as abar_optim_create does. */
abar_status abar_rule_check(abar_context *ctx, const abar_rule *rule, const void *config);

typedef struct abar_optim_config {
    size_t size;               /* sizeof(abar_optim_config) */
    const char *rule;          /* "sgd" */
    const void *rule_config;   /* what the rule's options describe; NULL: the defaults */
    const char *method;        /* "mac"; NULL: none */
    const void *method_config; /* what the method's options describe; NULL: the defaults */
    const void *curvature;     /* what abar_curvature_options describe; NULL: the defaults */
    const abar_optim_param *params;
    int n_params;
    /* The linear maps, for methods and for muon. Weights and biases are matched with params by address. */
    const abar_layer *layers;
    int n_layers;
    double base_lr; /* peak of the learning rate: eta_0 of the KL clip (methods.md section 7); muon's other rates refer to it */
    /* cuda: (n_params) BF16 copies of values in their order, which steps write too, or NULL; NULL: none. */
    void *const *shadows;
    /* (n_layers): layers that make the network's output, for rules that treat them apart; NULL: none. */
    const bool *yields_output;
    /* Examples of a step's batch, all micro-batches together, at most: for methods that keep their rows (skfac, kpsvd, ngd); 0:
     * not known. */
    int64_t examples;
    /* (n_params): memory for further gradients, as large and in the order of params[i].grad; NULL: the caller computes none,
     * and rules that need them are refused. */
    void *const *extra_grads;
    int64_t loss_terms; /* sophia: examples, or tokens of a text, in the mean that the loss of a step is */
    uint64_t seed;      /* adahessian: of the random signs */
    int64_t classes;    /* ngd --fisher exact: of the labels, one a sample; else 0 */
    /* (n_layers): the method's settings for each layer, or NULL: method_config; NULL: one for all. kl-clip is the same for all;
     * ngd, and mfac over all parameters, have one. */
    const void *const *method_configs;
} abar_optim_config;

/* Allocates all state. Copies the config and what it points to, but not the tensors' memory. */
abar_status abar_optim_create(abar_device *dev, const abar_optim_config *config, abar_optim **out);
void abar_optim_destroy(abar_optim *optim);

typedef struct abar_step_config {
    size_t size; /* sizeof(abar_step_config) */
    double lr;
    double clip;           /* bound on the norm of all gradients together, 0: none */
    double grad_scale;     /* multiplies every gradient first, 0: 1 */
    double observed_scale; /* multiplies every output gradient observed since the last step, 0: 1. For a loss scale that
                            * becomes known at the step; the same as abar_layer.output_grad_scale of every observe */
} abar_step_config;

typedef struct abar_step_report {
    size_t size;      /* sizeof(abar_step_report) */
    bool skipped;     /* a gradient was not finite, and nothing was changed */
    double grad_norm; /* before clipping */
} abar_step_report;

/* One update of all parameters. report may be NULL. Methods with dense factors (foof, kfac, lngd, skfac, kpsvd), mfac and ngd
 * overwrite grad by the preconditioned gradient, muon by the step of what it takes, shampoo, soap and kbfgs by their step. */
abar_status abar_optim_step(abar_optim *optim, const abar_step_config *step, abar_step_report *report);

/* Replaces the pointers and factors of params[index], until the next call: for callers whose tensors move.
 * grad NULL: the parameter has no gradient now; steps change neither its value nor its state, and do not decay it. A map whose
 * weight has no gradient is not preconditioned, and the rule gets the plain gradient of its bias; one whose bias has none is
 * preconditioned with zeros in its place. AdamW's t counts the optimizer's updates, not the parameter's. */
abar_status abar_optim_set_param(abar_optim *optim, int index, void *value, void *grad, double lr_scale, double weight_decay);
/* Changes the rule's settings from the next step on. Refused if they need other state (momentum from or to 0). */
abar_status abar_optim_set_rule(abar_optim *optim, const void *rule_config);

/* Changes the parameters' values from those that gradients are taken at to those that are tested and exported. The caller keeps
 * a copy of the former and restores it before the next step. Only of rules that average (abar_rule): for others it does
 * nothing. Does not wait for a queued device. */
abar_status abar_optim_average(abar_optim *optim);

/* Instead of a step whose loss was not finite: counts the step and discards its statistics. */
void abar_optim_skip(abar_optim *optim);

/* Whether the next step uses statistics; if not, observe need not be called. False without a method. */
bool abar_optim_observes(const abar_optim *optim);
/* Adds a batch of layers[index] to its statistics. Reads input, output_grad, output_grad_scale and, for mac and smac on a layer
 * that feeds attention, attention.columns. Called once per layer and micro-batch, before the step. input and output_grad may be
 * F64, F32, BF16 or F16, in any layout and with any strides. */
abar_status abar_optim_observe(abar_optim *optim, int index, const abar_layer *layer);

/* Discards what was observed since the last step, for a caller that discards the gradients too. */
void abar_optim_forget(abar_optim *optim);
/* Likewise of layers[index] alone. Not for ngd, which takes all layers of a batch together. */
void abar_optim_forget_layer(abar_optim *optim, int index);

/* For data-parallel training: all statistics observed since the last step, as one vector of doubles on the host. Between the
 * last observe and the step, sum it over all ranks element by element. Its length is 0 on steps without statistics, and the
 * same on all ranks. */
int64_t abar_optim_pending_count(const abar_optim *optim);
abar_status abar_optim_pending_read(abar_optim *optim, double *out);
abar_status abar_optim_pending_write(abar_optim *optim, const double *in);
/* The same for parts of a batch, such as micro-batches, whose sums are joined in an order of the caller's: for each part
 * begin_part with the number of its first example in the step's batch, observe, pending_read and abar_optim_forget; then
 * pending_write the total. Methods that keep rows (skfac, kpsvd), and the second pass of kbfgs, are joined in this way alone;
 * visit_rows then shows, in host memory, the rows of all examples of a batch, so many bytes each, to which ranks add those of
 * the other ranks. */
void abar_optim_begin_part(abar_optim *optim, int64_t first);
abar_status abar_optim_visit_rows(abar_optim *optim, abar_rows_visitor visit, void *user);

/* The largest number of doubles that abar_optim_pending_count of the optimizer that abar_optim_create would make returns. */
abar_status abar_optim_plan_pending(abar_device *dev, const abar_optim_config *config, int64_t *out);

/* Calibration, for --first-layer dataset-mean and dataset-cov: before step 0, show each batch of the training set to the layers
 * that want it (input: what layers[index] reads), then call end. */
bool abar_optim_wants_calibration(const abar_optim *optim, int index);
abar_status abar_optim_calibrate(abar_optim *optim, int index, const abar_tensor *input);
abar_status abar_optim_end_calibration(abar_optim *optim);

/* Visits the maps that abar_optim_create would make, with the bytes of their state. Tensors need shapes but no memory. */
abar_status abar_optim_plan_maps(abar_device *dev, const abar_optim_config *config, abar_map_visitor visit, void *user);

/* Which rule updates a parameter, and why. */
typedef struct abar_param_info {
    const char *name;
    abar_tensor value;
    const char *rule;                          /* "muon"; "adamw" for what muon leaves to it */
    const char *why;                           /* in words; "": the rule takes every parameter */
    double lr_scale, weight_decay;             /* in effect */
    int64_t blocks, block_rows, block_columns; /* treated one by one, the largest; 0: element by element */
} abar_param_info;

typedef void (*abar_param_visitor)(void *user, const abar_param_info *param);

/* Visits every parameter of the optimizer that abar_optim_create would make. Tensors need shapes but no memory. */
abar_status abar_optim_plan_params(abar_device *dev, const abar_optim_config *config, abar_param_visitor visit, void *user);
const abar_param_info *abar_optim_param_info(abar_optim *optim, int i); /* of params[i]; valid until the next call */

/* Blocks of muon, shampoo and soap, and what happened to them (methods.md section 11, optimizers.md sections 1 and 2), summed
 * over all steps so far. */
typedef struct abar_block_counts {
    int64_t blocks;
    int64_t dropped; /* updates dropped because a block was not finite */
    int64_t small;   /* blocks whose norm was below --muon-eps, and whose update is therefore small */
    int64_t kept;    /* shampoo, soap: factors, roots and bases that stayed as they were because the new ones were not finite */
} abar_block_counts;

const abar_block_counts *abar_optim_blocks(abar_optim *optim); /* valid until the next call; waits for a queued device */

int abar_optim_map_count(const abar_optim *optim);
/* Valid until the next call. Waits for a queued device. */
const abar_map_info *abar_optim_map(abar_optim *optim, int i);
/* Copies the bias-corrected mean activation of map i (the a^ of methods.md section 0) to out: as many doubles as abar_map_info
 * has columns, the last one 1 with a bias. For the rows of v it is the mean weighted by attention, for a calibrated layer that
 * of the training set. mac, smac and eva have one; ABAR_E_UNSUPPORTED: this map has none. ABAR_E_STATE: no statistics yet.
 * Waits for a queued device. */
abar_status abar_optim_mean_activation(abar_optim *optim, int i, double *out);
/* The next step computes cosine and ratio of every map, at the cost of a pass over the gradients. */
void abar_optim_measure(abar_optim *optim);

const abar_phase_times *abar_optim_times(abar_optim *optim); /* waits for a queued device */

/* Visits every state tensor, for checkpoints and memory reports, by a name such as "momentum.conv1.weight". Counters are I64 on
 * the host. The visitor may write to the tensors: that restores a checkpoint. */
abar_status abar_optim_visit(abar_optim *optim, abar_state_visitor visit, void *user);
size_t abar_optim_bytes(const abar_optim *optim);       /* all memory it holds */
size_t abar_optim_state_bytes(const abar_optim *optim); /* of that its tensors: moments, averages, factors */
/* The bytes that abar_optim_create would hold, without those of the parameters' names. Tensors need shapes but no memory. */
abar_status abar_optim_plan_bytes(abar_device *dev, const abar_optim_config *config, size_t *out);

/* sizeof a struct of this header or those it includes, by name; 0: unknown. For bindings in other languages (docs/abi.md). */
size_t abar_struct_size(const char *name);

/* ---- a step in parts ----------------------------------------------------------------------------------------------
 *
 * The same calls on every device. ref and cpu run them as they are made; on cuda work is enqueued and runs asynchronously, and
 * a loop can capture a whole training step as a graph and replay it. abar_optim_step works everywhere, too (on cuda, with a
 * report, it waits). Once: abar_optim_rates. Per step: abar_optim_begin; for each micro-batch forward, abar_optim_add_loss,
 * backward; abar_optim_queue. A step's result can be read with abar_optim_note when the step has finished on the device. */

/* Whether the device is asynchronous (cuda). */
bool abar_optim_is_queued(const abar_optim *optim);
/* The learning rates lr[0], lr[1], ... of steps first, first + 1, ...; n is at most 65536. */
abar_status abar_optim_rates(abar_optim *optim, int64_t first, const double *lr, int64_t n);
abar_status abar_optim_begin(abar_optim *optim);
/* loss: the result of a forward pass, in memory the device reads (abar_net_loss). If it is not finite the step is skipped. */
abar_status abar_optim_add_loss(abar_optim *optim, const abar_loss *loss);
/* Enqueues the update. step->lr is ignored: the rate comes from abar_optim_rates. */
abar_status abar_optim_queue(abar_optim *optim, const abar_step_config *step);
/* To be called after every replay of a captured step: counts the step on the host. */
void abar_optim_replayed(abar_optim *optim);
/* The result of step k, one of the last 256. */
typedef struct abar_step_note {
    bool skipped;
    double grad_norm;
    abar_loss loss; /* over all samples of the step */
} abar_step_note;
const abar_step_note *abar_optim_note(abar_optim *optim, int64_t k); /* valid until the next call */
int64_t abar_optim_steps(const abar_optim *optim);                   /* enqueued so far: k of the next one */
const int32_t *abar_optim_skip_flag(const abar_optim *optim);        /* device memory: 1 after a skipped step, else 0 */
const int64_t *abar_optim_step_now(const abar_optim *optim);         /* device memory: k of the step that is running */

/* ---- rules and methods that need further gradients ---------------------------------------------------------------------
 *
 * ABAR_EXTRA_DIFFERENCE (adahessian), between the backward pass and the step:
 * - abar_optim_perturb(optim, 1), then extra_grads = gradient of the same batch at the perturbed weights;
 * - abar_optim_perturb(optim, -1), then extra_grads -= gradient there;
 * - abar_optim_perturb(optim, 0), which restores the weights.
 * With micro-batches, repeat it for each and add. Kinks (ReLU, maximum pooling) must be those of the unperturbed pass:
 * abar_compile_config.patterns.
 *
 * ABAR_EXTRA_SAMPLED (sophia), after the step, unless it was skipped: extra_grads = gradient of the same batch at the new
 * weights, with labels drawn from the model's softmax (abar_run_config.draw_labels), without label smoothing; then
 * abar_optim_take_sampled.
 *
 * ABAR_EXTRA_ROWS (ngd --fisher mc:S and exact), between the backward pass, which is not observed, and the step: for i = 0, 1,
 * ... below abar_optim_row_passes call abar_optim_begin_rows(optim, i), run the same batch forward and backward at the same
 * weights, and observe every layer. mc: pass i with drawn labels (abar_run_config.draw_labels) of draw i. exact: with labels of
 * class i, each sample's gradient times the root of its probability of i (abar_run_config.one_class 1 + i); of a squared loss
 * |y - t|^2 / 2, with the i-th unit vector for every sample's output gradient, over the batch. The gradients of parameters that
 * such passes compute are not used. */

abar_extra abar_optim_extra(const abar_optim *optim); /* of the step that comes next */
/* Moves all parameters that have a gradient to W + h z (sign 1), W - h z (-1), or exactly back to W (0). */
abar_status abar_optim_perturb(abar_optim *optim, int sign);
int64_t abar_optim_row_passes(const abar_optim *optim); /* of every step; 0: it needs none */
bool abar_optim_draws_rows(const abar_optim *optim);    /* mc; false: exact, a pass for each class */
abar_status abar_optim_begin_rows(abar_optim *optim, int64_t pass);
/* step: the clip and grad_scale of the step before. Without a call the diagonal stays as it is. */
abar_status abar_optim_take_sampled(abar_optim *optim, const abar_step_config *step);

/* ---- methods that need a second pass ------------------------------------------------------------------------------------
 *
 * kbfgs learns from a second pass over the batch of every step. After a step that was not skipped abar_optim_wants_pass says
 * so: run the same batch forward and backward again at the weights as they are now, with the same dropout, call
 * abar_optim_observe for every layer as in the first pass, then abar_optim_end_pass. With micro-batches, all of them. Gradients
 * of the second pass are not read. */

bool abar_optim_wants_pass(const abar_optim *optim);
/* finite: the loss of the second pass was. If not, or if what was observed is not, *undone becomes true, weights and state are
 * as they were before the step, and the step counts as skipped. observed_scale as in abar_step_config; undone may be NULL. */
abar_status abar_optim_end_pass(abar_optim *optim, bool finite, double observed_scale, bool *undone);

/* ---- schedules ------------------------------------------------------------------------------------------------ */

typedef enum abar_schedule_kind { ABAR_SCHEDULE_COSINE, ABAR_SCHEDULE_STEP, ABAR_SCHEDULE_CONSTANT } abar_schedule_kind;

typedef struct abar_schedule {
    size_t size; /* sizeof(abar_schedule) */
    abar_schedule_kind kind;
    double lr; /* the peak */
    int64_t epochs, steps_per_epoch;
    double warmup_epochs; /* linear: step k runs at lr (k+1) / (warmup steps); rounded to whole steps */
    bool per_epoch;       /* cosine: the rate is constant within an epoch */
    double final_lr;      /* at the end of the cosine */
} abar_schedule;

/* NaN: the size is wrong. */
double abar_schedule_lr(const abar_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
