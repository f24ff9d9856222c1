/* Muon (methods.md section 11): the momentum of a hidden matrix with all its singular values driven to about 1.
 *
 *     M ← μM + (1−μ)G;   u = (1−μ)G + μM with Nesterov, else M;   O = Newton-Schulz(u), block by block
 *     W ← (1 − ηλ)W − η·adj·O;   cautious: λ = 0 where O and W have different signs
 *     hyperball, for the last line: W ← W − η·(‖W‖/‖O‖)·O, then scaled to the norm it had
 *
 * AdamW updates everything else: embeddings, norms, biases, the first layer, the head, and blocks too narrow or too long. */
#include "optim/optim_impl.h"
#include "optim/option_rows.h"

#include <math.h>

typedef struct config {
    double momentum;
    bool nesterov;
    int64_t ns, ns_steps, ns_precision, adjust;
    double eps;
    bool normuon, cautious, hyperball;
    double row_decay;
    char split[ABAR_OPTION_TEXT_MAX], take[ABAR_OPTION_TEXT_MAX], skip[ABAR_OPTION_TEXT_MAX];
    double aux_lr, embed_lr, head_lr, aux_weight_decay, aux_beta1, aux_beta2, aux_eps;
} config;

_Static_assert(sizeof(config) <= ABAR_RULE_CONFIG_MAX, "raise ABAR_RULE_CONFIG_MAX");

enum { ADJUST_ORIGINAL, ADJUST_MATCH_RMS, ADJUST_UNCLAMPED, ADJUST_NONE };
enum { NS_AUTO, NS_FP32 };
#define NS_NAMES "original|quintic|polar-express|exact|cubic"
static const char *const ns_names[] = {"original", "quintic", "polar-express", "exact", "cubic"};

static const abar_option options[] = {
    REAL("momentum", momentum, "0.95", 0.0, 0.999999, "weight of the old value in the average of gradients"),
    FLAG("nesterov", nesterov, "true", "Nesterov momentum"),
    CHOICE("ns", ns, "original", NS_NAMES, "coefficients of the Newton-Schulz iteration"),
    WHOLE("ns-steps", ns_steps, "0", 0, ABAR_NS_STEPS_MAX, "iterations; 0: those of the coefficients"),
    CHOICE("ns-precision", ns_precision, "auto", "auto|fp32",
           "products of the iteration: as the device computes, or in float32"),
    CHOICE("muon-adjust", adjust, "original", "original|match-rms|unclamped|none",
           "step length from the block's shape (r, c): sqrt(max(1, r/c)), 0.2 sqrt(max(r, c)), sqrt(r/c), 1"),
    REAL("muon-eps", eps, "1e-7", 1e-30, 1.0, "the least norm that is divided by"),
    FLAG("normuon", normuon, "false", "NorMuon: rows of the step are normalised by their second moment"),
    REAL("normuon-beta2", row_decay, "0.95", 0.0, 0.999999, "decay of NorMuon's second moment"),
    FLAG("cautious", cautious, "false", "weight decay only where it agrees with the step"),
    FLAG("hyperball", hyperball, "false", "every block keeps its norm, and the rate is relative to it; without weight decay"),
    TEXT("split", split, "qkv", "blocks of a fused projection: qkv, heads:N, or none"),
    TEXT("muon-take", take, "", "parameters that Muon takes all the same: names with * and ?, joined by commas"),
    TEXT("muon-skip", skip, "", "parameters that are left to AdamW: names with * and ?, joined by commas"),
    REAL("aux-lr", aux_lr, "3e-4", 0.0, 1e6, "learning rate of the parameters that AdamW updates"),
    REAL("embed-lr", embed_lr, "0", 0.0, 1e6, "that of embeddings; 0: aux-lr"),
    REAL("head-lr", head_lr, "0", 0.0, 1e6, "that of the head; 0: aux-lr"),
    REAL("aux-weight-decay", aux_weight_decay, "0.01", 0.0, 1e6, "their weight decay, where --weight-decay is not 0"),
    REAL("aux-beta1", aux_beta1, "0.9", 0.0, 0.999999, "AdamW's decay of the gradient's running mean"),
    REAL("aux-beta2", aux_beta2, "0.999", 0.0, 0.999999, "AdamW's decay of the squared gradient's running mean"),
    REAL("aux-eps", aux_eps, "1e-8", 1e-30, 1.0, "added to the root of AdamW's second moment"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *settings)
{
    const config *c = settings;
    if (c->cautious && c->hyperball)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--cautious: --hyperball has no weight decay to be cautious with, leave one out");
    return abar__split_check(ctx, c->split);
}

/* ---- which parameters ------------------------------------------------------------------------------------------------ */

/* Why Muon leaves a parameter to AdamW; NULL: it takes it. */
static const char *refusal(const config *c, const abar__param_view *param)
{
    if (param->columns <= 1 || param->rows <= 1) return "not a matrix";
    if (abar__name_fits(c->skip, param->name)) return "--muon-skip names it";
    if (abar__name_fits(c->take, param->name)) return NULL;
    if (param->layers == 0) return "not a layer's weight";
    if (param->layers > 1) return "shared by several layers";
    if (param->yields_output) return "makes the output";
    if (param->reads_input) return "reads the input";
    if (param->groups > 1 && param->group_inputs == 1) return "one input channel per group";
    const int64_t r = abar__split_rows(c->split, param), k = param->columns, small = r < k ? r : k, large = r < k ? k : r;
    if (small < 4) return "a side below 4";
    if (large > 128 * small) return "longer than 128 to 1";
    return NULL;
}

static double adjusted(const config *c, int64_t rows, int64_t columns)
{
    const double r = (double)rows, k = (double)columns;
    switch (c->adjust) {
    case ADJUST_MATCH_RMS: return 0.2 * sqrt(fmax(r, k));
    case ADJUST_UNCLAMPED: return sqrt(r / k);
    case ADJUST_NONE: return 1.0;
    default: return sqrt(fmax(1.0, r / k));
    }
}

static double aux_rate(const config *c, const abar__param_view *param)
{
    const bool embeds = param->layers == 0 && param->rows > 1 && param->columns > 1;
    if (embeds && c->embed_lr > 0.0) return c->embed_lr;
    return param->yields_output && c->head_lr > 0.0 ? c->head_lr : c->aux_lr;
}

static void plan(const void *settings, const abar__param_view *param, abar__chain *chain)
{
    const config *c = settings;
    chain->why = refusal(c, param);
    if (chain->why) {
        chain->first = ABAR_UPDATE_ADAMW;
        chain->lr_scale = param->base_lr > 0.0 ? aux_rate(c, param) / param->base_lr : 1.0; /* under the same schedule */
        chain->decay = c->aux_weight_decay;
        return;
    }
    chain->why = abar__name_fits(c->take, param->name) ? "--muon-take names it" : "hidden layer";
    chain->first = ABAR_UPDATE_MOMENTUM;
    chain->orthogonalise = true;
    chain->block_rows = abar__split_rows(c->split, param);
    chain->scale = adjusted(c, chain->block_rows, param->columns);
    chain->row_moment = c->normuon;
    chain->cautious = c->cautious;
    chain->hyperball = c->hyperball;
}

static void scalars(const void *settings, abar__update_scalars *s)
{
    const config *c = settings;
    s->momentum = c->momentum;
    s->nesterov = c->nesterov;
    s->beta1 = c->aux_beta1;
    s->beta2 = c->aux_beta2;
    s->eps = c->aux_eps;
}

static void orthogonalise(const void *settings, abar__ns *ns, double *row_decay, bool *exact)
{
    const config *c = settings;
    (void)abar__ns_find(ns_names[c->ns], (int)c->ns_steps, ns);
    ns->eps = c->eps;
    *row_decay = c->row_decay;
    *exact = c->ns_precision == NS_FP32;
}

const abar__rule_ops abar__rule_muon = {
    .rule = {.name = "muon",
             .summary = "orthogonalised momentum for hidden matrices, AdamW for the rest",
             .options = options,
             .config_size = sizeof(config),
             .states = 2},
    .check = check,
    .plan = plan,
    .scalars = scalars,
    .orthogonalise = orthogonalise,
};
