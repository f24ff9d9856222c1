/* What a run reports: log.jsonl, TensorBoard scalars, and the report at its end. */
#include "base/clock.h"
#include "base/json.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define STEPS_PER_LINE 50
#define EVENTS_NAME "events.out.tfevents.0.abar" /* one name per folder: a run that starts over replaces its scalars */

/* ---- logs ----------------------------------------------------------------------------------------------------- */

/* The bytes of a log to keep: as many as the checkpoint recorded, or fewer where a crash of the machine lost some. */
static uint64_t keep_of(abar_context *ctx, const char *path, uint64_t wanted)
{
    struct stat info;
    uint64_t there = wanted > 0 && stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
    if (there >= wanted) return wanted;
    abar__log(ctx, ABAR_LOG_WARNING, "%s: holds less than the checkpoint says, lines are missing", path);
    return there;
}

abar_status abar__record_open(abar_trainer *t)
{
    char path[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, "log.jsonl", path));
    ABAR_TRY(abar__jsonl_open(t->ctx, path, keep_of(t->ctx, path, t->at.log_bytes), &t->log));
    ABAR_TRY(abar__run_path(t->ctx, t->setup->train.out, EVENTS_NAME, path));
    return abar__tfevents_open(t->ctx, path, keep_of(t->ctx, path, t->at.events_bytes), &t->scalars);
}

static int64_t global_step(const abar_trainer *t) { return t->at.epoch * t->steps + t->at.step; }

abar_status abar__record_step(abar_trainer *t, double loss, double lr)
{
    if (!t->log || global_step(t) % STEPS_PER_LINE != 0) return ABAR_OK;
    t->text.length = 0;
    ABAR_TRY(abar__text_printf(t->ctx, &t->text, "{\"step\": %lld, \"loss\": ", (long long)global_step(t)));
    ABAR_TRY(abar__json_number(t->ctx, &t->text, loss));
    ABAR_TRY(abar__text_printf(t->ctx, &t->text, ", \"lr\": "));
    ABAR_TRY(abar__json_number(t->ctx, &t->text, lr));
    ABAR_TRY(abar__text_append(t->ctx, &t->text, "}", 1));
    ABAR_TRY(abar__jsonl_write(t->log, t->text.data));
    ABAR_TRY(abar__tfevents_scalar(t->scalars, "train/batch_loss", global_step(t), abar__wall_time(), loss));
    return abar__tfevents_scalar(t->scalars, "lr", global_step(t), abar__wall_time(), lr);
}

static abar_status record_scalar(abar_trainer *t, const char *part, const char *what, double value)
{
    char tag[64];
    if (isnan(value)) return ABAR_OK; /* training numbers of an epoch whose steps were all skipped; no average of weights */
    snprintf(tag, sizeof tag, "%s%s", part, what);
    return abar__tfevents_scalar(t->scalars, tag, global_step(t), abar__wall_time(), value);
}

abar_status abar__record_epoch(abar_trainer *t, const abar__epoch *e)
{
    if (!t->log) return ABAR_OK;
    t->text.length = 0;
    const char *part = abar__tested_part(&t->setup->train);
    ABAR_TRY(abar__epoch_write(t->ctx, t->at.epoch, e, part, t->setup->model->text, &t->text));
    t->text.length--; /* the brace: a line of the log also says how many steps there were */
    ABAR_TRY(abar__text_printf(t->ctx, &t->text, ", \"step\": %lld}", (long long)global_step(t)));
    ABAR_TRY(abar__jsonl_write(t->log, t->text.data));
    ABAR_TRY(record_scalar(t, "train", "/loss", e->train_loss));
    ABAR_TRY(record_scalar(t, "train", "/accuracy", e->train_accuracy));
    ABAR_TRY(record_scalar(t, part, "/loss", e->test_loss));
    ABAR_TRY(record_scalar(t, part, "/accuracy", e->test_accuracy));
    ABAR_TRY(record_scalar(t, part, "/ema_loss", e->ema_loss));
    ABAR_TRY(record_scalar(t, part, "/ema_accuracy", e->ema_accuracy));
    ABAR_TRY(record_scalar(t, "lr", "", e->lr));
    if (t->setup->model->text) ABAR_TRY(record_scalar(t, part, "/bits_per_character", abar__bits(e->test_loss)));
    return abar__tfevents_flush(t->scalars);
}

/* ---- the report ----------------------------------------------------------------------------------------------- */

static abar_status report_real(abar_trainer *t, const char *part, const char *name, double value)
{
    ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"%s%s\": ", part, name));
    return abar__json_number(t->ctx, &t->report, value);
}

static abar_status report_average(abar_trainer *t, const abar__epoch *last)
{
    char name[32];
    snprintf(name, sizeof name, "ema_%s", abar__tested_part(&t->setup->train));
    ABAR_TRY(report_real(t, name, "_acc", last->ema_accuracy));
    ABAR_TRY(report_real(t, name, "_loss", last->ema_loss));
    return report_real(t, "best_ema", "_acc", abar__best_ema_accuracy(t->history, t->at.epoch));
}

static abar_status report_numbers(abar_trainer *t)
{
    const abar__epoch none = {
        .test_accuracy = NAN, .test_loss = NAN, .train_accuracy = NAN, .train_loss = NAN, .ema_accuracy = NAN, .ema_loss = NAN};
    const abar__epoch *last = t->at.epoch > 0 ? &t->history[t->at.epoch - 1] : &none;
    double steps = (double)global_step(t), train = t->at.step_seconds;
    const char *part = abar__tested_part(&t->setup->train);
    const struct {
        const char *part, *name;
        double value;
    } reals[] = {{part, "_acc", last->test_accuracy},
                 {"best", "_acc", abar__best_accuracy(t->history, t->at.epoch)},
                 {part, "_loss", last->test_loss},
                 {"best", "_loss", abar__best_loss(t->history, t->at.epoch)},
                 {"train", "_acc", last->train_accuracy},
                 {"train", "_loss", last->train_loss},
                 {"", "seconds", t->at.seconds},
                 {"", "ms_per_step", steps > 0 ? 1e3 * train / steps : 0.0},
                 {"", "samples_per_second", train > 0 ? steps * (double)abar__samples_each(t) / train : 0.0}};
    ABAR_TRY(abar__text_printf(t->ctx, &t->report, "{\"epochs\": %lld", (long long)t->at.epoch));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        ABAR_TRY(report_real(t, reals[i].part, reals[i].name, reals[i].value));
    const bool any = t->at.epoch > 0;
    ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"best_acc_epoch\": %lld, \"best_loss_epoch\": %lld",
                               any ? (long long)abar__best_accuracy_epoch(t->history, t->at.epoch) + 1 : 0LL,
                               any ? (long long)abar__best_loss_epoch(t->history, t->at.epoch) + 1 : 0LL));
    if (t->setup->model->text) {
        ABAR_TRY(report_real(t, part, "_ppl", abar__perplexity(last->test_loss)));
        ABAR_TRY(report_real(t, part, "_bpc", abar__bits(last->test_loss)));
    }
    if (t->average.net) ABAR_TRY(report_average(t, last));
    const abar_dataset_info *info = abar_dataset_info_of(t->data);
    if (info->shrunk > 0) ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"shrunk\": %lld", (long long)info->shrunk));
    ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"train_samples\": %lld, \"%s_samples\": %lld", (long long)info->train,
                               part, (long long)info->test));
    return abar__text_printf(t->ctx, &t->report, ", \"peak_bytes\": %zu, \"optimizer_bytes\": %zu, \"skipped_steps\": %lld",
                             abar_context_memory(t->ctx).peak, abar_optim_state_bytes(t->optim), (long long)t->at.skipped);
}

/* Of image folders: how many files could not be read, and how often other images took their place. */
static abar_status report_damage(abar_trainer *t)
{
    const abar_loader *const loader[2] = {t->train, t->test};
    abar_damage d[2] = {{.size = sizeof *d}, {.size = sizeof *d}};
    for (int i = 0; i < 2; i++) ABAR_TRY(abar_loader_damage(loader[i], &d[i]));
    if (!abar_dataset_info_of(t->data)->streamed) return ABAR_OK;
    return abar__text_printf(
        t->ctx, &t->report, ", \"damaged\": {\"train_files\": %lld, \"train_places\": %lld, \"%s_files\": %lld}",
        (long long)d[0].files, (long long)d[0].places, abar__tested_part(&t->setup->train), (long long)d[1].files);
}

static abar_status report_blocks(abar_trainer *t)
{
    const abar_block_counts blocks = *abar_optim_blocks(t->optim);
    if (blocks.blocks == 0) return ABAR_OK;
    return abar__text_printf(
        t->ctx, &t->report, ", \"blocks\": {\"count\": %lld, \"dropped\": %lld, \"small\": %lld, \"kept\": %lld}",
        (long long)blocks.blocks, (long long)blocks.dropped, (long long)blocks.small, (long long)blocks.kept);
}

abar_status abar_trainer_report(abar_trainer *t, const char **json)
{
    abar_context *ctx = t->ctx;
    abar__text *out = &t->report;
    out->length = 0;
    ABAR_TRY(report_numbers(t));
    ABAR_TRY(report_blocks(t));
    ABAR_TRY(report_damage(t));
    ABAR_TRY(abar__text_printf(ctx, out, ", \"stopped\": %s, \"dir\": ", t->stopped ? "true" : "false"));
    if (t->setup->train.out[0])
        ABAR_TRY(abar__json_string(ctx, out, t->setup->train.out));
    else
        ABAR_TRY(abar__text_append(ctx, out, "null", 4));
    if (t->setup->method) ABAR_TRY(abar__report_curvature(t));
    ABAR_TRY(abar__text_append(ctx, out, ", \"history\": ", 13));
    ABAR_TRY(
        abar__history_write(ctx, t->history, t->at.epoch, abar__tested_part(&t->setup->train), t->setup->model->text, out));
    ABAR_TRY(abar__text_append(ctx, out, ", \"config\": ", 12));
    ABAR_TRY(abar__setup_write(ctx, t->setup, out));
    ABAR_TRY(abar__text_append(ctx, out, "}", 1));
    *json = out->data;
    return ABAR_OK;
}
