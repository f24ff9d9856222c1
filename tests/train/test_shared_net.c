/* A second net on the parameters of the one that is trained: other image sizes, no memory of its own but for its target, and
 * the numbers of a net that was loaded from the export. */
#include "train_engine.h"

#include <math.h>

#define SMALL "limit-train=24 batch=8 threads=1 deterministic=true precision=fp32 "
#define RESNET SMALL "blocks=1-1 width=4 classes=5 image-size=24"
#define SWIN SMALL "classes=5 image-size=16 patch=2 width=4 depths=2-1 heads=1-2 window=2"

static engine *trained(fixture *f, const char *model, const char *device, const char *options)
{
    abar_setup *setup = make_setup(f, model, "sgd", options);
    set(f, setup, "device", device);
    engine *e = make_engine(f, setup);
    for (int64_t k = 0; k < 3; k++) assert_false(train_on(e, k).skipped);
    return e;
}

static abar_dataset_info sized(const engine *e, int64_t side)
{
    abar_dataset_info info = *abar_dataset_info_of(e->data);
    info.height = info.width = side;
    return info;
}

/* Any numbers, the same for every net. */
static void fill_input(engine *e, abar_net *net)
{
    abar_tensor input = abar_net_input(net), target = abar_net_target(net);
    const int64_t n = abar_tensor_count(&input), rows = abar_tensor_count(&target);
    abar_tensor host = abar_tensor_wrap(NULL, calloc((size_t)n, sizeof(double)), ABAR_F64, input.ndim, input.dim);
    abar_tensor labels = abar_tensor_wrap(NULL, calloc((size_t)rows, sizeof(int32_t)), ABAR_I32, 1, &rows);
    for (int64_t i = 0; i < n; i++) ((double *)host.data)[i] = sin(0.37 * (double)i);
    for (int64_t i = 0; i < rows; i++) ((int32_t *)labels.data)[i] = (int32_t)(i % 5);
    need(e->f, abar_tensor_copy(e->f->ctx, &input, &host));
    need(e->f, abar_tensor_copy(e->f->ctx, &target, &labels));
    free(host.data);
    free(labels.data);
}

/* Logits in double; the caller frees them. */
static double *logits_of(engine *e, abar_net *net, abar_loss *loss)
{
    fill_input(e, net);
    const abar_run_config run = {.size = sizeof run};
    need(e->f, abar_net_forward(net, &run, loss));
    const abar_tensor output = abar_net_output(net);
    abar_tensor host = abar_tensor_wrap(NULL, NULL, ABAR_F64, output.ndim, output.dim);
    host.data = calloc((size_t)abar_tensor_count(&output), sizeof(double));
    need(e->f, abar_tensor_copy(e->f->ctx, &host, &output));
    return host.data;
}

static void check_logits(fixture *f, const char *model, const char *device, const char *options, int64_t side)
{
    engine *e = trained(f, model, device, options);
    const abar_dataset_info info = sized(e, side);
    char path[PATH_MAX_TEST];
    abar_net *shared, *loaded;
    abar_loss a, b, c;
    abar__net_request request = {.batch = 8, .share = e->net};
    need(f, abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &shared));
    request.share = NULL;
    need(f, abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &loaded));
    path_in(f, "export.safetensors", path);
    void *stage = calloc(1, abar__weights_stage_bytes(e->net) + 1);
    need(f, abar__weights_export(f->ctx, e->net, NULL, stage, &(abar__notes){0}, path));
    free(stage);
    need(f, abar__weights_read(f->ctx, path, loaded));
    double *x = logits_of(e, shared, &a), *y = logits_of(e, loaded, &b);
    const bool wide = strcmp(device, "ref") == 0; /* the export is float32 */
    for (int i = 0; i < 8 * 5; i++)
        if (wide ? fabs(x[i] - y[i]) > 1e-5 * (1 + fabs(y[i])) : x[i] != y[i]) fail_msg("logit %d: %g, %g", i, x[i], y[i]);
    assert_int_equal(a.correct, b.correct);

    /* training goes on in the same arena, and the shared net sees the new weights */
    for (int64_t k = 3; k < 5; k++) assert_false(train_on(e, k).skipped);
    double *z = logits_of(e, shared, &c);
    assert_true(memcmp(x, z, 8 * 5 * sizeof *x) != 0);
    free(x);
    free(y);
    free(z);
    abar_net_destroy(loaded);
    abar_net_destroy(shared);
    drop_engine(e);
}

static void check_on(fixture *f, const char *device)
{
    check_logits(f, "resnet50", device, RESNET, 24);
    check_logits(f, "resnet50", device, RESNET, 32);
    check_logits(f, "resnet50", device, RESNET, 16);
    check_logits(f, "swin-tiny", device, SWIN, 24); /* the windows stay */
}

static void logits_at_another_size_are_those_of_the_export(void **state)
{
    fixture *f = *state;
    check_on(f, "ref");
    check_on(f, "cpu");
    if (abar_device_count("cuda") > 0) check_on(f, "cuda");
}

/* With and without evaluations in between, training gives the same bits. */
static void training_does_not_notice_the_shared_net(void **state)
{
    fixture *f = *state;
    const char *const devices[] = {"ref", "cpu", abar_device_count("cuda") > 0 ? "cuda" : "cpu"};
    for (int d = 0; d < 3; d++) {
        engine *a = trained(f, "resnet50", devices[d], RESNET), *b = trained(f, "resnet50", devices[d], RESNET);
        const abar_dataset_info info = sized(b, 32);
        const abar__net_request request = {.batch = 8, .share = b->net};
        abar_net *shared;
        abar_loss loss;
        need(f, abar__net_build(f->ctx, b->setup, &info, b->dev, &request, &shared));
        for (int64_t k = 3; k < 6; k++) {
            free(logits_of(b, shared, &loss));
            train_on(a, k);
            train_on(b, k);
        }
        snapshot s = take(a);
        assert_unchanged(b, &s);
        free(s.bytes);
        abar_net_destroy(shared);
        drop_engine(a);
        drop_engine(b);
    }
}

static void shared_net_takes_no_memory_but_its_target(void **state)
{
    fixture *f = *state;
    engine *e = trained(f, "resnet50", "cpu", RESNET);
    const abar_dataset_info small = sized(e, 24), huge = sized(e, 256);
    abar__net_request request = {.batch = 8, .share = e->net};
    abar_net *net;
    need(f, abar__net_build(f->ctx, e->setup, &small, e->dev, &request, &net));
    const abar_net_memory m = *abar_net_memory_plan(net);
    assert_int_equal(m.parameters + m.gradients + m.buffers + m.arena, 0);
    assert_ptr_equal(abar_net_param(net, 0)->value.data, abar_net_param(e->net, 0)->value.data);
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name[2];
        abar_tensor t[2];
        abar_net_tensor(net, i, &name[0], &t[0]);
        abar_net_tensor(e->net, i, &name[1], &t[1]);
        assert_string_equal(name[0], name[1]);
        assert_ptr_equal(t[0].data, t[1].data);
    }
    abar_net_destroy(net);
    request.plan_only = true; /* an arena that does not fit is its own */
    need(f, abar__net_build(f->ctx, e->setup, &huge, e->dev, &request, &net));
    assert_true(abar_net_memory_plan(net)->arena > 0);
    abar_net_destroy(net);
    drop_engine(e);
}

static void nets_that_cannot_share_are_refused(void **state)
{
    fixture *f = *state;
    engine *e = trained(f, "deit-tiny", "cpu", SMALL "classes=5 image-size=16 patch=4 width=8 heads=2 depth=1");
    abar_dataset_info info = sized(e, 24);
    abar__net_request request = {.batch = 8, .share = e->net};
    abar_net *net;
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_ARGUMENT);
    assert_error(f, "pos_embed depends on the size of the input");
    info = sized(e, 16);
    info.classes = 6;
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_ARGUMENT);
    assert_error(f, "head.weight");
    info.classes = 5;
    request.training = true;
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_ARGUMENT);
    assert_error(f, "not trained");
    request.training = false;
    abar_net *second;
    need(f, abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &second));
    request.share = second;
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_STATE);
    abar_net_destroy(second);
    request = (abar__net_request){.batch = 8, .plan_only = true};
    need(f, abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &second));
    request = (abar__net_request){.batch = 8, .share = second};
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_STATE);
    abar_net_destroy(second);
    drop_engine(e);
    e = trained(f, "resnet50", "cpu", RESNET);
    engine *other = trained(f, "resnet50", "ref", RESNET);
    request = (abar__net_request){.batch = 8, .share = other->net};
    info = sized(e, 24);
    assert_int_equal(abar__net_build(f->ctx, e->setup, &info, e->dev, &request, &net), ABAR_E_STATE);
    assert_error(f, "this device");
    drop_engine(other);
    drop_engine(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logits_at_another_size_are_those_of_the_export, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(training_does_not_notice_the_shared_net, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(shared_net_takes_no_memory_but_its_target, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(nets_that_cannot_share_are_refused, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
