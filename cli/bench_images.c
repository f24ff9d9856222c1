#include "bench_images.h"
#include "grid.h"
#include "progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNTS_MAX 16 /* numbers of workers in one call */
#define WORKERS_MAX 256
#define BOUND 0.05 /* share of waiting above which training is bound by data */

typedef struct results {
    const abar_setup *setup;
    const bench_images_request *request;
    int n;
    int64_t workers[COUNTS_MAX];
    abar_bench_data_result data[COUNTS_MAX];
    abar_bench_result step;
    abar_bench_fed_result fed[COUNTS_MAX];
    abar_bench *bench; /* the profile, if wanted */
} results;

/* ---- the numbers of workers --------------------------------------------------------------------------------------- */

/* "1,2,4" */
static int read_workers(const cli *c, const char *text, results *out)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    out->n = 0;
    if (!text[0]) out->workers[out->n++] = cores < 1 ? 1 : cores < WORKERS_MAX ? cores : WORKERS_MAX;
    for (const char *at = text; *at;) {
        char *end;
        const long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > WORKERS_MAX || (*end && (*end != ',' || !end[1])) || out->n == COUNTS_MAX)
            return cli_fail(c, EXIT_USAGE, "--workers %s: give numbers from 1 to %d, such as 1,2,4, at most %d of them", text,
                            WORKERS_MAX, COUNTS_MAX);
        out->workers[out->n++] = n;
        at = *end ? end + 1 : end;
    }
    return EXIT_SUCCESS;
}

/* ---- measuring ---------------------------------------------------------------------------------------------------- */

static void say(progress *line, const char *what, int64_t workers)
{
    char text[128];
    snprintf(text, sizeof text, workers > 0 ? "timing %s with %" PRId64 " worker%s" : "timing %s", what, workers,
             workers == 1 ? "" : "s");
    progress_say(line, text);
}

static abar_status measure(cli *c, progress *line, results *r)
{
    const bench_images_request *q = r->request;
    abar_status status = ABAR_OK;
    for (int i = 0; i < r->n && status == ABAR_OK; i++) {
        say(line, "the loader", r->workers[i]);
        r->data[i].size = sizeof r->data[i];
        status = abar_bench_data(c->ctx, r->setup, r->workers[i], q->seconds, &r->data[i]);
    }
    if (!q->model || status < 0) return status;
    say(line, "steps on a batch in place", 0);
    r->step.size = sizeof r->step;
    const abar_bench_config config = {.size = sizeof config, .steps = q->steps, .warmup = q->warmup, .profile = q->profile};
    status = abar_bench_run(c->ctx, r->setup, &config, &r->step, &r->bench);
    for (int i = 0; i < r->n && status == ABAR_OK; i++) {
        say(line, "training", r->workers[i]);
        r->fed[i].size = sizeof r->fed[i];
        status = abar_bench_fed(c->ctx, r->setup, r->workers[i], q->steps, q->warmup, &r->fed[i]);
    }
    return status;
}

static double waiting(const abar_bench_fed_result *fed) { return fed->ms_step > 0.0 ? fed->ms_waited / fed->ms_step : 0.0; }

/* ---- for people --------------------------------------------------------------------------------------------------- */

static void fill_rate(grid_cell *cell, double rate)
{
    char number[NUMBER_MAX];
    snprintf(cell->text, sizeof cell->text, "%s", rate > 0.0 ? print_count(number, (int64_t)fmin(rate + 0.5, 1e15)) : "-");
}

static void fill_data(const void *user, int i, grid_cell *cells)
{
    const results *r = user;
    const abar_bench_data_result *d = &r->data[i];
    snprintf(cells[0].text, sizeof cells->text, "%" PRId64, d->workers);
    fill_rate(&cells[1], d->read);
    fill_rate(&cells[2], d->view);
    fill_rate(&cells[3], d->policy);
    fill_rate(&cells[4], d->loader_per_second);
    fill_rate(&cells[5], d->images_per_second);
    fill_rate(&cells[6], d->images_per_cpu_second);
}

static void print_data(const cli *c, const results *r)
{
    static const grid_column columns[] = {
        {"workers", false, 0}, {"read", false, 3},       {"decode, crop, resize", false, 1}, {"policy", false, 2},
        {"loader", false, 0},  {"normalised", false, 4}, {"normalised, per core", false, 0}};
    char text[2 * ABAR_OPTION_TEXT_MAX], images[NUMBER_MAX], policy[ABAR_OPTION_TEXT_MAX] = "";
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    const int n = abar_setup_tables(r->setup, tables);
    for (int i = 0; i < n; i++)
        if (abar_options_find(tables[i].options, "policy"))
            (void)abar_options_get(c->ctx, tables[i].options, tables[i].config, "policy", policy, sizeof policy);
    snprintf(text, sizeof text, "%s, policy %s; images per second, files in memory; the stages on %s images drawn by the seed",
             r->setup->train.data, policy, print_count(images, r->data[0].images));
    print_wrapped(stdout, 0, print_width(stdout), text);
    putchar('\n');
    grid g = {
        .column = columns, .columns = 7, .rows = r->n, .fill = fill_data, .user = r, .indent = 2, .bold = "", .plain = ""};
    grid_measure(&g, print_window(stdout));
    grid_print(&g, stdout);
    putchar('\n');
    print_wrapped(
        stdout, 0, print_width(stdout),
        "loader: images of whole batches, all stages, as the workers make them. normalised: the same with every batch "
        "normalised, erased and mixed by one more thread, as training on the CPU does; a GPU does that by itself.");
}

static void print_rate_line(const char *what, double ms, double rate)
{
    char number[NUMBER_MAX];
    printf("  %-26s ", what);
    if (ms > 0.0)
        printf("%9.3f ms", ms);
    else
        printf("%12s", "");
    printf("  %9s images/s\n", print_count(number, (int64_t)rate));
}

static void print_verdict(const results *r, int i)
{
    char text[256];
    const double share = waiting(&r->fed[i]);
    const char *plural = r->workers[i] == 1 ? "" : "s";
    if (share > BOUND)
        snprintf(text, sizeof text,
                 "With %" PRId64
                 " worker%s training is bound by data: it waits for them %.1f %% of the time. More workers, or a "
                 "smaller copy (abar data --shrink), make it faster.",
                 r->workers[i], plural, 100.0 * share);
    else
        snprintf(text, sizeof text,
                 "With %" PRId64 " worker%s training is bound by the step: it waits for data %.1f %% of the time.",
                 r->workers[i], plural, 100.0 * share);
    print_wrapped(stdout, 0, print_width(stdout), text);
}

static void print_training(const results *r)
{
    char text[4 * ABAR_OPTION_TEXT_MAX];
    snprintf(text, sizeof text, "%s, batch %" PRId64 ", %s, on %s", r->setup->train.model, r->setup->train.batch,
             r->setup->train.optim, r->step.device);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), text);
    putchar('\n');
    print_rate_line("step on a batch in place", r->step.ms_median, r->step.samples_per_second);
    for (int i = 0; i < r->n; i++) {
        snprintf(text, sizeof text, "loader, %" PRId64 " worker%s", r->workers[i], r->workers[i] == 1 ? "" : "s");
        print_rate_line(text, 0.0, r->data[i].loader_per_second);
        snprintf(text, sizeof text, "training, %" PRId64 " worker%s", r->workers[i], r->workers[i] == 1 ? "" : "s");
        print_rate_line(text, r->fed[i].ms_step, r->fed[i].samples_per_second);
    }
    putchar('\n');
    for (int i = 0; i < r->n; i++) print_verdict(r, i);
    if (!r->request->profile) return;
    print_profile(r->bench, &r->step);
    putchar('\n');
    for (int i = 0; i < r->n; i++)
        printf("  waited for data, %" PRId64 " worker%s: %.1f us of a step\n", r->workers[i], r->workers[i] == 1 ? "" : "s",
               1e3 * r->fed[i].ms_waited);
}

/* ---- for programs ------------------------------------------------------------------------------------------------- */

static void print_workers_json(json_writer *j, const results *r, int i)
{
    const abar_bench_data_result *d = &r->data[i];
    json_begin(j, NULL, '{');
    json_int(j, "workers", d->workers);
    json_real(j, "read", d->read);
    json_real(j, "view", d->view);
    json_real(j, "policy", d->policy > 0.0 ? d->policy : NAN);
    json_real(j, "images_per_second", d->images_per_second > 0.0 ? d->images_per_second : NAN);
    json_real(j, "images_per_cpu_second", d->images_per_cpu_second > 0.0 ? d->images_per_cpu_second : NAN);
    json_real(j, "loader_per_second", d->loader_per_second);
    if (r->request->model) {
        json_real(j, "ms_trained", r->fed[i].ms_step);
        json_real(j, "ms_waited", r->fed[i].ms_waited);
        json_real(j, "trained_per_second", r->fed[i].samples_per_second);
        json_text(j, "bound_by", waiting(&r->fed[i]) > BOUND ? "data" : "step");
    }
    json_end(j);
}

static void print_json(const results *r)
{
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "data", r->setup->train.data);
    json_int(&j, "batch", r->setup->train.batch);
    json_int(&j, "images", r->data[0].images);
    if (r->request->model) {
        json_text(&j, "model", r->setup->train.model);
        json_text(&j, "optim", r->setup->train.optim);
        json_text(&j, "device", r->step.device);
        json_real(&j, "ms_median", r->step.ms_median);
        json_real(&j, "samples_per_second", r->step.samples_per_second);
        if (abar_bench_row_count(r->bench) > 0) print_profile_json(&j, r->bench, &r->step);
    }
    json_begin(&j, "loader", '[');
    for (int i = 0; i < r->n; i++) print_workers_json(&j, r, i);
    json_end(&j);
    json_finish(&j);
}

int bench_images(cli *c, const abar_setup *setup, const bench_images_request *request)
{
    results r = {.setup = setup, .request = request};
    progress line;
    int code = read_workers(c, request->workers, &r);
    if (code) return code;
    progress_init(&line, request->json ? stderr : stdout);
    if (line.live) c->progress = &line;
    abar_status status = measure(c, &line, &r);
    progress_clear(&line);
    c->progress = NULL;
    if (status < 0) {
        code = cli_fail_status(c, status);
    } else if (request->json) {
        print_json(&r);
    } else {
        print_data(c, &r);
        if (request->model) print_training(&r);
    }
    abar_bench_release(r.bench);
    return code;
}
