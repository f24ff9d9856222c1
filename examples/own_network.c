/* A network and data of your own in abar's trainer: pictures in memory, a small residual network, trained with MAC.
 *
 *     cc own_network.c $(pkg-config --cflags --libs abar) && ./a.out
 *     ./a.out OUT            keeps checkpoints, logs and weights in the folder OUT
 *     ./a.out OUT resume     goes on from its last checkpoint, with twice the epochs */
#include <abar/abar.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAIN = 2000, TEST = 500, SIDE = 12, CLASSES = 4, EPOCHS = 4 };

static uint8_t train_images[TRAIN][SIDE][SIDE], test_images[TEST][SIDE][SIDE];
static int32_t train_labels[TRAIN], test_labels[TEST];

/* Noise with a line through it: flat, upright, falling or rising. */
static void draw(uint8_t image[SIDE][SIDE], int32_t *label)
{
    const int at = 2 + rand() % (SIDE - 4);
    *label = rand() % CLASSES;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            const int distance[CLASSES] = {y - at, x - at, y - x + at - SIDE / 2, y + x - at - SIDE / 2};
            image[y][x] = (uint8_t)(rand() % 128 + (distance[*label] == 0 ? 100 : 0));
        }
}

static abar_value convolve(abar_net *net, abar_value x, const char *name, int64_t out)
{
    abar_scope_push(net, "%s", name);
    x = abar_conv2d(net, x, "conv", &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = 3, .pad = 1));
    x = abar_batch_norm(net, x, "norm");
    abar_scope_pop(net);
    return x;
}

/* What the trainer calls: from the images to one logit per class. */
static abar_value build(void *user, abar_net *net, abar_value x, int64_t classes)
{
    const int64_t width = *(const int64_t *)user;
    x = abar_relu(net, convolve(net, x, "stem", width));
    abar_value y = abar_relu(net, convolve(net, x, "block.0", width));
    x = abar_relu(net, abar_add(net, x, convolve(net, y, "block.1", width)));
    x = abar_flatten(net, abar_global_average_pool(net, x));
    return abar_linear(net, x, "head", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

static void watch(void *user, const abar_progress *p)
{
    (void)user;
    if (p->epoch_done)
        printf("epoch %2d  train loss %.4f  test accuracy %.2f %%\n", (int)p->epoch + 1, p->loss, p->test_accuracy);
}

/* A setup to begin with, or that of the run in the folder out. Network and data are on no disk: both are given either way. */
static abar_status make_setup(abar_context *ctx, const char *out, bool resume, const abar_dataset *data, int64_t *width,
                              abar_setup **setup)
{
    char epochs[8];
    snprintf(epochs, sizeof epochs, "%d", resume ? 2 * EPOCHS : EPOCHS);
    abar_status status = resume ? abar_setup_load(ctx, out, setup) : abar_setup_create(ctx, "own", "memory", "mac", setup);
    if (status >= 0) status = abar_setup_set_network(ctx, *setup, build, width);
    if (status >= 0) status = abar_setup_set_data(ctx, *setup, data);
    if (status >= 0) status = abar_setup_set(ctx, *setup, "epochs", epochs);
    if (status >= 0 && !resume) status = abar_setup_set(ctx, *setup, "batch", "50");
    if (status >= 0 && !resume) status = abar_setup_set(ctx, *setup, "out", out);
    return status;
}

static int usage(FILE *to, int code)
{
    fputs("usage: own_network [OUT [resume]]\n"
          "OUT: a folder for checkpoints, logs and weights; resume: goes on from its last checkpoint\n",
          to);
    return code;
}

int main(int argc, char **argv)
{
    const char *out = argc > 1 ? argv[1] : "";
    const bool resume = argc > 2;
    if (strcmp(out, "--help") == 0) return usage(stdout, 0);
    if (argc > 3 || *out == '-' || (resume && strcmp(argv[2], "resume") != 0)) return usage(stderr, 2);
    int64_t width = 8;
    abar_context *ctx;
    abar_dataset *data = NULL;
    abar_setup *setup = NULL;
    abar_trainer *trainer = NULL;
    for (int i = 0; i < TRAIN; i++) draw(train_images[i], &train_labels[i]);
    for (int i = 0; i < TEST; i++) draw(test_images[i], &test_labels[i]);

    if (abar_context_create(NULL, &ctx) < 0) return 1;
    abar_status status = abar_dataset_wrap(
        ctx,
        &ABAR_CONFIG(abar_dataset_images, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES, .train = TRAIN,
                     .test = TEST, .train_images = train_images, .train_labels = train_labels, .test_images = test_images,
                     .test_labels = test_labels, .mean = {0.3, 0.3, 0.3}, .std = {0.2, 0.2, 0.2}),
        &data);
    if (status >= 0) status = make_setup(ctx, out, resume, data, &width, &setup);
    if (status >= 0)
        status = abar_trainer_create(ctx, setup, resume, &ABAR_CONFIG(abar_trainer_events, .progress = watch), &trainer);
    if (status >= 0) status = abar_trainer_run(trainer);
    if (status < 0) fprintf(stderr, "own_network: %s\n", abar_context_error(ctx));
    abar_trainer_destroy(trainer);
    abar_setup_destroy(ctx, setup);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
    return status < 0;
}
