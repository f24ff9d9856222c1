/* Every call of comm.h, as ranks of any transport make it. */
#include "ranks.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A value that differs for every rank, receiver and place. */
static uint8_t byte_of(int from, int to, size_t i) { return (uint8_t)(i * 31 + i / 251 + (size_t)from * 7 + (size_t)to * 13); }

int names_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    char expected[128], host[64] = {0};
    gethostname(host, sizeof host - 1);
    for (int r = 0; r < abar_comm_size(c); r++) {
        snprintf(expected, sizeof expected, "rank %d on %s", r, host);
        CHECK(!strcmp(abar_comm_name(c, r), expected));
    }
    CHECK(!strcmp(abar_comm_name(c, -1), "no such rank") && !strcmp(abar_comm_name(c, abar_comm_size(c)), "no such rank"));
    CHECK(abar_comm_local(c) == abar_comm_rank(c));
    CHECK(abar_comm_size(c) > 1 || !strcmp(abar_comm_transport(c), "self"));
    return 0;
}

/* No rank passes before all have come. */
int barrier_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx;
    const int n = abar_comm_size(c);
    for (int round = 1; round <= 200; round++) {
        atomic_fetch_add(&b->turn, 1);
        CHECK(abar__comm_barrier(c) == ABAR_OK);
        CHECK(atomic_load(&b->turn) >= round * n);
        CHECK(abar__comm_barrier(c) == ABAR_OK);
        CHECK(atomic_load(&b->turn) <= (round + 1) * n);
    }
    return 0;
}

int broadcast_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    static const size_t sizes[] = {0, 1, 17, 65535, 65536, 100003, 3000001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int root = 0; root < abar_comm_size(c); root++) {
            uint8_t *data = calloc(1, sizes[s] + 1);
            for (size_t i = 0; i < sizes[s] && abar_comm_rank(c) == root; i++) data[i] = byte_of(root, 0, i);
            CHECK(abar__comm_broadcast(c, root, data, sizes[s]) == ABAR_OK);
            for (size_t i = 0; i < sizes[s]; i++) CHECK(data[i] == byte_of(root, 0, i));
            CHECK(data[sizes[s]] == 0);
            free(data);
        }
    CHECK(abar__comm_broadcast(c, abar_comm_size(c), NULL, 0) == ABAR_E_ARGUMENT);
    return 0;
}

int gather_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    static const size_t sizes[] = {0, 1, 1000, 700001};
    const int n = abar_comm_size(c), rank = abar_comm_rank(c);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const size_t bytes = sizes[s];
            uint8_t *own = calloc(1, bytes + 1), *all = calloc((size_t)n, bytes + 1);
            for (size_t i = 0; i < bytes; i++) (in_place ? all + (size_t)rank * bytes : own)[i] = byte_of(rank, 1, i);
            CHECK(abar__comm_gather(c, in_place ? all + (size_t)rank * bytes : own, bytes, all) == ABAR_OK);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < bytes; i++) CHECK(all[(size_t)r * bytes + i] == byte_of(r, 1, i));
            free(own), free(all);
        }
    return 0;
}

/* Sizes that differ for every pair, some of them 0 and some larger than what a transport buffers. */
static size_t size_of(int from, int to, int round)
{
    static const size_t sizes[] = {0, 5, 70000, 1, 1500000, 4096};
    return sizes[(from * 3 + to + round) % 6];
}

int exchange_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    const int n = abar_comm_size(c), rank = abar_comm_rank(c);
    for (int round = 0; round < 6; round++) {
        uint8_t *send[RANKS_MAX], *recv[RANKS_MAX];
        size_t send_bytes[RANKS_MAX], recv_bytes[RANKS_MAX];
        uint64_t expected = abar__comm_sent(c);
        for (int r = 0; r < n; r++) {
            send_bytes[r] = size_of(rank, r, round), recv_bytes[r] = size_of(r, rank, round);
            send[r] = malloc(send_bytes[r] + 1), recv[r] = calloc(1, recv_bytes[r] + 1);
            for (size_t i = 0; i < send_bytes[r]; i++) send[r][i] = byte_of(rank, r, i);
            expected += r == rank ? 0 : send_bytes[r];
        }
        CHECK(abar__comm_exchange(c, (const void *const *)send, send_bytes, (void *const *)recv, recv_bytes) == ABAR_OK);
        CHECK(abar__comm_sent(c) == expected);
        for (int r = 0; r < n; r++) {
            for (size_t i = 0; i < recv_bytes[r]; i++) CHECK(recv[r][i] == byte_of(r, rank, i));
            CHECK(recv[r][recv_bytes[r]] == 0);
            free(send[r]), free(recv[r]);
        }
    }
    return 0;
}

/* Whole numbers: every order of addition gives the same. */
int sum_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    static const int64_t lengths[] = {0, 1, 2, 63, 1000, 262144, 700003};
    const int n = abar_comm_size(c), rank = abar_comm_rank(c);
    for (size_t s = 0; s < sizeof lengths / sizeof *lengths; s++) {
        float *x = calloc((size_t)lengths[s] + 1, sizeof *x);
        double *y = calloc((size_t)lengths[s] + 1, sizeof *y);
        for (int64_t i = 0; i < lengths[s]; i++) x[i] = (float)(i % 1000 * (rank + 1)), y[i] = (double)i * (rank + 1);
        CHECK(abar__comm_sum_floats(c, x, lengths[s]) == ABAR_OK && abar__comm_sum_doubles(c, y, lengths[s]) == ABAR_OK);
        for (int64_t i = 0; i < lengths[s]; i++)
            CHECK(x[i] == (float)(i % 1000 * (n * (n + 1) / 2)) && y[i] == (double)i * (n * (n + 1) / 2));
        CHECK(x[lengths[s]] == 0 && y[lengths[s]] == 0);
        free(x), free(y);
    }
    return 0;
}

/* Values whose sum depends on the order: all ranks have the same bits. */
int agreement_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    enum { LENGTH = 10007 };
    static float x[LENGTH], all[4 * LENGTH];
    for (int i = 0; i < LENGTH; i++) x[i] = 1.0f / (float)(i * 7 + 3 + abar_comm_rank(c) * 5);
    CHECK(abar__comm_sum_floats(c, x, LENGTH) == ABAR_OK);
    CHECK(abar__comm_gather(c, x, sizeof x, all) == ABAR_OK);
    for (int r = 0; r < abar_comm_size(c); r++) CHECK(!memcmp(all + (size_t)r * LENGTH, x, sizeof x));
    return 0;
}

/* Many short calls of all kinds in a row: no rank may take a byte of another call. */
int mixed_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)b;
    const int n = abar_comm_size(c), rank = abar_comm_rank(c);
    const uint64_t allocations = abar_context_memory(ctx).allocations;
    for (int round = 0; round < 300; round++) {
        int value = rank == round % n ? round : -1, all[RANKS_MAX];
        CHECK(abar__comm_broadcast(c, round % n, &value, sizeof value) == ABAR_OK && value == round);
        value += rank;
        CHECK(abar__comm_gather(c, &value, sizeof value, all) == ABAR_OK);
        for (int r = 0; r < n; r++) CHECK(all[r] == round + r);
        double sum = value;
        CHECK(abar__comm_sum_doubles(c, &sum, 1) == ABAR_OK && sum == n * round + n * (n - 1) / 2);
        if (round % 3 == 0) CHECK(abar__comm_barrier(c) == ABAR_OK);
    }
    CHECK(abar_context_memory(ctx).allocations == allocations);
    return 0;
}

/* Hearing takes nothing of the next call, which others have begun; then the last rank tells of a failure. */
int telling_part(abar_comm *c, abar_context *ctx, board *b)
{
    const int n = abar_comm_size(c), rank = abar_comm_rank(c);
    const struct timespec nap = {.tv_nsec = 2000000};
    int value = 7 + rank, all[RANKS_MAX];
    CHECK(abar__comm_barrier(c) == ABAR_OK);
    for (int i = 0; i < 20 && rank == 0; i++) {
        CHECK(abar__comm_hear(c) == ABAR_OK);
        nanosleep(&nap, NULL);
    }
    CHECK(abar__comm_gather(c, &value, sizeof value, all) == ABAR_OK);
    for (int r = 0; r < n; r++) CHECK(all[r] == 7 + r);
    abar_status status = ABAR_OK;
    for (atomic_fetch_add(&b->turn, 1); atomic_load(&b->turn) < n;) nanosleep(&nap, NULL); /* all have ended the call */
    if (rank == n - 1) abar__comm_tell(c, "the last rank: has no more data");
    for (int i = 0; i < 60000 && status == ABAR_OK; i++) {
        status = abar__comm_hear(c);
        if (status == ABAR_OK) nanosleep(&nap, NULL);
    }
    CHECK(status == ABAR_E_PEER && !strcmp(abar_context_error(ctx), "the last rank: has no more data"));
    CHECK(n == 1 || abar__comm_barrier(c) == ABAR_E_PEER);
    for (atomic_fetch_add(&b->enough, 1); atomic_load(&b->enough) < n;) nanosleep(&nap, NULL); /* all have heard it */
    return 0;
}
