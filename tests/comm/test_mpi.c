/* The transport over MPI, for every MPI that has a module and an mpirun. The program starts itself: `test_mpi PART BOARD
 * TIMEOUT` is one rank. */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* One start of mpirun for all calls. */
static int all_parts(abar_comm *c, abar_context *ctx, board *b)
{
    static const part each[] = {names_part,    barrier_part, broadcast_part, gather_part,
                                exchange_part, sum_part,     agreement_part, mixed_part};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        const int line = each[i](c, ctx, b);
        if (line) return line;
    }
    return 0;
}

static const struct {
    const char *kind, *mpirun;
    const char *options[3];
} libraries[] = {{"openmpi", "mpirun.openmpi", {"--allow-run-as-root", "--oversubscribe", NULL}},
                 {"mpich", "mpirun.mpich", {NULL}}};
enum { LIBRARIES = 2 };

typedef struct found {
    char mpirun[PATH_MAX], module[PATH_MAX];
} found;

static char self[PATH_MAX]; /* this program */

/* ---- one rank ---------------------------------------------------------------------------------------------------------- */

static int be_rank(const char *name, const char *path, double timeout)
{
    const int fd = open(path, O_RDWR);
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || b == MAP_FAILED) return 2;
    alarm(HANGS_AFTER);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    abar_context *ctx = new_context();
    abar_comm *c = NULL;
    const abar_status status = abar_comm_open(ctx, &ABAR_CONFIG(abar_comm_config, .timeout = timeout), &c);
    const int rank = abar_comm_rank(c);
    atomic_store(&b->pid[rank], getpid());
    int line = __LINE__;
    if (status == ABAR_OK && !strcmp(abar_comm_transport(c), abar_comm_size(c) > 1 ? "mpi" : "self"))
        line = (!strcmp(name, "all") ? all_parts : !strcmp(name, "failing") ? failing_part : telling_part)(c, ctx, b);
    snprintf(b->text[rank], sizeof b->text[rank], "%s", abar_context_error(ctx));
    atomic_store(&b->line[rank], line ? line : -1);
    const bool lost = line == 0 && strcmp(name, "all");
    abar_comm_close(c);
    abar_context_destroy(ctx);
    return lost ? 3 : 0;
}

/* ---- mpirun ------------------------------------------------------------------------------------------------------------ */

static bool find_in_path(const char *name, char out[PATH_MAX])
{
    const char *path = getenv("PATH");
    char copy[8192];
    snprintf(copy, sizeof copy, "%s", path ? path : "");
    char *rest = NULL;
    for (char *folder = strtok_r(copy, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest)) {
        snprintf(out, PATH_MAX, "%s/%s", folder, name);
        if (access(out, X_OK) == 0) return true;
    }
    return false;
}

static bool find_library(int i, found *out)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", self);
    for (int up = 0; up < 2; up++)
        if (strrchr(folder, '/')) *strrchr(folder, '/') = 0;
    if (snprintf(out->module, sizeof out->module, "%.3800s/libabar_mpi_%s.so", folder, libraries[i].kind) < 0) return false;
    return access(out->module, R_OK) == 0 && find_in_path(libraries[i].mpirun, out->mpirun);
}

/* Starts ranks under mpirun. */
static pid_t start_mpi(int i, const found *f, int n, const char *name, const char *path, double timeout)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char count[16], seconds[32];
        const char *arguments[16] = {f->mpirun};
        int k = 1;
        snprintf(count, sizeof count, "%d", n);
        snprintf(seconds, sizeof seconds, "%g", timeout);
        for (int o = 0; libraries[i].options[o]; o++) arguments[k++] = libraries[i].options[o];
        arguments[k++] = "-np", arguments[k++] = count, arguments[k++] = self;
        arguments[k++] = name, arguments[k++] = path, arguments[k++] = seconds;
        setenv("ABAR_MPI_MODULE", f->module, 1);
        alarm(HANGS_AFTER + 10); /* of mpirun */
        freopen("/dev/null", "w", stdout);
        if (strcmp(name, "all")) freopen("/dev/null", "w", stderr); /* mpirun tells what the test expects */
        execv(f->mpirun, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    return pid;
}

/* Returns mpirun's status. */
static int wait_mpi(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int run_mpi(int i, const found *f, int n, const char *name, const char *path, double timeout)
{
    return wait_mpi(start_mpi(i, f, n, name, path, timeout));
}

static board *map_board(char path[64], int argument)
{
    snprintf(path, 64, "/tmp/abar-test-mpi-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && ftruncate(fd, sizeof(board)) == 0);
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(b != MAP_FAILED);
    close(fd);
    b->argument = argument;
    return b;
}

/* ---- tests ------------------------------------------------------------------------------------------------------------- */

static void calls_do_what_they_say(void **state)
{
    (void)state;
    for (int i = 0; i < LIBRARIES; i++) {
        found f;
        if (!find_library(i, &f)) continue;
        for (int n = 1; n <= 4; n++) {
            char path[64];
            board *b = map_board(path, 0);
            const int status = run_mpi(i, &f, n, "all", path, 60);
            for (int r = 0; r < n; r++)
                if (atomic_load(&b->line[r]) != -1)
                    fail_msg("%s, %d ranks: rank %d failed in line %d (%s)", libraries[i].kind, n, r, atomic_load(&b->line[r]),
                             b->text[r]);
            unlink(path);
            munmap(b, sizeof *b);
            if (status != 0) fail_msg("%s, %d ranks: mpirun ended with status %x", libraries[i].kind, n, (unsigned)status);
        }
    }
}

/* The job ends with it: mpirun may end a rank that has heard it before it says so. */
static void failure_that_is_told_reaches_all(void **state)
{
    (void)state;
    for (int i = 0; i < LIBRARIES; i++) {
        found f;
        if (!find_library(i, &f)) continue;
        char path[64];
        board *b = map_board(path, 0);
        (void)run_mpi(i, &f, 3, "telling", path, 60);
        for (int r = 0; r < 3; r++)
            if (atomic_load(&b->line[r]) > 0)
                fail_msg("%s: rank %d failed in line %d (%s)", libraries[i].kind, r, atomic_load(&b->line[r]), b->text[r]);
        assert_int_equal(atomic_load(&b->enough), 3);
        unlink(path);
        munmap(b, sizeof *b);
    }
}

typedef struct stopped_job {
    int library, call;
    pid_t mpirun;
    char path[64];
    board *board;
} stopped_job;

static void check_stopped(stopped_job *j, const char *text)
{
    const int status = wait_mpi(j->mpirun);
    const pid_t victim = (pid_t)atomic_load(&j->board->pid[1]);
    if (victim > 0) kill(victim, SIGKILL); /* where mpirun left it */
    assert_int_not_equal(status, 0);
    const int first = atomic_load(&j->board->line[0]) ? 0 : 2; /* mpirun may end one before it reports */
    if (atomic_load(&j->board->line[first]) != -1 || strncmp(j->board->text[first], text, strlen(text)))
        fail_msg("%s, call %d: rank %d failed in line %d (%s)", libraries[j->library].kind, j->call, first,
                 atomic_load(&j->board->line[first]), j->board->text[first]);
    unlink(j->path);
    munmap(j->board, sizeof *j->board);
}

/* mpirun does not notice a rank that is stopped: the other ranks do. Their end ends the job. A healthy rank has to get a core
 * within the timeout. All jobs run at once: they wait most of the time. */
static void rank_stopped_is_named(void **state)
{
    (void)state;
    char host[64] = {0}, text[512];
    stopped_job jobs[LIBRARIES * FAILING_CALLS];
    int n = 0;
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank 1 on %s: no answer for 6 seconds", host);
    for (int i = 0; i < LIBRARIES; i++) {
        found f;
        if (!find_library(i, &f)) continue;
        for (int k = 0; k < FAILING_CALLS; k += 4, n++) {
            stopped_job *j = &jobs[n];
            *j = (stopped_job){.library = i, .call = k};
            j->board = map_board(j->path, pack_failing((call)k, 1, STOPPED));
            j->mpirun = start_mpi(i, &f, FAILING_RANKS, "failing", j->path, 6);
        }
    }
    for (int i = 0; i < n; i++) check_stopped(&jobs[i], text);
}

/* mpirun itself ends the job of a rank that dies: nobody waits. */
static void rank_killed_ends_the_job(void **state)
{
    (void)state;
    for (int i = 0; i < LIBRARIES; i++) {
        found f;
        if (!find_library(i, &f)) continue;
        char path[64];
        board *b = map_board(path, pack_failing(SUM, 1, KILLED));
        const int status = run_mpi(i, &f, FAILING_RANKS, "failing", path, 60);
        assert_true(status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM));
        unlink(path);
        munmap(b, sizeof *b);
    }
}

int main(int argc, char **argv)
{
    if (argc == 4) return be_rank(argv[1], argv[2], strtod(argv[3], NULL));
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    int there = 0;
    for (int i = 0; i < LIBRARIES; i++) {
        found f;
        const bool is = find_library(i, &f);
        there += is;
        printf("%s: %s\n", libraries[i].kind, is ? f.mpirun : "skipped, there is no module or no mpirun");
    }
    if (!there) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_do_what_they_say),
        cmocka_unit_test(failure_that_is_told_reaches_all),
        cmocka_unit_test(rank_stopped_is_named),
        cmocka_unit_test(rank_killed_ends_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
