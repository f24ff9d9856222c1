/* A training loop of your own with abar's optimizers: a two-layer network written by hand, no engine, trained with MAC.
 *
 *     cc embed.c $(pkg-config --cflags --libs abar_optim) -lm && ./a.out
 *
 * abar sees four things: your weights and gradients, and, every few steps, the inputs of your layers. You keep them all. */
#include <abar/optim.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, IN = 16, HIDDEN = 32, OUT = 4, STEPS = 200 };

static float x[BATCH][IN], hidden[BATCH][HIDDEN], p[BATCH][OUT]; /* activations; p: softmax, then its gradient */
static float w1[HIDDEN][IN], b1[HIDDEN], w2[OUT][HIDDEN], b2[OUT];
static float gw1[HIDDEN][IN], gb1[HIDDEN], gw2[OUT][HIDDEN], gb2[OUT], gh[BATCH][HIDDEN];
static int label[BATCH];

static float uniform(void) { return (float)rand() / (float)RAND_MAX * 2.0f - 1.0f; }

/* Which quadrant of a random plane the point lies in; all inputs are shifted, as activations behind a ReLU are. */
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
        float sum = 0;
        for (int o = 0; o < OUT; o++) {
            float z = b2[o];
            for (int h = 0; h < HIDDEN; h++) z += w2[o][h] * hidden[n][h];
            sum += p[n][o] = expf(z);
        }
        for (int o = 0; o < OUT; o++) p[n][o] /= sum;
        loss -= log(p[n][label[n]]) / BATCH;
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

#define TENSOR(a, ...) \
    abar_tensor_wrap(dev, a, ABAR_F32, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

int main(int argc, char **argv)
{
    const char *method = argc > 1 ? argv[1] : "mac";
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
    config.method = method[0] && strcmp(method, "sgd") != 0 ? method : NULL;
    config.base_lr = 0.1;
    check(ctx, abar_optim_create(dev, &config, &optim));

    for (int i = 0; i < HIDDEN * IN; i++) w1[i / IN][i % IN] = uniform() * 0.25f;
    for (int i = 0; i < OUT * HIDDEN; i++) w2[i / HIDDEN][i % HIDDEN] = uniform() * 0.18f;
    for (int k = 0; k < STEPS; k++) {
        make_batch();
        double loss = forward();
        backward();
        for (int l = 0; l < 2 && abar_optim_observes(optim); l++) check(ctx, abar_optim_observe(optim, l, &layers[l]));
        check(ctx, abar_optim_step(optim, &(abar_step_config){.size = sizeof(abar_step_config), .lr = 0.1}, NULL));
        if (k % 20 == 0 || k == STEPS - 1) printf("step %3d  loss %.4f\n", k, loss);
    }
    abar_optim_destroy(optim);
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return 0;
}
