/* Help, made from the tables: what a flag is called, what it takes, what it does, what it is when left out. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define FLAG_COLUMN 30

const char *help_placeholder(const abar_option *option)
{
    static const char *const named[][2] = {
        {"model", "NAME"}, {"data", "NAME[:DIR]"}, {"optim", "NAME"},    {"device", "NAME"}, {"out", "DIR"},
        {"resume", "DIR"}, {"checkpoint", "PATH"}, {"logits", "N:FILE"}, {"jobs", "N|auto"}, {"init", "FILE"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (strcmp(option->name, named[i][0]) == 0) return named[i][1];
    }
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

static void print_option(const cli *c, const abar_option *table, const abar_option *row, const void *config)
{
    char left[128], value[ABAR_OPTION_TEXT_MAX], text[2 * ABAR_OPTION_TEXT_MAX];
    const char *takes = help_placeholder(row);
    snprintf(value, sizeof value, "%s", row->fallback ? row->fallback : "");
    if (config) abar_options_get(c->ctx, table, config, row->name, value, sizeof value);
    if (row->type == ABAR_OPTION_BOOL) snprintf(value, sizeof value, "%s", config ? is_on(value) ? "on" : "off" : "");

    bool negatable = row->type == ABAR_OPTION_BOOL && config;
    snprintf(left, sizeof left, "  --%s%s%s%s", negatable ? "[no-]" : "", row->name, takes[0] ? " " : "", takes);
    printf("%-*s", FLAG_COLUMN, left);
    if ((int)strlen(left) >= FLAG_COLUMN) printf("\n%*s", FLAG_COLUMN, "");
    snprintf(text, sizeof text, "%s%s%s%s", row->help, value[0] ? " [" : "", value, value[0] ? "]" : "");
    print_wrapped(stdout, FLAG_COLUMN, print_width(stdout), text);
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

/* Of a command that reads them from a run: what they are when left out is in its folder. */
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

/* Every table once, though several optimizers may share it. */
static void help_tables(const cli *c, const setup_list *list)
{
    const abar_option *seen[ABAR_COMPARE_METHODS_MAX * ABAR_SETUP_TABLES_MAX];
    const abar_train_config *first = &list->setup[0]->train;
    int n_seen = 0;
    printf("\nSettings [defaults of %s on %s with %s]:\n", first->model, first->data, first->optim);
    help_settings(c, list->setup[0]);
    for (int k = 0; k < list->n; k++) {
        abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
        int n = abar_setup_tables(list->setup[k], tables);
        for (int i = 1; i < n; i++) {
            if (!flags_listen_to(c, &tables[i]) || !tables[i].options->name || is_seen(seen, n_seen, tables[i].options))
                continue;
            seen[n_seen++] = tables[i].options;
            printf("\nOf %s:\n", tables[i].owner);
            help_options(c, tables[i].options, tables[i].config);
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
    printf("abar %s trains neural networks, from one command and one C library.\n\n", abar_version());
    printf("usage: abar COMMAND [--flag value ...]\n\n");
    for (; *commands; commands++) printf("  %-12s %s\n", (*commands)->name, (*commands)->summary);
    printf("  %-12s %s\n\n", "help", "this page; abar COMMAND --help for one of them");
    printf("Start here:\n"
           "  abar train                      LeNet-5 on Fashion-MNIST: about a minute\n"
           "  abar data                       which data sets are on this machine\n"
           "  abar train --model resnet20 --data cifar10:DIR\n"
           "                                  ResNet-20; DIR: the binary version of CIFAR-10\n"
           "  abar train --model gpt-char --data text:FILE\n"
           "                                  a small GPT on the characters of a text\n"
           "  abar sample --checkpoint DIR    what it writes then\n"
           "\n"
           "abar train --model NAME --optim NAME --help shows the settings of these two.\n");
}
