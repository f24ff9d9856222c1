/* Whether a text is JSON (RFC 8259), without memory: cJSON returns NULL both for damage and when memory is short, and a good
 * file must not be called damaged. */
#include "base/json.h"

#include <string.h>

#define DEPTH_MAX 1000 /* of nesting: cJSON's limit */
#define NUMBER_MAX 63  /* characters of a number that every version of cJSON reads; ours are shorter */

/* Arrays and objects that are open, one bit each: an object's is set. */
typedef struct scan {
    const char *at, *end;
    int depth;
    unsigned char objects[(DEPTH_MAX + 8) / 8];
} scan;

static void skip_blanks(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

static bool take(scan *s, char c)
{
    const bool there = s->at < s->end && *s->at == c;
    s->at += there;
    return there;
}

static bool take_word(scan *s, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) return false;
    s->at += n;
    return true;
}

static size_t take_digits(scan *s)
{
    const char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return (size_t)(s->at - first);
}

static bool take_number(scan *s)
{
    const char *first = s->at;
    take(s, '-');
    if (take_digits(s) == 0) return false;
    if (take(s, '.') && take_digits(s) == 0) return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+')) take(s, '-');
        if (take_digits(s) == 0) return false;
    }
    return s->at - first <= NUMBER_MAX;
}

/* The four hexadecimal digits of a \u; -1: they are not there. */
static int take_hex(scan *s)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        const char *digit = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!digit) return -1;
        code = code * 16 + (int)((digit - digits) % 16);
    }
    return code;
}

static bool take_escape(scan *s)
{
    const char c = s->at < s->end ? *s->at++ : '\0';
    if (c != 'u') return c && strchr("\"\\/bfnrt", c);
    const int first = take_hex(s);
    if (first < 0 || (first >= 0xDC00 && first <= 0xDFFF)) return false;
    if (first < 0xD800 || first > 0xDBFF) return true;
    const int second = take_word(s, "\\u") ? take_hex(s) : -1;
    return second >= 0xDC00 && second <= 0xDFFF;
}

static bool take_string(scan *s)
{
    if (!take(s, '"')) return false;
    while (s->at < s->end) {
        const char c = *s->at++;
        if (c == '"') return true;
        if (c == '\\' && !take_escape(s)) return false;
    }
    return false;
}

static bool in_object(const scan *s) { return s->objects[s->depth / 8] >> s->depth % 8 & 1; }

static bool enter(scan *s, bool object)
{
    if (++s->depth > DEPTH_MAX) return false;
    const unsigned bit = 1u << s->depth % 8;
    s->objects[s->depth / 8] = (unsigned char)(object ? s->objects[s->depth / 8] | bit : s->objects[s->depth / 8] & ~bit);
    return true;
}

static bool take_key(scan *s)
{
    skip_blanks(s);
    if (!take_string(s)) return false;
    skip_blanks(s);
    return take(s, ':');
}

/* One value that is no array or object. */
static bool take_plain(scan *s)
{
    if (s->at < s->end && *s->at == '"') return take_string(s);
    return take_word(s, "null") || take_word(s, "true") || take_word(s, "false") || take_number(s);
}

/* The brackets that close here. comma: another item of what is open then follows. False: neither. */
static bool take_end(scan *s, bool *comma)
{
    for (*comma = false; s->depth > 0; s->depth--) {
        skip_blanks(s);
        *comma = take(s, ',');
        if (*comma) return !in_object(s) || take_key(s);
        if (!take(s, in_object(s) ? '}' : ']')) return false;
    }
    return true;
}

bool abar__json_valid(const char *json, size_t n)
{
    scan s = {.at = json, .end = json + n};
    for (bool more = true; more;) {
        skip_blanks(&s);
        const bool object = take(&s, '{');
        if (object || take(&s, '[')) {
            if (!enter(&s, object)) return false;
            skip_blanks(&s);
            const bool empty = s.at < s.end && *s.at == (object ? '}' : ']');
            if (!empty && object && !take_key(&s)) return false;
            if (!empty) continue;
        } else if (!take_plain(&s)) {
            return false;
        }
        if (!take_end(&s, &more)) return false;
    }
    skip_blanks(&s);
    return s.at == s.end;
}
