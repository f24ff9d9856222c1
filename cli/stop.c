/* Signals: Ctrl-C, SIGTERM, and the hangup of a terminal that closes. */
#include "cli.h"

#include <signal.h>

/* Global: a signal handler receives nothing but the number of the signal. */
static const stoppable *volatile running;
static volatile sig_atomic_t stopped_by;
static char claimed[ABAR_OPTION_TEXT_MAX]; /* set before its handler is installed */
static sigset_t waiting;                   /* what was blocked before stop_wait */

static void on_signal(int number)
{
    if (stopped_by) {
        signal(number, SIG_DFL);
        raise(number);
    }
    stopped_by = number;
    running->stop(running->object);
}

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNALS = sizeof numbers / sizeof *numbers };

/* SIGHUP stays ignored under nohup. */
static void handle(void (*handler)(int number), struct sigaction old[SIGNALS])
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < SIGNALS; i++) {
        sigaction(numbers[i], NULL, &old[i]);
        if (numbers[i] != SIGHUP || old[i].sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
}

abar_status stop_on_signal(const stoppable *s)
{
    struct sigaction old[SIGNALS];
    running = s;
    handle(on_signal, old);
    abar_status status = s->run(s->object);
    for (int i = 0; i < SIGNALS; i++) sigaction(numbers[i], &old[i], NULL);
    return status;
}

static void on_early_signal(int number)
{
    folder_unclaim(claimed);
    signal(number, SIG_DFL);
    raise(number);
}

void stop_wait(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < SIGNALS; i++) sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, &waiting);
}

void stop_unclaims(const char *folder)
{
    struct sigaction old[SIGNALS];
    snprintf(claimed, sizeof claimed, "%s", folder);
    handle(on_early_signal, old);
    sigprocmask(SIG_SETMASK, &waiting, NULL);
}

/* Of ranks, those that have received no signal stop with the one that has: theirs is no success either. */
int stop_exit_code(void) { return EXIT_SIGNAL + (stopped_by ? (int)stopped_by : SIGTERM); }
