/* What is in a tree of folders: runs, comparisons, sweeps and tunings, and how far each is. The library behind `abar runs`. It
 * only reads. */
#ifndef ABAR_RUNS_H
#define ABAR_RUNS_H

#include "abar/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum abar_run_kind { ABAR_KIND_RUN, ABAR_KIND_COMPARISON, ABAR_KIND_SWEEP, ABAR_KIND_TUNING } abar_run_kind;
typedef enum abar_run_condition {
    ABAR_RUN_RUNNING,  /* a process holds its lock */
    ABAR_RUN_FINISHED, /* all epochs, or all runs, are done */
    ABAR_RUN_STOPPED,  /* neither: it can be resumed */
    ABAR_RUN_DAMAGED   /* its files cannot be read */
} abar_run_condition;

typedef struct abar_run_info {
    const char *path;
    abar_run_kind kind;
    abar_run_condition condition;
    const char *problem;              /* why it is damaged, or why the run failed; NULL: neither */
    const char *model, *data, *optim; /* optim: of comparisons a list; "" where it cannot be read */
    int64_t epochs, epochs_wanted;    /* of a run: done, and in all */
    int runs, runs_wanted, failures;  /* of comparisons and the like: ended, in all, failed; of a tuning 0 */
    bool validation, text;            /* the numbers below are of a validation part; the model reads text */
    double accuracy, loss;            /* of a run after its last epoch, of others the best mean; NaN: none */
    bool inside;                      /* it belongs to the comparison, sweep or tuning listed before it */
} abar_run_info;

/* Called for every finding, folders in the order of their names. info is good until it returns. false ends the visit. */
typedef bool (*abar_run_visitor)(void *user, const abar_run_info *info);

/* Visits dir and what is below it, without following symbolic links. all: also the runs of comparisons and the like. A folder
 * that cannot be opened is passed over, but dir itself must exist. ABAR_E_MEMORY ends the visit. */
abar_status abar_runs_visit(abar_context *ctx, const char *dir, bool all, abar_run_visitor visit, void *user);

#ifdef __cplusplus
}
#endif
#endif
