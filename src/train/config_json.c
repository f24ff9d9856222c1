/* A setup as JSON and back: config.json, and the metadata of checkpoints.
 *
 *     {"abar": "0.1.0", "train": {"model": "lenet5", ...}, "model": {...}, "optimizer": {"momentum": 0.9, ...}} */
#include "base/json.h"
#include "base/number.h"
#include "train/train_impl.h"
#include "train/train_json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- writing -------------------------------------------------------------------------------------------------- */

/* "name": {every option of the table} */
static abar_status write_section(abar_context *ctx, const abar_setup_table *table, abar__text *out)
{
    ABAR_TRY(abar__text_printf(ctx, out, ", \"%s\": {", table->section));
    for (const abar_option *o = table->options; o->name; o++) {
        char text[ABAR_OPTION_TEXT_MAX];
        ABAR_TRY(abar_options_get(ctx, table->options, table->config, o->name, text, sizeof text));
        ABAR_TRY(abar__text_printf(ctx, out, "%s\"%s\": ", o == table->options ? "" : ", ", o->name));
        if (o->type == ABAR_OPTION_TEXT || o->type == ABAR_OPTION_CHOICE)
            ABAR_TRY(abar__json_string(ctx, out, text));
        else
            ABAR_TRY(abar__text_append(ctx, out, text, strlen(text)));
    }
    return abar__text_append(ctx, out, "}", 1);
}

abar_status abar__setup_write(abar_context *ctx, const abar_setup *setup, abar__text *out)
{
    ABAR_TRY(abar__text_printf(ctx, out, "{\"abar\": \"%s\"", abar_version()));
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n; i++) ABAR_TRY(write_section(ctx, &tables[i], out));
    return abar__text_append(ctx, out, "}", 1);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* The value as abar_options_set wants it, or NULL when its JSON type is not the option's. */
static const char *value_text(const abar_option *option, const cJSON *item, char number[64])
{
    switch (option->type) {
    case ABAR_OPTION_TEXT: /* --damping, which was a number in older runs of foof */
        if (cJSON_IsNumber(item) && abar__real_parse(option->fallback, &(double){0})) {
            abar__real_format(item->valuedouble, number);
            return number;
        }
        return cJSON_IsString(item) ? item->valuestring : NULL;
    case ABAR_OPTION_CHOICE: return cJSON_IsString(item) ? item->valuestring : NULL;
    case ABAR_OPTION_BOOL: return cJSON_IsTrue(item) ? "true" : cJSON_IsFalse(item) ? "false" : NULL;
    case ABAR_OPTION_INT:
        if (!cJSON_IsNumber(item)) return NULL;
        if (fabs(item->valuedouble) < 0x1p53 && floor(item->valuedouble) == item->valuedouble) {
            snprintf(number, 64, "%lld", (long long)item->valuedouble);
            return number;
        }
        break;
    case ABAR_OPTION_REAL:
        if (!cJSON_IsNumber(item)) return NULL;
        break;
    }
    snprintf(number, 64, "%.17g", item->valuedouble);
    return number;
}

static const char *type_name(abar_option_type type)
{
    static const char *const names[] = {"a whole number", "a number", "true or false", "a string", "a string"};
    return names[type];
}

static abar_status read_option(abar_context *ctx, const char *label, const abar_option *options, void *config,
                               const cJSON *item)
{
    const abar_option *option = abar_options_find(options, item->string);
    if (option) {
        char number[64];
        const char *text = value_text(option, item, number);
        if (!text)
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%s\" must be %s, correct it", label, option->name,
                              type_name(option->type));
        if (abar_options_set(ctx, options, config, option->name, text) == ABAR_OK) return ABAR_OK;
    } else {
        abar_options_set(ctx, options, config, item->string, NULL); /* fails with the nearest name in its text */
    }
    return abar__fail(ctx, ABAR_E_FORMAT, "%s: %s", label, abar_context_error(ctx));
}

static abar_status read_section(abar_context *ctx, const char *label, const cJSON *root, const abar_setup_table *table)
{
    const cJSON *section = cJSON_GetObjectItemCaseSensitive(root, table->section);
    if (!section) return ABAR_OK;
    if (!cJSON_IsObject(section))
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%s\" must be an object, correct it", label, table->section);
    for (const cJSON *item = section->child; item; item = item->next) {
        if (cJSON_GetObjectItemCaseSensitive(section, item->string) != item)
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%.80s\" occurs twice, remove one", label, item->string);
        ABAR_TRY(read_option(ctx, label, table->options, table->config, item));
    }
    return ABAR_OK;
}

static abar_status check_root(abar_context *ctx, const char *label, const cJSON *root)
{
    static const char *const known[] = {"abar",      "train",     "images", "model",
                                        "optimizer", "curvature", "method", "steps_per_epoch", /* for reports */
                                        NULL};
    if (!cJSON_IsObject(root))
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: must be a JSON object, is it of another program?", label);
    for (const cJSON *item = root->child; item; item = item->next) {
        const char *const *k = known;
        while (*k && strcmp(*k, item->string) != 0) k++;
        if (!*k) return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"%.80s\" is unknown, remove it", label, item->string);
    }
    return ABAR_OK;
}

/* The string train.NAME, or NULL. */
static const char *named(const cJSON *root, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "train"), name));
}

static abar_status read_setup(abar_context *ctx, const char *label, const cJSON *root, abar_setup **out)
{
    ABAR_TRY(check_root(ctx, label, root));
    const char *model = named(root, "model"), *data = named(root, "data"), *optim = named(root, "optim");
    if (!model || !data || !optim)
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: \"train\" must name model, data and optim, is the file damaged?", label);
    abar_setup *setup;
    abar_status status = abar_setup_create(ctx, model, data, optim, &setup);
    if (status < 0) return abar__fail(ctx, status, "%s: %s", label, abar_context_error(ctx));
    setup->train.recipe_warmup = 0.0; /* the file has the run's own */
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n && status == ABAR_OK; i++) status = read_section(ctx, label, root, &tables[i]);
    if (status < 0) {
        abar_setup_destroy(ctx, setup);
        return status;
    }
    *out = setup;
    return ABAR_OK;
}

/* "0.10.0" is newer than "0.9.1". */
static bool is_newer(const char *version, const char *than)
{
    int a[3], b[3];
    if (sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2]) != 3 || sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2]) != 3)
        return false;
    for (int i = 0; i < 3; i++)
        if (a[i] != b[i]) return a[i] > b[i];
    return false;
}

abar_status abar__setup_read(abar_context *ctx, const char *label, const cJSON *root, abar_setup **out)
{
    const char *version = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "abar"));
    const abar_status status = read_setup(ctx, label, root, out);
    if (status >= 0 || status == ABAR_E_MEMORY || !version || !is_newer(version, abar_version())) return status;
    return abar__fail(ctx, status, "%s (it was written by abar %.20s, this is %s: use that version)", abar_context_error(ctx),
                      version, abar_version());
}

abar_status abar__json_parse(abar_context *ctx, const char *label, const char *json, size_t n, cJSON **out)
{
    const char *end = NULL;
    if (!abar__utf8_valid(json, n)) /* cJSON does not check it */
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: not UTF-8 text, is the file damaged?", label);
    cJSON *root = cJSON_ParseWithLengthOpts(json, n, &end, false);
    if (!root && abar__json_valid(json, n))
        return abar__fail(ctx, ABAR_E_MEMORY, "%s: not enough memory to read it, free some and try again", label);
    const char *rest = end;
    while (root && rest < json + n && isspace((unsigned char)*rest)) rest++;
    if (!root || (rest < json + n && *rest)) {
        cJSON_Delete(root);
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: not valid JSON at byte %td, is the file damaged?", label,
                          end ? end - json : (ptrdiff_t)0);
    }
    *out = root;
    return ABAR_OK;
}

abar_status abar__setup_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_setup **out)
{
    *out = NULL;
    cJSON *root;
    ABAR_TRY(abar__json_parse(ctx, label, json, n, &root));
    abar_status status = abar__setup_read(ctx, label, root, out);
    cJSON_Delete(root);
    return status;
}
