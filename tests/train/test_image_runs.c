/* Runs on folders of images: augmentations and two image sizes, mixed targets, resuming bit for bit, what changes of the files
 * are noticed, and what the files of a run say of the data. */
#include "analysis/observe.h"
#include "data/images/index.h"
#include "data/images_support.h"
#include "train_runs.h"

#include <math.h>
#include <sys/wait.h>

#define TRAIN 48 /* images of three classes; 3 steps an epoch */
#define TEST 20
#define SIZES "size=16 test-resize=28 test-size=24 "
#define RUN SIZES "batch=16 epochs=3 threads=1 device=cpu warmup=0 ema=0.9 ema-steps=2 "
#define NET RUN "blocks=1-1 width=4 stem=small "
#define SWIN RUN "patch=2 width=4 depths=2-1 heads=1-2 window=2 " /* grids of 8 and 12 tokens a side */

static char self[PATH_MAX_TEST]; /* this program, for the test that needs a process to kill */

static void apply(fixture *f, abar_setup *s, const char *options)
{
    char text[1024], *rest = text;
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        set(f, s, word, value);
    }
}

static abar_setup *setup_on(fixture *f, const folder *data, const char *model, const char *optim, const char *options)
{
    abar_setup *s;
    char spec[300];
    snprintf(spec, sizeof spec, "imagefolder:%s", data->path);
    need(f, abar_setup_create(f->ctx, model, spec, optim, &s));
    set(f, s, "seed", test_seed());
    apply(f, s, options);
    return s;
}

static void run_in(fixture *f, abar_setup *s, const char *name)
{
    set_out(f, s, name);
    assert_int_equal(run_until(f, s, false, 0), ABAR_OK);
}

/* ---- two sizes, two losses -------------------------------------------------------------------------------------- */

static double number_in(const char *json, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(json, key);
    if (!at) fail_msg("no %s in %s", name, json);
    return strtod(at + strlen(key), NULL);
}

/* The mean of -log softmax(logits)[label], in double. */
static double hard_loss(fixture *f, const char *path)
{
    abar__safetensors *file;
    abar_tensor logits, labels;
    double sum = 0.0;
    need(f, abar__safetensors_open(f->ctx, path, &file));
    assert_true(abar__safetensors_find(file, "logits", &logits) && abar__safetensors_find(file, "labels", &labels));
    const int64_t n = logits.dim[0], k = logits.dim[1];
    for (int64_t i = 0; i < n; i++) {
        const float *x = (const float *)logits.data + i * k;
        double top = -INFINITY, all = 0.0;
        for (int64_t c = 0; c < k; c++) top = fmax(top, (double)x[c]);
        for (int64_t c = 0; c < k; c++) all += exp((double)x[c] - top);
        sum += top + log(all) - (double)x[((const int32_t *)labels.data)[i]];
    }
    abar__safetensors_close(file);
    return sum / (double)n;
}

static void check_test_view(fixture *f, const folder *data, const char *model, const char *options)
{
    abar_setup *s = setup_on(f, data, model, "sgd", options);
    abar_evaluation found = {.size = sizeof found};
    char dir[32], path[PATH_MAX_TEST], sheet[PATH_MAX_TEST];
    const char *json;
    abar_trainer *t;
    snprintf(dir, sizeof dir, "run-%d", f->runs++);
    set_out(f, s, dir);
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    assert_int_equal(abar_net_input(t->net).dim[2], 16);
    assert_int_equal(abar_net_input(t->test_net).dim[2], 24);
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &json));
    snprintf(path, sizeof path, "%s/%s/model.safetensors", f->dir, dir);
    snprintf(sheet, sizeof sheet, "%s/%s/logits.safetensors", f->dir, dir);
    need(f, abar_evaluate(f->ctx, s, path, &found)); /* a net of its own at the test size */
    assert_true(number_in(json, "test_loss") == found.loss);
    assert_true(number_in(json, "test_acc") == found.accuracy);
    assert_int_equal(found.samples, TEST);
    need(f, abar_evaluate_logits(f->ctx, s, path, TEST, sheet));
    assert_true(fabs(hard_loss(f, sheet) - found.loss) < 1e-5); /* hard labels, no smoothing */
    snprintf(path, sizeof path, "%s/%s/model_ema.safetensors", f->dir, dir);
    need(f, abar_evaluate(f->ctx, s, path, &found));
    assert_true(number_in(json, "ema_test_loss") == found.loss);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, s);
}

static void test_view_has_its_own_size_and_hard_labels(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    check_test_view(f, &data, "resnet50", NET);
    check_test_view(f, &data, "resnet50", NET "augment=false accumulate=2");
    check_test_view(f, &data, "swin-tiny", SWIN "accumulate=2 mix-group=8");
    folder_remove(&data);
}

static void models_of_one_size_refuse_another(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "deit-tiny", "sgd", RUN "patch=4 width=8 heads=2 depth=1");
    abar_memory_plan plan = {.size = sizeof plan};
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, s, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--test-size 24: deit-tiny is trained with --size 16 and cannot be tested at another size (pos_embed");
    assert_error(f, ", give --test-size 16");
    assert_int_equal(abar_setup_memory_plan(f->ctx, s, &plan), ABAR_E_ARGUMENT);
    set(f, s, "test-size", "16");
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

/* t_k = (1 - e) (l [k = own] + (1 - l) [k = partner's]) + e / K, from the batch's rows and the net's logits. */
static double mixed_loss(const abar_batch *batch, int64_t first, int64_t n, const double *logits, int64_t k, double e,
                         int64_t *correct)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const abar_row *row = &batch->rows[first + i];
        const double *x = logits + i * k, share = (double)row->share;
        double all = 0.0;
        int64_t best = 0;
        for (int64_t c = 0; c < k; c++) all += exp(x[c]);
        for (int64_t c = 0; c < k; c++) {
            const double mixed = share * (c == row->label) + (1.0 - share) * (c == row->partner_label);
            sum += ((1.0 - e) * mixed + e / (double)k) * (log(all) - x[c]);
            if (x[c] > x[best]) best = c;
        }
        *correct += best == (share >= 0.5 ? row->label : row->partner_label);
    }
    return sum / (double)n;
}

/* One step at rate 0, which leaves the weights; whether a row was mixed. */
static bool check_mixed_step(fixture *f, abar_trainer *t, int64_t step)
{
    abar_batch batch = {.size = sizeof batch};
    abar__step_result r;
    abar_loss again;
    int64_t correct = 0;
    bool mixed = false;
    need(f, abar_loader_next(t->train, &batch));
    need(f, abar__stepper_run(&t->stepper, &batch, step, 0.0, &r));
    const abar_run_config run = {.size = sizeof run, .training = true, .seed = t->stepper.seed, .step = step};
    need(f, abar_net_forward(t->net, &run, &again));
    abar_net_rollback(t->net);
    const abar_tensor out = abar_net_output(t->net);
    assert_true(fabs(r.loss.loss - mixed_loss(&batch, 0, 8, out.data, 3, 0.1, &correct)) < 1e-9);
    assert_int_equal(r.loss.correct, correct);
    for (int row = 0; row < 8; row++) mixed = mixed || batch.rows[row].share < 1.0f;
    return mixed;
}

static void training_loss_is_that_of_the_mixed_targets(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    static const char *const styles[] = {"style=torchvision mixup=0.8 cutmix=0", "style=timm mixup=0 cutmix=1"};
    for (int i = 0; i < 2; i++) {
        abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET "device=ref batch=8 mix-group=4 label-smoothing=0.1");
        apply(f, s, styles[i]);
        abar_trainer *t;
        need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
        assert_int_equal(abar_net_target_share(t->net).ndim, 1);
        assert_int_equal(abar_net_target_share(t->test_net).ndim, 0);
        bool mixed = false;
        for (int64_t step = 0; step < 6; step++) mixed = check_mixed_step(f, t, step) || mixed;
        assert_true(mixed);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, s);
    }
    folder_remove(&data);
}

/* ---- the same bits ---------------------------------------------------------------------------------------------- */

static void runs_do_not_depend_on_workers_or_prefetch(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    static const char *const workers[] = {"0", "1", "3"};
    char name[32];
    for (int i = 0; i < 3; i++) {
        abar_setup *s = setup_on(f, &data, "resnet50", "mac", NET);
        set(f, s, "workers", workers[i]);
        snprintf(name, sizeof name, "workers-%s", workers[i]);
        run_in(f, s, name);
        if (i > 0) assert_same_runs(f, "workers-0", name);
        if (i > 0) assert_same_tensors(f, "workers-0", name, "model_ema.safetensors");
        abar_setup_destroy(f->ctx, s);
    }
    folder_remove(&data);
}

static void check_resume(fixture *f, const folder *data, const char *model, const char *options)
{
    static const int64_t stops[] = {1, 3, 5, 10}; /* an epoch has 3 steps and a report */
    abar_setup *s = setup_on(f, data, model, "mac", options);
    char whole[32], parts[48];
    snprintf(whole, sizeof whole, "whole-%d", f->runs++);
    run_in(f, s, whole);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        snprintf(parts, sizeof parts, "%s-%d", whole, (int)stops[i]);
        set_out(f, s, parts);
        assert_int_equal(run_until(f, s, false, stops[i]), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 0), ABAR_OK);
        assert_same_runs(f, whole, parts);
        assert_same_tensors(f, whole, parts, "model_ema.safetensors");
    }
    abar_setup_destroy(f->ctx, s);
}

/* Everything on: crops, mirrors, policy, erasing, mixing, repetition, micro-batches, the average. */
#define TORCHVISION "style=torchvision policy=trivial mixup=0.2 cutmix=1 erase=0.5 repeat=2 mix-group=4 accumulate=2"
#define TIMM "style=timm policy=rand-timm mixup=0.8 cutmix=1 erase=0.5 repeat=3 mix-group=8 accumulate=2"

static void stopped_runs_resume_bit_for_bit(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    check_resume(f, &data, "resnet50", NET TORCHVISION);
    check_resume(f, &data, "resnet50", NET TIMM " device=ref");
    check_resume(f, &data, "swin-tiny", SWIN TIMM);
    folder_remove(&data);
}

static int run_child(const char *images, const char *dir, const char *seed, int64_t stop_at)
{
    fixture f = {0};
    folder data;
    watcher w = {.stop_at = stop_at, .die = true};
    abar_trainer_events events = {sizeof events, watch, &w};
    snprintf(data.path, sizeof data.path, "%s", images);
    if (abar_context_create(NULL, &f.ctx) != ABAR_OK) return 1;
    abar_setup *s = setup_on(&f, &data, "resnet50", "mac", NET TORCHVISION " checkpoint-every=2");
    set(&f, s, "seed", seed);
    set(&f, s, "out", dir);
    if (abar_trainer_create(f.ctx, s, false, &events, &w.trainer) != ABAR_OK) return 1;
    abar_trainer_run(w.trainer);
    return 1; /* it should have been killed */
}

static void killed_runs_resume_bit_for_bit(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "resnet50", "mac", NET TORCHVISION " checkpoint-every=2");
    run_in(f, s, "whole");
    for (int at = 1; at <= 11; at += 2) {
        char name[32], dir[PATH_MAX_TEST], moment[16];
        snprintf(name, sizeof name, "killed-%d", at);
        snprintf(moment, sizeof moment, "%d", at);
        path_in(f, name, dir);
        const pid_t child = fork();
        if (child == 0) {
            execl(self, self, "--child", data.path, dir, test_seed(), moment, (char *)NULL);
            _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(resume(f, name, 0), ABAR_OK);
        assert_same_runs(f, "whole", name);
        assert_same_tensors(f, "whole", name, "model_ema.safetensors");
    }
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

/* ---- what is noticed, and said ---------------------------------------------------------------------------------- */

static void rename_in(const folder *data, const char *from, const char *to)
{
    char a[400], b[400];
    snprintf(a, sizeof a, "%s/%s", data->path, from);
    snprintf(b, sizeof b, "%s/%s", data->path, to);
    assert_int_equal(rename(a, b), 0);
}

static void refuse_resume(fixture *f, const char *text)
{
    char dir[PATH_MAX_TEST];
    abar_setup *s;
    abar_trainer *t;
    path_in(f, "run", dir);
    need(f, abar_setup_load(f->ctx, dir, &s));
    assert_int_equal(abar_trainer_create(f->ctx, s, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, text);
    set(f, s, "accept-data", "true");
    need(f, abar_trainer_create(f->ctx, s, true, NULL, &t));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, s);
}

static void changed_files_are_refused_on_resume(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET);
    set_out(f, s, "run");
    assert_int_equal(run_until(f, s, false, 2), ABAR_STOPPED);
    rename_in(&data, "train/a/0000.jpg", "train/a/0000x.jpg"); /* same order, sizes and labels */
    refuse_resume(f, "its files have changed since the checkpoint (48 and 20 samples with fingerprint");
    rename_in(&data, "train/a/0000x.jpg", "train/b/0000.jpg");
    refuse_resume(f, "its training part has changed since the checkpoint (48 samples with CRC-32");
    rename_in(&data, "train/b/0000.jpg", "train/a/0000.jpg");
    rename_in(&data, "val/a/0000.jpg", "train/a/more.jpg");
    refuse_resume(f, "now 49 with");
    rename_in(&data, "train/a/more.jpg", "val/a/0000.jpg");
    assert_int_equal(resume(f, "run", 0), ABAR_OK);
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

static void settings_of_a_run_come_back(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET TIMM " area-low=0.4 flip=false damaged=skip"), *again;
    char dir[PATH_MAX_TEST], a[ABAR_OPTION_TEXT_MAX], b[ABAR_OPTION_TEXT_MAX];
    set_out(f, s, "run");
    assert_int_equal(run_until(f, s, false, 1), ABAR_STOPPED);
    path_in(f, "run", dir);
    need(f, abar_setup_load(f->ctx, dir, &again));
    for (const abar_option *o = abar_image_options(); o->name; o++) {
        need(f, abar_options_get(f->ctx, abar_image_options(), &s->train, o->name, a, sizeof a));
        need(f, abar_options_get(f->ctx, abar_image_options(), &again->train, o->name, b, sizeof b));
        assert_string_equal(a, b);
    }
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

static void names_of_classes_are_in_the_files_of_a_run(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    static const char *const files[] = {"state.safetensors", "model.safetensors", "model_ema.safetensors"};
    folder_write(&data, "order.txt", (bytes){(uint8_t *)"b\na\nc\n", 6});
    abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET);
    char path[400];
    snprintf(path, sizeof path, "%s/order.txt", data.path);
    set(f, s, "classes", path);
    run_in(f, s, "run");
    for (int i = 0; i < 3; i++) {
        abar__safetensors *file = open_in(f, "run", files[i]);
        assert_string_equal(abar__safetensors_metadata(file, "classes"), "[\"b\", \"a\", \"c\"]");
        abar__safetensors_close(file);
    }
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

static void report_says_what_the_files_are_copies_of(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET "epochs=1");
    char readme[64];
    const char *json;
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    need(f, abar_trainer_report(t, &json));
    assert_null(strstr(json, "shrunk"));
    abar_trainer_destroy(t);
    const int n = snprintf(readme, sizeof readme, ABAR_IMAGES_SHRUNK "256, made for a test\n");
    folder_write(&data, "README", (bytes){(uint8_t *)readme, (size_t)n});
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    need(f, abar_trainer_report(t, &json));
    assert_non_null(strstr(json, "\"shrunk\": 256"));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

static void damaged_files_are_told_and_reported(void **state)
{
    fixture *f = *state;
    folder data = make_images(300, 200, 12);
    folder_write(&data, "train/a/0000.jpg", (bytes){(uint8_t *)"no image", 8});
    folder_write(&data, "val/b/0001.jpg", (bytes){(uint8_t *)"neither", 7});
    abar_setup *s =
        setup_on(f, &data, "resnet50", "sgd",
                 "size=8 test-resize=8 test-size=8 batch=60 epochs=2 threads=1 device=cpu warmup=0 blocks=1 width=2 "
                 "mix-group=4 repeat=1 damaged=skip");
    abar_trainer *t;
    const char *json;
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &json));
    assert_non_null(strstr(json, "\"damaged\": {\"train_files\": 1, \"train_places\": "));
    assert_non_null(strstr(json, "\"test_files\": 1}"));
    const char *once = strstr(f->log, "train/a/0000.jpg: is damaged and replaced by the next image");
    assert_non_null(once);
    assert_null(strstr(once + 1, "train/a/0000.jpg"));
    once = strstr(f->log, "val/b/0001.jpg: is damaged and left out");
    assert_non_null(once);
    assert_null(strstr(once + 1, "val/b/0001.jpg"));
    assert_non_null(strstr(f->log, "1 damaged file so far in the training part"));
    abar_trainer_destroy(t);
    set(f, s, "damaged", "fail");
    need(f, abar_trainer_create(f->ctx, s, false, NULL, &t));
    assert_true(abar_trainer_run(t) < 0);
    assert_error(f, "0000.jpg");
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

/* Batches of an analysis are the same whenever they are asked for, of the size of their part, and of unaugmented images. */
static void analyses_read_files_through_a_loader(void **state)
{
    fixture *f = *state;
    folder data = make_images(TRAIN, TEST, 30);
    abar_setup *s = setup_on(f, &data, "resnet50", "sgd", NET);
    for (int test = 0; test < 2; test++) {
        const abar__pass_config config = {.batch = 4, .samples = 12, .test = test, .gradients = !test};
        abar__pass p;
        float first[4 * 3 * 24 * 24];
        need(f, abar__pass_open(f->ctx, s, "", &config, &p));
        assert_int_equal(p.batches, 3);
        const abar_tensor input = abar_net_input(p.net);
        assert_int_equal(input.dim[2], test ? 24 : 16);
        const size_t size = (size_t)abar_tensor_count(&input) * sizeof(float);
        need(f, abar__pass_fill(&p, 0));
        memcpy(first, p.images, size);
        need(f, abar__pass_fill(&p, 1));
        assert_memory_not_equal(first, p.images, size);
        need(f, abar__pass_fill(&p, 0));
        assert_memory_equal(first, p.images, size);
        abar_loss loss;
        need(f, abar__pass_forward(&p, 0, false, NULL, &loss));
        assert_true(isfinite(loss.loss) && loss.count == 4);
        abar__pass_close(&p);
    }
    abar_setup_destroy(f->ctx, s);
    folder_remove(&data);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--child") == 0) return run_child(argv[2], argv[3], argv[4], atoi(argv[5]));
    snprintf(self, sizeof self, "%s", argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_view_has_its_own_size_and_hard_labels, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(models_of_one_size_refuse_another, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(training_loss_is_that_of_the_mixed_targets, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(runs_do_not_depend_on_workers_or_prefetch, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(stopped_runs_resume_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(killed_runs_resume_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(changed_files_are_refused_on_resume, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(settings_of_a_run_come_back, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(names_of_classes_are_in_the_files_of_a_run, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(report_says_what_the_files_are_copies_of, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(damaged_files_are_told_and_reported, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(analyses_read_files_through_a_loader, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
