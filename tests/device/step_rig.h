/* A small network's parameters and linear maps twice, on ref and on the device under test, each with an abar_optim of the same
 * config: weights, gradients and activations are drawn once and given to both. */
#ifndef STEP_RIG_H
#define STEP_RIG_H

#include "cuda_testing.h"
#include "optim/optim_impl.h"

enum { RIG_LAYERS = 4, RIG_PARAMS = 8, RIG_MAPS = 5, RIG_STEPS = 12, RIG_EXAMPLES = 6 };

/* What to run; options of abar_optim. */
typedef struct rig_config {
    const char *rule, *method; /* method NULL: none */
    double momentum, weight_decay, lr;
    bool nesterov, decoupled;
    const char *take; /* muon: parameters it updates all the same; NULL: none */
    bool normuon;
    double rho; /* 0: adaptive; lngd has none */
    double diagonal;
    bool coupled;
    bool expand, eigen; /* kfac */
    double kl_clip;     /* 0: off */
    int64_t tcov, tinv;
    bool spread;
    double clip, grad_scale;
    int parts;                     /* micro-batches that statistics come in; 0: 1 */
    int bad_step;                  /* a gradient is not a number there; 0: nowhere (the first step is clean) */
    int bad_input_step, bad_layer; /* an activation is */
    int far_step;                  /* the square of an extra gradient is no number there */
    const char *options[8];        /* of the rule or the method, "name=value"; NULL: no more */
    const char *apart[4];          /* likewise of the method for every second layer, in place of the others' */
} rig_config;

/* Every rule and method. */
enum {
    RIG_CONFIGS = 75,
    RIG_SGD = 0,
    RIG_ADAMW = 4,
    RIG_MAC = 5,
    RIG_MAC_ADAPTIVE = 7,
    RIG_SMAC = 12,
    RIG_SMAC_ADAPTIVE = 13,
    RIG_EVA = 15,
    RIG_FOOF = 17,
    RIG_KFAC = 19,
    RIG_EIGEN = 21,
    RIG_LNGD = 23,
    RIG_NORMUON = 31,
    RIG_MUON_MAC = 32,
    RIG_SHAMPOO = 35,
    RIG_SHAMPOO_ADAM = 37,
    RIG_NADAMW = 41,
    RIG_SFADAMW = 43,
    RIG_SFADAMW_MAC = 45,
    RIG_HYPERBALL = 49,
    RIG_SOAP = 52,
    RIG_SOAP_KL = 54,
    RIG_ADAHESSIAN = 58,
    RIG_SOPHIA = 60,
    RIG_NGD = 62,
    RIG_NGD_DRAWN = 64
};
extern const rig_config rig_configs[]; /* (RIG_CONFIGS) */
int rig_stride(void);                  /* 1; under compute-sanitizer some of them will do */
bool rig_is_muon(const rig_config *config);

typedef struct rig_param {
    char name[32];
    int ndim;
    bool has_shadow;
    int64_t dim[4], count;
    double lr_scale;
    double *start, *grad; /* host, row-major: the first weights, the gradient of the step */
    double change;        /* of ref's weights, from the first ones: the largest in any step checked */
} rig_param;

typedef struct rig_layer {
    const char *name;
    abar_window window;
    int weight, bias; /* parameters; bias -1: none */
    abar_tensor x, p; /* host, row-major F64: the batch */
} rig_layer;

/* One device with its copy of everything. */
typedef struct rig_side {
    abar_device *dev;
    abar_optim *optim;
    abar_tensor value[RIG_PARAMS], grad[RIG_PARAMS];
    abar_tensor
        extra[RIG_PARAMS];    /* of rules that need further gradients: the step's gradient, with 0 where that is not finite */
    void *shadow[RIG_PARAMS]; /* of a queued device */
    abar_tensor x[RIG_LAYERS], p[RIG_LAYERS];
} rig_side;

typedef struct rig {
    abar_context *ctx;
    rig_config config;
    uint64_t noise;
    rig_param param[RIG_PARAMS];
    rig_layer layer[RIG_LAYERS];
    int n_params;
    rig_side ref, side; /* side: the device under test */
    int64_t k;
} rig;

void rig_open(rig *r, const char *device, const rig_config *config);
void rig_close(rig *r);
/* An optimizer for the weights as they are, without rates. */
void rig_make_optim(rig *r, rig_side *s);
/* Fails with the context's text. */
void rig_need(const rig *r, abar_status status, const char *what);
#define NEED(r, call) rig_need(r, call, #call)

/* Tells the optimizer where parameter i and its gradient are now; without: that it has none. */
void rig_set_param(const rig *r, rig_side *s, int i, bool with_grad);

double rig_rate(const rig *r, int64_t k);
/* Rates of the steps first .. end - 1, for rig_enqueue. */
void rig_give_rates(rig *r, int64_t first, int64_t end);
/* Draws step k's numbers and loads them into both sides. */
void rig_draw(rig *r);
/* Step k by abar_optim_step. */
abar_step_report rig_step(rig *r, rig_side *s);
/* Step k on the device under test, by begin, observe and queue: can be recorded between two draws. */
void rig_enqueue(rig *r);
/* rig_draw, rig_enqueue; waits, and goes on to the next step. */
void rig_one_step(rig *r);
const abar__step_outcome *rig_outcome(const rig *r, int64_t k);

/* Doubles in row-major order from a tensor, which may be on a device. */
void rig_get(const rig *r, double *to, const abar_tensor *from);
/* Bytes of a device's memory, or of the host's. */
void rig_read(const rig *r, void *to, abar_device *dev, const void *from, size_t bytes);

/* Fails unless every weight is near ref's: the largest deviation within tolerance times the largest weight; of_change: times
 * the largest change so far. */
void rig_check_weights(rig *r, double tolerance, bool of_change);
/* Fails unless counts and numbers of the maps are ref's, and so many updates were made. */
void rig_check_maps(rig *r, int64_t updates);

/* Weights, their copies and all state of the optimizer on the device under test, pending sums included, as bytes that the
 * caller frees. */
unsigned char *rig_snapshot(const rig *r, size_t *bytes);

#endif
