/* Bias and ReLU after the product of a linear layer or convolution, and their gradients. */
#ifndef ABAR_CUDA_NN_BIAS_RELU_H
#define ABAR_CUDA_NN_BIAS_RELU_H

#include "device/cuda/nn/cuda_nn.h"

/* y = act(y + bias) in place; bias (width) may be NULL. y: (rows, width), the device's activation dtype; its rows, and those of
 * dy below, begin pitch elements apart (0: width). */
void abar__cuda_bias_relu(abar_device *dev, void *y, const float *bias, bool relu, int64_t rows, int64_t width,
                          int64_t pitch = 0);

/* Replaces dy by dL/dz in place, unless kind is none: dy times the derivative, from the value z (GELU) or y (ReLU, tanh); db
 * (width), where not NULL, is set to the column sums of dL/dz, or these are added to it. partials:
 * abar__cuda_bias_partials(dev, rows, width) bytes. */
void abar__cuda_activation_gradient(abar_device *dev, abar__activation kind, void *dy, const void *value, float *db,
                                    bool accumulate, int64_t rows, int64_t width, float *partials, int64_t pitch = 0);
/* The same for ReLU, or, where y is NULL, none. */
void abar__cuda_bias_relu_gradient(abar_device *dev, void *dy, const void *y, float *db, bool accumulate, int64_t rows,
                                   int64_t width, float *partials, int64_t pitch = 0);
size_t abar__cuda_bias_partials(const abar_device *dev, int64_t rows, int64_t width);

/* Sets `to` (count) to the sum over slices of sums (slices, count), or adds it; always in one order. */
void abar__cuda_join_slices(abar_device *dev, const float *sums, int64_t slices, int64_t count, float *to, bool add);

/* The same of sums (slices, 2, width) for first and second (width); NULL: not wanted. */
void abar__cuda_join_pairs(abar_device *dev, const float *sums, int64_t slices, int64_t width, float *first, float *second,
                           bool add);

#endif
