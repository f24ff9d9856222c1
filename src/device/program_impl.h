/* An optimizer step that a queued device runs without a word to the host: the skip decision, clipping, committing and
 * refreshing of rank-1 curvature, and the update, all from and to device memory (methods.md sections 0, 1, 3, 8, 9). So a whole
 * training step can be recorded once and replayed. optim.c makes a program where the device has them and the method can be
 * described by abar__kept_map (sgd, adamw, mac, smac). */
#ifndef ABAR_PROGRAM_IMPL_H
#define ABAR_PROGRAM_IMPL_H

#include "abar/tensor.h"

typedef struct abar__update_item abar__update_item;
typedef struct abar__update_scalars abar__update_scalars;
typedef struct abar__program abar__program; /* of the back end */

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
    ABAR_REAL_NUMBER,      /* the average of shape.number */
    ABAR_REAL_DAMPING,     /* rho of the last refresh; NaN: the method has none */
    ABAR_REAL_MEAN_SQUARE, /* |a|^2 of the last refresh, likewise */
    ABAR_REAL_CONDITION,   /* an upper estimate for the damped factor, likewise */
    ABAR_REAL_FACTOR,      /* the method's own */
    ABAR_REALS
};

typedef struct abar__map_state {
    int64_t count[ABAR_COUNTS];
    double real[ABAR_REALS];
} abar__map_state;

/* A map with a mean on the activation side, and for SMAC a diagonal on the other (methods.md sections 1, 3). Vectors are
 * float32 in device memory, in PyTorch's column order (I, kh, kw), the bias last. */
typedef struct abar__kept_map {
    int64_t d, out;
    int link, links;                 /* maps link .. link + links - 1 are parts of one: committed or dropped together */
    int number;                      /* of the whole, for refreshes that are spread */
    void *pending_a, *average_a, *u; /* (d): u = a / sqrt(rho + |a|^2) */
    void *pending_p, *average_p, *r; /* (out): r = 1 / (p + diagonal); NULL: identity */
    double *pending_t;               /* device memory: sum of |a|^2 where rho is adaptive; NULL: it is fixed */
    double rho, diagonal;
    bool coupled;   /* divide the whole by rho */
    bool fixed;     /* calibrated before step 0: a is never committed, u never refreshed; only p is */
    int64_t kernel; /* kh * kw where the weight's memory is (O, kh, kw, I): column i of memory (k, c) has u[c * kernel + k];
                       else 1 */
    double bound;   /* |G^| is at most this times |G|, but for 1 / rho where that is adaptive */
    /* calibrated with dataset-cov: (d, d) float32, G^ = rho * G * inverse in place of the rank-1 form; NULL: rank 1 */
    void *inverse;
} abar__kept_map;

typedef enum abar__program_rule { ABAR_PROGRAM_SGD, ABAR_PROGRAM_ADAMW } abar__program_rule;

typedef struct abar__program_desc {
    const abar__update_item *items; /* every parameter once: the norm is taken of these */
    int n_items;
    const abar__update_item *updates; /* what the rule is given; .map says which kept map preconditions it, with its .bias */
    int n_updates;
    const abar__kept_map *maps;
    int n_maps, n_numbers; /* numbers: linked maps count as one */
    abar__program_rule rule;
    const abar__update_scalars *scalars; /* the rule's own: momentum, nesterov, decoupled, beta1, beta2, eps */
    double stat_decay;
    int64_t tinv, refresh; /* as in abar_curvature_config; 0 without a method */
} abar__program_desc;

/* What one step reports; in shared memory, complete once the step's mark has passed. */
typedef struct abar__step_note {
    double loss; /* sum over the micro-batches of mean loss * count ... */
    int64_t correct, count;
    double grad_norm;
    int64_t k;
    int32_t skipped;
} abar__step_note;

typedef struct abar__program_ops {
    abar_status (*create)(abar_device *dev, const abar__program_desc *desc, abar__program **out);
    void (*destroy)(abar_device *dev, abar__program *p);
    size_t (*bytes)(const abar__program *p); /* that it holds, on both sides */
    /* New addresses and factors of items and updates, as many as before. ABAR_E_UNSUPPORTED, and nothing changed, where one has
     * another size than the one in its place had: then a new program is needed. */
    abar_status (*rebind)(abar_device *dev, abar__program *p, const abar__update_item *items, const abar__update_item *updates);
    /* Step k = first + i of what follows runs at rate lr[i]; n at most ABAR_PROGRAM_RATES. Waits for nothing. */
    abar_status (*rates)(abar_device *dev, abar__program *p, int64_t first, const double *lr, int64_t n);
    /* Forgets the losses of the step begun: call at its beginning (recorded with it). */
    abar_status (*begin)(abar_device *dev, abar__program *p);
    /* Adds what a forward pass left in result (device-visible memory) to the step's note; a loss that is not finite skips it.
     */
    abar_status (*add_loss)(abar_device *dev, abar__program *p, const void *result);
    /* One step: grad_scale and clip as in abar_step_config. to_mean: (n_maps, 3) host numbers that turn the pending sums of a,
     * p and t into means, all of them set on a step that observed; NULL: it took no statistics. Copied at once, and again by
     * every replay of a recording. */
    abar_status (*step)(abar_device *dev, abar__program *p, double grad_scale, double clip, const double *to_mean);
    /* cosine and ratio between G and G^ of every map as the last step applied it: (n_maps, 3) sums <G,G>, <G^,G>, <G^,G^> in
     * host memory. Waits. Call after the step, before the gradients change. */
    abar_status (*measure)(abar_device *dev, abar__program *p, double *products);
    const int32_t *(*skipped)(const abar__program *p);  /* device memory: the last step was skipped */
    const int64_t *(*step_now)(const abar__program *p); /* device memory: k */
    /* The note of step k, in shared memory: one of the last ABAR_PROGRAM_NOTES. */
    const abar__step_note *(*note)(const abar__program *p, int64_t k);
    /* Between device and host, waiting: k, t (updates performed) and the maps' state. Push also after u or r of a map were
     * written from outside (a checkpoint, calibration): the program keeps a copy of u in the order of the weight's memory. */
    abar_status (*pull)(abar_device *dev, abar__program *p, int64_t *k, int64_t *t, abar__map_state *maps);
    abar_status (*push)(abar_device *dev, abar__program *p, int64_t k, int64_t t, const abar__map_state *maps);
} abar__program_ops;

#define ABAR_PROGRAM_RATES 65536
#define ABAR_PROGRAM_NOTES 256

/* Images, or a text, in device memory, made into batches there: order, crop, flip, normalise, cut windows exactly as on the
 * host. */
typedef struct abar__feed abar__feed;

typedef struct abar__feed_desc {
    const uint8_t *images; /* (count, C, H, W), host; NULL: batches are streamed */
    const int32_t *labels; /* (count) */
    int64_t count, channels, height, width;
    int64_t context;        /* tokens of a window; 0: images, and the next two have no meaning */
    const uint16_t *tokens; /* (count), host: a text in place of images and labels; NULL: batches are streamed */
    int64_t windows;        /* that an order may have */
    int64_t batch;          /* samples of one fill: the micro-batch */
    int64_t step_batch;     /* samples of one step */
    const float *table;     /* (channels, 256): normalised value of each byte; text: NULL */
    uint64_t seed;
    int64_t crop_pad; /* 0: off */
    bool flip;
} abar__feed_desc;

typedef struct abar__feed_ops {
    abar_status (*create)(abar_device *dev, const abar__feed_desc *desc, abar__feed **out);
    void (*destroy)(abar_device *dev, abar__feed *f);
    size_t (*bytes)(const abar__feed_desc *desc); /* device memory that create would take */
    /* The samples of an epoch from its step `first` on: order has the whole epoch's, (n) host; of a text, where its windows
     * begin. */
    abar_status (*epoch)(abar_device *dev, abar__feed *f, int64_t epoch, int64_t first, const int32_t *order, int64_t n);
    /* Samples first .. first + batch of the current step into input (NHWC or dense, the device's activation dtype; tokens: I32
     * (batch, context)) and target (I32). Recordable. */
    abar_status (*fill)(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input, const abar_tensor *target);
    abar_status (*advance)(abar_device *dev, abar__feed *f); /* to the next step. Recordable. */
    /* Streaming: one step's batch, bytes (tokens: I32) as the loader yields them, for the fills that follow (of a resident set
     * too, until its next epoch). Copies before it returns. */
    abar_status (*stage)(abar_device *dev, abar__feed *f, const void *samples, const int32_t *labels);
} abar__feed_ops;

#endif
