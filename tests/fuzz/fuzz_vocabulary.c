/* Any bytes as the vocabulary in a text model's metadata, between the quotes of its JSON string: refused with a text, or every
 * token becomes a character and comes back. */
#include "data/data_impl.h"
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

#define BEFORE "{\"__metadata__\":{\"vocabulary\":\""
#define AFTER "\"}}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check(const abar__vocabulary *v)
{
    for (int64_t i = 0; i < v->count; i++) {
        char character[4];
        size_t used, length = abar__vocabulary_decode(v, (int32_t)i, character);
        require(length >= 1 && length <= 4);
        require(abar__vocabulary_encode(v, character, length, &used) == i && used == length);
    }
}

static void read_file(abar_context *ctx, const void *bytes, size_t n)
{
    abar__safetensors *file;
    abar__vocabulary v;
    if (abar__safetensors_open_memory(ctx, "input", bytes, n, &file) != ABAR_OK) return;
    const char *text = abar__safetensors_metadata(file, "vocabulary");
    if (text && abar__vocabulary_parse(ctx, "input", text, &v) == ABAR_OK) {
        require(v.count > 0 && strcmp(v.text, text) == 0);
        check(&v);
        abar__vocabulary_free(ctx, &v);
    } else if (text) {
        require(strncmp(abar_context_error(ctx), "input: ", 7) == 0);
    }
    abar__safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t header = strlen(BEFORE) + size + strlen(AFTER);
    const size_t n = 8 + (size_t)header; /* the length of the header, little-endian, and the header */
    abar_context *ctx;
    char *bytes = malloc(n);
    if (!bytes || abar_context_create(NULL, &ctx) != ABAR_OK) {
        free(bytes);
        return 0;
    }
    memcpy(bytes, &header, 8);
    memcpy(bytes + 8, BEFORE, strlen(BEFORE));
    if (size > 0) memcpy(bytes + 8 + strlen(BEFORE), data, size);
    memcpy(bytes + n - strlen(AFTER), AFTER, strlen(AFTER));
    read_file(ctx, bytes, n);
    free(bytes);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
