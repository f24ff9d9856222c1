/* Muon through a setup and the trainer: which parameter of which model gets which rule and why, and runs that learn, resume bit
 * for bit, and take what was planned. */
#include "train_runs.h"

#include "optim/optim_impl.h"

#include <math.h>

/* ---- parameters ------------------------------------------------------------------------------------------------------ */

/* What is expected of the parameters whose names fit; the first fit counts. */
typedef struct expectation {
    const char *names, *rule, *why;
    int64_t blocks;
    int seen;
} expectation;

static void compare(void *user, const abar_param_info *param)
{
    expectation *e = user;
    while (e->names && !abar__name_fits(e->names, param->name)) e++;
    if (!e->names) fail_msg("%s was not expected", param->name);
    if (strcmp(param->rule, e->rule) != 0 || strcmp(param->why, e->why) != 0 || param->blocks != e->blocks)
        fail_msg("%s: %s, %s, %d blocks; expected %s, %s, %d", param->name, param->rule, param->why, (int)param->blocks,
                 e->rule, e->why, (int)e->blocks);
    e->seen++;
}

static void check_params(fixture *f, const char *model, const char *options, expectation *e)
{
    abar_setup *setup;
    char text[256], *rest = text;
    const char *data = strncmp(model, "gpt", 3) == 0 ? "text" : "synthetic";
    need(f, abar_setup_create(f->ctx, model, "synthetic", "muon", &setup));
    if (setup->model->text) snprintf(setup->train.data, sizeof setup->train.data, "%s:%s/corpus.txt", data, f->dir);
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        set(f, setup, word, value + 1);
    }
    need(f, abar_setup_params(f->ctx, setup, compare, e));
    for (; e->names; e++)
        if (!e->seen) fail_msg("%s has no parameter like %s", model, e->names);
    abar_setup_destroy(f->ctx, setup);
}

static void write_corpus(fixture *f)
{
    char path[PATH_MAX_TEST];
    path_in(f, "corpus.txt", path);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 500; i++) fprintf(file, "the quick brown fox jumps over the lazy dog %d\n", i);
    fclose(file);
}

#define HIDDEN "muon", "hidden layer"
#define VECTOR "adamw", "not a matrix"

static void muon_takes_the_hidden_layers_of_each_model(void **state)
{
    fixture *f = *state;
    write_corpus(f);
    expectation lenet[] = {{"conv1.weight", "adamw", "reads the input", 0, 0},
                           {"fc3.weight", "adamw", "makes the output", 0, 0},
                           {"*.bias", VECTOR, 0, 0},
                           {"conv2.weight,fc1.weight,fc2.weight", HIDDEN, 1, 0},
                           {0}};
    check_params(f, "lenet5", "", lenet);
    expectation resnet[] = {{"conv1.weight", "adamw", "reads the input", 0, 0},
                            {"linear.weight", "adamw", "makes the output", 0, 0},
                            {"*.bias,bn1.weight,*.bn?.weight", VECTOR, 0, 0},
                            {"layer?.?.conv?.weight", HIDDEN, 1, 0},
                            {0}};
    check_params(f, "resnet20", "", resnet);
    expectation gpt[] = {{"*.wte.weight", "adamw", "not a layer's weight", 0, 0}, /* tied to the head */
                         {"*.wpe.weight", "adamw", "not a layer's weight", 0, 0},
                         {"*.ln_*", VECTOR, 0, 0},
                         {"*.c_attn.weight", HIDDEN, 3, 0}, /* q, k, v */
                         {"*.c_proj.weight,*.c_fc.weight", HIDDEN, 1, 0},
                         {0}};
    check_params(f, "gpt-char", "", gpt);
    expectation deit[] = {{"patch_embed.proj.weight", "adamw", "reads the input", 0, 0},
                          {"head.weight", "adamw", "makes the output", 0, 0},
                          {"cls_token,pos_embed", VECTOR, 0, 0},
                          {"*norm*,*.bias", VECTOR, 0, 0},
                          {"*.qkv.weight", HIDDEN, 3, 0},
                          {"*.proj.weight,*.fc?.weight", HIDDEN, 1, 0},
                          {0}};
    check_params(f, "deit-tiny", "", deit);
}

static void muon_options_overrule_the_choice(void **state)
{
    fixture *f = *state;
    write_corpus(f);
    expectation lenet[] = {{"conv1.weight", "muon", "--muon-take names it", 1, 0},
                           {"fc*.weight", "adamw", "--muon-skip names it", 0, 0},
                           {"*.bias", VECTOR, 0, 0},
                           {"conv2.weight", HIDDEN, 1, 0},
                           {0}};
    check_params(f, "lenet5", "muon-take=conv1.* muon-skip=fc?.weight", lenet);
    expectation gpt[] = {{"*.wte.weight", "muon", "--muon-take names it", 1, 0},
                         {"*.wpe.weight", "adamw", "not a layer's weight", 0, 0},
                         {"*.ln_*", VECTOR, 0, 0},
                         {"*.c_attn.weight", HIDDEN, 9, 0}, /* two heads each, of six */
                         {"*.c_proj.weight,*.c_fc.weight", HIDDEN, 1, 0},
                         {0}};
    check_params(f, "gpt-char", "muon-take=*.wte.weight split=heads:2", gpt);
    abar_setup *setup = make_setup(f, "lenet5", "muon", "muon-skip=fc9.weight");
    assert_int_equal(abar_setup_params(f->ctx, setup, compare, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "--muon-skip fc9.weight: fits no parameter");
    set(f, setup, "muon-skip", "*");
    assert_int_equal(abar_setup_params(f->ctx, setup, compare, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "takes none of the parameters");
    abar_setup_destroy(f->ctx, setup);
}

static void count_maps(void *user, const abar_map_info *map)
{
    assert_true(strcmp(map->layer, "conv2") == 0 || strcmp(map->layer, "fc1") == 0 || strcmp(map->layer, "fc2") == 0);
    ++*(int *)user;
}

static void methods_before_muon_list_its_layers_only(void **state)
{
    fixture *f = *state;
    int maps = 0;
    abar_setup *setup = make_setup(f, "lenet5", "mac+muon", "");
    need(f, abar_setup_maps(f->ctx, setup, count_maps, &maps));
    assert_int_equal(maps, 3);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- runs --------------------------------------------------------------------------------------------------------------- */

#define SMALL "device=cpu threads=1 workers=0 limit-test=32 augment=false limit-train=256 batch=16 "
static const char *const optimizers[] = {"muon", "mac+muon", "foof+muon", "kfac+muon"};

static void muon_learns_within_its_plan(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        abar_setup *setup = make_setup(f, "lenet5", optimizers[i], SMALL "epochs=8");
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        if (i > 0) set(f, setup, "tinv", "5");
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(plan.optimizer, abar_optim_bytes(t->optim) - t->optim->text_bytes);
        const uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        const double first = t->history[0].train_loss, last = t->history[7].train_loss;
        if (!(last < 0.9 * first && last < log(10.0))) fail_msg("%s: loss %g, then %g", optimizers[i], first, last);
        assert_int_equal(t->at.skipped, 0);
        assert_int_equal(abar_optim_blocks(t->optim)->dropped, 0);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void muon_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    static const char *const dirs[][2] = {{"a0", "b0"}, {"a1", "b1"}};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "lenet5", i ? "mac+muon" : "muon", SMALL "epochs=2 normuon=true");
        set_out(f, setup, dirs[i][0]);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        set_out(f, setup, dirs[i][1]);
        assert_int_equal(run_until(f, setup, false, 11), ABAR_STOPPED);
        assert_int_equal(resume(f, dirs[i][1], 0), ABAR_OK);
        assert_same_tensors(f, dirs[i][0], dirs[i][1], "state.safetensors");
        abar_setup_destroy(f->ctx, setup);
    }
}

static double final_loss(fixture *f, const char *optim, const char *accumulate)
{
    abar_setup *setup = make_setup(f, "mlp", optim,
                                   "device=ref workers=0 widths=784-12-12-10 limit-train=64 limit-test=16 batch=16 epochs=3 "
                                   "augment=false ");
    abar_trainer *t;
    set(f, setup, "accumulate", accumulate);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const double loss = t->history[2].test_loss;
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
    return loss;
}

static void muon_accumulates_gradients(void **state)
{
    for (int i = 0; i < 3; i++) {
        const double whole = final_loss(*state, optimizers[i], "1"), parts = final_loss(*state, optimizers[i], "4");
        if (!(fabs(whole - parts) <= 1e-9 * whole)) fail_msg("%s: %.12g and %.12g", optimizers[i], whole, parts);
    }
}

static void report_counts_blocks(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "muon", SMALL "epochs=1 muon-eps=1");
    abar_trainer *t;
    const char *json;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &json));
    assert_non_null(strstr(json, "\"blocks\": {\"count\": 3, \"dropped\": 0, \"small\": ")); /* gradients are far below 1 */
    assert_null(strstr(json, "\"small\": 0}"));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* Once per run, not once per layer. */
static void split_that_does_not_divide_the_heads_is_told(void **state)
{
    fixture *f = *state;
    static const char *const splits[] = {"heads:2", "heads:3", "heads:1", "qkv", "none"};
    for (int i = 0; i < 5; i++) {
        abar_setup *setup = make_setup(f, "deit-tiny", "muon",
                                       "limit-train=16 limit-test=8 batch=8 epochs=1 threads=1 classes=5 image-size=8 width=24 "
                                       "heads=3 depth=2");
        abar_trainer *t;
        set(f, setup, "split", splits[i]);
        f->log[0] = '\0';
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        const char *line = strstr(f->log, "--split heads:2: does not divide the 3 heads of blocks.0.attn.qkv");
        assert_int_equal(line != NULL, i == 0);
        assert_null(line ? strstr(line + 1, "--split heads") : strstr(f->log, "--split"));
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(muon_takes_the_hidden_layers_of_each_model, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(muon_options_overrule_the_choice, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(methods_before_muon_list_its_layers_only, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(muon_learns_within_its_plan, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(muon_resumes_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(muon_accumulates_gradients, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(report_counts_blocks, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(split_that_does_not_divide_the_heads_is_told, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
