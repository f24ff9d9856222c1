/* Runs in a tree of folders. A run is a folder with config.json; comparisons, sweeps and tunings have a JSON file of their
 * name. A file that cannot be read is damaged, unless memory was short: that ends the visit. */
#include "train/runs/runs_impl.h"
#include "io/beneath.h"
#include "train/train_json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 24
#define PATH_LENGTH_MAX 4096
#define FILE_MAX ((size_t)1 << 28)
#define LOG_TAIL ((long)1 << 20) /* bytes of a log in which its last epoch is looked for */
#define HEADER_MAX ((uint64_t)100 << 20)

/* A visit; path and folder are those of the current folder. */
typedef struct tour {
    abar_context *ctx;
    abar__run_visitor visit;
    void *user;
    int folder;
    abar__runs_what what;
    bool ended;
    abar_status status;
    char path[PATH_LENGTH_MAX];
    char optim[ABAR_OPTION_TEXT_MAX], model[ABAR_OPTION_TEXT_MAX], data[ABAR_OPTION_TEXT_MAX], problem[1024];
} tour;

/* The path of a file in the current folder; false: it is too long. */
static bool file_path(const tour *t, const char *name, char path[PATH_LENGTH_MAX])
{
    return snprintf(path, PATH_LENGTH_MAX, "%s/%s", t->path, name) < PATH_LENGTH_MAX;
}

static bool has_file(const tour *t, const char *name)
{
    struct stat info;
    return fstatat(t->folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

static void damage(tour *t, abar_run_info *info, const char *why)
{
    snprintf(t->problem, sizeof t->problem, "%s", why);
    info->problem = t->problem;
    info->condition = ABAR_RUN_DAMAGED;
}

static void copy(char *to, const char *from) { snprintf(to, ABAR_OPTION_TEXT_MAX, "%s", from ? from : ""); }

/* What a failure to read something makes of a run. */
static abar_status judge(tour *t, abar_run_info *info, abar_status status)
{
    if (status == ABAR_E_MEMORY) return status;
    if (status < 0) damage(t, info, abar_context_error(t->ctx));
    return ABAR_OK;
}

/* The file as JSON. */
static abar_status read_json(const tour *t, const char *name, cJSON **out)
{
    char path[PATH_LENGTH_MAX];
    abar__text text = {0};
    if (!file_path(t, name, path)) return abar__fail(t->ctx, ABAR_E_IO, "%s: its path is too long", name);
    abar_status status = abar__beneath_read(t->ctx, t->folder, name, path, FILE_MAX, &text);
    if (status == ABAR_OK) status = abar__json_parse(t->ctx, path, text.data, text.length, out);
    abar__text_free(t->ctx, &text);
    return status;
}

/* ---- runs -------------------------------------------------------------------------------------------------------------- */

static double number_or(const cJSON *object, const char *name, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

/* One line of the log. *found: it tells of an epoch; a line that a crash cut short does not. */
static abar_status read_epoch(abar_context *ctx, const char *line, size_t n, abar_run_info *info, bool *found)
{
    cJSON *root = NULL;
    if (abar__json_parse(ctx, "log.jsonl", line, n, &root) == ABAR_E_MEMORY) return ABAR_E_MEMORY;
    const double epoch = number_or(root, "epoch", 0.0);
    *found = epoch >= 1.0 && epoch < 0x1p53;
    if (*found) {
        const char *part = info->validation ? "validation" : "test";
        char name[32];
        info->epochs = (int64_t)epoch;
        snprintf(name, sizeof name, "%s_acc", part);
        info->accuracy = number_or(root, name, NAN);
        snprintf(name, sizeof name, "%s_loss", part);
        info->loss = number_or(root, name, NAN);
    }
    cJSON_Delete(root);
    return ABAR_OK;
}

/* The last epoch of a log's end. */
static abar_status find_epoch(const tour *t, const char *text, size_t n, abar_run_info *info)
{
    bool found = false;
    for (size_t end = n; end > 0 && !found;) {
        size_t begin = end;
        while (begin > 0 && text[begin - 1] != '\n') begin--;
        if (end > begin) ABAR_TRY(read_epoch(t->ctx, text + begin, end - begin, info, &found));
        end = begin > 0 ? begin - 1 : 0;
    }
    return ABAR_OK;
}

static abar_status read_log(const tour *t, abar_run_info *info)
{
    struct stat about;
    void *memory;
    const int fd = abar__beneath_file(t->folder, "log.jsonl", &about);
    if (fd < 0) return ABAR_OK;
    abar_status status = abar__alloc(t->ctx, (size_t)LOG_TAIL, &memory);
    if (status == ABAR_OK) {
        const ssize_t n = pread(fd, memory, (size_t)LOG_TAIL, about.st_size > LOG_TAIL ? about.st_size - LOG_TAIL : 0);
        status = find_epoch(t, memory, n > 0 ? (size_t)n : 0, info);
        abar__free(t->ctx, memory, (size_t)LOG_TAIL);
    }
    close(fd);
    return status;
}

/* Where the last tensor ends, according to the header of a safetensors file; -1: it is not valid. */
static abar_status tensors_end(abar_context *ctx, const char *header, size_t n, double *end)
{
    cJSON *root = NULL;
    const cJSON *item;
    if (abar__json_parse(ctx, "header", header, n, &root) == ABAR_E_MEMORY) return ABAR_E_MEMORY;
    *end = cJSON_IsObject(root) ? 0.0 : -1.0;
    cJSON_ArrayForEach(item, root)
    {
        const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
        if (cJSON_IsArray(offsets) && cJSON_IsNumber(cJSON_GetArrayItem(offsets, 1)))
            *end = fmax(*end, cJSON_GetArrayItem(offsets, 1)->valuedouble);
    }
    cJSON_Delete(root);
    return ABAR_OK;
}

/* Whether a safetensors file of so many bytes is whole. Its checksums are left to who reads it: that takes long for a large
 * one. */
static abar_status measure_checkpoint(const tour *t, int fd, off_t bytes, bool *whole)
{
    unsigned char word[8];
    void *memory;
    uint64_t length = 0;
    double end = 0.0;
    *whole = pread(fd, word, 8, 0) == 8;
    for (int i = 7; i >= 0 && *whole; i--) length = length << 8 | word[i];
    *whole = *whole && length > 0 && length < HEADER_MAX && (double)length + 8.0 <= (double)bytes;
    if (!*whole) return ABAR_OK;
    ABAR_TRY(abar__alloc(t->ctx, (size_t)length, &memory));
    abar_status status = ABAR_OK;
    *whole = pread(fd, memory, (size_t)length, 8) == (ssize_t)length;
    if (*whole) status = tensors_end(t->ctx, memory, (size_t)length, &end);
    *whole = *whole && end + 8.0 + (double)length == (double)bytes;
    abar__free(t->ctx, memory, (size_t)length);
    return status;
}

static abar_status check_checkpoint(tour *t, abar_run_info *info)
{
    struct stat about;
    bool whole = false;
    if (!has_file(t, "state.safetensors")) {
        if (info->epochs > 1) damage(t, info, "state.safetensors: is gone, restore it or begin the run anew");
        return ABAR_OK;
    }
    const int fd = abar__beneath_file(t->folder, "state.safetensors", &about);
    const abar_status status = fd >= 0 ? measure_checkpoint(t, fd, about.st_size, &whole) : ABAR_OK;
    if (fd >= 0) close(fd);
    if (status == ABAR_OK && !whole) damage(t, info, "state.safetensors: is not whole, restore it or begin the run anew");
    return status;
}

/* report.json of a run of a comparison tells whether it failed. */
static abar_status read_failure(tour *t, abar_run_info *info)
{
    cJSON *root = NULL;
    if (!has_file(t, "report.json")) return ABAR_OK;
    if (read_json(t, "report.json", &root) == ABAR_E_MEMORY) return ABAR_E_MEMORY;
    const char *failure = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "failure"));
    if (failure) {
        snprintf(t->problem, sizeof t->problem, "%s", failure);
        info->problem = t->problem;
    }
    cJSON_Delete(root);
    return ABAR_OK;
}

static abar_status read_setup(const tour *t, abar_setup **out)
{
    char path[PATH_LENGTH_MAX];
    abar__text json = {0};
    if (!file_path(t, "config.json", path)) return abar__fail(t->ctx, ABAR_E_ARGUMENT, "config.json: its path is too long");
    ABAR_TRY(abar__beneath_read(t->ctx, t->folder, "config.json", path, FILE_MAX, &json));
    const abar_status status = abar__setup_parse(t->ctx, path, json.data, json.length, out);
    abar__text_free(t->ctx, &json);
    return status;
}

static abar_status look_at_run(tour *t, abar_run_info *info)
{
    abar_setup *setup;
    const abar_status status = read_setup(t, &setup);
    if (status < 0) return judge(t, info, status);
    const abar_train_config *train = &setup->train;
    copy(t->model, train->model);
    copy(t->data, train->data);
    copy(t->optim, train->optim);
    info->text = setup->model->text;
    info->validation = train->validation > 0.0;
    info->epochs_wanted = train->stop_after > 0 && train->stop_after < train->epochs ? train->stop_after : train->epochs;
    abar_setup_destroy(t->ctx, setup);
    ABAR_TRY(read_log(t, info));
    if (info->epochs >= info->epochs_wanted) info->condition = ABAR_RUN_FINISHED;
    ABAR_TRY(read_failure(t, info));
    return check_checkpoint(t, info);
}

/* ---- comparisons, sweeps, tunings -------------------------------------------------------------------------------------- */

/* Settings that all methods share, from the first of them. */
static void read_settings(tour *t, const cJSON *methods, abar_run_info *info)
{
    const cJSON *item, *setup = cJSON_GetObjectItemCaseSensitive(cJSON_IsArray(methods) ? methods->child : NULL, "setup");
    const cJSON *train = cJSON_GetObjectItemCaseSensitive(setup, "train");
    copy(t->model, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(train, "model")));
    copy(t->data, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(train, "data")));
    const abar_model *model = abar_model_find(t->model);
    info->text = model && model->text;
    info->validation = number_or(train, "validation", 0.0) > 0.0;
    info->epochs_wanted = (int64_t)fmin(fmax(number_or(train, "epochs", 0.0), 0.0), 1e9);
    cJSON_ArrayForEach(item, methods) info->runs_wanted += (int)fmin(fmax(number_or(item, "seeds", 1.0), 0.0), 1e6);
}

static void add_name(tour *t, const char *name)
{
    const size_t n = strlen(t->optim);
    if (name && n + strlen(name) + 3 < sizeof t->optim) snprintf(t->optim + n, sizeof t->optim - n, "%s%s", n ? "," : "", name);
}

/* The best number of a member among objects; NaN: none. */
static double best_of(const cJSON *list, const char *part, const char *name, bool least)
{
    const cJSON *item;
    double best = NAN;
    char member[48];
    snprintf(member, sizeof member, "%s_%s", part, name);
    cJSON_ArrayForEach(item, list)
    {
        const double value = number_or(item, member, NAN);
        best = least ? fmin(best, value) : fmax(best, value); /* NaN loses */
    }
    return best;
}

static void read_results(tour *t, const cJSON *root, abar_run_info *info)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(root, "config"), *item;
    const cJSON *methods = cJSON_GetObjectItemCaseSensitive(config, "methods");
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(config, "optimizers"); /* of a sweep: texts, of a tuning: objects */
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "table"), "rows");
    const bool tuning = info->kind == ABAR_KIND_TUNING;
    const cJSON *named = names ? names : methods;
    cJSON_ArrayForEach(item, named)
    {
        add_name(t, cJSON_IsString(item) ? item->valuestring
                                         : cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "label")));
    }
    read_settings(t, tuning ? names : methods, info);
    if (tuning) {
        rows = cJSON_GetObjectItemCaseSensitive(root, "results");
        info->validation = false; /* its results are of the test part */
        info->runs_wanted = 0;
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "runs"))
    {
        info->runs++;
        info->failures += cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "failure"));
    }
    const char *part = info->validation ? "validation" : "test";
    info->accuracy = best_of(rows, part, "acc", false);
    info->loss = best_of(rows, part, "loss", true);
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "complete"))) info->condition = ABAR_RUN_FINISHED;
    if (!cJSON_IsObject(config) || !t->model[0]) damage(t, info, "has no configuration, is the file damaged?");
}

static abar_status look_at_group(tour *t, const char *name, abar_run_info *info)
{
    cJSON *root = NULL;
    const abar_status status = read_json(t, name, &root);
    if (status < 0) return judge(t, info, status);
    read_results(t, root, info);
    cJSON_Delete(root);
    return ABAR_OK;
}

/* ---- the tree ---------------------------------------------------------------------------------------------------------- */

/* Tells of the current folder if there is something in it; *group: whether it has runs of its own. */
static abar_status tell(tour *t, bool inside, bool *group)
{
    static const struct {
        const char *name;
        abar_run_kind kind;
    } known[] = {{"tune.json", ABAR_KIND_TUNING},
                 {"sweep.json", ABAR_KIND_SWEEP},
                 {"compare.json", ABAR_KIND_COMPARISON},
                 {"config.json", ABAR_KIND_RUN}};
    const size_t n = sizeof known / sizeof *known;
    size_t i = 0;
    while (i < n && !has_file(t, known[i].name)) i++;
    *group = i < n && known[i].kind != ABAR_KIND_RUN;
    if (i == n && t->what.other) t->ended = !t->what.other(t->user, t->folder, t->path);
    if (i == n || (inside && !t->what.all)) return ABAR_OK;
    t->optim[0] = t->model[0] = t->data[0] = '\0';
    abar_run_info info = {.path = t->path,
                          .kind = known[i].kind,
                          .condition = ABAR_RUN_STOPPED,
                          .model = t->model,
                          .data = t->data,
                          .optim = t->optim,
                          .accuracy = NAN,
                          .loss = NAN,
                          .inside = inside};
    if (!t->what.brief) ABAR_TRY(*group ? look_at_group(t, known[i].name, &info) : look_at_run(t, &info));
    if (info.condition != ABAR_RUN_DAMAGED && abar__folder_locked(t->folder)) info.condition = ABAR_RUN_RUNNING;
    t->ended = !t->visit(t->user, t->folder, &info);
    return ABAR_OK;
}

static void walk(tour *t, bool inside, int depth);

/* The folder of this name in the current one; nothing happens if it is none. */
static void enter(tour *t, const char *name, bool inside, int depth)
{
    const size_t end = strlen(t->path);
    const int above = t->folder;
    if (end + strlen(name) + 2 >= sizeof t->path || (t->folder = abar__beneath_folder(above, name)) < 0) {
        t->folder = above;
        return;
    }
    snprintf(t->path + end, sizeof t->path - end, "%s%s", end == 0 || t->path[end - 1] == '/' ? "" : "/", name);
    walk(t, inside, depth);
    t->path[end] = '\0';
    close(t->folder);
    t->folder = above;
}

static void walk(tour *t, bool inside, int depth)
{
    abar__names names;
    bool group = false;
    t->status = tell(t, inside, &group);
    t->ended = t->ended || t->status < 0;
    if (t->ended || depth == DEPTH_MAX || ((group || inside) && !t->what.all)) return;
    t->status = abar__beneath_list(t->ctx, t->folder, &names);
    t->ended = t->status < 0;
    for (size_t i = 0; i < names.n && !t->ended; i++) enter(t, names.name[i], inside || group, depth + 1);
    abar__names_free(t->ctx, &names);
}

abar_status abar__runs_visit(abar_context *ctx, int folder, const char *label, abar__runs_what what, abar__run_visitor visit,
                             void *user)
{
    tour t = {.ctx = ctx, .visit = visit, .user = user, .folder = folder, .what = what};
    if (strlen(label) + 1 >= sizeof t.path) return abar__fail(ctx, ABAR_E_ARGUMENT, "%.80s: its path is too long", label);
    snprintf(t.path, sizeof t.path, "%s", label);
    for (size_t n = strlen(t.path); n > 1 && t.path[n - 1] == '/'; n--) t.path[n - 1] = '\0';
    walk(&t, false, 0);
    return t.status;
}

abar_status abar__runs_open(abar_context *ctx, const char *dir, int *out)
{
    struct stat info;
    if (stat(dir, &info) != 0)
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: %s, check the path", dir[0] ? dir : "\"\"",
                          errno == ENOENT ? "no such folder" : strerror(errno));
    if (!S_ISDIR(info.st_mode)) return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: is a file, give a folder", dir);
    *out = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out >= 0 ? ABAR_OK : abar__fail(ctx, ABAR_E_IO, "%s: %s, check its permissions", dir, strerror(errno));
}

typedef struct public_visit {
    abar_run_visitor visit;
    void *user;
} public_visit;

static bool tell_public(void *user, int folder, const abar_run_info *info)
{
    const public_visit *p = user;
    (void)folder;
    return p->visit(p->user, info);
}

abar_status abar_runs_visit(abar_context *ctx, const char *dir, bool all, abar_run_visitor visit, void *user)
{
    int folder;
    public_visit p = {.visit = visit, .user = user};
    ABAR_TRY(abar__runs_open(ctx, dir, &folder));
    const abar_status status = abar__runs_visit(ctx, folder, dir, (abar__runs_what){.all = all}, tell_public, &p);
    close(folder);
    return status;
}
