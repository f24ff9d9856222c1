/* Structs that begin with their size, at every function that takes one: no size and that of a later library are refused, that
 * of an earlier one is served, and nothing is written past it. */
#include "train/train_support.h"

#include "abar/comm.h"
#include "abar/compare.h"
#include "abar/images.h"
#include "abar/report.h"
#include "abar/serve.h"
#include "abar/tune.h"
#include "tiny_jpeg.h"

#include <math.h>

/* Everything that the calls need. */
typedef struct rig {
    fixture *f;
    abar_setup *setup;
    abar_dataset *data;
    abar_loader *loader;
    abar_device *dev;
    abar_net *net; /* compiled */
    abar_optim *optim;
    float weight[2], grad[2];
    char weights[PATH_MAX_TEST]; /* of setup's model */
    char images[PATH_MAX_TEST];  /* an image folder */
    abar_setup *of_images;
} rig;

/* Gives the struct at from to a function. */
typedef abar_status (*caller)(rig *r, void *from);

static abar_status build_and_compile(rig *r, void (*build)(abar_net *net, abar_value x, void *config), void *config)
{
    abar_net *net;
    abar_status status = abar_net_create(r->f->ctx, &net);
    if (status < 0) return status;
    build(net, abar_input(net, 3, (int64_t[]){1, 4, 4}), config);
    status = abar_net_compile(net, r->dev, &ABAR_CONFIG(abar_compile_config, .batch = 2, .plan_only = true));
    abar_net_destroy(net);
    return status;
}

static void end(abar_net *net, abar_value x) { abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0); }
static void linear(abar_net *net, abar_value x, void *config)
{
    end(net, abar_linear(net, abar_flatten(net, x), "fc", config));
}
static void conv(abar_net *net, abar_value x, void *config) { end(net, abar_conv2d(net, x, "conv", config)); }
static void max_pool(abar_net *net, abar_value x, void *config) { end(net, abar_max_pool(net, x, config)); }
static void average_pool(abar_net *net, abar_value x, void *config) { end(net, abar_average_pool(net, x, config)); }
static void attention(abar_net *net, abar_value x, void *config)
{
    x = abar_linear(net, abar_tokens(net, x), "qkv", &ABAR_CONFIG(abar_linear_config, .out = 6));
    end(net, abar_token_mean(net, abar_attention_heads(net, x, "attn", config)));
}

static abar_status call_linear(rig *r, void *from) { return build_and_compile(r, linear, from); }
static abar_status call_conv(rig *r, void *from) { return build_and_compile(r, conv, from); }
static abar_status call_max_pool(rig *r, void *from) { return build_and_compile(r, max_pool, from); }
static abar_status call_average_pool(rig *r, void *from) { return build_and_compile(r, average_pool, from); }
static abar_status call_attention(rig *r, void *from) { return build_and_compile(r, attention, from); }

static abar_status call_device(rig *r, void *from)
{
    abar_device *dev;
    abar_status status = abar_device_open(r->f->ctx, "ref", from, &dev);
    abar_device_close(dev);
    return status;
}

static abar_status call_comm(rig *r, void *from)
{
    abar_comm *comm;
    abar_status status = abar_comm_open(r->f->ctx, from, &comm);
    abar_comm_close(comm);
    return status;
}

static abar_status call_compile(rig *r, void *from)
{
    abar_net *net;
    abar_status status = abar_net_create(r->f->ctx, &net);
    if (status < 0) return status;
    end(net, abar_input(net, 1, (int64_t[]){3}));
    status = abar_net_compile(net, r->dev, from);
    abar_net_destroy(net);
    return status;
}

static abar_status call_forward(rig *r, void *from) { return abar_net_forward(r->net, from, NULL); }

static abar_status observe(void *user, int index, const abar_layer *layer)
{
    (void)user, (void)index, (void)layer;
    return ABAR_OK;
}

static abar_status call_backward(rig *r, void *from)
{
    abar_status status = abar_net_forward(r->net, &ABAR_CONFIG(abar_run_config, .training = true), NULL);
    return status < 0 ? status : abar_net_backward(r->net, false, from);
}

static abar_status call_optim(rig *r, void *from)
{
    abar_optim *optim;
    abar_status status = abar_optim_create(r->dev, from, &optim);
    abar_optim_destroy(optim);
    return status;
}

static abar_status call_plan(rig *r, void *from)
{
    size_t bytes;
    return abar_optim_plan_bytes(r->dev, from, &bytes);
}

static abar_status call_step(rig *r, void *from) { return abar_optim_step(r->optim, from, NULL); }
static abar_status call_step_report(rig *r, void *from)
{
    return abar_optim_step(r->optim, &ABAR_CONFIG(abar_step_config, .lr = 0.1), from);
}

static abar_status call_dataset(rig *r, void *from)
{
    abar_dataset *data;
    abar_status status = abar_dataset_open(r->f->ctx, "synthetic", from, &data);
    abar_dataset_close(data);
    return status;
}

static abar_status call_wrap(rig *r, void *from)
{
    abar_dataset *data;
    abar_status status = abar_dataset_wrap(r->f->ctx, from, &data);
    abar_dataset_close(data);
    return status;
}

static abar_status call_probe(rig *r, void *from) { return abar_dataset_probe_name(r->f->ctx, "synthetic", from); }

static abar_status call_loader(rig *r, void *from)
{
    abar_loader *loader;
    abar_status status = abar_loader_create(r->f->ctx, r->data, from, &loader);
    abar_loader_destroy(loader);
    return status;
}

static abar_status call_loader_plan(rig *r, void *from)
{
    size_t bytes;
    return abar_loader_plan_bytes(r->f->ctx, abar_dataset_info_of(r->data), from, &bytes);
}

static abar_status call_next(rig *r, void *from) { return abar_loader_next(r->loader, from); }

static abar_status call_events(rig *r, void *from)
{
    abar_trainer *t;
    abar_status status = abar_trainer_create(r->f->ctx, r->setup, false, from, &t);
    abar_trainer_destroy(t);
    return status;
}

static abar_status call_memory_plan(rig *r, void *from) { return abar_setup_memory_plan(r->f->ctx, r->setup, from); }

static abar_status call_bench_result(rig *r, void *from)
{
    return abar_bench_run(r->f->ctx, r->setup, &ABAR_CONFIG(abar_bench_config, .steps = 1), from, NULL);
}

static abar_status call_bench(rig *r, void *from)
{
    abar_bench_result result = {.size = sizeof result};
    return abar_bench_run(r->f->ctx, r->setup, from, &result, NULL);
}

static abar_status call_fed(rig *r, void *from) { return abar_bench_fed(r->f->ctx, r->setup, 1, 1, 0, from); }
static abar_status call_bench_data(rig *r, void *from) { return abar_bench_data(r->f->ctx, r->of_images, 1, 0.0, from); }

static abar_status call_image_check(rig *r, void *from)
{
    abar_image_check *check;
    abar_status status = abar_image_check_create(r->f->ctx, from, true, &check);
    abar_image_check_destroy(check);
    return status;
}

static abar_status call_image_shrink(rig *r, void *from)
{
    abar_image_shrink *shrink;
    char path[PATH_MAX_TEST];
    path_in(r->f, "shrunk", path);
    abar_status status = abar_image_shrink_create(r->f->ctx, from, 8, path, &shrink);
    abar_image_shrink_destroy(shrink);
    return status;
}

static abar_status call_evaluate(rig *r, void *from) { return abar_evaluate(r->f->ctx, r->setup, r->weights, from); }

static abar_status call_report(rig *r, void *from)
{
    char folder[PATH_MAX_TEST], page[PATH_MAX_TEST];
    const char *list = folder;
    path_in(r->f, "run", folder);
    path_in(r->f, "page.html", page);
    return abar_report_write(r->f->ctx, &list, 1, page, from);
}

static abar_status call_serve(rig *r, void *from)
{
    abar_server *server = (abar_server *)(void *)r; /* a failure sets it to NULL */
    const abar_status status = abar_server_create(r->f->ctx, from, &server);
    assert_true(status >= 0 || !server);
    abar_server_destroy(server);
    return status == ABAR_E_UNSUPPORTED ? ABAR_OK : status; /* a build without libmicrohttpd */
}

static abar_status compare(rig *r, const void *config, const void *events)
{
    abar_compare *compare = (abar_compare *)(void *)r; /* a failure sets it to NULL */
    abar_status status = abar_compare_create(r->f->ctx, config, events, &compare);
    assert_true(status >= 0 || !compare);
    abar_compare_destroy(compare);
    return status;
}

static abar_status call_compare(rig *r, void *from) { return compare(r, from, NULL); }
static abar_status call_sweep(rig *r, void *from)
{
    abar_compare *sweep = (abar_compare *)(void *)r; /* a failure sets it to NULL */
    abar_status status = abar_sweep_create(r->f->ctx, from, NULL, &sweep);
    assert_true(status >= 0 || !sweep);
    abar_compare_destroy(sweep);
    return status;
}
static abar_status call_tune(rig *r, void *from)
{
    abar_tune *tune = (abar_tune *)(void *)r;
    abar_status status = abar_tune_create(r->f->ctx, from, NULL, &tune);
    assert_true(status >= 0 || !tune);
    abar_tune_destroy(tune);
    return status;
}
static abar_status call_compare_events(rig *r, void *from)
{
    char path[PATH_MAX_TEST];
    path_in(r->f, "compared", path);
    const abar_setup *setup = r->setup;
    return compare(r, &ABAR_CONFIG(abar_compare_config, .out = path, .setups = &setup, .methods = 1, .seeds = 1), from);
}

/* Weights to evaluate, from a run of one epoch. */
static void train_weights(rig *r)
{
    fixture *f = r->f;
    abar_trainer *t;
    abar_setup *setup = make_setup(f, "mlp", "sgd", "device=cpu batch=8 limit-train=16 limit-test=16 epochs=1");
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    abar_trainer_destroy(t);
    path_in(f, "run/model.safetensors", r->weights);
    abar_setup_destroy(f->ctx, setup);
}

/* One image in each part, of one class. */
static void make_images(rig *r)
{
    static const char *const folders[] = {"images", "images/train", "images/val", "images/train/a", "images/val/a"};
    static const char *const files[] = {"images/train/a/1.jpg", "images/val/a/2.jpg"};
    char path[PATH_MAX_TEST], data[PATH_MAX_TEST + 16];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        path_in(r->f, folders[i], path);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        path_in(r->f, files[i], path);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(tiny_jpeg, 1, sizeof tiny_jpeg, file), sizeof tiny_jpeg);
        fclose(file);
    }
    path_in(r->f, "images", r->images);
    snprintf(data, sizeof data, "imagefolder:%s", r->images);
    need(r->f, abar_setup_create(r->f->ctx, "resnet50", data, "sgd", &r->of_images));
    need(r->f, abar_setup_set(r->f->ctx, r->of_images, "batch", "1"));
}

static void rig_open(rig *r, fixture *f)
{
    *r = (rig){.f = f};
    need(f, abar_device_open(f->ctx, "cpu", NULL, &r->dev));
    need(f, abar_dataset_open(f->ctx, "synthetic", &ABAR_CONFIG(abar_dataset_config, .train = 8, .test = 8), &r->data));
    need(f, abar_loader_create(f->ctx, r->data, &ABAR_CONFIG(abar_loader_config, .batch = 4), &r->loader));
    need(f, abar_net_create(f->ctx, &r->net));
    abar_value x = abar_input(r->net, 1, (int64_t[]){3});
    abar_softmax_cross_entropy(r->net, abar_linear(r->net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = 2)), 0.0);
    need(f, abar_net_compile(r->net, r->dev, &ABAR_CONFIG(abar_compile_config, .batch = 2, .training = true)));
    const int64_t two = 2;
    const abar_optim_param param = {.name = "w",
                                    .value = abar_tensor_wrap(r->dev, r->weight, ABAR_F32, 1, &two),
                                    .grad = abar_tensor_wrap(r->dev, r->grad, ABAR_F32, 1, &two),
                                    .lr_scale = 1.0};
    need(f,
         abar_optim_create(r->dev, &ABAR_CONFIG(abar_optim_config, .rule = "sgd", .params = &param, .n_params = 1), &r->optim));
    r->setup = make_setup(f, "mlp", "sgd", "device=cpu batch=8 limit-train=16 limit-test=16 epochs=1");
    train_weights(r);
    make_images(r);
}

static void rig_close(rig *r)
{
    abar_setup_destroy(r->f->ctx, r->setup);
    abar_setup_destroy(r->f->ctx, r->of_images);
    abar_optim_destroy(r->optim);
    abar_net_destroy(r->net);
    abar_loader_destroy(r->loader);
    abar_dataset_close(r->data);
    abar_device_close(r->dev);
}

/* One struct: what a caller of today gives, and how much of it one of an earlier library had at least. */
typedef struct sized {
    const char *name;
    caller call;
    const void *example;
    size_t bytes, earlier;
} sized;

static void check(rig *r, const sized *s)
{
    enum { GUARD = 64 };
    unsigned char *memory = malloc(s->bytes + GUARD);
    const size_t sizes[] = {0, sizeof(size_t) - 1, s->bytes + 1, s->bytes + 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memcpy(memory, s->example, s->bytes);
        memcpy(memory, &sizes[i], sizeof(size_t));
        if (s->call(r, memory) != ABAR_E_ARGUMENT) fail_msg("%s of size %zu was accepted", s->name, sizes[i]);
        const char *text = abar_context_error(r->f->ctx);
        if (!strstr(text, s->name) || !strstr(text, "sizeof(")) fail_msg("%s of size %zu: %s", s->name, sizes[i], text);
    }
    for (size_t size = s->earlier; size <= s->bytes; size += s->bytes - s->earlier) {
        memcpy(memory, s->example, s->bytes);
        memcpy(memory, &size, sizeof size);
        memset(memory + size, 0xa5, s->bytes + GUARD - size);
        if (s->call(r, memory) < 0) fail_msg("%s of size %zu was refused: %s", s->name, size, abar_context_error(r->f->ctx));
        for (size_t i = size; i < s->bytes + GUARD; i++)
            if (memory[i] != 0xa5) fail_msg("%s of size %zu: byte %zu was written", s->name, size, i);
        if (size == s->bytes) break;
    }
    free(memory);
}

#define EARLIER(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))

static void structs_are_served_by_their_size_wherever_they_go_in(void **state)
{
    fixture *f = *state;
    rig r;
    rig_open(&r, f);
    char compared[PATH_MAX_TEST];
    path_in(f, "compared", compared);
    const char *over = "lr=0.1";
    abar_setup *held;
    need(f, abar__setup_copy(f->ctx, r.setup, &held));
    held->train.limit_test = 0; /* the test part is not used where there is a validation part */
    set(f, held, "validation", "0.25");
    const abar_setup *tuned = held;
    const abar_setup *setup = r.setup;
    const uint8_t pixel = 7;
    const int32_t label = 0;
    const int64_t two = 2;
    const abar_optim_param param = {.name = "w",
                                    .value = abar_tensor_wrap(r.dev, r.weight, ABAR_F32, 1, &two),
                                    .grad = abar_tensor_wrap(r.dev, r.grad, ABAR_F32, 1, &two),
                                    .lr_scale = 1.0};
#define ROW(type, call, member, ...)                                                      \
    {                                                                                     \
#type, call, &ABAR_CONFIG(type, __VA_ARGS__), sizeof(type), EARLIER(type, member) \
    }
    const sized rows[] = {
        ROW(abar_device_config, call_device, threads, .threads = 1),
        ROW(abar_comm_config, call_comm, ranks, .ranks = 1),
        ROW(abar_linear_config, call_linear, out, .out = 3),
        ROW(abar_conv2d_config, call_conv, kernel, .out = 3, .kernel = 2),
        ROW(abar_pool_config, call_max_pool, kernel, .kernel = 2),
        ROW(abar_pool_config, call_average_pool, kernel, .kernel = 2),
        ROW(abar_attention_config, call_attention, heads, .heads = 2),
        ROW(abar_compile_config, call_compile, batch, .batch = 2),
        ROW(abar_run_config, call_forward, training, .training = true),
        ROW(abar_observer, call_backward, observe, .observe = observe),
        ROW(abar_optim_config, call_optim, n_params, .rule = "sgd", .params = &param, .n_params = 1),
        ROW(abar_optim_config, call_plan, n_params, .rule = "sgd", .params = &param, .n_params = 1),
        ROW(abar_step_config, call_step, lr, .lr = 0.1),
        ROW(abar_step_report, call_step_report, skipped, .skipped = true),
        ROW(abar_dataset_config, call_dataset, limit_train, .limit_train = 4),
        ROW(abar_dataset_images, call_wrap, test_labels, .channels = 1, .height = 1, .width = 1, .classes = 1, .train = 1,
            .test = 1, .train_images = &pixel, .test_images = &pixel, .train_labels = &label, .test_labels = &label),
        ROW(abar_dataset_probe, call_probe, summary, .summary = NULL),
        ROW(abar_loader_config, call_loader, batch, .batch = 4),
        ROW(abar_loader_config, call_loader_plan, batch, .batch = 4),
        ROW(abar_batch, call_next, images, .images = NULL),
        ROW(abar_trainer_events, call_events, progress, .progress = NULL),
        ROW(abar_memory_plan, call_memory_plan, parameters, .parameters = 0),
        ROW(abar_evaluation, call_evaluate, loss, .loss = 0.0),
        ROW(abar_report_counts, call_report, runs, .runs = 0),
        ROW(abar_serve_config, call_serve, folder, .folder = r.images),
        ROW(abar_compare_config, call_compare, seeds, .out = compared, .setups = &setup, .methods = 1, .seeds = 1),
        ROW(abar_sweep_config, call_sweep, n_over, .out = compared, .setups = &setup, .optimizers = 1, .seeds = 1,
            .over = &over, .n_over = 1),
        ROW(abar_tune_config, call_tune, seeds, .out = compared, .setups = &tuned, .optimizers = 1, .over = &over, .n_over = 1,
            .trials = 1, .seeds = 1),
        ROW(abar_compare_events, call_compare_events, progress, .progress = NULL),
        ROW(abar_bench_config, call_bench, steps, .steps = 1),
        ROW(abar_bench_result, call_bench_result, ms_median, .ms_median = 0.0),
        ROW(abar_bench_fed_result, call_fed, ms_step, .ms_step = 0.0),
        ROW(abar_bench_data_result, call_bench_data, workers, .workers = 0),
        ROW(abar_image_source, call_image_check, folder, .folder = r.images),
        ROW(abar_image_source, call_image_shrink, folder, .folder = r.images),
    };
#undef ROW
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check(&r, &rows[i]);
    rig_close(&r);
    abar_setup_destroy(f->ctx, held);
}

static void results_reach_the_members_that_a_caller_has(void **state)
{
    fixture *f = *state;
    rig r;
    rig_open(&r, f);
    abar_memory_plan whole = {.size = sizeof whole}, early = {.size = EARLIER(abar_memory_plan, gradients), .total = 77};
    need(f, abar_setup_memory_plan(f->ctx, r.setup, &whole));
    need(f, abar_setup_memory_plan(f->ctx, r.setup, &early));
    assert_true(whole.parameters > 0 && whole.gradients > 0 && whole.total > whole.parameters);
    assert_int_equal(early.parameters, whole.parameters);
    assert_int_equal(early.gradients, whole.gradients);
    assert_int_equal(early.total, 77);
    assert_int_equal(early.size, EARLIER(abar_memory_plan, gradients));
    rig_close(&r);
}

static void schedule_of_a_wrong_size_has_no_rate(void **state)
{
    (void)state;
    abar_schedule s = {.size = sizeof s, .kind = ABAR_SCHEDULE_CONSTANT, .lr = 0.5};
    assert_true(abar_schedule_lr(&s, 0) == 0.5);
    s.size = EARLIER(abar_schedule, lr);
    assert_true(abar_schedule_lr(&s, 0) == 0.5);
    s.size = 0;
    assert_true(isnan(abar_schedule_lr(&s, 0)));
    s.size = sizeof s + 8;
    assert_true(isnan(abar_schedule_lr(&s, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(structs_are_served_by_their_size_wherever_they_go_in, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(results_reach_the_members_that_a_caller_has, make_fixture, drop_fixture),
        cmocka_unit_test(schedule_of_a_wrong_size_has_no_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
