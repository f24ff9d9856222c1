/* abar bench: how long a training step takes, on a batch already in place, and where the time goes. */
#include "cli.h"
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_flags {
    int64_t steps, warmup_steps;
    bool profile, json;
} bench_flags;

static const abar_option own[] = {
    {.name = "steps",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(bench_flags, steps),
     .fallback = "50",
     .min = 2,
     .max = 1e6,
     .help = "steps to time"},
    {.name = "warmup-steps",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(bench_flags, warmup_steps),
     .fallback = "5",
     .min = 0,
     .max = 1e6,
     .help = "steps before them that do not count"},
    {.name = "profile",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(bench_flags, profile),
     .fallback = "false",
     .help = "time every operation of the network, too, beside what it has to move and to compute"},
    {.name = "json",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(bench_flags, json),
     .fallback = "false",
     .help = "print one JSON object"},
    {0}};

static const char *const settings[] = {
    "model",  "data",      "optim",   "batch",         "accumulate", "clip", "label-smoothing",
    "device", "precision", "threads", "deterministic", "seed",       NULL};

static void print_result(const abar_setup *setup, const abar_bench_result *r)
{
    char number[NUMBER_MAX];
    printf("%s, batch %" PRId64 ", %s, on %s\n\n", setup->train.model, setup->train.batch, setup->train.optim, r->device);
    printf("  step       %9.3f ms   (p10 %.3f, p90 %.3f, mean %.3f)\n", r->ms_median, r->ms_p10, r->ms_p90, r->ms_mean);
    printf("  forward    %9.3f ms\n  backward   %9.3f ms\n  update     %9.3f ms\n", r->ms_forward, r->ms_backward,
           r->ms_update);
    if (setup->method)
        printf("  observe    %9.3f ms   of backward\n  refresh    %9.3f ms   of update\n", r->ms_observe, r->ms_refresh);
    printf("  rate       %9s %s/s\n", print_count(number, (int64_t)r->samples_per_second),
           setup->model->text ? "tokens" : "images");
    printf("  first step %9.3f s after the command\n", r->seconds_to_first_step);
    printf("  memory     %9s at most\n", print_bytes(number, r->peak_bytes));
}

static void print_result_json(const abar_setup *setup, const abar_bench_result *r, int64_t steps, const abar_bench *bench)
{
    const struct {
        const char *key;
        double value;
    } field[] = {{"ms_median", r->ms_median},
                 {"ms_mean", r->ms_mean},
                 {"ms_p10", r->ms_p10},
                 {"ms_p90", r->ms_p90},
                 {"ms_forward", r->ms_forward},
                 {"ms_backward", r->ms_backward},
                 {"ms_update", r->ms_update},
                 {"ms_observe", r->ms_observe},
                 {"ms_refresh", r->ms_refresh},
                 {"samples_per_second", r->samples_per_second},
                 {"seconds_to_first_step", r->seconds_to_first_step}};
    printf("{\"model\": ");
    print_json_text(stdout, setup->train.model);
    printf(", \"optim\": ");
    print_json_text(stdout, setup->train.optim);
    printf(", \"batch\": %" PRId64 ", \"steps\": %" PRId64, setup->train.batch, steps);
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        printf(", \"%s\": ", field[i].key);
        print_json_number(stdout, field[i].value);
    }
    printf(", \"peak_bytes\": %zu", r->peak_bytes);
    if (abar_bench_row_count(bench) > 0) print_profile_json(bench, r);
    printf("}\n");
}

/* A step of a large net takes seconds, and is not to be disturbed by news: one line until they are over. */
static abar_status measure(cli *c, const abar_setup *setup, const bench_flags *flags, abar_bench_result *result,
                           abar_bench **out)
{
    char text[128];
    progress line;
    const abar_bench_config config = {
        .size = sizeof config, .steps = flags->steps, .warmup = flags->warmup_steps, .profile = flags->profile};
    progress_init(&line, flags->json ? stderr : stdout);
    snprintf(text, sizeof text, "timing %" PRId64 " steps of %.64s, batch %" PRId64, flags->steps + flags->warmup_steps,
             setup->train.model, setup->train.batch);
    progress_say(&line, text);
    if (line.live) c->progress = &line; /* whatever else is said takes it off first */
    abar_status status = abar_bench_run(c->ctx, setup, &config, result, out);
    progress_clear(&line);
    c->progress = NULL;
    return status;
}

static int run(cli *c)
{
    bench_flags flags;
    abar_setup *setup = NULL;
    abar_bench *bench = NULL;
    int code = flags_setup(c, &flags, &setup);
    if (!code) code = flags_check(c, setup);
    if (!code) {
        abar_bench_result result = {.size = sizeof result};
        abar_status status = measure(c, setup, &flags, &result, &bench);
        if (status < 0)
            code = cli_fail_status(c, status);
        else if (flags.json)
            print_result_json(setup, &result, flags.steps, bench);
        else
            print_result(setup, &result);
        if (!code && flags.profile && !flags.json) print_profile(bench, &result);
    }
    abar_bench_release(bench);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_bench = {
    .name = "bench",
    .summary = "time a training step, and its operations",
    .usage = "[--model NAME] [--batch N] [--flag value ...]",
    .about =
        "Times whole training steps (forward, loss, backward, update) on a batch that is already in memory, so that no data is "
        "needed; --data says of which shape. The median counts; p10 and p90 say how much to trust it.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .rule_options = true,
    .reads_no_data = true,
    .examples = "  abar bench --model resnet20 --batch 128\n"
                "  abar bench --model lenet5 --profile\n",
    .run = run,
};
