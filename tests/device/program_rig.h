/* A small network's parameters and linear maps on a queued device, driven by the device's program, and the same on ref, driven
 * by abar_optim: weights, gradients and activations are drawn once and given to both. */
#ifndef PROGRAM_RIG_H
#define PROGRAM_RIG_H

#include "abar/optim.h"
#include "cuda_testing.h"

enum { RIG_LAYERS = 4, RIG_PARAMS = 8, RIG_MAPS = 5, RIG_STEPS = 12, RIG_EXAMPLES = 6 };

/* What to run. Options are those of abar_optim on ref; the program's description is derived from the same words. */
typedef struct rig_wish {
    const char *rule, *method; /* method NULL: none */
    double momentum, weight_decay, lr;
    bool nesterov, decoupled;
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
} rig_wish;

typedef struct rig_param {
    char name[32];
    int ndim, layer; /* layer -1: belongs to no map */
    int64_t dim[4], count;
    bool is_weight;
    abar_tensor view;     /* how value, gradient and state lie on the device; no data */
    double *value, *grad; /* host, row-major; ref's tensors */
    float *weight_d, *grad_d, *state_d[2];
    uint16_t *shadow_d;
} rig_param;

typedef struct rig_layer {
    const char *name;
    abar_layer map;           /* ref's tensors */
    int weight, bias;         /* parameters; bias -1: none */
    int64_t in, out, d, rows; /* of one map; rows per example */
    abar_tensor x, p;         /* host, row-major F64; the batch */
    abar_tensor x_d, p_d;     /* the same on the device, NHWC or dense, F32 */
} rig_layer;

typedef struct rig {
    abar_context *ctx;
    abar_device *ref, *dev;
    rig_wish wish;
    uint64_t noise;
    rig_param param[RIG_PARAMS];
    rig_layer layer[RIG_LAYERS];
    int n_params, n_maps;
    abar_optim *optim; /* on ref */
    abar__update_item items[RIG_PARAMS], updates[RIG_PARAMS + RIG_MAPS], biases[RIG_MAPS];
    int n_updates, map_layer[RIG_MAPS];
    abar__kept_map kept[RIG_MAPS];
    abar__program *program;
    int64_t k;
    void *scratch;   /* of the statistics */
    double *weights; /* (2, RIG_EXAMPLES): lngd's, of inputs and of gradients */
    struct {
        void *memory;
        size_t bytes;
        bool state; /* of the optimizer, weights included; not a gradient, not a batch */
    } blocks[128];  /* all device memory */
    int n_blocks;
} rig;

void rig_open(rig *r, const rig_wish *wish);
void rig_close(rig *r);
void rig_make_program(rig *r);
/* Draws step k's numbers and loads them into ref's and the device's tensors. */
void rig_draw(rig *r);
bool rig_observes(const rig *r);
/* Gives step k's statistics and gradients to the device. What rig_device_step does between two draws can be recorded. */
void rig_device_step(rig *r);
abar_step_report rig_ref_step(rig *r);
/* Fails unless every weight is near ref's. */
void rig_check_weights(rig *r, double tolerance);
/* Fails unless counts and numbers of the maps are ref's, and so many updates were made. */
void rig_check_maps(rig *r, int64_t updates);
/* After a parameter was given other memory. */
void rig_rebind(rig *r);
const abar__program_ops *rig_ops(const rig *r);

/* All device memory of the rig but gradients and batches, as bytes the caller frees. */
unsigned char *rig_snapshot(rig *r, size_t *bytes);

#endif
