/* The curvature methods of this build. A new one is a file and a line here. */
#include "curvature/curvature_impl.h"

#include <string.h>

#define EACH_METHOD(USE) \
    USE(mac)             \
    USE(smac)            \
    USE(foof)            \
    USE(kfac)            \
    USE(eva)             \
    USE(lngd)            \
    USE(skfac)           \
    USE(kpsvd)           \
    USE(mfac)            \
    USE(kbfgs)           \
    USE(ngd)

#define DECLARED(method) extern const abar__curvature_ops abar__method_##method;
#define LISTED(method) &abar__method_##method,
#define NAMED(method) #method,

EACH_METHOD(DECLARED)

static const abar__curvature_ops *const methods[] = {EACH_METHOD(LISTED)};
static const char *const names[] = {EACH_METHOD(NAMED) NULL};

const char *const *abar_method_names(void) { return names; }

const abar__curvature_ops *abar__method_find(const char *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i]->method.name, name) == 0) return methods[i];
    return NULL;
}

const abar_method *abar_method_find(const char *name)
{
    const abar__curvature_ops *ops = abar__method_find(name);
    return ops ? &ops->method : NULL;
}

abar_status abar_method_check(abar_context *ctx, const abar_method *method, const void *config)
{
    const abar__curvature_ops *ops = abar__method_find(method->name);
    ABAR_TRY(abar__options_check(ctx, method->name, method->options, config));
    return ops && ops->check ? ops->check(ctx, method->name, config) : ABAR_OK;
}

bool abar_method_reads_output_grad(const char *name)
{
    const abar__curvature_ops *ops = abar__method_find(name);
    return ops && ops->reads_output_grad;
}

bool abar_method_takes_whole_batch(const char *name)
{
    const abar__curvature_ops *ops = abar__method_find(name);
    return ops && ops->by_example;
}

abar_extra abar_method_extra(const abar_method *method, const void *config)
{
    const abar__curvature_ops *ops = abar__method_find(method->name);
    return ops && ops->labels && ops->labels(config) ? ABAR_EXTRA_ROWS : ABAR_EXTRA_NONE;
}
