/* Settings: recipes, setting and checking, JSON and back. */
#include "train_support.h"

/* ---- recipes -------------------------------------------------------------------------------------------------- */

static void recipe_of_resnet_on_cifar_is_the_papers(void **state)
{
    fixture *f = *state;
    abar_setup *s;
    need(f, abar_setup_create(f->ctx, "resnet20", "cifar10:/data", "sgd", &s));
    assert_int_equal(s->train.epochs, 50);
    assert_int_equal(s->train.batch, 128);
    assert_true(s->train.lr == 0.1 && s->train.weight_decay == 5e-4);
    assert_true(s->train.schedule_per_epoch && s->train.augment && s->train.decay_all);
    assert_int_equal(s->train.schedule, ABAR_SCHEDULE_COSINE);
    abar_setup_destroy(f->ctx, s);
    need(f, abar_setup_create(f->ctx, "resnet110", "cifar100", "adamw", &s));
    assert_true(s->train.lr == 1e-3 && s->train.weight_decay == 0.5);
    assert_int_equal(s->train.epochs, 50);
    abar_setup_destroy(f->ctx, s);
    const char *const others[] = {"wrn28-10", "densenet121"};
    for (int i = 0; i < 2; i++) {
        need(f, abar_setup_create(f->ctx, others[i], "cifar10:/data", "mac", &s));
        assert_int_equal(s->train.epochs, 50);
        assert_true(s->train.lr == 0.1 && s->train.weight_decay == 5e-4);
        assert_true(s->train.schedule_per_epoch && s->train.augment);
        abar_setup_destroy(f->ctx, s);
    }
}

static void recipe_of_lenet5_on_fashion_mnist_is_short_and_plain(void **state)
{
    fixture *f = *state;
    abar_setup *s;
    need(f, abar_setup_create(f->ctx, "lenet5", "fashion-mnist", "sgd", &s));
    assert_int_equal(s->train.epochs, 10);
    assert_int_equal(s->train.batch, 128);
    assert_false(s->train.augment || s->train.schedule_per_epoch);
    assert_string_equal(s->train.device, "cpu");
    assert_string_equal(s->train.data, "fashion-mnist");
    abar_setup_destroy(f->ctx, s);
}

static double real_of(fixture *f, const abar_setup *s, const char *name)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    char text[ABAR_OPTION_TEXT_MAX];
    const int n = abar_setup_tables(s, tables);
    for (int i = 0; i < n; i++) {
        if (!abar_options_find(tables[i].options, name)) continue;
        need(f, abar_options_get(f->ctx, tables[i].options, tables[i].config, name, text, sizeof text));
        bool set = strcmp(text, "decoupled") == 0 || strcmp(text, "true") == 0; /* coupled, false: 0 */
        return set ? 1.0 : strtod(text, NULL);
    }
    fail_msg("no option %s", name);
    return 0.0;
}

/* "name=number ..." */
static void assert_settings(fixture *f, const abar_setup *s, const char *settings)
{
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        if (real_of(f, s, word) != strtod(value + 1, NULL))
            fail_msg("%s on %s with %s: %s is %g, expected %s", s->train.model, s->train.data, s->train.optim, word,
                     real_of(f, s, word), value + 1);
    }
}

/* What a recipe sets. */
static void assert_recipe(fixture *f, const char *model, const char *data, const char *optim, const char *settings)
{
    abar_setup *s;
    need(f, abar_setup_create(f->ctx, model, "synthetic", optim, &s));
    strcpy(s->train.data, data); /* may be a set that this build cannot read */
    need(f, abar__recipe_apply(f->ctx, s));
    assert_settings(f, s, settings);
    const bool folders = strncmp(data, "image", 5) == 0;
    assert_true(s->train.decay_all == (strncmp(model, "resnet", 6) == 0 && !folders));
    assert_false(s->train.schedule_per_epoch);
    assert_int_equal(s->train.schedule, ABAR_SCHEDULE_COSINE);
    abar_setup_destroy(f->ctx, s);
}

/* methods.md section 0: what one `abar compare` of all methods on CIFAR runs with. */
static void recipes_of_the_cifar_table_are_the_papers(void **state)
{
    static const char *const common = "epochs=50 batch=128 label-smoothing=0 warmup=0 final-lr=0";
    static const struct {
        const char *optim, *settings;
    } row[] = {{"sgd", "lr=0.1 weight-decay=5e-4 momentum=0.9"},
               {"mac", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 damping=1"},
               {"smac", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 damping=1"},
               {"foof", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 damping=1"},
               {"kfac", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 damping=0.03 kl-clip=1e-3"},
               {"eva", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 damping=0.03 kl-clip=1e-3"},
               {"lngd", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 nu1=1e-5 nu2=1e-2 mu=0.03"},
               {"skfac", "lr=0.005 weight-decay=5e-4 momentum=0.9 tcov=5 tinv=50 damping=0.03 kl-clip=1e-3"},
               {"kpsvd", "lr=0.1 weight-decay=5e-4 momentum=0.9 stat-decay=0.95 tcov=5 tinv=50 damping=0.03 kl-clip=1e-3"},
               {"kbfgs", "lr=0.3 weight-decay=1e-5 momentum=0.9 stat-decay=0.9 damping=0.3 kbfgs-pairs=0 kbfgs-decay=0.9"},
               {"mfac", "lr=1e-3 weight-decay=0 momentum=0 damping=1e-5 mfac-gradients=1024"},
               {"adamw", "lr=1e-3 weight-decay=0.5 beta1=0.9 beta2=0.999 eps=1e-8"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, "resnet110", "cifar10", row[i].optim, &s));
        assert_settings(f, s, common);
        assert_settings(f, s, row[i].settings);
        assert_true(s->train.schedule_per_epoch && s->train.augment && s->train.decay_all);
        assert_int_equal(s->train.schedule, ABAR_SCHEDULE_COSINE);
        abar_setup_destroy(f->ctx, s);
    }
}

static void recipes_of_imagenet_resnets_are_the_papers(void **state)
{
    fixture *f = *state;
    const char *all = "epochs=100 batch=1024 warmup=5 label-smoothing=0.1 augment=1";
    assert_recipe(f, "resnet50", "imagefolder:/data", "sgd", all);
    assert_recipe(f, "resnet101", "imagefolder:/data", "mac", all);
    assert_recipe(f, "resnet101", "imagefolder:/data", "sgd", "lr=0.5 weight-decay=2e-5 decay=0");
    assert_recipe(f, "resnet50", "imagefolder:/data", "mac", "lr=0.5 weight-decay=2e-5 decay=0 damping=1 tcov=5 tinv=50");
    assert_recipe(f, "resnet50", "imagefolder:/data", "eva", "lr=0.5 weight-decay=2e-5 damping=0.03");
    assert_recipe(f, "resnet50", "imagefolder:/data", "adamw", "lr=1e-3 weight-decay=0.05 beta2=0.999");
    assert_recipe(f, "resnet50", "synthetic", "sgd", "epochs=5 batch=128 warmup=0 label-smoothing=0");
}

static void recipes_of_transformers_are_those_of_the_list(void **state)
{
    fixture *f = *state;
    const char *small = "epochs=30 batch=256 warmup=1 label-smoothing=0.1 lr=0.125 drop-path=0";
    assert_recipe(f, "deit-tiny", "cifar10:/data", "sgd", small);
    assert_recipe(f, "deit-tiny", "cifar10:/data", "sgd", "decay=0");
    assert_recipe(f, "deit-tiny", "cifar10:/data", "mac", small);
    assert_recipe(f, "deit-tiny", "cifar10:/data", "mac", "damping=1 tinv=5 weight-decay=1e-4 decay=1");
    assert_recipe(f, "deit-small", "cifar100", "adamw", "epochs=30 batch=256 lr=1e-3 weight-decay=0.05 beta2=0.999");
    assert_recipe(f, "deit-small", "cifar100", "mac+adamw", "lr=1e-3 weight-decay=0.05 tinv=5");
    assert_recipe(f, "swin-tiny", "imagefolder:/data", "sgd", "epochs=100 batch=1024 warmup=5 lr=0.5 weight-decay=2e-5");
    assert_recipe(f, "deit-small", "imagefolder:/data", "mac", "lr=0.5 weight-decay=1e-4 decay=1 damping=3 tinv=5 tcov=5");
    assert_recipe(f, "deit-small", "imagefolder:/data", "eva", "lr=0.5 weight-decay=2e-5 damping=0.3 tinv=5");
    assert_recipe(f, "deit-small", "imagefolder:/data", "adamw", "lr=1e-3 weight-decay=0.05");
    const char *characters = "epochs=20 epoch-steps=250 batch=64 warmup=0.4 drop=0.2 attention-drop=0.2 label-smoothing=0";
    assert_recipe(f, "gpt-char", "text:/a", "adamw", characters);
    assert_recipe(f, "gpt-char", "text:/a", "mac+adamw", characters);
    assert_recipe(f, "gpt-char", "text:/a", "mac+adamw", "lr=1e-3 final-lr=1e-4 beta1=0.9 beta2=0.99 weight-decay=0.1");
    assert_recipe(f, "gpt2", "text:/a", "adamw", "batch=8 context=1024 drop=0 lr=6e-4 beta1=0.9 beta2=0.95 weight-decay=0.1");
}

/* ---- names and options ---------------------------------------------------------------------------------------- */

static void recipe_of_muon_leaves_the_rest_to_adamw(void **state)
{
    static const struct {
        const char *model, *data, *optim, *settings;
    } row[] = {{"resnet20", "cifar10:/data", "muon",
                "epochs=50 batch=128 lr=0.02 weight-decay=0.01 aux-lr=1e-3 aux-weight-decay=0.01 augment=1"},
               {"resnet20", "cifar10:/data", "mac+muon", "lr=0.02 weight-decay=0.01 damping=1 kl-clip=0"},
               {"lenet5", "fashion-mnist", "kfac+muon", "lr=0.02 kl-clip=0 damping=0.03"},
               {"lenet5", "fashion-mnist", "eva+muon", "lr=0.02 kl-clip=0"},
               {"lenet5", "fashion-mnist", "kfac", "kl-clip=0.001"},
               {"gpt2", "text:/data", "muon", "batch=8 lr=0.02 final-lr=0.002 aux-lr=6e-4 aux-beta2=0.95 decay-all=0"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, row[i].model, row[i].data, row[i].optim, &s));
        assert_settings(f, s, row[i].settings);
        abar_setup_destroy(f->ctx, s);
    }
}

static void recipe_of_shampoo_is_that_of_adamw_with_a_graft(void **state)
{
    static const struct {
        const char *model, *data, *optim, *settings;
    } row[] = {{"resnet20", "cifar10:/data", "shampoo",
                "epochs=50 batch=128 lr=1e-3 weight-decay=0.05 shampoo-freq=50 shampoo-beta=0.99 augment=1"},
               {"lenet5", "fashion-mnist", "mac+shampoo", "lr=1e-3 damping=1 shampoo-block=1024"},
               {"gpt-char", "text:/data", "shampoo", "lr=1e-3 weight-decay=0.1 final-lr=1e-4"},
               {"gpt2", "text:/data", "shampoo", "lr=6e-4 weight-decay=0.1 final-lr=6e-5 decay-all=0"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, row[i].model, row[i].data, row[i].optim, &s));
        assert_settings(f, s, row[i].settings);
        abar_setup_destroy(f->ctx, s);
    }
}

static void recipes_of_nadamw_and_sfadamw_are_those_of_adamw(void **state)
{
    static const struct {
        const char *model, *data, *optim, *settings;
    } row[] = {{"resnet20", "cifar10:/data", "nadamw", "epochs=50 batch=128 lr=1e-3 weight-decay=0.5 augment=1"},
               {"gpt-char", "text:/data", "nadamw", "lr=1e-3 weight-decay=0.1 final-lr=1e-4 beta2=0.99"},
               {"resnet20", "cifar10:/data", "sfadamw", "epochs=50 lr=0.0025 weight-decay=0.5 schedule=constant"},
               {"gpt2", "text:/data", "sfadamw", "lr=0.0025 weight-decay=0.1 final-lr=0 schedule=constant"},
               {"resnet50", "imagenet:/data", "sfadamw", "lr=0.0025 ema=0 schedule=constant"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, row[i].model, row[i].data, row[i].optim, &s));
        assert_settings(f, s, row[i].settings);
        abar_setup_destroy(f->ctx, s);
    }
}

static void recipe_of_soap_is_that_of_its_authors(void **state)
{
    static const struct {
        const char *model, *data, *optim, *settings;
    } row[] = {{"resnet20", "cifar10:/data", "soap", "epochs=50 batch=128 lr=3e-3 weight-decay=0.01 soap-freq=10 augment=1"},
               {"lenet5", "fashion-mnist", "mac+soap", "lr=3e-3 damping=1 beta2=0.95"},
               {"gpt-char", "text:/data", "soap", "lr=3e-3 weight-decay=0.01 final-lr=3e-4"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, row[i].model, row[i].data, row[i].optim, &s));
        assert_settings(f, s, row[i].settings);
        abar_setup_destroy(f->ctx, s);
    }
}

/* Their 5e-4 is of a step: the decay over the rate. Models with a warm-up of their own keep it. */
static void recipe_of_adahessian_is_that_of_its_authors(void **state)
{
    static const struct {
        const char *model, *data, *settings;
    } row[] = {
        {"resnet20", "cifar10:/data", "epochs=50 lr=0.15 weight-decay=3.33e-3 warmup=1 beta2=0.999 eps=1e-4 hessian-power=1"},
        {"lenet5", "fashion-mnist", "lr=0.15 weight-decay=3.33e-3 warmup=1"},
        {"resnet50", "imagefolder:/data", "lr=0.15 warmup=5"},
        {"gpt-char", "text:/data", "lr=0.15 warmup=0.4"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, row[i].model, row[i].data, "adahessian", &s));
        assert_settings(f, s, row[i].settings);
        set(f, s, "epochs", "1");
        if (i < 2) assert_settings(f, s, "warmup=0.5");
        abar_setup_destroy(f->ctx, s);
    }
}

static void setup_with_an_unknown_name_suggests_the_nearest(void **state)
{
    fixture *f = *state;
    abar_setup *s;
    assert_int_equal(abar_setup_create(f->ctx, "resnet21", "cifar10", "sgd", &s), ABAR_E_NOT_FOUND);
    assert_error(f, "did you mean resnet20");
    assert_null(s);
    assert_int_equal(abar_setup_create(f->ctx, "lenet5", "fashon-mnist:/x", "sgd", &s), ABAR_E_NOT_FOUND);
    assert_error(f, "did you mean fashion-mnist");
    assert_int_equal(abar_setup_create(f->ctx, "lenet5", "mnist", "adamv", &s), ABAR_E_NOT_FOUND);
    assert_error(f, "did you mean adamw");
    assert_int_equal(abar_setup_create(f->ctx, NULL, "mnist", "sgd", &s), ABAR_E_ARGUMENT);
}

static void set_reaches_all_three_tables(void **state)
{
    fixture *f = *state;
    abar_setup *s = make_setup(f, "mlp", "sgd", "lr=0.25 widths=784-32-10 momentum=0.5 schedule=step");
    char text[64];
    assert_true(s->train.lr == 0.25);
    assert_int_equal(s->train.schedule, ABAR_SCHEDULE_STEP);
    need(f, abar_options_get(f->ctx, s->model->options, s->model_config, "widths", text, sizeof text));
    assert_string_equal(text, "784-32-10");
    need(f, abar_options_get(f->ctx, s->rule->options, s->rule_config, "momentum", text, sizeof text));
    assert_string_equal(text, "0.5");
    assert_int_equal(abar_setup_set(f->ctx, s, "momentun", "1"), ABAR_E_NOT_FOUND);
    assert_error(f, "did you mean --momentum");
    assert_int_equal(abar_setup_set(f->ctx, s, "lr", "-1"), ABAR_E_ARGUMENT);
    assert_int_equal(abar_setup_set(f->ctx, s, "batch", "0"), ABAR_E_ARGUMENT);
    assert_int_equal(abar_setup_set(f->ctx, s, "model", "lenet5"), ABAR_E_ARGUMENT);
    assert_int_equal(abar_setup_set(f->ctx, s, "out", "f\xf6lder"), ABAR_E_ARGUMENT);
    assert_error(f, "--out: not UTF-8");
    abar_setup_destroy(f->ctx, s);
}

static void check_refuses_settings_that_do_not_go_together(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *options, *error;
        abar_status status;
    } cases[] = {
        {"batch=32 accumulate=5", "--accumulate 5", ABAR_E_ARGUMENT},
        {"epochs=3 warmup=4", "--warmup 4", ABAR_E_ARGUMENT},
        {"batch=64 limit-train=63", "--limit-train 63", ABAR_E_ARGUMENT},
        {"precision=bf16", "--precision fp32", ABAR_E_UNSUPPORTED},
        {"device=ref precision=tf32", "--precision fp32", ABAR_E_UNSUPPORTED},
        {"device=cpy", "choose one of cpu, ref", ABAR_E_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar_setup *s = make_setup(f, "mlp", "sgd", cases[i].options);
        assert_int_equal(abar_setup_check(f->ctx, s), cases[i].status);
        assert_error(f, cases[i].error);
        abar_setup_destroy(f->ctx, s);
    }
    abar_setup *s = make_setup(f, "mlp", "sgd", "batch=32 accumulate=4 epochs=3 warmup=3");
    assert_int_equal(abar_setup_check(f->ctx, s), ABAR_OK);
    abar_setup_destroy(f->ctx, s);
}

static void recipes_warmup_gives_way_to_a_short_run(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *options;
        double warmup;
    } cases[] = {
        {"", 5.0},
        {"epochs=10", 5.0},
        {"epochs=9", 4.5},
        {"epochs=1", 0.5},
        {"epochs=1 epochs=90", 5.0},
        {"warmup=5 epochs=6", 5.0},
        {"epochs=6 warmup=5", 5.0},
        {"epochs=1 warmup=0", 0.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, "resnet50", "imagefolder:/data", "mac", &s));
        set_all(f, s, cases[i].options);
        assert_true(s->train.warmup == cases[i].warmup);
        need(f, abar_setup_check(f->ctx, s));
        abar_setup_destroy(f->ctx, s);
    }
    for (int last = 0; last < 2; last++) {
        abar_setup *s;
        need(f, abar_setup_create(f->ctx, "resnet50", "imagefolder:/data", "mac", &s));
        set_all(f, s, last ? "epochs=4 warmup=5" : "warmup=5 epochs=4");
        assert_int_equal(abar_setup_check(f->ctx, s), ABAR_E_ARGUMENT);
        assert_error(f, "--warmup 5: longer than the run, --epochs 4");
        abar_setup_destroy(f->ctx, s);
    }
}

/* A resumed run keeps the warm-up that it began with. */
static void stored_warmup_stays(void **state)
{
    fixture *f = *state;
    abar_setup *s, *back;
    abar__text json = {0};
    need(f, abar_setup_create(f->ctx, "resnet50", "imagefolder:/data", "mac", &s));
    set_all(f, s, "epochs=2");
    need(f, abar__setup_write(f->ctx, s, &json));
    need(f, abar__setup_parse(f->ctx, "test", json.data, json.length, &back));
    set_all(f, back, "epochs=40");
    assert_true(back->train.warmup == 1.0);
    abar__text_free(f->ctx, &json);
    abar_setup_destroy(f->ctx, back);
    abar_setup_destroy(f->ctx, s);
}

/* ---- JSON ----------------------------------------------------------------------------------------------------- */

static void json_round_trip_keeps_every_setting(void **state)
{
    fixture *f = *state;
    abar_setup *s = make_setup(f, "mlp", "adamw",
                               "lr=0.1234567890123456 seed=9007199254740991 widths=784-8-10 augment=true precision=tf32 "
                               "schedule=constant deterministic=yes label-smoothing=0.1 beta2=0.95");
    set(f, s, "out", "a \"quoted\\\" f\xc3\xb6lder\n");
    abar__text json = {0}, again = {0};
    abar_setup *back;
    need(f, abar__setup_write(f->ctx, s, &json));
    need(f, abar__setup_parse(f->ctx, "test", json.data, json.length, &back));
    assert_memory_equal(&s->train, &back->train, sizeof s->train);
    assert_memory_equal(s->model_config, back->model_config, s->model->config_size);
    need(f, abar__setup_write(f->ctx, back, &again));
    assert_string_equal(json.data, again.data);
    abar__text_free(f->ctx, &json);
    abar__text_free(f->ctx, &again);
    abar_setup_destroy(f->ctx, s);
    abar_setup_destroy(f->ctx, back);
}

/* foof's damping was a number before it could be trace:G. */
static void json_of_older_runs_of_foof_is_read(void **state)
{
    fixture *f = *state;
    const char *json = "{\"train\": {\"model\": \"mlp\", \"data\": \"synthetic\", \"optim\": \"foof\"}, "
                       "\"method\": {\"damping\": 0.1}}";
    abar_setup *s;
    need(f, abar__setup_parse(f->ctx, "test", json, strlen(json), &s));
    assert_true(real_of(f, s, "damping") == 0.1);
    abar_setup_destroy(f->ctx, s);
}

static void json_that_leaves_settings_out_gets_their_defaults(void **state)
{
    fixture *f = *state;
    const char *json = " {\"train\": {\"model\": \"resnet20\", \"data\": \"cifar10\", \"optim\": \"sgd\", \"lr\": 1}}\n";
    abar_setup *s;
    need(f, abar__setup_parse(f->ctx, "test", json, strlen(json), &s));
    assert_true(s->train.lr == 1.0);
    assert_int_equal(s->train.epochs, 50);
    abar_setup_destroy(f->ctx, s);
}

#define NAMED "\"model\": \"mlp\", \"data\": \"mnist\", \"optim\": \"sgd\""

static void json_that_is_wrong_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *json, *error;
    } cases[] = {
        {"", "not valid JSON"},
        {"{\"train\": {\"out\": \"\xe4\"}}", "not UTF-8"},
        {"{", "not valid JSON"},
        {"{} x", "not valid JSON"},
        {"[]", "JSON object"},
        {"{}", "must name model"},
        {"{\"train\": 3}", "must name model"},
        {"{\"train\": {\"model\": \"mlq\", \"data\": \"mnist\", \"optim\": \"sgd\"}}", "did you mean mlp"},
        {"{\"train\": {" NAMED ", \"lrr\": 1}}", "did you mean --lr"},
        {"{\"train\": {" NAMED ", \"lr\": \"1\"}}", "\"lr\" must be a number"},
        {"{\"train\": {" NAMED ", \"lr\": 1e999}}", "lr"},
        {"{\"train\": {" NAMED ", \"batch\": 1.5}}", "batch"},
        {"{\"train\": {" NAMED ", \"batch\": -3}}", "batch"},
        {"{\"train\": {" NAMED ", \"augment\": 1}}", "true or false"},
        {"{\"train\": {" NAMED ", \"schedule\": \"cosin\"}}", "did you mean cosine"},
        {"{\"train\": {" NAMED ", \"lr\": 1, \"lr\": 2}}", "twice"},
        {"{\"train\": {" NAMED "}, \"model\": []}", "\"model\" must be an object"},
        {"{\"train\": {" NAMED "}, \"optimizer\": {\"momentun\": 1}}", "did you mean --momentum"},
        {"{\"train\": {" NAMED "}, \"trian\": {}}", "\"trian\" is unknown"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar_setup *s;
        assert_true(abar__setup_parse(f->ctx, "the file", cases[i].json, strlen(cases[i].json), &s) < 0);
        assert_null(s);
        assert_error(f, "the file: ");
        assert_error(f, cases[i].error);
    }
}

/* ---- where a run stands --------------------------------------------------------------------------------------- */

static void place_round_trip_is_exact(void **state)
{
    fixture *f = *state;
    abar__epoch history[2] = {{.train_loss = 1.0 / 3.0, .test_accuracy = 91.7, .lr = 1e-300, .skipped = 2},
                              {.train_loss = 0x1.fffffffffffffp-3, .seconds = 12.5}};
    abar__run_state at = {.epoch = 2, .step = 7, .loss_sum = 0.1 + 0.2, .correct = 5, .count = 9, .log_bytes = 1u << 31}, back;
    abar__epoch *read;
    abar__text json = {0};
    need(f, abar__run_state_write(f->ctx, &at, history, &json));
    need(f, abar__run_state_parse(f->ctx, "test", json.data, json.length, &back, &read));
    assert_memory_equal(&at, &back, sizeof at);
    assert_memory_equal(history, read, sizeof history);
    abar__free(f->ctx, read, sizeof history);
    const char *cut = strstr(json.data, ", \"history\"");
    char *damaged = strdup(json.data);
    strcpy(damaged + (cut - json.data), "}");
    assert_int_equal(abar__run_state_parse(f->ctx, "test", damaged, strlen(damaged), &back, &read), ABAR_E_FORMAT);
    assert_error(f, "history");
    free(damaged);
    abar__text_free(f->ctx, &json);
}

static void setup_compare_tells_what_may_change_on_resume(void **state)
{
    fixture *f = *state;
    abar_setup *was = make_setup(f, "mlp", "sgd", "epochs=3"), *now = make_setup(f, "mlp", "sgd", "epochs=5 lr=0.5 workers=0");
    need(f, abar__setup_compare(f->ctx, was, now));
    assert_non_null(strstr(f->log, "--epochs is 5 now, was 3"));
    assert_non_null(strstr(f->log, "--lr is 0.5 now"));
    assert_null(strstr(f->log, "workers"));
    set(f, now, "widths", "784-5-10");
    assert_int_equal(abar__setup_compare(f->ctx, was, now), ABAR_E_ARGUMENT);
    assert_error(f, "--widths");
    abar_setup_destroy(f->ctx, now);
    now = make_setup(f, "lenet5", "sgd", "");
    assert_int_equal(abar__setup_compare(f->ctx, was, now), ABAR_E_ARGUMENT);
    assert_error(f, "--model lenet5: the run to resume was made with mlp");
    abar_setup_destroy(f->ctx, now);
    now = make_setup(f, "mlp", "sgd", "batch=64");
    assert_int_equal(abar__setup_compare(f->ctx, was, now), ABAR_E_ARGUMENT);
    assert_error(f, "--batch 64");
    abar_setup_destroy(f->ctx, now);
    abar_setup_destroy(f->ctx, was);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

/* A program may write to a setup itself. */
static void batches_without_samples_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *s = make_setup(f, "mlp", "sgd", "");
    s->train.accumulate = 0;
    assert_int_equal(abar_setup_check(f->ctx, s), ABAR_E_ARGUMENT);
    assert_error(f, "--accumulate 0: out of range");
    s->train.accumulate = -1;
    assert_int_equal(abar_setup_check(f->ctx, s), ABAR_E_ARGUMENT);
    s->train.accumulate = 1;
    s->train.batch = 0;
    assert_int_equal(abar_setup_check(f->ctx, s), ABAR_E_ARGUMENT);
    assert_error(f, "--batch 0: out of range");
    abar_setup_destroy(f->ctx, s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(recipe_of_resnet_on_cifar_is_the_papers),
        with_fixture(recipe_of_lenet5_on_fashion_mnist_is_short_and_plain),
        with_fixture(recipe_of_muon_leaves_the_rest_to_adamw),
        with_fixture(recipes_of_nadamw_and_sfadamw_are_those_of_adamw),
        with_fixture(recipe_of_shampoo_is_that_of_adamw_with_a_graft),
        with_fixture(recipe_of_soap_is_that_of_its_authors),
        with_fixture(recipe_of_adahessian_is_that_of_its_authors),
        with_fixture(recipes_of_the_cifar_table_are_the_papers),
        with_fixture(recipes_of_imagenet_resnets_are_the_papers),
        with_fixture(recipes_of_transformers_are_those_of_the_list),
        with_fixture(setup_with_an_unknown_name_suggests_the_nearest),
        with_fixture(set_reaches_all_three_tables),
        with_fixture(check_refuses_settings_that_do_not_go_together),
        with_fixture(recipes_warmup_gives_way_to_a_short_run),
        with_fixture(stored_warmup_stays),
        with_fixture(json_round_trip_keeps_every_setting),
        with_fixture(json_of_older_runs_of_foof_is_read),
        with_fixture(json_that_leaves_settings_out_gets_their_defaults),
        with_fixture(json_that_is_wrong_is_refused_by_name),
        with_fixture(place_round_trip_is_exact),
        with_fixture(setup_compare_tells_what_may_change_on_resume),
        cmocka_unit_test_setup_teardown(batches_without_samples_are_refused, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
