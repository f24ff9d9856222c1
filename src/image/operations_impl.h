/* The families of operations that abar__image_apply chooses from. */
#ifndef ABAR_OPERATIONS_IMPL_H
#define ABAR_OPERATIONS_IMPL_H

#include "image/operations.h"

void abar__image_affine(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out);
void abar__image_rotate(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out);
/* Color, contrast, sharpness and brightness, by a factor. */
void abar__image_enhance(abar__operation operation, double factor, int32_t height, int32_t width, const uint8_t *in,
                         uint8_t *out);
/* out[i] = table[in[i]]. */
void abar__image_look_up(const uint8_t table[256], int64_t n, const uint8_t *in, uint8_t *out);

#endif
