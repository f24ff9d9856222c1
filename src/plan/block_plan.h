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
    int32_t index; /* of a state: a matrix for each mode */
} abar__factors;
typedef struct abar__scales {
    int32_t index; /* of a state: a vector for each mode */
} abar__scales;
typedef struct abar__moments {
    int32_t index; /* of a state: a number for each element; -1: none */
} abar__moments;

#define ABAR_NO_MOMENTS ((abar__moments){-1})
#define ABAR_BY_ORDER (-1.0) /* exponent 1 / (2 modes of the block) */

/* Names are those of state tensors in checkpoints ("S.conv1.weight"), at most 15 characters. */

/* modes: ABAR_LEFT, ABAR_RIGHT, both joined by |, ABAR_EVERY_MODE or ABAR_SHORTEST. beta 1: the sum. */
abar__factors abar__blocks_average(abar__block_plan *p, const char *name, uint32_t modes, double beta);
/* The sum, to which every so many updates add; vectors, and modes of one entry, have no matrices. */
abar__factors abar__blocks_sum_of_tensors(abar__block_plan *p, const char *name, int64_t every);
abar__moments abar__blocks_squares(abar__block_plan *p, const char *name, double beta);
/* corrected: of average / (1 - beta^t); else, and of a sum, of the average as it is. At update start, and from then on at
 * multiples of every. Before, and where no root could be taken, there is none: the identity, or the previous one. */
abar__factors abar__blocks_inverse_root(abar__block_plan *p, const char *name, abar__factors average, bool corrected,
                                        double exponent, double eps, int64_t start, int64_t every);
/* After inverse_root: before each root is taken, ridge times the largest eigenvalue is added to all of them, and stays. */
void abar__blocks_ridge(abar__block_plan *p, double ridge);
/* ahead = beta: Adam's average with its bias corrected. beta 0: nothing. */
void abar__blocks_momentum(abar__block_plan *p, const char *name, double beta, double ahead);
void abar__blocks_multiply(abar__block_plan *p, abar__factors factors); /* a basis: rotates into it */
/* Grafting: measure takes the length of the direction that X / (sqrt(v) + eps) is (or X, without v), rescale gives it to what
 * has become of X since. Before update start that direction is the step. */
void abar__blocks_measure(abar__block_plan *p, abar__moments v, bool corrected, double eps, int64_t start);
void abar__blocks_rescale(abar__block_plan *p);
void abar__blocks_rescale_whole(abar__block_plan *p); /* to the length of all blocks of the parameter together */
/* With the weight decay (abar__chain's late_decay) in X: m <- beta m + gain X, X <- ahead m + rest X. */
void abar__blocks_heavy_ball(abar__block_plan *p, const char *name, double beta, double gain, double ahead, double rest);

/* Adam in the eigenbasis of averages; soap.c shows the order. Vectors, and modes of more than `longest` entries, have no
 * matrices. The basis is used by the stages between its declaration and abar__blocks_turn, which renews it every f-th update.
 */
typedef struct abar__basis {
    abar__factors average, basis;
    abar__scales scales; /* index -1: the plain average */
} abar__basis;
abar__basis abar__blocks_basis(abar__block_plan *p, const char *average, const char *basis, int64_t longest, double beta);
/* Likewise of X whitened along the other mode, with scales w (KL-SOAP): matrices alone. */
abar__basis abar__blocks_whitened_basis(abar__block_plan *p, const char *average, const char *basis, const char *scales,
                                        int64_t longest, double beta);
/* X, which is rotated, becomes m / (sqrt(v) + eps). */
typedef struct abar__adam {
    abar__moments mean, squares;
    double beta1, beta2;
} abar__adam;
abar__adam abar__blocks_adam(abar__block_plan *p, const char *mean, const char *squares, double beta1, double beta2,
                             double eps);
void abar__blocks_rotate(abar__block_plan *p, abar__basis basis);
void abar__blocks_rotate_back(abar__block_plan *p, abar__basis basis);
void abar__blocks_even(abar__block_plan *p); /* rms 1 */
/* The step of Adam, its bias corrected or not, with the decay behind it (abar__chain's late_decay). */
void abar__blocks_step(abar__block_plan *p, abar__adam adam, bool corrected);
/* After step: the decay acts only where it agrees with the step; blocks of more than one mode keep their norm. */
void abar__blocks_cautious(abar__block_plan *p);
void abar__blocks_ball(abar__block_plan *p);
void abar__blocks_turn(abar__block_plan *p, abar__basis basis, abar__adam adam, int64_t every);

/* Whether both keep the same state. */
bool abar__blocks_agree(const abar__block_plan *a, const abar__block_plan *b);

#endif
