/* The folder of a run: who may write to it, state.safetensors (all that is needed to go on: weights, running statistics,
 * their average, optimizer state, and in its metadata the settings and where the run stands), config.json and the exports. */
#include "data/data_impl.h"
#include "train/train_impl.h"
#include "train/train_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX (1u << 20) /* bytes of a config.json worth reading */
#define STATE_NAME_MAX 320

abar_status abar__run_path(abar_context *ctx, const char *dir, const char *name, char path[ABAR_RUN_PATH_MAX])
{
    int n = snprintf(path, ABAR_RUN_PATH_MAX, "%s/%s", dir, name);
    if (n > 0 && n < ABAR_RUN_PATH_MAX) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "%.80s...: the folder's path is too long, use a shorter one", dir);
}

abar_status abar__folder_lacks(abar_context *ctx, const char *dir, const char *noun, const char *file)
{
    static const struct {
        const char *file, *noun, *verb;
    } kind[] = {{"tune.json", "tuning", "tune"},
                {"sweep.json", "sweep", "sweep"},
                {"compare.json", "comparison", "compare"},
                {"config.json", "run", "train"}};
    char path[ABAR_RUN_PATH_MAX];
    if (!abar__path_exists(dir))
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: holds no %s, there is no such folder, check the path", dir, noun);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        ABAR_TRY(abar__run_path(ctx, dir, kind[i].file, path));
        if (abar__path_exists(path))
            return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: holds no %s but a %s, to continue it use abar %s --resume", dir, noun,
                              kind[i].noun, kind[i].verb);
    }
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: holds no %s (no %s), check the path", dir, noun, file);
}

/* ---- claiming ------------------------------------------------------------------------------------------------- */

/* A checkpoint is written after every epoch's log line: a log with a second epoch means that there was one. A log that
 * cannot be read is a failure, since a run that starts over would overwrite it. */
static abar_status lost_checkpoint(abar_context *ctx, const char *dir, bool *out)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__run_path(ctx, dir, "log.jsonl", path));
    return abar__file_contains(ctx, path, "{\"epoch\": 2,", out);
}

abar_status abar__folder_vacant(abar_context *ctx, const char *dir)
{
    static const char *const other[][2] = {{"compare.json", "comparison"}, {"sweep.json", "sweep"}, {"tune.json", "tuning"}};
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__run_path(ctx, dir, "state.safetensors", path));
    if (abar__path_exists(path))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: already holds a run, add --resume %s to continue or choose another --out",
                          dir, dir);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        ABAR_TRY(abar__run_path(ctx, dir, other[i][0], path));
        if (abar__path_exists(path))
            return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: already holds a %s, choose another --out", dir, other[i][1]);
    }
    return ABAR_OK;
}

/* Refuses a folder that holds another run, or one whose checkpoint was removed. */
static abar_status check_folder(abar_trainer *t, bool resume, bool there)
{
    const char *dir = t->setup->train.out;
    if (!resume) return abar__folder_vacant(t->ctx, dir);
    bool lost = false;
    if (!there) ABAR_TRY(lost_checkpoint(t->ctx, dir, &lost));
    if (lost)
        return abar__fail(
            t->ctx, ABAR_E_NOT_FOUND,
            "%s/state.safetensors: the checkpoint is gone, restore it, or move %s away and begin anew, perhaps with "
            "--init and its model.safetensors",
            dir, dir);
    return ABAR_OK;
}

void abar__digest_take(abar_trainer *t)
{
    const abar_dataset_info *info = abar_dataset_info_of(t->data);
    t->digest[0] = (abar__digest){info->train, abar__data_crc(t->data, false)};
    t->digest[1] = (abar__digest){info->test, abar__data_crc(t->data, true)};
    t->fingerprint = abar__images_fingerprint(t->data);
}

abar_status abar__folder_claim(abar_trainer *t, bool resume)
{
    const char *dir = t->setup->train.out;
    char path[ABAR_RUN_PATH_MAX];
    if (t->setup->train.accept_data && !resume)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "--accept-data: is for a run that goes on, give --resume or leave it out");
    if (!dir[0]) {
        if (!resume) return ABAR_OK;
        return abar__fail(t->ctx, ABAR_E_ARGUMENT, "resume: no folder is set, set out to the folder of the run");
    }
    ABAR_TRY(abar__run_path(t->ctx, dir, "state.safetensors", path));
    if (!resume)
        ABAR_TRY(abar__folder_make(t->ctx, dir));
    else if (!abar__path_exists(dir))
        return abar__fail(t->ctx, ABAR_E_NOT_FOUND, "%s: there is no such folder, check the path", dir);
    ABAR_TRY(abar__folder_lock(t->ctx, dir, &t->lock));
    bool there = abar__path_exists(path);
    ABAR_TRY(check_folder(t, resume, there));
    abar__digest_take(t);
    t->resumes = there;
    t->started_over = resume && !there;
    return ABAR_OK;
}

/* The settings in a checkpoint's metadata. */
static abar_status checkpoint_setup(abar_context *ctx, const abar__safetensors *file, const char *path, abar_setup **out)
{
    const char *config = abar__safetensors_metadata(file, ABAR_NOTE_CONFIG);
    if (!config) return abar__fail(ctx, ABAR_E_FORMAT, "%s: not a checkpoint of abar, give the folder of a run", path);
    return abar__setup_parse(ctx, path, config, strlen(config), out);
}

/* The folder may have moved. */
static abar_status move_out(abar_context *ctx, const char *dir, abar_setup **setup)
{
    abar_status status = abar_options_set(ctx, abar_train_options(), &(*setup)->train, "out", dir);
    if (status == ABAR_OK) return ABAR_OK;
    abar_setup_destroy(ctx, *setup);
    *setup = NULL;
    return status;
}

static abar_status setup_from_checkpoint(abar_context *ctx, const char *path, const char *dir, abar_setup **out)
{
    abar__safetensors *file;
    ABAR_TRY(abar__safetensors_open(ctx, path, &file));
    abar_status status = checkpoint_setup(ctx, file, path, out);
    abar__safetensors_close(file);
    return status == ABAR_OK ? move_out(ctx, dir, out) : status;
}

static abar_status setup_from_config(abar_context *ctx, const char *path, abar_setup **out)
{
    abar__text json = {0};
    abar_status status = abar__file_read(ctx, path, CONFIG_MAX, &json);
    if (status == ABAR_OK) status = abar__setup_parse(ctx, path, json.data ? json.data : "", json.length, out);
    abar__text_free(ctx, &json);
    return status;
}

abar_status abar_setup_load(abar_context *ctx, const char *dir, abar_setup **out)
{
    char config[ABAR_RUN_PATH_MAX], state[ABAR_RUN_PATH_MAX];
    *out = NULL;
    ABAR_TRY(abar__run_path(ctx, dir, "config.json", config));
    ABAR_TRY(abar__run_path(ctx, dir, "state.safetensors", state));
    if (abar__path_exists(config))
        ABAR_TRY(setup_from_config(ctx, config, out));
    else if (abar__path_exists(state))
        return setup_from_checkpoint(ctx, state, dir, out);
    else
        return abar__folder_lacks(ctx, dir, "run", "config.json");
    return move_out(ctx, dir, out);
}

abar_status abar_setup_load_file(abar_context *ctx, const char *path, abar_setup **out)
{
    *out = NULL;
    return setup_from_checkpoint(ctx, path, "", out);
}

/* ---- loading -------------------------------------------------------------------------------------------------- */

/* A checkpoint being read or written. */
typedef struct carrier {
    abar_context *ctx;
    const char *path;
    abar__safetensors *file;
    abar__safetensors_writer *writer;
    int tensors;
} carrier;

static abar_status load_state(void *user, const char *name, const abar_tensor *tensor)
{
    carrier *c = user;
    char full[STATE_NAME_MAX];
    abar_tensor src;
    snprintf(full, sizeof full, ABAR_STATE_PREFIX "%s", name);
    if (!abar__safetensors_find(c->file, full, &src))
        return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: tensor %s is missing, the checkpoint is damaged", c->path, full);
    c->tensors++;
    return abar__weights_copy(c->ctx, c->path, full, tensor, &src);
}

/* Tensor i of the average of the weights, and its name in a checkpoint. */
static abar_tensor average_tensor(const abar_trainer *t, int i, char full[STATE_NAME_MAX])
{
    const char *name;
    abar_tensor tensor;
    abar__ema_tensor(&t->average, i, &name, &tensor);
    snprintf(full, STATE_NAME_MAX, ABAR_EMA_PREFIX "%s", name);
    return tensor;
}

static abar_status load_average(abar_trainer *t, carrier *c)
{
    for (int i = 0; t->average.net && i < abar_net_tensor_count(t->net); i++) {
        char full[STATE_NAME_MAX];
        abar_tensor dst = average_tensor(t, i, full), src;
        if (!abar__safetensors_find(c->file, full, &src))
            return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: tensor %s is missing, the checkpoint is damaged", c->path, full);
        c->tensors++;
        ABAR_TRY(abar__weights_copy(c->ctx, c->path, full, &dst, &src));
    }
    return ABAR_OK;
}

static abar_status load_tensors(abar_trainer *t, carrier *c)
{
    ABAR_TRY(abar__weights_load(t->ctx, c->file, c->path, t->net, true));
    ABAR_TRY(abar__weights_exact(t->ctx, c->file, c->path, t->net));
    ABAR_TRY(load_average(t, c));
    ABAR_TRY(abar_optim_visit(t->optim, load_state, c));
    if (abar__safetensors_count(c->file) == abar_net_tensor_count(t->net) + c->tensors) return ABAR_OK;
    return abar__fail(t->ctx, ABAR_E_FORMAT, "%s: holds state that %s does not have, the checkpoint is damaged", c->path,
                      t->setup->rule->name);
}

/* Tokens of another vocabulary would mean other characters. */
static abar_status check_vocabulary(abar_trainer *t, const carrier *c)
{
    const char *was = abar__safetensors_metadata(c->file, ABAR_NOTE_VOCABULARY), *now = abar_dataset_vocabulary(t->data);
    if ((!was && !now) || (was && now && strcmp(was, now) == 0)) return ABAR_OK;
    return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%s: has other characters than the run was made with, give the same text",
                      t->setup->train.data);
}

/* Of two digests in a row: training, test (or validation). */
static const abar__field digest_fields[] = {
    {"train", ABAR_FIELD_WHOLE, offsetof(abar__digest, count)},
    {"train_crc32", ABAR_FIELD_WHOLE, offsetof(abar__digest, crc)},
    {"test", ABAR_FIELD_WHOLE, sizeof(abar__digest) + offsetof(abar__digest, count)},
    {"test_crc32", ABAR_FIELD_WHOLE, sizeof(abar__digest) + offsetof(abar__digest, crc)},
    {0},
};

static abar_status compare_part(abar_trainer *t, const char *part, const abar__digest *was, const abar__digest *now)
{
    const abar_train_config *train = &t->setup->train;
    const char *unit = abar_dataset_info_of(t->data)->text ? "tokens" : "samples";
    if (was->count == now->count && was->crc == now->crc) return ABAR_OK;
    if (!train->accept_data)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                          "--data %.200s: its %s part has changed since the checkpoint (%lld %s with CRC-32 %08llx, now %lld "
                          "with %08llx), give the old data, or go on with the new: abar train --resume %.200s --accept-data",
                          train->data, part, (long long)was->count, unit, (unsigned long long)was->crc, (long long)now->count,
                          (unsigned long long)now->crc, train->out);
    abar__log(t->ctx, ABAR_LOG_INFO, "resume: the %s part of %s has changed since the checkpoint, as --accept-data allows",
              part, train->data);
    return ABAR_OK;
}

/* Files of the same sizes and labels may still be others: their names differ. */
static abar_status check_fingerprint(abar_trainer *t, const cJSON *root, const abar__digest was[2])
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "fingerprint"));
    const abar_train_config *train = &t->setup->train;
    if (!text || strtoull(text, NULL, 16) == t->fingerprint) return ABAR_OK;
    if (!train->accept_data)
        return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                          "--data %.200s: its files have changed since the checkpoint (%lld and %lld samples with fingerprint "
                          "%.16s, now %lld and %lld with %016llx), give the old data, or go on with the new: abar train "
                          "--resume %.200s --accept-data",
                          train->data, (long long)was[0].count, (long long)was[1].count, text, (long long)t->digest[0].count,
                          (long long)t->digest[1].count, (unsigned long long)t->fingerprint, train->out);
    abar__log(t->ctx, ABAR_LOG_INFO, "resume: the files of %s have changed since the checkpoint, as --accept-data allows",
              train->data);
    return ABAR_OK;
}

/* Checkpoints of older versions have no digest. Another --limit-test makes another test part, which is no change of the data.
 */
static abar_status check_data(abar_trainer *t, const carrier *c, bool same_limit)
{
    const char *json = abar__safetensors_metadata(c->file, "data");
    abar__digest was[2];
    cJSON *root;
    if (!json) return ABAR_OK;
    ABAR_TRY(abar__json_parse(t->ctx, c->path, json, strlen(json), &root));
    abar_status status = abar__fields_read(t->ctx, c->path, root, digest_fields, "test", was);
    if (status == ABAR_OK) status = compare_part(t, "training", &was[0], &t->digest[0]);
    if (status == ABAR_OK && same_limit) status = compare_part(t, abar__tested_part(&t->setup->train), &was[1], &t->digest[1]);
    if (status == ABAR_OK && same_limit) status = check_fingerprint(t, root, was);
    cJSON_Delete(root);
    return status;
}

static abar_status load_place(abar_trainer *t, const carrier *c)
{
    const char *progress = abar__safetensors_metadata(c->file, "progress");
    abar__epoch *history;
    if (!progress) return abar__fail(t->ctx, ABAR_E_FORMAT, "%s: not a checkpoint of abar, give the folder of a run", c->path);
    ABAR_TRY(abar__run_state_parse(t->ctx, c->path, progress, strlen(progress), &t->at, &history));
    size_t bytes = (size_t)t->at.epoch * sizeof *history;
    bool fits = t->at.epoch <= t->history_capacity && t->at.step <= t->steps;
    if (fits && history) memcpy(t->history, history, bytes);
    abar__free(t->ctx, history, bytes);
    if (fits) return ABAR_OK;
    t->at = (abar__run_state){0};
    return abar__fail(t->ctx, ABAR_E_ARGUMENT, "%s: is at a later epoch or step than this run has, raise --epochs", c->path);
}

static abar_status check_setup(abar_trainer *t, const carrier *c)
{
    abar_setup *was;
    ABAR_TRY(checkpoint_setup(t->ctx, c->file, c->path, &was));
    abar_status status = abar__setup_compare(t->ctx, was, t->setup);
    if (status == ABAR_OK) status = check_vocabulary(t, c);
    if (status == ABAR_OK) status = check_data(t, c, was->train.limit_test == t->setup->train.limit_test);
    abar_setup_destroy(t->ctx, was);
    return status;
}

abar_status abar__checkpoint_load(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    carrier c = {.ctx = t->ctx, .path = path};
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "state.safetensors", path));
    ABAR_TRY(abar__safetensors_open(t->ctx, path, &c.file));
    abar_status status = check_setup(t, &c);
    if (status == ABAR_OK) status = load_place(t, &c);
    if (status == ABAR_OK) status = abar__ranks_hold(t);
    if (status == ABAR_OK) status = load_tensors(t, &c);
    abar__safetensors_close(c.file);
    return status;
}

/* ---- saving --------------------------------------------------------------------------------------------------- */

static abar_status save_state(void *user, const char *name, const abar_tensor *tensor)
{
    carrier *c = user;
    char full[STATE_NAME_MAX];
    snprintf(full, sizeof full, ABAR_STATE_PREFIX "%s", name);
    const abar_tensor view = abar__host_view(tensor);
    return abar__safetensors_writer_add(c->writer, full, &view);
}

/* What the weights' file says beside them; the settings are in t->text. */
static abar_status take_notes(abar_trainer *t, bool settings, abar__notes *out)
{
    *out = (abar__notes){.vocabulary = abar_dataset_vocabulary(t->data), .classes = t->classes.data};
    if (!settings) return ABAR_OK;
    t->text.length = 0;
    ABAR_TRY(abar__setup_write(t->ctx, t->setup, &t->text));
    out->config = t->text.data;
    return ABAR_OK;
}

static abar_status save_metadata(abar_trainer *t, carrier *c)
{
    abar__notes notes;
    ABAR_TRY(take_notes(t, true, &notes));
    ABAR_TRY(abar__notes_add(c->writer, &notes));
    t->text.length = 0;
    ABAR_TRY(abar__text_append(t->ctx, &t->text, "{", 1));
    ABAR_TRY(abar__fields_write(t->ctx, digest_fields, t->digest, "test", &t->text));
    if (t->fingerprint)
        ABAR_TRY(abar__text_printf(t->ctx, &t->text, ", \"fingerprint\": \"%016llx\"", (unsigned long long)t->fingerprint));
    ABAR_TRY(abar__text_append(t->ctx, &t->text, "}", 1));
    ABAR_TRY(abar__safetensors_writer_metadata(c->writer, "data", t->text.data));
    t->text.length = 0;
    ABAR_TRY(abar__run_state_write(t->ctx, &t->at, t->history, &t->text));
    return abar__safetensors_writer_metadata(c->writer, "progress", t->text.data);
}

/* In the device's own dtypes, so that a resumed run has the same bits. */
static abar_status save_all(abar_trainer *t, carrier *c)
{
    abar__safetensors_writer_fetch(c->writer, abar_tensor_copy);
    ABAR_TRY(save_metadata(t, c));
    for (int i = 0; i < abar_net_tensor_count(t->net); i++) {
        const char *name;
        abar_tensor view;
        abar_net_tensor(t->net, i, &name, &view);
        view = abar__host_view(&view);
        ABAR_TRY(abar__safetensors_writer_add(c->writer, name, &view));
    }
    for (int i = 0; t->average.net && i < abar_net_tensor_count(t->net); i++) {
        char full[STATE_NAME_MAX];
        abar_tensor view = average_tensor(t, i, full);
        view = abar__host_view(&view);
        ABAR_TRY(abar__safetensors_writer_add(c->writer, full, &view));
    }
    ABAR_TRY(abar_optim_visit(t->optim, save_state, c));
    return abar__safetensors_writer_write(c->writer, c->path);
}

abar_status abar__checkpoint_save(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    carrier c = {.ctx = t->ctx, .path = path};
    if (t->saves) ABAR_TRY(abar__ranks_collect(t));
    if (!t->setup->train.out[0]) return ABAR_OK;
    ABAR_TRY(abar__jsonl_flush(t->log));
    ABAR_TRY(abar__tfevents_flush(t->scalars));
    t->at.log_bytes = abar__jsonl_bytes(t->log);
    t->at.events_bytes = abar__tfevents_bytes(t->scalars);
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "state.safetensors", path));
    ABAR_TRY(abar__safetensors_writer_create(t->ctx, &c.writer));
    abar_status status = save_all(t, &c);
    abar__safetensors_writer_destroy(c.writer);
    abar__ranks_let_go(t);
    return status;
}

static abar_status write_export(abar_trainer *t, const abar__ema *average, const char *path)
{
    abar__notes notes;
    ABAR_TRY(take_notes(t, t->setup->model->text, &notes));
    return abar__weights_export(t->ctx, t->net, average, t->stage, &notes, path);
}

/* The weights that are tested. */
abar_status abar__export_write(abar_trainer *t, const char *path)
{
    const bool entered = t->tested.swapped;
    abar_status status = entered ? ABAR_OK : abar__tested_enter(t);
    if (status == ABAR_OK) status = write_export(t, t->tested.swapped ? &t->tested : NULL, path);
    const abar_status back = entered ? ABAR_OK : abar__tested_leave(t);
    return back < 0 ? back : status;
}

abar_status abar__export_save(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    if (!t->setup->train.out[0]) return ABAR_OK;
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "model.safetensors", path));
    ABAR_TRY(abar__export_write(t, path));
    if (!t->average.net) return ABAR_OK;
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "model_ema.safetensors", path));
    return write_export(t, &t->average, path);
}

abar_status abar__config_save(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "config.json", path));
    t->setup->train.accept_data = false; /* it was for this resume alone */
    t->text.length = 0;
    ABAR_TRY(abar__setup_write(t->ctx, t->setup, &t->text));
    t->text.length--; /* the brace: the file also says what reports need before the first epoch ends */
    ABAR_TRY(abar__text_printf(t->ctx, &t->text, ", \"steps_per_epoch\": %lld}\n", (long long)t->steps));
    return abar__file_replace(t->ctx, path, t->text.data, t->text.length);
}
