/* JSON text (RFC 8259) and UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates). */
#include "base/json.h"
#include "base/number.h"

#include <math.h>
#include <string.h>

size_t abar__utf8_length(const char *s, size_t n)
{
    unsigned char first = (unsigned char)s[0];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (n < length) return 0;
    unsigned char second = (unsigned char)s[1];
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (second < low || second > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    return length;
}

bool abar__utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0, length; i < n; i += length) {
        length = abar__utf8_length(s + i, n - i);
        if (length == 0) return false;
    }
    return true;
}

/* The escape sequence of a byte inside a JSON string; NULL where the byte needs none. */
static const char *escape(unsigned char byte, char buffer[8])
{
    switch (byte) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
    }
    if (byte >= 0x20) return NULL;
    static const char hex[] = "0123456789abcdef";
    memcpy(buffer, "\\u00", 4);
    buffer[4] = hex[byte >> 4];
    buffer[5] = hex[byte & 15];
    buffer[6] = '\0';
    return buffer;
}

abar_status abar__json_string(abar_context *ctx, abar__text *out, const char *s)
{
    size_t n = strlen(s), done = 0; /* s[done .. i) is not copied yet */
    ABAR_TRY(abar__text_append(ctx, out, "\"", 1));
    for (size_t i = 0; i < n;) {
        char buffer[8];
        size_t length = abar__utf8_length(s + i, n - i);
        const char *instead = length == 0 ? "\xEF\xBF\xBD" : length == 1 ? escape((unsigned char)s[i], buffer) : NULL;
        size_t next = i + (length == 0 ? 1 : length);
        if (instead) {
            ABAR_TRY(abar__text_append(ctx, out, s + done, i - done));
            ABAR_TRY(abar__text_append(ctx, out, instead, strlen(instead)));
            done = next;
        }
        i = next;
    }
    ABAR_TRY(abar__text_append(ctx, out, s + done, n - done));
    return abar__text_append(ctx, out, "\"", 1);
}

abar_status abar__json_number(abar_context *ctx, abar__text *out, double value)
{
    char text[ABAR_REAL_TEXT_MAX] = "null";
    if (isfinite(value)) abar__real_format(value, text);
    return abar__text_append(ctx, out, text, strlen(text));
}
