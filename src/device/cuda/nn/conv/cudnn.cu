/* Convolution by cuDNN, and 1x1 ones by cuBLASLt, too: y = act(x * w + b) and its gradients, channels last. The gradients of
 * input and weight run concurrently. Bias, ReLU and the float32 gradient of cuDNN's weights are passes of our own. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/conv/dnn_conv.h"

enum { THREADS = 256 };

typedef struct conv {
    const abar__dnn_conv *choice; /* owned by the device */
    abar__dnn_pack pack[ABAR_DNN_PASSES];
    int64_t pixels, channels; /* of y */
    int64_t weights;
    size_t partials, data, slope; /* offsets in scratch: sums of the bias, workspaces of DATA and WEIGHTS; dw is first */
} conv;

/* ---- making ----------------------------------------------------------------------------------------------------- */

/* Scratch, backward: dw as cuDNN writes it, where it is staged; partial sums of the bias; two workspaces. A product writes or
 * adds to the gradient itself. */
static void plan_scratch(abar__op *op)
{
    conv *c = (conv *)op->priv;
    const abar__dnn_choice *pass = c->choice->pass;
    const abar__dnn_choice *slope = &pass[ABAR_DNN_WEIGHTS];
    const size_t element = slope->product.of.desc ? 0 : slope->graph.bf16_result ? sizeof(bf16) : sizeof(float);
    const size_t bias = op->desc.bias ? abar__cuda_bias_partials(op->dev, c->pixels, c->channels) : 0;
    const size_t data = op->desc.need_dx[0] ? abar__dnn_workspace(&pass[ABAR_DNN_DATA]) : 0;
    const size_t forward = abar__dnn_workspace(&pass[ABAR_DNN_FORWARD]);
    c->partials = abar__round_up((size_t)c->weights * element, ABAR_CUDA_ALIGN);
    c->data = c->partials + abar__round_up(bias, ABAR_CUDA_ALIGN);
    c->slope = c->data + abar__round_up(data, ABAR_CUDA_ALIGN);
    const size_t backward = c->slope + abar__dnn_workspace(slope);
    op->scratch_bytes = (forward > backward ? forward : backward) + ABAR_CUDA_ALIGN;
}

static abar_status create(abar__op *op, unsigned from)
{
    const abar__op_desc *d = &op->desc;
    const bool relu = d->activation == ABAR_ACT_RELU;
    const abar__dnn_conv *choice;
    if (!relu && d->activation != ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__dnn_choose(op->dev, d, from, &choice));
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(conv), &op->priv));
    op->priv_bytes = sizeof(conv);
    conv *c = (conv *)op->priv;
    c->choice = choice;
    c->pixels = d->out.dim[0] * d->out.dim[2] * d->out.dim[3];
    c->channels = d->out.dim[1];
    c->weights = c->channels * (d->in[0].dim[1] / d->window.groups) * d->window.kernel[0] * d->window.kernel[1];
    plan_scratch(op);
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    op->backward_needs = ABAR_NEEDS_X | (relu ? (unsigned)ABAR_NEEDS_Y : 0u);
    return ABAR_OK;
}

static abar_status create_cudnn(abar__op *op) { return create(op, ABAR_CONV_DNN); }
static abar_status create_product(abar__op *op) { return create(op, ABAR_CONV_BLAS); }

/* Where a choice is measured; deterministic runs take cuDNN's first plan. */
static abar_status create_either(abar__op *op)
{
    return op->dev->config.deterministic ? ABAR_E_UNSUPPORTED : create(op, ABAR_CONV_EITHER);
}

static void destroy(abar__op *op)
{
    conv *c = (conv *)op->priv;
    for (int i = 0; i < ABAR_DNN_PASSES; i++) abar__dnn_pack_release(&c->pack[i]);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* A pass, in the stream of handle; a product adds to its result with beta 1. */
static abar_status run(abar__op *op, cudnnHandle_t handle, cudaStream_t stream, int pass, const void *x, const void *w,
                       const void *y, char *workspace, float beta = 0.0f)
{
    conv *c = (conv *)op->priv;
    const abar__dnn_choice *choice = &c->choice->pass[pass];
    void *const address[4] = {(void *)x, (void *)w, (void *)y, workspace};
    if (!choice->product.of.desc) {
        DNN_TRY(op->dev, abar__dnn_run(handle, &choice->plan, address, &c->pack[pass]));
        return ABAR_OK;
    }
    return abar__lt_explain(op->dev, abar__conv_product_run(&choice->product, address, beta, stream));
}

static const void *weight_of(const abar__op *op, const abar__op_args *a)
{
    return abar__cuda_is_bf16(op->dev) ? a->shadow[0] : a->param[0];
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const conv *c = (conv *)op->priv;
    abar__cuda_nn_state *nn;
    ABAR_TRY(abar__cuda_dnn(op->dev, &nn));
    ABAR_TRY(run(op, nn->main, abar__cuda_of(op->dev)->stream, ABAR_DNN_FORWARD, a->x[0], weight_of(op, a), a->y,
                 abar__cuda_workspace(a->scratch)));
    abar__cuda_bias_relu(op->dev, a->y, op->desc.bias ? (const float *)a->param[1] : NULL, op->desc.activation == ABAR_ACT_RELU,
                         c->pixels, c->channels);
    return abar__cuda_status(op->dev);
}

/* A thread owns an element of dw: copies it from the staging buffer, or adds it. */
template <typename T> static __global__ void take_over(const T *staged, float *dw, bool add, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) dw[i] = add ? dw[i] + load(staged, i) : load(staged, i);
}

/* The gradient of the weight, in the stream of handle. */
static abar_status run_weights(abar__op *op, const abar__op_args *a, cudnnHandle_t handle, cudaStream_t stream, char *scratch)
{
    const conv *c = (conv *)op->priv;
    const abar__dnn_choice *choice = &c->choice->pass[ABAR_DNN_WEIGHTS];
    const bool rounded = choice->graph.bf16_result, staged = !choice->product.of.desc && (rounded || a->accumulate);
    float *dw = (float *)a->dparam[0];
    ABAR_TRY(run(op, handle, stream, ABAR_DNN_WEIGHTS, a->x[0], staged ? (void *)scratch : dw, a->dy, scratch + c->slope,
                 a->accumulate ? 1.0f : 0.0f));
    if (!staged) return ABAR_OK;
    const unsigned blocks = (unsigned)abar__cuda_blocks(c->weights, THREADS);
    if (rounded)
        take_over<<<blocks, THREADS, 0, stream>>>((const bf16 *)scratch, dw, a->accumulate, c->weights);
    else
        take_over<<<blocks, THREADS, 0, stream>>>((const float *)scratch, dw, a->accumulate, c->weights);
    CUDA_TRY(op->dev, cudaGetLastError());
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const conv *c = (conv *)op->priv;
    const abar__cuda *cuda = abar__cuda_of(op->dev);
    char *scratch = abar__cuda_workspace(a->scratch);
    abar__cuda_nn_state *nn;
    ABAR_TRY(abar__cuda_dnn(op->dev, &nn));
    abar__cuda_bias_relu_gradient(op->dev, a->dy, op->desc.activation == ABAR_ACT_RELU ? a->y : NULL,
                                  op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, c->pixels, c->channels,
                                  (float *)(scratch + c->partials));
    if (!op->desc.need_dx[0]) {
        ABAR_TRY(run_weights(op, a, nn->main, cuda->stream, scratch));
        return abar__cuda_status(op->dev);
    }
    CUDA_TRY(op->dev, cudaEventRecord(cuda->fork, cuda->stream));
    CUDA_TRY(op->dev, cudaStreamWaitEvent(cuda->side_stream, cuda->fork, 0));
    ABAR_TRY(run_weights(op, a, nn->side, cuda->side_stream, scratch));
    CUDA_TRY(op->dev, cudaEventRecord(cuda->join, cuda->side_stream));
    ABAR_TRY(run(op, nn->main, cuda->stream, ABAR_DNN_DATA, a->dx[0], weight_of(op, a), a->dy, scratch + c->data));
    CUDA_TRY(op->dev, cudaStreamWaitEvent(cuda->stream, cuda->join, 0));
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_conv_either = {"cudnn-cublaslt-conv", ABAR_OP_CONV2D, create_either, forward, backward, destroy};
const abar__op_impl abar__cuda_conv_cudnn = {"cudnn-conv", ABAR_OP_CONV2D, create_cudnn, forward, backward, destroy};
const abar__op_impl abar__cuda_conv_product = {"cublaslt-conv", ABAR_OP_CONV2D, create_product, forward, backward, destroy};
