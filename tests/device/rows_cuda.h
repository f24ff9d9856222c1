/* For the cuda back end's tests of statistics: maps of every geometry in every form that activations come in, the same on the
 * host and on the device. Each program has its own. */
#ifndef ROWS_CUDA_H
#define ROWS_CUDA_H

#include "cuda_testing.h"
#include "geometries.h"

#include <math.h>

static abar_context *ctx;
static abar_device *ref, *cuda;
static uint64_t noise = 1;

static inline double uniform(void) /* -1 .. 1 */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)noise / 9223372036854775808.0;
}

static inline int open_with(abar_precision precision)
{
    abar_device_config config = cuda_config(precision, true);
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "ref", NULL, &ref) != ABAR_OK ||
           abar_device_open(ctx, "cuda", &config, &cuda) != ABAR_OK;
}

static inline int close_devices(void **unused)
{
    (void)unused;
    abar_device_close(cuda);
    abar_device_close(ref);
    size_t held = abar_context_memory(ctx).now;
    abar_context_destroy(ctx);
    return held != 0;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static inline void wait(const char *what) { cuda_wait(cuda, what); }
static inline void move(void *to, const void *from, size_t bytes) { cuda_move(cuda, to, from, bytes); }
static inline void *upload(const void *host, size_t bytes) { return cuda_upload(cuda, host, bytes); }

/* How a tensor lies. */
typedef enum form { DENSE, NHWC, LAST, GAPS, FORMS } form;
static const char *const form_names[] = {"dense", "nhwc", "channels-last strides", "gaps"};

static inline void set_strides(abar_tensor *t, form f)
{
    int64_t gap = f == GAPS ? 3 : 0, stride = f == GAPS ? 2 : 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = stride;
        stride = stride * t->dim[i] + gap;
    }
    if (f != LAST || t->ndim != 4) return;
    t->stride[1] = 1;
    t->stride[3] = t->dim[1];
    t->stride[2] = t->dim[1] * t->dim[3];
}

/* On the host; what is in the gaps is not a number. */
static inline abar_tensor make_tensor(form f, abar_dtype dtype, int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, dtype, ndim, dim);
    set_strides(&t, f);
    if (f == NHWC && ndim == 4) t.layout = ABAR_LAYOUT_NHWC;
    t.data = malloc(abar_tensor_bytes(&t));
    assert_non_null(t.data);
    memset(t.data, 0xff, abar_tensor_bytes(&t));
    int64_t index[4] = {0};
    for (int64_t k = 0; k < abar_tensor_count(&t); k++) {
        for (int64_t i = ndim - 1, rest = k; i >= 0; rest /= dim[i--]) index[i] = rest % dim[i];
        abar__tensor_store(&t, abar__tensor_offset(&t, index), uniform() + 0.3);
    }
    return t;
}

/* ---- maps ------------------------------------------------------------------------------------------------------------ */

typedef struct problem {
    char label[200];
    abar__rows host, device; /* the same in both memories */
} problem;

static inline problem make_problem(const char *name, form f, abar_dtype dtype, const abar__rows *rows)
{
    problem x = {.host = *rows, .device = *rows};
    snprintf(x.label, sizeof x.label, "%s: %lld examples, %s, %s%s", name, (long long)rows->examples, form_names[f],
             abar_dtype_name(dtype), rows->bias ? ", bias" : "");
    x.device.input.data = upload(rows->input.data, abar_tensor_bytes(&rows->input));
    x.device.input.dev = cuda;
    x.device.output_grad.data = upload(rows->output_grad.data, abar_tensor_bytes(&rows->output_grad));
    x.device.output_grad.dev = cuda;
    return x;
}

static inline problem make_convolution(const geometry *g, int64_t n, form f, abar_dtype dtype, bool bias)
{
    const abar_window *w = &g->window;
    const int64_t p = abar_window_out(w, 0, g->height), q = abar_window_out(w, 1, g->width);
    const abar__rows rows = {
        .input = make_tensor(f, dtype, 4, (int64_t[]){n, g->channels, g->height, g->width}),
        .output_grad = make_tensor(f, dtype, 4, (int64_t[]){n, g->out, p, q}),
        .grad_scale = 0.7,
        .window = *w,
        .convolution = true,
        .bias = bias,
        .group = w->groups - 1,
        .examples = n,
        .per_example = p * q,
        .in = g->channels / w->groups * w->kernel[0] * w->kernel[1],
        .out = g->out / w->groups,
    };
    return make_problem(g->name, f, dtype, &rows);
}

/* tokens 0: (N, I) */
static inline problem make_linear(int64_t n, int64_t tokens, int64_t in, int64_t out, form f, abar_dtype dtype, bool bias)
{
    const int ndim = tokens ? 3 : 2;
    char name[80];
    snprintf(name, sizeof name, "linear %lld -> %lld, %lld tokens", (long long)in, (long long)out, (long long)tokens);
    const abar__rows rows = {
        .input = make_tensor(f, dtype, ndim, tokens ? (int64_t[]){n, tokens, in} : (int64_t[]){n, in}),
        .output_grad = make_tensor(f, dtype, ndim, tokens ? (int64_t[]){n, tokens, out} : (int64_t[]){n, out}),
        .grad_scale = -1.5,
        .window = abar_window_unit(),
        .bias = bias,
        .examples = n,
        .per_example = tokens ? tokens : 1,
        .in = in,
        .out = out,
    };
    return make_problem(name, f, dtype, &rows);
}

static inline void free_problem(problem *x)
{
    abar_device_free(cuda, x->device.input.data, abar_tensor_bytes(&x->device.input));
    abar_device_free(cuda, x->device.output_grad.data, abar_tensor_bytes(&x->device.output_grad));
    free(x->host.input.data);
    free(x->host.output_grad.data);
}

#endif
