/* abar sweep: optimizers with every value of some settings. A line per run, and the best values at the end. */
#include "comparing.h"
#include "grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OVER_MAX 64 /* --over flags */
#define AT(member) offsetof(comparing_flags, member)

static const abar_option own[] = {
    {"over", ABAR_OPTION_TEXT, AT(over), "", 0, 0, NULL,
     "a setting and its values: lr=0.03,0.1,0.3, or lr=0.01:1:5log for 5 values spaced by logarithm, batch=32:128:4 for 4 "
     "spaced evenly; LABEL.lr=... for one optimizer. Given twice: all combinations"},
    {"one-at-a-time", ABAR_OPTION_BOOL, AT(one_at_a_time), "false", 0, 0, NULL,
     "vary each setting by itself, with the others at their defaults"},
    {"optim", ABAR_OPTION_TEXT, AT(optim), "sgd,mac", 0, 0, NULL,
     "optimizers, as `abar optimizers` lists them; LABEL=NAME gives one another name"},
    {"seeds", ABAR_OPTION_INT, AT(seeds), "1", 1, ABAR_COMPARE_SEEDS_MAX, NULL,
     "runs of each value, with --seed, --seed + 1, ...; may grow with --resume"},
    COMPARING_JOBS,
    COMPARING_RANKS,
    COMPARING_PART,
    COMPARING_OUT,
    COMPARING_RESUME("sweep"),
    COMPARING_JSON,
    COMPARING_QUIET,
    {0}};

/* ---- messages --------------------------------------------------------------------------------------------------- */

static bool varies(const abar_compare *sweep, int cell, int axis)
{
    const int only = abar_sweep_cell_axis(sweep, cell);
    return abar_sweep_cell_value(sweep, cell, axis)[0] && (only < 0 || only == axis);
}

/* "lr 0.03, 0.1, 0.3": the values of an axis, each once, cut where there are many. */
static void list_values(const abar_compare *sweep, int axis, char *line, size_t size)
{
    int n = snprintf(line, size, "%s ", abar_sweep_axis_name(sweep, axis)), listed = 0;
    for (int i = 0; i < abar_compare_method_count(sweep) && n < (int)size; i++) {
        const char *value = abar_sweep_cell_value(sweep, i, axis);
        bool known = !varies(sweep, i, axis);
        for (int k = 0; k < i && !known; k++)
            known = varies(sweep, k, axis) && strcmp(abar_sweep_cell_value(sweep, k, axis), value) == 0;
        if (!known) n += snprintf(line + n, size - (size_t)n, "%s%s", listed++ ? ", " : "", value);
    }
}

static void announce(watcher *w)
{
    FILE *out = w->line.out;
    const abar_compare *sweep = w->compare;
    const abar_train_config *t = &abar_compare_setup(sweep, 0)->train;
    const int seeds = comparison_seeds(sweep), cells = abar_compare_method_count(sweep), n = abar_sweep_optimizer_count(sweep);
    char line[4 * ABAR_OPTION_TEXT_MAX];
    int at = snprintf(line, sizeof line, "%s on %s, %s: %d value%s of %d optimizer%s x %d seed%s", t->model, t->data, t->device,
                      cells, cells > 1 ? "s" : "", n, n > 1 ? "s" : "", seeds, seeds > 1 ? "s" : "");
    if (t->validation > 0.0)
        snprintf(line + at, sizeof line - (size_t)at, "; chosen on a validation part, the fraction %g of the training set",
                 t->validation);
    else
        snprintf(line + at, sizeof line - (size_t)at, "; on the test set: a value chosen there looks better than it is");
    print_wrapped(out, 0, print_width(out), line);
    for (int a = 0; a < abar_sweep_axis_count(sweep); a++) {
        list_values(sweep, a, line, sizeof line);
        fputs("  ", out);
        print_wrapped(out, 2, print_width(out), line);
    }
    comparing_announce_ended(w);
    fflush(out);
    w->announced = true;
}

typedef struct source {
    const abar_compare *sweep;
    bool utf8, text, validates;
} source;

static void fill_row(const void *user, int o, grid_cell *cells)
{
    const source *s = user;
    const abar_sweep_best best = *abar_sweep_best_of(s->sweep, o);
    const int decimals = s->text ? 4 : 2;
    size_t at = 0;
    snprintf(cells[0].text, sizeof cells->text, "%s", abar_sweep_optimizer_name(s->sweep, o));
    for (int a = 0; a < abar_sweep_axis_count(s->sweep) && best.cell >= 0; a++) {
        if (varies(s->sweep, best.cell, a) && at < sizeof cells->text)
            at += (size_t)snprintf(cells[1].text + at, sizeof cells->text - at, "%s%s %s", at ? ", " : "",
                                   abar_sweep_axis_name(s->sweep, a), abar_sweep_cell_value(s->sweep, best.cell, a));
    }
    if (best.cell < 0) snprintf(cells[1].text, sizeof cells->text, "every value had a failure");
    print_spread(&cells[2], s->text ? best.loss : best.accuracy, decimals, s->utf8);
    if (s->validates) print_spread(&cells[3], s->text ? best.test_loss : best.test_accuracy, decimals, s->utf8);
    if (best.cell >= 0)
        snprintf(cells[4].text, sizeof cells->text, "%s",
                 print_significant((char[NUMBER_MAX]){0}, abar_compare_row_of(s->sweep, best.cell)->ms_per_step.mean));
}

static void print_best(const watcher *w)
{
    const source s = {w->compare, w->line.utf8, comparison_is_text(w->compare), comparison_validates(w->compare)};
    const char *result = s.text ? "loss" : "acc %";
    char chosen[32], test[32];
    snprintf(chosen, sizeof chosen, "%s %s", s.validates ? "validation" : "test", result);
    snprintf(test, sizeof test, "test %s", result);
    const grid_column column[] = {
        {"optimizer", true, 0}, {"best at", true, 0}, {chosen, false, s.validates}, {test, false, 0}, {"ms/step", false, 2}};
    grid g = {.column = column, .columns = 5, .rows = abar_sweep_optimizer_count(s.sweep), .fill = fill_row, .user = &s};
    fputc('\n', w->line.out);
    print_grid(&g, &w->line);
}

static void say_finished(watcher *w)
{
    static const char *const file[][2] = {{"Picture", "sweep.svg"},
                                          {"Numbers", "sweep.csv and sweep.json"},
                                          {"Checkpoints", "OPTIM-VALUES-sSEED/"},
                                          {NULL, NULL}};
    char folder[SHELL_WORD_MAX];
    const int seeds = comparison_seeds(w->compare);
    if (!w->announced) announce(w);
    print_best(w);
    comparing_say_files(w->line.out, abar_compare_dir(w->compare), file);
    fprintf(w->line.out, "\nNext:\n  %s sweep --resume %s --seeds %d\n", w->c->program,
            print_shell_word(folder, abar_compare_dir(w->compare)), seeds < 3 ? 3 : 2 * seeds);
}

/* Values that fail are results of a sweep. It has failed if an optimizer has no other. */
static int judge(const watcher *w)
{
    for (int o = 0; o < abar_sweep_optimizer_count(w->compare); o++)
        if (abar_sweep_best_of(w->compare, o)->cell < 0) return comparing_judge(w);
    return EXIT_SUCCESS;
}

static const comparing sweep_words;

/* ---- the command ------------------------------------------------------------------------------------------------ */

static int load(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    static const char *const allowed[] = {"resume", "ranks", "timeout", "seeds", "jobs", "part", "json", "quiet", NULL};
    const int code = comparing_read_resumed(c, flags, &sweep_words, allowed, "--seeds may grow, --jobs and --part change");
    if (code) return code;
    abar_status status = abar_sweep_load(c->ctx, flags->resume, flags_peek(c, "seeds") ? flags->seeds : 0, events, out);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

static int create(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    setup_list list;
    const char *labels[ABAR_COMPARE_METHODS_MAX], *over[OVER_MAX];
    int n_over;
    int code = flags_all(c, "over", over, OVER_MAX, &n_over);
    if (!code) code = comparing_read_new(c, flags, "sweep", n_over > 0, &list, labels);
    if (code) return code;
    const abar_sweep_config config = {.size = sizeof config,
                                      .out = flags->out,
                                      .setups = (const abar_setup *const *)list.setup,
                                      .labels = labels,
                                      .optimizers = list.n,
                                      .seeds = flags->seeds,
                                      .over = over,
                                      .n_over = n_over,
                                      .one_at_a_time = flags->one_at_a_time};
    abar_status status = abar_sweep_create(c->ctx, &config, events, out);
    setup_list_destroy(c, &list);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static const comparing sweep_words = {.noun = "sweep",
                                      .reasons = "sweep.json",
                                      .judge = judge,
                                      .announce = announce,
                                      .finish = say_finished,
                                      .load = load,
                                      .create = create};

static int lead(cli *c, abar_comm *comm) { return comparing_lead(c, comm, &sweep_words); }
static int run_rank(cli *c, abar_comm *comm) { return comparing_on_ranks(c, comm, lead); }
static int run(cli *c) { return ranks_run(c, 0, run_rank); }

const command command_sweep = {
    .name = "sweep",
    .summary = "try values of settings: picture, CSV, the best ones",
    .usage = "--over NAME=VALUES [--over NAME=VALUES] [--optim NAME,NAME] [--seeds N] [--flag value ...]",
    .about =
        "Trains every optimizer with every value of one or more settings, any setting of abar train but model, data and seed. "
        "An optimizer that lacks a setting is trained once, as a measure for the others. Values are chosen on a validation "
        "part, a tenth of the training set unless --validation says otherwise; the best of each optimizer is then measured on "
        "the test set. --validation 0 shows test results of all. Writes sweep.svg (two settings: heat maps), sweep.csv and "
        "sweep.json. Ctrl-C stops after the current step and saves everything. Exit status: 0 every optimizer has a value "
        "with which no run failed, otherwise as of abar compare.",
    .own = own,
    .all_settings = true,
    .except = "accept-data",
    .validation = "0.1",
    .model_options = true,
    .rule_options = true,
    .examples = "  abar sweep --over lr=0.01:1:5log --optim sgd,mac --seeds 3\n"
                "  abar sweep --over lr=0.03,0.1,0.3 --over damping=0.01:10:4log --optim mac\n"
                "  abar sweep --over lr=0.03,0.1,0.3 --over damping=0.1,1,10 --one-at-a-time \\\n"
                "      --optim mac,kfac,eva\n"
                "  abar sweep --over sgd.lr=0.1,0.3 --over adamw.lr=0.001,0.003 --optim sgd,adamw\n"
                "  abar sweep --over tinv=1,10,50,100 --optim sgd,mac,kfac --validation 0\n"
                "  abar sweep --resume runs/sweep-lenet5-fashion-mnist --seeds 3\n",
    .run = run,
};
