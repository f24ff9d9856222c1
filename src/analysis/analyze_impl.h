/* The inside of `abar analyze`. */
#ifndef ABAR_ANALYSIS_ANALYZE_IMPL_H
#define ABAR_ANALYSIS_ANALYZE_IMPL_H

#include "abar/analyze.h"
#include "train/train_impl.h"

#include <stdatomic.h>

struct abar_analysis {
    abar_context *ctx;
    const char *name;
    const abar_setup *setup;
    const char *const *weights;
    int n_weights;
    const void *options;
    abar_analysis_events events;
    double started;
    atomic_bool stop;
    abar__text text, json;
};

/* Tells the watcher; ABAR_STOPPED when somebody asked for the end. */
abar_status abar__analysis_tell(abar_analysis *a, const char *phase, int64_t done, int64_t all);

typedef struct abar__theory_settings {
    char data[ABAR_OPTION_TEXT_MAX], out[ABAR_OPTION_TEXT_MAX];
    int64_t points, dim, width, steps, seed;
    double damping, rate, delta;
    bool one_point, uniform_signs;
} abar__theory_settings;
extern const abar_option abar__theory_options[];
abar_status abar__analyze_theory(abar_analysis *a);

typedef struct abar__complexity_settings {
    char methods[ABAR_OPTION_TEXT_MAX], device[ABAR_OPTION_TEXT_MAX], out[ABAR_OPTION_TEXT_MAX];
    int64_t largest, batch, repeat, threads;
} abar__complexity_settings;
extern const abar_option abar__complexity_options[];
abar_status abar__analyze_complexity(abar_analysis *a);

#endif
