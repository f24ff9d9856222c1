/* Pairs of taps that see the same pairs of pixels, along one axis of a convolution (methods.md section 4).
 *
 * Taps i and i' of all windows see the pixels u = i * dilation - pad + stride * p and u + lag, lag = (i' - i) * dilation. So
 * pairs with one lag, whose u agree modulo the stride, form a *class*: their sums over p are sums of one sequence of products
 * x[u] x[u + lag], u = origin + stride * t, over windows of t that differ only in where they begin. Cut at all the windows'
 * ends, the sequence falls into *segments*: each is summed once, and every window is a run of whole segments. */
#ifndef ABAR_STATS_DENSE_AXIS_H
#define ABAR_STATS_DENSE_AXIS_H

#include "device/cpu/stats_dense_impl.h"

typedef struct abar__shift_class {
    int64_t lag, origin;
    int64_t tap_a, tap_b; /* of the first member; member m: m * tap_step further */
    int64_t members, segments;
    abar__range *segment; /* of t */
    abar__range *seen;    /* by member: which segments its window sums */
} abar__shift_class;

typedef struct abar__shift_axis {
    int64_t step, tap_step; /* from t to t + 1, in pixels; from member to member, in taps */
    int64_t n;
    abar__shift_class *classes;
} abar__shift_axis;

/* in: extent of the image, out: positions of the window. memory: abar__shift_axis_bytes. */
void abar__shift_axis_make(const abar_window *w, int axis, int64_t in, int64_t out, void *memory, abar__shift_axis *a);
size_t abar__shift_axis_bytes(int64_t kernel);
int64_t abar__shift_axis_length(const abar__shift_axis *a);   /* products of all classes */
int64_t abar__shift_axis_segments(const abar__shift_axis *a); /* of all classes */

#endif
