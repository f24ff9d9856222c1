/* The natural gradient from the gradients of single examples (optimizers.md section 9).
 *
 *     F = sum over m of r_m r_mT,  R = (r_m) of (M, P),  K = R RT (M, M)
 *     G^ = (F + rho I)^-1 g = (g - RT (K + rho I)^-1 R g) / rho
 *     where the rows are those of the batch itself, g = RT 1 / sqrt(B):  G^ = RT (K + rho I)^-1 1 / sqrt(B)
 *
 * A row of a map is the sum over the rows of an example of p aT. Backward passes leave them in the memory that the plan has for
 * them: of a map with one row per example the two vectors, else their sum (out, d) as one vector. The step multiplies them by
 * one number to make R, adds up K over the maps of a block, factorises it in double precision and writes G^ in the place of the
 * gradients. Nothing of it is kept from one step to the next.
 *
 * Row m of pass s and example n is m = s * examples + n, examples those of the step's batch. */
#ifndef ABAR_NATURAL_H
#define ABAR_NATURAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ABAR_NATURAL_ROWS 4096 /* at most: K and its factor are squares of this side */

/* What the plan of a map says; examples 0: it has no rows. */
typedef struct abar__example_rows {
    int64_t examples, passes; /* of a step at most, and backward passes whose rows make F: M = passes * examples */
    int64_t inputs, outputs;  /* numbers of a: d, of p: out; where the map sums over rows of an example: out * d, 0 */
    bool own, drawn;          /* the rows are those of the batch's own gradient; labels are drawn */
    int32_t block;            /* maps of one block share F; numbered from 0 on in the order of the maps */
    double damping, weight;   /* rho; of a row of F in the mean over the batch: 1, or 1 / S of S draws */
    void *a, *p;              /* (examples, inputs), (M, outputs); or (M, inputs), NULL: double on the host, float on cuda */
} abar__example_rows;

static inline int64_t abar__natural_most_rows(const abar__example_rows *r) { return r->passes * r->examples; }
static inline bool abar__natural_is_split(const abar__example_rows *r) { return r->outputs > 0; }

/* Numbers of the two. */
static inline int64_t abar__natural_a_count(const abar__example_rows *r)
{
    return (abar__natural_is_split(r) ? r->examples : abar__natural_most_rows(r)) * r->inputs;
}
static inline int64_t abar__natural_p_count(const abar__example_rows *r) { return abar__natural_most_rows(r) * r->outputs; }

#endif
