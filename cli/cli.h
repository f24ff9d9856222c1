/* What the files of the command share: one run of it, its subcommands, reading flags, and printing for people and
 * programs. The command sees the library through include/abar alone. */
#ifndef ABAR_CLI_H
#define ABAR_CLI_H

#include "abar/abar.h"

#include <stdio.h>

#if defined(__GNUC__)
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_PRINTF(text, first)
#endif

enum { EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

typedef struct command command;

/* One run of the command. */
typedef struct cli {
    const char *program; /* as the user typed it, for the commands we suggest */
    const command *command;
    abar_context *ctx;
    int argc; /* the words after the subcommand */
    char **argv;
    bool help, quiet;
    struct progress *progress; /* the line being redrawn, if any: whoever prints clears it first */
} cli;

/* A subcommand: a row of main.c's table, defined in its own file. */
struct command {
    const char *name, *summary;
    const char *usage;           /* what follows the name in the usage line */
    const char *about;           /* a paragraph for its help */
    const abar_option *own;      /* flags of its own, ended by a NULL name */
    bool all_settings;           /* it listens to all of abar_train_options, or ... */
    const char *const *settings; /* ... to these, or to none: NULL */
    bool model_options, rule_options;
    bool reads_no_data;   /* defaults are those of the model's own shape, not of the set it usually meets */
    const char *examples; /* for its help: lines of "words  what they do" */
    int (*run)(cli *c);   /* returns the exit code */
    int (*help)(cli *c);  /* where its flags depend on its words; NULL: help_command */
};

extern const command command_analyze, command_train, command_compare, command_eval, command_sample, command_bench,
    command_models, command_data, command_optimizers;

/* ---- errors.c: said once, on stderr, as "abar: subject: reason, and what to do" ------------------------------- */

/* Prints and returns code. */
int cli_fail(int code, const char *format, ...) CLI_PRINTF(2, 3);
/* Prints the context's error; EXIT_USAGE when the caller asked for something impossible, EXIT_FAILURE otherwise. */
int cli_fail_status(const cli *c, abar_status status);
/* The same for what came from the command line itself: a name that does not exist is wrong usage, too. */
int cli_fail_usage(const cli *c, abar_status status);
/* 0, or an error when standard output could not take everything. */
int cli_finish_output(void);
/* A log callback: warnings go to stderr, news to whoever watches the training. user: the cli. */
void cli_log(void *user, abar_log_level level, const char *text);

/* ---- flags.c -------------------------------------------------------------------------------------------------- */

/* The setups that flags are read into: one, or, for a command with an --optim of its own, one per optimizer of its list,
 * each under its label. */
typedef struct setup_list {
    int n;
    abar_setup *setup[ABAR_COMPARE_METHODS_MAX];
    char label[ABAR_COMPARE_METHODS_MAX][ABAR_COMPARE_LABEL_MAX]; /* "": the only one */
    int64_t seeds[ABAR_COMPARE_METHODS_MAX];                      /* "mac:3"; 0: not said */
} setup_list;

void setup_list_destroy(const cli *c, setup_list *list);
/* The value given last for --NAME; NULL: none. For flags that must be known before the others can be understood. */
const char *flags_peek(const cli *c, const char *name);
/* The folder of --resume; NULL: there is no such flag. An empty one, as of a variable that is not set, is refused. Returns an
 * exit code. */
int flags_resume(const cli *c, const char **folder);
/* Refuses an --out without a name in the same way. */
int flags_out(const cli *c);
bool flags_ask_help(const cli *c);
/* The setup that --model, --data and --optim name, with its recipe and nothing else set. Returns an exit code. */
int flags_recipe(cli *c, abar_setup **out);
/* Reads every flag into own (command->own) and setup (either may be NULL). resumed: the folder of a run that goes on,
 * whose model, data and optimizer may be repeated but not changed, or NULL. Returns an exit code. */
int flags_read(cli *c, void *own, abar_setup *setup, const char *resumed);
/* The same for a list. A flag goes to every setup that knows it, --LABEL.flag to one alone, whatever their order. */
int flags_recipes(cli *c, setup_list *out);
int flags_read_list(cli *c, void *own, const setup_list *list, const char *resumed);
/* Both: the usual beginning of a subcommand. */
int flags_setup(cli *c, void *own, abar_setup **out);
/* Whether the subcommand takes this row of abar_train_options as a flag. */
bool flags_listen(const cli *c, const char *setting);
/* Whether the settings fit together. Returns an exit code. */
int flags_check(const cli *c, const abar_setup *setup);
int flags_check_list(const cli *c, const setup_list *list);
/* Prints the context's error about a setup's value and returns EXIT_USAGE. The library speaks of --name where --LABEL.name may
 * have been typed: that is said then. */
int flags_refuse(const cli *c, const char *label, abar_status status);
/* Whether this subcommand takes the options of this table as flags. */
bool flags_listen_to(const cli *c, const abar_setup_table *table);

/* ---- folders.c ------------------------------------------------------------------------------------------------- */

#define RUNS "runs" /* where runs go without --out */

/* Makes the first free one of runs/NAME, runs/NAME-2, ...: two that start at the same moment get two. Where it cannot be made,
 * whoever writes there will say why. */
void folder_claim(char out[ABAR_OPTION_TEXT_MAX], const char *name);
/* Takes it back when nothing came of it: only empty folders go. */
void folder_unclaim(const char *out);
/* The weights of a checkpoint: the file itself, or what lies in the folder of a run. Returns an exit code. */
int folder_weights(const char *checkpoint, char *weights, size_t size);

/* ---- checkpoint.c ----------------------------------------------------------------------------------------------- */

/* The setup of weights on disk: a run brings its own, which flags (the command's own go to flags) may still change; other files
 * need --model. Returns an exit code. */
int checkpoint_setup(cli *c, const char *checkpoint, void *flags, abar_setup **setup);

/* ---- stop.c ---------------------------------------------------------------------------------------------------- */

/* Something that runs until it is done or asked to stop. */
typedef struct stoppable {
    void *object;
    abar_status (*run)(void *object);
    void (*stop)(void *object); /* safe in a signal handler */
} stoppable;

/* The first Ctrl-C (or SIGTERM, or hangup) stops it, the second ends the program at once. */
abar_status stop_on_signal(const stoppable *s);
/* The exit code of a program that was asked to stop. */
int stop_exit_code(void);

/* ---- help.c --------------------------------------------------------------------------------------------------- */

void help_overview(const command *const *commands);
/* What --help prints: from the option tables, with the defaults of the recipe that the flags name. */
int help_command(cli *c);
/* What stands for a value in help: N, X, NAME[:DIR], cosine|step|constant; "" for a bool. */
const char *help_placeholder(const abar_option *option);
/* An option table as rows of "--flag VALUE  help [default]"; config NULL: the table's own defaults. */
void help_options(const cli *c, const abar_option *table, const void *config);

/* ---- profile.c ------------------------------------------------------------------------------------------------- */

void print_profile(const abar_bench *bench, const abar_bench_result *result);
/* Members of the result's object, a comma first. */
void print_profile_json(const abar_bench *bench, const abar_bench_result *result);

/* ---- table.c --------------------------------------------------------------------------------------------------- */

void print_comparison(const abar_compare *compare, const struct progress *out);
int comparison_seeds(const abar_compare *compare); /* runs of the method that has most */
bool comparison_is_text(const abar_compare *compare);

/* ---- print.c -------------------------------------------------------------------------------------------------- */

#define NUMBER_MAX 32
#define PRINT_WIDTH 80 /* of text for people, where no window says otherwise */

/* These write into text (NUMBER_MAX bytes) and return it. */
const char *print_count(char *text, int64_t n);         /* 61,706 */
const char *print_bytes(char *text, size_t n);          /* 1.2 MiB */
const char *print_duration(char *text, double seconds); /* 0:07, 1:02:03 */
const char *print_significant(char *text, double n);    /* 3 digits: 41.2, 0.00312 */
/* So many decimals; 3 digits and an exponent where a training that diverges would fill the line. */
const char *print_fixed(char *text, double n, int decimals);
/* The text as a shell takes it for one word. */
void print_shell_word(char *word, size_t size, const char *text);
void print_json_text(FILE *out, const char *text); /* "quoted" */
void print_json_number(FILE *out, double n);       /* null where JSON has no number */
int print_window(FILE *out);                       /* columns of the terminal; 0: it is none, or does not say */
/* Columns for text: PRINT_WIDTH, or those of the window where that is narrower. */
int print_width(FILE *out);
/* Words up to column width; the cursor stands at indent, where later lines start, too. */
void print_wrapped(FILE *out, int indent, int width, const char *text);
/* The same where the cursor stands at another column. */
void print_wrapped_from(FILE *out, int column, int indent, int width, const char *text);
double clock_seconds(void);

bool path_exists(const char *path);
bool path_is_folder(const char *path);

#endif
