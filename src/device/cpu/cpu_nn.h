/* Shared by the nn operations of the cpu: the layout of a value in memory, and how work is cut into parts. */
#ifndef ABAR_CPU_NN_H
#define ABAR_CPU_NN_H

#include "device/nn_impl.h"

/* A value as outer x groups planes, one after another, each of pixels x lanes floats. Dimensions after the second are pixels.
 *   strided: outer N,    groups C,    lanes 1
 *   C8, C16: outer N,    groups C/8,  lanes 8 (16)
 *   N16:     outer N/16, groups C,    lanes 16  */
typedef struct abar__planes {
    abar_layout layout;
    int64_t images, channels;
    int64_t outer, groups, pixels;
    int lanes;
} abar__planes;

abar__planes abar__planes_of(const abar__shape *shape, abar_layout layout);

/* Floats in one plane, and in the whole value with its padding. */
static inline int64_t abar__plane_floats(const abar__planes *p) { return p->pixels * p->lanes; }
static inline int64_t abar__planes_floats(const abar__planes *p) { return p->outer * p->groups * p->pixels * p->lanes; }

/* Whether the blocked dimension has padding lanes, which must stay zero. */
bool abar__planes_padded(const abar__planes *p);

/* The number of parts that work on this many floats is cut into, where units are not cut. It depends only on the sizes and
 * on dev->threads, so that sums over parts are reproducible. */
int abar__parts(const abar_device *dev, int64_t floats, int64_t units);

/* First unit of a part; that of part + 1 is its end. */
static inline int64_t abar__part_begin(int64_t units, int parts, int part) { return units * part / parts; }

/* A zeroed op->priv of this many bytes, released with the operation. */
abar_status abar__op_priv(abar__op *op, size_t bytes);

/* Makes OpenBLAS and oneDNN use only the calling thread until the end of the parallel region. In a team of several threads they
 * do so anyway. */
void abar__blas_single(void);

/* Replaces dy by the gradient before a fused ReLU, in place: dy where y > 0, else 0. Does nothing without a ReLU. */
void abar__relu_gradient(const abar__op *op, const abar__op_args *a);

extern const abar__op_impl abar__cpu_conv_lanes, abar__cpu_conv_winograd, abar__cpu_conv_onednn, abar__cpu_conv_lanes_any,
    abar__cpu_linear, abar__cpu_reorder;
extern const abar__op_impl abar__cpu_batch_norm, abar__cpu_layer_norm, abar__cpu_pattern, abar__cpu_activation, abar__cpu_pool,
    abar__cpu_add, abar__cpu_concat, abar__cpu_flatten, abar__cpu_shortcut, abar__cpu_dropout, abar__cpu_cross_entropy,
    abar__cpu_squared_error;
extern const abar__op_impl abar__cpu_attention, abar__cpu_embedding, abar__cpu_tokens, abar__cpu_class_token,
    abar__cpu_patch_merge, abar__cpu_token_mean, abar__cpu_token_first;

#endif
