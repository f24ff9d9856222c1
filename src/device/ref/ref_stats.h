/* What the reference device's table in ref_stats.c takes from other files: sums over rows that attention weighs
 * (ref_stats_values.c), Newton-Schulz (ref_stats_orthogonalise.c), blocks (ref_stats_blocks.c), kept
 * rows (ref_stats_rows.c); and what they take from it. */
#ifndef ABAR_REF_STATS_H
#define ABAR_REF_STATS_H

#include "device/stats_impl.h"

void abar__ref_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v);
void abar__ref_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v);
void abar__ref_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                void *sum, double *square);

void abar__ref_orthogonalise(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n, double normuon_beta,
                             int32_t *verdict, void *scratch);
size_t abar__ref_orthogonalise_scratch(const abar_device *dev, const abar__ns_block *blocks, int n);

void abar__ref_average_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *x, double beta, double add,
                            void *average);
bool abar__ref_inverse_root(abar_device *dev, int64_t n, const void *average, double scale, double eps, double *ridge,
                            double exponent, void *root, void *scratch);
size_t abar__ref_inverse_root_scratch(abar_device *dev, int64_t n);
void abar__ref_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, bool transposed,
                             const void *x, void *y);
bool abar__ref_eigenbasis(abar_device *dev, int64_t n, const void *average, void *basis, void *scratch);
bool abar__ref_turn_basis(abar_device *dev, int64_t n, const void *average, void *basis, int64_t *order, void *scratch);
size_t abar__ref_basis_scratch(abar_device *dev, int64_t n);

void abar__ref_multiply(abar_device *dev, int64_t m, int64_t n, int64_t k, double scale, const void *a, bool a_t, const void *b,
                        bool b_t, double keep, void *y);
bool abar__ref_solve_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, double scale, double shift, void *solved,
                          void *scratch);
size_t abar__ref_solve_rows_scratch(abar_device *dev, int64_t n, int64_t d);
void abar__ref_row_products(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, int64_t j, double *products);
void abar__ref_combine_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, const double *c, void *y);
bool abar__ref_solve_gram(abar_device *dev, int64_t n, const double *gram, int64_t stride, double scale, double shift,
                          int64_t j, double *c, double *scratch);

/* Cholesky's L, in the lower triangle of l; false where a pivot is not positive. */
bool abar__ref_cholesky(int64_t d, double *l);
/* Eigenvalues and eigenvectors as abar__stats_ops has them; scratch: two of (d, d). */
bool abar__ref_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                     void *scratch);

#endif
