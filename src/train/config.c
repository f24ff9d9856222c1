/* The settings of a run: their table, a setup that joins them with the model's and the rule's own, and what must hold
 * between them. */
#include "base/json.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(abar_train_config, field)
#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: JSON numbers are doubles */

/* Defaults that depend on model and data are set by recipe.c; here are those of a small problem. */
static const abar_option train_options[] = {
    {"model", ABAR_OPTION_TEXT, AT(model), "", 0, 0, NULL, "network to train, as `abar models` lists them"},
    {"data", ABAR_OPTION_TEXT, AT(data), "", 0, 0, NULL, "data set: NAME, NAME:DIR or text:FILE, as `abar data` lists them"},
    {"optim", ABAR_OPTION_TEXT, AT(optim), "", 0, 0, NULL, "optimizer, as `abar optimizers` lists them"},
    {"epochs", ABAR_OPTION_INT, AT(epochs), "10", 1, 1e6, NULL, "passes over the training set; text: of --epoch-steps each"},
    {"batch", ABAR_OPTION_INT, AT(batch), "128", 1, 1e6, NULL, "samples per optimizer step"},
    {"accumulate", ABAR_OPTION_INT, AT(accumulate), "1", 1, 1e6, NULL, "micro-batches a step's batch is split into"},
    {"micro", ABAR_OPTION_INT, AT(micro), "0", 0, 1e6, NULL,
     "samples of a micro-batch; their gradients are summed in an order that is the same for any number of ranks; 0: as "
     "--accumulate says, with several ranks batch / ranks"},
    {"reduce", ABAR_OPTION_CHOICE, AT(reduce), "fixed", 0, 0, "fixed|fast",
     "order of sums over ranks: fixed, with the same bits on any number of them, or the transport's fastest"},
    {"zero", ABAR_OPTION_INT, AT(zero), "0", 0, 1, NULL,
     "1: each of several ranks keeps the optimizer's state of a part of the parameters, and updates these; 0: of all"},
    {"transport", ABAR_OPTION_CHOICE, AT(transport), "auto", 0, 0, "auto|host|nccl",
     "how ranks on cuda exchange: through the host's memory, or over NCCL; auto: NCCL where every rank has a GPU of its own"},
    {"check-replicas", ABAR_OPTION_INT, AT(check_replicas), "0", 0, 1e12, NULL,
     "steps between comparisons of the ranks' weights and state; 0: before they are saved only"},
    {"lr", ABAR_OPTION_REAL, AT(lr), "0.05", 0, 1e6, NULL, "learning rate at its peak"},
    {"final-lr", ABAR_OPTION_REAL, AT(final_lr), "0", 0, 1e6, NULL, "learning rate at the end of the cosine"},
    {"weight-decay", ABAR_OPTION_REAL, AT(weight_decay), "5e-4", 0, 1e6, NULL, "weight decay"},
    {"decay-all", ABAR_OPTION_BOOL, AT(decay_all), "true", 0, 0, NULL, "decay biases and norms too"},
    {"clip", ABAR_OPTION_REAL, AT(clip), "0", 0, 1e9, NULL, "largest norm of the whole gradient, 0: any"},
    {"label-smoothing", ABAR_OPTION_REAL, AT(label_smoothing), "0", 0, 0.999, NULL,
     "share of the target spread over all classes"},
    {"schedule", ABAR_OPTION_CHOICE, AT(schedule), "cosine", 0, 0, "cosine|step|constant", "how the learning rate falls"},
    {"schedule-per-epoch", ABAR_OPTION_BOOL, AT(schedule_per_epoch), "false", 0, 0, NULL,
     "change the rate every epoch instead of every step"},
    {"warmup", ABAR_OPTION_REAL, AT(warmup), "0", 0, 1e6, NULL,
     "epochs, or part of one, in which the rate rises from 0; the default is at most half of --epochs"},
    {"augment", ABAR_OPTION_BOOL, AT(augment), "false", 0, 0, NULL,
     "pad by 4, crop at random, mirror half of the images at random; image folders: as their own options say"},
    {"text", ABAR_OPTION_CHOICE, AT(text), "characters", 0, 0, "characters|bytes", "of texts: what a token is"},
    {"epoch-steps", ABAR_OPTION_INT, AT(epoch_steps), "250", 0, 1e9, NULL,
     "of texts: steps per epoch; 0: as many as read the text once"},
    {"device", ABAR_OPTION_TEXT, AT(device), "cpu", 0, 0, NULL,
     "where to compute: cpu, cuda, cuda:N, or ref in double precision"},
    {"precision", ABAR_OPTION_CHOICE, AT(precision), "auto", 0, 0, "auto|fp32|tf32|bf16",
     "of activations and products; auto: bf16 on cuda, fp32 elsewhere"},
    {"threads", ABAR_OPTION_INT, AT(threads), "0", 0, 4096, NULL,
     "threads that compute, 0: all cores, divided by the ranks of this machine"},
    {"workers", ABAR_OPTION_INT, AT(workers), "1", 0, 256, NULL, "threads that prepare batches ahead, 0: none"},
    {"seed", ABAR_OPTION_INT, AT(seed), "0", 0, SEED_MAX, NULL, "seed of weights, order and augmentation"},
    {"limit-train", ABAR_OPTION_INT, AT(limit_train), "0", 0, 1e12, NULL,
     "use only the first N training images, or characters of a text; 0: all"},
    {"limit-test", ABAR_OPTION_INT, AT(limit_test), "0", 0, 1e12, NULL,
     "use only the first N test images, or characters of a text; 0: all"},
    {"validation", ABAR_OPTION_REAL, AT(validation), "0", 0, 0.499, NULL,
     "fraction of the training set that is held out and measured in place of the test set; 0: none"},
    {"validation-seed", ABAR_OPTION_INT, AT(validation_seed), "0", 0, SEED_MAX, NULL,
     "seed of the draw of validation images; independent of --seed, so that all runs share it"},
    {"stop-after", ABAR_OPTION_INT, AT(stop_after), "0", 0, 1e6, NULL,
     "stop after N epochs without changing the schedule; 0: off"},
    {"checkpoint-every", ABAR_OPTION_INT, AT(checkpoint_every), "0", 0, 1e12, NULL, "steps between checkpoints, 0: each epoch"},
    {"snapshot", ABAR_OPTION_TEXT, AT(snapshot), "", 0, 0, NULL,
     "epochs, as 0,12,25, whose weights are kept in snapshots/; 0: before the first"},
    {"diagnose", ABAR_OPTION_INT, AT(diagnose), "0", 0, 1e12, NULL,
     "steps between diagnostics of every layer's curvature, 0: off"},
    {"deterministic", ABAR_OPTION_BOOL, AT(deterministic), "false", 0, 0, NULL, "fixed kernels instead of measured ones"},
    {"accept-data", ABAR_OPTION_BOOL, AT(accept_data), "false", 0, 0, NULL,
     "with --resume: continue although the data set has changed"},
    {"init", ABAR_OPTION_TEXT, AT(init), "", 0, 0, NULL, "begin with the weights of this safetensors file"},
    {"out", ABAR_OPTION_TEXT, AT(out), "", 0, 0, NULL, "folder for checkpoint, logs and export"},
    {"ema", ABAR_OPTION_REAL, AT(ema), "0", 0, 0.99999999, NULL,
     "average the weights with this decay, and test and export the average too; 0: off"},
    {"ema-steps", ABAR_OPTION_INT, AT(ema_steps), "32", 1, 1e9, NULL, "steps between two updates of that average"},
    {0},
};

#define NAMES_MAX 128 /* names compared with a misspelt one */

static const abar_option no_options[] = {{0}};

/* ---- making --------------------------------------------------------------------------------------------------- */

static abar_status refuse_name(abar_context *ctx, const char *what, const char *name, const char *const *names,
                               const char *list)
{
    const char *near = abar_nearest_name(name, names);
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "--%s %.80s: no such %s%s%s, `%s` lists them", what, name, what,
                      near ? ", did you mean " : "", near ? near : "", list);
}

static abar_status check_data_name(abar_context *ctx, const char *spec)
{
    char name[ABAR_OPTION_TEXT_MAX];
    if (strcmp(spec, ABAR_OWN_DATA) == 0) return ABAR_OK;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
    for (const char *const *known = abar_dataset_names(); *known; known++)
        if (strcmp(*known, name) == 0) return ABAR_OK;
    if (abar__path_exists(spec))
        return abar__fail(ctx, ABAR_E_NOT_FOUND,
                          "--data %.80s: a path alone does not say what it holds, give text:FILE or NAME:DIR, as in "
                          "imagefolder:DIR, `abar data` lists the names",
                          spec);
    return refuse_name(ctx, "data", name, abar_dataset_names(), "abar data");
}

/* Settings go into JSON files, which are UTF-8. */
static abar_status check_text(abar_context *ctx, const char *name, const char *text)
{
    size_t n = strlen(text);
    if (n >= ABAR_OPTION_TEXT_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s %.40s...: too long, use a shorter name", name, text);
    if (!abar__utf8_valid(text, n)) return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s: not UTF-8 text, use another name", name);
    return ABAR_OK;
}

/* What an optimizer's name stands for: RULE, METHOD (on sgd) or METHOD+RULE. */
static abar_status find_optimizer(abar_context *ctx, const char *name, const abar_rule **rule, const abar_method **method)
{
    char part[64];
    const char *plus = strchr(name, '+');
    snprintf(part, sizeof part, "%.*s", (int)(plus ? plus - name : (long)strlen(name)), name);
    *method = abar_method_find(part);
    *rule = abar_rule_find(plus ? plus + 1 : *method ? "sgd" : part);
    if (plus ? *rule && *method : *rule != NULL) return ABAR_OK;
    const char *names[NAMES_MAX + 1];
    int n = 0;
    for (const char *const *m = abar_method_names(); *m; m++) names[n++] = *m;
    for (const char *const *r = abar_rule_names(); *r; r++) names[n++] = *r;
    names[n] = NULL;
    const char *wrong = plus && *method ? plus + 1 : part, *near = abar_nearest_name(wrong, names);
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "--optim %.80s: no such optimizer%s%s, `abar optimizers` lists them", name,
                      near ? ", did you mean " : "", near ? near : "");
}

static abar_status alloc_setup(abar_context *ctx, const abar_setup *kinds, abar_setup **out)
{
    void *setup, *model_config = NULL, *rule_config = NULL, *method_config = NULL, *curvature = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_setup), &setup));
    abar_status status = abar__alloc(ctx, kinds->model->config_size, &model_config);
    if (status == ABAR_OK) status = abar__alloc(ctx, kinds->rule->config_size, &rule_config);
    if (status == ABAR_OK && kinds->method) status = abar__alloc(ctx, kinds->method->config_size, &method_config);
    if (status == ABAR_OK) status = abar__alloc(ctx, abar_curvature_config_size(), &curvature);
    *out = setup;
    **out = (abar_setup){.model = kinds->model,
                         .model_config = model_config,
                         .rule = kinds->rule,
                         .rule_config = rule_config,
                         .method = kinds->method,
                         .method_config = method_config,
                         .curvature_config = curvature};
    if (status == ABAR_OK) return ABAR_OK;
    abar_setup_destroy(ctx, *out);
    *out = NULL;
    return status;
}

abar_status abar_setup_create(abar_context *ctx, const char *model, const char *data, const char *optim, abar_setup **out)
{
    *out = NULL;
    if (!model || !data || !optim)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "setup: a model, a data set and an optimizer are needed, name all three");
    abar_setup kinds = {.model = strcmp(model, ABAR_OWN_MODEL) == 0 ? &abar__own_model : abar_model_find(model)};
    if (!kinds.model) return refuse_name(ctx, "model", model, abar_model_names(), "abar models");
    ABAR_TRY(find_optimizer(ctx, optim, &kinds.rule, &kinds.method));
    ABAR_TRY(check_data_name(ctx, data));
    ABAR_TRY(check_text(ctx, "data", data));
    abar_setup *setup;
    ABAR_TRY(alloc_setup(ctx, &kinds, &setup));
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n; i++) abar_options_default(tables[i].options, tables[i].config);
    abar_train_config *train = &setup->train;
    abar_options_default(abar_image_options(), train);
    snprintf(train->model, sizeof train->model, "%s", kinds.model->name);
    snprintf(train->data, sizeof train->data, "%s", data);
    snprintf(train->optim, sizeof train->optim, "%s", optim);
    abar_status status = abar__recipe_apply(ctx, setup);
    if (status < 0) {
        abar_setup_destroy(ctx, setup);
        return status;
    }
    *out = setup;
    return ABAR_OK;
}

abar_status abar__setup_copy(abar_context *ctx, const abar_setup *from, abar_setup **out)
{
    ABAR_TRY(alloc_setup(ctx, from, out));
    (*out)->train = from->train;
    (*out)->dataset = from->dataset;
    memcpy((*out)->curvature_config, from->curvature_config, abar_curvature_config_size());
    if (from->model_config) memcpy((*out)->model_config, from->model_config, from->model->config_size);
    if (from->rule_config) memcpy((*out)->rule_config, from->rule_config, from->rule->config_size);
    if (from->method_config) memcpy((*out)->method_config, from->method_config, from->method->config_size);
    return ABAR_OK;
}

void abar_setup_destroy(abar_context *ctx, abar_setup *setup)
{
    if (!setup) return;
    if (setup->model_config) abar__free(ctx, setup->model_config, setup->model->config_size);
    if (setup->rule_config) abar__free(ctx, setup->rule_config, setup->rule->config_size);
    if (setup->method_config) abar__free(ctx, setup->method_config, setup->method->config_size);
    abar__free(ctx, setup->curvature_config, abar_curvature_config_size());
    abar__free(ctx, setup, sizeof *setup);
}

/* ---- setting -------------------------------------------------------------------------------------------------- */

const abar_option *abar_train_options(void) { return train_options; }

int abar_setup_tables(const abar_setup *setup, abar_setup_table out[ABAR_SETUP_TABLES_MAX])
{
    abar_setup *s = (abar_setup *)(uintptr_t)setup; /* written to only where the setup itself is not const */
    const abar_option *model = s->model->options, *rule = s->rule->options;
    int n = 0;
    out[n++] = (abar_setup_table){"train", "train", train_options, &s->train};
    out[n++] = (abar_setup_table){"model", s->model->name, model ? model : no_options, s->model_config};
    out[n++] = (abar_setup_table){"optimizer", s->rule->name, rule ? rule : no_options, s->rule_config};
    if (s->method) {
        out[n++] = (abar_setup_table){"curvature", "curvature", abar_curvature_options(), s->curvature_config};
        out[n++] = (abar_setup_table){"method", s->method->name, s->method->options, s->method_config};
    }
    if (abar__is_streamed(&s->train)) out[n++] = (abar_setup_table){"images", "image folders", abar_image_options(), &s->train};
    return n;
}

static abar_status refuse_option(abar_context *ctx, const abar_setup_table *tables, int count, const char *name)
{
    const char *names[NAMES_MAX + 1];
    int n = 0;
    if (abar_options_find(abar_image_options(), name))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--%.80s: is for image folders, leave it out", name);
    for (int i = 0; i < count; i++)
        for (const abar_option *o = tables[i].options; o->name && n < NAMES_MAX; o++) names[n++] = o->name;
    names[n] = NULL;
    const char *near = abar_nearest_name(name, names);
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "--%.80s: no such option%s%s", name, near ? ", did you mean --" : "",
                      near ? near : "");
}

static bool same_data_name(const char *a, const char *b)
{
    size_t n = strcspn(a, ":");
    return n == strcspn(b, ":") && memcmp(a, b, n) == 0;
}

/* A setup's defaults depend on its model, data set and optimizer, so these are fixed; the data may be in another folder. */
static abar_status check_fixed(abar_context *ctx, const abar_setup *setup, const char *name, const char *text)
{
    const abar_train_config *train = &setup->train;
    bool same = true;
    if (strcmp(name, "model") == 0) same = strcmp(text, train->model) == 0;
    if (strcmp(name, "optim") == 0) same = strcmp(text, train->optim) == 0;
    if (strcmp(name, "data") == 0) same = same_data_name(text, train->data);
    if (same) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s %.80s: this setup was made for another one, make a new setup", name, text);
}

/* A recipe's warm-up is for a run of the recipe's length. In a shorter run it takes at most half of the epochs, unless the user
 * sets it. */
static void fit_warmup(abar_train_config *train, const char *name)
{
    if (strcmp(name, "warmup") == 0) train->recipe_warmup = 0.0;
    if (strcmp(name, "epochs") == 0 && train->recipe_warmup > 0.0)
        train->warmup = fmin(train->recipe_warmup, 0.5 * (double)train->epochs);
}

abar_status abar_setup_set(abar_context *ctx, abar_setup *setup, const char *name, const char *text)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    int n = abar_setup_tables(setup, tables);
    if (text) {
        ABAR_TRY(check_text(ctx, name, text));
        ABAR_TRY(check_fixed(ctx, setup, name, text));
    }
    for (int i = n - 1; i >= 0; i--) /* the last first: --classes of image folders hides that of models, which has no effect */
        if (abar_options_find(tables[i].options, name)) {
            ABAR_TRY(abar_options_set(ctx, tables[i].options, tables[i].config, name, text));
            if (tables[i].config == &setup->train) fit_warmup(&setup->train, name);
            return ABAR_OK;
        }
    return refuse_option(ctx, tables, n, name);
}

/* ---- checking ------------------------------------------------------------------------------------------------- */

bool abar__is_cuda(const abar_train_config *train) { return strncmp(train->device, "cuda", 4) == 0; }

static abar_status check_device(abar_context *ctx, const abar_train_config *train)
{
    static const char *const precisions[] = {"auto", "fp32", "tf32", "bf16"};
    const size_t length = strcspn(train->device, ":");
    const char *const *name = abar_device_names();
    while (*name && (strlen(*name) != length || strncmp(*name, train->device, length) != 0)) name++;
    if (!*name) {
        char list[64] = "";
        for (name = abar_device_names(); *name; name++)
            snprintf(list + strlen(list), sizeof list - strlen(list), ", %s", *name);
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "--device %.80s: not in this build, choose one of %s", train->device,
                          list + 2);
    }
    if (train->transport == ABAR_TRANSPORT_NCCL && !abar__is_cuda(train))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--transport nccl: is for GPUs, give --device cuda or leave it out");
    if (abar__is_cuda(train) || train->precision <= ABAR_CHOICE_FP32) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_UNSUPPORTED, "--precision %s: device %s computes in %s only, use --precision fp32",
                      precisions[train->precision], train->device,
                      strcmp(train->device, "ref") == 0 ? "double precision" : "fp32");
}

/* Text models need a text, image models need images. */
static abar_status check_text_model(abar_context *ctx, const abar_setup *setup)
{
    const bool text = same_data_name(setup->train.data, "text"), reads = setup->model->text;
    if (reads && text && setup->train.augment)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--augment: crops and mirrors images, %s reads text, leave it out",
                          setup->train.model);
    if (text == reads) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      reads ? "--data %.80s: %s reads text, give --data text:FILE"
                            : "--data %.80s: %s reads images, choose a model of text, as gpt-char",
                      setup->train.data, setup->train.model);
}

static abar_status check_validation(abar_context *ctx, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    if (train->validation > 0.0 && train->limit_test > 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--limit-test: with --validation a part of the training set is measured, and what sweep and tune "
                          "choose on all of the test set; leave it out, or give --validation 0");
    if (train->validation_seed == 0) return ABAR_OK;
    if (setup->model->text)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--validation-seed: the end of a text is held out, not a draw, leave it out");
    if (train->validation == 0.0)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--validation-seed: there is no validation part, give --validation or leave it out");
    return ABAR_OK;
}

static abar_status check_micro(abar_context *ctx, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    const long long micro = train->micro, batch = train->batch;
    if (micro == 0) return ABAR_OK;
    if (micro < 0 || batch % micro != 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--micro %lld: does not divide the batch of %lld, choose a divisor", micro,
                          batch);
    if (train->accumulate > 1 && train->accumulate != batch / micro)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--accumulate %lld: --micro %lld makes %lld micro-batches of a batch of %lld, leave one of them out",
                          (long long)train->accumulate, micro, batch / micro, batch);
    if (setup->method && abar_method_takes_whole_batch(setup->method->name))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--micro %lld: %s needs the gradients of all examples together, leave it out and lower --batch",
                          micro, setup->method->name);
    return ABAR_OK;
}

/* A program may have written to the setup itself. */
static abar_status check_batch(abar_context *ctx, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    if (train->batch < 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--batch %lld: out of range, give at least 1", (long long)train->batch);
    if (train->accumulate < 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--accumulate %lld: out of range, give at least 1",
                          (long long)train->accumulate);
    if (train->batch % train->accumulate != 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--accumulate %lld: does not divide the batch of %lld, choose a divisor",
                          (long long)train->accumulate, (long long)train->batch);
    ABAR_TRY(check_micro(ctx, setup));
    if (train->accumulate > 1 && setup->method && abar_method_takes_whole_batch(setup->method->name))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--accumulate %lld: %s needs the gradients of all examples together, leave it out and lower --batch",
                          (long long)train->accumulate, setup->method->name);
    return ABAR_OK;
}

static abar_status check_average(abar_context *ctx, const abar_train_config *train)
{
    const abar_option *steps = abar_options_find(train_options, "ema-steps");
    if (train->ema > 0.0 ? train->ema_steps >= 1 : train->ema_steps == strtoll(steps->fallback, NULL, 10)) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      train->ema > 0.0 ? "--ema-steps %lld: out of range, give at least 1"
                                       : "--ema-steps %lld: there is no average of the weights, give --ema or leave it out",
                      (long long)train->ema_steps);
}

/* A rule that averages its weights does so in place of a falling rate, and of another average. */
static abar_status check_averaging_rule(abar_context *ctx, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    if (!setup->rule->averages) return ABAR_OK;
    if (train->schedule != ABAR_SCHEDULE_CONSTANT)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--schedule: %s averages the weights in place of a schedule, set --schedule constant",
                          setup->rule->name);
    if (train->ema > 0.0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--ema: %s averages the weights itself, leave it out", setup->rule->name);
    return ABAR_OK;
}

abar_status abar_setup_check(abar_context *ctx, const abar_setup *setup)
{
    ABAR_TRY(abar__settings_check(ctx, setup));
    return abar__own_check(ctx, setup);
}

abar_status abar__settings_check(abar_context *ctx, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    ABAR_TRY(check_device(ctx, train));
    ABAR_TRY(check_data_name(ctx, train->data));
    ABAR_TRY(check_text_model(ctx, setup));
    ABAR_TRY(check_batch(ctx, setup));
    ABAR_TRY(abar__images_check(ctx, train));
    if (train->warmup > (double)train->epochs)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--warmup %g: longer than the run, --epochs %lld, choose less", train->warmup,
                          (long long)train->epochs);
    if (train->final_lr > train->lr)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--final-lr %g: above --lr %g, from which the rate falls, choose less",
                          train->final_lr, train->lr);
    if (train->limit_train > 0 && train->limit_train < train->batch)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--limit-train %lld: less than one batch of %lld, raise it or lower --batch",
                          (long long)train->limit_train, (long long)train->batch);
    ABAR_TRY(check_validation(ctx, setup));
    ABAR_TRY(check_average(ctx, train));
    ABAR_TRY(check_averaging_rule(ctx, setup));
    ABAR_TRY(abar__snapshot_check(ctx, train));
    if (train->diagnose > 0 && !setup->method)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--diagnose: %s has no curvature to look at, choose mac or leave it out",
                          train->optim);
    ABAR_TRY(abar_rule_check(ctx, setup->rule, setup->rule_config));
    return setup->method ? abar_method_check(ctx, setup->method, setup->method_config) : ABAR_OK;
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

/* On resume: these would make the checkpoint meaningless ... */
static bool must_stay(const char *name)
{
    static const char *const fixed[] = {
        "batch",           "limit-train", "seed",         "stat-decay", "skip-layers", "first-layer",
        "pgrad",           "kfac",        "kfac-inverse", "text",       "epoch-steps", "validation",
        "validation-seed", "normuon",     "muon-take",    "muon-skip",  NULL};
    for (const char *const *f = fixed; *f; f++)
        if (strcmp(name, *f) == 0) return true;
    return false;
}

/* ... and these change no number that comes out; data is compared by its name above, and by its content in checkpoint.c. */
static bool is_harmless(const char *name)
{
    static const char *const free_to_change[] = {"out",        "workers",        "stop-after",  "checkpoint-every", "diagnose",
                                                 "data",       "limit-test",     "accept-data", "snapshot",         "classes",
                                                 "val-labels", "check-replicas", "zero",        "transport",        NULL};
    for (const char *const *f = free_to_change; *f; f++)
        if (strcmp(name, *f) == 0) return true;
    return false;
}

/* Whether --damping needs the mean of |a|^2. */
static bool follows_trace(const char *damping)
{
    return strcmp(damping, "adaptive") == 0 || strncmp(damping, "trace:", 6) == 0;
}

/* --damping between a number and what follows the trace, --momentum and --ema between none and some: other state is kept. */
static bool changes_kind(const char *name, const char *before, const char *after)
{
    if (strcmp(name, "damping") == 0) return follows_trace(before) != follows_trace(after);
    if (strcmp(name, "momentum") != 0 && strcmp(name, "ema") != 0) return false;
    return strcmp(before, "0") == 0 || strcmp(after, "0") == 0;
}

static abar_status compare_table(abar_context *ctx, const abar_setup_table *was, const abar_setup_table *now, bool fixed)
{
    for (const abar_option *o = now->options; o->name; o++) {
        char before[ABAR_OPTION_TEXT_MAX], after[ABAR_OPTION_TEXT_MAX];
        ABAR_TRY(abar_options_get(ctx, was->options, was->config, o->name, before, sizeof before));
        ABAR_TRY(abar_options_get(ctx, now->options, now->config, o->name, after, sizeof after));
        if (strcmp(before, after) == 0 || is_harmless(o->name)) continue;
        if (strcmp(o->name, "init") == 0)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--init %.80s: the run to resume has its weights already, leave it out or start a new run",
                              after);
        bool other_kind = changes_kind(o->name, before, after);
        if (fixed || must_stay(o->name) || other_kind)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--%s %.80s: the run to resume was made with %.80s, leave it out or start a new run", o->name,
                              after, before);
        abar__log(ctx, ABAR_LOG_INFO, "resume: --%s is %s now, was %s", o->name, after, before);
    }
    return ABAR_OK;
}

abar_status abar__setup_compare(abar_context *ctx, const abar_setup *was, const abar_setup *now)
{
    const struct {
        const char *name, *before, *after;
        bool same;
    } named[] = {
        {"model", was->train.model, now->train.model, was->model == now->model},
        {"optim", was->train.optim, now->train.optim, was->rule == now->rule && was->method == now->method},
        {"data", was->train.data, now->train.data, same_data_name(was->train.data, now->train.data)},
    };
    for (int i = 0; i < 3; i++)
        if (!named[i].same)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--%s %s: the run to resume was made with %s; a new run may begin with its weights: --init "
                              "%s/state.safetensors",
                              named[i].name, named[i].after, named[i].before, now->train.out);
    abar_setup_table before[ABAR_SETUP_TABLES_MAX], after[ABAR_SETUP_TABLES_MAX];
    abar_setup_tables(was, before);
    int n = abar_setup_tables(now, after);
    for (int i = 0; i < n; i++) ABAR_TRY(compare_table(ctx, &before[i], &after[i], i == 1));
    return ABAR_OK;
}
