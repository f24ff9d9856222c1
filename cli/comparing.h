/* What abar compare, abar sweep and abar tune share: flags, watching runs, stopping, and exit codes. */
#ifndef ABAR_COMPARING_H
#define ABAR_COMPARING_H

#include "cli.h"
#include "progress.h"
#include "ranks.h"

typedef struct comparing_flags {
    char optim[ABAR_OPTION_TEXT_MAX], out[ABAR_OPTION_TEXT_MAX], resume[ABAR_OPTION_TEXT_MAX], jobs[ABAR_OPTION_TEXT_MAX],
        target[ABAR_OPTION_TEXT_MAX], part[ABAR_OPTION_TEXT_MAX], over[ABAR_OPTION_TEXT_MAX];
    int64_t seeds, trials;
    bool one_at_a_time, json, quiet;
    double timeout;
    int64_t ranks;
    bool own_folder; /* not a flag: the folder was chosen here */
} comparing_flags;

/* Rows that the tables of these commands share; NOUN is a string. */
#define COMPARING_JOBS                                                                  \
    {                                                                                   \
        "jobs", ABAR_OPTION_TEXT, offsetof(comparing_flags, jobs), "auto", 0, 0, NULL,  \
            "trainings side by side on the device; auto: one on the CPU, on a GPU the " \
            "number that is fastest"                                                    \
    }
#define COMPARING_RANKS RANKS_ROWS(offsetof(comparing_flags, ranks), offsetof(comparing_flags, timeout))
#define COMPARING_OUT                                                            \
    {                                                                            \
        "out", ABAR_OPTION_TEXT, offsetof(comparing_flags, out), "", 0, 0, NULL, \
            "folder for results and runs; default: a new one in " RUNS "/"       \
    }
#define COMPARING_RESUME(NOUN)                                                                                                \
    {                                                                                                                         \
        "resume", ABAR_OPTION_TEXT, offsetof(comparing_flags, resume), "", 0, 0, NULL, "continue the " NOUN " in this folder" \
    }
#define COMPARING_PART                                                                            \
    {                                                                                             \
        "part", ABAR_OPTION_TEXT, offsetof(comparing_flags, part), "", 0, 0, NULL,                \
            "train the K-th of N parts of the runs, to join them later: copy the folders of all " \
            "parts into one, and --resume it"                                                     \
    }
#define COMPARING_JSON                                                                            \
    {                                                                                             \
        "json", ABAR_OPTION_BOOL, offsetof(comparing_flags, json), "false", 0, 0, NULL, JSON_HELP \
    }
#define COMPARING_QUIET                                                                                              \
    {                                                                                                                \
        "quiet", ABAR_OPTION_BOOL, offsetof(comparing_flags, quiet), "false", 0, 0, NULL, "print nothing but errors" \
    }

typedef struct watcher watcher;

/* What a command does by itself. load, create and set return exit codes, and are comparing_lead's alone. */
typedef struct comparing {
    const char *noun;               /* "comparison" */
    const char *reasons;            /* the file that tells why runs failed */
    int (*judge)(const watcher *w); /* the exit code when all has ended */
    void (*announce)(watcher *w);   /* before the first line about a run */
    void (*finish)(watcher *w);     /* when all has ended */
    int (*load)(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out); /* of --resume */
    int (*create)(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out);
    int (*set)(const cli *c, const comparing_flags *flags, abar_compare *compare); /* what is neither; NULL: nothing */
} comparing;

struct watcher {
    cli *c;
    const comparing *what;
    const abar_compare *compare;
    progress line;
    bool announced;
    int run;          /* the last one reported, ... */
    int64_t epoch;    /* ... and its epoch, from 0 */
    int running;      /* runs in progress */
    const char *jobs; /* value of --jobs */
    const char *part; /* value of --part */
    int label_width, run_width;
};

/* An abar_compare_events callback; user is the watcher. */
void comparing_watch(void *user, const abar_compare_progress *p);
/* Lets the watcher look at a comparison. */
void comparing_look(watcher *w, const abar_compare *compare);
/* Of a resumed one: how many runs are done, and why others failed. */
void comparing_announce_ended(const watcher *w);
/* "lr 0.05, momentum 0.9, value-stat per-head": the main settings of an optimizer, and those that are not the recipe's. */
void comparing_describe(cli *c, const abar_setup *setup, char *line, size_t size);
/* "Curves: DIR/compare.svg" for every row of {label, file}; ended by a NULL label. */
void comparing_say_files(FILE *out, const char *dir, const char *const (*file)[2]);

/* These return exit codes. */
int comparing_set_jobs(const cli *c, const comparing_flags *flags, const abar_comm *comm, int *jobs);
/* Runs a command on all ranks, which carry out every training of it together: lead is rank 0's part. */
int comparing_on_ranks(cli *c, abar_comm *comm, int (*lead)(cli *c, abar_comm *comm));
/* Rank 0's part of a command that runs one comparison: that of --resume, or a new one. */
int comparing_lead(cli *c, abar_comm *comm, const comparing *what);
/* The flags of a resumed one, which keeps its settings: refuses those that are not in allowed, and says which may be given. */
int comparing_read_resumed(cli *c, comparing_flags *flags, const comparing *what, const char *const *allowed, const char *may);
/* The setups that the flags describe, under equal conditions, and their labels. Without --out, where there is something to run,
 * the folder is runs/VERB-MODEL-DATA. */
int comparing_read_new(cli *c, comparing_flags *flags, const char *verb, bool runs, setup_list *out,
                       const char *labels[ABAR_COMPARE_METHODS_MAX]);
/* The stream for progress. */
FILE *comparing_stream(const comparing_flags *flags);
/* What compare says about failed runs: a script must see them, though there are results. */
int comparing_judge(const watcher *w);

#endif
