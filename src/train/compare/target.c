/* Targets: "acc=93" or "loss=0.2" of the test part, and when the runs of a method reached it. */
#include "base/number.h"
#include "train/compare/compare_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

abar_status abar__target_parse(abar_context *ctx, const char *text, abar__target *out)
{
    static const struct {
        const char *name;
        abar__target_kind kind;
    } known[] = {{"acc", ABAR_TARGET_ACCURACY}, {"accuracy", ABAR_TARGET_ACCURACY}, {"loss", ABAR_TARGET_LOSS}};
    abar__target t = {0};
    if (!text || !text[0]) {
        *out = t;
        return ABAR_OK;
    }
    const size_t name = strcspn(text, "=");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == name && memcmp(known[i].name, text, name) == 0) t.kind = known[i].kind;
    if (!t.kind || text[name] != '=' || strlen(text) >= sizeof t.text || !abar__real_parse(text + name + 1, &t.value) ||
        !isfinite(t.value))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--target %.40s: not a target, give acc=PERCENT or loss=X, as in acc=93", text);
    if (t.kind == ABAR_TARGET_ACCURACY && (t.value <= 1.0 || t.value > 100.0)) /* 0.93 is meant as 93 % */
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--target %s: accuracies are in percent, give more than 1 and at most 100",
                          text);
    snprintf(t.text, sizeof t.text, "%s", text);
    *out = t;
    return ABAR_OK;
}

abar_status abar_compare_target(abar_compare *c, const char *target) { return abar__target_parse(c->ctx, target, &c->target); }

const char *abar_compare_target_of(const abar_compare *c) { return c->target.text; }

int64_t abar__target_epoch(const abar__target *target, const abar__epoch *history, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        if (target->kind == ABAR_TARGET_ACCURACY ? history[e].test_accuracy >= target->value
                                                 : history[e].test_loss <= target->value)
            return e + 1;
    return 0;
}

void abar__compare_reach(const abar_compare *c, int method, abar_compare_row *row)
{
    double epochs[ABAR_COMPARE_SEEDS_MAX], steps[ABAR_COMPARE_SEEDS_MAX], seconds[ABAR_COMPARE_SEEDS_MAX];
    int64_t n = 0;
    row->reached = row->never = 0;
    for (int i = 0; i < c->runs && c->target.kind; i++) {
        const abar__compare_record *r = &c->record[i];
        if (r->run.method != method || !r->run.ended) continue;
        const int64_t epoch = abar__target_epoch(&c->target, r->history, r->run.epochs);
        row->never += epoch == 0;
        if (epoch == 0) continue;
        epochs[n] = (double)epoch;
        steps[n] = (double)epoch * r->run.steps_per_epoch;
        seconds[n++] = abar__compare_elapsed(c, r, epoch);
    }
    row->reached = n;
    row->target_epochs = abar__spread(epochs, n);
    row->target_steps = abar__spread(steps, n);
    row->target_seconds = abar__spread(seconds, n);
}
