/* abar train: a setup from flags or from a folder, a trainer, and somebody watching. */
#include "cli.h"
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct train_flags {
    char resume[ABAR_OPTION_TEXT_MAX];
    bool no_out, json, quiet;
    bool own_folder; /* no flag: the folder is one we chose */
} train_flags;

static const abar_option own[] = {
    {.name = "resume",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(train_flags, resume),
     .fallback = "",
     .help = "go on with the run in this folder, with its settings; --epochs and others may change, not --model, "
             "--data and --optim"},
    {.name = "no-out",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(train_flags, no_out),
     .fallback = "false",
     .help = "keep nothing on disk"},
    {.name = "json",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(train_flags, json),
     .fallback = "false",
     .help = "print one JSON object at the end, and nothing else"},
    {.name = "quiet",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(train_flags, quiet),
     .fallback = "false",
     .help = "print nothing but errors"},
    {0}};

/* ---- where the run is kept ------------------------------------------------------------------------------------ */

/* Without --out: runs/MODEL-DATA-OPTIM-sSEED. */
static void claim_folder(abar_setup *setup)
{
    const abar_train_config *t = &setup->train;
    char name[ABAR_OPTION_TEXT_MAX];
    int data = (int)strcspn(t->data, ":");
    snprintf(name, sizeof name, "%.64s-%.*s-%.64s-s%" PRId64, t->model, data < 64 ? data : 64, t->data, t->optim, t->seed);
    folder_claim(setup->train.out, name);
}

static int make_new(cli *c, train_flags *flags, abar_setup **setup)
{
    int code = flags_out(c);
    if (!code) code = flags_setup(c, flags, setup);
    if (code) return code;
    char *out = (*setup)->train.out;
    if (flags->no_out && out[0]) return cli_fail(EXIT_USAGE, "--no-out: and --out %s, leave one of them out", out);
    flags->own_folder = !flags->no_out && !out[0];
    if (flags->no_out) out[0] = '\0';
    if (flags->own_folder) snprintf(out, sizeof(*setup)->train.out, RUNS); /* for the check: there will be one */
    code = flags_check(c, *setup);
    if (!code && flags->own_folder) claim_folder(*setup);
    return code;
}

static int make_resumed(cli *c, const char *folder, train_flags *flags, abar_setup **setup)
{
    if (flags_peek(c, "out") && strcmp(flags_peek(c, "out"), folder) != 0)
        return cli_fail(EXIT_USAGE, "--out: a resumed run stays in its folder, copy %s first and resume the copy", folder);
    abar_status status = abar_setup_load(c->ctx, folder, setup);
    if (status < 0) return cli_fail_status(c, status);
    (*setup)->train.stop_after = 0; /* it has stopped there; now it goes on */
    int code = flags_read(c, flags, *setup, folder);
    return code ? code : flags_check(c, *setup);
}

/* ---- what is said --------------------------------------------------------------------------------------------- */

static int64_t parameters_of(const abar_net *net)
{
    int64_t sum = 0;
    for (int i = 0; i < abar_net_param_count(net); i++) sum += abar_tensor_count(&abar_net_param(net, i)->value);
    return sum;
}

static size_t append_setting(cli *c, const abar_option *table, const void *config, const char *name, char *line, size_t at,
                             size_t size)
{
    char value[ABAR_OPTION_TEXT_MAX];
    const abar_option *row = abar_options_find(table, name);
    if (!row || at >= size || abar_options_get(c->ctx, table, config, name, value, sizeof value) < 0 || !value[0]) return at;
    bool plain = row->type == ABAR_OPTION_BOOL, usual = row->fallback && strcmp(value, row->fallback) == 0;
    if (usual && (plain || (table != abar_train_options() && row->type == ABAR_OPTION_CHOICE))) return at;
    int n = snprintf(line + at, size - at, "%s%s%s%s", at ? ", " : "", name, plain ? "" : " ", plain ? "" : value);
    return at + (size_t)n;
}

static void announce(cli *c, const abar_setup *setup, abar_trainer *trainer, FILE *out, int width)
{
    static const char *const said[] = {"epochs", "batch", "lr", "schedule", "weight-decay", "seed", NULL};
    const abar_net *net = abar_trainer_net(trainer);
    char line[4 * ABAR_OPTION_TEXT_MAX], number[NUMBER_MAX];
    size_t at = 0;
    snprintf(line, sizeof line, "%s (%s parameters) on %s with %s, %s", setup->train.model,
             print_count(number, parameters_of(net)), setup->train.data, setup->train.optim,
             abar_device_describe(abar_net_param(net, 0)->value.dev));
    print_wrapped(out, 0, width, line);
    for (int i = 0; said[i]; i++) at = append_setting(c, abar_train_options(), &setup->train, said[i], line, at, sizeof line);
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 2; i < n; i++)
        for (const abar_option *row = tables[i].options; row->name; row++)
            at = append_setting(c, tables[i].options, tables[i].config, row->name, line, at, sizeof line);
    print_wrapped(out, 0, width, line);
    fflush(out);
}

/* The commands to try, ready to be copied. */
static void say_next(const cli *c, const abar_setup *setup, const progress *p, bool finished)
{
    char folder[2 * ABAR_OPTION_TEXT_MAX];
    print_shell_word(folder, sizeof folder, setup->train.out);
    fprintf(p->out, "\nNext:\n");
    if (setup->model->text) fprintf(p->out, "  %s sample --checkpoint %s\n", c->program, folder);
    fprintf(p->out, "  %s eval --checkpoint %s\n  %s train --resume %s", c->program, folder, c->program, folder);
    if (finished) fprintf(p->out, " --epochs %" PRId64, 2 * setup->train.epochs);
    fprintf(p->out, "\n  %s train --help\n", c->program);
}

static void say_result(const progress *p)
{
    char time[NUMBER_MAX], line[512], loss[NUMBER_MAX], best[NUMBER_MAX], perplexity[NUMBER_MAX], bits[NUMBER_MAX];
    const abar_progress *last = &p->last;
    const char *bold = progress_bold(p), *plain = progress_plain(p), *plural = last->epoch ? "s" : "";
    print_fixed(loss, last->test_loss, 4);
    print_duration(time, last->seconds);
    if (last->text)
        snprintf(line, sizeof line,
                 "(best %s in epoch %" PRId64 ") after %" PRId64
                 " epoch%s, %s: perplexity %s, %s bits a token, accuracy %.2f %%.",
                 print_fixed(best, last->best_loss, 4), last->best_loss_epoch + 1, last->epoch + 1, plural, time,
                 print_fixed(perplexity, last->test_perplexity, 3), print_fixed(bits, last->test_bits, 3), last->test_accuracy);
    else
        snprintf(line, sizeof line, "(best %.2f %% in epoch %" PRId64 ") after %" PRId64 " epoch%s, %s.", last->best_accuracy,
                 last->best_accuracy_epoch + 1, last->epoch + 1, plural, time);
    const int n = last->text ? fprintf(p->out, "\nTest loss %s%s%s ", bold, loss, plain)
                             : fprintf(p->out, "\nTest accuracy %s%.2f %%%s ", bold, last->test_accuracy, plain);
    print_wrapped_from(p->out, n - 1 - (int)(strlen(bold) + strlen(plain)), 0, print_width(p->out), line);
}

static void say_finished(const cli *c, const abar_setup *setup, const progress *p)
{
    const abar_train_config *t = &setup->train;
    bool early = t->stop_after > 0 && t->stop_after < t->epochs;
    if (p->any)
        say_result(p);
    else
        fprintf(p->out, "Nothing left to do: the run is at %s %" PRId64 " already.\n", early ? "--stop-after" : "--epochs",
                early ? t->stop_after : t->epochs);
    if (!t->out[0]) return;
    fprintf(p->out, "Checkpoint: %s/state.safetensors\nWeights for PyTorch: %s/model.safetensors\n", t->out, t->out);
    say_next(c, setup, p, !early);
}

static void say_stopped(const cli *c, const abar_setup *setup, const progress *p)
{
    char folder[2 * ABAR_OPTION_TEXT_MAX];
    print_shell_word(folder, sizeof folder, setup->train.out);
    fprintf(p->out, "stopped in epoch %" PRId64 " of %" PRId64, p->epoch + 1, setup->train.epochs);
    if (setup->train.out[0])
        fprintf(p->out, " and saved; go on with:\n  %s train --resume %s\n", c->program, folder);
    else
        fprintf(p->out, "; nothing was kept, as asked\n");
}

/* ---- the command ---------------------------------------------------------------------------------------------- */

static abar_status run_trainer(void *trainer) { return abar_trainer_run(trainer); }
static void stop_trainer(void *trainer) { abar_trainer_stop(trainer); }

static int train(cli *c, const abar_setup *setup, const train_flags *flags)
{
    progress watch;
    FILE *out = flags->quiet ? NULL : !flags->json ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
    progress_init(&watch, out);
    c->progress = &watch;

    abar_trainer *trainer = NULL;
    abar_trainer_events events = {.size = sizeof events, .progress = progress_update, .user = &watch};
    abar_status status = abar_trainer_create(c->ctx, setup, flags->resume[0] != '\0', &events, &trainer);
    if (status >= 0 && out) announce(c, setup, trainer, out, progress_width(&watch));
    if (status >= 0) status = stop_on_signal(&(stoppable){trainer, run_trainer, stop_trainer});
    progress_clear(&watch);
    c->progress = NULL;

    int code = status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
    if (status >= 0 && out) {
        if (status == ABAR_STOPPED)
            say_stopped(c, setup, &watch);
        else
            say_finished(c, setup, &watch);
    }
    const char *json;
    if (status >= 0 && flags->json) {
        if (abar_trainer_report(trainer, &json) < 0)
            code = cli_fail_status(c, ABAR_E_STATE);
        else
            puts(json);
    }
    abar_trainer_destroy(trainer);
    if (status == ABAR_STOPPED && code == EXIT_SUCCESS) code = stop_exit_code();
    return code;
}

static int run(cli *c)
{
    train_flags flags = {0};
    abar_setup *setup = NULL;
    const char *folder;
    int code = flags_resume(c, &folder);
    if (!code) code = folder ? make_resumed(c, folder, &flags, &setup) : make_new(c, &flags, &setup);
    if (!code) {
        c->quiet = flags.quiet;
        code = train(c, setup, &flags);
    }
    if (code && setup && flags.own_folder) folder_unclaim(setup->train.out);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_train = {
    .name = "train",
    .summary = "train a network; Ctrl-C saves, --resume goes on",
    .usage = "[--model NAME] [--data NAME] [--optim NAME] [--flag value ...]",
    .about = "Trains a network, tests it after every epoch, and keeps its checkpoint and logs in a folder: "
             "runs/MODEL-DATA-OPTIM-sSEED, unless --out says otherwise. Ctrl-C ends the run after the current step, with "
             "everything saved.",
    .own = own,
    .all_settings = true,
    .model_options = true,
    .rule_options = true,
    .examples = "  abar train\n"
                "  abar train --model resnet20 --data cifar10:DIR --epochs 20\n"
                "  abar train --model gpt-char --data text:FILE\n"
                "  abar train --optim adamw --lr 0.002 --out runs/try\n"
                "  abar train --resume runs/try --epochs 40\n",
    .run = run,
};
