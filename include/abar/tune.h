/* Tuning with equal budgets: the same number of trials for every optimizer, by successive halving. The library behind `abar
 * tune`.
 *
 * All trials of a round train for the same number of epochs, each a whole run with its own schedule, and are judged on a
 * validation part. The best third of each optimizer's trials goes on to the next round, which is three times as long; the last
 * round is as long as the setups say. The best trial of the last round is then run again with new seeds, on the whole training
 * set, and measured on the test set. The folder:
 *     tune.json      its configuration, rounds and results
 *     tune.md        the results with search space, trials and seconds of each optimizer
 *     round1/ ...    every round: a sweep
 *     final/         the comparison of the chosen settings */
#ifndef ABAR_TUNE_H
#define ABAR_TUNE_H

#include "abar/sweep.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_tune abar_tune;

#define ABAR_TUNE_TRIALS_MAX 729
#define ABAR_TUNE_ROUNDS_MAX 8

typedef struct abar_tune_config {
    size_t size;                     /* sizeof(abar_tune_config) */
    const char *out;                 /* the folder */
    const abar_setup *const *setups; /* one per optimizer; their validation must be above 0 */
    const char *const *labels;       /* names of the optimizers; NULL: those of the setups */
    int optimizers;
    /* The search space: as in abar_sweep_config, and "NAME=low:high" or "NAME=low:high:log" for any number between. One setting
     * is tried at equal distances, several at the points of Halton's sequence. */
    const char *const *over;
    int n_over;
    int trials;    /* of each optimizer */
    int64_t seeds; /* runs of the chosen settings, with the setups' seed + 1, ...; the trials have the setups' seed */
} abar_tune_config;

/* Nothing is written to disk before abar_tune_run. */
abar_status abar_tune_create(abar_context *ctx, const abar_tune_config *config, const abar_compare_events *events,
                             abar_tune **out);
/* seeds: the least number of final runs, 0: as before. */
abar_status abar_tune_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                           abar_tune **out);
void abar_tune_destroy(abar_tune *tune);
void abar_tune_jobs(abar_tune *tune, int jobs);                /* as abar_compare_jobs */
abar_status abar_tune_ranks(abar_tune *tune, abar_comm *comm); /* as abar_compare_ranks */

/* Carries out what is left. Events are those of the rounds and the final comparison, with news between them. Trials that fail
 * do not go on. Status as of abar_compare_run_all. */
abar_status abar_tune_run(abar_tune *tune);
/* May be called from a signal handler or another thread. */
void abar_tune_stop(abar_tune *tune);

const char *abar_tune_dir(const abar_tune *tune);
/* The round or the final comparison that runs, or ran last; NULL before the first. */
const abar_compare *abar_tune_current(const abar_tune *tune);
int abar_tune_trials(const abar_tune *tune);

typedef struct abar_tune_round {
    int trials; /* of each optimizer */
    int64_t epochs;
} abar_tune_round;
int abar_tune_round_count(const abar_tune *tune);
const abar_tune_round *abar_tune_round_of(const abar_tune *tune, int round);

/* What was done for one optimizer, and what it came to. */
typedef struct abar_tune_result {
    const char *label, *space; /* space: "lr=0.01:1:log damping=0.1,1,10" */
    int trials, failures;      /* of the first round; of all rounds */
    int64_t epochs;            /* that were trained in all rounds ... */
    double seconds;            /* ... and how long that took */
    const char *values;        /* chosen: "lr 0.1, damping 1"; "": every trial failed, or none is chosen yet */
    double validation;         /* its accuracy in the last round, of texts its loss; NaN: none */
    int64_t runs;              /* of the final comparison that did not fail */
    abar_compare_spread test_accuracy, test_loss;
} abar_tune_result;
int abar_tune_optimizer_count(const abar_tune *tune);
/* Good until the next call for the same optimizer. */
const abar_tune_result *abar_tune_result_of(const abar_tune *tune, int optimizer);

/* The content of tune.json; valid until the next call or destroy. */
abar_status abar_tune_report(abar_tune *tune, const char **json);

#ifdef __cplusplus
}
#endif
#endif
