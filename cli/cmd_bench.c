/* abar bench: times a training step on a batch that is already in memory, and its parts; of a folder of images also how fast
 * its files become batches. */
#include "bench_images.h"
#include "images.h"
#include "progress.h"
#include "ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_flags {
    int64_t steps, warmup_steps;
    char workers[ABAR_OPTION_TEXT_MAX];
    double seconds;
    bool profile, json;
    int64_t ranks;
    double timeout;
} bench_flags;

#define AT(member) offsetof(bench_flags, member)

static const abar_option own[] = {
    {"steps", ABAR_OPTION_INT, AT(steps), "50", 2, 1e6, NULL, "steps to time"},
    {"warmup-steps", ABAR_OPTION_INT, AT(warmup_steps), "5", 0, 1e6, NULL, "steps before them that are not timed"},
    {"workers", ABAR_OPTION_TEXT, AT(workers), "", 0, 0, NULL,
     "of image folders: loader threads, such as 1,2,4; not given: one per core"},
    {"seconds", ABAR_OPTION_REAL, AT(seconds), "5", 0.1, 3600, NULL, "of image folders: how long the loader is timed"},
    {"profile", ABAR_OPTION_BOOL, AT(profile), "false", 0, 0, NULL,
     "also time every operation, with the bytes it moves and the flops it computes"},
    RANKS_ROWS(AT(ranks), AT(timeout)),
    {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
    {0}};

static const char *const settings[] = {"model",   "data",   "optim",     "batch",   "accumulate",    "clip", "label-smoothing",
                                       "augment", "device", "precision", "threads", "deterministic", "seed", "limit-train",
                                       "micro",   "reduce", "transport", NULL};

/* Beside the step's time: what several ranks add to it, and what they save. */
static void print_ranks(const abar_bench_result *r, int width)
{
    char text[160], sent[NUMBER_MAX];
    const double times = r->ms_alone / r->ms_median;
    printf("  exchange   %9.3f ms   ", r->ms_exchange);
    snprintf(text, sizeof text, "(waiting for the slowest rank: %.3f; rank 0 sends %s)", r->ms_waiting,
             print_bytes(sent, (size_t)r->bytes_per_step));
    print_wrapped_from(stdout, 28, width < 64 ? 13 : 28, width, text);
    printf("  one rank   %9.3f ms   ", r->ms_alone);
    snprintf(text, sizeof text, "(%" PRId64 " ranks are %.2f times as fast: %.0f %% each)", r->ranks, times,
             100.0 * times / (double)r->ranks);
    print_wrapped_from(stdout, 28, width < 64 ? 13 : 28, width, text);
}

static void print_result(const abar_comm *comm, const abar_setup *setup, const abar_bench_result *r)
{
    char number[NUMBER_MAX];
    char text[4 * ABAR_OPTION_TEXT_MAX];
    const int width = print_width(stdout);
    snprintf(text, sizeof text, "%s, batch %" PRId64 ", %s, on %s", setup->train.model, setup->train.batch, setup->train.optim,
             r->device);
    print_wrapped(stdout, 0, width, text);
    ranks_announce(comm, &setup->train, 0, stdout, width);
    printf("\n  step       %9.3f ms   ", r->ms_median);
    snprintf(text, sizeof text, "(p10 %.3f, p90 %.3f, mean %.3f)", r->ms_p10, r->ms_p90, r->ms_mean);
    print_wrapped_from(stdout, 28, width < 64 ? 13 : 28, width, text);
    const bool in_parts = r->ms_forward > 0.0; /* not of steps with further passes, or of micro-batches, on a GPU */
    if (in_parts)
        printf("  forward    %9.3f ms\n  backward   %9.3f ms\n  update     %9.3f ms\n", r->ms_forward, r->ms_backward,
               r->ms_update);
    if (in_parts && setup->method)
        printf("  observe    %9.3f ms   of backward\n  refresh    %9.3f ms   of update\n", r->ms_observe, r->ms_refresh);
    if (r->ranks > 1) print_ranks(r, width);
    printf("  rate       %9s %s/s\n", print_count(number, (int64_t)r->samples_per_second),
           setup->model->text ? "tokens" : "images");
    printf("  first step %9.3f s    after start\n", r->seconds_to_first_step);
    printf("  memory     %9s at most\n", print_bytes(number, r->peak_bytes));
}

static void print_ranks_json(json_writer *j, const abar_bench_result *r)
{
    const double times = r->ms_alone / r->ms_median;
    json_int(j, "ranks", r->ranks);
    json_real(j, "ms_exchange", r->ms_exchange);
    json_real(j, "ms_waiting", r->ms_waiting);
    json_real(j, "bytes_per_step", r->bytes_per_step);
    json_real(j, "ms_alone", r->ms_alone);
    json_real(j, "samples_per_second_alone", r->samples_per_second_alone);
    json_real(j, "speedup", times);
    json_real(j, "efficiency", times / (double)r->ranks);
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
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "model", setup->train.model);
    json_text(&j, "optim", setup->train.optim);
    json_text(&j, "device", r->device);
    json_int(&j, "batch", setup->train.batch);
    json_int(&j, "steps", steps);
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) json_real(&j, field[i].key, field[i].value);
    json_int(&j, "peak_bytes", (int64_t)r->peak_bytes);
    if (r->ranks > 1) print_ranks_json(&j, r);
    if (abar_bench_row_count(bench) > 0) print_profile_json(&j, bench, r);
    json_finish(&j);
}

/* Printing would disturb the timing, and steps of a large net take seconds: one line stands until they are done. */
static abar_status measure(cli *c, abar_comm *comm, const abar_setup *setup, const bench_flags *flags,
                           abar_bench_result *result, abar_bench **out)
{
    char text[128];
    progress line;
    const abar_bench_config config = {
        .size = sizeof config, .steps = flags->steps, .warmup = flags->warmup_steps, .profile = flags->profile};
    progress_init(&line, abar_comm_rank(comm) > 0 ? NULL : flags->json ? stderr : stdout);
    snprintf(text, sizeof text, "timing %" PRId64 " steps of %.64s, batch %" PRId64, flags->steps + flags->warmup_steps,
             setup->train.model, setup->train.batch);
    progress_say(&line, text);
    if (line.live) c->progress = &line; /* so that warnings clear it first */
    abar_status status = abar_bench_run_on(c->ctx, comm, setup, &config, result, out);
    progress_clear(&line);
    c->progress = NULL;
    return status;
}

static int run_on_images(cli *c, const abar_setup *setup, const bench_flags *flags)
{
    const bench_images_request request = {.workers = flags->workers,
                                          .seconds = flags->seconds,
                                          .steps = flags->steps,
                                          .warmup = flags->warmup_steps,
                                          .model = flags_peek(c, "model"),
                                          .profile = flags->profile,
                                          .json = flags->json};
    if (request.profile && !request.model)
        return cli_fail(c, EXIT_USAGE, "--profile: is of a model's operations, give --model NAME, too");
    return bench_images(c, setup, &request);
}

/* The batch of a recipe may be larger than a small folder. Rates of a smaller one are as good, unless the user asks for one. */
static void fit_batch(const cli *c, abar_setup *setup)
{
    abar_train_config *train = &setup->train;
    abar_dataset_probe probe = {.size = sizeof probe};
    if (flags_peek(c, "batch") || train->accumulate > 1) return;
    if (abar_dataset_probe_name(c->ctx, train->data, &probe) < 0 || !probe.info.streamed) return;
    const int64_t limit = train->limit_train, images = probe.info.train;
    const int64_t used = limit > 0 && limit < images ? limit : images;
    while (used > 0 && train->batch > used) train->batch /= 2;
}

static int bench(cli *c, abar_comm *comm, const abar_setup *setup, const bench_flags *flags)
{
    abar_bench *made = NULL;
    abar_bench_result result = {.size = sizeof result};
    const abar_status status = measure(c, comm, setup, flags, &result, &made);
    const int code = status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
    if (status == ABAR_E_PEER) ranks_tell_for_first(c, comm);
    if (!code && abar_comm_rank(comm) == 0 && flags->json) print_result_json(setup, &result, flags->steps, made);
    if (!code && abar_comm_rank(comm) == 0 && !flags->json) {
        print_result(comm, setup, &result);
        if (flags->profile) print_profile(made, &result);
    }
    abar_bench_release(made);
    return code;
}

/* What is timed in one process alone, and whether the flags suit what is timed. */
static int check(const cli *c, const abar_comm *comm, const abar_setup *setup, const bench_flags *flags, bool images)
{
    if (images && abar_comm_size(comm) > 1)
        return cli_fail(c, EXIT_USAGE, "--data %s: files are read by one process here, start it without ranks",
                        setup->train.data);
    if (!images && (flags->workers[0] || flags_peek(c, "seconds")))
        return cli_fail(c, EXIT_USAGE, "--%s: is for folders of images, give --data imagefolder:DIR or leave it out",
                        flags->workers[0] ? "workers" : "seconds");
    return EXIT_SUCCESS;
}

static int run_rank(cli *c, abar_comm *comm)
{
    bench_flags flags;
    abar_setup *setup = NULL;
    int code = flags_setup(c, &flags, &setup);
    if (!code) fit_batch(c, setup);
    if (!code) code = flags_check(c, setup);
    const bool images = !code && images_named(c, setup->train.data, NULL);
    if (!code) code = check(c, comm, setup, &flags, images);
    code = ranks_agree(c, comm, code);
    if (!code) code = images ? run_on_images(c, setup, &flags) : bench(c, comm, setup, &flags);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

static int run(cli *c) { return ranks_run(c, 0, run_rank); }

const command command_bench = {
    .name = "bench",
    .summary = "time a training step, and its operations",
    .usage = "[--model NAME] [--batch N] [--flag value ...]",
    .about =
        "Times whole training steps (forward, loss, backward, update) on made-up numbers in memory: no data set is read, "
        "--data "
        "only sets the shape. The main result is the median; p10 and p90 show how much steps vary. For a folder of images it "
        "times how fast its files become batches, and with --model whether training waits for them.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .rule_options = true,
    .reads_no_data = true,
    .examples = "  abar bench --model resnet20 --batch 128\n"
                "  abar bench --model lenet5 --profile\n"
                "  abar bench --model resnet20 --ranks 4\n"
                "  abar bench --data imagefolder:DIR --workers 1,2,4\n"
                "  abar bench --data imagefolder:DIR --model resnet50\n",
    .run = run,
};
