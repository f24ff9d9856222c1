/* tune.json and tune.md.
 *
 *     {"abar": "0.1.0", "config": {"trials": 9, "seeds": 3, "over": ["lr=0.01:1:log"], "optimizers": [{"label": "sgd", "setup":
 * {...}}]}, "complete": true, "rounds": [{"trials": 9, "epochs": 1}, ...], "results": [{"optimizer": "sgd", ...}]} */
#include "base/json.h"
#include "base/number.h"
#include "train/sweep/tune_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FILE_MAX ((size_t)1 << 24)

/* ---- tune.json --------------------------------------------------------------------------------------------------------- */

static abar_status write_settings(const abar_tune *t, abar__text *out)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, "{\"trials\": %d, \"seeds\": %lld, \"over\": [", t->trials, (long long)t->seeds));
    for (int i = 0; i < t->n_over; i++) {
        const abar__space *s = &t->over[i];
        char text[ABAR_COMPARE_LABEL_MAX + ABAR_AXIS_NAME_MAX + ABAR_OPTION_TEXT_MAX + 4];
        snprintf(text, sizeof text, "%s%s%s=%s", s->label, s->label[0] ? "." : "", s->name, s->text);
        if (i > 0) ABAR_TRY(abar__text_append(t->ctx, out, ", ", 2));
        ABAR_TRY(abar__json_string(t->ctx, out, text));
    }
    ABAR_TRY(abar__text_printf(t->ctx, out, "], \"optimizers\": ["));
    for (int o = 0; o < t->optimizers; o++) {
        ABAR_TRY(abar__text_printf(t->ctx, out, "%s{\"label\": \"%s\", \"setup\": ", o ? ", " : "", t->optimizer[o].label));
        ABAR_TRY(abar__setup_write(t->ctx, t->optimizer[o].setup, out));
        ABAR_TRY(abar__text_append(t->ctx, out, "}", 1));
    }
    return abar__text_append(t->ctx, out, "]}", 2);
}

static abar_status write_real(const abar_tune *t, const char *name, double value, abar__text *out)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"%s\": ", name));
    return abar__json_number(t->ctx, out, value);
}

static abar_status write_values(const abar_tune *t, const abar__tuned *o, abar__text *out)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"values\": %s", o->chosen ? "{" : "null"));
    for (int a = 0, n = 0; a < t->axes && o->chosen; a++) {
        const char *value = o->trial[o->left[0]].value[a];
        if (!value[0]) continue;
        ABAR_TRY(abar__text_printf(t->ctx, out, "%s\"%s\": ", n++ ? ", " : "", t->axis[a].name));
        ABAR_TRY(abar__json_string(t->ctx, out, value));
    }
    return o->chosen ? abar__text_append(t->ctx, out, "}", 1) : ABAR_OK;
}

static abar_status write_result(const abar_tune *t, int optimizer, abar__text *out)
{
    const abar_tune_result *r = abar_tune_result_of(t, optimizer);
    const bool text = t->optimizer[optimizer].setup->model->text;
    ABAR_TRY(abar__text_printf(t->ctx, out, "{\"optimizer\": \"%s\", \"space\": ", r->label));
    ABAR_TRY(abar__json_string(t->ctx, out, r->space));
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"trials\": %d, \"failures\": %d, \"epochs\": %lld", r->trials, r->failures,
                               (long long)r->epochs));
    ABAR_TRY(write_real(t, "seconds", r->seconds, out));
    ABAR_TRY(write_values(t, &t->optimizer[optimizer], out));
    ABAR_TRY(write_real(t, text ? "validation_loss" : "validation_acc", r->validation, out));
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"runs\": %lld", (long long)r->runs));
    ABAR_TRY(write_real(t, "test_acc", r->test_accuracy.mean, out));
    ABAR_TRY(write_real(t, "test_acc_std", r->test_accuracy.std, out));
    ABAR_TRY(write_real(t, "test_loss", r->test_loss.mean, out));
    ABAR_TRY(write_real(t, "test_loss_std", r->test_loss.std, out));
    return abar__text_append(t->ctx, out, "}", 1);
}

abar_status abar__tune_write(const abar_tune *t, abar__text *out)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, "{\"abar\": \"%s\", \"config\": ", abar_version()));
    ABAR_TRY(write_settings(t, out));
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"complete\": %s, \"rounds\": [", t->complete ? "true" : "false"));
    for (int r = 0; r < t->rounds; r++)
        ABAR_TRY(abar__text_printf(t->ctx, out, "%s{\"trials\": %d, \"epochs\": %lld}", r ? ", " : "", t->round[r].trials,
                                   (long long)t->round[r].epochs));
    ABAR_TRY(abar__text_printf(t->ctx, out, "], \"results\": ["));
    for (int o = 0; o < t->optimizers; o++) {
        if (o > 0) ABAR_TRY(abar__text_append(t->ctx, out, ", ", 2));
        ABAR_TRY(write_result(t, o, out));
    }
    return abar__text_append(t->ctx, out, "]}", 2);
}

/* ---- tune.md ----------------------------------------------------------------------------------------------------------- */

static abar_status put_spread(const abar_tune *t, abar_compare_spread s, int decimals, abar__text *out)
{
    char mean[ABAR_REAL_TEXT_MAX], std[ABAR_REAL_TEXT_MAX];
    if (isnan(s.mean)) return abar__text_append(t->ctx, out, "-", 1);
    ABAR_TRY(abar__text_printf(t->ctx, out, "%s", abar__plot_number(s.mean, decimals, mean)));
    return isnan(s.std) ? ABAR_OK : abar__text_printf(t->ctx, out, " ± %s", abar__plot_number(s.std, decimals, std));
}

static abar_status put_row(const abar_tune *t, int optimizer, abar__text *out)
{
    const abar_tune_result *r = abar_tune_result_of(t, optimizer);
    const bool text = t->optimizer[optimizer].setup->model->text;
    const int decimals = text ? 4 : 2;
    char seconds[ABAR_REAL_TEXT_MAX];
    ABAR_TRY(abar__text_printf(t->ctx, out, "| %s | %s | %d | %d | %lld | %s | %s | ", r->label, r->space, r->trials,
                               r->failures, (long long)r->epochs, abar__plot_number(r->seconds, 1, seconds),
                               r->values[0] ? r->values : "none"));
    ABAR_TRY(put_spread(t, (abar_compare_spread){r->validation, NAN}, decimals, out));
    ABAR_TRY(abar__text_append(t->ctx, out, " | ", 3));
    ABAR_TRY(put_spread(t, text ? r->test_loss : r->test_accuracy, decimals, out));
    return abar__text_printf(t->ctx, out, " | %lld |\n", (long long)r->runs);
}

static abar_status write_page(const abar_tune *t, abar__text *out)
{
    const abar_train_config *train = &t->optimizer[0].setup->train;
    const char *result = t->optimizer[0].setup->model->text ? "loss" : "accuracy, %";
    char fraction[ABAR_REAL_TEXT_MAX];
    ABAR_TRY(abar__text_printf(t->ctx, out, "%s on %.*s, tuned%s:\n\n", train->model, (int)strcspn(train->data, ":"),
                               train->data, t->complete ? "" : " (not complete)"));
    ABAR_TRY(
        abar__text_printf(t->ctx, out,
                          "| optimizer | search space | trials | failed | epochs trained | seconds | chosen | validation %s | "
                          "test %s | seeds |\n|---|---|--:|--:|--:|--:|---|--:|--:|--:|\n",
                          result, result));
    for (int o = 0; o < t->optimizers; o++) ABAR_TRY(put_row(t, o, out));
    abar__real_format(train->validation, fraction);
    ABAR_TRY(abar__text_printf(t->ctx, out, "\nRounds (trials of each optimizer x epochs): "));
    for (int r = 0; r < t->rounds; r++)
        ABAR_TRY(
            abar__text_printf(t->ctx, out, "%s%d x %lld", r ? ", " : "", t->round[r].trials, (long long)t->round[r].epochs));
    return abar__text_printf(
        t->ctx, out,
        ".\nTrials have one seed and are judged on a validation part, the fraction %s of the training set; "
        "the chosen settings are\ntrained again with new seeds on all of it and measured on the test set. "
        "final/compare.md tells which optimizers are told apart.\n",
        fraction);
}

static abar_status save_file(abar_tune *t, const char *name, abar_status (*write)(const abar_tune *t, abar__text *out))
{
    char path[ABAR_RUN_PATH_MAX];
    abar__text text = {0};
    ABAR_TRY(abar__run_path(t->ctx, t->dir, name, path));
    abar_status status = write(t, &text);
    if (status >= 0) status = abar__file_replace(t->ctx, path, text.data, text.length);
    abar__text_free(t->ctx, &text);
    return status;
}

static abar_status write_line(const abar_tune *t, abar__text *out)
{
    ABAR_TRY(abar__tune_write(t, out));
    return abar__text_append(t->ctx, out, "\n", 1);
}

abar_status abar__tune_save(abar_tune *t)
{
    ABAR_TRY(save_file(t, "tune.md", write_page));
    return save_file(t, "tune.json", write_line);
}

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

static abar_status damaged_file(const abar_tune *t, const char *path, const char *what)
{
    return abar__fail(t->ctx, ABAR_E_FORMAT, "%s: \"%s\" is missing or wrong, the file is damaged", path, what);
}

/* A whole number from 1 to most; 0: it is none. */
static int64_t whole(const cJSON *object, const char *name, int64_t most)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    const double x = cJSON_IsNumber(item) ? item->valuedouble : 0.0;
    return x >= 1.0 && x <= (double)most && floor(x) == x ? (int64_t)x : 0;
}

static abar_status read_optimizers(abar_tune *t, const char *path, const cJSON *list)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    const cJSON *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < 1 || cJSON_GetArraySize(list) > ABAR_COMPARE_METHODS_MAX)
        return damaged_file(t, path, "optimizers");
    cJSON_ArrayForEach(item, list)
    {
        abar__tuned *o = &t->optimizer[t->optimizers];
        const char *label = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "label"));
        const cJSON *setup = cJSON_GetObjectItemCaseSensitive(item, "setup");
        if (!label || !label[0] || strlen(label) >= sizeof o->label || label[strspn(label, letters)] || !setup)
            return damaged_file(t, path, "optimizers");
        memcpy(o->label, label, strlen(label) + 1);
        ABAR_TRY(abar__setup_read(t->ctx, path, setup, &o->setup));
        t->optimizers++;
        if (!(o->setup->train.validation > 0.0)) return damaged_file(t, path, "validation");
    }
    return ABAR_OK;
}

static abar_status read_root(abar_tune *t, const char *path, const cJSON *root)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(root, "config");
    const cJSON *over = cJSON_GetObjectItemCaseSensitive(config, "over"), *item;
    const char *text[ABAR_SWEEP_AXES_MAX * ABAR_COMPARE_METHODS_MAX];
    int n = 0;
    ABAR_TRY(read_optimizers(t, path, cJSON_GetObjectItemCaseSensitive(config, "optimizers")));
    const int64_t trials = whole(config, "trials", ABAR_TUNE_TRIALS_MAX);
    t->seeds = whole(config, "seeds", ABAR_COMPARE_SEEDS_MAX);
    if (trials == 0) return damaged_file(t, path, "trials");
    if (t->seeds == 0) return damaged_file(t, path, "seeds");
    t->trials = (int)trials;
    cJSON_ArrayForEach(item, over)
    {
        if (!cJSON_IsString(item) || n == ABAR_SWEEP_AXES_MAX * ABAR_COMPARE_METHODS_MAX) return damaged_file(t, path, "over");
        text[n++] = item->valuestring;
    }
    const abar_status status = abar__tune_plan(t, text, n);
    return status == ABAR_E_ARGUMENT ? abar__fail(t->ctx, ABAR_E_FORMAT, "%s: %s", path, abar_context_error(t->ctx)) : status;
}

abar_status abar__tune_parse(abar_tune *t, const char *label, const char *json, size_t n)
{
    cJSON *root;
    ABAR_TRY(abar__json_parse(t->ctx, label, json, n, &root));
    abar_status status = read_root(t, label, root);
    cJSON_Delete(root);
    return status;
}

abar_status abar__tune_load(abar_tune *t)
{
    char path[ABAR_RUN_PATH_MAX];
    abar__text text;
    ABAR_TRY(abar__run_path(t->ctx, t->dir, "tune.json", path));
    ABAR_TRY(abar__file_read(t->ctx, path, FILE_MAX, &text));
    abar_status status = abar__tune_parse(t, path, text.data, text.length);
    abar__text_free(t->ctx, &text);
    return status;
}
