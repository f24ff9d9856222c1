/* How the command fails: one line on stderr that starts with "abar: ", and an exit code. */
#include "cli.h"
#include "progress.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* One failure is one line, whatever text it carries: a path may hold anything. */
static void print_line(const char *lead, const char *text)
{
    fprintf(stderr, "abar: %s", lead);
    for (const char *c = text; *c; c++) fputc((unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c, stderr);
    fputc('\n', stderr);
}

int cli_fail(int code, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_line("", text);
    return code;
}

int cli_fail_status(const cli *c, abar_status status)
{
    const char *text = abar_context_error(c->ctx);
    print_line("", text[0] ? text : abar_status_text(status));
    return status == ABAR_E_ARGUMENT ? EXIT_USAGE : EXIT_FAILURE;
}

int cli_fail_usage(const cli *c, abar_status status)
{
    int code = cli_fail_status(c, status);
    return status == ABAR_E_NOT_FOUND || status == ABAR_E_UNSUPPORTED ? EXIT_USAGE : code;
}

int cli_finish_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_SUCCESS;
    return cli_fail(EXIT_FAILURE, "standard output: %s, and what was printed is incomplete", strerror(errno));
}

void cli_log(void *user, abar_log_level level, const char *text)
{
    cli *c = user;
    FILE *watched = c->progress ? c->progress->out : NULL;
    if (level == ABAR_LOG_DEBUG || c->quiet || (level == ABAR_LOG_INFO && !watched)) return;
    progress_clear(c->progress);
    if (level == ABAR_LOG_WARNING)
        print_line("warning: ", text);
    else
        fprintf(watched, "%s\n", text);
}
