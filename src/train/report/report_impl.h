/* What `abar report` and `abar serve` show, gathered from folders as JSON. */
#ifndef ABAR_REPORT_IMPL_H
#define ABAR_REPORT_IMPL_H

#include "abar/report.h"
#include "train/runs/runs_impl.h"
#include "train/train_json.h"

typedef struct abar__report {
    abar_context *ctx;
    abar__text runs, groups, pictures, texts; /* JSON, items separated by commas */
    char group[ABAR_RUN_PATH_MAX];            /* of the runs that are listed next */
    size_t picture_bytes;
    abar_report_counts counts;
    abar_status status;
} abar__report;

/* ---- report_json.c: members of objects ----------------------------------------------------------------------------- */

abar_status abar__report_put(abar_context *ctx, abar__text *out, const char *text);
/* "name": with a comma before it unless it is the first of an object. */
abar_status abar__report_name(abar_context *ctx, abar__text *out, const char *name);
abar_status abar__report_string(abar_context *ctx, abar__text *out, const char *name, const char *value); /* NULL: null */
abar_status abar__report_number(abar_context *ctx, abar__text *out, const char *name, double value);
abar_status abar__report_flag(abar_context *ctx, abar__text *out, const char *name, bool value);
abar_status abar__report_value(abar_context *ctx, abar__text *out, const char *name, const cJSON *json); /* NULL: null */
/* A number in so many digits, whole ones in all; null if it is not finite. */
abar_status abar__report_real(abar_context *ctx, abar__text *out, double value, int digits);
abar_status abar__report_base64(abar_context *ctx, abar__text *out, const void *bytes, size_t n);
/* Appends JSON in a form that is harmless inside of any HTML element, in valid UTF-8. */
abar_status abar__report_harmless(abar_context *ctx, abar__text *out, const abar__text *json);
double abar__report_member(const cJSON *object, const char *name); /* NaN: no such number */

/* ---- report_log.c: the numbers of a log.jsonl ---------------------------------------------------------------------- */

/* Appends the members "epochs", "steps", "layers", ... of an object. fd: of the file; -1: there is none. growing: its last line
 * may be half written. *damaged: lines that are not what a run writes. */
abar_status abar__report_log(abar_context *ctx, int fd, bool growing, abar__text *out, int64_t *damaged);

/* ---- report.c ------------------------------------------------------------------------------------------------------ */

/* Adds what is in an open folder and below it. label: how the paths begin (abar__runs_visit). */
abar_status abar__report_gather(abar__report *r, int folder, const char *label);
/* All that was gathered, as one harmless JSON object. stamp: of the state of the folder, about which the page then asks its
 * server; NULL: there is none. */
abar_status abar__report_data(abar__report *r, const char *stamp, abar__text *out);
/* The page around this object. live: it may ask its own server. */
abar_status abar__report_page(abar_context *ctx, bool live, const abar__text *data, abar__text *out);
void abar__report_free(abar__report *r);

#endif
