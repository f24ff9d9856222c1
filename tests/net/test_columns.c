/* What an observer sees of attention: the column means of probabilities that the test makes itself, explicitly, from the
 * layer's input and weight (methods.md section 2). */
#include "net/net_impl.h"
#include "net_testing.h"
#include "small_transformers.h"

#include <stdio.h>

typedef struct onlooker {
    const abar_net *net;
    int maps, seen; /* layers, and those that feed attention */
} onlooker;

/* Whether query i may see key j. In windows of 2 on a 4 x 4 grid rows 0 1 and 2 3 belong together; rolled by one, rows 1 2 do,
 * and 3 and 0 share a window without touching. */
static bool sees(const abar_attention *a, bool causal, int64_t i, int64_t j)
{
    static const int group[2][4] = {{0, 0, 1, 1}, {2, 0, 0, 1}};
    if (a->side == 0) return !causal || j <= i;
    if (a->grid[0] == 2) return true;
    const int *g = group[a->shift];
    return g[i / 4] == g[j / 4] && g[i % 4] == g[j % 4];
}

static const abar_tensor *bias_of(const abar_net *net, const char *layer)
{
    char name[160];
    snprintf(name, sizeof name, "%.*s.relative_position_bias_table", (int)(strlen(layer) - strlen(".qkv")), layer);
    for (int p = 0; p < abar_net_param_count(net); p++)
        if (strcmp(abar_net_param(net, p)->name, name) == 0) return &abar_net_param(net, p)->value;
    return NULL;
}

/* Output o of the map for token t of sample n. */
static double projected(const abar_layer *layer, int64_t n, int64_t t, int64_t o)
{
    const int64_t tokens = layer->input.dim[1], in = layer->input.dim[2];
    double z = load(&layer->bias, o);
    for (int64_t i = 0; i < in; i++) z += load(&layer->weight, o * in + i) * load(&layer->input, (n * tokens + t) * in + i);
    return z;
}

/* The probabilities of one head of one sample, explicit, (T, T). */
static void probabilities(const onlooker *o, const abar_layer *layer, int64_t n, int64_t h, double *p)
{
    const abar_attention *a = &layer->attention;
    const int64_t tokens = layer->input.dim[1], width = a->value_rows / a->heads, columns = a->grid[1] ? a->grid[1] : 1;
    const abar_tensor *bias = bias_of(o->net, layer->name);
    const bool causal = strncmp(layer->name, "transformer", 11) == 0;
    assert_int_equal(bias != NULL, a->side > 0);
    for (int64_t i = 0; i < tokens; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < tokens; j++) {
            double score = 0.0;
            for (int64_t c = h * width; c < (h + 1) * width; c++)
                score += projected(layer, n, i, c) * projected(layer, n, j, a->value_rows + c) / sqrt((double)width);
            int64_t dy = i / columns - j / columns, dx = i % columns - j % columns;
            bool seen = sees(a, causal, i, j);
            if (bias && seen) score += load(bias, ((dy + a->side - 1) * (2 * a->side - 1) + dx + a->side - 1) * a->heads + h);
            p[i * tokens + j] = seen ? exp(score) : 0.0;
            sum += p[i * tokens + j];
        }
        for (int64_t j = 0; j < tokens; j++) p[i * tokens + j] /= sum;
    }
}

static void check_columns(const onlooker *o, const abar_layer *layer)
{
    const abar_attention *a = &layer->attention;
    const int64_t samples = layer->input.dim[0], tokens = layer->input.dim[1];
    const int64_t sequence = a->side ? a->side * a->side : tokens;
    assert_int_equal(a->columns.ndim, 3);
    assert_true(a->columns.dim[0] == samples && a->columns.dim[1] == a->heads && a->columns.dim[2] == tokens);
    double *p = malloc((size_t)(tokens * tokens) * sizeof *p);
    assert_non_null(p);
    for (int64_t n = 0; n < samples; n++)
        for (int64_t h = 0; h < a->heads; h++) {
            probabilities(o, layer, n, h, p);
            for (int64_t j = 0; j < tokens; j++) {
                double mean = 0.0, told = load(&a->columns, (n * a->heads + h) * tokens + j);
                for (int64_t i = 0; i < tokens; i++) mean += p[i * tokens + j] / (double)sequence;
                if (!(fabs(told - mean) < 1e-12)) fail_msg("%s: column %d is %g, not %g", layer->name, (int)j, told, mean);
            }
        }
    free(p);
}

static abar_status look(void *user, int index, const abar_layer *layer)
{
    (void)index;
    onlooker *o = user;
    o->maps++;
    const abar_attention *a = &layer->attention;
    if (!strstr(layer->name, "attn.qkv")) return a->heads == 0 ? ABAR_OK : ABAR_E_STATE;
    o->seen++;
    const int64_t width = layer->input.dim[2];
    if (a->value_row != 2 * width || a->value_rows != width || layer->reads_network_input) return ABAR_E_STATE;
    check_columns(o, layer);
    return ABAR_OK;
}

static void columns_are_those_of_explicit_probabilities(void **state)
{
    (void)state;
    const int attentions[] = {2, 2, 3}, maps[] = {8, 10, 15};
    for (size_t m = 0; m < SMALL_TRANSFORMERS; m++) {
        fixture f = fixture_open("ref", 1);
        small_transformers[m](f.net);
        OK(f.ctx, compile(&f, 2, true));
        fill_batch(f.net, 4, VOCABULARY);
        for (int pass = 0; pass < 2; pass++) {
            onlooker o = {.net = f.net};
            forward(&f, true);
            OK(f.ctx, abar_net_backward(f.net, pass == 1, &(abar_observer){sizeof(abar_observer), look, &o}));
            assert_int_equal(o.seen, attentions[m]);
            assert_int_equal(o.maps, maps[m]);
        }
        fixture_close(&f);
    }
}

/* Column means are written when the attention goes back and read when its qkv layer does: nothing else may lie there then. */
static void columns_have_memory_of_their_own(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_small_swin(f.net);
    OK(f.ctx, compile(&f, 2, true));
    int found = 0;
    for (int s = 0; s < f.net->n_steps; s++) {
        const abar__step *step = &f.net->steps[s];
        if (step->op->desc.kind != ABAR_OP_ATTENTION) continue;
        found++;
        assert_in_range(step->columns, 0, f.net->n_buffers - 1);
        const abar__buffer *columns = &f.net->buffers[step->columns];
        const int end = 2 * f.net->n_steps - 1, maker = f.net->values[step->in[0]].producer;
        assert_int_equal(columns->bytes, (size_t)(2 * step->op->desc.heads * step->op->desc.in[0].dim[1]) * sizeof(double));
        assert_true(columns->first <= end - s && columns->last >= end - maker);
        for (int b = 0; b < f.net->n_buffers; b++) {
            const abar__buffer *other = &f.net->buffers[b];
            if (b == step->columns || other->last < end - s || other->first > end - maker) continue;
            assert_true(other->offset + other->bytes <= columns->offset || columns->offset + columns->bytes <= other->offset);
        }
    }
    assert_int_equal(found, 3);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_those_of_explicit_probabilities),
        cmocka_unit_test(columns_have_memory_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
