/* What ranks divide in the optimizer's step, and each other's parts of which they receive: the same bits as on one rank,
 * whatever happens to a part, and the bytes that docs/scaling.md says. */
#include "data/images_support.h"
#include "ranks_support.h"

#include "comm/comm.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(owners_refreshes_of_every_kind_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(owners_dampings_that_are_raised_are_the_same_on_all, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(owners_send_the_bytes_that_the_formula_says, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
