/* Settings of image folders: the recipes of docs/images.md cell by cell, what is refused, and what a loader is asked for. */
#include "train_support.h"

#include <unistd.h>

/* A setup whose data set need not be in this build. */
static abar_setup *setup_of(fixture *f, const char *model, const char *data, const char *optim)
{
    abar_setup *s;
    need(f, abar_setup_create(f->ctx, model, "synthetic", optim, &s));
    snprintf(s->train.data, sizeof s->train.data, "%s", data);
    need(f, abar__recipe_apply(f->ctx, s));
    return s;
}

static void option_of(fixture *f, const abar_setup *s, const char *name, char text[ABAR_OPTION_TEXT_MAX])
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    for (int i = abar_setup_tables(s, tables) - 1; i >= 0; i--) {
        if (!abar_options_find(tables[i].options, name)) continue;
        need(f, abar_options_get(f->ctx, tables[i].options, tables[i].config, name, text, ABAR_OPTION_TEXT_MAX));
        return;
    }
    fail_msg("no option %s", name);
}

static bool equal(const char *a, const char *b)
{
    char *end;
    const double x = strtod(a, &end);
    return *a && *end == '\0' ? x == strtod(b, NULL) : strcmp(a, b) == 0;
}

/* "name=value ..." */
static void assert_recipe(fixture *f, const char *model, const char *data, const char *optim, const char *settings)
{
    abar_setup *s = setup_of(f, model, data, optim);
    char text[1024], *rest = text, value[ABAR_OPTION_TEXT_MAX];
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *expected = strchr(word, '=');
        *expected++ = '\0';
        option_of(f, s, word, value);
        if (!equal(value, expected))
            fail_msg("%s on %s with %s: %s is %s, expected %s", model, data, optim, word, value, expected);
    }
    abar_setup_destroy(f->ctx, s);
}

static const char *const large[] = {"imagenet:/data", "imagefolder:/data"};

static void recipes_of_large_images_are_those_of_the_table(void **state)
{
    fixture *f = *state;
    static const char *const model[2][2] = {{"resnet50", "resnet101"}, {"deit-small", "swin-tiny"}};
    static const char *const all[2] = {
        "style=torchvision size=176 test-resize=232 test-size=224 epochs=100 batch=1024 schedule=cosine "
        "schedule-per-epoch=false warmup=5 label-smoothing=0.1 repeat=4 augment=true flip=true area-low=0.08 area-high=1 "
        "policy=trivial mixup=0.2 cutmix=1 erase=0.1 ema=0.99998 ema-steps=32 decay-all=false damaged=fail decode=cpu",
        "style=timm size=224 test-resize=248 test-size=224 epochs=100 batch=1024 schedule=cosine schedule-per-epoch=false "
        "warmup=5 label-smoothing=0.1 repeat=3 augment=true flip=true area-low=0.08 area-high=1 policy=rand-timm mixup=0.8 "
        "cutmix=1 erase=0.25 ema=0 decay-all=false drop-path=0"};
    static const struct {
        const char *optim, *settings[2];
    } row[] = {
        {"sgd", {"lr=0.5 momentum=0.9 weight-decay=2e-5 decay=coupled", "lr=0.5 momentum=0.9 weight-decay=2e-5 decay=coupled"}},
        {"kfac",
         {"lr=0.5 momentum=0.9 weight-decay=2e-5 damping=0.03 tcov=5 tinv=50",
          "lr=0.5 momentum=0.9 weight-decay=2e-5 damping=0.3 tcov=5 tinv=5"}},
        {"foof",
         {"lr=0.5 momentum=0.9 weight-decay=2e-5 damping=1 tcov=5 tinv=50",
          "lr=0.5 momentum=0.9 weight-decay=2e-5 damping=3 tcov=5 tinv=5"}},
        {"eva",
         {"lr=0.5 momentum=0.9 weight-decay=2e-5 damping=0.03 tcov=5",
          "lr=0.5 momentum=0.9 weight-decay=2e-5 damping=0.3 tcov=5"}},
        {"mac",
         {"lr=0.5 momentum=0.9 weight-decay=2e-5 decay=coupled damping=1 tcov=5 tinv=50",
          "lr=0.5 momentum=0.9 weight-decay=1e-4 decay=decoupled damping=3 tcov=5 tinv=5"}},
        {"adamw", {"lr=1e-3 beta1=0.9 beta2=0.999 weight-decay=0.05", "lr=1e-3 beta1=0.9 beta2=0.999 weight-decay=0.05"}}};
    for (int d = 0; d < 2; d++)
        for (int column = 0; column < 2; column++)
            for (int m = 0; m < 2; m++)
                for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
                    assert_recipe(f, model[column][m], large[d], row[i].optim, all[column]);
                    assert_recipe(f, model[column][m], large[d], row[i].optim, row[i].settings[column]);
                }
}

static void recipes_of_tiny_imagenet_are_those_of_the_table(void **state)
{
    fixture *f = *state;
    static const char *const model[2][2] = {{"resnet50", "wrn28-10"}, {"deit-tiny", "swin-tiny"}};
    static const char *const all[2] = {
        "style=torchvision size=48 test-resize=64 test-size=64 epochs=50 batch=256 area-low=0.25 area-high=1 policy=trivial "
        "mixup=0.2 cutmix=1 erase=0.1 repeat=1 label-smoothing=0.1 warmup=2 ema=0 decay-all=false augment=true",
        "style=timm size=64 test-resize=64 test-size=64 epochs=60 batch=256 area-low=0.25 area-high=1 policy=rand-timm "
        "mixup=0.8 cutmix=1 erase=0.25 repeat=1 label-smoothing=0.1 warmup=5 ema=0 decay-all=false augment=true"};
    static const struct {
        const char *optim, *settings[2];
    } row[] = {{"sgd", {"lr=0.125 weight-decay=5e-4", "lr=0.125 weight-decay=2e-5"}},
               {"mac", {"lr=0.125 weight-decay=5e-4 decay=coupled", "lr=0.125 weight-decay=1e-4 decay=decoupled"}},
               {"foof", {"lr=0.125 weight-decay=5e-4", "lr=0.125 weight-decay=2e-5"}},
               {"kfac", {"lr=0.125 weight-decay=5e-4", "lr=0.125 weight-decay=2e-5"}},
               {"eva", {"lr=0.125 weight-decay=5e-4", "lr=0.125 weight-decay=2e-5"}},
               {"adamw", {"lr=1e-3 weight-decay=0.05", "lr=1e-3 weight-decay=0.05"}},
               {"mac+adamw", {"lr=1e-3 weight-decay=0.05", "lr=1e-3 weight-decay=0.05"}}};
    for (int column = 0; column < 2; column++)
        for (int m = 0; m < 2; m++)
            for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
                assert_recipe(f, model[column][m], "tiny-imagenet:/data", row[i].optim, all[column]);
                assert_recipe(f, model[column][m], "tiny-imagenet:/data", row[i].optim, row[i].settings[column]);
            }
    assert_recipe(f, "resnet50", "tiny-imagenet:/data", "sgd", "stem=small");
    assert_recipe(f, "resnet50", "imagenet:/data", "sgd", "stem=large");
}

static void groups_and_filters_of_the_recipes_are_those_of_the_tables(void **state)
{
    fixture *f = *state;
    abar_setup *resnet = setup_of(f, "resnet50", "imagenet:/data", "mac"), *vit = setup_of(f, "swin-tiny", large[1], "mac");
    abar_setup *tiny = setup_of(f, "deit-tiny", "tiny-imagenet:/data", "mac");
    assert_int_equal(abar__mix_group(&resnet->train), 256);
    assert_int_equal(abar__mix_group(&vit->train), 256);
    assert_int_equal(abar__mix_group(&tiny->train), 256);
    assert_int_equal(abar__loader_request(resnet, true).test_filter, ABAR_FILTER_BILINEAR);
    assert_int_equal(abar__loader_request(vit, true).test_filter, ABAR_FILTER_BICUBIC);
    assert_int_equal(abar__loader_request(tiny, true).test_filter, ABAR_FILTER_BICUBIC);
    abar_setup_destroy(f->ctx, resnet);
    abar_setup_destroy(f->ctx, vit);
    abar_setup_destroy(f->ctx, tiny);
}

/* One loader thread per core but one. */
static void workers_of_image_folders_are_the_cores(void **state)
{
    fixture *f = *state;
    abar_setup *s = setup_of(f, "lenet5", large[1], "sgd"), *other = make_setup(f, "lenet5", "sgd", "");
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    assert_int_equal(s->train.workers, cores < 3 ? 1 : cores > 65 ? 64 : cores - 1);
    assert_int_equal(other->train.workers, 1);
    assert_true(s->train.augment);
    abar_setup_destroy(f->ctx, s);
    abar_setup_destroy(f->ctx, other);
}

static void loader_gets_the_settings(void **state)
{
    fixture *f = *state;
    abar_setup *s = setup_of(f, "resnet50", large[0], "sgd");
    static const char *const given[][2] = {
        {"style", "timm"},      {"area-low", "0.3"},       {"area-high", "0.9"},         {"flip", "false"},
        {"policy", "rand"},     {"policy-magnitude", "5"}, {"policy-filter", "nearest"}, {"erase", "0.5"},
        {"mixup", "0.7"},       {"cutmix", "0.3"},         {"mix-group", "64"},          {"repeat", "2"},
        {"test-resize", "300"}, {"test-size", "288"},      {"test-filter", "bilinear"},  {"damaged", "skip"},
        {"accumulate", "4"}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) set(f, s, given[i][0], given[i][1]);
    const abar_loader_config train = abar__loader_request(s, false), test = abar__loader_request(s, true);
    const abar_augment_config *a = &train.augment;
    assert_true(a->on && a->style == ABAR_STYLE_TIMM && a->area_low == 0.3 && a->area_high == 0.9 && !a->flip);
    assert_true(a->policy == ABAR_POLICY_RAND && a->policy_magnitude == 5 && a->policy_filter == ABAR_FILTER_NEAREST);
    assert_true(a->erase == 0.5 && a->mixup == 0.7 && a->cutmix == 0.3 && a->mix_group == 64 && a->repeat == 2);
    assert_true(test.test_resize == 300 && test.test_size == 288 && test.test_filter == ABAR_FILTER_BILINEAR);
    assert_true(train.skip_damaged && !train.flip && train.crop_pad == 0);
    assert_int_equal(train.batch, 1024);
    assert_int_equal(test.batch, 256);
    assert_false(train.encoded);
    set(f, s, "decode", "gpu");
    assert_true(abar__loader_request(s, false).encoded);
    assert_false(abar__loader_request(s, true).encoded);
    set(f, s, "augment", "false");
    assert_false(abar__loader_request(s, false).augment.on);
    assert_false(abar__mixes(&s->train));
    abar_setup_destroy(f->ctx, s);
}

/* ---- refusing ------------------------------------------------------------------------------------------------- */

static void assert_refused(fixture *f, abar_setup *s, const char *part)
{
    assert_int_equal(abar__images_check(f->ctx, &s->train), ABAR_E_ARGUMENT);
    assert_error(f, part);
}

static void options_of_image_folders_are_refused_elsewhere(void **state)
{
    fixture *f = *state;
    abar_setup *s = make_setup(f, "lenet5", "sgd", "");
    for (const abar_option *o = abar_image_options(); o->name; o++) {
        assert_true(abar_setup_set(f->ctx, s, o->name, o->fallback) < 0);
        assert_error(f, "is for image folders, leave it out");
    }
    abar_setup_destroy(f->ctx, s);
    s = make_setup(f, "resnet50", "sgd", "classes=7"); /* the model's own option of that name */
    int64_t input[3], classes;
    abar_model_shape(s->model, s->model_config, input, &classes);
    assert_int_equal(classes, 7);
    abar_setup_destroy(f->ctx, s);
}

static void classes_of_image_folders_are_a_file(void **state)
{
    fixture *f = *state;
    abar_setup *s = setup_of(f, "resnet50", large[0], "sgd");
    set(f, s, "classes", "names.txt");
    set(f, s, "val-labels", "labels.txt");
    assert_string_equal(s->train.classes, "names.txt");
    assert_string_equal(s->train.labels, "labels.txt");
    abar_setup_destroy(f->ctx, s);
}

static void settings_that_do_not_fit_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *s = setup_of(f, "resnet50", large[0], "sgd");
    strcpy(s->train.device, "cpu");
    need(f, abar__images_check(f->ctx, &s->train));
    set(f, s, "test-resize", "223");
    assert_refused(f, s, "--test-resize 223: less than --test-size 224");
    set(f, s, "test-resize", "224");
    set(f, s, "area-low", "0.6");
    set(f, s, "area-high", "0.5");
    assert_refused(f, s, "--area-low 0.6: above --area-high 0.5");
    set(f, s, "area-high", "0.6");
    set(f, s, "decode", "gpu");
    assert_refused(f, s, "--decode gpu: device cpu");
    strcpy(s->train.device, "cuda:1");
    need(f, abar__images_check(f->ctx, &s->train));
    strcpy(s->train.device, "cpu");
    set(f, s, "decode", "cpu");
    set(f, s, "jitter", "0.5");
    assert_refused(f, s, "--jitter: is for --policy jitter");
    set(f, s, "policy", "jitter");
    need(f, abar__images_check(f->ctx, &s->train));
    set(f, s, "policy-magnitude", "3");
    assert_refused(f, s, "--policy-magnitude: is for --policy rand");
    abar_setup_destroy(f->ctx, s);
}

static void groups_that_do_not_fit_are_refused_with_one_that_does(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *style, *batch, *accumulate, *group, *refusal; /* NULL: accepted */
    } row[] = {{"torchvision", "1024", "4", "0", NULL},
               {"torchvision", "1024", "8", "0",
                "--mix-group 256: does not divide the micro-batch of 128 images (--batch 1024, "
                "--accumulate 8), give --mix-group 128"},
               {"torchvision", "1024", "8", "128", NULL},
               {"torchvision", "1000", "1", "0", "give --mix-group 250"},
               {"torchvision", "100", "1", "0", NULL}, /* 256, or the batch */
               {"torchvision", "99", "1", "0", NULL},
               {"timm", "99", "1", "0", "no other group fits, choose another --batch"},
               {"timm", "18", "2", "0", "micro-batch of 9 images (--batch 18, --accumulate 2), and no other group fits"},
               {"timm", "100", "1", "25",
                "--mix-group 25: is odd, and --style timm mixes pairs of rows of a batch of 100 images, give --mix-group 100"},
               {"timm", "100", "1", "0", NULL}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        abar_setup *s = setup_of(f, "resnet50", large[0], "sgd");
        set(f, s, "style", row[i].style);
        set(f, s, "batch", row[i].batch);
        set(f, s, "accumulate", row[i].accumulate);
        set(f, s, "mix-group", row[i].group);
        if (row[i].refusal)
            assert_refused(f, s, row[i].refusal);
        else
            need(f, abar__images_check(f->ctx, &s->train));
        set(f, s, "mixup", "0"); /* nothing is mixed: any batch */
        set(f, s, "cutmix", "0");
        need(f, abar__images_check(f->ctx, &s->train));
        abar_setup_destroy(f->ctx, s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(recipes_of_large_images_are_those_of_the_table, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(recipes_of_tiny_imagenet_are_those_of_the_table, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(groups_and_filters_of_the_recipes_are_those_of_the_tables, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(workers_of_image_folders_are_the_cores, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(loader_gets_the_settings, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(options_of_image_folders_are_refused_elsewhere, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(classes_of_image_folders_are_a_file, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(settings_that_do_not_fit_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(groups_that_do_not_fit_are_refused_with_one_that_does, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
