/* For tests that need a GPU: without one they are skipped, with exit code 77 and the reason. Environment:
 *     ABAR_TEST_REQUIRE_CUDA=1   a missing device is a failure
 *     ABAR_TEST_SMALL=1          small cases only, for compute-sanitizer
 *     ABAR_TEST_OWN=1            our own kernels only: what cuDNN and cuBLAS do is theirs to check */
#ifndef CUDA_TESTING_H
#define CUDA_TESTING_H

#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CUDA_SKIPPED = 77 };

/* 0 when there is a device to test on, otherwise what main returns. */
static inline int cuda_missing(void)
{
    abar_context *ctx;
    abar_device *dev = NULL;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 1;
    abar_status status = abar_device_open(ctx, "cuda", NULL, &dev);
    if (status == ABAR_OK)
        printf("%s\n", abar_device_describe(dev));
    else
        printf("skipped: %s (%s)\n", abar__device_find("cuda") ? "no CUDA device" : "built without CUDA",
               abar_context_error(ctx));
    abar_device_close(dev);
    abar_context_destroy(ctx);
    if (status == ABAR_OK) return 0;
    return getenv("ABAR_TEST_REQUIRE_CUDA") ? 1 : CUDA_SKIPPED;
}

static inline bool cuda_only(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* A program's argument: a pattern of the tests to run, or with ! of those to leave out. */
static inline void cuda_choose_tests(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == '!') cmocka_set_skip_filter(argv[1] + 1);
    if (argc > 1 && argv[1][0] != '!') cmocka_set_test_filter(argv[1]);
}

static inline bool cuda_is_library(const char *implementation)
{
    return strstr(implementation, "cudnn") || strstr(implementation, "cublas");
}

static const char *const cuda_precisions[] = {"fp32", "tf32", "bf16"}; /* by abar_precision */

static inline abar_device_config cuda_config(abar_precision precision, bool deterministic)
{
    return (abar_device_config){.size = sizeof(abar_device_config), .precision = precision, .deterministic = deterministic};
}

/* ---- memory of a queued device; all of it is done when it returns ------------------------------------------------------- */

static inline void cuda_wait(abar_device *dev, const char *what)
{
    if (abar_device_wait(dev) != ABAR_OK) fail_msg("%s: %s", what, abar_context_error(dev->ctx));
}

static inline void cuda_move(abar_device *dev, void *to, const void *from, size_t bytes)
{
    if (dev->ops->stream->copy_bytes(dev, to, from, bytes) != ABAR_OK) fail_msg("copy: %s", abar_context_error(dev->ctx));
    cuda_wait(dev, "copy");
}

static inline void *cuda_alloc(abar_device *dev, size_t bytes)
{
    void *memory;
    if (abar_device_alloc(dev, bytes, &memory) != ABAR_OK) fail_msg("%s", abar_context_error(dev->ctx));
    return memory;
}

/* A copy of host memory on the device. */
static inline void *cuda_upload(abar_device *dev, const void *host, size_t bytes)
{
    void *memory = cuda_alloc(dev, bytes);
    if (bytes) cuda_move(dev, memory, host, bytes);
    return memory;
}

/* Doubles in row-major order to and from device memory that view describes (its data does not count). */
static inline void cuda_put(abar_device *dev, void *to, const double *from, abar_tensor view)
{
    const abar_tensor src = abar_tensor_wrap(NULL, (void *)(uintptr_t)from, ABAR_F64, view.ndim, view.dim);
    view.dev = NULL;
    view.data = calloc(1, abar_tensor_bytes(&view) + 1);
    assert_non_null(view.data);
    abar__tensor_copy_host(&view, &src);
    cuda_move(dev, to, view.data, abar_tensor_bytes(&view));
    free(view.data);
}

static inline void cuda_get(abar_device *dev, double *to, const void *from, abar_tensor view)
{
    const abar_tensor dst = abar_tensor_wrap(NULL, to, ABAR_F64, view.ndim, view.dim);
    view.dev = NULL;
    view.data = calloc(1, abar_tensor_bytes(&view) + 1);
    assert_non_null(view.data);
    cuda_move(dev, view.data, from, abar_tensor_bytes(&view));
    abar__tensor_copy_host(&dst, &view);
    free(view.data);
}

#endif
