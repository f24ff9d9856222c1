/* Any bytes into the idx parser, plain or gzipped: as images and as labels, kept whole and in part. */
#include "data/data_impl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(abar_context *ctx, const uint8_t *data, size_t size, int ndim, int64_t limit)
{
    abar__idx idx;
    abar_status status = abar__idx_parse(ctx, "input", data, size, ndim, limit, &idx);
    if (status == ABAR_OK) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < idx.kept * idx.dim[1] * idx.dim[2]; i++) sum += idx.data[i];
        if (sum > UINT32_MAX / 2 || idx.kept < 1 || idx.kept > idx.dim[0]) abort();
        abar__idx_free(ctx, &idx);
    } else if (status != ABAR_E_FORMAT || idx.data || abar_context_error(ctx)[0] == '\0') {
        abort();
    }
    if (abar_context_memory(ctx).now != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    parse(ctx, data, size, 3, 0);
    parse(ctx, data, size, 3, 2);
    parse(ctx, data, size, 1, 0);
    abar_context_destroy(ctx);
    return 0;
}
