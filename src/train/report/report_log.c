/* The numbers of a log.jsonl as columns: lines of epochs, of steps, and of layers (abar train --diagnose). The file is read
 * twice, a piece at a time: first to count, so that a long log can be thinned out evenly. */
#include "base/json.h"
#include "train/report/report_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COLUMNS_MAX 24
#define COLUMN_NAME_MAX 48
#define STEPS_MAX 4000      /* lines of steps that are kept; of more, every second or third, ... */
#define DIAGNOSTICS_MAX 150 /* likewise lines of layers */
#define LAYERS_MAX 4096
#define LINE_LENGTH_MAX ((size_t)4 << 20)
#define LINE_LENGTH_USUAL ((size_t)1 << 18)

/* ---- lines ------------------------------------------------------------------------------------------------------------------
 */

typedef struct lines {
    int fd;
    char *buffer;
    size_t capacity; /* no line is longer */
    size_t from, have;
    int64_t read; /* bytes of the file that were read into the buffer */
    bool ended;
} lines;

typedef enum line_kind { LINE_NONE, LINE_WHOLE, LINE_TOO_LONG, LINE_CUT /* the last one, without its end */ } line_kind;

static void refill(lines *l)
{
    memmove(l->buffer, l->buffer + l->from, l->have - l->from);
    l->have -= l->from;
    l->from = 0;
    ssize_t n;
    do n = pread(l->fd, l->buffer + l->have, l->capacity - l->have, (off_t)l->read);
    while (n < 0 && errno == EINTR);
    l->ended = n <= 0;
    if (n > 0) l->have += (size_t)n, l->read += n;
}

static line_kind next_line(lines *l, const char **line, size_t *n)
{
    bool too_long = false;
    for (size_t seen = 0;;) {
        const char *start = l->buffer + l->from, *end = memchr(start + seen, '\n', l->have - l->from - seen);
        if (end) {
            *line = start;
            *n = (size_t)(end - start);
            l->from += *n + 1;
            return too_long ? LINE_TOO_LONG : LINE_WHOLE;
        }
        seen = l->have - l->from;
        if (l->ended) {
            *line = start;
            *n = seen;
            return seen > 0 || too_long ? LINE_CUT : LINE_NONE;
        }
        if (seen == l->capacity) {
            too_long = true;
            l->from = l->have;
            seen = 0;
        }
        refill(l);
    }
}

/* ---- columns of numbers -----------------------------------------------------------------------------------------------------
 */

typedef struct column {
    char name[COLUMN_NAME_MAX];
    abar__text numbers; /* "1,2,null" */
    int64_t n;
} column;

typedef struct series {
    column column[COLUMNS_MAX];
    int columns;
    int64_t rows;
} series;

static column *column_of(series *s, const char *name)
{
    for (int i = 0; i < s->columns; i++)
        if (strcmp(s->column[i].name, name) == 0) return &s->column[i];
    if (s->columns == COLUMNS_MAX || strlen(name) >= COLUMN_NAME_MAX) return NULL;
    column *c = &s->column[s->columns++];
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

/* Rows in which the column has no value are null. */
static abar_status fill_up(abar_context *ctx, column *c, int64_t rows)
{
    for (; c->n < rows; c->n++) ABAR_TRY(abar__report_put(ctx, &c->numbers, c->n > 0 ? ",null" : "null"));
    return ABAR_OK;
}

static abar_status add_row(abar_context *ctx, series *s, const cJSON *object)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        column *c = cJSON_IsNumber(item) && item->string ? column_of(s, item->string) : NULL;
        if (!c || c->n > s->rows) continue; /* a name that stands twice counts once */
        ABAR_TRY(fill_up(ctx, c, s->rows));
        if (c->n > 0) ABAR_TRY(abar__text_append(ctx, &c->numbers, ",", 1));
        ABAR_TRY(abar__report_real(ctx, &c->numbers, item->valuedouble, 6)); /* more than a curve shows */
        c->n++;
    }
    s->rows++;
    return ABAR_OK;
}

static abar_status put_series(abar_context *ctx, abar__text *out, const char *name, series *s)
{
    ABAR_TRY(abar__report_name(ctx, out, name));
    ABAR_TRY(abar__report_put(ctx, out, "{"));
    for (int i = 0; i < s->columns; i++) {
        column *c = &s->column[i];
        ABAR_TRY(fill_up(ctx, c, s->rows));
        ABAR_TRY(abar__report_put(ctx, out, i ? ",\n" : ""));
        ABAR_TRY(abar__json_string(ctx, out, c->name));
        ABAR_TRY(abar__report_put(ctx, out, ":["));
        ABAR_TRY(abar__text_append(ctx, out, c->numbers.data, c->numbers.length));
        ABAR_TRY(abar__report_put(ctx, out, "]"));
    }
    return abar__report_put(ctx, out, "}");
}

static void free_series(abar_context *ctx, series *s)
{
    for (int i = 0; i < s->columns; i++) abar__text_free(ctx, &s->column[i].numbers);
}

/* ---- the log ----------------------------------------------------------------------------------------------------------------
 */

/* Numbers of each layer. The last four are counts since the start of the run. */
static const char *const quantity[] = {"mean_square", "damping", "condition", "cosine", "ratio",
                                       "dropped",     "raised",  "doubled",   "kept"};
enum { QUANTITIES = sizeof quantity / sizeof *quantity };

typedef struct run_log {
    abar_context *ctx;
    series epochs, steps;
    abar__text layer_names, layer_steps, layer_rows[QUANTITIES]; /* JSON without the outer brackets */
    int layers;                                                  /* in each line; 0: no diagnostics yet */
    int64_t step_lines, layer_lines, step_stride, layer_stride;  /* lines seen; every stride-th is kept */
    int64_t damaged, bytes;                                      /* bytes: of whole lines */
} run_log;

static abar_status name_layers(run_log *log, const cJSON *list)
{
    const cJSON *layer;
    cJSON_ArrayForEach(layer, list)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(layer, "layer"));
        const double group = abar__report_member(layer, "group");
        char text[256];
        if (group > 0.0)
            snprintf(text, sizeof text, "%s [%.0f]", name ? name : "?", group);
        else
            snprintf(text, sizeof text, "%s", name ? name : "?");
        if (log->layers++) ABAR_TRY(abar__report_put(log->ctx, &log->layer_names, ","));
        ABAR_TRY(abar__json_string(log->ctx, &log->layer_names, text));
    }
    return ABAR_OK;
}

static abar_status add_layers(run_log *log, double step, const cJSON *list)
{
    const cJSON *layer;
    const int n = cJSON_GetArraySize(list);
    if (log->layer_lines++ % log->layer_stride != 0) return ABAR_OK;
    if (log->layers == 0 && n <= LAYERS_MAX) ABAR_TRY(name_layers(log, list));
    if (log->layers == 0 || n != log->layers) return ABAR_OK;
    const char *comma = log->layer_steps.length > 0 ? "," : "";
    ABAR_TRY(abar__report_put(log->ctx, &log->layer_steps, comma));
    ABAR_TRY(abar__report_real(log->ctx, &log->layer_steps, step, 9));
    for (int q = 0; q < QUANTITIES; q++) {
        const char *next = "";
        ABAR_TRY(abar__text_printf(log->ctx, &log->layer_rows[q], "%s[", comma));
        cJSON_ArrayForEach(layer, list)
        {
            ABAR_TRY(abar__report_put(log->ctx, &log->layer_rows[q], next));
            ABAR_TRY(abar__report_real(log->ctx, &log->layer_rows[q], abar__report_member(layer, quantity[q]), 4));
            next = ",";
        }
        ABAR_TRY(abar__report_put(log->ctx, &log->layer_rows[q], "]"));
    }
    return ABAR_OK;
}

static abar_status add_line(run_log *log, const char *line, size_t n)
{
    cJSON *root = NULL;
    if (abar__json_parse(log->ctx, "log.jsonl", line, n, &root) == ABAR_E_MEMORY) return ABAR_E_MEMORY;
    const double epoch = abar__report_member(root, "epoch"), step = abar__report_member(root, "step");
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(root, "layers");
    const bool counts = step >= 0.0 && step < 0x1p53;
    abar_status status = ABAR_OK;
    if (cJSON_IsObject(root) && epoch >= 1.0 && epoch < 0x1p53)
        status = add_row(log->ctx, &log->epochs, root);
    else if (!cJSON_IsObject(root) || !counts)
        log->damaged++;
    else if (cJSON_IsArray(layers))
        status = add_layers(log, step, layers);
    else if (log->step_lines++ % log->step_stride == 0)
        status = add_row(log->ctx, &log->steps, root);
    cJSON_Delete(root);
    return status;
}

static bool begins(const char *line, size_t n, const char *with)
{
    return n >= strlen(with) && memcmp(line, with, strlen(with)) == 0;
}

/* How many lines of steps and of layers there are decides how many are kept. */
static void choose_strides(run_log *log, lines l)
{
    const char *line;
    size_t n;
    int64_t steps = 0, diagnostics = 0;
    for (line_kind kind; (kind = next_line(&l, &line, &n)) == LINE_WHOLE || kind == LINE_TOO_LONG;) {
        const char *comma = kind == LINE_WHOLE && begins(line, n, "{\"step\"") ? memchr(line, ',', n) : NULL;
        if (comma && begins(comma, n - (size_t)(comma - line), ", \"layers\""))
            diagnostics++;
        else
            steps += comma != NULL;
    }
    log->step_stride = steps > STEPS_MAX ? (steps + STEPS_MAX - 1) / STEPS_MAX : 1;
    log->layer_stride = diagnostics > DIAGNOSTICS_MAX ? (diagnostics + DIAGNOSTICS_MAX - 1) / DIAGNOSTICS_MAX : 1;
}

static abar_status read_lines(run_log *log, lines l, bool growing)
{
    const char *line;
    size_t n;
    line_kind kind;
    choose_strides(log, l);
    while ((kind = next_line(&l, &line, &n)) == LINE_WHOLE || kind == LINE_TOO_LONG) {
        if (kind == LINE_TOO_LONG)
            log->damaged++;
        else if (n > 0)
            ABAR_TRY(add_line(log, line, n));
        log->bytes = l.read - (int64_t)(l.have - l.from);
    }
    if (kind == LINE_CUT && !growing) log->damaged++;
    return ABAR_OK;
}

static abar_status put_layers(run_log *log, abar__text *out)
{
    ABAR_TRY(abar__report_name(log->ctx, out, "layers"));
    if (log->layer_steps.length == 0) return abar__report_put(log->ctx, out, "null");
    ABAR_TRY(abar__text_printf(log->ctx, out, "{\"names\":[%s],\"step\":[%s]", log->layer_names.data, log->layer_steps.data));
    for (int q = 0; q < QUANTITIES; q++)
        ABAR_TRY(abar__text_printf(log->ctx, out, ",\n\"%s\":[%s]", quantity[q], log->layer_rows[q].data));
    return abar__report_put(log->ctx, out, "}");
}

static abar_status put_log(run_log *log, abar__text *out)
{
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"log_bytes", (double)log->bytes},         {"damaged_lines", (double)log->damaged},
                   {"step_lines", (double)log->step_lines},   {"step_stride", (double)log->step_stride},
                   {"layer_lines", (double)log->layer_lines}, {"layer_stride", (double)log->layer_stride}};
    ABAR_TRY(put_series(log->ctx, out, "epochs", &log->epochs));
    ABAR_TRY(put_series(log->ctx, out, "steps", &log->steps));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ABAR_TRY(abar__report_number(log->ctx, out, numbers[i].name, numbers[i].value));
    return put_layers(log, out);
}

/* For the lines of a file as long as it is now, and a line more. */
static size_t buffer_size(int fd)
{
    struct stat info;
    const bool small = fd >= 0 && fstat(fd, &info) == 0 && info.st_size < (off_t)(LINE_LENGTH_MAX - LINE_LENGTH_USUAL);
    return small ? (size_t)info.st_size + LINE_LENGTH_USUAL : LINE_LENGTH_MAX;
}

abar_status abar__report_log(abar_context *ctx, int fd, bool growing, abar__text *out, int64_t *damaged)
{
    const size_t capacity = buffer_size(fd);
    void *memory, *buffer = NULL;
    *damaged = 0;
    ABAR_TRY(abar__alloc(ctx, sizeof(run_log), &memory));
    run_log *log = memory;
    *log = (run_log){.ctx = ctx, .step_stride = 1, .layer_stride = 1};
    abar_status status = abar__alloc(ctx, capacity, &buffer);
    if (status >= 0 && fd >= 0) status = read_lines(log, (lines){.fd = fd, .buffer = buffer, .capacity = capacity}, growing);
    if (status >= 0) status = put_log(log, out);
    *damaged = log->damaged;
    free_series(ctx, &log->epochs);
    free_series(ctx, &log->steps);
    abar__text_free(ctx, &log->layer_names);
    abar__text_free(ctx, &log->layer_steps);
    for (int q = 0; q < QUANTITIES; q++) abar__text_free(ctx, &log->layer_rows[q]);
    if (buffer) abar__free(ctx, buffer, capacity);
    abar__free(ctx, memory, sizeof *log);
    return status;
}
