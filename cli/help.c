/* Help, made from the option tables: name, value, meaning and default of every flag. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define FLAG_COLUMN 30

const char *help_placeholder(const abar_option *option)
{
    static const char *const named[][2] = {{"model", "NAME"},      {"data", "NAME[:DIR]"},  {"optim", "NAME"},
                                           {"device", "NAME"},     {"out", "DIR"},          {"resume", "DIR"},
                                           {"checkpoint", "PATH"}, {"logits", "N:FILE"},    {"jobs", "N|auto"},
                                           {"init", "FILE"},       {"val-labels", "FILE"},  {"target", "acc=X|loss=X"},
                                           {"part", "K/N"},        {"over", "NAME=VALUES"}, {"gpus", "N|all"},
                                           {"snapshot", "N,N"},    {"to", "DIR"},           {"bind", "ADDRESS"}};
    if (strcmp(option->fallback, "report.html") == 0) return "FILE"; /* --out of abar report */
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (strcmp(option->name, named[i][0]) == 0) return named[i][1];
    }
    if (option->type == ABAR_OPTION_TEXT && strcmp(option->name, "classes") == 0) return "FILE"; /* of models: a number */
    if (option->type == ABAR_OPTION_TEXT && strcmp(option->name, "workers") == 0) return "N,N";  /* elsewhere a number */
    if (option->type == ABAR_OPTION_TEXT && strcmp(option->name, "layers") == 0) return "NAME";  /* likewise */
    switch (option->type) {
    case ABAR_OPTION_INT: return "N";
    case ABAR_OPTION_REAL: return "X";
    case ABAR_OPTION_BOOL: return "";
    case ABAR_OPTION_CHOICE: return option->choices;
    case ABAR_OPTION_TEXT: return "TEXT";
    }
    return "";
}

static bool is_on(const char *value) { return strcmp(value, "true") == 0 || strcmp(value, "1") == 0; }

/* Appends what a flag takes: beside it, or below it in lines that end after a | where it is too long. */
static void append_takes(char *left, size_t size, const char *takes)
{
    const int width = print_width(stdout), indent = 4;
    size_t at = strlen(left);
    if ((int)(at + 1 + strlen(takes)) <= width) {
        snprintf(left + at, size - at, "%s%s", takes[0] ? " " : "", takes);
        return;
    }
    int column = width; /* of the line so far: none */
    for (const char *word = takes; *word && at + 1 < size;) {
        const size_t n = strcspn(word, "|"), end = n + (word[n] == '|');
        const bool breaks = column + (int)end > width;
        at += (size_t)snprintf(left + at, size - at, "%s%.*s", breaks ? "\n    " : "", (int)end, word);
        column = (breaks ? indent : column) + (int)end;
        word += end;
    }
}

static void print_option(const cli *c, const abar_option *table, const abar_option *row, const void *config)
{
    char left[128], value[ABAR_OPTION_TEXT_MAX], text[2 * ABAR_OPTION_TEXT_MAX];
    const char *takes = help_placeholder(row);
    snprintf(value, sizeof value, "%s", row->fallback ? row->fallback : "");
    if (config) abar_options_get(c->ctx, table, config, row->name, value, sizeof value);
    const bool negatable = row->type == ABAR_OPTION_BOOL && (config || is_on(value)); /* a flag that is off is just set */
    if (row->type == ABAR_OPTION_BOOL) snprintf(value, sizeof value, "%s", negatable ? is_on(value) ? "on" : "off" : "");
    snprintf(left, sizeof left, "  --%s%s", negatable ? "[no-]" : "", row->name);
    append_takes(left, sizeof left, takes);
    snprintf(text, sizeof text, "%s%s%s%s", row->help, value[0] ? " [" : "", value, value[0] ? "]" : "");
    print_entry(stdout, FLAG_COLUMN, left, text);
}

void help_options(const cli *c, const abar_option *table, const void *config)
{
    for (const abar_option *row = table; row && row->name; row++) print_option(c, table, row, config);
}

static void help_settings(const cli *c, const abar_setup *setup)
{
    for (const abar_option *row = abar_train_options(); row->name; row++) {
        if (flags_listen(c, row->name)) print_option(c, abar_train_options(), row, &setup->train);
    }
}

/* Of a command that takes the settings of a run: its defaults are in the folder of the run. */
static void help_run_settings(const cli *c)
{
    if (!c->command->settings) return;
    printf("\nSettings, in place of the run's own:\n");
    for (const abar_option *row = abar_train_options(); row->name; row++) {
        abar_option bare = *row;
        bare.fallback = "";
        if (flags_listen(c, row->name)) print_option(c, abar_train_options(), &bare, NULL);
    }
}

static bool is_seen(const abar_option *const *seen, int n, const abar_option *table)
{
    for (int i = 0; i < n; i++)
        if (seen[i] == table) return true;
    return false;
}

/* Whether a later table has an option of the same name, which abar_setup_set then finds first: --classes of image folders. */
static bool is_hidden(const abar_setup_table *tables, int n, int i, const char *name)
{
    for (int k = i + 1; k < n; k++)
        if (abar_options_find(tables[k].options, name)) return true;
    return false;
}

/* Every table once: optimizers may share one. */
static void help_tables(const cli *c, const setup_list *list)
{
    const abar_option *seen[ABAR_COMPARE_METHODS_MAX * ABAR_SETUP_TABLES_MAX];
    const abar_train_config *first = &list->setup[0]->train;
    int n_seen = 0;
    char text[4 * ABAR_OPTION_TEXT_MAX];
    snprintf(text, sizeof text, "Settings [defaults of %s on %s with %s]:", first->model, first->data, first->optim);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), text);
    help_settings(c, list->setup[0]);
    for (int k = 0; k < list->n; k++) {
        abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
        int n = abar_setup_tables(list->setup[k], tables);
        for (int i = 1; i < n; i++) {
            if (!flags_listen_to(c, &tables[i]) || !tables[i].options->name || is_seen(seen, n_seen, tables[i].options))
                continue;
            seen[n_seen++] = tables[i].options;
            printf("\nOf %s:\n", tables[i].owner);
            for (const abar_option *row = tables[i].options; row->name; row++)
                if (!is_hidden(tables, n, i, row->name)) print_option(c, tables[i].options, row, tables[i].config);
        }
    }
}

int help_command(cli *c)
{
    setup_list list = {0};
    if (flags_listen(c, "model")) {
        int code = flags_recipes(c, &list);
        if (code) return code;
    }
    const int lead = printf("usage: abar %s", c->command->name);
    if (c->command->usage[0]) putchar(' ');
    print_wrapped_from(stdout, lead + 1, lead + 1, print_width(stdout), c->command->usage);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), c->command->about);
    if (c->command->own->name) printf("\nFlags:\n");
    help_options(c, c->command->own, NULL);
    if (list.n > 0)
        help_tables(c, &list);
    else
        help_run_settings(c);
    if (c->command->examples) printf("\nExamples:\n%s", c->command->examples);
    setup_list_destroy(c, &list);
    return cli_finish_output();
}

void help_overview(const command *const *commands)
{
    static const char *const start[][2] = {
        {"  abar train", "LeNet-5 on Fashion-MNIST: about a minute"},
        {"  abar data", "which data sets are on this machine"},
        {"  abar train --model resnet20 --data cifar10:DIR", "ResNet-20; DIR: the binary version of CIFAR-10"},
        {"  abar train --model gpt-char --data text:FILE", "a small GPT on the characters of a text"},
        {"  abar sample --checkpoint DIR", "what it writes then"}};
    const int width = print_width(stdout);
    char text[128];
    snprintf(text, sizeof text, "abar %s trains neural networks, from one command and one C library.", abar_version());
    print_wrapped(stdout, 0, width, text);
    printf("\nusage: abar COMMAND [--flag value ...]\n\n");
    for (; *commands; commands++) {
        snprintf(text, sizeof text, "  %s", (*commands)->name);
        print_entry(stdout, 15, text, (*commands)->summary);
    }
    print_entry(stdout, 15, "  help", "this page; abar COMMAND --help for one of them");
    printf("\nStart here:\n");
    for (size_t i = 0; i < sizeof start / sizeof *start; i++) print_entry(stdout, 34, start[i][0], start[i][1]);
    putchar('\n');
    print_wrapped(stdout, 0, width, "abar train --model NAME --optim NAME --help shows the settings of these two.");
}
