/* The statistics of the cpu device. stats.c: the table and vectors; stats_sums.c: sums over rows; stats_values.c: those that
 * attention weighs; stats_dense.c: products and factorisations; stats_orthogonalise.c: Newton-Schulz; stats_blocks.c: blocks;
 * stats_rows.c: kept rows; stats_examples.c: rows of single examples. */
#ifndef ABAR_CPU_STATS_H
#define ABAR_CPU_STATS_H

#include "device/stats_impl.h"

extern const abar__stats_ops abar__cpu_stats;

void abar__cpu_input_sum(abar_device *dev, const abar__rows *r, void *sum);
void abar__cpu_input_square_add(abar_device *dev, const abar__rows *r, double *sum);
void abar__cpu_grad_sum(abar_device *dev, const abar__rows *r, void *sum);
void abar__cpu_grad_squares(abar_device *dev, const abar__rows *r, const double *weight, void *sum);
void abar__cpu_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v);
void abar__cpu_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v);
void abar__cpu_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                void *sum, double *square);

void abar__cpu_orthogonalise(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n, double normuon_beta,
                             int32_t *verdict, void *scratch);
size_t abar__cpu_orthogonalise_scratch(const abar_device *dev, const abar__ns_block *blocks, int n);

void abar__cpu_average_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *x, double beta, double add,
                            void *average);
void abar__cpu_multiply(abar_device *dev, int64_t m, int64_t n, int64_t k, double scale, const void *a, bool a_t, const void *b,
                        bool b_t, double keep, void *y);
bool abar__cpu_solve_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, double scale, double shift, void *solved,
                          void *scratch);
size_t abar__cpu_solve_rows_scratch(abar_device *dev, int64_t n, int64_t d);
void abar__cpu_row_products(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, int64_t j, double *products);
void abar__cpu_combine_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, const double *c, void *y);
bool abar__cpu_solve_gram(abar_device *dev, int64_t n, const double *gram, int64_t stride, double scale, double shift,
                          int64_t j, double *c, double *scratch);
void abar__cpu_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, bool transposed,
                             const void *x, void *y);
bool abar__cpu_eigenbasis(abar_device *dev, int64_t n, const void *average, void *basis, void *scratch);
bool abar__cpu_turn_basis(abar_device *dev, int64_t n, const void *average, void *basis, int64_t *order, void *scratch);
size_t abar__cpu_basis_scratch(abar_device *dev, int64_t n);

void abar__cpu_example_rows(abar_device *dev, const abar__rows *r, void *a, void *p, void *scratch);
size_t abar__cpu_example_rows_scratch(abar_device *dev, const abar__rows *r);
void abar__cpu_rows_gram(abar_device *dev, int64_t rows, int64_t numbers, const double *x, double *panels, double *sums);
bool abar__cpu_solve_shifted(abar_device *dev, int64_t n, const double *k, int64_t pitch, double shift, double *factor,
                             double *x);

#endif
