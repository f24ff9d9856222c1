/* Reading and writing JSON with errors that name the text and the key. */
#ifndef ABAR_TRAIN_JSON_H
#define ABAR_TRAIN_JSON_H

#include "train/train_impl.h"

#include <cjson/cJSON.h>

/* One JSON value and nothing after it; release with cJSON_Delete. label names the text in errors. */
abar_status abar__json_parse(abar_context *ctx, const char *label, const char *json, size_t n, cJSON **out);

/* What abar__setup_parse reads, already parsed. */
abar_status abar__setup_read(abar_context *ctx, const char *label, const cJSON *root, abar_setup **out);

/* The numbers of a struct: one table writes and reads them. A name that begins with "test_" is written with the name of the
 * part that was measured: "validation_loss" for "test_loss"; likewise after "ema_". */
typedef enum abar__field_type {
    ABAR_FIELD_WHOLE,   /* int64_t, not negative */
    ABAR_FIELD_REAL,    /* double */
    ABAR_FIELD_OPTIONAL /* double; NaN: not written, and so read */
} abar__field_type;

typedef struct abar__field {
    const char *name; /* NULL ends a table */
    abar__field_type type;
    size_t offset;
} abar__field;

/* "name": number, ... without braces. */
abar_status abar__fields_write(abar_context *ctx, const abar__field *fields, const void *from, const char *part,
                               abar__text *out);
/* All but optional ones must be there; null is NaN. */
abar_status abar__fields_read(abar_context *ctx, const char *label, const cJSON *object, const abar__field *fields,
                              const char *part, void *to);
/* The first n entries of what abar__history_write wrote. */
abar_status abar__history_read(abar_context *ctx, const char *label, const cJSON *array, int64_t n, const char *part,
                               abar__epoch *history);

#endif
