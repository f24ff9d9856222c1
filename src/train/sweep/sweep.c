/* A sweep: its cells, an optimizer with a value of every setting that varies, and what sweep.json has beyond a comparison's:
 *
 *     "config": {"axes": [{"name": "lr", "log": true}], "optimizers": ["sgd", "mac"], "grid": true,
 *                "cells": [{"optimizer": 0, "axis": -1, "values": ["0.1"]}, ...], ...} */
#include "base/json.h"
#include "train/sweep/sweep_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- memory --------------------------------------------------------------------------------------------------------- */

abar_status abar__sweep_alloc(abar_context *ctx, abar__sweep *s, int cells)
{
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)cells * sizeof *s->cell, &memory));
    s->cell = memory;
    s->cells = cells;
    return ABAR_OK;
}

void abar__sweep_free(abar_context *ctx, abar__sweep *s)
{
    if (!s) return;
    if (s->cell) abar__free(ctx, s->cell, (size_t)s->cells * sizeof *s->cell);
    if (s->test) abar__free(ctx, s->test, (size_t)s->runs * sizeof *s->test);
    abar__free(ctx, s, sizeof *s);
}

static abar_status make_tests(abar_compare *c)
{
    abar__sweep *s = abar__sweep_of(c);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, (size_t)c->runs * sizeof *s->test, &memory));
    s->test = memory;
    s->runs = c->runs;
    for (int i = 0; i < c->runs; i++) s->test[i] = (abar__sweep_test){NAN, NAN};
    return ABAR_OK;
}

/* ---- labels --------------------------------------------------------------------------------------------------------- */

/* Appends text to a label: letters that a file name may not have become _. */
static void append(char *label, const char *text)
{
    static const char letters[] = ".=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    size_t n = strlen(label);
    for (; *text && n + 12 < ABAR_LABEL_MAX; text++) label[n++] = strchr(letters, *text) ? *text : '_';
    label[n] = '\0';
}

/* "mac-lr=0.1-damping=0.3" */
static void write_label(const abar__sweep *s, int cell, char label[ABAR_LABEL_MAX])
{
    const abar__sweep_cell *at = &s->cell[cell];
    snprintf(label, ABAR_LABEL_MAX, "%s", s->optimizer[at->optimizer]);
    for (int a = 0; a < s->axes; a++) {
        if (!at->value[a][0] || (at->axis >= 0 && at->axis != a)) continue;
        append(label, "-");
        append(label, s->axis[a].name);
        append(label, "=");
        append(label, at->value[a]);
    }
}

/* Labels of all cells; what two cells would share gets the number of the cell. */
static void write_labels(const abar__sweep *s, char (*label)[ABAR_LABEL_MAX])
{
    for (int i = 0; i < s->cells; i++) {
        write_label(s, i, label[i]);
        for (int k = 0; k < i; k++) {
            if (strcmp(label[k], label[i]) != 0) continue;
            const size_t n = strlen(label[i]);
            snprintf(label[i] + n, ABAR_LABEL_MAX - n, "_%d", i);
            break;
        }
    }
}

/* ---- creating -------------------------------------------------------------------------------------------------------- */

abar_status abar__sweep_read_values(abar_context *ctx, const abar__sweep *s, const abar_setup *setup, abar__sweep_cell *cell)
{
    for (int a = 0; a < s->axes; a++) {
        const void *config;
        char text[ABAR_OPTION_TEXT_MAX];
        const abar_option *option = abar__setup_option(setup, s->axis[a].name, &config);
        cell->value[a][0] = '\0';
        if (!option) continue;
        ABAR_TRY(abar_options_get(ctx, option, config, option->name, text, sizeof text));
        snprintf(cell->value[a], ABAR_VALUE_MAX, "%.*s", ABAR_VALUE_MAX - 1, text[0] ? text : "none");
    }
    return ABAR_OK;
}

static abar_status fill(abar_compare *c, const abar_compare_config *config)
{
    const abar__sweep *s = abar__sweep_of(c);
    const size_t bytes = (size_t)s->cells * ABAR_LABEL_MAX, pointers = (size_t)s->cells * sizeof(char *);
    void *labels = NULL, *list = NULL;
    abar_status status = abar__alloc(c->ctx, bytes, &labels);
    if (status >= 0) status = abar__alloc(c->ctx, pointers, &list);
    if (status >= 0) {
        char(*label)[ABAR_LABEL_MAX] = labels;
        const char **pointer = list;
        abar_compare_config filled = *config;
        write_labels(s, label);
        for (int i = 0; i < s->cells; i++) pointer[i] = label[i];
        for (int a = 0; a < s->axes; a++) abar__compare_allow(c, s->axis[a].name);
        filled.labels = pointer;
        filled.methods = s->cells;
        status = abar__compare_fill(c, &filled);
    }
    if (status >= 0) status = make_tests(c);
    if (list) abar__free(c->ctx, list, pointers);
    if (labels) abar__free(c->ctx, labels, bytes);
    return status;
}

abar_status abar__sweep_make(abar_context *ctx, const abar_compare_config *config, abar__sweep *sweep,
                             const abar_compare_events *events, abar_compare **out)
{
    abar_status status = abar__compare_make(ctx, &abar__sweep_kind, events, out);
    if (status < 0) {
        abar__sweep_free(ctx, sweep);
        return status;
    }
    (*out)->own = sweep;
    return abar__compare_finish(fill(*out, config), out);
}

/* What a sweep is made from. */
typedef struct plan {
    abar_context *ctx;
    const abar_sweep_config *config;
    const char *label[ABAR_COMPARE_METHODS_MAX];
    abar__space *space; /* n_over */
    abar__sweep *sweep;
    abar_setup **setup; /* one per cell */
    int cells;          /* that have been made */
} plan;

/* The space of an axis for an optimizer; NULL: it does not vary there. */
static const abar__space *space_of(const plan *p, int optimizer, int axis)
{
    const char *name = p->sweep->axis[axis].name;
    const int i = abar__space_for(p->space, p->config->n_over, p->label[optimizer], name);
    return i >= 0 && abar__setup_option(p->config->setups[optimizer], name, NULL) ? &p->space[i] : NULL;
}

/* Adds a cell; chosen[a]: which value of axis a, -1: as the setup has it. p->setup NULL: it is only counted. */
static abar_status add_cell(plan *p, int optimizer, int only, const int *chosen)
{
    const int i = p->cells++;
    if (!p->setup) return ABAR_OK;
    ABAR_TRY(abar__setup_copy(p->ctx, p->config->setups[optimizer], &p->setup[i]));
    for (int a = 0; a < p->sweep->axes; a++)
        if (chosen[a] >= 0)
            ABAR_TRY(abar_setup_set(p->ctx, p->setup[i], p->sweep->axis[a].name, space_of(p, optimizer, a)->value[chosen[a]]));
    p->sweep->cell[i] = (abar__sweep_cell){.optimizer = optimizer, .axis = only};
    return abar__sweep_read_values(p->ctx, p->sweep, p->setup[i], &p->sweep->cell[i]);
}

/* All combinations, the first axis slowest. */
static abar_status add_grid(plan *p, int optimizer)
{
    int chosen[ABAR_SWEEP_AXES_MAX];
    for (int a = 0; a < p->sweep->axes; a++) chosen[a] = space_of(p, optimizer, a) ? 0 : -1;
    for (int a = 0; a >= 0;) {
        if (p->cells == ABAR_SWEEP_CELLS_MAX)
            return abar__fail(p->ctx, ABAR_E_ARGUMENT, "--over: more than %d combinations are too many, give fewer values",
                              ABAR_SWEEP_CELLS_MAX);
        ABAR_TRY(add_cell(p, optimizer, -1, chosen));
        for (a = p->sweep->axes - 1; a >= 0; a--) {
            const abar__space *space = space_of(p, optimizer, a);
            if (space && ++chosen[a] < space->values) break;
            if (space) chosen[a] = 0;
        }
    }
    return ABAR_OK;
}

/* Each axis by itself; an optimizer that varies in none has one cell. */
static abar_status add_each(plan *p, int optimizer)
{
    int chosen[ABAR_SWEEP_AXES_MAX];
    const int before = p->cells;
    for (int a = 0; a < ABAR_SWEEP_AXES_MAX; a++) chosen[a] = -1;
    for (int a = 0; a < p->sweep->axes; a++) {
        const abar__space *space = space_of(p, optimizer, a);
        for (int v = 0; space && v < space->values; v++) {
            chosen[a] = v;
            ABAR_TRY(add_cell(p, optimizer, a, chosen));
        }
        chosen[a] = -1;
    }
    return p->cells == before ? add_cell(p, optimizer, -1, chosen) : ABAR_OK;
}

static abar_status add_cells(plan *p)
{
    p->cells = 0;
    for (int o = 0; o < p->config->optimizers; o++) ABAR_TRY(p->config->one_at_a_time ? add_each(p, o) : add_grid(p, o));
    return ABAR_OK;
}

static abar_status plan_cells(plan *p)
{
    void *memory;
    const abar__subjects of = {p->config->setups, p->label, p->config->optimizers};
    ABAR_TRY(abar__spaces_read(p->ctx, p->config->over, p->config->n_over, &of, false, p->space));
    ABAR_TRY(abar__spaces_axes(p->ctx, p->space, p->config->n_over, p->sweep->axis, &p->sweep->axes));
    p->sweep->optimizers = p->config->optimizers;
    p->sweep->grid = !p->config->one_at_a_time;
    for (int o = 0; o < p->config->optimizers; o++)
        snprintf(p->sweep->optimizer[o], sizeof p->sweep->optimizer[o], "%s", p->label[o]);
    ABAR_TRY(add_cells(p)); /* counts */
    const int cells = p->cells;
    ABAR_TRY(abar__sweep_alloc(p->ctx, p->sweep, cells));
    ABAR_TRY(abar__alloc(p->ctx, (size_t)cells * sizeof *p->setup, &memory));
    p->setup = memory;
    return add_cells(p);
}

static abar_status check_config(abar_context *ctx, const abar_sweep_config *config)
{
    if (config->optimizers < 1 || config->optimizers > ABAR_COMPARE_METHODS_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "sweep: %d optimizers, give 1 to %d", config->optimizers,
                          ABAR_COMPARE_METHODS_MAX);
    if (config->n_over < 1)
        return abar__fail(
            ctx, ABAR_E_ARGUMENT,
            "--over: says what varies, give NAME=VALUES, as in --over lr=0.03,0.1,0.3 or --over damping=0.01:1:5log");
    if (config->n_over > ABAR_SWEEP_AXES_MAX * ABAR_COMPARE_METHODS_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--over: %d are too many", config->n_over);
    return ABAR_OK;
}

static abar_status make_from_plan(plan *p, const abar_compare_events *events, abar_compare **out)
{
    void *memory;
    const size_t spaces = (size_t)p->config->n_over * sizeof *p->space;
    ABAR_TRY(abar__alloc(p->ctx, sizeof *p->sweep, &memory));
    p->sweep = memory;
    abar_status status = abar__alloc(p->ctx, spaces, &memory);
    if (status >= 0) {
        p->space = memory;
        status = plan_cells(p);
    }
    const abar_compare_config config = {
        .size = sizeof config, .out = p->config->out, .setups = (const abar_setup *const *)p->setup, .seeds = p->config->seeds};
    const int cells = p->sweep->cells;
    if (status >= 0)
        status = abar__sweep_make(p->ctx, &config, p->sweep, events, out);
    else
        abar__sweep_free(p->ctx, p->sweep);
    for (int i = 0; p->setup && i < cells; i++) abar_setup_destroy(p->ctx, p->setup[i]);
    if (p->setup) abar__free(p->ctx, p->setup, (size_t)cells * sizeof *p->setup);
    if (p->space) abar__free(p->ctx, p->space, spaces);
    return status;
}

abar_status abar_sweep_create(abar_context *ctx, const abar_sweep_config *config, const abar_compare_events *events,
                              abar_compare **out)
{
    abar_sweep_config known;
    plan p = {.ctx = ctx, .config = &known};
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_sweep_config", config, &known, sizeof known));
    ABAR_TRY(check_config(ctx, &known));
    for (int o = 0; o < known.optimizers; o++) {
        p.label[o] = known.labels ? known.labels[o] : known.setups[o]->train.optim;
        if (strlen(p.label[o]) >= ABAR_COMPARE_LABEL_MAX)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "%.40s: too long for a label, use at most %d letters", p.label[o],
                              ABAR_COMPARE_LABEL_MAX - 1);
        for (int k = 0; k < o; k++)
            if (strcmp(p.label[k], p.label[o]) == 0)
                return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: is swept twice, give two labels as in a=%s,b=%s", p.label[o],
                                  p.label[o], p.label[o]);
    }
    return make_from_plan(&p, events, out);
}

abar_status abar_sweep_load(abar_context *ctx, const char *dir, int64_t seeds, const abar_compare_events *events,
                            abar_compare **out)
{
    ABAR_TRY(abar__compare_make(ctx, &abar__sweep_kind, events, out));
    abar_status status = abar__compare_fill_from_folder(*out, dir, seeds);
    if (status >= 0) status = make_tests(*out);
    if (status >= 0) status = abar__sweep_tests_load(*out);
    return abar__compare_finish(status, out);
}

abar_status abar__sweep_parse(abar_context *ctx, const char *label, const char *json, size_t n, abar_compare **out)
{
    ABAR_TRY(abar__compare_make(ctx, &abar__sweep_kind, NULL, out));
    abar_status status = abar__compare_fill_from_text(*out, label, json, n);
    if (status >= 0) status = make_tests(*out);
    return abar__compare_finish(status, out);
}

/* ---- sweep.json ------------------------------------------------------------------------------------------------------ */

static abar_status write_cell(const abar_compare *c, const abar__sweep_cell *cell, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"optimizer\": %d, \"axis\": %d, \"values\": [", cell->optimizer, cell->axis));
    for (int a = 0; a < s->axes; a++) {
        if (a > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(abar__json_string(c->ctx, out, cell->value[a]));
    }
    return abar__text_append(c->ctx, out, "]}", 2);
}

static abar_status write_config(const abar_compare *c, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    ABAR_TRY(abar__text_printf(c->ctx, out, "\"grid\": %s, \"untested\": %s, \"axes\": [", s->grid ? "true" : "false",
                               s->untested ? "true" : "false"));
    for (int a = 0; a < s->axes; a++)
        ABAR_TRY(abar__text_printf(c->ctx, out, "%s{\"name\": \"%s\", \"log\": %s}", a ? ", " : "", s->axis[a].name,
                                   s->axis[a].logarithmic ? "true" : "false"));
    ABAR_TRY(abar__text_printf(c->ctx, out, "], \"optimizers\": ["));
    for (int o = 0; o < s->optimizers; o++)
        ABAR_TRY(abar__text_printf(c->ctx, out, "%s\"%s\"", o ? ", " : "", s->optimizer[o]));
    ABAR_TRY(abar__text_printf(c->ctx, out, "], \"cells\": ["));
    for (int i = 0; i < s->cells; i++) {
        if (i > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(write_cell(c, &s->cell[i], out));
    }
    return abar__text_append(c->ctx, out, "], ", 3);
}

static abar_status damaged(const abar_compare *c, const char *path, const char *what)
{
    return abar__fail(c->ctx, ABAR_E_FORMAT, "%s: \"%s\" is missing or wrong, the file is damaged", path, what);
}

static bool copy_name(const cJSON *item, char *to, size_t size)
{
    const char *text = cJSON_GetStringValue(item);
    static const char letters[] = ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-";
    if (!text || strlen(text) >= size || text[strspn(text, letters)]) return false;
    memcpy(to, text, strlen(text) + 1);
    return true;
}

static bool read_cell(const abar__sweep *s, const cJSON *item, abar__sweep_cell *cell)
{
    const cJSON *values = cJSON_GetObjectItemCaseSensitive(item, "values");
    const double optimizer = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "optimizer"));
    const double axis = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "axis"));
    if (!(optimizer >= 0.0 && optimizer < s->optimizers) || !(axis >= -1.0 && axis < s->axes)) return false;
    if (!cJSON_IsArray(values) || cJSON_GetArraySize(values) != s->axes) return false;
    cell->optimizer = (int)optimizer;
    cell->axis = (int)axis;
    const cJSON *value = values->child;
    for (int a = 0; a < s->axes; a++, value = value->next) {
        const char *text = cJSON_GetStringValue(value);
        if (!text || strlen(text) >= ABAR_VALUE_MAX) return false;
        memcpy(cell->value[a], text, strlen(text) + 1);
    }
    return true;
}

/* Names are written without escapes. */
static bool read_names(abar__sweep *s, const cJSON *axes, const cJSON *optimizers)
{
    const cJSON *item;
    const int n = cJSON_IsArray(axes) ? cJSON_GetArraySize(axes) : 0;
    const int m = cJSON_IsArray(optimizers) ? cJSON_GetArraySize(optimizers) : 0;
    if (n < 1 || n > ABAR_SWEEP_AXES_MAX || m < 1 || m > ABAR_COMPARE_METHODS_MAX) return false;
    cJSON_ArrayForEach(item, axes)
    {
        abar__sweep_axis *axis = &s->axis[s->axes++];
        axis->logarithmic = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "log"));
        if (!copy_name(cJSON_GetObjectItemCaseSensitive(item, "name"), axis->name, sizeof axis->name)) return false;
    }
    cJSON_ArrayForEach(item,
                       optimizers) if (!copy_name(item, s->optimizer[s->optimizers++], ABAR_COMPARE_LABEL_MAX)) return false;
    return true;
}

static abar_status read_config(abar_compare *c, const char *path, const cJSON *config)
{
    const cJSON *cells = cJSON_GetObjectItemCaseSensitive(config, "cells");
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, sizeof(abar__sweep), &memory));
    abar__sweep *s = c->own = memory;
    s->grid = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "grid"));
    s->untested = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "untested"));
    if (!read_names(s, cJSON_GetObjectItemCaseSensitive(config, "axes"),
                    cJSON_GetObjectItemCaseSensitive(config, "optimizers")))
        return damaged(c, path, "axes\" or \"optimizers");
    if (!cJSON_IsArray(cells) || cJSON_GetArraySize(cells) != c->methods) return damaged(c, path, "cells");
    ABAR_TRY(abar__sweep_alloc(c->ctx, s, c->methods));
    const cJSON *item = cells->child;
    for (int i = 0; i < s->cells; i++, item = item->next)
        if (!read_cell(s, item, &s->cell[i])) return damaged(c, path, "cells");
    return ABAR_OK;
}

static void destroy(abar_compare *c) { abar__sweep_free(c->ctx, abar__sweep_of(c)); }

const abar__compare_kind abar__sweep_kind = {
    .stem = "sweep",
    .noun = "sweep",
    .methods_max = ABAR_SWEEP_CELLS_MAX,
    .label_max = ABAR_LABEL_MAX,
    .files = (const abar__compare_file[]){{"sweep.csv", abar__sweep_csv_write}, {"sweep.svg", abar__sweep_svg_write}, {0}},
    .write_config = write_config,
    .read_config = read_config,
    .write_results = abar__sweep_best_write,
    .finish = abar__sweep_test_best,
    .destroy = destroy,
};

/* ---- reading --------------------------------------------------------------------------------------------------------- */

int abar_sweep_axis_count(const abar_compare *c) { return abar__sweep_of(c)->axes; }
const char *abar_sweep_axis_name(const abar_compare *c, int axis) { return abar__sweep_of(c)->axis[axis].name; }
int abar_sweep_optimizer_count(const abar_compare *c) { return abar__sweep_of(c)->optimizers; }
const char *abar_sweep_optimizer_name(const abar_compare *c, int o) { return abar__sweep_of(c)->optimizer[o]; }
int abar_sweep_cell_optimizer(const abar_compare *c, int cell) { return abar__sweep_of(c)->cell[cell].optimizer; }
int abar_sweep_cell_axis(const abar_compare *c, int cell) { return abar__sweep_of(c)->cell[cell].axis; }
const char *abar_sweep_cell_value(const abar_compare *c, int cell, int axis)
{
    return abar__sweep_of(c)->cell[cell].value[axis];
}
