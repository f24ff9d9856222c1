/* The shift structure of a convolution's patches along one axis (methods.md section 4): see stats_dense_axis.h. */
#include "device/cpu/stats_dense_axis.h"

#include "device/cpu/stats_dense_impl.h"

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }
static int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
static int64_t clip(int64_t x, int64_t low, int64_t high) { return abar__max(low, abar__min(x, high)); }

/* Places of the windows of one class: window m covers [first + m * step, first + m * step + length). */
typedef struct windows {
    int64_t first, step, length;
    abar__range valid; /* where both sides are inside the image */
} windows;

static abar__range window(const windows *w, int64_t m)
{
    const int64_t at = w->first + m * w->step;
    return (abar__range){clip(at, w->valid.begin, w->valid.end), clip(at + w->length, w->valid.begin, w->valid.end)};
}

/* Cuts what the windows cover at every place where one of them begins or ends. */
static void cut(const windows *w, abar__shift_class *c)
{
    for (int64_t at = w->valid.begin, next; at < w->valid.end; at = next) {
        bool covered = false;
        next = w->valid.end;
        for (int64_t m = 0; m < c->members; m++) {
            const abar__range r = window(w, m);
            if (r.begin > at) next = abar__min(next, r.begin);
            if (r.end > at) next = abar__min(next, r.end);
            covered = covered || (r.begin <= at && at < r.end);
        }
        if (covered) c->segment[c->segments++] = (abar__range){at, next};
    }
    for (int64_t m = 0; m < c->members; m++) {
        const abar__range r = window(w, m);
        abar__range *seen = &c->seen[m];
        while (seen->begin < c->segments && c->segment[seen->begin].begin < r.begin) seen->begin++;
        seen->end = seen->begin;
        while (seen->end < c->segments && c->segment[seen->end].begin < r.end) seen->end++;
    }
}

/* The class of taps (first, first + apart) and those tap_step further. */
static void make_class(const abar_window *w, int axis, int64_t in, int64_t out, const abar__shift_axis *a, int64_t first,
                       int64_t apart, abar__shift_class *c)
{
    const int64_t stride = w->stride[axis], at = first * w->dilation[axis] - w->pad[axis];
    c->tap_a = first;
    c->tap_b = first + apart;
    c->lag = apart * w->dilation[axis];
    c->origin = at - floor_div(at, stride) * stride;
    windows places = {floor_div(at, stride), a->tap_step * w->dilation[axis] / stride, out, {0, 0}};
    places.valid.begin = abar__max(0, -floor_div(c->lag + c->origin, stride));
    places.valid.end = floor_div(in - 1 - c->origin - abar__max(0, c->lag), stride) + 1;
    places.valid.end = abar__max(places.valid.begin, places.valid.end);
    cut(&places, c);
}

size_t abar__shift_axis_bytes(int64_t kernel)
{
    /* at most kernel * kernel classes, as many members in all, two segments for each */
    return abar__round_up((size_t)(kernel * kernel) * (sizeof(abar__shift_class) + 3 * sizeof(abar__range)), ABAR_ALIGN);
}

void abar__shift_axis_make(const abar_window *w, int axis, int64_t in, int64_t out, void *memory, abar__shift_axis *a)
{
    const int64_t k = w->kernel[axis];
    *a = (abar__shift_axis){.step = w->stride[axis], .classes = memory};
    a->tap_step = w->stride[axis] / gcd(w->stride[axis], w->dilation[axis]);
    abar__range *ranges = (abar__range *)(a->classes + k * k);
    for (int64_t apart = 1 - k; apart < k; apart++) {
        const int64_t low = abar__max(0, -apart), high = abar__min(k - 1, k - 1 - apart);
        for (int64_t first = low; first <= high && first < low + a->tap_step; first++) {
            abar__shift_class *c = &a->classes[a->n++];
            *c = (abar__shift_class){.members = (high - first) / a->tap_step + 1};
            c->segment = ranges;
            c->seen = ranges + 2 * c->members;
            ranges += 3 * c->members;
            for (int64_t m = 0; m < c->members; m++) c->seen[m] = (abar__range){0, 0};
            make_class(w, axis, in, out, a, first, apart, c);
        }
    }
}

int64_t abar__shift_axis_length(const abar__shift_axis *a)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t s = 0; s < a->classes[i].segments; s++)
            sum += a->classes[i].segment[s].end - a->classes[i].segment[s].begin;
    return sum;
}

int64_t abar__shift_axis_segments(const abar__shift_axis *a)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < a->n; i++) sum += a->classes[i].segments;
    return sum;
}
