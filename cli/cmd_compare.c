/* abar compare: several optimizers on one problem under equal conditions. A line per run, and a table at the end. */
#include "cli.h"
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct compare_flags {
    char optim[ABAR_OPTION_TEXT_MAX], out[ABAR_OPTION_TEXT_MAX], resume[ABAR_OPTION_TEXT_MAX], jobs[ABAR_OPTION_TEXT_MAX];
    int64_t seeds;
    bool json, quiet;
    bool own_folder; /* not a flag: the folder was chosen here */
} compare_flags;

#define SETTINGS_MIN 24 /* columns of settings beside their label; with fewer they go below */
#define RUN_REST 32     /* columns of a run's line without its label: a longer label is cut */
#define AT(member) offsetof(compare_flags, member)

static const abar_option own[] = {
    {"optim", ABAR_OPTION_TEXT, AT(optim), "sgd,mac", 0, 0, NULL,
     "optimizers, as `abar optimizers` lists them; LABEL=NAME gives one another name, NAME:N runs it with N seeds"},
    {"seeds", ABAR_OPTION_INT, AT(seeds), "1", 1, ABAR_COMPARE_SEEDS_MAX, NULL,
     "runs of each optimizer, with --seed, --seed + 1, ...; may grow with --resume"},
    {"jobs", ABAR_OPTION_TEXT, AT(jobs), "auto", 0, 0, NULL,
     "trainings side by side on the device; auto: one on the CPU, on a GPU the number that is fastest"},
    {"out", ABAR_OPTION_TEXT, AT(out), "", 0, 0, NULL, "folder for results and runs; default: a new one in " RUNS "/"},
    {"resume", ABAR_OPTION_TEXT, AT(resume), "", 0, 0, NULL, "continue the comparison in this folder"},
    {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
    {"quiet", ABAR_OPTION_BOOL, AT(quiet), "false", 0, 0, NULL, "print nothing but errors"},
    {0}};

/* ---- watching --------------------------------------------------------------------------------------------------- */

typedef struct watcher {
    cli *c;
    const abar_compare *compare;
    progress line;
    bool announced;
    int run;          /* the last one reported, ... */
    int64_t epoch;    /* ... and its epoch, from 0 */
    int running;      /* runs in progress */
    const char *jobs; /* value of --jobs */
    int label_width, run_width;
} watcher;

static int runs_ended(const abar_compare *compare)
{
    int n = 0;
    for (int i = 0; i < abar_compare_run_count(compare); i++) n += abar_compare_run_of(compare, i)->ended;
    return n;
}

static int runs_failed(const abar_compare *compare)
{
    int n = 0;
    for (int i = 0; i < abar_compare_run_count(compare); i++) n += abar_compare_run_of(compare, i)->failure != NULL;
    return n;
}

/* Failed runs that run_all tries again. */
static int runs_retried(const abar_compare *compare)
{
    int n = 0;
    for (int i = 0; i < abar_compare_run_count(compare); i++) n += abar_compare_run_of(compare, i)->retry;
    return n;
}

static bool is_said(const char *name)
{
    static const char *const said[] = {"lr", "weight-decay", "momentum", "damping", "tcov", "tinv", NULL};
    for (const char *const *s = said; *s; s++)
        if (strcmp(name, *s) == 0) return true;
    return false;
}

/* Appends "name value" of an option that is always shown, or whose value is not the recipe's. */
static size_t describe_option(cli *c, const abar_setup_table *table, const abar_setup_table *usual, const char *name,
                              char *line, size_t at, size_t size)
{
    char value[ABAR_OPTION_TEXT_MAX], other[ABAR_OPTION_TEXT_MAX] = "";
    if (abar_options_get(c->ctx, table->options, table->config, name, value, sizeof value) < 0) return at;
    if (usual) (void)abar_options_get(c->ctx, usual->options, usual->config, name, other, sizeof other);
    if ((!is_said(name) && (!usual || strcmp(value, other) == 0)) || at >= size) return at;
    return at + (size_t)snprintf(line + at, size - at, "%s%s %.40s", at ? ", " : "", name, value);
}

/* "lr 0.05, momentum 0.9, value-stat per-head": the main settings of an optimizer, and those that are not the recipe's. */
static void describe(cli *c, const abar_setup *setup, char *line, size_t size)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX], usual[ABAR_SETUP_TABLES_MAX];
    abar_setup *recipe = NULL;
    size_t at = 0;
    const int n = abar_setup_tables(setup, tables);
    const abar_train_config *t = &setup->train;
    const bool known = abar_setup_create(c->ctx, t->model, t->data, t->optim, &recipe) >= 0;
    if (known) abar_setup_tables(recipe, usual);
    line[0] = '\0';
    for (int i = 0; i < n; i++)
        for (const abar_option *o = tables[i].options; o->name; o++)
            if (is_said(o->name) || i >= 2) /* the optimizer's own tables */
                at = describe_option(c, &tables[i], known ? &usual[i] : NULL, o->name, line, at, size);
    if (known) abar_setup_destroy(c->ctx, recipe);
}

/* Of a resumed comparison: how many runs are done, and why others failed. */
static void announce_ended(const watcher *w)
{
    FILE *out = w->line.out;
    const int runs = abar_compare_run_count(w->compare), failed = runs_failed(w->compare), again = runs_retried(w->compare);
    const int done = runs_ended(w->compare) - failed;
    char line[160];
    int n = snprintf(line, sizeof line, "%d of %d runs %s done", done, runs, done == 1 ? "is" : "are");
    if (done + failed == 0) return;
    if (failed > again) n += snprintf(line + n, sizeof line - (size_t)n, ", %d failed", failed - again);
    if (again > 0)
        snprintf(line + n, sizeof line - (size_t)n, ", %d had no memory and %s tried again", again, again == 1 ? "is" : "are");
    print_wrapped(out, 0, print_width(out), line);
    for (int i = 0; i < runs; i++) {
        const abar_compare_run *r = abar_compare_run_of(w->compare, i);
        if (!r->failure) continue;
        n = fprintf(out, "%s, seed %" PRId64 ", failed%s: ", r->label, r->seed, r->retry ? " before" : "");
        print_wrapped_from(out, n, 2, print_width(out), r->failure);
    }
}

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
        describe(w->c, abar_compare_setup(compare, m), line, sizeof line);
        fprintf(out, "  %-*s%s", below ? 0 : w->label_width, abar_compare_row_of(compare, m)->label, below ? "\n      " : "  ");
        print_wrapped(out, below ? 6 : w->label_width + 4, print_width(out), line);
    }
    announce_ended(w);
    fflush(out);
    w->announced = true;
}

static void print_failure(watcher *w, int lead, const abar_compare_run *r)
{
    char text[2048];
    snprintf(text, sizeof text, "failed after %" PRId64 " epoch%s: %s", r->epochs, r->epochs == 1 ? "" : "s", r->failure);
    print_wrapped_from(w->line.out, lead, 2 * w->run_width + 4, print_width(w->line.out), text);
}

static void print_run(watcher *w, const abar_compare_progress *p)
{
    enum { HEAD, LOSS, TEST, RESULT, BEST, MS, TIME, BESIDE, PARTS };
    line_part part[PARTS] = {0};
    char number[NUMBER_MAX];
    const abar_compare_run *r = p->result;
    const bool text = comparison_is_text(w->compare);
    FILE *out = w->line.out;
    const int space = print_width(out) > RUN_REST + 4 ? print_width(out) - RUN_REST : 4;
    const int label = space < w->label_width ? space : w->label_width;
    progress_clear(&w->line);
    line_part_set(&part[HEAD], 0, "[%*d/%d] %-*.*s  seed %" PRId64 "  ", w->run_width, p->ended, p->runs, label, label,
                  r->label, r->seed);
    if (r->failure) {
        fputs(part[HEAD].text, out);
        print_failure(w, (int)strlen(part[HEAD].text), r);
        fflush(out);
        return;
    }
    line_part_set(&part[LOSS], 1, "loss %s  ", print_fixed(number, r->train_loss, 4));
    line_part_set(&part[TEST], 0, comparison_validates(w->compare) ? "validation " : "test ");
    if (text) line_part_set(&part[RESULT], 0, "%s", print_fixed(number, r->test_loss, 4));
    if (!text) line_part_set(&part[RESULT], 0, "%5.2f %%", r->test_accuracy);
    part[RESULT].strong = true;
    if (text) line_part_set(&part[BEST], 5, "  best %s", print_fixed(number, r->best_loss, 4)); /* also in the table */
    line_part_set(&part[MS], 3, "  %6s ms/step", print_significant(number, r->ms_per_step));
    line_part_set(&part[TIME], 2, "  %s", print_duration(number, r->seconds));
    if (r->side_by_side > 1) line_part_set(&part[BESIDE], 4, "  beside %" PRId64, r->side_by_side - 1);
    print_fit(part, PARTS, print_width(out));
    print_parts(out, part, PARTS, progress_bold(&w->line), progress_plain(&w->line));
    fputc('\n', out);
    fflush(out);
}

/* "3 of 12 done, running: mac/1 epoch 12/50, sgd/0 11/50" */
static void draw_several(watcher *w, const abar_compare_progress *p)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "%d of %d done, running: ", p->ended, p->runs);
    for (int i = 0; i < p->n_running && n < (int)sizeof text; i++) {
        const abar_compare_running *r = &p->running[i];
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s/%" PRId64 " %s%" PRId64 "/%" PRId64, i ? ", " : "", r->label,
                      r->seed, i ? "" : "epoch ", r->epoch + 1, r->epochs);
    }
    progress_redraw_text(&w->line, text, p->done, p->seconds_left);
}

static void draw_one(watcher *w, const abar_compare_progress *p)
{
    char lead[96];
    abar_progress now = *p->training;
    now.seconds_left = p->seconds_left;
    snprintf(lead, sizeof lead, "[%*d/%d] %s seed %" PRId64 "  ", w->run_width, p->run + 1, p->runs, p->label, p->seed);
    progress_redraw(&w->line, lead, p->done, &now);
}

static void watch(void *user, const abar_compare_progress *p)
{
    watcher *w = user;
    if (!p->news) {
        w->run = p->run;
        w->running = p->n_running;
        if (p->training) w->epoch = p->training->epoch;
    }
    if (!w->line.out) return;
    if (!w->announced) announce(w);
    if (p->news) {
        progress_clear(&w->line);
        print_wrapped_from(w->line.out, 0, 2, print_width(w->line.out), p->news);
        fflush(w->line.out);
    } else if (p->result) {
        print_run(w, p);
    } else if (p->n_running > 1) {
        draw_several(w, p);
    } else if (!p->training->epoch_done) {
        draw_one(w, p);
    }
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static void say_finished(watcher *w)
{
    static const char *const file[][2] = {{"Curves", "compare.svg"},
                                          {"Table", "compare.md"},
                                          {"Numbers", "compare.csv and compare.json"},
                                          {"Checkpoints", "OPTIM-sSEED/"}};
    FILE *out = w->line.out;
    char folder[SHELL_WORD_MAX];
    const char *dir = abar_compare_dir(w->compare);
    int seeds = comparison_seeds(w->compare);
    if (!w->announced) announce(w);
    print_comparison(w->compare, &w->line);
    print_shell_word(folder, dir);
    fputc('\n', out);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        char path[ABAR_OPTION_TEXT_MAX + 32];
        snprintf(path, sizeof path, "%s/%s", dir, file[i][1]);
        print_path(out, file[i][0], path);
    }
    fprintf(out, "\nNext:\n");
    fprintf(out, "  %s compare --resume %s --seeds %d\n", w->c->program, folder, seeds < 3 ? 3 : 2 * seeds);
}

static void say_stopped(const watcher *w)
{
    char folder[SHELL_WORD_MAX];
    char file[ABAR_OPTION_TEXT_MAX + 16], text[256];
    const int width = print_width(w->line.out);
    snprintf(file, sizeof file, "%s/compare.json", abar_compare_dir(w->compare));
    if (!path_exists(file)) {
        print_wrapped(w->line.out, 0, width, "stopped before any training began; nothing was kept");
        return;
    }
    const abar_compare_run *r = abar_compare_run_of(w->compare, w->run);
    const bool automatic = strcmp(w->jobs, "auto") == 0;
    print_shell_word(folder, abar_compare_dir(w->compare));
    if (w->running > 1)
        snprintf(text, sizeof text,
                 "stopped with %d of %d runs done and %d begun, all saved; continue with:", runs_ended(w->compare),
                 abar_compare_run_count(w->compare), w->running);
    else if (w->running == 0)
        snprintf(text, sizeof text, "stopped with %d of %d runs done, and none begun; continue with:", runs_ended(w->compare),
                 abar_compare_run_count(w->compare));
    else
        snprintf(text, sizeof text,
                 "stopped in run %d of %d (%s, seed %" PRId64 ", epoch %" PRId64 ") and saved; continue with:", w->run + 1,
                 abar_compare_run_count(w->compare), r->label, r->seed, w->epoch + 1);
    print_wrapped(w->line.out, 0, width, text);
    fprintf(w->line.out, "  %s compare --resume %s%s%s\n", w->c->program, folder, automatic ? "" : " --jobs ",
            automatic ? "" : w->jobs);
}

/* A value may be refused when its run begins: the message then names the flag as it was typed, with its label. */
static int say_failure(const cli *c, const abar_compare *compare, abar_status status)
{
    const char *label = abar_compare_failed(compare);
    return label && status == ABAR_E_ARGUMENT ? flags_refuse(c, label, status) : cli_fail_status(c, status);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static abar_status run_compare(void *compare) { return abar_compare_run_all(compare); }
static void stop_compare(void *compare) { abar_compare_stop(compare); }

/* A resumed comparison keeps its settings. */
static int refuse_settings(const cli *c)
{
    static const char *const allowed[] = {"resume", "seeds", "jobs", "json", "quiet", NULL};
    for (int i = 0; i < c->argc; i++) {
        const char *const *a = allowed;
        const char *name = c->argv[i] + 2;
        if (strncmp(c->argv[i], "--", 2) != 0) continue;
        while (*a && (strncmp(name, *a, strlen(*a)) != 0 || (name[strlen(*a)] && name[strlen(*a)] != '='))) a++;
        if (!*a)
            return cli_fail(c, EXIT_USAGE,
                            "--%.*s: a resumed comparison keeps its settings, only --seeds may grow and --jobs change",
                            (int)strcspn(name, "="), name);
    }
    return EXIT_SUCCESS;
}

static int load(cli *c, compare_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    int code = refuse_settings(c);
    if (!code) code = flags_read(c, flags, NULL, NULL);
    if (code) return code;
    c->quiet = flags->quiet;
    abar_status status = abar_compare_load(c->ctx, flags->resume, flags_peek(c, "seeds") ? flags->seeds : 0, events, out);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

/* --jobs N or auto. Returns an exit code. */
static int set_jobs(const cli *c, const compare_flags *flags, abar_compare *compare)
{
    char *end;
    const bool automatic = strcmp(flags->jobs, "auto") == 0;
    const long n = automatic ? 0 : strtol(flags->jobs, &end, 10);
    if (!automatic && (*end || n < 1 || n > ABAR_COMPARE_JOBS_MAX))
        return cli_fail(c, EXIT_USAGE, "--jobs %s: not a number of trainings, give one from 1 to %d, or auto", flags->jobs,
                        ABAR_COMPARE_JOBS_MAX);
    abar_compare_jobs(compare, (int)n);
    return EXIT_SUCCESS;
}

static void claim_folder(compare_flags *flags, const abar_setup *setup)
{
    char name[ABAR_OPTION_TEXT_MAX];
    int data = (int)strcspn(setup->train.data, ":");
    snprintf(name, sizeof name, "compare-%.64s-%.*s", setup->train.model, data < 64 ? data : 64, setup->train.data);
    folder_claim(flags->out, name);
}

static int create(cli *c, compare_flags *flags, const abar_compare_events *events, abar_compare **out)
{
    setup_list list;
    const char *labels[ABAR_COMPARE_METHODS_MAX];
    int code = flags_recipes(c, &list);
    if (code) return code;
    abar_status status = ABAR_OK;
    for (int i = 1; i < list.n && status >= 0; i++) status = abar_compare_align(c->ctx, list.setup[0], list.setup[i]);
    code = status < 0 ? cli_fail_usage(c, status) : flags_read_list(c, flags, &list, NULL);
    if (!code) code = flags_check_list(c, &list);
    if (!code) {
        c->quiet = flags->quiet;
        flags->own_folder = !flags->out[0];
        if (flags->own_folder) claim_folder(flags, list.setup[0]);
        for (int i = 0; i < list.n; i++) labels[i] = list.label[i];
        abar_compare_config config = {.size = sizeof config,
                                      .out = flags->out,
                                      .setups = (const abar_setup *const *)list.setup,
                                      .labels = labels,
                                      .methods = list.n,
                                      .seeds = flags->seeds,
                                      .method_seeds = list.seeds};
        status = abar_compare_create(c->ctx, &config, events, out);
        if (status < 0) code = cli_fail_usage(c, status);
    }
    setup_list_destroy(c, &list);
    return code;
}

static void prepare_watcher(watcher *w, const abar_compare *compare, const compare_flags *flags)
{
    w->compare = compare;
    w->jobs = flags->jobs;
    progress_init(&w->line, flags->quiet ? NULL : !flags->json ? stdout : isatty(STDERR_FILENO) ? stderr : NULL);
    w->run_width = snprintf(NULL, 0, "%d", abar_compare_run_count(compare));
    for (int m = 0; m < abar_compare_method_count(compare); m++) {
        int n = (int)strlen(abar_compare_row_of(compare, m)->label);
        if (n > w->label_width) w->label_width = n;
    }
}

/* A script must see that runs failed, though there is a table. */
static int judge(const abar_compare *compare)
{
    const int failed = runs_failed(compare), runs = abar_compare_run_count(compare);
    const char *dir = abar_compare_dir(compare);
    if (failed == 0) return EXIT_SUCCESS;
    if (failed == runs) return cli_fail_reported(EXIT_FAILURE, "compare: every run failed, %s/compare.md has the reasons", dir);
    return cli_fail_reported(EXIT_SOME_FAILED, "compare: %d of %d runs failed, %s/compare.md has the reasons", failed, runs,
                             dir);
}

static int compare_all(cli *c, abar_compare *compare, const compare_flags *flags, watcher *w)
{
    prepare_watcher(w, compare, flags);
    c->progress = &w->line;
    if (flags->resume[0] && w->line.out) announce(w);
    abar_status status = stop_on_signal(&(stoppable){compare, run_compare, stop_compare});
    progress_clear(&w->line);
    c->progress = NULL;
    if (status < 0) return say_failure(c, compare, status);
    if (w->line.out && status == ABAR_STOPPED)
        say_stopped(w);
    else if (w->line.out)
        say_finished(w);
    const char *json;
    if (flags->json) {
        if (abar_compare_report(compare, &json) < 0) return cli_fail_status(c, ABAR_E_MEMORY);
        puts(json);
    }
    if (status == ABAR_STOPPED) return stop_exit_code();
    return judge(compare);
}

static int run(cli *c)
{
    compare_flags flags = {0};
    abar_compare *compare = NULL;
    watcher w = {.c = c};
    abar_compare_events events = {sizeof events, watch, &w};
    const char *folder;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* so that trainings side by side do not share hardware queues */
    int code = flags_resume(c, &folder);
    if (!code) code = flags_out(c);
    if (!code) code = folder ? load(c, &flags, &events, &compare) : create(c, &flags, &events, &compare);
    if (!code) code = set_jobs(c, &flags, compare);
    if (!code) code = compare_all(c, compare, &flags, &w);
    abar_compare_destroy(compare);
    if (code && flags.own_folder) folder_unclaim(flags.out);
    return code;
}

const command command_compare = {
    .name = "compare",
    .summary = "compare optimizers on one problem: table, curves, CSV",
    .usage = "[--optim NAME,NAME] [--seeds N] [--model NAME] [--flag value ...]",
    .about =
        "Trains the same network on the same data with several optimizers and seeds. Runs of one seed have the same initial "
        "weights, order of samples and augmentation. Every optimizer starts from the settings recommended for it; a flag "
        "changes them for all optimizers that have it, --LABEL.flag for one. Prints a table and writes compare.svg, "
        "compare.md, compare.csv and compare.json. Ctrl-C stops after the current step and saves everything. Exit status: 0 "
        "all runs succeeded, 3 some failed, 1 all failed or the comparison could not continue, 2 wrong usage.",
    .own = own,
    .all_settings = true,
    .except = "accept-data", /* a comparison is on one problem */
    .model_options = true,
    .rule_options = true,
    .examples = "  abar compare --optim sgd,adamw,mac --epochs 3 --seeds 3\n"
                "  abar compare --optim sgd,mac --lr 0.1 --mac.lr 0.05 --mac.damping 0.3\n"
                "  abar compare --optim low=mac,high=mac --low.damping 0.1 --high.damping 10\n"
                "  abar compare --model resnet110 --data cifar10:DIR --optim sgd:3,mac:3,smac\n"
                "  abar compare --model deit-tiny --optim mac,heads=mac \\\n"
                "      --heads.value-stat per-head\n"
                "  abar compare --resume runs/compare-lenet5-fashion-mnist --seeds 5\n",
    .run = run,
};
