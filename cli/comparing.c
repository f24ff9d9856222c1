/* What abar compare, abar sweep and abar tune share: a line per run, the progress of those that train, messages at the end. */
#include "comparing.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_REST 32 /* columns of a run's line without its label: a longer label is cut */

/* ---- counting --------------------------------------------------------------------------------------------------- */

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

/* ---- words ------------------------------------------------------------------------------------------------------ */

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

void comparing_describe(cli *c, const abar_setup *setup, char *line, size_t size)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX], usual[ABAR_SETUP_TABLES_MAX];
    abar_setup *recipe = NULL;
    size_t at = 0;
    const int n = abar_setup_tables(setup, tables);
    const abar_train_config *t = &setup->train;
    const bool known = abar_setup_create(c->ctx, t->model, t->data, t->optim, &recipe) >= 0;
    if (known) abar_setup_tables(recipe, usual);
    line[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (strcmp(tables[i].section, "curvature") == 0 && abar_method_takes_whole_batch(setup->method->name)) continue;
        for (const abar_option *o = tables[i].options; o->name; o++)
            if (is_said(o->name) || i >= 2) /* the optimizer's own tables */
                at = describe_option(c, &tables[i], known ? &usual[i] : NULL, o->name, line, at, size);
    }
    if (known) abar_setup_destroy(c->ctx, recipe);
}

void comparing_announce_ended(const watcher *w)
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

/* ---- watching --------------------------------------------------------------------------------------------------- */

static void print_failure(watcher *w, int lead, const abar_compare_run *r)
{
    char text[2048];
    snprintf(text, sizeof text, "failed after %" PRId64 " epoch%s: %s", r->epochs, r->epochs == 1 ? "" : "s", r->failure);
    print_wrapped_from(w->line.out, lead, 2 * w->run_width + 4, print_width(w->line.out), text);
}

/* The label, or its end: labels of a sweep differ there. */
static const char *cut_label(const char *label, int width, char out[ABAR_COMPARE_LABEL_MAX + 2])
{
    const int n = (int)strlen(label);
    if (n <= width) return label;
    snprintf(out, ABAR_COMPARE_LABEL_MAX + 2, "..%s", label + n - (width - 2));
    return out;
}

static void print_run(watcher *w, const abar_compare_progress *p)
{
    enum { HEAD, LOSS, TEST, RESULT, BEST, MS, TIME, BESIDE, PARTS };
    line_part part[PARTS] = {0};
    char number[NUMBER_MAX], end[ABAR_COMPARE_LABEL_MAX + 2];
    const abar_compare_run *r = p->result;
    const bool text = comparison_is_text(w->compare);
    FILE *out = w->line.out;
    const int space = print_width(out) > RUN_REST + 4 ? print_width(out) - RUN_REST : 4;
    const int label = space < w->label_width ? space : w->label_width;
    progress_clear(&w->line);
    line_part_set(&part[HEAD], 0, "[%*d/%d] %-*s  seed %" PRId64 "  ", w->run_width, p->ended, p->runs, label,
                  cut_label(r->label, label, end), r->seed);
    if (r->failure) {
        fputs(part[HEAD].text, out);
        print_failure(w, (int)strlen(part[HEAD].text), r);
        fflush(out);
        return;
    }
    line_part_set(&part[LOSS], 1, "loss %s  ", print_fixed(number, r->train_loss, 4));
    line_part_set(&part[TEST], 0, "test ");
    if (comparison_validates(w->compare)) line_part_set(&part[TEST], 1, "validation "); /* the first line says so, too */
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

void comparing_watch(void *user, const abar_compare_progress *p)
{
    watcher *w = user;
    if (!p->news) {
        w->run = p->run;
        w->running = p->n_running;
        if (p->training) w->epoch = p->training->epoch;
    }
    if (!w->line.out) return;
    if (!w->announced) w->what->announce(w);
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

void comparing_say_files(FILE *out, const char *dir, const char *const (*file)[2])
{
    fputc('\n', out);
    for (; (*file)[0]; file++) {
        char path[ABAR_OPTION_TEXT_MAX + 32];
        snprintf(path, sizeof path, "%s/%s", dir, (*file)[1]);
        print_path(out, (*file)[0], path);
    }
}

static void say_stopped(const watcher *w)
{
    char folder[SHELL_WORD_MAX];
    char file[ABAR_OPTION_TEXT_MAX + 16], text[256];
    const int width = print_width(w->line.out);
    snprintf(file, sizeof file, "%s/%s.json", abar_compare_dir(w->compare), w->c->command->name);
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
    fprintf(w->line.out, "  %s %s --resume %s%s%s%s%s\n", w->c->program, w->c->command->name, folder,
            automatic ? "" : " --jobs ", automatic ? "" : w->jobs, w->part[0] ? " --part " : "", w->part);
}

/* All runs of a part have ended, others are missing. */
static void say_part(const watcher *w)
{
    char folder[SHELL_WORD_MAX], text[256];
    const int ended = runs_ended(w->compare), runs = abar_compare_run_count(w->compare);
    print_shell_word(folder, abar_compare_dir(w->compare));
    snprintf(text, sizeof text,
             "part %s is done, %d of %d runs are here; copy the run folders of the other parts into this one, then:", w->part,
             ended, runs);
    print_wrapped(w->line.out, 0, print_width(w->line.out), text);
    fprintf(w->line.out, "  %s %s --resume %s\n", w->c->program, w->c->command->name, folder);
}

/* A value may be refused when its run begins: the message then names the flag as it was typed, with its label. */
static int say_failure(const cli *c, const abar_compare *compare, abar_status status)
{
    char file[32];
    const char *label = strcmp(c->command->name, "compare") == 0 ? abar_compare_failed(compare) : NULL; /* no label of a flag */
    snprintf(file, sizeof file, "%s.json", c->command->name);
    if (label && (status == ABAR_E_ARGUMENT || status == ABAR_E_UNSUPPORTED)) return flags_refuse(c, label, status);
    return ranks_fail(c, status, abar_compare_dir(compare), file);
}

/* ---- flags ------------------------------------------------------------------------------------------------------ */

/* N or auto. */
int comparing_set_jobs(const cli *c, const comparing_flags *flags, const abar_comm *comm, int *jobs)
{
    char *end;
    const bool automatic = strcmp(flags->jobs, "auto") == 0;
    const long n = automatic ? 0 : strtol(flags->jobs, &end, 10);
    if (!automatic && (*end || n < 1 || n > ABAR_COMPARE_JOBS_MAX))
        return cli_fail(c, EXIT_USAGE, "--jobs %s: not a number of trainings, give one from 1 to %d, or auto", flags->jobs,
                        ABAR_COMPARE_JOBS_MAX);
    if (n > 1 && abar_comm_size(comm) > 1)
        return cli_fail(c, EXIT_USAGE, "--jobs %s: several ranks train one run at a time, leave it out", flags->jobs);
    *jobs = (int)n;
    return EXIT_SUCCESS;
}

static int set_ranks(const cli *c, abar_compare *compare, abar_comm *comm)
{
    const abar_status status = abar_compare_ranks(compare, comm);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

/* Signals are for rank 0, with which the others stop. */
static int follow(cli *c, abar_comm *comm)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) signal(signals[i], SIG_IGN);
    const abar_status status = abar_ranks_follow(c->ctx, comm);
    const int code = status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
    if (status == ABAR_E_PEER) ranks_tell_for_first(c, comm);
    return code;
}

int comparing_on_ranks(cli *c, abar_comm *comm, int (*lead)(cli *c, abar_comm *comm))
{
    if (abar_comm_rank(comm) > 0) return follow(c, comm);
    const int code = lead(c, comm);
    /* After a failure of this rank alone the others may wait in a step: they end when this one leaves. */
    const bool together = code == EXIT_SUCCESS || code == EXIT_SOME_FAILED || code > EXIT_SIGNAL;
    if (together && abar_ranks_dismiss(comm) < 0) return code ? code : cli_fail_status(c, ABAR_E_PEER);
    return code;
}

static int set_part(const cli *c, const comparing_flags *flags, abar_compare *compare)
{
    char *end;
    if (!flags->part[0]) return EXIT_SUCCESS;
    const long part = strtol(flags->part, &end, 10), parts = *end == '/' ? strtol(end + 1, &end, 10) : 0;
    if (*end || parts < 1 || parts > 10000 || part < 1 || part > parts)
        return cli_fail(c, EXIT_USAGE, "--part %s: not a part, give K/N with K from 1 to N, as in 1/3", flags->part);
    abar_status status = abar_compare_part(compare, (int)part, (int)parts);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

static int refuse_settings(const cli *c, const comparing *what, const char *const *allowed, const char *may)
{
    for (int i = 0; i < c->argc; i++) {
        const char *const *a = allowed;
        const char *name = c->argv[i] + 2;
        if (strncmp(c->argv[i], "--", 2) != 0) continue;
        while (*a && (strncmp(name, *a, strlen(*a)) != 0 || (name[strlen(*a)] && name[strlen(*a)] != '='))) a++;
        if (!*a)
            return cli_fail(c, EXIT_USAGE, "--%.*s: a resumed %s keeps its settings, only %s", (int)strcspn(name, "="), name,
                            what->noun, may);
    }
    return EXIT_SUCCESS;
}

int comparing_read_resumed(cli *c, comparing_flags *flags, const comparing *what, const char *const *allowed, const char *may)
{
    int code = refuse_settings(c, what, allowed, may);
    if (!code) code = flags_read(c, flags, NULL, NULL);
    if (!code) c->quiet = flags->quiet;
    return code;
}

/* runs/VERB-MODEL-DATA */
static void claim(comparing_flags *flags, const char *verb, const abar_setup *setup)
{
    char name[ABAR_OPTION_TEXT_MAX];
    const int data = (int)strcspn(setup->train.data, ":");
    snprintf(name, sizeof name, "%s-%.64s-%.*s", verb, setup->train.model, data < 64 ? data : 64, setup->train.data);
    folder_claim(flags->out, name);
}

/* Whether the device, the network or the settings rule out a setup. Other failures are left to the comparison. */
static bool is_ruled_out(cli *c, const abar_setup *setup)
{
    abar_memory_plan plan = {.size = sizeof plan};
    abar_status status = abar_setup_check(c->ctx, setup);
    if (status == ABAR_OK) status = abar_setup_memory_plan(c->ctx, setup, &plan);
    return status == ABAR_E_UNSUPPORTED || status == ABAR_E_ARGUMENT;
}

/* Leaves out what "all" named and this comparison cannot have, with a line each. Where nothing would remain the list stays as
 * it is: the reason is none of the optimizers'. */
static void leave_out(cli *c, const comparing_flags *flags, setup_list *list)
{
    FILE *out = comparing_stream(flags);
    char why[ABAR_COMPARE_METHODS_MAX][512] = {{0}};
    int n = 0, left = 0;
    for (int i = 0; i < list->n; i++) {
        if (!list->of_all[i] || !is_ruled_out(c, list->setup[i])) continue;
        snprintf(why[i], sizeof why[i], "%s", abar_context_error(c->ctx));
        left++;
    }
    if (left == list->n) return;
    for (int i = 0; i < list->n; i++) {
        if (why[i][0]) {
            if (out) print_wrapped_from(out, fprintf(out, "%s is left out: ", list->label[i]), 2, print_width(out), why[i]);
            abar_setup_destroy(c->ctx, list->setup[i]);
            continue;
        }
        list->setup[n] = list->setup[i];
        list->seeds[n] = list->seeds[i];
        memmove(list->label[n++], list->label[i], sizeof list->label[0]);
    }
    list->n = n;
}

static int setups(cli *c, comparing_flags *flags, setup_list *out)
{
    int code = flags_recipes(c, out);
    if (code) return code;
    abar_status status = ABAR_OK;
    for (int i = 0; i < out->n && c->command->validation; i++) /* abar compare has no default of --validation */
        if (out->seeds[i] > 0) {
            code =
                cli_fail(c, EXIT_USAGE, "--optim %s:%" PRId64 ": all have the same number of seeds here, give --seeds %" PRId64,
                         out->label[i], out->seeds[i], out->seeds[i]);
            setup_list_destroy(c, out);
            return code;
        }
    for (int i = 1; i < out->n && status >= 0; i++) status = abar_compare_align(c->ctx, out->setup[0], out->setup[i]);
    code = status < 0 ? cli_fail_usage(c, status) : flags_read_list(c, flags, out, NULL);
    if (!code) leave_out(c, flags, out);
    if (!code) code = flags_check_list(c, out);
    if (code) setup_list_destroy(c, out);
    return code;
}

int comparing_read_new(cli *c, comparing_flags *flags, const char *verb, bool runs, setup_list *out,
                       const char *labels[ABAR_COMPARE_METHODS_MAX])
{
    const int code = setups(c, flags, out);
    if (code) return code;
    c->quiet = flags->quiet;
    flags->own_folder = !flags->out[0] && runs;
    if (flags->own_folder) claim(flags, verb, out->setup[0]);
    for (int i = 0; i < out->n; i++) labels[i] = out->label[i];
    return EXIT_SUCCESS;
}

FILE *comparing_stream(const comparing_flags *flags)
{
    return flags->quiet ? NULL : !flags->json ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static abar_status run_compare(void *compare) { return abar_compare_run_all(compare); }
static void stop_compare(void *compare) { abar_compare_stop(compare); }

void comparing_look(watcher *w, const abar_compare *compare)
{
    w->compare = compare;
    w->label_width = 0;
    w->run_width = snprintf(NULL, 0, "%d", abar_compare_run_count(compare));
    for (int m = 0; m < abar_compare_method_count(compare); m++) {
        int n = (int)strlen(abar_compare_row_of(compare, m)->label);
        if (n > w->label_width) w->label_width = n;
    }
}

int comparing_judge(const watcher *w)
{
    const abar_compare *compare = w->compare;
    const char *verb = w->c->command->name;
    const int failed = runs_failed(compare), runs = abar_compare_run_count(compare);
    const char *dir = abar_compare_dir(compare);
    if (failed == 0) return EXIT_SUCCESS;
    if (failed == runs)
        return cli_fail_reported(EXIT_FAILURE, "%s: every run failed, %s/%s has the reasons", verb, dir, w->what->reasons);
    return cli_fail_reported(EXIT_SOME_FAILED, "%s: %d of %d runs failed, %s/%s has the reasons", verb, failed, runs, dir,
                             w->what->reasons);
}

static int run(cli *c, abar_compare *compare, const comparing_flags *flags, watcher *w)
{
    comparing_look(w, compare);
    w->jobs = flags->jobs;
    w->part = flags->part;
    progress_init(&w->line, comparing_stream(flags));
    c->progress = &w->line;
    if (flags->resume[0] && w->line.out) w->what->announce(w);
    abar_status status = stop_on_signal(&(stoppable){compare, run_compare, stop_compare});
    progress_clear(&w->line);
    c->progress = NULL;
    if (status < 0) return say_failure(c, compare, status);
    if (w->line.out && status == ABAR_STOPPED)
        say_stopped(w);
    else if (w->line.out && runs_ended(compare) < abar_compare_run_count(compare))
        say_part(w);
    else if (w->line.out)
        w->what->finish(w);
    const char *json;
    if (flags->json) {
        if (abar_compare_report(compare, &json) < 0) return cli_fail_status(c, ABAR_E_MEMORY);
        puts(json);
    }
    if (status == ABAR_STOPPED) return stop_exit_code();
    return w->what->judge(w);
}

int comparing_lead(cli *c, abar_comm *comm, const comparing *what)
{
    comparing_flags flags = {0};
    abar_compare *compare = NULL;
    watcher w = {.c = c, .what = what};
    abar_compare_events events = {sizeof events, comparing_watch, &w};
    const char *folder;
    int jobs = 0;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* so that trainings side by side do not share hardware queues */
    int code = flags_resume(c, &folder);
    if (!code) code = flags_out(c);
    if (!code) code = (folder ? what->load : what->create)(c, &flags, &events, &compare);
    if (!code) code = comparing_set_jobs(c, &flags, comm, &jobs);
    if (!code) code = set_ranks(c, compare, comm);
    if (!code) code = set_part(c, &flags, compare);
    if (!code && what->set) code = what->set(c, &flags, compare);
    if (!code) {
        abar_compare_jobs(compare, jobs);
        code = run(c, compare, &flags, &w);
    }
    abar_compare_destroy(compare);
    if (code && flags.own_folder) folder_unclaim(flags.out);
    return code;
}
