/* A table that is written once and read as CSV and as JSON. */
#ifndef ABAR_ANALYSIS_SHEET_H
#define ABAR_ANALYSIS_SHEET_H

#include "base/base_impl.h"
#include "io/plot.h"

typedef struct abar__cell {
    const char *text; /* NULL: the number */
    double number;
} abar__cell;

static inline abar__cell abar__word(const char *text) { return (abar__cell){.text = text}; }
static inline abar__cell abar__number(double number) { return (abar__cell){.number = number}; }

typedef struct abar__sheet {
    abar_context *ctx;
    const char *const *columns;
    int n_columns;
    int64_t rows;
    abar__text csv, json; /* json: an array of objects, without its closing bracket */
    abar_status status;   /* the first failure; later rows are ignored */
} abar__sheet;

void abar__sheet_begin(abar_context *ctx, const char *const *columns, int n_columns, abar__sheet *out);
/* As many cells as columns. Numbers that do not exist are empty in CSV and null in JSON. */
void abar__sheet_row(abar__sheet *s, const abar__cell *cells);
void abar__sheet_free(abar__sheet *s);

/* Replaces DIR/NAME.csv and DIR/NAME.json; each appears whole or not at all. */
abar_status abar__sheet_save(const abar__sheet *s, const char *dir, const char *name);
/* Replaces DIR/NAME by the text. */
abar_status abar__save_text(abar_context *ctx, const char *dir, const char *name, const abar__text *text);
/* Draws the picture and replaces DIR/NAME by it. */
abar_status abar__save_picture(abar_context *ctx, const char *dir, const char *name, const abar__picture *picture);

#endif
