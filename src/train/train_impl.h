/* The inside of training: what a setup is built into, one step, and the state of a run between two steps.
 *
 *     config.c  config_json.c  recipe.c     the settings: tables, defaults, config.json
 *     images.c                              those of image folders
 *     own.c                                 a program's own network and data
 *     build.c                               settings -> data set, device, net, optimizer
 *     step.c                                one optimizer step, and a pass over the test set
 *     join.c  join_queued.c                 micro-batches, and ranks, joined to one batch: on the host, on a queued device
 *     ranks.c  ranks_gpu.c                  ranks that must be alike; their GPUs
 *     owners.c  follow.c                    what ranks divide of a step; ranks that train one run after the other
 *     feed.c  pipeline.c                    batches in device memory; steps in flight
 *     ema.c                                 the running average of the weights
 *     trainer.c  run_state.c                a whole run; its progress
 *     record.c  checkpoint.c  snapshot.c    its logs and report; the files of its folder
 *     weights.c  evaluate.c  sample.c  memory_plan.c
 *     bench/  compare/                      timing; comparisons of methods */
#ifndef ABAR_TRAIN_IMPL_H
#define ABAR_TRAIN_IMPL_H

#include "abar/train.h"
#include "base/base_impl.h"
#include "base/clock.h"
#include "curvature/curvature_impl.h"
#include "device/feed_impl.h"
#include "io/io.h"
#include "net/blocks.h"
#include "train/join.h"

#include <stdatomic.h>

/* ---- settings ------------------------------------------------------------------------------------------------- */

/* Sets the settings that depend on model, data and rule. */
abar_status abar__recipe_apply(abar_context *ctx, abar_setup *setup);

enum { ABAR_CHOICE_AUTO, ABAR_CHOICE_FP32, ABAR_CHOICE_TF32, ABAR_CHOICE_BF16 }; /* of --precision */
bool abar__is_cuda(const abar_train_config *train);
/* Samples of a forward pass, and forward passes of a step. */
static inline int64_t abar__micro_of(const abar_train_config *train)
{
    return train->micro > 0 ? train->micro : train->batch / train->accumulate;
}
static inline int64_t abar__passes_of(const abar_train_config *train) { return train->batch / abar__micro_of(train); }
/* The part that is measured after an epoch, as files and tables name it. */
static inline const char *abar__tested_part(const abar_train_config *train)
{
    return train->validation > 0.0 ? "validation" : "test";
}

/* Typed: what abar_curvature_options describe. */
static inline abar__curvature_config *abar__curvature_config_of(const abar_setup *setup) { return setup->curvature_config; }

/* images.c: image sets whose files are decoded when they are needed. */
bool abar__is_streamed(const abar_train_config *train);
bool abar__mixes(const abar_train_config *train);        /* training images are mixed: targets are pairs of labels */
int64_t abar__mix_group(const abar_train_config *train); /* rows of a batch that are mixed with each other */
abar_status abar__images_check(abar_context *ctx, const abar_train_config *train);
void abar__request_images(const abar_train_config *train, abar_loader_config *out);
uint64_t abar__images_fingerprint(const abar_dataset *data); /* of names, sizes and labels; 0: no image folder */
/* Appends the names as a JSON array; nothing where the data set has none. */
abar_status abar__class_names_write(abar_context *ctx, const abar_dataset *data, abar__text *out);
/* Logs how many damaged files the loader has met, if that is more than in *told, and updates it. The loader names them. */
abar_status abar__damage_tell(abar_context *ctx, const abar_loader *loader, bool test, abar_damage *told);

abar_status abar__setup_copy(abar_context *ctx, const abar_setup *from, abar_setup **out);
/* Appends the setup as one JSON object. */
abar_status abar__setup_write(abar_context *ctx, const abar_setup *setup, abar__text *out);
/* Reads what abar__setup_write wrote; label names the text in errors. Settings it does not mention take their defaults. */
abar_status abar__setup_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_setup **out);
/* What may change between a checkpoint and the run that goes on from it, and what must not. */
abar_status abar__setup_compare(abar_context *ctx, const abar_setup *was, const abar_setup *now);

/* own.c: what a program builds and holds itself. */
#define ABAR_OWN_MODEL "own"
#define ABAR_OWN_DATA "memory"
extern const abar_model abar__own_model;
bool abar__is_own_data(const abar_setup *setup);
/* Whether the setup has been given what its names stand for. */
/* As abar_setup_check, but a network and data of the program's own may be missing. */
abar_status abar__settings_check(abar_context *ctx, const abar_setup *setup);
/* Whether it has them. */
abar_status abar__own_check(abar_context *ctx, const abar_setup *setup);

/* ---- building ------------------------------------------------------------------------------------------------- */

/* Whether the data set is there, opened with the setup's files of classes and labels; and its size. */
abar_status abar__data_probe(abar_context *ctx, const abar_setup *setup, abar_dataset_probe *out);
/* The data set's description without opening it; a text gets the model's default vocabulary. */
abar_status abar__data_look(abar_context *ctx, const abar_setup *setup, abar_dataset_info *out);
/* The context of a text model in tokens. Image models: 1. */
int64_t abar__context_of(const abar_setup *setup);
/* test_only: the test set alone, and no validation part. vocabulary: that of existing weights; NULL: the text's own. */
abar_status abar__data_open(abar_context *ctx, const abar_setup *setup, bool test_only, const char *vocabulary,
                            abar_dataset **out);
abar_status abar__device_open(abar_context *ctx, const abar_setup *setup, abar_device **out);

typedef struct abar__net_request {
    int64_t batch;    /* of one forward pass */
    bool training;    /* else its loss is that of hard labels, without smoothing */
    bool hard_labels; /* its loss is, all the same */
    bool plan_only;
    const abar_net *share; /* as in abar_compile_config */
    bool patterns;         /* likewise */
} abar__net_request;

abar_status abar__net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                            const abar__net_request *request, abar_net **out);
/* Whether a run tests with a net of its own, which shares the trained one's parameters: its images have another size, or its
 * loss is another one. info: of the data set; *out: the same with the size of the test view. */
bool abar__tests_apart(const abar_setup *setup, const abar_dataset_info *info, abar_dataset_info *out);
/* That net. */
abar_status abar__test_net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *test_info,
                                 abar_device *dev, const abar__net_request *request, abar_net **out);
/* Whether a batch has no more than the samples of training. */
abar_status abar__batch_check(abar_context *ctx, const abar_train_config *train, const abar_dataset_info *info);
/* Fails where creating a trainer would, as far as that is known without reading data and without its memory. on_host: the net
 * is planned on the cpu, whatever its device. */
abar_status abar__setup_try(abar_context *ctx, const abar_setup *setup, bool on_host);
/* Whether the names in the options of method and rule fit the net. */
abar_status abar__optim_check(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net);
/* The further gradients that the setup's rule or method needs. */
abar_extra abar__setup_extra(const abar_setup *setup);
/* The net that makes those passes, on the parameters of net; NULL: there are none. The loss of labels that are not the data's
 * is that of hard ones. */
abar_status abar__extra_net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                                  const abar_net *net, bool plan_only, abar_net **out);
/* extra: that net; NULL: there is none, and rules that need it are refused. */
/* ranks: among which states and updates are divided; NULL: they are not. */
abar_status abar__optim_build_on(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                 const abar_net *extra, const abar__owners *ranks, abar_optim **out);
abar_status abar__optim_build(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                              const abar_net *extra, abar_optim **out);
abar_status abar__optim_plan_maps(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                  abar_map_visitor visit, void *user);
abar_status abar__optim_plan_params(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                    abar_param_visitor visit, void *user);
/* Bytes the optimizer would hold. */
abar_status abar__optim_plan(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net, size_t *out);
/* Doubles of its pending statistics, at most. */
abar_status abar__optim_plan_pending(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                     int64_t *out);
/* The join of its micro-batches on one rank. pending: abar_optim_pending_count at the first step. */
abar__join_config abar__join_request(const abar_setup *setup, const abar_device *dev, const abar_net *net,
                                     const abar_net *extra, int64_t pending);
abar_loader_config abar__loader_request(const abar_setup *setup, bool test);

/* ---- batches on a queued device ---------------------------------------------------------------------------------- */

/* A data set that is resident on the device and read in the loader's order, or batches that are sent step by step. */
typedef struct abar__data_feed {
    abar_device *dev;
    const abar__feed_ops *ops; /* NULL, and so is batches: the device reads batches from host memory */
    abar__feed *batches;
    bool resident;  /* the data set is on the device: steps need no batch from the host */
    int32_t *order; /* resident: of one epoch */
    size_t order_bytes;
} abar__data_feed;

/* For the part of data that the loader yields; every fill takes micro samples. A set that needs more than a quarter of the
 * device's free memory is streamed, and so is any set when stream is true. */
abar_status abar__data_feed_create(abar_context *ctx, abar_device *dev, const abar_dataset *data, const abar_loader *loader,
                                   const abar_loader_config *request, int64_t micro, bool stream, abar__data_feed *out);
void abar__data_feed_release(abar_context *ctx, abar__data_feed *f);
/* Resident: the next fills are those of this step of this epoch and of the following steps. */
abar_status abar__data_feed_seek(abar__data_feed *f, const abar_loader *loader, int64_t epoch, int64_t step);

/* The samples of a batch, as a feed stages them. */
static inline const void *abar__batch_samples(const abar_batch *batch)
{
    if (batch->tokens) return batch->tokens;
    return batch->floats ? (const void *)batch->floats : (const void *)batch->images;
}

/* Streamed: the next fills are of this batch, whose memory is free when it returns. */
abar_status abar__data_feed_stage(const abar__data_feed *f, const abar_batch *batch);

/* ---- ranks ---------------------------------------------------------------------------------------------------- */

/* How ranks exchange what they divide of the optimizer's step (owners.c). */
typedef struct abar__exchange {
    abar_comm *comm;
    abar__nccl *nccl; /* NULL: through the host */
    abar_device *dev; /* of nccl */
} abar__exchange;

abar__owners abar__owners_of(abar__exchange *x); /* x must stay */
/* All ranks, with the device of each; comm NULL: one rank. */
abar_status abar__exchange_over_nccl(abar_context *ctx, abar_comm *comm, abar_device *dev, abar__nccl **out);

/* ---- one step ------------------------------------------------------------------------------------------------- */

/* What a step needs; it owns nothing and allocates nothing. */
struct abar__stepper {
    abar_context *ctx;
    abar_net *net;
    abar_net *extra;               /* makes the further passes of rules that need them; NULL: none */
    abar_optim *optim;             /* NULL: evaluation only */
    const abar_dataset_info *info; /* shape and normalisation of the images, or text */
    int64_t micro, accumulate;     /* samples per forward pass, forward passes per step */
    abar__join *join;              /* of micro-batches whose gradients are not just added up, and of ranks; NULL: none */
    double clip;                   /* of the gradient's norm, 0: off */
    uint64_t seed;                 /* of dropout */
    abar__data_feed *feed;         /* of a queued device */
};

struct abar__step_result {
    bool skipped; /* a loss or gradient was not finite: nothing changed */
    abar_loss loss;
    double forward_seconds, backward_seconds, update_seconds;
    double waited_seconds; /* for its batch, before it began */
    bool stops;            /* steps that exchange in the queue: a rank wanted to stop */
};

/* Step number k at rate lr on a batch of micro x accumulate samples; batch NULL: on the current content of the net's input. */
abar_status abar__stepper_run(const abar__stepper *s, const abar_batch *batch, int64_t k, double lr, abar__step_result *out);
/* Enqueues the same on a queued device, on the samples in its feed and without waiting; this is what is captured. */
abar_status abar__stepper_enqueue(const abar__stepper *s);

/* The stages of a step. Where ranks exchange through the host it is cut behind some of them into parts, for capture. */
typedef enum abar__step_stage {
    ABAR_STAGE_PASSES,  /* forward and backward: gradients and statistics of this rank */
    ABAR_STAGE_COMMIT,  /* those of all; what is due is derived from statistics */
    ABAR_STAGE_UPDATE,  /* the weights */
    ABAR_STAGE_SAMPLED, /* further passes at the new weights, where the step has them */
    ABAR_STAGE_END,
    ABAR_STAGES
} abar__step_stage;

typedef struct abar__step_parts {
    unsigned cuts; /* bit i: behind stage i ranks exchange through the host */
    bool sampled;  /* the step has further passes at the new weights */
    int kind;      /* which steps have the same recordings, 0 to ABAR_STEP_KINDS - 1 */
} abar__step_parts;

#define ABAR_STEP_KINDS 4 /* with statistics or further passes, with refreshes that ranks divide, with both, or plain */

/* begin comes first, on the host, also of steps that are replayed. Then each part, from stage first to last =
 * parts_last(first), is enqueued, and where it ends in a cut meet is called, with what has become of it: it waits for it and
 * exchanges. */
abar_status abar__stepper_begin(const abar__stepper *s, abar__step_parts *parts);
int abar__parts_last(const abar__step_parts *parts, int first);
static inline bool abar__parts_meet(const abar__step_parts *parts, int last) { return parts->cuts >> last & 1u; }
abar_status abar__stepper_enqueue_part(const abar__stepper *s, const abar__step_parts *parts, int first, int last);
abar_status abar__stepper_meet(const abar__stepper *s, int last, abar_status status);
int64_t abar__stepper_passes(const abar__stepper *s); /* micro-batches of a step, of all ranks */
/* The phases of a step of one forward pass, for timing. */
abar_status abar__stepper_enqueue_forward(const abar__stepper *s);
abar_status abar__stepper_enqueue_backward(const abar__stepper *s, bool observe);
abar_status abar__stepper_enqueue_update(const abar__stepper *s);
bool abar__stepper_calibrates(const abar__stepper *s);
/* For optimizers that calibrate on the training set before step 0: one pass over it, as the loader yields it. */
abar_status abar__stepper_calibrate(const abar__stepper *s, abar_loader *loader);
/* Forward passes over the first n batches of a training epoch, which update the provisional running statistics. Moves the
 * loader. */
abar_status abar__stepper_estimate(const abar__stepper *s, abar_loader *loader, int64_t epoch, int64_t n);
/* One forward pass over a batch of micro samples, with running statistics and without dropout. */
abar_status abar__stepper_infer(const abar__stepper *s, const abar_batch *batch, abar_loss *out);
/* Loss and correct predictions over the whole test part; feed: that of the test part, or NULL. ABAR_STOPPED when stop (may
 * be NULL) becomes true. */
abar_status abar__stepper_test(const abar__stepper *s, abar_loader *loader, abar__data_feed *feed, const atomic_bool *stop,
                               abar_loss *out);

/* Enqueued steps. On the host a step runs when it is enqueued; a queued device is up to ABAR_STEPS_AHEAD steps behind, and
 * each step is a replay of a captured one. */
#define ABAR_STEPS_AHEAD 32

typedef struct abar__pipeline {
    const abar__stepper *stepper;
    abar_loader *loader;
    const abar__stream_ops *stream; /* NULL: the host */
    abar_device *dev;
    void *graph[ABAR_STEP_KINDS][ABAR_STAGES]; /* of each kind of step; of its parts by their first stage */
    bool warm[ABAR_STEP_KINDS];                /* has run once without capture: libraries initialise then */
    void *event[ABAR_STEPS_AHEAD];             /* of the end of each step, ... */
    void *began[ABAR_STEPS_AHEAD];             /* ... and of its beginning, where batches are sent */
    int64_t enqueued, collected;               /* k of the next step to enqueue, and of the next result to read */
    int64_t first;                             /* k of the first step since the last seek */
    abar__step_result result;                  /* host: of the last step */
    double *rates;                             /* of the steps of an epoch */
    int64_t steps;                             /* of an epoch */
} abar__pipeline;

abar_status abar__pipeline_create(const abar__stepper *stepper, abar_device *dev, abar_loader *loader, abar__pipeline *out);
void abar__pipeline_release(abar_context *ctx, abar__pipeline *p);
/* Continues at this step of this epoch; no step may be pending. */
abar_status abar__pipeline_seek(abar__pipeline *p, const abar_schedule *schedule, int64_t epoch, int64_t step);
/* Enqueues the next step, at rate lr. alone: without a captured step, because its state will be read. */
abar_status abar__pipeline_enqueue(abar__pipeline *p, double lr, bool alone);
/* The result of the oldest step not yet read; *got is false where none is done (wait: where none is pending). */
abar_status abar__pipeline_collect(abar__pipeline *p, bool wait, abar__step_result *out, bool *got);

/* ---- the average of the weights ---------------------------------------------------------------------------------- */

typedef struct abar__ema {
    abar_context *ctx;
    abar_device *dev;
    abar_net *net; /* NULL: there is none */
    abar__net_blocks blocks;
    void *values, *running; /* the average, laid out as the net's */
    int64_t *counts;        /* of every tensor of the net that is a counter */
    size_t count_bytes;
    bool swapped; /* the net has the average's values, its own are in the gradients' memory */
} abar__ema;

double abar__ema_decay(const abar_train_config *train); /* d of abar_train_config.ema */
/* Whether the update after this step of this epoch copies the weights. */
bool abar__ema_copies(const abar_train_config *train, int64_t epoch, int64_t step);
size_t abar__ema_bytes(const abar_net *net);                                                      /* on the device */
abar_status abar__ema_create(abar_context *ctx, abar_device *dev, abar_net *net, abar__ema *out); /* all 0 */
void abar__ema_release(abar__ema *e);
/* Enqueued behind a step: e = w, or e = decay e + (1 - decay) w. Counters, which the host keeps, follow when the step's result
 * has been read. */
abar_status abar__ema_copy(abar__ema *e);
abar_status abar__ema_update(abar__ema *e, double decay);
void abar__ema_count(abar__ema *e);
/* Tensor i of the net's state dict, as averaged; without counts with the net's own counters. */
void abar__ema_tensor(const abar__ema *e, int i, const char **name, abar_tensor *out);
/* Between steps: gives the net the average's values, and its own back (if they were taken). No step may run in between. */
abar_status abar__ema_swap_in(abar__ema *e);
abar_status abar__ema_swap_out(abar__ema *e);

/* ---- the weights that are tested (tested.c) ----------------------------------------------------------------------- */

/* Between steps: gives the net the weights that the optimizer wants tested and exported, and back those that it trains. Does
 * nothing where they are the same. leave: also after a failure, and after nothing. */
abar_status abar__tested_enter(abar_trainer *t);
abar_status abar__tested_leave(abar_trainer *t);

/* ---- weights in files ------------------------------------------------------------------------------------------ */

/* Copies every tensor of the net from the file. counters: num_batches_tracked is required too. */
abar_status abar__weights_load(abar_context *ctx, const abar__safetensors *file, const char *path, abar_net *net,
                               bool counters);
#define ABAR_STATE_PREFIX "optim." /* of optimizer state in a checkpoint ... */
#define ABAR_EMA_PREFIX "ema."     /* ... and of the average of the weights */
/* Fails when the file holds a tensor that is neither the net's nor one of these. */
abar_status abar__weights_exact(abar_context *ctx, const abar__safetensors *file, const char *path, const abar_net *net);
/* The tensor as the host sees it, where a device computes in the host's memory; else itself. */
abar_tensor abar__host_view(const abar_tensor *t);
/* The weights of a net from a file that holds them and nothing else but optimizer state. */
abar_status abar__weights_read(abar_context *ctx, const char *path, abar_net *net);
/* Whether the file has the net's tensors; the net may be a plan. NULL: whether it is a file of tensors. */
abar_status abar__weights_check(abar_context *ctx, const char *path, const abar_net *net);
/* Copies one tensor of the file, or says what does not fit. */
abar_status abar__weights_copy(abar_context *ctx, const char *path, const char *name, const abar_tensor *dst,
                               const abar_tensor *src);
/* The metadata of weights, each NULL where there is none: of a text model its settings and the characters of its vocabulary
 * (NULL: bytes), of image folders the names of the classes as a JSON array. */
typedef struct abar__notes {
    const char *config, *vocabulary, *classes;
} abar__notes;

#define ABAR_NOTE_CONFIG "config"
#define ABAR_NOTE_VOCABULARY "vocabulary"
#define ABAR_NOTE_CLASSES "classes"
abar_status abar__notes_add(abar__safetensors_writer *writer, const abar__notes *notes);
/* model.safetensors: floats as F32. stage holds abar__weights_stage_bytes; average: that of the net
 * is exported; NULL: the net itself. */
abar_status abar__weights_export(abar_context *ctx, const abar_net *net, const abar__ema *average, void *stage,
                                 const abar__notes *notes, const char *path);
size_t abar__weights_stage_bytes(const abar_net *net);

/* ---- a run ----------------------------------------------------------------------------------------------------- */

/* One finished epoch. */
typedef struct abar__epoch {
    double train_loss, train_accuracy, test_loss, test_accuracy, lr, seconds; /* accuracies in percent */
    int64_t skipped;                                                          /* steps of this epoch */
    double ema_loss, ema_accuracy; /* of the average of the weights; NaN: there is none */
} abar__epoch;

/* The progress of a run: with the tensors, all that a checkpoint keeps. */
typedef struct abar__run_state {
    int64_t epoch, step;    /* step of the epoch; at the last one the evaluation is due */
    double loss_sum;        /* over the samples of the epoch's steps so far ... */
    int64_t correct, count; /* ... without skipped ones */
    int64_t skipped, epoch_skipped, skipped_in_a_row;
    double seconds, epoch_seconds, step_seconds, test_seconds; /* step and test: of training and evaluation, summed */
    uint64_t log_bytes, events_bytes;
} abar__run_state;

/* The content of one part of the data set: its samples (tokens of a text) and their CRC-32. */
typedef struct abar__digest {
    int64_t count, crc;
} abar__digest;

/* How long the last steps took, and how long they waited for data. */
#define ABAR_PACE_STEPS 100
typedef struct abar__pace {
    double seconds[ABAR_PACE_STEPS], waited[ABAR_PACE_STEPS];
    int64_t steps; /* so far; step n is in place n mod ABAR_PACE_STEPS */
} abar__pace;

struct abar_trainer {
    abar_context *ctx;
    abar_setup *setup;
    abar_trainer_events events;
    abar_dataset *data;
    abar_device *dev;
    abar_net *net, *test_net; /* test_net: NULL, the net itself is tested */
    abar_net *extra_net;      /* as abar__stepper's */
    abar_optim *optim;
    abar_comm *comm;  /* the caller's; NULL: one rank */
    uint64_t *hashes; /* (ranks, hash_count): of all tensors; NULL: one rank */
    int64_t hash_count;
    abar__nccl *nccl; /* over which ranks on GPUs exchange; NULL: they do not */
    abar__exchange exchange;
    void *rank_bytes; /* pinned: one tensor, for other ranks */
    size_t rank_bytes_size;
    abar__join join; /* without ctx: there is none */
    abar__ema average;
    abar__ema tested; /* the net itself, while it has the weights that are tested and not those that are trained */
    abar_loader *train, *test;
    abar__data_feed train_feed, test_feed;
    abar_dataset_info test_info; /* with the size of test images */
    abar__stepper stepper, tester;
    abar__pipeline pipeline;
    abar_schedule schedule;
    int64_t steps; /* per epoch */
    abar__run_state at;
    abar__digest digest[2]; /* of training and test data, where there is a folder */
    uint64_t fingerprint;   /* of an image folder, likewise; 0: none */
    abar_damage damage[2];  /* of training and test data, as logged */
    abar__text classes;     /* their names as a JSON array; empty: none */
    abar__epoch *history;   /* at.epoch entries; space for history_capacity */
    int64_t history_capacity;
    double tick;          /* time of the last update of at's clocks */
    double pace_seconds;  /* of this epoch's steps in this process, for samples per second ... */
    int64_t pace_samples; /* ... and their samples */
    abar__pace pace;
    /* on disk, when setup->train.out is set */
    int lock;
    abar__jsonl *log;
    abar__tfevents *scalars;
    void *stage; /* for the export, where the device does not compute in F32 */
    size_t stage_bytes;
    abar__text text, report; /* scratch; the last report */
    atomic_bool stop;
    bool saves;                  /* the run has a folder, be it of another rank */
    bool resumes, started_over;  /* a checkpoint was found; resume was asked for and none was found */
    bool stopped;                /* the last call of run ended by abar_trainer_stop */
    int64_t stop_at, give_up_at; /* ranks that run ahead do so before this step; -1: not yet */
};

/* The progress of a run as JSON, and back. The parser allocates at->epoch entries of history. */
abar_status abar__run_state_write(abar_context *ctx, const abar__run_state *at, const abar__epoch *history, abar__text *out);
abar_status abar__run_state_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar__run_state *at,
                                  abar__epoch **history);
/* part: of abar__tested_part, or "test". text: with perplexity and bits per character, which are not read back. */
abar_status abar__epoch_write(abar_context *ctx, int64_t index, const abar__epoch *e, const char *part, bool text,
                              abar__text *out);
abar_status abar__history_write(abar_context *ctx, const abar__epoch *history, int64_t n, const char *part, bool text,
                                abar__text *out);
double abar__perplexity(double loss); /* of nats per token */
double abar__bits(double loss);
double abar__best_accuracy(const abar__epoch *history, int64_t n);     /* 0 before the first epoch */
double abar__best_loss(const abar__epoch *history, int64_t n);         /* of the test part; NaN before the first epoch */
double abar__best_ema_accuracy(const abar__epoch *history, int64_t n); /* NaN: no epoch has one */
/* The first epoch, from 0, that has it. */
int64_t abar__best_accuracy_epoch(const abar__epoch *history, int64_t n);
int64_t abar__best_loss_epoch(const abar__epoch *history, int64_t n);

/* Images, or tokens, of one step. */
int64_t abar__samples_each(const abar_trainer *t);

/* Logs, in setup->train.out. Without a folder they do nothing. */
abar_status abar__record_open(abar_trainer *t); /* truncated to the sizes in t->at */
abar_status abar__record_step(abar_trainer *t, double loss, double lr);
abar_status abar__record_epoch(abar_trainer *t, const abar__epoch *e);
/* Every map's diagnostics, measured in the last step; and its counters, for the report. */
abar_status abar__record_curvature(abar_trainer *t);
abar_status abar__report_curvature(abar_trainer *t);

/* The files of the folder. */
#define ABAR_RUN_PATH_MAX (ABAR_OPTION_TEXT_MAX + 64)
abar_status abar__run_path(abar_context *ctx, const char *dir, const char *name, char path[ABAR_RUN_PATH_MAX]);
/* Fails for a folder without NOUN ("run", "sweep"), whose file is missing; says what is there instead, and how that goes on. */
abar_status abar__folder_lacks(abar_context *ctx, const char *dir, const char *noun, const char *file);
void abar__digest_take(abar_trainer *t);
/* Refuses the folder of a new run that has one, or a comparison. */
abar_status abar__folder_vacant(abar_context *ctx, const char *dir);
abar_status abar__folder_claim(abar_trainer *t, bool resume); /* locks it; sets t->resumes and t->started_over */
abar_status abar__checkpoint_load(abar_trainer *t);
abar_status abar__checkpoint_save(abar_trainer *t);                /* state.safetensors */
abar_status abar__export_save(abar_trainer *t);                    /* model.safetensors, model_ema.safetensors */
abar_status abar__config_save(abar_trainer *t);                    /* config.json */
abar_status abar__export_write(abar_trainer *t, const char *path); /* what model.safetensors holds, into any file */

/* Several ranks (ranks.c). One rank: these do nothing. */
/* Settings that follow from the number of ranks; what does not fit is refused. */
abar_status abar__ranks_settle(abar_context *ctx, abar_comm *comm, abar_setup *setup);
void abar__ranks_settle_threads(const abar_comm *comm, abar_train_config *train); /* those of an evaluation */
/* All ranks: whether they have the same settings; then, the same data and device. status: how far this rank has come. */
abar_status abar__ranks_compare_settings(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume);
abar_status abar__ranks_compare_data(abar_trainer *t, abar_status status);
/* The same of an evaluation: test data, device and weights. */
abar_status abar__ranks_compare_tested(abar_context *ctx, abar_comm *comm, const abar_dataset *data, const abar_device *dev,
                                       const abar_net *net, abar_status status);
abar_status abar__ranks_share_state(abar_trainer *t); /* rank 0's state becomes that of all */
abar_status abar__ranks_make(abar_trainer *t);        /* memory for the following */
void abar__ranks_release(abar_trainer *t);
/* The optimizer of a run: its steps are divided among the ranks. */
abar_status abar__ranks_make_optim(abar_trainer *t);
/* With --zero 1, all ranks: rank 0 has the state of all parameters, for a checkpoint, until abar__ranks_let_go. */
abar_status abar__ranks_collect(abar_trainer *t);
abar_status abar__ranks_spread(abar_trainer *t); /* of a checkpoint that rank 0 has read, to its owners; lets go, too */
abar_status abar__ranks_hold(abar_trainer *t);   /* rank 0: memory for it */
void abar__ranks_let_go(abar_trainer *t);
/* Ranks divide what they can of the optimizer's steps from now on; without comm and nccl: this one makes all (owners.c). */
abar_status abar__ranks_divide(abar__exchange *x, abar_optim *optim);
abar_status abar__ranks_check_replicas(abar_trainer *t); /* all ranks: whether all tensors are equal */

/* Rank 0, before it creates a trainer on comm: those that follow (follow.c) create one with this setup. Once it has its trainer
 * it calls abar_ranks_agree, and then all run it. */
abar_status abar__ranks_lead(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume);
/* Of ranks on GPUs (ranks_gpu.c). The device; then, all ranks together, t->nccl, where they exchange over it. */
abar_status abar__ranks_open_device(abar_trainer *t);
abar_status abar__ranks_connect(abar_trainer *t);
/* The tensor's bytes as the host reads them, until the next call; and back where they were changed. make: for tensors of so
 * many bytes. */
bool abar__rank_is_elsewhere(const abar_tensor *tensor);
abar_status abar__rank_bytes_make(abar_trainer *t, size_t bytes);
void abar__rank_bytes_release(abar_trainer *t);
abar_status abar__rank_bytes(const abar_trainer *t, const abar_tensor *tensor, void **out);
abar_status abar__rank_bytes_back(const abar_trainer *t, const abar_tensor *tensor, const void *bytes);

abar_status abar__snapshot_check(abar_context *ctx, const abar_train_config *train);
/* When the run begins or goes on: the snapshot that is due right here, and a warning for those it can no longer make. */
abar_status abar__snapshot_open(abar_trainer *t);
abar_status abar__snapshot_save(abar_trainer *t); /* if one is due after the epochs that are done */

#endif
