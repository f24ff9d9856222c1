/* Sweeps: every optimizer with every value of some settings. The library behind `abar sweep`.
 *
 * A sweep is a comparison whose methods are its cells, an optimizer with a value of every setting that varies:
 * abar_compare_run_all, abar_compare_stop, abar_compare_jobs, abar_compare_part, abar_compare_run_of and abar_compare_report
 * serve it, too. Its folder:
 *     sweep.json      its configuration, every run that has ended, the best cells
 *     sweep.csv       one row per run: values, optimizer, seed, results, time
 *     sweep.svg       results over the values; of two settings a heat map per optimizer
 *     CELL-sSEED/     every run, as of a comparison */
#ifndef ABAR_SWEEP_H
#define ABAR_SWEEP_H

#include "abar/compare.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ABAR_SWEEP_AXES_MAX 8
#define ABAR_SWEEP_CELLS_MAX 4096
#define ABAR_SWEEP_VALUES_MAX 256 /* of one setting */

typedef struct abar_sweep_config {
    size_t size;                     /* sizeof(abar_sweep_config) */
    const char *out;                 /* the sweep's folder */
    const abar_setup *const *setups; /* one per optimizer; their out is ignored */
    const char *const *labels;       /* names of the optimizers; NULL: those of the setups */
    int optimizers;
    int64_t seeds; /* runs per cell */
    /* What varies: "NAME=a,b,c", "NAME=low:high:N" (N values, equally spaced) or "NAME=low:high:Nlog" (by logarithm). NAME is
     * any option of a setup but model, data, optim, seed, out and validation; LABEL.NAME is that of one optimizer alone, in
     * place of what NAME says. An optimizer that lacks an option does not vary in it. */
    const char *const *over;
    int n_over;
    bool one_at_a_time; /* each setting by itself, the others as the setups have them; else all combinations */
} abar_sweep_config;

abar_status abar_sweep_create(abar_context *ctx, const abar_sweep_config *config, const abar_compare_events *events,
                              abar_compare **out);
/* As abar_compare_load. */
abar_status abar_sweep_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                            abar_compare **out);

int abar_sweep_axis_count(const abar_compare *sweep);
const char *abar_sweep_axis_name(const abar_compare *sweep, int axis);
int abar_sweep_optimizer_count(const abar_compare *sweep);
const char *abar_sweep_optimizer_name(const abar_compare *sweep, int optimizer);
/* Of a cell, which is a method of the comparison: its optimizer, and its value of an axis; "": the optimizer has no such
 * option. */
int abar_sweep_cell_axis(const abar_compare *sweep, int cell); /* the only axis in which it varies; -1: all */
int abar_sweep_cell_optimizer(const abar_compare *sweep, int cell);
const char *abar_sweep_cell_value(const abar_compare *sweep, int cell, int axis);

/* The best cell of an optimizer. */
typedef struct abar_sweep_best {
    int cell;                           /* -1: no cell has ended without failures */
    abar_compare_spread accuracy, loss; /* what was chosen by: of the validation part, without one of the test part */
    /* of the same runs on the test part, once all runs of the sweep have ended; NaN before, and without a validation part */
    abar_compare_spread test_accuracy, test_loss;
} abar_sweep_best;

/* The cell whose mean accuracy is greatest (of texts: whose mean loss is least) among those whose runs have all ended and none
 * failed. Good until the next call for the same optimizer. */
const abar_sweep_best *abar_sweep_best_of(const abar_compare *sweep, int optimizer);

#ifdef __cplusplus
}
#endif
#endif
