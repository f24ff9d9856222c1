/* Tests of Newton-Schulz (device/orthogonalise.h) that every back end must pass: golden numbers, identities, failures. */
#ifndef ORTHOGONALISE_CASES_H
#define ORTHOGONALISE_CASES_H

#include "device/orthogonalise.h"

/* A block in double precision, in host memory. */
typedef struct ns_case {
    int64_t rows, columns;
    const double *in;
    double *out;
    double *moment; /* (rows): before and after; NULL: plain Muon */
    double scale;
    int32_t verdict;
} ns_case;

/* How a device runs a list of blocks, and how close to double precision it comes. */
typedef struct ns_rig {
    void (*run)(const struct ns_rig *rig, const abar__ns *ns, ns_case *cases, int n, double beta);
    void *user;
    double tolerance; /* |found - expected| / |expected| */
    double condition; /* the tolerance grows in proportion to a case's condition number above this */
} ns_rig;

/* n floats in -1 .. 1; the same for the same seed. */
void ns_fill(double *x, int64_t n, uint64_t seed);
double ns_deviation(int64_t n, const double *found, const double *expected);

void ns_check_golden(const ns_rig *rig);
void ns_check_steps(const ns_rig *rig);
void ns_check_scales(const ns_rig *rig);
void ns_check_normuon(const ns_rig *rig);
void ns_check_exact_is_orthogonal(const ns_rig *rig);
void ns_check_transposed(const ns_rig *rig);
void ns_check_orthogonal_inputs(const ns_rig *rig);
void ns_check_rank_one(const ns_rig *rig);
void ns_check_magnitudes(const ns_rig *rig);
void ns_check_zeros(const ns_rig *rig);
void ns_check_below_eps(const ns_rig *rig);
void ns_check_not_finite(const ns_rig *rig);
void ns_check_divergence(const ns_rig *rig);

#endif
