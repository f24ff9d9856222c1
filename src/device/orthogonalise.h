/* The orthogonalise stage: Muon's Newton-Schulz iteration, and NorMuon's row normalisation after it.
 *
 * A block u of r rows and c columns, transposed where r > c, becomes O:
 *
 *     X = u / max(s |u|, eps);   steps times, with the step's (c1, c3, c5):  S = X X^T,  X = c1 X + (c3 S + c5 S S) X;   O = X
 *
 * in which every singular value x of u / (s |u|) has become p(x), p being the steps' polynomials c1 x + c3 x^3 + c5 x^5 one
 * after the other. Norms are Frobenius norms. NorMuon: with n = |O|, in this order,
 *
 *     v = beta v + (1 - beta) (mean over columns of O * O),   O = O / (sqrt(v) + 1e-10) by rows,   O = O n / (|O| + 1e-10) */
#ifndef ABAR_ORTHOGONALISE_H
#define ABAR_ORTHOGONALISE_H

#include "abar/device.h"

#define ABAR_NS_STEPS_MAX 16

typedef struct abar__ns { /* the polynomial */
    int steps;
    double c[ABAR_NS_STEPS_MAX][3]; /* c1, c3, c5 of each step */
    double safety, eps;             /* s, eps */
} abar__ns;

/* One block: a dense row-major matrix, rows x columns, from in to out (may be the same memory, but no other block's out);
 * elements of the device's dtype. */
typedef struct abar__ns_block {
    int64_t rows, columns;
    const void *in;
    void *out;
    double scale;     /* out = scale * O */
    void *row_moment; /* NorMuon: (rows), v; NULL: plain Muon */
} abar__ns_block;

/* What became of a block. */
enum {
    ABAR_NS_FINE = 0,
    ABAR_NS_NOT_FINITE = 1, /* u or O: out is all zeros, and row_moment as it was */
    ABAR_NS_BELOW_EPS = 2   /* 0 < |u| < eps: O is computed, but smaller than that of larger u */
};

#define ABAR_NORMUON_EPS 1e-10

/* The polynomials by name: original, quintic, polar-express, exact, cubic; eps is 1e-7. steps 0: the set's own number. Fewer
 * steps cut the list, more repeat its last triple. False for an unknown name and for steps outside 0 .. ABAR_NS_STEPS_MAX. */
bool abar__ns_find(const char *name, int steps, abar__ns *out);

#endif
