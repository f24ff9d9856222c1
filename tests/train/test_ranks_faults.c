/* Ranks that do not fit together, drift apart, fail or die: the difference, or the rank, is named, and nobody waits for ever.
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include "data/images_support.h"
#include "ranks_support.h"

#include "comm/comm_impl.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <sys/resource.h>

#define RUN "device=cpu threads=1 workers=0 limit-train=72 limit-test=30 batch=24 micro=6 epochs=2 "

/* ---- what must be equal ---------------------------------------------------------------------------------------------------
 */

static const char *other_name, *other_value; /* what rank 2 has set */

static void change_third(fixture *f, abar_setup *setup, int rank)
{
    if (rank == 2) set(f, setup, other_name, other_value);
}

static void ranks_with_other_settings_are_refused(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.change = change_third};
    static const char *const others[][3] = {
        {"lr", "0.07", "--lr is 0.07, on rank 0 it is 0.05, all ranks must have the same"},
        {"batch", "12", "--batch is 12, on rank 0 it is 24"},
        {"micro", "2", "--micro is 2, on rank 0 it is 6"},
        {"seed", "12345678", "--seed is 12345678, on rank 0 it is"},
        {"momentum", "0.5", "--momentum is 0.5, on rank 0 it is 0.9"},
        {"limit-train", "48", "--limit-train is 48, on rank 0 it is 72"},
        {"reduce", "fast", "--reduce is fast, on rank 0 it is fixed"},
        {"device", "ref", "--device is ref, on rank 0 it is cpu"},
        {"threads", "2", "--threads is 2, on rank 0 it is 1"},
        {"tcov", "9", "--tcov is 9, on rank 0 it is"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "lr=0.05");
        other_name = others[i][0];
        other_value = others[i][1];
        assert_int_equal(run_ranks(f, setup, 4, false, &plan), ABAR_E_ARGUMENT);
        assert_error(f, "rank 2 on ");
        assert_error(f, others[i][2]);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* Samples in memory that each process has for itself. */
enum { SAMPLES = 48, PIXELS = 16 };
static uint8_t images[SAMPLES * PIXELS];
static int32_t labels[SAMPLES];

static void change_data(fixture *f, abar_setup *setup, int rank)
{
    (void)f;
    (void)setup;
    if (rank == 1) images[40 * PIXELS + 3] ^= 1;
}

static void ranks_with_other_data_are_refused(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.change = change_data};
    abar_dataset *data;
    abar_setup *setup;
    need(f, wrap_tiny_images(f, SAMPLES, 10, images, images, labels, false, &data));
    need(f, abar_setup_create(f->ctx, "mlp", "memory", "sgd", &setup));
    set_all(f, setup, "widths=16-8-3 threads=1 batch=12 micro=3 epochs=1 device=cpu");
    need(f, abar_setup_set_data(f->ctx, setup, data));
    need_ranks(f, setup, 2, false, NULL);
    assert_int_equal(run_ranks(f, setup, 2, false, &plan), ABAR_E_ARGUMENT);
    assert_error(f, "rank 1 on ");
    assert_error(f, "the training data is 48 samples with CRC-32");
    abar_setup_destroy(f->ctx, setup);
    abar_dataset_close(data);
}

static void ranks_that_do_not_divide_the_batch_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN);
    assert_int_equal(run_ranks(f, setup, 3, false, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "3 ranks: do not divide the 4 micro-batches of --batch 24, --micro 6, use 2, or");
    set_all(f, setup, "micro=0");
    assert_int_equal(run_ranks(f, setup, 5, false, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "--batch 24: is not a multiple of the 5 ranks");
    abar_setup_destroy(f->ctx, setup);
}

static void use_all_cores(fixture *f, abar_setup *setup, int rank)
{
    (void)rank;
    set(f, setup, "threads", "0");
}

/* Each has one: so the setting is in the run. */
static void expect_one_thread(abar_trainer *t, int rank, int64_t calls)
{
    (void)rank, (void)calls;
    if (t->setup->train.threads != 1) _exit(4);
}

/* As in a container that may use some cores of a large machine, or under taskset: the ranks share what they may use. */
static void ranks_share_the_cores_that_they_may_use(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.change = use_all_cores, .watch = expect_one_thread};
    abar_setup *setup = make_setup(f, "mlp", "sgd", RUN "widths=784-8-10 epochs=1");
    cpu_set_t before, two;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&two);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &two);
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    const abar_status status = run_ranks(f, setup, 2, false, &plan);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(status, ABAR_OK);
    abar_setup_destroy(f->ctx, setup);
}

/* Rank 0 has one beside, which notices ranks that end. */
static void count_threads(abar_trainer *t, int rank, int64_t calls)
{
    int tasks = 0;
    DIR *list = opendir("/proc/self/task");
    (void)t;
    while (list && readdir(list)) tasks++;
    if (list) closedir(list);
    if (calls > 1 || tasks - 2 <= (rank == 0 ? 2 : 1)) return; /* without . and .. */
    fprintf(stderr, "rank %d: %d threads\n", rank, tasks - 2);
    abort();
}

/* --threads 1 is meant where every core has a rank: also while weights are drawn. */
static void ranks_with_one_thread_start_no_others(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = count_threads};
    abar_setup *setup = make_setup(f, "lenet5", "kfac", RUN);
    need_ranks(f, setup, 2, false, &plan);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- replicas --------------------------------------------------------------------------------------------------------------
 */

static void spoil_weight(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 1 && calls == 2) ((float *)abar_net_param(t->net, 3)->value.data)[1] += 1.0f;
}

static void ranks_whose_replicas_differ_save_nothing(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = spoil_weight};
    char text[128], path[PATH_MAX_TEST];
    static const char *const when[] = {"check-replicas=2", "checkpoint-every=2", "epochs=1"};
    for (int i = 0; i < 3; i++) {
        char name[16];
        abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN);
        set_all(f, setup, when[i]);
        snprintf(name, sizeof name, "run%d", i);
        set_out(f, setup, name);
        assert_int_equal(run_ranks(f, setup, 2, false, &plan), ABAR_E_STATE);
        assert_error(f, "rank 1 on ");
        snprintf(text, sizeof text, ": its conv2.bias is not that of rank 0 in epoch 1, step %d, nothing was saved",
                 i < 2 ? 2 : 3);
        assert_error(f, text);
        snprintf(path, sizeof path, "%s/%s/state.safetensors", f->dir, name);
        assert_int_not_equal(access(path, F_OK), 0);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void spoil_and_stop(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 1 && calls == 1) ((float *)abar_net_param(t->net, 3)->value.data)[1] += 1.0f;
    if (rank == 0 && calls == 1) abar_trainer_stop(t);
}

static void ranks_that_stop_with_other_replicas_save_nothing(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = spoil_and_stop};
    char path[PATH_MAX_TEST];
    abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN);
    set_out(f, setup, "run");
    assert_int_equal(run_ranks(f, setup, 2, false, &plan), ABAR_E_STATE);
    assert_error(f, "is not that of rank 0 in epoch 1, step 2, nothing was saved");
    path_in(f, "run/state.safetensors", path);
    assert_int_not_equal(access(path, F_OK), 0);
    abar_setup_destroy(f->ctx, setup);
}

static abar_status spoil_tensor(void *user, const char *name, const abar_tensor *tensor)
{
    bool *done = user;
    if (!*done && strstr(name, "conv2.bias")) ((float *)tensor->data)[1] += 1.0f, *done = true;
    return ABAR_OK;
}

static void spoil_state(abar_trainer *t, int rank, int64_t calls)
{
    bool done = false;
    if (rank == 1 && calls == 2) (void)abar_optim_visit(t->optim, spoil_tensor, &done);
}

static void spoil_average(abar_trainer *t, int rank, int64_t calls)
{
    bool done = false;
    for (int i = 0; i < abar_net_tensor_count(t->net) && rank == 1 && calls == 2; i++) {
        const char *name;
        abar_tensor tensor;
        abar__ema_tensor(&t->average, i, &name, &tensor);
        (void)spoil_tensor(&done, name, &tensor);
    }
}

/* At once, before it has come to the weights. */
static void ranks_whose_state_or_average_differs_save_nothing(void **state)
{
    static void (*const spoil[])(abar_trainer * t, int rank, int64_t calls) = {spoil_state, spoil_average};
    static const char *const named[] = {
        ": its momentum.conv2.bias is not that of rank 0 in epoch 1, step 2, nothing was saved",
        ": its average of conv2.bias is not that of rank 0 in epoch 1, step 2, nothing was saved"};
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        const rank_plan plan = {.watch = spoil[i]};
        abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN "check-replicas=2 ema=0.9 ema-steps=1");
        assert_int_equal(run_ranks(f, setup, 2, false, &plan), ABAR_E_STATE);
        assert_error(f, "rank 1 on ");
        assert_error(f, named[i]);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* ---- ranks that fail -------------------------------------------------------------------------------------------------------
 */

static void die(abar_trainer *t, int rank, int64_t calls)
{
    (void)t;
    if (rank == 1 && calls == 5) raise(SIGKILL); /* in the second epoch: reports are also of ends of epochs */
}

static void ranks_that_die_end_the_run_and_others_go_on_from_its_checkpoint(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = die, .timeout = 20.0};
    char dir[PATH_MAX_TEST];
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN);
    set_out(f, setup, "whole");
    need_ranks(f, setup, 1, false, NULL);
    set_out(f, setup, "broken");
    assert_int_equal(run_ranks(f, setup, 4, false, &plan), ABAR_E_PEER);
    assert_error(f, "rank 1 on ");
    abar_setup_destroy(f->ctx, setup);
    path_in(f, "broken", dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    need_ranks(f, setup, 2, true, NULL);
    assert_same_runs(f, "whole", "broken");
    abar_setup_destroy(f->ctx, setup);
}

/* One file cannot be read: the rank that has it in its share says so, and rank 0 has its words. */
static void ranks_that_cannot_read_their_data_tell_the_others(void **state)
{
    fixture *f = *state;
    folder data = make_images(48, 20, 30);
    char spec[300], name[64];
    abar_setup *setup;
    snprintf(spec, sizeof spec, "imagefolder:%s", data.path);
    need(f, abar_setup_create(f->ctx, "resnet50", spec, "sgd", &setup));
    set_all(f, setup,
            "size=16 test-resize=28 test-size=24 batch=16 micro=4 mix-group=2 epochs=1 threads=1 device=cpu warmup=0 "
            "blocks=1-1 width=4 stem=small damaged=fail repeat=1");
    uint8_t zeros[200] = {0};
    image_name(false, 7, name);
    folder_write(&data, name, (bytes){zeros, sizeof zeros});
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        assert_true(run_ranks(f, setup, ranks, false, NULL) < 0);
        assert_error(f, name);
    }
    abar_setup_destroy(f->ctx, setup);
    folder_remove(&data);
}

/* Rank 1 cannot open another file, once the epoch's steps are done. */
static void close_files(abar_trainer *t, int rank, int64_t calls)
{
    struct rlimit none;
    if (rank != 1 || calls != t->steps) return;
    if (getrlimit(RLIMIT_NOFILE, &none)) abort();
    none.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &none)) abort();
}

/* Between the steps and the tests of a rule that averages, batch norms' statistics are estimated from images. */
static void ranks_that_cannot_read_their_data_after_the_steps_tell_the_others(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = close_files};
    folder data = make_images(48, 20, 30);
    char spec[300];
    abar_setup *setup;
    snprintf(spec, sizeof spec, "imagefolder:%s", data.path);
    need(f, abar_setup_create(f->ctx, "resnet50", spec, "sfadamw", &setup));
    set_all(f, setup,
            "size=16 test-resize=28 test-size=24 batch=16 micro=4 mix-group=2 epochs=2 threads=1 device=cpu warmup=0 "
            "schedule=constant "
            "blocks=1-1 width=4 stem=small damaged=fail repeat=1 workers=0");
    need_ranks(f, setup, 2, false, NULL);
    assert_true(run_ranks(f, setup, 2, false, &plan) < 0);
    assert_error(f, "rank 1 on ");
    assert_error(f, "Too many open files");
    abar_setup_destroy(f->ctx, setup);
    folder_remove(&data);
}

/* The second pass of a step, in which one rank meets a loss that is not finite. */
static int end_second_pass(fixture *f)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_comm *comm;
    abar__join join;
    abar__stepper none = {0};
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    const abar__join_config parts = {.comm = comm, .n = 4};
    if (abar__join_create(f->ctx, &parts, &join) < 0) return 3;
    for (int bad = 0; bad < 3; bad++) { /* the rank; 2: none */
        const int rank = abar_comm_rank(comm);
        bool finite = rank != bad;
        for (int64_t i = 0; i < join.count; i++) join.results[rank * (join.count + 1) + i].finite = 1.0;
        if (rank == bad) abar__join_spoil(&join, 1);
        if (abar__join_second_end(&join, &none, ABAR_OK, &finite) < 0) return 4;
        const abar_status same = finite == (bad == 2) ? ABAR_OK : ABAR_E_STATE;
        if (abar_ranks_agree(f->ctx, comm, same, "") < 0) return 5;
    }
    abar__join_release(&join);
    abar_comm_close(comm);
    return 0;
}

static void ranks_undo_a_step_together_whose_second_pass_is_not_finite(void **state)
{
    int status;
    const pid_t child = fork_test();
    if (child == 0) _exit(end_second_pass(*state));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void write_nothing(fixture *f, abar_setup *setup, int rank)
{
    char path[PATH_MAX_TEST];
    if (rank != 0) return;
    path_in(f, "file/run", path); /* below a file */
    set(f, setup, "out", path);
}

static void ranks_are_told_that_the_folder_cannot_be_written(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.change = write_nothing};
    char path[PATH_MAX_TEST], line[256];
    abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN);
    path_in(f, "file", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_true(run_ranks(f, setup, 2, false, &plan) < 0);
    rank_file(f, 1, path);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_non_null(strstr(line, "rank 0 on "));
    abar_setup_destroy(f->ctx, setup);
}

/* ---- bytes on the wire ------------------------------------------------------------------------------------------------------
 */

static uint64_t sent_before;

/* docs/scaling.md: R ranks, n micro-batches, one node a rank. */
static uint64_t expected_bytes(const abar_trainer *t, bool observed)
{
    const abar__net_blocks b = abar__net_blocks_of(t->net);
    const uint64_t ranks = 4, each = (uint64_t)t->join.count, round = 16;
    const uint64_t sizes[2] = {b.value_bytes / 4, observed ? (uint64_t)t->join.pending.capacity : 0}, element[2] = {4, 8};
    uint64_t sum = (ranks - 1) * (each + 1) * 32 + (ranks - 1) * each * b.running_bytes;
    for (int i = 0; i < 2; i++) {
        const uint64_t align = round * 4 / element[i], part = (sizes[i] + ranks - 1) / ranks;
        const uint64_t own = (part + align - 1) / align * align; /* of rank 0 */
        sum += (sizes[i] - own) * element[i] + (ranks - 1) * own * element[i];
    }
    return sum;
}

static void count_bytes(abar_trainer *t, int rank, int64_t calls)
{
    const uint64_t sent = abar__comm_sent(t->comm), step = sent - sent_before;
    sent_before = sent;
    if (rank != 0 || calls < 2 || t->at.step == 0) return;
    const uint64_t expected = expected_bytes(t, calls % 2 == 1); /* the first step is that of call 1 */
    if (step == expected) return;
    fprintf(stderr, "call %d: %llu bytes were sent, expected %llu\n", (int)calls, (unsigned long long)step,
            (unsigned long long)expected);
    abort();
}

static void ranks_send_the_bytes_that_the_formula_says(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = count_bytes};
    abar_setup *setup =
        make_setup(f, "resnet50", "kfac",
                   "device=cpu threads=1 workers=0 limit-train=96 limit-test=16 batch=16 micro=2 epochs=1 tcov=2 "
                   "blocks=1-1 width=4 classes=5 image-size=16");
    need_ranks(f, setup, 4, false, &plan);
    abar_setup_destroy(f->ctx, setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_with_other_settings_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_other_data_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_that_do_not_divide_the_batch_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_one_thread_start_no_others, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_share_the_cores_that_they_may_use, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_whose_replicas_differ_save_nothing, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_that_stop_with_other_replicas_save_nothing, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_whose_state_or_average_differs_save_nothing, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_that_die_end_the_run_and_others_go_on_from_its_checkpoint, make_fixture,
                                        drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_that_cannot_read_their_data_tell_the_others, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_that_cannot_read_their_data_after_the_steps_tell_the_others, make_fixture,
                                        drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_undo_a_step_together_whose_second_pass_is_not_finite, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_are_told_that_the_folder_cannot_be_written, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_send_the_bytes_that_the_formula_says, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
