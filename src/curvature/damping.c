/* What --damping says, and ρ from the trace (methods.md section 11). */
#include "curvature/damping.h"

#include "base/number.h"

#include <string.h>

bool abar__damping_read(const char *text, abar__damping *out)
{
    const bool trace = strncmp(text, "trace:", 6) == 0;
    *out = (abar__damping){.kind = trace ? ABAR_DAMPING_TRACE : ABAR_DAMPING_NUMBER};
    if (strcmp(text, "adaptive") == 0) {
        out->kind = ABAR_DAMPING_ADAPTIVE;
        return true;
    }
    return abar__real_parse(trace ? text + 6 : text, &out->value) && out->value >= 1e-30 && out->value <= 1e30;
}

abar__scalar abar__damping_by_trace(abar__plan *p, double gamma, abar__scalar mean)
{
    return abar__plan_add(p, abar__plan_multiply(p, abar__plan_value(p, gamma), mean), abar__plan_value(p, ABAR_LEAST_DAMPING));
}
