/* Reading JSON with errors that name the text and the key. */
#ifndef ABAR_TRAIN_JSON_H
#define ABAR_TRAIN_JSON_H

#include "base/base_impl.h"

#include <cjson/cJSON.h>

/* One JSON value and nothing after it; release with cJSON_Delete. label names the text in errors. */
abar_status abar__json_parse(abar_context *ctx, const char *label, const char *json, size_t n, cJSON **out);

#endif
