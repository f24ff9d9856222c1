/* The folders that runs get when nobody names one. */
#include "cli.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

void folder_claim(char out[ABAR_OPTION_TEXT_MAX], const char *name)
{
    int n = snprintf(out, ABAR_OPTION_TEXT_MAX, RUNS "/%.400s", name);
    mkdir(RUNS, 0777);
    for (int suffix = 2; mkdir(out, 0777) != 0 && errno == EEXIST; suffix++)
        snprintf(out + n, ABAR_OPTION_TEXT_MAX - (size_t)n, "-%d", suffix);
}

void folder_unclaim(const char *out)
{
    if (rmdir(out) == 0) rmdir(RUNS);
}
