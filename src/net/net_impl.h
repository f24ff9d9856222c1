/* The internals of a net. Building creates nodes. Compiling turns them into steps: fused, with layouts decided, operations
 * created and memory planned. Running executes the steps forwards and backwards. */
#ifndef ABAR_NET_IMPL_H
#define ABAR_NET_IMPL_H

#include "abar/net.h"
#include "device/nn_impl.h"
#include "net/plan.h"

#define NAME_MAX_LENGTH 128
#define SCOPES_MAX 16

/* A tensor of the graph. Building sets the shape (without the batch), compiling the rest. */
typedef struct abar__value {
    abar__shape shape; /* building: of one sample; compiled: with the batch in front */
    int producer;      /* node, then step; -1: the input */
    int uses;          /* by nodes */
    bool wants_grad;   /* something before it has parameters */
    bool integer;      /* tokens: I32 on every device; only the input can be */
    abar_layout layout;
    int buffer;       /* index in the plan */
    int grad[2];      /* buffers whose sum is the gradient; -1: none */
    abar__op *join;   /* adds the gradients of several readers; NULL: not needed */
    int within;       /* the value whose memory contains this one and its gradient (views.c); -1: it has its own */
    int64_t channel;  /* the channel where it begins there */
    bool hosts;       /* other values are within it, some of them written earlier */
    int moments;      /* buffer of its channels' moments, for batch norms that read it or a value within it; -1: none */
    int moment_parts; /* of moments that the convolution computes whose output it is */
} abar__value;

typedef struct abar__param_info {
    abar_param public;
    char name[NAME_MAX_LENGTH + 16];
    int ndim;
    int64_t dim[4];
    size_t offset;          /* in the parameter block, and in the gradient block */
    size_t shadow_offset;   /* in the block of bf16 copies, where public.shadow.ndim is not 0 */
    double uniform, normal; /* initial distribution: half-width of a uniform or deviation of a normal one; both 0: constant */
    double constant;
} abar__param_info;

/* A node as built: one operation with its attributes. */
typedef struct abar__node {
    char name[NAME_MAX_LENGTH];
    abar__op_desc desc; /* kind and attributes; shapes are filled by compile */
    int in[ABAR_OP_MAX_IN], out;
    int stream;                      /* a value: the second output of a layer norm with a residual, -1: none */
    int param[ABAR_OP_MAX_PARAM];    /* -1: none */
    int norm;                        /* index of its running statistics, -1: none */
    int absorbed;                    /* another node does its work after fusion, -1: none */
    int source;                      /* the node whose name and parameters it uses after fusion, -1: its own */
    char tied[NAME_MAX_LENGTH + 16]; /* where its weight is another node's: the name it has here; "": it has its own */
} abar__node;

/* A step as executed. */
typedef struct abar__step {
    abar__op *op;
    int node; /* the one with its name and parameters; -1: a reorder */
    int in[ABAR_OP_MAX_IN], out, stream;
    int saved, forward_scratch, backward_scratch; /* buffers, -1: none */
    int dx[ABAR_OP_MAX_IN];                       /* buffers, -1: not wanted */
    int sum[ABAR_OP_MAX_IN][3];                   /* after backward: buffer [2] = [0] + [1], -1: nothing to add */
    int columns;                                  /* buffer of an attention's column means, -1: not wanted */
    size_t pattern;                               /* where its pattern is in the block of them */
    bool passes_dy;                               /* its dx is its dy: backward has nothing to do */
    int sums;               /* buffer: of the sums that a convolution takes for the batch norm before it, or
                             * of those that a batch norm is given; -1: none */
    abar__norm_before norm; /* where a convolution takes them */
    int layer;              /* index of its abar_layer, -1: none */
    abar__op_args args;     /* pointers, set once */
    double forward_seconds, backward_seconds, observe_seconds;
    abar_node_info info; /* what abar_net_node returned last */
} abar__step;

/* Running statistics of one batch norm. */
typedef struct abar__norm_state {
    char name[3][NAME_MAX_LENGTH + 24]; /* running_mean, running_var, num_batches_tracked */
    int64_t channels;
    size_t offset[2]; /* mean, variance: in both blocks */
    int64_t batches;  /* num_batches_tracked */
} abar__norm_state;

/* One tensor of the state dict. */
typedef struct abar__entry {
    const char *name;
    int param, norm, part; /* a parameter, or part 0 .. 2 of a norm's state; -1: not this */
} abar__entry;

struct abar_net {
    abar_context *ctx;
    abar_device *dev; /* NULL: not compiled */
    abar_compile_config config;
    abar_status status; /* the first mistake made while building */
    char error[256];
    char scope[NAME_MAX_LENGTH]; /* "layer1.0." */
    size_t scope_start[SCOPES_MAX];
    int scopes;

    abar__value *values;
    abar__node *nodes;
    abar__param_info *params;
    abar__norm_state *norms;
    abar__step *steps;
    abar_layer *layers;
    abar__buffer *buffers;
    abar__entry *entries;
    int n_values, n_nodes, n_params, n_norms, n_steps, n_layers, n_buffers, n_entries;
    int cap_values, cap_nodes, cap_params, cap_norms, cap_steps, cap_layers, cap_buffers, cap_entries;
    int input, output, loss; /* value, value, node; -1: none yet */
    int embedding, tied;     /* nodes; -1: none */
    int dropouts;

    /* device memory */
    void *param_block, *grad_block, *shadow_block, *running, *pending, *arena, *target;
    float *share;   /* of pairs of labels, share_at bytes into the target's block */
    void *patterns; /* choices of ReLUs and maximum pools */
    size_t param_bytes, shadow_bytes, running_bytes, arena_bytes, target_bytes, share_at, pattern_bytes;
    bool borrows_arena; /* it is that of config.share, as are all blocks before it but the gradients' and the pending one */

    abar__run run;
    abar_loss *result;       /* memory that both host and device can access */
    int64_t pending_batches; /* training forward passes since the last commit */
    bool ran_forward;
    bool profile;
    abar_net_memory memory_plan;
    void **events; /* profiling a queued device: its ticks (profile.c), or else NULL */
    double *clock; /* profiling another device: the ticks in seconds */
};

/* Grows the array by one element and returns its index, or a negative status. */
int abar__net_grow(abar_net *net, void **array, int *count, int *capacity, size_t element);

/* A step whose backward may be late (abar__op.can_be_late) is joined at most so many steps later: until then its memory is
 * kept. */
#define ABAR_NET_LATE 8

/* Keeps the first mistake for abar_net_compile. Returns an invalid value, which every builder passes on. */
abar_value abar__net_mistake(abar_net *net, const char *format, ...) ABAR_PRINTF(2, 3);
abar_value abar__net_out_of_memory(abar_net *net);
/* For the builders in ops/: a node's config, read as abar__struct_read does. False after a mistake. */
bool abar__net_config(abar_net *net, const abar__node *node, const char *type, const void *from, void *out, size_t bytes);

/* For the builders in ops/: checks the inputs and creates a node. NULL after a mistake. */
abar__node *abar__net_node(abar_net *net, abar__op_kind kind, const char *name, int n_in, const abar_value *in);
/* Creates the node's output value and returns it. */
abar_value abar__net_finish(abar_net *net, abar__node *node, const abar__shape *shape);
/* Adds a parameter with this name in the current scope; NULL after a mistake. */
abar__param_info *abar__net_add_named(abar_net *net, abar__node *node, int slot, const char *name, abar_param_kind kind,
                                      int ndim, const int64_t *dim);
/* The same, named NODE.suffix. */
abar__param_info *abar__net_add_param(abar_net *net, abar__node *node, int slot, const char *suffix, abar_param_kind kind,
                                      int ndim, const int64_t *dim);
/* Adds weight (out, in, ...) and, where wanted, bias (out), with their initial distributions. layers: for
 * ABAR_INIT_GPT_RESIDUAL. False after a mistake. */
bool abar__net_add_weights(abar_net *net, abar__node *node, int ndim, const int64_t *dim, bool bias, abar_init init,
                           int64_t layers);
const abar__shape *abar__net_shape(const abar_net *net, int value);
/* A tensor with the value's shape and layout at this address. */
abar_tensor abar__net_view(const abar_net *net, int value, const void *data);
/* "64x8x8" */
const char *abar__shape_text(const abar__shape *shape, char text[64]);

#define ABAR_NET_DROPOUTS 256 /* at most, in one net: the counter of a draw has so many numbers for them */

/* compile.c, in this order */
abar_status abar__net_check_share(abar_net *net); /* share.c: whether config.share has the same tensors */
abar_status abar__net_list_state(abar_net *net);  /* state.c: the state dict */
void abar__net_fuse(abar_net *net);               /* fuse.c */
abar_status abar__net_make_steps(abar_net *net);  /* steps.c: layouts, operations */
void abar__net_place_views(abar_net *net);        /* views.c: values that are parts of others */
abar_status abar__net_plan_memory(abar_net *net); /* memory.c: buffers, lifetimes, arena */
void abar__net_sum_memory(abar_net *net);         /* net.c: memory_plan */
abar_status abar__net_init_params(abar_net *net); /* init.c */
abar_status abar__net_reset_share(abar_net *net); /* of every pair of labels, to 1 */

size_t abar__value_bytes(const abar_net *net, int value);
/* Whether gradients flow through this step. */
bool abar__goes_back(const abar_net *net, const abar__step *step);

/* profile.c. While profiling: records that step s has run forward (-1: the pass begins), has run backward with its gradients
 * added, or (observed) has been observed. */
abar_status abar__profile_forward(abar_net *net, int s);
abar_status abar__profile_backward(abar_net *net, int s, bool observed);
void abar__profile_release(abar_net *net);
int64_t abar__multiply_adds(const abar_net *net, const abar__op_desc *d); /* of one sample's forward pass */
/* The measured time of step s, and the bytes and multiplications it needs. */
void abar__net_work(const abar_net *net, int s, abar_node_info *out);

#endif
