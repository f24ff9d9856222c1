/* The statistics of the cpu device. stats.c: the table and vectors; stats_sums.c: sums over rows; stats_values.c: those that
 * attention weighs; stats_dense.c: products and factorisations; stats_orthogonalise.c: Newton-Schulz; stats_blocks.c: blocks.
 */
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
void abar__cpu_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, const void *x,
                             void *y);

#endif
