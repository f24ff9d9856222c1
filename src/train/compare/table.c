/* The table of a comparison: mean and sample standard deviation over the runs of a method, time and memory relative to the
 * baseline; and compare.csv, one row per run and epoch. */
#include "base/json.h"
#include "base/number.h"
#include "train/compare/compare_impl.h"

#include <math.h>
#include <string.h>

abar_compare_spread abar__spread(const double *value, int64_t n)
{
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) sum += value[i];
    double mean = n > 0 ? sum / (double)n : NAN;
    for (int64_t i = 0; i < n; i++) squares += (value[i] - mean) * (value[i] - mean);
    return (abar_compare_spread){mean, n > 1 ? sqrt(squares / (double)(n - 1)) : NAN};
}

static bool counts(const abar_compare_run *run, int method) { return run->method == method && run->ended && !run->failure; }

double abar__compare_time_scale(const abar_compare *c, const abar_compare_run *run)
{
    const double alone = c->method[run->method].ms_alone;
    return run->side_by_side > 1 && alone > 0.0 && run->ms_per_step > 0.0 ? alone / run->ms_per_step : 1.0;
}

int64_t abar__compare_side_by_side(const abar_compare *c)
{
    int64_t most = 1;
    for (int i = 0; i < c->runs; i++)
        if (c->record[i].run.side_by_side > most) most = c->record[i].run.side_by_side;
    return most;
}

/* The spread of one member over the successful runs of a method. */
static abar_compare_spread spread_of(const abar_compare *c, int method, size_t offset)
{
    double value[ABAR_COMPARE_SEEDS_MAX];
    int64_t n = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar_compare_run *run = &c->record[i].run;
        if (counts(run, method)) memcpy(&value[n++], (const char *)run + offset, sizeof *value);
    }
    return abar__spread(value, n);
}

static abar_compare_spread epoch_seconds(const abar_compare *c, int method)
{
    double value[ABAR_COMPARE_SEEDS_MAX];
    int64_t n = 0;
    for (int i = 0; i < c->runs; i++) {
        const abar_compare_run *run = &c->record[i].run;
        if (!counts(run, method) || run->epochs == 0) continue;
        value[n++] = abar__compare_time_scale(c, run) * run->seconds / (double)run->epochs;
    }
    return abar__spread(value, n);
}

static abar_compare_row own_numbers(const abar_compare *c, int method)
{
    abar_compare_row row = {
        .label = c->method[method].label, .memory_bytes = NAN, .side_by_side = 1, .ms_alone = c->method[method].ms_alone};
    for (int i = 0; i < c->runs; i++) {
        const abar_compare_run *run = &c->record[i].run;
        if (run->method != method || !run->ended) continue;
        row.runs++;
        row.failures += run->failure != NULL;
        if (run->failure) continue;
        row.memory_bytes = fmax(row.memory_bytes, (double)run->memory_bytes);
        if (run->side_by_side > row.side_by_side) row.side_by_side = run->side_by_side;
    }
    row.test_accuracy = spread_of(c, method, offsetof(abar_compare_run, test_accuracy));
    row.best_accuracy = spread_of(c, method, offsetof(abar_compare_run, best_accuracy));
    row.test_loss = spread_of(c, method, offsetof(abar_compare_run, test_loss));
    row.best_loss = spread_of(c, method, offsetof(abar_compare_run, best_loss));
    row.train_loss = spread_of(c, method, offsetof(abar_compare_run, train_loss));
    row.ms_per_step = spread_of(c, method, offsetof(abar_compare_run, ms_per_step));
    row.seconds = spread_of(c, method, offsetof(abar_compare_run, seconds));
    row.epoch_seconds = epoch_seconds(c, method);
    abar__compare_reach(c, method, &row);
    return row;
}

const abar_compare_row *abar_compare_row_of(const abar_compare *c, int method)
{
    abar_compare_row row = own_numbers(c, method), baseline = own_numbers(c, abar_compare_baseline(c));
    const bool shared = abar__compare_side_by_side(c) > 1; /* then step times were influenced by other runs */
    row.time_ratio = shared ? row.ms_alone / baseline.ms_alone : row.ms_per_step.mean / baseline.ms_per_step.mean;
    row.memory_ratio = row.memory_bytes / baseline.memory_bytes;
    c->method[method].row = row;
    return &c->method[method].row;
}

/* ---- as JSON ---------------------------------------------------------------------------------------------------- */

static abar_status write_number(const abar_compare *c, abar__text *out, const char *part, const char *name, const char *tail,
                                double value)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"%s%s%s\": ", part, name, tail));
    return abar__json_number(c->ctx, out, value);
}

static abar_status write_reach(const abar_compare *c, const abar_compare_row *row, abar__text *out)
{
    const struct {
        const char *name;
        abar_compare_spread spread;
    } spreads[] = {
        {"target_epochs", row->target_epochs}, {"target_steps", row->target_steps}, {"target_seconds", row->target_seconds}};
    ABAR_TRY(
        abar__text_printf(c->ctx, out, ", \"reached\": %lld, \"never\": %lld", (long long)row->reached, (long long)row->never));
    for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++) {
        ABAR_TRY(write_number(c, out, "", spreads[i].name, "", spreads[i].spread.mean));
        ABAR_TRY(write_number(c, out, "", spreads[i].name, "_std", spreads[i].spread.std));
    }
    return ABAR_OK;
}

static abar_status write_row(const abar_compare *c, int m, abar__text *out)
{
    abar_compare_row row = *abar_compare_row_of(c, m);
    const char *part = abar__tested_part(&c->method[m].setup->train);
    const struct {
        const char *part, *name;
        abar_compare_spread spread;
    } spreads[] = {{part, "_acc", row.test_accuracy},  {"best", "_acc", row.best_accuracy},
                   {part, "_loss", row.test_loss},     {"best", "_loss", row.best_loss},
                   {"train", "_loss", row.train_loss}, {"", "ms_per_step", row.ms_per_step},
                   {"", "seconds", row.seconds},       {"", "epoch_seconds", row.epoch_seconds}};
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"label\": \"%s\", \"optim\": \"%s\", \"runs\": %lld, \"failures\": %lld",
                               row.label, c->method[m].setup->train.optim, (long long)row.runs, (long long)row.failures));
    for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++) {
        ABAR_TRY(write_number(c, out, spreads[i].part, spreads[i].name, "", spreads[i].spread.mean));
        ABAR_TRY(write_number(c, out, spreads[i].part, spreads[i].name, "_std", spreads[i].spread.std));
    }
    ABAR_TRY(write_number(c, out, "", "ms_alone", "", row.ms_alone));
    ABAR_TRY(write_number(c, out, "", "side_by_side", "", (double)row.side_by_side));
    ABAR_TRY(write_number(c, out, "", "memory_bytes", "", row.memory_bytes));
    ABAR_TRY(write_number(c, out, "", "time_ratio", "", row.time_ratio));
    ABAR_TRY(write_number(c, out, "", "memory_ratio", "", row.memory_ratio));
    if (c->target.kind) ABAR_TRY(write_reach(c, &row, out));
    return abar__text_append(c->ctx, out, "}", 1);
}

static abar_status write_pair(const abar_compare *c, const abar_compare_pair *p, abar__text *out)
{
    const struct {
        const char *name;
        double value;
    } number[] = {
        {"difference", p->difference}, {"low", p->low}, {"high", p->high}, {"df", p->df}, {"p", p->p}, {"p_holm", p->holm}};
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"a\": \"%s\", \"b\": \"%s\"", c->method[p->a].label, c->method[p->b].label));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        ABAR_TRY(write_number(c, out, "", number[i].name, "", number[i].value));
    ABAR_TRY(write_number(c, out, "", "seeds_needed", "", p->seeds_needed > 0 ? (double)p->seeds_needed : NAN));
    return abar__text_printf(c->ctx, out, ", \"told_apart\": %s}", p->apart ? "true" : "false");
}

static abar_status write_pairs(const abar_compare *c, abar__text *out)
{
    int n;
    const abar_compare_pair *pair = abar_compare_pairs(c, &n);
    ABAR_TRY(abar__text_printf(c->ctx, out, ", \"pairs\": ["));
    for (int i = 0; i < n; i++) {
        if (i > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(write_pair(c, &pair[i], out));
    }
    return abar__text_append(c->ctx, out, "]", 1);
}

abar_status abar__compare_table_write(const abar_compare *c, abar__text *out)
{
    const char *baseline = c->method[abar_compare_baseline(c)].label;
    ABAR_TRY(abar__text_printf(c->ctx, out, "{\"baseline\": \"%s\", \"rows\": [", baseline));
    for (int m = 0; m < c->methods; m++) {
        if (m > 0) ABAR_TRY(abar__text_append(c->ctx, out, ", ", 2));
        ABAR_TRY(write_row(c, m, out));
    }
    ABAR_TRY(abar__text_append(c->ctx, out, "]", 1));
    ABAR_TRY(write_pairs(c, out));
    return abar__text_append(c->ctx, out, "}", 1);
}

/* ---- as CSV ----------------------------------------------------------------------------------------------------- */

static abar_status write_epoch(const abar_compare *c, const abar_compare_run *run, int64_t e, const abar__epoch *epoch,
                               double elapsed, abar__text *out)
{
    const double number[] = {epoch->train_loss, epoch->train_accuracy, epoch->test_loss, epoch->test_accuracy,
                             epoch->lr,         epoch->seconds,        elapsed};
    ABAR_TRY(abar__text_printf(c->ctx, out, "%s,%lld,%lld", run->label, (long long)run->seed, (long long)e + 1));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        char text[ABAR_REAL_TEXT_MAX];
        abar__real_format(number[i], text);
        ABAR_TRY(abar__text_printf(c->ctx, out, ",%s", text));
    }
    return abar__text_printf(c->ctx, out, ",%lld,%d,%lld\n", (long long)epoch->skipped, run->failure != NULL,
                             (long long)run->side_by_side);
}

/* Labels need no quotes in CSV. elapsed: seconds since the start of the run; failed: 1 if the run failed; side_by_side: the
 * most trainings on the device at a time, this one included. */
abar_status abar__compare_csv_write(const abar_compare *c, abar__text *out)
{
    const char *part = abar__tested_part(&c->method[0].setup->train);
    ABAR_TRY(abar__text_printf(c->ctx, out,
                               "optim,seed,epoch,train_loss,train_acc,%s_loss,%s_acc,lr,seconds,elapsed,skipped_steps,"
                               "failed,side_by_side\n",
                               part, part));
    for (int i = 0; i < c->runs; i++) {
        const abar__compare_record *r = &c->record[i];
        double elapsed = 0.0;
        for (int64_t e = 0; r->run.ended && e < r->run.epochs; e++) {
            elapsed += r->history[e].seconds;
            ABAR_TRY(write_epoch(c, &r->run, e, &r->history[e], elapsed, out));
        }
    }
    return ABAR_OK;
}
