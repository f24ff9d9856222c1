/* The inside of curvature. The frame (curvature.c) keeps, for every map, the averages a method asks for: pending sums joined
 * over micro-batches, checked, committed (methods.md section 0); and decides when to refresh. A method says what it keeps, adds
 * to the sums, derives what it needs from the averages, and preconditions. mac.c is the one to read first. */
#ifndef ABAR_CURVATURE_IMPL_H
#define ABAR_CURVATURE_IMPL_H

#include "abar/optim.h"
#include "device/device_impl.h"
#include "device/stats_impl.h"

#define ABAR_AVERAGES_MAX 3
#define ABAR_DERIVED_MAX 4
#define ABAR_SCALARS_MAX 4

typedef struct abar__curvature abar__curvature;
typedef struct abar__map abar__map;

/* What the sum of an average is divided by at the commit. */
typedef enum abar__per { ABAR_PER_ROW, ABAR_PER_EXAMPLE } abar__per;

typedef struct abar__average_desc {
    const char *name;
    int64_t n;   /* elements, or the side of a square */
    bool square; /* symmetric, kept by triangles */
    abar__per per;
    int grad_power; /* how often p is a factor: the per-example scale multiplies by B to this power */
} abar__average_desc;

typedef struct abar__derived_desc {
    const char *name;
    int64_t n;
} abar__derived_desc;

/* What a method keeps for one map. Entries end at name NULL. */
typedef struct abar__map_shape {
    abar__average_desc average[ABAR_AVERAGES_MAX];
    abar__derived_desc derived[ABAR_DERIVED_MAX];
    size_t scratch; /* bytes of device memory for one call of observe, refresh or apply */
} abar__map_shape;

/* One linear map with its state. */
struct abar__map {
    const char *name; /* of the layer; groups share it */
    int layer, number;
    int64_t group, in, d, out;
    bool bias, first;                    /* first: reads the network's input */
    const void *weight_grad, *bias_grad; /* this map's rows, in the caller's memory */
    abar__map_shape shape;
    void *average[ABAR_AVERAGES_MAX], *pending[ABAR_AVERAGES_MAX], *derived[ABAR_DERIVED_MAX];
    double scalar[ABAR_SCALARS_MAX];        /* small derived numbers, kept in checkpoints */
    double rows, examples;                  /* of the pending sums */
    int64_t commits;                        /* m of methods.md */
    bool ready;                             /* has had a valid refresh */
    bool due;                               /* a refresh could not be made when it should have been */
    int64_t dropped, raised, doubled, kept; /* events of methods.md section 9 */
};

typedef struct abar__curvature_ops {
    abar_method method; /* what the public sees: name, summary, options, config_size */
    unsigned needs;     /* ABAR_NEEDS_INPUT, ABAR_NEEDS_OUTPUT_GRAD */
    bool every_commit;  /* refresh whenever statistics were committed, whatever tinv says */
    /* Optional: what the option table cannot say. */
    abar_status (*check)(abar_context *ctx, const void *config);
    /* Required. */
    void (*shape)(const abar__curvature *cv, const abar__map *map, abar__map_shape *out);
    void (*observe)(abar__curvature *cv, abar__map *map, const abar__rows *rows);
    /* Derives from the averages (divide by correction = 1 - beta^m). False: keep the previous. */
    bool (*refresh)(abar__curvature *cv, abar__map *map, double correction);
    /* One of the two. describe: preconditioned within the update pass. apply: writes the preconditioned (out, d) matrix. */
    void (*describe)(abar__curvature *cv, abar__map *map, abar__precondition *out);
    bool (*apply)(abar__curvature *cv, abar__map *map, const void *g, void *out);
    /* Optional: <G^, G> of a described map for the KL clip (methods.md section 7). */
    double (*inner)(abar__curvature *cv, abar__map *map);
    /* Optional: a pass over the training set before step 0, for maps that read the network's input. */
    bool (*wants_calibration)(const abar__curvature *cv, const abar__map *map);
    void (*calibrate)(abar__curvature *cv, abar__map *map, const abar__rows *rows);
    abar_status (*calibrated)(abar__curvature *cv, abar__map *map);
    /* Optional: numbers for diagnostics, as name, value pairs in a fixed order. */
    double (*damping)(const abar__curvature *cv, const abar__map *map);
} abar__curvature_ops;

enum { ABAR_NEEDS_INPUT = 1, ABAR_NEEDS_OUTPUT_GRAD = 2 };

struct abar__curvature {
    abar_device *dev;
    const abar__stats_ops *stats;
    const abar__curvature_ops *ops;
    abar_curvature_config config; /* common to all methods */
    const void *method_config;
    abar__map *maps;
    int n_maps;
    int64_t k;     /* optimizer steps so far */
    void *scratch; /* the largest any map asked for */
    size_t scratch_bytes;
};

#endif
