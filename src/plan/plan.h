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
/* Of the mean rows of at most so many examples, kept until the step; output gradients are those of each example's own loss.
 * The rows themselves, divided by the root of their number: */
abar__stat abar__plan_rows(abar__plan *p, const char *name, abar__statistic source, int64_t examples);
/* or both factors of the nearest Kronecker product. names: of the factors, and of the state from which the next iteration
 * begins. */
void abar__plan_nearest(abar__plan *p, const char *const names[3], int64_t examples, int rounds, abar__stat *a, abar__stat *g);
/* And of the nearest to what remains, which the plan reads by paired factors. names: of both, and of the state from which the
 * next iteration begins. */
void abar__plan_second_nearest(abar__plan *p, const char *const names[3]);
/* p is the gradient of each example's own loss, whatever --pgrad says; its mean rows are not multiplied by their number. */
void abar__plan_own_loss(abar__plan *p, abar__stat g);
/* One more average, a single number. */
abar__scalar abar__plan_mean_number(abar__plan *p, const char *name, abar__statistic source, abar__per per);
/* All averages so far come from one pass over the training set before step 0, and stay. */
void abar__plan_calibrate(abar__plan *p);
/* Averages of products begin at so many times the identity, and are read as they are; 0: at zero. */
void abar__plan_begin_at(abar__plan *p, double identity);
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
/* Of the diagonal blocks of so many columns (the last may be smaller), each with gamma times the mean of its own diagonal more.
 */
abar__factor abar__plan_inverse_by_blocks(abar__plan *p, const char *name, abar__stat a, abar__scalar shift, abar__scalar gamma,
                                          int64_t width);
/* I/shift + U diag(1/(values + shift) - 1/shift) Uᵀ, U so many eigenvectors of Â with the largest values. */
abar__factor abar__plan_inverse_of_rank(abar__plan *p, const char *name, abar__stat a, abar__scalar shift, int64_t rank);
/* (Xᵀ X + shift I)⁻¹ of rows X, through a matrix as large as their number; names: of what stands for it, and of its shift. */
abar__factor abar__plan_inverse_by_rows(abar__plan *p, const char *name, const char *shift_name, abar__stat rows,
                                        abar__scalar shift);
abar__factor abar__plan_eigenbasis(abar__plan *p, const char *vectors, const char *values, abar__stat a);
/* B with B (Â + shift I) Bᵀ = I and B P̂ Bᵀ diagonal, P̂ the factor of the second term on this side. */
abar__factor abar__plan_paired(abar__plan *p, const char *name, const char *values, abar__stat a, abar__scalar shift);

/* Learns both inverses from a second pass. right: the inverse of the average of a aT, where it begins. names: of H_p or its
 * pairs, of the averages of differences of outputs, and of output gradients. Returns H_p; the identity, where pairs stand for
 * it. */
abar__factor abar__plan_secant(abar__plan *p, const char *const names[3], abar__factor right, int64_t pairs, double shift,
                               double decay);
/* The average begins with one pass over the training set (calibration), and has no start at zero to be corrected for. */
void abar__plan_first_pass(abar__plan *p);
/* Rings take the place of all other stages: the gradients of the last so many steps, from which the gradient's product with
 * (damping I + E[g gT])^-1 is made. names: of the ring, and of its Gram matrix. narrow: in bf16. */
void abar__plan_ring(abar__plan *p, const char *const names[2], int64_t slots, bool narrow, double damping);

/* ---- apply: Ĝ from G, one of the first four or none, then any of the others
 * -------------------------------------------------- */

void abar__plan_subtract_rank1(abar__plan *p, abar__factor u); /* G (I - u uT) */
/* G - s (wT G u) w uT, s the real ABAR_REAL_FACTOR; name: of the buffer it needs. */
void abar__plan_subtract_outer(abar__plan *p, const char *name, abar__factor w, abar__factor u);
void abar__plan_sandwich(abar__plan *p, abar__factor left, abar__factor right); /* left G right */
/* In the eigenbases of both sides: divided by the products of eigenvalues + shift. */
void abar__plan_divide_in_basis(abar__plan *p, abar__factor left, abar__factor right, double shift);
/* The X of S X R + Q X P = G, by paired factors; where 1 + the product of two values is below least, it counts as least. */
void abar__plan_divide_paired(abar__plan *p, abar__factor left, abar__factor right, double least);
/* least: no row is divided by less. It bounds |Ĝ|, so that a gradient that would overflow is left as it is (methods.md section
 * 9). */
void abar__plan_scale_rows(abar__plan *p, abar__factor r, double least);
void abar__plan_scale(abar__plan *p, double scale);
void abar__plan_over_damping(abar__plan *p);          /* divided by the real ABAR_REAL_DAMPING, which the plan reports */
void abar__plan_own_length(abar__plan *p, double mu); /* times c = <Ĝ, G> / (<Ĝ, G>² + mu); behind a sandwich */

/* ---- instead of all of the above ---------------------------------------------------------------------------------------- */

/* G^ = (F + damping I)^-1 g of the maps of a block, F from the gradients of single examples (device/natural.h). */
void abar__plan_natural(abar__plan *p, const abar__example_rows *rows);

#endif
