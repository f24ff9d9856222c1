/* abar analyze: looks at the curvature of a trained network, and checks the theory. */
#include "cli.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS_MAX = 256 };

/* The files to look at, in the order of training. */
typedef struct weights_list {
    int n;
    char path[WEIGHTS_MAX][2 * ABAR_OPTION_TEXT_MAX];
} weights_list;

typedef struct network_flags {
    char checkpoint[ABAR_OPTION_TEXT_MAX];
    bool json;
} network_flags;

static const abar_option network_own[] = {
    {.name = "checkpoint",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(network_flags, checkpoint),
     .fallback = "",
     .help = "folder of a run, with its snapshots; or files joined by commas"},
    {.name = "json", .type = ABAR_OPTION_BOOL, .offset = offsetof(network_flags, json), .fallback = "false", .help = JSON_HELP},
    {.name = NULL},
};

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static void show(void *user, const abar_analysis_progress *p)
{
    const cli *c = user;
    if (c->quiet || !print_window(stderr)) return;
    fprintf(stderr, "\r%-24.24s %4lld of %lld  \033[K", p->phase, (long long)p->done, (long long)p->all);
    fflush(stderr);
}

/* Only beside a progress line: what is read by programs stays as it is. */
static void announce(void *user, const char *text)
{
    const cli *c = user;
    if (!c->quiet && print_window(stderr)) fprintf(stderr, "%s\n", text);
}

static void clear(const cli *c)
{
    if (!c->quiet && print_window(stderr)) fprintf(stderr, "\r\033[K");
}

/* ---- which weights ----------------------------------------------------------------------------------------------- */

/* epoch-10000 comes after epoch-9999. */
static int by_epoch(const void *a, const void *b)
{
    const size_t n = strlen(a), m = strlen(b);
    return n != m ? (n > m) - (n < m) : strcmp(a, b);
}

/* Not what a killed run left half written. */
static bool is_snapshot(const char *name)
{
    const size_t digits = strncmp(name, "epoch-", 6) == 0 ? strspn(name + 6, "0123456789") : 0;
    return digits > 0 && strcmp(name + 6 + digits, ".safetensors") == 0;
}

static int too_many(const cli *c)
{
    return cli_fail(c, EXIT_USAGE, "--checkpoint: more than %d snapshots, name those to look at, joined by commas",
                    WEIGHTS_MAX - 1);
}

/* Snapshots first, then the checkpoint. */
static int list_folder(const cli *c, const char *folder, weights_list *list)
{
    char snapshots[2 * ABAR_OPTION_TEXT_MAX], last[2 * ABAR_OPTION_TEXT_MAX];
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", folder);
    DIR *dir = opendir(snapshots);
    int found = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (is_snapshot(e->d_name) && found++ < WEIGHTS_MAX - 1)
            snprintf(list->path[list->n++], sizeof list->path[0], "%.600s/%.255s", snapshots, e->d_name);
    if (dir) closedir(dir);
    if (found > list->n) return too_many(c);
    qsort(list->path, (size_t)list->n, sizeof list->path[0], by_epoch);
    const int code = folder_weights(c, folder, last, sizeof last);
    if (!code) snprintf(list->path[list->n++], sizeof list->path[0], "%s", last);
    return code;
}

static int list_weights(const cli *c, const char *checkpoint, weights_list *list)
{
    if (path_is_folder(checkpoint)) return list_folder(c, checkpoint, list);
    for (const char *at = checkpoint; *at;) {
        if (list->n == WEIGHTS_MAX) return too_many(c);
        const size_t length = strcspn(at, ",");
        char *path = list->path[list->n];
        snprintf(path, sizeof list->path[0], "%.*s", (int)length, at);
        if (strcmp(path, "initial") == 0)
            path[0] = 0;
        else if (!path_exists(path))
            return cli_fail(c, EXIT_FAILURE, "%s: no such file or folder, give the folder of a run or safetensors files", path);
        list->n++;
        at += length + (at[length] == ',');
    }
    return EXIT_SUCCESS;
}

/* Sentences are wrapped; tables are narrow enough. */
static void print_text(const char *text)
{
    char line[2048];
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        if ((int)length <= print_width(stdout) && strncmp(line, "- ", 2) != 0)
            puts(line);
        else
            print_wrapped_from(stdout, 0, strncmp(line, "- ", 2) == 0 ? 2 : 0, print_width(stdout), line);
        at += length + (at[length] == '\n');
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static abar_status run_analysis(void *object) { return abar_analysis_run(object); }
static void stop_analysis(void *object) { abar_analysis_stop(object); }

static int analyze(cli *c, const char *what, const abar_setup *setup, const weights_list *list, const void *options, bool json)
{
    const char *paths[WEIGHTS_MAX];
    abar_analysis *a;
    const abar_analysis_events events = {.size = sizeof events, .progress = show, .user = c, .announce = announce};
    for (int i = 0; i < list->n; i++) paths[i] = list->path[i];
    abar_status status = abar_analysis_create(c->ctx, what, setup, paths, list->n, options, &events, &a);
    if (status < 0) return cli_fail_usage(c, status);
    status = stop_on_signal(&(stoppable){.object = a, .run = run_analysis, .stop = stop_analysis});
    clear(c);
    int code = EXIT_SUCCESS;
    if (status < 0)
        code = cli_fail_status(c, status);
    else if (status == ABAR_STOPPED)
        code = stop_exit_code();
    else if (json)
        printf("%s\n", abar_analysis_json(a));
    else if (!c->quiet)
        print_text(abar_analysis_text(a));
    abar_analysis_destroy(a);
    return code;
}

/* Where the files are. */
static void print_folder(const cli *c, const abar_option *table, const void *options, bool json)
{
    char out[ABAR_OPTION_TEXT_MAX], word[SHELL_WORD_MAX];
    if (json || c->quiet || abar_options_get(c->ctx, table, options, "out", out, sizeof out) < 0) return;
    print_shell_word(word, out);
    printf("\nFigures (SVG) and tables (CSV, JSON): %s\n", word);
}

/* Both tables as one: the command's own flags, then the analysis's. */
static abar_option *join_tables(const abar_option *own, const abar_option *analysis, size_t shift)
{
    int n = 0, m = 0;
    while (own[n].name) n++;
    while (analysis[m].name) m++;
    abar_option *table = calloc((size_t)(n + m + 1), sizeof *table);
    if (!table) return NULL;
    memcpy(table, own, (size_t)n * sizeof *table);
    for (int i = 0; i < m; i++) {
        table[n + i] = analysis[i];
        table[n + i].offset += shift;
    }
    return table;
}

static int run_what(cli *c, const char *what, const abar_option *table, network_flags *flags, size_t shift)
{
    const bool network = abar_analysis_needs_network(what);
    weights_list *list = calloc(1, sizeof *list);
    abar_setup *setup = NULL;
    const char *checkpoint = flags_peek(c, "checkpoint");
    int code = list ? EXIT_SUCCESS : cli_fail(c, EXIT_FAILURE, "memory: not enough");
    if (!code && network && (!checkpoint || !checkpoint[0]))
        code = cli_fail(c, EXIT_USAGE, "--checkpoint: needed, the folder of a run or safetensors files joined by commas");
    if (!code && network) code = list_weights(c, checkpoint, list);
    if (!code && network)
        code = checkpoint_setup(c, list->path[list->n - 1][0] ? list->path[list->n - 1] : checkpoint, flags, &setup);
    if (!code && !network) code = flags_read(c, flags, NULL, NULL);
    if (!code && network) code = flags_check(c, setup);
    if (!code) code = analyze(c, what, setup, list, (char *)flags + shift, flags->json);
    if (!code) print_folder(c, table, (char *)flags + shift, flags->json);
    abar_setup_destroy(c->ctx, setup);
    free(list);
    return code;
}

static int unknown(const cli *c, const char *what)
{
    const char *near = what ? abar_nearest_name(what, abar_analysis_names()) : NULL;
    if (!what)
        return cli_fail(
            c, EXIT_USAGE,
            "analyze: say what: spectra, alignment, covariance, attention, convergence, heatmap, theory, complexity or all");
    if (near) return cli_fail(c, EXIT_USAGE, "analyze %s: no such analysis, did you mean %s?", what, near);
    return cli_fail(c, EXIT_USAGE, "analyze %s: no such analysis, abar analyze --help lists them", what);
}

/* The command as this analysis has it: its flags behind ours, which begin at shift. Free own. */
static bool derive(const cli *c, const char *what, size_t shift, command *out)
{
    const bool network = abar_analysis_needs_network(what);
    *out = *c->command;
    out->own = join_tables(network ? network_own : network_own + 1, abar_analysis_options(what), shift);
    if (!network) {
        out->settings = NULL;
        out->model_options = false;
    }
    return out->own != NULL;
}

/* The analysis that is named; NULL: none. */
static const char *named(const cli *c) { return c->argc > 0 && c->argv[0][0] != '-' ? c->argv[0] : NULL; }

static int run(cli *c)
{
    const char *what = named(c);
    if (!what || !abar_analysis_about(what)) return unknown(c, what);
    const size_t shift = (sizeof(network_flags) + 15) / 16 * 16;
    network_flags *flags = calloc(1, shift + abar_analysis_config_size(what));
    command derived = {0};
    if (!flags || !derive(c, what, shift, &derived)) {
        free(flags);
        return cli_fail(c, EXIT_FAILURE, "memory: not enough");
    }
    const command *before = c->command;
    c->command = &derived;
    c->argc--;
    c->argv++;
    const int code = run_what(c, what, abar_analysis_options(what), flags, shift);
    c->command = before;
    free((void *)(uintptr_t)derived.own);
    free(flags);
    return code;
}

/* With the flags of the analysis that is named, or of those that look at a network. */
static int help(cli *c)
{
    const char *what = named(c);
    command derived;
    if (what && !abar_analysis_about(what)) return unknown(c, what);
    if (!derive(c, what ? what : "all", 0, &derived)) return cli_fail(c, EXIT_FAILURE, "memory: not enough");
    const command *before = c->command;
    c->command = &derived;
    if (what) {
        c->argc--;
        c->argv++;
    }
    const int code = help_command(c);
    c->command = before;
    free((void *)(uintptr_t)derived.own);
    return code;
}

static const char *const settings[] = {"model",           "data", "device", "precision", "threads", "seed",
                                       "label-smoothing", "text", NULL};

const command command_analyze = {
    .name = "analyze",
    .summary = "look at the curvature of a trained network; check the theory",
    .usage = "WHAT [--checkpoint PATH] [--flag value ...]",
    .about = "WHAT is spectra, alignment, covariance, attention, convergence, heatmap (figures of the paper, for your "
             "checkpoint), all (every one of them, and "
             "what they mean), theory (the convergence theorem, as printed and as corrected) or complexity (cost over the "
             "width of a layer): abar analyze WHAT --help has its flags. Every figure is "
             "written as SVG, CSV and JSON. The folder of a run brings its settings and its snapshots (abar train --snapshot).",
    .own = network_own,
    .settings = settings,
    .model_options = true,
    .examples = "  abar analyze all --checkpoint runs/lenet5-fashion-mnist-mac-s0\n"
                "  abar analyze spectra --checkpoint initial,FILE --model lenet5 \\\n"
                "      --data mnist:DIR --layers 'fc*'\n"
                "  abar analyze theory --data circle --points 21 --width 0 --one-point \\\n"
                "      --steps 300\n",
    .run = run,
    .help = help,
};
