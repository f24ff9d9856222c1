/* The page of `abar report`: page.html, with what was gathered from the folders as one JSON text in it. Nothing of a run
 * reaches the page in another way, so names and log lines stay text. */
#include "base/json.h"
#include "io/beneath.h"
#include "io/io.h"
#include "train/report/page.h"
#include "train/report/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define JSON_FILE_MAX ((size_t)1 << 26)
#define PICTURE_MAX ((size_t)2 << 20)
#define PICTURES_MAX ((size_t)12 << 20) /* all of them together */
#define TEXT_MAX ((size_t)1 << 16)

/* ---- files of a folder --------------------------------------------------------------------------------------------------- */

/* NULL: there is none, or it is damaged, which the visit of the runs reports. */
static abar_status read_object(abar__report *r, int folder, const char *name, cJSON **out)
{
    abar__text text = {0};
    *out = NULL;
    abar_status status = abar__beneath_read(r->ctx, folder, name, name, JSON_FILE_MAX, &text);
    if (status >= 0) status = abar__json_parse(r->ctx, name, text.data, text.length, out);
    abar__text_free(r->ctx, &text);
    return status == ABAR_E_MEMORY ? status : ABAR_OK;
}

static abar_status begin_item(abar__report *r, abar__text *list)
{
    return abar__report_put(r->ctx, list, list->length > 0 ? ",\n{" : "{");
}

static abar_status put_file_path(abar__report *r, abar__text *out, const char *folder, const char *name)
{
    abar__text path = {0};
    abar_status status = abar__text_printf(r->ctx, &path, "%s%s%s", folder, folder[0] ? "/" : "", name);
    if (status >= 0) status = abar__report_string(r->ctx, out, "path", path.data);
    if (status >= 0) status = abar__report_string(r->ctx, out, "folder", folder);
    abar__text_free(r->ctx, &path);
    return status;
}

/* As base64: the page shows it in an image element, where a script in it is not run. */
static abar_status add_picture(abar__report *r, int folder, const char *path, const char *name)
{
    abar__text svg = {0}, *out = &r->pictures;
    abar_status status = abar__beneath_read(r->ctx, folder, name, name, PICTURE_MAX, &svg);
    if (status < 0) return status == ABAR_E_MEMORY ? status : ABAR_OK;
    if (svg.length > 0 && svg.length <= PICTURES_MAX - r->picture_bytes) {
        r->counts.pictures++;
        r->picture_bytes += svg.length;
        status = begin_item(r, out);
        if (status >= 0) status = put_file_path(r, out, path, name);
        if (status >= 0) status = abar__report_put(r->ctx, out, ",\"svg\":\"");
        if (status >= 0) status = abar__report_base64(r->ctx, out, svg.data, svg.length);
        if (status >= 0) status = abar__report_put(r->ctx, out, "\"}");
    }
    abar__text_free(r->ctx, &svg);
    return status;
}

/* What `abar analyze all` says about its figures. */
static abar_status add_text(abar__report *r, int folder, const char *path, const char *name)
{
    abar__text text = {0}, *out = &r->texts;
    abar_status status = abar__beneath_read(r->ctx, folder, name, name, TEXT_MAX, &text);
    if (status < 0) return status == ABAR_E_MEMORY ? status : ABAR_OK;
    status = begin_item(r, out);
    if (status >= 0) status = put_file_path(r, out, path, name);
    if (status >= 0) status = abar__report_string(r->ctx, out, "text", text.data);
    if (status >= 0) status = abar__report_put(r->ctx, out, "}");
    abar__text_free(r->ctx, &text);
    return status;
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n > m && strcmp(name + n - m, with) == 0;
}

static abar_status add_files(abar__report *r, int folder, const char *path)
{
    abar__names names;
    abar_status status = abar__beneath_list(r->ctx, folder, &names);
    for (size_t i = 0; i < names.n && status >= 0; i++) {
        const char *name = names.name[i];
        if (ends(name, ".svg") && strcmp(name, "compare.svg") != 0) /* the page draws the curves of a comparison itself */
            status = add_picture(r, folder, path, name);
        else if (strcmp(name, "summary.md") == 0)
            status = add_text(r, folder, path, name);
    }
    abar__names_free(r->ctx, &names);
    return status;
}

/* ---- runs and groups ----------------------------------------------------------------------------------------------------- */

static const char *const states[] = {"running", "finished", "stopped", "damaged"};
static const char *const kinds[] = {"run", "comparison", "sweep", "tuning"};

static abar_status put_info(abar__report *r, abar__text *out, const abar_run_info *info)
{
    const struct {
        const char *name, *value;
    } texts[] = {{"path", info->path},       {"kind", kinds[info->kind]}, {"state", states[info->condition]},
                 {"problem", info->problem}, {"model", info->model},      {"data", info->data},
                 {"optim", info->optim}};
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"epochs_done", (double)info->epochs},
                   {"epochs_wanted", (double)info->epochs_wanted},
                   {"runs_done", info->runs},
                   {"runs_wanted", info->runs_wanted},
                   {"acc", info->accuracy},
                   {"loss", info->loss}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        ABAR_TRY(abar__report_string(r->ctx, out, texts[i].name, texts[i].value));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ABAR_TRY(abar__report_number(r->ctx, out, numbers[i].name, numbers[i].value));
    ABAR_TRY(abar__report_flag(r->ctx, out, "validation", info->validation));
    ABAR_TRY(abar__report_flag(r->ctx, out, "inside", info->inside));
    return abar__report_flag(r->ctx, out, "text", info->text);
}

static abar_status put_numbers(abar__report *r, abar__text *out, int folder, bool growing)
{
    struct stat info;
    int64_t damaged;
    const int fd = abar__beneath_file(folder, "log.jsonl", &info);
    const abar_status status = abar__report_log(r->ctx, fd, growing, out, &damaged);
    if (fd >= 0) close(fd);
    r->counts.damaged_lines += damaged;
    return status;
}

/* What config.json says, and report.json of a compared run. Before its epochs end a log does not say how many steps they have;
 * config.json does, beside the settings, or in older runs the report. */
static abar_status put_settings(abar__report *r, abar__text *out, int folder)
{
    static const char steps[] = "steps_per_epoch";
    cJSON *result, *config = NULL;
    abar_status status = read_object(r, folder, "report.json", &result);
    if (status >= 0) status = read_object(r, folder, "config.json", &config);
    const char *label = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(result, "label"));
    if (status >= 0) status = abar__report_string(r->ctx, out, "label", label);
    if (status >= 0) status = abar__report_number(r->ctx, out, "seed", abar__report_member(result, "seed"));
    const bool says = cJSON_GetObjectItemCaseSensitive(config, steps) != NULL;
    if (status >= 0) status = abar__report_number(r->ctx, out, steps, abar__report_member(says ? config : result, steps));
    cJSON_DeleteItemFromObjectCaseSensitive(config, steps);
    if (status >= 0) status = abar__report_value(r->ctx, out, "config", cJSON_IsObject(config) ? config : NULL);
    cJSON_Delete(result);
    cJSON_Delete(config);
    return status;
}

static abar_status add_run(abar__report *r, int folder, const abar_run_info *info)
{
    abar__text *out = &r->runs;
    r->counts.runs++;
    ABAR_TRY(begin_item(r, out));
    ABAR_TRY(put_info(r, out, info));
    ABAR_TRY(abar__report_string(r->ctx, out, "group", info->inside ? r->group : NULL));
    ABAR_TRY(put_settings(r, out, folder));
    ABAR_TRY(put_numbers(r, out, folder, info->condition == ABAR_RUN_RUNNING));
    return abar__report_put(r->ctx, out, "}");
}

static abar_status add_group(abar__report *r, int folder, const abar_run_info *info)
{
    static const char *const file[] = {
        [ABAR_KIND_COMPARISON] = "compare.json", [ABAR_KIND_SWEEP] = "sweep.json", [ABAR_KIND_TUNING] = "tune.json"};
    static const char *const shown[] = {"table", "best", "rounds", "results"};
    static const char *const asked[] = {"target", "seeds", "trials", "over", "axes"};
    abar__text *out = &r->groups;
    cJSON *root;
    r->counts.groups++;
    snprintf(r->group, sizeof r->group, "%s", info->path);
    ABAR_TRY(read_object(r, folder, file[info->kind], &root));
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(root, "config");
    abar_status status = begin_item(r, out);
    if (status >= 0) status = put_info(r, out, info);
    for (size_t i = 0; i < sizeof shown / sizeof *shown && status >= 0; i++)
        status = abar__report_value(r->ctx, out, shown[i], cJSON_GetObjectItemCaseSensitive(root, shown[i]));
    for (size_t i = 0; i < sizeof asked / sizeof *asked && status >= 0; i++)
        status = abar__report_value(r->ctx, out, asked[i], cJSON_GetObjectItemCaseSensitive(config, asked[i]));
    if (status >= 0) status = abar__report_put(r->ctx, out, "}");
    cJSON_Delete(root);
    return status;
}

static bool add(void *user, int folder, const abar_run_info *info)
{
    abar__report *r = user;
    r->status = info->kind == ABAR_KIND_RUN ? add_run(r, folder, info) : add_group(r, folder, info);
    if (r->status >= 0) r->status = add_files(r, folder, info->path);
    return r->status >= 0;
}

/* A folder that is no run may be that of an analysis. */
static bool add_other(void *user, int folder, const char *path)
{
    abar__report *r = user;
    r->status = add_files(r, folder, path);
    return r->status >= 0;
}

abar_status abar__report_gather(abar__report *r, int folder, const char *label)
{
    r->group[0] = '\0';
    ABAR_TRY(abar__runs_visit(r->ctx, folder, label, (abar__runs_what){.all = true, .other = add_other}, add, r));
    return r->status;
}

/* ---- the page ------------------------------------------------------------------------------------------------------------ */

abar_status abar__report_data(abar__report *r, const char *stamp, abar__text *out)
{
    const struct {
        const char *name;
        const abar__text *items;
    } lists[] = {{"runs", &r->runs}, {"groups", &r->groups}, {"pictures", &r->pictures}, {"texts", &r->texts}};
    ABAR_TRY(abar__text_printf(r->ctx, out, "{\"abar\":\"%s\"", abar_version()));
    ABAR_TRY(abar__report_string(r->ctx, out, "live", stamp));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ABAR_TRY(abar__text_printf(r->ctx, out, ",\n\"%s\":[", lists[i].name));
        if (lists[i].items->length > 0) ABAR_TRY(abar__report_harmless(r->ctx, out, lists[i].items));
        ABAR_TRY(abar__report_put(r->ctx, out, "]"));
    }
    return abar__report_put(r->ctx, out, "}");
}

static abar_status put_until(abar_context *ctx, abar__text *out, const char **at, const char *mark)
{
    const char *end = strstr(*at, mark);
    ABAR_TRY(abar__text_append(ctx, out, *at, (size_t)(end - *at)));
    *at = end + strlen(mark);
    return ABAR_OK;
}

abar_status abar__report_page(abar_context *ctx, bool live, const abar__text *data, abar__text *out)
{
    const char *at = (const char *)abar__report_html;
    ABAR_TRY(put_until(ctx, out, &at, "@CONNECT@"));
    ABAR_TRY(abar__report_put(ctx, out, live ? "'self'" : "'none'"));
    ABAR_TRY(put_until(ctx, out, &at, "@DATA@"));
    ABAR_TRY(abar__text_append(ctx, out, data->data, data->length));
    return abar__report_put(ctx, out, at);
}

void abar__report_free(abar__report *r)
{
    abar__text_free(r->ctx, &r->runs);
    abar__text_free(r->ctx, &r->groups);
    abar__text_free(r->ctx, &r->pictures);
    abar__text_free(r->ctx, &r->texts);
}

static abar_status write_page(abar__report *r, const char *path)
{
    abar__text data = {0}, page = {0};
    abar_status status = abar__report_data(r, NULL, &data);
    if (status >= 0) status = abar__report_page(r->ctx, false, &data, &page);
    if (status >= 0) status = abar__file_replace(r->ctx, path, page.data, page.length);
    r->counts.bytes = page.length;
    abar__text_free(r->ctx, &data);
    abar__text_free(r->ctx, &page);
    return status;
}

static abar_status add_folder(abar__report *r, const char *path)
{
    int folder;
    ABAR_TRY(abar__runs_open(r->ctx, path, &folder));
    const abar_status status = abar__report_gather(r, folder, path);
    close(folder);
    return status;
}

abar_status abar_report_write(abar_context *ctx, const char *const *folders, int n, const char *path,
                              abar_report_counts *counts)
{
    abar__report r = {.ctx = ctx, .counts.size = sizeof r.counts};
    if (counts) ABAR_TRY(abar__struct_check(ctx, "abar_report_counts", counts, sizeof *counts));
    abar_status status = ABAR_OK;
    for (int i = 0; i < n && status >= 0; i++) status = add_folder(&r, folders[i]);
    if (status >= 0 && r.counts.runs + r.counts.groups + r.counts.pictures == 0)
        status = abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: there are no runs in it, give the folder of a run or comparison",
                            n > 0 ? folders[0] : "no folder");
    if (status >= 0) status = write_page(&r, path);
    abar__report_free(&r);
    if (counts) abar__struct_write(&r.counts, sizeof r.counts, counts);
    return status;
}
