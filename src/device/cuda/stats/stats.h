/* The statistics of the CUDA back end: sums over rows (sums.cu; weighed by attention: values.cu), examples' means
 * (means.cu) and their products (mean_products.cu), rows of single examples (example_rows.cu), products of rows (products*.cu)
 * and of matrices (factors/dense.cu), inverses (factors/inverse.cu), eigenvectors (factors/eigen.cu), vectors and the table
 * (stats.cu). Partial sums of products, and means, have all of the device's workspace; others are in the lower half of it, in
 * the upper half single results, weights of rows, and the partial sums of p where those of a have the lower. */
#ifndef ABAR_CUDA_STATS_H
#define ABAR_CUDA_STATS_H

#include "device/cuda/core/core_impl.h"

#define ABAR_STATS_HALF (ABAR_CUDA_WORKSPACE / 2)
#define ABAR_STATS_EXAMPLES ((int64_t)(ABAR_STATS_HALF / sizeof(double))) /* one double each fit there */

static inline double *abar__cuda_upper(const abar_device *dev)
{
    return (double *)((char *)abar__cuda_of(dev)->workspace + ABAR_STATS_HALF);
}

/* The tensor with NHWC told by its strides: all that kernels know. */
static inline abar_tensor abar__cuda_strided(const abar_tensor *tensor)
{
    abar_tensor t = *tensor;
    if (t.layout != ABAR_LAYOUT_NHWC) return t;
    t.layout = ABAR_LAYOUT_STRIDED;
    t.stride[1] = 1;
    t.stride[3] = t.dim[1];
    t.stride[2] = t.dim[1] * t.dim[3];
    t.stride[0] = t.dim[1] * t.dim[3] * t.dim[2];
    return t;
}

/* Remembers the failure of a call that cannot return one: the next wait tells it. */
static inline bool abar__cuda_remember(const abar_device *dev, cudaError_t error)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (error != cudaSuccess && cuda->failure == cudaSuccess) cuda->failure = error;
    return error == cudaSuccess;
}

/* Between the host's memory and the device's, waiting. */
static inline bool abar__cuda_carry(const abar_device *dev, void *to, const void *from, size_t bytes)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    return abar__cuda_remember(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)) &&
           abar__cuda_remember(dev, cudaStreamSynchronize(stream));
}

static inline unsigned abar__cuda_grid(const abar_device *dev, int64_t n, int64_t per_block)
{
    const int64_t blocks = abar__cuda_blocks(n, per_block), most = (int64_t)abar__cuda_of(dev)->processors * 16;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

static inline int64_t abar__cuda_pairs_pitch(int64_t d) { return abar__cuda_blocks(d, 8) * 8; }

extern "C" {
void abar__cuda_input_sum(abar_device *dev, const abar__rows *r, void *sum);
void abar__cuda_input_square_add(abar_device *dev, const abar__rows *r, double *sum);
void abar__cuda_grad_sum(abar_device *dev, const abar__rows *r, void *sum);
void abar__cuda_grad_squares(abar_device *dev, const abar__rows *r, const double *weight, void *sum);
void abar__cuda_both_sums(abar_device *dev, const abar__rows *r, void *sum_a, bool squares, void *sum_p);
void abar__cuda_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v);
void abar__cuda_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v);
void abar__cuda_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                 void *sum, double *square);

/* Sum of w a; weight: device memory, NULL: 1. */
void abar__cuda_weighted_sum(abar_device *dev, const abar__rows *r, const double *weight, void *sum);
/* Every example's mean of a, (N, d), and of p, (N, out), in one launch; NULL: not wanted. */
void abar__cuda_means(abar_device *dev, const abar__rows *r, float *inputs, float *grads);
/* The same as two bf16 each, high + low: four vectors of an example, high, high, low, high, a pitch apart. The sum over the
 * first three of each with its successor is high highT + high lowT + low highT: the product of means, but for 2^-16 of it. */
void abar__cuda_mean_pairs(abar_device *dev, const abar__rows *r, void *inputs, void *grads);

void abar__cuda_example_weights(abar_device *dev, const abar__rows *r, double *a, double *p, double *number);
void abar__cuda_input_product(abar_device *dev, const abar__rows *r, const double *weight, void *square, void *scratch);
void abar__cuda_grad_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cuda_input_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cuda_grad_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch);
void abar__cuda_both_mean_products(abar_device *dev, const abar__rows *r, void *square_a, void *square_p, void *scratch);
size_t abar__cuda_product_scratch(abar_device *dev, const abar__rows *r);
void abar__cuda_example_rows(abar_device *dev, const abar__rows *r, void *a, void *p, void *scratch);
size_t abar__cuda_example_rows_scratch(abar_device *dev, const abar__rows *r);
bool abar__cuda_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                       void *inverse, void *scratch);
size_t abar__cuda_invert_scratch(abar_device *dev, int64_t d);
bool abar__cuda_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                      void *scratch);
size_t abar__cuda_eigen_scratch(abar_device *dev, int64_t d);
void abar__cuda_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x,
                         const void *right, bool right_t, void *y, void *scratch);
}

#endif
