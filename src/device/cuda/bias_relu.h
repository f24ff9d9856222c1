/* What stands around a product in a linear layer or convolution: bias and ReLU behind it, and their gradients. */
#ifndef ABAR_BIAS_RELU_H
#define ABAR_BIAS_RELU_H

#include "device/cuda/cuda_nn.h"

/* y = act(y + bias) in place; bias (width) may be NULL. y: (rows, width), the device's activation dtype; its rows, and those of
 * dy below, begin pitch elements apart (0: width). */
void abar__cuda_bias_relu(abar_device *dev, void *y, const float *bias, bool relu, int64_t rows, int64_t width,
                          int64_t pitch = 0);

/* dy turned into dL/dz in place where y is not NULL (masked by y > 0); db (width), where not NULL, is written or added to with
 * the column sums of dL/dz. partials: abar__cuda_bias_partials(dev, rows, width) bytes. */
void abar__cuda_bias_relu_gradient(abar_device *dev, void *dy, const void *y, float *db, bool accumulate, int64_t rows,
                                   int64_t width, float *partials, int64_t pitch = 0);
size_t abar__cuda_bias_partials(const abar_device *dev, int64_t rows, int64_t width);

/* to (count) is written or added to with the sum over slices of sums (slices, count), always in one order. */
void abar__cuda_join_slices(abar_device *dev, const float *sums, int64_t slices, int64_t count, float *to, bool add);

/* The same of sums (slices, 2, width) for first and second (width); NULL: not wanted. */
void abar__cuda_join_pairs(abar_device *dev, const float *sums, int64_t slices, int64_t width, float *first, float *second,
                           bool add);

/* to (count) bf16: what a product that adds its bias itself wants to read. */
void abar__cuda_round_bias(abar_device *dev, int64_t count, const float *from, void *to);

#endif
