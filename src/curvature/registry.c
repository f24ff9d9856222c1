/* The curvature methods of this build. A new one is a file and a line in each of the two lists. */
#include "curvature/curvature_impl.h"

#include <string.h>

static const abar__curvature_ops *const methods[] = {&abar__method_mac,  &abar__method_smac, &abar__method_foof,
                                                     &abar__method_kfac, &abar__method_eva,  &abar__method_lngd};
static const char *const names[] = {"mac", "smac", "foof", "kfac", "eva", "lngd", NULL};

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
