/* --damping of the methods whose ρ may follow the activations: a number, trace:γ, or adaptive (mac.c). */
#ifndef ABAR_DAMPING_H
#define ABAR_DAMPING_H

#include "curvature/curvature_impl.h"

#define ABAR_LEAST_DAMPING 1e-8 /* for activations that are all 0 */

typedef enum abar__damping_kind { ABAR_DAMPING_NUMBER, ABAR_DAMPING_TRACE, ABAR_DAMPING_ADAPTIVE } abar__damping_kind;

typedef struct abar__damping {
    abar__damping_kind kind;
    double value; /* ρ; γ of trace:γ */
} abar__damping;

/* False: it is none of the three, or a number outside 1e-30 to 1e30. */
bool abar__damping_read(const char *text, abar__damping *out);
/* ρ = γ mean + 1e-8, the mean being that of the diagonal of Â: tr Â / d (methods.md section 11). */
abar__scalar abar__damping_by_trace(abar__plan *p, double gamma, abar__scalar mean);

#endif
