/* abar optimizers: the update rules with their options, straight from the registry. */
#include "cli.h"

#include <stdlib.h>

static const abar_option own[] = {{0}};

static int run(cli *c)
{
    int code = flags_read(c, NULL, NULL, NULL);
    if (code) return code;
    for (const char *const *name = abar_rule_names(); *name; name++) {
        const abar_rule *rule = abar_rule_find(*name);
        printf("%s: %s\n", *name, rule->summary);
        help_options(c, rule->options, NULL);
        printf("\n");
    }
    printf("--lr and --weight-decay are settings of the run; their defaults depend on the model and the data:\n"
           "%s train --optim NAME --help shows them\n",
           c->program);
    return EXIT_SUCCESS;
}

const command command_optimizers = {
    .name = "optimizers",
    .summary = "list the optimizers with their options",
    .usage = "",
    .about = "Lists the update rules and the options of each. abar train --optim NAME takes them as flags.",
    .own = own,
    .run = run,
};
