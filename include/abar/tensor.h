/* Tensors are views: they describe memory and own nothing. A layer is one linear map as curvature sees it. */
#ifndef ABAR_TENSOR_H
#define ABAR_TENSOR_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ABAR_MAX_DIM 6

typedef struct abar_device abar_device;

typedef enum abar_dtype { ABAR_F64, ABAR_F32, ABAR_BF16, ABAR_F16, ABAR_I64, ABAR_I32, ABAR_U8 } abar_dtype;

/* How the elements of a (N, C, H, W) activation lie in memory. Blocked layouts ignore strides, and pad the
 * blocked dimension with zeros. Parameters, gradients and optimizer state are always strided. */
typedef enum abar_layout {
    ABAR_LAYOUT_STRIDED, /* by dim and stride; dense row-major unless a caller says otherwise */
    ABAR_LAYOUT_C8,      /* (N, C/8, H, W, 8): oneDNN's nChw8c */
    ABAR_LAYOUT_C16,     /* (N, C/16, H, W, 16): oneDNN's nChw16c */
    ABAR_LAYOUT_N16,     /* (N/16, C, H, W, 16): sixteen images in the vector lanes */
    ABAR_LAYOUT_NHWC,    /* (N, H, W, C): channels last, what tensor cores want */
    ABAR_LAYOUT_PADDED,  /* rows of the last dimension, each on a multiple of 64 bytes; between operations: a view of such a
                          * value is STRIDED and says so by its strides */
} abar_layout;

typedef struct abar_tensor {
    abar_device *dev; /* whose memory data is; NULL: the host's */
    void *data;
    abar_dtype dtype;
    abar_layout layout;
    int ndim;
    int64_t dim[ABAR_MAX_DIM], stride[ABAR_MAX_DIM]; /* stride in elements */
} abar_tensor;

size_t abar_dtype_size(abar_dtype dtype);
const char *abar_dtype_name(abar_dtype dtype); /* "F32", as safetensors spells it */

/* A dense row-major view. */
abar_tensor abar_tensor_wrap(abar_device *dev, void *data, abar_dtype dtype, int ndim, const int64_t *dim);
int64_t abar_tensor_count(const abar_tensor *t); /* elements, without padding */
size_t abar_tensor_bytes(const abar_tensor *t);  /* memory spanned, padding of blocked layouts included */
bool abar_tensor_is_dense(const abar_tensor *t); /* strided, row-major, no gaps */
/* A view of a weight (O, I, kh, kw) whose memory is (O, kh, kw, I), without gaps. */
abar_tensor abar_tensor_wrap_channels_last(abar_device *dev, void *data, abar_dtype dtype, const int64_t dim[4]);
bool abar_tensor_is_channels_last(const abar_tensor *t); /* such a view, where the order differs from row-major */

/* The window of a convolution; a linear layer is the 1x1 case. Index 0 is vertical, 1 horizontal. */
typedef struct abar_window {
    int64_t kernel[2], stride[2], pad[2], dilation[2];
    int64_t groups;
} abar_window;

abar_window abar_window_unit(void);
/* Output extent along one axis (methods.md section 0); <= 0 when the window does not fit. */
int64_t abar_window_out(const abar_window *w, int axis, int64_t in);

/* Which outputs of a linear map feed attention, and what its probabilities were (methods.md section 2). heads 0: none. The rows
 * of v are the last of the weight, the same number for every head. */
typedef struct abar_attention {
    int64_t heads;
    int64_t value_row; /* rows value_row .. value_row + value_rows - 1 of the weight make v; those before, if any, q and k */
    int64_t value_rows;
    int64_t grid[2], side, shift; /* windows of side x side tokens on a rolled grid; side 0: all tokens are one sequence */
    abar_tensor columns;          /* (N, heads, T): what every token gets of its window's queries on average, before dropout,
                                   * so that a window's sum to 1; valid inside observe only */
} abar_attention;

/* One linear map: net fills it, curvature reads it. */
typedef struct abar_layer {
    const char *name;
    abar_tensor weight, bias, weight_grad, bias_grad; /* bias.ndim 0: none */
    abar_tensor input, output_grad;                   /* valid inside observe only; the shape, where it is known, always */
    double output_grad_scale;                         /* turns output_grad into dL/dz of the global batch mean */
    abar_window window;
    bool reads_network_input; /* "first layer" of methods.md section 1 */
    abar_attention attention;
} abar_layer;

#ifdef __cplusplus
}
#endif
#endif
