/* Reporting failures: one line on stderr that starts with "abar: ", with --json also one object on stdout. */
#include "cli.h"
#include "progress.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_MAX CLI_ERROR_MAX

/* One line, though a path may contain line breaks. In a terminal it is broken between words. */
static void print_line(const char *lead, const char *text)
{
    char line[ERROR_MAX + 160];
    const int window = print_window(stderr);
    snprintf(line, sizeof line, "abar: %s%s", lead, text);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    if (window > 0)
        print_wrapped_from(stderr, 0, 2, window, line);
    else
        fprintf(stderr, "%s\n", line);
}

static int fail(const cli *c, int code, const char *text)
{
    if (c->failure) {
        snprintf(c->failure, CLI_ERROR_MAX, "%s", text);
        return code;
    }
    print_line("", text);
    if (!c->json) return code;
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "error", text);
    json_int(&j, "status", code);
    json_finish(&j);
    fflush(stdout);
    return code;
}

int cli_fail(const cli *c, int code, const char *format, ...)
{
    char text[ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(c, code, text);
}

int cli_fail_reported(int code, const char *format, ...)
{
    char text[ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_line("", text);
    return code;
}

static const char *status_text(const cli *c, abar_status status)
{
    const char *text = abar_context_error(c->ctx);
    return text[0] ? text : abar_status_text(status);
}

int cli_fail_status(const cli *c, abar_status status)
{
    return fail(c, status == ABAR_E_ARGUMENT ? EXIT_USAGE : EXIT_FAILURE, status_text(c, status));
}

int cli_fail_usage(const cli *c, abar_status status)
{
    const bool usage = status == ABAR_E_ARGUMENT || status == ABAR_E_NOT_FOUND || status == ABAR_E_UNSUPPORTED;
    return fail(c, usage ? EXIT_USAGE : EXIT_FAILURE, status_text(c, status));
}

int cli_finish_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_SUCCESS;
    return cli_fail_reported(EXIT_FAILURE, "standard output: %s, and what was printed is incomplete", strerror(errno));
}

static void print_warning(const cli *c, const char *text)
{
    char lead[128];
    snprintf(lead, sizeof lead, "warning: %s%s", c->rank_name ? c->rank_name : "", c->rank_name ? ": " : "");
    print_line(lead, text);
}

void cli_log(void *user, abar_log_level level, const char *text)
{
    cli *c = user;
    FILE *watched = c->progress ? c->progress->out : NULL;
    if (level == ABAR_LOG_DEBUG || c->quiet || (level == ABAR_LOG_INFO && !watched)) return;
    if (c->failure && !c->rank_name) return; /* all ranks have it to say */
    progress_clear(c->progress);
    if (level == ABAR_LOG_WARNING)
        print_warning(c, text);
    else
        print_wrapped_from(watched, 0, 2, print_width(watched), text);
}
