/* What one rank does with messages of others that no rank of abar would send, and whom it blames. The others are the far ends
 * of socket pairs: what they say is written before the call. */
#include "ranks.h"

#include "comm/comm_impl.h"
#include "comm/tcp.h"

#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3, BYTES = 8 };
#define TIMEOUT 0.5

typedef struct rig {
    abar_context *ctx;
    abar_comm *comm; /* rank 0 */
    int far[RANKS];
    uint8_t all[RANKS * BYTES + 256]; /* what it gathers, and what must stay as it is */
} rig;

static void open_rig(rig *r)
{
    int fds[RANKS] = {-1, -1, -1};
    *r = (rig){.ctx = new_context(), .far = {-1, -1, -1}};
    for (int i = 1; i < RANKS; i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        fds[i] = pair[0];
        r->far[i] = pair[1];
    }
    assert_int_equal(abar__comm_open_tcp(r->ctx, 0, RANKS, TIMEOUT, fds, &r->comm), ABAR_OK);
    memset(r->all, 0xee, sizeof r->all);
}

static void close_rig(rig *r)
{
    for (int i = 1; i < RANKS; i++) close(r->far[i]);
    abar_comm_close(r->comm);
    abar_context_destroy(r->ctx);
}

static void say(const rig *r, int rank, abar__wire_kind kind, uint64_t number, const void *body, size_t n)
{
    uint8_t header[ABAR_WIRE_HEADER];
    abar__wire_header(kind, n, number, header);
    assert_int_equal(write(r->far[rank], header, sizeof header), sizeof header);
    if (n) assert_int_equal(write(r->far[rank], body, n), n);
}

static abar_status gather(rig *r)
{
    const uint8_t own[BYTES] = {0};
    return abar__comm_gather(r->comm, own, BYTES, r->all);
}

/* The call fails with this text, and no byte behind what it gathers has changed. */
static void refuses(rig *r, const char *text)
{
    assert_int_equal(gather(r), ABAR_E_PEER);
    if (strncmp(abar_context_error(r->ctx), text, strlen(text))) fail_msg("'%s', not '%s'", abar_context_error(r->ctx), text);
    for (size_t i = RANKS * BYTES; i < sizeof r->all; i++) assert_int_equal(r->all[i], 0xee);
    close_rig(r);
}

static const uint8_t data[128] = {1, 2, 3, 4, 5, 6, 7, 8};

static void tcp_calls_take_what_was_sent_for_them(void **state)
{
    rig r;
    (void)state;
    open_rig(&r);
    for (uint64_t k = 1; k <= 2; k++)
        for (int i = 1; i < RANKS; i++) say(&r, i, ABAR_WIRE_DATA, k, data + k, BYTES); /* the second is there early */
    for (int k = 1; k <= 2; k++) {
        assert_int_equal(gather(&r), ABAR_OK);
        for (int i = 1; i < RANKS; i++) assert_memory_equal(r.all + i * BYTES, data + k, BYTES);
    }
    for (size_t i = RANKS * BYTES; i < sizeof r.all; i++) assert_int_equal(r.all[i], 0xee);
    close_rig(&r);
}

static void tcp_data_of_other_lengths_are_refused(void **state)
{
    static const size_t lengths[][2] = {{BYTES + 1, 0}, {128, 0}, {BYTES - 1, 2}, {BYTES, 1}}; /* in one message, in two */
    (void)state;
    for (int i = 0; i < 4; i++) {
        rig r;
        open_rig(&r);
        say(&r, 1, ABAR_WIRE_DATA, 1, data, lengths[i][0]);
        if (lengths[i][1]) say(&r, 1, ABAR_WIRE_DATA, 1, data, lengths[i][1]);
        refuses(&r, "rank 1: sends other bytes than this rank expects");
    }
}

static void tcp_data_early_and_too_long_are_refused(void **state)
{
    rig r;
    (void)state;
    open_rig(&r);
    for (int i = 1; i < RANKS; i++) say(&r, i, ABAR_WIRE_DATA, 1, data, BYTES);
    say(&r, 2, ABAR_WIRE_DATA, 2, data, 100);
    assert_int_equal(gather(&r), ABAR_OK);
    refuses(&r, "rank 2: sends other bytes than this rank expects");
}

static void tcp_data_of_calls_that_are_over_are_refused(void **state)
{
    rig r;
    (void)state;
    open_rig(&r);
    for (int i = 1; i < RANKS; i++) say(&r, i, ABAR_WIRE_DATA, 1, data, BYTES);
    assert_int_equal(gather(&r), ABAR_OK);
    say(&r, 1, ABAR_WIRE_DATA, 1, data, BYTES);
    refuses(&r, "rank 1: sends other bytes than this rank expects");
}

static void tcp_bytes_that_are_no_message_are_refused(void **state)
{
    static const uint8_t others[][ABAR_WIRE_HEADER] = {
        {"GET / HTTP/1.1\r\n"},                                                                /* another protocol */
        {'a', 'b', ABAR_WIRE_VERSION, 99},                                                     /* no kind */
        {'a', 'b', ABAR_WIRE_VERSION, ABAR_WIRE_DATA, 0xff, 0xff, 0xff, 0xff, 1},              /* 4 GB */
        {'a', 'b', ABAR_WIRE_VERSION, ABAR_WIRE_FAIL, 0xff, 0xff, 0, 0},                       /* a text that is too long */
        {'a', 'b', ABAR_WIRE_VERSION, ABAR_WIRE_TABLE, ABAR_WIRE_NONCE + 4 * ABAR_WIRE_ENTRY}, /* at the wrong time */
    };
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        rig r;
        open_rig(&r);
        assert_int_equal(write(r.far[1], others[i], ABAR_WIRE_HEADER), ABAR_WIRE_HEADER);
        assert_int_equal(write(r.far[1], data, sizeof data), sizeof data);
        refuses(&r, "rank 1: sends what is no message of abar");
    }
}

/* ---- whom it blames ----------------------------------------------------------------------------------------------------- */

/* Rank 1 has not been heard for longer, but has sent what is due, and more. */
static void tcp_rank_that_is_ahead_is_not_blamed(void **state)
{
    rig r;
    (void)state;
    open_rig(&r);
    say(&r, 1, ABAR_WIRE_DATA, 1, data, BYTES);
    say(&r, 1, ABAR_WIRE_DATA, 2, data, BYTES);
    say(&r, 2, ABAR_WIRE_BEAT, 0, NULL, 0);
    refuses(&r, "rank 2: no answer for 0.5 seconds");
}

static void tcp_rank_that_says_that_it_waits_is_not_blamed(void **state)
{
    (void)state;
    for (int waits = 1; waits < RANKS; waits++) {
        rig r;
        open_rig(&r);
        say(&r, waits, ABAR_WIRE_BEAT, 0, NULL, 0);
        refuses(&r, waits == 1 ? "rank 2: no answer for 0.5 seconds" : "rank 1: no answer for 0.5 seconds");
    }
}

/* It says so itself, and at last what has happened. */
static void tcp_rank_that_waits_says_so(void **state)
{
    rig r;
    uint8_t all[4096];
    abar__wire m;
    int beats = 0, fails = 0;
    (void)state;
    open_rig(&r);
    assert_int_equal(gather(&r), ABAR_E_PEER);
    const ssize_t n = recv(r.far[2], all, sizeof all, MSG_DONTWAIT);
    for (ssize_t at = 0; at < n;) {
        const int read = abar__wire_read(all + at, (size_t)(n - at), &m);
        assert_true(read > 0);
        at += read + (m.kind == ABAR_WIRE_DATA ? (int)m.length : 0);
        beats += m.kind == ABAR_WIRE_BEAT;
        fails += m.kind == ABAR_WIRE_FAIL;
    }
    assert_true(beats >= 1);
    assert_int_equal(fails, 1);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_calls_take_what_was_sent_for_them),
        cmocka_unit_test(tcp_data_of_other_lengths_are_refused),
        cmocka_unit_test(tcp_data_early_and_too_long_are_refused),
        cmocka_unit_test(tcp_data_of_calls_that_are_over_are_refused),
        cmocka_unit_test(tcp_bytes_that_are_no_message_are_refused),
        cmocka_unit_test(tcp_rank_that_is_ahead_is_not_blamed),
        cmocka_unit_test(tcp_rank_that_says_that_it_waits_is_not_blamed),
        cmocka_unit_test(tcp_rank_that_waits_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
