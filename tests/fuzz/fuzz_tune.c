/* Any bytes as a tune.json: refused with a text, or the plan it names survives being written and read again. */
#include "train/sweep/tune_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static abar_status read(abar_context *ctx, const char *json, size_t n, abar_tune **out)
{
    require(abar__tune_make(ctx, NULL, out) == ABAR_OK);
    return abar__tune_parse(*out, "input", json, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar_tune *tune, *again;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    const abar_status status = read(ctx, (const char *)data, size, &tune);
    if (status == ABAR_OK) {
        abar__text first = {0}, second = {0};
        require(tune->rounds >= 1 && tune->optimizers >= 1);
        require(abar__tune_write(tune, &first) == ABAR_OK);
        require(read(ctx, first.data, first.length, &again) == ABAR_OK);
        require(abar__tune_write(again, &second) == ABAR_OK && strcmp(first.data, second.data) == 0);
        abar_tune_destroy(again);
        abar__text_free(ctx, &first);
        abar__text_free(ctx, &second);
    } else {
        require(status != ABAR_E_MEMORY && abar_context_error(ctx)[0] != '\0');
    }
    abar_tune_destroy(tune);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
