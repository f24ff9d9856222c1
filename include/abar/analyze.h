/* The analyses of a trained network: what `abar analyze` does, as figures (SVG) and tables (CSV, JSON). docs/analysis.md. */
#ifndef ABAR_ANALYZE_H
#define ABAR_ANALYZE_H

#include "abar/train.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *const *abar_analysis_names(void);       /* "spectra", "alignment", ..., "all"; NULL-terminated */
const char *abar_analysis_about(const char *name);  /* one line; NULL: no such analysis */
bool abar_analysis_needs_network(const char *name); /* false: theory and complexity, which need no checkpoint */
/* The settings of an analysis: a table and the size of the struct it describes. */
const abar_option *abar_analysis_options(const char *name);
size_t abar_analysis_config_size(const char *name);

typedef struct abar_analysis abar_analysis;

typedef struct abar_analysis_progress {
    const char *phase; /* "epoch 12", ... */
    int64_t done, all; /* batches, or other pieces of work */
    double seconds;    /* since run was called */
} abar_analysis_progress;

typedef struct abar_analysis_events {
    size_t size;                                                   /* sizeof(abar_analysis_events) */
    void (*progress)(void *user, const abar_analysis_progress *p); /* NULL: silent */
    void *user;
    void (*announce)(void *user, const char *text); /* what it will take, before it takes it: one line. NULL: silent */
} abar_analysis_events;

/* setup: of the run the weights belong to; NULL where no network is needed. weights: safetensors files in the order of
 * training; "" stands for the initial weights. options: abar_analysis_config_size bytes. Files go to the folder `out` of the
 * options, which is made. */
abar_status abar_analysis_create(abar_context *ctx, const char *name, const abar_setup *setup, const char *const *weights,
                                 int n_weights, const void *options, const abar_analysis_events *events, abar_analysis **out);
/* ABAR_STOPPED after abar_analysis_stop; every file that is there then is whole. */
abar_status abar_analysis_run(abar_analysis *a);
void abar_analysis_stop(abar_analysis *a);              /* from a signal handler or another thread */
const char *abar_analysis_text(const abar_analysis *a); /* for people, after run */
const char *abar_analysis_json(const abar_analysis *a); /* one object */
void abar_analysis_destroy(abar_analysis *a);

#ifdef __cplusplus
}
#endif
#endif
