/* Numbers and texts as people and programs like to read them. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

void print_shell_word(char *word, size_t size, const char *text)
{
    bool plain = text[0] && !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+=@%")];
    bool quotable = !strchr(text, '\''); /* rare enough to be left to the reader */
    snprintf(word, size, plain || !quotable ? "%s" : "'%s'", text);
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
