/* Below the table of a comparison: when the target was reached, and which optimizers are told apart. */
#include "cli.h"
#include "grid.h"
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERDICT_MIN 60 /* columns of a window; in a narrower one the verdict leaves out how many seeds would do */
#define PAIRS_SHOWN 10 /* of more pairs those of the best optimizer are printed; compare.md has all */

typedef struct source {
    const abar_compare *compare;
    const abar_compare_pair *pair[PAIRS_SHOWN > ABAR_COMPARE_METHODS_MAX ? PAIRS_SHOWN : ABAR_COMPARE_METHODS_MAX];
    int pairs;
    bool utf8, text, narrow;
} source;

/* ---- targets ---------------------------------------------------------------------------------------------------- */

static void fill_target(const void *user, int m, grid_cell *cells)
{
    const source *s = user;
    const abar_compare_row row = *abar_compare_row_of(s->compare, m);
    snprintf(cells[0].text, sizeof cells->text, "%s", row.label);
    print_spread(&cells[1], row.target_epochs, 1, s->utf8);
    print_spread(&cells[2], row.target_steps, 0, s->utf8);
    print_spread(&cells[3], row.target_seconds, 1, s->utf8);
    snprintf(cells[4].text, sizeof cells->text, "%" PRId64 " of %" PRId64, row.never, row.never + row.reached);
}

void print_targets(const abar_compare *compare, const progress *p)
{
    static const grid_column column[] = {
        {"optimizer", true, 0}, {"epochs", false, 0}, {"steps", false, 1}, {"seconds", false, 2}, {"never", false, 0}};
    const source s = {.compare = compare, .utf8 = p->utf8};
    const char *target = abar_compare_target_of(compare);
    if (!target[0]) return;
    fprintf(p->out, "\nto reach %s %s:\n", comparison_validates(compare) ? "validation" : "test", target);
    grid g = {.column = column, .columns = 5, .rows = abar_compare_method_count(compare), .fill = fill_target, .user = &s};
    g.indent = 2;
    print_grid(&g, p);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static void fill_pair(const void *user, int i, grid_cell *cells)
{
    const source *s = user;
    const abar_compare_pair *pair = s->pair[i];
    const int decimals = s->text ? 4 : 2;
    char low[NUMBER_MAX], high[NUMBER_MAX], label[ABAR_COMPARE_LABEL_MAX];
    snprintf(label, sizeof label, "%s", abar_compare_row_of(s->compare, pair->a)->label);
    snprintf(cells[0].text, sizeof cells->text, "%s - %s", label, abar_compare_row_of(s->compare, pair->b)->label);
    if (isnan(pair->difference))
        snprintf(cells[1].text, sizeof cells->text, "-");
    else
        snprintf(cells[1].text, sizeof cells->text, "%s%s", pair->difference > 0.0 ? "+" : "",
                 print_fixed(low, pair->difference, decimals));
    if (isnan(pair->low))
        snprintf(cells[2].text, sizeof cells->text, "-");
    else
        snprintf(cells[2].text, sizeof cells->text, "%s to %s", print_fixed(low, pair->low, decimals),
                 print_fixed(high, pair->high, decimals));
    if (pair->apart)
        snprintf(cells[3].text, sizeof cells->text, "told apart");
    else if (pair->seeds_needed > 0 && !s->narrow)
        snprintf(cells[3].text, sizeof cells->text, "not told apart, %" PRId64 " seeds might", pair->seeds_needed);
    else
        snprintf(cells[3].text, sizeof cells->text, "not told apart");
}

static int best_method(const abar_compare *compare, bool text)
{
    int best = 0;
    double most = -INFINITY;
    for (int m = 0; m < abar_compare_method_count(compare); m++) {
        const abar_compare_row *row = abar_compare_row_of(compare, m);
        const double merit = text ? -row->test_loss.mean : row->test_accuracy.mean;
        if (merit > most) most = merit, best = m;
    }
    return best;
}

void print_pairs(const abar_compare *compare, const progress *p)
{
    source s = {
        .compare = compare, .utf8 = p->utf8, .text = comparison_is_text(compare), .narrow = print_width(p->out) < VERDICT_MIN};
    const char *part = comparison_validates(compare) ? "validation" : "test";
    char note[160];
    int n;
    const abar_compare_pair *pair = abar_compare_pairs(compare, &n);
    if (n == 0 || comparison_seeds(compare) < 2) return;
    const int best = n > PAIRS_SHOWN ? best_method(compare, s.text) : -1;
    for (int i = 0; i < n; i++)
        if (best < 0 || pair[i].a == best || pair[i].b == best) s.pair[s.pairs++] = &pair[i];
    const char *result = s.text ? "loss" : "acc %";
    snprintf(note, sizeof note, "differences in %s %s, 95 %% intervals (Welch, Holm over %d pair%s)%s:", part, result, n,
             n == 1 ? "" : "s", best < 0 ? "" : "; compare.md has all pairs");
    fputc('\n', p->out);
    print_wrapped(p->out, 0, print_width(p->out), note);
    const grid_column column[] = {{"pair", true, 0}, {"difference", false, 2}, {"interval", false, 1}, {"", true, 0}};
    grid g = {.column = column, .columns = 4, .rows = s.pairs, .fill = fill_pair, .user = &s};
    g.indent = 2;
    print_grid(&g, p);
}
