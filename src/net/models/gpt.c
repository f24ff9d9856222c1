/* GPT (Radford et al. 2019): a decoder that reads tokens and predicts the next at each; pre-norm blocks of causal attention and
 * a perceptron, learned positions, and a head that shares the table of the embedding. Names and shapes are nanoGPT's. */
#include "net/models/models.h"

#define EPS 1e-5

typedef struct gpt_config {
    int64_t layers, heads, width, context, vocabulary;
    bool bias;
    double drop, attention_drop;
} gpt_config;

#define AT(field) offsetof(gpt_config, field)
#define NUMBER(name, field, own, most, help)                       \
    {                                                              \
        name, ABAR_OPTION_INT, AT(field), own, 1, most, NULL, help \
    }
#define SHARE(name, field, help)                                     \
    {                                                                \
        name, ABAR_OPTION_REAL, AT(field), "0", 0, 0.999, NULL, help \
    }

static const abar_option gpt2_options[] = {
    NUMBER("layers", layers, "12", 1000, "blocks"),
    NUMBER("heads", heads, "12", 1 << 16, "of attention"),
    NUMBER("width", width, "768", 1 << 16, "numbers a token"),
    NUMBER("context", context, "1024", 1 << 20, "tokens that it sees at once"),
    NUMBER("vocabulary", vocabulary, "50257", 1 << 24, "how many tokens there are, where the data leave it open"),
    {"bias", ABAR_OPTION_BOOL, AT(bias), "true", 0, 0, NULL, "biases in norms and linear layers"},
    SHARE("drop", drop, "dropout of embedding, projections and perceptrons"),
    SHARE("attention-drop", attention_drop, "dropout of attention probabilities"),
    {0},
};

static const abar_option gpt_char_options[] = {
    NUMBER("layers", layers, "6", 1000, "blocks"),
    NUMBER("heads", heads, "6", 1 << 16, "of attention"),
    NUMBER("width", width, "384", 1 << 16, "numbers a token"),
    NUMBER("context", context, "256", 1 << 20, "characters that it sees at once"),
    NUMBER("vocabulary", vocabulary, "65", 1 << 24, "how many characters there are, where the data leave it open"),
    {"bias", ABAR_OPTION_BOOL, AT(bias), "false", 0, 0, NULL, "biases in norms and linear layers"},
    SHARE("drop", drop, "dropout of embedding, projections and perceptrons"),
    SHARE("attention-drop", attention_drop, "dropout of attention probabilities"),
    {0},
};

static void shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    (void)model;
    const gpt_config *c = config;
    input[0] = c->context;
    *classes = c->vocabulary;
}

static abar_value norm(abar_net *net, abar_value x, const char *name, const gpt_config *c)
{
    return c->bias ? abar_layer_norm(net, x, name, EPS) : abar_layer_norm_scale(net, x, name, EPS);
}

static abar_value linear(abar_net *net, abar_value x, const char *name, int64_t out, const gpt_config *c)
{
    return abar_linear(net, x, name, &ABAR_CONFIG(abar_linear_config, .out = out, .bias = c->bias, .init = ABAR_INIT_GPT));
}

static abar_value drop(abar_net *net, abar_value x, const gpt_config *c)
{
    return c->drop > 0.0 ? abar_dropout(net, x, c->drop) : x;
}

/* Ends a branch: back to the width, then onto the stream x. */
static abar_value project(abar_net *net, abar_value x, abar_value y, const char *name, const gpt_config *c)
{
    y = abar_linear(net, y, name,
                    &ABAR_CONFIG(abar_linear_config, .out = c->width, .bias = c->bias, .init = ABAR_INIT_GPT_RESIDUAL,
                                 .layers = c->layers));
    return abar_add(net, x, drop(net, y, c));
}

static abar_value block(abar_net *net, abar_value x, const gpt_config *c)
{
    const abar_attention_config attention = {
        .size = sizeof attention, .heads = c->heads, .causal = true, .drop = c->attention_drop};
    abar_value y = linear(net, norm(net, x, "ln_1", c), "attn.c_attn", 3 * c->width, c);
    x = project(net, x, abar_attention_heads(net, y, "attn", &attention), "attn.c_proj", c);
    y = abar_gelu_tanh(net, linear(net, norm(net, x, "ln_2", c), "mlp.c_fc", 4 * c->width, c));
    return project(net, x, y, "mlp.c_proj", c);
}

static abar_value build(const abar_model *model, abar_net *net, abar_value tokens, int64_t vocabulary, const void *config)
{
    (void)model;
    const gpt_config *c = config;
    abar_scope_push(net, "transformer");
    abar_value x = drop(net, abar_embedding(net, tokens, vocabulary, c->context, c->width), c); /* (T, width) */
    for (int64_t b = 0; b < c->layers; b++) {
        abar_scope_push(net, "h.%d", (int)b);
        x = block(net, x, c);
        abar_scope_pop(net);
    }
    x = norm(net, x, "ln_f", c);
    abar_scope_pop(net);
    return abar_linear_tied(net, x, "lm_head"); /* (T, vocabulary) */
}

const abar_model abar__model_gpt2 = {
    .name = "gpt2",
    .summary = "GPT-2 small, 12 blocks of width 768, 12 heads, 1024 tokens at once",
    .options = gpt2_options,
    .config_size = sizeof(gpt_config),
    .text = true,
    .input = {1024, 1, 1},
    .classes = 50257,
    .shape = shape,
    .build = build,
};

const abar_model abar__model_gpt_char = {
    .name = "gpt-char",
    .summary = "GPT for characters, 6 blocks of width 384, 6 heads, 256 characters at once, no biases",
    .options = gpt_char_options,
    .config_size = sizeof(gpt_config),
    .text = true,
    .input = {256, 1, 1},
    .classes = 65,
    .shape = shape,
    .build = build,
};
