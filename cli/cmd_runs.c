/* abar runs: what is in a folder of runs, and how far each is. */
#include "cli.h"
#include "grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct runs_flags {
    bool all, json;
} runs_flags;

static const abar_option own[] = {{"all", ABAR_OPTION_BOOL, offsetof(runs_flags, all), "false", 0, 0, NULL,
                                   "also the runs of comparisons, sweeps and tunings"},
                                  {"json", ABAR_OPTION_BOOL, offsetof(runs_flags, json), "false", 0, 0, NULL, JSON_HELP},
                                  {0}};

enum { PATH, KIND, MODEL, DATA, OPTIM, EPOCHS, RESULT, STATE, COLUMNS };

typedef struct row {
    grid_cell cell[COLUMNS];
} row;

typedef struct list {
    row *rows;
    int n, capacity, running, damaged;
    bool out_of_memory;
    json_writer *json; /* NULL: a table is made */
    char *problems;    /* "path: why" of what is damaged, a line each */
} list;

static const char *const kinds[] = {"run", "comparison", "sweep", "tuning"};
static const char *const states[] = {"running", "finished", "stopped", "damaged"};

static void write_json(json_writer *j, const abar_run_info *info)
{
    const bool run = info->kind == ABAR_KIND_RUN;
    json_begin(j, NULL, '{');
    json_text(j, "path", info->path);
    json_text(j, "kind", kinds[info->kind]);
    json_text(j, "state", states[info->condition]);
    json_text(j, "problem", info->problem);
    json_text(j, "model", info->model);
    json_text(j, "data", info->data);
    json_text(j, "optim", info->optim);
    if (run) json_int(j, "epochs_done", info->epochs);
    json_int(j, "epochs", info->epochs_wanted);
    if (!run) json_int(j, "runs_done", info->runs);
    if (!run) json_int(j, "runs", info->runs_wanted);
    if (!run) json_int(j, "failures", info->failures);
    json_text(j, "part", info->validation ? "validation" : "test");
    json_real(j, "acc", info->accuracy);
    json_real(j, "loss", info->loss);
    json_bool(j, "inside", info->inside);
    json_end(j);
}

/* Folders may have any name: what would control the terminal becomes ?. */
static void tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

static void fill(row *r, const abar_run_info *info)
{
    char number[NUMBER_MAX];
    const bool run = info->kind == ABAR_KIND_RUN;
    const double result = info->text ? info->loss : info->accuracy;
    snprintf(r->cell[PATH].text, GRID_TEXT_MAX, "%s%s", info->inside ? "  " : "", info->path);
    snprintf(r->cell[KIND].text, GRID_TEXT_MAX, "%s", kinds[info->kind]);
    snprintf(r->cell[MODEL].text, GRID_TEXT_MAX, "%s", info->model);
    snprintf(r->cell[DATA].text, GRID_TEXT_MAX, "%.*s", (int)strcspn(info->data, ":"), info->data);
    const bool fits = strlen(info->optim) <= 40; /* the list of a comparison may be long */
    snprintf(r->cell[OPTIM].text, GRID_TEXT_MAX, "%.*s%s", fits ? 40 : 37, info->optim, fits ? "" : "...");
    if (run)
        snprintf(r->cell[EPOCHS].text, GRID_TEXT_MAX, "%" PRId64 "/%" PRId64, info->epochs, info->epochs_wanted);
    else if (info->runs_wanted > 0)
        snprintf(r->cell[EPOCHS].text, GRID_TEXT_MAX, "%d/%d runs", info->runs, info->runs_wanted);
    if (!isnan(result))
        snprintf(r->cell[RESULT].text, GRID_TEXT_MAX, "%s%s%s", info->validation ? "v " : "",
                 print_fixed(number, result, info->text ? 4 : 2), info->text ? "" : " %");
    snprintf(r->cell[STATE].text, GRID_TEXT_MAX, "%s%s", states[info->condition],
             run && info->problem && info->condition != ABAR_RUN_DAMAGED ? ", failed" : "");
    for (int i = 0; i < COLUMNS; i++) tame(r->cell[i].text);
}

/* Appends "path: why". */
static void add_problem(list *l, const abar_run_info *info)
{
    const size_t before = l->problems ? strlen(l->problems) : 0, more = strlen(info->path) + strlen(info->problem) + 4;
    char *grown = realloc(l->problems, before + more);
    if (!grown) {
        l->out_of_memory = true;
        return;
    }
    l->problems = grown;
    /* texts of the library name the file themselves */
    if (strncmp(info->problem, info->path, strlen(info->path)) == 0)
        snprintf(grown + before, more, "%s", info->problem);
    else
        snprintf(grown + before, more, "%s/%s", info->path, info->problem);
    tame(grown + before);
    strcat(grown + before, "\n");
}

static bool add(void *user, const abar_run_info *info)
{
    list *l = user;
    l->running += info->condition == ABAR_RUN_RUNNING;
    l->damaged += info->condition == ABAR_RUN_DAMAGED;
    if (l->json) {
        write_json(l->json, info);
        l->n++;
        return true;
    }
    if (l->n == l->capacity) {
        row *grown = realloc(l->rows, (size_t)(2 * l->capacity + 16) * sizeof *grown);
        if (!grown) {
            l->out_of_memory = true;
            return false;
        }
        l->rows = grown;
        l->capacity = 2 * l->capacity + 16;
    }
    memset(&l->rows[l->n], 0, sizeof *l->rows);
    fill(&l->rows[l->n++], info);
    if (info->condition == ABAR_RUN_DAMAGED && info->problem) add_problem(l, info);
    return !l->out_of_memory;
}

static void fill_row(const void *user, int i, grid_cell *cells)
{
    memcpy(cells, ((const list *)user)->rows[i].cell, sizeof((row *)0)->cell);
}

static void print_table(const list *l)
{
    static const grid_column column[COLUMNS] = {{"folder", true, 0},  {"", true, 4},      {"model", true, 3},
                                                {"data", true, 5},    {"optim", true, 1}, {"epochs", false, 2},
                                                {"result", false, 0}, {"state", true, 0}};
    grid g = {.column = column,
              .columns = COLUMNS,
              .rows = l->n,
              .fill = fill_row,
              .user = l,
              .list = OPTIM,
              .bold = "",
              .plain = ""};
    grid_measure(&g, print_window(stdout));
    grid_print(&g, stdout);
    if (l->problems) printf("\n%s", l->problems);
}

static int run(cli *c)
{
    runs_flags flags = {0};
    const char *dir = RUNS;
    json_writer j = {0};
    list l = {0};
    c->folder = &dir;
    c->folders_max = 1;
    int code = flags_read(c, &flags, NULL, NULL);
    if (code) return code;
    if (!path_exists(dir) && strcmp(dir, RUNS) == 0)
        return cli_fail(c, EXIT_FAILURE, RUNS ": no such folder here, give the one that has the runs, as in abar runs DIR");
    if (!path_is_folder(dir))
        return cli_fail(c, EXIT_USAGE, "%s: %s, give a folder", dir[0] ? dir : "\"\"",
                        path_exists(dir) ? "is a file" : "no such folder");
    if (flags.json) {
        l.json = &j;
        json_begin(&j, NULL, '{');
        json_begin(&j, "runs", '[');
    }
    abar_status status = abar_runs_visit(c->ctx, dir, flags.all, add, &l);
    if (flags.json && status < 0) { /* the object has begun: it ends with the error */
        json_end(&j);
        json_text(&j, "error", abar_context_error(c->ctx));
        json_int(&j, "status", EXIT_FAILURE);
    }
    if (flags.json) json_finish(&j);
    if (status >= 0 && !l.out_of_memory && !flags.json && l.n > 0) print_table(&l);
    if (status >= 0 && !flags.json && l.n == 0) printf("no runs in %s\n", dir);
    free(l.rows);
    free(l.problems);
    if (l.out_of_memory) return cli_fail(c, EXIT_FAILURE, "memory: could not get any more, list a smaller folder");
    return status < 0 ? cli_fail_reported(EXIT_FAILURE, "%s", abar_context_error(c->ctx)) : EXIT_SUCCESS;
}

const command command_runs = {
    .name = "runs",
    .summary = "list runs, comparisons and sweeps in a folder",
    .usage = "[DIR] [--all]",
    .about = "Lists the runs, comparisons, sweeps and tunings in a folder and below it (" RUNS
             "/ if none is given): model, data, optimizer, epochs, the last accuracy (of texts the loss; v: of the validation "
             "part), of comparisons the best, and the state: running, finished, stopped (it can be resumed) or damaged.",
    .own = own,
    .examples = "  abar runs\n"
                "  abar runs /data/experiments --all\n"
                "  abar runs --json\n",
    .run = run,
};
