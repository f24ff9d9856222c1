/* Counting GPUs before a fork: a process that has asked CUDA anything cannot fork ranks that use it, so a child asks. */
#include "gpus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 254 /* that an exit status can say */

static int count_in_child(void)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int n = abar_device_count("cuda");
        _exit(n > MOST ? MOST : n);
    }
    if (child < 0) return -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int gpus_count(cli *c, const char *value, int *ranks)
{
    char *end;
    const bool all = strcmp(value, "all") == 0;
    const long wanted = all ? 1 : strtol(value, &end, 10);
    if (!all && (end == value || *end || wanted < 1 || wanted > MOST))
        return cli_fail(c, EXIT_USAGE, "--gpus %s: give a number from 1 to %d, or all", value, MOST);
    const int found = count_in_child();
    if (found < 0)
        return cli_fail(c, EXIT_FAILURE, "--gpus %s: the GPUs could not be counted (fork: %s)", value, strerror(errno));
    if (found == 0)
        return cli_fail(c, EXIT_FAILURE, "--gpus %s: no CUDA GPU was found, use --ranks %s --device cpu", value,
                        all ? "N" : value);
    if (wanted > found)
        return cli_fail(
            c, EXIT_FAILURE,
            "--gpus %s: this machine has %d, give --gpus all, or --ranks %s --device cuda for ranks that share a GPU", value,
            found, value);
    *ranks = all ? found : (int)wanted;
    return EXIT_SUCCESS;
}
