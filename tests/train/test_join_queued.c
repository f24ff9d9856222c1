/* Micro-batches and ranks joined on a queued device (train/join_queued.c), without a GPU: the device is cpu with a queue whose
 * work is done at once, and with sums in plain C. Ranks exchange through the host, or over tests/fake/nccl.c. Weights and state
 * have the bits of cpu's own join. */
#include "data/data_impl.h"
#include "optim/optim_impl.h"
#include "train_engine.h"

#include <math.h>
#include <sys/wait.h>

#define RUN "device=cpu threads=1 workers=0 limit-train=96 limit-test=10 batch=24 lr=0.02 warmup=0 "
#define STEPS 6

/* ---- a queue that does at once what it is given ------------------------------------------------------------------------- */

static abar_status wait_queue(abar_device *dev)
{
    (void)dev;
    return ABAR_OK;
}

static abar_status alloc_shared(abar_device *dev, size_t bytes, void **out)
{
    *out = NULL;
    return bytes ? abar__alloc(dev->ctx, bytes, out) : ABAR_OK;
}

static void free_shared(abar_device *dev, void *memory, size_t bytes) { abar__free(dev->ctx, memory, bytes); }

static void settle_bytes(abar_device *dev, void *dst, void *src, size_t bytes, const int32_t *skipped)
{
    (void)dev;
    memcpy(*skipped ? src : dst, *skipped ? dst : src, bytes);
}

static abar_status copy_at_once(abar_device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes) memmove(dst, src, bytes);
    return ABAR_OK;
}

static bool events_end = true;

static bool is_done(abar_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return events_end;
}

static abar_status make_event(abar_device *dev, void **mark)
{
    *mark = dev;
    return ABAR_OK;
}

static abar_status with_event(abar_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return ABAR_OK;
}

static void without(abar_device *dev, void *thing) { (void)dev, (void)thing; }

/* What is captured runs at once and leaves nothing to replay: it is captured anew in every step. */
static abar_status end_capture(abar_device *dev, void **graph)
{
    (void)dev;
    *graph = NULL;
    return ABAR_OK;
}

static void *no_queue(abar_device *dev)
{
    (void)dev;
    return NULL;
}

static const abar__stream_ops queue = {.wait = wait_queue,
                                       .shared_alloc = alloc_shared,
                                       .shared_free = free_shared,
                                       .side_begin = wait_queue,
                                       .side_end = wait_queue,
                                       .side_join = wait_queue,
                                       .current = no_queue,
                                       .capture_begin = wait_queue,
                                       .capture_end = end_capture,
                                       .replay = with_event,
                                       .forget = without,
                                       .event_create = make_event,
                                       .event_destroy = without,
                                       .event_record = with_event,
                                       .event_wait = with_event,
                                       .event_done = is_done,
                                       .settle = settle_bytes,
                                       .copy_bytes = copy_at_once};

/* ---- sums in plain C ------------------------------------------------------------------------------------------------------
 */

static int64_t noted, bad_one = -1; /* micro-batches of this step so far; which of the batch has no finite loss, -1: none */

static abar_status add(abar_device *dev, void *to, const void *from, int64_t n, bool wide)
{
    (void)dev;
    if (wide)
        abar__tree_add_doubles(to, from, n);
    else
        abar__tree_add_floats(to, from, n);
    return ABAR_OK;
}

static abar_status note(abar_device *dev, double *to, const void *result)
{
    const abar_loss *loss = result;
    (void)dev;
    const bool bad = noted++ == bad_one;
    to[0] = bad ? NAN : loss->loss * (double)loss->count;
    to[1] = (double)loss->correct;
    to[2] = (double)loss->count;
    to[3] = bad ? 0.0 : 1.0;
    return ABAR_OK;
}

/* losses: the step itself. */
static abar_status total(abar_device *dev, void *losses, const double *results, int64_t n, int64_t each)
{
    double sum[3][64] = {{0.0}};
    bool finite = true;
    int filled = 0;
    for (int64_t i = 0; i < n; i++, filled++) {
        const double *r = results + (i / each * (each + 1) + i % each) * ABAR_RESULT_NUMBERS;
        finite = finite && r[3] != 0.0;
        for (int k = 0; k < 3; k++) sum[k][filled] = r[k];
        for (int m = abar__join_merges(n, i); m > 0; m--, filled--)
            for (int k = 0; k < 3; k++) sum[k][filled - 1] += sum[k][filled];
    }
    assert_int_equal(filled, 1);
    const abar_loss loss = {
        .loss = finite ? sum[0][0] / sum[2][0] : NAN, .correct = (int64_t)sum[1][0], .count = (int64_t)sum[2][0]};
    return abar__host_step.add_loss(dev, losses, &loss);
}

static void *losses_of(const abar__compiled_step *s) { return (void *)(uintptr_t)s; }

static abar_status move_span(const abar__pending_span *s, double *packed, bool back)
{
    double *at = packed + s->at, *doubles = s->memory;
    float *floats = s->memory;
    const int64_t rows = s->kind == ABAR_PENDING_TRIANGLE ? s->n : 1;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < (rows > 1 || s->kind == ABAR_PENDING_TRIANGLE ? row + 1 : s->n); i++, at++) {
            float *number = s->kind == ABAR_PENDING_DOUBLES ? NULL : floats + row * s->n + i;
            if (back && number) *number = (float)*at;
            if (back && !number) doubles[i] = *at;
            if (back) continue;
            *at = number ? (double)*number : doubles[i];
            if (number) *number = 0.0f;
            if (!number) doubles[i] = 0.0;
        }
    return ABAR_OK;
}

static abar_status pack(abar_device *dev, const abar__pending_span *span, double *packed)
{
    (void)dev;
    return move_span(span, packed, false);
}

static abar_status unpack(abar_device *dev, const abar__pending_span *span, const double *packed)
{
    (void)dev;
    return move_span(span, (double *)(uintptr_t)packed, true);
}

static abar_status average(abar_device *dev, int64_t length, double momentum, void *running, const void *batches, int64_t n,
                           size_t stride)
{
    float *to = running;
    (void)dev;
    for (int64_t b = 0; b < n; b++)
        for (int64_t i = 0; i < length; i++) {
            const float *batch = (const float *)(const void *)((const char *)batches + (size_t)b * stride);
            to[i] = (float)((1.0 - momentum) * (double)to[i] + momentum * (double)batch[i]);
        }
    return ABAR_OK;
}

static abar_status count(abar_device *dev, int64_t *counters, const int64_t *before, const int64_t *all, int n, int ranks)
{
    (void)dev;
    for (int i = 0; i < n; i++) {
        counters[i] = before[i];
        for (int r = 0; r < ranks; r++) counters[i] += all[r * n + i] - before[i];
    }
    return ABAR_OK;
}

static const abar__join_ops sums = {add, note, total, pack, unpack, average, count};

static abar_device_ops queued_ops;
static abar__step_ops queued_step;

static void make_queued(abar_device *dev)
{
    queued_ops = *dev->ops;
    queued_step = *dev->ops->step;
    queued_step.losses = losses_of;
    queued_ops.step = &queued_step;
    queued_ops.stream = &queue;
    queued_ops.join = &sums;
    dev->ops = &queued_ops;
}

/* ---- a feed that has the whole batch ----------------------------------------------------------------------------------------
 */

static struct {
    engine *e;
    abar_batch batch;
} fed;

static abar_status next_batch(abar_device *dev, abar__feed *f)
{
    (void)dev, (void)f;
    fed.batch = (abar_batch){.size = sizeof fed.batch};
    noted = 0;
    return abar_loader_next(fed.e->loader, &fed.batch);
}

static abar_status begin_epoch(abar_device *dev, abar__feed *f, int64_t epoch, int64_t first, const int32_t *order, int64_t n)
{
    (void)order, (void)n;
    ABAR_TRY(abar_loader_seek(fed.e->loader, epoch, first));
    return next_batch(dev, f);
}

static abar_status fill(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input, const abar_tensor *target,
                        const abar_tensor *share)
{
    const abar__stepper *s = &fed.e->stepper;
    const abar_batch part = abar__batch_part(s->info, &fed.batch, first);
    (void)dev, (void)f, (void)share;
    memcpy(target->data, part.labels, (size_t)s->micro * sizeof *part.labels);
    return abar_batch_normalise(s->ctx, s->info, &part, s->micro, input);
}

static const abar__feed_ops feed_ops = {.epoch = begin_epoch, .fill = fill, .advance = next_batch};

/* ---- an engine with a join
 * ---------------------------------------------------------------------------------------------------- */

typedef struct joined {
    engine e;
    abar__join join;
    abar__nccl *nccl;
    abar__exchange exchange;
    int32_t order[128];
} joined;

/* cpu as it is; queued, ranks exchange through the host; over NCCL; queued in the pipeline's parts */
typedef enum way { HOST, QUEUED, NCCL, PIPED } way;

static atomic_bool wants_stop; /* this rank */

static void build(joined *j, fixture *f, abar_setup *setup, abar_comm *comm, way how)
{
    engine *e = &j->e;
    const bool queued = how != HOST;
    *e = (engine){.f = f, .setup = setup};
    const abar__net_request request = {.batch = abar__micro_of(&setup->train), .training = true};
    need(f, abar__data_open(f->ctx, setup, false, NULL, &e->data));
    const abar_loader_config loader = abar__loader_request(setup, false);
    const abar_dataset_info *info = abar_dataset_info_of(e->data);
    need(f, abar_loader_create(f->ctx, e->data, &loader, &e->loader));
    need(f, abar__device_open(f->ctx, setup, &e->dev));
    if (queued) make_queued(e->dev);
    need(f, abar__net_build(f->ctx, setup, info, e->dev, &request, &e->net));
    need(f, abar__extra_net_build(f->ctx, setup, info, e->dev, e->net, false, &e->extra));
    if (how == NCCL) need(f, abar__exchange_over_nccl(f->ctx, abar_comm_size(comm) > 1 ? comm : NULL, e->dev, &j->nccl));
    j->exchange = (abar__exchange){comm, j->nccl, e->dev};
    const abar__owners owners = abar__owners_of(&j->exchange);
    need(f, abar__optim_build_on(f->ctx, setup, e->dev, e->net, e->extra, setup->train.zero ? &owners : NULL, &e->optim));
    need(f, abar__optim_divide(e->optim, &owners));
    abar__join_config config = abar__join_request(setup, e->dev, e->net, e->extra, abar_optim_pending_count(e->optim));
    config.comm = comm;
    config.nccl = j->nccl;
    config.stop = &wants_stop;
    need(f, abar__join_create(f->ctx, &config, &j->join));
    e->stepper = (abar__stepper){.ctx = f->ctx,
                                 .net = e->net,
                                 .extra = e->extra,
                                 .optim = e->optim,
                                 .info = info,
                                 .micro = request.batch,
                                 .accumulate = j->join.count,
                                 .join = &j->join,
                                 .clip = setup->train.clip,
                                 .seed = (uint64_t)setup->train.seed};
    if (!queued) return;
    e->feed = (abar__data_feed){.dev = e->dev,
                                .ops = &feed_ops,
                                .batches = (abar__feed *)(void *)&fed,
                                .resident = true,
                                .order = j->order,
                                .order_bytes = (size_t)abar_loader_order_count(e->loader) * sizeof *j->order};
    assert_true(e->feed.order_bytes <= sizeof j->order);
    e->stepper.feed = &e->feed;
    fed.e = e;
}

static void drop(joined *j)
{
    engine *e = &j->e;
    abar__join_release(&j->join);
    abar__nccl_close(j->nccl);
    abar_optim_destroy(e->optim);
    abar_net_destroy(e->extra);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_loader_destroy(e->loader);
    abar_dataset_close(e->data);
}

/* Step k; bad: the micro-batch whose loss is not finite. Returns whether the step was skipped. */
static bool queued_step_of(joined *j, int64_t k, int64_t bad)
{
    engine *e = &j->e;
    const double lr = e->setup->train.lr;
    bad_one = bad < j->join.first || bad >= j->join.first + j->join.count ? -1 : bad - j->join.first;
    need(e->f, abar_optim_rates(e->optim, k, &lr, 1));
    need(e->f, abar__stepper_enqueue(&e->stepper));
    const bool skipped = abar_optim_note(e->optim, k)->skipped;
    abar_net_count_batches(e->net, skipped ? 0 : abar__stepper_passes(&e->stepper));
    return skipped;
}

static void keep_block(snapshot *s, const void *data, size_t bytes)
{
    s->bytes = realloc(s->bytes, s->used + bytes + 1);
    if (bytes) memcpy(s->bytes + s->used, data, bytes);
    s->used += bytes;
}

/* The same steps as the trainer gives them: enqueued once, then captured, in the parts between which ranks exchange. */
static void run_pipeline(joined *j)
{
    engine *e = &j->e;
    abar__pipeline p;
    const int64_t each = abar_loader_batches(e->loader);
    const abar_schedule schedule = {.size = sizeof schedule,
                                    .kind = ABAR_SCHEDULE_CONSTANT,
                                    .lr = e->setup->train.lr,
                                    .epochs = 2,
                                    .steps_per_epoch = each};
    need(e->f, abar__pipeline_create(&e->stepper, e->dev, e->loader, &p));
    bad_one = -1;
    for (int64_t k = 0; k < STEPS; k++) {
        abar__step_result r;
        bool got;
        if (k % each == 0) need(e->f, abar__pipeline_seek(&p, &schedule, k / each, 0));
        need(e->f, abar__pipeline_enqueue(&p, schedule.lr, false));
        need(e->f, abar__pipeline_collect(&p, true, &r, &got));
        assert_true(got && !r.skipped);
        assert_int_equal(r.loss.count, e->setup->train.batch);
    }
    abar__pipeline_release(e->f->ctx, &p);
}

/* The sum of the losses of micro-batches from i on, of a node of so many: of (level, j) from (level - 1, 2j) and (level - 1, 2j
 * + 1). */
static double sum_losses(const abar__join *j, int64_t i, int64_t width)
{
    if (width == 1) return j->results[i].loss;
    const double left = sum_losses(j, i, width / 2);
    return i + width / 2 < j->config.n ? left + sum_losses(j, i + width / 2, width / 2) : left;
}

/* cpu's own step on one rank, or on several: its loss is the mean in the tree's order. */
static void host_step_of(joined *j, int64_t k)
{
    const abar__step_result r = train_on(&j->e, k);
    int64_t width = 1;
    while (width < j->join.config.n) width *= 2;
    assert_false(r.skipped);
    if (j->join.ranks == 1) assert_true(r.loss.loss == sum_losses(&j->join, 0, width) / (double)r.loss.count);
}

/* Rank 0 has the state of all parameters then. */
static snapshot take_whole(joined *j)
{
    engine *e = &j->e;
    snapshot s = {.f = e->f};
    need(e->f, abar__zero_open(e->optim));
    need(e->f, abar__zero_move(e->optim, true));
    if (j->join.rank == 0) s = take(e);
    abar__zero_close(e->optim);
    return s;
}

/* All state after some steps, the weights that are tested, and the running statistics that the training set has at the end. */
static snapshot train(fixture *f, abar_setup *setup, abar_comm *comm, way how, int64_t bad)
{
    const bool queued = how != HOST;
    joined *j = calloc(1, sizeof *j);
    assert_non_null(j);
    build(j, f, setup, comm, how);
    engine *e = &j->e;
    need(f, abar_loader_seek(e->loader, 0, 0));
    if (queued) need(f, abar__data_feed_seek(&e->feed, e->loader, 0, 0));
    if (how == PIPED) run_pipeline(j);
    for (int64_t k = how == PIPED ? STEPS : 0; k < STEPS; k++) {
        const bool skips = bad >= 0 && k == 2;
        if (queued)
            assert_int_equal(queued_step_of(j, k, skips ? bad : -1), skips);
        else
            host_step_of(j, k);
    }
    snapshot s = take_whole(j);
    const abar__net_blocks blocks = abar__net_blocks_of(e->net);
    need(f, abar_optim_average(e->optim));
    keep_block(&s, blocks.values, blocks.value_bytes);
    if (blocks.running_bytes) need(f, abar__stepper_estimate(&e->stepper, e->loader, 0, 2));
    keep_block(&s, blocks.pending, blocks.running_bytes);
    drop(j);
    free(j);
    return s;
}

/* In processes of their own, of which rank 0 writes what it has come to. This one must stay without threads until then. */
static snapshot train_apart(fixture *f, abar_setup *setup, int ranks, way how, int64_t bad)
{
    char path[PATH_MAX_TEST];
    int status = 0;
    snprintf(path, sizeof path, "%s/snapshot", f->dir);
    remove(path);
    const pid_t child = fork_test();
    if (child == 0) {
        abar_comm *comm;
        const abar_comm_config config = {.size = sizeof config, .ranks = ranks};
        if (abar_comm_open(f->ctx, &config, &comm) < 0) _exit(2);
        const snapshot s = train(f, setup, comm, how, bad);
        FILE *file = abar_comm_rank(comm) == 0 ? fopen(path, "w") : NULL;
        if (file && (fwrite(s.bytes, 1, s.used, file) != s.used || fclose(file))) _exit(3);
        abar_comm_close(comm);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    snapshot s = {.f = f};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    s.used = (size_t)ftell(file);
    rewind(file);
    s.bytes = malloc(s.used + 1);
    assert_int_equal(fread(s.bytes, 1, s.used, file), s.used);
    fclose(file);
    return s;
}

static void compare(snapshot a, snapshot b, const char *what)
{
    assert_int_equal(a.used, b.used);
    size_t differ = 0;
    for (size_t i = 0; i < a.used; i++) differ += a.bytes[i] != b.bytes[i];
    if (differ) fail_msg("%s: %zu of %zu bytes differ", what, differ, a.used);
    free(b.bytes);
}

/* One, two and three ranks, as far as they divide the micro-batches, have what cpu's own join leaves. */
static void check_way(fixture *f, way how, const char *model, const char *optim, const char *options)
{
    char what[64];
    abar_setup *setup = make_setup(f, model, optim, options);
    const snapshot own = train_apart(f, setup, 1, HOST, -1);
    for (int ranks = 1; ranks <= 4; ranks++) {
        if (abar__passes_of(&setup->train) % ranks) continue;
        snprintf(what, sizeof what, "%s, %s on %d ranks", model, optim, ranks);
        compare(own, train_apart(f, setup, ranks, how, -1), what);
    }
    free(own.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void check(fixture *f, const char *model, const char *optim, const char *options)
{
    check_way(f, QUEUED, model, optim, options);
}

/* ---- tests
 * ---------------------------------------------------------------------------------------------------------------------- */

static void queued_gradients_have_the_hosts_bits(void **state)
{
    check(*state, "lenet5", "sgd", RUN "micro=6 clip=0.5");
    check(*state, "lenet5", "muon", RUN "micro=6 reduce=fixed");
}

/* One micro-batch a rank (4 ranks), two nodes a rank (6 micro-batches on 2), a tree that is not full. */
static void queued_nodes_of_any_shape_have_the_hosts_bits(void **state)
{
    check(*state, "mlp", "mac", RUN "micro=4 widths=784-12-10 tcov=2 tinv=2");
    check(*state, "mlp", "mac", RUN "micro=8 widths=784-12-10 tcov=1 tinv=1");
}

static void queued_statistics_have_the_hosts_bits(void **state)
{
    static const char *const methods[] = {"mac", "smac", "foof", "eva", "lngd"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        check(*state, "lenet5", methods[i], RUN "micro=6 tcov=2 tinv=2");
    check(*state, "lenet5", "kfac", RUN "micro=6 tcov=2 tinv=2 clip=0.5 kl-clip=0.0001");
}

static void queued_batch_norms_have_the_hosts_bits(void **state)
{
    check(*state, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
}

static void queued_sums_of_attention_have_the_hosts_bits(void **state)
{
    check(*state, "deit-tiny", "smac", RUN "micro=6 image-size=32 classes=10 width=16 heads=2 depth=1 tcov=2 tinv=2");
    check(*state, "swin-tiny", "mac",
          RUN "micro=12 image-size=56 classes=10 patch=4 window=7 width=16 depths=1-1 heads=1-2 tcov=2 tinv=2");
}

static void queued_further_gradients_have_the_hosts_bits(void **state)
{
    check(*state, "lenet5", "adahessian", RUN "micro=6 hessian-every=2");
}

static void queued_parts_of_a_pipeline_have_the_hosts_bits(void **state)
{
    check_way(*state, PIPED, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    check_way(*state, PIPED, "lenet5", "adahessian", RUN "micro=12 hessian-every=2");
}

/* ---- what ranks divide ----------------------------------------------------------------------------------------------------
 */

static void check_every_way(fixture *f, const char *model, const char *optim, const char *options)
{
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    check_way(f, PIPED, model, optim, options);
    check_way(f, NCCL, model, optim, options);
}

static void queued_states_that_ranks_divide_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "sgd", RUN "micro=6 zero=1 clip=0.5");
    check_every_way(*state, "lenet5", "muon", RUN "micro=6 zero=1 normuon=true");
    check_every_way(*state, "lenet5", "shampoo", RUN "micro=6 zero=1 shampoo-start=1 shampoo-freq=2");
    check_every_way(*state, "lenet5", "soap", RUN "micro=4 zero=1");
    check_every_way(*state, "resnet20", "sfadamw", RUN "micro=6 zero=1 schedule=constant");
    check_every_way(*state, "lenet5", "adahessian", RUN "micro=6 zero=1 hessian-every=2");
}

static void queued_states_behind_methods_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "mac", RUN "micro=6 zero=1 tcov=2 tinv=2");
    check_every_way(*state, "lenet5", "kfac+muon", RUN "micro=6 zero=1 tcov=1 tinv=2");
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 zero=1 tcov=2 tinv=3 kl-clip=0.0001");
}

/* Blocks that are too small are met by their owners, and counted by all. */
static void queued_events_of_divided_blocks_are_counted(void **state)
{
    check_every_way(*state, "lenet5", "muon", RUN "micro=6 zero=1 muon-eps=1 clip=0.01");
}

static void queued_steps_that_are_skipped_change_no_state(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "kfac+muon", RUN "micro=6 zero=1 tcov=1 tinv=2");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot one = train_apart(f, setup, 1, QUEUED, 3); /* a refresh was due: it is made later, by every rank */
    compare(one, train_apart(f, setup, 2, QUEUED, 3), "2 ranks");
    compare(one, train_apart(f, setup, 4, NCCL, 3), "4 ranks over NCCL");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_refreshes_of_every_kind_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 kfac-inverse=eigen tcov=1 tinv=1");
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 refresh=spread tcov=1 tinv=3");
    check_every_way(*state, "lenet5", "foof", RUN "micro=6 tcov=2 tinv=3");
    check_every_way(*state, "lenet5", "lngd", RUN "micro=4 tcov=1 tinv=1");
}

/* Which steps are divided, and that this rank makes a part of their refreshes alone. */
static int divide_some(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, QUEUED);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < 4; k++) {
        abar__step_parts parts;
        int owned = 0, all = 0;
        need(f, abar__stepper_begin(&j->e.stepper, &parts));
        if (abar__parts_meet(&parts, ABAR_STAGE_COMMIT) != (k % 2 == 0) || (parts.kind >= 2) != (k % 2 == 0)) return 3;
        (void)queued_step_of(j, k, -1);
        for (int i = 0; i < j->e.optim->derived.n; i++, all++)
            owned += j->e.optim->derived.list[i].owner == abar_comm_rank(comm);
        if (owned == 0 || owned == all) return 4;
    }
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_refreshes_are_divided_when_all_are_due(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "kfac", RUN "micro=6 tcov=1 tinv=2");
    int status = 0;
    const pid_t child = fork_test();
    if (child == 0) _exit(divide_some(f, setup));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    abar_setup_destroy(f->ctx, setup);
}

/* Labels are drawn by the number of the step, which cpu's operations do not read from the queue: ranks are compared alone. */
static void queued_drawn_labels_have_the_bits_of_one_rank(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sophia", RUN "micro=6 hessian-every=2");
    const snapshot one = train_apart(f, setup, 1, QUEUED, -1);
    compare(one, train_apart(f, setup, 2, QUEUED, -1), "2 ranks");
    compare(one, train_apart(f, setup, 4, QUEUED, -1), "4 ranks");
    compare(one, train_apart(f, setup, 2, PIPED, -1), "2 ranks in parts");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_loss_that_is_not_finite_is_skipped_by_all(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    for (int64_t bad = 0; bad < 4; bad += 3) {
        const snapshot one = train_apart(f, setup, 1, QUEUED, bad);
        compare(one, train_apart(f, setup, 2, QUEUED, bad), "2 ranks");
        free(one.bytes);
    }
    abar_setup_destroy(f->ctx, setup);
}

/* The way of ranks that have a GPU each. */
static void queued_exchanges_over_nccl_have_the_hosts_bits(void **state)
{
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    check_way(*state, NCCL, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    check_way(*state, NCCL, "lenet5", "kfac", RUN "micro=4 tcov=2 tinv=2 clip=0.5 kl-clip=0.0001");
    check_way(*state, NCCL, "lenet5", "adahessian", RUN "micro=6 hessian-every=2");
    check_way(*state, NCCL, "lenet5", "mac", RUN "micro=12 tcov=2 tinv=2 reduce=fast"); /* a sum of two has one order */
}

/* Ranks that have several nodes add them first, on the device or on the host. */
static void queued_fast_sums_of_several_nodes_have_the_bits_of_the_host(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "micro=4 tcov=2 tinv=2 reduce=fast");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot there = train_apart(f, setup, 2, QUEUED, -1);
    compare(there, train_apart(f, setup, 2, NCCL, -1), "2 ranks");
    free(there.bytes);
    abar_setup_destroy(f->ctx, setup);
}

/* One rank wants to stop: after the step both have its word in the device's memory. */
static int stop_one(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < 2; k++) {
        atomic_store(&wants_stop, k == 1 && abar_comm_rank(comm) == 1);
        (void)queued_step_of(j, k, -1);
        const double *words[2];
        for (int r = 0; r < 2; r++)
            words[r] = j->join.numbers + (r * (j->join.count + 1) + j->join.count) * ABAR_RESULT_NUMBERS;
        const bool right = words[0][0] == 0.0 && words[1][0] == (k == 1 ? 1.0 : 0.0);
        if (abar_ranks_agree(f->ctx, comm, right ? ABAR_OK : ABAR_E_STATE, "") < 0) return 3;
    }
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void check_in_child(fixture *f, int (*be_ranks)(fixture *f, abar_setup *setup))
{
    abar_setup *setup = make_setup(f, "mlp", "sgd", RUN "micro=6 widths=784-8-10");
    int status = 0;
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const pid_t child = fork_test();
    if (child == 0) _exit(be_ranks(f, setup));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_wish_to_stop_reaches_all_ranks(void **state) { check_in_child(*state, stop_one); }

static void queued_exchanges_over_nccl_skip_together(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "micro=6 tcov=2 tinv=2");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot one = train_apart(f, setup, 1, QUEUED, 3);
    compare(one, train_apart(f, setup, 2, NCCL, 3), "2 ranks");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

/* The other rank does not come: waiting ends. */
static int wait_for_nobody(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = 0.3};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    events_end = false;
    const double began = abar__seconds();
    const abar_status status = abar__join_wait(&j->join, NULL);
    const double took = abar__seconds() - began;
    if (status != ABAR_E_PEER || !strstr(abar_context_error(f->ctx), "has not ended for 0.3 seconds")) return 3;
    if (took < 0.3 || took > 20.0) return 4;
    if (abar__comm_barrier(comm) != ABAR_E_PEER) return 5; /* later calls fail at once */
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_wait_for_a_rank_that_is_gone_ends(void **state) { check_in_child(*state, wait_for_nobody); }

/* The other rank has failed: its reason comes, long before the timeout. */
static int hear_the_reason(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = 60};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    events_end = false;
    const bool fails = abar_comm_rank(comm) == 1;
    const double began = abar__seconds();
    const abar_status own = fails ? abar__fail(f->ctx, ABAR_E_FORMAT, "bird.jpg: is damaged") : ABAR_OK;
    const abar_status status = fails ? abar__join_tell(&j->join, own) : abar__join_wait(&j->join, NULL);
    if (status != (fails ? ABAR_E_FORMAT : ABAR_E_PEER) || abar__seconds() - began > 30.0) return 3;
    if (!strstr(abar_context_error(f->ctx), "bird.jpg: is damaged")) return 4;
    if (!fails && strncmp(abar_context_error(f->ctx), "rank 1 on ", 10) != 0) return 5;
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_reason_of_a_rank_that_fails_reaches_others(void **state) { check_in_child(*state, hear_the_reason); }

/* NCCL's ranks do not find each other. */
static int connect_to_nobody(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = 0.5};
    abar_comm *comm;
    abar__nccl *nccl;
    abar_device *dev;
    need(f, abar__device_open(f->ctx, setup, &dev));
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    setenv("FAKE_NCCL_HANGS", "1", 1);
    if (abar__exchange_over_nccl(f->ctx, comm, dev, &nccl) != ABAR_E_PEER || nccl) return 3;
    if (!strstr(abar_context_error(f->ctx), "NCCL: the ranks have not connected within 0.5 seconds")) return 4;
    abar_device_close(dev);
    abar_comm_close(comm);
    return 0;
}

static void nccl_that_does_not_connect_ends(void **state) { check_in_child(*state, connect_to_nobody); }

static void nccl_that_is_missing_is_told(void **state)
{
    fixture *f = *state;
    setenv("ABAR_NCCL", "/no/such/libnccl.so.2", 1);
    assert_int_equal(abar__nccl_find(f->ctx), ABAR_E_NOT_FOUND);
    assert_error(f, "NCCL: cannot load /no/such/libnccl.so.2");
    unsetenv("ABAR_NCCL");
}

/* Nothing is joined then: cpu's step without a join has the same bits. */
static void queued_micro_batch_of_the_whole_batch_changes_nothing(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "mac", RUN "micro=24 tcov=2 tinv=2");
    joined *j = calloc(1, sizeof *j);
    build(j, f, setup, NULL, HOST);
    j->e.stepper.join = NULL;
    for (int64_t k = 0; k < STEPS; k++) assert_false(train_on(&j->e, k).skipped);
    const snapshot plain = take(&j->e);
    drop(j);
    memset(j, 0, sizeof *j);
    build(j, f, setup, NULL, QUEUED);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < STEPS; k++) assert_false(queued_step_of(j, k, -1));
    compare(plain, take(&j->e), "one micro-batch");
    drop(j);
    free(j);
    free(plain.bytes);
    abar_setup_destroy(f->ctx, setup);
}

/* The device's rule for sums is the tree's. */
static void merges_of_the_device_are_the_trees(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 130; n++)
        for (int64_t i = 0; i < n; i++) assert_int_equal(abar__join_merges(n, i), abar__tree_merges(n, 0, i));
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_of_the_device_are_the_trees),
        with_fixture(queued_gradients_have_the_hosts_bits),
        with_fixture(queued_nodes_of_any_shape_have_the_hosts_bits),
        with_fixture(queued_statistics_have_the_hosts_bits),
        with_fixture(queued_batch_norms_have_the_hosts_bits),
        with_fixture(queued_sums_of_attention_have_the_hosts_bits),
        with_fixture(queued_further_gradients_have_the_hosts_bits),
        with_fixture(queued_parts_of_a_pipeline_have_the_hosts_bits),
        with_fixture(queued_states_that_ranks_divide_have_the_hosts_bits),
        with_fixture(queued_states_behind_methods_have_the_hosts_bits),
        with_fixture(queued_events_of_divided_blocks_are_counted),
        with_fixture(queued_steps_that_are_skipped_change_no_state),
        with_fixture(queued_refreshes_of_every_kind_have_the_hosts_bits),
        with_fixture(queued_refreshes_are_divided_when_all_are_due),
        with_fixture(queued_drawn_labels_have_the_bits_of_one_rank),
        with_fixture(queued_loss_that_is_not_finite_is_skipped_by_all),
        with_fixture(queued_exchanges_over_nccl_have_the_hosts_bits),
        with_fixture(queued_fast_sums_of_several_nodes_have_the_bits_of_the_host),
        with_fixture(queued_wish_to_stop_reaches_all_ranks),
        with_fixture(queued_exchanges_over_nccl_skip_together),
        with_fixture(queued_wait_for_a_rank_that_is_gone_ends),
        with_fixture(queued_reason_of_a_rank_that_fails_reaches_others),
        with_fixture(nccl_that_does_not_connect_ends),
        with_fixture(nccl_that_is_missing_is_told),
        with_fixture(queued_micro_batch_of_the_whole_batch_changes_nothing), /* the last: it computes in this process */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
