/* What the tests of the analyses share: a context, and closeness of numbers. */
#ifndef ANALYSIS_TESTING_H
#define ANALYSIS_TESTING_H

#include "base/base_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline int open_context(void **state)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) < 0) return -1;
    *state = ctx;
    return 0;
}

/* Everything that was allocated must be free again. */
static inline int close_context(void **state)
{
    const size_t held = abar_context_memory(*state).now;
    abar_context_destroy(*state);
    return held == 0 ? 0 : -1;
}

#define assert_near(actual, expected, tolerance)                                                                \
    do {                                                                                                        \
        const double near_actual = (actual), near_expected = (expected);                                        \
        if (!(fabs(near_actual - near_expected) <= (tolerance)))                                                \
            fail_msg("%s is %.17g, not %.17g to %g", #actual, near_actual, near_expected, (double)(tolerance)); \
    } while (0)

#define assert_fine(ctx, call)                                              \
    do {                                                                    \
        if ((call) < 0) fail_msg("%s: %s", #call, abar_context_error(ctx)); \
    } while (0)

#endif
