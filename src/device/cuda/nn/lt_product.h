/* A product of matrices as cuBLASLt has it: its description, the algorithms that are offered for it, and running it. For linear
 * layers (linear.h) and 1x1 convolutions (conv/product.cu).
 *
 * cuBLASLt is column-major: what is (R, C) here is a C x R matrix there, and every product is transposed. */
#ifndef ABAR_CUDA_NN_LT_PRODUCT_H
#define ABAR_CUDA_NN_LT_PRODUCT_H

#include "device/cuda/nn/cuda_nn_handles.h"

#define ABAR_LT_WORKSPACE ((size_t)32 << 20) /* of a product, at most */

typedef struct abar__lt_product {
    const abar__cuda_nn_state *nn;
    cublasLtMatmulDesc_t desc; /* NULL: there is none */
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    cublasLtEpilogue_t epilogue;
} abar__lt_product;

/* One matrix of a product: its memory as (rows, width), and whether it is to be transposed. */
typedef struct abar__lt_side {
    cudaDataType_t type;
    int64_t rows, width, pitch;
    cublasOperation_t op;
} abar__lt_side;

abar_status abar__lt_explain(abar_device *dev, cublasStatus_t status);
/* cuBLASLt has no algorithm for such widths. */
bool abar__lt_is_refusal(cublasStatus_t status);

/* Describes d (rows, width) = a and b multiplied in cuBLASLt's order, in two steps, between which an epilogue may be set: the
 * operations of a and b, and where the matrices are. nn has blas open. A failure leaves something to release. */
cublasStatus_t abar__lt_open(const abar_device *dev, const abar__cuda_nn_state *nn, cublasOperation_t a, cublasOperation_t b,
                             abar__lt_product *out);
cublasStatus_t abar__lt_lay_out(abar__lt_product *p, const abar__lt_side &a, const abar__lt_side &b, const abar__lt_side &d);
void abar__lt_release(abar__lt_product *p); /* then there is none */
cublasStatus_t abar__lt_set(const abar__lt_product *p, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes);

/* Up to `most` algorithms whose sums have a fixed order, for memory aligned like the arena, the most promising first. */
cublasStatus_t abar__lt_ask(const abar__lt_product *p, int most, cublasLtMatmulHeuristicResult_t *out, int *found);
/* Whether the algorithm runs p within the workspace, of which it sets the size. */
bool abar__lt_fits(const abar__lt_product *p, const cublasLtMatmulAlgo_t *algo, size_t *workspace);
/* The result is written, or with beta 1 added to. */
cublasStatus_t abar__lt_run(const abar__lt_product *p, char *workspace, const void *a, const void *b, float beta, void *d,
                            cudaStream_t stream);

#endif
