/* The inside of a device: a table of core operations (linear algebra, statistics, update) that every back end fills.
 * device.c validates, the back ends trust. The nn operations stand apart in nn_impl.h, so that libabar_optim can do
 * without them. */
#ifndef ABAR_DEVICE_IMPL_H
#define ABAR_DEVICE_IMPL_H

#include "abar/device.h"
#include "base/base_impl.h"
#include "device/stats_impl.h"

/* One parameter tensor as the update sees it: count dense elements of the device's dtype. Where pre is set they are a matrix of
 * rows, each preconditioned together with its element of bias. */
typedef struct abar__update_item {
    void *weight;
    const void *grad;
    void *state[2]; /* sgd: momentum, NULL without; adamw: first and second moment */
    int64_t count;
    double lr_scale, weight_decay;
    const abar__precondition *pre; /* NULL: the gradient as it is */
    int64_t rows;
    const struct abar__update_item *bias; /* (rows), updated with this item; NULL: none */
} abar__update_item;

/* The scalars of one step. */
typedef struct abar__update_scalars {
    double lr;
    double grad_scale; /* multiplies every gradient first: clipping, mean over micro-batches */
    double momentum;   /* sgd */
    bool nesterov, decoupled;
    double beta1, beta2, eps; /* adamw */
    int64_t t;                /* adamw: this is its t-th update, from 1 */
} abar__update_scalars;

typedef struct abar_device_ops {
    const char *name;
    abar_dtype dtype;
    /* required */
    abar_status (*open)(abar_device *dev);
    void (*close)(abar_device *dev);
    abar_status (*alloc)(abar_device *dev, size_t bytes, void **out); /* zeroed */
    void (*release)(abar_device *dev, void *memory, size_t bytes);
    /* dst and src have equal shapes; either may be on the host or blocked */
    abar_status (*copy)(abar_device *dev, const abar_tensor *dst, const abar_tensor *src);
    /* sum of squares over the items' own gradients in double; not finite when any element is not */
    double (*sum_squares)(abar_device *dev, const abar__update_item *items, int n);
    void (*sgd)(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s);
    void (*adamw)(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s);
    const abar__stats_ops *stats;
} abar_device_ops;

struct abar_device {
    abar_context *ctx;
    const abar_device_ops *ops;
    abar_device_config config;
    int threads;
    char description[128];
    void *impl; /* the back end's own */
};

extern const abar_device_ops abar__ref_device, abar__cpu_device;

const abar_device_ops *abar__device_find(const char *name); /* NULL: not in this build */

#endif
