/* Numbers, lines and texts for people; paths. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MIN 34 /* columns for text beside a name; with fewer it goes below */

const char *print_count(char *text, int64_t n)
{
    char digits[NUMBER_MAX];
    int length = snprintf(digits, sizeof digits, "%" PRId64, n < 0 ? 0 : n), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *print_bytes(char *text, size_t n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n;
    int u = 0;
    for (; value >= 1000 && u < 4; u++) value /= 1024;
    snprintf(text, NUMBER_MAX, "%.*f %s", u > 0 && value < 100, value, unit[u]);
    return text;
}

const char *print_duration(char *text, double seconds)
{
    int64_t s = seconds > 0 && seconds < 1e12 ? (int64_t)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(text, NUMBER_MAX, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(text, NUMBER_MAX, "%d:%02d", (int)(s / 60), (int)(s % 60));
    return text;
}

const char *print_significant(char *text, double n)
{
    int decimals = n > 0 ? 2 - (int)floor(log10(n)) : 0;
    snprintf(text, NUMBER_MAX, "%.*f", decimals < 0 ? 0 : decimals > 9 ? 9 : decimals, n);
    return text;
}

const char *print_fixed(char *text, double n, int decimals)
{
    snprintf(text, NUMBER_MAX, fabs(n) < 1e5 ? "%.*f" : "%.*g", fabs(n) < 1e5 ? decimals : 3, n);
    return text;
}

int utf8_length(const char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* below which a shorter form exists */
    const unsigned char *t = (const unsigned char *)text;
    const int n = t[0] < 0x80 ? 1 : t[0] >> 5 == 0x6 ? 2 : t[0] >> 4 == 0xe ? 3 : t[0] >> 3 == 0x1e ? 4 : 0;
    if (n < 2) return n;
    uint32_t code = t[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (t[i] >> 6 != 0x2) return 0; /* also at the end of the text */
        code = code << 6 | (t[i] & 0x3fu);
    }
    return code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

static bool is_control(char c) { return (unsigned char)c < ' ' || c == 0x7f; }

/* Whether it contains control characters or invalid UTF-8. */
static bool has_unprintable(const char *text)
{
    for (int n; *text; text += n) {
        n = utf8_length(text);
        if (n == 0 || is_control(*text)) return true;
    }
    return false;
}

/* $'...', as bash, zsh and ksh read it, byte by byte. */
static void escape_bytes(char *word, const char *text)
{
    word += sprintf(word, "$'");
    for (; *text; text++) {
        const bool odd = is_control(*text) || (unsigned char)*text >= 0x80;
        word += sprintf(word, odd ? "\\%03o" : *text == '\'' || *text == '\\' ? "\\%c" : "%c", (unsigned char)*text);
    }
    strcpy(word, "'");
}

static void quote(char *word, const char *text)
{
    word += sprintf(word, "'");
    for (; *text; text++) word += sprintf(word, *text == '\'' ? "'\\''" : "%c", *text);
    strcpy(word, "'");
}

const char *print_shell_word(char word[SHELL_WORD_MAX], const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+=@%";
    char path[ABAR_OPTION_TEXT_MAX + 2];
    snprintf(path, sizeof path, "%s%s", text[0] == '-' ? "./" : "", text); /* not a flag */
    if (has_unprintable(path))
        escape_bytes(word, path);
    else if (!path[0] || path[strspn(path, plain)])
        quote(word, path);
    else
        strcpy(word, path);
    return word;
}

int print_window(FILE *out)
{
    struct winsize size;
    return isatty(fileno(out)) && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int print_width(FILE *out)
{
    const int window = print_window(out);
    return window > 0 && window < PRINT_WIDTH ? window : PRINT_WIDTH;
}

void print_wrapped(FILE *out, int indent, int width, const char *text) { print_wrapped_from(out, indent, indent, width, text); }

void print_wrapped_from(FILE *out, int column, int indent, int width, const char *text)
{
    bool first = true;
    for (const char *word = text; *word; first = false) {
        int length = (int)strcspn(word, " ");
        if (column > indent && column + !first + length > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", length, word);
        column += length + !first;
        word += length;
        word += strspn(word, " ");
    }
    fputc('\n', out);
}

void line_part_set(line_part *part, int rank, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    *part = (line_part){.rank = rank};
    vsnprintf(part->text, sizeof part->text, format, args);
    va_end(args);
}

int print_fit(line_part *parts, int n, int width)
{
    for (;;) {
        int total = 0, least = 0;
        for (int i = 0; i < n; i++) {
            total += (int)strlen(parts[i].text);
            if (parts[i].text[0] && parts[i].rank > parts[least].rank) least = i;
            if (!parts[least].text[0]) least = i;
        }
        if (total <= width || parts[least].rank == 0) return total;
        parts[least].text[0] = '\0';
    }
}

void print_parts(FILE *out, const line_part *parts, int n, const char *bold, const char *plain)
{
    for (int i = 0; i < n; i++)
        if (parts[i].text[0]) fprintf(out, "%s%s%s", parts[i].strong ? bold : "", parts[i].text, parts[i].strong ? plain : "");
}

void print_path(FILE *out, const char *label, const char *path)
{
    const bool fits = (int)(strlen(label) + strlen(path)) + 2 <= print_width(out);
    fprintf(out, "%s:%s%s\n", label, fits ? " " : "\n  ", path);
}

int print_entry(FILE *out, int column, const char *name, const char *text)
{
    const int width = print_width(out);
    const bool narrow = width - column < WORDS_MIN;
    if (narrow) column = 6;
    fprintf(out, "%-*s", narrow ? 0 : column, name);
    if (narrow || (int)strlen(name) >= column) fprintf(out, "\n%*s", column, "");
    print_wrapped(out, column, width, text);
    return column;
}

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool path_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}
