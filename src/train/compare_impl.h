/* The inside of a comparison.
 *
 *     compare.c           methods x seeds: making, looking
 *     compare_run.c       running, watching, stopping: one worker per training that runs at the same time
 *     compare_jobs.c      how many run side by side, and what a step takes alone
 *     compare_md.c        compare.md
 *     compare_folder.c    compare.json and the runs' report.json: writing and reading back
 *     compare_table.c     mean and spread per method; the table as JSON; compare.csv
 *     compare_curves.c    the curves to draw: mean and band over the seeds, and the scales they are drawn on
 *     compare_svg.c       compare.svg */
#ifndef ABAR_COMPARE_IMPL_H
#define ABAR_COMPARE_IMPL_H

#include "abar/compare.h"
#include "io/plot.h"
#include "train/train_impl.h"

#include <pthread.h>

typedef struct abar__compare_method {
    char label[ABAR_COMPARE_LABEL_MAX];
    abar_setup *setup;    /* its seed is the first one */
    int64_t seeds;        /* runs of it */
    double ms_alone;      /* of a step, with the device to itself; NaN: not measured */
    double seconds;       /* of its runs that ended without failure ... */
    int64_t ended;        /* ... and how many these are, for the time left */
    abar_compare_row row; /* what abar_compare_row_of returned last */
} abar__compare_method;

typedef struct abar__compare_record {
    abar_compare_run run; /* failure points into failure_text */
    abar__epoch *history; /* run.epochs of them */
    abar__text failure_text;
    bool taken;       /* a worker has it, or it has ended */
    abar_progress at; /* epochs > 0: it is training, and stands here */
} abar__compare_record;

/* One training at a time. */
typedef struct abar__compare_worker {
    abar_compare *c;
    pthread_t thread;
    abar_trainer *_Atomic trainer; /* what abar_compare_stop stops */
    bool left;                     /* no longer counted among those that work */
} abar__compare_worker;

struct abar_compare {
    abar_context *ctx;
    abar_compare_events events;
    char dir[ABAR_OPTION_TEXT_MAX];
    int folder; /* its lock; -1: nothing on disk yet */
    abar__compare_method *method;
    abar__compare_record *record; /* runs of them, seed by seed */
    int methods, runs;
    int64_t seeds; /* of methods that have no number of their own */
    abar__text text;
    double wall_seconds; /* of abar_compare_run_all so far, without what a killed one did after its last run */
    double since;        /* when it began */
    int jobs_wish;       /* 0: to be found out */
    int64_t jobs;        /* the most that were chosen so far */
    atomic_bool stop;
    atomic_int handlers; /* calls of abar_compare_stop in progress: trainers must live until they return */
    abar__compare_worker worker[ABAR_COMPARE_JOBS_MAX];
    /* lock: over all below, and over everything above while several workers run */
    pthread_mutex_t lock;
    pthread_cond_t built; /* building is over */
    int building;         /* trainers being made: others wait, so that what is measured then is measured in peace */
    int working, training;
    char warning[512];   /* the last one that a run gave */
    abar_status failure; /* of the whole comparison; its text is in ctx */
    const char *failed;  /* label of the run that it is of, or NULL */
};

/* ---- on disk --------------------------------------------------------------------------------------------------- */

/* The folder of run i. */
abar_status abar__compare_run_dir(const abar_compare *c, int i, char path[ABAR_RUN_PATH_MAX]);
/* {"label": ..., "history": [...]} */
abar_status abar__compare_record_write(const abar_compare *c, int i, abar__text *out);
abar_status abar__compare_record_save(abar_compare *c, int i); /* report.json */
/* Reads every report.json there is. */
abar_status abar__compare_records_load(abar_compare *c);
/* All of compare.json. */
abar_status abar__compare_write(const abar_compare *c, abar__text *out);
/* Methods and seeds out of compare.json. */
abar_status abar__compare_config_load(abar_compare *c);
abar_status abar__compare_save(abar_compare *c); /* compare.json, .csv, .svg, .md */

/* ---- running --------------------------------------------------------------------------------------------------- */

/* How many to run side by side; where it is more than one, what a step of each method takes alone is known afterwards. */
int abar__compare_choose_jobs(abar_compare *c);
/* The number that gets most done, of runs of so many steps; what was found is told. */
int abar__compare_measure_jobs(abar_compare *c, double steps);
/* Tells whoever watches. */
void abar__compare_news(const abar_compare *c, const char *format, ...) ABAR_PRINTF(2, 3);
/* What a run's seconds are multiplied by to be those it would have taken alone: 1 where it was, or nobody knows. */
double abar__compare_time_scale(const abar_compare *c, const abar_compare_run *run);
/* The most trainings that ran at the same time. */
int64_t abar__compare_side_by_side(const abar_compare *c);
/* Fills the best numbers of a run from its history. */
void abar__compare_best(abar__compare_record *r);
int64_t abar__compare_seeds_most(const abar_compare *c);
int abar__compare_ended(const abar_compare *c);      /* runs that have */
int64_t abar__compare_epochs(const abar_compare *c); /* of every run, unless it fails */

/* ---- what they show -------------------------------------------------------------------------------------------- */

abar_compare_spread abar__spread(const double *value, int64_t n);
abar_status abar__compare_table_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_csv_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_svg_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_md_write(const abar_compare *c, abar__text *out);

/* ---- curves ---------------------------------------------------------------------------------------------------- */

/* The loss while training; of the test part what counts: accuracy, for texts the loss. */
enum { ABAR_CURVE_LOSS, ABAR_CURVE_TEST, ABAR_CURVE_KINDS };

typedef struct abar__curve_point {
    double epoch, seconds;                                                        /* since the run began, mean over the seeds */
    double mean[ABAR_CURVE_KINDS], low[ABAR_CURVE_KINDS], high[ABAR_CURVE_KINDS]; /* band: one std; of two runs, both */
} abar__curve_point;

/* One method's mean, or one run that failed. */
typedef struct abar__curve {
    int method;
    bool failed;
    int64_t runs, n;
    abar__curve_point *point;
} abar__curve;

typedef struct abar__curves {
    bool text;
    abar__curve *curve;
    int count;
    size_t curve_bytes, point_bytes;
    abar__curve_point *points;
} abar__curves;

abar_status abar__curves_make(const abar_compare *c, abar__curves *out);
void abar__curves_free(abar_context *ctx, abar__curves *curves);


abar__axis abar__axis_epochs(const abar__curves *curves);
/* 1: seconds suit the longest curve, 2: minutes, 3: hours. */
int abar__axis_time_unit(const abar__curves *curves);
abar__axis abar__axis_time(const abar__curves *curves, double unit); /* unit: in seconds */
/* Wide enough for the curves, but not for those that run away from the others. scratch: one number per point. */
abar__axis abar__axis_values(const abar__curves *curves, int kind, double *scratch);

#endif
