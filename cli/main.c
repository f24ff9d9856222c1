/* The abar command: finds the subcommand and runs it. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a comparison
 * some of whose runs failed, 128 + N stopped by signal N. */
#include "cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const command *const commands[] = {
    &command_train,  &command_compare, &command_sweep,      &command_tune,    &command_runs,
    &command_report, &command_serve,   &command_eval,       &command_sample,  &command_bench,
    &command_models, &command_data,    &command_optimizers, &command_analyze, NULL};

static const command *find_command(const char *name)
{
    for (const command *const *row = commands; *row; row++) {
        if (strcmp((*row)->name, name) == 0) return *row;
    }
    return NULL;
}

static int unknown_command(const cli *c, const char *name)
{
    const char *names[sizeof commands / sizeof *commands + 1];
    int n = 0;
    for (const command *const *row = commands; *row; row++) names[n++] = (*row)->name;
    if (strcmp(name, "help") != 0) names[n++] = "help"; /* "abar help help" suggests no help */
    names[n] = NULL;
    const char *near = abar_nearest_name(name, names);
    if (name[0] == '-')
        return cli_fail(c, EXIT_USAGE, "%s: flags follow a command, as in abar train %s, abar help lists them", name, name);
    if (!name[0]) return cli_fail(c, EXIT_USAGE, "\"\": no such command, abar help lists them");
    if (near) return cli_fail(c, EXIT_USAGE, "%s: no such command, did you mean abar %s?", name, near);
    return cli_fail(c, EXIT_USAGE, "%s: no such command, abar help lists them", name);
}

static bool is_any(const char *word, const char *a, const char *b) { return strcmp(word, a) == 0 || strcmp(word, b) == 0; }

/* Whether a launcher has started several processes of this command, and which of them this is: of all but train each would do
 * the whole work and write the same files. */
static bool is_one_of_many(const cli *c, int *rank)
{
    static const char *const alone[] = {"sample", "analyze", NULL};
    static const char *const set[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                         {"PMI_SIZE", "PMI_RANK"},
                                         {"WORLD_SIZE", "RANK"},
                                         {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    bool listed = false;
    for (const char *const *name = alone; *name; name++) listed = listed || strcmp(*name, c->command->name) == 0;
    for (size_t i = 0; i < sizeof set / sizeof *set && listed; i++) {
        const char *size = getenv(set[i][0]), *own = getenv(set[i][1]);
        if (!size || !own || atoi(size) < 2) continue;
        *rank = atoi(own);
        return true;
    }
    return false;
}

static int run_command(cli *c)
{
    int rank;
    if (!c->help && is_one_of_many(c, &rank))
        return rank > 0 ? EXIT_USAGE
                        : cli_fail(c, EXIT_USAGE, "%s: runs in one process, start it without mpirun, srun or torchrun",
                                   c->command->name);
    abar_context_config config = {.size = sizeof config, .log = cli_log, .log_user = c};
    abar_status status = abar_context_create(&config, &c->ctx);
    if (status < 0) return cli_fail(c, EXIT_FAILURE, "memory: %s", abar_status_text(status));
    int (*help)(cli *) = c->command->help ? c->command->help : help_command;
    int code = c->help ? help(c) : c->command->run(c);
    if (code == EXIT_SUCCESS) code = cli_finish_output();
    abar_context_destroy(c->ctx);
    return code;
}

/* Otherwise the first file that is opened gets the descriptor of a closed stream, and printed text is written into it. */
static bool open_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDWR) != fd) return false;
    return true;
}

/* A waiting OpenMP thread spins for about 30 microseconds before it sleeps: as fast as libgomp's 3 milliseconds where the cores
   are idle, ten times as fast where others train on them. */
#define SPINS "3000"

/* OpenBLAS and libgomp have read their variables when main begins. Where those do not suit, the same command starts again. */
static void restart_with_settings(char **argv)
{
    const char *coretype = abar_blas_coretype();
    const bool spins = !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT");
    if ((!coretype && !spins) || getauxval(AT_BASE) == 0)
        return; /* 0: started through the dynamic loader, /proc/self/exe is not abar */
    if (coretype && setenv("OPENBLAS_CORETYPE", coretype, 1) != 0) return;
    if (spins && setenv("GOMP_SPINCOUNT", SPINS, 1) != 0) return;
    execv("/proc/self/exe", argv); /* fails: slower, but it works */
}

int main(int argc, char **argv)
{
    restart_with_settings(argv);
    if (!open_closed_streams()) return EXIT_FAILURE; /* stderr may be closed: there is no way to say so */
    signal(SIGXFSZ, SIG_IGN);                        /* so that exceeding ulimit -f is reported like a full disk */
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
    char program[SHELL_WORD_MAX];
    const bool typed = strchr(argv[0], '/') && strlen(argv[0]) < ABAR_OPTION_TEXT_MAX;
    cli c = {.program = print_shell_word(program, typed ? argv[0] : "abar"),
             .command = find_command(words[0]),
             .argc = argc - 1 - (int)(words - argv),
             .argv = words + 1,
             .help = help};
    c.help = c.help || flags_ask_help(&c);
    c.json = flags_ask_json(&c);
    return c.command ? run_command(&c) : unknown_command(&c, words[0]);
}
