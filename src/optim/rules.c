/* The update rules of this build. A new one is a file, two lines here, and its declaration in optim_impl.h. */
#include "optim/optim_impl.h"

#include <string.h>

static const abar__rule_ops *const rules[] = {&abar__rule_sgd,     &abar__rule_adamw,      &abar__rule_nadamw,
                                              &abar__rule_sfadamw, &abar__rule_muon,       &abar__rule_shampoo,
                                              &abar__rule_soap,    &abar__rule_adahessian, &abar__rule_sophia};
static const char *const names[] = {"sgd",     "adamw", "nadamw",     "sfadamw", "muon",
                                    "shampoo", "soap",  "adahessian", "sophia",  NULL};

const char *const *abar_rule_names(void) { return names; }

const abar__rule_ops *abar__rule_find(const char *name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i]->rule.name, name) == 0) return rules[i];
    return NULL;
}

const abar_rule *abar_rule_find(const char *name)
{
    const abar__rule_ops *ops = abar__rule_find(name);
    return ops ? &ops->rule : NULL;
}

abar_status abar_rule_check(abar_context *ctx, const abar_rule *rule, const void *config)
{
    const abar__rule_ops *ops = abar__rule_find(rule->name);
    ABAR_TRY(abar__options_check(ctx, rule->name, rule->options, config));
    return ops && ops->check ? ops->check(ctx, config) : ABAR_OK;
}

abar_status abar__rule_configure(abar_context *ctx, const abar__rule_ops *ops, const void *config, void *out)
{
    if (config)
        memcpy(out, config, ops->rule.config_size);
    else
        abar_options_default(ops->rule.options, out);
    return abar_rule_check(ctx, &ops->rule, out);
}

int abar__chain_states(const abar__chain *chain, const abar__update_scalars *s)
{
    switch (chain->first) {
    case ABAR_UPDATE_ADAMW:
    case ABAR_UPDATE_NADAMW:
    case ABAR_UPDATE_SFADAMW:
    case ABAR_UPDATE_SOPHIA: return 2;
    case ABAR_UPDATE_ADAHESSIAN: return 3;
    case ABAR_UPDATE_SGD: return s->momentum > 0.0 ? 1 : 0;
    case ABAR_UPDATE_MOMENTUM: return chain->row_moment ? 2 : s->momentum > 0.0 ? 1 : 0;
    case ABAR_UPDATE_PLAIN:
    case ABAR_UPDATE_KINDS: break;
    }
    return 0;
}

const char *abar__chain_state_name(const abar__chain *chain, int state)
{
    static const char *const adahessian[] = {"exp_avg", "exp_hess_sq", "hessian"};
    if (chain->first == ABAR_UPDATE_ADAMW || chain->first == ABAR_UPDATE_NADAMW) return state == 0 ? "exp_avg" : "exp_avg_sq";
    if (chain->first == ABAR_UPDATE_SFADAMW) return state == 0 ? "z_minus_y" : "exp_avg_sq";
    if (chain->first == ABAR_UPDATE_ADAHESSIAN) return adahessian[state];
    if (chain->first == ABAR_UPDATE_SOPHIA) return state == 0 ? "exp_avg" : "hessian";
    return state == 0 ? "momentum" : "row_moment";
}
