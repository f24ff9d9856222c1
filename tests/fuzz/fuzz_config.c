/* The JSON that config.json and checkpoints carry: settings, and where a run stands. What is accepted must survive being
 * written and read again; what is refused is not for lack of memory. */
#include "train/train_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_setup(abar_context *ctx, const char *json, size_t n)
{
    abar_setup *setup, *again;
    abar__text first = {0}, second = {0};
    const abar_status status = abar__setup_parse(ctx, "fuzz", json, n, &setup);
    if (status == ABAR_E_MEMORY) abort();
    if (status < 0) return;
    if (abar__setup_write(ctx, setup, &first) < 0) abort();
    if (abar__setup_parse(ctx, "fuzz", first.data, first.length, &again) < 0) abort();
    if (abar__setup_write(ctx, again, &second) < 0 || strcmp(first.data, second.data) != 0) abort();
    abar_setup_check(ctx, setup);
    abar__text_free(ctx, &first);
    abar__text_free(ctx, &second);
    abar_setup_destroy(ctx, setup);
    abar_setup_destroy(ctx, again);
}

static void fuzz_place(abar_context *ctx, const char *json, size_t n)
{
    abar__run_state at;
    abar__epoch *history;
    const abar_status status = abar__run_state_parse(ctx, "fuzz", json, n, &at, &history);
    if (status == ABAR_E_MEMORY) abort();
    if (status < 0) return;
    abar__text text = {0};
    if (abar__run_state_write(ctx, &at, history, &text) < 0) abort();
    abar__text_free(ctx, &text);
    abar__free(ctx, history, (size_t)at.epoch * sizeof *history);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) < 0) return 0;
    fuzz_setup(ctx, (const char *)data, size);
    fuzz_place(ctx, (const char *)data, size);
    if (abar_context_memory(ctx).now != 0) abort();
    abar_context_destroy(ctx);
    return 0;
}
