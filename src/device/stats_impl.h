/* Statistics of one linear map and the dense algebra that curvature needs: part of a device's core.
 *
 * A map sees its layer's inputs and output gradients as *rows* (methods.md section 0): one per example for vectors, per token for
 * sequences, per output position for convolutions, where the row is the flattened patch. Patches are never built. Sums
 * are added to accumulators of the device's dtype in device memory; the caller clears them. */
#ifndef ABAR_STATS_IMPL_H
#define ABAR_STATS_IMPL_H

#include "abar/tensor.h"

typedef struct abar__rows {
    abar_tensor input;       /* (N, C, H, W), (N, T, I) or (N, I); any layout; F64, F32 or BF16 */
    abar_tensor output_grad; /* (N, O, P, Q), (N, T, O) or (N, O) */
    double grad_scale;       /* p = grad_scale * output_grad */
    abar_window window;      /* of a convolution; unit for a linear layer */
    bool convolution;        /* input is (N, C, H, W) and rows are patches */
    bool bias;               /* rows end in a 1: d = in + 1 */
    int64_t group;           /* which of window.groups */
    int64_t examples, per_example; /* N, R */
    int64_t in, out;               /* patch length C/groups*kh*kw, outputs of this map */
} abar__rows;

static inline int64_t abar__rows_d(const abar__rows *r) { return r->in + (r->bias ? 1 : 0); }

/* Squares (d, d) are symmetric; a sum touches the lower triangle only, diagonal included (row i, columns 0..i). */
typedef struct abar__stats_ops {
    void (*input_sum)(abar_device *dev, const abar__rows *r, void *sum);                       /* (d): sum of a */
    double (*input_square)(abar_device *dev, const abar__rows *r);                             /* sum of |a|^2 */
    void (*grad_sum)(abar_device *dev, const abar__rows *r, void *sum);                        /* (out): sum of p */
    /* (out): sum over n of weight[n] * sum over r of p*p; weight NULL: 1. weight is host memory. */
    void (*grad_squares)(abar_device *dev, const abar__rows *r, const double *weight, void *sum);
    void (*input_means)(abar_device *dev, const abar__rows *r, void *means); /* (N, d): mean over the rows of each example */
    void (*grad_means)(abar_device *dev, const abar__rows *r, void *means);  /* (N, out) */
    /* sum over n of weight[n] * sum over r of a a^T; scratch as input_product_scratch says */
    void (*input_product)(abar_device *dev, const abar__rows *r, const double *weight, void *square, void *scratch);
    size_t (*input_product_scratch)(abar_device *dev, const abar__rows *r);
    void (*grad_product)(abar_device *dev, const abar__rows *r, void *square, void *scratch); /* sum of p p^T */
    size_t (*grad_product_scratch)(abar_device *dev, const abar__rows *r);
    void (*gram)(abar_device *dev, int64_t n, int64_t d, const void *x, void *square); /* square += x^T x, x is (n, d) */

    /* ema = beta * ema + add * pending, element by element over the lower triangle of a square (triangle true) or n
     * elements; pending is cleared. Returns false and changes only pending (clearing it) when a pending element is not finite. */
    bool (*commit)(abar_device *dev, int64_t n, bool triangle, void *ema, void *pending, double beta, double add);

    /* inverse (d, d, full) of scale * square + shift * I, square given by its lower triangle. in_double: factorise in
     * double precision. Returns false, leaving inverse undefined, when the matrix is not positive definite or the result
     * not finite. scratch: invert_scratch bytes. */
    bool (*invert)(abar_device *dev, int64_t d, const void *square, double scale, double shift, bool in_double, void *inverse,
                   void *scratch);
    size_t (*invert_scratch)(abar_device *dev, int64_t d);
    /* values (d) ascending and vectors (d, d; row i is eigenvector i) of scale * square. False when it does not converge. */
    bool (*eigen)(abar_device *dev, int64_t d, const void *square, double scale, void *values, void *vectors, void *scratch);
    size_t (*eigen_scratch)(abar_device *dev, int64_t d);
    double (*trace)(abar_device *dev, int64_t d, const void *square);

    /* y (m, n) = left^T? x right: left (m, m) or NULL, right (n, n) or NULL; transposes as the flags say; scratch (m, n). */
    void (*sandwich)(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x, const void *right,
                     bool right_t, void *y, void *scratch);
} abar__stats_ops;

#endif
