/* JSON on standard output: one value, written member by member. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>

/* Bytes of the UTF-8 character that text begins with; 0: it begins with none. */
static int character_length(const unsigned char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* below which a shorter form exists */
    const int n = text[0] < 0x80 ? 1 : text[0] >> 5 == 0x6 ? 2 : text[0] >> 4 == 0xe ? 3 : text[0] >> 3 == 0x1e ? 4 : 0;
    if (n < 2) return n;
    uint32_t code = text[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (text[i] >> 6 != 0x2) return 0; /* the end of the text, too */
        code = code << 6 | (text[i] & 0x3fu);
    }
    return code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

/* JSON is UTF-8: other bytes, as paths may hold them, become U+FFFD. */
static void print_text(const char *text)
{
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        const int n = character_length(at);
        if (n == 0)
            fputs("\xef\xbf\xbd", stdout);
        else if (*at < ' ')
            printf("\\u%04x", *at);
        else
            printf("%s%.*s", *at == '"' || *at == '\\' ? "\\" : "", n, (const char *)at);
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
