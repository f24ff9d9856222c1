/* abar compare: several optimizers on one problem under equal conditions. A line per run, and a table at the end. */
#include "comparing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_MIN 24 /* columns of settings beside their label; with fewer they go below */
#define AT(member) offsetof(comparing_flags, member)

static const abar_option own[] = {
    {"optim", ABAR_OPTION_TEXT, AT(optim), "sgd,mac", 0, 0, NULL,
     "optimizers, as `abar optimizers` lists them, or all; LABEL=NAME gives one another name, NAME:N runs it with N seeds"},
    {"seeds", ABAR_OPTION_INT, AT(seeds), "1", 1, ABAR_COMPARE_SEEDS_MAX, NULL,
     "runs of each optimizer, with --seed, --seed + 1, ...; may grow with --resume"},
    COMPARING_JOBS,
    COMPARING_RANKS,
    COMPARING_PART,
    {"target", ABAR_OPTION_TEXT, AT(target), "", 0, 0, NULL,
     "acc=PERCENT or loss=X of the test part: also tell when each optimizer reaches it"},
    COMPARING_OUT,
    COMPARING_RESUME("comparison"),
    COMPARING_JSON,
    COMPARING_QUIET,
    {0}};

/* ---- messages --------------------------------------------------------------------------------------------------- */

static void announce(watcher *w)
{
    FILE *out = w->line.out;
    const abar_compare *compare = w->compare;
    const abar_train_config *t = &abar_compare_setup(compare, 0)->train;
    int methods = abar_compare_method_count(compare), runs = abar_compare_run_count(compare);
    char line[4 * ABAR_OPTION_TEXT_MAX], trainings[64];
    const bool below = print_width(out) - w->label_width - 4 < SETTINGS_MIN;
    int seeds = comparison_seeds(compare);
    if (runs == methods * seeds)
        snprintf(trainings, sizeof trainings, " x %d seed%s", seeds, seeds > 1 ? "s" : "");
    else
        snprintf(trainings, sizeof trainings, ", %d runs", runs);
    snprintf(line, sizeof line, "%s on %s, %s: %d optimizer%s%s, %" PRId64 " epoch%s each, batch %" PRId64, t->model, t->data,
             t->device, methods, methods > 1 ? "s" : "", trainings, t->epochs, t->epochs > 1 ? "s" : "", t->batch);
    if (t->validation > 0.0) {
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, ", validation %g (the test set is not used)", t->validation);
    }
    print_wrapped(out, 0, print_width(out), line);
    for (int m = 0; m < methods; m++) {
        comparing_describe(w->c, abar_compare_setup(compare, m), line, sizeof line);
        fprintf(out, "  %-*s%s", below ? 0 : w->label_width, abar_compare_row_of(compare, m)->label, below ? "\n      " : "  ");
        print_wrapped(out, below ? 6 : w->label_width + 4, print_width(out), line);
    }
    comparing_announce_ended(w);
    fflush(out);
    w->announced = true;
}

static void say_finished(watcher *w)
{
    static const char *const file[][2] = {{"Curves", "compare.svg"},
                                          {"Table", "compare.md"},
                                          {"Numbers", "compare.csv and compare.json"},
                                          {"Checkpoints", "OPTIM-sSEED/"},
                                          {NULL, NULL}};
    FILE *out = w->line.out;
    char folder[SHELL_WORD_MAX];
    const char *dir = abar_compare_dir(w->compare);
    int seeds = comparison_seeds(w->compare);
    if (!w->announced) announce(w);
    print_comparison(w->compare, &w->line);
    print_targets(w->compare, &w->line);
    print_pairs(w->compare, &w->line);
    print_shell_word(folder, dir);
    comparing_say_files(out, dir, file);
    fprintf(out, "\nNext:\n");
    fprintf(out, "  %s compare --resume %s --seeds %d\n", w->c->program, folder, seeds < 3 ? 3 : 2 * seeds);
}

static const comparing comparison;

/* ---- the command ------------------------------------------------------------------------------------------------ */

static int load(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    static const char *const allowed[] = {"resume", "ranks", "timeout", "seeds", "target",
                                          "jobs",   "part",  "json",    "quiet", NULL};
    const int code =
        comparing_read_resumed(c, flags, &comparison, allowed, "--seeds may grow, --jobs, --part and --target change");
    if (code) return code;
    abar_status status = abar_compare_load(c->ctx, flags->resume, flags_peek(c, "seeds") ? flags->seeds : 0, events, out);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

/* Without the flag a resumed comparison keeps its target. */
static int set_target(const cli *c, const comparing_flags *flags, abar_compare *compare)
{
    if (!flags_peek(c, "target")) return EXIT_SUCCESS;
    abar_status status = abar_compare_target(compare, flags->target);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static int create(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    setup_list list;
    const char *labels[ABAR_COMPARE_METHODS_MAX];
    const int code = comparing_read_new(c, flags, "compare", true, &list, labels);
    if (code) return code;
    const abar_compare_config config = {.size = sizeof config,
                                        .out = flags->out,
                                        .setups = (const abar_setup *const *)list.setup,
                                        .labels = labels,
                                        .methods = list.n,
                                        .seeds = flags->seeds,
                                        .method_seeds = list.seeds};
    abar_status status = abar_compare_create(c->ctx, &config, events, out);
    setup_list_destroy(c, &list);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static const comparing comparison = {.noun = "comparison",
                                     .reasons = "compare.md",
                                     .judge = comparing_judge,
                                     .announce = announce,
                                     .finish = say_finished,
                                     .load = load,
                                     .create = create,
                                     .set = set_target};

static int lead(cli *c, abar_comm *comm) { return comparing_lead(c, comm, &comparison); }
static int run_rank(cli *c, abar_comm *comm) { return comparing_on_ranks(c, comm, lead); }
static int run(cli *c) { return ranks_run(c, 0, run_rank); }

const command command_compare = {
    .name = "compare",
    .summary = "compare optimizers on one problem: table, curves, CSV",
    .usage = "[--optim NAME,NAME] [--seeds N] [--model NAME] [--flag value ...]",
    .about =
        "Trains the same network on the same data with several optimizers and seeds. Runs of one seed have the same initial "
        "weights, order of samples and augmentation. Every optimizer starts from the settings recommended for it; a flag "
        "changes them for all optimizers that have it, --LABEL.flag for one. --optim all stands for every update rule, and "
        "every method on SGD; those that the device, the network or the settings rule out are left out with a line. Prints a "
        "table and writes compare.svg, "
        "compare.md, compare.csv and compare.json. Ctrl-C stops after the current step and saves everything. Exit status: 0 "
        "all runs succeeded, 3 some failed, 1 all failed or the comparison could not continue, 2 wrong usage.",
    .own = own,
    .all_settings = true,
    .except = "accept-data", /* a comparison is on one problem */
    .model_options = true,
    .rule_options = true,
    .examples = "  abar compare --optim sgd,adamw,mac --epochs 3 --seeds 3\n"
                "  abar compare --optim sgd,mac --lr 0.1 --mac.lr 0.05 --mac.damping 0.3\n"
                "  abar compare --optim all,mac+muon --epochs 3\n"
                "  abar compare --optim low=mac,high=mac --low.damping 0.1 --high.damping 10\n"
                "  abar compare --optim sgd,mac --seeds 5 --target acc=89\n"
                "  abar compare --model resnet110 --data cifar10:DIR --optim sgd:3,mac:3,smac\n"
                "  abar compare --model deit-tiny --optim mac,heads=mac \\\n"
                "      --heads.value-stat per-head\n"
                "  abar compare --resume runs/compare-lenet5-fashion-mnist --seeds 5\n",
    .run = run,
};
