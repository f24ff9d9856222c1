#include "ranks.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT 50 /* seconds of one call of run_ranks */

abar_context *new_context(void)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) abort();
    return ctx;
}

static board *new_board(void)
{
    static board *b;
    if (!b) b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    memset(b, 0, sizeof *b);
    return b;
}

/* A port of this machine that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) || getsockname(fd, (struct sockaddr *)&a, &size)) abort();
    close(fd);
    return ntohs(a.sin_port);
}

/* Opens, runs the part, closes, and ends the process. */
static void be_rank(const ranks *r, int ranks_option, part p, board *b)
{
    abar_context *ctx = new_context();
    abar_comm *c = NULL;
    alarm(LIMIT); /* forked ranks end with their parent */
    const abar_status status =
        abar_comm_open(ctx,
                       &ABAR_CONFIG(abar_comm_config, .ranks = ranks_option, .timeout = r->timeout > 0 ? r->timeout : 10,
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

board *run_ranks(const ranks *r, part p)
{
    board *b = new_board();
    b->argument = r->argument;
    const bool forks = !strcmp(r->transport, "local") || r->ranks == 1;
    const int processes = forks ? 1 : r->ranks, port = forks ? 0 : free_port();
    pid_t pids[RANKS_MAX];
    for (int i = 0; i < processes; i++) pids[i] = start(r, i, forks ? r->ranks : 0, port, p, b);
    for (int i = 0; i < processes; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if ((!WIFEXITED(status) || WEXITSTATUS(status) != 0) && !(r->may_fail >> i & 1))
            fail_msg("%s, %d ranks: process %d ended with status %x", r->transport, r->ranks, i, (unsigned)status);
    }
    for (int i = 0; i < r->ranks; i++) {
        const int line = atomic_load(&b->line[i]);
        if (line != -1 && !(r->may_fail >> i & 1))
            fail_msg("%s, %d ranks: rank %d failed in line %d (%s)", r->transport, r->ranks, i, line, b->text[i]);
    }
    return b;
}
