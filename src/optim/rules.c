/* The update rules of this build. A new one is a file and two lines here. */
#include "optim/optim_impl.h"

#include <string.h>

static const abar__rule_ops *const rules[] = {&abar__rule_sgd, &abar__rule_adamw};
static const char *const names[] = {"sgd", "adamw", NULL};

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

static int64_t count_choices(const char *choices)
{
    int64_t n = 1;
    for (; *choices; choices++) n += *choices == '|';
    return n;
}

/* Options set by abar_options_set are in range already; a struct that the caller filled by hand may not be. */
static abar_status check_option(abar_context *ctx, const char *rule, const abar_option *o, const void *config)
{
    const void *field = (const char *)config + o->offset;
    double value = 0.0, min = o->min, max = o->max;
    switch (o->type) {
    case ABAR_OPTION_REAL: value = *(const double *)field; break;
    case ABAR_OPTION_INT: value = (double)*(const int64_t *)field; break;
    case ABAR_OPTION_CHOICE:
        value = (double)*(const int64_t *)field;
        min = 0.0;
        max = (double)(count_choices(o->choices) - 1);
        break;
    case ABAR_OPTION_BOOL:
    case ABAR_OPTION_TEXT: return ABAR_OK;
    }
    if (value >= min && value <= max) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: %s %g is out of range, choose from %g to %g", rule, o->name, value, min, max);
}

abar_status abar__rule_configure(abar_context *ctx, const abar__rule_ops *ops, const void *config, void *out)
{
    if (config)
        memcpy(out, config, ops->rule.config_size);
    else
        abar_options_default(ops->rule.options, out);
    for (const abar_option *o = ops->rule.options; o->name; o++) ABAR_TRY(check_option(ctx, ops->rule.name, o, out));
    return ops->check ? ops->check(ctx, out) : ABAR_OK;
}
