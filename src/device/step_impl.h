/* An optimizer step as every device runs it (docs/architecture.md). Methods and rules describe what they do as a plan: data,
 * not code. A device turns the plans of all maps and the passes over all parameters into a step object once, and runs it every
 * step. No device knows a method.
 *
 * In a step, in this order: check (finite, norm, clipping, rate: sets the skip flag), commit (pending sums into running
 * averages), derive (what is due to be renewed from the averages), precondition (decides how each map's gradient is treated),
 * then the passes over the parameters. Decisions are made where the device can read them: on the host for ref and cpu, on the
 * GPU for cuda, so that a whole step can be captured and replayed. */
#ifndef ABAR_STEP_IMPL_H
#define ABAR_STEP_IMPL_H

#include "abar/tensor.h"
#include "base/both.h"
#include "device/blocks.h"
#include "device/extra.h"
#include "device/natural.h"
#include "device/orthogonalise.h"

typedef struct abar__update_item abar__update_item;
typedef struct abar__update_scalars abar__update_scalars;
typedef struct abar__compiled_step abar__compiled_step; /* of the back end */

#define ABAR_PLAN_AVERAGES 2
#define ABAR_PLAN_SCALARS 24
#define ABAR_PLAN_DERIVED 8

/* ---- the state of a map that is not a tensor ------------------------------------------------------------------------ */

/* Whole numbers and reals of a map that a checkpoint keeps. */
enum {
    ABAR_COUNT_COMMITS,    /* m of methods.md */
    ABAR_COUNT_READY,      /* 1: has had a valid refresh */
    ABAR_COUNT_DUE,        /* 1: a refresh could not be made when it should have been */
    ABAR_COUNT_CALIBRATED, /* 1: has seen the training set, where it wanted to */
    ABAR_COUNT_DROPPED,    /* events of methods.md section 9: statistics dropped, dampings raised, */
    ABAR_COUNT_RAISED,
    ABAR_COUNT_DOUBLED, /* factorisations that needed double precision, */
    ABAR_COUNT_KEPT,    /* refreshes that kept the previous inverse, gradients left as they are */
    ABAR_COUNTS
};
enum {
    ABAR_REAL_NUMBER,      /* the average of the plan's number */
    ABAR_REAL_DAMPING,     /* rho of the last refresh; NaN: the method has none */
    ABAR_REAL_MEAN_SQUARE, /* |a|^2 of the last refresh, likewise */
    ABAR_REAL_CONDITION,   /* an upper estimate for the damped factor, likewise */
    ABAR_REAL_FACTOR,      /* of an outer product that is subtracted */
    ABAR_REALS
};

typedef struct abar__map_state {
    int64_t count[ABAR_COUNTS];
    double real[ABAR_REALS];
} abar__map_state;

/* ---- plans ------------------------------------------------------------------------------------------------------------ */

/* What is summed over the rows of a map (methods.md section 0). */
typedef enum abar__statistic {
    ABAR_STATISTIC_NONE,
    ABAR_INPUT_MEAN,            /* (d): a */
    ABAR_ATTENTION_MEAN,        /* (d): a weighted by attention (section 2); by positions where the plan says so */
    ABAR_INPUT_PRODUCT,         /* (d, d): a aT */
    ABAR_INPUT_MEAN_PRODUCT,    /* (d, d): of the examples' mean rows */
    ABAR_INPUT_WEIGHED_PRODUCT, /* (d, d): a aT, weighted by the size of each example's gradient (section 6) */
    ABAR_GRAD_MEAN,             /* (out): p */
    ABAR_GRAD_SQUARES,          /* (out): p * p */
    ABAR_GRAD_WEIGHED_SQUARES,  /* (out): p * p, weighted by the size of each example's input */
    ABAR_GRAD_PRODUCT,          /* (out, out): p pT */
    ABAR_GRAD_MEAN_PRODUCT,     /* (out, out): of the examples' mean rows */
    /* Of the mean rows of a step's examples, which are kept until the step. */
    ABAR_INPUT_ROWS,    /* (kept, d): themselves */
    ABAR_GRAD_ROWS,     /* (kept, out) */
    ABAR_INPUT_NEAREST, /* (d, d) and (out, out): the factors whose Kronecker product is nearest to E[aaT (x) ppT] */
    ABAR_GRAD_NEAREST,
    ABAR_NUMBER_SQUARE,  /* |a|^2, weighted as the mean is */
    ABAR_NUMBER_WEIGHTS, /* the product of both weights */
} abar__statistic;

/* What a sum is divided by at the commit. */
typedef enum abar__per { ABAR_PER_ROW, ABAR_PER_EXAMPLE, ABAR_PER_SEQUENCE } abar__per;

/* A running average. */
typedef struct abar__running_average {
    const char *name; /* NULL: not used */
    abar__statistic source;
    int64_t n;   /* elements, or the side of a square */
    bool square; /* symmetric, kept by triangles (stats_impl.h) */
    abar__per per;
    int grad_power;          /* how often p is a factor: --pgrad per-example multiplies by B to this power */
    bool own_loss;           /* p is the gradient of each example's own loss, whatever --pgrad says */
    bool calibrated;         /* from one pass over the training set before step 0; never committed */
    int64_t kept, row;       /* mean rows that are kept until the step, and their length; kept 0: none */
    void *average, *pending; /* of the device's dtype, in its memory */
    void *rows;              /* likewise, (kept, row): zero behind those of the step; may be what is pending */
} abar__running_average;

/* Numbers that are computed at a refresh, from averages (read with their bias corrected) and from each other. */
typedef enum abar__scalar_kind {
    ABAR_SCALAR_VALUE,  /* value */
    ABAR_SCALAR_MEAN,   /* of average a: the mean of its diagonal, or of a vector's elements */
    ABAR_SCALAR_SQUARE, /* of average a: |x|^2 */
    ABAR_SCALAR_NUMBER, /* the plan's number */
    /* of scalars a and b */
    ABAR_SCALAR_ADD,
    ABAR_SCALAR_SUBTRACT,
    ABAR_SCALAR_MULTIPLY,
    ABAR_SCALAR_DIVIDE,
    ABAR_SCALAR_SQRT,
    ABAR_SCALAR_MAX,
    ABAR_SCALAR_MIN,
    ABAR_SCALAR_RATIO,      /* a / b; 1 where one of them is not positive */
    ABAR_SCALAR_RECIPROCAL, /* 1 / a; 0 where a is not positive */
    ABAR_SCALAR_SHARE,      /* a / (a + b); 1 where a is not finite */
} abar__scalar_kind;

typedef struct abar__scalar_op {
    int32_t kind, a, b;
    int32_t calibrated; /* rests on a calibrated average */
    double value;
} abar__scalar_op;

/* A tensor that is derived from an average at a refresh. */
typedef enum abar__derived_kind {
    ABAR_DERIVED_BUFFER,       /* not derived: memory that the step works in */
    ABAR_DERIVED_VECTOR,       /* scale * average */
    ABAR_DERIVED_RECIPROCAL,   /* 1 / (scale * average + shift) */
    ABAR_DERIVED_INVERSE,      /* (average + shift I)^-1, by the ladder of section 9 */
    ABAR_DERIVED_EIGENVECTORS, /* of average, one per row; their eigenvalues in derived tensor `values` */
    ABAR_DERIVED_SOLVED,       /* of averaged rows X: L^-1 X, L LT = X XT + shift I; the shift, after the ladder, in `values` */
    ABAR_DERIVED_RING,         /* gradients of the last steps, one per row: written at every step (host/ring.h) */
    ABAR_DERIVED_GRAM,         /* their products with each other, in double on every device */
    ABAR_DERIVED_PAIRED /* B with B (average + shift I) BT = I and B second BT diagonal, by rows; the diagonal in `values` */
} abar__derived_kind;

typedef struct abar__derived_tensor {
    const char *name; /* NULL: not used */
    abar__derived_kind kind;
    int32_t width;        /* INVERSE: of the diagonal blocks of so many columns, each by itself, with `scale` times the mean of
                             its diagonal added to the shift; 0: of the whole */
    int64_t n;            /* elements */
    int32_t average;      /* which */
    int32_t scale, shift; /* scalars; -1: 1, 0 */
    int32_t values;       /* -1: none */
    int32_t rank;         /* INVERSE: 1 / shift but for so many eigenvectors, those of the largest eigenvalues; 0: exact */
    bool calibrated;
    void *data;
} abar__derived_tensor;

/* How a map's gradient is treated; indices of derived tensors, -1: none. In one of these ways, or none of them,
 *     G - (G u) uT,   G - s (wT G u) w uT  (s: ABAR_REAL_FACTOR),   left G right
 * or, with eigenvalues or paired, left^T ((left G right^T) / (values + shift)) right; then rows are scaled, and the whole.
 * Solved rows Z of X stand for (XT X + shift I)^-1 = (I - ZT Z) / shift. */
typedef struct abar__treatment {
    int32_t u, w, coefficient; /* coefficient: a buffer (out), where w is */
    int32_t left, right, row_scale;
    double shift;      /* beside products of eigenvalues */
    double least;      /* not 0: eigenvalues may be negative, and nothing is divided by less */
    double scale;      /* of all */
    bool over_damping; /* divide by ABAR_REAL_DAMPING, too */
    double mu;         /* not 0: multiply by c = <G^, G> / (<G^, G>^2 + mu), too (section 6) */
    double bound;      /* |G^| is at most this times |G|, without over_damping; of vectors only */
} abar__treatment;

/* Inverses that are learnt from differences between two passes over a batch, the second at new weights (host/secant.h): H_a of
 * the activations, derived[0], and H_p of the output gradients, derived[1]; the averages of differences in derived[2] and
 * derived[3]. */
typedef struct abar__secant {
    bool used;
    bool first_pass;            /* the average begins with one pass over the training set, and is read as it is */
    int64_t pairs;              /* derived[1] is (pairs, 2, out): the newest differences, from which H_p is made; 0: H_p */
    double shift, decay;        /* sqrt(lambda) of optimizers.md section 7; of the averages of differences */
    void *inputs[2], *grads[2]; /* sums over the rows of each pass: (d), (out) of the device's dtype */
    double *outputs;            /* (out): E[z] of the first pass */
} abar__secant;

/* The plan of one map. Vectors are in PyTorch's column order (I, kh, kw), the bias last. */
typedef struct abar__plan {
    int64_t d, columns, out; /* columns: of the weight, d without the bias */
    int32_t link, links;     /* maps link .. link + links - 1 are parts of one: committed or dropped together */
    int32_t number;          /* of the whole, for refreshes that are spread */
    int64_t kernel; /* kh * kw where the weight's memory is (O, kh, kw, I): column i of memory (k, c) is column c * kernel + k;
                       else 1 */
    int64_t positions; /* not 0: average[0] is pending as sums by position (abar__position_sums), multiplied at the commit */
    abar__running_average average[ABAR_PLAN_AVERAGES]; /* of activations, of output gradients */
    abar__running_average mean_number;                 /* one more average, a single number: pending in double */
    double identity; /* where averages of products begin: at so many times I; 0: at zero, for which they are corrected */
    int32_t rounds;  /* of the iteration for nearest factors, */
    int32_t start;   /* which begins from this derived tensor, (out, out) */
    int32_t second[2],
        second_start;    /* of a second term: averages of its factors, (d, d) and (out, out), and likewise; -1: none */
    int64_t slots;       /* of a ring of gradients: derived[0], with its products in derived[1]; 0: none */
    bool narrow;         /* the ring is bf16 */
    double ring_damping; /* lambda of optimizers.md section 8 */
    abar__secant secant;
    int32_t n_scalars, n_derived;
    abar__scalar_op scalar[ABAR_PLAN_SCALARS];
    abar__derived_tensor derived[ABAR_PLAN_DERIVED];
    int32_t report[ABAR_REALS]; /* scalars that become reals of the map at a refresh; -1: none */
    abar__treatment apply;
    abar__example_rows rows; /* instead of all that: the natural gradient */
    const char *wrong;       /* NULL, or what the description got wrong */
} abar__plan;

ABAR_BOTH bool abar__plan_is_calibrated(const abar__plan *p) { return p->average[0].calibrated; }
ABAR_BOTH bool abar__plan_keeps_rows(const abar__plan *p) { return p->average[0].kept || p->average[1].kept; }
ABAR_BOTH abar_dtype abar__derived_dtype(const abar__plan *p, const abar__derived_tensor *d, abar_dtype usual)
{
    return d->kind == ABAR_DERIVED_GRAM ? ABAR_F64 : d->kind == ABAR_DERIVED_RING && p->narrow ? ABAR_BF16 : usual;
}
ABAR_BOTH bool abar__plan_is_dense(const abar__plan *p) { return p->apply.right >= 0; }
ABAR_BOTH bool abar__plan_is_natural(const abar__plan *p) { return p->rows.examples > 0; }
ABAR_BOTH void *abar__plan_data(const abar__plan *p, int32_t derived) { return derived < 0 ? NULL : p->derived[derived].data; }

/* When to refresh, and what joins all maps. */
typedef struct abar__cadence {
    double stat_decay;             /* beta, the weight of the old value */
    int64_t offset;                /* the first step with statistics and refreshes */
    int64_t tinv, spread, numbers; /* steps between refreshes; 1: spread over the steps; numbers: of maps, linked ones as one */
    int32_t every_commit;          /* refresh after every commit, whatever tinv says */
    int32_t one_batch;             /* a refresh needs the statistics of its own step */
    double kl_clip, base_lr;       /* kappa and eta_0 of section 7; kl_clip 0: off */
} abar__cadence;

/* ---- passes over the parameters --------------------------------------------------------------------------------------- */

/* What an elementwise pass does with a gradient that is preconditioned and scaled (methods.md section 8). */
typedef enum abar__update_kind {
    ABAR_UPDATE_SGD,
    ABAR_UPDATE_ADAMW,
    ABAR_UPDATE_MOMENTUM, /* the gradient's memory becomes the average that methods.md section 11 orthogonalises; without state
                           * the gradient itself, preconditioned and scaled, for what treats it block by block */
    ABAR_UPDATE_PLAIN,    /* W <- (1 - eta lambda) W - eta G, G as it is in memory */
    ABAR_UPDATE_NADAMW,   /* adamw that looks one average ahead */
    ABAR_UPDATE_SFADAMW,  /* Schedule-Free AdamW: the weight is y, the states are z - y and v */
    ABAR_UPDATE_ADAHESSIAN,
    ABAR_UPDATE_SOPHIA,
    ABAR_UPDATE_KINDS
} abar__update_kind;

typedef enum abar__pass_kind {
    ABAR_PASS_UPDATE,
    ABAR_PASS_ORTHOGONALISE,
    ABAR_PASS_BLOCKS,
    ABAR_PASS_HYPERBALL /* of plain updates: each block is moved by G at a rate relative to its norm, which it keeps (section
                           11) */
} abar__pass_kind;

typedef struct abar__update_pass {
    abar__pass_kind kind;
    abar__update_kind update; /* of all its items, but for their biases */
    int first, n;             /* among the updates, or among the blocks of its kind */
} abar__update_pass;

#define ABAR_PASSES_MAX 11

/* Several ranks that make the same step, and may divide what each of them would do otherwise. */
typedef struct abar__owners {
    int rank, ranks;
    bool queued; /* gather is enqueued on the device and reads its memory; one rank has what several have */
    void *comm;
    /* All ranks: own goes to all others, and recv[r] gets recv_bytes[r] from each other rank r. */
    abar_status (*gather)(void *comm, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes);
    /* All ranks: send[r] goes to rank r, recv[r] comes from it. */
    abar_status (*exchange)(void *comm, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes);
} abar__owners;

static inline bool abar__owners_divide(const abar__owners *o) { return o->ranks > 1 || o->queued; }

/* Memory of the device that rank `owner` has made, and all others need. */
typedef abar_status (*abar__piece_visitor)(void *user, int owner, void *memory, size_t bytes);

/* A gradient that is part of a ring's rows. */
typedef struct abar__ring_piece {
    void *grad;
    int64_t count, at; /* at: where it begins in a row */
} abar__ring_piece;

typedef struct abar__ring {
    int32_t map;      /* whose plan has the ring */
    int32_t first, n; /* pieces that have a gradient now; what has none is zero in the row */
} abar__ring;

typedef struct abar__step_desc {
    const abar__update_item *items; /* every parameter with a gradient once: the norm is taken of these; .map: its first plan */
    int n_items;
    const abar__update_item *updates; /* what the passes are given; .map says which plan preconditions it, with its .bias */
    int n_updates;
    const abar__update_pass *passes;
    int n_passes;
    const abar__ns_block *blocks; /* of passes that orthogonalise */
    int n_blocks;
    const abar__ns *ns;
    double row_decay;           /* of the blocks' row moments */
    bool ns_exact;              /* in float32 on any device */
    const abar__block *tensors; /* blocks of passes that run the stages of block_plan */
    int n_tensors;
    const abar__block_plan *block_plan;
    const abar__plan *plans;
    int n_maps;
    const abar__extra_plan *extra; /* its items may change between steps, and their number at a rebind */
    const abar__ring *rings;       /* and their pieces must stay, too */
    int n_rings;
    const abar__ring_piece *pieces;
    bool second_pass;                    /* plans learn from a second pass: what a step changes is kept until that is judged */
    const abar__update_scalars *scalars; /* what rules set: all but lr, grad_scale and t */
    abar__cadence cadence;
    size_t workspace_bytes; /* that the caller wants to use between steps */
} abar__step_desc;

/* ---- running ----------------------------------------------------------------------------------------------------------- */

#define ABAR_BLOCK_EVENTS 3

/* What of a step's state is no map's. */
typedef struct abar__step_state {
    int64_t k, t;      /* steps so far; updates performed */
    double kl_scale;   /* of the last step; 1 without a KL clip */
    int64_t dropped;   /* (three in a row, ABAR_BLOCK_EVENTS) blocks whose step (orthogonal factor) was not finite, so far, */
    int64_t small;     /* whose average was too small to be normalised, */
    int64_t kept;      /* or whose average or root stayed as it was because the new one was not finite */
    double rate_max;   /* sfadamw: the largest rate so far, */
    double weight_sum; /* and the sum of the weights of z in x */
    int64_t diagonals; /* taken from extra gradients so far, */
    int64_t extra_dropped; /* and extra gradients that were not finite */
} abar__step_state;

/* What one step reports: complete once the step has finished on the device. */
typedef struct abar__step_outcome {
    double loss; /* sum over the micro-batches of mean loss * count ... */
    int64_t correct, count;
    double grad_norm;
    int64_t k;
    int32_t skipped;
    int32_t stops; /* a rank wants to stop */
} abar__step_outcome;

#define ABAR_STEP_RATES 65536
#define ABAR_STEP_RESULTS 256

typedef struct abar__step_ops {
    /* Compiles: memory, and tables that depend on sizes. Of the description, items, updates, passes, blocks, tensors and their
     * plan must stay. */
    abar_status (*create)(abar_device *dev, const abar__step_desc *desc, abar__compiled_step **out);
    void (*destroy)(abar_device *dev, abar__compiled_step *s);
    size_t (*bytes)(const abar__compiled_step *s);    /* that it holds, on both sides */
    void *(*workspace)(const abar__compiled_step *s); /* device memory, workspace_bytes: the step's while it runs */
    /* New addresses and factors of items and updates, as many as before. ABAR_E_UNSUPPORTED, and nothing changed, where one has
     * another size than the one in its place had: then a new step is needed. */
    abar_status (*rebind)(abar_device *dev, abar__compiled_step *s, const abar__step_desc *desc);
    /* Step k = first + i of what follows runs at rate lr[i]; n at most ABAR_STEP_RATES. Waits for nothing. */
    abar_status (*rates)(abar_device *dev, abar__compiled_step *s, int64_t first, const double *lr, int64_t n);
    /* Forgets the losses of the step begun: call at its beginning (captured with it). */
    abar_status (*begin)(abar_device *dev, abar__compiled_step *s);
    /* Adds what a forward pass left in result (memory the device reads) to the step's result; a loss that is not finite skips
     * it. */
    abar_status (*add_loss)(abar_device *dev, abar__compiled_step *s, const void *result);

    /* Extra gradients (device/extra.h). perturb: sign 1, -1 or 0. check_extra comes in front of check: a difference that is not
     * finite skips the step where no diagonal has been taken yet. take_extra: DIFFERENCE comes after check, SAMPLED after the
     * passes; both do nothing in a step that was skipped. */
    abar_status (*perturb)(abar_device *dev, abar__compiled_step *s, int sign);
    abar_status (*check_extra)(abar_device *dev, abar__compiled_step *s);
    abar_status (*take_extra)(abar_device *dev, abar__compiled_step *s, double grad_scale, double clip);

    /* The stages of a step, in the order of src/optim/step.c. grad_scale and clip as in abar_step_config. */
    abar_status (*check)(abar_device *dev, abar__compiled_step *s, double grad_scale, double clip);
    /* to_mean: (n_maps, 3) host numbers that turn the pending sums of average[0], average[1] and the number into means, all of
     * them 0 for a map that was not observed; NULL: no statistics were taken. Of the natural gradient: what turns the rows in
     * memory into R, examples of the batch, 0. Copied at once. Then what is due is derived; divided: of what ranks divide only
     * this rank's part, and visit_derived and settle follow. */
    abar_status (*commit)(abar_device *dev, abar__compiled_step *s, const double *to_mean, bool divided);
    abar_status (*precondition)(abar_device *dev, abar__compiled_step *s, bool measure);
    abar_status (*pass)(abar_device *dev, abar__compiled_step *s, int index);
    /* After the second pass over the batch of a step that was not skipped, where plans learn from it; NULL: the device has no
     * such stage. to_mean as above, of the second pass; fine: its loss was finite. *undone: a number of it was not, and the
     * step is as if it had been skipped. */
    abar_status (*second)(abar_device *dev, abar__compiled_step *s, const double *to_mean, bool fine, bool *undone);

    /* <G,G>, <G^,G>, <G^,G^> (before the KL clip) of every map in the last step, where it measured: (n_maps, 3) in host
     * memory. Waits. */
    abar_status (*measured)(abar_device *dev, abar__compiled_step *s, double *products);
    /* weight += factor * by, n elements; shadow: its bf16 copy, NULL: none. Enqueued between steps. */
    abar_status (*shift)(abar_device *dev, int64_t n, void *weight, const void *by, double factor, void *shadow);
    const int32_t *(*skipped)(const abar__compiled_step *s);  /* memory of the device: the last step was skipped */
    const int64_t *(*step_now)(const abar__compiled_step *s); /* likewise: k */
    void *(*losses)(const abar__compiled_step *s); /* what add_loss adds to, for abar__join_ops.total; NULL: not queued */
    /* The outcome of step k, one of the last ABAR_STEP_RESULTS. */
    const abar__step_outcome *(*outcome)(const abar__compiled_step *s, int64_t k);
    /* Between device and host, waiting. Push also after what is derived of a map was written from outside (a checkpoint,
     * calibration): a device may keep a copy in another order. */
    abar_status (*pull)(abar_device *dev, abar__compiled_step *s, abar__step_state *state, abar__map_state *maps);
    abar_status (*push)(abar_device *dev, abar__compiled_step *s, const abar__step_state *state, const abar__map_state *maps);
    void (*times)(const abar__compiled_step *s, double *refresh, double *apply); /* seconds so far; NaN: not measured */
    /* Between steps: ranks divide the refreshes of dense maps from now on, where abar__owners_divide; else no longer. */
    abar_status (*share)(abar_device *dev, abar__compiled_step *s, const abar__owners *owners);
    /* What ranks have derived in this step, of a rank in the same order everywhere; all: what they may derive in any step. */
    abar_status (*visit_derived)(abar_device *dev, abar__compiled_step *s, bool all, abar__piece_visitor visit, void *user);
    abar_status (*settle)(abar_device *dev, abar__compiled_step *s); /* all ranks have all of it; NULL: that is all */
    /* In the device's memory: dropped, small and kept of abar__step_state. */
    int64_t *(*block_events)(const abar__compiled_step *s);
} abar__step_ops;

#endif
