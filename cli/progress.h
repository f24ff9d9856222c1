/* What a person watches while a network trains: one line redrawn in place, and one kept for every finished epoch. */
#ifndef ABAR_PROGRESS_H
#define ABAR_PROGRESS_H

#include "abar/train.h"

#include <stdio.h>

typedef struct progress {
    FILE *out; /* NULL: nobody watches */
    bool live; /* a terminal that can redraw a line; else plain lines, without control characters */
    bool color, utf8;
    bool drawn;       /* a line is on the screen that must go before anything else is printed */
    double last_draw; /* clock_seconds of it */
    int64_t epoch;    /* the one being trained, from 0 */
    bool any;         /* an epoch ended: */
    abar_progress last;
} progress;

/* Looks at the stream and at TERM, NO_COLOR and the locale. */
void progress_init(progress *p, FILE *out);
/* An abar_trainer_events callback; user is the progress. */
void progress_update(void *user, const abar_progress *now);
/* The line alone, for watchers that keep other lines: lead stands before the epoch, done (0 to 1) is what the bar shows. */
void progress_redraw(progress *p, const char *lead, double done, const abar_progress *now);
/* The same for several at a time: a text, cut where the window ends, and what is left. */
void progress_redraw_text(progress *p, const char *text, double done, double seconds_left);
/* The same for what takes long and tells nothing: a text that stays until it is taken off. */
void progress_say(progress *p, const char *text);
/* Takes the line that is being redrawn off the screen. p may be NULL. */
void progress_clear(progress *p);
/* Columns for text: the window's, where there is one. */
int progress_width(const progress *p);
/* Escapes for emphasis, or "" where there is no colour. */
const char *progress_bold(const progress *p);
const char *progress_plain(const progress *p);

#endif
