/* A training loop of your own with abar's optimizers: a two-layer network written by hand, without abar's networks.
 *
 *     cc embed.c $(pkg-config --cflags --libs abar_optim) -lm && ./a.out [METHOD [SEED]]
 *
 * METHOD is mac (the default), smac, foof, kfac, eva, lngd or sgd. The program owns all memory: it shows abar its weights and
 * gradients and, every few steps, the inputs and output gradients of its layers. */
#include <abar/optim.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, IN = 16, HIDDEN = 32, OUT = 4, STEPS = 200, SHOWN = 20 };

static float x[BATCH][IN], hidden[BATCH][HIDDEN], p[BATCH][OUT]; /* activations; p: softmax, then the loss's gradient */
static float w1[HIDDEN][IN], b1[HIDDEN], w2[OUT][HIDDEN], b2[OUT];
static float gw1[HIDDEN][IN], gb1[HIDDEN], gw2[OUT][HIDDEN], gb2[OUT], gh[BATCH][HIDDEN];
static int label[BATCH];

static float uniform(void) { return (float)rand() / (float)RAND_MAX * 2.0f - 1.0f; }

/* The label is the quadrant of a fixed plane that the point falls into. Inputs have a mean of 1, as activations after a ReLU
 * have a mean above 0. */
static void make_batch(void)
{
    for (int n = 0; n < BATCH; n++) {
        float u = 0, v = 0;
        for (int i = 0; i < IN; i++) {
            float z = uniform();
            u += i % 2 ? z : -z;
            v += i % 3 ? z : -z;
            x[n][i] = z + 1.0f;
        }
        label[n] = (u > 0) + 2 * (v > 0);
    }
}

static double forward(void)
{
    double loss = 0;
    for (int n = 0; n < BATCH; n++) {
        for (int h = 0; h < HIDDEN; h++) {
            float z = b1[h];
            for (int i = 0; i < IN; i++) z += w1[h][i] * x[n][i];
            hidden[n][h] = z > 0 ? z : 0;
        }
        float z[OUT], largest = -INFINITY, sum = 0;
        for (int o = 0; o < OUT; o++) {
            z[o] = b2[o];
            for (int h = 0; h < HIDDEN; h++) z[o] += w2[o][h] * hidden[n][h];
            largest = fmaxf(largest, z[o]);
        }
        for (int o = 0; o < OUT; o++) sum += p[n][o] = expf(z[o] - largest); /* the largest becomes 1: no overflow */
        for (int o = 0; o < OUT; o++) p[n][o] /= sum;
        loss += (log(sum) + largest - z[label[n]]) / BATCH;
    }
    return loss;
}

static void backward(void)
{
    for (int h = 0; h < HIDDEN; h++) {
        gb1[h] = 0;
        for (int i = 0; i < IN; i++) gw1[h][i] = 0;
    }
    for (int o = 0; o < OUT; o++) {
        gb2[o] = 0;
        for (int h = 0; h < HIDDEN; h++) gw2[o][h] = 0;
    }
    for (int n = 0; n < BATCH; n++) {
        for (int o = 0; o < OUT; o++) {
            p[n][o] = (p[n][o] - (o == label[n])) / BATCH;
            gb2[o] += p[n][o];
            for (int h = 0; h < HIDDEN; h++) gw2[o][h] += p[n][o] * hidden[n][h];
        }
        for (int h = 0; h < HIDDEN; h++) {
            gh[n][h] = 0;
            for (int o = 0; o < OUT && hidden[n][h] > 0; o++) gh[n][h] += p[n][o] * w2[o][h];
            gb1[h] += gh[n][h];
            for (int i = 0; i < IN; i++) gw1[h][i] += gh[n][h] * x[n][i];
        }
    }
}

static void check(abar_context *ctx, abar_status status)
{
    if (status >= 0) return;
    fprintf(stderr, "embed: %s\n", abar_context_error(ctx));
    exit(1);
}

/* Whether every step was taken. The learning rate falls linearly to 0, so that training settles. */
static bool train(abar_context *ctx, abar_optim *optim, const abar_layer *layers, double rate)
{
    double loss = 0;
    for (int k = 0; k < STEPS; k++) {
        abar_step_config step = {.size = sizeof step, .lr = rate * (1.0 - (double)k / STEPS)};
        abar_step_report report = {.size = sizeof report};
        make_batch();
        loss += forward() / SHOWN;
        backward();
        for (int l = 0; l < 2 && abar_optim_observes(optim); l++) check(ctx, abar_optim_observe(optim, l, &layers[l]));
        check(ctx, abar_optim_step(optim, &step, &report));
        if (report.skipped) {
            fprintf(stderr, "embed: step %d was skipped, a gradient is not finite: lower the learning rate\n", k);
            return false;
        }
        if ((k + 1) % SHOWN) continue;
        printf("step %3d  loss %.4f\n", k + 1, loss); /* mean of the last SHOWN steps */
        loss = 0;
    }
    return true;
}

#define TENSOR(a, ...) \
    abar_tensor_wrap(dev, a, ABAR_F32, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* The first step's learning rate. LNGD rescales its gradients and needs a smaller one. */
static double rate_of(const char *method) { return strcmp(method, "lngd") == 0 ? 0.02 : 0.1; }

static int usage(FILE *out, int code)
{
    fputs("usage: embed [METHOD [SEED]]\n"
          "METHOD: mac (the default), smac, foof, kfac, eva, lngd or sgd; SEED: a whole number (1)\n",
          out);
    return code;
}

/* Whether there are no arguments but METHOD and SEED. */
static bool read_arguments(int argc, char **argv, const char **method, unsigned *seed)
{
    char *end = "";
    if (argc > 1) *method = argv[1];
    if (argc > 2) *seed = (unsigned)strtoul(argv[2], &end, 10);
    return argc <= 3 && **method != '-' && (argc < 3 || (*argv[2] && !*end));
}

int main(int argc, char **argv)
{
    const char *method = "mac";
    unsigned seed = 1;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) return usage(stdout, 0);
    if (!read_arguments(argc, argv, &method, &seed)) return usage(stderr, 2);
    srand(seed);
    abar_context *ctx;
    abar_device *dev;
    abar_optim *optim;
    if (abar_context_create(NULL, &ctx) < 0) return 1;
    check(ctx, abar_device_open(ctx, "cpu", NULL, &dev));

    abar_optim_param params[] = {{"fc1.weight", TENSOR(w1, HIDDEN, IN), TENSOR(gw1, HIDDEN, IN), 1.0, 5e-4},
                                 {"fc1.bias", TENSOR(b1, HIDDEN), TENSOR(gb1, HIDDEN), 1.0, 0.0},
                                 {"fc2.weight", TENSOR(w2, OUT, HIDDEN), TENSOR(gw2, OUT, HIDDEN), 1.0, 5e-4},
                                 {"fc2.bias", TENSOR(b2, OUT), TENSOR(gb2, OUT), 1.0, 0.0}};
    abar_layer layers[2] = {{.name = "fc1", .input = TENSOR(x, BATCH, IN), .output_grad = TENSOR(gh, BATCH, HIDDEN)},
                            {.name = "fc2", .input = TENSOR(hidden, BATCH, HIDDEN), .output_grad = TENSOR(p, BATCH, OUT)}};
    for (int l = 0; l < 2; l++) {
        layers[l].weight = params[2 * l].value;
        layers[l].weight_grad = params[2 * l].grad;
        layers[l].bias = params[2 * l + 1].value;
        layers[l].bias_grad = params[2 * l + 1].grad;
        layers[l].output_grad_scale = 1.0;
    }
    abar_optim_config config = {
        .size = sizeof config, .rule = "sgd", .params = params, .n_params = 4, .layers = layers, .n_layers = 2};
    config.method = strcmp(method, "sgd") != 0 ? method : NULL; /* without a method: the plain gradient */
    config.base_lr = rate_of(method);
    check(ctx, abar_optim_create(dev, &config, &optim));

    for (int i = 0; i < HIDDEN * IN; i++) w1[i / IN][i % IN] = uniform() * 0.25f;
    for (int i = 0; i < OUT * HIDDEN; i++) w2[i / HIDDEN][i % HIDDEN] = uniform() * 0.18f;
    bool trained = train(ctx, optim, layers, config.base_lr);
    abar_optim_destroy(optim);
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return trained ? 0 : 1;
}
