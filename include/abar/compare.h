/* Comparing optimizers: methods x seeds on one problem under equal conditions. What `abar compare` does, for programs.
 *
 * A comparison lives in a folder:
 *     compare.json    its configuration, every run that has ended, the table
 *     compare.csv     one row per run and epoch
 *     compare.svg     training loss and test accuracy (of texts: test loss) over epochs and over time
 *     compare.md      the table, to be pasted into a page
 *     LABEL-sSEED/    every run: what an abar_trainer keeps, and report.json once the run has ended
 * Runs go seed by seed and, within a seed, method by method, so that a machine that gets slower or faster does so for all; on a
 * GPU several may train side by side.
 * A comparison may be stopped or killed at any moment: it goes on where it was, with the same numbers. */
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
    const char *const *labels;       /* what to call the methods; NULL: by their optimizers. Letters, digits, + - _ */
    int methods;
    int64_t seeds;               /* each method runs with the setups' seed, the one after it, ... */
    const int64_t *method_seeds; /* one per method, 0: seeds; NULL: all of them run with seeds */
} abar_compare_config;

/* How one run ended. Accuracies in percent; NaN where no epoch was finished. */
typedef struct abar_compare_run {
    const char *label;
    int method;
    int64_t seed;
    bool ended;
    const char *failure;                                         /* why it could not go on, or NULL */
    int64_t epochs;                                              /* finished */
    double test_accuracy, test_loss, train_accuracy, train_loss; /* after the last of them */
    double best_accuracy, best_loss;                             /* of the test part, after whichever epoch, ... */
    int64_t best_accuracy_epoch, best_loss_epoch;                /* ... counted from 1; 0: none */
    double seconds, ms_per_step;
    int64_t side_by_side; /* trainings that shared the device at the same time, this one included; 1: it was alone */
    int64_t memory_bytes; /* held while it trained: data, net, optimizer, loader. Saving takes a little more for a moment */
    int64_t optimizer_bytes, skipped_steps;
} abar_compare_run;

/* Mean and sample standard deviation; NaN where there is nothing to take them of. */
typedef struct abar_compare_spread {
    double mean, std;
} abar_compare_spread;

/* One method in the table: over its runs that ended without failure. */
typedef struct abar_compare_row {
    const char *label;
    int64_t runs, failures; /* that have ended; those of them that failed */
    abar_compare_spread test_accuracy, best_accuracy, test_loss, best_loss, train_loss, ms_per_step, seconds;
    abar_compare_spread epoch_seconds; /* training and testing; where the device was shared, scaled to what it takes alone */
    int64_t side_by_side;              /* the most trainings that shared the device with one of its runs */
    double ms_alone;                   /* a step, measured with the device to itself; NaN: was not */
    double memory_bytes;               /* the most that any of them held */
    double time_ratio, memory_ratio;   /* of a step's time and memory_bytes to those of the baseline. Where trainings shared the
                                        * device the time is ms_alone, else ms_per_step */
} abar_compare_row;

/* A run that is training. */
typedef struct abar_compare_running {
    const char *label;
    int64_t seed, epoch, epochs; /* epoch counts from 0 */
} abar_compare_running;

/* What a watcher is told: after every step and epoch, when a run has ended, and what concerns all of them. Calls come one at a
 * time, though from several threads where trainings run side by side. */
typedef struct abar_compare_progress {
    const char *news; /* about the comparison itself; then only runs is set below */
    int run, runs;    /* run counts from 0 */
    int ended;        /* runs that have */
    const char *label;
    int64_t seed;
    const abar_progress *training;       /* NULL when the run has ended: */
    const abar_compare_run *result;      /* then this is set */
    double done, seconds_left;           /* of the whole comparison: 0 to 1; an estimate */
    const abar_compare_running *running; /* all that train now, the one told of included */
    int n_running;
} abar_compare_progress;

typedef struct abar_compare_events {
    size_t size;                                                  /* sizeof(abar_compare_events) */
    void (*progress)(void *user, const abar_compare_progress *p); /* may be NULL */
    void *user;
} abar_compare_events;

/* Gives a setup every setting of another's that must be equal in a comparison: recipes may want fewer epochs for one
 * optimizer than for the next. */
abar_status abar_compare_align(abar_context *ctx, const abar_setup *with, abar_setup *setup);

/* Refuses setups that differ in more than their optimizers and how those are driven, and folders that hold a comparison
 * already. Copies what it is given. Nothing appears on disk before the first run is ready to train. */
abar_status abar_compare_create(abar_context *ctx, const abar_compare_config *config, const abar_compare_events *events,
                                abar_compare **out);
/* The comparison in a folder, to go on with or to look at. seeds: how many each method shall have at least, 0: as many as there
 * were. */
abar_status abar_compare_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                              abar_compare **out);
void abar_compare_destroy(abar_compare *compare);

#define ABAR_COMPARE_JOBS_MAX 64
/* How many trainings run side by side, each in a thread of its own; 0 (the default): one on the host, and on a GPU as many as
 * fit in its memory and, by measurement, get more done together than one after the other. The results are the same. */
void abar_compare_jobs(abar_compare *compare, int jobs);

/* Runs whatever has not ended and writes the files anew after every run. A run that cannot go on (numbers that are not
 * finite, no memory, nothing its device can do) is a result like any other, not a failure of the comparison; but what finds no
 * memory beside others is tried again with fewer at a time. Any other failure ends the comparison, saved; one of a library
 * underneath (ABAR_E_BACKEND) does so when the other runs have ended. ABAR_STOPPED after abar_compare_stop: the steps were
 * finished and saved. */
abar_status abar_compare_run_all(abar_compare *compare);
/* Which method's run the failure it returned is of, by its label; NULL: none's. */
const char *abar_compare_failed(const abar_compare *compare);
/* May be called from a signal handler or another thread. */
void abar_compare_stop(abar_compare *compare);

int abar_compare_method_count(const abar_compare *compare);
const abar_setup *abar_compare_setup(const abar_compare *compare, int method);
/* Good until the next call for the same method. */
const abar_compare_row *abar_compare_row_of(const abar_compare *compare, int method);
/* The method that ratios refer to: plain sgd where it takes part, else the first. */
int abar_compare_baseline(const abar_compare *compare);
/* Seed by seed, method by method. */
int abar_compare_run_count(const abar_compare *compare);
const abar_compare_run *abar_compare_run_of(const abar_compare *compare, int run);
const char *abar_compare_dir(const abar_compare *compare);

/* What compare.json holds; the text lives until the next call or destroy. */
abar_status abar_compare_report(abar_compare *compare, const char **json);

#ifdef __cplusplus
}
#endif
#endif
