/* The abar command: finds the subcommand and hands over to it. Exit codes: 0 done, 1 failed, 2 wrong usage. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const command *const commands[] = {
    &command_train,  &command_compare, &command_eval,       &command_sample,  &command_bench,
    &command_models, &command_data,    &command_optimizers, &command_analyze, NULL};

static const command *find_command(const char *name)
{
    for (const command *const *row = commands; *row; row++) {
        if (strcmp((*row)->name, name) == 0) return *row;
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[sizeof commands / sizeof *commands + 1];
    int n = 0;
    for (const command *const *row = commands; *row; row++) names[n++] = (*row)->name;
    if (strcmp(name, "help") != 0) names[n++] = "help"; /* "abar help help": it is not one that has help */
    names[n] = NULL;
    const char *near = abar_nearest_name(name, names);
    if (near) return cli_fail(EXIT_USAGE, "%s: no such command, did you mean abar %s?", name, near);
    return cli_fail(EXIT_USAGE, "%s: no such command, abar help lists them", name);
}

static bool is_any(const char *word, const char *a, const char *b) { return strcmp(word, a) == 0 || strcmp(word, b) == 0; }

static int run_command(cli *c)
{
    abar_context_config config = {.size = sizeof config, .log = cli_log, .log_user = c};
    abar_status status = abar_context_create(&config, &c->ctx);
    if (status < 0) return cli_fail(EXIT_FAILURE, "memory: %s", abar_status_text(status));
    int (*help)(cli *) = c->command->help ? c->command->help : help_command;
    int code = c->help ? help(c) : c->command->run(c);
    if (code == EXIT_SUCCESS) code = cli_finish_output();
    abar_context_destroy(c->ctx);
    return code;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit (ulimit -f) is an error like a full disk, and told like one */
    bool help = argc > 1 && (strcmp(argv[1], "help") == 0 || is_any(argv[1], "--help", "-h"));
    if (argc < 2 || (help && argc == 2)) {
        help_overview(commands);
        return cli_finish_output();
    }
    if (is_any(argv[1], "--version", "-V")) {
        printf("abar %s\n", abar_version());
        return cli_finish_output();
    }
    char **words = argv + (help ? 2 : 1); /* "abar help train" is "abar train --help" */
    cli c = {.program = strchr(argv[0], '/') ? argv[0] : "abar",
             .command = find_command(words[0]),
             .argc = argc - 1 - (int)(words - argv),
             .argv = words + 1,
             .help = help};
    c.help = c.help || flags_ask_help(&c);
    return c.command ? run_command(&c) : unknown_command(words[0]);
}
