/* How many trainings run side by side. A small net leaves most of a GPU idle. Steps of the pending methods are timed alone, in
 * turns, then two, four, ... at a time; the number with the highest throughput is used if it is clearly better than one.
 * The times alone are kept as the step times of the methods: times measured on a shared device cannot be compared. */
#include "data/data_impl.h"
#include "train/bench/bench_impl.h"
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 3           /* of timing each method alone */
#define STEPS_LEAST 50     /* of one round */
#define STEPS_MAX 200      /* the longest period between refreshes that a round covers */
#define ROUND_SECONDS 5.0  /* no second round after one that takes longer */
#define SHORT_SECONDS 60.0 /* a shorter comparison is not worth the measurement */
#define WORTH 1.05         /* least throughput relative to one alone; less is noise */
#define MEMORY_SHARE 0.9   /* of the free memory */

/* A net with its optimizer on made-up numbers, with its own context, so that it may run in any thread. */
typedef struct subject {
    abar_context *ctx;
    abar_bench *bench;
    int method;
    int64_t steps; /* of a round: whole periods, so that refreshes have their share */
    bool failed;
} subject;

typedef struct lab {
    abar_compare *c;
    subject subject[ABAR_COMPARE_JOBS_MAX];
    int n;
} lab;

static int least(int a, int b) { return a < b ? a : b; }

/* ---- subjects ---------------------------------------------------------------------------------------------------- */

static abar_status open_subject(lab *l, int method)
{
    subject *s = &l->subject[l->n];
    const abar_setup *setup = l->c->method[method].setup;
    const int64_t tinv = setup->method ? abar__curvature_config_of(setup)->tinv : STEPS_MAX;
    const int64_t period = tinv < STEPS_MAX ? tinv : 1;
    *s = (subject){.method = method, .steps = (STEPS_LEAST + period - 1) / period * period};
    ABAR_TRY(abar__context_beside(l->c->ctx, NULL, NULL, &s->ctx));
    abar_status status = abar__bench_open(s->ctx, setup, &s->bench);
    if (status < 0)
        abar_context_destroy(s->ctx);
    else
        l->n++;
    return status;
}

static void close_subjects(lab *l)
{
    for (; l->n > 0; l->n--) {
        abar_bench_release(l->subject[l->n - 1].bench);
        abar_context_destroy(l->subject[l->n - 1].ctx);
    }
}

static bool has_subject(const lab *l, int method)
{
    for (int i = 0; i < l->n; i++)
        if (l->subject[i].method == method) return true;
    return false;
}

/* The method of the k-th run that has not ended, or -1. */
static int pending_method(const abar_compare *c, int k)
{
    for (int i = 0; i < c->runs; i++)
        if (!c->record[i].run.ended && !c->record[i].elsewhere && k-- == 0) return c->record[i].run.method;
    return -1;
}

/* ---- alone ------------------------------------------------------------------------------------------------------- */

/* Sets ms_alone of every subject's method: the median over rounds. Subjects take turns, so that a change of the clock affects
 * all. A subject that fails has none; its run reports why. */
static void time_alone(lab *l)
{
    double ms[ABAR_COMPARE_JOBS_MAX][ROUNDS];
    int rounds = 0;
    for (double longest = 0.0; rounds < ROUNDS && longest < ROUND_SECONDS && !atomic_load(&l->c->stop); rounds++) {
        for (int i = 0; i < l->n; i++) {
            subject *s = &l->subject[i];
            double seconds = 0.0;
            if (rounds == 0) s->failed = abar__bench_steps(s->bench, 1, &seconds) < 0; /* warm */
            if (!s->failed) s->failed = abar__bench_steps(s->bench, s->steps, &seconds) < 0;
            ms[i][rounds] = 1e3 * seconds / (double)s->steps;
            longest = fmax(longest, seconds);
        }
    }
    for (int i = 0; i < l->n && rounds > 0; i++)
        l->c->method[l->subject[i].method].ms_alone = l->subject[i].failed ? NAN : abar__median(ms[i], rounds);
}

/* Times all methods whose ms_alone is unknown; in groups if they do not fit into memory together. */
static void time_rest_alone(lab *l)
{
    abar_compare *c = l->c;
    for (int m = 0; m < c->methods && !atomic_load(&c->stop);) {
        for (; m < c->methods && l->n < ABAR_COMPARE_JOBS_MAX; m++) {
            if (!isnan(c->method[m].ms_alone)) continue;
            if (open_subject(l, m) == ABAR_E_MEMORY && l->n > 0) break; /* with the next group */
        }
        time_alone(l);
        close_subjects(l);
    }
}

/* ---- side by side ------------------------------------------------------------------------------------------------ */

typedef struct race {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n, ready;
    bool open;
    atomic_int finished; /* subjects that have finished a round */
} race;

typedef struct runner {
    race *race;
    subject *subject;
    double rate; /* steps per second under load */
    abar_status status;
    pthread_t thread;
} runner;

static void wait_for_start(race *r)
{
    pthread_mutex_lock(&r->lock);
    r->ready++;
    pthread_cond_broadcast(&r->changed);
    while (!r->open) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static void start(race *r, int made)
{
    pthread_mutex_lock(&r->lock);
    while (r->ready < made) pthread_cond_wait(&r->changed, &r->lock);
    r->open = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* Runs rounds until every subject has finished one, so that all are under load all the time. */
static void *take_part(void *user)
{
    runner *r = user;
    double seconds = 0.0, all = 0.0;
    int64_t steps = 0;
    r->status = abar__bench_steps(r->subject->bench, 1, &seconds); /* warm */
    wait_for_start(r->race);
    do {
        if (r->status >= 0) r->status = abar__bench_steps(r->subject->bench, r->subject->steps, &seconds);
        if (steps == 0) atomic_fetch_add(&r->race->finished, 1);
        steps += r->subject->steps;
        all += seconds;
    } while (r->status >= 0 && atomic_load(&r->race->finished) < r->race->n);
    r->rate = all > 0.0 ? (double)steps / all : 0.0;
    return NULL;
}

/* The throughput of the first n subjects together, relative to one after the other; 0: they failed. */
static double time_together(lab *l, int n)
{
    runner runners[ABAR_COMPARE_JOBS_MAX];
    race all = {.n = n, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    double gain = 0.0;
    int made = 0;
    atomic_init(&all.finished, 0);
    for (; made < n; made++) {
        runners[made] = (runner){.race = &all, .subject = &l->subject[made]};
        if (pthread_create(&runners[made].thread, NULL, take_part, &runners[made]) != 0) break;
    }
    if (made < n) atomic_store(&all.finished, n); /* the started ones do not wait for the others */
    start(&all, made);
    for (int i = 0; i < made; i++) pthread_join(runners[i].thread, NULL);
    for (int i = 0; i < made; i++) {
        if (made < n || runners[i].status < 0) return 0.0;
        gain += 1e-3 * l->c->method[l->subject[i].method].ms_alone * runners[i].rate;
    }
    return isnan(gain) ? 0.0 : gain;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* Approximate steps of a run; 0: its data are missing, which the run reports. */
static double steps_of(const abar_compare *c)
{
    const abar_train_config *train = &c->method[0].setup->train;
    const int64_t epochs = abar__compare_epochs(c, 0);
    abar_dataset_probe probe = {.size = sizeof probe};
    if (abar_dataset_probe_name(c->ctx, train->data, &probe) < 0 || !probe.found) return 0.0;
    int64_t samples = probe.info.train;
    if (train->limit_train > 0 && train->limit_train < samples) samples = train->limit_train;
    samples -= abar__validation_count(samples, train->validation);
    if (probe.info.text && train->epoch_steps > 0) return (double)(epochs * train->epoch_steps);
    return (double)epochs * fmax(1.0, (double)samples / (double)(train->batch * abar__context_of(c->method[0].setup)));
}

/* Opens a subject for every method with pending runs, up to a number and while memory lasts. Methods that the device does not
 * support are left out; their runs report it. */
static void open_methods(lab *l, int most)
{
    for (int k = 0, m; (m = pending_method(l->c, k)) >= 0 && l->n < most; k++)
        if (!has_subject(l, m) && open_subject(l, m) == ABAR_E_MEMORY) break;
}

/* How many trainings fit into memory: the open subjects, and as many more of the largest as the free memory holds. */
static int fitting(const lab *l)
{
    abar_device *dev = abar__bench_device(l->subject[0].bench);
    abar_dataset_probe probe = {.size = sizeof probe};
    size_t most = 1, data = 0;
    if (!dev->ops->stream) return ABAR_COMPARE_JOBS_MAX; /* the host's memory is not limited here */
    for (int i = 0; i < l->n; i++) {
        const size_t held = abar_context_memory(l->subject[i].ctx).now;
        if (held > most) most = held;
    }
    if (abar_dataset_probe_name(l->c->ctx, l->c->method[0].setup->train.data, &probe) == ABAR_OK)
        data = (size_t)(probe.info.train + probe.info.test) *
               (probe.info.text ? 2u : (size_t)(probe.info.channels * probe.info.height * probe.info.width) + 4u);
    const double left = MEMORY_SHARE * (double)dev->ops->stream->memory_free(dev);
    const double more = floor(left / (double)(most + data));
    return l->n + (more < ABAR_COMPARE_JOBS_MAX ? (int)more : ABAR_COMPARE_JOBS_MAX);
}

/* Times two, four, ... together while the throughput grows, and reports the result. */
static int race_all(lab *l, int limit)
{
    abar_compare *c = l->c;
    char found[160] = "";
    const int methods = l->n;
    int best = 1;
    double most = 1.0;
    for (int n = 2; n <= limit && !atomic_load(&c->stop); n *= 2) {
        while (l->n < n && open_subject(l, l->subject[l->n - methods].method) == ABAR_OK) {} /* another run of each method */
        if (l->n < n) break;
        const double gain = time_together(l, n);
        const size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "%s%d: %.2f", used ? ", " : "", n, gain);
        const bool better = gain > 1.03 * most;
        if (gain > most) most = gain, best = n;
        if (!better) break;
    }
    if (best > 1 && most > WORTH) {
        abar__compare_news(c, "%d trainings side by side: together %.2f times as fast as one after the other (%s)", best, most,
                           found);
        return best;
    }
    abar__compare_news(c, "one training at a time: several side by side are not faster (%s)", found);
    return 1;
}

static int find_jobs(lab *l, int pending, double steps)
{
    abar_compare *c = l->c;
    const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN); /* each training occupies one */
    open_methods(l, 1);
    time_alone(l);
    if (l->n == 0 || l->subject[0].failed || atomic_load(&c->stop)) return 1; /* the runs report why */
    const double expected = 1e-3 * c->method[l->subject[0].method].ms_alone * steps * pending;
    if (expected < SHORT_SECONDS) {
        abar__compare_news(c, "one training at a time: all of them take about %.0f s", expected);
        return 1;
    }
    abar__compare_news(c, "timing steps alone and side by side, to choose how many trainings run at a time");
    open_methods(l, ABAR_COMPARE_JOBS_MAX);
    time_alone(l);
    const int limit = least(least(pending, cores), least(fitting(l), ABAR_COMPARE_JOBS_MAX));
    if (limit >= 2) return race_all(l, limit);
    abar__compare_news(c, "one training at a time: there is %s for more", cores < 2 ? "no core" : "no memory");
    return 1;
}

int abar__compare_measure_jobs(abar_compare *c, double steps)
{
    lab l = {.c = c};
    const int jobs = find_jobs(&l, abar__compare_pending(c), steps);
    close_subjects(&l);
    return jobs;
}

int abar__compare_choose_jobs(abar_compare *c)
{
    const int wanted = c->jobs_wanted, pending = abar__compare_pending(c);
    if (wanted == 1 || pending < 2 || abar_comm_size(c->comm) > 1 ||
        (wanted == 0 && !abar__is_cuda(&c->method[0].setup->train)))
        return 1;
    const double steps = steps_of(c);
    if (steps == 0.0) return 1;
    const int jobs = wanted > 0 ? least(wanted, pending) : abar__compare_measure_jobs(c, steps);
    if (jobs < 2) return 1;
    bool known = true;
    for (int m = 0; m < c->methods; m++) known = known && !isnan(c->method[m].ms_alone);
    if (wanted > 0)
        abar__compare_news(c, "%d trainings side by side%s", jobs, known ? "" : "; steps are timed first, each method alone");
    time_rest_alone(&(lab){.c = c});
    if (c->jobs < jobs) c->jobs = jobs;
    return jobs;
}
