/* Training, evaluation, sampling and timing: what `abar train`, `abar eval`, `abar sample` and `abar bench` do.
 *
 * A setup holds all settings of a run; abar_setup_create fills it with the defaults that suit model, data and optimizer. A
 * trainer carries the run out. */
#ifndef ABAR_TRAIN_H
#define ABAR_TRAIN_H

#include "abar/comm.h"
#include "abar/data.h"
#include "abar/net.h"
#include "abar/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The settings of a run that belong neither to the model nor to the optimizer; abar_train_options describes them. */
typedef struct abar_train_config {
    char model[ABAR_OPTION_TEXT_MAX], data[ABAR_OPTION_TEXT_MAX], optim[ABAR_OPTION_TEXT_MAX];
    int64_t epochs, batch, accumulate; /* batch: samples per step; accumulate: micro-batches it is split into */
    double lr, final_lr, weight_decay, clip, label_smoothing;
    bool decay_all;   /* weight decay on norms and biases too, as in the paper */
    int64_t schedule; /* abar_schedule_kind */
    double warmup;    /* epochs */
    bool schedule_per_epoch;
    bool augment;
    int64_t text, epoch_steps; /* text: abar_text_kind, and steps per epoch */
    char device[ABAR_OPTION_TEXT_MAX];
    int64_t precision, threads, workers; /* workers: loader threads */
    int64_t seed, limit_train, limit_test, stop_after;
    int64_t checkpoint_every; /* steps; 0: after each epoch only */
    int64_t diagnose;         /* steps between logged statistics of the curvature maps; 0: none */
    bool deterministic;
    bool accept_data;                    /* resume although the data set's content has changed; never stored */
    char init[ABAR_OPTION_TEXT_MAX];     /* safetensors file with the initial weights; "": random */
    char out[ABAR_OPTION_TEXT_MAX];      /* the run's folder; "": nothing is written */
    char snapshot[ABAR_OPTION_TEXT_MAX]; /* epochs, "0,12,25", after which the weights are kept in out/snapshots; 0: the initial
                                            ones */
    /* Above 0: this fraction of the training samples is held out, never trained on, and measured wherever the test part would
     * be; the test part is not used. As in abar_dataset_config: validation_seed is independent of seed. */
    double validation;
    int64_t validation_seed;
    /* A running average of parameters and running statistics that is tested and exported beside them: every ema_steps steps
     * e = d e + (1 - d) w with d = 1 - min(1, (1 - ema) * batch * ema_steps / epochs). ema 0: none. */
    double ema;
    int64_t ema_steps;
    /* Of image sets whose files are decoded when they are needed; abar_image_options describes them, docs/images.md has the
     * definitions. */
    int64_t style, size;                         /* abar_style; side of the training view */
    int64_t test_resize, test_size, test_filter; /* test view: short side, side of its centre, abar_filter */
    double area_low, area_high;                  /* of a crop, as shares of the image */
    bool flip;
    int64_t policy, policy_magnitude, policy_filter; /* abar_policy; bin of rand; abar_filter */
    double jitter, erase, mixup, cutmix;
    int64_t mix_group, repeat;
    int64_t damaged;                    /* abar_damaged_kind */
    char classes[ABAR_OPTION_TEXT_MAX]; /* file with the order of the classes; "": by name */
    char labels[ABAR_OPTION_TEXT_MAX];  /* file with the labels of the test part; "": the usual ones */
    int64_t decode;                     /* abar_decode_kind */
    double recipe_warmup; /* warmup of the recipe, which abar_setup_set shortens to half of a short run; 0: warmup was set */
    /* Samples of a micro-batch; the gradients of all batch / micro of them are summed in a fixed order that does not depend on
     * the number of ranks (docs/scaling.md). 0: as accumulate says, one after another; with several ranks batch / ranks. */
    int64_t micro;
    int64_t reduce;         /* abar_reduce_kind: how several ranks are joined */
    int64_t check_replicas; /* steps between comparisons of the ranks' state; 0: before it is saved only */
    int64_t zero;           /* 1: ranks divide the optimizer's state and updates; 0: each has all */
    int64_t transport;      /* abar_transport_kind: how ranks on cuda exchange */
} abar_train_config;

typedef enum abar_reduce_kind { ABAR_REDUCE_FIXED, ABAR_REDUCE_FAST } abar_reduce_kind;
/* auto: NCCL where it is found and every rank has a GPU of its own, else through the host. */
typedef enum abar_transport_kind { ABAR_TRANSPORT_AUTO, ABAR_TRANSPORT_HOST, ABAR_TRANSPORT_NCCL } abar_transport_kind;
typedef enum abar_damaged_kind { ABAR_DAMAGED_FAIL, ABAR_DAMAGED_SKIP } abar_damaged_kind;
typedef enum abar_decode_kind { ABAR_DECODE_CPU, ABAR_DECODE_GPU } abar_decode_kind;

typedef enum abar_text_kind { ABAR_TEXT_CHARACTERS, ABAR_TEXT_BYTES } abar_text_kind;

const abar_option *abar_train_options(void);
/* Those of abar_train_config that image sets alone have: a table of their own in such a setup. */
const abar_option *abar_image_options(void);

/* All settings of a run. Made by abar_setup_create or abar_setup_load, freed by abar_setup_destroy. */
typedef struct abar_setup {
    const abar_model *model;
    void *model_config; /* as model->options describe it */
    const abar_rule *rule;
    void *rule_config;           /* as rule->options */
    const abar_method *method;   /* NULL: the rule alone */
    void *method_config;         /* as method->options */
    void *curvature_config;      /* as abar_curvature_options */
    const abar_dataset *dataset; /* of abar_setup_set_data; NULL: train.data names it */
    abar_train_config train;     /* as abar_train_options; last, so that it can grow */
} abar_setup;

/* One of the option tables of a setup. */
typedef struct abar_setup_table {
    const char *section;        /* of config.json: "train", "images", "model", "optimizer", "curvature", "method" */
    const char *owner;          /* "lenet5", "sgd", "mac" */
    const abar_option *options; /* may be empty, never NULL */
    void *config;
} abar_setup_table;

#define ABAR_SETUP_TABLES_MAX 6

/* Writes the tables to out and returns their number: 3, with a curvature method 2 more, with an image set 1 more. */
int abar_setup_tables(const abar_setup *setup, abar_setup_table out[ABAR_SETUP_TABLES_MAX]);

/* A setup with the defaults for this model, data and optimizer. model: one of abar_model_names, or "own". data: NAME, NAME:DIR,
 * text:FILE, or "memory". optim: a rule ("sgd"), a curvature method ("mac", which uses sgd) or both ("mac+adamw"). */
abar_status abar_setup_create(abar_context *ctx, const char *model, const char *data, const char *optim, abar_setup **out);
void abar_setup_destroy(abar_context *ctx, abar_setup *setup);
/* Sets an option of any of its tables. model, optim and data cannot be changed, because the defaults depend on them; but data
 * may name another folder of the same set. epochs also limits the default warmup to half of them, unless warmup is set. */
abar_status abar_setup_set(abar_context *ctx, abar_setup *setup, const char *name, const char *text);
/* Checks that the settings fit together, as abar_trainer_create does. */
abar_status abar_setup_check(abar_context *ctx, const abar_setup *setup);

/* ---- a network and data of one's own ----------------------------------------------------------------------------
 *
 * The model "own" is a network that the program builds, the data "memory" a data set of abar_dataset_wrap. Either can be
 * combined with abar's own. Checkpoints contain neither the builder nor the data: to resume, give both to the setup that
 * abar_setup_load returns. examples/own_network.c is a whole program. */

/* Builds a network from its input x, (channels, height, width), and returns its logits, (classes); the trainer adds the loss.
 * It is called for every net made from the setup and must always build the same network. A checkpoint whose tensors have other
 * names or shapes is refused. */
typedef abar_value (*abar_network_builder)(void *user, abar_net *net, abar_value x, int64_t classes);

/* user must outlive the setup and all that is made from it. */
abar_status abar_setup_set_network(abar_context *ctx, abar_setup *setup, abar_network_builder builder, void *user);
/* data must outlive the setup and all that is made from it. The options limit-train and limit-test apply to it. */
abar_status abar_setup_set_data(abar_context *ctx, abar_setup *setup, const abar_dataset *data);

/* ---- training --------------------------------------------------------------------------------------------------- */

typedef struct abar_progress {
    int64_t epoch, epochs; /* epoch counts from 0 */
    int64_t step, steps;   /* of the epoch: finished, and in all */
    double loss, accuracy; /* of training, mean over the epoch's steps so far without skipped ones (NaN: all were); percent */
    double lr, samples_per_second, seconds, seconds_left; /* samples: images, or tokens of a text */
    bool text;                                            /* losses and accuracies are per token, losses in nats */
    bool epoch_done;                                      /* the epoch has been tested; only then set (of the validation part,
                                                             if the setup has one): */
    double test_loss, test_accuracy;
    double best_accuracy, best_loss;              /* of the test part, over the epochs so far, ... */
    int64_t best_accuracy_epoch, best_loss_epoch; /* ... and in which, counted from 0 */
    double test_perplexity, test_bits;            /* text: exp(test_loss), and bits per character (or byte) */
    int64_t skipped_steps;
    bool validation;                      /* the setup has a validation part: test_loss and so on are its numbers */
    int64_t blocks_dropped, blocks_small; /* of abar_block_counts; known when an epoch is done */
    double ema_test_loss, ema_test_accuracy, best_ema_accuracy; /* when an epoch is done: of the average of the weights; NaN:
                                                                   there is none */
    double waiting; /* share of the time of the last 100 steps in which they waited for data; 0 until there are 20 */
} abar_progress;

typedef struct abar_trainer abar_trainer;

typedef struct abar_trainer_events {
    size_t size;                                          /* sizeof(abar_trainer_events) */
    void (*progress)(void *user, const abar_progress *p); /* after every step and every epoch; may be NULL */
    void *user;
} abar_trainer_events;

/* Opens data and device, makes net, optimizer and loaders, and locks the folder setup->train.out. events may be NULL.
 * A folder with a checkpoint is refused unless resume is set. With resume the run continues from the checkpoint; setup is that
 * of abar_setup_load, in which model, data set, optimizer, batch, limit-train, validation and seed must not be changed. Other
 * changes take effect and are logged. The data set's content must be that of the checkpoint, unless accept_data is set. */
abar_status abar_trainer_create(abar_context *ctx, const abar_setup *setup, bool resume, const abar_trainer_events *events,
                                abar_trainer **out);
/* The same as one of several ranks that train together: every rank calls it with the same setup, and then runs the trainer.
 * Rank 0 writes to the folder; events are those of each rank. Ranks whose settings, data or devices differ are refused.
 * With the same micro and threads the weights have the same bits on any number of ranks. */
abar_status abar_trainer_create_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume,
                                   const abar_trainer_events *events, abar_trainer **out);
/* All ranks: what each has come to. Where one has failed all do; the others with its text, or, where that is NULL, the last
 * error of its context. */
abar_status abar_ranks_agree(abar_context *ctx, abar_comm *comm, abar_status status, const char *text);
/* Ranks 1, 2, ...: train what rank 0's comparisons train (abar_compare_ranks), until rank 0 dismisses them. */
abar_status abar_ranks_follow(abar_context *ctx, abar_comm *comm);
abar_status abar_ranks_dismiss(abar_comm *comm);
/* The setup of the run in a folder. Its out is dir. */
abar_status abar_setup_load(abar_context *ctx, const char *dir, abar_setup **out);
/* The setup stored in a checkpoint, or in the export of a text model. Its out is "". */
abar_status abar_setup_load_file(abar_context *ctx, const char *path, abar_setup **out);
void abar_trainer_destroy(abar_trainer *trainer);

/* Trains to the end, or to the end of epoch stop_after. ABAR_STOPPED after abar_trainer_stop: the current step was finished and
 * a checkpoint written; another call continues. ABAR_E_NUMERIC after ten skipped steps in a row (the checkpoint has the weights
 * before them), and at the end of a run in which every step was skipped. */
abar_status abar_trainer_run(abar_trainer *trainer);
/* May be called from a signal handler or another thread. */
void abar_trainer_stop(abar_trainer *trainer);
/* Whether resume found no checkpoint, so that the run begins again. */
bool abar_trainer_started_over(const abar_trainer *trainer);
/* The data set: train samples are trained on, test samples are measured after each epoch. */
const abar_dataset_info *abar_trainer_data(const abar_trainer *trainer);

/* The memory that a run will take, in bytes, found without training and without reading the data. */
typedef struct abar_memory_plan {
    size_t size; /* sizeof(abar_memory_plan) */
    size_t parameters, gradients, buffers, optimizer, activations, data, loader, other, total;
    size_t average; /* of the weights (--ema), part of total */
    size_t join;    /* sums of micro-batches (--micro), likewise */
} abar_memory_plan;
abar_status abar_setup_memory_plan(abar_context *ctx, const abar_setup *setup, abar_memory_plan *out);

/* Visits every map that the setup's curvature method preconditions, with the bytes of its state. */
abar_status abar_setup_maps(abar_context *ctx, const abar_setup *setup, abar_map_visitor visit, void *user);

/* Visits every parameter of the setup's model with the rule that updates it, and why. */
abar_status abar_setup_params(abar_context *ctx, const abar_setup *setup, abar_param_visitor visit, void *user);

/* The final report as one JSON object: epochs, test_acc, test_loss, train_acc, train_loss (of the last epoch; accuracies in
 * percent; null before the first epoch has ended, and for training where all its steps were skipped), best_acc and best_loss
 * (of the test part, with best_acc_epoch and best_loss_epoch, counted from 1, 0: none), for texts also test_ppl and test_bpc
 * (perplexity, bits per character), train_samples and test_samples (tokens of a text), seconds, ms_per_step,
 * samples_per_second, peak_bytes, optimizer_bytes, skipped_steps, blocks (muon: how many there are, dropped and small as in
 * abar_block_counts), of a run with an average of its weights ema_test_acc, ema_test_loss and best_ema_acc, of image folders
 * damaged (files that could not be read) and, where they are copies, shrunk (their short side), stopped, dir (null without
 * out), history (one object per epoch, counted from 1) and config. With a validation part the names test_* are validation_*.
 * The text is valid until the next report. */
abar_status abar_trainer_report(abar_trainer *trainer, const char **json);
size_t abar_trainer_state_bytes(const abar_trainer *trainer); /* of the optimizer, on this rank */
/* The net that is trained. Of a rule that averages (abar_rule) it has the weights that gradients are taken at; the exports have
 * those that are tested. */
abar_net *abar_trainer_net(abar_trainer *trainer);

/* Test loss and accuracy of weights from a safetensors file: an export or checkpoint of abar, or a file of PyTorch's. With
 * setup->train.validation above 0 those of the validation part; a program that wants the test part of such a run clears it. */
typedef struct abar_evaluation {
    size_t size;           /* sizeof(abar_evaluation) */
    double loss, accuracy; /* percent */
    int64_t samples;       /* images, or tokens of a text */
    double seconds;
    double perplexity, bits; /* text: exp(loss), and bits per character (or byte); else 0 */
} abar_evaluation;
abar_status abar_evaluate(abar_context *ctx, const abar_setup *setup, const char *weights, abar_evaluation *out);
/* All ranks of comm: each reads the weights and tests its share of the batches. All have the result. */
abar_status abar_evaluate_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, const char *weights,
                             abar_evaluation *out);
/* Writes a safetensors file with the logits of the first n test samples: tensors "images", "labels" and "logits"; for the first
 * n test windows of a text "tokens", "labels" and "logits". */
abar_status abar_evaluate_logits(abar_context *ctx, const abar_setup *setup, const char *weights, int64_t n, const char *path);

/* Text generated by a text model, token by token, each drawn from the model's distribution of the next one. */
typedef struct abar_sample_config {
    size_t size;        /* sizeof(abar_sample_config) */
    const char *prompt; /* the beginning, which is written too; NULL or "": a new line, which is not */
    int64_t length;     /* characters (or bytes) to generate after it */
    double temperature; /* divides the logits; 0: always the most likely token */
    int64_t top_k;      /* draws from the so many most likely tokens only; 0: from all */
    uint64_t seed;
    bool (*write)(void *user, const char *text, size_t n); /* receives the text as it is generated; false: stop */
    void *user;
} abar_sample_config;

/* weights: a checkpoint or export of a text model, which contains the vocabulary. setup: that run's (abar_setup_load). Equal
 * setup, weights and config give equal text. ABAR_STOPPED if write returned false. */
abar_status abar_sample(abar_context *ctx, const abar_setup *setup, const char *weights, const abar_sample_config *config);

/* Times training steps on one synthetic batch of the shape of the setup's data, which need not be there. */
typedef struct abar_bench_config {
    size_t size; /* sizeof(abar_bench_config) */
    int64_t steps, warmup;
    bool profile; /* times every operation too: abar_bench_row_at */
} abar_bench_config;

typedef struct abar_bench_result {
    size_t size;                               /* sizeof(abar_bench_result) */
    double ms_median, ms_p10, ms_p90;          /* whole step */
    double ms_mean;                            /* with the steps that take statistics or refresh */
    double ms_forward, ms_backward, ms_update; /* medians of the phases */
    double ms_observe, ms_refresh; /* means per step: statistics (within backward), averages and factors (within update) */
    double samples_per_second;
    double seconds_to_first_step;
    size_t peak_bytes;
    char device[128];               /* abar_device_describe */
    double copy_rate, product_rate; /* the device's best bytes and flops per second; with profile, on a queued device */
    /* Several ranks: */
    int64_t ranks;
    double ms_exchange, ms_waiting; /* what a step spends in exchanges, mean of the ranks; of it, waiting for the slowest one */
    double bytes_per_step;          /* that this rank sends, mean */
    double ms_alone, samples_per_second_alone; /* of one rank that makes the whole batch; of rank 0 */
} abar_bench_result;

typedef enum abar_bench_phase {
    ABAR_BENCH_FORWARD,
    ABAR_BENCH_BACKWARD,
    ABAR_BENCH_STATISTICS,
    ABAR_BENCH_UPDATE,
    ABAR_BENCH_PHASES
} abar_bench_phase;

/* The cost of a phase of an operation per step, with accumulate that of its last micro-batch. What happens every few steps is
 * divided by their number. */
typedef struct abar_bench_cost {
    double us;
    double bytes, flops; /* to be moved and computed */
    double floor_us;     /* the time for these at copy_rate and product_rate, whichever is longer; 0: rates unknown */
} abar_bench_cost;

/* One operation of the net, or the update. On a queued device operations are timed one at a time; their sum exceeds a step's
 * time, because a step overlaps some of them. */
typedef struct abar_bench_row {
    const char *name, *operation, *implementation; /* as in abar_node_info */
    abar_bench_cost phase[ABAR_BENCH_PHASES];
} abar_bench_row;

/* Runs warmup and then steps training steps, at learning rate 0 so that all compute with the same values. out may be NULL;
 * otherwise it receives the net and the profile, to be freed by abar_bench_release. */
typedef struct abar_bench abar_bench;
abar_status abar_bench_run(abar_context *ctx, const abar_setup *setup, const abar_bench_config *config,
                           abar_bench_result *result, abar_bench **out);
/* All ranks of comm: each step as in training. After the timed steps rank 0 makes as many alone, and the others wait. */
abar_status abar_bench_run_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, const abar_bench_config *config,
                              abar_bench_result *result, abar_bench **out);
const abar_net *abar_bench_net(const abar_bench *bench);
int abar_bench_row_count(const abar_bench *bench); /* 0: not profiled */
const abar_bench_row *abar_bench_row_at(const abar_bench *bench, int i);
void abar_bench_release(abar_bench *bench);

/* How fast the files of a streamed image set become training batches, with so many loader threads; files are read once before.
 * Training then waits for data if its steps are faster. */
typedef struct abar_bench_data_result {
    size_t size;                  /* sizeof(abar_bench_data_result) */
    int64_t workers, images;      /* images: that the stages were timed on, drawn by the seed */
    double read, view, policy;    /* images per second of each stage alone, by all threads: reading files; decoding with crop
                                     and resize; the policy's operations (0: there is no policy) */
    double images_per_second;     /* from files to normalised batches: threads make them, the caller's thread normalises
                                     them; 0 where a GPU decodes */
    double images_per_cpu_second; /* the same per second of CPU time: what one core does */
    double loader_per_second;     /* images in the loader's batches, not normalised: what training on a GPU takes */
} abar_bench_data_result;
abar_status abar_bench_data(abar_context *ctx, const abar_setup *setup, int64_t workers, double seconds,
                            abar_bench_data_result *result);

/* Training steps that are fed by the loader, for comparison with abar_bench_run, whose batch is in place: at most 100, within
 * one epoch. Nothing is written. */
typedef struct abar_bench_fed_result {
    size_t size;               /* sizeof(abar_bench_fed_result) */
    double ms_step, ms_waited; /* means: a step, and what it waited for its batch */
    double samples_per_second;
} abar_bench_fed_result;
abar_status abar_bench_fed(abar_context *ctx, const abar_setup *setup, int64_t workers, int64_t steps, int64_t warmup,
                           abar_bench_fed_result *result);

#ifdef __cplusplus
}
#endif
#endif
