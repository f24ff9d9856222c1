/* An optimizer step that a queued device runs without a word to the host: the skip decision, clipping, committing and
 * refreshing of curvature, preconditioning and the update, all from and to device memory (methods.md). So a whole training step
 * can be recorded once and replayed. optim.c makes a program where the device has them; a method describes its maps by
 * abar__kept_map. */
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

/* An average over steps (methods.md section 0). */
typedef struct abar__kept_average {
    int64_t n;               /* elements, or the side of a square kept by triangles (stats_impl.h); 0: none */
    bool square;             /* symmetric */
    void *average, *pending; /* float32 in device memory */
} abar__kept_average;

typedef enum abar__kept_kind {
    ABAR_KEPT_MEAN,  /* sections 1, 3: G^ = diag(r) (G - (G u) uT), u = a / sqrt(rho + |a|^2) */
    ABAR_KEPT_EVA,   /* section 6: G^ = G - s (wT G u) w uT, u = a / |a|, w = p / |p|, s = q / (rho + q), q = |a|^2 |p|^2 */
    ABAR_KEPT_DENSE, /* sections 1, 4, 5, 6: G^ = diag(r) inverse[1] G inverse[0] */
} abar__kept_kind;

typedef enum abar__kept_damping {
    ABAR_DAMPING_FIXED,    /* rho; dense: of inverse[0] */
    ABAR_DAMPING_ADAPTIVE, /* mean: max((t - |a|^2) / d, least t / d), t the map's number */
    ABAR_DAMPING_SHARED,   /* KFAC: pi sqrt(rho) and sqrt(rho) / pi, pi from the traces of both averages */
    ABAR_DAMPING_CLIPPED,  /* LNGD: the mean of the diagonal between least and most; of r likewise */
} abar__kept_damping;

/* A map as a device keeps it up by itself. Vectors are in PyTorch's column order (I, kh, kw), the bias last; what is derived is
 * float32 in device memory, NULL: none. */
typedef struct abar__kept_map {
    abar__kept_kind kind;
    int64_t d, columns, out; /* columns: of the weight, d without the bias */
    int link, links;         /* maps link .. link + links - 1 are parts of one: committed or dropped together */
    int number;              /* of the whole, for refreshes that are spread */
    int64_t kernel; /* kh * kw where the weight's memory is (O, kh, kw, I): column i of memory (k, c) has u[c * kernel + k];
                       else 1 */
    abar__kept_average average[2]; /* of activations, (d) or (d, d); of output gradients, (out) or (out, out) */
    double *pending_number;        /* device memory: the sum of one more average, ABAR_REAL_NUMBER; NULL: none */
    abar__kept_damping damping;
    double rho, least, most; /* least: of an adaptive rho, as a share of t / d; of clipped dampings, with most */
    double diagonal;         /* r = 1 / (average[1] + diagonal); clipped: 1 / (average[1] / number + its own damping) */
    bool fixed;      /* calibrated before step 0: average[0] is never committed, u or inverse never refreshed; only r is */
    double scale;    /* of G^ */
    bool coupled;    /* mean: divide it by the rho in force too */
    double mu;       /* LNGD: scale it by c = <G^, G> / (<G^, G>^2 + mu) too; 0: not */
    double bound;    /* mean, Eva: |G^| is at most this times |G|, without what coupled divides by */
    void *u, *w, *r; /* (d), (out), (out) */
    void *inverse[2], *values[2]; /* (d, d), (out, out); values: then eigenvectors by rows, with eigenvalues (d), (out), and
                                     G^ = V1T ((V1 G V0T) / (values1 values0 + rho)) V0. Both are renewed, or neither */
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
    int64_t tinv, refresh;   /* as in abar__curvature_config; 0 without a method */
    bool every_commit;       /* refresh after every commit, whatever tinv says */
    double kl_clip, base_lr; /* kappa and eta_0 of section 7; kl_clip 0: off */
    size_t room_bytes;       /* that the caller wants to use between steps */
} abar__program_desc;

/* What of a program is no map's. */
typedef struct abar__program_state {
    int64_t k, t;    /* steps so far; updates performed */
    double kl_scale; /* of the last step; 1 without a KL clip */
} abar__program_state;

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
    void *(*room)(const abar__program *p);   /* device memory, room_bytes of the description: the program's during a step */
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
    /* One step: grad_scale and clip as in abar_step_config; gradients of dense maps may be overwritten. to_mean: (n_maps, 3)
     * host numbers that turn the pending sums of average[0], average[1] and the number into means, all of them set on a step
     * that observed; NULL: it took no statistics. Copied at once, and again by every replay of a recording. */
    abar_status (*step)(abar_device *dev, abar__program *p, double grad_scale, double clip, const double *to_mean);
    /* cosine and ratio between G and G^ (before the KL clip) of every map as the last step applied it: (n_maps, 3) sums <G,G>,
     * <G^,G>, <G^,G^> in host memory. Waits. Call after the step, before the gradients change. */
    abar_status (*measure)(abar_device *dev, abar__program *p, double *products);
    const int32_t *(*skipped)(const abar__program *p);  /* device memory: the last step was skipped */
    const int64_t *(*step_now)(const abar__program *p); /* device memory: k */
    /* The note of step k, in shared memory: one of the last ABAR_PROGRAM_NOTES. */
    const abar__step_note *(*note)(const abar__program *p, int64_t k);
    /* Between device and host, waiting. Push also after what is derived of a map was written from outside (a checkpoint,
     * calibration): the program keeps a copy of u in the order of the weight's memory. */
    abar_status (*pull)(abar_device *dev, abar__program *p, abar__program_state *state, abar__map_state *maps);
    abar_status (*push)(abar_device *dev, abar__program *p, const abar__program_state *state, const abar__map_state *maps);
} abar__program_ops;

#define ABAR_PROGRAM_RATES 65536
#define ABAR_PROGRAM_NOTES 256

#endif
