/* The products of a linear layer in cuBLASLt (lt_product.h): which there are, and how they are chosen. */
#ifndef ABAR_CUDA_NN_LINEAR_H
#define ABAR_CUDA_NN_LINEAR_H

#include "device/cuda/nn/lt_product.h"

static inline bool abar__lt_is_gelu(abar__activation kind) { return kind == ABAR_ACT_GELU_ERF || kind == ABAR_ACT_GELU_TANH; }

/* Outputs first .. first + outputs - 1. */
typedef struct abar__lt_part {
    abar__lt_product y, dx, dw;
    int64_t first, outputs;
} abar__lt_part;

typedef struct abar__lt_linear {
    abar__lt_part parts[2];
    int n_parts;
    abar__lt_product dw_db;    /* dw and db at once, written; none: that is not faster */
    abar__lt_product y_gelu;   /* z and its GELU at once; none: the GELU is a pass after the product */
    abar__lt_product dx_slope; /* dx times the derivative of the GELU before; none: that map takes care of it */
    bool beside;               /* the gradient of the weight is made on the side stream, while that of the input is */
    size_t dx_scratch;         /* where the scratch of the latter begins */
    int64_t pitch;             /* from row to row of the output */
    bool tail;                 /* bias and ReLU are a pass after the product */
} abar__lt_linear;

static inline int64_t abar__lt_inputs(const abar__op *op) { return op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static inline int64_t abar__lt_outputs(const abar__op *op) { return op->desc.out.dim[op->desc.out.ndim - 1]; }
static inline int64_t abar__lt_rows(const abar__op *op) { return abar__shape_count(&op->desc.out) / abar__lt_outputs(op); }
static inline size_t abar__lt_element(const abar__op *op) { return abar_dtype_size(op->dev->activation); }

/* The products of a backward pass with one part; dw_db where the whole gradient is given. */
static inline const abar__lt_product *abar__lt_slope(const abar__lt_linear *l, bool with_bias)
{
    return with_bias && l->dw_db.desc ? &l->dw_db : &l->parts[0].dw;
}

static inline const abar__lt_product *abar__lt_dx(const abar__lt_linear *l)
{
    return l->dx_slope.desc ? &l->dx_slope : &l->parts[0].dx;
}

/* Enqueues work() on the side stream, after what is enqueued now; abar__lt_join waits for it. */
template <typename Work> static inline abar_status abar__lt_aside(abar_device *dev, Work work)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    const cudaStream_t main_stream = cuda->stream;
    CUDA_TRY(dev, cudaEventRecord(cuda->fork, main_stream));
    CUDA_TRY(dev, cudaStreamWaitEvent(cuda->side_stream, cuda->fork, 0));
    cuda->stream = cuda->side_stream;
    const abar_status status = work();
    cuda->stream = main_stream;
    ABAR_TRY(status);
    CUDA_TRY(dev, cudaEventRecord(cuda->join, cuda->side_stream));
    return ABAR_OK;
}

static inline abar_status abar__lt_join(abar_device *dev)
{
    CUDA_TRY(dev, cudaStreamWaitEvent(abar__cuda_of(dev)->stream, abar__cuda_of(dev)->join, 0));
    return ABAR_OK;
}

/* ---- linear_product.cu -------------------------------------------------------------------------------------------- */

/* As abar__lt_open and abar__lt_lay_out, followed by the epilogue, by cuBLASLt's first suggestion. What else a GELU's epilogue
 * reads or writes lies in memory as d does. */
cublasStatus_t abar__lt_make(const abar_device *dev, const abar__cuda_nn_state *nn, abar__lt_side a, abar__lt_side b,
                             abar__lt_side d, cublasLtEpilogue_t epilogue, abar__lt_product *out);

/* dw (and, with the epilogue BGRADB, db) of one part. */
cublasStatus_t abar__lt_make_slope(const abar__op *op, const abar__cuda_nn_state *nn, const abar__lt_linear *l,
                                   const abar__lt_part *p, cublasLtEpilogue_t epilogue, abar__lt_product *to);

/* Makes y_gelu and dx_slope where cuBLASLt can do that: in bf16, for the tanh form; its other forms are not GELU's. */
void abar__lt_make_gelus(const abar__op *op, const abar__cuda_nn_state *nn, abar__lt_linear *l);

/* ---- linear_choice.cu --------------------------------------------------------------------------------------------- */

/* Gives every product its algorithm, sets beside, and makes dw_db, y_gelu and dx_slope where they pay: as measured on random
 * numbers, now or earlier. */
abar_status abar__lt_choose(const abar__op *op, abar__cuda_nn_state *nn, abar__lt_linear *l);

#endif
