/* Gathering at the store: strangers, wrong tokens, ranks that are missing or come twice. */
#include "ranks.h"

#include "base/clock.h"
#include "comm/comm_impl.h"
#include "comm/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKEN "a token of this test"

/* What processes of a test tell it. */
typedef struct report {
    atomic_int status[8], told[8];
    char text[8][512];
    atomic_int lines; /* of rank 0's log */
    char line[512];   /* its last one */
    atomic_int open;  /* ranks that have gathered */
    atomic_int go;    /* they may end */
} report;

static report *new_report(void)
{
    report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r != MAP_FAILED);
    return r;
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void count_line(void *user, abar_log_level level, const char *text)
{
    report *r = user;
    (void)level;
    atomic_fetch_add(&r->lines, 1);
    snprintf(r->line, sizeof r->line, "%s", text);
}

/* One rank in a process of its own: gathers, sums, waits for `go`, and reports as `who`. */
static pid_t start_rank(report *r, int who, int rank, int size, int port, const char *token, double timeout)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    alarm(HANGS_AFTER);
    if (token)
        setenv("ABAR_TOKEN", token, 1);
    else
        unsetenv("ABAR_TOKEN");
    abar_context *ctx;
    if (abar_context_create(&ABAR_CONFIG(abar_context_config, .log = rank == 0 ? count_line : NULL, .log_user = r), &ctx))
        _exit(1);
    abar_comm *c = NULL;
    double x = rank + 1;
    const abar__store_request request = {
        .rank = rank, .size = size, .host = "127.0.0.1", .port = port, .timeout = timeout, .local = -1};
    bool told = false;
    abar_status status = abar__comm_open_store(ctx, &request, &told, &c);
    atomic_store(&r->told[who], told);
    if (status == ABAR_OK) {
        atomic_fetch_add(&r->open, 1);
        while (!atomic_load(&r->go)) usleep(1000);
        status = abar__comm_sum_doubles(c, &x, 1);
        if (status == ABAR_OK && x != size * (size + 1) / 2) status = ABAR_STOPPED;
    }
    snprintf(r->text[who], sizeof r->text[who], "%s", abar_context_error(ctx));
    atomic_store(&r->status[who], (int)status);
    abar_comm_close(c);
    if (abar_context_memory(ctx).now != 0) atomic_store(&r->status[who], 99);
    abar_context_destroy(ctx);
    exit(0);
}

static void end_all(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
}

/* Connects as soon as rank 0 listens. */
static int knock(int port)
{
    const struct sockaddr_in a = loopback(port);
    for (int i = 0; i < 30000; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fd >= 0);
        if (connect(fd, (const struct sockaddr *)&a, sizeof a) == 0) return fd;
        close(fd);
        usleep(2000);
    }
    fail_msg("rank 0 does not listen");
    return -1;
}

/* Whether the other side ends the connection before the alarm; what it sends is dropped. */
static bool is_closed(int fd)
{
    uint8_t bytes[256];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {}
    close(fd);
    return n == 0 || errno == ECONNRESET;
}

static void ranks_gather_after(int port, report *r, pid_t first)
{
    const pid_t second = start_rank(r, 1, 1, 2, port, TOKEN, 60);
    atomic_store(&r->go, 1);
    end_all((pid_t[]){first, second}, 2);
    for (int i = 0; i < 2; i++)
        if (atomic_load(&r->status[i]) != ABAR_OK)
            fail_msg("rank %d: status %d (%s)", i, atomic_load(&r->status[i]), r->text[i]);
    munmap(r, sizeof *r);
}

/* ---- strangers --------------------------------------------------------------------------------------------------------- */

static void garbage_is_refused_and_ranks_gather(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port();
    const pid_t first = start_rank(r, 0, 0, 2, port, TOKEN, 60);
    uint8_t large[ABAR_WIRE_HEADER], data[ABAR_WIRE_HEADER], table[ABAR_WIRE_HEADER];
    abar__wire_header(ABAR_WIRE_JOIN, 0xffffffff, 0, large);
    abar__wire_header(ABAR_WIRE_DATA, 1000, 0, data);
    abar__wire_header(ABAR_WIRE_TABLE, 16 + 20 * 1024, 0, table); /* possible, and more than a stranger may send */
    const struct {
        const void *bytes;
        size_t n;
    } sent[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {large, sizeof large}, {data, sizeof data}, {"\0", 1}};
    alarm(HANGS_AFTER);
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        const int fd = knock(port);
        assert_int_equal(send(fd, sent[i].bytes, sent[i].n, MSG_NOSIGNAL), sent[i].n);
        assert_true(is_closed(fd));
    }
    const int fd = knock(port);
    assert_int_equal(send(fd, table, sizeof table, MSG_NOSIGNAL), sizeof table);
    uint8_t zeros[256] = {0};
    (void)!send(fd, zeros, sizeof zeros, MSG_NOSIGNAL);
    assert_true(is_closed(fd));
    alarm(0);
    assert_int_equal(atomic_load(&r->lines), 5);
    assert_non_null(strstr(r->line, "store: refused a connection from 127.0.0.1: "));
    ranks_gather_after(port, r, first);
}

/* More connections than there are places, all of them silent. */
static void flood_does_not_keep_ranks_out(void **state)
{
    (void)state;
    enum { FLOOD = 200 };
    report *r = new_report();
    const int port = free_port();
    const pid_t first = start_rank(r, 0, 0, 2, port, TOKEN, 60);
    int fds[FLOOD];
    for (int i = 0; i < FLOOD; i++) fds[i] = i == 0 ? knock(port) : socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const struct sockaddr_in a = loopback(port);
    for (int i = 1; i < FLOOD; i++) (void)connect(fds[i], (const struct sockaddr *)&a, sizeof a);
    const pid_t second = start_rank(r, 1, 1, 2, port, TOKEN, 60);
    atomic_store(&r->go, 1);
    end_all((pid_t[]){first, second}, 2);
    for (int i = 0; i < FLOOD; i++) close(fds[i]);
    assert_int_equal(atomic_load(&r->status[0]), ABAR_OK);
    assert_int_equal(atomic_load(&r->status[1]), ABAR_OK);
    assert_true(atomic_load(&r->lines) <= 16);
    munmap(r, sizeof *r);
}

/* A JOIN that proves the token for another nonce: what somebody who listened could send again. */
static void proof_for_another_nonce_is_refused(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port();
    const pid_t first = start_rank(r, 0, 0, 2, port, TOKEN, 60);
    const int fd = knock(port);
    alarm(HANGS_AFTER);
    uint8_t challenge[ABAR_WIRE_HEADER + ABAR_WIRE_NONCE], bytes[ABAR_WIRE_JOIN_BYTES];
    assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    challenge[ABAR_WIRE_HEADER] ^= 1;
    abar__door door = {.token = TOKEN, .rank = 0, .size = 2};
    abar__wire_join join = {.rank = 1, .to = 0, .size = 2, .port = 1};
    abar__door_mac(&door, 'J', challenge + ABAR_WIRE_HEADER, &join, join.mac);
    abar__wire_write_join(&join, bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_true(is_closed(fd));
    alarm(0);
    assert_non_null(strstr(r->line, "ABAR_TOKEN"));
    ranks_gather_after(port, r, first);
}

/* A proof that was recorded serves nowhere else: not for the answer, another run, another connection or other numbers. */
static void proof_depends_on_all_that_it_is_for(void **state)
{
    enum { WAYS = 10 };
    uint8_t mac[WAYS][ABAR_SHA256];
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        abar__door door = {.token = way == 1 ? "another secret" : "a secret of this test"};
        uint8_t accepting[ABAR_WIRE_NONCE] = {0};
        abar__wire_join join = {.rank = 1, .to = 2, .size = 4, .port = 30000};
        accepting[15] = way == 2;
        door.session[15] = way == 3;
        join.nonce[15] = way == 4;
        join.rank += way == 5;
        join.to += way == 6;
        join.size += way == 7;
        join.port = (uint16_t)(join.port + (way == 8));
        abar__door_mac(&door, way == 9 ? 'W' : 'J', accepting, &join, mac[way]);
        for (int i = 0; i < way; i++) assert_memory_not_equal(mac[i], mac[way], ABAR_SHA256);
    }
}

static bool read_all(int fd, uint8_t *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = recv(fd, to + at, n - at, 0);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

/* Knocks at the door with a valid proof. Returns the kind of the answer. */
static int knock_as(int port, uint32_t rank, uint32_t to, uint32_t size)
{
    const struct sockaddr_in a = loopback(port);
    const abar__door door = {.token = TOKEN};
    abar__wire_join join = {.rank = rank, .to = to, .size = size, .port = 1};
    uint8_t in[ABAR_WIRE_HEADER + ABAR_WIRE_NONCE], out[ABAR_WIRE_JOIN_BYTES];
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    int kind = -1;
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 && read_all(fd, in, sizeof in)) {
        abar__door_mac(&door, 'J', in + ABAR_WIRE_HEADER, &join, join.mac);
        abar__wire_write_join(&join, out);
        if (send(fd, out, sizeof out, MSG_NOSIGNAL) == sizeof out && read_all(fd, in, ABAR_WIRE_HEADER)) kind = in[3];
    }
    close(fd);
    return kind;
}

/* At the door of rank 2 of 4, which expects rank 3 alone: others who know the token came to the wrong one. */
static void ranks_that_are_not_expected_are_refused(void **state)
{
    static const uint32_t wrong[][3] = {{3, 1, 4}, {3, 2, 5}, {0, 2, 4}, {1, 2, 4}, {2, 2, 4}, {4, 2, 4}}; /* rank, to, size */
    int fds[4] = {-1, -1, -1, -1}, status;
    struct sockaddr_in a = loopback(0);
    socklen_t bytes = sizeof a;
    abar_context *ctx = new_context();
    abar__door door = {.ctx = ctx, .token = TOKEN, .rank = 2, .size = 4, .from = 3, .fds = fds};
    (void)state;
    door.listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(bind(door.listener, (struct sockaddr *)&a, bytes) == 0 && listen(door.listener, 8) == 0);
    assert_int_equal(getsockname(door.listener, (struct sockaddr *)&a, &bytes), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 6; i++)
            if (knock_as(ntohs(a.sin_port), wrong[i][0], wrong[i][1], wrong[i][2]) != ABAR_WIRE_REFUSED) _exit(10 + i);
        _exit(knock_as(ntohs(a.sin_port), 3, 2, 4) != ABAR_WIRE_WELCOME);
    }
    assert_int_equal(abar__door_gather(&door, abar__seconds() + 60.0), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(fds[3] >= 0 && fds[0] < 0 && fds[1] < 0 && fds[2] < 0);
    close(fds[3]);
    close(door.listener);
    abar_context_destroy(ctx);
}

/* After the ranks have gathered there is nothing to connect to. */
static void nobody_listens_after_gathering(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port();
    const pid_t pids[] = {start_rank(r, 0, 0, 3, port, TOKEN, 60), start_rank(r, 1, 1, 3, port, TOKEN, 60),
                          start_rank(r, 2, 2, 3, port, TOKEN, 60)};
    for (int i = 0; i < 60000 && atomic_load(&r->open) < 3; i++) usleep(1000);
    assert_int_equal(atomic_load(&r->open), 3);
    const struct sockaddr_in a = loopback(port);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    atomic_store(&r->go, 1);
    end_all(pids, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(atomic_load(&r->status[i]), ABAR_OK);
    munmap(r, sizeof *r);
}

/* ---- ranks that do not belong here ------------------------------------------------------------------------------------- */

static void is_refused(const char *token, int rank, int size, const char *expected)
{
    report *r = new_report();
    const int port = free_port();
    const pid_t first = start_rank(r, 0, 0, 2, port, TOKEN, 60);
    const pid_t wrong = start_rank(r, 3, rank, size, port, token, 60);
    end_all(&wrong, 1);
    assert_int_equal(atomic_load(&r->status[3]), ABAR_E_PEER);
    if (!strstr(r->text[3], expected)) fail_msg("'%s' lacks '%s'", r->text[3], expected);
    ranks_gather_after(port, r, first);
}

static void other_tokens_are_refused(void **state)
{
    (void)state;
    is_refused("another token of this test", 1, 2, "ABAR_TOKEN is another");
    is_refused(NULL, 1, 2, "ABAR_TOKEN is another");
}

static void other_numbers_of_ranks_are_refused(void **state)
{
    (void)state;
    is_refused(TOKEN, 1, 4, "rank 1 was started as one of 4 ranks and rank 0 as one of 2");
}

static void rank_that_comes_twice_is_refused(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port();
    pid_t pids[] = {start_rank(r, 0, 0, 3, port, TOKEN, 60), start_rank(r, 1, 1, 3, port, TOKEN, 60),
                    start_rank(r, 3, 1, 3, port, TOKEN, 60), 0};
    /* of the two ranks 1 one is refused, whichever it is */
    while (atomic_load(&r->status[1]) == 0 && atomic_load(&r->status[3]) == 0 && kill(pids[0], 0) == 0) usleep(1000);
    const int refused = atomic_load(&r->status[1]) ? 1 : 3;
    assert_int_equal(atomic_load(&r->status[refused]), ABAR_E_PEER);
    assert_non_null(strstr(r->text[refused], "rank 1 is there already"));
    pids[3] = start_rank(r, 2, 2, 3, port, TOKEN, 60);
    atomic_store(&r->go, 1);
    end_all(pids, 4);
    assert_int_equal(atomic_load(&r->status[4 - refused]), ABAR_OK);
    assert_int_equal(atomic_load(&r->status[2]), ABAR_OK);
    munmap(r, sizeof *r);
}

/* A server that is no rank 0 does not get the run's data. */
static void rank_0_without_the_token_is_refused(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port(), listener = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in a = loopback(port);
    assert_true(bind(listener, (const struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 4) == 0);
    const pid_t pid = start_rank(r, 1, 1, 2, port, TOKEN, 60);
    uint8_t challenge[ABAR_WIRE_HEADER + ABAR_WIRE_NONCE] = {0}, welcome[ABAR_WIRE_HEADER + ABAR_SHA256] = {0};
    uint8_t join[ABAR_WIRE_JOIN_BYTES];
    alarm(HANGS_AFTER);
    const int fd = accept(listener, NULL, NULL);
    abar__wire_header(ABAR_WIRE_CHALLENGE, ABAR_WIRE_NONCE, 0, challenge);
    abar__wire_header(ABAR_WIRE_WELCOME, ABAR_SHA256, 0, welcome);
    assert_int_equal(send(fd, challenge, sizeof challenge, MSG_NOSIGNAL), sizeof challenge);
    assert_int_equal(recv(fd, join, sizeof join, MSG_WAITALL), sizeof join);
    for (size_t i = 0; i + strlen(TOKEN) <= sizeof join; i++) assert_true(memcmp(join + i, TOKEN, strlen(TOKEN)) != 0);
    assert_int_equal(send(fd, welcome, sizeof welcome, MSG_NOSIGNAL), sizeof welcome);
    end_all(&pid, 1);
    alarm(0);
    close(fd), close(listener);
    assert_int_equal(atomic_load(&r->status[1]), ABAR_E_PEER);
    assert_non_null(strstr(r->text[1], "does not know the token"));
    munmap(r, sizeof *r);
}

/* ---- ranks that do not come -------------------------------------------------------------------------------------------- */

static void rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    report *r = new_report();
    const int port = free_port();
    const pid_t pids[] = {start_rank(r, 0, 0, 3, port, TOKEN, 8), start_rank(r, 1, 1, 3, port, TOKEN, 8)};
    end_all(pids, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(atomic_load(&r->status[i]), ABAR_E_PEER);
        assert_non_null(strstr(r->text[i], "rank 2: has not come to 127.0.0.1:"));
        assert_int_equal(atomic_load(&r->told[i]), i > 0); /* rank 0 tells */
    }
    munmap(r, sizeof *r);
}

static void rank_0_that_does_not_come_is_named(void **state)
{
    (void)state;
    report *r = new_report();
    const pid_t pid = start_rank(r, 1, 1, 2, free_port(), TOKEN, 1);
    end_all(&pid, 1);
    assert_int_equal(atomic_load(&r->status[1]), ABAR_E_PEER);
    assert_non_null(strstr(r->text[1], "rank 0 at 127.0.0.1:"));
    assert_non_null(strstr(r->text[1], "cannot be reached for 1 seconds"));
    assert_int_equal(atomic_load(&r->told[1]), 0);
    munmap(r, sizeof *r);
}

/* ---- settings ---------------------------------------------------------------------------------------------------------- */

static void open_is_refused(const char *host, int port, const char *token, abar_status status, const char *expected)
{
    abar_context *ctx = new_context();
    abar_comm *c;
    if (token)
        setenv("ABAR_TOKEN", token, 1);
    else
        unsetenv("ABAR_TOKEN");
    bool told;
    assert_int_equal(abar__comm_open_store(ctx, &(abar__store_request){0, 2, host, port, 5, 0, false}, &told, &c), status);
    if (!strstr(abar_context_error(ctx), expected)) fail_msg("'%s' lacks '%s'", abar_context_error(ctx), expected);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    unsetenv("ABAR_TOKEN");
}

static void addresses_without_token_are_loopback_alone(void **state)
{
    (void)state;
    open_is_refused("192.0.2.1", 20000, NULL, ABAR_E_ARGUMENT, "set ABAR_TOKEN");
    open_is_refused("0.0.0.0", 20000, "", ABAR_E_ARGUMENT, "set ABAR_TOKEN");
    open_is_refused("127.0.0.1", 20000, "short", ABAR_E_ARGUMENT, "ABAR_TOKEN: has 5 characters");
    open_is_refused("192.0.2.1", 20000, TOKEN, ABAR_E_IO, "rank 0 has to run at MASTER_ADDR"); /* no address of this machine */
}

/* A rank that lacks the token tells of it, unless rank 0 lacks it, too. */
static void token_that_one_rank_lacks_is_its_own_to_tell(void **state)
{
    (void)state;
    for (int there = 0; there < 2; there++) {
        report *r = new_report();
        const int port = free_port();
        const pid_t first = there ? start_rank(r, 0, 0, 2, port, TOKEN, 60) : 0;
        if (there) close(knock(port)); /* it listens */
        const pid_t second = start_rank(r, 1, 1, 2, port, "short", 4);
        end_all(&second, 1);
        if (there) kill(first, SIGKILL), waitpid(first, NULL, 0); /* it waits for a rank 1 with the token */
        assert_int_equal(atomic_load(&r->status[1]), ABAR_E_ARGUMENT);
        assert_int_equal(atomic_load(&r->told[1]), !there);
        munmap(r, sizeof *r);
    }
}

static void loopback_between_machines_is_refused(void **state)
{
    (void)state;
    for (int local = 0; local < 2; local++) {
        abar_context *ctx = new_context();
        abar_comm *c;
        bool told;
        const abar__store_request request = {0, 2, "localhost", 20000, 5, local, true};
        assert_int_equal(abar__comm_open_store(ctx, &request, &told, &c), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(ctx), "which others cannot reach: set MASTER_ADDR"));
        assert_int_equal(told, local > 0); /* the first rank of a machine tells */
        abar_context_destroy(ctx);
    }
}

static void port_in_use_is_refused(void **state)
{
    (void)state;
    struct sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(bind(fd, (struct sockaddr *)&a, size) == 0 && listen(fd, 1) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    open_is_refused("127.0.0.1", ntohs(a.sin_port), NULL, ABAR_E_IO, "MASTER_PORT has to be free");
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_is_refused_and_ranks_gather),
        cmocka_unit_test(flood_does_not_keep_ranks_out),
        cmocka_unit_test(proof_for_another_nonce_is_refused),
        cmocka_unit_test(proof_depends_on_all_that_it_is_for),
        cmocka_unit_test(ranks_that_are_not_expected_are_refused),
        cmocka_unit_test(nobody_listens_after_gathering),
        cmocka_unit_test(other_tokens_are_refused),
        cmocka_unit_test(other_numbers_of_ranks_are_refused),
        cmocka_unit_test(rank_that_comes_twice_is_refused),
        cmocka_unit_test(rank_0_without_the_token_is_refused),
        cmocka_unit_test(rank_that_does_not_come_is_named),
        cmocka_unit_test(rank_0_that_does_not_come_is_named),
        cmocka_unit_test(addresses_without_token_are_loopback_alone),
        cmocka_unit_test(token_that_one_rank_lacks_is_its_own_to_tell),
        cmocka_unit_test(loopback_between_machines_is_refused),
        cmocka_unit_test(port_in_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
