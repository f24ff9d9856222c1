/* Labels drawn from the softmax of logits, or all of one class (nn_impl.h). */
#ifndef ABAR_CUDA_NN_LABELS_H
#define ABAR_CUDA_NN_LABELS_H

#include "device/cuda/nn/cuda_nn.h"

/* x: (rows, width), pitch elements from row to row; first: number of row 0 in the global batch. */
void abar__cuda_draw_labels(abar_device *dev, const abar__run *run, const void *x, int64_t rows, int64_t pitch, int width,
                            int64_t first, int32_t *labels);
/* All of run->one_class. */
void abar__cuda_set_labels(abar_device *dev, const abar__run *run, int64_t rows, int32_t *labels);
/* dx (rows, width) times the root of the probability of run->one_class; saved (rows, 2): the largest logit, 1 / the sum of
 * exponentials. */
void abar__cuda_weigh_by_class(abar_device *dev, const abar__run *run, const void *x, const float *saved, int64_t rows,
                               int64_t pitch, int width, void *dx);

#endif
