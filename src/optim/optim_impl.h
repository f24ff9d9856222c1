/* The inside of an update rule: a table of operations, one file and one line in rules.c per rule. A rule says what it keeps
 * and turns its configuration into the scalars of one fused update; the device does the rest. */
#ifndef ABAR_OPTIM_IMPL_H
#define ABAR_OPTIM_IMPL_H

#include "abar/optim.h"
#include "curvature/curvature_impl.h"

#include <stdalign.h>

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
    /* The same for a queued device: which rule it is there, and its scalars. */
    abar__program_rule program;
    void (*scalars)(const void *config, abar__update_scalars *s);
} abar__rule_ops;

extern const abar__rule_ops abar__rule_sgd, abar__rule_adamw;

const abar__rule_ops *abar__rule_find(const char *name); /* NULL: none of that name */
/* Copies config, or the defaults when it is NULL; refuses values outside the option table's ranges. */
abar_status abar__rule_configure(abar_context *ctx, const abar__rule_ops *ops, const void *config, void *out);

/* The parameters of a map; bias -1: none. */
typedef struct abar__owner {
    int weight, bias;
} abar__owner;

struct abar_optim {
    abar_device *dev;
    const abar__rule_ops *rule;
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    int n, states;
    abar_optim_param *params;   /* their names point into text */
    abar__update_item *items;   /* one per parameter */
    abar__update_item *active;  /* those with a gradient: what the norm is taken of */
    abar__update_item *updates; /* what the rule is given: maps row by row with their biases, the other parameters whole */
    abar__update_item *biases;  /* of the maps */
    abar__owner *owners;        /* of the maps */
    bool *mapped;               /* parameters that belong to a map */
    int n_active, n_updates, n_maps;
    bool moved;                 /* a parameter or gradient has a new place since the updates were laid out */
    abar__curvature *curvature; /* NULL: the rule alone */
    char *text;                 /* the names one after the other, then room for the longest name of a state tensor */
    size_t text_bytes, label_bytes;
    void *state[ABAR_RULE_STATES_MAX]; /* one block per family */
    size_t state_bytes;                /* of each */
    abar_map_info map_info;            /* what abar_optim_map returned last */
    abar_phase_times times;            /* of abar_optim_times, without a method */
    abar_step_note note;               /* of abar_optim_note */
    int64_t performed;                 /* updates, without the skipped steps */
    /* queued devices (queued.c) */
    abar__program *program; /* NULL: this device runs steps as they are called */
    double *to_mean;        /* (n_maps, 3) */
    abar__map_state *map_states;
    int64_t k;    /* steps given so far, skipped ones included */
    bool reruled; /* the rule has new settings, which the program does not know */
    bool stale;   /* the device has gone on since its counters were read */
};

abar_status abar__optim_read_step(abar_context *ctx, const abar_step_config *step, abar_step_config *out);
void abar__optim_lay_out(abar_optim *o); /* active and updates anew, after a parameter moved */

/* queued.c: the program that carries out steps on a queued device. */
abar_status abar__optim_make_program(abar_optim *o);
void abar__optim_free_program(abar_optim *o);
size_t abar__optim_program_bytes(const abar_optim *o); /* with the books kept for it */
abar_status abar__optim_queued_step(abar_optim *o, const abar_step_config *c, abar_step_report *report);
void abar__optim_queued_skip(abar_optim *o);
abar_status abar__optim_pull(abar_optim *o); /* the device's counters, where they are stale */
abar_status abar__optim_push(abar_optim *o);

#endif
