/* abar train: trains a setup from flags or from the folder of a run, and shows its progress. */
#include "gpus.h"
#include "images.h"
#include "progress.h"
#include "ranks.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct train_flags {
    char resume[ABAR_OPTION_TEXT_MAX], gpus[ABAR_OPTION_TEXT_MAX];
    bool no_out, json, quiet;
    int64_t ranks;
    double timeout;
    bool own_folder; /* not a flag: the folder was chosen here */
} train_flags;

#define AT(member) offsetof(train_flags, member)

static const abar_option own[] = {
    {"resume", ABAR_OPTION_TEXT, AT(resume), "", 0, 0, NULL,
     "continue the run in this folder, with its settings; --epochs and others may change, not --model, "
     "--data and --optim"},
    {"no-out", ABAR_OPTION_BOOL, AT(no_out), "false", 0, 0, NULL, "write nothing to disk"},
    RANKS_ROWS(AT(ranks), AT(timeout)),
    {"gpus", ABAR_OPTION_TEXT, AT(gpus), "", 0, 0, NULL,
     "GPUs of this machine, a number or all: a process on each, which train together as with --ranks"},
    {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
    {"quiet", ABAR_OPTION_BOOL, AT(quiet), "false", 0, 0, NULL, "print nothing but errors"},
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

static int make_new(cli *c, train_flags *flags, const abar_comm *comm, abar_setup **setup)
{
    int code = flags_out(c);
    if (!code) code = flags_setup(c, flags, setup);
    if (code) return code;
    char *out = (*setup)->train.out;
    if (flags->no_out && out[0]) return cli_fail(c, EXIT_USAGE, "--no-out: and --out %s, leave one of them out", out);
    flags->own_folder = !flags->no_out && !out[0];
    if (flags->no_out) out[0] = '\0';
    if (flags->own_folder) snprintf(out, sizeof(*setup)->train.out, RUNS); /* so that flags_check sees a folder */
    code = flags_check(c, *setup);
    if (!code && flags->own_folder && abar_comm_rank(comm) == 0) claim_folder(*setup);
    return code;
}

static int make_resumed(cli *c, const char *folder, train_flags *flags, abar_setup **setup)
{
    if (flags_peek(c, "out") && strcmp(flags_peek(c, "out"), folder) != 0)
        return cli_fail(c, EXIT_USAGE, "--out: a resumed run stays in its folder, copy %s first and resume the copy", folder);
    abar_status status = abar_setup_load(c->ctx, folder, setup);
    if (status < 0) return cli_fail_status(c, status);
    (*setup)->train.stop_after = 0; /* it applied to the run so far */
    int code = flags_read(c, flags, *setup, folder);
    if (!code && flags->no_out)
        code =
            cli_fail(c, EXIT_USAGE, "--no-out: a resumed run continues in its folder, leave it out or copy %s first", folder);
    return code ? code : flags_check(c, *setup);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

static int64_t parameters_of(const abar_net *net)
{
    int64_t sum = 0;
    for (int i = 0; i < abar_net_param_count(net); i++) sum += abar_tensor_count(&abar_net_param(net, i)->value);
    return sum;
}

static size_t append_setting(cli *c, const abar_option *table, const void *config, const char *name, bool hides_zero,
                             char *line, size_t at, size_t size)
{
    char value[ABAR_OPTION_TEXT_MAX];
    const abar_option *row = abar_options_find(table, name);
    if (!row || at >= size || abar_options_get(c->ctx, table, config, name, value, sizeof value) < 0 || !value[0]) return at;
    bool plain = row->type == ABAR_OPTION_BOOL, usual = row->fallback && strcmp(value, row->fallback) == 0;
    if (usual && (plain || (table != abar_train_options() && row->type == ABAR_OPTION_CHOICE))) return at;
    if (usual && hides_zero && strcmp(value, "0") == 0) return at;
    const bool off = plain && strcmp(value, "false") == 0;
    int n = snprintf(line + at, size - at, "%s%s%s%s%s", at ? ", " : "", off ? "no-" : "", name, plain ? "" : " ",
                     plain ? "" : value);
    return at + (size_t)n;
}

static void announce_validation(const abar_dataset_info *info, FILE *out, int width)
{
    char line[160], held[NUMBER_MAX], all[NUMBER_MAX];
    print_count(held, info->test);
    print_count(all, info->train + info->test);
    snprintf(line, sizeof line,
             info->text ? "validation: the last %s of %s training tokens; the test set is not used"
                        : "validation: %s of %s training images; the test set is not used",
             held, all);
    print_wrapped(out, 0, width, line);
}

/* Tests on smaller images than those of training are rarely meant. */
static void announce_sizes(const abar_train_config *train, FILE *out, int width)
{
    char line[256];
    if (train->size <= train->test_size) return;
    snprintf(line, sizeof line,
             "test images have %" PRId64 " pixels a side, training images %" PRId64 ": --test-size %" PRId64
             " --test-resize %" PRId64 " makes them equal",
             train->test_size, train->size, train->size, train->size);
    print_wrapped(out, 0, width, line);
}

/* Settings of the optimizer; those of averages where the method keeps some. */
static bool is_shown(const abar_setup *setup, const abar_setup_table *table)
{
    if (strcmp(table->section, "images") == 0) return false;
    return strcmp(table->section, "curvature") != 0 || !abar_method_takes_whole_batch(setup->method->name);
}

static void announce(cli *c, const abar_setup *setup, abar_trainer *trainer, FILE *out, int width)
{
    static const char *const said[] = {"epochs", "batch", "lr", "schedule", "warmup", "weight-decay", "seed", NULL};
    const abar_net *net = abar_trainer_net(trainer);
    char line[4 * ABAR_OPTION_TEXT_MAX], number[NUMBER_MAX];
    size_t at = 0;
    snprintf(line, sizeof line, "%s (%s parameters) on %s with %s, %s", setup->train.model,
             print_count(number, parameters_of(net)), setup->train.data, setup->train.optim,
             abar_device_describe(abar_net_param(net, 0)->value.dev));
    print_wrapped(out, 0, width, line);
    for (int i = 0; said[i]; i++)
        at = append_setting(c, abar_train_options(), &setup->train, said[i], strcmp(said[i], "warmup") == 0, line, at,
                            sizeof line);
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 2; i < n; i++)
        for (const abar_option *row = tables[i].options; row->name && is_shown(setup, &tables[i]); row++)
            at = append_setting(c, tables[i].options, tables[i].config, row->name, i == 2 /* 0: as another option says */, line,
                                at, sizeof line);
    print_wrapped(out, 0, width, line);
    if (images_named(c, setup->train.data, NULL)) announce_sizes(&setup->train, out, width);
    if (setup->train.validation > 0.0) announce_validation(abar_trainer_data(trainer), out, width);
    fflush(out);
}

/* Commands to copy and paste. */
static void say_next(const cli *c, const abar_setup *setup, const progress *p, bool finished)
{
    char folder[SHELL_WORD_MAX];
    print_shell_word(folder, setup->train.out);
    fprintf(p->out, "\nNext:\n");
    if (setup->model->text) fprintf(p->out, "  %s sample --checkpoint %s\n", c->program, folder);
    fprintf(p->out, "  %s eval --checkpoint %s%s\n  %s train --resume %s", c->program, folder,
            setup->train.validation > 0.0 ? "    # on the test set" : "", c->program, folder);
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
    const char *part = last->validation ? "Validation" : "Test";
    const int n = last->text ? fprintf(p->out, "\n%s loss %s%s%s ", part, bold, loss, plain)
                             : fprintf(p->out, "\n%s accuracy %s%.2f %%%s ", part, bold, last->test_accuracy, plain);
    print_wrapped_from(p->out, n - 1 - (int)(strlen(bold) + strlen(plain)), 0, print_width(p->out), line);
}

/* What the rule met in its blocks, where it was not as it should be. */
static void say_blocks(const abar_setup *setup, const progress *p)
{
    char text[256];
    const abar_progress *last = &p->last;
    if (last->blocks_dropped > 0) {
        snprintf(text, sizeof text,
                 "%s dropped %" PRId64 " updates of blocks that were not finite: lower --lr, or set --warmup or --clip.",
                 setup->rule->name, last->blocks_dropped);
        print_wrapped(p->out, 0, print_width(p->out), text);
    }
    if (last->blocks_small > 0) {
        snprintf(text, sizeof text,
                 "Muon met %" PRId64 " blocks whose norm was below --muon-eps, and moved them less than it should: lower "
                 "--muon-eps.",
                 last->blocks_small);
        print_wrapped(p->out, 0, print_width(p->out), text);
    }
}

/* Of the average of the weights, where there is one. */
static void say_average(const progress *p)
{
    char text[160], loss[NUMBER_MAX], best[64] = "";
    const abar_progress *last = &p->last;
    if (isnan(last->ema_test_accuracy)) return;
    if (!last->text) snprintf(best, sizeof best, " (best %.2f %%)", last->best_ema_accuracy);
    snprintf(text, sizeof text, "Average of the weights: accuracy %.2f %%%s, loss %s.", last->ema_test_accuracy, best,
             print_fixed(loss, last->ema_test_loss, 4));
    print_wrapped(p->out, 0, print_width(p->out), text);
}

static void say_finished(const cli *c, const abar_setup *setup, const progress *p)
{
    const abar_train_config *t = &setup->train;
    bool early = t->stop_after > 0 && t->stop_after < t->epochs;
    char path[ABAR_OPTION_TEXT_MAX + 32], text[128];
    snprintf(text, sizeof text, "Nothing left to do: the run is at %s %" PRId64 " already.",
             early ? "--stop-after" : "--epochs", early ? t->stop_after : t->epochs);
    if (p->any)
        say_result(p);
    else
        print_wrapped(p->out, 0, print_width(p->out), text);
    if (p->any) say_blocks(setup, p);
    if (p->any) say_average(p);
    if (!t->out[0]) return;
    snprintf(path, sizeof path, "%s/state.safetensors", t->out);
    print_path(p->out, "Checkpoint", path);
    snprintf(path, sizeof path, "%s/model.safetensors", t->out);
    print_path(p->out, "Weights for PyTorch", path);
    snprintf(path, sizeof path, "%s/model_ema.safetensors", t->out);
    if (t->ema > 0.0) print_path(p->out, "Their average", path);
    say_next(c, setup, p, !early);
}

static void say_stopped(const cli *c, const abar_setup *setup, const progress *p)
{
    char folder[SHELL_WORD_MAX], text[128];
    const bool kept = setup->train.out[0];
    snprintf(text, sizeof text, "stopped in epoch %" PRId64 " of %" PRId64 "%s", p->epoch + 1, setup->train.epochs,
             kept ? " and saved; continue with:" : "; nothing was saved (--no-out)");
    print_wrapped(p->out, 0, print_width(p->out), text);
    if (kept) fprintf(p->out, "  %s train --resume %s\n", c->program, print_shell_word(folder, setup->train.out));
}

/* ---- the command ---------------------------------------------------------------------------------------------- */

static abar_status run_trainer(void *trainer) { return abar_trainer_run(trainer); }
static void stop_trainer(void *trainer) { abar_trainer_stop(trainer); }

static int train(cli *c, abar_comm *comm, const abar_setup *setup, const train_flags *flags)
{
    progress watch;
    const bool first = abar_comm_rank(comm) == 0;
    FILE *out = flags->quiet || !first ? NULL : !flags->json ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
    progress_init(&watch, out);
    c->progress = &watch;

    abar_trainer *trainer = NULL;
    abar_trainer_events events = {.size = sizeof events, .progress = progress_update, .user = &watch};
    abar_status status = abar_trainer_create_on(c->ctx, comm, setup, flags->resume[0] != '\0', &events, &trainer);
    if (!first) c->rank_name = abar_comm_name(comm, abar_comm_rank(comm));
    const size_t state = status >= 0 && setup->train.zero ? abar_trainer_state_bytes(trainer) : 0;
    if (status >= 0 && out) ranks_announce(comm, &setup->train, state, out, progress_width(&watch));
    if (status >= 0 && out) announce(c, setup, trainer, out, progress_width(&watch));
    if (status >= 0) status = stop_on_signal(&(stoppable){trainer, run_trainer, stop_trainer});
    progress_clear(&watch);
    c->progress = NULL;

    int code = status < 0 ? ranks_fail(c, status, setup->train.out, "state.safetensors") : EXIT_SUCCESS;
    if (status == ABAR_E_PEER && !first) ranks_tell_for_first(c, comm);
    if (status >= 0 && out) {
        if (status == ABAR_STOPPED)
            say_stopped(c, setup, &watch);
        else
            say_finished(c, setup, &watch);
    }
    const char *json;
    if (status >= 0 && flags->json && first) {
        if (abar_trainer_report(trainer, &json) < 0)
            code = cli_fail_status(c, ABAR_E_STATE);
        else
            puts(json);
    }
    abar_trainer_destroy(trainer);
    if (status == ABAR_STOPPED && code == EXIT_SUCCESS) code = stop_exit_code();
    return code;
}

/* Of --gpus one for each; 0: as --ranks says. */
static int count_ranks(cli *c, int *ranks)
{
    const char *device = flags_peek(c, "device"), *gpus = flags_peek(c, "gpus");
    *ranks = 0;
    if (!gpus || !gpus[0]) return EXIT_SUCCESS;
    if (flags_peek(c, "ranks")) return cli_fail(c, EXIT_USAGE, "--gpus %s: starts a rank on each GPU, leave --ranks out", gpus);
    if (device && strcmp(device, "cuda") != 0)
        return cli_fail(c, EXIT_USAGE, "--gpus %s: and --device %s, leave one of them out", gpus, device);
    return gpus_count(c, gpus, ranks);
}

static int run_rank(cli *c, abar_comm *comm)
{
    train_flags flags = {0};
    abar_setup *setup = NULL;
    const char *folder;
    int code = flags_resume(c, &folder);
    if (!code) code = folder ? make_resumed(c, folder, &flags, &setup) : make_new(c, &flags, comm, &setup);
    if (!code && flags.gpus[0]) snprintf(setup->train.device, sizeof setup->train.device, "cuda");
    code = ranks_agree(c, comm, code);
    if (!code) {
        c->quiet = flags.quiet;
        code = train(c, comm, setup, &flags);
    }
    if (code && setup && flags.own_folder && abar_comm_rank(comm) == 0) folder_unclaim(setup->train.out);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

static int run(cli *c)
{
    int ranks;
    const int code = count_ranks(c, &ranks);
    return code ? code : ranks_run(c, ranks, run_rank);
}

const command command_train = {
    .name = "train",
    .summary = "train a network; Ctrl-C saves, --resume continues",
    .usage = "[--model NAME] [--data NAME] [--optim NAME] [--flag value ...]",
    .about = "Trains a network, tests it after every epoch, and saves checkpoint and logs in a folder: "
             "runs/MODEL-DATA-OPTIM-sSEED, or that of --out. Ctrl-C stops after the current step and saves everything.",
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
