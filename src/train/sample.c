/* Sampling from a text model: the last window of the text goes through the net, the logits at its last token become
 * probabilities (divided by the temperature, cut to the top k, softmax), and the next token is drawn from them. Draws depend
 * on seed and position alone. */
#include "base/json.h"
#include "base/rng.h"
#include "data/data_impl.h"
#include "train/train_impl.h"

#include <math.h>
#include <string.h>

typedef struct sampler {
    abar_context *ctx;
    const abar_sample_config *config;
    abar__vocabulary vocabulary;
    abar_device *dev;
    abar_net *net;
    int64_t context;
    /* in one block: */
    int32_t *window; /* (context): the last tokens, oldest first, then zeros */
    double *logits;  /* (vocabulary): at the last token */
    int32_t *order;  /* (vocabulary): tokens, likeliest first */
    uint16_t *prompt;
    int64_t prompt_count, used; /* of the window */
    void *memory;
    size_t memory_bytes;
} sampler;

/* ---- making --------------------------------------------------------------------------------------------------- */

static abar_status read_vocabulary(sampler *s, const abar_setup *setup, const char *weights)
{
    abar__safetensors *file;
    ABAR_TRY(abar__safetensors_open(s->ctx, weights, &file));
    const bool bytes = setup->train.text == ABAR_TEXT_BYTES;
    const char *text = bytes ? NULL : abar__safetensors_metadata(file, ABAR_NOTE_VOCABULARY);
    abar_status status;
    if (text || bytes)
        status = abar__vocabulary_parse(s->ctx, weights, text, &s->vocabulary);
    else
        status = abar__fail(s->ctx, ABAR_E_FORMAT, "%s: contains no vocabulary, give a checkpoint or export of abar", weights);
    abar__safetensors_close(file);
    return status;
}

static abar_status make_sampler_net(sampler *s, const abar_setup *setup, const char *weights)
{
    const abar_dataset_info info = {.text = true, .classes = s->vocabulary.count};
    const abar__net_request request = {.batch = 1};
    ABAR_TRY(abar__device_open(s->ctx, setup, &s->dev));
    ABAR_TRY(abar__net_build(s->ctx, setup, &info, s->dev, &request, &s->net));
    s->context = abar__context_of(setup);
    return abar__weights_read(s->ctx, weights, s->net);
}

static size_t place(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = abar__round_up(start + bytes, ABAR_ALIGN);
    return start;
}

static abar_status make_workspace(sampler *s)
{
    const size_t count = (size_t)s->vocabulary.count;
    const size_t window = place(&s->memory_bytes, (size_t)s->context * sizeof *s->window);
    const size_t logits = place(&s->memory_bytes, count * sizeof *s->logits);
    const size_t order = place(&s->memory_bytes, count * sizeof *s->order);
    const size_t prompt = place(&s->memory_bytes, strlen(s->config->prompt) * sizeof *s->prompt);
    ABAR_TRY(abar__alloc(s->ctx, s->memory_bytes, &s->memory));
    char *base = s->memory;
    s->window = (int32_t *)(void *)(base + window);
    s->logits = (double *)(void *)(base + logits);
    s->order = (int32_t *)(void *)(base + order);
    s->prompt = (uint16_t *)(void *)(base + prompt);
    return ABAR_OK;
}

static void release_sampler(sampler *s)
{
    abar__free(s->ctx, s->memory, s->memory ? s->memory_bytes : 0);
    abar_net_destroy(s->net);
    abar_device_close(s->dev);
    abar__vocabulary_free(s->ctx, &s->vocabulary);
}

/* ---- the window ----------------------------------------------------------------------------------------------- */

static void push(sampler *s, int32_t token)
{
    if (s->used == s->context) {
        memmove(s->window, s->window + 1, (size_t)(s->context - 1) * sizeof *s->window);
        s->used--;
    }
    s->window[s->used++] = token;
}

/* Without a prompt the text follows a new line, or the first token where the vocabulary has no new line. */
static void push_prompt(sampler *s)
{
    size_t used;
    const int32_t line = abar__vocabulary_encode(&s->vocabulary, "\n", 1, &used);
    if (s->prompt_count == 0) push(s, line < 0 ? 0 : line);
    for (int64_t i = 0; i < s->prompt_count; i++) push(s, s->prompt[i]);
}

/* ---- one token ------------------------------------------------------------------------------------------------ */

/* The logits at the last token of the window. */
static abar_status think(sampler *s)
{
    const abar_run_config run = {.size = sizeof run};
    const int64_t count = s->vocabulary.count;
    abar_tensor input = abar_net_input(s->net), output = abar_net_output(s->net);
    const abar_tensor from = abar_tensor_wrap(NULL, s->window, ABAR_I32, input.ndim, input.dim);
    ABAR_TRY(abar_tensor_copy(s->ctx, &input, &from));
    abar_loss ignored;
    ABAR_TRY(abar_net_forward(s->net, &run, &ignored));
    char *row = (char *)output.data + (size_t)((s->used - 1) * output.stride[1]) * abar_dtype_size(output.dtype);
    const abar_tensor last = abar_tensor_wrap(output.dev, row, output.dtype, 1, &count);
    const abar_tensor to = abar_tensor_wrap(NULL, s->logits, ABAR_F64, 1, &count);
    return abar_tensor_copy(s->ctx, &to, &last);
}

/* Moves the k largest of the logits to the front, in falling order; of equals the first. */
static void find_top(sampler *s, int64_t k)
{
    const int64_t count = s->vocabulary.count;
    for (int32_t i = 0; i < (int32_t)count; i++) s->order[i] = i;
    for (int64_t i = 0; i < k; i++) {
        int64_t best = i;
        for (int64_t j = i + 1; j < count; j++) {
            const double a = s->logits[s->order[j]], b = s->logits[s->order[best]];
            if (a > b || (a == b && s->order[j] < s->order[best])) best = j;
        }
        const int32_t moved = s->order[i];
        s->order[i] = s->order[best];
        s->order[best] = moved;
    }
}

/* Draws a token from the first k of the order; u in [0, 1). */
static int32_t pick(const sampler *s, int64_t k, double u)
{
    const double top = s->logits[s->order[0]];
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++) sum += exp((s->logits[s->order[i]] - top) / s->config->temperature);
    double left = u * sum;
    for (int64_t i = 0; i < k; i++) {
        left -= exp((s->logits[s->order[i]] - top) / s->config->temperature);
        if (left < 0.0) return s->order[i];
    }
    return s->order[0]; /* rounding left a rest: any token is right */
}

static abar_status draw(sampler *s, int64_t index, int32_t *out)
{
    const int64_t count = s->vocabulary.count, top_k = s->config->top_k;
    const bool greedy = s->config->temperature == 0.0;
    const int64_t k = greedy ? 1 : top_k > 0 && top_k < count ? top_k : count;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(s->logits[i]))
            return abar__fail(s->ctx, ABAR_E_NUMERIC, "sample: the weights give no finite numbers, take an earlier checkpoint");
    find_top(s, k < count ? k : 1); /* without top k only the largest is needed, for the softmax */
    const abar__draw d = abar__random(s->config->seed, ABAR_DRAW_SAMPLE, 0, (uint64_t)index);
    *out = greedy ? s->order[0] : pick(s, k, ((double)d.u[0] + abar__uniform(d.u[1])) * 0x1p-32);
    return ABAR_OK;
}

/* ---- the text ------------------------------------------------------------------------------------------------- */

static abar_status make_text(sampler *s)
{
    const abar_sample_config *c = s->config;
    if (c->prompt[0] && !c->write(c->user, c->prompt, strlen(c->prompt))) return ABAR_STOPPED;
    push_prompt(s);
    for (int64_t i = 0; i < c->length; i++) {
        int32_t token = 0;
        char bytes[4];
        ABAR_TRY(think(s));
        ABAR_TRY(draw(s, i, &token));
        if (!c->write(c->user, bytes, abar__vocabulary_decode(&s->vocabulary, token, bytes))) return ABAR_STOPPED;
        push(s, token);
    }
    return ABAR_OK;
}

static abar_status sample(sampler *s, const abar_setup *setup, const char *weights)
{
    const char *prompt = s->config->prompt;
    if (!setup->model->text)
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "%s: is of %s, which makes no text, give a run of a text model", weights,
                          setup->train.model);
    ABAR_TRY(abar_setup_check(s->ctx, setup));
    ABAR_TRY(read_vocabulary(s, setup, weights));
    if (!s->vocabulary.bytes && !abar__utf8_valid(prompt, strlen(prompt)))
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "--prompt: not UTF-8 text, write it in another way");
    ABAR_TRY(make_sampler_net(s, setup, weights));
    ABAR_TRY(make_workspace(s));
    ABAR_TRY(abar__text_encode(s->ctx, "--prompt", &s->vocabulary, prompt, strlen(prompt), s->prompt, &s->prompt_count));
    return make_text(s);
}

abar_status abar_sample(abar_context *ctx, const abar_setup *setup, const char *weights, const abar_sample_config *config)
{
    abar_sample_config c;
    ABAR_TRY(abar__struct_read(ctx, "abar_sample_config", config, &c, sizeof c));
    if (c.length < 0 || !(c.temperature >= 0.0) || c.top_k < 0 || !c.write)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "sample: give write, and nothing negative");
    if (!c.prompt) c.prompt = "";
    sampler s = {.ctx = ctx, .config = &c};
    abar_status status = sample(&s, setup, weights);
    release_sampler(&s);
    return status;
}
