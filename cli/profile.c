/* The profile of a bench: a row for every operation, then for every kind of operation what it took beside what it has to. */
#include "cli.h"

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

/* The kinds in the order they first come, statistics as one of them; returns how many. */
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

static void print_cost(const abar_bench_cost *c, double share, bool floors)
{
    printf(" %7.1f %%", share > 0.0 ? 100.0 * c->us / share : 0.0);
    printf(" %9.2f %9.2f", 1e-6 * c->bytes, 1e-9 * c->flops);
    if (floors) printf(" %9.1f %7.2f", c->floor_us, c->floor_us > 0.0 ? c->us / c->floor_us : 0.0);
    printf("\n");
}

static void print_heads(bool floors)
{
    printf(" %9s %9s %9s", "share", "MB", "GFLOP");
    if (floors) printf(" %9s %7s", "floor us", "ratio");
    printf("\n");
}

static void print_operations(const abar_bench *bench, double total, bool floors)
{
    int names_width = 9, kinds_width = 4; /* as wide as their headings, or as the longest below */
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        if ((int)strlen(row.name) > names_width) names_width = (int)strlen(row.name);
        if ((int)strlen(row.operation) > kinds_width) kinds_width = (int)strlen(row.operation);
    }
    const int window = print_window(stdout), rest = 4 + 22 + 30 + (floors ? 18 : 0);
    if (window > 0 && names_width + kinds_width + rest > window) kinds_width = 0; /* the table below has the kinds */
    printf("\n  %-*s %-*s %10s %11s", names_width, "operation", kinds_width, kinds_width ? "kind" : "", "forward us",
           "backward us");
    print_heads(floors);
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        if (row.phase[ABAR_BENCH_UPDATE].us > 0.0) continue;
        abar_bench_cost both = row.phase[ABAR_BENCH_FORWARD];
        add(&both, &row.phase[ABAR_BENCH_BACKWARD]);
        const char *name = row.name[0] || kinds_width ? row.name : row.operation; /* what was inserted has no name */
        printf("  %-*s %-*s %10.1f %11.1f", names_width, name, kinds_width, kinds_width ? row.operation : "",
               row.phase[ABAR_BENCH_FORWARD].us, row.phase[ABAR_BENCH_BACKWARD].us);
        print_cost(&both, total, floors);
    }
}

void print_profile(const abar_bench *bench, const abar_bench_result *result)
{
    kind kinds[KINDS_MAX];
    abar_bench_cost phases[ABAR_BENCH_PHASES] = {{0}}, total = {0};
    const int n = gather(bench, kinds, phases, &total);
    const bool floors = result->copy_rate > 0.0;
    print_operations(bench, total.us, floors);
    printf("\n  %-26s %10s", "kind, and how many", "us");
    print_heads(floors);
    for (int i = 0; i < n; i++) {
        printf("  %-22s %3d %10.1f", kinds[i].operation, kinds[i].count, kinds[i].sum.us);
        print_cost(&kinds[i].sum, total.us, floors);
    }
    printf("\n");
    for (int i = 0; i < ABAR_BENCH_PHASES; i++) {
        if (phases[i].us <= 0.0) continue;
        printf("  %-26s %10.1f", names[i], phases[i].us);
        print_cost(&phases[i], total.us, floors);
    }
    printf("  %-26s %10.1f", "together", total.us);
    print_cost(&total, total.us, floors);
    printf("  %-26s %10.1f\n", "a step as it runs", 1e3 * result->ms_median);
    if (floors)
        printf("\n  This device copies %.2f TB/s and multiplies %.0f TFLOP/s at best: the floor\n"
               "  of an operation is the longer of what its bytes and its products take.\n",
               1e-12 * result->copy_rate, 1e-12 * result->product_rate);
}

static void print_cost_json(const char *name, const abar_bench_cost *c, bool floors)
{
    const struct {
        const char *key;
        double value;
    } field[] = {{"us", c->us}, {"bytes", c->bytes}, {"flops", c->flops}, {"floor_us", c->floor_us}};
    const int fields = floors ? 4 : 3;
    printf("\"%s\": {", name);
    for (int i = 0; i < fields; i++) {
        printf("%s\"%s\": ", i ? ", " : "", field[i].key);
        print_json_number(stdout, field[i].value);
    }
    printf("}");
}

static void print_row_json(const abar_bench_row *row, bool floors)
{
    const struct {
        const char *key, *value;
    } field[] = {{"name", row->name}, {"operation", row->operation}, {"implementation", row->implementation}};
    printf("{");
    for (int i = 0; i < 3; i++) {
        printf("%s\"%s\": ", i ? ", " : "", field[i].key);
        print_json_text(stdout, field[i].value);
    }
    for (int i = 0; i < ABAR_BENCH_PHASES; i++) {
        if (row->phase[i].us <= 0.0 && row->phase[i].bytes <= 0.0) continue;
        printf(", ");
        print_cost_json(names[i], &row->phase[i], floors);
    }
    printf("}");
}

void print_profile_json(const abar_bench *bench, const abar_bench_result *result)
{
    const bool floors = result->copy_rate > 0.0;
    kind kinds[KINDS_MAX];
    abar_bench_cost phases[ABAR_BENCH_PHASES] = {{0}}, total = {0};
    const int n = gather(bench, kinds, phases, &total);
    if (floors) {
        printf(", \"copy_rate\": ");
        print_json_number(stdout, result->copy_rate);
        printf(", \"product_rate\": ");
        print_json_number(stdout, result->product_rate);
    }
    printf(", ");
    print_cost_json("profile_total", &total, floors);
    printf(", \"kinds\": {");
    for (int i = 0; i < n; i++) {
        if (i) printf(", ");
        print_cost_json(kinds[i].operation, &kinds[i].sum, floors);
    }
    printf("}, \"operations\": [");
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        if (i) printf(", ");
        print_row_json(&row, floors);
    }
    printf("]");
}
