/* Networks: a graph built by calls that read like a forward pass, compiled once, then run.
 *
 *     abar_value x = abar_input(net, 3, (int64_t[]){1, 28, 28});
 *     x = abar_conv2d(net, x, "conv1", &ABAR_CONFIG(abar_conv2d_config, .out = 6, .kernel = 5, .pad = 2, .bias = true));
 *     x = abar_max_pool(net, abar_relu(net, x), &ABAR_CONFIG(abar_pool_config, .kernel = 2));
 *     x = abar_linear(net, abar_flatten(net, x), "fc", &ABAR_CONFIG(abar_linear_config, .out = 10, .bias = true));
 *     abar_softmax_cross_entropy(net, x, 0.0);
 *     abar_net_compile(net, dev, &ABAR_CONFIG(abar_compile_config, .batch = 128, .training = true));
 *
 * Builder calls report nothing: the first mistake is remembered, later calls pass it on, and compile returns it. */
#ifndef ABAR_NET_H
#define ABAR_NET_H

#include "abar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_net abar_net;

/* A tensor of the graph, by number; negative after a mistake. */
typedef struct abar_value {
    int id;
} abar_value;

abar_status abar_net_create(abar_context *ctx, abar_net **out);
void abar_net_destroy(abar_net *net);

/* ---- building ------------------------------------------------------------------------------------------------- */

/* Names given between push and pop are prefixed: push "layer1.0", name "conv1" -> "layer1.0.conv1". */
void abar_scope_push(abar_net *net, const char *format, ...);
void abar_scope_pop(abar_net *net);

/* How a weight is initialised. fan-in counts inputs of one output, fan-out outputs of one input (channels x kernel). */
typedef enum abar_init {
    ABAR_INIT_TORCH,        /* uniform(+-1/sqrt(fan in)), weight and bias: PyTorch's default for linear and conv */
    ABAR_INIT_KAIMING_IN,   /* normal, variance 2 / fan in; bias as in TORCH */
    ABAR_INIT_KAIMING_OUT,  /* normal, variance 2 / fan out; bias as in TORCH */
    ABAR_INIT_TRUNCATED,    /* normal 0.02, cut at 2 (not at 2 deviations, as timm has it: that is never); bias 0 */
    ABAR_INIT_GPT,          /* normal 0.02; bias 0 */
    ABAR_INIT_GPT_RESIDUAL, /* normal 0.02 / sqrt(2 layers): set abar_linear_config.layers; bias 0 */
} abar_init;

typedef struct abar_linear_config {
    size_t size; /* sizeof(abar_linear_config) */
    int64_t out;
    bool bias;
    abar_init init;
    int64_t layers; /* ABAR_INIT_GPT_RESIDUAL */
} abar_linear_config;

/* Square values; the *2 forms, where set, override them per axis (vertical, horizontal). 0 means the usual value. */
typedef struct abar_conv2d_config {
    size_t size; /* sizeof(abar_conv2d_config) */
    int64_t out;
    int64_t kernel, stride, pad, dilation; /* stride and dilation 0: 1 */
    int64_t kernel2[2], stride2[2], pad2[2], dilation2[2];
    int64_t groups; /* 0: 1 */
    bool bias;
    abar_init init;
} abar_conv2d_config;

typedef struct abar_pool_config {
    size_t size;                 /* sizeof(abar_pool_config) */
    int64_t kernel, stride, pad; /* stride 0: kernel */
} abar_pool_config;

abar_value abar_input(abar_net *net, int ndim, const int64_t *dim); /* without the batch; a net has one */
abar_value abar_linear(abar_net *net, abar_value x, const char *name, const abar_linear_config *config);
abar_value abar_conv2d(abar_net *net, abar_value x, const char *name, const abar_conv2d_config *config);
abar_value abar_batch_norm(abar_net *net, abar_value x, const char *name); /* momentum 0.1, eps 1e-5 */
abar_value abar_layer_norm(abar_net *net, abar_value x, const char *name, double eps);
abar_value abar_layer_norm_scale(abar_net *net, abar_value x, const char *name, double eps); /* without its bias */
abar_value abar_relu(abar_net *net, abar_value x);
abar_value abar_tanh(abar_net *net, abar_value x);
abar_value abar_gelu(abar_net *net, abar_value x);      /* with erf */
abar_value abar_gelu_tanh(abar_net *net, abar_value x); /* the tanh approximation */
abar_value abar_max_pool(abar_net *net, abar_value x, const abar_pool_config *config);
abar_value abar_average_pool(abar_net *net, abar_value x, const abar_pool_config *config); /* padding counts as zeros */
abar_value abar_global_average_pool(abar_net *net, abar_value x);                          /* (C, H, W) -> (C, 1, 1) */
abar_value abar_add(abar_net *net, abar_value a, abar_value b);
abar_value abar_concat(abar_net *net, int n, const abar_value *x); /* along channels */
abar_value abar_flatten(abar_net *net, abar_value x);
abar_value abar_shortcut(abar_net *net, abar_value x, int64_t channels, int64_t stride); /* option A of models.md */
abar_value abar_dropout(abar_net *net, abar_value x, double probability);

/* Sequences: values (T, D), batch in front. */
typedef struct abar_attention_config {
    size_t size; /* sizeof(abar_attention_config) */
    int64_t heads;
    bool causal;
    double drop;                  /* of the probabilities */
    int64_t grid[2], side, shift; /* windows of side x side on a grid of tokens, rolled by shift; side 0: all tokens */
} abar_attention_config;

abar_value abar_input_tokens(abar_net *net, int64_t length); /* in place of abar_input: I32 (T) */
/* Parameters wte.weight (vocabulary, width) and wpe.weight (length, width), named in the current scope; normal 0.02. */
abar_value abar_embedding(abar_net *net, abar_value tokens, int64_t vocabulary, int64_t length, int64_t width);
/* A linear layer without bias whose weight is the table of the net's embedding; the state dict has it under both names. It is
 * none of the net's abar_layers. */
abar_value abar_linear_tied(abar_net *net, abar_value x, const char *name);
abar_value abar_tokens(abar_net *net, abar_value x); /* (C, H, W) -> (H*W, C) */
/* (T, D) -> (T+1, D); parameters cls_token (normal 1e-6) and pos_embed (normal 0.02) in the current scope, as in timm. */
abar_value abar_class_token(abar_net *net, abar_value x);
/* qkv (T, 3D) -> (T, D); windowed: parameter NAME.relative_position_bias_table. */
abar_value abar_attention_heads(abar_net *net, abar_value qkv, const char *name, const abar_attention_config *config);
abar_value abar_patch_merge(abar_net *net, abar_value x, int64_t height, int64_t width); /* (H*W, C) -> (H/2*W/2, 4C) */
abar_value abar_token_mean(abar_net *net, abar_value x);                                 /* (T, D) -> (D) */
abar_value abar_token_first(abar_net *net, abar_value x);                                /* (T, D) -> (D) */
abar_value abar_drop_path(abar_net *net, abar_value x, double probability); /* stochastic depth: zeroes whole samples */

/* A net ends in one loss. x is also the net's output; one of (T, K) counts T rows of K classes per sample. */
void abar_softmax_cross_entropy(abar_net *net, abar_value x, double label_smoothing);
void abar_softmax_cross_entropy_soft(abar_net *net, abar_value x); /* targets are distributions */
void abar_squared_error(abar_net *net, abar_value x);              /* mean over all elements */

/* ---- models --------------------------------------------------------------------------------------------------- */

typedef struct abar_model abar_model;

struct abar_model {
    const char *name, *summary;
    const abar_option *options; /* may be NULL */
    size_t config_size;
    int64_t variant;  /* what tells the members of a family apart: blocks a stage */
    bool text;        /* reads tokens and predicts the next one at each; its classes are the vocabulary */
    int64_t input[3]; /* its usual input: channels, height, width; of a text: tokens, 1, 1 */
    int64_t classes;  /* its usual class count */
    /* Changes input and classes as its options say; NULL: they have no say in them. */
    void (*shape)(const abar_model *model, const void *config, int64_t input[3], int64_t *classes);
    /* Reads x (channels, height, width), or tokens (length) of a text; returns logits (classes), or (length, classes). */
    abar_value (*build)(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config);
};

const abar_model *abar_model_find(const char *name); /* NULL: no such model */
const char *const *abar_model_names(void);           /* NULL-terminated */
/* What a model with these options reads, and its class count, where the data leave them open. */
void abar_model_shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes);
/* The net's input of this shape: abar_input, or for a text model abar_input_tokens of input[0] tokens. */
abar_value abar_model_input(const abar_model *model, abar_net *net, const int64_t input[3]);

/* ---- compiling ------------------------------------------------------------------------------------------------ */

typedef struct abar_compile_config {
    size_t size; /* sizeof(abar_compile_config) */
    int64_t batch;
    bool training;  /* plan for backward too */
    bool plan_only; /* infer, fuse and plan, but allocate nothing: for reports */
    uint64_t seed;  /* of the initial weights */
} abar_compile_config;

abar_status abar_net_compile(abar_net *net, abar_device *dev, const abar_compile_config *config);

typedef enum abar_param_kind {
    ABAR_PARAM_WEIGHT, /* of linear maps and embeddings */
    ABAR_PARAM_BIAS,
    ABAR_PARAM_NORM,
    ABAR_PARAM_TOKEN, /* class token, positions, relative position biases */
} abar_param_kind;

typedef struct abar_param {
    const char *name; /* "layer1.0.conv1.weight" */
    abar_param_kind kind;
    abar_tensor value, grad; /* dense, in PyTorch's layout; cuda: convolution weights with channels last in memory */
    abar_tensor shadow;      /* the bf16 copy that operations read where activations are bf16; ndim 0: none */
} abar_param;

int abar_net_param_count(const abar_net *net);
const abar_param *abar_net_param(const abar_net *net, int i);
/* Whoever writes to parameters calls this before the next forward: it renews their shadows. An optimizer does so itself. */
abar_status abar_net_weights_changed(abar_net *net);

/* Everything a state dict holds, in PyTorch's order: parameters, running statistics, num_batches_tracked (I64). A tied weight
 * is there twice, under both names, over the same memory. For compiled nets. */
int abar_net_tensor_count(const abar_net *net);
void abar_net_tensor(const abar_net *net, int i, const char **name, abar_tensor *tensor);

/* The linear maps, in forward order. */
int abar_net_layer_count(const abar_net *net);
const abar_layer *abar_net_layer(const abar_net *net, int i);

typedef struct abar_net_memory {
    size_t parameters, gradients, buffers, arena, other; /* bytes */
    size_t arena_without_reuse;                          /* what the arena would be if nothing shared memory */
} abar_net_memory;

const abar_net_memory *abar_net_memory_plan(const abar_net *net); /* of a compiled net */

/* One pass of an operation. */
typedef struct abar_work {
    double seconds; /* summed while profiling is on */
    double bytes;   /* that a run has to move: what is read and what is written, once each */
    double flops;   /* of matrix products: two for a multiplication and its addition */
} abar_work;

/* One row per operation after fusion, for printing. */
typedef struct abar_node_info {
    const char *name, *operation, *implementation; /* "layer1.0.bn1", "batch_norm+relu", "cpu-batch-norm" */
    int ndim;
    int64_t dim[4];                    /* of the output, batch included */
    int64_t parameters, multiply_adds; /* multiply-adds of one sample's forward pass; INT64_MAX: more */
    abar_work forward, backward, observe;
} abar_node_info;

int abar_net_node_count(const abar_net *net);
/* Its times are those of this call; the pointer is good until the next call for the same i. */
const abar_node_info *abar_net_node(const abar_net *net, int i);
/* Takes the time of every operation from now on. Statistics then run after an operation's gradients instead of beside them. */
abar_status abar_net_profile(abar_net *net, bool on);
/* Adds the times of the last forward and backward pass to those before; waits for a queued device. */
abar_status abar_net_profile_take(abar_net *net);

/* ---- running -------------------------------------------------------------------------------------------------- */

/* The input (batch first; the device's layout and activation dtype, tokens I32: fill it by abar_tensor_copy) and the targets.
 */
abar_tensor abar_net_input(const abar_net *net);
abar_tensor abar_net_target(const abar_net *net); /* labels I32 (N) or (N, T), or as the loss says */
abar_tensor abar_net_output(const abar_net *net); /* what the loss reads; valid after forward */

/* What a linear map has read and written in a forward pass, in training or evaluation; good inside the observer's call only. */
typedef struct abar_layer_forward {
    abar_tensor input, output; /* output: after an activation that is fused to the map */
    bool causal;               /* of the attention that reads the output, where there is one ... */
    abar_tensor position_bias; /* ... and its relative position biases, ((2 side - 1)^2, heads); ndim 0: none */
} abar_layer_forward;

typedef struct abar_forward_observer {
    size_t size; /* sizeof(abar_forward_observer) */
    abar_status (*observe)(void *user, int layer_index, const abar_layer *layer, const abar_layer_forward *forward);
    void *user;
} abar_forward_observer;

typedef struct abar_run_config {
    size_t size;             /* sizeof(abar_run_config) */
    bool training;           /* batch statistics and dropout */
    int64_t valid;           /* samples that count, 0: all; the others must be finite but change nothing in evaluation */
    uint64_t seed;           /* dropout: seed, ... */
    int64_t step;            /* ... optimizer step ... */
    int64_t sample0;         /* ... and the place of the batch's first sample in the global batch */
    double loss_scale;       /* of the gradient, 0: 1 */
    const int64_t *step_now; /* queued devices: device memory that holds the step instead, for recordings; NULL: step */
    const struct abar_forward_observer *observer; /* looks at every linear map as it runs; NULL: none */
} abar_run_config;

/* On a queued device it returns at once where out is NULL; otherwise it waits. */
abar_status abar_net_forward(abar_net *net, const abar_run_config *run, abar_loss *out);
/* Where every forward leaves its loss; on a queued device once it has run. The device can read it too. */
const abar_loss *abar_net_loss(const abar_net *net);

/* Called in the backward pass for each linear map, when its input and output gradient are both there. */
typedef struct abar_observer {
    size_t size; /* sizeof(abar_observer) */
    abar_status (*observe)(void *user, int layer_index, const abar_layer *layer);
    void *user;
} abar_observer;

/* accumulate: add to the gradients instead of replacing them. observer may be NULL. */
abar_status abar_net_backward(abar_net *net, bool accumulate, const abar_observer *observer);

/* Running statistics move with every training forward, provisionally: commit keeps them, rollback forgets them. */
void abar_net_commit(abar_net *net);
void abar_net_rollback(abar_net *net);
/* Queued devices: commits, or rolls back where *skipped (device memory, abar_optim_skip_flag) is not 0. num_batches_tracked
 * moves when the caller knows: abar_net_count_batches. */
abar_status abar_net_settle(abar_net *net, const int32_t *skipped);
void abar_net_count_batches(abar_net *net, int64_t batches);

#ifdef __cplusplus
}
#endif
#endif
