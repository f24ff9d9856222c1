/* For tests that need a GPU: without one they are skipped, with exit code 77 and the reason. Environment:
 *     ABAR_TEST_REQUIRE_CUDA=1   a missing device is a failure
 *     ABAR_TEST_SMALL=1          small cases only, for compute-sanitizer
 *     ABAR_TEST_OWN=1            our own kernels only: what cuDNN and cuBLAS do is theirs to check */
#ifndef CUDA_TESTING_H
#define CUDA_TESTING_H

#include "device/device_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline bool cuda_is_library(const char *implementation)
{
    return strstr(implementation, "cudnn") || strstr(implementation, "cublas");
}

static const char *const cuda_precisions[] = {"fp32", "tf32", "bf16"}; /* by abar_precision */

static inline abar_device_config cuda_config(abar_precision precision, bool deterministic)
{
    return (abar_device_config){.size = sizeof(abar_device_config), .precision = precision, .deterministic = deterministic};
}

#endif
