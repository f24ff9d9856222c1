/* Any bytes as a cache of measured choices: as a whole file, and as the lines of a file whose head and sum are right. What is
 * accepted must survive being written and read again. */
#include "device/autotune_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TITLE "GPU, driver 1"
#define HEAD "abar choices 1: " TITLE "\n"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void read_file(abar_context *ctx, const char *text, size_t n)
{
    abar__autotune_cache *c, *again;
    abar__text first = {0}, second = {0};
    abar_status status = abar__autotune_cache_parse(ctx, TITLE, text, n, &c);
    require(status == ABAR_OK ? c != NULL : status == ABAR_E_FORMAT && !c);
    if (!c) return;
    (void)abar__autotune_cache_find(c, "conv forward 1");
    require(abar__autotune_cache_write(c, &first) == ABAR_OK);
    require(abar__autotune_cache_parse(ctx, TITLE, first.data, first.length, &again) == ABAR_OK && again);
    require(abar__autotune_cache_write(again, &second) == ABAR_OK);
    require(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
    require(abar__autotune_cache_put(c, "a new problem", "its choice") == ABAR_OK);
    require(strcmp(abar__autotune_cache_find(c, "a new problem"), "its choice") == 0);
    abar__autotune_cache_close(c);
    abar__autotune_cache_close(again);
    abar__text_free(ctx, &first);
    abar__text_free(ctx, &second);
}

/* The file's own sum, FNV-1a, so that what lies before it is read. */
static uint64_t sum_of(const char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar__text file = {0};
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    read_file(ctx, (const char *)data, size);
    if (abar__text_append(ctx, &file, HEAD, strlen(HEAD)) == ABAR_OK && abar__text_append(ctx, &file, data, size) == ABAR_OK &&
        abar__text_printf(ctx, &file, "sum %016" PRIx64 "\n", sum_of(file.data, file.length)) == ABAR_OK)
        read_file(ctx, file.data, file.length);
    abar__text_free(ctx, &file);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
