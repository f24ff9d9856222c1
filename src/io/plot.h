/* Pictures as SVG: panels of lines with bands on linear or logarithmic axes, and heat maps; readable on light and dark pages.
 * Coordinates are whole tenths of a pixel, so that no locale can change them; text is escaped. */
#ifndef ABAR_PLOT_H
#define ABAR_PLOT_H

#include "base/base_impl.h"
#include "base/number.h"

#define ABAR_TICKS_MAX 32

/* From numbers to places along an axis, 0 to 1. */
typedef struct abar__axis {
    double low, high; /* logarithms of base 10 where logarithmic */
    bool logarithmic;
    int ticks, decimals; /* decimals -1: as many as the number needs */
    double tick[ABAR_TICKS_MAX];
    const char *const *names; /* of the ticks, in place of their numbers; NULL: none */
} abar__axis;

double abar__axis_place(const abar__axis *axis, double value);
/* The axis for values from low to high: a small margin around them (none at a fixed end), and ticks. Of a logarithmic axis both
 * must be positive; one that spans too little for ticks becomes linear. */
abar__axis abar__axis_make(double low, double high, bool logarithmic);
/* Places ticks on the axis as it is. */
void abar__axis_ticks(abar__axis *axis, double least_step);
/* The text of tick i: with a power of ten where a logarithmic axis has many zeros. Returns text. */
const char *abar__tick_text(const abar__axis *axis, int i, char text[ABAR_REAL_TEXT_MAX]);

typedef struct abar__series {
    const char *name; /* in the legend; equal names of several panels have one entry. NULL: none */
    const char *note; /* after the name, in grey; NULL: none */
    const double *x, *y;
    const double *low, *high; /* a band; NULL: none */
    int64_t n;                /* what is not finite interrupts the line */
    int color;                /* of the palette, from 0; ABAR_GREY for the one the others are compared with */
    bool dots;                /* a dot at each point */
    bool dashed;
    bool broken; /* a run that failed: thin and dotted, with a cross at its end */
} abar__series;

#define ABAR_GREY (-1)
enum { ABAR_PALETTE = 8 }; /* colours; beyond them they start again, with other dashes */

typedef struct abar__panel {
    const char *title, *x_label, *y_label; /* NULL: none */
    abar__axis x, y;
    const abar__series *series;
    int n_series;
    bool names; /* write each series' name beside its end */
    /* or a heat map: cell (rows, columns), the first row at the top; what is not finite stays empty */
    const double *cell;
    int64_t rows, columns;
    bool logarithmic;                                   /* colours by logarithm */
    bool numbers;                                       /* written into the cells, with y.decimals */
    bool limited;                                       /* colours span y.low to y.high; else all cells */
    const char *const *row_names, *const *column_names; /* NULL: none */
} abar__panel;

typedef struct abar__picture {
    const char *title, *subtitle; /* subtitle NULL: none */
    const abar__panel *panels;
    int n_panels, columns;
} abar__picture;

/* A number with so many decimals and a point, in any locale; -1: as many as it needs. Returns text. */
const char *abar__plot_number(double value, int decimals, char text[ABAR_REAL_TEXT_MAX]);

abar_status abar__picture_write(abar_context *ctx, const abar__picture *picture, abar__text *out);

#endif
