/* Snapshots of a run: its weights after the epochs that --snapshot lists, DIR/snapshots/epoch-0012.safetensors, for analyses.
 */
#include "train/train_impl.h"

#include <stdio.h>
#include <string.h>

enum { EPOCH_DIGITS = 7 }; /* --epochs is at most 1e6 */

/* Reads one epoch and moves *at behind it and its comma. False: not a list of numbers. */
static bool next_epoch(const char **at, int64_t *epoch)
{
    const size_t digits = strspn(*at, "0123456789");
    const char *end = *at + digits;
    if (digits < 1 || digits > EPOCH_DIGITS || (*end && *end != ',') || (*end == ',' && !end[1])) return false;
    *epoch = 0;
    for (const char *c = *at; c < end; c++) *epoch = 10 * *epoch + (*c - '0');
    *at = end + (*end == ',');
    return true;
}

abar_status abar__snapshot_check(abar_context *ctx, const abar_train_config *train)
{
    for (const char *at = train->snapshot; *at;) {
        int64_t epoch;
        if (!next_epoch(&at, &epoch))
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--snapshot %.80s: not a list of epochs, give numbers joined by commas, as 0,%lld",
                              train->snapshot, (long long)train->epochs);
        if (epoch > train->epochs)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "--snapshot %.80s: the run ends after --epochs %lld, leave out epoch %lld",
                              train->snapshot, (long long)train->epochs, (long long)epoch);
    }
    return ABAR_OK;
}

static abar_status make_path(const abar_trainer *t, int64_t epoch, char path[ABAR_RUN_PATH_MAX])
{
    char name[64];
    snprintf(name, sizeof name, "snapshots/epoch-%04lld.safetensors", (long long)epoch);
    return abar__run_path(t->ctx, t->setup->train.out, name, path);
}

static bool is_due(const abar_train_config *train, int64_t epoch)
{
    int64_t listed;
    for (const char *at = train->snapshot; *at && next_epoch(&at, &listed);)
        if (listed == epoch) return true;
    return false;
}

abar_status abar__snapshot_save(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    if (!t->setup->train.out[0] || t->at.step != 0 || !is_due(&t->setup->train, t->at.epoch)) return ABAR_OK;
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "snapshots", path));
    ABAR_TRY(abar__folder_make(t->ctx, path));
    ABAR_TRY(make_path(t, t->at.epoch, path));
    return abar__export_write(t, path);
}

abar_status abar__snapshot_open(abar_trainer *t)
{
    const abar_train_config *train = &t->setup->train;
    char path[ABAR_RUN_PATH_MAX];
    int64_t epoch;
    if (!train->out[0]) return ABAR_OK;
    for (const char *at = train->snapshot; *at && next_epoch(&at, &epoch);) {
        const bool past = epoch < t->at.epoch || (epoch == t->at.epoch && t->at.step > 0);
        ABAR_TRY(make_path(t, epoch, path));
        if (past && !abar__path_exists(path))
            abar__log(t->ctx, ABAR_LOG_WARNING, "--snapshot: the run is past epoch %lld already, there will be no %s",
                      (long long)epoch, path);
    }
    return abar__snapshot_save(t);
}
