/* abar optimizers: the curvature methods and update rules with their options, straight from the registries. */
#include "cli.h"

#include <stdlib.h>

static const abar_option own[] = {{0}};

static int run(cli *c)
{
    int code = flags_read(c, NULL, NULL, NULL);
    if (code) return code;
    printf("Update rules\n\n");
    for (const char *const *name = abar_rule_names(); *name; name++) {
        const abar_rule *rule = abar_rule_find(*name);
        printf("%s: %s\n", *name, rule->summary);
        help_options(c, rule->options, NULL);
        printf("\n");
    }
    printf("Curvature methods: they precondition gradients in front of a rule\n\n");
    for (const char *const *name = abar_method_names(); *name; name++) {
        const abar_method *method = abar_method_find(*name);
        printf("%s: %s\n  ", *name, method->summary);
        const int lead = 2 + printf("keeps per layer ");
        print_wrapped_from(stdout, lead, 2, print_width(stdout), method->keeps);
        help_options(c, method->options, NULL);
        printf("\n");
    }
    printf("all curvature methods\n");
    help_options(c, abar_curvature_options, NULL);
    printf("\n--optim mac is mac on sgd, --optim mac+adamw is mac on adamw, and so for the\n"
           "others. --lr and --weight-decay are settings of the run; their defaults depend\n"
           "on the model and the data: %s train --model NAME --optim NAME --help\n",
           c->program);
    return EXIT_SUCCESS;
}

const command command_optimizers = {
    .name = "optimizers",
    .summary = "list the optimizers with their options",
    .usage = "",
    .about = "Lists curvature methods and update rules with the options of each. abar train --optim NAME takes "
             "them as flags.",
    .own = own,
    .run = run,
};
