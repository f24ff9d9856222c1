/* JSON on standard output: one value, written member by member. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>

/* JSON must be valid UTF-8; paths need not be. Other bytes become U+FFFD. */
static void print_text(const char *text)
{
    putchar('"');
    for (const char *at = text; *at;) {
        const int n = utf8_length(at);
        if (n == 0)
            fputs("\xef\xbf\xbd", stdout);
        else if ((unsigned char)*at < ' ')
            printf("\\u%04x", *at);
        else
            printf("%s%.*s", *at == '"' || *at == '\\' ? "\\" : "", n, at);
        at += n > 0 ? n : 1;
    }
    putchar('"');
}

/* The comma before a value, and its name. */
static void begin_value(json_writer *j, const char *name)
{
    if (j->comma) fputs(", ", stdout);
    if (name) {
        print_text(name);
        fputs(": ", stdout);
    }
    j->comma = true;
}

void json_begin(json_writer *j, const char *name, char bracket)
{
    begin_value(j, name);
    putchar(bracket);
    j->open[j->depth++] = bracket;
    j->comma = false;
}

void json_end(json_writer *j)
{
    putchar(j->open[--j->depth] == '{' ? '}' : ']');
    j->comma = true;
}

void json_finish(json_writer *j)
{
    while (j->depth > 0) json_end(j);
    putchar('\n');
}

void json_text(json_writer *j, const char *name, const char *text)
{
    begin_value(j, name);
    if (text)
        print_text(text);
    else
        fputs("null", stdout);
}

void json_int(json_writer *j, const char *name, int64_t n)
{
    begin_value(j, name);
    printf("%" PRId64, n);
}

void json_real(json_writer *j, const char *name, double x)
{
    begin_value(j, name);
    if (isfinite(x))
        printf("%.9g", x);
    else
        fputs("null", stdout);
}

void json_bool(json_writer *j, const char *name, bool value)
{
    begin_value(j, name);
    fputs(value ? "true" : "false", stdout);
}
