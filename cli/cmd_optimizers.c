/* abar optimizers: the curvature methods and update rules with their options, straight from the registries. */
#include "cli.h"

#include <stdlib.h>

typedef struct optimizers_flags {
    char optim[ABAR_OPTION_TEXT_MAX];
} optimizers_flags;

static const abar_option own[] = {{.name = "optim",
                                   .type = ABAR_OPTION_TEXT,
                                   .offset = offsetof(optimizers_flags, optim),
                                   .fallback = "",
                                   .help = "this one alone"},
                                  {0}};

static void show_rule(const cli *c, const abar_rule *rule)
{
    printf("%s: %s\n", rule->name, rule->summary);
    help_options(c, rule->options, NULL);
    printf("\n");
}

static void show_method(const cli *c, const abar_method *method)
{
    printf("%s: %s\n  ", method->name, method->summary);
    const int lead = 2 + printf("keeps per layer ");
    print_wrapped_from(stdout, lead, 2, print_width(stdout), method->keeps);
    help_options(c, method->options, NULL);
    printf("\n");
}

static void show_common(const cli *c)
{
    printf("all curvature methods\n");
    help_options(c, abar_curvature_options(), NULL);
}

static void show_all(const cli *c)
{
    printf("Update rules\n\n");
    for (const char *const *name = abar_rule_names(); *name; name++) show_rule(c, abar_rule_find(*name));
    printf("Curvature methods: they precondition gradients in front of a rule\n\n");
    for (const char *const *name = abar_method_names(); *name; name++) show_method(c, abar_method_find(*name));
    show_common(c);
}

/* Any model and data will do to find out what an optimizer's name means. */
static int show_one(cli *c, const char *optim)
{
    abar_setup *setup;
    abar_status status = abar_setup_create(c->ctx, "lenet5", "synthetic", optim, &setup);
    if (status < 0) return cli_fail_usage(c, status);
    if (setup->method) show_method(c, setup->method);
    show_rule(c, setup->rule);
    if (setup->method) show_common(c);
    abar_setup_destroy(c->ctx, setup);
    return EXIT_SUCCESS;
}

static int run(cli *c)
{
    optimizers_flags flags;
    int code = flags_read(c, &flags, NULL, NULL);
    if (!code && flags.optim[0])
        code = show_one(c, flags.optim);
    else if (!code)
        show_all(c);
    if (code) return code;
    printf("\n--optim mac is mac on sgd, --optim mac+adamw is mac on adamw, and so for the\n"
           "others. --lr and --weight-decay are settings of the run; their defaults depend\n"
           "on the model and the data: %s train --model NAME --optim NAME --help\n",
           c->program);
    return EXIT_SUCCESS;
}

const command command_optimizers = {
    .name = "optimizers",
    .summary = "list the optimizers with their options",
    .usage = "[--optim NAME]",
    .about = "Lists curvature methods and update rules with the options of each. abar train --optim NAME takes "
             "them as flags.",
    .own = own,
    .run = run,
};
