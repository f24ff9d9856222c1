/* Running a comparison. Each worker takes the next pending run, trains it with a context and device of its own, and takes the
 * next. A single worker is the calling thread, several are threads of their own. Shared data is protected by the lock. */
#include "train/compare/compare_impl.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- progress --------------------------------------------------------------------------------------------------- */

static bool is_training(const abar__compare_record *r) { return r->at.epochs > 0; }

/* The sum of what is left of the runs in progress and, for each pending run, the mean of its method's finished runs, or of all
 * runs finished or in progress if there is none; divided among the workers. */
static double seconds_left(const abar_compare *c)
{
    double sum = 0.0, total = 0.0, longest = 0.0;
    int64_t known = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar_progress *at = &c->record[i].at;
        if (!is_training(&c->record[i])) continue;
        sum += at->seconds + at->seconds_left;
        total += at->seconds_left;
        longest = fmax(longest, at->seconds_left);
        known++;
    }
    for (int m = 0; m < c->methods; m++) {
        sum += c->method[m].seconds;
        known += c->method[m].ended;
    }
    const double usual = known > 0 ? sum / (double)known : 0.0;
    for (int i = 0; i < c->runs; i++) {
        const abar__compare_record *r = &c->record[i];
        const abar__compare_method *method = &c->method[r->run.method];
        if (r->run.ended || r->elsewhere || is_training(r)) continue;
        total += method->ended > 0 ? method->seconds / (double)method->ended : usual;
    }
    return fmax(longest, total / (double)(c->working > 1 ? c->working : 1));
}

static double share_done(const abar_compare *c)
{
    double done = 0.0;
    int runs = 0; /* of this part */
    for (int i = 0; i < c->runs; i++) {
        const abar__compare_record *r = &c->record[i];
        const abar_progress *at = &r->at;
        runs += r->run.ended || !r->elsewhere;
        if (r->run.ended)
            done += 1.0;
        else if (is_training(r))
            done += ((double)at->epoch + (at->epoch_done ? 1.0 : (double)at->step / (double)at->steps)) /
                    (double)abar__compare_epochs(c, r->run.method);
    }
    return done / (double)runs;
}

/* Reports the progress of run i, or its result. */
static void report(const abar_compare *c, int i, const abar_progress *training, const abar_compare_run *result)
{
    abar_compare_running running[ABAR_COMPARE_JOBS_MAX];
    int n = 0;
    if (!c->events.progress) return;
    for (int k = 0; k < c->runs; k++) {
        const abar__compare_record *r = &c->record[k];
        if (is_training(r) && n < ABAR_COMPARE_JOBS_MAX)
            running[n++] = (abar_compare_running){r->run.label, r->run.seed, r->at.epoch, r->at.epochs};
    }
    const abar_compare_progress p = {.run = i,
                                     .runs = c->runs,
                                     .ended = abar__compare_ended(c),
                                     .label = c->record[i].run.label,
                                     .seed = c->record[i].run.seed,
                                     .training = training,
                                     .result = result,
                                     .done = share_done(c),
                                     .seconds_left = seconds_left(c),
                                     .running = running,
                                     .n_running = n};
    c->events.progress(c->events.user, &p);
}

void abar__compare_news(const abar_compare *c, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->events.progress) c->events.progress(c->events.user, &(abar_compare_progress){.runs = c->runs, .news = text});
}

/* A run and its worker. */
typedef struct job {
    abar__compare_worker *worker;
    abar_context *ctx;
    int i;
    bool resumed;  /* its folder existed before */
    bool began;    /* counted in training */
    bool put_back; /* found no memory: left to another worker */
} job;

/* After a step or epoch. Waits while another trainer is created, since kernels are chosen by timing then. */
static void watch(void *user, const abar_progress *p)
{
    const job *j = user;
    abar_compare *c = j->worker->c;
    pthread_mutex_lock(&c->lock);
    c->record[j->i].at = *p;
    report(c, j->i, p, NULL);
    while (c->building > 0 && !atomic_load(&c->stop)) pthread_cond_wait(&c->built, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* A warning that every run repeats, for example about an unwritable cache, is passed on once. */
static void pass_log(void *user, abar_log_level level, const char *text)
{
    abar_compare *c = user;
    pthread_mutex_lock(&c->lock);
    if (level != ABAR_LOG_WARNING || strcmp(text, c->warning) != 0) abar__log(c->ctx, level, "%s", text);
    if (level == ABAR_LOG_WARNING) snprintf(c->warning, sizeof c->warning, "%s", text);
    pthread_mutex_unlock(&c->lock);
}

/* ---- how a run ends --------------------------------------------------------------------------------------------- */

void abar__compare_best(abar__compare_record *r)
{
    abar_compare_run *run = &r->run;
    run->best_accuracy = run->best_loss = NAN;
    run->best_accuracy_epoch = run->best_loss_epoch = 0;
    if (run->epochs == 0) return;
    const int64_t accuracy = abar__best_accuracy_epoch(r->history, run->epochs);
    const int64_t loss = abar__best_loss_epoch(r->history, run->epochs);
    run->best_accuracy = r->history[accuracy].test_accuracy;
    run->best_loss = r->history[loss].test_loss;
    run->best_accuracy_epoch = accuracy + 1;
    run->best_loss_epoch = loss + 1;
}

/* The results of a run that ended; t NULL: it never started. */
static abar_status take_numbers(abar_compare *c, abar__compare_record *r, const abar_trainer *t)
{
    abar_compare_run *run = &r->run;
    run->test_accuracy = run->test_loss = run->train_accuracy = run->train_loss = run->ms_per_step = NAN;
    abar__compare_best(r);
    if (!t) return ABAR_OK;
    const double steps = (double)(t->at.epoch * t->steps + t->at.step);
    const size_t bytes = (size_t)t->at.epoch * sizeof *r->history;
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    r->history = memory;
    if (bytes) memcpy(r->history, t->history, bytes);
    run->epochs = t->at.epoch;
    abar__compare_best(r);
    if (run->epochs > 0) {
        const abar__epoch *last = &r->history[run->epochs - 1];
        run->test_accuracy = last->test_accuracy;
        run->test_loss = last->test_loss;
        run->train_accuracy = last->train_accuracy;
        run->train_loss = last->train_loss;
    }
    run->seconds = t->at.seconds;
    run->steps_per_epoch = (double)t->steps;
    if (steps > 0) run->ms_per_step = 1e3 * t->at.step_seconds / steps;
    run->optimizer_bytes = (int64_t)abar_optim_state_bytes(t->optim);
    run->skipped_steps = t->at.skipped;
    return ABAR_OK;
}

/* Locks the folder, which the first run has created. From now on the comparison can be resumed. */
static abar_status claim(abar_compare *c)
{
    if (c->folder >= 0) return ABAR_OK;
    ABAR_TRY(abar__folder_lock(c->ctx, c->dir, &c->folder));
    return abar__compare_save(c);
}

/* The folder of the run may be missing: it may have failed before it started. */
static abar_status save_report(abar_compare *c, int i)
{
    char dir[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__compare_run_dir(c, i, dir));
    ABAR_TRY(abar__folder_make(c->ctx, dir));
    ABAR_TRY(claim(c));
    return abar__compare_record_save(c, i);
}

static abar_status end_run(const job *j, const abar_trainer *t, abar_status status)
{
    abar_compare *c = j->worker->c;
    abar__compare_record *r = &c->record[j->i];
    ABAR_TRY(take_numbers(c, r, t));
    if (status < 0) {
        const char *why = abar_context_error(j->ctx);
        ABAR_TRY(abar__text_append(c->ctx, &r->failure_text, why, strlen(why)));
        r->run.failure = r->failure_text.data;
        r->run.retry = status == ABAR_E_MEMORY;
    }
    r->run.ended = true;
    r->at = (abar_progress){0};
    ABAR_TRY(save_report(c, j->i));
    if (status >= 0) {
        c->method[r->run.method].seconds += r->run.seconds;
        c->method[r->run.method].ended++;
    }
    c->wall_seconds += abar__seconds() - c->since;
    c->since = abar__seconds();
    ABAR_TRY(abar__compare_save(c));
    report(c, j->i, NULL, &r->run);
    return ABAR_OK;
}

/* Failures that are results of the method. All others end the comparison. */
static bool is_result(abar_status status)
{
    return status == ABAR_E_NUMERIC || status == ABAR_E_MEMORY || status == ABAR_E_UNSUPPORTED;
}

/* ---- one run ---------------------------------------------------------------------------------------------------- */

/* The setup of a run: its method's, with its own seed and folder. */
static abar_status setup_of(const job *j, abar_setup **out)
{
    const abar_compare *c = j->worker->c;
    const abar_compare_run *run = &c->record[j->i].run;
    char dir[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__compare_run_dir(c, j->i, dir));
    ABAR_TRY(abar__setup_copy(j->ctx, c->method[run->method].setup, out));
    (*out)->train.seed = run->seed;
    abar_status status = abar_options_set(j->ctx, abar_train_options(), &(*out)->train, "out", dir);
    if (status < 0) abar_setup_destroy(j->ctx, *out);
    return status;
}

/* Counts a training that starts, and updates side_by_side of all that share the device. A resumed one may have shared it
 * before. The lock is held. */
static abar_status begin(job *j, const abar_trainer *t)
{
    abar_compare *c = j->worker->c;
    abar__compare_record *r = &c->record[j->i];
    c->training++;
    j->began = true;
    r->at = (abar_progress){.epoch = t->at.epoch, .epochs = t->setup->train.epochs, .step = t->at.step, .steps = t->steps};
    if (j->resumed && c->jobs > 1) r->run.side_by_side = 2;
    for (int i = 0; i < c->runs; i++) {
        abar_compare_run *other = &c->record[i].run;
        if (is_training(&c->record[i]) && other->side_by_side < c->training) other->side_by_side = c->training;
    }
    abar_status status = claim(c);
    if (status < 0) abar__fail(j->ctx, status, "%s", abar_context_error(c->ctx));
    return status;
}

static abar_status train(job *j, abar_trainer *t)
{
    abar_compare *c = j->worker->c;
    pthread_mutex_lock(&c->lock);
    abar_status status = begin(j, t);
    pthread_mutex_unlock(&c->lock);
    ABAR_TRY(abar_ranks_agree(j->ctx, c->comm, status, NULL));
    atomic_store(&j->worker->trainer, t);
    if (atomic_load(&c->stop)) abar_trainer_stop(t); /* stopped before the trainer existed */
    status = abar_trainer_run(t);
    if (status == ABAR_STOPPED) atomic_store(&c->stop, true); /* another rank may have wanted it */
    atomic_store(&j->worker->trainer, NULL);
    while (atomic_load(&c->handlers) > 0) {}
    return status;
}

/* Creates the trainer while other trainings pause. */
static abar_status make_trainer(job *j, const abar_setup *setup, abar_trainer **out)
{
    abar_compare *c = j->worker->c;
    const abar_trainer_events events = {sizeof events, watch, j};
    const size_t base = abar_context_memory(j->ctx).now;
    pthread_mutex_lock(&c->lock);
    while (c->building > 0) pthread_cond_wait(&c->built, &c->lock);
    c->building++;
    pthread_mutex_unlock(&c->lock);
    j->resumed = abar__path_exists(setup->train.out);
    abar_status status = abar__ranks_lead(j->ctx, c->comm, setup, j->resumed);
    if (status == ABAR_OK) status = abar_trainer_create_on(j->ctx, c->comm, setup, j->resumed, &events, out);
    pthread_mutex_lock(&c->lock);
    c->record[j->i].run.memory_bytes = (int64_t)(abar_context_memory(j->ctx).now - base); /* training allocates nothing more */
    c->building--;
    pthread_cond_broadcast(&c->built);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* Whether a run that found no memory is left to the other workers; then this worker ends. */
static bool put_back(job *j, abar_status status)
{
    abar_compare *c = j->worker->c;
    if (status != ABAR_E_MEMORY || c->working == 1) return false;
    c->record[j->i].taken = false;
    abar__compare_news(c, "no memory for %d trainings side by side, continuing with %d", c->working, c->working - 1);
    c->working--; /* at once: if all find no memory, one worker must remain */
    j->worker->left = true;
    return true;
}

/* After training, or if it could not start. The lock is held. */
static abar_status settle(job *j, const abar_trainer *t, abar_status status)
{
    abar_compare *c = j->worker->c;
    if (j->began) c->training--;
    j->put_back = put_back(j, status);
    if (!j->put_back && (status == ABAR_OK || is_result(status))) {
        status = end_run(j, t, status);
        if (status < 0) abar__fail(j->ctx, status, "%s", abar_context_error(c->ctx));
    }
    if (status != ABAR_STOPPED) c->record[j->i].at = (abar_progress){0}; /* a stopped run still counts as begun */
    return status;
}

static abar_status run_one(job *j)
{
    abar_compare *c = j->worker->c;
    abar_setup *setup;
    abar_trainer *t = NULL;
    ABAR_TRY(setup_of(j, &setup));
    abar_status status = make_trainer(j, setup, &t);
    if (status >= 0) status = train(j, t);
    if (status == ABAR_E_PEER) abar__fail(j->ctx, status, "%s", abar_context_error(j->worker->c->ctx)); /* the comm's */
    pthread_mutex_lock(&c->lock);
    status = settle(j, t, status);
    pthread_mutex_unlock(&c->lock);
    abar_trainer_destroy(t);
    abar_setup_destroy(j->ctx, setup);
    return status;
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

/* The next pending run, or -1. */
static int take(abar_compare *c)
{
    if (atomic_load(&c->stop)) return -1;
    for (int i = 0; i < c->runs; i++) {
        if (c->record[i].taken) continue;
        c->record[i].taken = true;
        return i;
    }
    return -1;
}

static void stop_all(abar_compare *c)
{
    atomic_fetch_add(&c->handlers, 1);
    atomic_store(&c->stop, true);
    for (int i = 0; i < ABAR_COMPARE_JOBS_MAX; i++) {
        abar_trainer *t = atomic_load(&c->worker[i].trainer);
        if (t) abar_trainer_stop(t);
    }
    atomic_fetch_sub(&c->handlers, 1);
}

/* A failure that is not a result: the other workers stop and save. After ABAR_E_BACKEND they continue, since the failure may be
 * this run's alone. */
static void fail(abar_compare *c, abar_status status, const char *why, int i)
{
    const abar_compare_run *run = &c->record[i].run;
    pthread_mutex_lock(&c->lock);
    if (c->failure == ABAR_OK) {
        c->failure = abar__fail(c->ctx, status, "%s", why);
        c->failed = run->label;
    }
    if (status != ABAR_E_BACKEND)
        stop_all(c);
    else if (c->runs > 1)
        abar__compare_news(c, "%s, seed %lld, could not continue (%s); the other runs do", run->label, (long long)run->seed,
                           why);
    pthread_mutex_unlock(&c->lock);
}

/* Returns whether the worker may take another run. */
static bool run_next(abar__compare_worker *w, int i)
{
    job j = {.worker = w, .i = i};
    abar_status status = abar__context_beside(w->c->ctx, pass_log, w->c, &j.ctx);
    if (status < 0) {
        fail(w->c, status, "memory: could not get any more, close something", i);
        return false;
    }
    status = run_one(&j);
    if (status < 0 && !j.put_back) fail(w->c, status, abar_context_error(j.ctx), i);
    abar_context_destroy(j.ctx);
    return status == ABAR_OK || status == ABAR_E_BACKEND;
}

static void *work(void *user)
{
    abar__compare_worker *w = user;
    abar_compare *c = w->c;
    bool more = true;
    pthread_mutex_lock(&c->lock);
    w->left = false;
    for (int i; more && (i = take(c)) >= 0;) {
        pthread_mutex_unlock(&c->lock);
        more = run_next(w, i);
        pthread_mutex_lock(&c->lock);
    }
    if (!w->left) c->working--;
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals are left to the calling thread. If the system refuses a thread, there are fewer workers. */
static void work_side_by_side(abar_compare *c, int jobs)
{
    sigset_t all, before;
    int made = 0;
    sigfillset(&all);
    pthread_mutex_lock(&c->lock);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; made < jobs && pthread_create(&c->worker[made].thread, NULL, work, &c->worker[made]) == 0; made++) {}
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->working = made > 0 ? made : 1;
    pthread_mutex_unlock(&c->lock);
    if (made == 0) work(&c->worker[0]);
    for (int i = 0; i < made; i++) pthread_join(c->worker[i].thread, NULL);
}

static void run_pending(abar_compare *c)
{
    const int jobs = abar__compare_choose_jobs(c);
    c->working = jobs;
    if (jobs > 1)
        work_side_by_side(c, jobs);
    else
        work(&c->worker[0]);
    c->wall_seconds += abar__seconds() - c->since;
}

/* Resets a failed run that is to be tried again. Its report stays until it is replaced, so that a comparison killed meanwhile
 * tries again, too. */
static void forget_failure(abar_compare *c, abar__compare_record *r)
{
    abar__free(c->ctx, r->history, (size_t)r->run.epochs * sizeof *r->history);
    abar__text_free(c->ctx, &r->failure_text);
    r->history = NULL;
    r->run = (abar_compare_run){.label = r->run.label,
                                .method = r->run.method,
                                .seed = r->run.seed,
                                .side_by_side = r->run.side_by_side,
                                .steps_per_epoch = NAN};
}

abar_status abar_compare_run_all(abar_compare *c)
{
    if (abar__compare_ended(c) < c->runs) ABAR_TRY(abar__own_check(c->ctx, c->method[0].setup)); /* all have the same */
    for (int i = 0; i < c->runs; i++) {
        if (c->record[i].run.retry) forget_failure(c, &c->record[i]);
        c->record[i].taken = c->record[i].run.ended || c->record[i].elsewhere;
        c->record[i].at = (abar_progress){0};
    }
    c->failure = ABAR_OK;
    c->failed = NULL;
    ABAR_TRY(abar__compare_check(c));
    c->since = abar__seconds();
    if (abar__compare_pending(c) > 0) run_pending(c);
    const bool stopped = atomic_exchange(&c->stop, false) && abar__compare_pending(c) > 0;
    if (c->failure < 0) return c->failure;
    if (abar__compare_ended(c) == c->runs && c->kind->finish) ABAR_TRY(c->kind->finish(c));
    if (c->folder >= 0) ABAR_TRY(abar__compare_save(c)); /* else it was stopped before anything was on disk */
    return stopped ? ABAR_STOPPED : ABAR_OK;
}

abar_status abar_compare_part(abar_compare *c, int part, int parts)
{
    if (parts < 1 || part < 1 || part > parts)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "--part %d/%d: not a part, give K/N with K from 1 to N, as in 1/3", part,
                          parts);
    for (int i = 0; i < c->runs; i++) c->record[i].elsewhere = i % parts != part - 1;
    return ABAR_OK;
}

abar_status abar__compare_settle(abar_context *ctx, abar_comm *comm, abar_setup *setup, int64_t batch, const char *dir,
                                 bool begun)
{
    const int ranks = abar_comm_size(comm);
    abar_train_config *train = &setup->train;
    if (setup->model == &abar__own_model || abar__is_own_data(setup))
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "ranks: a network or data of the program's own is compared on one rank");
    if (begun && train->micro == 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: was begun on one rank without --micro, continue it on one rank", dir);
    if (train->micro == 0 && train->accumulate == 1 && batch % ranks == 0) train->micro = batch / ranks;
    return abar__ranks_settle(ctx, comm, setup);
}

abar_status abar_compare_ranks(abar_compare *c, abar_comm *comm)
{
    if (abar_comm_size(comm) == 1) return ABAR_OK;
    int64_t batch = c->method[0].setup->train.batch;
    for (int m = 1; m < c->methods; m++)
        if (c->method[m].setup->train.batch < batch) batch = c->method[m].setup->train.batch;
    for (int m = 0; m < c->methods; m++)
        ABAR_TRY(abar__compare_settle(c->ctx, comm, c->method[m].setup, batch, c->dir, c->folder >= 0));
    c->comm = comm;
    return ABAR_OK;
}

const char *abar_compare_failed(const abar_compare *c) { return c->failed; }

void abar_compare_stop(abar_compare *c) { stop_all(c); }

void abar_compare_jobs(abar_compare *c, int jobs)
{
    c->jobs_wanted = jobs < 0 ? 0 : jobs < ABAR_COMPARE_JOBS_MAX ? jobs : ABAR_COMPARE_JOBS_MAX;
}
