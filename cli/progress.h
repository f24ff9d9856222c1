/* What a person watches while a network trains: one line redrawn in place, and one kept for every finished epoch. */
#ifndef ABAR_PROGRESS_H
#define ABAR_PROGRESS_H

#include "abar/train.h"

#include <stdio.h>

typedef struct progress {
    FILE *out; /* NULL: print nothing */
    bool live; /* a terminal that can redraw a line; else plain lines, without control characters */
    bool color, utf8;
    bool drawn;       /* a line is on the screen: progress_clear before printing anything else */
    double last_draw; /* time of the last redraw, by clock_seconds */
    int64_t epoch;    /* the one being trained, from 0 */
    bool any;         /* an epoch has ended: */
    abar_progress last;
} progress;

/* Looks at the stream and at TERM, NO_COLOR and the locale. */
void progress_init(progress *p, FILE *out);
/* An abar_trainer_events callback; user is the progress. */
void progress_update(void *user, const abar_progress *now);
/* Redraws the line. lead is printed before the epoch; done (0 to 1) is the length of the bar. */
void progress_redraw(progress *p, const char *lead, double done, const abar_progress *now);
/* Redraws it as a text, cut to the window, with the share done and the time left: for several trainings at a time. */
void progress_redraw_text(progress *p, const char *text, double done, double seconds_left);
/* Draws a text that stays until progress_clear: for work that reports no progress. */
void progress_say(progress *p, const char *text);
/* Removes the line from the screen. p may be NULL. */
void progress_clear(progress *p);
/* Columns of the window, or PRINT_WIDTH. */
int progress_width(const progress *p);
/* Escapes for bold and back, or "" without colours. */
const char *progress_bold(const progress *p);
const char *progress_plain(const progress *p);

#endif
