/* Any bytes as a sweep.json: refused with a text, or the cells it names survive being written and read again. */
#include "train/sweep/sweep_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void write_and_read(abar_context *ctx, abar_compare *c)
{
    abar_compare *again;
    abar__text first = {0}, second = {0}, picture = {0};
    require(abar__compare_write(c, &first) == ABAR_OK);
    require(abar__sweep_parse(ctx, "again", first.data, first.length, &again) == ABAR_OK);
    require(abar__compare_write(again, &second) == ABAR_OK && strcmp(first.data, second.data) == 0);
    require(abar__sweep_svg_write(again, &picture) == ABAR_OK);
    abar_compare_destroy(again);
    abar__text_free(ctx, &first);
    abar__text_free(ctx, &second);
    abar__text_free(ctx, &picture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar_compare *c;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    const abar_status status = abar__sweep_parse(ctx, "input", (const char *)data, size, &c);
    if (status == ABAR_OK) {
        require(c->methods >= 1 && abar__sweep_of(c)->cells == c->methods);
        write_and_read(ctx, c);
        abar_compare_destroy(c);
    } else {
        require(!c && status != ABAR_E_MEMORY && abar_context_error(ctx)[0] != '\0');
    }
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
