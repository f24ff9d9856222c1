/* Being asked to stop: by Ctrl-C, by the system, or by a terminal that closes. */
#include "cli.h"

#include <signal.h>

/* A signal handler has no other way to know. */
static const stoppable *volatile running;
static volatile sig_atomic_t stopped_by;

static void on_signal(int number)
{
    if (stopped_by) {
        signal(number, SIG_DFL);
        raise(number);
    }
    stopped_by = number;
    running->stop(running->object);
}

/* A hangup counts, too, unless nohup asked to ignore it. */
abar_status stop_on_signal(const stoppable *s)
{
    static const int number[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old[3];
    sigemptyset(&action.sa_mask);
    running = s;
    for (int i = 0; i < 3; i++) {
        sigaction(number[i], NULL, &old[i]);
        if (number[i] != SIGHUP || old[i].sa_handler != SIG_IGN) sigaction(number[i], &action, NULL);
    }
    abar_status status = s->run(s->object);
    for (int i = 0; i < 3; i++) sigaction(number[i], &old[i], NULL);
    return status;
}

int stop_exit_code(void) { return EXIT_SIGNAL + (int)stopped_by; }
