#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "ranks.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST_PORT = 20000, PORTS = 12000 };

abar_context *new_context(void)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) abort();
    return ctx;
}

static board *new_board(void)
{
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    return b;
}

void free_board(board *b) { munmap(b, sizeof *b); }

static bool is_free(int port)
{
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return bound;
}

/* A name that one process has at a time, until it ends with all that it has forked. */
static bool is_ours(int port)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX}; /* its path begins with 0: in no folder */
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "abar-test-port-%d", port);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&a, sizeof a) == 0) return true;
    close(fd);
    return false;
}

/* Below those that the system gives to others meanwhile. */
int free_port(void)
{
    static int next;
    for (int i = 0; i < PORTS; i++) {
        const int port = FIRST_PORT + ((int)getpid() * 37 + next++) % PORTS;
        if (is_ours(port) && is_free(port)) return port;
    }
    abort();
}

/* Opens, runs the part, closes, and ends the process. */
static void be_rank(const ranks *r, int ranks_option, part p, board *b)
{
    abar_context *ctx = new_context();
    abar_comm *c = NULL;
    alarm(HANGS_AFTER); /* forked ranks end with their parent */
    const abar_status status =
        abar_comm_open(ctx,
                       &ABAR_CONFIG(abar_comm_config, .ranks = ranks_option, .timeout = r->timeout > 0 ? r->timeout : 60,
                                    .transport = r->ranks > 1 ? r->transport : NULL),
                       &c);
    const int rank = abar_comm_rank(c);
    atomic_store(&b->pid[rank], getpid());
    int line = __LINE__;
    if (status == ABAR_OK && abar_comm_size(c) == r->ranks) line = p(c, ctx, b);
    snprintf(b->text[rank], sizeof b->text[rank], "%s", abar_context_error(ctx));
    atomic_store(&b->line[rank], line ? line : -1);
    abar_comm_close(c);
    abar_context_destroy(ctx);
    exit(0); /* with the sanitizers' checks */
}

static pid_t start(const ranks *r, int rank, int ranks_option, int port, part p, board *b)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    if (port) {
        char text[32];
        const struct {
            const char *name;
            int value;
        } set[] = {{"RANK", rank}, {"WORLD_SIZE", r->ranks}, {"LOCAL_RANK", rank}, {"MASTER_PORT", port}};
        for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
            snprintf(text, sizeof text, "%d", set[i].value);
            setenv(set[i].name, text, 1);
        }
        setenv("MASTER_ADDR", "127.0.0.1", 1);
    }
    be_rank(r, ranks_option, p, b);
    return 0;
}

started start_ranks(const ranks *r, part p)
{
    const bool forks = !strcmp(r->transport, "local") || r->ranks == 1;
    const int port = forks ? 0 : free_port();
    started s = {.ranks = *r, .board = new_board(), .processes = forks ? 1 : r->ranks};
    s.board->argument = r->argument;
    for (int i = 0; i < s.processes; i++) s.pids[i] = start(r, i, forks ? r->ranks : 0, port, p, s.board);
    return s;
}

static bool may_fail(const started *s, int rank) { return s->ranks.may_fail >> rank & 1; }

/* Until the ranks that have to end have done their parts; a process that ended without is found by its status. */
static void wait_for_parts(const started *s)
{
    for (int i = 0; i < HANGS_AFTER * 100; i++) {
        int running = 0;
        for (int r = 0; r < s->ranks.ranks; r++) running += !may_fail(s, r) && atomic_load(&s->board->line[r]) == 0;
        if (!running) return;
        usleep(10000);
    }
}

board *end_ranks(started *s)
{
    const char *transport = s->ranks.transport;
    const int n = s->ranks.ranks;
    if (s->ranks.may_fail) wait_for_parts(s);
    for (int i = 0; i < s->processes; i++) {
        int status;
        if (may_fail(s, i)) kill(s->pids[i], SIGKILL); /* it may be stopped */
        assert_int_equal(waitpid(s->pids[i], &status, 0), s->pids[i]);
        if ((!WIFEXITED(status) || WEXITSTATUS(status) != 0) && !may_fail(s, i))
            fail_msg("%s, %d ranks: process %d ended with status %x", transport, n, i, (unsigned)status);
    }
    for (int i = 0; i < n; i++) {
        const int line = atomic_load(&s->board->line[i]);
        if (line != -1 && !may_fail(s, i))
            fail_msg("%s, %d ranks: rank %d failed in line %d (%s)", transport, n, i, line, s->board->text[i]);
    }
    return s->board;
}

board *run_ranks(const ranks *r, part p)
{
    static board *last;
    if (last) free_board(last);
    started s = start_ranks(r, p);
    return last = end_ranks(&s);
}
