/* JSON for the page. Names, settings and lines of logs are whatever somebody wrote: they leave here as strings and numbers. */
#include "base/json.h"
#include "train/report/report_impl.h"

#include <math.h>
#include <string.h>

abar_status abar__report_put(abar_context *ctx, abar__text *out, const char *text)
{
    return abar__text_append(ctx, out, text, strlen(text));
}

abar_status abar__report_name(abar_context *ctx, abar__text *out, const char *name)
{
    const bool first = out->length == 0 || out->data[out->length - 1] == '{';
    return abar__text_printf(ctx, out, "%s\"%s\":", first ? "" : ",", name);
}

abar_status abar__report_string(abar_context *ctx, abar__text *out, const char *name, const char *value)
{
    ABAR_TRY(abar__report_name(ctx, out, name));
    return value ? abar__json_string(ctx, out, value) : abar__report_put(ctx, out, "null");
}

abar_status abar__report_real(abar_context *ctx, abar__text *out, double value, int digits)
{
    if (!isfinite(value)) return abar__report_put(ctx, out, "null");
    const bool whole = fabs(value) < 0x1p53 && value == floor(value);
    return whole ? abar__text_printf(ctx, out, "%.0f", value == 0.0 ? 0.0 : value)
                 : abar__text_printf(ctx, out, "%.*g", digits, value);
}

abar_status abar__report_number(abar_context *ctx, abar__text *out, const char *name, double value)
{
    ABAR_TRY(abar__report_name(ctx, out, name));
    return abar__report_real(ctx, out, value, 9);
}

abar_status abar__report_flag(abar_context *ctx, abar__text *out, const char *name, bool value)
{
    ABAR_TRY(abar__report_name(ctx, out, name));
    return abar__report_put(ctx, out, value ? "true" : "false");
}

abar_status abar__report_value(abar_context *ctx, abar__text *out, const char *name, const cJSON *json)
{
    ABAR_TRY(abar__report_name(ctx, out, name));
    if (!json) return abar__report_put(ctx, out, "null");
    char *text = cJSON_PrintUnformatted(json);
    if (!text) return abar__fail(ctx, ABAR_E_MEMORY, "memory: could not get any more, report fewer runs");
    const abar_status status = abar__report_put(ctx, out, text);
    cJSON_free(text);
    return status;
}

abar_status abar__report_base64(abar_context *ctx, abar__text *out, const void *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = bytes;
    for (size_t i = 0; i < n; i += 3) {
        const size_t have = n - i < 3 ? n - i : 3;
        const unsigned word =
            (unsigned)from[i] << 16 | (have > 1 ? (unsigned)from[i + 1] << 8 : 0) | (have > 2 ? from[i + 2] : 0);
        const char four[4] = {digit[word >> 18], digit[word >> 12 & 63], have > 1 ? digit[word >> 6 & 63] : '=',
                              have > 2 ? digit[word & 63] : '='};
        ABAR_TRY(abar__text_append(ctx, out, four, sizeof four));
    }
    return ABAR_OK;
}

/* JSON has < > & in strings only; as escapes they can neither end the element nor begin another. Bytes that are not UTF-8 are
 * in strings only, too: cJSON copies them from the files. */
abar_status abar__report_harmless(abar_context *ctx, abar__text *out, const abar__text *json)
{
    size_t from = 0;
    for (size_t at = 0; at < json->length;) {
        const char c = json->data[at];
        const size_t n = c >= 0x20 && c < 0x7f ? 1 : abar__utf8_length(json->data + at, json->length - at);
        const bool plain = n > 0 && c != '<' && c != '>' && c != '&';
        if (!plain) {
            ABAR_TRY(abar__text_append(ctx, out, json->data + from, at - from));
            ABAR_TRY(n > 0 ? abar__text_printf(ctx, out, "\\u%04x", (unsigned)(unsigned char)c)
                           : abar__report_put(ctx, out, "\\ufffd"));
            from = at + 1;
        }
        at += plain ? n : 1;
    }
    return abar__text_append(ctx, out, json->data + from, json->length - from);
}

double abar__report_member(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}
