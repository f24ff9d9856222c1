/* Internals of tuning.
 *
 *     tune.c          the plan: spaces, trials, rounds; creating and loading
 *     tune_run.c      rounds, who goes on, the final comparison
 *     tune_folder.c   tune.json and tune.md */
#ifndef ABAR_TUNE_IMPL_H
#define ABAR_TUNE_IMPL_H

#include "abar/tune.h"
#include "train/sweep/sweep_impl.h"

#define ABAR_TUNE_VALUES_MAX (ABAR_SWEEP_AXES_MAX * (ABAR_AXIS_NAME_MAX + ABAR_VALUE_MAX + 4))
#define ABAR_TUNE_SPACE_MAX (ABAR_SWEEP_AXES_MAX * 256)

/* The values of one trial: one per axis; "": the optimizer has no such option. */
typedef struct abar__trial {
    char value[ABAR_SWEEP_AXES_MAX][ABAR_VALUE_MAX];
} abar__trial;

typedef struct abar__tuned {
    char label[ABAR_COMPARE_LABEL_MAX];
    abar_setup *setup;
    abar__trial *trial;                     /* trials */
    int left[ABAR_TUNE_TRIALS_MAX], n_left; /* trials that go on, best first */
    abar__score score;                      /* of the first of them, in the last round */
    bool chosen;                            /* left[0] is the choice */
    int failures;
    int64_t epochs;
    double seconds;
    char space[ABAR_TUNE_SPACE_MAX], values[ABAR_TUNE_VALUES_MAX];
    abar_tune_result result;
} abar__tuned;

struct abar_tune {
    abar_context *ctx;
    abar_compare_events events;
    char dir[ABAR_OPTION_TEXT_MAX];
    int folder;          /* descriptor of its lock, or -1 */
    abar_status claimed; /* whether the folder could be made, of the comparison that runs */
    abar_comm *comm;     /* of abar_tune_ranks; NULL: one rank */
    int trials, jobs, optimizers, n_over, axes, rounds;
    int64_t seeds;
    abar__space *over; /* n_over */
    abar__sweep_axis axis[ABAR_SWEEP_AXES_MAX];
    abar_tune_round round[ABAR_TUNE_ROUNDS_MAX];
    abar__tuned optimizer[ABAR_COMPARE_METHODS_MAX];
    abar_compare *compare;         /* the current round or final comparison */
    abar_compare *_Atomic running; /* what abar_tune_stop stops */
    atomic_bool stop;
    atomic_int handlers; /* calls of abar_tune_stop in progress */
    int next;            /* the round to run; rounds: the final comparison */
    bool open;           /* it is the current comparison */
    bool complete;
    abar__text text;
};

/* Fills spaces, axes, trials and rounds, once optimizers, trials and seeds are known. over: n texts. */
abar_status abar__tune_plan(abar_tune *t, const char *const *over, int n);
/* The setup of a trial for so many epochs. Its warmup keeps its share of the run. */
abar_status abar__tune_setup(const abar_tune *t, int optimizer, int trial, int64_t epochs, abar_setup **out);
/* Refuses before the trials what the comparison after them would refuse. */
abar_status abar__tune_check_final(abar_tune *t);
abar_status abar__tune_make(abar_context *ctx, const abar_compare_events *events, abar_tune **out);

abar_status abar__tune_write(const abar_tune *t, abar__text *out);
abar_status abar__tune_save(abar_tune *t); /* tune.json and tune.md */
/* Reads setups, spaces, trials and seeds from tune.json, or from its text. */
abar_status abar__tune_load(abar_tune *t);
abar_status abar__tune_parse(abar_tune *t, const char *label, const char *json, size_t n);

#endif
