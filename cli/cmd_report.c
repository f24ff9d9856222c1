/* abar report: one HTML page about runs. */
#include "cli.h"

#include "abar/report.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE "report.html"
#define FOLDERS_MAX 1000

typedef struct report_flags {
    char out[ABAR_OPTION_TEXT_MAX];
    bool json;
} report_flags;

static const abar_option own[] = {{"out", ABAR_OPTION_TEXT, offsetof(report_flags, out), PAGE, 0, 0, NULL, "the page"},
                                  {"json", ABAR_OPTION_BOOL, offsetof(report_flags, json), "false", 0, 0, NULL, JSON_HELP},
                                  {0}};

/* An existing page is replaced, any other existing file is not. */
static int check_out(const cli *c, const char *path)
{
    char begin[16] = "";
    const size_t n = strlen(path);
    if (path_is_folder(path)) return cli_fail(c, EXIT_USAGE, "--out: %s is a folder, name a file in it", path);
    if (n < 5 || strcmp(path + n - 5, ".html") != 0) return cli_fail(c, EXIT_USAGE, "--out: %s does not end in .html", path);
    if (!path_exists(path)) return EXIT_SUCCESS;
    const int file = path_is_file(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t length = (ssize_t)sizeof begin - 1;
    const bool page = file >= 0 && read(file, begin, sizeof begin - 1) == length && strcmp(begin, "<!doctype html>") == 0;
    if (file >= 0) close(file);
    return page ? EXIT_SUCCESS : cli_fail(c, EXIT_USAGE, "--out: %s is there and is no page, choose another file", path);
}

static void print_counts(const cli *c, const char *path, const abar_report_counts *counts)
{
    json_writer j = {0};
    if (c->json) {
        json_begin(&j, NULL, '{');
        json_text(&j, "page", path);
        json_int(&j, "bytes", (int64_t)counts->bytes);
        json_int(&j, "runs", counts->runs);
        json_int(&j, "groups", counts->groups);
        json_int(&j, "pictures", counts->pictures);
        json_int(&j, "damaged_lines", counts->damaged_lines);
        json_finish(&j);
        return;
    }
    printf("%s: %d run%s", path, counts->runs, counts->runs == 1 ? "" : "s");
    if (counts->damaged_lines > 0)
        printf(", without %" PRId64 " damaged line%s of logs", counts->damaged_lines, counts->damaged_lines == 1 ? "" : "s");
    printf("\n");
}

static int run(cli *c)
{
    report_flags flags = {0};
    const char *folders[FOLDERS_MAX] = {RUNS};
    c->folder = folders;
    c->folders_max = FOLDERS_MAX;
    int code = flags_read(c, &flags, NULL, NULL);
    if (code == EXIT_SUCCESS) code = check_out(c, flags.out);
    if (code) return code;
    const int n = c->folders;
    if (n == 0 && !path_is_folder(RUNS))
        return cli_fail(c, EXIT_FAILURE, RUNS ": no such folder here, give the one that has the runs, as in abar report DIR");
    abar_report_counts counts = {.size = sizeof counts};
    const abar_status status = abar_report_write(c->ctx, folders, n > 0 ? n : 1, flags.out, &counts);
    if (status < 0) return cli_fail_usage(c, status);
    print_counts(c, flags.out, &counts);
    return EXIT_SUCCESS;
}

const command command_report = {
    .name = "report",
    .summary = "write one HTML page about runs",
    .usage = "[DIR...] [--out FILE]",
    .about = "Writes a page about the runs, comparisons, sweeps and tunings in folders and below them (" RUNS
             "/ if none is given): curves, tables, differences with intervals, curvature by layer (abar train --diagnose), "
             "settings, "
             "and the pictures of sweeps and analyses. The page is one file and needs no network.",
    .own = own,
    .examples = "  abar report runs/compare\n"
                "  abar report runs/resnet20-cifar10-mac-s0 analysis --out mac.html\n",
    .run = run,
};
