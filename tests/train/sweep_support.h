/* A toy whose best rate is known, for sweeps and tunings.
 *
 * Images are 0, so that of a linear layer only the biases b matter; one sample in five has label 1. With d = b0 - b1 the loss
 * is that of a coin: its minimum is at d = ln 4, its second derivative there p (1 - p) = 0.16. A step of gradient descent on
 * both biases moves d by twice the rate times the derivative: near the minimum the error is multiplied by 1 - 0.32 rate, and
 * the best rate is 1 / 0.32 = 3.125. Biases begin at 0, whatever the seed. Every label is predicted as 0, so the loss alone
 * tells the rates apart. */
#ifndef SWEEP_SUPPORT_H
#define SWEEP_SUPPORT_H

#include "compare_support.h"
#include "train/sweep/tune_impl.h"

#define TOY_RATE 3.125
enum { TOY_TRAIN = 10000, TOY_TEST = 1000 };

typedef struct toy {
    float image[TOY_TRAIN];
    int32_t label[TOY_TRAIN];
    abar_dataset *data;
    abar_setup *setup;
} toy;

static inline abar_value build_toy(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    return abar_linear(net, abar_flatten(net, x), "fc",
                       &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true, .init = ABAR_INIT_GPT));
}

/* Whole-batch gradient descent for so many steps, each an epoch. */
static inline toy *make_toy(fixture *f, const char *epochs, const char *validation)
{
    toy *t = calloc(1, sizeof *t);
    for (int i = 0; i < TOY_TRAIN; i++) t->label[i] = i % 5 == 0;
    const abar_dataset_images images = ABAR_CONFIG(
        abar_dataset_images, .channels = 1, .height = 1, .width = 1, .classes = 2, .train = TOY_TRAIN, .test = TOY_TEST,
        .train_images = t->image, .test_images = t->image, .train_labels = t->label, .test_labels = t->label, .floats = true);
    need(f, abar_dataset_wrap(f->ctx, &images, &t->data));
    need(f, abar_setup_create(f->ctx, "own", "memory", "sgd", &t->setup));
    need(f, abar_setup_set_network(f->ctx, t->setup, build_toy, NULL));
    need(f, abar_setup_set_data(f->ctx, t->setup, t->data));
    const bool held = strcmp(validation, "0") != 0;
    const char *const settings[][2] = {{"epochs", epochs},
                                       {"batch", held ? "9000" : "10000"},
                                       {"momentum", "0"},
                                       {"weight-decay", "0"},
                                       {"warmup", "0"},
                                       {"schedule", "constant"},
                                       {"augment", "false"},
                                       {"threads", "1"},
                                       {"validation", validation},
                                       {"seed", test_seed()}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) set(f, t->setup, settings[i][0], settings[i][1]);
    return t;
}

static inline void drop_toy(fixture *f, toy *t)
{
    abar_setup_destroy(f->ctx, t->setup);
    abar_dataset_close(t->data);
    free(t);
}

#endif
