/* Training and evaluation: what `abar train`, `abar eval` and `abar bench` do, for programs. */
#ifndef ABAR_TRAIN_H
#define ABAR_TRAIN_H

#include "abar/data.h"
#include "abar/net.h"
#include "abar/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every setting of a run. abar_train_options describes it; the model's and the rule's own options stand beside it. */
typedef struct abar_train_config {
    char model[ABAR_OPTION_TEXT_MAX], data[ABAR_OPTION_TEXT_MAX], optim[ABAR_OPTION_TEXT_MAX];
    int64_t epochs, batch, accumulate; /* accumulate: micro-batches per step; batch is the whole step's */
    double lr, final_lr, weight_decay, clip, label_smoothing;
    bool decay_all;   /* decay norms and biases too, as the paper does */
    int64_t schedule; /* abar_schedule_kind */
    double warmup;    /* epochs */
    bool schedule_per_epoch;
    bool augment;
    int64_t text, epoch_steps; /* abar_text_kind; steps that make an epoch of a text */
    char device[ABAR_OPTION_TEXT_MAX];
    int64_t precision, threads, workers; /* workers: loader threads */
    int64_t seed, limit_train, limit_test, stop_after;
    int64_t checkpoint_every; /* steps, 0: each epoch only */
    int64_t diagnose;         /* steps between diagnostics of the curvature, 0: none */
    bool deterministic;
    char init[ABAR_OPTION_TEXT_MAX];     /* safetensors file to take the first weights from; "": draw them */
    char out[ABAR_OPTION_TEXT_MAX];      /* "": keep nothing on disk */
    char snapshot[ABAR_OPTION_TEXT_MAX]; /* epochs, "0,12,25", after which the weights are kept in out/snapshots; 0: before the
                                            first */
} abar_train_config;

typedef enum abar_text_kind { ABAR_TEXT_CHARACTERS, ABAR_TEXT_BYTES } abar_text_kind;

const abar_option *abar_train_options(void);

/* A whole setup: the option structs a run is made from. Owned memory; destroy with abar_setup_destroy. */
typedef struct abar_setup {
    const abar_model *model;
    void *model_config; /* model->options */
    const abar_rule *rule;
    void *rule_config;         /* rule->options */
    const abar_method *method; /* NULL: the rule alone */
    void *method_config;       /* method->options */
    void *curvature_config;    /* abar_curvature_options */
    abar_train_config train;   /* abar_train_options; last, because it grows */
} abar_setup;

/* One of the option tables of a setup. */
typedef struct abar_setup_table {
    const char *section;        /* of config.json: "train", "model", "optimizer", "curvature", "method" */
    const char *owner;          /* whose options they are: "lenet5", "sgd", "mac" */
    const abar_option *options; /* may be empty, never NULL */
    void *config;
} abar_setup_table;

#define ABAR_SETUP_TABLES_MAX 5

/* Fills out and returns how many there are: three, with a curvature method five. */
int abar_setup_tables(const abar_setup *setup, abar_setup_table out[ABAR_SETUP_TABLES_MAX]);

/* Defaults for this model, data and optimizer. data is NAME or NAME:DIR; optim a rule (sgd), a curvature
 * method (mac: on sgd) or both (mac+adamw). */
abar_status abar_setup_create(abar_context *ctx, const char *model, const char *data, const char *optim, abar_setup **out);
void abar_setup_destroy(abar_context *ctx, abar_setup *setup);
/* Sets an option of any of its tables. Model, optimizer and data set stay those the setup was made for, since its
 * defaults hang on them; data may name another folder of the same set. */
abar_status abar_setup_set(abar_context *ctx, abar_setup *setup, const char *name, const char *text);
/* Checks what no single option can: batch against accumulate, the rule and the method by their own checks, ... */
abar_status abar_setup_check(abar_context *ctx, const abar_setup *setup);

/* What a watcher is told. */
typedef struct abar_progress {
    int64_t epoch, epochs;                                /* epoch counts from 0 */
    int64_t step, steps;                                  /* of the epoch: done, and all */
    double loss, accuracy;                                /* training, mean over the epoch so far; accuracy in percent */
    double lr, samples_per_second, seconds, seconds_left; /* samples: images, or tokens of a text */
    bool text;                                            /* losses and accuracies are of tokens, in nats */
    bool epoch_done;                                      /* then also: */
    double test_loss, test_accuracy;
    double best_accuracy, best_loss;              /* of the test part, over the epochs so far, ... */
    int64_t best_accuracy_epoch, best_loss_epoch; /* ... and when: from 0 */
    double test_perplexity, test_bits;            /* text: exp(test_loss), and bits per character (or byte) */
    int64_t skipped_steps;
} abar_progress;

typedef struct abar_trainer abar_trainer;

typedef struct abar_trainer_events {
    size_t size;                                          /* sizeof(abar_trainer_events) */
    void (*progress)(void *user, const abar_progress *p); /* after every step and every epoch; may be NULL */
    void *user;
} abar_trainer_events;

/* Opens data and device, builds and compiles the net, makes optimizer and loader, locks the out folder. A folder that
 * holds a checkpoint is refused unless resume is set: then the run goes on from there, with a setup from abar_setup_load
 * in which model, data set, optimizer, batch, limit-train and seed are unchanged. Other changes take effect and are logged. */
abar_status abar_trainer_create(abar_context *ctx, const abar_setup *setup, bool resume, const abar_trainer_events *events,
                                abar_trainer **out);
/* Reads the setup a folder was made with; its out is dir. */
abar_status abar_setup_load(abar_context *ctx, const char *dir, abar_setup **out);
/* The setup that a file has with it: a checkpoint, or the export of a text model. Its out is "". */
abar_status abar_setup_load_file(abar_context *ctx, const char *path, abar_setup **out);
void abar_trainer_destroy(abar_trainer *trainer);

/* Trains to the end (or stop_after). ABAR_STOPPED when abar_trainer_stop was called: the step was finished and saved, and
 * another call goes on. ABAR_E_NUMERIC after ten skipped steps in a row: the checkpoint holds the weights before them. */
abar_status abar_trainer_run(abar_trainer *trainer);
/* May be called from a signal handler or another thread. */
void abar_trainer_stop(abar_trainer *trainer);
/* True when resume found no checkpoint and the run starts over. */
bool abar_trainer_started_over(const abar_trainer *trainer);

/* Memory by category, as planned before anything ran and without opening the data: what `abar models` announces. */
typedef struct abar_memory_plan {
    size_t size; /* sizeof(abar_memory_plan) */
    size_t parameters, gradients, buffers, optimizer, activations, data, loader, other, total;
} abar_memory_plan;
abar_status abar_setup_memory_plan(abar_context *ctx, const abar_setup *setup, abar_memory_plan *out);

/* Every map that the setup's curvature method preconditions, with the bytes of its state; none without a method. */
abar_status abar_setup_maps(abar_context *ctx, const abar_setup *setup, abar_map_visitor visit, void *user);

/* The final report as one JSON object: epochs, test_acc, test_loss, train_acc, train_loss (of the last epoch; accuracies in
 * percent), best_acc and best_loss (of the test part, with best_acc_epoch and best_loss_epoch, counted from 1, 0: none), for
 * texts also test_ppl and test_bpc (perplexity, bits per character), seconds, ms_per_step, samples_per_second, peak_bytes,
 * optimizer_bytes, skipped_steps, stopped, dir (null without out), history (one object per epoch, counted from 1) and config.
 * The text lives until the next report. */
abar_status abar_trainer_report(abar_trainer *trainer, const char **json);
abar_net *abar_trainer_net(abar_trainer *trainer);

/* Test loss and accuracy of weights from a safetensors file (an abar export, an abar checkpoint or PyTorch's). */
typedef struct abar_evaluation {
    size_t size;           /* sizeof(abar_evaluation) */
    double loss, accuracy; /* percent */
    int64_t samples;       /* images, or tokens of a text */
    double seconds;
    double perplexity, bits; /* text: exp(loss), and bits per character (or byte); else 0 */
} abar_evaluation;
abar_status abar_evaluate(abar_context *ctx, const abar_setup *setup, const char *weights, abar_evaluation *out);
/* The same, and writes the logits of the first n test samples beside their bytes ("images", "labels", "logits"), or of the
 * first n test windows of a text ("tokens", "labels", "logits"). */
abar_status abar_evaluate_logits(abar_context *ctx, const abar_setup *setup, const char *weights, int64_t n, const char *path);

/* Text that a text model makes up, one token after another, each drawn from what the model thinks may follow. */
typedef struct abar_sample_config {
    size_t size;        /* sizeof(abar_sample_config) */
    const char *prompt; /* how it begins, written out first; NULL or "": a new line, which is not */
    int64_t length;     /* characters (or bytes) to make after it */
    double temperature; /* logits are divided by it; 0: always the likeliest */
    int64_t top_k;      /* only the likeliest so many may be drawn; 0: all */
    uint64_t seed;
    bool (*write)(void *user, const char *text, size_t n); /* called as it is made; false: stop here */
    void *user;
} abar_sample_config;

/* weights: a checkpoint or export of a text model, which has its vocabulary with it; setup: that run's (abar_setup_load). The
 * same setup, weights and config give the same text. ABAR_STOPPED when write said so. */
abar_status abar_sample(abar_context *ctx, const abar_setup *setup, const char *weights, const abar_sample_config *config);

/* Step times on a batch already in place, of the shape that the setup's data have; they need not be there. */
typedef struct abar_bench_config {
    size_t size; /* sizeof(abar_bench_config) */
    int64_t steps, warmup;
    bool profile; /* every operation's times, too: abar_bench_row_at */
} abar_bench_config;

typedef struct abar_bench_result {
    size_t size;                               /* sizeof(abar_bench_result) */
    double ms_median, ms_p10, ms_p90;          /* whole step */
    double ms_mean;                            /* counts the steps that take statistics or refresh, as often as they come */
    double ms_forward, ms_backward, ms_update; /* medians of the phases */
    double ms_observe, ms_refresh; /* means per step: statistics (within backward), averages and factors (within update) */
    double samples_per_second;
    double seconds_to_first_step;
    size_t peak_bytes;
    char device[128];               /* what computed: abar_device_describe */
    double copy_rate, product_rate; /* bytes moved and flops in a second, at best: measured for a profile on a queued device */
} abar_bench_result;

typedef enum abar_bench_phase {
    ABAR_BENCH_FORWARD,
    ABAR_BENCH_BACKWARD,
    ABAR_BENCH_STATISTICS,
    ABAR_BENCH_UPDATE,
    ABAR_BENCH_PHASES
} abar_bench_phase;

/* What a phase of an operation takes in one step, or in the last of its micro-batches; what comes every few steps is spread
 * over them. */
typedef struct abar_bench_cost {
    double us;
    double bytes, flops; /* that it has to move and to compute */
    double floor_us;     /* what those take at copy_rate and product_rate, the longer of the two; 0: rates unknown */
} abar_bench_cost;

/* One operation of the net, or the update. On a queued device operations are timed one by one: together they take longer than
 * a step, which runs some side by side and leaves no gaps. */
typedef struct abar_bench_row {
    const char *name, *operation, *implementation; /* as abar_node_info has them */
    abar_bench_cost phase[ABAR_BENCH_PHASES];
} abar_bench_row;

/* out may be NULL; otherwise it receives the net and the profile's rows, to be released with abar_bench_release. The learning
 * rate is 0: every step computes on the same numbers. */
typedef struct abar_bench abar_bench;
abar_status abar_bench_run(abar_context *ctx, const abar_setup *setup, const abar_bench_config *config,
                           abar_bench_result *result, abar_bench **out);
const abar_net *abar_bench_net(const abar_bench *bench);
int abar_bench_row_count(const abar_bench *bench); /* 0: it was not profiled */
const abar_bench_row *abar_bench_row_at(const abar_bench *bench, int i);
void abar_bench_release(abar_bench *bench);

#ifdef __cplusplus
}
#endif
#endif
