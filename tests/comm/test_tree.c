/* Sums in a fixed order, compared bit for bit with the tree's recursive definition, for any number of terms and ranks and any
 * division of the terms. */
#include "ranks.h"

#include "comm/comm_impl.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* ---- numbers ----------------------------------------------------------------------------------------------------------- */

static uint64_t seed_of_test(void)
{
    const char *text = getenv("ABAR_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

static uint64_t next(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t below(uint64_t *s, int64_t n) { return (int64_t)(next(s) % (uint64_t)n); }

/* What is summed: sizes from 2^-20 to 2^20, so that the order matters; in some problems infinities and NaNs, too. */
typedef struct problem {
    uint64_t seed;
    int64_t n, length;
    abar__tree_type type;
    bool wild;
    int size;
    int64_t first[8], count[8];
} problem;

static double value_of(const problem *p, int64_t term, int64_t i)
{
    uint64_t s = p->seed + (uint64_t)term * 1000003 + (uint64_t)i;
    const uint64_t z = next(&s);
    if (p->wild && z % 11 == 0) return z % 3 == 0 ? INFINITY : z % 3 == 1 ? -INFINITY : z % 2 ? NAN : -(double)NAN;
    return ldexp((double)(int64_t)z, (int)(z % 41) - 20 - 63);
}

static void fill(const problem *p, int64_t term, void *out)
{
    for (int64_t i = 0; i < p->length; i++)
        if (p->type == ABAR_TREE_FLOAT)
            ((float *)out)[i] = (float)value_of(p, term, i);
        else
            ((double *)out)[i] = value_of(p, term, i);
}

/* Node (level, index), by its definition. */
static double node_double(const problem *p, int level, int64_t index, int64_t i)
{
    if (level == 0) return value_of(p, index, i);
    const double left = node_double(p, level - 1, 2 * index, i);
    if ((2 * index + 1) << (level - 1) >= p->n) return left;
    return left + node_double(p, level - 1, 2 * index + 1, i);
}

static float node_float(const problem *p, int level, int64_t index, int64_t i)
{
    if (level == 0) return (float)value_of(p, index, i);
    const float left = node_float(p, level - 1, 2 * index, i);
    if ((2 * index + 1) << (level - 1) >= p->n) return left;
    return left + node_float(p, level - 1, 2 * index + 1, i);
}

static int root_level(int64_t n)
{
    int level = 0;
    while ((int64_t)1 << level < n) level++;
    return level;
}

/* The bits of element i of the sum; every NaN is the same. */
static bool is_sum(const problem *p, const void *sum, int64_t i)
{
    if (p->type == ABAR_TREE_FLOAT) {
        float x = node_float(p, root_level(p->n), 0, i);
        if (x != x) x = NAN;
        return !memcmp(&x, (const float *)sum + i, sizeof x);
    }
    double x = node_double(p, root_level(p->n), 0, i);
    if (x != x) x = (double)NAN;
    return !memcmp(&x, (const double *)sum + i, sizeof x);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------------- */

/* Sums the rank's terms on a stack, as a trainer does, and then those of all ranks. */
static int tree_part(abar_comm *c, abar_context *ctx, const problem *p)
{
    const int rank = abar_comm_rank(c);
    const int64_t first = p->first[rank], count = p->count[rank];
    const size_t bytes = (size_t)p->length * (size_t)p->type;
    const int depth = abar__tree_depth(p->n, first, count);
    void *stack[ABAR_TREE_NODES + 1] = {0};
    int top = 0, most = 0;
    for (int i = 0; i < depth + 1; i++) stack[i] = malloc(bytes + 1);
    for (int64_t term = first; term < first + count; term++) {
        CHECK(top <= depth);
        fill(p, term, stack[top++]);
        for (int m = abar__tree_merges(p->n, first, term); m > 0; m--, top--) {
            CHECK(top >= 2);
            if (p->type == ABAR_TREE_FLOAT)
                abar__tree_add_floats(stack[top - 2], stack[top - 1], p->length);
            else
                abar__tree_add_doubles(stack[top - 2], stack[top - 1], p->length);
        }
        most = top > most ? top : most;
    }
    abar__tree_node nodes[ABAR_TREE_NODES];
    CHECK(most == depth && top == abar__tree_cover(p->n, first, count, nodes));
    void *sum = malloc(bytes + 1);
    abar__tree_sum *s;
    CHECK(abar__tree_sum_create(ctx, c, p->n, p->first, p->count, p->type, p->length, &s) == ABAR_OK);
    const uint64_t allocations = abar_context_memory(ctx).allocations, sent = abar__comm_sent(c);
    CHECK(abar__tree_sum_run(s, (const void *const *)stack, sum, p->length) == ABAR_OK);
    CHECK(abar_context_memory(ctx).allocations == allocations);
    const int64_t stride = p->length > 5000 ? 97 : 1;
    for (int64_t i = 0; i < p->length; i += stride) CHECK(is_sum(p, sum, i));
    if (top > 0) { /* in place of the first node */
        CHECK(abar__tree_sum_run(s, (const void *const *)stack, stack[0], p->length) == ABAR_OK);
        CHECK(!bytes || !memcmp(stack[0], sum, bytes));
    } else {
        CHECK(abar__tree_sum_run(s, NULL, sum, p->length) == ABAR_OK);
    }
    const uint64_t both = abar__comm_sent(c) - sent, l = (uint64_t)p->length, e = (uint64_t)p->type;
    if (p->size == 1) CHECK(both == 0);
    if (p->size > 1 && l % (16 * (uint64_t)p->size) == 0) { /* equal parts */
        const uint64_t own = l / (uint64_t)p->size;
        CHECK(both == 2 * e * ((uint64_t)top * (l - own) + (uint64_t)(p->size - 1) * own));
    }
    abar__tree_sum_destroy(s);
    for (int i = 0; i < depth + 1; i++) free(stack[i]);
    free(sum);
    return 0;
}

/* ---- ranks as threads of this process ---------------------------------------------------------------------------------- */

typedef struct hall {
    pthread_barrier_t barrier;
    const void *const *send[8];
    const problem *problem;
    int line[8];
} hall;

static abar_status copy_from_threads(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                                     const size_t *recv_bytes)
{
    (void)send_bytes;
    hall *h = c->impl;
    h->send[c->rank] = send;
    pthread_barrier_wait(&h->barrier);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && recv_bytes[r]) memcpy(recv[r], h->send[r][c->rank], recv_bytes[r]);
    pthread_barrier_wait(&h->barrier);
    return ABAR_OK;
}

static void close_thread(abar_comm *c) { c->impl = NULL; }

static const abar__comm_ops thread_ops = {"threads", copy_from_threads, close_thread, NULL, NULL};

typedef struct thread_rank {
    hall *hall;
    int rank;
} thread_rank;

static void *run_thread(void *argument)
{
    const thread_rank *t = argument;
    const problem *p = t->hall->problem;
    abar_context *ctx = new_context();
    abar_comm *c;
    t->hall->line[t->rank] = __LINE__;
    if (abar__comm_create(ctx, t->rank, p->size, 10, &c) == ABAR_OK) {
        c->ops = &thread_ops, c->impl = t->hall;
        t->hall->line[t->rank] = tree_part(c, ctx, p);
        abar_comm_close(c);
    }
    if (abar_context_memory(ctx).now != 0) t->hall->line[t->rank] = __LINE__;
    abar_context_destroy(ctx);
    return NULL;
}

static void run_threads(const problem *p)
{
    hall h = {.problem = p};
    pthread_t threads[8];
    thread_rank ranks_of[8];
    pthread_barrier_init(&h.barrier, NULL, (unsigned)p->size);
    for (int r = 0; r < p->size; r++) {
        ranks_of[r] = (thread_rank){&h, r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_thread, &ranks_of[r]), 0);
    }
    for (int r = 0; r < p->size; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&h.barrier);
    for (int r = 0; r < p->size; r++)
        if (h.line[r])
            fail_msg("seed %llu, %lld terms on %d ranks, %lld elements: rank %d failed in line %d", (unsigned long long)p->seed,
                     (long long)p->n, p->size, (long long)p->length, r, h.line[r]);
}

/* Cuts the terms at random places; some ranks may get none, and ranks need not be in the order of their terms. */
static void divide(problem *p, uint64_t *s)
{
    int order[8];
    int64_t cut[9] = {0};
    for (int r = 0; r < p->size; r++) order[r] = r;
    for (int r = p->size - 1; r > 0 && below(s, 2); r--) {
        const int other = (int)below(s, r + 1), was = order[r];
        order[r] = order[other], order[other] = was;
    }
    const bool even = below(s, 3) == 0;
    for (int r = 1; r < p->size; r++) cut[r] = even ? p->n * r / p->size : below(s, p->n + 1);
    cut[p->size] = p->n;
    for (int r = 1; r < p->size; r++) /* sorted by insertion */
        for (int k = r; k > 1 && cut[k] < cut[k - 1]; k--) {
            const int64_t was = cut[k];
            cut[k] = cut[k - 1], cut[k - 1] = was;
        }
    for (int r = 0; r < p->size; r++) p->first[order[r]] = cut[r], p->count[order[r]] = cut[r + 1] - cut[r];
}

static problem draw(uint64_t *s, int size)
{
    static const int64_t lengths[] = {0, 1, 2, 17, 128, 1003, 384 * 5};
    problem p = {.seed = next(s), .size = size, .n = 1 + below(s, below(s, 2) ? 70 : 9), .length = lengths[below(s, 7)]};
    p.type = below(s, 2) ? ABAR_TREE_FLOAT : ABAR_TREE_DOUBLE;
    p.wild = below(s, 4) == 0;
    divide(&p, s);
    return p;
}

static void sum_of_any_division_is_the_trees(void **state)
{
    (void)state;
    uint64_t s = seed_of_test();
    for (int round = 0; round < 60; round++)
        for (int size = 1; size <= 8; size++) {
            const problem p = draw(&s, size);
            run_threads(&p);
        }
}

/* Longer than the workspace. */
static void sum_in_pieces_is_the_trees(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) {
        problem p = {.seed = 5, .n = 5, .length = 800003, .type = size == 2 ? ABAR_TREE_DOUBLE : ABAR_TREE_FLOAT, .size = size};
        for (int r = 0; r < size; r++) p.first[r] = 5 * r / size, p.count[r] = 5 * (r + 1) / size - 5 * r / size;
        run_threads(&p);
    }
}

/* ---- ranks as processes ------------------------------------------------------------------------------------------------ */

static int forked_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)b;
    uint64_t s = seed_of_test() + 77; /* the same problems on all ranks */
    for (int round = 0; round < 20; round++) {
        const problem p = draw(&s, abar_comm_size(c));
        const int line = tree_part(c, ctx, &p);
        if (line) return line;
    }
    return 0;
}

static void sum_of_processes_is_the_trees(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) run_ranks(&(ranks){.transport = "local", .ranks = n}, forked_part);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------- */

static void cover_fills_the_terms_with_the_largest_nodes(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 40; n++)
        for (int64_t first = 0; first <= n; first++)
            for (int64_t count = 0; count <= n - first; count++) {
                abar__tree_node nodes[ABAR_TREE_NODES];
                const int has = abar__tree_cover(n, first, count, nodes);
                int64_t at = first;
                for (int k = 0; k < has; k++) {
                    const int64_t width = (int64_t)1 << nodes[k].level, past = at + width < n ? at + width : n;
                    assert_int_equal(nodes[k].index * width, at);
                    assert_true(past <= first + count);
                    /* its parent has other terms, or there is none */
                    const int64_t parent = nodes[k].index / 2 * 2 * width, parent_end = parent + 2 * width;
                    const bool inside = parent >= first && (parent_end < n ? parent_end : n) <= first + count;
                    assert_true(!inside || (int64_t)1 << nodes[k].level >= n);
                    at = past;
                }
                assert_int_equal(at, first + count);
            }
}

static void cover_of_equal_powers_of_two_is_one_node(void **state)
{
    (void)state;
    abar__tree_node nodes[ABAR_TREE_NODES];
    for (int64_t n = 1; n <= 1 << 20; n *= 2)
        for (int64_t size = 1; size <= n && size <= 8; size *= 2)
            for (int64_t r = 0; r < size; r++) assert_int_equal(abar__tree_cover(n, n / size * r, n / size, nodes), 1);
    const int64_t most = (int64_t)1 << 31;
    assert_int_equal(abar__tree_cover(most, 1, most - 2, nodes), 60); /* 1 + 2 + ... + 2^29 from both ends */
    assert_int_equal(abar__tree_depth(8, 0, 8), 3);
    assert_int_equal(abar__tree_depth(8, 0, 0), 0);
}

static void divisions_with_gaps_and_overlaps_are_refused(void **state)
{
    (void)state;
    abar_context *ctx = new_context();
    abar__tree_sum *s;
    const struct {
        int64_t n, first, count;
    } bad[] = {{0, 0, 0}, {4, 0, 3}, {4, 1, 3}, {4, 0, 5}, {4, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(abar__tree_sum_create(ctx, NULL, bad[i].n, &bad[i].first, &bad[i].count, ABAR_TREE_FLOAT, 4, &s),
                         ABAR_E_ARGUMENT);
        assert_null(s);
    }
    const int64_t first = 0, count = 4;
    assert_int_equal(abar__tree_sum_create(ctx, NULL, 4, &first, &count, ABAR_TREE_FLOAT, 4, &s), ABAR_OK);
    assert_int_equal(abar__tree_sum_run(s, NULL, NULL, 5), ABAR_E_ARGUMENT);
    abar__tree_sum_destroy(s);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cover_fills_the_terms_with_the_largest_nodes),
        cmocka_unit_test(cover_of_equal_powers_of_two_is_one_node),
        cmocka_unit_test(divisions_with_gaps_and_overlaps_are_refused),
        cmocka_unit_test(sum_of_any_division_is_the_trees),
        cmocka_unit_test(sum_in_pieces_is_the_trees),
        cmocka_unit_test(sum_of_processes_is_the_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
