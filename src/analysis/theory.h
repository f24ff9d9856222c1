/* The convergence theorem of the paper on a two-layer ReLU network, as printed and as corrected (docs/analysis.md, theory).
 *
 *     u_i = m^-1/2 sum_r q_r max(0, w_r x_i),  L = |u - y|^2 / 2,  W <- W - eta dL/dW M^-1,  M = x x^T + rho I (MAC)
 *
 * X (n, d) has unit rows, x is their mean, W (m, d) is drawn from N(0, I), q_r = +-1 is fixed. With r = u - y and
 *     B = X M^-1 X^T,  S_ij = (1/m) #{r: w_r x_i >= 0 and w_r x_j >= 0},  G = B * S elementwise
 * a step is r_{k+1} = (I - eta G_k) r_k + e_k. S of infinite width is (pi - arccos x_i x_j) / 2 pi; its least eigenvalue is
 * lambda. */
#ifndef ABAR_ANALYSIS_THEORY_H
#define ABAR_ANALYSIS_THEORY_H

#include "base/base_impl.h"

/* What the gradient is multiplied by. */
typedef enum abar__theory_method {
    ABAR_THEORY_MAC,  /* M = x x^T + rho I */
    ABAR_THEORY_SGD,  /* M = I */
    ABAR_THEORY_FOOF, /* M = X^T X / n + rho I */
    ABAR_THEORY_KFAC, /* FOOF's M, and (P + rho I)^-1 from the left, P the second moment of q_r 1{w_r x_i >= 0} / sqrt(m) */
    ABAR_THEORY_METHODS
} abar__theory_method;

typedef enum abar__theory_points {
    ABAR_POINTS_ORTHONORMAL, /* X = I: n = d */
    ABAR_POINTS_SPHERE,      /* uniform on the sphere */
    ABAR_POINTS_POSITIVE,    /* |N(0, I)|, normalised: like activations behind a ReLU */
    ABAR_POINTS_CIRCLE,      /* equispaced, d = 2 */
    ABAR_POINTS_GIVEN,       /* the caller's */
} abar__theory_points;

typedef struct abar__theory_config {
    abar__theory_points points;
    int64_t n, d, m;     /* m 0: infinite width, r_{k+1} = (I - eta G) r_k */
    const double *given; /* (n, d), unit rows; ABAR_POINTS_GIVEN only */
    double rho;
    double rate;  /* eta; 0: 0.9 / lambda_max(G) of infinite width, without the 0.9 where the width is infinite */
    double delta; /* probability that the statements about random weights may fail with */
    int64_t steps;
    uint64_t seed;
    bool one_point; /* r_0 = e_1, infinite width only; otherwise drawn */
    bool uniform_q; /* q_r uniform on (-1, 1), as the paper prints it: then G is not B * S */
    abar_status (*tell)(void *user, const char *method, int64_t k); /* before step k; ABAR_STOPPED ends the run. NULL: none */
    void *user;
} abar__theory_config;

/* What one step of MAC shows; bounds are on |r_k|^2. */
typedef struct abar__theory_step {
    double residual, corrected, paper; /* |r_k|^2, and the two bounds */
    double sigma_min, g_min, g_max;    /* eigenvalues of S_k and G_k */
    double error;                      /* |e_k| */
    double jacobian;                   /* |J_k - J_0|, spectral */
    double moved;                      /* |W_k - W_0| */
    double farthest;                   /* max_r |w_r(k) - w_r(0)| */
} abar__theory_step;

typedef enum abar__theory_verdict {
    ABAR_VERDICT_HOLDS,
    ABAR_VERDICT_VIOLATED,
    ABAR_VERDICT_UNMET,  /* a condition of the statement is not met, so it says nothing */
    ABAR_VERDICT_VACUOUS /* the bound says nothing: its rate is 1 */
} abar__theory_verdict;

enum { ABAR_STATEMENTS_MAX = 16 };

typedef struct abar__theory_statement {
    const char *name, *text; /* "I1", "lambda_min(G_k) >= ..." */
    abar__theory_verdict verdict;
    int64_t at;    /* the first step where it is violated or its condition fails; -1: none */
    double margin; /* least (right side - left side) / |right side| over the steps, where that makes sense; NaN: not */
} abar__theory_statement;

typedef struct abar__theory {
    abar_context *ctx;
    abar__theory_config config;
    double eta;
    double mean_square;                           /* |x|^2 */
    double gram_min, gram_max;                    /* eigenvalues of X^T X (d, d) */
    double b_min, b_max;                          /* least b_ii; largest eigenvalue of B */
    double sigma_limit, g_limit_min, g_limit_max; /* lambda, and eigenvalues of G, of infinite width */
    double width_needed;                          /* what I3 asks of m */
    double condition2;                       /* least C of the paper's Condition 5.4: 2 sigma_max(X) max_k |J_k - J_0| / rho */
    abar__theory_step *step;                 /* (steps + 1), of MAC */
    double *residual[ABAR_THEORY_METHODS];   /* (steps + 1) |r_k|^2 of every method from the same start */
    double method_rate[ABAR_THEORY_METHODS]; /* their eta: the same part of 1 / lambda_max(G) each */
    abar__theory_statement statement[ABAR_STATEMENTS_MAX];
    int statements;
    double *x;            /* (n, d) */
    double *start_kernel; /* (n, n): G of the first step */
    size_t step_bytes, residual_bytes, x_bytes;
} abar__theory;

abar_status abar__theory_run(abar_context *ctx, const abar__theory_config *config, abar__theory *out);
void abar__theory_free(abar__theory *t);
/* The weights (m, d) and signs (m) that a run with this configuration starts from. */
void abar__theory_network(const abar__theory_config *config, double *w, double *q);

#endif
