/* The inside of the theorem's check: the workspace of a run, and the statements that are checked along it. */
#ifndef ABAR_ANALYSIS_THEORY_IMPL_H
#define ABAR_ANALYSIS_THEORY_IMPL_H

#include "analysis/theory.h"

typedef struct abar__theory_frame {
    double *b, *b2;                                       /* (n, n): X M^-1 X^T, X M^-2 X^T */
    double *sigma, *kernel;                               /* (n, n): S, G */
    double *left;                                         /* (n, n): n (n rho I + S)^-1, KFAC only */
    double *gram;                                         /* (n, n): X X^T */
    double *square, *scratch;                             /* workspace: (max(n, d), max(n, d)) */
    double *nx, *change;                                  /* (n, d): M^-1 x_i; what the hidden units are moved by */
    double *w, *w0;                                       /* (m, d) */
    double *mean;                                         /* (d) */
    double *values, *r, *r_next, *u, *y, *predicted, *r0; /* (n) */
    double *q;                                            /* (m) */
    uint8_t *pattern, *pattern0, *before;                 /* (m, n): active now, at the start, one step ago */
    void *memory;
    size_t bytes;
} abar__theory_frame;

/* What the statements need of the step at hand, and where the conditions of I7 failed first. */
typedef struct abar__statements {
    double inverse_jacobian; /* |F^-1 J^T| */
    double diagonal;         /* largest S_ii */
    double path;             /* sum of |r_t| so far */
    int64_t unmet;           /* first step at which a condition of I7 fails; -1: none */
    double rate_corrected, rate_paper;
} abar__statements;

/* identity_gap: how far J F^-1 J^T is from G, relative. */
abar__statements abar__statements_begin(abar__theory *t, double identity_gap);
/* Step k has been taken: switched is |J_{k+1} - J_k| in the Frobenius norm, next |r_{k+1}|; NaN after the last. */
void abar__statements_check(abar__theory *t, abar__statements *s, int64_t k, double switched, double next);
void abar__statements_end(abar__theory *t, abar__statements *s);

#endif
