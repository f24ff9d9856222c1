/* Writes JSON text. cJSON reads it. */
#ifndef ABAR_JSON_H
#define ABAR_JSON_H

#include "base/base_impl.h"

/* Appends s quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
abar_status abar__json_string(abar_context *ctx, abar__text *out, const char *s);
/* Appends the shortest text that reads back to the same double; null for NaN and infinities, which JSON lacks. */
abar_status abar__json_number(abar_context *ctx, abar__text *out, double value);

/* Whether n bytes are one JSON value that cJSON would read if it had the memory. Needs none itself. */
bool abar__json_valid(const char *json, size_t n);

/* The length (1 to 4 bytes) of the UTF-8 character at the start of s, which has n > 0 bytes; 0 where it is not valid. */
size_t abar__utf8_length(const char *s, size_t n);
bool abar__utf8_valid(const char *s, size_t n);

#endif
