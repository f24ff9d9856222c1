/* What ranks divide in the optimizer's step, and each other's parts of which they receive: the same bits as on one rank,
 * whatever happens to a part, and the bytes that docs/scaling.md says. */
#include "data/images_support.h"
#include "ranks_support.h"
#include "text_support.h"

#include "comm/comm.h"
#include "optim/optim_impl.h"

#define RUN "device=cpu threads=1 workers=1 limit-train=72 limit-test=30 batch=24 micro=6 epochs=1 augment=true "

static const int usual[] = {1, 2, 4, 0};

/* ---- refreshes ---------------------------------------------------------------------------------------------------------- */

static void owners_refreshes_of_every_kind_give_the_same_bits(void **state)
{
    static const char *const kinds[][2] = {{"kfac", "kfac-inverse=eigen tinv=1 tcov=1"},
                                           {"kfac", "refresh=spread tinv=3 tcov=1"},
                                           {"foof", "refresh=spread tinv=2 tcov=2"},
                                           {"lngd", "tcov=1 tinv=1"},
                                           {"kpsvd", "kpsvd-terms=2 tcov=1 tinv=1"},
                                           {"skfac", "tcov=1 tinv=1"},
                                           {"kfac+muon", "tcov=2 tinv=2"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        abar_setup *setup = make_setup(f, "lenet5", kinds[i][0], RUN);
        set_all(f, setup, kinds[i][1]);
        check_same(f, setup, kinds[i][0], usual);
    }
}

/* Every rank counts every rung, whoever climbed it. */
static void count_rungs(abar_trainer *t, int rank, int64_t calls)
{
    int64_t raised = 0;
    for (int i = 0; i < abar_optim_map_count(t->optim); i++) raised += abar_optim_map(t->optim, i)->raised;
    if (calls < 3 || raised > 0) return;
    fprintf(stderr, "rank %d: no factor was singular\n", rank);
    abort();
}

static void owners_dampings_that_are_raised_are_the_same_on_all(void **state)
{
    static const char *const methods[][2] = {{"kfac", "damping=1e-28"}, {"foof", "damping=1e-12"}, {"kpsvd", "damping=1e-28"}};
    const rank_plan plan = {.watch = count_rungs};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        abar_setup *setup = make_setup(f, "lenet5", methods[i][0], RUN "tcov=1 tinv=1 lr=1e-4");
        set_all(f, setup, methods[i][1]);
        check_with(f, setup, methods[i][0], usual, &plan);
    }
}

/* ---- bytes on the wire --------------------------------------------------------------------------------------------------- */

static uint64_t sent_before;

/* Of this rank: longest processing time first, by d^3 of both factors. */
static uint64_t refresh_bytes(const abar_trainer *t, int rank)
{
    enum { RANKS = 4, STATE = 13 * 8 };
    const int n = abar_optim_map_count(t->optim);
    double load[RANKS] = {0.0};
    uint64_t sum = 0;
    bool given[64] = {false};
    for (int taken = 0; taken < n; taken++) {
        int64_t size[2] = {0, 0};
        double most = -1.0;
        int next = 0, least = 0;
        for (int i = 0; i < n; i++) {
            const abar_map_info m = *abar_optim_map(t->optim, i);
            const double cost = (double)(m.rows * m.rows * m.rows) + (double)(m.columns * m.columns * m.columns);
            if (given[i] || cost <= most) continue;
            next = i;
            most = cost;
            size[0] = m.rows;
            size[1] = m.columns;
        }
        given[next] = true;
        for (int r = 1; r < RANKS; r++)
            if (load[r] < load[least]) least = r;
        load[least] += most;
        if (least == rank) sum += (uint64_t)(STATE + 4 * (size[0] * size[0] + size[1] * size[1]));
    }
    return (RANKS - 1) * sum;
}

/* The difference between a step that refreshes and one that does not. Both take statistics, or neither. */
static void count_bytes(abar_trainer *t, int rank, int64_t calls)
{
    static uint64_t usual_step;
    const uint64_t sent = abar__comm_sent(t->comm), step = sent - sent_before;
    sent_before = sent;
    if (t->at.step == 0) return;
    if (calls == 2) usual_step = step; /* the second step: the first one refreshes, as does the third */
    if (calls != 3) return;
    const uint64_t expected = usual_step + refresh_bytes(t, rank);
    if (step == expected && refresh_bytes(t, rank) > 0) return;
    fprintf(stderr, "rank %d: %llu bytes were sent, expected %llu\n", rank, (unsigned long long)step,
            (unsigned long long)expected);
    abort();
}

static void owners_send_the_bytes_that_the_formula_says(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = count_bytes};
    abar_setup *setup = make_setup(f, "lenet5", "kfac", RUN "tcov=1 tinv=2");
    sent_before = 0;
    need_ranks(f, setup, 4, false, &plan);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- --zero 1 ------------------------------------------------------------------------------------------------------------ */

/* Trains on one rank, which has all, and with divided state on several: nothing that the runs leave may differ. */
static void check_zero(fixture *f, const char *model, const char *optim, const char *options, const char *more)
{
    static const int several[] = {1, 2, 4, 0};
    abar_setup *setup = make_setup(f, model, optim, options);
    set_all(f, setup, more);
    set_all(f, setup, "zero=1");
    check_same(f, setup, optim, several);
}

static void zero_every_rule_gives_the_same_bits(void **state)
{
    for (const char *const *r = abar_rule_names(); *r; r++) {
        const bool extra = strcmp(*r, "sophia") == 0 || strcmp(*r, "adahessian") == 0;
        check_zero(*state, "lenet5", *r, RUN "clip=0.5",
                   extra                        ? "hessian-every=2"
                   : strcmp(*r, "sfadamw") == 0 ? "schedule=constant"
                   : strcmp(*r, "muon") == 0    ? "normuon=true"
                                                : "lr=0.02");
    }
}

/* Each rank meets the events of its own blocks; the checkpoint has those of all. */
static void count_small(abar_trainer *t, int rank, int64_t calls)
{
    if (calls < 3 || abar_optim_blocks(t->optim)->small >= 8) return;
    fprintf(stderr, "rank %d: %lld small blocks\n", rank, (long long)abar_optim_blocks(t->optim)->small);
    abort();
}

static void zero_events_of_all_blocks_are_counted(void **state)
{
    const rank_plan plan = {.watch = count_small};
    check_with(*state, make_setup(*state, "lenet5", "muon", RUN "muon-eps=1 clip=0.01 zero=1"), "muon", usual, &plan);
}

/* The second layer hardly ever gets a gradient: its factors have no roots, and its owner keeps what it has. */
static abar_value build_idle(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    x = abar_linear(net, abar_flatten(net, x), "first", &ABAR_CONFIG(abar_linear_config, .out = 12, .bias = true));
    abar_value branch = abar_linear(net, abar_relu(net, x), "idle", &ABAR_CONFIG(abar_linear_config, .out = 12, .bias = true));
    x = abar_add(net, x, abar_drop_path(net, branch, 0.9999));
    return abar_linear(net, abar_relu(net, x), "last", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

/* Events of other kinds that were counted before stay counted. */
static void count_kept(abar_trainer *t, int rank, int64_t calls)
{
    abar_optim *o = t->optim;
    const bool steps = calls == 1 || calls == 2;
    if (!steps || abar__optim_pull(o) < 0) return;
    if (calls == 1) o->step_state.dropped += 7;
    if (calls == 1 && abar__optim_push(o) == ABAR_OK) return;
    if (o->step_state.kept >= 2 && o->step_state.dropped == 7) return;
    fprintf(stderr, "rank %d: %lld kept, %lld dropped\n", rank, (long long)o->step_state.kept,
            (long long)o->step_state.dropped);
    abort();
}

static void zero_roots_that_are_kept_are_counted_by_all(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = count_kept};
    abar_setup *setup = make_setup(f, "own", "shampoo", RUN "zero=1 shampoo-eps=0 shampoo-start=1 shampoo-freq=1 lr=1e-4");
    need(f, abar_setup_set_network(f->ctx, setup, build_idle, NULL));
    check_with(f, setup, "shampoo", usual, &plan);
}

static void zero_behind_methods_gives_the_same_bits(void **state)
{
    static const char *const behind[][2] = {{"mac", "tcov=1 tinv=2 ema=0.9 ema-steps=2"},
                                            {"kfac", "tcov=1 tinv=1 kl-clip=0.0001"},
                                            {"kfac+shampoo", "tcov=1 tinv=2"},
                                            {"foof+muon", "tcov=1 tinv=2"},
                                            {"mac+adamw", "tcov=2 tinv=2"},
                                            {"mfac", "mfac-gradients=4"}};
    for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) check_zero(*state, "lenet5", behind[i][0], RUN, behind[i][1]);
}

static void zero_with_norms_and_attention_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    check_zero(f, "resnet50", "sfadamw", RUN "blocks=1-1 width=4 classes=5 image-size=16 schedule=constant", "lr=0.01");
    abar_setup *setup = text_setup(f, "mac+muon", "device=cpu threads=1 batch=8 micro=2 epochs=1 tcov=2 zero=1");
    check_same(f, setup, "gpt-char", usual);
}

static void zero_methods_that_need_all_momentum_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "kbfgs", RUN "zero=1");
    assert_int_equal(run_ranks(f, setup, 2, false, NULL), ABAR_E_UNSUPPORTED);
    assert_error(f, "--zero 1: the method needs the momentum of all parameters on every rank, use --zero 0");
    abar_setup_destroy(f->ctx, setup);
}

static void stop_second(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 1 && calls == 4) abar_trainer_stop(t);
}

static void stop_first(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 0 && calls == 2) abar_trainer_stop(t);
}

/* The checkpoint has the state of all parameters: other ranks, or one that divides nothing, go on from it. */
static void zero_runs_resume_on_any_number(void **state)
{
    static const char *const optimizers[] = {"adamw", "soap", "mac+muon", NULL};
    const rank_plan second = {.watch = stop_second}, first = {.watch = stop_first};
    fixture *f = *state;
    for (int i = 0; optimizers[i]; i++) {
        char whole[32], parts[32], dir[PATH_MAX_TEST];
        abar_setup *setup = make_setup(f, "lenet5", optimizers[i], RUN "micro=2 epochs=4 zero=1");
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(parts, sizeof parts, "parts%d", i);
        set_out(f, setup, whole);
        need_ranks(f, setup, 1, false, NULL);
        set_out(f, setup, parts);
        assert_int_equal(run_ranks(f, setup, 4, false, &second), ABAR_STOPPED);
        abar_setup_destroy(f->ctx, setup);
        path_in(f, parts, dir);
        need(f, abar_setup_load(f->ctx, dir, &setup));
        assert_int_equal(setup->train.zero, 1);
        assert_int_equal(run_ranks(f, setup, 1, true, &first), ABAR_STOPPED);
        assert_int_equal(run_ranks(f, setup, 2, true, &first), ABAR_STOPPED);
        set(f, setup, "zero", "0");
        assert_int_equal(run_ranks(f, setup, 4, true, &first), ABAR_STOPPED);
        set(f, setup, "zero", "1");
        need_ranks(f, setup, 3, true, NULL);
        assert_same_runs(f, whole, parts);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* Of adamw on lenet5, (4 ranks): two numbers a parameter. The largest module, fc1, is one rank's. */
static void check_shares(abar_trainer *t, int rank, int64_t calls)
{
    enum { RANKS = 4 };
    uint64_t own = abar_optim_state_bytes(t->optim), all[RANKS], sum = 0, whole = 0, largest = 0;
    if (calls > 1) return;
    if (abar__comm_gather(t->comm, &own, sizeof own, all) < 0) abort();
    for (int r = 0; r < RANKS; r++) {
        sum += all[r];
        largest = all[r] > largest ? all[r] : largest;
    }
    for (int i = 0; i < abar_net_param_count(t->net); i++)
        whole += 2 * ((uint64_t)abar_tensor_bytes(&abar_net_param(t->net, i)->value) + 63) / 64 * 64;
    if (sum <= whole + 64 * 20 && sum + 64 * 20 >= whole && largest < whole * 9 / 10) return;
    fprintf(stderr, "rank %d: state of %llu bytes, of all %llu, the most %llu\n", rank, (unsigned long long)sum,
            (unsigned long long)whole, (unsigned long long)largest);
    abort();
}

static void zero_state_is_kept_once(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = check_shares};
    abar_setup *setup = make_setup(f, "lenet5", "adamw", RUN "zero=1");
    need_ranks(f, setup, 4, false, &plan);
    abar_setup_destroy(f->ctx, setup);
}

/* docs/scaling.md: beside a step without it, a rank sends the weights that it owns to the others, and counts of 24 bytes where
 * the rule has blocks. All ranks together send all weights. */
static uint64_t plain_bytes[2];

static void count_zero(abar_trainer *t, int rank, int64_t calls)
{
    enum { RANKS = 4 };
    const uint64_t sent = abar__comm_sent(t->comm), step = sent - sent_before;
    uint64_t all[RANKS], sum = 0;
    char path[PATH_MAX_TEST];
    sent_before = sent;
    if (calls != 2) return;
    if (abar__comm_gather(t->comm, &step, sizeof step, all) < 0) abort();
    for (int r = 0; r < RANKS; r++) sum += all[r];
    if (rank > 0) return;
    snprintf(path, sizeof path, "%s-bytes%d", getenv("ABAR_TEST_BYTES"), (int)t->setup->train.zero);
    FILE *file = fopen(path, "w");
    if (!file) abort();
    fprintf(file, "%llu\n", (unsigned long long)sum);
    fclose(file);
}

static void zero_sends_the_bytes_that_the_formula_says(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = count_zero};
    static const char *const rules[] = {"adamw", "muon"};
    const uint64_t weights = 4 * 61706; /* lenet5, without the padding between the ranks' parts */
    char path[PATH_MAX_TEST];
    path_in(f, "sum", path);
    setenv("ABAR_TEST_BYTES", path, 1);
    for (int i = 0; i < 2; i++) {
        for (int zero = 0; zero < 2; zero++) {
            char name[PATH_MAX_TEST + 16], text[64] = "";
            abar_setup *setup = make_setup(f, "lenet5", rules[i], RUN);
            set(f, setup, "zero", zero ? "1" : "0");
            sent_before = 0;
            need_ranks(f, setup, 4, false, &plan);
            abar_setup_destroy(f->ctx, setup);
            snprintf(name, sizeof name, "%s-bytes%d", path, zero);
            FILE *file = fopen(name, "r");
            assert_non_null(file);
            assert_non_null(fgets(text, sizeof text, file));
            fclose(file);
            plain_bytes[zero] = strtoull(text, NULL, 10);
        }
        const uint64_t more = plain_bytes[1] - plain_bytes[0], counts = i == 1 ? 4 * 3 * 24 : 0;
        assert_in_range(more, 3 * weights + counts, 3 * (weights + 10 * 64) + counts);
    }
    unsetenv("ABAR_TEST_BYTES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(owners_refreshes_of_every_kind_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(owners_dampings_that_are_raised_are_the_same_on_all, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(owners_send_the_bytes_that_the_formula_says, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_every_rule_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_events_of_all_blocks_are_counted, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_roots_that_are_kept_are_counted_by_all, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_behind_methods_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_with_norms_and_attention_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_methods_that_need_all_momentum_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_runs_resume_on_any_number, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_state_is_kept_once, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(zero_sends_the_bytes_that_the_formula_says, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
