/* Micro-batches and ranks on cuda: the same bits on any number of ranks, through the host's memory on one GPU; and NCCL of one
 * rank within the captured step changes nothing.
 *     test_ranks_cuda [PATTERN]     tests whose names match; !PATTERN: all others
 * A process that has used CUDA cannot fork ranks: every run, with its setup, is in a child. ABAR_TEST_DEVICE=cpu runs all that
 * has a meaning there. */
#include "cuda_testing.h"
#include "data/images_support.h"
#include "ranks_support.h"

#include <math.h>

#define SMALL                                                                                                      \
    "threads=1 workers=1 limit-train=72 limit-test=30 batch=24 micro=6 epochs=2 augment=true " /* 3 steps an epoch \
                                                                                                */
#define CHILD_FAILED 98

/* A run, described before there is a process for it. */
typedef struct run {
    const char *model, *data, *optim, *options;
    const char *more; /* options, too */
    int ranks;
    const char *name; /* of its folder */
    bool resumes;
    void (*watch)(abar_trainer *t, int rank, int64_t calls);
    bool poisoned; /* its data are images of which one is not finite */
} run;

static const char *device_name(void)
{
    const char *given = getenv("ABAR_TEST_DEVICE");
    return given && *given ? given : "cuda";
}

static bool is_cuda(void) { return strncmp(device_name(), "cuda", 4) == 0; }

/* ---- runs in children -----------------------------------------------------------------------------------------------------
 */

enum { SAMPLES = 48, PIXELS = 16, BAD = 17 };
static float images[SAMPLES * PIXELS];
static int32_t labels[SAMPLES];

static abar_status wrap_poisoned(fixture *f, abar_setup *setup)
{
    abar_dataset *data;
    for (int i = 0; i < SAMPLES * PIXELS; i++) images[i] = (float)((i * 37 % 101) - 50) / 50.0f;
    for (int i = 0; i < SAMPLES; i++) labels[i] = i % 3;
    static const float clean[10 * PIXELS] = {0.5f};
    ABAR_TRY(wrap_tiny_images(f, SAMPLES, 10, images, clean, labels, true, &data));
    images[BAD * PIXELS] = NAN; /* what is wrapped is looked at once, and stays the program's */
    return abar_setup_set_data(f->ctx, setup, data);
}

/* "name=value name=value" */
static abar_status set_options(fixture *f, abar_setup *setup, const char *options)
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", options);
    for (char *one = strtok_r(copy, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(one, '=');
        if (!value) return ABAR_E_ARGUMENT;
        *value = '\0';
        ABAR_TRY(abar_setup_set(f->ctx, setup, one, value + 1));
    }
    return ABAR_OK;
}

static abar_status make_run(fixture *f, const run *r, abar_setup **out)
{
    char seed[32], dir[PATH_MAX_TEST];
    path_in(f, r->name, dir);
    if (r->resumes) return abar_setup_load(f->ctx, dir, out);
    const char *data = r->poisoned ? "memory" : r->data ? r->data : "synthetic";
    snprintf(seed, sizeof seed, "%s", test_seed());
    ABAR_TRY(abar_setup_create(f->ctx, r->model, data, r->optim, out));
    ABAR_TRY(abar_setup_set(f->ctx, *out, "seed", seed));
    ABAR_TRY(abar_setup_set(f->ctx, *out, "device", device_name()));
    ABAR_TRY(set_options(f, *out, r->options));
    if (r->more) ABAR_TRY(set_options(f, *out, r->more));
    if (is_cuda()) ABAR_TRY(abar_setup_set(f->ctx, *out, "deterministic", "true"));
    if (r->poisoned) ABAR_TRY(wrap_poisoned(f, *out));
    return abar_setup_set(f->ctx, *out, "out", dir);
}

static void be_rank(fixture *f, const run *r)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = r->ranks};
    const rank_plan plan = {.watch = r->watch};
    abar_comm *comm;
    abar_setup *setup = NULL;
    if (abar_comm_open(f->ctx, &config, &comm) < 0) _exit(CHILD_FAILED);
    abar_status status = make_run(f, r, &setup);
    if (status == ABAR_OK) status = train_rank(f, comm, setup, r->resumes, &plan);
    leave_word(f, abar_comm_rank(comm), status);
    abar_comm_close(comm);
    _exit(0);
}

/* Returns the status of rank 0, whose error the context then has. */
static abar_status go(fixture *f, const run *r)
{
    char path[PATH_MAX_TEST], line[1024] = "";
    int status = 0;
    rank_file(f, 0, path);
    remove(path);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) be_rank(f, r);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s with %s on %d ranks: rank 0 ended with %d", r->model, r->optim, r->ranks, status);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    (void)abar__fail(f->ctx, (abar_status)atoi(line), "%s", strchr(line, ' ') ? strchr(line, ' ') + 1 : "");
    return (abar_status)atoi(line);
}

static void need_run(fixture *f, const run *r)
{
    const double began = abar__seconds();
    const abar_status status = go(f, r);
    if (status < 0)
        fail_msg("%s with %s (%s %s) on %d ranks: %s", r->model, r->optim, r->options, r->more ? r->more : "", r->ranks,
                 abar_context_error(f->ctx));
    print_message("%s, %s, %s on %d: %.1f s\n", r->model, r->optim, r->more ? r->more : "", r->ranks, abar__seconds() - began);
}

/* Two runs that differ in what `second` changes, and leave the same bits. */
static void check_pair(fixture *f, run first, run second)
{
    char a[32], b[32];
    snprintf(a, sizeof a, "first%d", f->runs);
    snprintf(b, sizeof b, "second%d", f->runs++);
    first.name = a;
    second.name = b;
    need_run(f, &first);
    need_run(f, &second);
    assert_same_runs(f, a, b);
}

static void check_ranks(fixture *f, run r, int ranks)
{
    run several = r;
    r.ranks = 1;
    several.ranks = ranks;
    check_pair(f, r, several);
}

/* ---- two ranks on one GPU --------------------------------------------------------------------------------------------------
 */

static void two_ranks_of_sgd_and_muon_have_the_bits_of_one(void **state)
{
    check_ranks(*state, (run){.model = "lenet5", .optim = "sgd", .options = SMALL}, 2);
    check_ranks(*state, (run){.model = "lenet5", .optim = "muon", .options = SMALL, .more = "clip=0.5"}, 2);
}

static void two_ranks_of_mac_have_the_bits_of_one(void **state)
{
    check_ranks(*state, (run){.model = "lenet5", .optim = "mac", .options = SMALL, .more = "tcov=2 tinv=2"}, 2);
}

static void two_ranks_of_kfac_that_clips_have_the_bits_of_one(void **state)
{
    check_ranks(*state,
                (run){.model = "lenet5", .optim = "kfac", .options = SMALL, .more = "tcov=2 tinv=2 kl-clip=0.0001 clip=0.5"},
                2);
}

static void two_ranks_with_batch_norms_have_the_bits_of_one(void **state)
{
    check_ranks(*state,
                (run){.model = "resnet20", .optim = "mac", .options = SMALL, .more = "tcov=2 tinv=2 ema=0.9 ema-steps=2"}, 2);
    check_ranks(*state, (run){.model = "resnet20", .optim = "sfadamw", .options = SMALL, .more = "schedule=constant epochs=1"},
                2);
}

/* Further gradients, after the step and within it. */
static void two_ranks_with_further_passes_have_the_bits_of_one(void **state)
{
    check_ranks(*state, (run){.model = "lenet5", .optim = "sophia", .options = SMALL, .more = "hessian-every=2"}, 2);
    check_ranks(*state, (run){.model = "lenet5", .optim = "adahessian", .options = SMALL, .more = "hessian-every=2 epochs=1"},
                2);
}

/* Three micro-batches each: two nodes of the tree. */
static void two_ranks_with_several_nodes_have_the_bits_of_one(void **state)
{
    check_ranks(*state, (run){.model = "mlp", .optim = "foof", .options = SMALL, .more = "micro=4 widths=784-16-10 tcov=2"}, 2);
}

/* Rows of attention, sums by position, dropout by sample. */
static void two_ranks_with_attention_have_the_bits_of_one(void **state)
{
    check_ranks(
        *state,
        (run){.model = "deit-tiny",
              .optim = "smac",
              .options = SMALL,
              .more = "image-size=32 classes=10 width=64 heads=2 depth=2 drop=0.1 drop-path=0.2 tcov=2 tinv=2 epochs=1"},
        2);
}

static void streamed_images_have_the_bits_of_one_rank(void **state)
{
    fixture *f = *state;
    folder data = make_images(48, 20, 30);
    char spec[300];
    snprintf(spec, sizeof spec, "imagefolder:%s", data.path);
    check_ranks(
        f,
        (run){.model = "resnet50",
              .data = spec,
              .optim = "sgd",
              .options = "size=16 test-resize=28 test-size=24 batch=16 micro=4 mix-group=2 mixup=0.8 cutmix=1 erase=0.5",
              .more = "epochs=1 threads=1 warmup=0 blocks=1-1 width=4 stem=small repeat=2 style=timm"},
        2);
    folder_remove(&data);
}

/* ---- what ranks divide ------------------------------------------------------------------------------------------------------
 */

/* A step with refreshes that are divided, and steps without; inverses and eigenvectors. */
static void two_ranks_that_divide_refreshes_have_the_bits_of_one(void **state)
{
    static const char *const kinds[][2] = {{"kfac", "tcov=1 tinv=2"},
                                           {"kfac", "kfac-inverse=eigen tcov=1 tinv=2 epochs=1"},
                                           {"kfac", "refresh=spread tcov=1 tinv=3 epochs=1"},
                                           {"foof", "tcov=2 tinv=3"},
                                           {"lngd", "tcov=1 tinv=1 epochs=1"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check_ranks(*state, (run){.model = "lenet5", .optim = kinds[i][0], .options = SMALL, .more = kinds[i][1]}, 2);
}

static void two_ranks_that_divide_state_have_the_bits_of_one(void **state)
{
    static const char *const optims[][2] = {{"sgd", "zero=1 clip=0.5"},
                                            {"mac", "zero=1 tcov=2 tinv=2"},
                                            {"kfac", "zero=1 tcov=2 tinv=2 kl-clip=0.0001"},
                                            {"muon", "zero=1 normuon=true"},
                                            {"shampoo", "zero=1 shampoo-start=1 shampoo-freq=2"},
                                            {"soap", "zero=1"},
                                            {"kfac+muon", "zero=1 tcov=1 tinv=2 epochs=1"},
                                            {"adahessian", "zero=1 hessian-every=2 epochs=1"},
                                            {"sophia", "zero=1 hessian-every=2 epochs=1"}};
    for (size_t i = 0; i < sizeof optims / sizeof *optims; i++)
        check_ranks(*state, (run){.model = "lenet5", .optim = optims[i][0], .options = SMALL, .more = optims[i][1]}, 2);
}

/* Equal matrices that one rank multiplies together and two ranks have apart: large ones, that cuBLASLt multiplies. */
static void two_ranks_that_divide_equal_matrices_have_the_bits_of_one(void **state)
{
    check_ranks(
        *state,
        (run){.model = "mlp", .optim = "muon", .options = SMALL, .more = "zero=1 widths=784-512-512-512-512-512-10 epochs=1"},
        2);
}

/* bf16 copies of weights that the other rank updates, and weights that are tested. */
static void two_ranks_that_divide_state_have_all_copies_of_weights(void **state)
{
    fixture *f = *state;
    check_ranks(
        f, (run){.model = "resnet20", .optim = "sfadamw", .options = SMALL, .more = "zero=1 schedule=constant epochs=1"}, 2);
    if (is_cuda())
        check_ranks(f, (run){.model = "resnet20", .optim = "mac", .options = SMALL, .more = "zero=1 precision=bf16 ema=0.9"},
                    2);
}

static void fast_sums_agree_and_replicas_are_equal(void **state)
{
    fixture *f = *state;
    need_run(f, &(run){.model = "lenet5",
                       .optim = "mac",
                       .options = SMALL,
                       .more = "tcov=2 tinv=2 reduce=fast check-replicas=1",
                       .ranks = 2,
                       .name = "fast"});
}

static void loss_that_is_not_finite_in_one_share_is_skipped_by_all(void **state)
{
    fixture *f = *state;
    static const char *const optims[] = {"sgd", "mac"};
    for (int i = 0; i < 2; i++) {
        abar__run_state at;
        char name[32];
        snprintf(name, sizeof name, "second%d", f->runs);
        check_ranks(f,
                    (run){.model = "mlp",
                          .optim = optims[i],
                          .options = "widths=16-8-3 threads=1 workers=0 batch=12 micro=3 epochs=2 lr=0.01 warmup=0",
                          .poisoned = true},
                    2);
        abar__epoch *history = history_of(f, name, &at);
        assert_int_equal(at.skipped, 2); /* of an epoch one */
        abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
    }
}

/* ---- stopping and going on -------------------------------------------------------------------------------------------------
 */

static void stop_second(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 1 && calls == 2) abar_trainer_stop(t); /* one rank alone, within the first epoch */
}

static void run_of_two_ranks_goes_on_with_one(void **state)
{
    fixture *f = *state;
    const run whole = {
        .model = "lenet5", .optim = "mac", .options = SMALL, .more = "tcov=2 tinv=2", .ranks = 1, .name = "whole"};
    run parts = whole;
    need_run(f, &whole);
    parts.name = "parts";
    parts.ranks = 2;
    parts.watch = stop_second;
    assert_int_equal(go(f, &parts), ABAR_STOPPED);
    parts.watch = NULL;
    parts.ranks = 1;
    parts.resumes = true;
    need_run(f, &parts);
    assert_same_runs(f, "whole", "parts");
}

/* And the other way: rank 0 sends what it has read into the memory of another process's device. */
static void stop_first(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 0 && calls == 2) abar_trainer_stop(t);
}

static void run_of_one_rank_goes_on_with_two(void **state)
{
    fixture *f = *state;
    const run whole = {
        .model = "resnet20", .optim = "kfac", .options = SMALL, .more = "tcov=2 tinv=2", .ranks = 1, .name = "whole"};
    run parts = whole;
    need_run(f, &whole);
    parts.name = "parts";
    parts.watch = stop_first;
    assert_int_equal(go(f, &parts), ABAR_STOPPED);
    parts.watch = NULL;
    parts.ranks = 2;
    parts.resumes = true;
    need_run(f, &parts);
    assert_same_runs(f, "whole", "parts");
}

/* State that two ranks divide is rank 0's as a whole in the checkpoint, one rank goes on from it, and two again. */
static void divided_state_goes_on_with_any_number(void **state)
{
    fixture *f = *state;
    const run whole = {.model = "resnet20",
                       .optim = "kfac+muon",
                       .options = SMALL,
                       .more = "zero=1 tcov=2 tinv=2",
                       .ranks = 1,
                       .name = "whole"};
    run parts = whole;
    need_run(f, &whole);
    parts.name = "parts";
    parts.ranks = 2;
    parts.watch = stop_second;
    assert_int_equal(go(f, &parts), ABAR_STOPPED);
    parts.ranks = 1;
    parts.resumes = true;
    parts.watch = stop_first;
    assert_int_equal(go(f, &parts), ABAR_STOPPED);
    parts.ranks = 2;
    parts.watch = NULL;
    need_run(f, &parts);
    assert_same_runs(f, "whole", "parts");
}

/* ---- NCCL
 * -------------------------------------------------------------------------------------------------------------------- */

static bool have_nccl(fixture *f)
{
    int status = 0;
    if (!is_cuda()) return false;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const bool found = abar__nccl_find(f->ctx) == ABAR_OK;
        if (!found) print_message("%s\n", abar_context_error(f->ctx));
        fflush(NULL);
        _exit(found);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

/* No micro-batches on one side: with one of the whole batch nothing is summed in another order. */
static void nccl_of_one_rank_changes_no_bit(void **state)
{
    fixture *f = *state;
    if (!have_nccl(f)) skip();
    static const char *const optims[] = {"sgd", "kfac"};
    for (int i = 0; i < 2; i++) {
        run none = {.model = "resnet20", .optim = optims[i], .options = SMALL, .more = "micro=0", .ranks = 1}, nccl = none;
        nccl.more = "micro=0 transport=nccl";
        check_pair(f, none, nccl);
    }
}

/* 80 MB of gradients: several buckets on a stream of their own, while the backward pass goes on; of one micro-batch, and of
 * several. */
static void nccl_of_one_rank_in_buckets_changes_no_bit(void **state)
{
    fixture *f = *state;
    if (!have_nccl(f)) skip();
    static const char *const more[][2] = {
        {"micro=0 widths=784-4096-4096-10 epochs=1", "micro=0 widths=784-4096-4096-10 epochs=1 transport=nccl"},
        {"micro=8 widths=784-4096-4096-10 epochs=1", "micro=8 widths=784-4096-4096-10 epochs=1 transport=nccl"}};
    for (int i = 0; i < 2; i++) {
        const run none = {.model = "mlp", .optim = "mac", .options = SMALL, .more = more[i][0], .ranks = 1};
        run nccl = none;
        nccl.more = more[i][1];
        check_pair(f, none, nccl);
    }
}

static void nccl_of_one_rank_that_divides_state_changes_no_bit(void **state)
{
    fixture *f = *state;
    if (!have_nccl(f)) skip();
    static const char *const optims[][2] = {{"sgd", "micro=0 transport=nccl zero=1"},
                                            {"kfac", "micro=0 tcov=2 tinv=3 transport=nccl zero=1"},
                                            {"kfac+muon", "micro=0 tcov=1 tinv=2 transport=nccl zero=1"},
                                            {"soap", "micro=0 transport=nccl zero=1"},
                                            {"sfadamw", "micro=0 schedule=constant transport=nccl zero=1"}};
    for (size_t i = 0; i < sizeof optims / sizeof *optims; i++) {
        char plain[96];
        snprintf(plain, sizeof plain, "%.*s", (int)(strstr(optims[i][1], " transport") - optims[i][1]), optims[i][1]);
        const run none = {.model = "lenet5", .optim = optims[i][0], .options = SMALL, .more = plain, .ranks = 1};
        run nccl = none;
        nccl.more = optims[i][1];
        check_pair(f, none, nccl);
    }
}

static void nccl_of_one_rank_sums_micro_batches_as_before(void **state)
{
    fixture *f = *state;
    if (!have_nccl(f)) skip();
    run none = {.model = "resnet20", .optim = "mac", .options = SMALL, .more = "tcov=2", .ranks = 1}, nccl = none;
    nccl.more = "tcov=2 transport=nccl";
    check_pair(f, none, nccl);
    nccl.more = "tcov=2 transport=nccl reduce=fast";
    check_pair(f, none, nccl);
}

static void nccl_of_two_ranks_on_one_gpu_is_refused(void **state)
{
    fixture *f = *state;
    if (!is_cuda()) skip();
    const run r = {.model = "mlp",
                   .optim = "sgd",
                   .options = SMALL,
                   .more = "transport=nccl widths=784-8-10 device=cuda:0",
                   .ranks = 2,
                   .name = "refused"};
    assert_int_equal(go(f, &r), ABAR_E_UNSUPPORTED);
    assert_error(f, "--transport nccl: ");
}

/* ---- the program
 * ---------------------------------------------------------------------------------------------------------------- */

static int missing_in_child(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int missing = cuda_missing();
        fflush(NULL);
        _exit(missing);
    }
    return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(int argc, char **argv)
{
    const int missing = is_cuda() ? missing_in_child() : 0;
    if (missing) return missing;
    cuda_choose_tests(argc, argv);
    const struct CMUnitTest tests[] = {
        with_fixture(two_ranks_of_sgd_and_muon_have_the_bits_of_one),
        with_fixture(two_ranks_of_mac_have_the_bits_of_one),
        with_fixture(two_ranks_of_kfac_that_clips_have_the_bits_of_one),
        with_fixture(two_ranks_with_batch_norms_have_the_bits_of_one),
        with_fixture(two_ranks_with_further_passes_have_the_bits_of_one),
        with_fixture(two_ranks_with_several_nodes_have_the_bits_of_one),
        with_fixture(two_ranks_with_attention_have_the_bits_of_one),
        with_fixture(streamed_images_have_the_bits_of_one_rank),
        with_fixture(two_ranks_that_divide_refreshes_have_the_bits_of_one),
        with_fixture(two_ranks_that_divide_state_have_the_bits_of_one),
        with_fixture(two_ranks_that_divide_equal_matrices_have_the_bits_of_one),
        with_fixture(two_ranks_that_divide_state_have_all_copies_of_weights),
        with_fixture(fast_sums_agree_and_replicas_are_equal),
        with_fixture(loss_that_is_not_finite_in_one_share_is_skipped_by_all),
        with_fixture(run_of_two_ranks_goes_on_with_one),
        with_fixture(run_of_one_rank_goes_on_with_two),
        with_fixture(divided_state_goes_on_with_any_number),
        with_fixture(nccl_of_one_rank_changes_no_bit),
        with_fixture(nccl_of_one_rank_in_buckets_changes_no_bit),
        with_fixture(nccl_of_one_rank_that_divides_state_changes_no_bit),
        with_fixture(nccl_of_one_rank_sums_micro_batches_as_before),
        with_fixture(nccl_of_two_ranks_on_one_gpu_is_refused),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
