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

/* A tensor of the graph. A negative id stands for a mistake made before. */
typedef struct abar_value {
    int id;
} abar_value;

abar_status abar_net_create(abar_context *ctx, abar_net **out);
void abar_net_destroy(abar_net *net);

/* ---- building ------------------------------------------------------------------------------------------------- */

/* Prefixes the names given until pop: after push "layer1.0", "conv1" becomes "layer1.0.conv1". */
void abar_scope_push(abar_net *net, const char *format, ...);
void abar_scope_pop(abar_net *net);

/* How weights are initialised. Fan-in is the number of inputs of one output, fan-out that of outputs of one input (channels x
 * kernel). */
typedef enum abar_init {
    ABAR_INIT_TORCH,        /* uniform(+-1/sqrt(fan in)), weight and bias: PyTorch's default for linear and conv */
    ABAR_INIT_KAIMING_IN,   /* normal, variance 2 / fan in; bias as in TORCH */
    ABAR_INIT_KAIMING_OUT,  /* normal, variance 2 / fan out; bias as in TORCH */
    ABAR_INIT_TRUNCATED,    /* normal 0.02, truncated at +-2 (as timm does: in effect never); bias 0 */
    ABAR_INIT_GPT,          /* normal 0.02; bias 0 */
    ABAR_INIT_GPT_RESIDUAL, /* normal 0.02 / sqrt(2 layers), for abar_linear_config.layers; bias 0 */
} abar_init;

typedef struct abar_linear_config {
    size_t size; /* sizeof(abar_linear_config) */
    int64_t out;
    bool bias;
    abar_init init;
    int64_t layers; /* ABAR_INIT_GPT_RESIDUAL */
} abar_linear_config;

/* kernel, stride, pad and dilation apply to both axes; kernel2 ... dilation2, where not 0, override them per axis (vertical,
 * horizontal). */
typedef struct abar_conv2d_config {
    size_t size; /* sizeof(abar_conv2d_config) */
    int64_t out;
    int64_t kernel, stride, pad, dilation; /* 0: 1; pad 0: none */
    int64_t kernel2[2], stride2[2], pad2[2], dilation2[2];
    int64_t groups; /* 0: 1 */
    bool bias;
    abar_init init;
} abar_conv2d_config;

typedef struct abar_pool_config {
    size_t size;                 /* sizeof(abar_pool_config) */
    int64_t kernel, stride, pad; /* stride 0: kernel */
} abar_pool_config;

abar_value abar_input(abar_net *net, int ndim, const int64_t *dim); /* shape of one sample; a net has one input */
abar_value abar_linear(abar_net *net, abar_value x, const char *name, const abar_linear_config *config);
abar_value abar_conv2d(abar_net *net, abar_value x, const char *name, const abar_conv2d_config *config);
abar_value abar_batch_norm(abar_net *net, abar_value x, const char *name); /* momentum 0.1, eps 1e-5 */
abar_value abar_layer_norm(abar_net *net, abar_value x, const char *name, double eps);
abar_value abar_layer_norm_scale(abar_net *net, abar_value x, const char *name, double eps); /* without bias */
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
abar_value abar_shortcut(abar_net *net, abar_value x, int64_t channels, int64_t stride); /* ResNet's option A (models.md) */
abar_value abar_dropout(abar_net *net, abar_value x, double probability);

/* Sequences: a sample is (T, D), T tokens of width D. */
typedef struct abar_attention_config {
    size_t size; /* sizeof(abar_attention_config) */
    int64_t heads;
    bool causal;
    double drop;                  /* dropout of the probabilities */
    int64_t grid[2], side, shift; /* windows of side x side tokens on a grid, shifted cyclically; side 0: one sequence */
} abar_attention_config;

abar_value abar_input_tokens(abar_net *net, int64_t length); /* instead of abar_input: I32 (T) */
/* Parameters wte.weight (vocabulary, width) and wpe.weight (length, width) in the current scope; normal 0.02. */
abar_value abar_embedding(abar_net *net, abar_value tokens, int64_t vocabulary, int64_t length, int64_t width);
/* A linear layer without bias whose weight is the embedding's wte.weight. The state dict lists it under both names. It is not
 * among the net's layers (abar_net_layer). */
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

/* A net has one loss. Its argument x is also the net's output: (K), the logits of K classes; (T, K), those of every token. */
void abar_softmax_cross_entropy(abar_net *net, abar_value x, double label_smoothing);
/* Targets of images that were mixed: two labels a row, and the share of the first (abar_net_target_share). With the share s
 * and smoothing e: t_k = (1 - e) (s [k = first] + (1 - s) [k = second]) + e / K. The label with the larger share counts as
 * correct, of equal ones the first. */
void abar_softmax_cross_entropy_pairs(abar_net *net, abar_value x, double label_smoothing);
void abar_softmax_cross_entropy_soft(abar_net *net, abar_value x); /* targets are distributions over the classes */
void abar_squared_error(abar_net *net, abar_value x);              /* mean over all elements */

/* ---- models --------------------------------------------------------------------------------------------------- */

typedef struct abar_model abar_model;

struct abar_model {
    const char *name, *summary;
    const abar_option *options; /* may be NULL */
    size_t config_size;
    int64_t variant;  /* distinguishes the members of a family, such as blocks per stage */
    bool text;        /* reads tokens and predicts the next token at each; classes are the vocabulary */
    int64_t input[3]; /* default input: channels, height, width; text: tokens, 1, 1 */
    int64_t classes;  /* default number of classes */
    /* Adjusts input and classes to the options; NULL: they do not depend on them. */
    void (*shape)(const abar_model *model, const void *config, int64_t input[3], int64_t *classes);
    /* From x (channels, height, width) to logits (classes); text: from tokens (length) to (length, classes). */
    abar_value (*build)(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config);
};

const abar_model *abar_model_find(const char *name); /* NULL: no such model */
const char *const *abar_model_names(void);           /* NULL-terminated */
/* The default input and number of classes of a model with these options. */
void abar_model_shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes);
/* Adds the net's input: abar_input of this shape, or for a text model abar_input_tokens of input[0] tokens. */
abar_value abar_model_input(const abar_model *model, abar_net *net, const int64_t input[3]);

/* ---- compiling ------------------------------------------------------------------------------------------------ */

typedef struct abar_compile_config {
    size_t size; /* sizeof(abar_compile_config) */
    int64_t batch;
    bool training;  /* for backward too */
    bool plan_only; /* do everything but allocate memory: for reports */
    uint64_t seed;  /* of the initial weights */
    /* A compiled net of the same layers on the same device, which must outlive this one; NULL: none. This net uses its
     * parameters and running statistics, and its arena where that is large enough: the two never run at the same time. Their
     * inputs may differ in size, their losses in kind. With patterns it may be compiled for training: it then has gradients of
     * its own, and its forward passes leave the running statistics alone. */
    const abar_net *share;
    /* ReLUs and maximum pools record their choices in a forward pass, and repeat them in passes with
     * abar_run_config.repeat: the function that such passes compute is smooth. They are not fused with other operations. */
    bool patterns;
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
    abar_tensor value, grad; /* dense, shaped as in PyTorch; cuda: convolution weights are channels-last in memory */
    abar_tensor shadow;      /* bf16 copy of value, read by operations whose activations are bf16; ndim 0: none */
} abar_param;

int abar_net_param_count(const abar_net *net);
const abar_param *abar_net_param(const abar_net *net, int i);
/* Updates the shadows. To be called after a program has written to parameters, before the next forward; optimizers do it
 * themselves. */
abar_status abar_net_weights_changed(abar_net *net);

/* The state dict of a compiled net, in PyTorch's order: parameters, running statistics, num_batches_tracked (I64). A tied
 * weight is listed under both names, over the same memory. */
int abar_net_tensor_count(const abar_net *net);
void abar_net_tensor(const abar_net *net, int i, const char **name, abar_tensor *tensor);

/* The linear maps, in forward order. */
int abar_net_layer_count(const abar_net *net);
const abar_layer *abar_net_layer(const abar_net *net, int i);
/* The layer whose output is the loss's argument, flattened or not; -1: none, as with a tied head. Of a compiled net. */
int abar_net_output_layer(const abar_net *net);

typedef struct abar_net_memory {
    size_t parameters, gradients, buffers, arena, other; /* bytes */
    size_t arena_without_reuse;                          /* the arena's size if no two buffers shared memory */
} abar_net_memory;

const abar_net_memory *abar_net_memory_plan(const abar_net *net); /* of a compiled net */

/* The cost of one pass of an operation. */
typedef struct abar_work {
    double seconds; /* total while profiling */
    double bytes;   /* read and written by one run, each byte counted once */
    double flops;   /* of one run's matrix products; a multiply-add is two */
} abar_work;

/* One row per operation after fusion, for printing. */
typedef struct abar_node_info {
    const char *name, *operation, *implementation; /* "layer1.0.bn1", "batch_norm+relu", "cpu-batch-norm" */
    int ndim;
    int64_t dim[4];                    /* of the output, batch included */
    int64_t parameters, multiply_adds; /* multiply_adds: of one sample's forward pass; INT64_MAX: overflow */
    abar_work forward, backward, observe;
} abar_node_info;

int abar_net_node_count(const abar_net *net);
/* Its times are those of this call; the pointer is good until the next call for the same i. */
const abar_node_info *abar_net_node(const abar_net *net, int i);
/* Measures the time of every operation from now on. Meanwhile statistics run after an operation's backward pass, not
 * concurrently. */
abar_status abar_net_profile(abar_net *net, bool on);
/* Adds the times of the last forward and backward pass to the totals. Waits for a queued device. */
abar_status abar_net_profile_take(abar_net *net);

/* ---- running -------------------------------------------------------------------------------------------------- */

/* The input, batch first, in the device's layout and activation dtype (tokens: I32). Write it with abar_tensor_copy. */
abar_tensor abar_net_input(const abar_net *net);
/* Labels I32 (N) or (N, T), pairs of them (N, 2) or (N, T, 2); soft targets and squared error: as output. */
abar_tensor abar_net_target(const abar_net *net);
/* Of a loss with pairs of labels: F32 (N) or (N, T), between 0 and 1; at first 1. Other losses: no dimensions, no data. */
abar_tensor abar_net_target_share(const abar_net *net);
/* Labels, (N) or (N, T) in host memory, into the target of a cross entropy; in a pair the label is both and its share is 1. */
abar_status abar_net_set_labels(abar_net *net, const int32_t *labels);
abar_tensor abar_net_output(const abar_net *net); /* the loss's argument; valid after forward */

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
    int64_t valid;           /* the first so many samples count, 0: all; the others must be finite */
    uint64_t seed;           /* random numbers of dropout: by seed, ... */
    int64_t step;            /* ... optimizer step ... */
    int64_t sample0;         /* ... and index of the first sample in the whole batch */
    double loss_scale;       /* multiplies the gradients, 0: 1 */
    const int64_t *step_now; /* queued devices: device memory with the step, for captured graphs; NULL: use step */
    const struct abar_forward_observer *observer; /* called for every linear map after it has run; NULL: none */
    bool repeat;                                  /* of a net with patterns: the choices of its last pass without this */
    bool draw_labels;  /* first replaces the labels by some drawn from the softmax, by seed, step and sample; cross entropy of
                        * one label a row */
    int64_t draw;      /* of draw_labels: draws of other numbers are independent of each other */
    int64_t one_class; /* 1 + k: first sets all labels to class k, and multiplies the gradient of each sample's loss by the root
                        * of its probability of k: of all classes together the rows of the exact Fisher matrix (ngd); cross
                        * entropy of one label a sample. 0: no */
    bool hold_statistics; /* running statistics stay as they are, where training would update them; not on queued devices */
    bool own_statistics;  /* the provisional running statistics become this batch's own */
} abar_run_config;

/* out may be NULL. On a queued device it waits for the result if out is given, and otherwise returns at once. */
abar_status abar_net_forward(abar_net *net, const abar_run_config *run, abar_loss *out);
/* Where forward writes its result, on a queued device asynchronously. The device can read this memory too. */
const abar_loss *abar_net_loss(const abar_net *net);

/* Called during backward for each linear map, while its input and output gradient are both in memory. */
typedef struct abar_observer {
    size_t size; /* sizeof(abar_observer) */
    abar_status (*observe)(void *user, int layer_index, const abar_layer *layer);
    void *user;
} abar_observer;

/* accumulate: adds to the gradients instead of overwriting them. observer may be NULL. */
abar_status abar_net_backward(abar_net *net, bool accumulate, const abar_observer *observer);

/* A training forward updates a provisional copy of the running statistics: commit keeps it, rollback discards it. */
void abar_net_commit(abar_net *net);
void abar_net_rollback(abar_net *net);
/* Queued devices: commits, or rolls back if *skipped (device memory: abar_optim_skip_flag) is not 0. The caller updates
 * num_batches_tracked once it knows which: abar_net_count_batches. */
abar_status abar_net_settle(abar_net *net, const int32_t *skipped);
void abar_net_count_batches(abar_net *net, int64_t batches);

#ifdef __cplusplus
}
#endif
#endif
