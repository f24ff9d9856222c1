/* abar models: lists the networks; or shows the operations of one, with shapes, parameters and work, and the memory that
 * training it takes. */
#include "cli.h"
#include "grid.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SUMMARY_MIN 24 /* columns of a summary beside its name */

typedef struct models_flags {
    bool json;
} models_flags;

#define AT(member) offsetof(models_flags, member)

static const abar_option own[] = {{"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP}, {0}};

static const char *const settings[] = {"model",           "data",   "optim",     "batch",   "accumulate", "micro",
                                       "label-smoothing", "device", "precision", "threads", "workers",    "limit-train",
                                       "limit-test",      "ema",    NULL};

/* Compiled without allocating: shapes, fusion, kernels and the memory plan. */
static abar_status plan_net(cli *c, const abar_setup *setup, abar_device *dev, const int64_t *input, int64_t classes,
                            abar_net **out)
{
    const abar_model *model = setup->model;
    abar_status status = abar_net_create(c->ctx, out);
    if (status < 0) return status;
    abar_value x = abar_model_input(model, *out, input);
    x = model->build(model, *out, x, classes, setup->model_config);
    abar_softmax_cross_entropy(*out, x, setup->train.label_smoothing);
    const abar_train_config *train = &setup->train;
    abar_compile_config config = {.size = sizeof config,
                                  .batch = train->micro > 0 ? train->micro : train->batch / train->accumulate,
                                  .training = true,
                                  .plan_only = true};
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
        const int64_t left = INT64_MAX - sum.multiply_adds; /* a node may have INT64_MAX */
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

/* The device does not matter: ref plans fastest. */
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

static void print_model(const char *name, const abar_model *model, int64_t parameters)
{
    char input[48], number[NUMBER_MAX];
    const int window = print_window(stdout);
    if (model->text)
        snprintf(input, sizeof input, "%" PRId64 " tokens", model->input[0]);
    else
        snprintf(input, sizeof input, "%" PRId64 " x %" PRId64 " x %" PRId64, model->input[0], model->input[1],
                 model->input[2]);
    const int lead = printf("%-11s  %-13s  %11s", name, input, print_count(number, parameters)) + 2;
    const bool below = window > 0 && window < lead + SUMMARY_MIN;
    fputs(below ? "\n  " : "  ", stdout);
    print_wrapped(stdout, below ? 2 : lead, window > 0 ? window : INT_MAX, model->summary); /* a pipe gets a row each */
}

static void print_model_json(json_writer *j, const char *name, const abar_model *model, int64_t parameters)
{
    json_begin(j, NULL, '{');
    json_text(j, "model", name);
    json_text(j, "summary", model->summary);
    json_bool(j, "text", model->text);
    json_begin(j, "input", '['); /* tokens; or channels, height, width */
    for (int i = 0; i < (model->text ? 1 : 3); i++) json_int(j, NULL, model->input[i]);
    json_end(j);
    json_int(j, "classes", model->classes);
    json_int(j, "parameters", parameters);
    json_end(j);
}

static void print_models(const cli *c, const int64_t *parameters, bool json)
{
    const char *const *names = abar_model_names();
    json_writer j = {0};
    if (json) json_begin(&j, NULL, '{');
    if (json) json_begin(&j, "models", '[');
    if (!json) printf("%-11s  %-13s  %11s\n", "model", "input", "parameters");
    for (int i = 0; names[i]; i++) {
        if (json)
            print_model_json(&j, names[i], abar_model_find(names[i]), parameters[i]);
        else
            print_model(names[i], abar_model_find(names[i]), parameters[i]);
    }
    if (json)
        json_finish(&j);
    else
        printf("\nTo see one of them:\n  %s models --model NAME\n", c->program);
}

static int list_models(cli *c, bool json)
{
    const char *const *names = abar_model_names();
    size_t n = 0;
    while (names[n]) n++;
    int64_t *parameters = calloc(n, sizeof *parameters);
    abar_device *ref = NULL;
    abar_status status = parameters ? open_device(c, "ref", 1, &ref) : ABAR_E_MEMORY;
    for (size_t i = 0; i < n && status >= 0; i++) status = count_parameters(c, ref, names[i], &parameters[i]);
    if (status >= 0) print_models(c, parameters, json);
    abar_device_close(ref);
    free(parameters);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

/* ---- one model ------------------------------------------------------------------------------------------------ */

static void print_shape(char *text, size_t size, const abar_node_info *node)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 1; i < node->ndim && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i > 1 ? " x " : "", node->dim[i]);
}

enum { NAME, OPERATION, OUTPUT, PARAMETERS, WORK, BY, NODE_COLUMNS };

/* The row after the last node is the total. */
static void fill_node(const void *user, int row, grid_cell *cells)
{
    const abar_net *net = user;
    const bool last = row == abar_net_node_count(net);
    const totals sum = last ? sum_nodes(net) : (totals){0};
    const abar_node_info node = last ? (abar_node_info){.name = "total",
                                                        .operation = "",
                                                        .implementation = "",
                                                        .parameters = sum.parameters,
                                                        .multiply_adds = sum.multiply_adds}
                                     : *abar_net_node(net, row);
    const char *name = node.name[0] ? node.name : node.operation; /* inserted operations have no name */
    snprintf(cells[NAME].text, sizeof cells->text, "%s", name);
    snprintf(cells[OPERATION].text, sizeof cells->text, "%s", node.operation);
    print_shape(cells[OUTPUT].text, sizeof cells->text, &node);
    if (node.parameters || last) print_count(cells[PARAMETERS].text, node.parameters);
    if (node.multiply_adds || last) print_count(cells[WORK].text, node.multiply_adds);
    snprintf(cells[BY].text, sizeof cells->text, "%s", node.implementation);
}

static void print_nodes(const abar_net *net)
{
    static const grid_column column[NODE_COLUMNS] = {
        [NAME] = {"name", true, 0},           [OPERATION] = {"operation", true, 3},
        [OUTPUT] = {"output", true, 2},       [PARAMETERS] = {"parameters", false, 0},
        [WORK] = {"multiply-adds", false, 1}, [BY] = {"by", true, 4},
    };
    grid g = {.column = column, .columns = NODE_COLUMNS, .rows = abar_net_node_count(net) + 1, .fill = fill_node, .user = net};
    grid_measure(&g, print_window(stdout));
    grid_print(&g, stdout);
}

/* The maps that a method preconditions, collected from the visitor. */
typedef struct map_row {
    char layer[128];
    int64_t rows, columns;
    size_t bytes;
} map_row;

typedef struct map_list {
    map_row *row;
    int n, capacity; /* n counts those that do not fit, too */
} map_list;

static void keep_map(void *user, const abar_map_info *map)
{
    map_list *list = user;
    if (list->n < list->capacity) {
        map_row *r = &list->row[list->n];
        *r = (map_row){.rows = map->rows, .columns = map->columns, .bytes = map->state_bytes};
        snprintf(r->layer, sizeof r->layer, map->group ? "%s, group %" PRId64 : "%s", map->layer, map->group);
    }
    list->n++;
}

static abar_status list_maps(cli *c, const abar_setup *setup, map_list *out)
{
    *out = (map_list){0};
    if (!setup->method) return ABAR_OK;
    abar_status status = abar_setup_maps(c->ctx, setup, keep_map, out); /* to count them */
    if (status < 0) return status;
    out->capacity = out->n;
    out->n = 0;
    out->row = calloc((size_t)out->capacity + 1, sizeof *out->row);
    return out->row ? abar_setup_maps(c->ctx, setup, keep_map, out) : ABAR_E_MEMORY;
}

/* The row after the last map is the total. */
static void fill_map(const void *user, int row, grid_cell *cells)
{
    const map_list *list = user;
    size_t bytes = 0;
    for (int i = 0; i < list->n && row == list->n; i++) bytes += list->row[i].bytes;
    const map_row *r = &list->row[row];
    snprintf(cells[0].text, sizeof cells->text, "%s", row < list->n ? r->layer : "total");
    if (row < list->n) snprintf(cells[1].text, sizeof cells->text, "%" PRId64 " x %" PRId64, r->rows, r->columns);
    print_bytes(cells[2].text, row < list->n ? r->bytes : bytes);
}

/* Which layers the method preconditions, as matrices of rows (outputs) and columns (inputs and bias). */
static void print_maps(const abar_setup *setup, const map_list *maps)
{
    static const grid_column column[] = {{"layer", true, 0}, {"matrix", false, 1}, {"state", false, 0}};
    char text[256];
    snprintf(text, sizeof text, "Preconditioned by %s (%s), which keeps %s:", setup->method->name, setup->method->summary,
             setup->method->keeps);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), text);
    grid g = {.column = column, .columns = 3, .rows = maps->n + 1, .fill = fill_map, .user = maps, .indent = 2};
    grid_measure(&g, print_window(stdout));
    grid_print(&g, stdout);
}

/* The parameters with the rule of each, collected from the visitor. */
typedef struct param_row {
    char name[128], shape[48], why[48];
    const char *rule;
    double lr, weight_decay;
    int64_t blocks, block_rows, block_columns;
} param_row;

typedef struct param_list {
    param_row *row;
    int n, capacity; /* n counts those that do not fit, too */
    bool splits;     /* the rule leaves some to another one, or cuts them into blocks */
    double lr;       /* of the run */
} param_list;

static void keep_param(void *user, const abar_param_info *param)
{
    param_list *list = user;
    list->splits = list->splits || param->why[0] || param->blocks > 0;
    if (list->n < list->capacity) {
        param_row *r = &list->row[list->n];
        size_t at = 0;
        *r = (param_row){.rule = param->rule,
                         .lr = list->lr * param->lr_scale,
                         .weight_decay = param->weight_decay,
                         .blocks = param->blocks,
                         .block_rows = param->block_rows,
                         .block_columns = param->block_columns};
        snprintf(r->name, sizeof r->name, "%s", param->name);
        snprintf(r->why, sizeof r->why, "%s", param->why);
        for (int i = 0; i < param->value.ndim && at < sizeof r->shape; i++)
            at += (size_t)snprintf(r->shape + at, sizeof r->shape - at, "%s%" PRId64, i ? " x " : "", param->value.dim[i]);
    }
    list->n++;
}

/* Empty for a rule that takes every parameter. */
static abar_status list_params(cli *c, const abar_setup *setup, param_list *out)
{
    *out = (param_list){.lr = setup->train.lr};
    abar_status status = abar_setup_params(c->ctx, setup, keep_param, out); /* to count them */
    if (status < 0 || !out->splits) return status;
    out->capacity = out->n;
    out->n = 0;
    out->row = calloc((size_t)out->capacity + 1, sizeof *out->row);
    return out->row ? abar_setup_params(c->ctx, setup, keep_param, out) : ABAR_E_MEMORY;
}

enum { PARAMETER, SHAPE, RULE, WHY, BLOCKS, LR, DECAY, PARAM_COLUMNS };

static void fill_param(const void *user, int row, grid_cell *cells)
{
    const param_row *r = &((const param_list *)user)->row[row];
    snprintf(cells[PARAMETER].text, sizeof cells->text, "%s", r->name);
    snprintf(cells[SHAPE].text, sizeof cells->text, "%s", r->shape);
    snprintf(cells[RULE].text, sizeof cells->text, "%s", r->rule);
    snprintf(cells[WHY].text, sizeof cells->text, "%s", r->why);
    snprintf(cells[LR].text, sizeof cells->text, "%g", r->lr);
    snprintf(cells[DECAY].text, sizeof cells->text, "%g", r->weight_decay);
    if (r->blocks > 0)
        snprintf(cells[BLOCKS].text, sizeof cells->text, "%" PRId64 " of %" PRId64 " x %" PRId64, r->blocks, r->block_rows,
                 r->block_columns);
}

/* Which rule each parameter gets, and why. */
static void print_params(const abar_setup *setup, const param_list *params)
{
    static const grid_column column[PARAM_COLUMNS] = {
        [PARAMETER] = {"parameter", true, 0}, [SHAPE] = {"shape", true, 2},
        [RULE] = {"rule", true, 0},           [WHY] = {"why", true, 1},
        [BLOCKS] = {"blocks", true, 3},       [LR] = {"lr", false, 4},
        [DECAY] = {"weight-decay", false, 5},
    };
    char text[256];
    snprintf(text, sizeof text, "Updated by %s (%s):", setup->rule->name, setup->rule->summary);
    putchar('\n');
    print_wrapped(stdout, 0, print_width(stdout), text);
    grid g = {.column = column, .columns = PARAM_COLUMNS, .rows = params->n, .fill = fill_param, .user = params, .indent = 2};
    grid_measure(&g, print_window(stdout));
    grid_print(&g, stdout);
}

typedef struct memory_row {
    const char *what;
    size_t bytes;
} memory_row;

#define MEMORY_ROWS 11

static void list_memory(const abar_memory_plan *plan, memory_row out[MEMORY_ROWS])
{
    const memory_row row[MEMORY_ROWS] = {{"parameters", plan->parameters},
                                         {"gradients", plan->gradients},
                                         {"buffers", plan->buffers},
                                         {"optimizer", plan->optimizer},
                                         {"average", plan->average},
                                         {"micro-batches", plan->join},
                                         {"activations", plan->activations},
                                         {"data", plan->data},
                                         {"loader", plan->loader},
                                         {"other", plan->other},
                                         {"total", plan->total}};
    memcpy(out, row, sizeof row);
}

static void print_memory(const abar_setup *setup, const abar_memory_plan *plan)
{
    memory_row row[MEMORY_ROWS];
    char bytes[NUMBER_MAX], text[ABAR_OPTION_TEXT_MAX + 64];
    list_memory(plan, row);
    snprintf(text, sizeof text, "Memory to train with batch %" PRId64 " and %s:", setup->train.batch, setup->train.optim);
    printf("\nMultiply-adds: of one %s, forward.\n", setup->model->text ? "window" : "image");
    print_wrapped(stdout, 0, print_width(stdout), text);
    for (int i = 0; i < MEMORY_ROWS; i++)
        if (row[i].bytes > 0) printf("  %-13s %10s\n", row[i].what, print_bytes(bytes, row[i].bytes));
}

/* ---- the same as JSON ----------------------------------------------------------------------------------------- */

static void print_node_json(json_writer *j, const abar_node_info *node)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", node->name);
    json_text(j, "operation", node->operation);
    json_text(j, "implementation", node->implementation);
    json_begin(j, "output", '['); /* of one sample */
    for (int i = 1; i < node->ndim; i++) json_int(j, NULL, node->dim[i]);
    json_end(j);
    json_int(j, "parameters", node->parameters);
    json_int(j, "multiply_adds", node->multiply_adds);
    json_end(j);
}

static void print_maps_json(json_writer *j, const abar_setup *setup, const map_list *maps)
{
    json_begin(j, "method", '{');
    json_text(j, "name", setup->method->name);
    json_text(j, "summary", setup->method->summary);
    json_text(j, "keeps", setup->method->keeps);
    json_begin(j, "maps", '[');
    for (int i = 0; i < maps->n; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "layer", maps->row[i].layer);
        json_int(j, "rows", maps->row[i].rows);
        json_int(j, "columns", maps->row[i].columns);
        json_int(j, "state_bytes", (int64_t)maps->row[i].bytes);
        json_end(j);
    }
    json_end(j);
    json_end(j);
}

static void print_params_json(json_writer *j, const abar_setup *setup, const param_list *params)
{
    json_begin(j, "rule", '{');
    json_text(j, "name", setup->rule->name);
    json_text(j, "summary", setup->rule->summary);
    json_begin(j, "parameters", '[');
    for (int i = 0; i < params->n; i++) {
        const param_row *r = &params->row[i];
        json_begin(j, NULL, '{');
        json_text(j, "name", r->name);
        json_text(j, "shape", r->shape);
        json_text(j, "rule", r->rule);
        json_text(j, "why", r->why);
        json_real(j, "lr", r->lr);
        json_real(j, "weight_decay", r->weight_decay);
        json_int(j, "blocks", r->blocks);
        json_int(j, "block_rows", r->block_rows);
        json_int(j, "block_columns", r->block_columns);
        json_end(j);
    }
    json_end(j);
    json_end(j);
}

static void print_one_json(const abar_setup *setup, const abar_net *net, const map_list *maps, const param_list *params,
                           const abar_memory_plan *plan)
{
    json_writer j = {0};
    memory_row row[MEMORY_ROWS];
    const totals sum = sum_nodes(net);
    list_memory(plan, row);
    json_begin(&j, NULL, '{');
    json_text(&j, "model", setup->train.model);
    json_text(&j, "summary", setup->model->summary);
    json_int(&j, "parameters", sum.parameters);
    json_int(&j, "multiply_adds", sum.multiply_adds);
    json_text(&j, "optim", setup->train.optim);
    json_int(&j, "batch", setup->train.batch);
    json_begin(&j, "memory_bytes", '{');
    for (int i = 0; i < MEMORY_ROWS; i++) json_int(&j, row[i].what, (int64_t)row[i].bytes);
    json_end(&j);
    json_begin(&j, "operations", '[');
    for (int i = 0; i < abar_net_node_count(net); i++) {
        const abar_node_info node = *abar_net_node(net, i);
        print_node_json(&j, &node);
    }
    json_end(&j);
    if (params->splits) print_params_json(&j, setup, params);
    if (setup->method) print_maps_json(&j, setup, maps);
    json_finish(&j);
}

/* ---- the command ---------------------------------------------------------------------------------------------- */

/* The number of classes is in the files alone, and they cannot be read: opening the set says why. */
static abar_status refuse_data(cli *c, const char *spec)
{
    abar_dataset *data = NULL;
    const abar_dataset_config config = {.size = sizeof config};
    const abar_status status = abar_dataset_open(c->ctx, spec, &config, &data);
    abar_dataset_close(data);
    return status;
}

/* The shape without reading the data: synthetic data have the model's own, a text its usual vocabulary. */
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
    if (probe.info.streamed) input[1] = input[2] = setup->train.size;
    return *classes > 0 ? ABAR_OK : refuse_data(c, setup->train.data);
}

static void print_one(const abar_setup *setup, const abar_net *net, const map_list *maps, const param_list *params,
                      const abar_memory_plan *plan)
{
    const int lead = printf("%s: ", setup->train.model);
    print_wrapped_from(stdout, lead, 2, print_width(stdout), setup->model->summary);
    putchar('\n');
    print_nodes(net);
    if (params->splits) print_params(setup, params);
    if (setup->method) print_maps(setup, maps);
    print_memory(setup, plan);
}

static int show_model(cli *c, const abar_setup *setup, bool json)
{
    int64_t input[3], classes;
    abar_device *dev = NULL;
    abar_net *net = NULL;
    abar_memory_plan plan = {.size = sizeof plan};
    map_list maps = {0};
    param_list params = {0};
    abar_status status = find_shape(c, setup, input, &classes);
    if (status >= 0) status = open_device(c, setup->train.device, setup->train.threads, &dev);
    if (status >= 0) status = plan_net(c, setup, dev, input, classes, &net);
    if (status >= 0) status = abar_setup_memory_plan(c->ctx, setup, &plan);
    if (status >= 0) status = list_maps(c, setup, &maps);
    if (status >= 0) status = list_params(c, setup, &params);
    if (status >= 0 && json)
        print_one_json(setup, net, &maps, &params, &plan);
    else if (status >= 0)
        print_one(setup, net, &maps, &params, &plan);
    free(maps.row);
    free(params.row);
    abar_net_destroy(net);
    abar_device_close(dev);
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

/* Whether one model is to be shown: any flag but --json is given. */
static bool is_one(const cli *c)
{
    for (int i = 0; i < c->argc; i++)
        if (strncmp(c->argv[i], "--json", 6) != 0 && strcmp(c->argv[i], "--no-json") != 0) return true;
    return false;
}

static int run(cli *c)
{
    models_flags flags;
    abar_setup *setup = NULL;
    const bool one = is_one(c);
    int code = flags_setup(c, &flags, &setup);
    if (!code && one) code = flags_check(c, setup);
    if (!code) code = one ? show_model(c, setup, flags.json) : list_models(c, flags.json);
    abar_setup_destroy(c->ctx, setup);
    return code;
}

const command command_models = {
    .name = "models",
    .summary = "list the networks; --model NAME shows layers and memory",
    .usage = "[--model NAME] [--batch N] [--flag value ...]",
    .about = "Lists the networks. With --model, shows one: its operations after fusion with their shapes, parameters and "
             "multiply-adds, the implementation of each, and how much memory training it takes. With --optim, also what the "
             "optimizer does with each layer and parameter.",
    .own = own,
    .settings = settings,
    .model_options = true,
    .rule_options = true,
    .examples = "  abar models\n"
                "  abar models --model resnet20 --batch 256 --optim adamw\n"
                "  abar models --model gpt-char --optim mac+muon\n",
    .run = run,
};
