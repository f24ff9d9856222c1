/* Text models from end to end: a tiny GPT learns a tiny text, a run that was stopped goes on to the same bits, what is reported
 * fits together, and what is sampled repeats. */
#include "text_support.h"

#include <math.h>

static double number(const char *json, const char *key)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\": ", key);
    const char *at = strstr(json, wanted);
    assert_non_null(at);
    return strtod(at + strlen(wanted), NULL);
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static void check_learns(fixture *f, const char *optim, const char *options, double most)
{
    abar_setup *setup = text_setup(f, optim, options);
    last_epoch last = {0};
    abar_trainer_events events = {sizeof events, keep_last, &last};
    abar_trainer *t;
    const char *report;
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &report));
    assert_int_equal(last.steps, 200);
    assert_int_equal(last.epochs, 20);
    assert_true(last.p.text);
    if (!(last.p.test_loss < most)) fail_msg("%s: loss %g", optim, last.p.test_loss); /* 12 characters: chance is 2.48 */
    assert_true(fabs(last.p.test_perplexity - exp(last.p.test_loss)) < 1e-12 * last.p.test_perplexity);
    assert_true(fabs(last.p.test_bits - log2(exp(last.p.test_loss))) < 1e-9);
    assert_true(fabs(number(report, "test_ppl") - last.p.test_perplexity) < 1e-6);
    assert_true(fabs(number(report, "test_bpc") - last.p.test_bits) < 1e-6);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void a_tiny_gpt_learns_a_tiny_text(void **state)
{
    check_learns(*state, "adamw", "epochs=20", 0.7);
    check_learns(*state, "sgd", "epochs=20 lr=0.1 final-lr=0", 1.5);
    check_learns(*state, "mac+adamw", "epochs=20", 0.9);
    check_learns(*state, "adamw", "epochs=20 text=bytes", 0.9);
}

/* Before the first step every character is about as likely as any other: ln 12. The tied head favours the character that was
 * just read, which adds 0.03 on average and another 0.02 for some seeds: hence the mean over several. */
static void the_first_loss_is_that_of_chance(void **state)
{
    fixture *f = *state;
    enum { SEEDS = 16 };
    double test = 0.0, train = 0.0;
    for (int i = 0; i < SEEDS; i++) {
        abar_setup *setup = text_setup(f, "adamw", "epochs=1 epoch-steps=2 warmup=0 lr=0 final-lr=0");
        setup->train.seed += 1000 * i;
        last_epoch last = {0};
        abar_trainer_events events = {sizeof events, keep_last, &last};
        abar_trainer *t;
        need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
        need(f, abar_trainer_run(t));
        test += last.p.test_loss / SEEDS;
        train += last.p.loss / SEEDS;
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
    assert_true(fabs(test - log(12.0)) < 0.05);
    assert_true(fabs(train - log(12.0)) < 0.05);
}

/* ---- stopping, resuming, threads --------------------------------------------------------------------------------- */

static void a_resumed_run_ends_with_the_same_bits(void **state)
{
    fixture *f = *state;
    static const int64_t stops[] = {1, 10, 11, 14}; /* mid-epoch, before the test, after it, in the second epoch */
    abar_setup *setup = text_setup(f, "mac+adamw", "");
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    assert_int_equal(lines_in(f, "whole", "\"test_bpc\""), 2);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        char parts[32];
        snprintf(parts, sizeof parts, "parts-%d", (int)stops[i]);
        set_out(f, setup, parts);
        set(f, setup, "workers", i % 2 ? "0" : "3"); /* the number of loader threads does not matter */
        assert_int_equal(run_until(f, setup, false, stops[i]), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 3), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 0), ABAR_OK);
        assert_same_runs(f, "whole", parts);
    }
    abar_setup_destroy(f->ctx, setup);
}

static void accumulated_micro_batches_give_the_same_losses(void **state)
{
    fixture *f = *state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = text_setup(f, "adamw", i ? "accumulate=4" : "");
        last_epoch last = {0};
        abar_trainer_events events = {sizeof events, keep_last, &last};
        abar_trainer *t;
        need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
        need(f, abar_trainer_run(t));
        loss[i] = last.p.loss;
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-9); /* dropout is keyed by the sample's place in the whole batch */
}

static void another_text_cannot_go_on_with_a_run(void **state)
{
    fixture *f = *state;
    char dir[PATH_MAX_TEST];
    abar_setup *setup = text_setup(f, "adamw", "");
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 5), ABAR_STOPPED);
    abar_setup_destroy(f->ctx, setup);
    path_in(f, "run", dir);
    write_file(f, "text", "ABCDEFG HIJ. ", 60); /* as many characters, but others */
    need(f, abar_setup_load(f->ctx, dir, &setup));
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "other characters");
    set(f, setup, "epoch-steps", "11");
    write_file(f, "text", PATTERN, 60);
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--epoch-steps 11");
    abar_setup_destroy(f->ctx, setup);
}

static void texts_and_images_do_not_mix(void **state)
{
    fixture *f = *state;
    abar_setup *setup;
    need(f, abar_setup_create(f->ctx, "gpt-char", "synthetic", "sgd", &setup));
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "reads text");
    abar_setup_destroy(f->ctx, setup);
    need(f, abar_setup_create(f->ctx, "lenet5", "text:x", "sgd", &setup));
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "reads images");
    abar_setup_destroy(f->ctx, setup);
    setup = text_setup(f, "adamw", "context=100");
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "its test part has 78 characters");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- what is left of a run ---------------------------------------------------------------------------------------- */

/* A run that has learnt the pattern: "trained" in the fixture's folder. */
static abar_setup *trained(fixture *f, const char *options)
{
    abar_setup *setup = text_setup(f, "adamw", options);
    set(f, setup, "epochs", "20");
    set_out(f, setup, "trained");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    return setup;
}

static void evaluation_agrees_with_training(void **state)
{
    fixture *f = *state;
    char weights[PATH_MAX_TEST], logits[PATH_MAX_TEST];
    abar_setup *setup = trained(f, "");
    abar__run_state at;
    abar__epoch *history = history_of(f, "trained", &at);
    const abar__epoch last = history[at.epoch - 1];
    abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
    static const char *const files[] = {"trained/state.safetensors", "trained/model.safetensors"};
    for (int i = 0; i < 2; i++) {
        abar_evaluation e = {.size = sizeof e};
        path_in(f, files[i], weights);
        need(f, abar_evaluate(f->ctx, setup, weights, &e));
        assert_true(fabs(e.loss - last.test_loss) < (i ? 1e-5 : 1e-12)); /* an export is rounded to float */
        assert_int_equal(e.samples, 77 / 8 * 8);
        assert_true(fabs(e.perplexity - exp(e.loss)) < 1e-12 && fabs(e.bits - e.loss / log(2.0)) < 1e-12);
    }
    path_in(f, "logits", logits);
    need(f, abar_evaluate_logits(f->ctx, setup, weights, 3, logits));
    abar__safetensors *file = open_in(f, ".", "logits");
    abar_tensor tokens, labels, values;
    assert_true(abar__safetensors_find(file, "tokens", &tokens) && abar__safetensors_find(file, "labels", &labels) &&
                abar__safetensors_find(file, "logits", &values));
    assert_true(tokens.ndim == 2 && tokens.dim[0] == 3 && tokens.dim[1] == 8 && labels.dim[1] == 8);
    assert_true(values.ndim == 3 && values.dim[0] == 3 && values.dim[1] == 8 && values.dim[2] == 12);
    assert_memory_equal((const int32_t *)tokens.data + 1, labels.data, 7 * sizeof(int32_t)); /* each label is the next token */
    abar__safetensors_close(file);
    abar_setup_destroy(f->ctx, setup);
}

/* Another text is read in the vocabulary of the weights. */
static void evaluation_takes_the_vocabulary_of_the_weights(void **state)
{
    fixture *f = *state;
    char weights[PATH_MAX_TEST];
    abar_setup *setup = trained(f, "");
    abar_evaluation e = {.size = sizeof e};
    path_in(f, "trained/model.safetensors", weights);
    write_file(f, "text", "hij. ", 60); /* fewer characters than the model knows */
    need(f, abar_evaluate(f->ctx, setup, weights, &e));
    write_file(f, "text", "hijk. ", 60);
    assert_int_equal(abar_evaluate(f->ctx, setup, weights, &e), ABAR_E_ARGUMENT);
    assert_error(f, "the character k, U+006B");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- sampling ----------------------------------------------------------------------------------------------------- */

static void samples_repeat_for_a_seed(void **state)
{
    fixture *f = *state;
    made a = {.n = 0}, b = {.n = 0};
    static const char *const files[] = {"trained/state.safetensors", "trained/model.safetensors"};
    abar_setup *setup = trained(f, "");
    char text[PATH_MAX_TEST];
    path_in(f, "text", text);
    assert_int_equal(remove(text), 0); /* the data are not needed any more */
    /* greedy sampling, and top_k 1: the pattern continues over more than a window */
    for (int i = 0; i < 2; i++) {
        need(f, sample(f, setup, files[i], (abar_sample_config){.prompt = "abc", .length = 23}, &a));
        assert_string_equal(a.text, "abcdefg hij. abcdefg hij. ");
        assert_int_equal(a.calls, 24); /* the prompt, then one after another */
    }
    need(f, sample(f, setup, files[0], (abar_sample_config){.prompt = "abc", .length = 23, .temperature = 1, .top_k = 1}, &a));
    assert_string_equal(a.text, "abcdefg hij. abcdefg hij. ");
    /* at a high temperature every token is drawn, but the same ones for a seed */
    const abar_sample_config hot = {.length = 60, .temperature = 20, .seed = 5};
    need(f, sample(f, setup, files[0], hot, &a));
    need(f, sample(f, setup, files[0], hot, &b));
    assert_int_equal(a.n, 60); /* the new line it begins with is not written */
    assert_string_equal(a.text, b.text);
    abar_sample_config other = hot;
    other.seed = 6;
    need(f, sample(f, setup, files[0], other, &b));
    assert_string_not_equal(a.text, b.text);
    b.stop_at = 4;
    assert_int_equal(sample(f, setup, files[0], hot, &b), ABAR_STOPPED);
    assert_true(b.n == 4 && memcmp(a.text, b.text, 4) == 0);
    abar_setup_destroy(f->ctx, setup);
}

/* With k tokens to choose from and a temperature beyond all differences, each of the k comes about as often as any other. */
static void top_k_draws_among_k(void **state)
{
    fixture *f = *state;
    made m = {.n = 0};
    int seen[256] = {0}, kinds = 0, most = 0, n = 0;
    abar_setup *setup = trained(f, "");
    for (uint64_t seed = 0; seed < 90; seed++) { /* the first draw of every seed */
        need(f, sample(f, setup, "trained/model.safetensors",
                       (abar_sample_config){.prompt = "abc", .length = 1, .temperature = 1e6, .top_k = 3, .seed = seed}, &m));
        seen[(uint8_t)m.text[3]]++;
        n++;
    }
    for (int i = 0; i < 256; i++) {
        kinds += seen[i] > 0;
        most = seen[i] > most ? seen[i] : most;
    }
    assert_int_equal(kinds, 3);
    assert_true(seen['d'] > 0); /* the likeliest is one of them */
    assert_true(most < n / 2);
    abar_setup_destroy(f->ctx, setup);
}

static void bytes_can_be_sampled(void **state)
{
    fixture *f = *state;
    made m = {.n = 0};
    abar_setup *setup = trained(f, "text=bytes");
    need(f, sample(f, setup, "trained/model.safetensors", (abar_sample_config){.prompt = "abc", .length = 10}, &m));
    assert_string_equal(m.text, "abcdefg hij. ");
    need(f, sample(f, setup, "trained/model.safetensors", (abar_sample_config){.prompt = "\xff", .length = 1}, &m));
    abar_setup_destroy(f->ctx, setup);
}

static void what_cannot_be_sampled_is_refused(void **state)
{
    fixture *f = *state;
    made m = {.n = 0};
    abar_setup *setup = trained(f, ""), *image;
    const char *file = "trained/model.safetensors";
    assert_int_equal(sample(f, setup, file, (abar_sample_config){.prompt = "abz", .length = 1}, &m), ABAR_E_ARGUMENT);
    assert_error(f, "--prompt: the character z, U+007A is not among the 12");
    assert_int_equal(sample(f, setup, file, (abar_sample_config){.prompt = "a\nb", .length = 1}, &m), ABAR_E_ARGUMENT);
    assert_error(f, "--prompt: the character U+000A");
    assert_int_equal(sample(f, setup, file, (abar_sample_config){.prompt = "\xff", .length = 1}, &m), ABAR_E_ARGUMENT);
    assert_error(f, "not UTF-8");
    assert_int_equal(sample(f, setup, file, (abar_sample_config){.length = -1}, &m), ABAR_E_ARGUMENT);
    assert_int_equal(sample(f, setup, "text", (abar_sample_config){.length = 1}, &m), ABAR_E_FORMAT);
    assert_int_equal(m.calls, 0);
    set(f, setup, "width", "32");
    assert_int_equal(sample(f, setup, file, (abar_sample_config){.length = 1}, &m), ABAR_E_FORMAT);
    assert_error(f, "is it of another model?");
    image = make_setup(f, "mlp", "sgd", "epochs=1 limit-train=64 batch=32");
    set_out(f, image, "image");
    assert_int_equal(run_until(f, image, false, 0), ABAR_OK);
    assert_int_equal(sample(f, image, "image/model.safetensors", (abar_sample_config){.length = 1}, &m), ABAR_E_ARGUMENT);
    assert_error(f, "is of mlp, which makes no text");
    abar_setup_destroy(f->ctx, image);
    abar_setup_destroy(f->ctx, setup);
}

/* A file alone is enough: its metadata has the settings. */
static void an_export_has_its_settings_with_it(void **state)
{
    fixture *f = *state;
    char path[PATH_MAX_TEST];
    made m = {.n = 0};
    abar_setup *setup = trained(f, "checkpoint-every=5"), *loaded;
    abar_setup_destroy(f->ctx, setup);
    static const char *const files[] = {"trained/state.safetensors", "trained/model.safetensors"};
    for (int i = 0; i < 2; i++) {
        path_in(f, files[i], path);
        need(f, abar_setup_load_file(f->ctx, path, &loaded));
        assert_string_equal(loaded->train.out, "");
        need(f, sample(f, loaded, files[i], (abar_sample_config){.prompt = "abc", .length = 4}, &m));
        assert_string_equal(m.text, "abcdefg");
        abar_setup_destroy(f->ctx, loaded);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_fixture, drop_fixture)
    const struct CMUnitTest tests[] = {
        TEST(a_tiny_gpt_learns_a_tiny_text),
        TEST(the_first_loss_is_that_of_chance),
        TEST(a_resumed_run_ends_with_the_same_bits),
        TEST(accumulated_micro_batches_give_the_same_losses),
        TEST(another_text_cannot_go_on_with_a_run),
        TEST(texts_and_images_do_not_mix),
        TEST(evaluation_agrees_with_training),
        TEST(evaluation_takes_the_vocabulary_of_the_weights),
        TEST(samples_repeat_for_a_seed),
        TEST(top_k_draws_among_k),
        TEST(bytes_can_be_sampled),
        TEST(what_cannot_be_sampled_is_refused),
        TEST(an_export_has_its_settings_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
