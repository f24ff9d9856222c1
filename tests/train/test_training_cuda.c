/* Training on cuda: ResNet-20's loss, gradients and first losses are ref's; replayed steps are those taken one by one; two runs
 * with --deterministic and a run that was stopped and resumed end in the same bits; and it learns.
 *     test_training_cuda [PATTERN]    tests whose names match; !PATTERN: all others */
#include "cuda_testing.h"
#include "train_engine.h"
#include "train_runs.h"

#include <math.h>

#define SMALL "device=cuda deterministic=true limit-train=80 limit-test=24 batch=16 epochs=3 threads=1" /* 5 steps an epoch */

/* ---- beside ref --------------------------------------------------------------------------------------------------------- */

/* A tensor of any device as row-major doubles, which the caller frees. */
static double *values_of(fixture *f, const abar_tensor *t)
{
    abar_tensor host = abar_tensor_wrap(NULL, NULL, ABAR_F64, t->ndim, t->dim);
    host.data = calloc((size_t)abar_tensor_count(t) + 1, sizeof(double));
    assert_non_null(host.data);
    need(f, abar_tensor_copy(f->ctx, &host, t));
    return host.data;
}

/* The float32 weights of one engine into another. */
static void copy_weights(engine *from, engine *to)
{
    for (int i = 0; i < abar_net_param_count(from->net); i++) {
        const abar_param *a = abar_net_param(from->net, i), *b = abar_net_param(to->net, i);
        double *values = values_of(from->f, &a->value);
        abar_tensor host = abar_tensor_wrap(NULL, values, ABAR_F64, a->value.ndim, a->value.dim);
        need(to->f, abar_tensor_copy(to->f->ctx, &b->value, &host));
        free(values);
    }
    need(to->f, abar_net_weights_changed(to->net));
}

/* |a - b| / |b| of every gradient. */
static void check_gradients(engine *got, engine *expected, double tolerance)
{
    for (int i = 0; i < abar_net_param_count(got->net); i++) {
        const abar_param *p = abar_net_param(got->net, i);
        double *a = values_of(got->f, &p->grad), *b = values_of(got->f, &abar_net_param(expected->net, i)->grad);
        double off = 0.0, size = 0.0;
        for (int64_t k = 0; k < abar_tensor_count(&p->grad); k++) {
            off += (a[k] - b[k]) * (a[k] - b[k]);
            size += b[k] * b[k];
        }
        if (!(sqrt(off) <= tolerance * sqrt(size)))
            fail_msg("the gradient of %s is off by %.2e of %.2e", p->name, sqrt(off), sqrt(size));
        free(a);
        free(b);
    }
}

/* Twenty steps at a small rate; ResNet-20 needs ref a quarter of a second for an image. */
static void check_losses(fixture *f, const char *optim, const char *method_options)
{
    char options[256];
    snprintf(options, sizeof options,
             "batch=4 limit-train=80 limit-test=4 lr=3e-4 workers=0 threads=1 deterministic=true augment=true %s",
             method_options);
    abar_setup *on_cuda = make_setup(f, "resnet20", optim, options), *on_ref = make_setup(f, "resnet20", optim, options);
    set(f, on_cuda, "device", "cuda");
    set(f, on_cuda, "precision", "fp32");
    set(f, on_ref, "device", "ref");
    engine *cuda = make_engine(f, on_cuda), *ref = make_engine(f, on_ref);
    copy_weights(cuda, ref);
    for (int64_t k = 0; k < 20; k++) {
        abar__step_result a = train_on(cuda, k), b = train_on(ref, k);
        const double tolerance = k == 0 ? 1e-4 : 1e-3;
        assert_true(!a.skipped && !b.skipped);
        if (!(fabs(a.loss.loss - b.loss.loss) <= tolerance * b.loss.loss))
            fail_msg("%s: loss %d is %.9g, not %.9g", optim, (int)k, a.loss.loss, b.loss.loss);
        assert_int_equal(a.loss.count, 4);
        if (k == 0) check_gradients(cuda, ref, 1e-4);
    }
    drop_engine(cuda);
    drop_engine(ref);
}

static void losses_of_sgd_and_first_gradients_are_refs(void **state) { check_losses(*state, "sgd", ""); }

static void losses_of_mac_and_first_gradients_are_refs(void **state) { check_losses(*state, "mac", "tcov=2 tinv=3"); }

#define TINY_DEIT "image-size=32 classes=10 width=64 heads=2 depth=2"
#define TINY_SWIN "image-size=56 classes=10 patch=4 window=7 width=32 depths=2-2 heads=1-2" /* grids of 14 x 14 and 7 x 7 */

/* On small networks, in fewer seconds: every method, micro-batches, clipping, dropout's key. */
static void small_networks_train_as_on_ref(void **state)
{
    static const char *const cases[][3] = {
        {"mlp", "adamw", "batch=16 widths=784-32-10 lr=1e-3"},
        {"mlp", "mac+adamw", "batch=16 widths=784-32-10 tcov=2 tinv=3 lr=1e-3 damping=0.3"},
        {"mlp", "smac", "batch=16 widths=784-32-10 tcov=2 tinv=3 damping=0.1"},
        {"mlp", "mac", "batch=16 accumulate=4 widths=784-32-10 tcov=2 tinv=3 damping=adaptive clip=0.5"},
        {"mlp", "mac", "batch=16 widths=784-32-10 tcov=2 tinv=3 damping=1 first-layer=dataset-mean"},
        {"mlp", "mac", "batch=16 widths=784-32-10 tcov=2 tinv=3 damping=1 first-layer=dataset-cov"},
        {"mlp", "foof", "batch=16 widths=784-32-10 tcov=2 tinv=3 damping=0.3"},
        {"mlp", "kfac", "batch=16 accumulate=4 widths=784-32-10 tcov=2 tinv=3 clip=0.5"},
        {"mlp", "eva", "batch=16 accumulate=4 widths=784-32-10 tcov=2 clip=0.5"},
        {"mlp", "lngd", "batch=16 accumulate=4 widths=784-32-10 tcov=2 tinv=3 nu1=1e-3 pgrad=per-example"},
        {"lenet5", "sgd", "batch=8 clip=1"},
        {"lenet5", "foof", "batch=8 tcov=2 tinv=3 refresh=spread"},
        {"lenet5", "kfac", "batch=8 tcov=2 tinv=3 kfac=expand damping=0.1"},
        {"lenet5", "kfac", "batch=8 tcov=2 tinv=3 kfac-inverse=eigen damping=0.1"},
        {"lenet5", "eva", "batch=8 tcov=2"},
        {"lenet5", "lngd", "batch=8 tcov=2 tinv=3 nu1=1e-3 lr=1e-3"},
        {"lenet5", "mac", "batch=8 tcov=2 tinv=3 damping=0.3"},
        {"mlp", "ngd", "batch=16 widths=784-32-10 damping=1 lr=1e-2"},
        {"lenet5", "ngd", "batch=8 damping=1 lr=1e-2 fisher-blocks=layer"},
        {"lenet5", "ngd", "batch=8 damping=1 lr=1e-2 fisher=mc:2"},
        {"lenet5", "ngd", "batch=8 damping=1 lr=1e-2 fisher=exact"},
        {"lenet5", "adahessian", "batch=8 accumulate=2 lr=1e-2 eps=0.01 fd-step=0.01"},
        {"lenet5", "sophia", "batch=8 lr=1e-4 hessian-every=2"},
        /* longer sides of singular gradients have no basis in particular */
        {"lenet5", "soap", "batch=8 lr=1e-3 eps=1e-3 soap-freq=2 max-dim=6"},
        {"densenet121", "mac", "batch=8 layers=2-3-2 growth=8 tcov=2 tinv=3 lr=1e-3"},
        {"densenet121", "sgd", "batch=8 layers=1-2 growth=3 lr=1e-3"},
        {"resnet50", "mac", "batch=8 image-size=49 classes=10 blocks=1-2-1 width=8 tcov=2 tinv=3 lr=1e-3"},
        {"deit-tiny", "sgd", "batch=8 " TINY_DEIT " drop=0.1 attention-drop=0.1 drop-path=0.5"},
        {"deit-tiny", "mac", "batch=8 accumulate=2 " TINY_DEIT " tcov=2 tinv=3 damping=0.1"},
        {"swin-tiny", "adamw", "batch=4 " TINY_SWIN " lr=1e-3 attention-drop=0.1"},
        {"deit-tiny", "kfac", "batch=8 " TINY_DEIT " tcov=2 tinv=3 damping=0.1"},
        {"swin-tiny", "mac", "batch=4 " TINY_SWIN " tcov=2 tinv=3 damping=0.1"},
        {"lenet5", "smac+adamw", "batch=8 accumulate=2 tcov=1 tinv=1 lr=1e-3 damping=0.3"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[256];
        snprintf(options, sizeof options, "limit-train=96 limit-test=8 workers=0 threads=1 deterministic=true lr=0.01 %s",
                 cases[i][2]);
        abar_setup *on_cuda = make_setup(f, cases[i][0], cases[i][1], options);
        abar_setup *on_ref = make_setup(f, cases[i][0], cases[i][1], options);
        set(f, on_cuda, "device", "cuda");
        set(f, on_cuda, "precision", "fp32");
        set(f, on_ref, "device", "ref");
        engine *cuda = make_engine(f, on_cuda), *ref = make_engine(f, on_ref);
        copy_weights(cuda, ref);
        need(f, abar__stepper_calibrate(&cuda->stepper, cuda->loader));
        need(f, abar__stepper_calibrate(&ref->stepper, ref->loader));
        need(f, abar_loader_seek(cuda->loader, 0, 0));
        need(f, abar_loader_seek(ref->loader, 0, 0));
        for (int64_t k = 0; k < 10; k++) {
            abar__step_result a = train_on(cuda, k), b = train_on(ref, k);
            if (!(fabs(a.loss.loss - b.loss.loss) <= 1e-3 * b.loss.loss) || a.loss.correct != b.loss.correct)
                fail_msg("%s, %s, %s: loss %d is %.9g (%d right), not %.9g (%d)", cases[i][0], cases[i][1], cases[i][2], (int)k,
                         a.loss.loss, (int)a.loss.correct, b.loss.loss, (int)b.loss.correct);
        }
        drop_engine(cuda);
        drop_engine(ref);
    }
}

/* Running means and variances as ref has them. */
static void check_running(engine *got, engine *expected)
{
    for (int i = 0; i < abar_net_tensor_count(got->net); i++) {
        const char *name;
        abar_tensor a, b;
        abar_net_tensor(got->net, i, &name, &a);
        abar_net_tensor(expected->net, i, &name, &b);
        if (!strstr(name, "running_")) continue;
        double *x = values_of(got->f, &a), *y = values_of(got->f, &b);
        for (int64_t k = 0; k < abar_tensor_count(&a); k++)
            if (!(fabs(x[k] - y[k]) <= 1e-5 * (1.0 + fabs(y[k]))))
                fail_msg("%s[%d] is %.9g, not %.9g", name, (int)k, x[k], y[k]);
        free(x);
        free(y);
    }
}

/* Concatenations of a dense block share one value and one gradient, to which every layer adds. Growth 8 and 3: with vectors and
 * without. The arena is far from holding a value for every concatenation. */
static void dense_blocks_grow_in_place_and_have_refs_gradients(void **state)
{
    fixture *f = *state;
    static const char *const options[] = {"layers=3-5 growth=8", "layers=4-3 growth=3"};
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text, "batch=4 limit-train=16 limit-test=4 workers=0 threads=1 deterministic=true %s",
                 options[i]);
        abar_setup *on_cuda = make_setup(f, "densenet121", "sgd", text), *on_ref = make_setup(f, "densenet121", "sgd", text);
        set(f, on_cuda, "device", "cuda");
        set(f, on_cuda, "precision", "fp32");
        set(f, on_ref, "device", "ref");
        engine *cuda = make_engine(f, on_cuda), *ref = make_engine(f, on_ref);
        copy_weights(cuda, ref);
        abar__step_result a = train_on(cuda, 0), b = train_on(ref, 0);
        assert_true(fabs(a.loss.loss - b.loss.loss) <= 1e-4 * b.loss.loss);
        check_gradients(cuda, ref, 1e-4);
        check_running(cuda, ref);
        double joined = 0.0, moved = 0.0; /* what concatenations make, and what they move for it */
        for (int n = 0; n < abar_net_node_count(cuda->net); n++) {
            const abar_node_info node = *abar_net_node(cuda->net, n);
            if (strcmp(node.operation, "concat") != 0) continue;
            joined += (double)(node.dim[0] * node.dim[1] * node.dim[2] * node.dim[3]) * (double)sizeof(float);
            moved += node.forward.bytes;
        }
        /* copies would read and write all; channels that are not a multiple of 4 leave some copies */
        assert_true(joined > 0.0 && moved < (i == 0 ? joined : 1.5 * joined));
        drop_engine(cuda);
        drop_engine(ref);
    }
}

/* ---- bit for bit -----------------------------------------------------------------------------------------------------------
 */

/* Two epochs through the pipeline; alone: every step enqueued by itself, otherwise replayed. */
static void run_pipeline(engine *e, bool alone, double losses[])
{
    abar__pipeline p;
    abar__step_result r;
    bool got = true;
    int n = 0;
    need(e->f, abar__pipeline_create(&e->stepper, e->dev, e->loader, &p));
    const abar_schedule schedule = {.size = sizeof schedule,
                                    .kind = ABAR_SCHEDULE_COSINE,
                                    .lr = e->setup->train.lr,
                                    .epochs = 2,
                                    .steps_per_epoch = p.steps};
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        need(e->f, abar_loader_seek(e->loader, epoch, 0));
        need(e->f, abar__pipeline_seek(&p, &schedule, epoch, 0));
        for (int64_t i = 0; i < p.steps; i++) need(e->f, abar__pipeline_enqueue(&p, 0.0, alone));
        for (got = true; got;) {
            need(e->f, abar__pipeline_collect(&p, true, &r, &got));
            if (got) losses[n++] = r.loss.loss;
        }
    }
    abar__pipeline_release(e->f->ctx, &p);
}

static void recorded_steps_equal_those_taken_one_by_one(void **state)
{
    static const char *const cases[][3] = {
        {"lenet5", "sgd", "precision=fp32"},
        {"lenet5", "mac", "precision=bf16 tcov=2 tinv=3 accumulate=2"},
        {"resnet20", "mac", "precision=bf16 tcov=3 tinv=4"},
        {"resnet20", "smac", "precision=tf32 tcov=2 tinv=2"},
        {"resnet20", "eva", "precision=bf16 tcov=3"},
        {"resnet20", "foof", "precision=bf16 tcov=3 tinv=4 refresh=spread"},
        {"lenet5", "kfac", "precision=tf32 tcov=2 tinv=3 accumulate=2"},
        {"resnet20", "kfac", "precision=bf16 tcov=3 tinv=4"},
        {"lenet5", "lngd", "precision=fp32 tcov=2 tinv=3"},
        {"resnet20", "lngd", "precision=bf16 tcov=3 tinv=4"},
        {"mlp", "adamw", "precision=bf16"},
        {"lenet5", "ngd", "precision=fp32 damping=1 lr=1e-2"},
        {"lenet5", "ngd", "precision=bf16 damping=1 lr=1e-2 fisher=exact"},
        {"lenet5", "adahessian", "precision=fp32 accumulate=2 lr=1e-2"},
        {"resnet20", "adahessian", "precision=bf16 lr=1e-2 hessian-every=3"},
        {"lenet5", "sophia", "precision=bf16 lr=1e-4 hessian-every=3"},
        {"lenet5", "soap", "precision=bf16 lr=1e-3 soap-freq=3 max-dim=130"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int resident = 0; resident < 2; resident++) {
            double losses[2][40] = {{0}};
            snapshot end = {0};
            for (int alone = 1; alone >= 0; alone--) {
                abar_setup *setup = make_setup(f, cases[i][0], cases[i][1], SMALL);
                set(f, setup, "limit-train", "160");
                set(f, setup, "augment", "true");
                char text[128], *rest = text;
                snprintf(text, sizeof text, "%s", cases[i][2]);
                for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
                    char *value = strchr(word, '=');
                    *value = '\0';
                    set(f, setup, word, value + 1);
                }
                engine *e = make_engine_with(f, setup, resident);
                run_pipeline(e, alone, losses[alone]);
                if (alone)
                    end = take(e);
                else
                    assert_unchanged(e, &end);
                drop_engine(e);
            }
            assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
            assert_true(losses[0][19] > 0.0);
            free(end.bytes);
        }
}

static void check_twice(fixture *f, const char *model, const char *optim, const char *precision)
{
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, model, optim, SMALL);
        char name[80];
        snprintf(name, sizeof name, "%s-%s-%s-%d", model, optim, precision, i);
        set(f, setup, "precision", precision);
        set(f, setup, "augment", "true");
        set_out(f, setup, name);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        abar_setup_destroy(f->ctx, setup);
    }
    char first[80], second[80];
    snprintf(first, sizeof first, "%s-%s-%s-0", model, optim, precision);
    snprintf(second, sizeof second, "%s-%s-%s-1", model, optim, precision);
    assert_same_runs(f, first, second);
}

static void deterministic_runs_end_in_the_same_bits(void **state)
{
    check_twice(*state, "resnet20", "mac", "bf16");
    check_twice(*state, "resnet20", "sgd", "fp32");
    check_twice(*state, "lenet5", "smac", "tf32");
    check_twice(*state, "resnet20", "eva", "bf16");
    check_twice(*state, "resnet20", "foof", "bf16");
    check_twice(*state, "resnet20", "kfac", "bf16");
    check_twice(*state, "lenet5", "lngd", "tf32");
}

static void stopped_runs_resume_bit_for_bit(void **state)
{
    check_stop_and_resume(*state, "lenet5", "sgd", SMALL " precision=fp32");
    check_stop_and_resume(*state, "mlp", "adamw", SMALL " precision=bf16 widths=784-16-10");
    check_stop_and_resume(*state, "lenet5", "smac", SMALL " precision=bf16 tcov=2 tinv=3");
    check_stop_and_resume(*state, "resnet20", "mac", SMALL " precision=bf16 tcov=2 tinv=3");
    check_stop_and_resume(*state, "lenet5", "eva", SMALL " precision=bf16 tcov=2");
    check_stop_and_resume(*state, "resnet20", "foof", SMALL " precision=bf16 tcov=2 tinv=3");
    check_stop_and_resume(*state, "lenet5", "kfac", SMALL " precision=bf16 tcov=2 tinv=3 refresh=spread");
    check_stop_and_resume(*state, "lenet5", "kfac", SMALL " precision=fp32 tcov=2 tinv=3 kfac-inverse=eigen");
    check_stop_and_resume(*state, "lenet5", "lngd", SMALL " precision=bf16 tcov=2 tinv=3");
}

/* ---- what goes wrong, and what does not -------------------------------------------------------------------------------------
 */

static void step_with_a_loss_that_is_not_finite_changes_nothing(void **state)
{
    fixture *f = *state;
    static const char *const optims[] = {"adamw", "mac", "eva", "foof", "kfac", "lngd"};
    for (int i = 0; i < 6; i++) {
        abar_setup *setup = make_setup(f, "resnet20", optims[i], SMALL);
        engine *e = make_engine(f, setup);
        for (int64_t k = 0; k < 5; k++) assert_false(train_on(e, k).skipped);
        abar_tensor input = abar_net_input(e->net);
        abar__step_result r;
        poke(e, &input, 0, NAN);
        snapshot before = take(e);
        need(f, abar__stepper_run(&e->stepper, NULL, 5, 0.1, &r)); /* step 5 takes statistics */
        assert_true(r.skipped);
        snapshot after = take(e);
        assert_int_equal(before.used, after.used);
        size_t changed = 0; /* the step counters advance: one for all, and one for every map that is due for a refresh */
        for (size_t b = 0; b < before.used; b++) changed += before.bytes[b] != after.bytes[b];
        if (changed > (i > 0 ? 40u : 0u)) fail_msg("%s: %zu bytes changed", optims[i], changed);
        abar_batch batch = {.size = sizeof batch};
        need(f, abar_loader_next(e->loader, &batch));
        need(f, abar__stepper_run(&e->stepper, &batch, 6, 0.1, &r));
        assert_false(r.skipped);
        free(before.bytes);
        free(after.bytes);
        drop_engine(e);
    }
}

static void training_allocates_nothing(void **state)
{
    fixture *f = *state;
    static const char *const optims[] = {"mac", "eva", "kfac", "lngd"};
    for (int i = 0; i < 4; i++) {
        abar_setup *setup = make_setup(f, "lenet5", optims[i], SMALL " accumulate=2 augment=true");
        abar_trainer *t;
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        const uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* Of 10 classes: chance is 10. */
static void runs_in_every_precision_learn(void **state)
{
    fixture *f = *state;
    static const char *const cases[][3] = {{"mlp", "sgd", "fp32"},    {"lenet5", "mac", "bf16"},  {"lenet5", "smac", "tf32"},
                                           {"lenet5", "eva", "bf16"}, {"lenet5", "foof", "bf16"}, {"lenet5", "kfac", "bf16"},
                                           {"lenet5", "lngd", "bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar_setup *setup = make_setup(f, cases[i][0], cases[i][1], "device=cuda limit-train=2048 limit-test=300 epochs=4");
        set(f, setup, "batch", "32");
        set(f, setup, "precision", cases[i][2]);
        abar_trainer *t;
        const char *json;
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(abar_trainer_run(t), ABAR_OK);
        need(f, abar_trainer_report(t, &json));
        const char *at = strstr(json, "\"test_acc\":");
        assert_non_null(at);
        const double accuracy = strtod(at + strlen("\"test_acc\":"), NULL);
        if (!(accuracy > 50.0)) fail_msg("%s with %s in %s: %g %%", cases[i][0], cases[i][1], cases[i][2], accuracy);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* ---- the device goes away, or is too small ---------------------------------------------------------------------------------
 */

/* Breaks the device in the second epoch: a kernel that reads an invalid address leaves it unusable, as a real fault does. */
typedef struct vandal {
    abar_trainer *trainer;
    int64_t calls;
} vandal;

static void break_device(void *user, const abar_progress *p)
{
    vandal *v = user;
    abar_device *dev = v->trainer->dev;
    (void)p;
    if (++v->calls == 8) dev->ops->stream->settle(dev, (void *)256, (void *)512, 16, (const int32_t *)1024);
}

static void lost_device_is_told_and_the_checkpoint_stays(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", SMALL);
    vandal v = {0};
    abar_trainer_events events = {sizeof events, break_device, &v};
    set_out(f, setup, "lost");
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &v.trainer));
    assert_int_equal(abar_trainer_run(v.trainer), ABAR_E_BACKEND);
    assert_error(f, "device cuda: ");
    abar_trainer_destroy(v.trainer);
    abar__run_state at;
    abar__epoch *history = history_of(f, "lost", &at);
    assert_int_equal(at.epoch, 1);
    abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
    abar_setup_destroy(f->ctx, setup);
}

static void run_that_exceeds_the_memory_says_what_to_lower(void **state)
{
    fixture *f = *state;
    abar_setup *setup =
        make_setup(f, "mlp", "sgd", "device=cuda widths=784-200000-200000-10 limit-train=80 limit-test=24 batch=16");
    abar_trainer *t;
    set(f, setup, "batch", "16");
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_MEMORY);
    assert_error(f, "device cuda: ");
    assert_error(f, "batch");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- timing ----------------------------------------------------------------------------------------------------------- */

/* Operations timed one by one take at least as long as in a captured step; the rates must be plausible for a GPU. */
static void profile_times_every_operation(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "mac", "device=cuda batch=64 precision=bf16 tcov=2 tinv=2 threads=1");
    abar_bench_config config = {.size = sizeof config, .steps = 10, .warmup = 4, .profile = true};
    abar_bench_result r = {.size = sizeof r};
    abar_bench *bench;
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    assert_true(r.copy_rate > 1e11 && r.copy_rate < 1e14 && r.product_rate > 1e12 && r.product_rate < 1e16);
    double total = 0.0, statistics = 0.0;
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        const bool does_something = row.phase[ABAR_BENCH_FORWARD].bytes > 0.0;
        if (does_something && !(row.phase[ABAR_BENCH_FORWARD].us > 0.0 && row.phase[ABAR_BENCH_FORWARD].floor_us > 0.0))
            fail_msg("%s took no time", row.name);
        for (int k = 0; k < ABAR_BENCH_PHASES; k++) total += row.phase[k].us;
        statistics += row.phase[ABAR_BENCH_STATISTICS].us;
    }
    assert_true(total > 0.8e3 * r.ms_median && statistics > 0.0);
    abar_bench_release(bench);
    abar_setup_destroy(f->ctx, setup);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(int argc, char **argv)
{
    int missing = cuda_missing();
    if (missing) return missing;
    cuda_choose_tests(argc, argv);
    const struct CMUnitTest tests[] = {
        with_fixture(losses_of_sgd_and_first_gradients_are_refs),
        with_fixture(losses_of_mac_and_first_gradients_are_refs),
        with_fixture(small_networks_train_as_on_ref),
        with_fixture(dense_blocks_grow_in_place_and_have_refs_gradients),
        with_fixture(recorded_steps_equal_those_taken_one_by_one),
        with_fixture(deterministic_runs_end_in_the_same_bits),
        with_fixture(stopped_runs_resume_bit_for_bit),
        with_fixture(step_with_a_loss_that_is_not_finite_changes_nothing),
        with_fixture(training_allocates_nothing),
        with_fixture(runs_in_every_precision_learn),
        with_fixture(profile_times_every_operation),
        with_fixture(run_that_exceeds_the_memory_says_what_to_lower),
        with_fixture(lost_device_is_told_and_the_checkpoint_stays), /* the last: no work is done after it */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
