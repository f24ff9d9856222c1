/* Shared by the net tests: a context and device, nets filled with random inputs, differences between tensors. */
#ifndef NET_TESTING_H
#define NET_TESTING_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abar/abar.h"
#include "base/base_impl.h"
#include "base/rng.h"
#include "net/models/models.h"
#include "tensor/tensor_impl.h"

#define OK(ctx, expr)                                                                                                   \
    do {                                                                                                                \
        abar_status ok_status = (expr);                                                                                 \
        if (ok_status != ABAR_OK) fail_msg("%s: %s (%s)", #expr, abar_status_text(ok_status), abar_context_error(ctx)); \
    } while (0)

typedef struct fixture {
    abar_context *ctx;
    abar_device *dev;
    abar_net *net;
} fixture;

static inline fixture fixture_open(const char *device, int threads)
{
    fixture f = {0};
    assert_int_equal(abar_context_create(NULL, &f.ctx), ABAR_OK);
    OK(f.ctx,
       abar_device_open(f.ctx, device, &(abar_device_config){.size = sizeof(abar_device_config), .threads = threads}, &f.dev));
    OK(f.ctx, abar_net_create(f.ctx, &f.net));
    return f;
}

/* All memory has been released: the context's counter is 0. */
static inline void fixture_close(fixture *f)
{
    abar_net_destroy(f->net);
    abar_device_close(f->dev);
    assert_int_equal(abar_context_memory(f->ctx).now, 0);
    abar_context_destroy(f->ctx);
}

static inline abar_status compile(fixture *f, int64_t batch, bool training)
{
    return abar_net_compile(
        f->net, f->dev,
        &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = batch, .training = training, .seed = 7});
}

static inline void store(const abar_tensor *t, int64_t i, double value) { abar__tensor_store(t, i, value); }
static inline double load(const abar_tensor *t, int64_t i) { return abar__tensor_load(t, i); }

/* Inputs uniform in [-1, 1), or tokens below classes; labels below classes (0: the target is a tensor of numbers). */
static inline void fill_batch(abar_net *net, uint64_t seed, int64_t classes)
{
    abar_tensor x = abar_net_input(net), y = abar_net_target(net);
    for (int64_t i = 0; i < abar_tensor_count(&x); i++) {
        uint32_t u = abar__random(seed, ABAR_DRAW_SYNTHETIC, 1, (uint64_t)i).u[0];
        store(&x, i, x.dtype == ABAR_I32 ? (double)abar__below(u, (uint32_t)classes) : 2.0 * abar__uniform(u) - 1.0);
    }
    for (int64_t i = 0; i < abar_tensor_count(&y); i++) {
        uint32_t u = abar__random(seed, ABAR_DRAW_SYNTHETIC, 2, (uint64_t)i).u[0];
        store(&y, i, classes ? (double)abar__below(u, (uint32_t)classes) : abar__uniform(u));
    }
}

static inline double forward(fixture *f, bool training)
{
    abar_loss loss;
    OK(f->ctx,
       abar_net_forward(f->net, &(abar_run_config){.size = sizeof(abar_run_config), .training = training, .seed = 3}, &loss));
    return loss.loss;
}

/* Largest difference over the largest magnitude of the second. */
static inline double distance(const abar_tensor *a, const abar_tensor *b)
{
    double worst = 0.0, size = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(b); i++) {
        double x = load(a, i), y = load(b, i);
        if (!isfinite(x) || !isfinite(y)) return INFINITY;
        worst = fmax(worst, fabs(x - y));
        size = fmax(size, fabs(y));
    }
    return size > 0.0 ? worst / size : worst;
}

static inline void *failing_alloc(void *left, size_t bytes, size_t align)
{
    return (*(int *)left)-- > 0 ? aligned_alloc(align, abar__round_up(bytes, align)) : NULL;
}

static inline void failing_release(void *left, void *memory, size_t bytes)
{
    (void)left, (void)bytes;
    free(memory);
}

/* An allocator that fails at the k-th call, for every k: compile reports it, and nothing leaks. */
static inline void check_failing_allocations(void (*build)(abar_net *net))
{
    int left;
    const abar_context_config config = {.size = sizeof config, .allocator = {failing_alloc, failing_release, &left}};
    abar_status status = ABAR_E_MEMORY;
    for (int k = 3; status == ABAR_E_MEMORY; k++) {
        left = 1 << 30;
        fixture f = {0};
        assert_int_equal(abar_context_create(&config, &f.ctx), ABAR_OK);
        OK(f.ctx, abar_device_open(f.ctx, "ref", NULL, &f.dev));
        OK(f.ctx, abar_net_create(f.ctx, &f.net));
        left = k;
        build(f.net);
        status = compile(&f, 2, true);
        assert_true(status == ABAR_OK || status == ABAR_E_MEMORY);
        fixture_close(&f);
    }
}

#endif
