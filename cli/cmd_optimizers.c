/* abar optimizers: lists the curvature methods and update rules with their options. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct optimizers_flags {
    char optim[ABAR_OPTION_TEXT_MAX];
    bool json;
} optimizers_flags;

#define AT(member) offsetof(optimizers_flags, member)

static const abar_option own[] = {{"optim", ABAR_OPTION_TEXT, AT(optim), "", 0, 0, NULL, "show only this one"},
                                  {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
                                  {0}};

static void print_summary(const char *name, const char *summary)
{
    const int lead = printf("%s: ", name);
    print_wrapped_from(stdout, lead, 2, print_width(stdout), summary);
}

static void show_rule(const cli *c, const abar_rule *rule)
{
    print_summary(rule->name, rule->summary);
    help_options(c, rule->options, NULL);
    printf("\n");
}

static void show_method(const cli *c, const abar_method *method)
{
    print_summary(method->name, method->summary);
    const int lead = printf("  keeps per layer ");
    print_wrapped_from(stdout, lead, 2, print_width(stdout), method->keeps);
    help_options(c, method->options, NULL);
    printf("\n");
}

static void show_common(const cli *c)
{
    printf("all curvature methods\n");
    help_options(c, abar_curvature_options(), NULL);
}

/* ---- the same as JSON ----------------------------------------------------------------------------------------- */

/* "cosine|step|constant" */
static void print_choices_json(json_writer *j, const char *choices)
{
    json_begin(j, "choices", '[');
    for (const char *at = choices; at;) {
        char choice[64];
        const size_t n = strcspn(at, "|");
        snprintf(choice, sizeof choice, "%.*s", (int)n, at);
        json_text(j, NULL, choice);
        at = at[n] ? at + n + 1 : NULL;
    }
    json_end(j);
}

static void print_options_json(json_writer *j, const char *name, const abar_option *table)
{
    static const char *const types[] = {[ABAR_OPTION_INT] = "int",
                                        [ABAR_OPTION_REAL] = "real",
                                        [ABAR_OPTION_BOOL] = "bool",
                                        [ABAR_OPTION_CHOICE] = "choice",
                                        [ABAR_OPTION_TEXT] = "text"};
    json_begin(j, name, '[');
    for (const abar_option *row = table; row && row->name; row++) {
        json_begin(j, NULL, '{');
        json_text(j, "name", row->name);
        json_text(j, "type", types[row->type]);
        json_text(j, "default", row->fallback);
        if (row->type == ABAR_OPTION_CHOICE) print_choices_json(j, row->choices);
        if (row->type == ABAR_OPTION_INT) {
            json_int(j, "min", (int64_t)row->min);
            json_int(j, "max", (int64_t)row->max);
        } else if (row->type == ABAR_OPTION_REAL) {
            json_real(j, "min", row->min);
            json_real(j, "max", row->max);
        }
        json_text(j, "help", row->help);
        json_end(j);
    }
    json_end(j);
}

static void print_rule_json(json_writer *j, const abar_rule *rule)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", rule->name);
    json_text(j, "summary", rule->summary);
    print_options_json(j, "options", rule->options);
    json_end(j);
}

static void print_method_json(json_writer *j, const abar_method *method)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", method->name);
    json_text(j, "summary", method->summary);
    json_text(j, "keeps", method->keeps);
    print_options_json(j, "options", method->options);
    json_end(j);
}

/* setup NULL: all optimizers. */
static void print_json(const abar_setup *setup)
{
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_begin(&j, "rules", '[');
    for (const char *const *name = abar_rule_names(); *name; name++)
        if (!setup || setup->rule == abar_rule_find(*name)) print_rule_json(&j, abar_rule_find(*name));
    json_end(&j);
    json_begin(&j, "methods", '[');
    for (const char *const *name = abar_method_names(); *name; name++)
        if (!setup || setup->method == abar_method_find(*name)) print_method_json(&j, abar_method_find(*name));
    json_end(&j);
    print_options_json(&j, "method_options", !setup || setup->method ? abar_curvature_options() : NULL);
    json_finish(&j);
}

/* ---- the command ---------------------------------------------------------------------------------------------- */

static void show_all(const cli *c)
{
    printf("Update rules\n\n");
    for (const char *const *name = abar_rule_names(); *name; name++) show_rule(c, abar_rule_find(*name));
    print_wrapped(stdout, 0, print_width(stdout), "Curvature methods: they precondition gradients in front of a rule");
    putchar('\n');
    for (const char *const *name = abar_method_names(); *name; name++) show_method(c, abar_method_find(*name));
    show_common(c);
}

static void show_one(const cli *c, const abar_setup *setup)
{
    if (setup->method) show_method(c, setup->method);
    show_rule(c, setup->rule);
    if (setup->method) show_common(c);
}

static void show(const cli *c, const abar_setup *setup)
{
    if (setup)
        show_one(c, setup);
    else
        show_all(c);
    putchar('\n');
    print_wrapped(
        stdout, 0, print_width(stdout),
        "--optim mac is mac on sgd, --optim mac+adamw is mac on adamw, and so for the others. --lr and --weight-decay "
        "are settings of the run; their defaults depend on the model and the data:");
    printf("  %s train --model NAME --optim NAME --help\n", c->program);
}

static int run(cli *c)
{
    optimizers_flags flags;
    abar_setup *setup = NULL; /* only its optimizer matters, not the model and the data */
    int code = flags_read(c, &flags, NULL, NULL);
    if (code) return code;
    abar_status status = flags.optim[0] ? abar_setup_create(c->ctx, "lenet5", "synthetic", flags.optim, &setup) : ABAR_OK;
    if (status < 0) return cli_fail_usage(c, status);
    if (flags.json)
        print_json(setup);
    else
        show(c, setup);
    abar_setup_destroy(c->ctx, setup);
    return EXIT_SUCCESS;
}

const command command_optimizers = {
    .name = "optimizers",
    .summary = "list the optimizers with their options",
    .usage = "[--optim NAME] [--json]",
    .about = "Lists curvature methods and update rules with the options of each. abar train --optim NAME takes "
             "them as flags.",
    .own = own,
    .run = run,
};
