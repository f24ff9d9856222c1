/* The progress line, redrawn at most ten times a second, and the lines of finished epochs. Parts that do not fit into the
 * window are left out, the least important ones first. */
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
#define DATA_BOUND 0.05 /* share of the time that steps wait for data, above which it is said */
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

/* ---- the progress line ---------------------------------------------------------------------------------------- */

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

/* "28,307 img/s" */
static const char *print_rate(char *text, size_t size, const abar_progress *now)
{
    char number[NUMBER_MAX];
    snprintf(text, size, "%s %s", print_count(number, (int64_t)fmin(now->samples_per_second, 1e15)),
             now->text ? "tok/s" : "img/s");
    return text;
}

enum { DONE = 1, LOSS, ACCURACY, RATE, WAITING, LEFT, LIVE_PARTS };

static void draw(progress *p, const char *lead, double done, const abar_progress *now)
{
    line_part part[LIVE_PARTS];
    char number[NUMBER_MAX], rate[NUMBER_MAX + 8], epoch[64];
    const int width = progress_width(p) - 3; /* the last column may wrap, and the terminal echoes ^C */
    print_epoch(epoch, sizeof epoch, now);
    line_part_set(&part[0], 0, "%.64s%.30s", lead, epoch);
    line_part_set(&part[DONE], 1, "  %3d %%", (int)(100 * done));
    line_part_set(&part[LOSS], 2, "  loss %s", print_fixed(number, now->loss, 4));
    line_part_set(&part[ACCURACY], 3, "  acc %.1f %%", now->accuracy);
    line_part_set(&part[RATE], 5, "  %s", print_rate(rate, sizeof rate, now));
    line_part_set(&part[WAITING], 4, now->waiting > DATA_BOUND ? "  data-bound" : "");
    line_part_set(&part[LEFT], 4, "  %s left", print_duration(number, now->seconds_left));
    if (!(now->seconds_left >= 0) || !isfinite(now->seconds_left)) part[LEFT].text[0] = '\0';
    if (now->step == now->steps) line_part_set(&part[LEFT], 4, now->validation ? "  validating" : "  testing");

    const int room = width - print_fit(part, LIVE_PARTS, width) - 2, bar = room > BAR_MAX ? BAR_MAX : room;
    fprintf(p->out, "\r%.*s", width > 0 ? width : 0, part[0].text);
    if (part[RATE].text[0] && bar >= BAR_MIN) draw_bar(p, done, bar);
    print_parts(p->out, part + 1, LIVE_PARTS - 1, "", "");
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

/* ---- finished epochs ----------------------------------------------------------------------------------------- */

enum {
    EPOCH,
    EPOCH_LOSS,
    EPOCH_ACCURACY,
    TEST,
    RESULT,
    PERPLEXITY,
    BITS,
    TEST_ACCURACY,
    EPOCH_RATE,
    TIME,
    SKIPPED,
    EPOCH_PARTS
};

/* The main result is always shown: the test (or validation) loss of a text, the accuracy of images. */
static void print_epoch_line(progress *p, const abar_progress *now)
{
    line_part part[EPOCH_PARTS] = {0};
    char number[NUMBER_MAX], rate[NUMBER_MAX + 8];
    print_epoch(part[EPOCH].text, sizeof part[EPOCH].text, now);
    line_part_set(&part[EPOCH_LOSS], 3, "  loss %s", print_fixed(number, now->loss, 4));
    line_part_set(&part[TEST], 0, now->validation ? "  validation " : "  test ");
    if (now->text) {
        line_part_set(&part[RESULT], 0, "%s", print_fixed(number, now->test_loss, 4));
        line_part_set(&part[PERPLEXITY], 7, "  ppl %s", print_fixed(number, now->test_perplexity, 3));
        line_part_set(&part[BITS], 2, "  bpc %s", print_fixed(number, now->test_bits, 3));
        line_part_set(&part[TEST_ACCURACY], 8, "  acc %5.2f %%", now->test_accuracy);
    } else {
        line_part_set(&part[EPOCH_ACCURACY], 4, "  acc %5.2f %%", now->accuracy);
        line_part_set(&part[RESULT], 0, "%5.2f %%", now->test_accuracy);
    }
    part[RESULT].strong = true;
    if (now->samples_per_second > 0) /* 0 if the run was resumed after the last step of the epoch */
        line_part_set(&part[EPOCH_RATE], 6, "  %12s", print_rate(rate, sizeof rate, now));
    line_part_set(&part[TIME], 5, "  %s", print_duration(number, now->seconds));
    if (now->skipped_steps > 0) line_part_set(&part[SKIPPED], 1, "  %" PRId64 " steps skipped", now->skipped_steps);
    print_fit(part, EPOCH_PARTS, print_width(p->out));
    print_parts(p->out, part, EPOCH_PARTS, progress_bold(p), progress_plain(p));
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
