/* The inside of curvature. The frame (maps.c, curvature.c) keeps, for every map, the averages a method asks for: sums pending
 * over micro-batches, checked and committed at the step (methods.md section 0); and it decides when to refresh. A method says
 * what it keeps, adds to the sums, derives what it needs from the averages, and preconditions. mac.c is the one to read first.
 */
#ifndef ABAR_CURVATURE_IMPL_H
#define ABAR_CURVATURE_IMPL_H

#include "abar/curvature.h"
#include "device/device_impl.h"

#define ABAR_AVERAGES_MAX 2
#define ABAR_DERIVED_MAX 4

/* What all methods share (methods.md section 0). */
typedef struct abar__curvature_config {
    double stat_decay;  /* beta, the weight of the old value */
    int64_t tcov, tinv; /* steps between statistics, between refreshes */
    int64_t refresh;    /* 0: all maps at once; 1: spread over the steps */
    int64_t pgrad;      /* 0: p is the gradient of the batch mean; 1: times the batch (the Fisher's scale) */
    char skip_layers[ABAR_OPTION_TEXT_MAX]; /* patterns with * and ?, joined by commas: left to the rule as they are */
} abar__curvature_config;

/* The average of this name is the mean activation, which abar_optim_mean_activation reads. */
#define ABAR_MEAN_ACTIVATION "a"

/* A method's row of --kl-clip. config: its config struct, with a double kl_clip. */
#define ABAR_KL_CLIP_OPTION(config, standard)                                                                               \
    {                                                                                                                       \
        .name = "kl-clip", .type = ABAR_OPTION_REAL, .offset = offsetof(config, kl_clip), .fallback = standard, .min = 0.0, \
        .max = 1e30, .help = "kappa of the KL clip, which bounds the length of the step; 0: off"                            \
    }

typedef struct abar__curvature abar__curvature;
typedef struct abar__map abar__map;

/* What a sum is divided by at the commit. */
typedef enum abar__per { ABAR_PER_ROW, ABAR_PER_EXAMPLE, ABAR_PER_SEQUENCE } abar__per;

typedef struct abar__average_desc {
    const char *name; /* NULL: not used */
    int64_t n;        /* elements, or the side of a square */
    bool square;      /* symmetric, kept by triangles (stats_impl.h) */
    abar__per per;
    int grad_power; /* how often p is a factor: --pgrad per-example multiplies by B to this power */
} abar__average_desc;

typedef struct abar__derived_desc {
    const char *name; /* NULL: not used */
    int64_t n;
} abar__derived_desc;

/* What a method keeps for one map. */
typedef struct abar__map_shape {
    abar__average_desc average[ABAR_AVERAGES_MAX];
    abar__average_desc number; /* one more average: a single number, summed in double on the host; n unused */
    abar__derived_desc derived[ABAR_DERIVED_MAX];
    int64_t positions; /* not 0: average[0] is pending as sums by position (abar__position_sums), multiplied at the commit */
    bool dense;        /* preconditioned by apply; otherwise described, and done within the update pass */
    /* average[0] and what is derived from it come from one pass over the training set before step 0: the frame never commits
     * that average or the number, and the map is ready from step 0 on. */
    bool calibrated;
    size_t scratch; /* bytes of cv->scratch during observe or refresh; apply has cv->spare, a matrix (out, d) */
} abar__map_shape;

/* One linear map with its state. */
struct abar__map {
    const char *name; /* of the layer; its groups share it; rows of v: LAYER@v, or by head LAYER@v0, LAYER@v1, ... */
    int layer;
    int64_t group, in, d, out; /* d: in, and the bias */
    int64_t row, weight_rows;  /* the first of its rows in the layer's weight, and how many that has */
    /* A layer that makes q, k and v may be several maps on the same input, one after the other: maps link .. link + links - 1
     * are observed, committed, dropped and refreshed together, and have one number for --refresh spread. */
    int link, links, number;
    int part, parts; /* of the rows of v: which, of how many; part -1: other rows; parts 0: the layer has none */
    int64_t windows; /* sequences of an example, where part is not -1 */
    abar_attention attention;
    bool bias, first; /* first: reads the network's input */
    abar_window window;
    bool convolution;
    bool channels_last;            /* the weight lies (O, kh, kw, I): queued devices only */
    void *weight_grad, *bias_grad; /* this map's rows, in the caller's memory; NULL: no gradient now */
    abar__map_shape shape;
    void *average[ABAR_AVERAGES_MAX], *pending[ABAR_AVERAGES_MAX], *derived[ABAR_DERIVED_MAX];
    abar__position_sums by_position;       /* where shape.positions */
    double pending_number, rows, examples; /* of the pending sums */
    double *queued_number;                 /* pending_number on a queued device, in its memory; NULL: not needed */
    int64_t count[ABAR_COUNTS];
    double real[ABAR_REALS];
    double cosine, ratio; /* measured on request */
    abar__precondition pre;
    double bound; /* described maps: |G^| is at most this times |G| */
};

enum { ABAR_USES_INPUT = 1, ABAR_USES_OUTPUT_GRAD = 2 };

typedef struct abar__curvature_ops {
    abar_method method; /* what the public sees */
    unsigned uses;      /* ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD */
    bool every_commit;  /* refresh after every commit, whatever tinv says */
    size_t kl_clip;     /* offset of kappa, a double, in the method's config (methods.md section 7); kappa 0: off */
    /* Optional: what the option table cannot say. method: its name, for the error's text. */
    abar_status (*check)(abar_context *ctx, const char *method, const void *config);
    /* Optional: the same, once the maps are known. */
    abar_status (*check_maps)(const abar__curvature *cv);
    /* Optional: into how many maps the rows of v of a layer that feeds attention are divided; 0: they are like the others. */
    int64_t (*value_parts)(const abar__curvature *cv, const abar_layer *layer);
    /* Required. */
    void (*shape)(const abar__curvature *cv, const abar__map *map, abar__map_shape *out);
    void (*observe)(abar__curvature *cv, abar__map *map, const abar__rows *rows); /* a part of v: the first adds for all */
    /* Derives from the averages, each to be multiplied by unbias = 1 / (1 - beta^m). False: the previous stays in force. */
    bool (*refresh)(abar__curvature *cv, abar__map *map, double unbias);
    /* Maps that are not dense: fills map->pre and, where it is not 1, map->bound. */
    void (*describe)(abar__curvature *cv, abar__map *map);
    /* Dense maps whose G^ is G between two factors: fills in left, right, row_scale and largest where they are not NULL
     * and 1. False: it is not so, apply is asked. */
    bool (*factors)(const abar__curvature *cv, const abar__map *map, abar__dense_gradient *out);
    double (*length)(const abar__curvature *cv, double inner); /* optional: what that is multiplied by, from <G^, G> */
    /* Other dense maps: out (out, d) from g (out, d). */
    void (*apply)(abar__curvature *cv, abar__map *map, const void *g, void *out);
    /* Required where a shape is calibrated: sums over the training set before step 0. */
    void (*calibrate)(abar__curvature *cv, abar__map *map, const abar__rows *rows);
    bool (*end_calibration)(abar__curvature *cv, abar__map *map); /* false: could not derive */
    /* Required: tells a queued device how to keep the map up by itself. The frame has filled in its sizes and place. */
    void (*keep)(const abar__curvature *cv, const abar__map *map, abar__kept_map *out);
} abar__curvature_ops;

struct abar__curvature {
    abar_device *dev;
    const abar__stats_ops *stats;
    const abar__curvature_ops *ops;
    abar__curvature_config config;
    void *method_config;
    size_t config_bytes;
    abar__map *maps;
    int n_maps, maps_capacity, n_layers, n_numbers;
    int64_t k;               /* optimizer steps so far, skipped ones included */
    double grad_scale;       /* of the step: clipping, micro-batches; G is this times what lies in memory */
    double observed_scale;   /* of the step: p is this times what observe was told */
    double base_lr, kl_clip; /* eta_0 and kappa of methods.md section 7 */
    void *state;             /* all averages, pending sums and derived tensors */
    void *scratch;           /* the largest any map asked for; a queued device's program lends it between steps */
    void *spare;             /* what of it is free during apply */
    size_t state_bytes, scratch_bytes;
    char *names; /* of the layers, one after the other, then room for the longest name of a state tensor */
    size_t names_bytes, label_bytes;
    abar_phase_times times;
    bool measure;
};

const abar__curvature_ops *abar__method_find(const char *name); /* NULL: none of that name */

/* What a curvature is made from. */
typedef struct abar__curvature_wish {
    const char *method;
    const void *method_config;            /* NULL: the defaults */
    const abar__curvature_config *common; /* likewise */
    const abar_layer *layers;
    int n_layers;
    double base_lr;
} abar__curvature_wish;

/* Copies what it needs of the layers; their memory is the caller's. */
abar_status abar__curvature_create(abar_device *dev, const abar__curvature_wish *wish, abar__curvature **out);
void abar__curvature_destroy(abar__curvature *cv);
size_t abar__curvature_bytes(const abar__curvature *cv);       /* everything it holds */
size_t abar__curvature_state_bytes(const abar__curvature *cv); /* the tensors of it */
/* What create would hold, and how many maps. */
abar_status abar__curvature_plan_bytes(abar_device *dev, const abar__curvature_wish *wish, int *maps, size_t *bytes);

abar_status abar__curvature_plan_maps(abar_device *dev, const abar__curvature_wish *wish, abar_map_visitor visit, void *user);

bool abar__curvature_observes(const abar__curvature *cv);
abar_status abar__curvature_observe(abar__curvature *cv, int layer, const abar_layer *tensors);
/* Forget what is pending. */
void abar__curvature_forget(abar__curvature *cv);
/* What is pending of all maps as one host vector (pending.c). */
int64_t abar__curvature_pending_count(const abar__curvature *cv);
abar_status abar__curvature_pending_read(abar__curvature *cv, double *out);
abar_status abar__curvature_pending_write(abar__curvature *cv, const double *in);
/* The step was skipped: forget what is pending, keep everything else. */
void abar__curvature_skip(abar__curvature *cv);
/* Commit, refresh what is due, precondition (grad_norm: of all gradients as they lie in memory): afterwards every map's pre is
 * set (and dense ones' gradients replaced). */
void abar__curvature_step(abar__curvature *cv, double grad_scale, double grad_norm);
bool abar__curvature_wants_calibration(const abar__curvature *cv, int layer);
abar_status abar__curvature_calibrate(abar__curvature *cv, int layer, const abar_tensor *input);
abar_status abar__curvature_end_calibration(abar__curvature *cv);
abar_status abar__curvature_visit(abar__curvature *cv, abar_state_visitor visit, void *user);
abar_map_info abar__curvature_map(const abar__curvature *cv, int i);
abar_status abar__curvature_mean_activation(const abar__curvature *cv, int i, double *out);

/* What a pending sum is multiplied by to become the new value. */
double abar__to_mean(const abar__curvature *cv, const abar__map *map, const abar__average_desc *a);
/* Cosine and ratio from <G, G>, <G^, G> and <G^, G^>. */
void abar__set_comparison(abar__map *map, const double products[3]);

/* ---- on a queued device (queued.c): the program keeps the averages, the frame counts rows and lends its names ---- */

void abar__curvature_keep(const abar__curvature *cv, abar__kept_map *out); /* describes all maps */
/* For methods: where the i-th average of the map lies. */
void abar__keep_average(const abar__map *map, int i, abar__kept_map *out);
/* (n_maps, 3) factors that turn what was observed since the last call into means; false: nothing was observed. */
bool abar__curvature_to_mean(abar__curvature *cv, double observed_scale, double *out);
void abar__curvature_load(abar__curvature *cv, const abar__program_state *program, const abar__map_state *states);
void abar__curvature_unload(const abar__curvature *cv, abar__program_state *program, abar__map_state *states);
void abar__curvature_set_products(abar__curvature *cv, const double *products); /* (n_maps, 3): cosine and ratio from sums */

/* For methods: invert (map's square average) * scale + shift I with the ladder of methods.md section 9. */
bool abar__curvature_invert(abar__curvature *cv, abar__map *map, int64_t d, const void *average, double scale, double shift,
                            void *inverse);
/* What sums of this kind are divided by. */
double abar__pending_count(const abar__map *map, abar__per per);
/* Where the map has sums by position: multiplies them into what is pending. */
void abar__curvature_join(abar__curvature *cv, abar__map *map);
/* Bytes that these calls of the stats table need for this map: the largest. A queued device's program inverts and diagonalises
 * by itself, but for what is to be inverted now. */
enum { ABAR_SCRATCH_PRODUCT = 1, ABAR_SCRATCH_INVERT = 2, ABAR_SCRATCH_EIGEN = 4, ABAR_SCRATCH_INVERT_NOW = 8 };
size_t abar__scratch_bytes(const abar__curvature *cv, const abar__map *map, unsigned calls);

/* Where the map's single number is summed: on the host, or in a queued device's memory. */
static inline double *abar__pending_number(abar__map *map)
{
    return map->queued_number ? map->queued_number : &map->pending_number;
}

/* Sums of a, and of p or p ⊙ p. */
static inline void abar__add_both(const abar__curvature *cv, const abar__rows *rows, void *a, bool squares, void *p)
{
    if (cv->stats->both_sums) {
        cv->stats->both_sums(cv->dev, rows, a, squares, p);
        return;
    }
    cv->stats->input_sum(cv->dev, rows, a);
    if (squares)
        cv->stats->grad_squares(cv->dev, rows, NULL, p);
    else
        cv->stats->grad_sum(cv->dev, rows, p);
}

/* Products of examples' means of a, and of p, in cv's scratch. */
static inline void abar__add_mean_products(const abar__curvature *cv, const abar__rows *rows, void *a, void *p)
{
    if (cv->stats->both_mean_products) {
        cv->stats->both_mean_products(cv->dev, rows, a, p, cv->scratch);
        return;
    }
    cv->stats->input_mean_product(cv->dev, rows, a, cv->scratch);
    cv->stats->grad_mean_product(cv->dev, rows, p, cv->scratch);
}

static inline size_t abar__element(const abar__curvature *cv) { return abar_dtype_size(cv->dev->ops->dtype); }

/* Of n elements in a piece of state, rounded up to whole cache lines. */
static inline size_t abar__vector_bytes(const abar__curvature *cv, int64_t n)
{
    return abar__round_up((size_t)n * abar__element(cv), ABAR_ALIGN);
}

#endif
