/* Internals of a comparison.
 *
 *     compare.c   methods x seeds: creating, loading, reading
 *     run.c       running, reporting, stopping: one worker per training that runs at the same time
 *     check.c     what is refused before the first run begins
 *     jobs.c      how many run side by side, and the time of a step alone
 *     md.c        compare.md
 *     target.c    when runs reached a target
 *     pairs.c     which methods are told apart; student.c: Student's t
 *     folder.c    compare.json and the runs' report.json: writing and reading
 *     table.c     mean and spread per method; the table as JSON; compare.csv
 *     curves.c    the curves: mean and band over the seeds, and their axes
 *     svg.c       compare.svg */
#ifndef ABAR_COMPARE_IMPL_H
#define ABAR_COMPARE_IMPL_H

#include "abar/compare.h"
#include "io/plot.h"
#include "train/train_impl.h"

#include <pthread.h>

struct cJSON;

#define ABAR_LABEL_MAX 160 /* bytes of a method's label, whatever the kind; the last one is zero */

/* What is made of methods and seeds: a comparison, or a sweep, whose methods are the cells of a grid. All of it runs, stops and
 * resumes by the same code; a kind has its own limits, files, and members of its JSON. */
typedef struct abar__compare_kind {
    const char *stem, *noun; /* of its files, "compare" for compare.json; and "comparison" */
    int methods_max;
    size_t label_max;                       /* at most ABAR_LABEL_MAX */
    const struct abar__compare_file *files; /* beside STEM.json; ended by a NULL name */
    /* NULL: there is nothing of its own. Members of "config", each followed by a comma; what read_config finds in them, once
     * the methods are known; members of the whole after "table", each after a comma. */
    abar_status (*write_config)(const abar_compare *c, abar__text *out);
    abar_status (*read_config)(abar_compare *c, const char *path, const struct cJSON *config);
    abar_status (*write_results)(const abar_compare *c, abar__text *out);
    abar_status (*finish)(abar_compare *c); /* when the last run has ended */
    void (*destroy)(abar_compare *c);       /* what own points to */
} abar__compare_kind;

typedef struct abar__compare_file {
    const char *name;
    abar_status (*write)(const abar_compare *c, abar__text *out);
} abar__compare_file;

extern const abar__compare_kind abar__comparison_kind;

/* Settings of the problem in which methods may differ: those of a sweep, and what was tuned. */
enum { ABAR_VARIED_MAX = 8, ABAR_VARIED_NAME_MAX = 64 };

typedef struct abar__compare_method {
    char label[ABAR_LABEL_MAX];
    abar_setup *setup;    /* its seed is the first one */
    int64_t seeds;        /* number of runs */
    double ms_alone;      /* per step, with the device to itself; NaN: not measured */
    double seconds;       /* total of its successful runs ... */
    int64_t ended;        /* ... and their number, for the time left */
    abar_compare_row row; /* what abar_compare_row_of returned last */
} abar__compare_method;

typedef struct abar__compare_record {
    abar_compare_run run; /* failure points into failure_text */
    abar__epoch *history; /* run.epochs entries */
    abar__text failure_text;
    bool taken;       /* a worker has it, or it has ended */
    bool elsewhere;   /* it belongs to another part: abar_compare_part */
    abar_progress at; /* epochs > 0: the run is in progress, at this point */
} abar__compare_record;

/* A result to reach. */
typedef enum abar__target_kind { ABAR_TARGET_NONE, ABAR_TARGET_ACCURACY, ABAR_TARGET_LOSS } abar__target_kind;
typedef struct abar__target {
    abar__target_kind kind;
    double value;
    char text[48]; /* as it was given */
} abar__target;

/* Executes one run at a time. */
typedef struct abar__compare_worker {
    abar_compare *c;
    pthread_t thread;
    abar_trainer *_Atomic trainer; /* what abar_compare_stop stops */
    bool left;                     /* no longer counted in working */
} abar__compare_worker;

struct abar_compare {
    abar_context *ctx;
    const abar__compare_kind *kind;
    void *own; /* of the kind */
    abar_compare_events events;
    char dir[ABAR_OPTION_TEXT_MAX];
    int folder; /* descriptor of its lock; -1: nothing is on disk yet */
    abar__compare_method *method;
    abar__compare_record *record; /* one per run, ordered by seed, then by method */
    int methods, runs;
    bool checked;                                       /* abar__compare_check has passed */
    char varied[ABAR_VARIED_MAX][ABAR_VARIED_NAME_MAX]; /* settings of the problem in which methods may differ */
    int n_varied;
    int64_t seeds;           /* of methods without a number of their own */
    abar_compare_pair *pair; /* one per pair of methods */
    int pairs;
    abar__target target;
    abar__text text;
    double wall_seconds; /* in abar_compare_run_all so far; a killed process counts up to its last finished run */
    double since;        /* start of the time not yet in wall_seconds */
    int jobs_wanted;     /* by abar_compare_jobs; 0: to be measured */
    int64_t jobs;        /* the most that were used so far */
    abar_comm *comm;     /* of abar_compare_ranks; NULL: one rank */
    atomic_bool stop;
    atomic_int handlers; /* calls of abar_compare_stop in progress: trainers must live until they return */
    abar__compare_worker worker[ABAR_COMPARE_JOBS_MAX];
    /* lock protects what follows and, while several workers run, everything above */
    pthread_mutex_t lock;
    pthread_cond_t built; /* signalled when building falls */
    int building;         /* trainers being created: other trainings pause, since kernels are chosen by timing then */
    int working, training;
    char warning[512];   /* the last one of any run */
    abar_status failure; /* of the comparison; its text is in ctx */
    const char *failed;  /* label of the run that caused it, or NULL */
};

/* Refuses what any run that has not ended would refuse as wrong: the network, the optimizer on it, the samples, --init. Lack of
 * memory and the like are left to the runs. */
abar_status abar__compare_check(abar_compare *c);

/* ---- on disk --------------------------------------------------------------------------------------------------- */

/* The folder of run i. */
abar_status abar__compare_run_dir(const abar_compare *c, int i, char path[ABAR_RUN_PATH_MAX]);
abar_status abar__compare_record_save(abar_compare *c, int i); /* report.json */
/* Reads every report.json. */
abar_status abar__compare_records_load(abar_compare *c);
/* Appends a run's report.json. */
abar_status abar__compare_record_write(const abar_compare *c, int i, abar__text *out);
/* Fills r from the text of a report.json; label names it in errors. */
abar_status abar__compare_record_parse(const abar_compare *c, const char *label, const char *json, size_t n,
                                       abar__compare_record *r);
/* The content of compare.json. */
abar_status abar__compare_write(const abar_compare *c, abar__text *out);
/* DIR/STEM.json of this kind. */
abar_status abar__compare_config_path(const abar_compare *c, char path[ABAR_RUN_PATH_MAX]);
/* Reads methods and seeds from compare.json, or from its text. */
abar_status abar__compare_config_load(abar_compare *c);
abar_status abar__compare_config_parse(abar_compare *c, const char *label, const char *json, size_t n);
/* A comparison without a folder, from the text of a compare.json: for tests and fuzzing. */
abar_status abar__compare_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_compare **out);
abar_status abar__compare_save(abar_compare *c); /* compare.json, .csv, .svg, .md */

/* ---- creating, for every kind ----------------------------------------------------------------------------------- */

/* An empty comparison of a kind; destroy it after a failure. */
abar_status abar__compare_make(abar_context *ctx, const abar__compare_kind *kind, const abar_compare_events *events,
                               abar_compare **out);
/* Allows methods to differ in a setting; before it is filled. */
void abar__compare_allow(abar_compare *c, const char *name);
/* Fills it from a config, whose size has been read, or from its folder. */
abar_status abar__compare_fill(abar_compare *c, const abar_compare_config *config);
abar_status abar__compare_fill_from_folder(abar_compare *c, const char *dir, int64_t seeds);
abar_status abar__compare_fill_from_text(abar_compare *c, const char *label, const char *json, size_t n);
/* Destroys a comparison whose creation failed. */
abar_status abar__compare_finish(abar_status status, abar_compare **out);

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Settings that follow from the number of ranks. batch: the least of all setups, of which micro is a part; begun: the settings
 * of the comparison in dir are fixed. */
abar_status abar__compare_settle(abar_context *ctx, abar_comm *comm, abar_setup *setup, int64_t batch, const char *dir,
                                 bool begun);
/* How many to run side by side. If more than one, ms_alone of every method is known afterwards. */
int abar__compare_choose_jobs(abar_compare *c);
/* The fastest number for runs of so many steps, by measurement, which is reported. */
int abar__compare_measure_jobs(abar_compare *c, double steps);
/* Reports news. */
void abar__compare_news(const abar_compare *c, const char *format, ...) ABAR_PRINTF(2, 3);
/* Factor from a run's seconds to those it would have taken alone; 1 if it was alone, or if that is unknown. */
double abar__compare_time_scale(const abar_compare *c, const abar_compare_run *run);
/* The most trainings that ran at a time. */
int64_t abar__compare_side_by_side(const abar_compare *c);
/* Fills the best numbers of a run from its history. */
void abar__compare_best(abar__compare_record *r);
int64_t abar__compare_seeds_most(const abar_compare *c);
int abar__compare_ended(const abar_compare *c);                  /* runs that have ended */
int abar__compare_pending(const abar_compare *c);                /* runs of this part that have not */
int64_t abar__compare_epochs(const abar_compare *c, int method); /* of a run that does not fail */

/* ---- results ---------------------------------------------------------------------------------------------------- */

/* Seconds of the first epochs. If trainings shared the device: scaled to the time alone, and the same for every epoch, since
 * differences between epochs come from the other trainings. */
double abar__compare_elapsed(const abar_compare *c, const abar__compare_record *r, int64_t epochs);
abar_status abar__target_parse(abar_context *ctx, const char *text, abar__target *out);
/* The first epoch, from 1, after which the target was reached; 0: never. */
int64_t abar__target_epoch(const abar__target *target, const abar__epoch *history, int64_t n);
/* Fills the members of a row that tell of the target. */
void abar__compare_reach(const abar_compare *c, int method, abar_compare_row *row);

abar_compare_spread abar__spread(const double *value, int64_t n);
abar_status abar__compare_table_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_csv_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_svg_write(const abar_compare *c, abar__text *out);
abar_status abar__compare_md_write(const abar_compare *c, abar__text *out);

/* ---- curves ---------------------------------------------------------------------------------------------------- */

/* The training loss; the test accuracy, of texts the test loss. */
enum { ABAR_CURVE_LOSS, ABAR_CURVE_TEST, ABAR_CURVE_KINDS };

typedef struct abar__curve_point {
    double epoch, seconds; /* since the start of the run, mean over the seeds */
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
/* The unit for the longest curve: 1 seconds, 2 minutes, 3 hours. */
int abar__axis_time_unit(const abar__curves *curves);
abar__axis abar__axis_time(const abar__curves *curves, double unit); /* unit: its seconds */
/* Covers the curves without outliers. scratch: one number per point. */
abar__axis abar__axis_values(const abar__curves *curves, int kind, double *scratch);
/* Covers n numbers without outliers, in the same way; what is not finite is ignored. The numbers are lost. */
abar__axis abar__axis_around(double *value, int64_t n, bool loss);

#endif
