/* The end of forked ranks: rank 0, their parent, has a thread that sleeps until one of them ends. If it has not left the run
 * before, all ranks are told why it ended. */
#define _GNU_SOURCE /* strsignal, WNOWAIT, P_PIDFD */
#include "comm/local_impl.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_MS 20 /* between two looks, where the kernel has no pidfd_open (before Linux 5.3) */

static const char *signal_word(int number)
{
    return number == SIGKILL   ? "killed"
           : number == SIGSEGV ? "segmentation fault"
           : number == SIGBUS  ? "bus error"
           : number == SIGABRT ? "aborted"
           : number == SIGTERM ? "terminated"
           : number == SIGINT  ? "interrupted"
           : number == SIGFPE  ? "arithmetic error"
           : number == SIGILL  ? "illegal instruction"
                               : "see signal(7)";
}

/* Reaps the rank if it has ended. Its caller may have reaped it, or ignore SIGCHLD: then why it ended is unknown. */
static bool has_ended(abar__local *l, int rank, char *how, size_t size)
{
    siginfo_t info = {0};
    int result;
    do result = waitid(P_PID, (id_t)l->children[rank], &info, WEXITED | WNOHANG);
    while (result < 0 && errno == EINTR);
    if (result == 0 && info.si_pid == 0) return false;
    l->children[rank] = 0;
    if (result < 0)
        snprintf(how, size, "has ended");
    else if (info.si_code == CLD_EXITED)
        snprintf(how, size, "ended with status %d", info.si_status);
    else
        snprintf(how, size, "ended by signal %d (%s)", info.si_status, signal_word(info.si_status));
    return true;
}

/* Looks at all ranks; returns how many there are still. */
static int look(abar__local *l, bool report)
{
    int running = 0;
    for (int r = 1; r <= l->forked; r++) {
        char how[128], text[ABAR_COMM_FAILURE];
        if (!l->children[r]) continue;
        if (!has_ended(l, r, how, sizeof how)) {
            running++;
        } else if (report && !atomic_load(&l->shared->seats[r].left)) {
            snprintf(text, sizeof text, "rank %d on %s: %s", r, l->host, how);
            abar__local_fail(l, text);
        }
    }
    return running;
}

/* Sleeps until a rank ends, `stop` is written, or milliseconds have passed. Returns whether to stop. */
static bool wait_for_end(const abar__local *l, int milliseconds)
{
    struct pollfd fds[ABAR_COMM_LOCAL];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = l->stop, .events = POLLIN};
    for (int r = 1; r <= l->forked; r++) {
        if (!l->children[r]) continue;
        const int fd = (int)syscall(SYS_pidfd_open, l->children[r], 0);
        if (fd >= 0)
            fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        else if (milliseconds < 0 || milliseconds > POLL_MS)
            milliseconds = POLL_MS;
    }
    (void)poll(fds, n, milliseconds);
    for (nfds_t i = 1; i < n; i++) close(fds[i].fd);
    return (fds[0].revents & POLLIN) != 0;
}

static void *watch(void *argument)
{
    abar__local *l = argument;
    while (!wait_for_end(l, -1)) look(l, true);
    return NULL;
}

abar_status abar__local_watch(abar_context *ctx, abar__local *l)
{
    if (gethostname(l->host, sizeof l->host - 1)) snprintf(l->host, sizeof l->host, "unknown");
    l->stop = eventfd(0, EFD_CLOEXEC);
    if (l->stop < 0) return abar__fail(ctx, ABAR_E_IO, "%d ranks: eventfd: %s", l->size, strerror(errno));
    sigset_t all, before; /* the caller's handlers run in the caller's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&l->watcher, NULL, watch, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->watching = error == 0;
    if (error) {
        close(l->stop);
        l->stop = -1;
        return abar__fail(ctx, ABAR_E_IO, "%d ranks: a thread: %s", l->size, strerror(error));
    }
    return ABAR_OK;
}

/* Until all ranks have ended or the time is over. */
static int wait_for_all(abar__local *l, double seconds)
{
    const double end = abar__seconds() + seconds;
    int running = look(l, false);
    for (double left; running && (left = end - abar__seconds()) > 0; running = look(l, false))
        (void)wait_for_end(l, (int)(left * 1e3 < 1e6 ? left * 1e3 + 1 : 1e6));
    return running;
}

void abar__local_unwatch(abar__local *l, double grace)
{
    if (l->watching) {
        (void)eventfd_write(l->stop, 1);
        pthread_join(l->watcher, NULL);
        eventfd_t ignored;
        (void)eventfd_read(l->stop, &ignored);
    }
    if (wait_for_all(l, grace)) {
        for (int r = 1; r <= l->forked; r++)
            if (l->children[r]) kill(l->children[r], SIGKILL);
        (void)wait_for_all(l, ABAR_LOCAL_GRACE); /* a process that the kernel cannot end yet is left to init */
    }
    if (l->watching) close(l->stop);
}
