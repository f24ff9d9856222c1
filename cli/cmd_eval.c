/* abar eval: test (or validation) loss and accuracy of weights on disk, abar's or PyTorch's; optionally their logits. */
#include "ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct eval_flags {
    char checkpoint[ABAR_OPTION_TEXT_MAX], logits[ABAR_OPTION_TEXT_MAX];
    int64_t split;
    bool json;
    int64_t ranks;
    double timeout;
} eval_flags;

enum { SPLIT_TEST, SPLIT_VALIDATION };

#define AT(member) offsetof(eval_flags, member)

static const abar_option own[] = {
    {"checkpoint", ABAR_OPTION_TEXT, AT(checkpoint), "", 0, 0, NULL,
     "the folder of a run, or a safetensors file: a checkpoint, an export, or PyTorch's (with --model and --data)"},
    {"split", ABAR_OPTION_CHOICE, AT(split), "test", 0, 0, "test|validation",
     "part of the data set; validation: what the run held out by --validation"},
    {"logits", ABAR_OPTION_TEXT, AT(logits), "", 0, 0, NULL,
     "write the first N of these images (or windows of a text) with labels and logits to FILE, a safetensors file"},
    RANKS_ROWS(AT(ranks), AT(timeout)),
    {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
    {0}};

static const char *const settings[] = {"model",       "data",      "batch",   "label-smoothing", "limit-test",
                                       "device",      "precision", "threads", "workers",         "deterministic",
                                       "limit-train", "text",      NULL};

/* "100:logits.safetensors" */
static int parse_logits(const cli *c, const char *text, int64_t *count, const char **path)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    *count = n;
    *path = end + 1;
    if (end == text || *end != ':' || n < 1 || !end[1])
        return cli_fail(c, EXIT_USAGE, "--logits: %s is not N:FILE, for example 100:logits.safetensors", text);
    return EXIT_SUCCESS;
}

/* An existing file is replaced: refuses files of a run or comparison, devices and pipes. */
static int check_logits(const cli *c, const char *path)
{
    static const char *const kept[] = {"state.safetensors", "model.safetensors", "config.json", "log.jsonl",  "report.json",
                                       "compare.json",      "compare.csv",       "compare.svg", "compare.md", NULL};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!path_exists(path)) return EXIT_SUCCESS;
    if (!path_is_folder(path) && !path_is_file(path))
        return cli_fail(c, EXIT_USAGE, "--logits: %s is not a plain file, choose another", path);
    for (int i = 0; kept[i]; i++)
        if (strcmp(name, kept[i]) == 0)
            return cli_fail(c, EXIT_USAGE, "--logits: %s belongs to a run or comparison, choose another file", path);
    return EXIT_SUCCESS;
}

static const char *part_of(const abar_setup *setup) { return setup->train.validation > 0.0 ? "validation" : "test"; }

static void print_words(const abar_setup *setup, const abar_evaluation *e)
{
    char line[4 * ABAR_OPTION_TEXT_MAX], count[NUMBER_MAX], seconds[NUMBER_MAX];
    char loss[NUMBER_MAX], perplexity[NUMBER_MAX], bits[NUMBER_MAX];
    const char *model = setup->train.model, *data = setup->train.data, *plural = e->samples == 1 ? "" : "s";
    const char *part = part_of(setup);
    print_count(count, e->samples);
    print_significant(seconds, e->seconds);
    print_fixed(loss, e->loss, 4);
    if (setup->model->text)
        snprintf(line, sizeof line, "%s on %s: %s loss %s, perplexity %s, %s bits per %s, accuracy %.2f %%, %s token%s in %s s",
                 model, data, part, loss, print_fixed(perplexity, e->perplexity, 3), print_fixed(bits, e->bits, 3),
                 setup->train.text == ABAR_TEXT_BYTES ? "byte" : "character", e->accuracy, count, plural, seconds);
    else
        snprintf(line, sizeof line, "%s on %s: %s accuracy %.2f %%, loss %s, %s image%s in %s s", model, data, part,
                 e->accuracy, loss, count, plural, seconds);
    print_wrapped(stdout, 0, print_width(stdout), line);
}

/* There may be fewer samples than requested. */
static void print_logits(const abar_setup *setup, const abar_evaluation *e, int64_t count, const char *path)
{
    int64_t input[3], classes, each = 1;
    abar_model_shape(setup->model, setup->model_config, input, &classes);
    if (setup->model->text) each = input[0];
    if (count > e->samples / each) count = e->samples / each;
    char label[64];
    snprintf(label, sizeof label, "logits of the first %" PRId64 " %s %s%s", count, part_of(setup),
             setup->model->text ? "window" : "image", count == 1 ? "" : "s");
    print_path(stdout, label, path);
}

static void print_evaluation(const abar_setup *setup, const char *weights, const abar_evaluation *e, bool json)
{
    if (!json) {
        print_words(setup, e);
        return;
    }
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "model", setup->train.model);
    json_text(&j, "data", setup->train.data);
    json_text(&j, "checkpoint", weights);
    const bool validation = setup->train.validation > 0.0;
    json_real(&j, validation ? "validation_acc" : "test_acc", e->accuracy);
    json_real(&j, validation ? "validation_loss" : "test_loss", e->loss);
    if (setup->model->text) {
        json_real(&j, validation ? "validation_ppl" : "test_ppl", e->perplexity);
        json_real(&j, validation ? "validation_bpc" : "test_bpc", e->bits);
    }
    json_int(&j, "samples", e->samples);
    json_real(&j, "seconds", e->seconds);
    json_finish(&j);
}

/* Where weights are, and where logits go. */
typedef struct places {
    char weights[2 * ABAR_OPTION_TEXT_MAX];
    int64_t count; /* of logits; path NULL: none */
    const char *path;
} places;

static int find_places(cli *c, const eval_flags *flags, places *p)
{
    int code = flags->logits[0] ? parse_logits(c, flags->logits, &p->count, &p->path) : EXIT_SUCCESS;
    if (!code && p->path) code = check_logits(c, p->path);
    return code ? code : folder_weights(c, flags->checkpoint, p->weights, sizeof p->weights);
}

/* Rank 0 alone writes logits. */
static int evaluate(cli *c, abar_comm *comm, const abar_setup *setup, const eval_flags *flags, const places *p)
{
    const bool first = abar_comm_rank(comm) == 0;
    abar_evaluation result = {.size = sizeof result};
    abar_status status = abar_evaluate_on(c->ctx, comm, setup, p->weights, &result);
    if (status == ABAR_E_PEER) {
        const int code = cli_fail_status(c, status);
        ranks_tell_for_first(c, comm);
        return code;
    }
    if (status >= 0 && p->path && first) status = abar_evaluate_logits(c->ctx, setup, p->weights, p->count, p->path);
    if (status < 0) return cli_fail_status(c, status);
    if (first) print_evaluation(setup, p->weights, &result, flags->json);
    if (first && p->path && !flags->json) print_logits(setup, &result, p->count, p->path);
    return EXIT_SUCCESS;
}

/* The validation part is that of the run. */
static int choose_split(const cli *c, abar_setup *setup, const eval_flags *flags)
{
    if (flags->split == SPLIT_VALIDATION && setup->train.validation == 0.0)
        return cli_fail(c, EXIT_USAGE, "--split validation: %s does not belong to a run with --validation, leave it out",
                        flags->checkpoint);
    if (flags->split == SPLIT_VALIDATION && flags_peek(c, "limit-train"))
        return cli_fail(c, EXIT_USAGE, "--limit-train: would change what the run held out, leave it out");
    if (flags->split == SPLIT_TEST) {
        setup->train.validation = 0.0;
        setup->train.validation_seed = 0;
    }
    return EXIT_SUCCESS;
}

static int run_rank(cli *c, abar_comm *comm)
{
    places p = {0};
    eval_flags flags;
    abar_setup *setup = NULL;
    const char *checkpoint = flags_peek(c, "checkpoint");
    int code = checkpoint_setup(c, checkpoint ? checkpoint : "", &flags, &setup);
    if (!code && !flags.checkpoint[0])
        code = cli_fail(c, EXIT_USAGE, "--checkpoint: needed, the folder of a run or a safetensors file");
    if (!code) code = choose_split(c, setup, &flags);
    if (!code) code = flags_check(c, setup);
    if (!code) code = find_places(c, &flags, &p);
    code = ranks_agree(c, comm, code);
    if (!code) code = evaluate(c, comm, setup, &flags, &p);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

static int run(cli *c) { return ranks_run(c, 0, run_rank); }

const command command_eval = {
    .name = "eval",
    .summary = "test accuracy of a checkpoint, ours or PyTorch's",
    .usage = "--checkpoint PATH [--model NAME --data NAME] [--flag value ...]",
    .about =
        "Tests weights from disk. For the folder of a run, or a file in it, the settings are those of the run; for other files "
        "give --model and --data. A run with --validation is measured on the test set, too, unless --split says otherwise.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .examples = "  abar eval --checkpoint runs/lenet5-fashion-mnist-sgd-s0\n"
                "  abar eval --checkpoint lenet5.safetensors --model lenet5 --data fashion-mnist\n"
                "  abar eval --checkpoint runs/lenet5-fashion-mnist-sgd-s0 \\\n"
                "      --logits 100:logits.safetensors\n",
    .run = run,
};
