/* Learning-rate schedules against an independent table (tests/oracle/golden_optim.py), and at their edges. */
#include "optim/optim_fixture.h"

#include <cjson/cJSON.h>

static cJSON *read_json(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static char text[65536];
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    return json;
}

static double number(const cJSON *object, const char *key) { return cJSON_GetObjectItem(object, key)->valuedouble; }

static abar_schedule schedule_of(const cJSON *file, const cJSON *row)
{
    const char *kind = cJSON_GetObjectItem(row, "kind")->valuestring;
    return (abar_schedule){.size = sizeof(abar_schedule),
                           .kind = strncmp(kind, "cosine", 6) == 0 ? ABAR_SCHEDULE_COSINE
                                   : strcmp(kind, "step") == 0     ? ABAR_SCHEDULE_STEP
                                                                   : ABAR_SCHEDULE_CONSTANT,
                           .lr = number(file, "lr"),
                           .epochs = (int64_t)number(file, "epochs"),
                           .steps_per_epoch = (int64_t)number(file, "steps_per_epoch"),
                           .warmup_epochs = number(row, "warmup_epochs"),
                           .per_epoch = strcmp(kind, "cosine_epoch") == 0};
}

static void schedule_all_kinds_match_the_oracle(void **state)
{
    (void)state;
    cJSON *file = read_json(ABAR_TEST_DATA "/golden/schedule.json");
    const cJSON *row, *rate;
    int rates = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(file, "schedules"))
    {
        const abar_schedule s = schedule_of(file, row);
        int64_t step = 0;
        cJSON_ArrayForEach(rate, cJSON_GetObjectItem(row, "rates"))
        {
            assert_true(fabs(abar_schedule_lr(&s, step) - rate->valuedouble) <= 1e-15);
            step++;
            rates++;
        }
    }
    assert_int_equal(rates, 8 * 40);
    cJSON_Delete(file);
}

static void schedule_odd_epochs_drop_at_the_first_epoch_past_the_milestone(void **state)
{
    (void)state;
    const abar_schedule s = {.size = sizeof s, .kind = ABAR_SCHEDULE_STEP, .lr = 1.0, .epochs = 5, .steps_per_epoch = 2};
    const double expected[] = {1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01}; /* 2.5 and 3.75 epochs */
    for (int k = 0; k < 10; k++) assert_true(fabs(abar_schedule_lr(&s, k) - expected[k]) <= 1e-15);
}

static void schedule_past_the_end_stays_at_the_last_value(void **state)
{
    (void)state;
    abar_schedule s = {.size = sizeof s, .kind = ABAR_SCHEDULE_COSINE, .lr = 0.1, .epochs = 3, .steps_per_epoch = 7};
    assert_true(abar_schedule_lr(&s, 21) == 0.0 && abar_schedule_lr(&s, 1000) == 0.0);
    s.per_epoch = true;
    assert_true(abar_schedule_lr(&s, 21) == 0.0 && abar_schedule_lr(&s, 1000) == 0.0);
}

static void schedule_warmup_as_long_as_training_never_divides_by_zero(void **state)
{
    (void)state;
    abar_schedule s = {
        .size = sizeof s, .kind = ABAR_SCHEDULE_COSINE, .lr = 0.1, .epochs = 2, .steps_per_epoch = 5, .warmup_epochs = 2};
    assert_true(fabs(abar_schedule_lr(&s, 9) - 0.1) <= 1e-15);
    assert_true(abar_schedule_lr(&s, 10) == 0.0);
    s.per_epoch = true;
    assert_true(abar_schedule_lr(&s, 10) == 0.0);
}

/* nanoGPT's: 100 of 5000 steps to warm up, then from 1e-3 to 1e-4 by half a cosine; an epoch is 250 steps. */
static void schedule_with_a_final_rate_and_part_of_an_epoch_of_warmup_is_nanogpts(void **state)
{
    (void)state;
    abar_schedule s = {.size = sizeof s,
                       .kind = ABAR_SCHEDULE_COSINE,
                       .lr = 1e-3,
                       .final_lr = 1e-4,
                       .epochs = 20,
                       .steps_per_epoch = 250,
                       .warmup_epochs = 0.4};
    assert_true(fabs(abar_schedule_lr(&s, 0) - 1e-5) < 1e-15);
    assert_true(fabs(abar_schedule_lr(&s, 99) - 1e-3) < 1e-15);
    for (int64_t k = 100; k <= 5000; k += 350) {
        const double expected = 1e-4 + 0.5 * (1.0 + cos(acos(-1.0) * (double)(k - 100) / 4900.0)) * (1e-3 - 1e-4);
        assert_true(fabs(abar_schedule_lr(&s, k) - expected) < 1e-15);
    }
    assert_true(fabs(abar_schedule_lr(&s, 5000) - 1e-4) < 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_all_kinds_match_the_oracle),
        cmocka_unit_test(schedule_odd_epochs_drop_at_the_first_epoch_past_the_milestone),
        cmocka_unit_test(schedule_past_the_end_stays_at_the_last_value),
        cmocka_unit_test(schedule_warmup_as_long_as_training_never_divides_by_zero),
        cmocka_unit_test(schedule_with_a_final_rate_and_part_of_an_epoch_of_warmup_is_nanogpts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
