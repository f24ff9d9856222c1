/* abar models: which networks there are; of one, its operations with shapes, parameters and work, and the memory that
 * training it would take. */
#include "cli.h"

#include <inttypes.h>
#include <limits.h>
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
    abar_value x = abar_model_input(model, *out, input);
    x = model->build(model, *out, x, classes, setup->model_config);
    abar_softmax_cross_entropy(*out, x, setup->train.label_smoothing);
    abar_compile_config config = {
        .size = sizeof config, .batch = setup->train.batch / setup->train.accumulate, .training = true, .plan_only = true};
    return abar_net_compile(*out, dev, &config);
}

typedef struct totals {
    int64_t parameters, multiply_adds;
} totals;

static totals sum_nodes(const abar_net *net)
{
    totals sum = {0};
    for (int i = 0; i < abar_net_node_count(net); i++) {
        abar_node_info node = *abar_net_node(net, i);
        sum.parameters += node.parameters;
        const int64_t left = INT64_MAX - sum.multiply_adds; /* one of them alone may be INT64_MAX */
        sum.multiply_adds += node.multiply_adds < left ? node.multiply_adds : left;
    }
    return sum;
}

static abar_status open_device(cli *c, const char *name, int64_t threads, abar_device **out)
{
    abar_device_config config = {.size = sizeof config, .threads = (int)threads, .deterministic = true};
    return abar_device_open(c->ctx, name, &config, out);
}

/* ---- the list ------------------------------------------------------------------------------------------------- */

/* Any device would do: ref plans fastest. */
static abar_status count_parameters(cli *c, abar_device *ref, const char *name, int64_t *out)
{
    abar_setup *setup = NULL;
    abar_net *net = NULL;
    const abar_model *model = abar_model_find(name);
    abar_status status = abar_setup_create(c->ctx, name, "synthetic", "sgd", &setup);
    if (status >= 0) setup->train.batch = 1;
    if (status >= 0) status = plan_net(c, setup, ref, model->input, model->classes, &net);
    if (status >= 0) *out = sum_nodes(net).parameters;
    abar_net_destroy(net);
    abar_setup_destroy(c->ctx, setup);
    return status;
}

static int list_models(cli *c)
{
    char input[48], number[NUMBER_MAX];
    const int window = print_window(stdout);
    abar_device *ref = NULL;
    abar_status status = open_device(c, "ref", 1, &ref);
    if (status < 0) return cli_fail_status(c, status);
    printf("%-11s  %-13s  %11s\n", "model", "input", "parameters");
    for (const char *const *name = abar_model_names(); *name && status >= 0; name++) {
        const abar_model *model = abar_model_find(*name);
        int64_t parameters = 0;
        status = count_parameters(c, ref, *name, &parameters);
        if (status < 0) break;
        if (model->text)
            snprintf(input, sizeof input, "%" PRId64 " tokens", model->input[0]);
        else
            snprintf(input, sizeof input, "%" PRId64 " x %" PRId64 " x %" PRId64, model->input[0], model->input[1],
                     model->input[2]);
        const int lead = printf("%-11s  %-13s  %11s  ", *name, input, print_count(number, parameters));
        print_wrapped(stdout, lead, window > 0 ? window : INT_MAX, model->summary); /* a pipe gets a row each */
    }
    abar_device_close(ref);
    if (status < 0) return cli_fail_status(c, status);
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

/* Columns as wide as the longest text in them; what a window has no room for is not shown. */
typedef struct columns {
    int name, operation, by; /* 0: not shown */
} columns;

static void widen(int *column, const char *text)
{
    if ((int)strlen(text) > *column) *column = (int)strlen(text);
}

static columns measure(const abar_net *net)
{
    columns c = {5, 9, 2};
    const int numbers = 12 + 2 + 10 + 2 + 13, window = print_window(stdout);
    for (int i = 0; i < abar_net_node_count(net); i++) {
        abar_node_info node = *abar_net_node(net, i);
        widen(&c.name, node.name);
        widen(&c.operation, node.operation);
        widen(&c.by, node.implementation);
    }
    if (window > 0 && c.name + 2 + c.operation + 2 + numbers + 2 + c.by > window) c.by = 0;
    if (window > 0 && c.name + 2 + c.operation + 2 + numbers > window) c.operation = 0;
    return c;
}

static void print_row(const columns *c, const char *name, const char *operation, const char *shape, const char *parameters,
                      const char *work, const char *by)
{
    printf("%-*s  ", c->name, name[0] || c->operation ? name : operation); /* what was inserted has no name */
    if (c->operation) printf("%-*s  ", c->operation, operation);
    printf("%-12s  %10s  %13s", shape, parameters, work);
    if (c->by && by[0]) printf("  %s", by);
    putchar('\n');
}

static void print_nodes(const abar_net *net)
{
    char shape[64], parameters[NUMBER_MAX], work[NUMBER_MAX];
    const columns c = measure(net);
    print_row(&c, "name", "operation", "output", "parameters", "multiply-adds", "by");
    for (int i = 0; i < abar_net_node_count(net); i++) {
        abar_node_info node = *abar_net_node(net, i);
        print_shape(shape, sizeof shape, &node);
        print_row(&c, node.name, node.operation, shape, node.parameters ? print_count(parameters, node.parameters) : "",
                  node.multiply_adds ? print_count(work, node.multiply_adds) : "", node.implementation);
    }
    totals sum = sum_nodes(net);
    print_row(&c, "total", "", "", print_count(parameters, sum.parameters), print_count(work, sum.multiply_adds), "");
}

static void print_map(void *user, const abar_map_info *map)
{
    size_t *total = user;
    char name[160], bytes[NUMBER_MAX], shape[64];
    snprintf(name, sizeof name, map->group ? "%s, group %" PRId64 : "%s", map->layer, map->group);
    snprintf(shape, sizeof shape, "%" PRId64 " x %" PRId64, map->rows, map->columns);
    printf("  %-30s %14s %12s\n", name, shape, print_bytes(bytes, map->state_bytes));
    *total += map->state_bytes;
}

/* Which layers the method preconditions, as matrices of rows (outputs) and columns (inputs and bias). */
static abar_status print_maps(cli *c, const abar_setup *setup)
{
    if (!setup->method) return ABAR_OK;
    size_t total = 0;
    char bytes[NUMBER_MAX], text[256];
    snprintf(text, sizeof text, "Preconditioned by %s (%s), which keeps %s:", setup->method->name, setup->method->summary,
             setup->method->keeps);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), text);
    printf("  %-30s %14s %12s\n", "layer", "matrix", "state");
    abar_status status = abar_setup_maps(c->ctx, setup, print_map, &total);
    if (status >= 0) printf("  %-30s %14s %12s\n", "total", "", print_bytes(bytes, total));
    return status;
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
    printf("\nMultiply-adds are those of one %s forward pass.\nMemory to train with batch %" PRId64 " and %s:\n",
           setup->model->text ? "window's" : "image's", setup->train.batch, setup->train.optim);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].bytes > 0) printf("  %-12s %10s\n", row[i].what, print_bytes(bytes, row[i].bytes));
    }
}

/* Known without reading the data; synthetic data take the model's own shape, texts its usual vocabulary. */
static abar_status find_shape(cli *c, const abar_setup *setup, int64_t *input, int64_t *classes)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    abar_model_shape(setup->model, setup->model_config, input, classes);
    if (setup->model->text || strcmp(setup->train.data, "synthetic") == 0) return ABAR_OK;
    abar_status status = abar_dataset_probe_name(c->ctx, setup->train.data, &probe);
    if (status < 0) return status;
    input[0] = probe.info.channels;
    input[1] = probe.info.height;
    input[2] = probe.info.width;
    *classes = probe.info.classes;
    return ABAR_OK;
}

static void ignore_map(void *user, const abar_map_info *map) { (void)user, (void)map; }

static int show_model(cli *c, const abar_setup *setup)
{
    int64_t input[3], classes;
    abar_device *dev = NULL;
    abar_net *net = NULL;
    abar_memory_plan plan = {.size = sizeof plan};
    abar_status status = find_shape(c, setup, input, &classes);
    if (status >= 0) status = open_device(c, setup->train.device, setup->train.threads, &dev);
    if (status >= 0) status = plan_net(c, setup, dev, input, classes, &net);
    if (status >= 0) status = abar_setup_memory_plan(c->ctx, setup, &plan);
    if (status >= 0 && setup->method) status = abar_setup_maps(c->ctx, setup, ignore_map, NULL); /* whether it can be shown */
    if (status >= 0) {
        printf("%s: %s\n\n", setup->train.model, setup->model->summary);
        print_nodes(net);
        status = print_maps(c, setup);
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
