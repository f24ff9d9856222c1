#include "data/images/crew.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define TICK_NANOSECONDS 100000000

typedef struct crew {
    const abar__crew_job *job;
    atomic_llong next, done;
    atomic_bool halt;
    atomic_int number; /* of the next thread */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int working; /* threads, under the lock */
} crew;

static bool halted(const crew *c) { return atomic_load(&c->halt) || (c->job->stop && atomic_load(c->job->stop)); }

/* One item; false: none is left. */
static bool take(crew *c, int worker)
{
    if (halted(c)) return false;
    const int64_t i = atomic_fetch_add(&c->next, 1);
    if (i >= c->job->count) return false;
    if (!c->job->work(c->job->user, worker, i)) atomic_store(&c->halt, true);
    atomic_fetch_add(&c->done, 1);
    return true;
}

static void *work(void *user)
{
    crew *c = user;
    const int worker = atomic_fetch_add(&c->number, 1);
    while (take(c, worker)) {}
    pthread_mutex_lock(&c->lock);
    c->working--;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void report(crew *c)
{
    if (c->job->progress) c->job->progress(c->job->user, atomic_load(&c->done));
}

/* Waits for the threads, and reports ten times a second. */
static void watch(crew *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->working > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_NANOSECONDS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&c->ended, &c->lock, &until);
        pthread_mutex_unlock(&c->lock);
        report(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Signals belong to the caller's thread. Returns how many threads were started. */
static int start(crew *c, pthread_t threads[ABAR_CREW_MAX])
{
    int n = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->working = c->job->threads;
    while (n < c->job->threads && pthread_create(&threads[n], NULL, work, c) == 0) n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&c->lock);
    c->working -= c->job->threads - n;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void abar__crew_run(const abar__crew_job *job)
{
    pthread_t threads[ABAR_CREW_MAX];
    crew c = {.job = job, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    const int n = start(&c, threads);
    watch(&c);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    if (n == 0) /* the system gives us no thread */
        while (take(&c, 0)) report(&c);
    report(&c);
    pthread_cond_destroy(&c.ended);
    pthread_mutex_destroy(&c.lock);
}

int abar__crew_threads(int asked)
{
    const long n = asked > 0 ? asked : sysconf(_SC_NPROCESSORS_ONLN); /* -1: not known */
    return n < 1 ? 1 : n < ABAR_CREW_MAX ? (int)n : ABAR_CREW_MAX;
}
