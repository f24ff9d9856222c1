/* The progress of a run, as JSON and back: the part of a checkpoint that is not tensors. Doubles keep every bit. */
#include "base/json.h"
#include "train/train_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define HISTORY_MAX 1000000

#define STATE(member) offsetof(abar__run_state, member)
#define EPOCH(member) offsetof(abar__epoch, member)

static const abar__field state_fields[] = {
    {"epoch", ABAR_FIELD_WHOLE, STATE(epoch)},
    {"step", ABAR_FIELD_WHOLE, STATE(step)},
    {"loss_sum", ABAR_FIELD_REAL, STATE(loss_sum)},
    {"correct", ABAR_FIELD_WHOLE, STATE(correct)},
    {"count", ABAR_FIELD_WHOLE, STATE(count)},
    {"skipped_steps", ABAR_FIELD_WHOLE, STATE(skipped)},
    {"epoch_skipped", ABAR_FIELD_WHOLE, STATE(epoch_skipped)},
    {"skipped_in_a_row", ABAR_FIELD_WHOLE, STATE(skipped_in_a_row)},
    {"seconds", ABAR_FIELD_REAL, STATE(seconds)},
    {"epoch_seconds", ABAR_FIELD_REAL, STATE(epoch_seconds)},
    {"step_seconds", ABAR_FIELD_REAL, STATE(step_seconds)},
    {"test_seconds", ABAR_FIELD_REAL, STATE(test_seconds)},
    {"log_bytes", ABAR_FIELD_WHOLE, STATE(log_bytes)},
    {"events_bytes", ABAR_FIELD_WHOLE, STATE(events_bytes)},
    {0},
};

static const abar__field epoch_fields[] = {
    {"train_loss", ABAR_FIELD_REAL, EPOCH(train_loss)},
    {"train_acc", ABAR_FIELD_REAL, EPOCH(train_accuracy)},
    {"test_loss", ABAR_FIELD_REAL, EPOCH(test_loss)},
    {"test_acc", ABAR_FIELD_REAL, EPOCH(test_accuracy)},
    {"lr", ABAR_FIELD_REAL, EPOCH(lr)},
    {"seconds", ABAR_FIELD_REAL, EPOCH(seconds)},
    {"skipped_steps", ABAR_FIELD_WHOLE, EPOCH(skipped)},
    {"ema_test_loss", ABAR_FIELD_OPTIONAL, EPOCH(ema_loss)},
    {"ema_test_acc", ABAR_FIELD_OPTIONAL, EPOCH(ema_accuracy)},
    {0},
};

#define NAME_MAX_LENGTH 40

/* The name of a field in a file. */
static const char *field_name(const abar__field *f, const char *part, char name[NAME_MAX_LENGTH])
{
    const char *at = strncmp(f->name, "ema_", 4) == 0 ? f->name + 4 : f->name;
    const char *rest = strncmp(at, "test_", 5) == 0 ? at + 4 : NULL;
    if (rest)
        snprintf(name, NAME_MAX_LENGTH, "%.*s%s%s", (int)(at - f->name), f->name, part, rest);
    else
        snprintf(name, NAME_MAX_LENGTH, "%s", f->name);
    return name;
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

abar_status abar__fields_write(abar_context *ctx, const abar__field *fields, const void *from, const char *part,
                               abar__text *out)
{
    for (const abar__field *f = fields; f->name; f++) {
        const char *at = (const char *)from + f->offset;
        char name[NAME_MAX_LENGTH];
        int64_t whole;
        double real;
        memcpy(&real, at, sizeof real);
        if (f->type == ABAR_FIELD_OPTIONAL && isnan(real)) continue;
        ABAR_TRY(abar__text_printf(ctx, out, "%s\"%s\": ", f == fields ? "" : ", ", field_name(f, part, name)));
        if (f->type == ABAR_FIELD_WHOLE) {
            memcpy(&whole, at, sizeof whole);
            ABAR_TRY(abar__text_printf(ctx, out, "%lld", (long long)whole));
        } else {
            ABAR_TRY(abar__json_number(ctx, out, real));
        }
    }
    return ABAR_OK;
}

double abar__perplexity(double loss) { return exp(loss); }
double abar__bits(double loss) { return loss / 0.69314718055994530942; } /* ln 2 */

static abar_status write_text_numbers(abar_context *ctx, const abar__epoch *e, const char *part, abar__text *out)
{
    ABAR_TRY(abar__text_printf(ctx, out, ", \"%s_ppl\": ", part));
    ABAR_TRY(abar__json_number(ctx, out, abar__perplexity(e->test_loss)));
    ABAR_TRY(abar__text_printf(ctx, out, ", \"%s_bpc\": ", part));
    return abar__json_number(ctx, out, abar__bits(e->test_loss));
}

abar_status abar__epoch_write(abar_context *ctx, int64_t index, const abar__epoch *e, const char *part, bool text,
                              abar__text *out)
{
    ABAR_TRY(abar__text_printf(ctx, out, "{\"epoch\": %lld, ", (long long)index + 1));
    ABAR_TRY(abar__fields_write(ctx, epoch_fields, e, part, out));
    if (text) ABAR_TRY(write_text_numbers(ctx, e, part, out));
    return abar__text_append(ctx, out, "}", 1);
}

abar_status abar__history_write(abar_context *ctx, const abar__epoch *history, int64_t n, const char *part, bool text,
                                abar__text *out)
{
    ABAR_TRY(abar__text_append(ctx, out, "[", 1));
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) ABAR_TRY(abar__text_append(ctx, out, ", ", 2));
        ABAR_TRY(abar__epoch_write(ctx, i, &history[i], part, text, out));
    }
    return abar__text_append(ctx, out, "]", 1);
}

abar_status abar__run_state_write(abar_context *ctx, const abar__run_state *at, const abar__epoch *history, abar__text *out)
{
    ABAR_TRY(abar__text_append(ctx, out, "{", 1));
    ABAR_TRY(abar__fields_write(ctx, state_fields, at, "test", out));
    ABAR_TRY(abar__text_append(ctx, out, ", \"history\": ", 13));
    ABAR_TRY(abar__history_write(ctx, history, at->epoch, "test", false, out));
    return abar__text_append(ctx, out, "}", 1);
}

double abar__best_accuracy(const abar__epoch *history, int64_t n)
{
    return n > 0 ? history[abar__best_accuracy_epoch(history, n)].test_accuracy : 0.0;
}

double abar__best_loss(const abar__epoch *history, int64_t n)
{
    return n > 0 ? history[abar__best_loss_epoch(history, n)].test_loss : NAN;
}

double abar__best_ema_accuracy(const abar__epoch *history, int64_t n)
{
    double best = NAN;
    for (int64_t i = 0; i < n; i++) best = fmax(best, history[i].ema_accuracy); /* NaN loses */
    return best;
}

int64_t abar__best_accuracy_epoch(const abar__epoch *history, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (history[i].test_accuracy > history[best].test_accuracy) best = i;
    return best;
}

/* NaN is worse than any loss. */
int64_t abar__best_loss_epoch(const abar__epoch *history, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (history[i].test_loss < history[best].test_loss || (isnan(history[best].test_loss) && !isnan(history[i].test_loss)))
            best = i;
    return best;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

abar_status abar__fields_read(abar_context *ctx, const char *label, const cJSON *object, const abar__field *fields,
                              const char *part, void *to)
{
    for (const abar__field *f = fields; f->name; f++) {
        char name[NAME_MAX_LENGTH];
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field_name(f, part, name));
        double real = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        bool whole = real >= 0.0 && real < 0x1p53 && floor(real) == real;
        bool number = cJSON_IsNumber(item) && !isinf(real); /* 1e999 */
        if (!item && f->type == ABAR_FIELD_OPTIONAL) {
            memcpy((char *)to + f->offset, &(double){NAN}, sizeof(double));
            continue;
        }
        if (!item || (f->type == ABAR_FIELD_WHOLE ? !whole : !number && !cJSON_IsNull(item)))
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%s\" is missing or no number, the file is damaged", label, name);
        int64_t integer = whole ? (int64_t)real : 0;
        memcpy((char *)to + f->offset, f->type == ABAR_FIELD_WHOLE ? (const void *)&integer : (const void *)&real, 8);
    }
    return ABAR_OK;
}

abar_status abar__history_read(abar_context *ctx, const char *label, const cJSON *array, int64_t n, const char *part,
                               abar__epoch *history)
{
    const cJSON *item = array ? array->child : NULL;
    for (int64_t i = 0; i < n; i++, item = item->next) {
        if (!cJSON_IsObject(item))
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: the history ends before epoch %lld, the file is damaged", label,
                              (long long)i + 1);
        ABAR_TRY(abar__fields_read(ctx, label, item, epoch_fields, part, &history[i]));
    }
    return ABAR_OK;
}

static abar_status read_state(abar_context *ctx, const char *label, const cJSON *root, abar__run_state *at,
                              abar__epoch **history)
{
    ABAR_TRY(abar__fields_read(ctx, label, root, state_fields, "test", at));
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(root, "history");
    if (!cJSON_IsArray(array) || at->epoch != cJSON_GetArraySize(array))
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: its history does not have %lld epochs, the checkpoint is damaged", label,
                          (long long)at->epoch);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)at->epoch * sizeof **history, &memory));
    abar_status status = abar__history_read(ctx, label, array, at->epoch, "test", memory);
    if (status < 0)
        abar__free(ctx, memory, (size_t)at->epoch * sizeof **history);
    else
        *history = memory;
    return status;
}

abar_status abar__run_state_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar__run_state *at,
                                  abar__epoch **history)
{
    cJSON *root;
    *at = (abar__run_state){0};
    *history = NULL;
    ABAR_TRY(abar__json_parse(ctx, label, json, n, &root));
    abar_status status = read_state(ctx, label, root, at, history);
    cJSON_Delete(root);
    return status;
}
