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
    bool own_folder; /* no flag: the folder is one we chose */
} compare_flags;

static const abar_option own[] = {
    {.name = "optim",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(compare_flags, optim),
     .fallback = "sgd,mac",
     .help = "optimizers to compare, as `abar optimizers` lists them, LABEL=NAME to have one twice, NAME:N for N seeds of it"},
    {.name = "seeds",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(compare_flags, seeds),
     .fallback = "1",
     .min = 1,
     .max = ABAR_COMPARE_SEEDS_MAX,
     .help = "runs of each optimizer, from --seed on; with --resume there may be more than before"},
    {.name = "jobs",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(compare_flags, jobs),
     .fallback = "auto",
     .help = "trainings side by side on the device; auto: one on the CPU, on a GPU as many as fit and get more done"},
    {.name = "out",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(compare_flags, out),
     .fallback = "",
     .help = "folder for the results and all runs; without it, one in " RUNS "/"},
    {.name = "resume",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(compare_flags, resume),
     .fallback = "",
     .help = "go on with the comparison in this folder"},
    {.name = "json",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(compare_flags, json),
     .fallback = "false",
     .help = "print one JSON object at the end, and nothing else"},
    {.name = "quiet",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(compare_flags, quiet),
     .fallback = "false",
     .help = "print nothing but errors"},
    {0}};

/* ---- watching --------------------------------------------------------------------------------------------------- */

typedef struct watcher {
    cli *c;
    const abar_compare *compare;
    progress line;
    bool announced;
    int run;          /* the one told of last, ... */
    int64_t epoch;    /* ... and its epoch, from 0 */
    int running;      /* runs that train */
    const char *jobs; /* as the flag says */
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

static bool is_said(const char *name)
{
    static const char *const said[] = {"lr", "weight-decay", "momentum", "damping", "tcov", "tinv", NULL};
    for (const char *const *s = said; *s; s++)
        if (strcmp(name, *s) == 0) return true;
    return false;
}

/* Appends "name value" of an option that is always said, or that differs from what the recipe has. */
static size_t describe_option(cli *c, const abar_setup_table *table, const abar_setup_table *usual, const char *name,
                              char *line, size_t at, size_t size)
{
    char value[ABAR_OPTION_TEXT_MAX], other[ABAR_OPTION_TEXT_MAX] = "";
    if (abar_options_get(c->ctx, table->options, table->config, name, value, sizeof value) < 0) return at;
    if (usual) (void)abar_options_get(c->ctx, usual->options, usual->config, name, other, sizeof other);
    if ((!is_said(name) && (!usual || strcmp(value, other) == 0)) || at >= size) return at;
    return at + (size_t)snprintf(line + at, size - at, "%s%s %.40s", at ? ", " : "", name, value);
}

/* "lr 0.05, momentum 0.9, value-stat per-head": what drives an optimizer, and how it differs from what it usually is. */
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
            if (is_said(o->name) || i >= 2) /* the optimizer's own */
                at = describe_option(c, &tables[i], known ? &usual[i] : NULL, o->name, line, at, size);
    if (known) abar_setup_destroy(c->ctx, recipe);
}

static void announce(watcher *w)
{
    FILE *out = w->line.out;
    const abar_compare *compare = w->compare;
    const abar_train_config *t = &abar_compare_setup(compare, 0)->train;
    int methods = abar_compare_method_count(compare), runs = abar_compare_run_count(compare);
    char line[4 * ABAR_OPTION_TEXT_MAX], trainings[64];
    int seeds = comparison_seeds(compare);
    if (runs == methods * seeds)
        snprintf(trainings, sizeof trainings, " x %d seed%s", seeds, seeds > 1 ? "s" : "");
    else
        snprintf(trainings, sizeof trainings, ", %d runs", runs);
    snprintf(line, sizeof line, "%s on %s, %s: %d optimizer%s%s, %" PRId64 " epoch%s each, batch %" PRId64, t->model, t->data,
             t->device, methods, methods > 1 ? "s" : "", trainings, t->epochs, t->epochs > 1 ? "s" : "", t->batch);
    print_wrapped(out, 0, print_width(out), line);
    for (int m = 0; m < methods; m++) {
        describe(w->c, abar_compare_setup(compare, m), line, sizeof line);
        fprintf(out, "  %-*s  ", w->label_width, abar_compare_row_of(compare, m)->label);
        print_wrapped(out, w->label_width + 4, print_width(out), line);
    }
    const int ended = runs_ended(compare);
    if (ended > 0) fprintf(out, "%d of %d runs are done already\n", ended, runs);
    for (int i = 0; i < runs; i++) {
        const abar_compare_run *r = abar_compare_run_of(compare, i);
        if (!r->ended || !r->failure) continue;
        int n = fprintf(out, "%s, seed %" PRId64 ", failed: ", r->label, r->seed);
        print_wrapped_from(out, n, 2, print_width(out), r->failure);
    }
    fflush(out);
    w->announced = true;
}

/* The best loss of a text is in the table, too: here it is said where the line has room for it. */
static void print_run(watcher *w, const abar_compare_progress *p)
{
    char ms[NUMBER_MAX], time[NUMBER_MAX], loss[NUMBER_MAX], best[NUMBER_MAX + 8] = "", tail[96];
    const abar_compare_run *r = p->result;
    FILE *out = w->line.out;
    const char *bold = progress_bold(&w->line), *plain = progress_plain(&w->line);
    progress_clear(&w->line);
    int n =
        fprintf(out, "[%*d/%d] %-*s  seed %" PRId64 "  ", w->run_width, p->ended, p->runs, w->label_width, r->label, r->seed);
    if (r->failure) {
        n += fprintf(out, "failed after %" PRId64 " epoch%s: ", r->epochs, r->epochs == 1 ? "" : "s");
        print_wrapped_from(out, n, 2 * w->run_width + 4, print_width(out), r->failure);
        fflush(out);
        return;
    }
    int tail_length = snprintf(tail, sizeof tail, "  %6s ms/step  %s", print_significant(ms, r->ms_per_step),
                               print_duration(time, r->seconds));
    if (r->side_by_side > 1)
        tail_length +=
            snprintf(tail + tail_length, sizeof tail - (size_t)tail_length, "  beside %" PRId64, r->side_by_side - 1);
    n += fprintf(out, "loss %s  ", print_fixed(loss, r->train_loss, 4)) + (int)strlen("test 0.0000") + tail_length;
    if (n + snprintf(best, sizeof best, "  best %s", print_fixed(loss, r->best_loss, 4)) > print_width(out)) best[0] = '\0';
    if (comparison_is_text(w->compare))
        fprintf(out, "test %s%s%s%s", bold, print_fixed(loss, r->test_loss, 4), plain, best);
    else
        fprintf(out, "test %s%5.2f %%%s", bold, r->test_accuracy, plain);
    fprintf(out, "%s\n", tail);
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
        fprintf(w->line.out, "%s\n", p->news);
        fflush(w->line.out);
    } else if (p->result) {
        print_run(w, p);
    } else if (p->n_running > 1) {
        draw_several(w, p);
    } else if (!p->training->epoch_done) {
        draw_one(w, p);
    }
}

/* ---- what is said ----------------------------------------------------------------------------------------------- */

static void say_finished(watcher *w)
{
    FILE *out = w->line.out;
    char folder[2 * ABAR_OPTION_TEXT_MAX];
    const char *dir = abar_compare_dir(w->compare);
    int seeds = comparison_seeds(w->compare);
    if (!w->announced) announce(w);
    print_comparison(w->compare, &w->line);
    print_shell_word(folder, sizeof folder, dir);
    fprintf(out, "\nCurves: %s/compare.svg\nTable: %s/compare.md\nNumbers: %s/compare.csv and compare.json\n", dir, dir, dir);
    fprintf(out, "Checkpoints: %s/OPTIM-sSEED/\n\nNext:\n", dir);
    fprintf(out, "  %s compare --resume %s --seeds %d\n", w->c->program, folder, seeds < 3 ? 3 : 2 * seeds);
}

static void say_stopped(const watcher *w)
{
    char folder[2 * ABAR_OPTION_TEXT_MAX];
    char file[ABAR_OPTION_TEXT_MAX + 16];
    snprintf(file, sizeof file, "%s/compare.json", abar_compare_dir(w->compare));
    if (!path_exists(file)) {
        fprintf(w->line.out, "stopped before any training began; nothing was kept\n");
        return;
    }
    const abar_compare_run *r = abar_compare_run_of(w->compare, w->run);
    const bool automatic = strcmp(w->jobs, "auto") == 0;
    print_shell_word(folder, sizeof folder, abar_compare_dir(w->compare));
    if (w->running > 1)
        fprintf(w->line.out, "stopped with %d of %d runs done and %d begun, which are saved; go on with:\n",
                runs_ended(w->compare), abar_compare_run_count(w->compare), w->running);
    else if (w->running == 0)
        fprintf(w->line.out, "stopped with %d of %d runs done, and none begun; go on with:\n", runs_ended(w->compare),
                abar_compare_run_count(w->compare));
    else
        fprintf(w->line.out, "stopped in run %d of %d (%s, seed %" PRId64 ", epoch %" PRId64 ") and saved; go on with:\n",
                w->run + 1, abar_compare_run_count(w->compare), r->label, r->seed, w->epoch + 1);
    fprintf(w->line.out, "  %s compare --resume %s%s%s\n", w->c->program, folder, automatic ? "" : " --jobs ",
            automatic ? "" : w->jobs);
}

/* A value may turn out wrong when its run begins: then the flag is said with the label it was typed with. */
static int say_failure(const cli *c, const abar_compare *compare, abar_status status)
{
    const char *label = abar_compare_failed(compare);
    return label && status == ABAR_E_ARGUMENT ? flags_refuse(c, label, status) : cli_fail_status(c, status);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static abar_status run_compare(void *compare) { return abar_compare_run_all(compare); }
static void stop_compare(void *compare) { abar_compare_stop(compare); }

/* A comparison that goes on has its settings already. */
static int refuse_settings(const cli *c)
{
    static const char *const allowed[] = {"resume", "seeds", "jobs", "json", "quiet", NULL};
    for (int i = 0; i < c->argc; i++) {
        const char *const *a = allowed;
        const char *name = c->argv[i] + 2;
        if (strncmp(c->argv[i], "--", 2) != 0) continue;
        while (*a && (strncmp(name, *a, strlen(*a)) != 0 || (name[strlen(*a)] && name[strlen(*a)] != '='))) a++;
        if (!*a)
            return cli_fail(EXIT_USAGE,
                            "--%.*s: a comparison goes on with the settings it has, only --seeds may grow and --jobs change",
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
static int set_jobs(const compare_flags *flags, abar_compare *compare)
{
    char *end;
    const bool automatic = strcmp(flags->jobs, "auto") == 0;
    const long n = automatic ? 0 : strtol(flags->jobs, &end, 10);
    if (!automatic && (*end || n < 1 || n > ABAR_COMPARE_JOBS_MAX))
        return cli_fail(EXIT_USAGE, "--jobs %s: not a number of trainings, give one from 1 to %d, or auto", flags->jobs,
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
    if (runs_failed(compare) < abar_compare_run_count(compare)) return EXIT_SUCCESS;
    return cli_fail(EXIT_FAILURE, "compare: every run failed, %s/compare.md has the reasons", abar_compare_dir(compare));
}

static int run(cli *c)
{
    compare_flags flags = {0};
    abar_compare *compare = NULL;
    watcher w = {.c = c};
    abar_compare_events events = {sizeof events, watch, &w};
    const char *folder;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* side by side, trainings are not to wait in each other's queues */
    int code = flags_resume(c, &folder);
    if (!code) code = flags_out(c);
    if (!code) code = folder ? load(c, &flags, &events, &compare) : create(c, &flags, &events, &compare);
    if (!code) code = set_jobs(&flags, compare);
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
        "Trains the same network on the same data with several optimizers and seeds: same weights to begin with, same "
        "order, same augmentation, seed by seed; on a GPU several trainings side by side where that is faster. Every optimizer "
        "has the settings that suit it; a flag changes them for all that know it, --LABEL.flag for one alone. Prints a "
        "table, and writes compare.svg, compare.md, compare.csv and compare.json. Ctrl-C ends it after the current step, with "
        "everything saved.",
    .own = own,
    .all_settings = true,
    .model_options = true,
    .rule_options = true,
    .examples = "  abar compare --optim sgd,adamw,mac --epochs 3 --seeds 3\n"
                "  abar compare --optim sgd,mac --lr 0.1 --mac.lr 0.05 --mac.damping 0.3\n"
                "  abar compare --optim low=mac,high=mac --low.damping 0.1 --high.damping 10\n"
                "  abar compare --model resnet110 --data cifar10:DIR --optim sgd:3,mac:3,smac\n"
                "  abar compare --model deit-tiny --optim mac,heads=mac \\\n"
                "               --heads.value-stat per-head\n"
                "  abar compare --resume runs/compare-lenet5-fashion-mnist --seeds 5\n",
    .run = run,
};
