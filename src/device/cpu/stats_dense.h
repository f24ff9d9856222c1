/* Products of rows, factorisations and square statistics of the cpu device: entries of abar__stats_ops, see there.
 * commit, clear and all_finite are for squares only. Weights of input_product are not negative. */
#ifndef ABAR_STATS_DENSE_H
#define ABAR_STATS_DENSE_H

#include "device/stats_impl.h"

void abar__cpu_input_product(abar_device *dev, const abar__rows *r, const double *weight, void *square, void *scratch);
void abar__cpu_grad_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cpu_input_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cpu_grad_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cpu_example_means(abar_device *dev, const abar__rows *r, bool of_grads, void *means);
size_t abar__cpu_product_scratch(abar_device *dev, const abar__rows *r);
void abar__cpu_example_weights(abar_device *dev, const abar__rows *r, double *a, double *p, double *number);

bool abar__cpu_all_finite(abar_device *dev, int64_t n, bool square, const void *pending, double scale);
void abar__cpu_commit(abar_device *dev, int64_t n, bool square, void *average, void *pending, double beta, double add);
void abar__cpu_clear(abar_device *dev, int64_t n, bool square, void *pending);
double abar__cpu_trace(abar_device *dev, int64_t d, const void *average);

bool abar__cpu_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                      void *inverse, void *scratch);
size_t abar__cpu_invert_scratch(abar_device *dev, int64_t d);
bool abar__cpu_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                     void *scratch);
size_t abar__cpu_eigen_scratch(abar_device *dev, int64_t d);
/* In double: the eigenvectors of scale * average by rows, (d, d), and its eigenvalues, ascending, (d), from the beginning of
 * scratch on, which is that of eigen. */
bool abar__cpu_diagonalise(abar_device *dev, int64_t d, const float *average, double scale, void *scratch);
bool abar__cpu_inverse_root(abar_device *dev, int64_t n, const void *average, double scale, double eps, double *ridge,
                            double exponent, void *root, void *scratch);
size_t abar__cpu_inverse_root_scratch(abar_device *dev, int64_t n);
void abar__cpu_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x, const void *right,
                        bool right_t, void *y, void *scratch);
bool abar__cpu_precondition(abar_device *dev, const abar__dense_gradient *g, void *scratch, double *products);

#endif
