/* For tests of several ranks: runs in processes of their own, and what each of them has come to. */
#ifndef RANKS_SUPPORT_H
#define RANKS_SUPPORT_H

#include "train_runs.h"

#include <sys/wait.h>

/* A data set of the caller's images, 4 x 4, of 3 classes. */
static inline abar_status wrap_tiny_images(fixture *f, int64_t train, int64_t test, const void *train_images,
                                           const void *test_images, const int32_t *labels, bool floats, abar_dataset **out)
{
    const abar_dataset_images wrap = {.size = sizeof wrap,
                                      .channels = 1,
                                      .height = 4,
                                      .width = 4,
                                      .classes = 3,
                                      .train = train,
                                      .test = test,
                                      .train_images = train_images,
                                      .test_images = test_images,
                                      .train_labels = labels,
                                      .test_labels = labels,
                                      .floats = floats};
    return abar_dataset_wrap(f->ctx, &wrap, out);
}

/* What one rank does beside training. */
typedef struct rank_plan {
    void (*change)(fixture *f, abar_setup *setup, int rank); /* its setup; NULL: nothing */
    void (*watch)(abar_trainer *t, int rank, int64_t calls); /* after a step or an epoch; NULL: nothing */
    double timeout;                                          /* 0: 30 */
} rank_plan;

typedef struct rank_watch {
    const rank_plan *plan;
    abar_trainer *trainer;
    int rank;
    int64_t calls;
} rank_watch;

static inline void watch_rank(void *user, const abar_progress *p)
{
    rank_watch *w = user;
    (void)p;
    if (w->plan && w->plan->watch) w->plan->watch(w->trainer, w->rank, ++w->calls);
}

static inline void rank_file(const fixture *f, int rank, char path[PATH_MAX_TEST])
{
    snprintf(path, PATH_MAX_TEST, "%s/rank%d.txt", f->dir, rank);
}

/* Its status and its error, for the test to read. */
static inline void leave_word(const fixture *f, int rank, abar_status status)
{
    char path[PATH_MAX_TEST];
    rank_file(f, rank, path);
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%d %s\n", (int)status, status < 0 ? abar_context_error(f->ctx) : "");
    fclose(file);
}

static inline abar_status train_rank(fixture *f, abar_comm *comm, abar_setup *setup, bool resumes, const rank_plan *plan)
{
    rank_watch w = {.plan = plan, .rank = abar_comm_rank(comm)};
    abar_trainer_events events = {sizeof events, watch_rank, &w};
    abar_trainer *t;
    if (plan && plan->change) plan->change(f, setup, w.rank);
    abar_status status = abar_trainer_create_on(f->ctx, comm, setup, resumes, &events, &t);
    if (status < 0) return status;
    w.trainer = t;
    const uint64_t before = abar_context_memory(f->ctx).allocations;
    status = abar_trainer_run(t);
    const bool grows = abar_trainer_data(t)->streamed || t->setup->train.out[0]; /* buffers of images, and of files */
    if (status == ABAR_OK && !grows && abar_context_memory(f->ctx).allocations != before)
        status = abar__fail(f->ctx, ABAR_E_STATE, "a step allocated memory");
    abar_trainer_destroy(t);
    return status;
}

/* Trains on so many ranks in processes of their own, to the end. Returns the status of rank 0. */
static inline abar_status run_ranks(fixture *f, abar_setup *setup, int ranks, bool resumes, const rank_plan *plan)
{
    char path[PATH_MAX_TEST], line[1024] = "";
    int status = 0;
    for (int r = 0; r < ranks; r++) {
        rank_file(f, r, path);
        remove(path);
    }
    const pid_t child = fork_test();
    if (child == 0) {
        abar_comm *comm;
        const abar_comm_config config = {.size = sizeof config, .ranks = ranks, .timeout = plan ? plan->timeout : 0.0};
        abar_status result = abar_comm_open(f->ctx, &config, &comm);
        if (result < 0) _exit(99);
        result = train_rank(f, comm, setup, resumes, plan);
        leave_word(f, abar_comm_rank(comm), result);
        abar_comm_close(comm);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("rank 0 ended with %d", status);
    rank_file(f, 0, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    (void)abar__fail(f->ctx, (abar_status)atoi(line), "%s", strchr(line, ' ') ? strchr(line, ' ') + 1 : "");
    return (abar_status)atoi(line);
}

#define need_ranks(f, setup, ranks, resumes, plan)                                                                        \
    do {                                                                                                                  \
        if (run_ranks(f, setup, ranks, resumes, plan) < 0) fail_msg("%d ranks: %s", ranks, abar_context_error((f)->ctx)); \
    } while (0)

/* Trains a setup on each number of ranks, and compares all that the runs leave. label names the setup in failures. */
static inline void check_with(fixture *f, abar_setup *setup, const char *label, const int *ranks, const rank_plan *plan)
{
    char first[64], name[64];
    const int run = f->runs++;
    for (int i = 0; ranks[i]; i++) {
        snprintf(name, sizeof name, "run%d-on-%d", run, ranks[i]);
        set_out(f, setup, name);
        if (run_ranks(f, setup, ranks[i], false, plan) < 0)
            fail_msg("%s on %d ranks: %s", label, ranks[i], abar_context_error(f->ctx));
        if (i == 0) {
            snprintf(first, sizeof first, "%s", name);
            continue;
        }
        print_message("%s on %d ranks\n", label, ranks[i]);
        assert_same_runs(f, first, name);
    }
    abar_setup_destroy(f->ctx, setup);
}

static inline void check_same(fixture *f, abar_setup *setup, const char *label, const int *ranks)
{
    check_with(f, setup, label, ranks, NULL);
}

#endif
