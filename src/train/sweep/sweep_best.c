/* The best cell of every optimizer. With a validation part it is chosen there, and only the chosen cells are measured on the
 * test part, once the sweep is complete: test.json beside the report of each of their runs. And sweep.csv, one row per run. */
#include "base/json.h"
#include "base/number.h"
#include "train/sweep/sweep_impl.h"
#include "train/train_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TEST_MAX 4096 /* bytes of a test.json */

static bool is_text(const abar_compare *c) { return c->method[0].setup->model->text; }

/* ---- choosing -------------------------------------------------------------------------------------------------------- */

abar__score abar__sweep_score(const abar_compare *c, int cell)
{
    const abar_compare_row *row = abar_compare_row_of(c, cell);
    if (row->failures > 0 || row->runs < c->method[cell].seeds) return (abar__score){NAN, NAN};
    return (abar__score){is_text(c) ? 0.0 : row->test_accuracy.mean, row->test_loss.mean};
}

/* A loss that is NaN, though no run failed, is worse than any other. */
bool abar__score_is_better(abar__score a, abar__score b)
{
    if (isnan(a.accuracy)) return false;
    if (isnan(b.accuracy) || a.accuracy != b.accuracy) return isnan(b.accuracy) || a.accuracy > b.accuracy;
    return !isnan(a.loss) && (isnan(b.loss) || a.loss < b.loss);
}

static int best_cell(const abar_compare *c, int optimizer)
{
    const abar__sweep *s = abar__sweep_of(c);
    abar__score best = {NAN, NAN};
    int found = -1;
    for (int i = 0; i < s->cells; i++) {
        if (s->cell[i].optimizer != optimizer) continue;
        const abar__score score = abar__sweep_score(c, i);
        if (abar__score_is_better(score, best)) best = score, found = i;
    }
    return found;
}

static void spread_tests(const abar_compare *c, abar_sweep_best *best)
{
    const abar__sweep *s = abar__sweep_of(c);
    double accuracy[ABAR_COMPARE_SEEDS_MAX], loss[ABAR_COMPARE_SEEDS_MAX];
    int64_t n = 0;
    for (int i = 0; i < c->runs; i++) {
        if (c->record[i].run.method != best->cell || isnan(s->test[i].accuracy)) continue;
        accuracy[n] = s->test[i].accuracy;
        loss[n++] = s->test[i].loss;
    }
    best->test_accuracy = abar__spread(accuracy, n);
    best->test_loss = abar__spread(loss, n);
}

const abar_sweep_best *abar_sweep_best_of(const abar_compare *c, int optimizer)
{
    const abar_compare_spread none = {NAN, NAN};
    abar_sweep_best *best = &abar__sweep_of(c)->best[optimizer];
    *best = (abar_sweep_best){best_cell(c, optimizer), none, none, none, none};
    if (best->cell < 0) return best;
    const abar_compare_row *row = abar_compare_row_of(c, best->cell);
    best->accuracy = row->test_accuracy;
    best->loss = row->test_loss;
    spread_tests(c, best);
    return best;
}

/* ---- on the test part -------------------------------------------------------------------------------------------------- */

static abar_status test_path(const abar_compare *c, int i, const char *name, char path[ABAR_RUN_PATH_MAX])
{
    char dir[ABAR_RUN_PATH_MAX];
    ABAR_TRY(abar__compare_run_dir(c, i, dir));
    return abar__run_path(c->ctx, dir, name, path);
}

static abar_status save_test(abar_compare *c, int i, const char *path)
{
    abar__text text = {0};
    const abar__sweep_test *test = &abar__sweep_of(c)->test[i];
    abar_status status = abar__text_printf(c->ctx, &text, "{\"test_acc\": ");
    if (status >= 0) status = abar__json_number(c->ctx, &text, test->accuracy);
    if (status >= 0) status = abar__text_printf(c->ctx, &text, ", \"test_loss\": ");
    if (status >= 0) status = abar__json_number(c->ctx, &text, test->loss);
    if (status >= 0) status = abar__text_printf(c->ctx, &text, "}\n");
    if (status >= 0) status = abar__file_replace(c->ctx, path, text.data, text.length);
    abar__text_free(c->ctx, &text);
    return status;
}

/* Run i, whose weights are in its folder. */
static abar_status test_run(abar_compare *c, int i)
{
    char weights[ABAR_RUN_PATH_MAX], path[ABAR_RUN_PATH_MAX];
    abar_evaluation found = {.size = sizeof found};
    abar_setup *setup;
    ABAR_TRY(test_path(c, i, "model.safetensors", weights));
    ABAR_TRY(test_path(c, i, "test.json", path));
    ABAR_TRY(abar__setup_copy(c->ctx, c->method[c->record[i].run.method].setup, &setup));
    setup->train.validation = 0.0;
    setup->train.seed = c->record[i].run.seed; /* synthetic data depend on it */
    abar_status status = abar_evaluate(c->ctx, setup, weights, &found);
    abar_setup_destroy(c->ctx, setup);
    if (status < 0) return status;
    abar__sweep_of(c)->test[i] = (abar__sweep_test){found.accuracy, found.loss};
    return save_test(c, i, path);
}

abar_status abar__sweep_test_best(abar_compare *c)
{
    const abar__sweep *s = abar__sweep_of(c);
    if (s->untested || c->method[0].setup->train.validation == 0.0)
        return ABAR_OK; /* without it, results are of the test part */
    for (int o = 0; o < s->optimizers; o++) {
        const int best = best_cell(c, o);
        for (int i = 0; i < c->runs && best >= 0; i++)
            if (c->record[i].run.method == best && isnan(s->test[i].accuracy)) ABAR_TRY(test_run(c, i));
    }
    return ABAR_OK;
}

static abar_status load_test(abar_compare *c, const char *path, abar__sweep_test *out)
{
    static const abar__field fields[] = {{"test_acc", ABAR_FIELD_REAL, offsetof(abar__sweep_test, accuracy)},
                                         {"test_loss", ABAR_FIELD_REAL, offsetof(abar__sweep_test, loss)},
                                         {0}};
    abar__text text;
    cJSON *root = NULL;
    ABAR_TRY(abar__file_read(c->ctx, path, TEST_MAX, &text));
    abar_status status = abar__json_parse(c->ctx, path, text.data, text.length, &root);
    if (status >= 0) status = abar__fields_read(c->ctx, path, root, fields, "test", out);
    cJSON_Delete(root);
    abar__text_free(c->ctx, &text);
    return status;
}

/* A damaged file is measured again. */
abar_status abar__sweep_tests_load(abar_compare *c)
{
    abar__sweep *s = abar__sweep_of(c);
    for (int i = 0; i < c->runs; i++) {
        char path[ABAR_RUN_PATH_MAX];
        ABAR_TRY(test_path(c, i, "test.json", path));
        if (!c->record[i].run.ended || !abar__path_exists(path)) continue;
        if (load_test(c, path, &s->test[i]) < 0) s->test[i] = (abar__sweep_test){NAN, NAN};
    }
    return ABAR_OK;
}

/* ---- as JSON --------------------------------------------------------------------------------------------------------- */

static abar_status write_spread(const abar_compare *c, const char *part, const char *name, abar_compare_spread s,
                                abar__text *out)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"%s_%s\": ", part, name));
    ABAR_TRY(abar__json_number(c->ctx, out, s.mean));
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"%s_%s_std\": ", part, name));
    return abar__json_number(c->ctx, out, s.std);
}

static abar_status write_best(const abar_compare *c, int optimizer, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    const abar_sweep_best *best = abar_sweep_best_of(c, optimizer);
    const abar_train_config *train = &c->method[0].setup->train;
    const char *part = abar__tested_part(train);
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"optimizer\": \"%s\", \"cell\": ", s->optimizer[optimizer]));
    if (best->cell < 0) return abar__text_printf(c->ctx, out, "null}");
    ABAR_TRY(abar__text_printf(c->ctx, out, "\"%s\", \"values\": {", c->method[best->cell].label));
    for (int a = 0, n = 0; a < s->axes; a++) {
        if (!s->cell[best->cell].value[a][0]) continue;
        ABAR_TRY(abar__text_printf(c->ctx, out, "%s\"%s\": ", n++ ? ", " : "", s->axis[a].name));
        ABAR_TRY(abar__json_string(c->ctx, out, s->cell[best->cell].value[a]));
    }
    ABAR_TRY(abar__text_append(c->ctx, out, "}", 1));
    ABAR_TRY(write_spread(c, part, "acc", best->accuracy, out));
    ABAR_TRY(write_spread(c, part, "loss", best->loss, out));
    if (train->validation > 0.0 && !s->untested) {
        ABAR_TRY(write_spread(c, "test", "acc", best->test_accuracy, out));
        ABAR_TRY(write_spread(c, "test", "loss", best->test_loss, out));
    }
    return abar__text_append(c->ctx, out, "}", 1);
}

abar_status abar__sweep_best_write(const abar_compare *c, abar__text *out)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"best\": ["));
    for (int o = 0; o < abar__sweep_of(c)->optimizers; o++) {
        if (o > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(write_best(c, o, out));
    }
    return abar__text_append(c->ctx, out, "]", 1);
}

/* ---- as CSV ---------------------------------------------------------------------------------------------------------- */

/* Quoted where CSV needs it. */
static abar_status write_field(const abar_compare *c, const char *text, abar__text *out)
{
    if (!strpbrk(text, ",\"\r\n")) return abar__text_append(c->ctx, out, text, strlen(text));
    ABAR_TRY(abar__text_append(c->ctx, out, "\"", 1));
    for (; *text; text++) ABAR_TRY(abar__text_append(c->ctx, out, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1));
    return abar__text_append(c->ctx, out, "\"", 1);
}

static abar_status write_run(const abar_compare *c, const abar_compare_run *run, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    const abar__sweep_cell *cell = &s->cell[run->method];
    const double number[] = {run->test_accuracy, run->test_loss,   run->best_accuracy, run->best_loss,
                             run->train_loss,    run->ms_per_step, run->seconds,       c->method[run->method].ms_alone};
    for (int a = 0; a < s->axes; a++) {
        ABAR_TRY(write_field(c, cell->value[a], out));
        ABAR_TRY(abar__text_append(c->ctx, out, ",", 1));
    }
    ABAR_TRY(abar__text_printf(c->ctx, out, "%s,%lld", s->optimizer[cell->optimizer], (long long)run->seed));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        char text[ABAR_REAL_TEXT_MAX] = "";
        if (isfinite(number[i])) abar__real_format(number[i], text);
        ABAR_TRY(abar__text_printf(c->ctx, out, ",%s", text));
    }
    return abar__text_printf(c->ctx, out, ",%lld,%lld,%d,%lld,%s\n", (long long)run->epochs, (long long)run->skipped_steps,
                             run->failure != NULL, (long long)run->side_by_side,
                             cell->axis >= 0 ? s->axis[cell->axis].name : "");
}

/* varied: of a sweep of one setting at a time, which one the row belongs to. */
abar_status abar__sweep_csv_write(const abar_compare *c, abar__text *out)
{
    const abar__sweep *s = abar__sweep_of(c);
    const char *part = abar__tested_part(&c->method[0].setup->train);
    for (int a = 0; a < s->axes; a++) ABAR_TRY(abar__text_printf(c->ctx, out, "%s,", s->axis[a].name));
    ABAR_TRY(abar__text_printf(c->ctx, out,
                               "optimizer,seed,%s_acc,%s_loss,best_acc,best_loss,train_loss,ms_per_step,seconds,ms_alone,"
                               "epochs_done,skipped_steps,failed,side_by_side,varied\n",
                               part, part));
    for (int i = 0; i < c->runs; i++)
        if (c->record[i].run.ended) ABAR_TRY(write_run(c, &c->record[i].run, out));
    return ABAR_OK;
}
