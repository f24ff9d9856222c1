/* Comparing optimizers: methods x seeds on one problem under equal conditions. The library behind `abar compare`.
 *
 * A comparison lives in a folder:
 *     compare.json    its configuration, every run that has ended, the table
 *     compare.csv     one row per run and epoch
 *     compare.svg     training loss and test accuracy (of texts: test loss) over epochs and over time
 *     compare.md      the table, to be pasted into a page
 *     LABEL-sSEED/    every run: the files of an abar_trainer, and report.json once the run has ended
 * If the setups have a validation part, all files say "validation" in place of "test".
 * Runs are ordered by seed, then by method, so that a machine whose speed changes affects all methods alike; on a GPU several
 * may train side by side. A comparison may be stopped or killed at any moment and continued later, with the same results. */
#ifndef ABAR_COMPARE_H
#define ABAR_COMPARE_H

#include "abar/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_compare abar_compare;

#define ABAR_COMPARE_METHODS_MAX 32
#define ABAR_COMPARE_SEEDS_MAX 1000
#define ABAR_COMPARE_LABEL_MAX 32 /* bytes, the last one zero */

typedef struct abar_compare_config {
    size_t size;                     /* sizeof(abar_compare_config) */
    const char *out;                 /* the comparison's folder */
    const abar_setup *const *setups; /* one per method; their out is ignored */
    const char *const *labels;       /* names of the methods; NULL: those of their optimizers. Letters, digits, + - _ */
    int methods;
    int64_t seeds;               /* runs per method, with the setups' seed, seed + 1, ... */
    const int64_t *method_seeds; /* runs of each method, 0: as seeds says; NULL: all as seeds says */
} abar_compare_config;

/* The result of one run. Accuracies in percent; NaN if no epoch was finished. With a validation part (the setup's
 * train.validation) test_* and best_* are of it. */
typedef struct abar_compare_run {
    const char *label;
    int method;
    int64_t seed;
    bool ended;
    const char *failure;                                         /* why it failed; NULL: it did not */
    int64_t epochs;                                              /* finished */
    double test_accuracy, test_loss, train_accuracy, train_loss; /* after the last finished epoch */
    double best_accuracy, best_loss;                             /* on the test part, over all epochs, ... */
    int64_t best_accuracy_epoch, best_loss_epoch;                /* ... and the epoch, from 1; 0: none */
    double seconds, ms_per_step;
    int64_t side_by_side; /* the most trainings on the device at a time, this one included; 1: it was alone */
    int64_t memory_bytes; /* held while training: data, net, optimizer, loader. Saving briefly takes more */
    int64_t optimizer_bytes, skipped_steps;
    bool retry;             /* it failed for lack of memory: abar_compare_run_all tries it again */
    double steps_per_epoch; /* NaN: not known */
} abar_compare_run;

/* Mean and sample standard deviation; NaN if there are too few values. */
typedef struct abar_compare_spread {
    double mean, std;
} abar_compare_spread;

/* A row of the table: one method, over its runs that did not fail. */
typedef struct abar_compare_row {
    const char *label;
    int64_t runs, failures; /* ended; failed among them */
    abar_compare_spread test_accuracy, best_accuracy, test_loss, best_loss, train_loss, ms_per_step, seconds;
    abar_compare_spread epoch_seconds; /* training and testing; if the device was shared, scaled to the time alone */
    int64_t side_by_side;              /* the maximum over its runs */
    double ms_alone;                   /* milliseconds per step with the device to itself; NaN: not measured */
    double memory_bytes;               /* the maximum over its runs */
    double time_ratio, memory_ratio;   /* to the baseline: of memory_bytes, and of ms_alone if trainings shared the device, else
                                        * of ms_per_step */
    /* with a target: runs that reached it and runs that ended without, and when those that did had it first. Runs are tested
     * after epochs only. Seconds of training and testing, if the device was shared, scaled to the time alone */
    int64_t reached, never;
    abar_compare_spread target_epochs, target_steps, target_seconds;
} abar_compare_row;

/* Two methods: the difference of their mean results (test accuracy, of texts test loss; with a validation part, of it) by
 * Welch's test, corrected by Holm's procedure for the number of pairs. NaN: a method has fewer than two successful runs, or no
 * spread. */
typedef struct abar_compare_pair {
    int a, b;           /* methods */
    double difference;  /* a's mean minus b's */
    double low, high;   /* its interval: all pairs together are covered with 95 % */
    double df, p, holm; /* degrees of freedom; two-sided p; the same after Holm */
    bool apart;         /* holm is at most 0.05: the two are told apart */
    /* Seeds of each that would tell them apart with a probability of 0.8, if difference and spread stay as they are. 0: more
     * than 10,000, or not known */
    int64_t seeds_needed;
} abar_compare_pair;

/* A run in progress. */
typedef struct abar_compare_running {
    const char *label;
    int64_t seed, epoch, epochs; /* epoch counts from 0 */
} abar_compare_running;

/* Reported after every step and epoch, when a run has ended, and for news about the whole comparison. Calls never overlap, but
 * come from several threads if trainings run side by side. */
typedef struct abar_compare_progress {
    const char *news; /* about the whole comparison: of the members below only runs is set. Else NULL */
    int run, runs;    /* run counts from 0 */
    int ended;        /* runs that have ended */
    const char *label;
    int64_t seed;
    const abar_progress *training;       /* NULL: the run has ended, */
    const abar_compare_run *result;      /* with this result */
    double done, seconds_left;           /* of the whole comparison: 0 to 1, and an estimate */
    const abar_compare_running *running; /* all runs in progress, this one included */
    int n_running;
} abar_compare_progress;

typedef struct abar_compare_events {
    size_t size;                                                  /* sizeof(abar_compare_events) */
    void (*progress)(void *user, const abar_compare_progress *p); /* may be NULL */
    void *user;
} abar_compare_events;

/* Copies every setting that must be equal in a comparison from one setup to another: recipes of two optimizers may differ, in
 * their epochs for example. */
abar_status abar_compare_align(abar_context *ctx, const abar_setup *with, abar_setup *setup);

/* Refuses setups that differ in more than the optimizer and its settings, and folders that contain a comparison already. Copies
 * the config. Nothing is written to disk before the first run is ready to train. */
abar_status abar_compare_create(abar_context *ctx, const abar_compare_config *config, const abar_compare_events *events,
                                abar_compare **out);
/* Loads the comparison in a folder, to continue it or to read its results. seeds: the least number of runs per method, 0: as
 * before. */
abar_status abar_compare_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                              abar_compare **out);
void abar_compare_destroy(abar_compare *compare);
/* For abar_compare_load: the network and the data of a program's own are not in the folder. Results can be read without them,
 * runs need them. As abar_setup_set_network and abar_setup_set_data, for all methods. */
abar_status abar_compare_set_network(abar_compare *compare, abar_network_builder builder, void *user);
abar_status abar_compare_set_data(abar_compare *compare, const abar_dataset *data);

#define ABAR_COMPARE_JOBS_MAX 64
/* Sets how many trainings run side by side, each in its own thread. 0, the default: one on the host; on a GPU the fastest
 * number, by measurement, that fits in memory. The results do not depend on it. */
void abar_compare_jobs(abar_compare *compare, int jobs);

/* Every run is trained by all ranks of comm, one run at a time. This is rank 0; the others call abar_ranks_follow, and this one
 * abar_ranks_dismiss in the end. Before the first run, for every method: settings that follow from the number of ranks. Refuses
 * a comparison that was begun on one rank without micro, methods that ranks cannot train, and networks and data of the
 * program's own. */
abar_status abar_compare_ranks(abar_compare *compare, abar_comm *comm);

/* Limits abar_compare_run_all to a part of the runs, from 1 to parts: every parts-th, so that parts cost alike. Parts made on
 * several machines join when their folders are copied into one: a run has ended if its folder has a report. */
abar_status abar_compare_part(abar_compare *compare, int part, int parts);

/* Executes every run that has not ended, and those that failed for lack of memory before this call. The files are rewritten
 * after each run.
 * A run that fails by its own numbers, for lack of memory, or because its device does not support it is a row of the table, not
 * a failure of the comparison. If it found no memory beside other runs, it is first repeated with fewer at a time.
 * Any other failure (a full disk, a lost device) ends the comparison with everything saved; its run has not ended and is
 * continued by the next call. After ABAR_E_BACKEND the other runs are finished first.
 * ABAR_STOPPED: abar_compare_stop was called; the steps in progress were finished and saved. */
abar_status abar_compare_run_all(abar_compare *compare);
/* The label of the method whose run caused the failure that abar_compare_run_all returned; NULL: none. */
const char *abar_compare_failed(const abar_compare *compare);
/* May be called from a signal handler or another thread. */
void abar_compare_stop(abar_compare *compare);

/* A result that runs are to reach: "acc=93" (percent) or "loss=0.2" of the test part; NULL or "": none. Rows and files then say
 * when. It may be changed at any time while no run trains, and is kept in compare.json. */
abar_status abar_compare_target(abar_compare *compare, const char *target);
const char *abar_compare_target_of(const abar_compare *compare); /* "": none */

int abar_compare_method_count(const abar_compare *compare);
const abar_setup *abar_compare_setup(const abar_compare *compare, int method);
/* Good until the next call for the same method. */
const abar_compare_row *abar_compare_row_of(const abar_compare *compare, int method);
/* The method that ratios refer to: plain sgd if it is compared, else the first. */
int abar_compare_baseline(const abar_compare *compare);
/* Ordered by seed, then by method. */
int abar_compare_run_count(const abar_compare *compare);
const abar_compare_run *abar_compare_run_of(const abar_compare *compare, int run);
/* Every pair of methods once; *n: their number. Good until the next call. */
const abar_compare_pair *abar_compare_pairs(const abar_compare *compare, int *n);
const char *abar_compare_dir(const abar_compare *compare);

/* The content of compare.json; valid until the next call or destroy. */
abar_status abar_compare_report(abar_compare *compare, const char **json);

#ifdef __cplusplus
}
#endif
#endif
