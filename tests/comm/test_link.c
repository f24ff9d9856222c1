/* A cable that is cut and one that is slow: two ranks in two network namespaces, with a pair of virtual cards between them.
 * Skipped where namespaces are not allowed. */
#define _GNU_SOURCE /* setns */
#include "ranks.h"

#include "base/clock.h"
#include "comm/comm_impl.h"
#include "comm/tcp.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 1 << 20 };

typedef struct report {
    atomic_int status[2], rounds[2];
    char text[2][512];
    double seconds[2]; /* of the call that failed */
} report;

static char names[2][32]; /* of the namespaces */

static bool shell(const char *format, ...)
{
    char command[512];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    strncat(command, " >/dev/null 2>&1", sizeof command - strlen(command) - 1);
    return system(command) == 0;
}

static void remove_link(void)
{
    for (int i = 0; i < 2; i++) (void)shell("ip netns del %s", names[i]);
}

static bool make_link(void)
{
    for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "abar-%d-%d", (int)getpid(), i);
    const bool made = shell("ip netns add %s", names[0]) && shell("ip netns add %s", names[1]) &&
                      shell("ip -n %s link add v0 type veth peer name v1 netns %s", names[0], names[1]) &&
                      shell("ip -n %s addr add 10.99.0.1/24 dev v0", names[0]) &&
                      shell("ip -n %s addr add 10.99.0.2/24 dev v1", names[1]) && shell("ip -n %s link set v0 up", names[0]) &&
                      shell("ip -n %s link set v1 up", names[1]);
    if (!made) remove_link();
    return made;
}

static pid_t start_rank(report *r, int rank, double timeout, int rounds)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    char path[64];
    snprintf(path, sizeof path, "/run/netns/%s", names[rank]);
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) _exit(1);
    alarm(HANGS_AFTER);
    setenv("ABAR_TOKEN", "a token of this test", 1);
    abar_context *ctx = new_context();
    abar_comm *c = NULL;
    float *x = calloc(LENGTH, sizeof *x);
    double start = abar__seconds();
    bool told;
    abar_status status =
        abar__comm_open_store(ctx, &(abar__store_request){rank, 2, "10.99.0.1", 21000, timeout, -1, false}, &told, &c);
    for (int i = 0; i < rounds && status == ABAR_OK; i++) {
        start = abar__seconds();
        status = abar__comm_sum_floats(c, x, LENGTH);
        atomic_store(&r->rounds[rank], i + 1);
    }
    r->seconds[rank] = abar__seconds() - start;
    snprintf(r->text[rank], sizeof r->text[rank], "%s", abar_context_error(ctx));
    atomic_store(&r->status[rank], (int)status);
    abar_comm_close(c);
    abar_context_destroy(ctx);
    free(x);
    exit(0);
}

static report *run_ranks_apart(double timeout, int rounds, const char *meanwhile)
{
    report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r != MAP_FAILED);
    const pid_t pids[] = {start_rank(r, 0, timeout, rounds), start_rank(r, 1, timeout, rounds)};
    for (int i = 0; meanwhile && i < HANGS_AFTER * 1000 && atomic_load(&r->rounds[0]) < 3 && !atomic_load(&r->status[0]); i++)
        usleep(1000);
    if (meanwhile) assert_true(shell(meanwhile, names[1]));
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    return r;
}

/* No packet says that the cable is cut. Each rank blames the one that it does not hear any more. */
static void cut_cable_is_found_by_the_timeout(void **state)
{
    (void)state;
    report *r = run_ranks_apart(6, 1000000, "ip -n %s link set v1 down");
    for (int i = 0; i < 2; i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "rank %d: ", 1 - i);
        assert_int_equal(atomic_load(&r->status[i]), ABAR_E_PEER);
        if (strncmp(r->text[i], expected, strlen(expected))) fail_msg("rank %d reports '%s'", i, r->text[i]);
        assert_true(atomic_load(&r->rounds[i]) >= 3);
    }
    munmap(r, sizeof *r);
    assert_true(shell("ip -n %s link set v1 up", names[1]));
}

/* Bytes that move slowly are no failure, although a call takes longer than the timeout. */
static void slow_link_is_no_failure(void **state)
{
    (void)state;
    if (!shell("tc -n %s qdisc add dev v0 root tbf rate 5mbit burst 32kbit latency 400ms", names[0]) ||
        !shell("tc -n %s qdisc add dev v1 root tbf rate 5mbit burst 32kbit latency 400ms", names[1])) {
        printf("skipped: tc cannot slow a link down here\n");
        skip();
    }
    report *r = run_ranks_apart(5, 1, NULL); /* 4 MB in each direction: 6.4 seconds */
    for (int i = 0; i < 2; i++) {
        if (atomic_load(&r->status[i]) != ABAR_OK) fail_msg("rank %d: %s", i, r->text[i]);
        assert_true(r->seconds[i] > 5);
    }
    munmap(r, sizeof *r);
}

int main(void)
{
    if (!make_link()) {
        printf("skipped: network namespaces are not allowed here, or there is no ip\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_cable_is_found_by_the_timeout),
        cmocka_unit_test(slow_link_is_no_failure),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_link();
    return failed;
}
