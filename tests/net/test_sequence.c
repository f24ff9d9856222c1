/* Nets of sequences: what builders refuse, integer inputs, the tied weight, the order of the state dict, gradients of small
 * transformers by differences. */
#include "net_testing.h"
#include "small_transformers.h"

#include <stdio.h>

static abar_value linear(abar_net *net, abar_value x, const char *name, int64_t out)
{
    return abar_linear(net, x, name, &ABAR_CONFIG(abar_linear_config, .out = out, .bias = true));
}

/* ---- mistakes ------------------------------------------------------------------------------------------------------- */

static void expect_mistake(void (*build)(abar_net *net), const char *part)
{
    fixture f = fixture_open("ref", 1);
    build(f.net);
    assert_int_equal(compile(&f, 2, true), ABAR_E_ARGUMENT);
    if (!strstr(abar_context_error(f.ctx), part)) fail_msg("\"%s\" does not say \"%s\"", abar_context_error(f.ctx), part);
    fixture_close(&f);
}

static abar_value tokens(abar_net *net) { return abar_input_tokens(net, LENGTH); }
static abar_value sequence(abar_net *net, int64_t width) { return abar_input(net, 2, (int64_t[]){LENGTH, width}); }
static abar_value embedded(abar_net *net) { return abar_embedding(net, tokens(net), VOCABULARY, LENGTH, 4); }
static void attend(abar_net *net, abar_attention_config config)
{
    abar_attention_heads(net, sequence(net, 24), "attn", &config);
}

static void linear_on_tokens(abar_net *net) { linear(net, tokens(net), "fc", 3); }
static void embedding_of_numbers(abar_net *net) { abar_embedding(net, abar_input(net, 1, (int64_t[]){4}), 5, 4, 4); }
static void too_few_positions(abar_net *net) { abar_embedding(net, tokens(net), VOCABULARY, LENGTH - 1, 4); }
static void no_vocabulary(abar_net *net) { abar_embedding(net, tokens(net), 0, LENGTH, 4); }
static void tied_to_nothing(abar_net *net) { abar_linear_tied(net, sequence(net, 4), "lm_head"); }
static void tied_to_another_width(abar_net *net) { abar_linear_tied(net, linear(net, embedded(net), "fc", 3), "lm_head"); }
static void tied_twice(abar_net *net)
{
    abar_value x = embedded(net);
    abar_linear_tied(net, x, "lm_head");
    abar_linear_tied(net, x, "other");
}
static void tied_name_taken(abar_net *net) { abar_linear_tied(net, linear(net, embedded(net), "lm_head", 4), "lm_head"); }
static void tied_name_taken_later(abar_net *net)
{
    abar_value x = embedded(net);
    abar_linear_tied(net, x, "lm_head");
    linear(net, x, "lm_head", 4);
}
static void not_three_widths(abar_net *net)
{
    abar_attention_heads(net, sequence(net, 8), "attn", &ABAR_CONFIG(abar_attention_config, .heads = 1));
}
static void heads_do_not_divide(abar_net *net) { attend(net, ABAR_CONFIG(abar_attention_config, .heads = 3)); }
static void no_heads(abar_net *net) { attend(net, ABAR_CONFIG(abar_attention_config, .heads = 0)); }
static void drops_all(abar_net *net) { attend(net, ABAR_CONFIG(abar_attention_config, .heads = 2, .drop = 1.0)); }
static void another_grid(abar_net *net)
{
    attend(net, ABAR_CONFIG(abar_attention_config, .heads = 2, .grid = {2, 4}, .side = 2));
}
static void windows_do_not_tile(abar_net *net)
{
    attend(net, ABAR_CONFIG(abar_attention_config, .heads = 2, .grid = {2, 3}, .side = 2));
}
static void shift_of_a_side(abar_net *net)
{
    attend(net, ABAR_CONFIG(abar_attention_config, .heads = 2, .grid = {1, 6}, .side = 1, .shift = 1));
}
static void causal_windows(abar_net *net)
{
    attend(net, ABAR_CONFIG(abar_attention_config, .heads = 2, .grid = {1, 6}, .side = 1, .causal = true));
}
static void merge_odd(abar_net *net) { abar_patch_merge(net, sequence(net, 4), 2, 3); }
static void class_token_of_image(abar_net *net) { abar_class_token(net, abar_input(net, 3, (int64_t[]){3, 4, 4})); }
static void tokens_of_sequence(abar_net *net) { abar_tokens(net, sequence(net, 4)); }
static void path_always_dropped(abar_net *net) { abar_drop_path(net, sequence(net, 4), 1.0); }
static void layers_not_told(abar_net *net)
{
    abar_linear(net, sequence(net, 4), "proj", &ABAR_CONFIG(abar_linear_config, .out = 4, .init = ABAR_INIT_GPT_RESIDUAL));
}

static void sequence_mistakes_are_told_by_compile(void **state)
{
    (void)state;
    expect_mistake(linear_on_tokens, "fc cannot read tokens, put an embedding");
    expect_mistake(embedding_of_numbers, "embedding reads tokens");
    expect_mistake(too_few_positions, "6 tokens, but positions for 5");
    expect_mistake(no_vocabulary, "0 tokens");
    expect_mistake(tied_to_nothing, "no embedding to share");
    expect_mistake(tied_to_another_width, "4 wide, the value 6x3");
    expect_mistake(tied_twice, "shared already, by lm_head");
    expect_mistake(tied_name_taken, "two layers are called lm_head");
    expect_mistake(tied_name_taken_later, "two layers are called lm_head");
    expect_mistake(not_three_widths, "3 widths, not 6x8");
    expect_mistake(heads_do_not_divide, "3 heads do not divide a width of 8");
    expect_mistake(no_heads, "0 heads");
    expect_mistake(drops_all, "probability 1");
    expect_mistake(another_grid, "6 tokens are no grid of 2 x 4");
    expect_mistake(windows_do_not_tile, "windows are square, those of side 2 do not tile a grid of 2 x 3");
    expect_mistake(shift_of_a_side, "side 1 cannot shift by 1");
    expect_mistake(causal_windows, "cannot be causal");
    expect_mistake(merge_odd, "6 tokens are no image of 2 x 3");
    expect_mistake(class_token_of_image, "tokens x width, not 3x4x4");
    expect_mistake(tokens_of_sequence, "channels x height x width, not 6x4");
    expect_mistake(path_always_dropped, "drop_path: probability 1");
    expect_mistake(layers_not_told, "set layers");
}

/* ---- texts ----------------------------------------------------------------------------------------------------------- */

static void sequence_text_goes_in_as_integers(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_small_gpt(f.net);
    OK(f.ctx, compile(&f, 3, true));
    abar_tensor x = abar_net_input(f.net), target = abar_net_target(f.net), y = abar_net_output(f.net);
    assert_int_equal(x.dtype, ABAR_I32);
    assert_int_equal(x.ndim, 2);
    assert_true(x.dim[0] == 3 && x.dim[1] == LENGTH);
    assert_int_equal(target.dtype, ABAR_I32);
    assert_int_equal(target.ndim, 2);
    assert_true(target.dim[0] == 3 && target.dim[1] == LENGTH);
    assert_int_equal(y.ndim, 3);
    assert_true(y.dim[1] == LENGTH && y.dim[2] == VOCABULARY);
    fill_batch(f.net, 1, VOCABULARY);
    abar_loss loss;
    OK(f.ctx, abar_net_forward(f.net, &(abar_run_config){.size = sizeof(abar_run_config), .valid = 2}, &loss));
    assert_int_equal(loss.count, 2 * LENGTH); /* rows */
    assert_true(fabs(loss.loss - log(VOCABULARY)) < 0.5);
    store(&x, 4, VOCABULARY);
    assert_int_equal(abar_net_forward(f.net, &(abar_run_config){.size = sizeof(abar_run_config)}, &loss), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(f.ctx), "token 5"));
    fixture_close(&f);
}

/* Causal: a token's logits do not depend on the tokens after it. */
static void sequence_causal_net_does_not_see_the_future(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_small_gpt(f.net);
    OK(f.ctx, compile(&f, 1, false));
    fill_batch(f.net, 1, VOCABULARY);
    abar_tensor x = abar_net_input(f.net), y = abar_net_output(f.net);
    double before[LENGTH * VOCABULARY];
    forward(&f, false);
    for (int64_t i = 0; i < LENGTH * VOCABULARY; i++) before[i] = load(&y, i);
    store(&x, 3, (double)(((int)load(&x, 3) + 1) % VOCABULARY));
    forward(&f, false);
    for (int64_t i = 0; i < 3 * VOCABULARY; i++) assert_true(load(&y, i) == before[i]);
    for (int64_t t = 3; t < LENGTH; t++) assert_true(load(&y, t * VOCABULARY) != before[t * VOCABULARY]);
    fixture_close(&f);
}

/* ---- the tied weight --------------------------------------------------------------------------------------------------- */

static int find_tensor(const abar_net *net, const char *wanted, abar_tensor *tensor)
{
    const char *name;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        abar_net_tensor(net, i, &name, tensor);
        if (strcmp(name, wanted) == 0) return i;
    }
    fail_msg("no tensor is called %s", wanted);
    return -1;
}

static void sequence_tied_weight_is_one_parameter_with_two_names(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_small_gpt(f.net);
    OK(f.ctx, compile(&f, 2, true));
    abar_tensor table, head;
    assert_int_equal(find_tensor(f.net, "transformer.wte.weight", &table), 0);
    assert_int_equal(find_tensor(f.net, "lm_head.weight", &head), abar_net_tensor_count(f.net) - 1);
    assert_ptr_equal(table.data, head.data);
    assert_int_equal(abar_net_tensor_count(f.net), abar_net_param_count(f.net) + 1);
    int64_t elements = 0, told = 0;
    for (int i = 0; i < abar_net_param_count(f.net); i++) elements += abar_tensor_count(&abar_net_param(f.net, i)->value);
    for (int i = 0; i < abar_net_node_count(f.net); i++) told += abar_net_node(f.net, i)->parameters;
    assert_int_equal(told, elements); /* counted once */
    for (int i = 0; i < abar_net_layer_count(f.net); i++) assert_string_not_equal(abar_net_layer(f.net, i)->name, "lm_head");
    assert_int_equal(abar_net_layer_count(f.net), 2 * 4);
    fixture_close(&f);
}

/* The gradient of every parameter, one after the other, in memory that the caller frees. */
static double *gradients(fixture *f, bool accumulate, int64_t *count)
{
    forward(f, true);
    OK(f->ctx, abar_net_backward(f->net, accumulate, NULL));
    *count = 0;
    for (int p = 0; p < abar_net_param_count(f->net); p++) *count += abar_tensor_count(&abar_net_param(f->net, p)->grad);
    double *all = malloc((size_t)*count * sizeof *all), *at = all;
    assert_non_null(all);
    for (int p = 0; p < abar_net_param_count(f->net); p++) {
        const abar_tensor *grad = &abar_net_param(f->net, p)->grad;
        for (int64_t i = 0; i < abar_tensor_count(grad); i++) *at++ = load(grad, i);
    }
    return all;
}

/* A pass does not depend on the previous one, and gradients accumulate completely: the table has two writers. */
static void sequence_gradients_replace_or_accumulate(void **state)
{
    (void)state;
    for (size_t m = 0; m < SMALL_TRANSFORMERS; m++) {
        fixture f = fixture_open("ref", 1);
        small_transformers[m](f.net);
        OK(f.ctx, compile(&f, 2, true));
        fill_batch(f.net, 1, VOCABULARY);
        int64_t count;
        double *first = gradients(&f, false, &count), *again = gradients(&f, false, &count),
               *both = gradients(&f, true, &count);
        assert_memory_equal(first, again, (size_t)count * sizeof *first);
        for (int64_t i = 0; i < count; i++) assert_true(fabs(both[i] - 2.0 * first[i]) <= 1e-14 + 1e-12 * fabs(first[i]));
        free(first);
        free(again);
        free(both);
        fixture_close(&f);
    }
}

/* ---- gradients ------------------------------------------------------------------------------------------------------- */

/* Up to 16 elements of every parameter: (loss(w + h) - loss(w - h)) / 2h against backward, relative to the parameter's norm. */
static void check_param(fixture *f, const abar_param *p)
{
    const double h = 1e-5;
    const int64_t count = abar_tensor_count(&p->value), stride = count > 16 ? count / 16 : 1;
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i += stride) {
        double w = load(&p->value, i), exact = load(&p->grad, i);
        store(&p->value, i, w + h);
        double up = forward(f, true);
        store(&p->value, i, w - h);
        double down = forward(f, true);
        store(&p->value, i, w);
        double numeric = (up - down) / (2.0 * h);
        error += (numeric - exact) * (numeric - exact);
        size += exact * exact;
    }
    /* some gradients are zero (a key's bias, positions that do not occur): those only up to rounding */
    if (!(sqrt(error) <= 1e-6 * fmax(sqrt(size), 1e-3))) fail_msg("%s: off by %g of %g", p->name, sqrt(error), sqrt(size));
}

static void sequence_gradients_match_differences(void **state)
{
    (void)state;
    for (size_t m = 0; m < SMALL_TRANSFORMERS; m++) {
        fixture f = fixture_open("ref", 1);
        small_transformers[m](f.net);
        OK(f.ctx, compile(&f, 3, true));
        fill_batch(f.net, 5, VOCABULARY);
        for (int p = 0; p < abar_net_param_count(f.net); p++) { /* away from 0.02, where everything is nearly linear */
            const abar_param *param = abar_net_param(f.net, p);
            for (int64_t i = 0; i < abar_tensor_count(&param->value); i++)
                store(&param->value, i,
                      load(&param->value, i) +
                          0.5 * (abar__uniform(abar__random(9, ABAR_DRAW_SYNTHETIC, (uint32_t)p, (uint64_t)i).u[0]) - 0.5));
        }
        forward(&f, true);
        OK(f.ctx, abar_net_backward(f.net, false, NULL));
        for (int p = 0; p < abar_net_param_count(f.net); p++) check_param(&f, abar_net_param(f.net, p));
        fixture_close(&f);
    }
}

/* ---- the state dict, initial weights ------------------------------------------------------------------------------------ */

static void expect_names(void (*build)(abar_net *), const char *const *names, int count)
{
    fixture f = fixture_open("ref", 1);
    build(f.net);
    OK(f.ctx, abar_net_compile(f.net, f.dev,
                               &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
    for (int i = 0; i < count; i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(f.net, i, &name, &t);
        assert_string_equal(name, names[i]);
    }
    fixture_close(&f);
}

/* A module's own tensors come before those of its submodules, as in PyTorch, although the forward pass uses them later. */
static void sequence_state_dict_is_in_pytorch_order(void **state)
{
    (void)state;
    static const char *const deit[] = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias",
                                       "blocks.0.norm1.weight"};
    static const char *const swin[] = {"patch_embed.proj.weight",
                                       "patch_embed.proj.bias",
                                       "layers.0.blocks.0.norm1.weight",
                                       "layers.0.blocks.0.norm1.bias",
                                       "layers.0.blocks.0.attn.relative_position_bias_table",
                                       "layers.0.blocks.0.attn.qkv.weight",
                                       "layers.0.blocks.0.attn.qkv.bias",
                                       "layers.0.blocks.0.attn.proj.weight"};
    static const char *const gpt[] = {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.norm1.weight"};
    expect_names(build_small_deit, deit, 5);
    expect_names(build_small_swin, swin, 8);
    expect_names(build_small_gpt, gpt, 3);
}

static double deviation(const abar_tensor *t)
{
    double sum = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(t); i++) sum += load(t, i) * load(t, i);
    return sqrt(sum / (double)abar_tensor_count(t));
}

static void build_inits(abar_net *net)
{
    abar_value x = abar_class_token(net, abar_embedding(net, abar_input_tokens(net, 50), 60, 50, 64));
    x = abar_linear(net, x, "a", &ABAR_CONFIG(abar_linear_config, .out = 64, .bias = true, .init = ABAR_INIT_TRUNCATED));
    x = abar_linear(net, x, "b", &ABAR_CONFIG(abar_linear_config, .out = 64, .bias = true, .init = ABAR_INIT_GPT));
    x = abar_linear(net, x, "c",
                    &ABAR_CONFIG(abar_linear_config, .out = 64, .bias = true, .init = ABAR_INIT_GPT_RESIDUAL, .layers = 8));
    abar_softmax_cross_entropy(net, abar_linear_tied(net, x, "head"), 0.0);
}

static void sequence_initial_weights_have_their_spread(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double deviation;
    } wanted[] = {{"a.weight", 0.02},  {"b.weight", 0.02},  {"c.weight", 0.005},  {"a.bias", 0.0},
                  {"b.bias", 0.0},     {"c.bias", 0.0},     {"wte.weight", 0.02}, {"wpe.weight", 0.02},
                  {"pos_embed", 0.02}, {"cls_token", 1e-6}, {"head.weight", 0.02}};
    fixture f = fixture_open("ref", 1);
    build_inits(f.net);
    OK(f.ctx, compile(&f, 1, false));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        abar_tensor t;
        find_tensor(f.net, wanted[i].name, &t);
        double spread = deviation(&t);
        if (!(fabs(spread - wanted[i].deviation) <= 0.3 * wanted[i].deviation)) fail_msg("%s: %g", wanted[i].name, spread);
    }
    fixture_close(&f);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static void sequence_step_after_compile_allocates_nothing(void **state)
{
    (void)state;
    for (size_t m = 0; m < SMALL_TRANSFORMERS; m++) {
        fixture f = fixture_open("ref", 1);
        small_transformers[m](f.net);
        OK(f.ctx, compile(&f, 2, true));
        abar_net_memory plan = *abar_net_memory_plan(f.net);
        assert_true(plan.arena < plan.arena_without_reuse);
        fill_batch(f.net, 1, VOCABULARY);
        uint64_t before = abar_context_memory(f.ctx).allocations;
        forward(&f, true);
        OK(f.ctx, abar_net_backward(f.net, false, NULL));
        assert_int_equal(abar_context_memory(f.ctx).allocations, before);
        fixture_close(&f);
    }
}

/* No T x T matrix: twice the tokens take about twice the memory. */
static void sequence_memory_grows_with_the_tokens_alone(void **state)
{
    (void)state;
    size_t arena[2];
    for (int k = 0; k < 2; k++) {
        fixture f = fixture_open("ref", 1);
        abar_value x = abar_embedding(f.net, abar_input_tokens(f.net, 512 << k), 7, 1024, 6);
        x = small_block(f.net, x, 6, &ABAR_CONFIG(abar_attention_config, .heads = 2, .causal = true), 0.0);
        abar_softmax_cross_entropy(f.net, abar_linear_tied(f.net, x, "head"), 0.0);
        OK(f.ctx, abar_net_compile(f.net, f.dev,
                                   &(abar_compile_config){
                                       .size = sizeof(abar_compile_config), .batch = 1, .training = true, .plan_only = true}));
        arena[k] = abar_net_memory_plan(f.net)->arena;
        fixture_close(&f);
    }
    assert_true((double)arena[1] < 2.1 * (double)arena[0]);
}

static void sequence_every_failing_allocation_is_survived(void **state)
{
    (void)state;
    check_failing_allocations(build_small_gpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_mistakes_are_told_by_compile),
        cmocka_unit_test(sequence_text_goes_in_as_integers),
        cmocka_unit_test(sequence_causal_net_does_not_see_the_future),
        cmocka_unit_test(sequence_tied_weight_is_one_parameter_with_two_names),
        cmocka_unit_test(sequence_gradients_replace_or_accumulate),
        cmocka_unit_test(sequence_gradients_match_differences),
        cmocka_unit_test(sequence_state_dict_is_in_pytorch_order),
        cmocka_unit_test(sequence_initial_weights_have_their_spread),
        cmocka_unit_test(sequence_step_after_compile_allocates_nothing),
        cmocka_unit_test(sequence_memory_grows_with_the_tokens_alone),
        cmocka_unit_test(sequence_every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
