/* The inside of curvature: which linear maps there are, what is kept for each and where, the sums that are pending over
 * micro-batches (methods.md section 0). A method describes what it does with a plan (plan/plan.h); the device's step carries it
 * out (device/step_impl.h). mac.c is the method to read first.
 */
#ifndef ABAR_CURVATURE_IMPL_H
#define ABAR_CURVATURE_IMPL_H

#include "abar/curvature.h"
#include "device/device_impl.h"
#include "plan/plan.h"

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
/* The map that all parameters together are. */
#define ABAR_ALL_PARAMETERS "@all"

/* A method's row of --kl-clip, by whose name the framework finds kappa (methods.md section 7); 0: off. config: its config
 * struct, with a double kl_clip. */
#define ABAR_KL_CLIP_OPTION(config, standard)                                                                               \
    {                                                                                                                       \
        .name = "kl-clip", .type = ABAR_OPTION_REAL, .offset = offsetof(config, kl_clip), .fallback = standard, .min = 0.0, \
        .max = 1e30, .help = "kappa of the KL clip, which bounds the length of the step; 0: off"                            \
    }

typedef struct abar__curvature abar__curvature;
typedef struct abar__map abar__map;

/* One linear map with its state. */
struct abar__map {
    const char *name;          /* of the layer; its groups share it; rows of v: LAYER@v, or by head LAYER@v0, LAYER@v1, ... */
    int layer;                 /* -1: all parameters together */
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
    bool one_row;                  /* an example is known to be one row of it */
    bool channels_last;            /* the weight's memory is (O, kh, kw, I) */
    void *weight_grad, *bias_grad; /* this map's rows, in the caller's memory; NULL: no gradient now */
    abar__plan plan;
    abar__position_sums by_position; /* where plan.positions */
    double rows, examples;           /* of the pending sums */
    int64_t passes;                  /* whose rows of single examples are there, since the last step */
    abar__map_state state;           /* as the device's step had it when it was last asked */
    double cosine, ratio;            /* measured on request */
};

typedef struct abar__curvature_ops {
    abar_method method;     /* what the public sees */
    bool reads_output_grad; /* a plan of it has statistics of output gradients */
    bool every_commit;      /* refresh after every commit, whatever tinv says */
    bool second_pass;       /* every step needs a second pass over its batch, and statistics: --tcov has no effect */
    bool one_batch;         /* statistics are those of one batch, that of the refresh: --stat-decay has no effect */
    bool by_example; /* plans have rows of single examples: of every step, whatever tcov says, and of its whole batch at once */
    /* Optional: what the option table cannot say. method: its name, for the error's text. */
    abar_status (*check)(abar_context *ctx, const char *method, const void *config);
    /* Optional: whether the rows of single examples come from further passes with labels of their own. */
    bool (*labels)(const void *config);
    /* Optional: the same as check, with the batch. */
    abar_status (*check_batch)(const abar__curvature *cv);
    /* Optional: the same, once the maps are known. */
    abar_status (*check_maps)(const abar__curvature *cv);
    /* Optional: into how many maps the rows of v of a layer that feeds attention are divided; 0: they are like the others. */
    int64_t (*value_parts)(const abar__curvature *cv, const abar_layer *layer);
    /* Optional: whether all parameters together are one map (1, their number), called ABAR_ALL_PARAMETERS. */
    bool (*is_joint)(const void *config);
    /* Required: describes what is done for one map. p is begun. */
    void (*plan)(const abar__curvature *cv, const abar__map *map, abar__plan *p);
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
    int64_t k;                 /* optimizer steps so far, skipped ones included */
    int64_t examples, classes; /* of a step's batch, of its labels; 0: unknown */
    int64_t pass;              /* further pass whose rows are being observed; -1: none */
    double base_lr, kl_clip;   /* eta_0 and kappa of methods.md section 7 */
    void *state;               /* all averages, pending sums and derived tensors */
    void *scratch; /* scratch_bytes that accumulating and calibrating need: the step's workspace, lent between steps */
    void *rows;    /* of single examples */
    size_t state_bytes, scratch_bytes, rows_bytes;
    char *names; /* of the layers, one after the other, then a buffer for the longest name of a state tensor */
    size_t names_bytes, label_bytes;
    double observe_seconds;
    double kl_scale; /* of the last step the host has read */
    bool measure;
    bool observing; /* some map has statistics */
    bool second;    /* what comes is of the second pass */
    bool in_parts;  /* the caller observes parts of a batch and joins them itself, */
    int64_t first;  /* of which this is the first example of the one that comes */
    bool plan_only; /* as in the request */
};

const abar__curvature_ops *abar__method_find(const char *name); /* NULL: none of that name */

/* Whether one of the patterns with * and ?, joined by commas, fits the whole name. */
bool abar__name_fits(const char *patterns, const char *name);

/* What a curvature is made from. */
typedef struct abar__curvature_request {
    const char *method;
    const bool *skip;                     /* (n_layers): leave these out, beside --skip-layers; NULL: none */
    bool unclipped;                       /* the defaults are without a KL clip, behind which momentum is orthogonalised */
    const void *method_config;            /* NULL: the defaults */
    const abar__curvature_config *common; /* likewise */
    const abar_layer *layers;
    int n_layers;
    int64_t parameters; /* elements of all parameters together */
    bool plan_only;     /* no memory is allocated for rings: it is never run */
    double base_lr;
    int64_t examples, classes; /* as abar_optim_config has them */
} abar__curvature_request;

/* Copies what it needs of the layers; their memory is the caller's. */
abar_status abar__curvature_create(abar_device *dev, const abar__curvature_request *request, abar__curvature **out);
void abar__curvature_destroy(abar__curvature *cv);
size_t abar__curvature_bytes(const abar__curvature *cv);       /* everything it holds */
size_t abar__curvature_state_bytes(const abar__curvature *cv); /* the tensors of it */
abar__cadence abar__curvature_cadence(const abar__curvature *cv);
/* What create would hold, and how many maps. */
abar_status abar__curvature_plan_bytes(abar_device *dev, const abar__curvature_request *request, int *maps, size_t *bytes);

abar_status abar__curvature_plan_maps(abar_device *dev, const abar__curvature_request *request, abar_map_visitor visit,
                                      void *user);

bool abar__curvature_observes(const abar__curvature *cv);
abar_status abar__curvature_observe(abar__curvature *cv, int layer, const abar_layer *tensors);
/* Rows of single examples: how many further passes a step needs, and which of them is observed from now on. */
int64_t abar__curvature_passes(const abar__curvature *cv);
abar_status abar__curvature_begin_pass(abar__curvature *cv, int64_t pass);
/* Whether the step has all passes that it needs. */
abar_status abar__curvature_check_passes(const abar__curvature *cv);
/* Forget what is pending. */
void abar__curvature_forget(abar__curvature *cv);
void abar__curvature_forget_layer(abar__curvature *cv, int layer);
/* What is pending of all maps as one host vector (pending.c). */
int64_t abar__curvature_pending_count(const abar__curvature *cv);
abar_status abar__curvature_pending_read(abar__curvature *cv, double *out);
abar_status abar__curvature_pending_write(abar__curvature *cv, const double *in);
/* The same numbers in the memory of a queued device, but for the examples and rows that the host has counted; those are then
 * multiplied by the ranks, which have as many each. */
abar_status abar__curvature_visit_pending(const abar__curvature *cv, abar__pending_visitor visit, void *user);
void abar__curvature_scale_counts(abar__curvature *cv, int64_t ranks);
/* Parts of a batch (abar_optim_begin_part, abar_optim_visit_rows). */
void abar__curvature_begin_part(abar__curvature *cv, int64_t first);
abar_status abar__curvature_visit_rows(abar__curvature *cv, abar_rows_visitor visit, void *user);
/* What turns the sums that are pending into means: (n_maps, 3), 0 for a map that was not observed. The sums are then the
 * step's. False: nothing was observed. observed_scale: of every output gradient. */
bool abar__curvature_to_mean(abar__curvature *cv, double observed_scale, double *out);
/* A step was skipped by the caller: forget what is pending, count it; a refresh it would have made stays due. */
void abar__curvature_skip(abar__curvature *cv);
bool abar__curvature_wants_calibration(const abar__curvature *cv, int layer);
abar_status abar__curvature_calibrate(abar__curvature *cv, int layer, const abar_tensor *input);
abar_status abar__curvature_end_calibration(abar__curvature *cv);
abar_status abar__curvature_visit(abar__curvature *cv, abar_state_visitor visit, void *user);
abar_map_info abar__curvature_map(const abar__curvature *cv, int i);
abar_status abar__curvature_mean_activation(const abar__curvature *cv, int i, double *out);

/* Bytes of scratch that summing products of this map's rows needs. */
size_t abar__accumulate_scratch(const abar__curvature *cv, const abar__map *map);
/* Examples whose weights are held at a time (methods.md section 6). */
static inline int64_t abar__weights_chunk(const abar__curvature *cv) { return cv->dev->ops->stream ? 1024 : 256; }

static inline size_t abar__element(const abar__curvature *cv) { return abar_dtype_size(cv->dev->ops->dtype); }

/* Bytes of a number of rows of single examples. */
static inline size_t abar__row_element(const abar__curvature *cv)
{
    return cv->dev->ops->stream ? sizeof(float) : sizeof(double);
}

/* Of n elements in a piece of state, rounded up to whole cache lines. */
static inline size_t abar__vector_bytes(const abar__curvature *cv, int64_t n)
{
    return abar__round_up((size_t)n * abar__element(cv), ABAR_ALIGN);
}

#endif
