/* For tests of whole runs: stopping them, going on, and comparing what they leave behind, bit for bit. */
#ifndef TRAIN_RUNS_H
#define TRAIN_RUNS_H

#include "train_support.h"

#include <signal.h>

/* Stops (or dies) after so many progress reports; reports also come at the end of epochs. */
typedef struct watcher {
    abar_trainer *trainer;
    int64_t calls, stop_at;
    bool die;
} watcher;

static inline void watch(void *user, const abar_progress *p)
{
    watcher *w = user;
    (void)p;
    if (++w->calls != w->stop_at) return;
    if (w->die) raise(SIGKILL);
    abar_trainer_stop(w->trainer);
}

static inline abar_status run_until(fixture *f, const abar_setup *setup, bool resume, int64_t stop_at)
{
    watcher w = {.stop_at = stop_at};
    abar_trainer_events events = {sizeof events, watch, &w};
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, resume, &events, &t));
    w.trainer = t;
    abar_status status = abar_trainer_run(t);
    abar_trainer_destroy(t);
    return status;
}

/* What abar train --resume does. */
static inline abar_status resume(fixture *f, const char *name, int64_t stop_at)
{
    char dir[PATH_MAX_TEST];
    abar_setup *setup;
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    abar_status status = run_until(f, setup, true, stop_at);
    abar_setup_destroy(f->ctx, setup);
    return status;
}

static inline abar__safetensors *open_in(fixture *f, const char *dir, const char *name)
{
    char path[PATH_MAX_TEST];
    abar__safetensors *file;
    snprintf(path, sizeof path, "%s/%s/%s", f->dir, dir, name);
    need(f, abar__safetensors_open(f->ctx, path, &file));
    return file;
}

static inline void assert_same_tensors(fixture *f, const char *a, const char *b, const char *name)
{
    abar__safetensors *x = open_in(f, a, name), *y = open_in(f, b, name);
    assert_int_equal(abar__safetensors_count(x), abar__safetensors_count(y));
    assert_true(abar__safetensors_count(x) > 0);
    for (int i = 0; i < abar__safetensors_count(x); i++) {
        abar_tensor p, q;
        const char *tensor = abar__safetensors_get(x, i, &p);
        assert_true(abar__safetensors_find(y, tensor, &q));
        assert_int_equal(p.dtype, q.dtype);
        if (memcmp(p.data, q.data, abar_tensor_bytes(&p)) != 0) fail_msg("%s differs", tensor);
    }
    abar__safetensors_close(x);
    abar__safetensors_close(y);
}

static inline abar__epoch *history_of(fixture *f, const char *dir, abar__run_state *at)
{
    abar__safetensors *file = open_in(f, dir, "state.safetensors");
    const char *progress = abar__safetensors_metadata(file, "progress");
    abar__epoch *history;
    need(f, abar__run_state_parse(f->ctx, dir, progress, strlen(progress), at, &history));
    abar__safetensors_close(file);
    return history;
}

static inline void assert_same_runs(fixture *f, const char *a, const char *b)
{
    abar__run_state at, bt;
    assert_same_tensors(f, a, b, "state.safetensors");
    assert_same_tensors(f, a, b, "model.safetensors");
    abar__epoch *x = history_of(f, a, &at), *y = history_of(f, b, &bt);
    assert_int_equal(at.epoch, bt.epoch);
    for (int64_t i = 0; i < at.epoch; i++) {
        x[i].seconds = y[i].seconds = 0.0;
        assert_memory_equal(&x[i], &y[i], sizeof *x);
    }
    abar__free(f->ctx, x, (size_t)at.epoch * sizeof *x);
    abar__free(f->ctx, y, (size_t)bt.epoch * sizeof *y);
}

static inline int lines_in(fixture *f, const char *dir, const char *with)
{
    char path[PATH_MAX_TEST], line[1024];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s/log.jsonl", f->dir, dir);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) n += strstr(line, with) != NULL;
    if (file) fclose(file);
    return n;
}

static inline void check_stop_and_resume(fixture *f, const char *model, const char *optim, const char *options)
{
    static const int64_t stops[] = {1, 5, 6, 9}; /* mid-epoch, before the evaluation, after it, in the second epoch */
    abar_setup *setup = make_setup(f, model, optim, options);
    set(f, setup, "augment", "true");
    char whole[64], parts[96];
    snprintf(whole, sizeof whole, "%s-%s-%d", model, optim, f->runs++);
    set_out(f, setup, whole);
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        snprintf(parts, sizeof parts, "%s-%d", whole, (int)stops[i]);
        set_out(f, setup, parts);
        assert_int_equal(run_until(f, setup, false, stops[i]), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 3), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 0), ABAR_OK);
        assert_same_runs(f, whole, parts);
        assert_int_equal(lines_in(f, parts, "\"test_acc\""), setup->train.epochs);
    }
    abar_setup_destroy(f->ctx, setup);
}

#endif
