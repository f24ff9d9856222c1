/* How an update rule describes what it does to its blocks (device/blocks.h holds the result; formulas are there). A rule's
 * stages() reads like its formula; shampoo.c is the one to read first. Stages run in the order in which they are added. Shampoo
 * without a graft:
 *
 *     S = abar__blocks_average(p, "S", ABAR_EVERY_MODE, beta2);             S_i, running average of X_(i) X_(i)^T
 *     R = abar__blocks_inverse_root(p, "R", S, true, 0.25, eps, f, f);      R_i = (S_i + eps I)^-1/4, every f-th update
 *     abar__blocks_momentum(p, "m", beta1, beta1);                          X becomes Adam's average of gradients
 *     abar__blocks_multiply(p, R);                                          R_0 X R_1
 *
 * A mistake (too many stages, a handle of another kind) is kept in the plan and refused when the optimizer is created. */
#ifndef ABAR_BLOCK_PLAN_H
#define ABAR_BLOCK_PLAN_H

#include "device/blocks.h"

typedef struct abar__factors {
    int32_t index; /* of a state: a symmetric matrix for each mode */
} abar__factors;
typedef struct abar__moments {
    int32_t index; /* of a state: a number for each element; -1: none */
} abar__moments;

#define ABAR_NO_MOMENTS ((abar__moments){-1})
#define ABAR_BY_ORDER (-1.0) /* exponent 1 / (2 modes of the block) */

/* Names are those of state tensors in checkpoints ("S.conv1.weight"), at most 15 characters. */

/* modes: ABAR_LEFT, ABAR_RIGHT, both joined by |, ABAR_EVERY_MODE or ABAR_SHORTEST. beta 1: the sum. */
abar__factors abar__blocks_average(abar__block_plan *p, const char *name, uint32_t modes, double beta);
abar__moments abar__blocks_squares(abar__block_plan *p, const char *name, double beta);
/* corrected: of average / (1 - beta^t); else, and of a sum, of the average as it is. At update start, and from then on at
 * multiples of every. Before, and where no root could be taken, there is none: the identity, or the previous one. */
abar__factors abar__blocks_inverse_root(abar__block_plan *p, const char *name, abar__factors average, bool corrected,
                                        double exponent, double eps, int64_t start, int64_t every);
/* ahead = beta: Adam's average with its bias corrected. beta 0: nothing. */
void abar__blocks_momentum(abar__block_plan *p, const char *name, double beta, double ahead);
void abar__blocks_multiply(abar__block_plan *p, abar__factors factors);
/* Grafting: measure takes the length of the direction that X / (sqrt(v) + eps) is (or X, without v), rescale gives it to what
 * has become of X since. Before update start that direction is the step. */
void abar__blocks_measure(abar__block_plan *p, abar__moments v, bool corrected, double eps, int64_t start);
void abar__blocks_rescale(abar__block_plan *p);

/* Whether both keep the same state. */
bool abar__blocks_agree(const abar__block_plan *a, const abar__block_plan *b);

#endif
