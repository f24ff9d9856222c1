/* The inside of a device: a table of core operations (linear algebra, statistics, update) that every back end fills.
 * device.c validates, the back ends trust. The nn operations stand apart in nn_impl.h, so that libabar_optim can do
 * without them. */
#ifndef ABAR_DEVICE_IMPL_H
#define ABAR_DEVICE_IMPL_H

#include "abar/device.h"
#include "base/base_impl.h"
#include "device/join_impl.h"
#include "device/stats_impl.h"
#include "device/step_impl.h"

/* One parameter tensor as a pass sees it: count dense elements of the device's dtype. Where pre is set they are a matrix of
 * rows, each preconditioned together with its element of bias. */
struct abar__update_item {
    abar__update_kind kind; /* that of a bias may differ from its weight's */
    bool cautious;          /* adamw, plain: the decay acts only where it agrees with the step */
    void *weight, *grad;
    void *state[3]; /* sgd, momentum: one, NULL without; adamw, nadamw: first and second moment; sfadamw: z - y, second moment;
                     * adahessian: first and second moment, diagonal; sophia: first moment, diagonal */
    int64_t count;
    double lr_scale, weight_decay;
    const abar__precondition *pre; /* NULL: the gradient as it is; set by ref's and cpu's step */
    int64_t rows;
    const struct abar__update_item *bias; /* (rows), updated with this item; NULL: none */
    void *shadow;                         /* bf16 copy of weight that the update writes too, in its order; NULL: none */
    int map;                              /* index of the plan that preconditions it, -1: none */
    int block;                            /* plain: of the block whose verdict may stop it, -1: none */
};

/* The rows of a map, as norm reads them. */
typedef struct abar__row_look {
    int64_t rows, columns; /* rows 0: it is not read by rows */
    const void *right;     /* (columns, and one for the bias): what the rows' products are taken with; NULL: none are */
    const void *bias;      /* (rows): the gradient of the bias; NULL: there is none */
    void *products;        /* (rows), elements of the bias included */
} abar__row_look;

/* adamw moves no element of a gradient beyond this on its way into the moments: their squares stay finite (methods.md section
 * 9). Gradients of runs that work are far below it; there the rule is torch.optim.AdamW. */
#define ABAR_ADAMW_LARGEST_F32 1e19
#define ABAR_ADAMW_LARGEST_F64 1e150
#define ABAR_SOPHIA_LEAST 1e-15 /* added to what sophia divides by */

/* The scalars of one step, for all kinds of updates. */
struct abar__update_scalars {
    double lr;
    double grad_scale;        /* multiplies every gradient first: clipping, mean over micro-batches */
    double momentum;          /* sgd, momentum */
    bool nesterov;            /* likewise */
    bool decoupled;           /* sgd */
    bool inside;              /* G <- G + lambda W before anything else is done to G, instead of any other decay */
    double beta1, beta2, eps; /* adamw, nadamw, sfadamw, adahessian; sophia: beta1 */
    int64_t t;                /* adamw and the like, adahessian: this is its t-th update, from 1 */
    bool schedule_free;       /* the rule is sfadamw, whose z have the weights t^time_power * (largest rate)^rate_power in x */
    double time_power, rate_power;
    double share;            /* sfadamw: c of this update */
    double power;            /* adahessian: kappa */
    double clip_scale;       /* sophia: rho times the number of loss terms */
    const int32_t *verdicts; /* plain: of the blocks, 1: leave the weight as it is */
};

#define ABAR_DEVICE_IDENTITY 32

typedef enum abar__side { ABAR_SIDE_STATS, ABAR_SIDE_RANKS, ABAR_SIDES } abar__side; /* statistics; exchanges of ranks */

/* Queued back ends (cuda): work is given in order and runs later, and a whole step can be recorded once and replayed. */
typedef struct abar__stream_ops {
    abar_status (*wait)(abar_device *dev); /* for all that was given; its failures are told here */
    abar_status (*set_stream)(abar_device *dev, void *stream);
    /* Zeroed memory that host and device both address, for what comes back (losses, reports) and goes in (batches). */
    abar_status (*shared_alloc)(abar_device *dev, size_t bytes, void **out);
    void (*shared_free)(abar_device *dev, void *memory, size_t bytes);
    /* Between begin and end work is written down instead of run. Nothing in between may wait or allocate. */
    abar_status (*capture_begin)(abar_device *dev);
    abar_status (*capture_end)(abar_device *dev, void **graph);
    abar_status (*replay)(abar_device *dev, void *graph);
    void (*forget)(abar_device *dev, void *graph); /* NULL: nothing */
    /* What is given between begin and end runs beside what follows, until join: for work that only reads what follows reads. A
     * side's work is in order; begin and end do not nest. */
    abar_status (*side_begin)(abar_device *dev, abar__side side);
    abar_status (*side_end)(abar_device *dev, abar__side side);
    abar_status (*side_join)(abar_device *dev, abar__side side);
    /* Marks in the queue: created, set, waited for, and the milliseconds between two that have passed. */
    abar_status (*event_create)(abar_device *dev, void **mark);
    void (*event_destroy)(abar_device *dev, void *mark);
    abar_status (*event_record)(abar_device *dev, void *mark);
    abar_status (*event_wait)(abar_device *dev, void *mark);
    bool (*event_done)(abar_device *dev, void *mark);
    double (*event_elapsed)(abar_device *dev, void *from, void *to);
    /* dst = src for bytes of device memory unless *skipped, else src = dst: keeps or forgets provisional state. */
    void (*settle)(abar_device *dev, void *dst, void *src, size_t bytes, const int32_t *skipped);
    abar_status (*copy_bytes)(abar_device *dev, void *dst, const void *src, size_t bytes); /* any two sides, in order */
    size_t (*memory_free)(abar_device *dev);
    void *(*current)(abar_device *dev); /* the queue that work is given to now */
    /* The same text for the same GPU, whatever this process calls it. */
    abar_status (*identify)(abar_device *dev, char text[ABAR_DEVICE_IDENTITY]);
} abar__stream_ops;

typedef struct abar_device_ops {
    const char *name;
    abar_dtype dtype;   /* of parameters, gradients and state */
    bool channels_last; /* images and activations are NHWC, convolution weights (O, kh, kw, I) in memory */
    int (*count)(void); /* of a queued device; NULL: one */
    /* required */
    abar_status (*open)(abar_device *dev);
    void (*close)(abar_device *dev);
    abar_status (*alloc)(abar_device *dev, size_t bytes, void **out); /* zeroed */
    void (*release)(abar_device *dev, void *memory, size_t bytes);
    /* dst and src have equal shapes; either may be on the host or blocked */
    abar_status (*copy)(abar_device *dev, const abar_tensor *dst, const abar_tensor *src);
    /* What ref's and cpu's step is made of (host/step.c); NULL on cuda.
     * norm: whether every element of the items' own gradients is finite; *norm: their Euclidean norm then, at most DBL_MAX; no
     * square overflows on the way. looks, of all maps, or NULL: an item whose map has one is the rows of that map and of those
     * behind it. Their products are taken in the same reading, and do not change the norm. */
    bool (*norm)(abar_device *dev, const abar__update_item *items, int n, const abar__row_look *looks, double *norm);
    void (*update)(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s);
    const abar__stats_ops *stats;
    const abar__step_ops *step;
    const abar__stream_ops *stream; /* NULL: work is done when a call returns */
    const abar__join_ops *join;     /* likewise */
} abar_device_ops;

struct abar_device {
    abar_context *ctx;
    const abar_device_ops *ops;
    abar_device_config config;
    int ordinal;           /* the N of "cuda:N" */
    abar_dtype activation; /* of values and their gradients between operations */
    int threads;
    char description[128];
    void *impl; /* the back end's own */
};

extern const abar__step_ops abar__host_step; /* of ref and cpu */
extern const abar_device_ops *const abar__ref_device, *const abar__cpu_device, *const abar__cuda_device;

const abar_device_ops *abar__device_find(const char *name); /* NULL: not in this build */

/* Between two places in the device's memory; enqueued where the device has streams. */
abar_status abar__device_copy(abar_device *dev, void *to, void *from, size_t bytes);

#endif
