/* Which methods of a comparison are told apart: Welch's test of every pair, corrected by Holm's procedure. */
#include "train/compare/compare_impl.h"
#include "train/compare/student.h"

#include <math.h>

#define ALPHA 0.05 /* of all pairs together */
#define PAIRS_MAX (ABAR_COMPARE_METHODS_MAX * (ABAR_COMPARE_METHODS_MAX - 1) / 2)

static abar__sample sample_of(const abar_compare *c, int method)
{
    const abar_compare_row *row = abar_compare_row_of(c, method);
    const abar_compare_spread s = c->method[0].setup->model->text ? row->test_loss : row->test_accuracy;
    return (abar__sample){s.mean, s.std, row->runs - row->failures};
}

/* The tests that can be made: those whose p is a number. */
static void correct(abar_compare_pair *pair, const abar__welch *welch, int n)
{
    double p[PAIRS_MAX], adjusted[PAIRS_MAX], level[PAIRS_MAX];
    int which[PAIRS_MAX], order[PAIRS_MAX], tests = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(pair[i].p)) continue;
        p[tests] = pair[i].p;
        which[tests++] = i;
    }
    abar__holm(p, tests, ALPHA, adjusted, level, order);
    for (int k = 0; k < tests; k++) {
        abar_compare_pair *to = &pair[which[k]];
        const double margin = abar__welch_margin(&welch[which[k]], level[k]);
        to->holm = adjusted[k];
        to->apart = adjusted[k] <= ALPHA;
        to->low = to->difference - margin;
        to->high = to->difference + margin;
    }
}

const abar_compare_pair *abar_compare_pairs(const abar_compare *c, int *n)
{
    abar__sample sample[ABAR_COMPARE_METHODS_MAX];
    abar__welch welch[PAIRS_MAX];
    int k = 0;
    for (int m = 0; m < c->methods && c->pairs > 0; m++) sample[m] = sample_of(c, m);
    for (int a = 0; a < c->methods && c->pairs > 0; a++)
        for (int b = a + 1; b < c->methods; b++, k++) {
            welch[k] = abar__welch_test(sample[a], sample[b]);
            c->pair[k] = (abar_compare_pair){.a = a,
                                             .b = b,
                                             .difference = welch[k].difference,
                                             .low = NAN,
                                             .high = NAN,
                                             .df = welch[k].df,
                                             .p = welch[k].p,
                                             .holm = NAN,
                                             .seeds_needed = abar__seeds_needed(welch[k].difference, sample[a].std,
                                                                                sample[b].std, ALPHA / (double)c->pairs)};
        }
    correct(c->pair, welch, k);
    *n = k;
    return c->pair;
}
