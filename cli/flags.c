/* Reading the command line: --name value, --name=value, --flag, --no-flag; --label.name for one of several optimizers. A word
 * that starts with "--" is always a flag, never a value, so that --model, --data and --optim can be found before the
 * option tables that depend on them are known. */
#include "images.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FLAG_MAX 96   /* no flag is longer, its label included */
#define NAMES_MAX 256 /* flags of one subcommand */

static bool is_flag(const char *word) { return word[0] == '-' && word[1] == '-' && word[2] != '\0'; }

static bool is_listed(const char *name, const char *const *names)
{
    for (; names && *names; names++) {
        if (strcmp(name, *names) == 0) return true;
    }
    return false;
}

const char *flags_peek(const cli *c, const char *name)
{
    const char *value = NULL;
    size_t length = strlen(name);
    for (int i = 0; i < c->argc; i++) {
        const char *word = c->argv[i];
        if (!is_flag(word) || strncmp(word + 2, name, length) != 0) continue;
        if (word[2 + length] == '=')
            value = word + length + 3;
        else if (word[2 + length] == '\0' && i + 1 < c->argc && !is_flag(c->argv[i + 1]))
            value = c->argv[i + 1];
    }
    return value;
}

int flags_all(const cli *c, const char *name, const char **values, int max, int *n)
{
    const size_t length = strlen(name);
    *n = 0;
    for (int i = 0; i < c->argc; i++) {
        const char *word = c->argv[i], *value = NULL;
        if (!is_flag(word) || strncmp(word + 2, name, length) != 0) continue;
        if (word[2 + length] == '=')
            value = word + length + 3;
        else if (word[2 + length] == '\0' && i + 1 < c->argc && !is_flag(c->argv[i + 1]))
            value = c->argv[i + 1];
        if (value && *n == max) return cli_fail(c, EXIT_USAGE, "--%s: more than %d are too many", name, max);
        if (value) values[(*n)++] = value;
    }
    return EXIT_SUCCESS;
}

int flags_resume(const cli *c, const char **folder)
{
    *folder = flags_peek(c, "resume");
    if (!*folder) return EXIT_SUCCESS;
    if (!(*folder)[0])
        return cli_fail(c, EXIT_USAGE, "--resume: the folder has no name, give one, or leave the flag out to start a new run");
    if (path_exists(*folder) && !path_is_folder(*folder))
        return cli_fail(c, EXIT_USAGE, "--resume %s: is a file, give the folder that contains it", *folder);
    return EXIT_SUCCESS;
}

int flags_out(const cli *c)
{
    const char *folder = flags_peek(c, "out");
    if (!folder || folder[0]) return EXIT_SUCCESS;
    return cli_fail(c, EXIT_USAGE, "--out: the folder has no name, give one or leave the flag out");
}

bool flags_ask_help(const cli *c)
{
    for (int i = 0; i < c->argc; i++) {
        if (strcmp(c->argv[i], "--help") == 0 || strcmp(c->argv[i], "-h") == 0) return true;
    }
    return false;
}

bool flags_ask_json(const cli *c)
{
    static const char *const off[] = {"--no-json", "--json=false", "--json=0", "--json=no", NULL};
    bool asked = false;
    if (!c->command || !abar_options_find(c->command->own, "json")) return false;
    for (int i = 0; i < c->argc; i++) {
        if (is_listed(c->argv[i], off))
            asked = false;
        else if (strcmp(c->argv[i], "--json") == 0 || strncmp(c->argv[i], "--json=", 7) == 0)
            asked = true;
    }
    return asked;
}

/* ---- the setups ------------------------------------------------------------------------------------------------- */

void setup_list_destroy(const cli *c, setup_list *list)
{
    for (int i = 0; i < list->n; i++) abar_setup_destroy(c->ctx, list->setup[i]);
    list->n = 0;
}

/* The default of --data. For images of ImageNet's size that is synthetic data. */
static const char *usual_data(const abar_model *model)
{
    if (!model || model->input[0] == 1) return "fashion-mnist";
    if (model->text) return "text";
    return model->input[1] > 64 ? "synthetic" : "cifar10";
}

static int add_recipe(cli *c, const char *label, const char *optim, setup_list *out)
{
    const char *model = flags_peek(c, "model"), *data = flags_peek(c, "data");
    if (!model) model = data && images_named(c, data, NULL) ? "resnet50" : "lenet5";
    const abar_model *known = abar_model_find(model);
    if (!data && c->command->reads_no_data && !(known && known->text)) data = "synthetic";
    if (!data) data = usual_data(known);
    snprintf(out->label[out->n], sizeof out->label[0], "%s", label);
    abar_status status = abar_setup_create(c->ctx, model, data, optim, &out->setup[out->n]);
    if (status < 0) return cli_fail_usage(c, status);
    abar_setup *setup = out->setup[out->n++];
    if (c->command->validation) status = abar_setup_set(c->ctx, setup, "validation", c->command->validation);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

/* Cuts ":N" off "mac:N". *out: N, or 0. */
static int take_seeds(const cli *c, char *entry, int64_t *out)
{
    char *colon = strrchr(entry, ':'), *end;
    *out = 0;
    if (!colon) return EXIT_SUCCESS;
    *out = strtoll(colon + 1, &end, 10);
    if (*end || *out < 1 || *out > ABAR_COMPARE_SEEDS_MAX)
        return cli_fail(c, EXIT_USAGE, "--optim %s: after the colon stands a number of seeds, from 1 to %d, as in mac:3", entry,
                        ABAR_COMPARE_SEEDS_MAX);
    *colon = '\0';
    return EXIT_SUCCESS;
}

static bool has_label(const setup_list *list, const char *label)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->label[i], label) == 0) return true;
    return false;
}

static int add_names_of_all(cli *c, const char *const *names, int64_t seeds, setup_list *out)
{
    for (int code; *names; names++) {
        if (has_label(out, *names)) continue;
        if (out->n == ABAR_COMPARE_METHODS_MAX)
            return cli_fail(c, EXIT_USAGE, "--optim all: more than %d are too many, name fewer", ABAR_COMPARE_METHODS_MAX);
        out->seeds[out->n] = seeds;
        out->of_all[out->n] = true;
        if ((code = add_recipe(c, *names, *names, out)) != EXIT_SUCCESS) return code;
    }
    return EXIT_SUCCESS;
}

/* One entry of "sgd,mac:3,slow=mac,all". */
static int add_labelled_recipe(cli *c, char *entry, setup_list *out)
{
    int64_t seeds;
    char given[ABAR_OPTION_TEXT_MAX];
    snprintf(given, sizeof given, "%s", entry);
    int code = take_seeds(c, entry, &seeds);
    if (code) return code;
    if (strcmp(entry, "all") == 0) {
        code = add_names_of_all(c, abar_rule_names(), seeds, out);
        return code ? code : add_names_of_all(c, abar_method_names(), seeds, out);
    }
    char *equals = strchr(entry, '=');
    if (equals) *equals = '\0';
    if (!entry[0] || (equals && !equals[1]))
        return cli_fail(c, EXIT_USAGE, "--optim: \"%s\" names no optimizer, give NAME or LABEL=NAME, as in sgd,slow=mac",
                        given);
    if (out->n == ABAR_COMPARE_METHODS_MAX)
        return cli_fail(c, EXIT_USAGE, "--optim: more than %d are too many, compare fewer at a time", ABAR_COMPARE_METHODS_MAX);
    if (strlen(entry) >= ABAR_COMPARE_LABEL_MAX)
        return cli_fail(c, EXIT_USAGE, "--optim %s: too long for a label, use at most %d letters", entry,
                        ABAR_COMPARE_LABEL_MAX - 1);
    out->seeds[out->n] = seeds;
    return add_recipe(c, entry, equals ? equals + 1 : entry, out);
}

/* The default of --optim: sgd trains text models badly. */
static const char *usual_optimizer(const cli *c)
{
    const char *model = flags_peek(c, "model");
    const abar_model *known = model ? abar_model_find(model) : NULL;
    return known && known->text ? "adamw" : "sgd";
}

int flags_recipes(cli *c, setup_list *out)
{
    const abar_option *several = abar_options_find(c->command->own, "optim");
    const char *optim = flags_peek(c, "optim");
    *out = (setup_list){0};
    if (!several) return add_recipe(c, "", optim ? optim : usual_optimizer(c), out);
    int code = EXIT_SUCCESS;
    for (const char *at = optim ? optim : several->fallback; at && !code;) {
        char entry[ABAR_OPTION_TEXT_MAX];
        size_t n = strcspn(at, ",");
        const size_t spaces = strspn(at, " ") < n ? strspn(at, " ") : n;
        snprintf(entry, sizeof entry, "%.*s", (int)(n - spaces), at + spaces);
        code = add_labelled_recipe(c, entry, out);
        at = at[n] ? at + n + 1 : NULL;
    }
    if (code) setup_list_destroy(c, out);
    return code;
}

static int make_recipe(cli *c, abar_setup **out)
{
    setup_list list;
    const char *optim = flags_peek(c, "optim");
    *out = NULL;
    if (optim && strpbrk(optim, ",:="))
        return cli_fail(c, EXIT_USAGE, "--optim %s: one optimizer at a time, abar compare takes lists, labels and seeds",
                        optim);
    int code = flags_recipes(c, &list);
    *out = code ? NULL : list.setup[0];
    return code;
}

/* ---- which flags there are ------------------------------------------------------------------------------------ */

bool flags_listen(const cli *c, const char *setting)
{
    if (abar_options_find(c->command->own, setting)) return false; /* the subcommand has its own flag of that name */
    if (c->command->except && strcmp(setting, c->command->except) == 0) return false;
    return c->command->all_settings || is_listed(setting, c->command->settings);
}

bool flags_listen_to(const cli *c, const abar_setup_table *table)
{
    if (strcmp(table->section, "train") == 0) return true; /* flags_listen decides about each row */
    const bool shapes = strcmp(table->section, "model") == 0 || strcmp(table->section, "images") == 0;
    return shapes ? c->command->model_options : c->command->rule_options;
}

/* The option of this name if the subcommand takes it as a flag. */
static const abar_option *find_setting(const cli *c, const abar_setup *setup, const char *name)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n; i++) {
        const abar_option *row = abar_options_find(tables[i].options, name);
        if (row) return flags_listen_to(c, &tables[i]) && (i > 0 || flags_listen(c, name)) ? row : NULL;
    }
    return NULL;
}

/* The setups that a flag applies to: all, or the one with its label. */
typedef struct scope {
    const setup_list *list;
    int only; /* index into list; -1: all */
} scope;

static bool is_inside(const scope *s, int i) { return s->only < 0 || s->only == i; }

/* *own: it is one of the subcommand's own flags. */
static const abar_option *find_flag(const cli *c, const scope *s, const char *name, bool *own)
{
    const abar_option *row = s->only < 0 ? abar_options_find(c->command->own, name) : NULL;
    *own = row != NULL;
    for (int i = 0; i < s->list->n && !row; i++)
        if (is_inside(s, i)) row = find_setting(c, s->list->setup[i], name);
    return row;
}

static int add_names(const abar_option *table, const cli *listener, const char **names, int n)
{
    for (; table && table->name && n < NAMES_MAX - 1; table++) {
        if (is_listed(table->name, names) || (listener && !flags_listen(listener, table->name))) continue;
        names[n++] = table->name;
        names[n] = NULL;
    }
    return n;
}

static const char *nearest_flag(const cli *c, const scope *s, const char *name)
{
    static const char *const synonym[][2] = {
        {"learning-rate", "lr"},     {"batch-size", "batch"},  {"batchsize", "batch"},    {"bs", "batch"},
        {"optimizer", "optim"},      {"opt", "optim"},         {"dataset", "data"},       {"output", "out"},
        {"output-dir", "out"},       {"num-epochs", "epochs"}, {"n-epochs", "epochs"},    {"num-workers", "workers"},
        {"jobs", "threads"},         {"wd", "weight-decay"},   {"weights", "checkpoint"}, {"arch", "model"},
        {"network", "model"},        {"continue", "resume"},   {"gpu", "device"},         {"cuda", "device"},
        {"warmup-epochs", "warmup"}, {"clip-grad", "clip"},    {"log-dir", "out"}};
    const char *names[NAMES_MAX] = {NULL};
    int n = add_names(s->only < 0 ? c->command->own : NULL, NULL, names, 0);
    for (int k = 0; k < s->list->n; k++) {
        abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
        int count = is_inside(s, k) ? abar_setup_tables(s->list->setup[k], tables) : 0;
        for (int i = 0; i < count; i++)
            if (flags_listen_to(c, &tables[i])) n = add_names(tables[i].options, i == 0 ? c : NULL, names, n);
    }
    for (size_t i = 0; i < sizeof synonym / sizeof *synonym; i++) {
        if (strcmp(name, synonym[i][0]) == 0 && is_listed(synonym[i][1], names)) return synonym[i][1];
    }
    return abar_nearest_name(name, names);
}

/* Appends ", name" to a list of owners, if its table has the option. */
static void add_owner(char *owners, size_t size, const char *owner, const abar_option *table, const char *name)
{
    size_t at = strlen(owners);
    if (table && abar_options_find(table, name)) snprintf(owners + at, size - at, "%s%s", at ? ", " : "", owner);
}

/* The models and optimizers that have this option: "mlp" for --widths, "foof, kfac, eva" for --damping. */
static void find_owners(const char *name, char *owners, size_t size)
{
    owners[0] = '\0';
    for (const char *const *model = abar_model_names(); *model; model++)
        add_owner(owners, size, *model, abar_model_find(*model)->options, name);
    for (const char *const *rule = abar_rule_names(); *rule; rule++)
        add_owner(owners, size, *rule, abar_rule_find(*rule)->options, name);
    for (const char *const *method = abar_method_names(); *method; method++)
        add_owner(owners, size, *method, abar_method_find(*method)->options, name);
    add_owner(owners, size, "mac and the other curvature methods", abar_curvature_options(), name);
    add_owner(owners, size, "image folders (--data imagefolder:DIR)", abar_image_options(), name);
}

/* ---- mistakes ------------------------------------------------------------------------------------------------ */

/* full: as typed; name: without the label. */
static int unknown_flag(const cli *c, const scope *s, const char *full, const char *name)
{
    const char *bare = strncmp(name, "no-", 3) == 0 ? name + 3 : name, *verb = c->command->name, *dot = strchr(name, '.');
    const char *near = nearest_flag(c, s, name), *label_end = name != full ? name : full;
    char owners[512];
    find_owners(bare, owners, sizeof owners);
    if (s->only >= 0 && abar_options_find(c->command->own, bare))
        return cli_fail(c, EXIT_USAGE, "--%s: is for the whole comparison, leave the label out", full);
    if (dot && dot > name && dot[1] && !abar_options_find(c->command->own, "optim"))
        return cli_fail(c, EXIT_USAGE, "--%s: abar compare has labels, here it is --%s", full, dot + 1);
    if (abar_options_find(abar_train_options(), bare))
        return cli_fail(c, EXIT_USAGE, "--%s: not a flag of abar %s, see abar %s --help", full, verb, verb);
    if (owners[0]) return cli_fail(c, EXIT_USAGE, "--%s: an option of %s, choose that or leave it out", full, owners);
    if (near)
        return cli_fail(c, EXIT_USAGE, "--%s: no such flag, did you mean --%.*s%s? abar %s --help lists all", full,
                        (int)(label_end - full), full, near, verb);
    return cli_fail(c, EXIT_USAGE, "--%s: no such flag, abar %s --help lists all", full, verb);
}

static int unexpected_word(const cli *c, const char *word)
{
    const char *flag = abar_model_find(word)                            ? "model"
                       : abar_rule_find(word) || abar_method_find(word) ? "optim"
                       : is_listed(word, abar_dataset_names())          ? "data"
                       : !path_exists(word)                             ? NULL
                       : abar_options_find(c->command->own, "resume")   ? "resume"
                                                                        : "checkpoint";
    bool fits = flag && (abar_options_find(c->command->own, flag) ||
                         (abar_options_find(abar_train_options(), flag) && flags_listen(c, flag)));
    if (fits) return cli_fail(c, EXIT_USAGE, "%s: a lone word, did you mean --%s %s?", word, flag, word);
    if (word[0] == '-')
        return cli_fail(c, EXIT_USAGE, "%s: no such flag, they are spelled out: abar %s --help lists all", word,
                        c->command->name);
    if (!word[0]) word = "\"\"";
    return cli_fail(c, EXIT_USAGE, "%s: a lone word, values follow a flag as in --name value, see abar %s --help", word,
                    c->command->name);
}

static int take_folder(cli *c, const char *word, int pass)
{
    if (pass > 0) return EXIT_SUCCESS;
    if (c->folders == c->folders_max && c->folders_max == 1)
        return cli_fail(c, EXIT_USAGE, "%s: one folder at a time, and %s is given already", word, c->folder[0]);
    if (c->folders == c->folders_max)
        return cli_fail(c, EXIT_USAGE, "more than %d folders, give the one above them", c->folders_max);
    c->folder[c->folders++] = word;
    return EXIT_SUCCESS;
}

static int missing_value(const cli *c, const abar_option *option, const char *full)
{
    const char *example = option->fallback && option->fallback[0] ? option->fallback : help_placeholder(option);
    return cli_fail(c, EXIT_USAGE, "--%s: needs a value, as in --%s %s", full, full, example);
}

/* A setting without effect on this model. */
static bool is_idle(const abar_setup *setup, const char *name)
{
    static const char *const texts[] = {"text", "epoch-steps", NULL};
    return !setup->model->text && is_listed(name, texts);
}

static bool reads_folders(const abar_setup *setup)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    return strcmp(tables[abar_setup_tables(setup, tables) - 1].section, "images") == 0;
}

/* A setting that the data determine, unless they are synthetic. --classes of image folders is a file. */
static bool is_of_data(const abar_setup *setup, const char *name)
{
    static const char *const shapes[] = {"image-size", "classes", NULL};
    if (strcmp(name, "classes") == 0 && reads_folders(setup)) return false;
    return is_listed(name, shapes) && strcmp(setup->train.data, "synthetic") != 0;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* --model, --data and --optim, which the setup was made from; a resumed run may repeat them. */
static int set_chosen(cli *c, abar_setup *setup, const char *name, const char *value, const char *resumed)
{
    const abar_train_config *t = &setup->train;
    if (!resumed || abar_setup_set(c->ctx, setup, name, value) >= 0) return EXIT_SUCCESS;
    const char *begun = strcmp(name, "model") == 0 ? t->model : strcmp(name, "data") == 0 ? t->data : t->optim;
    return cli_fail(c, EXIT_USAGE,
                    "--%s %s: %s was started with %s and cannot change it; a new run may start from its weights, with the "
                    "optimizer afresh: --init %s/state.safetensors",
                    name, value, resumed, begun, resumed);
}

/* Whether --LABEL.NAME is among the words; name: the first n letters. */
static bool is_typed(const cli *c, const char *label, const char *name, size_t n)
{
    const size_t before = strlen(label) + 3; /* --LABEL. */
    for (int i = 0; i < c->argc; i++) {
        const char *word = c->argv[i];
        if (!is_flag(word) || strncmp(word + 2, label, before - 3) != 0 || word[before - 1] != '.') continue;
        if (strncmp(word + before, name, n) == 0 && (!word[before + n] || word[before + n] == '=')) return true;
    }
    return false;
}

int flags_refuse(const cli *c, const char *label, abar_status status)
{
    char text[2048];
    size_t at = 0;
    if (!label[0]) return cli_fail_usage(c, status);
    for (const char *from = abar_context_error(c->ctx); *from && at + ABAR_COMPARE_LABEL_MAX + 4 < sizeof text;) {
        const bool flag = is_flag(from) && is_typed(c, label, from + 2, strcspn(from + 2, " :,;.)"));
        if (flag) at += (size_t)snprintf(text + at, sizeof text - at, "--%s.", label);
        if (flag) from += 2;
        text[at++] = *from++;
    }
    text[at] = '\0';
    return cli_fail(c, EXIT_USAGE, "%s", text);
}

static const char *label_of(const scope *s) { return s->only < 0 ? "" : s->list->label[s->only]; }

/* "low.lr", or "lr" without a label. */
static const char *name_typed(const scope *s, const char *name, char typed[FLAG_MAX])
{
    snprintf(typed, FLAG_MAX, "%s%s%s", label_of(s), s->only < 0 ? "" : ".", name);
    return typed;
}

/* The shape that a model would have with this value. The setup is not changed. */
static abar_status read_shape(cli *c, abar_setup *setup, const char *name, const char *value, abar_dataset_info *out)
{
    char before[ABAR_OPTION_TEXT_MAX];
    int64_t input[3];
    const abar_option *table = setup->model->options;
    abar_status status = abar_options_get(c->ctx, table, setup->model_config, name, before, sizeof before);
    if (status >= 0) status = abar_options_set(c->ctx, table, setup->model_config, name, value);
    if (status < 0) return status;
    abar_model_shape(setup->model, setup->model_config, input, &out->classes);
    out->height = input[1];
    out->width = input[2];
    return abar_options_set(c->ctx, table, setup->model_config, name, before);
}

/* --image-size and --classes may be given if they agree with the data; they have no effect then. */
static int check_shape(cli *c, const scope *s, abar_setup *setup, const char *name, const char *value)
{
    abar_dataset_probe data = {.size = sizeof data};
    abar_dataset_info said;
    abar_status status = abar_dataset_probe_name(c->ctx, setup->train.data, &data);
    if (status >= 0) status = read_shape(c, setup, name, value, &said);
    if (status < 0) return flags_refuse(c, label_of(s), status);
    char truth[2 * NUMBER_MAX + 16], typed[FLAG_MAX];
    const abar_dataset_info *is = &data.info;
    const bool classes = strcmp(name, "classes") == 0;
    if (is->text) return EXIT_SUCCESS; /* flags_check refuses a text for a model of images */
    if (classes ? said.classes == is->classes : said.height == is->height && said.width == is->width) return EXIT_SUCCESS;
    if (classes)
        snprintf(truth, sizeof truth, "%" PRId64 " classes", is->classes);
    else
        snprintf(truth, sizeof truth, "images of %" PRId64 " x %" PRId64, is->height, is->width);
    return cli_fail(c, EXIT_USAGE, "--%s %s: %s has %s, leave it out; --data synthetic takes any", name_typed(s, name, typed),
                    value, is->name, truth);
}

/* Sets the flag in every setup of the scope that has it. */
static int set_flag(cli *c, const abar_option *flag, void *own, const scope *s, const char *value, const char *resumed)
{
    static const char *const chosen[] = {"model", "data", "optim", NULL};
    char typed[FLAG_MAX];
    name_typed(s, flag->name, typed);
    if (s->only >= 0 && is_listed(flag->name, chosen))
        return cli_fail(c, EXIT_USAGE, "--%s: cannot differ between the optimizers compared, leave the label out", typed);
    abar_status status = own ? abar_options_set(c->ctx, c->command->own, own, flag->name, value) : ABAR_OK;
    for (int i = 0; i < s->list->n && !own && status >= 0; i++) {
        abar_setup *setup = s->list->setup[i];
        if (!is_inside(s, i) || !find_setting(c, setup, flag->name)) continue;
        if (is_listed(flag->name, chosen)) return set_chosen(c, setup, flag->name, value, resumed);
        if (is_idle(setup, flag->name))
            return cli_fail(c, EXIT_USAGE, "--%s %s: is for models of text, leave it out", typed, value);
        if (is_of_data(setup, flag->name)) return check_shape(c, s, setup, flag->name, value); /* all have the same data */
        status = abar_setup_set(c->ctx, setup, flag->name, value);
    }
    return status < 0 ? flags_refuse(c, label_of(s), status) : EXIT_SUCCESS;
}

/* If name starts with a label, narrows the scope to it. Returns the name without the label. */
static const char *take_label(const char *name, scope *s)
{
    const char *dot = strchr(name, '.');
    for (int i = 0; dot && i < s->list->n; i++) {
        size_t n = strlen(s->list->label[i]);
        if (n > 0 && n == (size_t)(dot - name) && memcmp(name, s->list->label[i], n) == 0) {
            s->only = i;
            return dot + 1;
        }
    }
    return name;
}

/* Reads the flag at *at and moves *at to its last word. Flags with a label are set in the second pass, after those for all. */
static int read_flag(cli *c, int *at, void *own, const setup_list *list, const char *resumed, int pass)
{
    const char *word = c->argv[*at];
    if (!is_flag(word)) return c->folders_max > 0 && word[0] != '-' ? take_folder(c, word, pass) : unexpected_word(c, word);
    const char *joined = strchr(word, '=');
    char full[FLAG_MAX];
    snprintf(full, sizeof full, "%.*s", joined ? (int)(joined - word - 2) : FLAG_MAX - 1, word + 2);
    scope s = {list, -1};
    const char *name = take_label(full, &s);

    bool is_own;
    const abar_option *flag = find_flag(c, &s, name, &is_own);
    bool negated = !flag && strncmp(name, "no-", 3) == 0;
    if (negated) flag = find_flag(c, &s, name + 3, &is_own);
    if (!flag && s.only < 0 && list->label[0][0] && strchr(name, '.') > name)
        return cli_fail(c, EXIT_USAGE, "--%s: %.*s is none of the optimizers compared, see --optim", name,
                        (int)strcspn(name, "."), name);
    if (!flag || (negated && flag->type != ABAR_OPTION_BOOL)) return unknown_flag(c, &s, full, name);

    const char *value = joined ? joined + 1 : NULL;
    if (negated && value) return cli_fail(c, EXIT_USAGE, "--%s: takes no value", full);
    if (!value && flag->type == ABAR_OPTION_BOOL) value = negated ? "false" : "true";
    if (!value) {
        if (*at + 1 == c->argc || is_flag(c->argv[*at + 1])) return missing_value(c, flag, full);
        value = c->argv[++*at];
    }
    if ((s.only >= 0) != (pass == 1)) return EXIT_SUCCESS;
    return set_flag(c, flag, is_own ? own : NULL, &s, value, resumed);
}

int flags_read_list(cli *c, void *own, const setup_list *list, const char *resumed)
{
    abar_options_default(c->command->own, own);
    c->folders = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < c->argc; i++) {
            int code = read_flag(c, &i, own, list, resumed, pass);
            if (code) return code;
        }
    }
    return EXIT_SUCCESS;
}

int flags_read(cli *c, void *own, abar_setup *setup, const char *resumed)
{
    return flags_read_list(c, own, &(setup_list){.n = setup != NULL, .setup = {setup}}, resumed);
}

int flags_setup(cli *c, void *own, abar_setup **out)
{
    int code = make_recipe(c, out);
    return code ? code : flags_read(c, own, *out, NULL);
}

int flags_check(const cli *c, const abar_setup *setup)
{
    abar_status status = abar_setup_check(c->ctx, setup);
    return status < 0 ? cli_fail_usage(c, status) : EXIT_SUCCESS;
}

int flags_check_list(const cli *c, const setup_list *list)
{
    for (int i = 0; i < list->n; i++) {
        abar_status status = abar_setup_check(c->ctx, list->setup[i]);
        if (status < 0) return flags_refuse(c, list->label[i], status);
    }
    return EXIT_SUCCESS;
}
