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

#define CLI_ERROR_MAX 2048

enum { EXIT_USAGE = 2, EXIT_SOME_FAILED = 3, EXIT_SIGNAL = 128 };

typedef struct command command;

/* One run of the command. */
typedef struct cli {
    const char *program; /* as the user would type it, for the commands we suggest */
    const command *command;
    abar_context *ctx;
    int argc; /* the words after the subcommand */
    char **argv;
    const char **folder;      /* of a subcommand that takes folders: flags_read collects them here, wherever they stand, ... */
    int folders, folders_max; /* ... so many, and at most so many; 0: it takes none */
    bool help, quiet;
    bool json;                 /* --json is among them: a failure is an object on stdout, too */
    struct progress *progress; /* the line being redrawn, if any: clear it before printing anything else */
    char *failure;             /* CLI_ERROR_MAX bytes: keeps what would be printed, for rank 0 to tell; NULL: it is printed */
    const char *rank_name;     /* of a rank that prints nothing but warnings of its own; NULL: another */
} cli;

/* A subcommand: a row of main.c's table, defined in its own file. */
struct command {
    const char *name, *summary;
    const char *usage;           /* what follows the name in the usage line */
    const char *about;           /* a paragraph for its help */
    const abar_option *own;      /* flags of its own, ended by a NULL name */
    bool all_settings;           /* it takes all of abar_train_options as flags, ... */
    const char *except;          /* ... this one not (NULL: all), or ... */
    const char *const *settings; /* ... these; NULL: none */
    bool model_options, rule_options;
    bool reads_no_data;     /* --data defaults to synthetic data of the model's own shape */
    const char *validation; /* default of --validation; NULL: that of the settings */
    const char *examples;   /* command lines for its help */
    int (*run)(cli *c);     /* returns the exit code */
    int (*help)(cli *c);    /* where its flags depend on its words; NULL: help_command */
};

extern const command command_analyze, command_train, command_compare, command_eval, command_sample, command_bench,
    command_models, command_data, command_optimizers, command_sweep, command_tune, command_runs, command_report, command_serve;

/* ---- errors.c: "abar: subject: reason, and what to do" on stderr, once; with --json also {"error": ..., "status": CODE} on
 * stdout --------------------------------------------------------------------------------------------------------- */

/* Prints and returns code. */
int cli_fail(const cli *c, int code, const char *format, ...) CLI_PRINTF(3, 4);
/* The line on stderr alone, for when stdout has its object already, or cannot be written. */
int cli_fail_reported(int code, const char *format, ...) CLI_PRINTF(2, 3);
/* Prints the context's error; EXIT_USAGE when the caller asked for something impossible, EXIT_FAILURE otherwise. */
int cli_fail_status(const cli *c, abar_status status);
/* The same for what came from the command line itself: a name that does not exist is wrong usage, too. */
int cli_fail_usage(const cli *c, abar_status status);
/* Flushes standard output. Returns an exit code. */
int cli_finish_output(void);
/* A log callback: warnings go to stderr, news to the progress output, if any. user: the cli. */
void cli_log(void *user, abar_log_level level, const char *text);

/* ---- flags.c -------------------------------------------------------------------------------------------------- */

/* The setups that flags are read into: one, or, for a command with an --optim of its own, one per optimizer of its list,
 * each under its label. */
typedef struct setup_list {
    int n;
    abar_setup *setup[ABAR_COMPARE_METHODS_MAX];
    char label[ABAR_COMPARE_METHODS_MAX][ABAR_COMPARE_LABEL_MAX]; /* "": there is only one */
    int64_t seeds[ABAR_COMPARE_METHODS_MAX];                      /* N of "mac:N"; 0: not given */
    bool of_all[ABAR_COMPARE_METHODS_MAX];                        /* named by "all" alone: may be left out */
} setup_list;

void setup_list_destroy(const cli *c, setup_list *list);
/* The value given last for --NAME; NULL: none. For flags that must be known before the others can be read. */
const char *flags_peek(const cli *c, const char *name);
/* All values given for --NAME, in their order; *n: how many. Returns an exit code. */
int flags_all(const cli *c, const char *name, const char **values, int max, int *n);
/* The folder of --resume; NULL: the flag is not given. Refuses an empty name, as an unset shell variable gives. Returns an exit
 * code. */
int flags_resume(const cli *c, const char **folder);
/* Refuses an empty --out. */
int flags_out(const cli *c);
bool flags_ask_help(const cli *c);
/* Whether the subcommand has --json and it is given. Needed before flags are read, since reading may fail. */
bool flags_ask_json(const cli *c);
/* Reads every flag into own (command->own) and setup (either may be NULL). resumed: the folder of a resumed
 * run, whose model, data and optimizer may be repeated but not changed; or NULL. Returns an exit code. */
int flags_read(cli *c, void *own, abar_setup *setup, const char *resumed);
/* The setups that --model, --data and --optim name, with the defaults of their recipes. In a list "all" stands for every update
 * rule, then every method (on sgd), but for names that the list has already. Returns an exit code. */
int flags_recipes(cli *c, setup_list *out);
/* flags_read for a list. A flag goes to every setup that has it, --LABEL.flag to one of them, in any order. */
int flags_read_list(cli *c, void *own, const setup_list *list, const char *resumed);
/* flags_recipes and flags_read for a single setup. Returns an exit code. */
int flags_setup(cli *c, void *own, abar_setup **out);
/* Whether the subcommand takes this row of abar_train_options as a flag. */
bool flags_listen(const cli *c, const char *setting);
/* Refuses settings that contradict each other. Returns an exit code. */
int flags_check(const cli *c, const abar_setup *setup);
int flags_check_list(const cli *c, const setup_list *list);
/* Prints the context's error about a setting and returns EXIT_USAGE. Flags are named as they were typed: --LABEL.name where the
 * library says --name. */
int flags_refuse(const cli *c, const char *label, abar_status status);
/* Whether this subcommand takes the options of this table as flags. */
bool flags_listen_to(const cli *c, const abar_setup_table *table);

/* ---- folders.c ------------------------------------------------------------------------------------------------- */

#define RUNS "runs" /* where runs go without --out */

/* Makes the first of runs/NAME, runs/NAME-2, ... that does not exist, so that two runs that start together get two folders.
 * Failures are left to the first write into the folder. */
void folder_claim(char out[ABAR_OPTION_TEXT_MAX], const char *name);
/* Removes it if it is empty. Safe in a signal handler. */
void folder_unclaim(const char *out);
/* Fails for a checkpoint that path_exists did not find; errno is still set. */
int folder_missing(const cli *c, const char *checkpoint);
/* The file of weights: the checkpoint itself, or a file in it if it is the folder of a run. Returns an exit code. */
int folder_weights(const cli *c, const char *checkpoint, char *weights, size_t size);

/* ---- checkpoint.c ----------------------------------------------------------------------------------------------- */

/* The setup of weights on disk: a run brings its own, which flags (the command's own go to flags) may still change; other files
 * need --model. Returns an exit code. */
int checkpoint_setup(cli *c, const char *checkpoint, void *flags, abar_setup **setup);

/* ---- stop.c ---------------------------------------------------------------------------------------------------- */

/* Something that runs until it is done or stopped. */
typedef struct stoppable {
    void *object;
    abar_status (*run)(void *object);
    void (*stop)(void *object); /* safe in a signal handler */
} stoppable;

/* The first Ctrl-C (or SIGTERM, or hangup) stops it, the second ends the program at once. */
abar_status stop_on_signal(const stoppable *s);
/* For the time before that: stop_wait blocks signals while a folder is made; after stop_unclaims a signal ends the program at
 * once and removes the folder if it is empty. */
void stop_wait(void);
void stop_unclaims(const char *folder);
/* 128 + the number of the signal that stopped it. */
int stop_exit_code(void);

/* ---- help.c --------------------------------------------------------------------------------------------------- */

void help_overview(const command *const *commands);
/* What --help prints: from the option tables, with the defaults of the recipe that the flags name. */
int help_command(cli *c);
/* The placeholder of a value: N, X, NAME[:DIR], cosine|step|constant; "" for a bool. */
const char *help_placeholder(const abar_option *option);
/* An option table as rows of "--flag VALUE  help [default]"; config NULL: the table's own defaults. */
void help_options(const cli *c, const abar_option *table, const void *config);

/* ---- json.c ---------------------------------------------------------------------------------------------------- */

/* Writes a JSON value to stdout, on one line. Starts as {0}. name: of the member; NULL: an element of an array, or the whole
 * value. */
typedef struct json_writer {
    char open[8]; /* open brackets */
    int depth;
    bool comma; /* before the next value */
} json_writer;

void json_begin(json_writer *j, const char *name, char bracket); /* '{' or '[' */
void json_end(json_writer *j);
void json_finish(json_writer *j);                                   /* closes all brackets and ends the line */
void json_text(json_writer *j, const char *name, const char *text); /* NULL: null */
void json_int(json_writer *j, const char *name, int64_t n);
void json_real(json_writer *j, const char *name, double x); /* NaN and infinities: null */
void json_bool(json_writer *j, const char *name, bool value);
/* Help of --json, the same for every subcommand. */
#define JSON_HELP "print one JSON object, and nothing else; after a failure, its error and exit status"

/* ---- profile.c ------------------------------------------------------------------------------------------------- */

void print_profile(const abar_bench *bench, const abar_bench_result *result);
/* Members of the result's object. */
void print_profile_json(json_writer *j, const abar_bench *bench, const abar_bench_result *result);

/* ---- table.c --------------------------------------------------------------------------------------------------- */

struct grid;
struct grid_cell;
void print_comparison(const abar_compare *compare, const struct progress *out);
/* A mean and, where there is one, its standard deviation. */
void print_spread(struct grid_cell *cell, abar_compare_spread s, int decimals, bool utf8);
void print_grid(struct grid *g, const struct progress *out);
/* verdict.c: when the target was reached, if there is one; which optimizers are told apart, if there are several seeds. */
void print_targets(const abar_compare *compare, const struct progress *out);
void print_pairs(const abar_compare *compare, const struct progress *out);
int comparison_seeds(const abar_compare *compare); /* of the method that has most */
bool comparison_is_text(const abar_compare *compare);
bool comparison_validates(const abar_compare *compare); /* its results are of a validation part */

/* ---- print.c -------------------------------------------------------------------------------------------------- */

#define NUMBER_MAX 32
#define PRINT_WIDTH 80 /* columns of text, unless the window is narrower */

/* These write into text (NUMBER_MAX bytes) and return it. */
const char *print_count(char *text, int64_t n);         /* 61,706 */
const char *print_bytes(char *text, size_t n);          /* 1.2 MiB */
const char *print_duration(char *text, double seconds); /* 0:07, 1:02:03 */
const char *print_significant(char *text, double n);    /* 3 digits: 41.2, 0.00312 */
/* Fixed decimals; 3 digits and an exponent for large numbers, as diverging trainings produce. */
const char *print_fixed(char *text, double n, int decimals);
/* A path as one word for a shell, quoted if necessary. Returns word. */
#define SHELL_WORD_MAX (4 * ABAR_OPTION_TEXT_MAX + 16)
const char *print_shell_word(char word[SHELL_WORD_MAX], const char *text);
int utf8_length(const char *text); /* bytes of the first character; 0: not valid UTF-8 */
int print_window(FILE *out);       /* columns of the terminal; 0: not a terminal, or unknown */
/* Columns for text: PRINT_WIDTH, or the window's if that is narrower. */
int print_width(FILE *out);
/* A part of a line. */
typedef struct line_part {
    char text[96];
    int rank;    /* 0: always printed; otherwise the greatest rank is left out first if the line is too long */
    bool strong; /* bold */
} line_part;
void line_part_set(line_part *part, int rank, const char *format, ...) CLI_PRINTF(3, 4);
/* Empties the parts that do not fit into width columns. Returns the columns used. */
int print_fit(line_part *parts, int n, int width);
void print_parts(FILE *out, const line_part *parts, int n, const char *bold, const char *plain);
/* Prints text, broken between words at column width. The cursor is at column indent; later lines start there. */
void print_wrapped(FILE *out, int indent, int width, const char *text);
/* The same with the cursor at another column. */
void print_wrapped_from(FILE *out, int column, int indent, int width, const char *text);
/* "label: path", on two lines if one is too short. */
void print_path(FILE *out, const char *label, const char *path);
/* An entry of a list: the text beside the name, or below it if the window is narrow. Returns the column of the text. */
int print_entry(FILE *out, int column, const char *name, const char *text);
double clock_seconds(void);

bool path_exists(const char *path);
bool path_is_folder(const char *path);
bool path_is_file(const char *path); /* neither a folder nor a device or pipe */

#endif
