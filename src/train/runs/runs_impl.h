/* A visit of runs with the handle of each folder, for code that reads further files in it. */
#ifndef ABAR_RUNS_IMPL_H
#define ABAR_RUNS_IMPL_H

#include "abar/runs.h"

typedef struct abar__runs_what {
    bool all;   /* also the runs of comparisons and the like */
    bool brief; /* no file is read: of info path, kind and inside are set, and condition is running or stopped */
    bool (*other)(void *user, int folder, const char *path); /* called for folders that are neither; NULL: not */
} abar__runs_what;

/* folder is closed after the call. */
typedef bool (*abar__run_visitor)(void *user, int folder, const abar_run_info *info);

/* What abar_runs_visit does, from an open folder. label: how paths begin; "": paths are relative to the folder, whose own is
 * "". */
abar_status abar__runs_visit(abar_context *ctx, int folder, const char *label, abar__runs_what what, abar__run_visitor visit,
                             void *user);
/* Opens dir, or says what is wrong with it. */
abar_status abar__runs_open(abar_context *ctx, const char *dir, int *out);

#endif
