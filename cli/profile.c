/* The profile of a bench: time, bytes and flops of every operation, of every kind of operation, and of every phase. */
#include "cli.h"
#include "grid.h"

#include <string.h>

#define KINDS_MAX 32

static const char *const names[ABAR_BENCH_PHASES] = {"forward", "backward", "statistics", "update"};

typedef struct kind {
    const char *operation;
    int count;
    abar_bench_cost sum;
} kind;

static void add(abar_bench_cost *to, const abar_bench_cost *c)
{
    to->us += c->us;
    to->bytes += c->bytes;
    to->flops += c->flops;
    to->floor_us += c->floor_us;
}

static kind *find(kind *kinds, int *n, const char *operation)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(kinds[i].operation, operation) == 0) return &kinds[i];
    if (*n == KINDS_MAX) return &kinds[*n - 1];
    kinds[*n] = (kind){.operation = operation};
    return &kinds[(*n)++];
}

/* The kinds in order of appearance, statistics as one of them. Returns their number. */
static int gather(const abar_bench *bench, kind kinds[KINDS_MAX], abar_bench_cost phases[ABAR_BENCH_PHASES],
                  abar_bench_cost *total)
{
    int n = 0;
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        const bool update = row.phase[ABAR_BENCH_UPDATE].bytes > 0.0;
        for (int k = 0; k < ABAR_BENCH_PHASES; k++) {
            const abar_bench_cost *c = &row.phase[k];
            if (k == ABAR_BENCH_STATISTICS && c->bytes <= 0.0) continue;
            add(&phases[k], c);
            add(total, c);
            kind *of = find(kinds, &n, k == ABAR_BENCH_STATISTICS ? "statistics" : row.operation);
            of->count += k == ABAR_BENCH_FORWARD ? !update : k != ABAR_BENCH_BACKWARD && c->bytes > 0.0;
            add(&of->sum, c);
        }
    }
    return n;
}

/* What the tables are made from. */
typedef struct source {
    const abar_bench *bench;
    kind kinds[KINDS_MAX];
    int n;
    abar_bench_cost phases[ABAR_BENCH_PHASES], total;
    int taken[ABAR_BENCH_PHASES], n_taken; /* phases that took time */
    double step_us;                        /* a whole step, not profiled */
    bool floors;                           /* the device's best rates are known */
} source;

/* The last columns of all tables. */
enum { SHARE, MB, GFLOP, FLOOR, RATIO, COSTS };
static const grid_column costs[COSTS] = {
    {"share", false, 0}, {"MB", false, 5}, {"GFLOP", false, 6}, {"floor us", false, 4}, {"ratio", false, 3}};

static void fill_cost(const source *s, const abar_bench_cost *c, grid_cell *cells)
{
    snprintf(cells[SHARE].text, sizeof cells->text, "%.1f %%", s->total.us > 0.0 ? 100.0 * c->us / s->total.us : 0.0);
    snprintf(cells[MB].text, sizeof cells->text, "%.2f", 1e-6 * c->bytes);
    snprintf(cells[GFLOP].text, sizeof cells->text, "%.2f", 1e-9 * c->flops);
    if (!s->floors) return;
    snprintf(cells[FLOOR].text, sizeof cells->text, "%.1f", c->floor_us);
    snprintf(cells[RATIO].text, sizeof cells->text, "%.2f", c->floor_us > 0.0 ? c->us / c->floor_us : 0.0);
}

/* leads: the columns in front of the costs. */
static void print_table(const source *s, const grid_column *leads, int n, int rows,
                        void (*fill)(const void *user, int row, grid_cell *cells))
{
    grid_column column[GRID_COLUMNS_MAX];
    memcpy(column, leads, (size_t)n * sizeof *column);
    memcpy(column + n, costs, sizeof costs);
    grid g = {.column = column, .columns = n + COSTS, .rows = rows, .fill = fill, .user = s, .indent = 2};
    grid_measure(&g, print_window(stdout));
    putchar('\n');
    grid_print(&g, stdout);
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* Rows of the net; the update follows them. */
static int operations_of(const abar_bench *bench)
{
    int n = 0;
    while (n < abar_bench_row_count(bench) && abar_bench_row_at(bench, n)->phase[ABAR_BENCH_UPDATE].us <= 0.0) n++;
    return n;
}

static void fill_operation(const void *user, int i, grid_cell *cells)
{
    const source *s = user;
    const abar_bench_row row = *abar_bench_row_at(s->bench, i);
    abar_bench_cost both = row.phase[ABAR_BENCH_FORWARD];
    add(&both, &row.phase[ABAR_BENCH_BACKWARD]);
    const char *name = row.name[0] ? row.name : row.operation; /* inserted operations have no name */
    snprintf(cells[0].text, sizeof cells->text, "%s", name);
    snprintf(cells[1].text, sizeof cells->text, "%s", row.operation);
    snprintf(cells[2].text, sizeof cells->text, "%.1f", row.phase[ABAR_BENCH_FORWARD].us);
    snprintf(cells[3].text, sizeof cells->text, "%.1f", row.phase[ABAR_BENCH_BACKWARD].us);
    fill_cost(s, &both, cells + 4);
}

/* ---- kinds and phases ------------------------------------------------------------------------------------------- */

static void fill_kind(const void *user, int i, grid_cell *cells)
{
    const source *s = user;
    snprintf(cells[0].text, sizeof cells->text, "%s", s->kinds[i].operation);
    snprintf(cells[1].text, sizeof cells->text, "%d", s->kinds[i].count);
    snprintf(cells[2].text, sizeof cells->text, "%.1f", s->kinds[i].sum.us);
    fill_cost(s, &s->kinds[i].sum, cells + 3);
}

/* The phases that took time, their sum, and a step that was not profiled. */
static void fill_phase(const void *user, int i, grid_cell *cells)
{
    const source *s = user;
    const bool phase = i < s->n_taken, sum = i == s->n_taken;
    const abar_bench_cost *c = phase ? &s->phases[s->taken[i]] : &s->total;
    snprintf(cells[0].text, sizeof cells->text, "%s", phase ? names[s->taken[i]] : sum ? "together" : "a step as it runs");
    snprintf(cells[1].text, sizeof cells->text, "%.1f", phase || sum ? c->us : s->step_us);
    if (phase || sum) fill_cost(s, c, cells + 2);
}

void print_profile(const abar_bench *bench, const abar_bench_result *result)
{
    static const grid_column operations[] = {
        {"operation", true, 0}, {"kind", true, 7}, {"forward us", false, 1}, {"backward us", false, 2}};
    static const grid_column kinds[] = {{"kind", true, 0}, {"count", false, 7}, {"us", false, 0}};
    static const grid_column phases[] = {{"phase", true, 0}, {"us", false, 0}};
    source s = {.bench = bench, .step_us = 1e3 * result->ms_median, .floors = result->copy_rate > 0.0};
    char text[256];
    s.n = gather(bench, s.kinds, s.phases, &s.total);
    for (int i = 0; i < ABAR_BENCH_PHASES; i++)
        if (s.phases[i].us > 0.0) s.taken[s.n_taken++] = i;
    print_table(&s, operations, 4, operations_of(bench), fill_operation);
    print_table(&s, kinds, 3, s.n, fill_kind);
    print_table(&s, phases, 2, s.n_taken + 2, fill_phase);
    if (!s.floors) return;
    snprintf(text, sizeof text,
             "This device copies %.2f TB/s and multiplies %.0f TFLOP/s at best: the floor of an operation is the longer of "
             "what its bytes and its products take.",
             1e-12 * result->copy_rate, 1e-12 * result->product_rate);
    printf("\n  ");
    print_wrapped(stdout, 2, print_width(stdout), text);
}

/* ---- as JSON ---------------------------------------------------------------------------------------------------- */

static void print_cost_json(json_writer *j, const char *name, const abar_bench_cost *c, bool floors)
{
    json_begin(j, name, '{');
    json_real(j, "us", c->us);
    json_real(j, "bytes", c->bytes);
    json_real(j, "flops", c->flops);
    if (floors) json_real(j, "floor_us", c->floor_us);
    json_end(j);
}

static void print_row_json(json_writer *j, const abar_bench_row *row, bool floors)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", row->name);
    json_text(j, "operation", row->operation);
    json_text(j, "implementation", row->implementation);
    for (int i = 0; i < ABAR_BENCH_PHASES; i++)
        if (row->phase[i].us > 0.0 || row->phase[i].bytes > 0.0) print_cost_json(j, names[i], &row->phase[i], floors);
    json_end(j);
}

void print_profile_json(json_writer *j, const abar_bench *bench, const abar_bench_result *result)
{
    const bool floors = result->copy_rate > 0.0;
    kind kinds[KINDS_MAX];
    abar_bench_cost phases[ABAR_BENCH_PHASES] = {{0}}, total = {0};
    const int n = gather(bench, kinds, phases, &total);
    if (floors) {
        json_real(j, "copy_rate", result->copy_rate);
        json_real(j, "product_rate", result->product_rate);
    }
    print_cost_json(j, "profile_total", &total, floors);
    json_begin(j, "kinds", '{');
    for (int i = 0; i < n; i++) print_cost_json(j, kinds[i].operation, &kinds[i].sum, floors);
    json_end(j);
    json_begin(j, "operations", '[');
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        print_row_json(j, &row, floors);
    }
    json_end(j);
}
