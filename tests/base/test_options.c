/* Option tables, "did you mean", and numbers and strings as text. */
#include "io/io_test.h"

#include "base/json.h"
#include "base/number.h"

#include <float.h>
#include <locale.h>
#include <math.h>

typedef struct settings {
    int64_t epochs, seed, schedule;
    double lr, shift, floor;
    bool nesterov;
    char out[ABAR_OPTION_TEXT_MAX];
} settings;

static const abar_option table[] = {
    {"epochs", ABAR_OPTION_INT, offsetof(settings, epochs), "10", 1, 1000000, NULL, "passes over the data"},
    {"seed", ABAR_OPTION_INT, offsetof(settings, seed), "0", -0x1p63, 0x1p63, NULL, "of everything random"},
    {"lr", ABAR_OPTION_REAL, offsetof(settings, lr), "0.1", 0, 1e6, NULL, "learning rate"},
    {"shift", ABAR_OPTION_REAL, offsetof(settings, shift), "-1e-3", -DBL_MAX, DBL_MAX, NULL, "any number"},
    {"floor", ABAR_OPTION_REAL, offsetof(settings, floor), "0", 0, INFINITY, NULL, "no upper end"},
    {"nesterov", ABAR_OPTION_BOOL, offsetof(settings, nesterov), "false", 0, 0, NULL, "look ahead"},
    {"schedule", ABAR_OPTION_CHOICE, offsetof(settings, schedule), "step", 0, 0, "cosine|step|constant", "of the rate"},
    {"out", ABAR_OPTION_TEXT, offsetof(settings, out), "", 0, 0, NULL, "folder"},
    {NULL, ABAR_OPTION_INT, 0, NULL, 0, 0, NULL, NULL},
};

static abar_context *ctx;
static test_memory memory;

static int setup(void **state)
{
    (void)state;
    ctx = test_context(&memory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_context_end(ctx, &memory);
    return 0;
}

static settings defaults(void)
{
    settings s;
    memset(&s, 0xAA, sizeof s);
    abar_options_default(table, &s);
    return s;
}

/* The text is refused, the field unchanged, and the error is this. */
static void refused(const char *name, const char *text, const char *error)
{
    settings s = defaults(), before = s;
    assert_int_equal(abar_options_set(ctx, table, &s, name, text), ABAR_E_ARGUMENT);
    assert_string_equal(abar_context_error(ctx), error);
    assert_memory_equal(&s, &before, sizeof s);
}

static void options_default_are_the_fallbacks(void **state)
{
    (void)state;
    settings s = defaults();
    assert_int_equal(s.epochs, 10);
    assert_int_equal(s.schedule, 1);
    assert_true(s.lr == 0.1 && s.shift == -1e-3);
    assert_false(s.nesterov);
    assert_string_equal(s.out, "");
}

static void options_int_is_strict(void **state)
{
    (void)state;
    settings s = defaults();
    assert_int_equal(abar_options_set(ctx, table, &s, "epochs", "1000000"), ABAR_OK);
    assert_int_equal(s.epochs, 1000000);
    assert_int_equal(abar_options_set(ctx, table, &s, "seed", "-9223372036854775808"), ABAR_OK);
    assert_true(s.seed == INT64_MIN);
    assert_int_equal(abar_options_set(ctx, table, &s, "seed", "9223372036854775807"), ABAR_OK);
    assert_true(s.seed == INT64_MAX);
    refused("epochs", "0", "--epochs 0: out of range, give a value from 1 to 1000000");
    refused("epochs", "1000001", "--epochs 1000001: out of range, give a value from 1 to 1000000");
    refused("epochs", "9223372036854775808", "--epochs 9223372036854775808: out of range, give a value from 1 to 1000000");
    refused("epochs", "", "--epochs \"\": not a whole number, give a value from 1 to 1000000");
    static const char *const wrong[] = {"1e5", "1.0", " 1", "1 ", "0x10", "+1", "-", "1x", "--1", "nan"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(abar_options_set(ctx, table, &s, "epochs", wrong[i]), ABAR_E_ARGUMENT);
        assert_error(ctx, "not a whole number");
    }
}

static void options_real_is_strict(void **state)
{
    (void)state;
    settings s = defaults();
    static const char *const right[] = {"0.5", ".5", "5e-1", "+0.5", "0.05E+1", "0.50000"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        s.lr = 0;
        assert_int_equal(abar_options_set(ctx, table, &s, "lr", right[i]), ABAR_OK);
        assert_true(s.lr == 0.5);
    }
    refused("lr", "nan", "--lr nan: not a finite number, give a value from 0 to 1e+06");
    refused("lr", "-inf", "--lr -inf: not a finite number, give a value from 0 to 1e+06");
    refused("lr", "1e999", "--lr 1e999: not a finite number, give a value from 0 to 1e+06");
    refused("lr", "-0.1", "--lr -0.1: out of range, give a value from 0 to 1e+06");
    refused("lr", "fast", "--lr fast: not a number, give a value from 0 to 1e+06");
    refused("shift", "x", "--shift x: not a number, give any finite number");
    refused("floor", "-1", "--floor -1: out of range, give a value of at least 0");
    static const char *const wrong[] = {"", " 1", "1 ", "0x1p3", "1,5", "1e", "1e+", ".", "e5", "1.2.3", "--1", "1f"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(abar_options_set(ctx, table, &s, "lr", wrong[i]), ABAR_E_ARGUMENT);
        assert_error(ctx, "not a number");
    }
}

static void options_bool_takes_six_words(void **state)
{
    (void)state;
    settings s = defaults();
    static const char *const words[] = {"true", "false", "1", "0", "yes", "no"};
    for (size_t i = 0; i < 6; i++) {
        s.nesterov = i % 2 != 0;
        assert_int_equal(abar_options_set(ctx, table, &s, "nesterov", words[i]), ABAR_OK);
        assert_int_equal(s.nesterov, i % 2 == 0);
    }
    refused("nesterov", "True", "--nesterov True: neither true nor false, give true or false");
    refused("nesterov", "", "--nesterov \"\": neither true nor false, give true or false");
}

static void options_choice_suggests(void **state)
{
    (void)state;
    settings s = defaults();
    assert_int_equal(abar_options_set(ctx, table, &s, "schedule", "constant"), ABAR_OK);
    assert_int_equal(s.schedule, 2);
    refused("schedule", "cosin", "--schedule cosin: not one of cosine, step, constant, did you mean cosine");
    refused("schedule", "setp", "--schedule setp: not one of cosine, step, constant, did you mean step");
    refused("schedule", "linear", "--schedule linear: not one of cosine, step, constant");
    refused("schedule", "cosine|step", "--schedule cosine|step: not one of cosine, step, constant");
    refused("schedule", "", "--schedule \"\": not one of cosine, step, constant");
}

static void options_text_has_a_longest_length(void **state)
{
    (void)state;
    settings s = defaults();
    char text[ABAR_OPTION_TEXT_MAX + 1];
    memset(text, 'x', sizeof text);
    text[ABAR_OPTION_TEXT_MAX - 1] = '\0';
    assert_int_equal(abar_options_set(ctx, table, &s, "out", text), ABAR_OK);
    assert_string_equal(s.out, text);
    char got[ABAR_OPTION_TEXT_MAX];
    assert_int_equal(abar_options_get(ctx, table, &s, "out", got, sizeof got), ABAR_OK);
    assert_string_equal(got, text);
    text[ABAR_OPTION_TEXT_MAX - 1] = 'x';
    text[ABAR_OPTION_TEXT_MAX] = '\0';
    assert_int_equal(abar_options_set(ctx, table, &s, "out", text), ABAR_E_ARGUMENT);
    assert_error(ctx, "x: too long, give at most 511 bytes");
    assert_int_equal(abar_options_set(ctx, table, &s, "out", s.out + 500), ABAR_OK); /* the text is part of the field itself */
    assert_string_equal(s.out, "xxxxxxxxxxx");
}

static void options_unknown_name_suggests(void **state)
{
    (void)state;
    settings s = defaults();
    assert_int_equal(abar_options_set(ctx, table, &s, "epoch", "1"), ABAR_E_NOT_FOUND);
    assert_string_equal(abar_context_error(ctx), "--epoch: no such option, did you mean --epochs");
    assert_int_equal(abar_options_set(ctx, table, &s, "quantum", "1"), ABAR_E_NOT_FOUND);
    assert_string_equal(abar_context_error(ctx), "--quantum: no such option");
    assert_int_equal(abar_options_set(ctx, table, &s, "lr", NULL), ABAR_E_ARGUMENT);
    char text[8];
    assert_int_equal(abar_options_get(ctx, table, &s, "lrr", text, sizeof text), ABAR_E_NOT_FOUND);
    assert_string_equal(abar_context_error(ctx), "--lrr: no such option, did you mean --lr");
    assert_null(abar_options_find(table, "Lr"));
    assert_ptr_equal(abar_options_find(table, "lr"), &table[2]);
}

static void options_get_is_what_set_reads(void **state)
{
    (void)state;
    static const char *const texts[][3] = {
        {"epochs", "7", "7"},        {"seed", "-9223372036854775808", "-9223372036854775808"},
        {"lr", "0.10", "0.1"},       {"lr", "0.30000000000000004", "0.30000000000000004"},
        {"lr", "1e-300", "1e-300"},  {"shift", "-1.7976931348623157e308", "-1.7976931348623157e+308"},
        {"nesterov", "yes", "true"}, {"schedule", "cosine", "cosine"},
        {"out", "a b", "a b"},       {"shift", "4.9406564584124654e-324", "4.94065645841247e-324"},
    };
    settings s = defaults();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[ABAR_OPTION_TEXT_MAX];
        assert_int_equal(abar_options_set(ctx, table, &s, texts[i][0], texts[i][1]), ABAR_OK);
        settings again = s;
        assert_int_equal(abar_options_get(ctx, table, &s, texts[i][0], text, sizeof text), ABAR_OK);
        assert_string_equal(text, texts[i][2]);
        assert_int_equal(abar_options_set(ctx, table, &s, texts[i][0], text), ABAR_OK);
        assert_memory_equal(&s, &again, sizeof s);
    }
}

static void options_get_into_too_little_room_fails(void **state)
{
    (void)state;
    settings s = defaults();
    char text[5];
    assert_int_equal(abar_options_get(ctx, table, &s, "schedule", text, 4), ABAR_E_ARGUMENT);
    assert_int_equal(abar_options_get(ctx, table, &s, "schedule", text, 5), ABAR_OK);
    assert_string_equal(text, "step");
    s.schedule = 3;
    assert_int_equal(abar_options_get(ctx, table, &s, "schedule", text, 5), ABAR_E_ARGUMENT);
    s.schedule = -1;
    assert_int_equal(abar_options_get(ctx, table, &s, "schedule", text, 5), ABAR_E_ARGUMENT);
}

static void nearest_name_finds_typos_only(void **state)
{
    (void)state;
    static const char *const names[] = {"lenet5", "mlp", "resnet20", "resnet32", "resnet110", NULL};
    static const char *const pairs[][2] = {
        {"lenet", "lenet5"},        {"lnet5", "lenet5"}, {"LeNet5", "lenet5"}, {"resnte110", "resnet110"},
        {"resnet111", "resnet110"}, {"res", "resnet20"}, {"mpl", "mlp"},       {"resnet-20", "resnet20"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_string_equal(abar_nearest_name(pairs[i][0], names), pairs[i][1]);
    assert_null(abar_nearest_name("", names));
    assert_null(abar_nearest_name("x", names));
    assert_null(abar_nearest_name("xy", names));
    assert_null(abar_nearest_name("transformer", names));
    assert_null(abar_nearest_name("mlp", (const char *const[]){NULL}));
    char longer[200];
    memset(longer, 'm', sizeof longer);
    longer[199] = '\0';
    assert_null(abar_nearest_name(longer, names));
    assert_string_equal(abar_nearest_name("sgd", (const char *const[]){"sgdx", "sgd", NULL}), "sgd"); /* exact comes first */
}

static void json_number_reads_back(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1.0 / 3, "0.3333333333333333"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {5, "5"},
                 {-0.0, "-0"},
                 {1e21, "1e+21"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {NAN, "null"},
                 {-INFINITY, "null"},
                 {INFINITY, "null"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__text out = {0};
        assert_int_equal(abar__json_number(ctx, &out, cases[i].value), ABAR_OK);
        assert_string_equal(out.data, cases[i].text);
        abar__text_free(ctx, &out);
    }
}

static void real_text_round_trips_in_any_locale(void **state)
{
    (void)state;
    static const char *const locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8", "ps_AF.UTF-8"};
    for (size_t l = 0; l < sizeof locales / sizeof *locales; l++) {
        if (!setlocale(LC_NUMERIC, locales[l])) continue; /* not on this machine */
        uint64_t bits = 0x123456789ABCDEFu;
        for (int i = 0; i < 20000; i++) {
            bits = bits * 6364136223846793005u + 1442695040888963407u;
            double value, back;
            memcpy(&value, &bits, sizeof value);
            if (!isfinite(value)) continue;
            char text[ABAR_REAL_TEXT_MAX];
            abar__real_format(value, text);
            assert_null(strchr(text, ','));
            assert_true(abar__real_parse(text, &back));
            assert_true(back == value);
        }
        char text[ABAR_REAL_TEXT_MAX];
        abar__real_format(-1234.5, text);
        assert_string_equal(text, "-1234.5");
    }
    setlocale(LC_NUMERIC, "C");
}

static void real_text_names_what_is_not_finite(void **state)
{
    (void)state;
    char text[ABAR_REAL_TEXT_MAX], many[400];
    abar__real_format(NAN, text);
    assert_string_equal(text, "nan");
    abar__real_format(-INFINITY, text);
    assert_string_equal(text, "-inf");
    double value = 7;
    assert_false(abar__real_parse("inf", &value));
    memset(many, '1', sizeof many);
    many[399] = '\0';
    assert_false(abar__real_parse(many, &value)); /* longer than any number a person types */
    assert_true(value == 7);
}

static void json_string_escapes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t\x01\x1f\x7f", "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\""},
        {"\xC4\x81 \xE2\x88\x9E \xF0\x9F\x98\x80", "\"\xC4\x81 \xE2\x88\x9E \xF0\x9F\x98\x80\""},
        {"x\xFFy", "\"x\xEF\xBF\xBDy\""},
        {"\xC0\xAF", "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},                                   /* overlong */
        {"\xED\xA0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},                   /* surrogate */
        {"\xF4\x90\x80\x80z", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\""}, /* beyond U+10FFFF */
        {"end\xE2\x88", "\"end\xEF\xBF\xBD\xEF\xBF\xBD\""},                             /* cut short */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__text out = {0};
        assert_int_equal(abar__json_string(ctx, &out, cases[i][0]), ABAR_OK);
        assert_string_equal(out.data, cases[i][1]);
        assert_true(abar__utf8_valid(out.data, out.length));
        abar__text_free(ctx, &out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_default_are_the_fallbacks),
        cmocka_unit_test(options_int_is_strict),
        cmocka_unit_test(options_real_is_strict),
        cmocka_unit_test(options_bool_takes_six_words),
        cmocka_unit_test(options_choice_suggests),
        cmocka_unit_test(options_text_has_a_longest_length),
        cmocka_unit_test(options_unknown_name_suggests),
        cmocka_unit_test(options_get_is_what_set_reads),
        cmocka_unit_test(options_get_into_too_little_room_fails),
        cmocka_unit_test(nearest_name_finds_typos_only),
        cmocka_unit_test(json_number_reads_back),
        cmocka_unit_test(real_text_round_trips_in_any_locale),
        cmocka_unit_test(real_text_names_what_is_not_finite),
        cmocka_unit_test(json_string_escapes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
