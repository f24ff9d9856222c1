/* abar sample: writes text with a trained text model, as it is generated. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct sample_flags {
    char checkpoint[ABAR_OPTION_TEXT_MAX], prompt[ABAR_OPTION_TEXT_MAX];
    int64_t length, top_k, seed;
    double temperature;
} sample_flags;

#define AT(member) offsetof(sample_flags, member)

static const abar_option own[] = {
    {"checkpoint", ABAR_OPTION_TEXT, AT(checkpoint), "", 0, 0, NULL,
     "the folder of a run of a text model, or its state.safetensors or model.safetensors"},
    {"prompt", ABAR_OPTION_TEXT, AT(prompt), "", 0, 0, NULL, "beginning of the text; default: a new line"},
    {"length", ABAR_OPTION_INT, AT(length), "500", 0, 1e12, NULL, "characters (or bytes) to write after the prompt"},
    {"temperature", ABAR_OPTION_REAL, AT(temperature), "0.8", 0, 100, NULL,
     "of the softmax: below 1 favours likely tokens; 0: always the likeliest"},
    {"top-k", ABAR_OPTION_INT, AT(top_k), "0", 0, 65536, NULL, "sample from the N likeliest tokens only, 0: from all"},
    {"seed", ABAR_OPTION_INT, AT(seed), "0", 0, 9007199254740991.0, NULL, "seed of the random draws"},
    {0}};

static const char *const settings[] = {"device", "precision", "threads", "deterministic", NULL};

/* Flushed at once, so that the text appears as it is generated. */
static bool write_text(void *user, const char *text, size_t n)
{
    char *last = user;
    *last = text[n - 1];
    return fwrite(text, 1, n, stdout) == n && fflush(stdout) == 0;
}

/* A misspelt flag or a lone word is reported first: it may be why the checkpoint is missing. */
static int refuse_no_checkpoint(cli *c)
{
    sample_flags flags;
    abar_setup *any;
    abar_status status = abar_setup_create(c->ctx, "gpt-char", "text", "adamw", &any);
    if (status < 0) return cli_fail_status(c, status);
    int code = flags_read(c, &flags, any, NULL);
    abar_setup_destroy(c->ctx, any);
    return code ? code : cli_fail(c, EXIT_USAGE, "--checkpoint: needed, the folder of a run of a text model");
}

static int make_setup(cli *c, const char *checkpoint, abar_setup **setup)
{
    if (!checkpoint || !checkpoint[0]) return refuse_no_checkpoint(c);
    if (!path_exists(checkpoint)) return folder_missing(c, checkpoint);
    abar_status status = path_is_folder(checkpoint) ? abar_setup_load(c->ctx, checkpoint, setup)
                                                    : abar_setup_load_file(c->ctx, checkpoint, setup);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

static int sample(cli *c, const abar_setup *setup, const sample_flags *flags)
{
    char weights[2 * ABAR_OPTION_TEXT_MAX], last = '\n';
    int code = folder_weights(c, flags->checkpoint, weights, sizeof weights);
    if (code) return code;
    const abar_sample_config config = {.size = sizeof config,
                                       .prompt = flags->prompt,
                                       .length = flags->length,
                                       .temperature = flags->temperature,
                                       .top_k = flags->top_k,
                                       .seed = (uint64_t)flags->seed,
                                       .write = write_text,
                                       .user = &last};
    abar_status status = abar_sample(c->ctx, setup, weights, &config);
    if (status < 0) return cli_fail_status(c, status);
    if (status == ABAR_STOPPED) return cli_finish_output();   /* stdout could not be written */
    if (last != '\n' && isatty(STDOUT_FILENO)) putchar('\n'); /* for the shell's prompt; not into a file */
    return EXIT_SUCCESS;
}

static int run(cli *c)
{
    sample_flags flags;
    abar_setup *setup = NULL;
    int code = make_setup(c, flags_peek(c, "checkpoint"), &setup);
    if (!code) code = flags_read(c, &flags, setup, NULL);
    if (!code) code = sample(c, setup, &flags);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_sample = {
    .name = "sample",
    .summary = "write text with a trained text model",
    .usage = "--checkpoint PATH [--prompt TEXT] [--length N] [--flag value ...]",
    .about = "Continues the prompt with a text model, one token at a time. The checkpoint contains its settings and its "
             "vocabulary: the training text is not needed. The same flags write the same text.",
    .own = own,
    .settings = settings,
    .examples = "  abar sample --checkpoint runs/gpt-char-text-adamw-s0\n"
                "  abar sample --checkpoint runs/gpt-char-text-adamw-s0 --prompt ROMEO:\n",
    .run = run,
};
