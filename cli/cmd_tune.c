/* abar tune: the settings of every optimizer, chosen with equal budgets by successive halving, then tested with new seeds. */
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
     "a setting and where to search: lr=0.001:1:log between two values by logarithm, momentum=0.8:0.99 evenly, or a list, "
     "damping=0.1,1,10; LABEL.lr=... for one optimizer. May be given several times"},
    {"trials", ABAR_OPTION_INT, AT(trials), "9", 1, ABAR_TUNE_TRIALS_MAX, NULL,
     "trials of each optimizer; a third goes on each round"},
    {"optim", ABAR_OPTION_TEXT, AT(optim), "sgd,mac", 0, 0, NULL,
     "optimizers, as `abar optimizers` lists them; LABEL=NAME gives one another name"},
    {"seeds", ABAR_OPTION_INT, AT(seeds), "3", 1, ABAR_COMPARE_SEEDS_MAX, NULL,
     "runs of the chosen settings, with --seed + 1, ...; may grow with --resume"},
    COMPARING_JOBS,
    COMPARING_RANKS,
    COMPARING_OUT,
    COMPARING_RESUME("tuning"),
    COMPARING_JSON,
    COMPARING_QUIET,
    {0}};

/* ---- messages --------------------------------------------------------------------------------------------------- */

typedef struct tuner {
    watcher w;
    abar_tune *tune;
    bool told; /* what is tuned */
} tuner;

/* Rounds say what they are themselves. */
static void announce_round(watcher *w)
{
    comparing_announce_ended(w);
    w->announced = true;
}

static void say_nothing(watcher *w) { (void)w; }

static const comparing tuning = {
    .noun = "tuning", .reasons = "compare.md", .judge = comparing_judge, .announce = announce_round, .finish = say_nothing};

static void announce(tuner *u)
{
    FILE *out = u->w.line.out;
    const int n = abar_tune_optimizer_count(u->tune), rounds = abar_tune_round_count(u->tune);
    char line[4 * ABAR_OPTION_TEXT_MAX];
    int64_t epochs = 0;
    for (int r = 0; r < rounds; r++) {
        const abar_tune_round *round = abar_tune_round_of(u->tune, r);
        epochs += round->epochs * round->trials;
    }
    snprintf(line, sizeof line, "%d optimizer%s, %d trial%s each in %d round%s, %" PRId64 " epochs of training each", n,
             n > 1 ? "s" : "", abar_tune_trials(u->tune), abar_tune_trials(u->tune) > 1 ? "s" : "", rounds,
             rounds > 1 ? "s" : "", epochs);
    print_wrapped(out, 0, print_width(out), line);
    for (int o = 0; o < n; o++) {
        const abar_tune_result *r = abar_tune_result_of(u->tune, o);
        const int lead = fprintf(out, "  %s  ", r->label);
        print_wrapped(out, lead, print_width(out), r->space);
    }
    u->told = true;
}

static void watch(void *user, const abar_compare_progress *p)
{
    tuner *u = user;
    const abar_compare *now = abar_tune_current(u->tune);
    if (u->w.line.out && !u->told) announce(u);
    if (now != u->w.compare || p->news) {
        comparing_look(&u->w, now);
        u->w.announced = p->news != NULL; /* the news comes first */
    }
    comparing_watch(&u->w, p);
}

static void fill_row(const void *user, int o, grid_cell *cells)
{
    const tuner *u = user;
    const abar_tune_result r = *abar_tune_result_of(u->tune, o);
    const bool text = comparison_is_text(u->w.compare);
    const int decimals = text ? 4 : 2;
    char a[NUMBER_MAX];
    snprintf(cells[0].text, sizeof cells->text, "%s", r.label);
    snprintf(cells[1].text, sizeof cells->text, "%.150s", r.values[0] ? r.values : "every trial failed");
    snprintf(cells[2].text, sizeof cells->text, "%s", isnan(r.validation) ? "-" : print_fixed(a, r.validation, decimals));
    print_spread(&cells[3], text ? r.test_loss : r.test_accuracy, decimals, u->w.line.utf8);
    snprintf(cells[4].text, sizeof cells->text, "%" PRId64, r.epochs);
    snprintf(cells[5].text, sizeof cells->text, "%s", print_duration(a, r.seconds));
}

static void say_finished(tuner *u)
{
    static const char *const file[][2] = {
        {"Table", "tune.md"}, {"Curves", "final/compare.svg"}, {"Trials", "round*/sweep.svg"}, {NULL, NULL}};
    const progress *line = &u->w.line;
    const char *result = comparison_is_text(u->w.compare) ? "loss" : "acc %";
    char validation[32], test[32];
    snprintf(validation, sizeof validation, "validation %s", result);
    snprintf(test, sizeof test, "test %s", result);
    const grid_column column[] = {{"optimizer", true, 0}, {"chosen", true, 0},  {validation, false, 3},
                                  {test, false, 0},       {"epochs", false, 2}, {"time", false, 1}};
    grid g = {.column = column, .columns = 6, .rows = abar_tune_optimizer_count(u->tune), .fill = fill_row, .user = u};
    fputc('\n', line->out);
    print_grid(&g, line);
    print_pairs(u->w.compare, line);
    comparing_say_files(line->out, abar_tune_dir(u->tune), file);
}

static void say_stopped(const tuner *u, const comparing_flags *flags)
{
    char folder[SHELL_WORD_MAX], file[ABAR_OPTION_TEXT_MAX + 16];
    const bool automatic = strcmp(flags->jobs, "auto") == 0;
    FILE *out = u->w.line.out;
    snprintf(file, sizeof file, "%s/tune.json", abar_tune_dir(u->tune));
    if (!path_exists(file)) {
        print_wrapped(out, 0, print_width(out), "stopped before any training began; nothing was kept");
        return;
    }
    print_wrapped(out, 0, print_width(out), "stopped, and all that was trained is saved; continue with:");
    fprintf(out, "  %s tune --resume %s%s%s\n", u->w.c->program, print_shell_word(folder, abar_tune_dir(u->tune)),
            automatic ? "" : " --jobs ", automatic ? "" : flags->jobs);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static int load(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_tune **out)
{
    static const char *const allowed[] = {"resume", "ranks", "timeout", "seeds", "jobs", "json", "quiet", NULL};
    const int code = comparing_read_resumed(c, flags, &tuning, allowed, "--seeds may grow and --jobs change");
    if (code) return code;
    abar_status status = abar_tune_load(c->ctx, flags->resume, flags_peek(c, "seeds") ? flags->seeds : 0, events, out);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

static int create(cli *c, comparing_flags *flags, const abar_compare_events *events, abar_tune **out)
{
    setup_list list;
    const char *labels[ABAR_COMPARE_METHODS_MAX], *over[OVER_MAX];
    int n_over;
    int code = flags_all(c, "over", over, OVER_MAX, &n_over);
    if (!code) code = comparing_read_new(c, flags, "tune", n_over > 0, &list, labels);
    if (code) return code;
    const abar_tune_config config = {.size = sizeof config,
                                     .out = flags->out,
                                     .setups = (const abar_setup *const *)list.setup,
                                     .labels = labels,
                                     .optimizers = list.n,
                                     .over = over,
                                     .n_over = n_over,
                                     .trials = (int)flags->trials,
                                     .seeds = flags->seeds};
    abar_status status = abar_tune_create(c->ctx, &config, events, out);
    setup_list_destroy(c, &list);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static abar_status run_tune(void *tune) { return abar_tune_run(tune); }
static void stop_tune(void *tune) { abar_tune_stop(tune); }

/* Optimizers without a choice, and final runs that failed, are told. */
static int judge(const tuner *u)
{
    int lost = 0, n = abar_tune_optimizer_count(u->tune);
    for (int o = 0; o < n; o++) lost += !abar_tune_result_of(u->tune, o)->values[0];
    if (lost > 0)
        return cli_fail_reported(EXIT_SOME_FAILED, "tune: every trial of %d of %d optimizers failed, %s/tune.md has the rest",
                                 lost, n, abar_tune_dir(u->tune));
    return comparing_judge(&u->w);
}

static int tune_all(cli *c, tuner *u, const comparing_flags *flags)
{
    progress_init(&u->w.line, comparing_stream(flags));
    u->w.jobs = flags->jobs;
    u->w.part = "";
    c->progress = &u->w.line;
    abar_status status = stop_on_signal(&(stoppable){u->tune, run_tune, stop_tune});
    progress_clear(&u->w.line);
    c->progress = NULL;
    if (status < 0) return ranks_fail(c, status, abar_tune_dir(u->tune), "tune.json");
    if (u->w.line.out && status == ABAR_STOPPED)
        say_stopped(u, flags);
    else if (u->w.line.out)
        say_finished(u);
    const char *json;
    if (flags->json) {
        if (abar_tune_report(u->tune, &json) < 0) return cli_fail_status(c, ABAR_E_MEMORY);
        puts(json);
    }
    return status == ABAR_STOPPED ? stop_exit_code() : judge(u);
}

static int set_ranks(const cli *c, abar_tune *tune, abar_comm *comm)
{
    const abar_status status = abar_tune_ranks(tune, comm);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static int lead(cli *c, abar_comm *comm)
{
    comparing_flags flags = {0};
    tuner u = {.w = {.c = c, .what = &tuning}};
    abar_compare_events events = {sizeof events, watch, &u};
    const char *folder;
    int jobs = 0;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* so that trainings side by side do not share hardware queues */
    int code = flags_resume(c, &folder);
    if (!code) code = flags_out(c);
    if (!code) code = folder ? load(c, &flags, &events, &u.tune) : create(c, &flags, &events, &u.tune);
    if (!code) code = comparing_set_jobs(c, &flags, comm, &jobs);
    if (!code) code = set_ranks(c, u.tune, comm);
    if (!code) {
        abar_tune_jobs(u.tune, jobs);
        code = tune_all(c, &u, &flags);
    }
    abar_tune_destroy(u.tune);
    if (code && flags.own_folder) folder_unclaim(flags.out);
    return code;
}

static int run_rank(cli *c, abar_comm *comm) { return comparing_on_ranks(c, comm, lead); }
static int run(cli *c) { return ranks_run(c, 0, run_rank); }

const command command_tune = {
    .name = "tune",
    .summary = "choose settings of optimizers with equal budgets",
    .usage = "--over NAME=LOW:HIGH:log [--trials N] [--optim NAME,NAME] [--seeds N] [--flag value ...]",
    .about =
        "Searches settings for every optimizer with the same number of trials and epochs, by successive halving: all trials "
        "are trained briefly, the best third goes on three times as long, until the last round has all --epochs. Trials are "
        "judged on a validation part, a tenth of the training set unless --validation says otherwise. The best trial of each "
        "optimizer is trained again with new seeds on the whole training set and measured on the test set. Writes tune.md, "
        "which states search space, trials and seconds of each optimizer, and tune.json; round1/ ... are sweeps, final/ is a "
        "comparison. Ctrl-C stops after the current step and saves everything. Exit status as of abar compare; trials that "
        "fail are results.",
    .own = own,
    .all_settings = true,
    .except = "accept-data",
    .validation = "0.1",
    .model_options = true,
    .rule_options = true,
    .examples = "  abar tune --over lr=0.001:1:log --optim sgd,mac --epochs 9\n"
                "  abar tune --over lr=0.01:1:log --over damping=0.01:10:log --optim mac \\\n"
                "      --trials 27\n"
                "  abar tune --over sgd.lr=0.01:1:log --over adamw.lr=0.0001:0.1:log \\\n"
                "      --optim sgd,adamw\n"
                "  abar tune --resume runs/tune-lenet5-fashion-mnist --seeds 5\n",
    .run = run,
};
