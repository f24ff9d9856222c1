/* Any bytes as a text: its vocabulary, its tokens, and back to the very same bytes; and any bytes as a vocabulary. */
#include "data/data_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void there_and_back(abar_context *ctx, const abar__vocabulary *v, const char *bytes, size_t n, int64_t room)
{
    uint16_t *tokens = malloc((size_t)room * sizeof *tokens); /* exactly what may be written */
    int64_t count;
    size_t at = 0;
    if (room > 0 && tokens && abar__text_encode(ctx, "input", v, bytes, n, tokens, &count) == ABAR_OK) {
        for (int64_t i = 0; i < count; i++) {
            char character[4];
            if (tokens[i] >= v->count) abort();
            size_t length = abar__vocabulary_decode(v, tokens[i], character);
            if (at + length > n || memcmp(bytes + at, character, length) != 0) abort();
            at += length;
        }
        if (at != n || count > room) abort();
    }
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar__vocabulary v;
    int64_t characters;
    const char *bytes = (const char *)data;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    if (abar__vocabulary_find(ctx, "input", bytes, size, &v, &characters) == ABAR_OK) {
        there_and_back(ctx, &v, bytes, size, characters);
        abar__vocabulary again;
        if (size > 0 && abar__vocabulary_parse(ctx, "input", v.text, &again) != ABAR_OK) abort(); /* its own text is one */
        if (size > 0) abar__vocabulary_free(ctx, &again);
        abar__vocabulary_free(ctx, &v);
    }
    if (abar__vocabulary_parse(ctx, "input", NULL, &v) == ABAR_OK) there_and_back(ctx, &v, bytes, size, (int64_t)size);
    char *text = calloc(size + 1, 1);
    if (text) memcpy(text, data, size);
    if (text && abar__vocabulary_parse(ctx, "input", text, &v) == ABAR_OK) {
        there_and_back(ctx, &v, bytes, size, (int64_t)size);
        abar__vocabulary_free(ctx, &v);
    }
    free(text);
    if (abar_context_memory(ctx).now != 0) abort();
    abar_context_destroy(ctx);
    return 0;
}
