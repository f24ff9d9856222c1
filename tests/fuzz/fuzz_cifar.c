/* Any bytes into the CIFAR parser, as records of both versions, kept whole and in part. */
#include "data/data_impl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(abar_context *ctx, const abar__data_kind *kind, const uint8_t *data, size_t size, bool half)
{
    int64_t count;
    if (abar__cifar_count(ctx, "input", size, kind, &count) != ABAR_OK) return;
    int64_t keep = half ? count / 2 : count;
    size_t room = (size_t)keep; /* exactly what may be written, so that one byte more is found */
    uint8_t *images = malloc(room * 3072);
    int32_t *labels = malloc(room * sizeof *labels);
    if (images && labels && abar__cifar_parse(ctx, "input", data, count, kind, keep, images, labels) == ABAR_OK)
        for (size_t i = 0; i < room; i++)
            if (labels[i] < 0 || labels[i] > 99) abort();
    free(images);
    free(labels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    for (int half = 0; half < 2; half++) {
        parse(ctx, abar__data_find("cifar10", 7), data, size, half);
        parse(ctx, abar__data_find("cifar100", 8), data, size, half);
    }
    abar_context_destroy(ctx);
    return 0;
}
