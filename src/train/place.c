/* Where a run stands, as JSON and back: the part of a checkpoint that is not tensors. Doubles survive bit for bit. */
#include "base/json.h"
#include "train/train_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <string.h>

#define HISTORY_MAX 1000000

/* One row per number of a struct: the same table writes and reads. */
typedef enum field_type { WHOLE, REAL } field_type;

typedef struct field {
    const char *name;
    field_type type;
    size_t offset;
} field;

#define PLACE(member) offsetof(abar__place, member)
#define EPOCH(member) offsetof(abar__epoch, member)

static const field place_fields[] = {
    {"epoch", WHOLE, PLACE(epoch)},
    {"step", WHOLE, PLACE(step)},
    {"loss_sum", REAL, PLACE(loss_sum)},
    {"correct", WHOLE, PLACE(correct)},
    {"count", WHOLE, PLACE(count)},
    {"skipped_steps", WHOLE, PLACE(skipped)},
    {"epoch_skipped", WHOLE, PLACE(epoch_skipped)},
    {"skipped_in_a_row", WHOLE, PLACE(skipped_in_a_row)},
    {"seconds", REAL, PLACE(seconds)},
    {"epoch_seconds", REAL, PLACE(epoch_seconds)},
    {"step_seconds", REAL, PLACE(step_seconds)},
    {"test_seconds", REAL, PLACE(test_seconds)},
    {"log_bytes", WHOLE, PLACE(log_bytes)},
    {"events_bytes", WHOLE, PLACE(events_bytes)},
    {0},
};

static const field epoch_fields[] = {
    {"train_loss", REAL, EPOCH(train_loss)},
    {"train_acc", REAL, EPOCH(train_accuracy)},
    {"test_loss", REAL, EPOCH(test_loss)},
    {"test_acc", REAL, EPOCH(test_accuracy)},
    {"lr", REAL, EPOCH(lr)},
    {"seconds", REAL, EPOCH(seconds)},
    {"skipped_steps", WHOLE, EPOCH(skipped)},
    {0},
};

/* ---- writing -------------------------------------------------------------------------------------------------- */

static abar_status write_fields(abar_context *ctx, const field *fields, const void *from, abar__text *out)
{
    for (const field *f = fields; f->name; f++) {
        const char *at = (const char *)from + f->offset;
        int64_t whole;
        double real;
        ABAR_TRY(abar__text_printf(ctx, out, "%s\"%s\": ", f == fields ? "" : ", ", f->name));
        if (f->type == WHOLE) {
            memcpy(&whole, at, sizeof whole);
            ABAR_TRY(abar__text_printf(ctx, out, "%lld", (long long)whole));
        } else {
            memcpy(&real, at, sizeof real);
            ABAR_TRY(abar__json_number(ctx, out, real));
        }
    }
    return ABAR_OK;
}

abar_status abar__epoch_write(abar_context *ctx, int64_t index, const abar__epoch *e, abar__text *out)
{
    ABAR_TRY(abar__text_printf(ctx, out, "{\"epoch\": %lld, ", (long long)index + 1));
    ABAR_TRY(write_fields(ctx, epoch_fields, e, out));
    return abar__text_append(ctx, out, "}", 1);
}

abar_status abar__history_write(abar_context *ctx, const abar__epoch *history, int64_t n, abar__text *out)
{
    ABAR_TRY(abar__text_append(ctx, out, "[", 1));
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) ABAR_TRY(abar__text_append(ctx, out, ", ", 2));
        ABAR_TRY(abar__epoch_write(ctx, i, &history[i], out));
    }
    return abar__text_append(ctx, out, "]", 1);
}

abar_status abar__place_write(abar_context *ctx, const abar__place *at, const abar__epoch *history, abar__text *out)
{
    ABAR_TRY(abar__text_append(ctx, out, "{", 1));
    ABAR_TRY(write_fields(ctx, place_fields, at, out));
    ABAR_TRY(abar__text_append(ctx, out, ", \"history\": ", 13));
    ABAR_TRY(abar__history_write(ctx, history, at->epoch, out));
    return abar__text_append(ctx, out, "}", 1);
}

double abar__best_accuracy(const abar__epoch *history, int64_t n)
{
    double best = 0.0;
    for (int64_t i = 0; i < n; i++) best = history[i].test_accuracy > best ? history[i].test_accuracy : best;
    return best;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static abar_status read_fields(abar_context *ctx, const char *label, const cJSON *object, const field *fields, void *to)
{
    for (const field *f = fields; f->name; f++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, f->name);
        double real = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        bool whole = real >= 0.0 && real < 0x1p53 && floor(real) == real;
        if (!item || (f->type == WHOLE ? !whole : !cJSON_IsNumber(item) && !cJSON_IsNull(item)))
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%s\" is missing or no number, the checkpoint is damaged", label,
                              f->name);
        int64_t integer = whole ? (int64_t)real : 0;
        memcpy((char *)to + f->offset, f->type == WHOLE ? (const void *)&integer : (const void *)&real, 8);
    }
    return ABAR_OK;
}

static abar_status read_history(abar_context *ctx, const char *label, const cJSON *array, int64_t n, abar__epoch *history)
{
    const cJSON *item = array ? array->child : NULL;
    for (int64_t i = 0; i < n; i++, item = item->next) {
        if (!cJSON_IsObject(item))
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: the history ends before epoch %lld, the checkpoint is damaged", label,
                              (long long)i + 1);
        ABAR_TRY(read_fields(ctx, label, item, epoch_fields, &history[i]));
    }
    return ABAR_OK;
}

static abar_status read_place(abar_context *ctx, const char *label, const cJSON *root, abar__place *at, abar__epoch **history)
{
    ABAR_TRY(read_fields(ctx, label, root, place_fields, at));
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(root, "history");
    if (!cJSON_IsArray(array) || at->epoch != cJSON_GetArraySize(array))
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: its history has not %lld epochs, the checkpoint is damaged", label,
                          (long long)at->epoch);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)at->epoch * sizeof **history, &memory));
    abar_status status = read_history(ctx, label, array, at->epoch, memory);
    if (status < 0)
        abar__free(ctx, memory, (size_t)at->epoch * sizeof **history);
    else
        *history = memory;
    return status;
}

abar_status abar__place_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar__place *at,
                              abar__epoch **history)
{
    cJSON *root;
    *at = (abar__place){0};
    *history = NULL;
    ABAR_TRY(abar__json_parse(ctx, label, json, n, &root));
    abar_status status = read_place(ctx, label, root, at, history);
    cJSON_Delete(root);
    return status;
}
