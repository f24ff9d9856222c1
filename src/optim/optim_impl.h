/* The inside of an update rule: a table of operations, one file and one line in rules.c per rule. A rule says what it keeps
 * and turns its configuration into the scalars of one fused update; the device does the rest. */
#ifndef ABAR_OPTIM_IMPL_H
#define ABAR_OPTIM_IMPL_H

#include "abar/optim.h"
#include "device/device_impl.h"

#define ABAR_RULE_STATES_MAX 2
#define ABAR_RULE_CONFIG_MAX 64 /* bytes; every rule asserts that its own fits */

typedef struct abar__rule_ops {
    abar_rule rule;                                /* what the public sees */
    const char *state_names[ABAR_RULE_STATES_MAX]; /* the "momentum" of "momentum.conv1.weight" */
    /* How many of its state tensors this configuration needs. */
    int (*states)(const void *config);
    /* Optional: what the option table cannot say. */
    abar_status (*check)(abar_context *ctx, const void *config);
    /* Adds its own to the scalars (lr, grad_scale and t are set) and updates all items in one pass. */
    void (*update)(abar_device *dev, const void *config, const abar__update_item *items, int n, abar__update_scalars s);
} abar__rule_ops;

extern const abar__rule_ops abar__rule_sgd, abar__rule_adamw;

const abar__rule_ops *abar__rule_find(const char *name); /* NULL: none of that name */
/* Copies config, or the defaults when it is NULL; refuses values outside the option table's ranges. */
abar_status abar__rule_configure(abar_context *ctx, const abar__rule_ops *ops, const void *config, void *out);

#endif
