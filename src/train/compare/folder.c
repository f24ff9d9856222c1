/* The folder of a comparison: report.json of every run that ended, compare.json, .csv, .svg and .md. Each is
 * replaced atomically. A run has ended if its report exists.
 *
 *     {"abar": "0.1.0", "config": {"seeds": 3, "methods": [{"label": "sgd", "seeds": 3, "ms_alone": null, "setup": {...}},
 * ...]}, "complete": true, "jobs": 0, "wall_seconds": 7.5, "runs": [...], "table": {"baseline": "sgd", "rows": [...]}} */
#include "base/json.h"
#include "train/compare/compare_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FILE_MAX ((size_t)1 << 28) /* bytes; larger files are refused */

#define RUN(member) offsetof(abar_compare_run, member)

static const abar__field run_fields[] = {
    {"epochs", ABAR_FIELD_WHOLE, RUN(epochs)},
    {"test_acc", ABAR_FIELD_REAL, RUN(test_accuracy)},
    {"test_loss", ABAR_FIELD_REAL, RUN(test_loss)},
    {"train_acc", ABAR_FIELD_REAL, RUN(train_accuracy)},
    {"train_loss", ABAR_FIELD_REAL, RUN(train_loss)},
    {"seconds", ABAR_FIELD_REAL, RUN(seconds)},
    {"ms_per_step", ABAR_FIELD_REAL, RUN(ms_per_step)},
    {"memory_bytes", ABAR_FIELD_WHOLE, RUN(memory_bytes)},
    {"optimizer_bytes", ABAR_FIELD_WHOLE, RUN(optimizer_bytes)},
    {"skipped_steps", ABAR_FIELD_WHOLE, RUN(skipped_steps)},
    {"steps_per_epoch", ABAR_FIELD_OPTIONAL, RUN(steps_per_epoch)},
    {0},
};

/* Written for readers; not read back but for side_by_side, since the history contains them. */
static const abar__field best_fields[] = {
    {"best_acc", ABAR_FIELD_REAL, RUN(best_accuracy)},     {"best_acc_epoch", ABAR_FIELD_WHOLE, RUN(best_accuracy_epoch)},
    {"best_loss", ABAR_FIELD_REAL, RUN(best_loss)},        {"best_loss_epoch", ABAR_FIELD_WHOLE, RUN(best_loss_epoch)},
    {"side_by_side", ABAR_FIELD_WHOLE, RUN(side_by_side)}, {0},
};

static const char *part_of(const abar_compare *c) { return abar__tested_part(&c->method[0].setup->train); }

abar_status abar__compare_run_dir(const abar_compare *c, int i, char path[ABAR_RUN_PATH_MAX])
{
    char name[ABAR_LABEL_MAX + 32];
    snprintf(name, sizeof name, "%s-s%lld", c->record[i].run.label, (long long)c->record[i].run.seed);
    return abar__run_path(c->ctx, c->dir, name, path);
}

static abar_status report_path(const abar_compare *c, int i, char path[ABAR_RUN_PATH_MAX])
{
    char name[ABAR_LABEL_MAX + 48];
    snprintf(name, sizeof name, "%s-s%lld/report.json", c->record[i].run.label, (long long)c->record[i].run.seed);
    return abar__run_path(c->ctx, c->dir, name, path);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* {"label": ..., "history": [...]} */
abar_status abar__compare_record_write(const abar_compare *c, int i, abar__text *out)
{
    const abar__compare_record *r = &c->record[i];
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"label\": \"%s\", \"optim\": \"%s\", \"seed\": %lld, \"failure\": ",
                               r->run.label, c->method[r->run.method].setup->train.optim, (long long)r->run.seed));
    if (r->run.failure)
        ABAR_TRY(abar__json_string(c->ctx, out, r->run.failure));
    else
        ABAR_TRY(abar__text_append(c->ctx, out, "null", 4));
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"retry\": %s, ", r->run.retry ? "true" : "false"));
    ABAR_TRY(abar__fields_write(c->ctx, run_fields, &r->run, part_of(c), out));
    ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
    ABAR_TRY(abar__fields_write(c->ctx, best_fields, &r->run, part_of(c), out));
    ABAR_TRY(abar__text_append(c->ctx, out, ", \"history\": ", 13));
    ABAR_TRY(abar__history_write(c->ctx, r->history, r->run.epochs, part_of(c), false, out));
    return abar__text_append(c->ctx, out, "}", 1);
}

static abar_status write_varied(const abar_compare *c, abar__text *out)
{
    ABAR_TRY(abar__text_append(c->ctx, out, "\"may_differ\": [", 15));
    for (int i = 0; i < c->n_varied; i++) {
        if (i > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(abar__json_string(c->ctx, out, c->varied[i]));
    }
    return abar__text_append(c->ctx, out, "], ", 3);
}

static abar_status write_config(const abar_compare *c, abar__text *out)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"seeds\": %lld, ", (long long)c->seeds));
    if (c->target.kind) ABAR_TRY(abar__text_printf(c->ctx, out, "\"target\": \"%s\", ", c->target.text));
    if (c->n_varied > 0) ABAR_TRY(write_varied(c, out));
    if (c->kind->write_config) ABAR_TRY(c->kind->write_config(c, out));
    ABAR_TRY(abar__text_append(c->ctx, out, "\"methods\": [", 12));
    for (int m = 0; m < c->methods; m++) {
        const abar__compare_method *method = &c->method[m];
        ABAR_TRY(abar__text_printf(c->ctx, out, "%s{\"label\": \"%s\", \"seeds\": %lld, \"ms_alone\": ", m ? ", " : "",
                                   method->label, (long long)method->seeds));
        ABAR_TRY(abar__json_number(c->ctx, out, method->ms_alone));
        ABAR_TRY(abar__text_append(c->ctx, out, ", \"setup\": ", 11));
        ABAR_TRY(abar__setup_write(c->ctx, method->setup, out));
        ABAR_TRY(abar__text_append(c->ctx, out, "}", 1));
    }
    return abar__text_append(c->ctx, out, "]}", 2);
}

static abar_status write_runs(const abar_compare *c, abar__text *out)
{
    int written = 0;
    ABAR_TRY(abar__text_printf(c->ctx, out, "\"complete\": %s, \"jobs\": %lld, \"wall_seconds\": ",
                               abar__compare_ended(c) == c->runs ? "true" : "false", (long long)c->jobs));
    ABAR_TRY(abar__json_number(c->ctx, out, c->wall_seconds));
    ABAR_TRY(abar__text_append(c->ctx, out, ", \"runs\": [", 11));
    for (int i = 0; i < c->runs; i++) {
        if (!c->record[i].run.ended) continue;
        if (written++) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(abar__compare_record_write(c, i, out));
    }
    return abar__text_append(c->ctx, out, "]", 1);
}

abar_status abar__compare_write(const abar_compare *c, abar__text *out)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"abar\": \"%s\", \"config\": ", abar_version()));
    ABAR_TRY(write_config(c, out));
    ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
    ABAR_TRY(write_runs(c, out));
    ABAR_TRY(abar__text_append(c->ctx, out, ", \"table\": ", 11));
    ABAR_TRY(abar__compare_table_write(c, out));
    if (c->kind->write_results) ABAR_TRY(c->kind->write_results(c, out));
    return abar__text_append(c->ctx, out, "}", 1);
}

abar_status abar__compare_record_save(abar_compare *c, int i)
{
    char path[ABAR_RUN_PATH_MAX];
    abar__text text = {0};
    ABAR_TRY(report_path(c, i, path));
    abar_status status = abar__compare_record_write(c, i, &text);
    if (status >= 0) status = abar__text_append(c->ctx, &text, "\n", 1);
    if (status >= 0) status = abar__file_replace(c->ctx, path, text.data, text.length);
    abar__text_free(c->ctx, &text);
    return status;
}

static abar_status write_json_file(const abar_compare *c, abar__text *out)
{
    ABAR_TRY(abar__compare_write(c, out));
    return abar__text_append(c->ctx, out, "\n", 1);
}

static abar_status save_file(abar_compare *c, const char *name, abar_status (*write)(const abar_compare *c, abar__text *out))
{
    char path[ABAR_RUN_PATH_MAX];
    abar__text text = {0};
    ABAR_TRY(abar__run_path(c->ctx, c->dir, name, path));
    abar_status status = write(c, &text);
    if (status >= 0) status = abar__file_replace(c->ctx, path, text.data, text.length);
    abar__text_free(c->ctx, &text);
    return status;
}

const abar__compare_kind abar__comparison_kind = {
    .stem = "compare",
    .noun = "comparison",
    .methods_max = ABAR_COMPARE_METHODS_MAX,
    .label_max = ABAR_COMPARE_LABEL_MAX,
    .files = (const abar__compare_file[]){{"compare.csv", abar__compare_csv_write},
                                          {"compare.svg", abar__compare_svg_write},
                                          {"compare.md", abar__compare_md_write},
                                          {0}},
};

static void config_name(const abar_compare *c, char name[32]) { snprintf(name, 32, "%s.json", c->kind->stem); }

abar_status abar__compare_config_path(const abar_compare *c, char path[ABAR_RUN_PATH_MAX])
{
    char name[32];
    config_name(c, name);
    return abar__run_path(c->ctx, c->dir, name, path);
}

abar_status abar__compare_save(abar_compare *c)
{
    char name[32];
    config_name(c, name);
    for (const abar__compare_file *file = c->kind->files; file->name; file++) ABAR_TRY(save_file(c, file->name, file->write));
    return save_file(c, name, write_json_file);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* A default for members that files of older versions lack. */
static double number_or(const cJSON *object, const char *name, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) && fabs(item->valuedouble) < 0x1p53 ? item->valuedouble : otherwise;
}

static abar_status read_record(const abar_compare *c, const char *path, const cJSON *root, abar__compare_record *r)
{
    abar_compare_run run = r->run; /* r->run.epochs must match r->history at any time */
    const cJSON *failure = cJSON_GetObjectItemCaseSensitive(root, "failure");
    const cJSON *history = cJSON_GetObjectItemCaseSensitive(root, "history");
    ABAR_TRY(abar__fields_read(c->ctx, path, root, run_fields, part_of(c), &run));
    if (!cJSON_IsArray(history) || cJSON_GetArraySize(history) != run.epochs)
        return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: \"history\" must have %lld epochs", path, (long long)run.epochs);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)run.epochs * sizeof *r->history, &memory));
    r->history = memory;
    r->run = run;
    ABAR_TRY(abar__history_read(c->ctx, path, history, run.epochs, part_of(c), r->history));
    abar__compare_best(r);
    r->run.side_by_side = (int64_t)fmax(1.0, number_or(root, "side_by_side", 1.0));
    if (cJSON_IsString(failure)) {
        ABAR_TRY(abar__text_append(c->ctx, &r->failure_text, failure->valuestring, strlen(failure->valuestring)));
        r->run.failure = r->failure_text.data;
        r->run.retry = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "retry"));
    }
    r->run.ended = true;
    return ABAR_OK;
}

abar_status abar__compare_record_parse(const abar_compare *c, const char *label, const char *json, size_t n,
                                       abar__compare_record *r)
{
    cJSON *root;
    ABAR_TRY(abar__json_parse(c->ctx, label, json, n, &root));
    abar_status status = read_record(c, label, root, r);
    cJSON_Delete(root);
    return status;
}

/* Settings that change no result, or are folders of a machine. */
static bool is_local(const char *name)
{
    static const char *const local[] = {"out",        "data",     "device",     "threads",          "workers",
                                        "decode",     "classes",  "val-labels", "checkpoint-every", "init",
                                        "stop-after", "snapshot", NULL};
    for (const char *const *l = local; *l; l++)
        if (strcmp(name, *l) == 0) return true;
    return false;
}

/* Refuses a run that was made with other settings, as the folders of another comparison have it. */
static abar_status check_settings(const abar_compare *c, const abar_compare_run *run, const char *dir, const abar_setup *found)
{
    abar_setup_table mine[ABAR_SETUP_TABLES_MAX], other[ABAR_SETUP_TABLES_MAX];
    const abar_setup *setup = c->method[run->method].setup;
    const int n = abar_setup_tables(setup, mine), m = abar_setup_tables(found, other);
    const char *differs =
        n != m || strcmp(setup->train.optim, found->train.optim) != 0 || setup->model != found->model ? "optim" : NULL;
    for (int i = 0; i < n && !differs; i++) {
        for (const abar_option *o = mine[i].options; o->name && !differs; o++) {
            char a[ABAR_OPTION_TEXT_MAX], b[ABAR_OPTION_TEXT_MAX];
            if (is_local(o->name) || strcmp(o->name, "seed") == 0) continue;
            ABAR_TRY(abar_options_get(c->ctx, mine[i].options, mine[i].config, o->name, a, sizeof a));
            ABAR_TRY(abar_options_get(c->ctx, other[i].options, other[i].config, o->name, b, sizeof b));
            if (strcmp(a, b) != 0) differs = o->name;
        }
    }
    if (!differs && found->train.seed != run->seed) differs = "seed";
    if (!differs) return ABAR_OK;
    return abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: was trained with another --%s than this %s has, move the folder away", dir,
                      differs, c->kind->noun);
}

/* A run that failed before it began has no config.json. */
static abar_status check_run(const abar_compare *c, int i)
{
    char dir[ABAR_RUN_PATH_MAX], path[ABAR_RUN_PATH_MAX];
    abar_setup *found;
    ABAR_TRY(abar__compare_run_dir(c, i, dir));
    ABAR_TRY(abar__run_path(c->ctx, dir, "config.json", path));
    if (!abar__path_exists(path)) return ABAR_OK;
    ABAR_TRY(abar_setup_load(c->ctx, dir, &found));
    const abar_status status = check_settings(c, &c->record[i].run, dir, found);
    abar_setup_destroy(c->ctx, found);
    return status;
}

abar_status abar__compare_records_load(abar_compare *c)
{
    for (int i = 0; i < c->runs; i++) {
        char path[ABAR_RUN_PATH_MAX];
        abar__text text;
        ABAR_TRY(report_path(c, i, path));
        if (!abar__path_exists(path)) continue;
        ABAR_TRY(abar__file_read(c->ctx, path, FILE_MAX, &text));
        abar_status status = abar__compare_record_parse(c, path, text.data, text.length, &c->record[i]);
        abar__text_free(c->ctx, &text);
        if (status == ABAR_E_FORMAT)
            return abar__fail(c->ctx, status, "%s; remove the file to finish the run again, from its checkpoint",
                              abar_context_error(c->ctx));
        ABAR_TRY(status);
        ABAR_TRY(check_run(c, i));
        abar__compare_method *method = &c->method[c->record[i].run.method];
        if (c->record[i].run.failure) continue;
        method->seconds += c->record[i].run.seconds;
        method->ended++;
    }
    return ABAR_OK;
}

static abar_status read_method(abar_compare *c, const char *path, const cJSON *item, abar__compare_method *out)
{
    const char *label = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "label"));
    const cJSON *setup = cJSON_GetObjectItemCaseSensitive(item, "setup");
    if (!label || strlen(label) >= c->kind->label_max || !setup)
        return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: a method must have a label and a setup, the file is damaged", path);
    memcpy(out->label, label, strlen(label) + 1);
    out->seeds = (int64_t)number_or(item, "seeds", (double)c->seeds);
    out->ms_alone = number_or(item, "ms_alone", NAN);
    return abar__setup_read(c->ctx, path, setup, &out->setup);
}

static abar_status read_config(abar_compare *c, const char *path, const cJSON *root)
{
    static const abar__field seeds[] = {{"seeds", ABAR_FIELD_WHOLE, offsetof(abar_compare, seeds)}, {0}};
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(root, "config");
    const cJSON *methods = cJSON_GetObjectItemCaseSensitive(config, "methods");
    int n = cJSON_IsArray(methods) ? cJSON_GetArraySize(methods) : 0;
    if (n < 1 || n > c->kind->methods_max)
        return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: \"config\" must list 1 to %d methods, is it from another program?", path,
                          c->kind->methods_max);
    ABAR_TRY(abar__fields_read(c->ctx, path, config, seeds, "test", c));
    const cJSON *target = cJSON_GetObjectItemCaseSensitive(config, "target");
    if (cJSON_IsString(target)) ABAR_TRY(abar__target_parse(c->ctx, target->valuestring, &c->target));
    const cJSON *varied;
    cJSON_ArrayForEach(varied, cJSON_GetObjectItemCaseSensitive(config, "may_differ")) if (cJSON_IsString(varied))
        abar__compare_allow(c, varied->valuestring);
    c->jobs = (int64_t)fmax(0.0, number_or(root, "jobs", 0.0));
    c->wall_seconds = number_or(root, "wall_seconds", 0.0);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)n * sizeof *c->method, &memory));
    c->method = memory;
    c->methods = n;
    const cJSON *item = methods->child;
    for (int m = 0; m < n; m++, item = item->next) ABAR_TRY(read_method(c, path, item, &c->method[m]));
    return c->kind->read_config ? c->kind->read_config(c, path, config) : ABAR_OK;
}

abar_status abar__compare_config_parse(abar_compare *c, const char *label, const char *json, size_t n)
{
    cJSON *root;
    ABAR_TRY(abar__json_parse(c->ctx, label, json, n, &root));
    abar_status status = read_config(c, label, root);
    cJSON_Delete(root);
    return status;
}

abar_status abar__compare_config_load(abar_compare *c)
{
    char path[ABAR_RUN_PATH_MAX];
    abar__text text;
    ABAR_TRY(abar__compare_config_path(c, path));
    ABAR_TRY(abar__file_read(c->ctx, path, FILE_MAX, &text));
    abar_status status = abar__compare_config_parse(c, path, text.data, text.length);
    abar__text_free(c->ctx, &text);
    return status;
}
