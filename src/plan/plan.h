/* How a curvature method describes what it does for one map (device/step_impl.h holds the result). A method's plan() reads like
 * its formula; mac.c is the one to read first. Every call adds a stage or a number to the plan and returns a handle for later
 * calls. Numbers are computed at a refresh, in double; averages are read with their bias corrected.
 *
 *     abar__stat   a = abar__plan_average(p, "a", ABAR_INPUT_MEAN, ABAR_PER_ROW);       ā, running average
 *     abar__scalar q = abar__plan_square(p, a);                                          |â|²
 *     ...
 *
 * A mistake (too many stages, a handle of another kind) is kept in the plan and refused when it is compiled. */
#ifndef ABAR_PLAN_H
#define ABAR_PLAN_H

#include "device/step_impl.h"

typedef struct abar__stat {
    int32_t index;
} abar__stat;
typedef struct abar__scalar {
    int32_t index;
} abar__scalar;
typedef struct abar__factor {
    int32_t index; /* of the derived tensor; -1: the identity */
} abar__factor;

#define ABAR_IDENTITY ((abar__factor){-1})

/* A plan of a map (out, d) of which columns are the weight's. */
abar__plan abar__plan_begin(int64_t out, int64_t columns, int64_t d);
/* Whether it has statistics of output gradients. */
bool abar__plan_reads_grad(const abar__plan *p);
/* ABAR_E_STATE with what is wrong, or ABAR_OK. method: for the text. */
abar_status abar__plan_check(abar_context *ctx, const abar__plan *p, const char *method);

/* ---- accumulate and commit: running averages of statistics ----------------------------------------------------------- */

/* At most one of inputs and one of output gradients. per: what the sum is divided by; ABAR_PER_ROW for means and products of
 * rows, ABAR_PER_EXAMPLE for what is summed per example, ABAR_PER_SEQUENCE behind attention. */
abar__stat abar__plan_average(abar__plan *p, const char *name, abar__statistic source, abar__per per);
/* One more average, a single number. */
abar__scalar abar__plan_mean_number(abar__plan *p, const char *name, abar__statistic source, abar__per per);
/* All averages so far come from one pass over the training set before step 0, and stay. */
void abar__plan_calibrate(abar__plan *p);
/* The mean is pending as sums over so many positions of a sequence (abar__position_sums). */
void abar__plan_by_position(abar__plan *p, int64_t positions);

/* ---- scalars ------------------------------------------------------------------------------------------------------------ */

abar__scalar abar__plan_value(abar__plan *p, double value);
abar__scalar abar__plan_mean(abar__plan *p, abar__stat a);   /* of the diagonal of a matrix, of the elements of a vector */
abar__scalar abar__plan_square(abar__plan *p, abar__stat a); /* |x|^2 of a vector */
abar__scalar abar__plan_add(abar__plan *p, abar__scalar a, abar__scalar b);
abar__scalar abar__plan_subtract(abar__plan *p, abar__scalar a, abar__scalar b);
abar__scalar abar__plan_multiply(abar__plan *p, abar__scalar a, abar__scalar b);
abar__scalar abar__plan_divide(abar__plan *p, abar__scalar a, abar__scalar b);
abar__scalar abar__plan_sqrt(abar__plan *p, abar__scalar a);
abar__scalar abar__plan_max(abar__plan *p, abar__scalar a, abar__scalar b);
abar__scalar abar__plan_clamp(abar__plan *p, abar__scalar a, double least, double most);
abar__scalar abar__plan_ratio(abar__plan *p, abar__scalar a, abar__scalar b); /* a / b; 1 where one is not positive */
abar__scalar abar__plan_reciprocal(abar__plan *p, abar__scalar a);            /* 1 / a; 0 where a is not positive */
abar__scalar abar__plan_share(abar__plan *p, abar__scalar a, abar__scalar b); /* a / (a + b); 1 where a is not finite */
/* real: an ABAR_REAL_... that the map has from each refresh on, for reports and for the stages that read it. */
void abar__plan_report(abar__plan *p, int real, abar__scalar a);

/* ---- derive: what is renewed at a refresh --------------------------------------------------------------------------- */

abar__factor abar__plan_vector(abar__plan *p, const char *name, abar__stat a, abar__scalar scale); /* scale â */
/* 1 / (scale x + shift) for each element; scale NULL: 1. */
abar__factor abar__plan_reciprocals(abar__plan *p, const char *name, abar__stat a, const abar__scalar *scale,
                                    abar__scalar shift);
abar__factor abar__plan_inverse(abar__plan *p, const char *name, abar__stat a, abar__scalar shift); /* (Â + shift I)⁻¹ */
abar__factor abar__plan_eigenbasis(abar__plan *p, const char *vectors, const char *values, abar__stat a);

/* ---- apply: Ĝ from G, one of the first four or none, then any of the others
 * -------------------------------------------------- */

void abar__plan_subtract_rank1(abar__plan *p, abar__factor u); /* G (I - u uT) */
/* G - s (wT G u) w uT, s the real ABAR_REAL_FACTOR; name: of the buffer it needs. */
void abar__plan_subtract_outer(abar__plan *p, const char *name, abar__factor w, abar__factor u);
void abar__plan_sandwich(abar__plan *p, abar__factor left, abar__factor right); /* left G right */
/* In the eigenbases of both sides: divided by the products of eigenvalues + shift. */
void abar__plan_divide_in_basis(abar__plan *p, abar__factor left, abar__factor right, double shift);
/* least: no row is divided by less. It bounds |Ĝ|, so that a gradient that would overflow is left as it is (methods.md section
 * 9). */
void abar__plan_scale_rows(abar__plan *p, abar__factor r, double least);
void abar__plan_scale(abar__plan *p, double scale);
void abar__plan_over_damping(abar__plan *p);          /* divided by the real ABAR_REAL_DAMPING, which the plan reports */
void abar__plan_own_length(abar__plan *p, double mu); /* times c = <Ĝ, G> / (<Ĝ, G>² + mu); behind a sandwich */

#endif
