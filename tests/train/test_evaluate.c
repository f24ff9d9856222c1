/* Evaluation of weights from files: ours, PyTorch's, and those that do not fit. */
#include "train_support.h"

#include <math.h>

#define GOLDEN ABAR_TEST_DATA "/golden/"

static void run(fixture *f, abar_setup *setup, abar__epoch *last)
{
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    *last = t->history[t->at.epoch - 1];
    abar_trainer_destroy(t);
}

/* Batch norm, and a last batch that is not full. */
static void export_and_checkpoint_evaluate_as_the_run_did(void **state)
{
    fixture *f = *state;
    static const char *const devices[] = {"ref", "cpu"};
    static const char *const files[] = {"model.safetensors", "state.safetensors"};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "resnet20", "sgd", "threads=1 limit-train=4 limit-test=3 batch=2 epochs=1");
        abar__epoch last;
        set(f, setup, "device", devices[i]);
        set_out(f, setup, devices[i]);
        run(f, setup, &last);
        for (int j = 0; j < 2; j++) {
            char path[PATH_MAX_TEST];
            abar_evaluation e = {.size = sizeof e};
            snprintf(path, sizeof path, "%s/%s/%s", f->dir, devices[i], files[j]);
            need(f, abar_evaluate(f->ctx, setup, path, &e));
            assert_int_equal(e.samples, 3);
            assert_true(fabs(e.loss - last.test_loss) <= 1e-5 * last.test_loss);
            assert_true(fabs(e.accuracy - last.test_accuracy) < 1e-9);
        }
        abar_setup_destroy(f->ctx, setup);
    }
}

static void pytorchs_lenet5_gives_pytorchs_logits(void **state)
{
    fixture *f = *state;
    static const char *const devices[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "lenet5", "sgd", "batch=8");
        abar__safetensors *file;
        abar_tensor images, logits;
        set(f, setup, "device", devices[i]);
        need(f, abar__safetensors_open(f->ctx, GOLDEN "lenet5_torch_logits.safetensors", &file));
        assert_true(abar__safetensors_find(file, "images", &images));
        assert_true(abar__safetensors_find(file, "logits", &logits));
        int64_t n = images.dim[0];
        abar_dataset_info info = {.channels = 1, .height = 28, .width = 28, .classes = 10, .mean = {0.2860}, .std = {0.3530}};
        abar__net_request request = {.batch = n};
        abar_device *dev;
        abar_net *net;
        abar__safetensors *weights;
        need(f, abar__device_open(f->ctx, setup, &dev));
        need(f, abar__net_build(f->ctx, setup, &info, dev, &request, &net));
        need(f, abar__safetensors_open(f->ctx, GOLDEN "lenet5_torch.safetensors", &weights));
        need(f, abar__weights_exact(f->ctx, weights, "golden", net));
        need(f, abar__weights_load(f->ctx, weights, "golden", net, true));
        abar__stepper stepper = {.ctx = f->ctx, .net = net, .info = &info, .micro = n, .accumulate = 1};
        int32_t *labels = calloc((size_t)n, sizeof *labels);
        abar_batch batch = {.size = sizeof batch, .images = images.data, .labels = labels, .count = n};
        abar_loss loss;
        need(f, abar__stepper_infer(&stepper, &batch, &loss));
        float *got = malloc(abar_tensor_bytes(&logits)), want;
        abar_tensor output = abar_net_output(net), host = abar_tensor_wrap(NULL, got, ABAR_F32, 2, output.dim);
        assert_int_equal(logits.dtype, ABAR_F32);
        need(f, abar_tensor_copy(f->ctx, &host, &output));
        for (int64_t j = 0; j < abar_tensor_count(&host); j++) {
            memcpy(&want, (const char *)logits.data + j * 4, 4);
            assert_true(fabsf(got[j] - want) <= 1e-4f);
        }
        free(labels);
        free(got);
        abar__safetensors_close(weights);
        abar__safetensors_close(file);
        abar_net_destroy(net);
        abar_device_close(dev);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void logits_file_holds_what_went_in_and_came_out(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", "device=ref limit-train=8 limit-test=20 batch=8 epochs=1");
    abar__safetensors *file;
    abar_tensor images, labels, logits;
    char weights[PATH_MAX_TEST], path[PATH_MAX_TEST];
    abar_evaluation e = {.size = sizeof e};
    snprintf(weights, sizeof weights, GOLDEN "lenet5_torch.safetensors");
    path_in(f, "logits.safetensors", path);
    need(f, abar_evaluate(f->ctx, setup, weights, &e));
    need(f, abar_evaluate_logits(f->ctx, setup, weights, 1000, path));
    need(f, abar__safetensors_open(f->ctx, path, &file));
    assert_true(abar__safetensors_find(file, "images", &images));
    assert_true(abar__safetensors_find(file, "labels", &labels));
    assert_true(abar__safetensors_find(file, "logits", &logits));
    assert_int_equal(images.dim[0], 20); /* all there are */
    assert_int_equal(logits.dim[1], 10);
    double loss = 0.0;
    for (int64_t i = 0; i < 20; i++) {
        float z[10];
        int32_t label;
        double sum = 0.0;
        memcpy(z, (const char *)logits.data + i * (int64_t)sizeof z, sizeof z);
        memcpy(&label, (const char *)labels.data + i * 4, 4);
        for (int k = 0; k < 10; k++) sum += exp((double)z[k]);
        loss += (log(sum) - (double)z[label]) / 20.0;
    }
    assert_true(fabs(loss - e.loss) <= 1e-5 * e.loss);
    abar__safetensors_close(file);
    assert_int_equal(abar_evaluate_logits(f->ctx, setup, weights, 0, path), ABAR_E_ARGUMENT);
    abar_setup_destroy(f->ctx, setup);
}

static void weights_of_another_model_are_refused_by_name(void **state)
{
    fixture *f = *state;
    abar_setup *mlp = make_setup(f, "mlp", "sgd", "device=ref limit-train=8 limit-test=8 batch=8");
    abar_setup *lenet = make_setup(f, "lenet5", "sgd", "device=ref limit-train=8 limit-test=8 batch=8");
    abar_evaluation e = {.size = sizeof e};
    assert_int_equal(abar_evaluate(f->ctx, mlp, GOLDEN "lenet5_torch.safetensors", &e), ABAR_E_FORMAT);
    assert_error(f, "is not one of the model's");
    assert_int_equal(abar_evaluate(f->ctx, lenet, GOLDEN "train_lenet5.safetensors", &e), ABAR_E_FORMAT);
    assert_true(abar_evaluate(f->ctx, lenet, "/nowhere/model.safetensors", &e) < 0);
    assert_error(f, "/nowhere/model.safetensors");
    abar_setup_destroy(f->ctx, mlp);
    abar_setup_destroy(f->ctx, lenet);
}

/* Copies an export, leaving out the tensors whose name ends so, or reshaping one. */
static void rewrite(fixture *f, const char *from, const char *to, const char *without, const char *reshape)
{
    abar__safetensors *file;
    abar__safetensors_writer *writer;
    need(f, abar__safetensors_open(f->ctx, from, &file));
    need(f, abar__safetensors_writer_create(f->ctx, &writer));
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        abar_tensor t;
        const char *name = abar__safetensors_get(file, i, &t);
        if (without && strstr(name, without)) continue;
        if (reshape && strcmp(name, reshape) == 0) {
            int64_t n = abar_tensor_count(&t);
            t = abar_tensor_wrap(NULL, t.data, t.dtype, 1, &n);
        }
        need(f, abar__safetensors_writer_add(writer, name, &t));
    }
    need(f, abar__safetensors_writer_write(writer, to));
    abar__safetensors_writer_destroy(writer);
    abar__safetensors_close(file);
}

static void counters_may_be_missing_and_nothing_else(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "sgd", "device=ref limit-train=2 limit-test=2 batch=2 epochs=1");
    abar__epoch last;
    abar_evaluation e = {.size = sizeof e};
    char model[PATH_MAX_TEST], copy[PATH_MAX_TEST];
    set_out(f, setup, "run");
    run(f, setup, &last);
    path_in(f, "run/model.safetensors", model);
    path_in(f, "copy.safetensors", copy);
    rewrite(f, model, copy, "num_batches_tracked", NULL);
    need(f, abar_evaluate(f->ctx, setup, copy, &e));
    assert_true(fabs(e.loss - last.test_loss) <= 1e-5 * last.test_loss);
    rewrite(f, model, copy, "layer2.0.bn1.running_var", NULL);
    assert_int_equal(abar_evaluate(f->ctx, setup, copy, &e), ABAR_E_FORMAT);
    assert_error(f, "layer2.0.bn1.running_var is missing");
    rewrite(f, model, copy, NULL, "conv1.weight");
    assert_int_equal(abar_evaluate(f->ctx, setup, copy, &e), ABAR_E_FORMAT);
    assert_error(f, "conv1.weight has shape (432), the model wants (16, 3, 3, 3)");
    abar_setup_destroy(f->ctx, setup);
}

/* Names, types and shapes of the export are those of PyTorch's state_dict. */
static void check_export(fixture *f, const char *model, const char *list)
{
    abar_setup *setup = make_setup(f, model, "sgd", "device=ref limit-train=2 limit-test=2 batch=2 epochs=1");
    abar__net_request request = {.batch = 2, .training = true};
    abar_dataset_info info = {0};
    abar_device *dev;
    abar_net *net;
    abar__safetensors *file;
    char path[PATH_MAX_TEST], line[256];
    need(f, abar__data_look(f->ctx, setup, &info));
    need(f, abar__device_open(f->ctx, setup, &dev));
    need(f, abar__net_build(f->ctx, setup, &info, dev, &request, &net));
    size_t bytes = abar__weights_stage_bytes(net);
    void *stage = malloc(bytes);
    path_in(f, model, path);
    need(f, abar__weights_export(f->ctx, net, NULL, stage, &(abar__notes){0}, path));
    need(f, abar__safetensors_open(f->ctx, path, &file));
    assert_string_equal(abar__safetensors_metadata(file, "format"), "pt");
    FILE *expected = fopen(list, "r");
    assert_non_null(expected);
    int lines = 0;
    while (fgets(line, sizeof line, expected)) {
        char name[128], dtype[16], shape[64], got[64] = "[";
        abar_tensor t;
        assert_int_equal(sscanf(line, "%127s %15s %63s", name, dtype, shape), 3);
        if (!abar__safetensors_find(file, name, &t)) fail_msg("%s is missing", name);
        for (int i = 0; i < t.ndim; i++) sprintf(got + strlen(got), "%s%d", i ? "," : "", (int)t.dim[i]);
        assert_string_equal(strcat(got, "]"), shape);
        assert_string_equal(abar_dtype_name(t.dtype), dtype);
        lines++;
    }
    fclose(expected);
    assert_int_equal(abar__safetensors_count(file), lines);
    abar__safetensors_close(file);
    free(stage);
    abar_net_destroy(net);
    abar_device_close(dev);
    abar_setup_destroy(f->ctx, setup);
}

static void export_has_pytorchs_names_and_types(void **state)
{
    check_export(*state, "lenet5", GOLDEN "state_dict_lenet5.txt");
    check_export(*state, "mlp", GOLDEN "state_dict_mlp.txt");
    check_export(*state, "resnet20", GOLDEN "state_dict_resnet20.txt");
    check_export(*state, "deit-tiny", GOLDEN "state_dict_deit-tiny.txt");
    check_export(*state, "gpt-char", GOLDEN "state_dict_gpt-char.txt");
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(export_and_checkpoint_evaluate_as_the_run_did), with_fixture(pytorchs_lenet5_gives_pytorchs_logits),
        with_fixture(logits_file_holds_what_went_in_and_came_out),   with_fixture(weights_of_another_model_are_refused_by_name),
        with_fixture(counters_may_be_missing_and_nothing_else),      with_fixture(export_has_pytorchs_names_and_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
