/* abar eval: test loss and accuracy of weights on disk, ours or PyTorch's; the logits, too, when asked. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct eval_flags {
    char checkpoint[ABAR_OPTION_TEXT_MAX], logits[ABAR_OPTION_TEXT_MAX];
    bool json;
} eval_flags;

static const abar_option own[] = {
    {.name = "checkpoint",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(eval_flags, checkpoint),
     .fallback = "",
     .help = "the folder of a run, or a safetensors file: a checkpoint, an export or PyTorch's (then say --model and --data)"},
    {.name = "logits",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(eval_flags, logits),
     .fallback = "",
     .help = "write the first N test images (or windows of a text) with their labels and logits to FILE, a safetensors file"},
    {.name = "json",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(eval_flags, json),
     .fallback = "false",
     .help = "print one JSON object"},
    {0}};

static const char *const settings[] = {"model",       "data",      "batch",   "label-smoothing", "limit-test",
                                       "device",      "precision", "threads", "workers",         "deterministic",
                                       "limit-train", "text",      NULL};

/* "100:logits.safetensors" */
static int parse_logits(const char *text, int64_t *count, const char **path)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    *count = n;
    *path = end + 1;
    if (end == text || *end != ':' || n < 1 || !end[1])
        return cli_fail(EXIT_USAGE, "--logits: %s is not N:FILE, for example 100:logits.safetensors", text);
    return EXIT_SUCCESS;
}

/* Nobody wants the weights replaced by what they make of images. */
static int check_logits(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const bool kept = strcmp(name, "state.safetensors") == 0 || strcmp(name, "model.safetensors") == 0;
    if (!kept || !path_exists(path)) return EXIT_SUCCESS;
    return cli_fail(EXIT_USAGE, "--logits: %s holds the weights of a run, choose another file", path);
}

static void print_words(const abar_setup *setup, const abar_evaluation *e)
{
    char line[4 * ABAR_OPTION_TEXT_MAX], count[NUMBER_MAX], seconds[NUMBER_MAX];
    char loss[NUMBER_MAX], perplexity[NUMBER_MAX], bits[NUMBER_MAX];
    const char *model = setup->train.model, *data = setup->train.data, *plural = e->samples == 1 ? "" : "s";
    print_count(count, e->samples);
    print_significant(seconds, e->seconds);
    print_fixed(loss, e->loss, 4);
    if (setup->model->text)
        snprintf(line, sizeof line,
                 "%s on %s: test loss %s, perplexity %s, %s bits per %s, accuracy %.2f %%, %s token%s in %s s", model, data,
                 loss, print_fixed(perplexity, e->perplexity, 3), print_fixed(bits, e->bits, 3),
                 setup->train.text == ABAR_TEXT_BYTES ? "byte" : "character", e->accuracy, count, plural, seconds);
    else
        snprintf(line, sizeof line, "%s on %s: test accuracy %.2f %%, loss %s, %s image%s in %s s", model, data, e->accuracy,
                 loss, count, plural, seconds);
    print_wrapped(stdout, 0, print_width(stdout), line);
}

/* There may be fewer than were asked for. */
static void print_logits(const abar_setup *setup, const abar_evaluation *e, int64_t count, const char *path)
{
    int64_t input[3], classes, each = 1;
    abar_model_shape(setup->model, setup->model_config, input, &classes);
    if (setup->model->text) each = input[0];
    if (count > e->samples / each) count = e->samples / each;
    printf("logits of the first %" PRId64 " test %s%s: %s\n", count, setup->model->text ? "window" : "image",
           count == 1 ? "" : "s", path);
}

static void print_evaluation(const abar_setup *setup, const char *weights, const abar_evaluation *e, bool json)
{
    if (!json) {
        print_words(setup, e);
        return;
    }
    printf("{\"model\": ");
    print_json_text(stdout, setup->train.model);
    printf(", \"data\": ");
    print_json_text(stdout, setup->train.data);
    printf(", \"checkpoint\": ");
    print_json_text(stdout, weights);
    printf(", \"test_acc\": ");
    print_json_number(stdout, e->accuracy);
    printf(", \"test_loss\": ");
    print_json_number(stdout, e->loss);
    if (setup->model->text) {
        printf(", \"test_ppl\": ");
        print_json_number(stdout, e->perplexity);
        printf(", \"test_bpc\": ");
        print_json_number(stdout, e->bits);
    }
    printf(", \"samples\": %" PRId64 ", \"seconds\": ", e->samples);
    print_json_number(stdout, e->seconds);
    printf("}\n");
}

static int evaluate(cli *c, const abar_setup *setup, const eval_flags *flags)
{
    char weights[2 * ABAR_OPTION_TEXT_MAX];
    int64_t count = 0;
    const char *path = NULL;
    int code = flags->logits[0] ? parse_logits(flags->logits, &count, &path) : EXIT_SUCCESS;
    if (!code && path) code = check_logits(path);
    if (!code) code = folder_weights(flags->checkpoint, weights, sizeof weights);
    if (code) return code;
    abar_evaluation result = {.size = sizeof result};
    abar_status status = abar_evaluate(c->ctx, setup, weights, &result);
    if (status >= 0 && path) status = abar_evaluate_logits(c->ctx, setup, weights, count, path);
    if (status < 0) return cli_fail_status(c, status);
    print_evaluation(setup, weights, &result, flags->json);
    if (path && !flags->json) print_logits(setup, &result, count, path);
    return EXIT_SUCCESS;
}

static int run(cli *c)
{
    eval_flags flags;
    abar_setup *setup = NULL;
    const char *checkpoint = flags_peek(c, "checkpoint");
    int code = checkpoint_setup(c, checkpoint ? checkpoint : "", &flags, &setup);
    if (!code && !flags.checkpoint[0])
        code = cli_fail(EXIT_USAGE, "--checkpoint: needed, the folder of a run or a safetensors file");
    if (!code) code = flags_check(c, setup);
    if (!code) code = evaluate(c, setup, &flags);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_eval = {
    .name = "eval",
    .summary = "test accuracy of a checkpoint, ours or PyTorch's",
    .usage = "--checkpoint PATH [--model NAME --data NAME] [--flag value ...]",
    .about =
        "Tests weights from disk. The folder of a run, or a file in it, brings the settings of that run; for other files say "
        "which --model they belong to and on which --data to test.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .examples = "  abar eval --checkpoint runs/lenet5-fashion-mnist-sgd-s0\n"
                "  abar eval --checkpoint lenet5.safetensors --model lenet5 --data fashion-mnist\n"
                "  abar eval --checkpoint runs/lenet5-fashion-mnist-sgd-s0 \\\n"
                "            --logits 100:logits.safetensors\n",
    .run = run,
};
