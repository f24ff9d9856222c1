/* The table at the end of a comparison: a row per optimizer, as many columns as there is room for, and what they mean. */
#include "cli.h"
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

int comparison_seeds(const abar_compare *compare)
{
    int most = 0, n[ABAR_COMPARE_METHODS_MAX] = {0};
    for (int i = 0; i < abar_compare_run_count(compare); i++) {
        int count = ++n[abar_compare_run_of(compare, i)->method];
        if (count > most) most = count;
    }
    return most;
}

bool comparison_is_text(const abar_compare *compare) { return abar_compare_setup(compare, 0)->model->text; }

/* RESULT is what counts: accuracy, for texts the loss, with its best over the epochs beside it; ASIDE is the other one. */
enum { OPTIMIZER, RESULT, BEST, ASIDE, TRAIN_LOSS, STEP, STEP_RATIO, MEMORY, MEMORY_RATIO, FAILED, COLUMNS };

#define GAP(column) ((column) == OPTIMIZER ? 2 : 1) /* spaces after a column; the others end in room for a mark */

typedef struct cell {
    char text[64];
    bool best;
} cell;

typedef struct table {
    int rows; /* the first one holds the headings */
    cell cell[ABAR_COMPARE_METHODS_MAX + 1][COLUMNS];
    int width[COLUMNS]; /* 0: not shown */
} table;

/* The time of a step: alone, where trainings shared the device. */
static double step_of(const abar_compare_row *r, bool shared) { return shared ? r->ms_alone : r->ms_per_step.mean; }

/* What makes a method the best of its column: more is better. NaN: nothing to compare. */
static double merit(const abar_compare_row *r, int column, bool text, bool shared)
{
    switch (column) {
    case RESULT: return text ? -r->test_loss.mean : r->test_accuracy.mean;
    case BEST: return text ? -r->best_loss.mean : r->best_accuracy.mean;
    case ASIDE: return text ? r->test_accuracy.mean : -r->test_loss.mean;
    case TRAIN_LOSS: return -r->train_loss.mean;
    case STEP: return -step_of(r, shared);
    case MEMORY: return -r->memory_bytes;
    default: return NAN;
    }
}

static void fill_number(cell *c, double value, int decimals, const char *unit)
{
    char number[NUMBER_MAX];
    if (isnan(value))
        snprintf(c->text, sizeof c->text, "-");
    else
        snprintf(c->text, sizeof c->text, "%s%s", print_fixed(number, value, decimals), unit);
}

static void fill_row(cell *cells, const abar_compare_row *r, bool utf8, bool text, bool shared)
{
    char number[NUMBER_MAX], std[NUMBER_MAX];
    const abar_compare_spread result = text ? r->test_loss : r->test_accuracy;
    const int decimals = text ? 4 : 2;
    const double ms = step_of(r, shared);
    snprintf(cells[OPTIMIZER].text, sizeof cells->text, "%s", r->label);
    fill_number(&cells[RESULT], result.mean, decimals, "");
    if (!isnan(result.std))
        snprintf(cells[RESULT].text, sizeof cells->text, "%s %s %s", print_fixed(number, result.mean, decimals),
                 utf8 ? "\xc2\xb1" : "+-", print_fixed(std, result.std, decimals));
    fill_number(&cells[BEST], text ? r->best_loss.mean : r->best_accuracy.mean, decimals, "");
    fill_number(&cells[ASIDE], text ? r->test_accuracy.mean : r->test_loss.mean, text ? 2 : 4, "");
    fill_number(&cells[TRAIN_LOSS], r->train_loss.mean, 4, "");
    fill_number(&cells[STEP], ms, 3, "");
    if (!isnan(ms)) snprintf(cells[STEP].text, sizeof cells->text, "%s", print_significant(number, ms));
    fill_number(&cells[STEP_RATIO], r->time_ratio, 2, "x");
    fill_number(&cells[MEMORY], r->memory_bytes, 0, "");
    if (!isnan(r->memory_bytes))
        snprintf(cells[MEMORY].text, sizeof cells->text, "%s", print_bytes(number, (size_t)r->memory_bytes));
    fill_number(&cells[MEMORY_RATIO], r->memory_ratio, 2, "x");
    if (r->failures) snprintf(cells[FAILED].text, sizeof cells->text, "%" PRId64 " of %" PRId64, r->failures, r->runs);
}

static void mark_best(table *t, const abar_compare *compare, bool shared)
{
    const bool text = comparison_is_text(compare);
    for (int column = 0; column < COLUMNS; column++) {
        double best = NAN;
        for (int m = 0; m + 1 < t->rows; m++) {
            abar_compare_row r = *abar_compare_row_of(compare, m);
            best = fmax(best, merit(&r, column, text, shared));
        }
        for (int m = 0; m + 1 < t->rows && t->rows > 2; m++) {
            abar_compare_row r = *abar_compare_row_of(compare, m);
            t->cell[m + 1][column].best = merit(&r, column, text, shared) == best;
        }
    }
}

/* Columns on the screen: bytes inside a UTF-8 character take none. */
static int columns_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* Columns as wide as their texts; where a line would be too long, those that say least go. A ratio goes before what it is of:
 * alone it would not say that. */
static void measure(table *t, int most)
{
    static const int dispensable[] = {ASIDE, MEMORY_RATIO, MEMORY, BEST, STEP_RATIO, STEP};
    int total = -2; /* neither a gap nor a mark after the last */
    for (int column = 0; column < COLUMNS; column++) {
        bool empty = true;
        for (int i = 0; i < t->rows; i++) {
            int n = columns_of(t->cell[i][column].text) + (column > OPTIMIZER); /* room for the mark */
            if (n > t->width[column]) t->width[column] = n;
            empty = empty && (i == 0 || !t->cell[i][column].text[0]);
        }
        if (empty) t->width[column] = 0;
        total += t->width[column] + GAP(column);
    }
    for (size_t i = 0; i < sizeof dispensable / sizeof *dispensable && total > most; i++) {
        total -= t->width[dispensable[i]] + GAP(dispensable[i]);
        t->width[dispensable[i]] = 0;
    }
}

/* Right-aligned but for the names; no spaces at the end of a line. */
static void print_table(const table *t, const progress *p)
{
    for (int i = 0; i < t->rows; i++) {
        int owed = 0; /* spaces before the next text */
        for (int column = 0; column < COLUMNS; column++) {
            const cell *c = &t->cell[i][column];
            int pad = t->width[column] - columns_of(c->text), mark = column > OPTIMIZER;
            if (t->width[column] == 0) continue;
            if (c->text[0])
                fprintf(p->out, "%*s%s%s%s%s", owed + (mark ? pad - 1 : 0), "", c->best ? progress_bold(p) : "", c->text,
                        c->best ? "*" : "", c->best ? progress_plain(p) : "");
            owed = GAP(column) + (!mark ? pad : c->text[0] ? !c->best : owed + t->width[column]);
        }
        fputc('\n', p->out);
    }
}

/* The most trainings that shared the device. */
static int64_t side_by_side(const abar_compare *compare)
{
    int64_t most = 1;
    for (int m = 0; m < abar_compare_method_count(compare); m++) {
        int64_t n = abar_compare_row_of(compare, m)->side_by_side;
        if (n > most) most = n;
    }
    return most;
}

static void say_notes(const abar_compare *compare, const progress *p, const table *t)
{
    const int seeds = comparison_seeds(compare), width = print_width(p->out);
    const bool fewer = abar_compare_run_count(compare) < seeds * abar_compare_method_count(compare);
    const int64_t shared = side_by_side(compare);
    char note[160] = "";
    if (seeds > 1)
        snprintf(note, sizeof note, "means over %s%d seeds, %s one standard deviation; ", fewer ? "up to " : "", seeds,
                 p->utf8 ? "\xc2\xb1" : "+-");
    if (t->rows > 2) fprintf(p->out, "* best; ");
    strcat(note, t->width[MEMORY] ? "memory: held while training" : "compare.md has the columns that found no room");
    print_wrapped(p->out, t->rows > 2 ? 8 : 0, width, note);
    if (shared <= 1) return;
    snprintf(note, sizeof note, "a step, timed in turns before the trainings, of which up to %" PRId64 " shared the device",
             shared);
    fprintf(p->out, "ms alone: ");
    print_wrapped(p->out, 10, width, note);
}

void print_comparison(const abar_compare *compare, const progress *p)
{
    static const char *const heading[2][COLUMNS] = {
        {"optimizer", "test acc %", "best", "test loss", "train loss", "ms/step", "", "memory", "", "failed"},
        {"optimizer", "test loss", "best", "test acc %", "train loss", "ms/step", "", "memory", "", "failed"}};
    table t = {.rows = abar_compare_method_count(compare) + 1};
    const char *baseline = abar_compare_row_of(compare, abar_compare_baseline(compare))->label;
    const bool text = comparison_is_text(compare), shared = side_by_side(compare) > 1;
    for (int column = 0; column < COLUMNS; column++)
        snprintf(t.cell[0][column].text, sizeof t.cell[0][column].text, "%s",
                 column == STEP && shared ? "ms alone" : heading[text][column]);
    for (int column = STEP_RATIO; column <= MEMORY_RATIO; column += MEMORY_RATIO - STEP_RATIO)
        snprintf(t.cell[0][column].text, sizeof t.cell[0][column].text, strlen(baseline) <= 8 ? "vs %s" : "ratio", baseline);
    for (int m = 0; m + 1 < t.rows; m++) {
        abar_compare_row r = *abar_compare_row_of(compare, m);
        fill_row(t.cell[m + 1], &r, p->utf8, text, shared);
    }
    mark_best(&t, compare, shared);
    measure(&t, print_window(p->out) > 0 ? print_window(p->out) : PRINT_WIDTH);
    fputc('\n', p->out);
    print_table(&t, p);
    say_notes(compare, p, &t);
}
