/* Writing JSON text safely. Reading is cJSON's. */
#ifndef ABAR_JSON_H
#define ABAR_JSON_H

#include "base/base_impl.h"

/* Appends s quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
abar_status abar__json_string(abar_context *ctx, abar__text *out, const char *s);
/* Appends the shortest text that reads back to the same double; null for what JSON cannot say (NaN, infinities). */
abar_status abar__json_number(abar_context *ctx, abar__text *out, double value);

/* Whether n bytes are one JSON value that cJSON would read if it had the memory. Needs none itself. */
bool abar__json_valid(const char *json, size_t n);

/* Bytes (1 to 4) of the UTF-8 character that s, n > 0 bytes long, begins with; 0 when it begins with none. */
size_t abar__utf8_length(const char *s, size_t n);
bool abar__utf8_valid(const char *s, size_t n);

#endif
