/* One HTML page about runs: curves, comparisons, curvature by layer, settings, pictures. The library behind `abar report`. */
#ifndef ABAR_REPORT_H
#define ABAR_REPORT_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_report_counts {
    size_t size; /* sizeof(abar_report_counts) */
    int runs, groups, pictures;
    int64_t damaged_lines; /* lines of logs that are not JSON objects and were left out */
    size_t bytes;          /* of the page */
} abar_report_counts;

/* Writes a page about what is in the n folders and below them (abar_runs_visit) to path, atomically. The page needs no other
 * file and no network. ABAR_E_NOT_FOUND: there are no runs. counts may be NULL. */
abar_status abar_report_write(abar_context *ctx, const char *const *folders, int n, const char *path,
                              abar_report_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
