/* For the tests of the dense statistics: ref and cpu devices, and numbers to feed them. Each program has its own. */
#ifndef STATS_TESTING_H
#define STATS_TESTING_H

#include "device/device_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_THREADS 3

static abar_context *ctx;
static abar_device *ref, *cpu[MAX_THREADS + 1]; /* by number of threads */
static uint64_t state = 1;

static inline double uniform(void) /* -1 .. 1 */
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)state / 9223372036854775808.0;
}

static inline int64_t below(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % n;
}

static inline int open_devices(void **unused)
{
    (void)unused;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        abar_device_config config = {.size = sizeof config, .threads = threads};
        assert_int_equal(abar_device_open(ctx, "cpu", &config, &cpu[threads]), ABAR_OK);
    }
    return 0;
}

static inline int close_devices(void **unused)
{
    (void)unused;
    for (int threads = 1; threads <= MAX_THREADS; threads++) abar_device_close(cpu[threads]);
    abar_device_close(ref);
    abar_context_destroy(ctx);
    return 0;
}

static inline void *take(abar_device *dev, size_t bytes)
{
    void *memory;
    assert_int_equal(abar_device_alloc(dev, bytes, &memory), ABAR_OK);
    return memory;
}

/* Sums go on top of what the lower triangle holds already; NaN in the upper one stays, to the bit. */
static inline void fill_square(int64_t d, float *square)
{
    memset(square, 0xff, (size_t)(d * d) * sizeof *square);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) square[i * d + j] = (float)(i % 7 + j % 5) * 0.25f;
}

#endif
