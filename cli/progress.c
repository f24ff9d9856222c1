/* Draws the progress line at most ten times a second, never wider than the window, and drops its least important parts
 * first when the window is narrow. */
#include "progress.h"
#include "cli.h"

#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define BAR_MAX 24
#define BAR_MIN 6

void progress_init(progress *p, FILE *out)
{
    *p = (progress){.out = out};
    if (!out) return;
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    p->live = isatty(fileno(out)) && term && term[0] && strcmp(term, "dumb") != 0;
    p->color = p->live && !(no_color && no_color[0]);
    if (p->live && setlocale(LC_CTYPE, "")) p->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

const char *progress_bold(const progress *p) { return p->color ? "\033[1m" : ""; }
const char *progress_plain(const progress *p) { return p->color ? "\033[0m" : ""; }

int progress_width(const progress *p)
{
    const int window = p->live ? print_window(p->out) : 0;
    return window > 0 ? window : print_width(p->out);
}

void progress_clear(progress *p)
{
    if (!p || !p->drawn) return;
    fputs("\r\033[K", p->out);
    fflush(p->out);
    p->drawn = false;
}

static int digits(int64_t n) { return snprintf(NULL, 0, "%" PRId64, n); }

/* "epoch  3/10" */
static int print_epoch(char *text, size_t size, const abar_progress *now)
{
    return snprintf(text, size, "epoch %*" PRId64 "/%" PRId64, digits(now->epochs), now->epoch + 1, now->epochs);
}

/* ---- the line in place ---------------------------------------------------------------------------------------- */

static void draw_bar(const progress *p, double done, int width)
{
    int full = (int)(done * width + 0.5);
    const char *cell = p->utf8 ? "\xe2\x94\x81" : "=", *rest = p->color && p->utf8 ? cell : p->utf8 ? " " : "-";
    fputs("  ", p->out);
    if (p->color) fputs("\033[36m", p->out);
    for (int i = 0; i < full; i++) fputs(cell, p->out);
    if (p->color) fputs("\033[0m\033[2m", p->out);
    for (int i = full; i < width; i++) fputs(rest, p->out);
    if (p->color) fputs("\033[0m", p->out);
}

static const char *unit(const abar_progress *now) { return now->text ? "tok" : "img"; }

static void draw(progress *p, const char *lead, double done, const abar_progress *now)
{
    char part[5][64], number[NUMBER_MAX], head[128];
    int width = progress_width(p) - 3; /* the last column may wrap, and Ctrl-C shows itself in two */
    int room = snprintf(head, sizeof head, "%.70s", lead);
    room = width - room - print_epoch(head + room, sizeof head - (size_t)room, now);
    snprintf(part[0], sizeof part[0], "  %3d %%", (int)(100 * done));
    snprintf(part[1], sizeof part[1], "  loss %s", print_fixed(number, now->loss, 4));
    snprintf(part[2], sizeof part[2], "  acc %.1f %%", now->accuracy);
    snprintf(part[3], sizeof part[3], "  %s left", print_duration(number, now->seconds_left));
    if (!(now->seconds_left >= 0) || !isfinite(now->seconds_left)) part[3][0] = '\0';
    if (now->step == now->steps) snprintf(part[3], sizeof part[3], "  testing");
    snprintf(part[4], sizeof part[4], "  %s %s/s", print_count(number, (int64_t)fmin(now->samples_per_second, 1e15)),
             unit(now));

    int shown = 0;
    for (; shown < 5 && (int)strlen(part[shown]) <= room; shown++) room -= (int)strlen(part[shown]);
    int bar = room - 2 > BAR_MAX ? BAR_MAX : room - 2;

    fprintf(p->out, "\r%.*s", width > 0 ? width : 0, head);
    if (shown == 5 && bar >= BAR_MIN) draw_bar(p, done, bar);
    static const int order[] = {0, 1, 2, 4, 3}; /* left to right; kept in the order of part */
    for (int i = 0; i < 5; i++) {
        if (order[i] < shown) fputs(part[order[i]], p->out);
    }
    fputs("\033[K", p->out);
    fflush(p->out);
    p->drawn = true;
}

void progress_redraw(progress *p, const char *lead, double done, const abar_progress *now)
{
    double time = clock_seconds();
    if (!p->live || (time - p->last_draw < REDRAW_SECONDS && now->step < now->steps)) return;
    p->last_draw = time;
    draw(p, lead, done, now);
}

void progress_redraw_text(progress *p, const char *text, double done, double seconds_left)
{
    double time = clock_seconds();
    if (!p->live || time - p->last_draw < REDRAW_SECONDS) return;
    char number[NUMBER_MAX], tail[64] = "";
    int width = progress_width(p) - 3, n = snprintf(tail, sizeof tail, "  %3d %%", (int)(100 * done));
    if (seconds_left >= 0 && isfinite(seconds_left))
        n += snprintf(tail + n, sizeof tail - (size_t)n, "  %s left", print_duration(number, seconds_left));
    int room = width - n > 0 ? width - n : 0;
    bool cut = (int)strlen(text) > room;
    fprintf(p->out, "\r%.*s%s%.*s\033[K", cut && room > 3 ? room - 3 : room, text, cut && room > 3 ? "..." : "",
            width > 0 ? width : 0, tail);
    fflush(p->out);
    p->last_draw = time;
    p->drawn = true;
}

void progress_say(progress *p, const char *text)
{
    if (!p->live) return;
    fprintf(p->out, "\r%.*s\033[K", progress_width(p) - 3, text);
    fflush(p->out);
    p->drawn = true;
}

/* ---- the lines that stay -------------------------------------------------------------------------------------- */

/* "  28,307 img/s"; nothing where no step was timed, as of an epoch whose steps ended before the run was resumed. */
static const char *print_rate(char *text, size_t size, const abar_progress *now)
{
    char number[NUMBER_MAX];
    text[0] = '\0';
    if (now->samples_per_second > 0)
        snprintf(text, size, "  %6s %s/s", print_count(number, (int64_t)fmin(now->samples_per_second, 1e15)), unit(now));
    return text;
}

/* The rate, and perplexity and accuracy of a text, are said where the line has room for them. */
static void print_epoch_line(progress *p, const abar_progress *now)
{
    char head[96], more[2][NUMBER_MAX + 8] = {"", ""}, tail[96], time[NUMBER_MAX], rate[48], number[NUMBER_MAX];
    int n = print_epoch(head, sizeof head, now);
    n += snprintf(head + n, sizeof head - (size_t)n, "  loss %s", print_fixed(number, now->loss, 4));
    n += (int)strlen(now->text ? "  test 0.0000  bpc 0.000" : "  acc 00.00 %  test 00.00 %");
    print_duration(time, now->seconds);
    if (n + (int)strlen(print_rate(rate, sizeof rate, now)) + 2 + (int)strlen(time) > print_width(p->out)) rate[0] = '\0';
    snprintf(tail, sizeof tail, "%s  %s", rate, time);
    if (now->text) {
        const int room = print_width(p->out) - n - (int)strlen(tail);
        const int ppl = snprintf(more[0], sizeof more[0], "  ppl %s", print_fixed(number, now->test_perplexity, 3));
        const int both = ppl + snprintf(more[1], sizeof more[1], "  acc %5.2f %%", now->test_accuracy);
        if (both > room) more[1][0] = '\0';
        if (ppl > room) more[0][0] = '\0';
        fprintf(p->out, "%s  test %s%s%s%s", head, progress_bold(p), print_fixed(number, now->test_loss, 4), progress_plain(p),
                more[0]);
        fprintf(p->out, "  bpc %s%s", print_fixed(number, now->test_bits, 3), more[1]);
    } else {
        fprintf(p->out, "%s  acc %5.2f %%  test %s%5.2f %%%s", head, now->accuracy, progress_bold(p), now->test_accuracy,
                progress_plain(p));
    }
    fputs(tail, p->out);
    if (now->skipped_steps > 0) fprintf(p->out, "  %" PRId64 " steps skipped", now->skipped_steps);
    fputc('\n', p->out);
    fflush(p->out);
}

void progress_update(void *user, const abar_progress *now)
{
    progress *p = user;
    p->epoch = now->epoch;
    if (now->epoch_done) {
        p->any = true;
        p->last = *now;
    }
    if (!p->out) return;
    if (now->epoch_done) {
        progress_clear(p);
        print_epoch_line(p, now);
    } else {
        progress_redraw(p, "", now->steps > 0 ? (double)now->step / (double)now->steps : 0.0, now);
    }
}
