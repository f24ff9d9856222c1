/* The setup that belongs to weights on disk. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* The folder whose config.json describes these weights: the one named, the one the named file is in, or the one above it
 * (snapshots). */
static bool find_run(const char *checkpoint, char *folder, size_t size)
{
    char config[2 * ABAR_OPTION_TEXT_MAX + 16];
    if (!checkpoint[0]) return false;
    snprintf(folder, size, "%s", checkpoint);
    for (int up = 0; up < 2; up++) {
        if (up > 0 || !path_is_folder(folder)) {
            char *slash = strrchr(folder, '/');
            if (slash)
                *slash = '\0';
            else
                snprintf(folder, size, ".");
        }
        snprintf(config, sizeof config, "%s/config.json", folder);
        if (path_exists(config)) return true;
    }
    return false;
}

/* Another data set than the run was trained on, or the same in another place. */
static int move_data(cli *c, abar_setup *setup, const char *data)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    abar_status status = abar_dataset_probe_name(c->ctx, data, &probe);
    if (status < 0) return cli_fail_usage(c, status);
    snprintf(setup->train.data, sizeof setup->train.data, "%s", data);
    return EXIT_SUCCESS;
}

int checkpoint_setup(cli *c, const char *checkpoint, void *flags, abar_setup **setup)
{
    char folder[2 * ABAR_OPTION_TEXT_MAX];
    const char *data = flags_peek(c, "data");
    if (flags_peek(c, "model") || !checkpoint[0] || !path_exists(checkpoint)) return flags_setup(c, flags, setup);
    const bool run = find_run(checkpoint, folder, sizeof folder);
    if (!run && path_is_folder(checkpoint)) return flags_setup(c, flags, setup);
    abar_status status = run ? abar_setup_load(c->ctx, folder, setup) : abar_setup_load_file(c->ctx, checkpoint, setup);
    if (status == ABAR_E_FORMAT && !run)
        return cli_fail(c, EXIT_USAGE, "--model: needed, %s does not belong to a run; give --model and --data", checkpoint);
    if (status < 0) return cli_fail_status(c, status);
    int code = data ? move_data(c, *setup, data) : EXIT_SUCCESS;
    return code ? code : flags_read(c, flags, *setup, NULL);
}
