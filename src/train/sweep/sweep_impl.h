/* Internals of sweeps.
 *
 *     space.c        "lr=0.01:1:5log": what a setting may be, as values or as a range
 *     sweep.c        the cells: creating, loading, sweep.json
 *     sweep_best.c   the best cells, on the test part, too; sweep.csv
 *     sweep_svg.c    sweep.svg */
#ifndef ABAR_SWEEP_IMPL_H
#define ABAR_SWEEP_IMPL_H

#include "abar/sweep.h"
#include "train/compare/compare_impl.h"

#define ABAR_AXIS_NAME_MAX 64
#define ABAR_VALUE_MAX 64

/* ---- what varies ------------------------------------------------------------------------------------------------- */

/* What a setting may be, as the user wrote it. */
typedef struct abar__space {
    char label[ABAR_COMPARE_LABEL_MAX]; /* of the optimizer it is for; "": all */
    char name[ABAR_AXIS_NAME_MAX];
    char text[ABAR_OPTION_TEXT_MAX]; /* after the = */
    bool range, logarithmic;
    double low, high; /* of a range */
    int values;       /* of a list or a range; 0: any number of the range */
    char value[ABAR_SWEEP_VALUES_MAX][ABAR_VALUE_MAX];
} abar__space;

/* labels: of the optimizers. any: a range may have no number of values. */
abar_status abar__space_parse(abar_context *ctx, const char *text, const char *const *labels, int n, bool any,
                              abar__space *out);
/* The number at a place from 0 to 1 of a range, in a few digits. */
double abar__space_at(const abar__space *space, double place);
void abar__space_write(const abar_option *option, double number, char value[ABAR_VALUE_MAX]);
/* The option of a setup that abar_setup_set would set; NULL: it has none. */
const abar_option *abar__setup_option(const abar_setup *setup, const char *name, const void **config);
/* Which of n spaces is for this option of this optimizer: that of its label before that for all; -1: none. */
int abar__space_for(const abar__space *space, int n, const char *label, const char *name);
/* A setting that varies. */
typedef struct abar__sweep_axis {
    char name[ABAR_AXIS_NAME_MAX];
    bool logarithmic; /* its values were given so */
} abar__sweep_axis;

/* The optimizers that spaces are for. */
typedef struct abar__subjects {
    const abar_setup *const *setups;
    const char *const *labels;
    int n;
} abar__subjects;

/* Parses and checks n texts, and rounds their values. any: as in abar__space_parse. */
abar_status abar__spaces_read(abar_context *ctx, const char *const *over, int n, const abar__subjects *of, bool any,
                              abar__space *out);
/* One axis per name. */
abar_status abar__spaces_axes(abar_context *ctx, const abar__space *space, int n, abar__sweep_axis axis[ABAR_SWEEP_AXES_MAX],
                              int *axes);

/* ---- cells ------------------------------------------------------------------------------------------------------- */

typedef struct abar__sweep_cell {
    int optimizer;
    int axis;                                        /* the only one that varies; -1: all do */
    char value[ABAR_SWEEP_AXES_MAX][ABAR_VALUE_MAX]; /* "": the optimizer has no such option */
} abar__sweep_cell;

/* A run on the test part. */
typedef struct abar__sweep_test {
    double accuracy, loss; /* NaN: not tested */
} abar__sweep_test;

/* abar_compare.own of a sweep. */
typedef struct abar__sweep {
    int axes, optimizers, cells;
    abar__sweep_axis axis[ABAR_SWEEP_AXES_MAX];
    char optimizer[ABAR_COMPARE_METHODS_MAX][ABAR_COMPARE_LABEL_MAX];
    bool grid;              /* every combination of the values of an optimizer is a cell */
    bool untested;          /* the best cells are not measured on the test part */
    abar__sweep_cell *cell; /* one per method of the comparison */
    abar__sweep_test *test; /* one per run */
    int runs;
    abar_sweep_best best[ABAR_COMPARE_METHODS_MAX];
} abar__sweep;

extern const abar__compare_kind abar__sweep_kind;

static inline abar__sweep *abar__sweep_of(const abar_compare *c) { return c->own; }

/* A sweep of given cells. config: one setup per cell; its labels are made here. sweep is moved into the result, also after a
 * failure. */
abar_status abar__sweep_make(abar_context *ctx, const abar_compare_config *config, abar__sweep *sweep,
                             const abar_compare_events *events, abar_compare **out);
/* Space for cells in an empty sweep. */
abar_status abar__sweep_alloc(abar_context *ctx, abar__sweep *sweep, int cells);
void abar__sweep_free(abar_context *ctx, abar__sweep *sweep);
/* Fills the value of every axis from the setup. */
abar_status abar__sweep_read_values(abar_context *ctx, const abar__sweep *sweep, const abar_setup *setup,
                                    abar__sweep_cell *cell);
/* A sweep without a folder, from the text of a sweep.json: for tests and fuzzing. */
abar_status abar__sweep_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_compare **out);

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The mean results of a cell: of images the accuracy decides, of equal ones the loss, of texts the loss alone. NaN: a run has
 * not ended, or failed. */
typedef struct abar__score {
    double accuracy, loss; /* accuracy: 0 of texts */
} abar__score;
abar__score abar__sweep_score(const abar_compare *c, int cell);
bool abar__score_is_better(abar__score a, abar__score b); /* false if a is NaN; a number is better than NaN */
abar_status abar__sweep_test_best(abar_compare *c);
abar_status abar__sweep_tests_load(abar_compare *c);
abar_status abar__sweep_best_write(const abar_compare *c, abar__text *out);
abar_status abar__sweep_csv_write(const abar_compare *c, abar__text *out);
abar_status abar__sweep_svg_write(const abar_compare *c, abar__text *out);

#endif
