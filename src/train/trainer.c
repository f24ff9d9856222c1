/* A whole training run: epochs of steps, an evaluation after each, progress for whoever watches, and stopping and resuming
 * as if nothing had happened. */
#include "train/train_impl.h"

#include <math.h>
#include <string.h>

#define WAITING_AFTER 20 /* steps: before them the share of waiting says nothing */
#define GIVE_UP_AFTER 10 /* skipped steps in a row (methods.md section 9) */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- making --------------------------------------------------------------------------------------------------- */

/* Training data; of several ranks this one's share of every batch. */
static abar_loader_config share_request(const abar_trainer *t)
{
    abar_loader_config request = abar__loader_request(t->setup, false);
    if (abar_comm_size(t->comm) == 1) return request;
    request.rows = t->setup->train.batch / abar_comm_size(t->comm);
    request.first_row = abar_comm_rank(t->comm) * request.rows;
    return request;
}

static abar_status open_data(abar_trainer *t)
{
    const abar_train_config *train = &t->setup->train;
    ABAR_TRY(abar__data_open(t->ctx, t->setup, false, NULL, &t->data));
    const abar_dataset_info *info = abar_dataset_info_of(t->data);
    if (!info->text) ABAR_TRY(abar__batch_check(t->ctx, train, info));
    abar_loader_config request = share_request(t);
    ABAR_TRY(abar_loader_create(t->ctx, t->data, &request, &t->train));
    request = abar__loader_request(t->setup, true);
    ABAR_TRY(abar_loader_create(t->ctx, t->data, &request, &t->test));
    t->steps = abar_loader_batches(t->train);
    return abar__class_names_write(t->ctx, t->data, &t->classes);
}

static abar_status make_feeds(abar_trainer *t, int64_t micro)
{
    const abar_loader_config request = share_request(t), test = abar__loader_request(t->setup, true);
    ABAR_TRY(abar__data_feed_create(t->ctx, t->dev, t->data, t->train, &request, micro, false, &t->train_feed));
    return abar__data_feed_create(t->ctx, t->dev, t->data, t->test, &test, micro, false, &t->test_feed);
}

static abar_status make_test_net(abar_trainer *t, int64_t batch)
{
    const abar__net_request request = {.batch = batch, .share = t->net};
    if (!abar__tests_apart(t->setup, abar_dataset_info_of(t->data), &t->test_info)) return ABAR_OK;
    return abar__test_net_build(t->ctx, t->setup, &t->test_info, t->dev, &request, &t->test_net);
}

/* Where micro-batches are summed in a fixed order. */
static abar_status make_join(abar_trainer *t)
{
    if (t->setup->train.micro == 0) return ABAR_OK;
    abar__join_config config = abar__join_request(t->setup, t->dev, t->net, t->extra_net, abar_optim_pending_count(t->optim));
    config.comm = t->comm;
    config.test_batches = abar_loader_batches(t->test);
    config.stop = &t->stop;
    config.nccl = t->nccl;
    return abar__join_create(t->ctx, &config, &t->join);
}

static abar_status make_net(abar_trainer *t)
{
    const abar_train_config *train = &t->setup->train;
    const abar_dataset_info *info = abar_dataset_info_of(t->data);
    abar__net_request request = {.batch = abar__micro_of(train), .training = true};
    ABAR_TRY(abar__ranks_open_device(t));
    ABAR_TRY(abar__net_build(t->ctx, t->setup, info, t->dev, &request, &t->net));
    ABAR_TRY(make_test_net(t, request.batch));
    ABAR_TRY(abar__extra_net_build(t->ctx, t->setup, info, t->dev, t->net, false, &t->extra_net));
    ABAR_TRY(abar__ranks_make_optim(t));
    if (train->ema > 0.0) ABAR_TRY(abar__ema_create(t->ctx, t->dev, t->net, &t->average));
    return make_feeds(t, request.batch);
}

static abar_status make_steps(abar_trainer *t)
{
    const abar_train_config *train = &t->setup->train;
    ABAR_TRY(make_join(t));
    t->stepper = (abar__stepper){.ctx = t->ctx,
                                 .net = t->net,
                                 .extra = t->extra_net,
                                 .optim = t->optim,
                                 .info = abar_dataset_info_of(t->data),
                                 .micro = abar__micro_of(train),
                                 .accumulate = t->join.ctx ? t->join.count : train->accumulate,
                                 .join = t->join.ctx ? &t->join : NULL,
                                 .clip = train->clip,
                                 .seed = (uint64_t)train->seed,
                                 .feed = &t->train_feed};
    t->tester = t->stepper;
    t->tester.info = &t->test_info;
    if (t->test_net) t->tester.net = t->test_net;
    ABAR_TRY(abar__pipeline_create(&t->stepper, t->dev, t->train, &t->pipeline));
    t->schedule = (abar_schedule){.size = sizeof t->schedule,
                                  .kind = (abar_schedule_kind)train->schedule,
                                  .lr = train->lr,
                                  .epochs = train->epochs,
                                  .steps_per_epoch = t->steps,
                                  .warmup_epochs = train->warmup,
                                  .per_epoch = train->schedule_per_epoch,
                                  .final_lr = train->final_lr};
    return ABAR_OK;
}

static abar_status begin_average(abar_trainer *t)
{
    abar__ema_count(&t->average);
    return abar__ema_copy(&t->average);
}

static abar_status read_init(abar_trainer *t)
{
    const char *path = t->setup->train.init;
    return path[0] ? abar__weights_read(t->ctx, path, t->net) : ABAR_OK;
}

/* Everything a run needs beside data and net: room for its history, and its folder's files. */
static abar_status open_books(abar_trainer *t)
{
    void *memory;
    t->history_capacity = t->setup->train.epochs;
    ABAR_TRY(abar__alloc(t->ctx, (size_t)t->history_capacity * sizeof *t->history, &memory));
    t->history = memory;
    if (t->resumes)
        ABAR_TRY(abar__checkpoint_load(t));
    else if (t->started_over)
        ABAR_TRY(read_init(t));
    if (t->average.net && !t->resumes) ABAR_TRY(begin_average(t));
    if (!t->setup->train.out[0]) return ABAR_OK;
    t->stage_bytes = abar__weights_stage_bytes(t->net);
    ABAR_TRY(abar__alloc(t->ctx, t->stage_bytes, &t->stage));
    ABAR_TRY(abar__config_save(t));
    ABAR_TRY(abar__snapshot_open(t));
    return abar__record_open(t);
}

/* Of the whole training set, which every rank sees. */
static abar_status calibrate(abar_trainer *t)
{
    abar__stepper whole = t->stepper;
    abar_loader *loader;
    if (abar_comm_size(t->comm) == 1 || !abar__stepper_calibrates(&whole))
        return abar__stepper_calibrate(&t->stepper, t->train);
    const abar_loader_config request = abar__loader_request(t->setup, false);
    abar__data_feed feed = {0};
    whole.accumulate = abar__passes_of(&t->setup->train);
    whole.join = NULL;
    whole.feed = &feed;
    ABAR_TRY(abar_loader_create(t->ctx, t->data, &request, &loader));
    abar_status status = abar__data_feed_create(t->ctx, t->dev, t->data, loader, &request, whole.micro, true, &feed);
    if (status == ABAR_OK) status = abar__stepper_calibrate(&whole, loader);
    abar__data_feed_release(t->ctx, &feed);
    abar_loader_destroy(loader);
    return status;
}

/* What can go wrong on one rank alone, without a folder. Data, whose reading may take long, come last. */
static abar_status prepare_run(abar_trainer *t, bool resume)
{
    const abar_train_config *train = &t->setup->train;
    ABAR_TRY(abar_setup_check(t->ctx, t->setup));
    ABAR_TRY(abar__ranks_settle(t->ctx, t->comm, t->setup));
    ABAR_TRY(abar_setup_check(t->ctx, t->setup));
    if (train->checkpoint_every > 0 && !train->out[0])
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--checkpoint-every: there is no folder for checkpoints, give --out DIR");
    if (train->snapshot[0] && !train->out[0])
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--snapshot: there is no folder for snapshots, give --out DIR");
    if (!resume && abar_comm_rank(t->comm) == 0) { /* the folder and the file of --init are rank 0's */
        if (train->out[0]) ABAR_TRY(abar__folder_vacant(t->ctx, train->out));
        if (t->setup->model != &abar__own_model) ABAR_TRY(abar__setup_try(t->ctx, t->setup, abar__is_cuda(train)));
    }
    ABAR_TRY(open_data(t));
    return make_net(t);
}

/* The folder, which is rank 0's: the others have none. */
static abar_status open_folder(abar_trainer *t, bool resume)
{
    if (abar_comm_rank(t->comm) == 0) ABAR_TRY(abar__folder_claim(t, resume));
    t->saves = t->setup->train.out[0] != '\0';
    if (abar_comm_rank(t->comm) != 0) t->setup->train.out[0] = t->setup->train.init[0] = '\0';
    return open_books(t);
}

static abar_status build(abar_trainer *t, bool resume)
{
    ABAR_TRY(abar__ranks_compare_settings(t->ctx, t->comm, t->setup, resume));
    ABAR_TRY(abar__ranks_compare_data(t, prepare_run(t, resume)));
    abar_status status = abar__ranks_connect(t);
    t->exchange.nccl = t->nccl;
    if (status == ABAR_OK) status = abar__ranks_divide(&t->exchange, t->optim);
    if (status == ABAR_OK) status = make_steps(t);
    if (status == ABAR_OK && !resume && abar_comm_rank(t->comm) == 0) status = read_init(t);
    if (status == ABAR_OK) status = open_folder(t, resume); /* after all that can go wrong without a folder: no litter */
    ABAR_TRY(abar_ranks_agree(t->ctx, t->comm, status, NULL));
    ABAR_TRY(abar__ranks_make(t));
    ABAR_TRY(abar__ranks_share_state(t));
    ABAR_TRY(calibrate(t));
    return abar_loader_seek(t->train, t->at.epoch, t->at.step);
}

abar_status abar_trainer_create(abar_context *ctx, const abar_setup *setup, bool resume, const abar_trainer_events *events,
                                abar_trainer **out)
{
    return abar_trainer_create_on(ctx, NULL, setup, resume, events, out);
}

abar_status abar_trainer_create_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume,
                                   const abar_trainer_events *events, abar_trainer **out)
{
    *out = NULL;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_trainer), &memory));
    abar_trainer *t = memory;
    t->ctx = ctx;
    t->comm = comm;
    t->lock = -1;
    t->stop_at = t->give_up_at = -1;
    atomic_init(&t->stop, false);
    abar_status status = events ? abar__struct_read(ctx, "abar_trainer_events", events, &t->events, sizeof t->events) : ABAR_OK;
    if (status == ABAR_OK) status = abar__setup_copy(ctx, setup, &t->setup);
    if (status == ABAR_OK) status = build(t, resume);
    if (status < 0) {
        abar_trainer_destroy(t);
        return status;
    }
    if (t->started_over) abar__log(ctx, ABAR_LOG_INFO, "%s: no checkpoint was written yet, starting over", t->setup->train.out);
    *out = t;
    return ABAR_OK;
}

void abar_trainer_destroy(abar_trainer *t)
{
    if (!t) return;
    abar__jsonl_close(t->log);
    abar__tfevents_close(t->scalars);
    abar_loader_destroy(t->train);
    abar_loader_destroy(t->test);
    abar__pipeline_release(t->ctx, &t->pipeline);
    abar__data_feed_release(t->ctx, &t->train_feed);
    abar__data_feed_release(t->ctx, &t->test_feed);
    abar_optim_destroy(t->optim);
    abar__ema_release(&t->average);
    abar__join_release(&t->join);
    abar__nccl_close(t->nccl);
    abar__ranks_release(t);
    abar_net_destroy(t->extra_net);
    abar_net_destroy(t->test_net);
    abar_net_destroy(t->net);
    abar_device_close(t->dev);
    abar_dataset_close(t->data);
    abar__free(t->ctx, t->history, (size_t)t->history_capacity * sizeof *t->history);
    abar__free(t->ctx, t->stage, t->stage_bytes);
    abar__text_free(t->ctx, &t->classes);
    abar__text_free(t->ctx, &t->text);
    abar__text_free(t->ctx, &t->report);
    if (t->lock >= 0) abar__folder_unlock(t->lock);
    abar_setup_destroy(t->ctx, t->setup);
    abar__free(t->ctx, t, sizeof *t);
}

void abar_trainer_stop(abar_trainer *t) { atomic_store(&t->stop, true); }
bool abar_trainer_started_over(const abar_trainer *t) { return t->started_over; }
size_t abar_trainer_state_bytes(const abar_trainer *t) { return abar_optim_state_bytes(t->optim); }
abar_net *abar_trainer_net(abar_trainer *t) { return t->net; }
const abar_dataset_info *abar_trainer_data(const abar_trainer *t) { return abar_dataset_info_of(t->data); }

/* ---- watching ------------------------------------------------------------------------------------------------- */

static int64_t last_epoch(const abar_trainer *t)
{
    const abar_train_config *train = &t->setup->train;
    return train->stop_after > 0 ? least(train->stop_after, train->epochs) : train->epochs;
}

/* Moves the clocks of the run and its epoch to now. Returns the seconds since the last call. */
static double tick(abar_trainer *t)
{
    double now = abar__seconds(), passed = now - t->tick;
    t->tick = now;
    t->at.seconds += passed;
    t->at.epoch_seconds += passed;
    return passed;
}

static double seconds_left(const abar_trainer *t)
{
    double steps_done = (double)(t->at.epoch * t->steps + t->at.step), epochs_done = (double)t->at.epoch;
    double steps_left = (double)(last_epoch(t) * t->steps) - steps_done, epochs_left = (double)last_epoch(t) - epochs_done;
    double per_step = steps_done > 0 ? t->at.step_seconds / steps_done : 0.0;
    double per_test = epochs_done > 0 ? t->at.test_seconds / epochs_done : 0.0;
    return steps_left * per_step + epochs_left * per_test;
}

static void keep_pace(abar__pace *p, double seconds, double waited)
{
    p->seconds[p->steps % ABAR_PACE_STEPS] = seconds;
    p->waited[p->steps % ABAR_PACE_STEPS] = waited;
    p->steps++;
}

/* The first step of all waits until the loader has begun: a few more must dilute it. */
static double waiting_share(const abar__pace *p)
{
    double seconds = 0.0, waited = 0.0;
    for (int64_t i = 0; i < least(p->steps, ABAR_PACE_STEPS); i++) seconds += p->seconds[i], waited += p->waited[i];
    return p->steps < WAITING_AFTER || seconds <= 0.0 ? 0.0 : fmin(waited / seconds, 1.0);
}

static abar_progress progress_of(const abar_trainer *t, double lr)
{
    const double count = t->at.count > 0 ? (double)t->at.count : NAN; /* all steps so far were skipped: there is no mean */
    return (abar_progress){.epoch = t->at.epoch,
                           .epochs = t->setup->train.epochs,
                           .step = t->at.step,
                           .steps = t->steps,
                           .loss = t->at.loss_sum / count,
                           .accuracy = 100.0 * (double)t->at.correct / count,
                           .lr = lr,
                           .samples_per_second = t->pace_seconds > 0 ? (double)t->pace_samples / t->pace_seconds : 0.0,
                           .seconds = t->at.seconds,
                           .seconds_left = seconds_left(t),
                           .text = t->setup->model->text,
                           .best_accuracy = abar__best_accuracy(t->history, t->at.epoch),
                           .skipped_steps = t->at.skipped,
                           .validation = t->setup->train.validation > 0.0,
                           .waiting = waiting_share(&t->pace)};
}

static void tell(const abar_trainer *t, const abar_progress *p)
{
    if (t->events.progress) t->events.progress(t->events.user, p);
}

int64_t abar__samples_each(const abar_trainer *t) { return t->setup->train.batch * abar__context_of(t->setup); }

/* ---- running -------------------------------------------------------------------------------------------------- */

static void count_step(abar_trainer *t, const abar__step_result *r)
{
    double passed = tick(t);
    t->at.step++;
    t->at.step_seconds += passed;
    t->pace_seconds += passed;
    t->pace_samples += abar__samples_each(t);
    keep_pace(&t->pace, passed, r->waited_seconds);
    t->at.skipped += r->skipped;
    t->at.epoch_skipped += r->skipped;
    t->at.skipped_in_a_row = r->skipped ? t->at.skipped_in_a_row + 1 : 0;
    if (r->skipped) return;
    t->at.loss_sum += r->loss.loss * (double)r->loss.count;
    t->at.correct += r->loss.correct;
    t->at.count += r->loss.count;
}

/* Whether the average of the weights is updated after step k. */
static bool is_averaged(const abar_trainer *t, int64_t k)
{
    return t->average.net && k % t->steps % t->setup->train.ema_steps == 0;
}

static abar_status update_average(abar_trainer *t, int64_t k)
{
    if (!is_averaged(t, k)) return ABAR_OK;
    if (abar__ema_copies(&t->setup->train, k / t->steps, k % t->steps)) return abar__ema_copy(&t->average);
    return abar__ema_update(&t->average, abar__ema_decay(&t->setup->train));
}

static bool is_measured(const abar_trainer *t, int64_t k)
{
    const int64_t diagnose = t->setup->train.diagnose;
    return t->log && diagnose > 0 && k % diagnose == 0;
}

/* Whether there are ranks of which each may have read the results of another number of steps. */
static bool runs_ahead(const abar_trainer *t) { return t->pipeline.stream && t->join.ranks > 1; }

/* They all end before the same step: one that none of them has enqueued when it has read the result of step k. */
static void agree_on_end(abar_trainer *t, int64_t k, const abar__step_result *r)
{
    const int64_t step = k + ABAR_STEPS_AHEAD;
    if (r->stops && t->stop_at < 0) t->stop_at = step;
    if (t->at.skipped_in_a_row >= GIVE_UP_AFTER && t->give_up_at < 0) t->give_up_at = step;
}

/* Takes a step that is done, if there is one. */
static abar_status take_step(abar_trainer *t, bool wait, bool *got)
{
    const int64_t k = t->pipeline.collected;
    const double lr = abar_schedule_lr(&t->schedule, k);
    abar__step_result result;
    ABAR_TRY(abar__pipeline_collect(&t->pipeline, wait, &result, got));
    if (!*got) return ABAR_OK;
    count_step(t, &result);
    if (runs_ahead(t)) agree_on_end(t, k, &result);
    if (is_averaged(t, k)) abar__ema_count(&t->average);
    if (is_measured(t, k) && !result.skipped) ABAR_TRY(abar__record_curvature(t));
    if (!result.skipped) ABAR_TRY(abar__record_step(t, result.loss.loss, lr));
    abar_progress p = progress_of(t, lr);
    tell(t, &p);
    return ABAR_OK;
}

static abar_status take_all(abar_trainer *t)
{
    for (bool got = true; got;) ABAR_TRY(take_step(t, true, &got));
    return ABAR_OK;
}

/* Gives one step and takes what is done. Where somebody wants to look at the state after step k, nothing is given beyond it. */
static abar_status train_step(abar_trainer *t)
{
    const int64_t k = t->pipeline.enqueued;
    const bool measure = is_measured(t, k);
    if (measure) abar_optim_measure(t->optim);
    ABAR_TRY(abar__pipeline_enqueue(&t->pipeline, abar_schedule_lr(&t->schedule, k), measure));
    ABAR_TRY(update_average(t, k));
    if (measure) return take_all(t);
    for (bool got = true; got;) ABAR_TRY(take_step(t, false, &got));
    return ABAR_OK;
}

/* What ranks do not agree on is not saved. */
static abar_status save_checked(abar_trainer *t)
{
    if (t->saves) ABAR_TRY(abar__ranks_check_replicas(t));
    return abar__checkpoint_save(t);
}

/* No number that comes now can be trusted; the weights still can. */
static abar_status give_up(abar_trainer *t)
{
    const char *dir = t->setup->train.out;
    t->at.skipped_in_a_row = 0; /* a resumed run gets as many tries again */
    t->give_up_at = -1;
    ABAR_TRY(save_checked(t));
    return abar__fail(t->ctx, ABAR_E_NUMERIC,
                      "training: loss or gradient was not finite in %d steps in a row (epoch %lld, step %lld), lower --lr or "
                      "set --warmup or --clip%s%s%s",
                      GIVE_UP_AFTER, (long long)t->at.epoch + 1, (long long)t->at.step, dir[0] ? "; " : "", dir,
                      dir[0] ? " holds the weights before them" : "");
}

/* Between steps: what the disk takes is the run's time, but not a step's. */
static abar_status save_checkpoint(abar_trainer *t)
{
    abar_status status = abar__checkpoint_save(t);
    tick(t);
    return status;
}

static double percent_of(const abar_loss *l) { return 100.0 * (double)l->correct / (double)l->count; }

/* average: of the average of the weights; count 0: there is none. */
static abar_status finish_epoch(abar_trainer *t, const abar_loss *test, const abar_loss *average)
{
    const bool averaged = average->count > 0;
    int64_t last_step = t->at.epoch * t->steps + t->steps - 1;
    double lr = abar_schedule_lr(&t->schedule, last_step);
    abar_progress p = progress_of(t, lr);
    abar__epoch *e = &t->history[t->at.epoch];
    *e = (abar__epoch){.train_loss = p.loss,
                       .train_accuracy = p.accuracy,
                       .test_loss = test->loss,
                       .test_accuracy = percent_of(test),
                       .lr = lr,
                       .seconds = t->at.epoch_seconds,
                       .skipped = t->at.epoch_skipped,
                       .ema_loss = averaged ? average->loss : NAN,
                       .ema_accuracy = averaged ? percent_of(average) : NAN};
    ABAR_TRY(abar__damage_tell(t->ctx, t->train, false, &t->damage[0]));
    ABAR_TRY(abar__damage_tell(t->ctx, t->test, true, &t->damage[1]));
    ABAR_TRY(abar__record_epoch(t, e));
    t->at.epoch++;
    t->at.step = 0;
    t->at.loss_sum = t->at.epoch_seconds = t->pace_seconds = 0.0;
    t->at.correct = t->at.count = t->at.epoch_skipped = t->pace_samples = 0;
    ABAR_TRY(abar__snapshot_save(t)); /* before the checkpoint: a run that dies between them makes it again */
    ABAR_TRY(abar__export_save(t));
    ABAR_TRY(abar__tested_leave(t));
    ABAR_TRY(save_checkpoint(t));
    const abar_block_counts blocks = *abar_optim_blocks(t->optim);
    p.blocks_dropped = blocks.dropped;
    p.blocks_small = blocks.small;
    p.epoch_done = true;
    p.test_loss = e->test_loss;
    p.test_accuracy = e->test_accuracy;
    p.test_perplexity = p.text ? abar__perplexity(e->test_loss) : 0.0;
    p.test_bits = p.text ? abar__bits(e->test_loss) : 0.0;
    p.ema_test_loss = e->ema_loss;
    p.ema_test_accuracy = e->ema_accuracy;
    p.best_ema_accuracy = abar__best_ema_accuracy(t->history, t->at.epoch);
    p.best_accuracy = abar__best_accuracy(t->history, t->at.epoch);
    p.best_loss = abar__best_loss(t->history, t->at.epoch);
    p.best_accuracy_epoch = abar__best_accuracy_epoch(t->history, t->at.epoch);
    p.best_loss_epoch = abar__best_loss_epoch(t->history, t->at.epoch);
    p.seconds_left = seconds_left(t);
    tell(t, &p);
    return ABAR_OK;
}

static abar_status test(abar_trainer *t, abar_loss *out)
{
    return abar__stepper_test(&t->tester, t->test, &t->test_feed, &t->stop, out);
}

/* The net gets its own weights back whatever happens. */
static abar_status test_average(abar_trainer *t, abar_loss *out)
{
    abar_status status = abar__ema_swap_in(&t->average);
    if (status == ABAR_OK) status = test(t, out);
    const abar_status back = abar__ema_swap_out(&t->average);
    return back < 0 ? back : status;
}

/* Tests and exports. The net gets the weights that are trained back whatever happens. */
static abar_status end_epoch(abar_trainer *t)
{
    abar_loss own, average = {0};
    if (t->saves) ABAR_TRY(abar__ranks_check_replicas(t));
    abar_status status = abar__tested_enter(t);
    if (status == ABAR_OK) status = test(t, &own);
    if (status == ABAR_OK && t->average.net) status = test_average(t, &average);
    t->at.test_seconds += tick(t);
    if (status == ABAR_OK) status = finish_epoch(t, &own, &average);
    const abar_status back = abar__tested_leave(t);
    return back < 0 ? back : status;
}

/* Several ranks stop together: when they joined the last step, one wanted to; over NCCL, as they have agreed. */
static bool wants_stop(const abar_trainer *t)
{
    if (t->nccl && runs_ahead(t)) return t->stop_at >= 0 && t->pipeline.enqueued >= t->stop_at;
    return t->join.ranks > 1 ? t->join.stops : atomic_load(&t->stop);
}

/* No number that comes now can be trusted. */
static bool is_hopeless(const abar_trainer *t)
{
    if (runs_ahead(t)) return t->give_up_at >= 0 && t->pipeline.enqueued >= t->give_up_at;
    return t->at.skipped_in_a_row >= GIVE_UP_AFTER;
}

/* Goes on from wherever t->at is, through the end of that epoch. */
static abar_status run_epoch(abar_trainer *t)
{
    const int64_t every = t->setup->train.checkpoint_every, end = (t->at.epoch + 1) * t->steps;
    const int64_t compares = t->setup->train.check_replicas;
    ABAR_TRY(abar__pipeline_seek(&t->pipeline, &t->schedule, t->at.epoch, t->at.step));
    while (t->pipeline.enqueued < end) {
        const bool stop = wants_stop(t);
        if (!stop) ABAR_TRY(train_step(t));
        if (!stop && compares > 0 && t->pipeline.enqueued % compares == 0) ABAR_TRY(abar__ranks_check_replicas(t));
        const bool hopeless = is_hopeless(t);
        const bool due = every > 0 && t->pipeline.enqueued % every == 0;
        if (stop || hopeless || due) ABAR_TRY(take_all(t));
        if (stop) return ABAR_STOPPED;
        if (hopeless) return give_up(t);
        if (due && t->pipeline.enqueued < end) {
            if (t->saves) ABAR_TRY(abar__ranks_check_replicas(t));
            ABAR_TRY(save_checkpoint(t));
        }
    }
    ABAR_TRY(take_all(t));
    if (t->at.skipped_in_a_row >= GIVE_UP_AFTER) return give_up(t);
    return end_epoch(t);
}

/* Fewer steps than GIVE_UP_AFTER, and not one that counted. The checkpoint is there and holds the first weights. */
static abar_status check_learned(abar_trainer *t)
{
    if (t->at.skipped == 0 || t->at.skipped < t->at.epoch * t->steps) return ABAR_OK;
    return abar__fail(t->ctx, ABAR_E_NUMERIC,
                      "training: loss or gradient was not finite in all %lld steps, so the weights never changed, lower --lr, "
                      "set --warmup or --clip, or check the data",
                      (long long)t->at.skipped);
}

abar_status abar_trainer_run(abar_trainer *t)
{
    t->tick = abar__seconds();
    t->stopped = false;
    while (t->at.epoch < last_epoch(t)) {
        abar_status status = run_epoch(t);
        if (status == ABAR_OK) continue;
        if (status == ABAR_STOPPED) {
            atomic_store(&t->stop, false);
            t->join.stops = false;
            t->stop_at = -1;
            t->stopped = true;
            ABAR_TRY(save_checked(t));
        }
        return status;
    }
    return check_learned(t);
}
