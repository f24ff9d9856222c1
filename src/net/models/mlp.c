/* A multilayer perceptron with ReLU: fc1, fc2, ... */
#include "net/net_impl.h"
#include "net/models/models.h"

#include <stdio.h>

#define WIDTHS_MAX 64

typedef struct mlp_config {
    char widths[ABAR_OPTION_TEXT_MAX];
} mlp_config;

static const abar_option options[] = {
    {.name = "widths",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(mlp_config, widths),
     .fallback = "",
     .help = "from input to classes, as 784-512-512-10; empty: two hidden layers of 512"},
    {0},
};

/* The ends must fit the data. Returns how many widths, 0 after a mistake. */
static int parse_widths(abar_net *net, const char *text, int64_t in, int64_t classes, int64_t width[WIDTHS_MAX])
{
    int n = abar__model_numbers(net, "widths", text, width, WIDTHS_MAX);
    if (n == 0 || (n >= 2 && width[0] == in && width[n - 1] == classes)) return n;
    abar__net_mistake(net, "--widths %s: the data need %lld-...-%lld", text, (long long)in, (long long)classes);
    return 0;
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    const mlp_config *c = config;
    x = abar_flatten(net, x);
    if (x.id < 0) return x;
    int64_t in = abar__net_shape(net, x.id)->dim[0], width[WIDTHS_MAX] = {in, 512, 512, classes};
    int n = c->widths[0] ? parse_widths(net, c->widths, in, classes, width) : 4;
    for (int i = 1; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        x = abar_linear(net, x, name, &ABAR_CONFIG(abar_linear_config, .out = width[i], .bias = true));
        if (i < n - 1) x = abar_relu(net, x);
    }
    return x;
}

const abar_model abar__model_mlp = {
    .name = "mlp",
    .summary = "multilayer perceptron with ReLU",
    .options = options,
    .config_size = sizeof(mlp_config),
    .input = {1, 28, 28},
    .classes = 10,
    .build = build,
};
