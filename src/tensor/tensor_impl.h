/* Element-wise access to tensors in host memory, whatever their dtype and layout. Slow and general: for checkpoints, inputs
 * and tests, never for a training step. */
#ifndef ABAR_TENSOR_IMPL_H
#define ABAR_TENSOR_IMPL_H

#include "abar/tensor.h"

/* Offset in elements of the element at index (ndim entries). */
int64_t abar__tensor_offset(const abar_tensor *t, const int64_t *index);
double abar__tensor_load(const abar_tensor *t, int64_t offset);
void abar__tensor_store(const abar_tensor *t, int64_t offset, double value);
/* dst and src: host memory, equal shapes. Equal dtypes are copied bit for bit. */
void abar__tensor_copy_host(const abar_tensor *dst, const abar_tensor *src);
bool abar__same_shape(const abar_tensor *a, const abar_tensor *b);

float abar__bf16_load(uint16_t bits);
uint16_t abar__bf16_round(float value); /* to nearest even */
float abar__f16_load(uint16_t bits);
uint16_t abar__f16_round(float value);

#endif
