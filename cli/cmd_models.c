/* abar models: which networks there are; of one, its operations with shapes, parameters and work, and the memory that
 * training it would take. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const abar_option own[] = {{0}};

static const char *const settings[] = {"model",           "data",       "optim",     "batch",   "accumulate",
                                       "label-smoothing", "device",     "precision", "threads", "workers",
                                       "limit-train",     "limit-test", NULL};

/* Built and compiled on paper only: shapes, fusion, kernels and memory, without the memory. */
static abar_status plan_net(cli *c, const abar_setup *setup, abar_device *dev, const int64_t *input, int64_t classes,
                            abar_net **out)
{
    const abar_model *model = setup->model;
    abar_status status = abar_net_create(c->ctx, out);
    if (status < 0) return status;
    abar_value x = abar_input(*out, 3, input);
    x = model->build(model, *out, x, classes, setup->model_config);
    abar_softmax_cross_entropy(*out, x, setup->train.label_smoothing);
    abar_compile_config config = {.size = sizeof config, .batch = setup->train.batch, .training = true, .plan_only = true};
    return abar_net_compile(*out, dev, &config);
}

typedef struct totals {
    int64_t parameters, multiply_adds;
} totals;

static totals sum_nodes(const abar_net *net)
{
    totals sum = {0};
    for (int i = 0; i < abar_net_node_count(net); i++) {
        abar_node_info node = abar_net_node(net, i);
        sum.parameters += node.parameters;
        sum.multiply_adds += node.multiply_adds;
    }
    return sum;
}

static abar_status open_device(cli *c, const abar_setup *setup, abar_device **out)
{
    abar_device_config config = {.size = sizeof config, .threads = (int)setup->train.threads, .deterministic = true};
    return abar_device_open(c->ctx, setup->train.device, &config, out);
}

/* ---- the list ------------------------------------------------------------------------------------------------- */

static int list_models(cli *c)
{
    char input[48], parameters[NUMBER_MAX];
    printf("%-14s %-11s %11s  %s\n", "model", "input", "parameters", "");
    for (const char *const *name = abar_model_names(); *name; name++) {
        const abar_model *model = abar_model_find(*name);
        abar_setup *setup = NULL;
        abar_device *dev = NULL;
        abar_net *net = NULL;
        abar_status status = abar_setup_create(c->ctx, *name, "synthetic", "sgd", &setup);
        if (status >= 0) status = open_device(c, setup, &dev);
        if (status >= 0) status = plan_net(c, setup, dev, model->input, model->classes, &net);
        if (status >= 0) {
            snprintf(input, sizeof input, "%" PRId64 " x %" PRId64 " x %" PRId64, model->input[0], model->input[1],
                     model->input[2]);
            printf("%-14s %-11s %11s  %s\n", *name, input, print_count(parameters, sum_nodes(net).parameters), model->summary);
        }
        abar_net_destroy(net);
        abar_device_close(dev);
        abar_setup_destroy(c->ctx, setup);
        if (status < 0) return cli_fail_status(c, status);
    }
    printf("\n%s models --model NAME shows one of them\n", c->program);
    return EXIT_SUCCESS;
}

/* ---- one model ------------------------------------------------------------------------------------------------ */

static void print_shape(char *text, size_t size, const abar_node_info *node)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 1; i < node->ndim && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i > 1 ? " x " : "", node->dim[i]);
}

static void print_nodes(const abar_net *net)
{
    char shape[64], parameters[NUMBER_MAX], work[NUMBER_MAX];
    const char *row = "%-22s %-18s %-14s %11s %13s  %s\n";
    printf(row, "name", "operation", "output", "parameters", "multiply-adds", "implementation");
    for (int i = 0; i < abar_net_node_count(net); i++) {
        abar_node_info node = abar_net_node(net, i);
        print_shape(shape, sizeof shape, &node);
        printf(row, node.name ? node.name : "", node.operation, shape,
               node.parameters ? print_count(parameters, node.parameters) : "",
               node.multiply_adds ? print_count(work, node.multiply_adds) : "", node.implementation ? node.implementation : "");
    }
    totals sum = sum_nodes(net);
    printf(row, "total", "", "", print_count(parameters, sum.parameters), print_count(work, sum.multiply_adds),
           "per image, forward");
}

static void print_memory(const abar_setup *setup, const abar_memory_plan *plan)
{
    const struct {
        const char *what;
        size_t bytes;
    } row[] = {{"parameters", plan->parameters},
               {"gradients", plan->gradients},
               {"buffers", plan->buffers},
               {"optimizer", plan->optimizer},
               {"activations", plan->activations},
               {"data set", plan->data},
               {"loader", plan->loader},
               {"other", plan->other},
               {"total", plan->total}};
    char bytes[NUMBER_MAX];
    printf("\nmemory to train it, batch %" PRId64 ", %s:\n", setup->train.batch, setup->train.optim);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].bytes > 0) printf("  %-12s %10s\n", row[i].what, print_bytes(bytes, row[i].bytes));
    }
}

/* The shape of the data where it is there, the model's usual one otherwise. */
static void find_shape(cli *c, const abar_setup *setup, int64_t *input, int64_t *classes)
{
    abar_dataset *data = NULL;
    abar_dataset_config config = {.size = sizeof config, .limit_train = 1, .limit_test = 1};
    memcpy(input, setup->model->input, sizeof setup->model->input);
    *classes = setup->model->classes;
    if (!flags_peek(c, "data") || abar_dataset_open(c->ctx, setup->train.data, &config, &data) < 0) return;
    const abar_dataset_info *info = abar_dataset_info_of(data);
    input[0] = info->channels;
    input[1] = info->height;
    input[2] = info->width;
    *classes = info->classes;
    abar_dataset_close(data);
}

static int show_model(cli *c, const abar_setup *setup)
{
    int64_t input[3], classes;
    abar_device *dev = NULL;
    abar_net *net = NULL;
    abar_memory_plan plan;
    find_shape(c, setup, input, &classes);
    abar_status status = open_device(c, setup, &dev);
    if (status >= 0) status = plan_net(c, setup, dev, input, classes, &net);
    if (status >= 0) status = abar_setup_memory_plan(c->ctx, setup, &plan);
    if (status >= 0) {
        printf("%s: %s\n\n", setup->train.model, setup->model->summary);
        print_nodes(net);
        print_memory(setup, &plan);
    }
    abar_net_destroy(net);
    abar_device_close(dev);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

static int run(cli *c)
{
    abar_setup *setup = NULL;
    if (c->argc == 0) return list_models(c);
    int code = flags_setup(c, NULL, &setup);
    if (!code) code = flags_check(c, setup);
    if (!code) code = show_model(c, setup);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_models = {
    .name = "models",
    .summary = "list the networks; --model NAME shows layers and memory",
    .usage = "[--model NAME] [--batch N] [--flag value ...]",
    .about = "Lists the networks. With --model, shows one: its operations after fusion with their shapes, parameters and "
             "multiply-adds, who computes them, and how much memory training it takes.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .rule_options = true,
    .examples = "  abar models\n"
                "  abar models --model resnet20 --batch 256 --optim adamw\n",
    .run = run,
};
