/* Shared by the tests of comparisons: creating one, stopping it, and reading its files. */
#ifndef COMPARE_SUPPORT_H
#define COMPARE_SUPPORT_H

#include "train_support.h"
#include "train/compare/compare_impl.h"
#include "train/train_json.h"

#define METHODS_MAX 4
#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

/* ---- creating --------------------------------------------------------------------------------------------------- */

/* Setups for "sgd adamw ..." with the same options, and how to compare them in a folder of the fixture. */
typedef struct plan {
    char dir[PATH_MAX_TEST];
    abar_setup *setup[METHODS_MAX];
    abar_compare_config config;
} plan;

static inline void make_plan_of(fixture *f, plan *p, const char *model, const char *folder, const char *optims, int64_t seeds,
                                const char *options)
{
    char names[128], *rest = names;
    *p = (plan){.config = {.size = sizeof p->config, .seeds = seeds}};
    path_in(f, folder, p->dir);
    snprintf(names, sizeof names, "%s", optims);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
        p->setup[p->config.methods++] = make_setup(f, model, name, options);
    p->config.out = p->dir;
    p->config.setups = (const abar_setup *const *)p->setup;
}

static inline void make_plan(fixture *f, plan *p, const char *folder, const char *optims, int64_t seeds, const char *options)
{
    make_plan_of(f, p, "mlp", folder, optims, seeds, options);
}

static inline void drop_plan(fixture *f, plan *p)
{
    for (int m = 0; m < p->config.methods; m++) abar_setup_destroy(f->ctx, p->setup[m]);
}

/* Stops after so many progress reports. Trainings side by side report from their own threads, where nothing may be asserted:
 * what is wrong is counted. */
typedef struct watcher {
    abar_compare *compare;
    int jobs; /* side by side; 0: the default */
    int64_t calls, stop_at;
    double done, left; /* as last reported */
    int ended, wrong, most_running;
    char news[1024]; /* all of it */
} watcher;

static inline void watch(void *user, const abar_compare_progress *p)
{
    watcher *w = user;
    if (p->news) {
        size_t used = strlen(w->news);
        snprintf(w->news + used, sizeof w->news - used, "%s\n", p->news);
        return;
    }
    w->wrong += (p->training != NULL) == (p->result != NULL);
    w->wrong += p->done < w->done || !(p->seconds_left >= 0.0);
    w->wrong += p->n_running < (p->training != NULL) || p->ended > p->runs;
    w->done = p->done;
    w->left = p->seconds_left;
    w->ended += p->result != NULL;
    if (p->n_running > w->most_running) w->most_running = p->n_running;
    if (++w->calls == w->stop_at) abar_compare_stop(w->compare);
}

static inline abar_status run_watched(watcher *w)
{
    abar_compare_jobs(w->compare, w->jobs);
    abar_status status = abar_compare_run_all(w->compare);
    assert_int_equal(w->wrong, 0);
    return status;
}

/* Prints the error of a failure, which the caller may not have expected. */
static inline abar_status told(const fixture *f, abar_status status)
{
    if (status < 0) print_message("ERROR: %s\n", abar_context_error(f->ctx));
    return status;
}

static inline abar_status run_new(fixture *f, const plan *p, watcher *w)
{
    abar_compare_events events = {sizeof events, watch, w};
    need(f, abar_compare_create(f->ctx, &p->config, &events, &w->compare));
    return told(f, run_watched(w));
}

static inline abar_status run_on(fixture *f, const char *dir, int64_t seeds, watcher *w)
{
    abar_compare_events events = {sizeof events, watch, w};
    need(f, abar_compare_load(f->ctx, dir, seeds, &events, &w->compare));
    return told(f, run_watched(w));
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static inline char *read_text(const char *dir, const char *name)
{
    char path[PATH_MAX_TEST + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s: cannot be read", path);
    char *text = calloc(1, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    assert_true(n > 0);
    fclose(file);
    return text;
}

static inline int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

static inline bool is_time(const char *key)
{
    static const char *const times[] = {"seconds",      "seconds_std",   "ms_per_step",       "ms_per_step_std",
                                        "time_ratio",   "epoch_seconds", "epoch_seconds_std", "ms_alone",
                                        "wall_seconds", "jobs",          "side_by_side",      NULL};
    for (const char *const *t = times; key && *t; t++)
        if (strcmp(key, *t) == 0) return true;
    return false;
}

/* Times become null. */
static inline void forget_times(cJSON *item)
{
    for (cJSON *child = item->child; child; child = child->next) {
        if (is_time(child->string)) {
            child->type = cJSON_NULL;
            continue;
        }
        forget_times(child);
    }
}

/* compare.json of a folder, without what differs from run to run. */
static inline char *numbers_of(const char *dir)
{
    char *text = read_text(dir, "compare.json");
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    forget_times(root);
    char *print = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    free(text);
    return print;
}

static inline void assert_same_comparison(const char *a, const char *b)
{
    char *x = numbers_of(a), *y = numbers_of(b);
    size_t same = 0;
    while (x[same] && x[same] == y[same]) same++;
    if (x[same] || y[same]) fail_msg("%s and %s differ: ... %.60s, ... %.60s", a, b, x + same, y + same);
    free(x);
    free(y);
}

/* ---- no memory -------------------------------------------------------------------------------------------------- */

static inline void *alloc_until(void *user, size_t bytes, size_t align)
{
    int64_t *left = user;
    return (*left)-- == 0 ? NULL : aligned_alloc(align, abar__round_up(bytes, align));
}

static inline void release(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

/* Lets each allocation of a call fail in turn. Returns how many there are. */
static inline int64_t fail_every_allocation(abar_status (*call)(abar_context *ctx, const char *dir), const char *dir)
{
    abar_status status = ABAR_E_MEMORY;
    int64_t n = 1; /* 0 would be the context itself */
    for (; status != ABAR_OK; n++) {
        int64_t left = n;
        abar_context_config config = {.size = sizeof config, .allocator = {alloc_until, release, &left}};
        abar_context *ctx;
        assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
        status = call(ctx, dir);
        assert_true(status == ABAR_OK || status == ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        abar_context_destroy(ctx);
    }
    return n;
}

#endif
