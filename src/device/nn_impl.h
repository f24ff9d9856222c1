/* The nn operations of a device: convolution, norms, pooling, losses.
 *
 * An operation is created once, by compile, from a description (abar__op_desc), and then run many times. On creation the
 * back end picks an implementation from an ordered list, which chooses its layouts and states how much memory it needs; the
 * net plans that memory and inserts reorders. Running an operation allocates nothing. */
#ifndef ABAR_NN_IMPL_H
#define ABAR_NN_IMPL_H

#include "device/device_impl.h"

typedef enum abar__op_kind {
    ABAR_OP_REORDER,    /* x -> y in another layout */
    ABAR_OP_LINEAR,     /* (R, I) -> (R, O); params: weight (O, I), bias (O) */
    ABAR_OP_CONV2D,     /* (N, C, H, W) -> (N, O, H', W'); params: weight (O, C/groups, kh, kw), bias (O) */
    ABAR_OP_BATCH_NORM, /* (N, C, H, W) or (N, C); params: scale, shift; buffers: running mean, running variance */
    ABAR_OP_LAYER_NORM, /* over the last dimension; params: scale, and shift where bias is set (else NULL: 0); with a residual
                         * of in[0] + in[1], which is a second output: the stream */
    ABAR_OP_ACTIVATION,
    ABAR_OP_POOL2D,
    ABAR_OP_ADD,      /* y = x0 + x1 */
    ABAR_OP_CONCAT,   /* along dimension 1, up to ABAR_OP_MAX_IN inputs */
    ABAR_OP_FLATTEN,  /* (N, C, H, W) -> (N, C*H*W) */
    ABAR_OP_SHORTCUT, /* option A: every stride-th pixel, zero channels on both sides */
    ABAR_OP_DROPOUT,
    ABAR_OP_EMBEDDING, /* tokens (N, T) I32 -> (N, T, D): table[token] + positions[t]; params: table (V, D), positions (S, D) */
    ABAR_OP_TOKENS,    /* (N, C, H, W) -> (N, H*W, C) */
    ABAR_OP_CLASS_TOKEN, /* (N, T, D) -> (N, T+1, D): [token; x] + positions; params: token (1, 1, D), positions (1, T+1, D) */
    ABAR_OP_ATTENTION,   /* qkv (N, T, 3D) -> (N, T, D); params: relative position bias ((2w-1)^2, heads) where windowed */
    ABAR_OP_PATCH_MERGE, /* (N, H*W, C) -> (N, H/2*W/2, 4C): channel (2x + y)*C + c of a pixel is its part at row y, column x */
    ABAR_OP_TOKEN_MEAN,  /* (N, T, D) -> (N, D) */
    ABAR_OP_TOKEN_FIRST, /* (N, T, D) -> (N, D): token 0, the class token */
    ABAR_OP_SOFTMAX_CROSS_ENTROPY, /* logits (N, K) or (N, T, K), target labels (N) or (N, T) I32, or pairs of them, or soft, of
                                    * the logits' shape -> mean over the rows of K of the valid samples; result.count counts
                                    * rows */
    ABAR_OP_SQUARED_ERROR,         /* x and target of one shape -> mean over all elements */
    ABAR_OP_KINDS
} abar__op_kind;

typedef enum abar__activation {
    ABAR_ACT_NONE,
    ABAR_ACT_RELU,
    ABAR_ACT_TANH,
    ABAR_ACT_GELU_ERF,
    ABAR_ACT_GELU_TANH,
} abar__activation;

#define ABAR_OP_MAX_IN 8
#define ABAR_OP_MAX_PARAM 2
#define ABAR_OP_MAX_BUFFER 2

typedef struct abar__shape {
    int ndim;
    int64_t dim[4];
} abar__shape;

/* What to compute. Fields that an operation does not use are zero. */
typedef struct abar__op_desc {
    abar__op_kind kind;
    int n_in;
    abar__shape in[ABAR_OP_MAX_IN], out;   /* batch included */
    abar_layout in_layout[ABAR_OP_MAX_IN]; /* of the inputs as they are; the operation may ask for others */
    abar_layout out_layout;                /* REORDER: the layout wanted */
    bool need_dx[ABAR_OP_MAX_IN];          /* gradients wanted; all false where nothing before it has parameters */
    abar_window window;                    /* CONV2D, POOL2D; SHORTCUT: stride */
    bool bias;                             /* LINEAR, CONV2D; LAYER_NORM: it has a shift */
    bool pad;                              /* LINEAR: the reader of the output accepts PADDED rows as well */
    abar__activation activation;           /* ACTIVATION; fused: RELU into LINEAR, CONV2D, BATCH_NORM, GELU into LINEAR */
    abar__activation input_activation;     /* LINEAR: the GELU fused into the LINEAR that makes in[0], if there is no other
                                            * reader */
    bool residual;                         /* BATCH_NORM: y = act(norm(in[0]) + in[1]); LAYER_NORM: y = norm(in[0] + in[1]) */
    bool patterned;                        /* ReLU alone, maximum POOL2D: its choices are recorded, and can be repeated */
    bool average;                          /* POOL2D: average (padding counts), else maximum */
    bool soft_targets, label_pairs;        /* SOFTMAX_CROSS_ENTROPY: the target, if not one label a row */
    double eps, momentum;                  /* norms */
    double smoothing;                      /* SOFTMAX_CROSS_ENTROPY */
    double drop;                           /* DROPOUT: probability of zero */
    bool per_sample;                       /* DROPOUT: whole samples are dropped (stochastic depth) */
    uint32_t number;                       /* DROPOUT, ATTENTION: which of the net's dropouts, part of the random key */
    int64_t vocabulary, positions;         /* EMBEDDING: rows V and S of its parameters; T <= S */
    /* ATTENTION; head h has columns h*D/heads .. of each of q, k, v, which follow each other in a token (timm, nanoGPT) */
    int64_t heads;
    bool causal;     /* token i sees tokens 0 .. i */
    int64_t grid[2]; /* PATCH_MERGE, windowed ATTENTION: the tokens are an image of so many rows and columns */
    int64_t side;    /* windowed: tokens attend within windows of side x side, T is the grid's area; 0: tokens attend to all */
    int64_t shift;   /* windowed: the grid is first rolled by -shift along both axes; parts of it that were not adjacent before
                      * the roll do not see each other (mask -infinity) */
} abar__op_desc;

/* The random numbers of DROPOUT and ATTENTION: word w of abar__random(seed, ABAR_DRAW_DROPOUT, 256 * step + number, index);
 * an element is zero where abar__uniform(w) < drop, else scaled by 1 / (1 - drop). With g = sample0 + n, the global number
 * of the sample:
 *     DROPOUT              element e of the global batch, e = g * (elements of a sample) + i: index e / 4, word e % 4
 *     DROPOUT per_sample   index g / 4, word g % 4
 *     ATTENTION            index ((g * heads + head) * T + query) * ceil(T / 4) + key / 4, word key % 4, where query and key
 *                          are token numbers in the original order, windowed or not */

/* The settings of one pass of the net. */
typedef struct abar__run {
    bool training; /* batch statistics, dropout */
    int64_t valid; /* losses use only the first valid samples of the batch */
    uint64_t seed; /* dropout's key: seed, */
    uint32_t step; /* step (where step_now is set, a queued device reads it there, so that a captured pass can be replayed) */
    const int64_t *step_now;
    int64_t sample0;   /* and the global number of the batch's first sample */
    double loss_scale; /* factor of the loss's gradient: 1 / micro-batches */
    bool repeat;       /* patterned operations repeat the choices of the last forward pass that recorded them */
    bool draw_labels;  /* SOFTMAX_CROSS_ENTROPY with a label a row: forward first draws the labels from the softmax. That of row
                        * r of  the global batch is the first class whose cumulative probability exceeds the uniform number of
                        * word 0 of  abar__random(seed, ABAR_DRAW_LABELS, step, r + 2^32 draw) */
    int64_t draw;      /* which of several */
    int64_t one_class; /* SOFTMAX_CROSS_ENTROPY with a label a row, 1 + k: forward first sets all labels to class k, and
                        * backward multiplies each row of the gradient by the root of its probability of k; 0: no */
    bool hold;         /* running statistics stay as they are; host devices only */
    bool own;          /* running statistics become the batch's */
    bool observing;    /* curvature observes the backward pass: attention writes its column means */
} abar__run;

/* Where the random number for the label of a row is. */
static inline uint64_t abar__run_label_index(const abar__run *run, int64_t row)
{
    return (uint64_t)row + ((uint64_t)run->draw << 32);
}

/* The batch norm whose output is the input of a CONV2D, for the sums that the CONV2D's backward takes for it. */
typedef struct abar__norm_before {
    const void *x, *y; /* its input; its output where it has a residual and a ReLU, whose mask is taken from there, else NULL */
    const void *other; /* the other summand of its output's gradient, or NULL */
    const void *scale, *shift, *saved;
    void *sums;          /* written: (channels, op->sum_parts) pairs of float32, of g and g (x - mean) */
    bool relu, residual; /* residual: g is rounded first, as the batch norm passes it on */
} abar__norm_before;

/* The memory of one run. Pointers that an operation did not ask for may be NULL. */
typedef struct abar__op_args {
    const abar__run *run;
    const void *x[ABAR_OP_MAX_IN];
    void *y;
    void *dy;                 /* LINEAR and CONV2D with a fused activation replace it by dL/dz in place, which curvature
                               * observes */
    bool dz_given;            /* LINEAR with a GELU: dy already is dL/dz, as its reader's op->slopes_dx says */
    const void *input_z;      /* LINEAR, where op->slopes_dx: z of the LINEAR that makes in[0], as it has saved it */
    const void *dy2;          /* a second summand of the output's gradient, or NULL; only where op->takes_dy2 */
    void *stream;             /* LAYER_NORM with a residual: in[0] + in[1], of y's shape; backward reads it again */
    const void *dstream;      /* its gradient, without the part that comes from y; NULL: it has no other reader */
    void *dx[ABAR_OP_MAX_IN]; /* written, or added to with add_dx; NULL where not needed */
    bool add_dx;              /* dx[0] already holds a gradient: add to it; only where op->view_align */
    /* Elements from one pixel to the next (NHWC) of x[i] and dx[i], and of y and dy; 0: the number of channels. Other values
     * occur only where op->view_align allows them. */
    int64_t x_pitch[ABAR_OP_MAX_IN], y_pitch;
    const void *param[ABAR_OP_MAX_PARAM];
    const void *shadow[ABAR_OP_MAX_PARAM]; /* where activations are bf16: bf16 copy of param, if a weight or bias; else NULL */
    void *dparam[ABAR_OP_MAX_PARAM];       /* added to when accumulate, else written */
    void *buffer[ABAR_OP_MAX_BUFFER];      /* running statistics, updated by a training forward */
    bool accumulate;
    bool late; /* backward may return while it still reads x and dy and writes dparam and scratch beside the queue, where
                * op->can_be_late: whoever sets this joins it (abar__stream_ops) before that memory is used again */
    bool table_written; /* EMBEDDING: the tied layer has already written dparam[0] in this pass: always add to it */
    void *pattern;      /* op->pattern_bytes, kept from a forward pass that records to those that repeat */
    const void
        *target; /* losses; written where labels are drawn; label_pairs: I32 (rows, 2), the row's own label and its partner's */
    const float *share; /* label_pairs: (rows), of the row's own label; its partner's has the rest */
    abar_loss *result;  /* losses; memory that the host can read: at once, or on a queued device after a wait */
    /* ATTENTION, written by backward where run->observing, unless NULL: (N, heads, T) of the device's dtype, in the original
     * order of tokens: the mean over the queries of its window of the probability (before dropout) that they give to this
     * token */
    void *columns;
    void *moments; /* CONCAT: a training forward writes the moments of those channels of y that it copies here, op->moment_bytes
                    * per channel; CONV2D: those of y, in op->moment_parts; BATCH_NORM: reads the moments of x here. NULL: not
                    * wanted, or BATCH_NORM computes its own */
    int moment_parts;              /* BATCH_NORM: moments come from a CONV2D in so many parts; 0: from a CONCAT */
    const abar__norm_before *norm; /* CONV2D: backward takes sums for it; NULL: not wanted */
    const void
        *sums; /* BATCH_NORM: those that backward needs, taken by a CONV2D in so many parts; NULL: it takes them itself */
    int sum_parts;
    void *saved;   /* op->saved_bytes, kept from forward to backward; of a LINEAR with a GELU: z, dense, in y's dtype */
    void *scratch; /* op->scratch_bytes, for one call */
} abar__op_args;

typedef struct abar__op abar__op;

/* Bytes of the moments that a CONV2D writes. */
static inline size_t abar__moment_bytes(int64_t channels, int parts)
{
    return (size_t)parts * (size_t)(2 * channels + 1) * sizeof(float);
}

/* One implementation of one kind of operation. */
typedef struct abar__op_impl {
    const char *name; /* "onednn-conv", for `abar models --verbose` and profiles */
    abar__op_kind kind;
    /* Sets op's layouts, needs and sizes, or returns ABAR_E_UNSUPPORTED: then the next implementation is tried. */
    abar_status (*create)(abar__op *op);
    abar_status (*forward)(abar__op *op, const abar__op_args *a);
    abar_status (*backward)(abar__op *op, const abar__op_args *a); /* NULL: no gradient */
    void (*destroy)(abar__op *op);                                 /* NULL: nothing to release */
} abar__op_impl;

/* Forward values that backward reads again. */
enum { ABAR_NEEDS_X = 1, ABAR_NEEDS_Y = 2, ABAR_NEEDS_STREAM = 4 };

struct abar__op {
    abar_device *dev;
    const abar__op_impl *impl;
    abar__op_desc desc;
    abar_layout in_layout[ABAR_OP_MAX_IN], out_layout; /* gradients have the layouts of their values */
    unsigned backward_needs;
    size_t saved_bytes, scratch_bytes, pattern_bytes;
    bool takes_dy2; /* backward can add dy2 to dy itself */
    bool can_be_late;
    bool y_is_x;    /* forward does nothing: y may be the memory of x[0] (flatten), and dx[0] that of dy */
    bool dx_is_dy;  /* backward only copies: every dx may be the memory of dy (add) */
    bool dx_alike;  /* backward computes one gradient for all inputs: every dx may be the same memory */
    bool slopes_dx; /* LINEAR with an input_activation: dx[0] is multiplied by its derivative at input_z */
    /* Not 0: x[0] and dx[0] may be channels of a wider value; their first channel and their pitch are multiples of this. For
     * a CONCAT this holds for every input and y; an input that is stored within y, with its dx in dy (and no dy2), is not
     * copied. */
    int view_align;
    size_t moment_bytes; /* of a channel: CONCAT: of the moments it writes; BATCH_NORM: of those it can read; 0: none */
    int moment_parts;    /* CONV2D: the moments of y that it can write are (channels, parts) of mean and sum of squared
                          * distances, then the parts' counts, all float32: abar__moment_bytes; 0: it writes none */
    int sum_parts;       /* CONV2D: parts of the sums that backward can take for a batch norm before it; 0: it cannot */
    bool takes_sums;     /* BATCH_NORM: backward can be given them */
    void *priv;          /* the implementation's own */
    size_t priv_bytes;
};

const char *abar__op_kind_name(abar__op_kind kind); /* "conv2d" */

/* Tries dev's implementations of desc->kind in order and takes the first that accepts. */
abar_status abar__op_create(abar_device *dev, const abar__op_desc *desc, abar__op **out);
void abar__op_destroy(abar__op *op);
abar_status abar__op_forward(abar__op *op, const abar__op_args *args);
abar_status abar__op_backward(abar__op *op, const abar__op_args *args);

/* A view of a value of this shape and layout on dev: PADDED becomes STRIDED. */
abar_tensor abar__shape_view(const abar_device *dev, const abar__shape *shape, abar_layout layout);
/* Elements from one row of a dense or PADDED value to the next. */
int64_t abar__row_pitch(const abar_device *dev, int64_t width, abar_layout layout);
/* Bytes of a value of this shape and layout on dev. */
size_t abar__shape_bytes(const abar_device *dev, const abar__shape *shape, abar_layout layout);
int64_t abar__shape_count(const abar__shape *shape);

/* Ordered implementation lists, NULL-terminated, one per back end. */
extern const abar__op_impl *const abar__ref_nn[], *const abar__cpu_nn[], *const abar__cuda_nn[];

#endif
