/* What the tokens of a text stand for, and turning text into tokens and back. Characters are Unicode's, read as UTF-8 and
 * numbered in the order of their code points, as nanoGPT numbers them; bytes are their own numbers. */
#include "data/data_impl.h"

#include "base/json.h"

#include <string.h>

#define CODES 0x110000 /* of Unicode */
#define BLOCK 0x1000   /* code points whose marks share an allocation */

/* The code point of a valid character of length bytes. */
static uint32_t code_of(const char *s, size_t length)
{
    static const uint8_t lead[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t code = (uint8_t)s[0] & lead[length];
    for (size_t i = 1; i < length; i++) code = code << 6 | ((uint8_t)s[i] & 0x3Fu);
    return code;
}

static size_t put_code(uint32_t code, char out[4])
{
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    for (size_t i = length; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[length] | code);
    return length;
}

static abar_status refuse_byte(abar_context *ctx, const char *label, const char *bytes, size_t at)
{
    return abar__fail(ctx, ABAR_E_FORMAT, "%s: %s at byte %zu, is it a text? --text bytes takes any file", label,
                      bytes[at] ? "not UTF-8" : "a zero byte", at);
}

/* ---- making --------------------------------------------------------------------------------------------------- */

/* One bit per code point that occurs, in blocks of which a text needs a few. */
typedef struct marks {
    uint32_t *block[CODES / BLOCK];
} marks;

static abar_status record_events(abar_context *ctx, const char *label, const char *bytes, size_t n, marks *seen,
                                 int64_t *characters)
{
    *characters = 0;
    for (size_t at = 0, length; at < n; at += length, ++*characters) {
        length = abar__utf8_length(bytes + at, n - at);
        if (length == 0 || !bytes[at]) return refuse_byte(ctx, label, bytes, at);
        uint32_t code = code_of(bytes + at, length), **block = &seen->block[code / BLOCK];
        if (!*block) ABAR_TRY(abar__alloc(ctx, BLOCK / 8, (void **)block));
        (*block)[code % BLOCK / 32] |= 1u << code % 32;
    }
    return ABAR_OK;
}

/* The first marked code point from this one on; CODES: there is none. */
static uint32_t next_code(const marks *seen, uint32_t code)
{
    while (code < CODES) {
        const uint32_t *block = seen->block[code / BLOCK];
        const uint32_t left = block ? block[code % BLOCK / 32] >> code % 32 : 0;
        if (left & 1) return code;
        code = left ? code + 1 : (code | (block ? 31u : BLOCK - 1u)) + 1;
    }
    return CODES;
}

/* The marked code points, as numbers and as text. */
static abar_status gather(abar_context *ctx, const char *label, const marks *seen, abar__vocabulary *out)
{
    char character[4];
    void *memory;
    for (uint32_t code = next_code(seen, 0); code < CODES; code = next_code(seen, code + 1)) {
        out->count++;
        out->text_bytes += put_code(code, character);
    }
    out->text_bytes++;
    if (out->count > ABAR_VOCABULARY_MAX)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "%s: %lld different characters are more than %d, use --text bytes", label,
                          (long long)out->count, ABAR_VOCABULARY_MAX);
    ABAR_TRY(abar__alloc(ctx, (size_t)out->count * sizeof *out->codes, &memory));
    out->codes = memory;
    ABAR_TRY(abar__alloc(ctx, out->text_bytes, &memory));
    out->text = memory;
    size_t i = 0, at = 0;
    for (uint32_t code = next_code(seen, 0); code < CODES; code = next_code(seen, code + 1)) {
        out->codes[i++] = code;
        at += put_code(code, out->text + at);
    }
    return ABAR_OK;
}

abar_status abar__vocabulary_find(abar_context *ctx, const char *label, const char *bytes, size_t n, abar__vocabulary *out,
                                  int64_t *characters)
{
    marks seen = {{NULL}};
    *out = (abar__vocabulary){0};
    abar_status status = record_events(ctx, label, bytes, n, &seen, characters);
    if (status == ABAR_OK) status = gather(ctx, label, &seen, out);
    for (size_t i = 0; i < CODES / BLOCK; i++) abar__free(ctx, seen.block[i], BLOCK / 8);
    if (status < 0) abar__vocabulary_free(ctx, out);
    return status;
}

abar_status abar__vocabulary_parse(abar_context *ctx, const char *label, const char *text, abar__vocabulary *out)
{
    int64_t characters;
    *out = (abar__vocabulary){.bytes = true, .count = 256};
    if (!text) return ABAR_OK;
    ABAR_TRY(abar__vocabulary_find(ctx, label, text, strlen(text), out, &characters));
    if (out->count > 0 && strcmp(out->text, text) == 0) return ABAR_OK; /* each once, and in order */
    abar__vocabulary_free(ctx, out);
    return abar__fail(ctx, ABAR_E_FORMAT, "%s: its vocabulary is not in the order of code points, is the file damaged?", label);
}

void abar__vocabulary_free(abar_context *ctx, abar__vocabulary *v)
{
    if (v->codes) abar__free(ctx, v->codes, (size_t)v->count * sizeof *v->codes);
    if (v->text) abar__free(ctx, v->text, v->text_bytes);
    *v = (abar__vocabulary){0};
}

/* ---- there and back ------------------------------------------------------------------------------------------- */

int32_t abar__vocabulary_encode(const abar__vocabulary *v, const char *bytes, size_t n, size_t *used)
{
    *used = v->bytes ? 1 : abar__utf8_length(bytes, n);
    if (v->bytes) return (uint8_t)bytes[0];
    if (*used == 0) return -1;
    uint32_t code = code_of(bytes, *used);
    int64_t low = 0, high = v->count; /* if it is there, it is in low .. high */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (v->codes[middle] <= code)
            low = middle;
        else
            high = middle;
    }
    return v->count > 0 && v->codes[low] == code ? (int32_t)low : -1;
}

size_t abar__vocabulary_decode(const abar__vocabulary *v, int32_t token, char out[4])
{
    if (!v->bytes) return put_code(v->codes[token], out);
    out[0] = (char)(uint8_t)token;
    return 1;
}

static abar_status refuse_character(abar_context *ctx, const char *label, const abar__vocabulary *v, const char *s, size_t n)
{
    const uint32_t code = code_of(s, n);
    const int shown = code < 0x20 || code == 0x7F ? 0 : (int)n;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "%s: the character %.*s%sU+%04X is not among the %lld of the vocabulary, leave it out", label, shown, s,
                      shown ? ", " : "", (unsigned)code, (long long)v->count);
}

abar_status abar__text_encode(abar_context *ctx, const char *label, const abar__vocabulary *v, const char *bytes, size_t n,
                              uint16_t *tokens, int64_t *count)
{
    *count = 0;
    for (size_t at = 0, used; at < n; at += used) {
        int32_t token = abar__vocabulary_encode(v, bytes + at, n - at, &used);
        if (token < 0 && used == 0) return refuse_byte(ctx, label, bytes, at);
        if (token < 0) return refuse_character(ctx, label, v, bytes + at, used);
        tokens[(*count)++] = (uint16_t)token;
    }
    return ABAR_OK;
}
