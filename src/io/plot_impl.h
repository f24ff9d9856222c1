/* Shared by the files of the plot writer. */
#ifndef ABAR_PLOT_IMPL_H
#define ABAR_PLOT_IMPL_H

#include "io/plot.h"

enum {
    PLOT_LETTER = 84, /* width of one, generously, at the size of labels */
    PLOT_HEIGHT = 2500
};

/* What is being drawn; after a failure nothing more is appended. */
typedef struct abar__canvas {
    abar_context *ctx;
    abar__text *out;
    abar_status status;
} abar__canvas;

/* The plot area of a panel, in tenths of a pixel. */
typedef struct abar__frame {
    int index, x, y, width;
} abar__frame;

void abar__put(abar__canvas *c, const char *format, ...) ABAR_PRINTF(2, 3);
void abar__put_text(abar__canvas *c, const char *text); /* escaped */

void abar__draw_heat(abar__canvas *c, const abar__panel *p, const abar__frame *f);

#endif
