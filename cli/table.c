/* The table at the end of a comparison, a row per optimizer, and its notes. */
#include "cli.h"
#include "grid.h"
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

int comparison_seeds(const abar_compare *compare)
{
    int64_t most = 0;
    for (int i = 0; i < abar_compare_run_count(compare); i++) {
        const abar_compare_run *run = abar_compare_run_of(compare, i);
        const int64_t n = run->seed - abar_compare_setup(compare, run->method)->train.seed + 1;
        if (n > most) most = n;
    }
    return (int)most;
}

bool comparison_is_text(const abar_compare *compare) { return abar_compare_setup(compare, 0)->model->text; }
bool comparison_validates(const abar_compare *compare) { return abar_compare_setup(compare, 0)->train.validation > 0.0; }

/* RESULT: the test (or validation) accuracy, of texts the loss; BEST: its best over the epochs; OTHER: the other of the two. */
enum { OPTIMIZER, RESULT, BEST, OTHER, TRAIN_LOSS, STEP, STEP_RATIO, MEMORY, MEMORY_RATIO, FAILED, COLUMNS };

/* What the table is made from. */
typedef struct source {
    const abar_compare *compare;
    bool utf8, text, shared; /* shared: trainings shared the device */
    double best[COLUMNS];    /* the best merit of a column; NaN: nothing is marked */
} source;

/* Milliseconds per step; measured alone if trainings shared the device. */
static double step_of(const abar_compare_row *r, bool shared) { return shared ? r->ms_alone : r->ms_per_step.mean; }

/* The number that a column compares, greater is better. NaN: none. */
static double merit(const abar_compare_row *r, int column, bool text, bool shared)
{
    switch (column) {
    case RESULT: return text ? -r->test_loss.mean : r->test_accuracy.mean;
    case BEST: return text ? -r->best_loss.mean : r->best_accuracy.mean;
    case OTHER: return text ? r->test_accuracy.mean : -r->test_loss.mean;
    case TRAIN_LOSS: return -r->train_loss.mean;
    case STEP: return -step_of(r, shared);
    case MEMORY: return -r->memory_bytes;
    default: return NAN;
    }
}

static void fill_number(grid_cell *c, double value, int decimals, const char *unit)
{
    char number[NUMBER_MAX];
    if (isnan(value))
        snprintf(c->text, sizeof c->text, "-");
    else
        snprintf(c->text, sizeof c->text, "%s%s", print_fixed(number, value, decimals), unit);
}

void print_spread(grid_cell *c, abar_compare_spread s, int decimals, bool utf8)
{
    char mean[NUMBER_MAX], std[NUMBER_MAX];
    fill_number(c, s.mean, decimals, "");
    if (!isnan(s.std))
        snprintf(c->text, sizeof c->text, "%s %s %s", print_fixed(mean, s.mean, decimals), utf8 ? "\xc2\xb1" : "+-",
                 print_fixed(std, s.std, decimals));
}

static void fill_row(const void *user, int m, grid_cell *cells)
{
    const source *s = user;
    const abar_compare_row r = *abar_compare_row_of(s->compare, m);
    const bool text = s->text;
    const double ms = step_of(&r, s->shared);
    char number[NUMBER_MAX];
    snprintf(cells[OPTIMIZER].text, sizeof cells->text, "%s", r.label);
    print_spread(&cells[RESULT], text ? r.test_loss : r.test_accuracy, text ? 4 : 2, s->utf8);
    fill_number(&cells[BEST], text ? r.best_loss.mean : r.best_accuracy.mean, text ? 4 : 2, "");
    fill_number(&cells[OTHER], text ? r.test_accuracy.mean : r.test_loss.mean, text ? 2 : 4, "");
    fill_number(&cells[TRAIN_LOSS], r.train_loss.mean, 4, "");
    snprintf(cells[STEP].text, sizeof cells->text, "%s", isnan(ms) ? "-" : print_significant(number, ms));
    fill_number(&cells[STEP_RATIO], r.time_ratio, 2, "x");
    snprintf(cells[MEMORY].text, sizeof cells->text, "%s",
             isnan(r.memory_bytes) ? "-" : print_bytes(number, (size_t)r.memory_bytes));
    fill_number(&cells[MEMORY_RATIO], r.memory_ratio, 2, "x");
    if (r.failures) snprintf(cells[FAILED].text, sizeof cells->text, "%" PRId64 " of %" PRId64, r.failures, r.runs);
    for (int column = 0; column < COLUMNS; column++) cells[column].best = merit(&r, column, text, s->shared) == s->best[column];
}

/* Nothing is marked if there is only one method. */
static void find_best(source *s)
{
    const int methods = abar_compare_method_count(s->compare);
    for (int column = 0; column < COLUMNS; column++) {
        s->best[column] = NAN;
        for (int m = 0; m < methods && methods > 1; m++) {
            const abar_compare_row r = *abar_compare_row_of(s->compare, m);
            s->best[column] = fmax(s->best[column], merit(&r, column, s->text, s->shared));
        }
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

static void say_notes(const source *s, const progress *p, bool memory_shown)
{
    const abar_compare *compare = s->compare;
    const int seeds = comparison_seeds(compare), width = print_width(p->out), methods = abar_compare_method_count(compare);
    const bool fewer = abar_compare_run_count(compare) < seeds * methods;
    char note[256];
    int n = snprintf(note, sizeof note, "%s", methods > 1 ? "* best; " : "");
    if (seeds > 1)
        n += snprintf(note + n, sizeof note - (size_t)n, "means over %s%d seeds, %s one standard deviation; ",
                      fewer ? "up to " : "", seeds, p->utf8 ? "\xc2\xb1" : "+-");
    snprintf(note + n, sizeof note - (size_t)n, "%s",
             memory_shown ? "memory: held while training" : "compare.md has all columns");
    print_wrapped_from(p->out, 0, methods > 1 ? 2 : 0, width, note);
    if (!s->shared) return;
    snprintf(note, sizeof note,
             "ms alone: of a step, timed in turns before the trainings, of which up to %" PRId64 " shared the device",
             side_by_side(compare));
    print_wrapped_from(p->out, 0, 2, width, note);
}

void print_grid(grid *g, const progress *p)
{
    g->bold = progress_bold(p);
    g->plain = progress_plain(p);
    grid_measure(g, print_window(p->out) > 0 ? print_window(p->out) : PRINT_WIDTH);
    grid_print(g, p->out);
}

void print_comparison(const abar_compare *compare, const progress *p)
{
    source s = {.compare = compare, .utf8 = p->utf8, .text = comparison_is_text(compare), .shared = side_by_side(compare) > 1};
    const char *baseline = abar_compare_row_of(compare, abar_compare_baseline(compare))->label;
    char ratio[16], accuracy[32], loss[32];
    const char *part = comparison_validates(compare) ? "validation" : "test";
    snprintf(accuracy, sizeof accuracy, "%s acc %%", part);
    snprintf(loss, sizeof loss, "%s loss", part);
    snprintf(ratio, sizeof ratio, strlen(baseline) <= 8 ? "vs %.8s" : "ratio", baseline);
    const grid_column column[COLUMNS] = {[OPTIMIZER] = {"optimizer", true, 0},
                                         [RESULT] = {s.text ? loss : accuracy, false, 0},
                                         [BEST] = {"best", false, 4},
                                         [OTHER] = {s.text ? accuracy : loss, false, 7},
                                         [TRAIN_LOSS] = {"train loss", false, 1},
                                         [STEP] = {s.shared ? "ms alone" : "ms/step", false, 2},
                                         [STEP_RATIO] = {ratio, false, 3}, /* left out before the number it is a ratio of */
                                         [MEMORY] = {"memory", false, 5},
                                         [MEMORY_RATIO] = {ratio, false, 6},
                                         [FAILED] = {"failed", false, 0}};
    grid g = {.column = column, .columns = COLUMNS, .rows = abar_compare_method_count(compare), .fill = fill_row, .user = &s};
    find_best(&s);
    fputc('\n', p->out);
    print_grid(&g, p);
    say_notes(&s, p, g.width[MEMORY] > 0);
}
