/* A table of text that fits the window. */
#ifndef ABAR_GRID_H
#define ABAR_GRID_H

#include <stdbool.h>
#include <stdio.h>

#define GRID_COLUMNS_MAX 10
#define GRID_TEXT_MAX 160
#define GRID_GAP 2 /* spaces between columns */

typedef struct grid_cell {
    char text[GRID_TEXT_MAX];
    bool best; /* of its column: bold, with a star in the gap after it */
} grid_cell;

typedef struct grid_column {
    const char *heading;
    bool left; /* left-aligned; otherwise right-aligned */
    int rank;  /* 0: always shown; otherwise the greatest rank is left out first if the window is narrow */
} grid_column;

typedef struct grid {
    const grid_column *column;
    int columns, rows;
    void (*fill)(const void *user, int row, grid_cell *cells); /* cells are empty before; called twice for every row */
    const void *user;
    int indent;               /* spaces before a line */
    int list;                 /* column in which lists, "a,b,c", are cut before columns are left out; 0: none */
    const char *bold, *plain; /* escapes around the best cells, or "" */
    /* set by grid_measure */
    int width[GRID_COLUMNS_MAX]; /* 0: not shown */
    bool marked[GRID_COLUMNS_MAX];
} grid;

/* Chooses the columns that fit into width screen columns, and their widths; 0: all. */
void grid_measure(grid *g, int width);
/* The headings, then a line per row. */
void grid_print(const grid *g, FILE *out);

#endif
