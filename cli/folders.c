/* Folders of runs without --out, and the weights in them. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void folder_claim(char out[ABAR_OPTION_TEXT_MAX], const char *name)
{
    int n = snprintf(out, ABAR_OPTION_TEXT_MAX, RUNS "/%.400s", name);
    stop_wait();
    mkdir(RUNS, 0777);
    for (int suffix = 2; mkdir(out, 0777) != 0 && errno == EEXIST; suffix++)
        snprintf(out + n, ABAR_OPTION_TEXT_MAX - (size_t)n, "-%d", suffix);
    stop_unclaims(out);
}

void folder_unclaim(const char *out)
{
    if (rmdir(out) == 0) rmdir(RUNS);
}

int folder_missing(const cli *c, const char *checkpoint)
{
    if (errno != ENOENT && errno != ENOTDIR)
        return cli_fail(c, EXIT_FAILURE, "%s: %s, check the path", checkpoint, strerror(errno));
    return cli_fail(c, EXIT_FAILURE, "%s: no such file or folder, give the folder of a run or a safetensors file", checkpoint);
}

/* The checkpoint has the weights that are trained: where others are tested, the export comes first. */
static bool exports_others(const cli *c, const char *folder)
{
    abar_setup *setup;
    if (abar_setup_load(c->ctx, folder, &setup) < 0) return false; /* whoever reads the weights tells */
    const bool others = setup->rule->averages;
    abar_setup_destroy(c->ctx, setup);
    return others;
}

/* Whether it is the folder of a comparison, a sweep or a tuning. */
static bool holds_several(const char *folder)
{
    static const char *const file[] = {"compare.json", "sweep.json", "tune.json"};
    char path[2 * ABAR_OPTION_TEXT_MAX];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, file[i]);
        if (path_exists(path)) return true;
    }
    return false;
}

int folder_weights(const cli *c, const char *checkpoint, char *weights, size_t size)
{
    static const char *const name[] = {"state.safetensors", "model.safetensors"};
    snprintf(weights, size, "%s", checkpoint);
    if (!path_exists(checkpoint)) return folder_missing(c, checkpoint);
    if (!path_is_folder(checkpoint)) return EXIT_SUCCESS;
    const int first = exports_others(c, checkpoint);
    for (int i = 0; i < 2; i++) {
        snprintf(weights, size, "%s/%s", checkpoint, name[(first + i) % 2]);
        if (path_exists(weights)) return EXIT_SUCCESS;
    }
    if (holds_several(checkpoint))
        return cli_fail(c, EXIT_FAILURE, "%s: holds several runs, give the folder of one, abar runs %s --all lists them",
                        checkpoint, checkpoint);
    return cli_fail(c, EXIT_FAILURE, "%s: holds no checkpoint (state.safetensors or model.safetensors), train into it first",
                    checkpoint);
}
