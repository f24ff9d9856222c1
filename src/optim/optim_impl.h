/* The inside of an optimizer: its update rules, and what it keeps for its parameters. A rule says for every parameter by which
 * chain of stages its weight is updated; the device's step carries the chains out. sgd.c is the rule to read first, muon.c the
 * one with a chain of more than one stage. */
#ifndef ABAR_OPTIM_IMPL_H
#define ABAR_OPTIM_IMPL_H

#include "abar/optim.h"
#include "curvature/curvature_impl.h"
#include "optim/pieces.h"
#include "plan/block_plan.h"

#include <stdalign.h>

#define ABAR_ITEM_STATES 3                  /* of an elementwise update */
#define ABAR_PARAM_STATES ABAR_BLOCK_STATES /* the most that a chain keeps */
#define ABAR_RULE_CONFIG_MAX 2048           /* bytes; every rule asserts that its own fits */

/* What a rule may know of a parameter. */
typedef struct abar__param_view {
    const char *name;
    int ndim;
    int64_t dim[ABAR_MAX_DIM];
    int64_t rows, columns;    /* of its matrix view: outputs, and the rest flattened */
    int layers;               /* linear maps whose weight it is; 0: an embedding, a norm, a bias, ... */
    bool reads_input;         /* the first of them reads the network's input */
    bool yields_output;       /* one of them makes the network's output */
    int64_t groups;           /* of a convolution; else 1 */
    int64_t group_inputs;     /* channels that a group of a convolution reads; 0: no convolution */
    int64_t heads, head_rows; /* its rows are those of q, k and v, so many heads each; heads 0: they are not */
    double base_lr;
} abar__param_view;

/* How a parameter is cut into blocks: its rows into parts, each part a tensor, each mode of that into pieces. */
typedef struct abar__cut {
    int order; /* of the tensors; 0: it is not cut, the chain has no blocks */
    int64_t dim[ABAR_BLOCK_MODES];
    int64_t part_rows; /* rows of a part */
    int64_t piece;     /* the most entries of a mode */
} abar__cut;

/* The chain of one parameter: an elementwise pass over its (preconditioned) gradient, which is all; or whose result is
 * orthogonalised block by block, or treated by the rule's stages block by block, and then taken off the weight. */
typedef struct abar__chain {
    abar__update_kind first;
    bool orthogonalise;
    int64_t block_rows; /* of a block, where the matrix is cut; 0: it is one block */
    double scale;       /* of each block's result */
    bool row_moment;    /* NorMuon's state */
    bool hyperball;     /* its blocks keep their norm */
    bool cautious;      /* weight decay only where it agrees with the step */
    abar__cut cut;      /* set by abar__chain_matrix or abar__chain_tensor: the rule's stages treat these blocks */
    bool coupled;       /* then: weight decay goes through the gradient, not beside it, */
    bool late_decay;    /* or is applied by the stages */
    double lr_scale;    /* multiplies the parameter's own */
    double decay;       /* in place of the parameter's own weight decay; negative: that one */
    const char *why;    /* in words, for reports: why it is treated so; NULL: the rule takes everything */
} abar__chain;

/* Whether the rule itself treats the parameter, where it leaves some to another rule (why). */
static inline bool abar__chain_is_own(const abar__chain *chain)
{
    return !chain->why || chain->orthogonalise || chain->cut.order > 0;
}

typedef struct abar__rule_ops {
    abar_rule rule; /* what the public sees */
    /* Optional: what the option table cannot say. */
    abar_status (*check)(abar_context *ctx, const void *config);
    /* Required: the chain of one parameter. It is begun: no orthogonalising, no scales. */
    void (*plan)(const void *config, const abar__param_view *param, abar__chain *chain);
    /* Required: the numbers of its passes. */
    void (*scalars)(const void *config, abar__update_scalars *s);
    /* Optional: the further gradients that the rule needs. */
    void (*extra)(const void *config, abar__extra_request *request);
    /* Where chains are cut into blocks: what is done to each (plan/block_plan.h). The plan is empty. */
    void (*stages)(const void *config, abar__block_plan *plan);
    /* Where chains orthogonalise: by which polynomial, and how. */
    void (*orthogonalise)(const void *config, abar__ns *ns, double *row_decay, bool *exact);
} abar__rule_ops;

extern const abar__rule_ops abar__rule_sgd, abar__rule_adamw, abar__rule_nadamw, abar__rule_sfadamw, abar__rule_muon,
    abar__rule_shampoo, abar__rule_soap, abar__rule_adahessian, abar__rule_sophia;

const abar__rule_ops *abar__rule_find(const char *name); /* NULL: none of that name */
/* Copies config, or the defaults when it is NULL; refuses values outside the option table's ranges. */
abar_status abar__rule_configure(abar_context *ctx, const abar__rule_ops *ops, const void *config, void *out);
/* How many tensors an elementwise chain keeps, and what they are called. */
int abar__chain_states(const abar__chain *chain, const abar__update_scalars *s);
const char *abar__chain_state_name(const abar__chain *chain, int state);

/* cut.c: words for a rule's plan(). */

/* Rows of each part of a weight: of q, k and v apart, or of some of their heads; of a grouped convolution's groups.
 * split: qkv, heads:N or none. */
int64_t abar__split_rows(const char *split, const abar__param_view *param);
abar_status abar__split_check(abar_context *ctx, const char *split);
/* The chain treats the blocks of the matrix view: each part (part_rows, columns) in pieces of at most so many rows and columns;
 * piece 0: whole. */
void abar__chain_matrix(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece);
/* Likewise of the tensor: unit dimensions are dropped, and from the last on a dimension is joined with the one in front of it
 * while their product is at most the piece (optimizers.md section 1). */
void abar__chain_tensor(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece);
/* Likewise, but dimensions are joined from the first on: with their product while that is at most the piece. */
void abar__chain_tensor_forwards(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece);
/* Likewise of the tensor, or where flat of the matrix view: unit dimensions are dropped, the others are modes, nothing is cut.
 */
void abar__chain_modes(abar__chain *chain, const abar__param_view *param, int64_t part_rows, bool flat);

/* The parameters of a map; bias -1: none. */
typedef struct abar__owner {
    int weight, bias;
} abar__owner;

typedef struct abar__zero abar__zero; /* zero.c */

struct abar_optim {
    abar_device *dev;
    const abar__rule_ops *rule;
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    abar__update_scalars scalars; /* the rule's */
    abar__ns ns;
    double row_decay;
    bool ns_exact;
    int n;
    abar_optim_param *params;   /* their names point into text */
    abar__param_view *views;    /* of the parameters, without names */
    abar__chain *chains;        /* likewise */
    abar__update_item *items;   /* one per parameter */
    abar__update_item *active;  /* those with a gradient: what the norm is taken of */
    abar__update_item *updates; /* what the passes are given: maps row by row with their biases, other parameters whole */
    abar__update_item *biases;  /* of the maps */
    abar__ns_block *blocks;     /* of all chains that orthogonalise */
    abar__block_plan block_plan;
    abar__block *tensors; /* blocks of all chains that are cut */
    abar__owner *owners;  /* of the maps */
    bool *mapped;         /* parameters that belong to a map */
    int *first_map;       /* of each parameter that is the weight of some: -1 else */
    abar__update_pass passes[ABAR_PASSES_MAX];
    abar__ring *rings;        /* of maps that keep the gradients of many steps, */
    abar__ring_piece *pieces; /* and what these are made of */
    int n_rings, pieces_capacity;
    int n_active, n_updates, n_maps, n_blocks, n_tensors, n_passes;
    int blocks_capacity, tensors_capacity;
    int n_cut; /* chains whose result is taken off the weight whole: those that are cut, or all */
    /* extra gradients (extra.c) */
    abar__extra_plan extra;
    abar__extra_item *extra_items;  /* of the parameters with a gradient */
    abar__update_item *extra_norms; /* likewise */
    void **extra_grads;             /* (n) */
    void *saved;                    /* weights, while they are perturbed */
    size_t saved_bytes;
    int64_t loss_terms;
    int sign;                   /* of the perturbation now */
    unsigned perturbed;         /* since the last step: bit 0 by +h, bit 1 by -h */
    bool moved;                 /* a parameter or gradient has a new place since the passes were laid out */
    abar__curvature *curvature; /* NULL: the rule alone */
    bool plan_only;             /* it is never run */
    bool two_passes;            /* the method learns from a second pass: it preconditions sgd's momentum */
    bool awaits;                /* the step is made, its second pass is not */
    char *text;                 /* the names one after the other, then a buffer for the longest name of a state tensor */
    size_t text_bytes, label_bytes;
    void *state[ABAR_PARAM_STATES]; /* one block of memory each */
    size_t state_bytes[ABAR_PARAM_STATES];
    void *(*states)[ABAR_PARAM_STATES]; /* of the parameters; NULL: none */
    abar_map_info map_info;             /* what abar_optim_map returned last, */
    abar_param_info param_info;         /* abar_optim_param_info, */
    abar_block_counts block_counts;     /* abar_optim_blocks */
    abar_phase_times times;             /* of abar_optim_times */
    abar_step_note note;                /* of abar_optim_note */
    /* the device's step (step.c) */
    abar__zero *zero; /* state and updates are divided among ranks; NULL: they are not */
    abar__compiled_step *step;
    abar__owners ranks;          /* ranks that divide refreshes; ranks 0: there is one */
    abar__pieces *derived;       /* what they send each other of these; NULL: nothing */
    abar__step_state step_state; /* as it was when it was last asked */
    double *to_mean;             /* (n_maps, 3) */
    abar__map_state *map_states;
    int64_t k;                      /* steps given so far, skipped ones included */
    int64_t rates_first, rates_end; /* steps whose rate the device knows */
    bool blocks_checked;            /* abar__optim_check_blocks */
    bool reruled;                   /* the rule has new settings, which the step does not know */
    bool stale;                     /* the device has gone on since its state was read */
};

abar_status abar__optim_read_config(abar_device *dev, const abar_optim_config *config, abar_optim_config *out);
/* Parameters, rule and chains: what abar_optim_create does before it allocates state. Destroy it as any other. */
abar_status abar__optim_begin(abar_device *dev, const abar_optim_config *config, abar_optim **out);
/* As abar_optim_create; what is large and needed by steps alone is counted, but not allocated. */
abar_status abar__optim_imagine(abar_device *dev, const abar_optim_config *config, abar_optim **out);
/* The maps that config's method would get behind this optimizer's chains. */
abar_status abar__optim_list_maps(const abar_optim *o, const abar_optim_config *config, abar_map_visitor visit, void *user);
/* lr_scale, weight_decay and cautious: the parameter's own, with what its chain makes of them. One without decay stays so. */
abar__update_item abar__optim_factors(const abar_optim *o, int i);

/* rings.c */
abar_status abar__optim_make_rings(abar_optim *o);
void abar__optim_lay_out_rings(abar_optim *o); /* what they are made of now */

/* chains.c */
abar_status abar__optim_make_chains(abar_optim *o, const abar_optim_config *config);
/* Whether the rule's new settings need the same state and the same blocks. */
bool abar__optim_keeps_state(const abar_optim *o, const void *settings, const abar__update_scalars *scalars);
void abar__optim_renew_chains(abar_optim *o);
abar_param_info abar__optim_param_info(const abar_optim *o, int i);
/* Blocks that keep their norm have no weight decay ... */
abar_status abar__optim_check_decay(const abar_optim *o, int i, double decay);
/* ... and must not be zero. Reads the weights, before the first step only. */
abar_status abar__optim_check_blocks(abar_optim *o);
/* Whether device and method (NULL: none) have a place for the rule's settings. */
abar_status abar__optim_check_rule(const abar_optim *o, const char *method, const abar__update_scalars *s);

/* cut.c */

/* Refuses more blocks than an optimizer keeps. */
abar_status abar__blocks_check(const abar_optim *o);
/* Blocks of parameter i; out: (as many), or NULL: counts. State addresses are those of now. */
int abar__param_blocks(const abar_optim *o, int i, abar__block *out);
int abar__optim_states(const abar_optim *o, int i);                 /* tensors that it keeps */
int64_t abar__optim_state_count(const abar_optim *o, int i, int k); /* elements of one; 0: it has none */
const char *abar__optim_state_name(const abar_optim *o, int i, int k);
bool abar__optim_is_like_param(const abar_optim *o, int i, int k); /* else it is a vector */

abar_status abar__optim_read_step(abar_context *ctx, const abar_step_config *step, abar_step_config *out);
/* zero.c: states and updates that ranks divide. Where o->zero is NULL this optimizer has all. */
abar_status abar__zero_make(abar_optim *o, const abar__owners *ranks); /* chains are known, states are not made */
void abar__zero_free(abar_optim *o);
size_t abar__zero_bytes(const abar_optim *o);
bool abar__zero_owns(const abar_optim *o, int i);
abar_status abar__zero_connect(abar_optim *o, const abar__owners *ranks); /* before the first step: how they exchange */
abar_status abar__zero_begin_step(abar_optim *o);
/* After a step: all ranks then have all weights, and have counted all events in blocks. Where meets is true, meet comes between
 * them, as abar__pieces_meet does. */
abar_status abar__zero_send(abar_optim *o);
bool abar__zero_meets(const abar_optim *o);
abar_status abar__zero_meet(abar_optim *o);
abar_status abar__zero_take(abar_optim *o);
abar_status abar__zero_gather_weights(abar_optim *o); /* all that, of the weights alone, between steps */
/* Rank 0 gets host memory for the state of all parameters, which abar_optim_visit then shows; on the others, and while it is
 * closed, tensors of state have no address there. */
abar_status abar__zero_open(abar_optim *o);
void abar__zero_close(abar_optim *o);
void *abar__zero_whole(const abar_optim *o, int i, int k); /* NULL: not open */
/* All ranks, when they are open: rank 0 collects the state of all, or gives each its own. The others are closed then. */
abar_status abar__zero_move(abar_optim *o, bool collects);

/* Bytes that state k of parameter i takes in its block of memory. */
size_t abar__optim_slot_bytes(const abar_optim *o, int i, int k);
/* As abar_optim_create, as one of several ranks that divide states and updates; ranks NULL: it has all. */
abar_status abar__optim_create_on(abar_device *dev, const abar_optim_config *config, const abar__owners *ranks,
                                  abar_optim **out);

/* layout.c */
void abar__optim_lay_out(abar_optim *o); /* active, updates, blocks and passes anew, after a parameter moved */

/* extra.c */
abar_status abar__optim_make_extra(abar_optim *o, const abar_optim_config *config);
void abar__optim_free_extra(abar_optim *o);
void abar__optim_lay_out_extra(abar_optim *o);
void abar__optim_read_extra(abar_optim *o);          /* after the rule has new settings */
size_t abar__optim_extra_bytes(const abar_optim *o); /* host and device */
abar_status abar__optim_check_extra(abar_optim *o);  /* whether the passes of the next step were made */

size_t abar__optim_rule_bytes(const abar_optim *o); /* of the rule's state, without padding */

/* step.c */
abar_status abar__optim_make_step(abar_optim *o);
/* Ranks divide what they can of the following steps; one rank: it makes all. */
abar_status abar__optim_divide(abar_optim *o, const abar__owners *owners);
/* Whether the next step divides its refreshes. */
bool abar__optim_divides(const abar_optim *o);
/* abar_optim_queue in two parts. Between them, where meets is true, and after the second, where abar__zero_meets is, ranks
 * exchange through the host: meet is called when the part before has been enqueued, and abar__zero_take comes last. */
abar_status abar__optim_queue_first(abar_optim *o, const abar_step_config *step);
bool abar__optim_meets(const abar_optim *o);
abar_status abar__optim_meet(abar_optim *o);
abar_status abar__optim_queue_rest(abar_optim *o);
/* ABAR_E_STATE where a step waits for its second pass. what: cannot be done then. */
abar_status abar__optim_check_pass(const abar_optim *o, const char *what);
void abar__optim_free_step(abar_optim *o);
size_t abar__optim_step_bytes(const abar_optim *o); /* with the books kept for it */
abar_status abar__optim_ready(abar_optim *o);       /* the step, where parameters have moved since */
abar_status abar__optim_pull(abar_optim *o);        /* the device's state, where it is stale */
abar_status abar__optim_push(abar_optim *o);
/* Of a queued device, for micro-batches that the caller joins there: what is pending (nothing in a step without statistics),
 * the number of ranks that have observed as much each, the losses of the step (abar__join_ops.total), and whether a rank wanted
 * to stop in step k. */
abar_status abar__optim_visit_pending(abar_optim *o, abar__pending_visitor visit, void *user);
void abar__optim_scale_counts(abar_optim *o, int64_t ranks);
void *abar__optim_losses(const abar_optim *o);
bool abar__optim_stops(const abar_optim *o, int64_t k);

#endif
