/* Tensors and layers. A tensor is a view: it describes memory and owns nothing. A layer describes one linear map (a linear
 * layer or a convolution) to a curvature method. */
#ifndef ABAR_TENSOR_H
#define ABAR_TENSOR_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ABAR_MAX_DIM 6

typedef struct abar_device abar_device;

typedef enum abar_dtype { ABAR_F64, ABAR_F32, ABAR_BF16, ABAR_F16, ABAR_I64, ABAR_I32, ABAR_U8 } abar_dtype;

/* The memory layout of a (N, C, H, W) activation. Blocked layouts (C8, C16, N16) ignore strides and pad the blocked dimension
 * with zeros. Parameters, gradients and optimizer state are always STRIDED. */
typedef enum abar_layout {
    ABAR_LAYOUT_STRIDED, /* by dim and stride; dense row-major unless stated otherwise */
    ABAR_LAYOUT_C8,      /* (N, C/8, H, W, 8): oneDNN's nChw8c */
    ABAR_LAYOUT_C16,     /* (N, C/16, H, W, 16): oneDNN's nChw16c */
    ABAR_LAYOUT_N16,     /* (N/16, C, H, W, 16): sixteen images side by side in a vector */
    ABAR_LAYOUT_NHWC,    /* (N, H, W, C): channels last */
    ABAR_LAYOUT_PADDED,  /* each row of the last dimension begins at a multiple of 64 bytes; internal: a view of such
                          * a value is STRIDED, with these strides */
} abar_layout;

typedef struct abar_tensor {
    abar_device *dev; /* the device that owns the memory; NULL: the host */
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
size_t abar_tensor_bytes(const abar_tensor *t);  /* memory spanned, with the padding of blocked layouts */
bool abar_tensor_is_dense(const abar_tensor *t); /* strided, row-major, no gaps */
/* A view of a weight (O, I, kh, kw) whose memory is dense (O, kh, kw, I). */
abar_tensor abar_tensor_wrap_channels_last(abar_device *dev, void *data, abar_dtype dtype, const int64_t dim[4]);
bool abar_tensor_is_channels_last(const abar_tensor *t); /* such a view, and not row-major as well */

/* The window of a convolution; a linear layer is the 1x1 case. Index 0 is vertical, 1 horizontal. */
typedef struct abar_window {
    int64_t kernel[2], stride[2], pad[2], dilation[2];
    int64_t groups;
} abar_window;

abar_window abar_window_unit(void);
/* Output size along one axis (methods.md section 0); <= 0 if the window does not fit. */
int64_t abar_window_out(const abar_window *w, int axis, int64_t in);

/* A linear map whose output is read by attention as queries, keys and values (methods.md section 2). heads 0: it is not. The
 * rows that produce v are the last rows of the weight, equally many per head. */
typedef struct abar_attention {
    int64_t heads;
    int64_t value_row; /* rows value_row .. value_row + value_rows - 1 produce v, earlier rows, if any, q and k */
    int64_t value_rows;
    int64_t grid[2], side, shift; /* windows of side x side tokens on a grid, shifted cyclically; side 0: one sequence */
    abar_tensor columns;          /* (N, heads, T): each token's attention probability, before dropout, averaged over the
                                   * queries of its window; sums to 1 over a window. Valid during observe only */
} abar_attention;

/* One linear map. A net fills it in; a program with its own training loop does so itself. */
typedef struct abar_layer {
    const char *name;
    abar_tensor weight, bias, weight_grad, bias_grad; /* bias.ndim 0: none */
    abar_tensor input, output_grad;                   /* data valid during observe only; shapes always, where they are known */
    double output_grad_scale; /* output_grad times this is the gradient of the mean loss over the whole batch */
    abar_window window;
    bool reads_network_input; /* it is a "first layer" of methods.md section 1 */
    abar_attention attention;
} abar_layer;

#ifdef __cplusplus
}
#endif
#endif
