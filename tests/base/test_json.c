/* The scan that tells damaged JSON from memory that was short: it must agree with cJSON, which reads our files. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

static const char *const good[] = {"null",
                                   "true",
                                   " false ",
                                   "0",
                                   "-12.5e+3",
                                   "1E-9",
                                   "\"\"",
                                   "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\ude00\"",
                                   "[]",
                                   "[ ]",
                                   "{}",
                                   "{ }",
                                   "[1, [2, {}], \"x\", null]",
                                   "{\"a\": {\"b\": [true, {\"c\": 1}]}, \"d\" : \"}\"}",
                                   "\n{\t\"a\" :\r[ {} , [] ] }\n"};

static const char *const bad[] = {"",         " ",     "nul",       "tru",        "1.e",         "-",           "+1",
                                  "1e",       "\"",    "\"\\\"",    "\"\\x\"",    "[",           "]",           "[1,]",
                                  "[,1]",     "[1 2]", "{",         "}",          "{\"a\"}",     "{a:1}",       "{1:2}",
                                  "{\"a\":}", "[1}",   "{\"a\":1]", "{\"a\":1,}", "{\"a\":1,2}", "\"\\ud800\"", "\"\\udc00\"",
                                  "\"\\u12",  "[[]",   "[{]}"};

static void scan_agrees_with_cjson(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cJSON *root = cJSON_ParseWithLength(good[i], strlen(good[i]));
        if (!root || !abar__json_valid(good[i], strlen(good[i]))) fail_msg("refused: %s", good[i]);
        cJSON_Delete(root);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (abar__json_valid(bad[i], strlen(bad[i]))) fail_msg("taken: %s", bad[i]);
    assert_false(abar__json_valid("1 2", 3));
    assert_false(abar__json_valid("{} x", 4));
}

/* Both ways: what cJSON reads the scan takes, what cJSON refuses the scan refuses. Blanks are the exception: cJSON skips
 * every control character. */
static void scan_of_changed_texts_agrees_with_cjson(void **state)
{
    (void)state;
    static const char alphabet[] = "{}[]\",:\\u0d8eE+-. truefalsn";
    uint32_t random = 1;
    int taken = 0;
    for (int round = 0; round < 200000; round++) {
        char text[64];
        const char *from = good[(random >> 16) % (sizeof good / sizeof *good)];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (int change = 0; change < 1 + round % 3; change++) {
            random = random * 1664525u + 1013904223u;
            const uint32_t place = (random >> 8) % (uint32_t)n;
            random = random * 1664525u + 1013904223u;
            text[place] = alphabet[(random >> 8) % (sizeof alphabet - 1)];
        }
        const char *end = NULL;
        cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, false);
        while (root && end < text + n && (unsigned char)*end <= ' ') end++;
        const bool whole = root && end == text + n, valid = abar__json_valid(text, n);
        if (valid && !whole) fail_msg("cJSON refuses what the scan takes: %.*s", (int)n, text);
        taken += valid;
        cJSON_Delete(root);
    }
    assert_true(taken > 1000);
}

static void scan_nests_as_deep_as_cjson(void **state)
{
    (void)state;
    char text[4096];
    for (int depth = 998; depth <= 1003; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        cJSON *root = cJSON_ParseWithLength(text, 2 * (size_t)depth);
        assert_int_equal(abar__json_valid(text, 2 * (size_t)depth), root != NULL);
        cJSON_Delete(root);
    }
    memset(text, '1', 100);
    for (size_t n = 60; n < 70; n++) {
        const char *end = NULL;
        cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, false);
        assert_int_equal(abar__json_valid(text, n), n <= 63);
        if (n <= 63) assert_true(root && end == text + n);
        cJSON_Delete(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_agrees_with_cjson),
        cmocka_unit_test(scan_of_changed_texts_agrees_with_cjson),
        cmocka_unit_test(scan_nests_as_deep_as_cjson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
