/* compare.md: the table of a comparison, with the settings above it and notes below. */
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The page being written; after a failure nothing more is appended. Numbers are printed in two parts, so that the locale does
 * not change their decimal point. */
typedef struct page {
    const abar_compare *c;
    abar__text *out;
    abar_status status;
} page;

static void put(page *p, const char *format, ...) ABAR_PRINTF(2, 3);
static void put(page *p, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->status >= 0) p->status = abar__text_append(p->c->ctx, p->out, text, n < 0 ? 0 : strlen(text));
}

static void put_number(page *p, double value, int decimals)
{
    const long long scale = llround(pow(10.0, decimals));
    if (isfinite(value) && fabs(value) >= 1e5) { /* diverged: 6.77e+37 */
        const int exponent = (int)floor(log10(fabs(value)));
        put_number(p, value / pow(10.0, exponent), 2);
        put(p, "e+%d", exponent);
        return;
    }
    if (!isfinite(value)) {
        put(p, "%s", isnan(value) ? "-" : value > 0 ? "inf" : "-inf");
        return;
    }
    const long long all = llround(fabs(value) * (double)scale);
    put(p, "%s%lld", value < 0 && all > 0 ? "-" : "", all / scale);
    if (decimals > 0) put(p, ".%0*lld", decimals, all % scale);
}

static void put_spread(page *p, abar_compare_spread s, int decimals)
{
    put_number(p, s.mean, decimals);
    if (isnan(s.std)) return;
    put(p, " ± ");
    put_number(p, s.std, decimals);
}

/* About three digits. */
static void put_ms(page *p, double ms) { put_number(p, ms, ms < 1.0 ? 3 : ms < 100.0 ? 2 : 1); }

static bool is_text(const abar_compare *c) { return c->method[0].setup->model->text; }

static void put_head(page *p)
{
    const abar_train_config *t = &p->c->method[0].setup->train;
    static const char *const precisions[] = {"", ", fp32", ", tf32", ", bf16"};
    const char *baseline = p->c->method[abar_compare_baseline(p->c)].label;
    const char *part = abar__tested_part(t);
    const int64_t epochs = abar__compare_epochs(p->c, 0);
    put(p, "%s on %.*s, %lld epoch%s%s, batch %lld, %s%s:\n\n", t->model, (int)strcspn(t->data, ":"), t->data,
        (long long)epochs, epochs == 1 ? "" : "s", epochs < t->epochs ? " (of a longer schedule)" : "", (long long)t->batch,
        t->device, precisions[t->precision]);
    if (is_text(p->c))
        put(p, "| optimizer | runs | %s loss | best %s loss |", part, part);
    else
        put(p, "| optimizer | runs | %s accuracy, %% | best, %% |", part);
    put(p, " training loss | ms/step | step / %s | memory, MiB | memory / %s | s/epoch | failed |\n", baseline, baseline);
    put(p, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
}

static void put_row(page *p, int m)
{
    const abar_compare_row row = *abar_compare_row_of(p->c, m);
    const bool text = is_text(p->c), shared = abar__compare_side_by_side(p->c) > 1;
    put(p, "| %s | %lld | ", row.label, (long long)row.runs);
    put_spread(p, text ? row.test_loss : row.test_accuracy, text ? 4 : 2);
    put(p, " | ");
    put_spread(p, text ? row.best_loss : row.best_accuracy, text ? 4 : 2);
    put(p, " | ");
    put_spread(p, row.train_loss, 4);
    put(p, " | ");
    put_ms(p, shared ? row.ms_alone : row.ms_per_step.mean);
    put(p, " | ");
    put_number(p, row.time_ratio, 2);
    put(p, " | ");
    put_number(p, row.memory_bytes / 1048576.0, 1);
    put(p, " | ");
    put_number(p, row.memory_ratio, 2);
    put(p, " | ");
    put_number(p, row.epoch_seconds.mean, row.epoch_seconds.mean < 10.0 ? 2 : 1);
    put(p, " | %lld |\n", (long long)row.failures);
}

/* When the runs reached the target. */
static void put_targets(page *p)
{
    const abar_compare *c = p->c;
    if (!c->target.kind) return;
    put(p, "\n%s %s ", abar__tested_part(&c->method[0].setup->train),
        c->target.kind == ABAR_TARGET_ACCURACY ? "accuracy of at least" : "loss of at most");
    put_number(p, c->target.value, c->target.kind == ABAR_TARGET_ACCURACY ? 2 : 4);
    put(p, "%s, tested after each epoch:\n\n", c->target.kind == ABAR_TARGET_ACCURACY ? " %" : "");
    put(p, "| optimizer | epochs | steps | seconds | reached | never |\n|---|--:|--:|--:|--:|--:|\n");
    for (int m = 0; m < c->methods; m++) {
        const abar_compare_row row = *abar_compare_row_of(c, m);
        put(p, "| %s | ", row.label);
        put_spread(p, row.target_epochs, 1);
        put(p, " | ");
        put_spread(p, row.target_steps, 0);
        put(p, " | ");
        put_spread(p, row.target_seconds, 1);
        put(p, " | %lld | %lld |\n", (long long)row.reached, (long long)row.never);
    }
}

static void put_pair(page *p, const abar_compare_pair *pair)
{
    const int decimals = is_text(p->c) ? 4 : 2;
    put(p, "| %s - %s | ", p->c->method[pair->a].label, p->c->method[pair->b].label);
    put_number(p, pair->difference, decimals);
    put(p, " | ");
    put_number(p, pair->low, decimals);
    put(p, " to ");
    put_number(p, pair->high, decimals);
    put(p, " | ");
    put_number(p, pair->holm, 4);
    put(p, " | %s | ", pair->apart ? "told apart" : "not told apart");
    if (pair->seeds_needed > 0)
        put(p, "%lld |\n", (long long)pair->seeds_needed);
    else
        put(p, "- |\n");
}

/* Which methods differ by more than their spread explains. One seed each says nothing about that. */
static void put_pairs(page *p)
{
    int n;
    const abar_compare_pair *pair = abar_compare_pairs(p->c, &n);
    if (n == 0 || abar__compare_seeds_most(p->c) < 2) return;
    put(p, "\n| difference | %s %s | 95 %% interval | p | | seeds needed |\n|---|--:|--:|--:|---|--:|\n",
        abar__tested_part(&p->c->method[0].setup->train), is_text(p->c) ? "loss" : "accuracy, %");
    for (int i = 0; i < n; i++) put_pair(p, &pair[i]);
    put(p,
        "\nDifference of means; interval and p: Welch's test, Holm's correction for %d pair%s. Seeds needed: of each, to tell\n"
        "the pair apart with a probability of 0.8 if difference and spread stay as they are.\n",
        n, n == 1 ? "" : "s");
}

static void put_failures(page *p)
{
    for (int i = 0; i < p->c->runs; i++) {
        const abar_compare_run *run = &p->c->record[i].run;
        if (run->ended && run->failure)
            put(p, "\n%s, seed %lld, failed after %lld epoch%s: %.700s\n", run->label, (long long)run->seed,
                (long long)run->epochs, run->epochs == 1 ? "" : "s", run->failure);
    }
}

static void put_foot(page *p)
{
    const abar_compare *c = p->c;
    const abar_train_config *t = &c->method[0].setup->train;
    const int64_t shared = abar__compare_side_by_side(c);
    put(p, "\n%d of %d runs, ", abar__compare_ended(c), c->runs);
    put_number(p, c->wall_seconds, 0);
    put(p, " s in all. Mean ± sample standard deviation over the seeds; training loss: mean over the last epoch's steps;\n"
           "memory: held while training; s/epoch: training and testing.");
    if (t->validation > 0.0)
        put(p, " Validation: the fraction %g of the training set,\nheld out of training; the test set was not used.",
            t->validation);
    if (shared > 1)
        put(p,
            " Up to %lld trainings shared the device: ms/step was\nmeasured before them, with the device to itself, on "
            "made-up numbers and in turns; s/epoch is scaled to it.",
            (long long)shared);
    put(p, "\n");
}

abar_status abar__compare_md_write(const abar_compare *c, abar__text *out)
{
    page p = {.c = c, .out = out, .status = ABAR_OK};
    put_head(&p);
    for (int m = 0; m < c->methods; m++) put_row(&p, m);
    put_targets(&p);
    put_pairs(&p);
    put_failures(&p);
    put_foot(&p);
    return p.status;
}
