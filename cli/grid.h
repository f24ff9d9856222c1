/* A table of text, made row by row, that fits the window. */
#ifndef ABAR_GRID_H
#define ABAR_GRID_H

#include <stdbool.h>
#include <stdio.h>

#define GRID_COLUMNS_MAX 10
#define GRID_TEXT_MAX 160
#define GRID_GAP 2 /* spaces between columns */

typedef struct grid_cell {
    char text[GRID_TEXT_MAX];
    bool best; /* of its column: bold, and marked with a star in the gap after it */
} grid_cell;

typedef struct grid_column {
    const char *heading;
    bool left; /* its texts begin at the same place; else they end there */
    int rank;  /* 0: always shown; where the window is narrow, those of the greatest rank go first */
} grid_column;

typedef struct grid {
    const grid_column *column;
    int columns, rows;
    void (*fill)(const void *user, int row, grid_cell *cells); /* empty before; called twice for every row */
    const void *user;
    int indent;               /* spaces before a line */
    const char *bold, *plain; /* escapes around the best cells, or "" */
    /* set by grid_measure */
    int width[GRID_COLUMNS_MAX]; /* 0: not shown */
    bool marked[GRID_COLUMNS_MAX];
} grid;

/* Chooses what is shown in so many columns of the screen; 0: everything. */
void grid_measure(grid *g, int width);
/* A line of headings and one per row. */
void grid_print(const grid *g, FILE *out);

#endif
