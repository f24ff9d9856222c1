/* Dense curvature within an optimizer step on the device (methods.md sections 4 to 6, 9): inverses of symmetric factors, kept
 * without a word to the host (inverse.cu), and gradients multiplied by them (apply.cu). All maps take part in every
 * launch. step/step.cu, step/vectors.cu and step/matrices.cu decide what is wanted and what becomes of it. */
#ifndef ABAR_CUDA_FACTORS_DENSE_H
#define ABAR_CUDA_FACTORS_DENSE_H

#ifdef __cplusplus
#include "device/cuda/core/core_impl.h"
#else
#include "device/device_impl.h" /* tests are C */
#endif

/* ---- inverses ----------------------------------------------------------------------------------------------------- */

/* A symmetric factor by triangles, as stats_impl.h lays it out. */
typedef struct abar__cuda_factor {
    int64_t d;
    const float *average; /* (d, d): the upper triangle */
    float *pending; /* (d, d): the lower triangle, zero when an inversion begins and when it has ended: workspace to work */
    float *inverse; /* (d, d), full and symmetric; replaced only by a valid one */
    bool rounded;   /* the inverse to TF32, for products on tensor cores, which read no more */
    float *values;  /* (d): then eigenvalues go here, ascending, and eigenvectors into inverse, one per row; or NULL */
    int partner;    /* the other of a pair: where both are wanted, both are renewed or neither; -1: none */
    int64_t width;  /* not 0: only diagonal blocks of so many columns count, */
    double gamma;   /* each with this part of the mean of its diagonal added to its shift */
} abar__cuda_factor;

/* What is asked of a factor, and what came of it: one each in device memory, for kernels before and after. */
typedef struct abar__cuda_inversion {
    int32_t wanted;          /* set by who asks; 0 when it has ended */
    int32_t valid;           /* 1: the inverse is new; 0: it is the previous one; of partners the same */
    int32_t raised, doubled; /* rungs of the ladder that were climbed (methods.md section 9) */
    double scale, shift;     /* the inverse is of scale * average + shift * I; the ladder raises shift */
    double condition;        /* (scale * trace + shift * d) * |inverse|_F; with values: as it was */
} abar__cuda_inversion;

typedef struct abar__cuda_inverter abar__cuda_inverter;

/* ---- products ------------------------------------------------------------------------------------------------------ */

/* G^ = left G right of one map, before any scale; with eigenvalues: left^T ((left G right^T) / (values + shift)) right. G lies
 * in the order of the weight's memory (out, columns) with kernel = kh * kw (abar__plan), its bias apart; left and right are
 * in PyTorch's order, the bias last. */
typedef struct abar__cuda_product {
    int64_t out, columns, kernel, d;   /* d: columns, and 1 with a bias */
    const float *grad, *bias_grad;     /* (out, columns), (out); no bias_grad where d > columns: zeros */
    const float *left, *right;         /* (out, out), (d, d), symmetric or eigenvectors by rows; left NULL: the identity. Unless
                                        * exact, of large ones what TF32 has no place for is cut off: have them rounded. */
    const float *row_scale;            /* (out), multiplies the rows of the result; NULL: 1 */
    const float *left_values, *values; /* (out), (d): eigenvalues; NULL: none */
    double shift;                      /* beside the product of eigenvalues, negative ones taken as 0 */
    float *result;                     /* (out, columns) in the order of the weight's memory, then (out): the bias */
    int32_t wave;                      /* products of a wave are made together: 0, 1, ... in the order of the list */
    bool exact;                        /* in float32's own accuracy on any device, and then all of the list are */
} abar__cuda_product;

typedef struct abar__cuda_multiplier abar__cuda_multiplier;

#ifdef __cplusplus
extern "C" {
#endif
/* factors: (n) host memory, copied; asked: (n) device memory; workspace: device memory that nobody else uses while inversions
 * run, of inverter_workspace bytes, or NULL: it takes its own. */
abar_status abar__cuda_inverter_create(abar_device *dev, const abar__cuda_factor *factors, int n, abar__cuda_inversion *asked,
                                       void *workspace, abar__cuda_inverter **out);
size_t abar__cuda_inverter_workspace(abar_device *dev, const abar__cuda_factor *factors, int n);
void abar__cuda_inverter_destroy(abar_device *dev, abar__cuda_inverter *v);
size_t abar__cuda_inverter_bytes(const abar__cuda_inverter *v);
/* Every factor whose inversion is wanted when this runs; what the others were told by an earlier call is over. In a recording
 * the device decides how often what is repeated; otherwise the host looks on. */
abar_status abar__cuda_invert_wanted(abar_device *dev, abar__cuda_inverter *v);

/* products: (n) host memory, copied; workspace: device memory that nobody else uses while a wave runs, of multiplier_workspace
 * bytes, or NULL: it takes its own. */
abar_status abar__cuda_multiplier_create(abar_device *dev, const abar__cuda_product *products, int n, void *workspace,
                                         abar__cuda_multiplier **out);
size_t abar__cuda_multiplier_workspace(const abar__cuda_product *products, int n);
void abar__cuda_multiplier_destroy(abar_device *dev, abar__cuda_multiplier *m);
size_t abar__cuda_multiplier_bytes(const abar__cuda_multiplier *m);
/* New gradients in the places of the old: (n) host memory; waits for nothing but its own earlier call. */
abar_status abar__cuda_multiplier_rebind(abar_device *dev, abar__cuda_multiplier *m, const abar__cuda_product *products);
/* The products of all maps of a wave that are active, (n) device memory; the others are left alone. sums: (n, 3) device memory,
 * <G, G>, <G^, G>, <G^, G^> in double; broken[i] = 1 where an element is not finite, else 0: (n) device memory. Both are
 * written for active maps of the wave. Recordable. */
abar_status abar__cuda_multiply(abar_device *dev, abar__cuda_multiplier *m, int wave, const int32_t *active, double *sums,
                                int32_t *broken);
#ifdef __cplusplus
}
#endif

#endif
