/* What a run reports about its curvature: diagnostics of every map in log.jsonl and TensorBoard, counters in the report. */
#include "base/clock.h"
#include "base/json.h"
#include "train/train_impl.h"

#include <math.h>
#include <stdio.h>

static abar_status write_real(abar_trainer *t, abar__text *out, const char *name, double value)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, ", \"%s\": ", name));
    return abar__json_number(t->ctx, out, value); /* NaN becomes null */
}

static abar_status write_map(abar_trainer *t, const abar_map_info *m, abar__text *out)
{
    ABAR_TRY(abar__text_printf(t->ctx, out, "{\"layer\": "));
    ABAR_TRY(abar__json_string(t->ctx, out, m->layer));
    return abar__text_printf(t->ctx, out,
                             ", \"group\": %lld, \"commits\": %lld, \"dropped\": %lld, \"raised\": %lld, \"doubled\": %lld, "
                             "\"kept\": %lld",
                             (long long)m->group, (long long)m->commits, (long long)m->dropped, (long long)m->raised,
                             (long long)m->doubled, (long long)m->kept);
}

static abar_status record_map(abar_trainer *t, const abar_map_info *m, int64_t step)
{
    const struct {
        const char *name;
        double value;
    } reals[] = {{"mean_square", m->mean_square},
                 {"damping", m->damping},
                 {"condition", m->condition},
                 {"cosine", m->cosine},
                 {"ratio", m->ratio}};
    ABAR_TRY(write_map(t, m, &t->text));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        char tag[256];
        ABAR_TRY(write_real(t, &t->text, reals[i].name, reals[i].value));
        if (!isfinite(reals[i].value)) continue;
        snprintf(tag, sizeof tag, "curvature/%s/%s", m->layer, reals[i].name);
        if (m->group == 0) ABAR_TRY(abar__tfevents_scalar(t->scalars, tag, step, abar__wall_time(), reals[i].value));
    }
    return abar__text_append(t->ctx, &t->text, "}", 1);
}

abar_status abar__record_curvature(abar_trainer *t)
{
    const int64_t step = t->at.epoch * t->steps + t->at.step;
    const abar_phase_times times = *abar_optim_times(t->optim);
    t->text.length = 0;
    ABAR_TRY(abar__text_printf(t->ctx, &t->text, "{\"step\": %lld, \"layers\": [", (long long)step));
    for (int i = 0; i < abar_optim_map_count(t->optim); i++) {
        const abar_map_info m = *abar_optim_map(t->optim, i);
        if (i) ABAR_TRY(abar__text_append(t->ctx, &t->text, ", ", 2));
        ABAR_TRY(record_map(t, &m, step));
    }
    ABAR_TRY(abar__text_append(t->ctx, &t->text, "]", 1));
    ABAR_TRY(write_real(t, &t->text, "kl_scale", times.kl_scale));
    ABAR_TRY(write_real(t, &t->text, "observe_ms", 1e3 * times.observe));
    ABAR_TRY(write_real(t, &t->text, "refresh_ms", 1e3 * times.refresh));
    ABAR_TRY(write_real(t, &t->text, "apply_ms", 1e3 * times.apply));
    ABAR_TRY(abar__text_append(t->ctx, &t->text, "}", 1));
    ABAR_TRY(abar__tfevents_scalar(t->scalars, "curvature/kl_scale", step, abar__wall_time(), times.kl_scale));
    return abar__jsonl_write(t->log, t->text.data);
}

abar_status abar__report_curvature(abar_trainer *t)
{
    const abar_phase_times times = *abar_optim_times(t->optim);
    ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"curvature\": {\"layers\": ["));
    for (int i = 0; i < abar_optim_map_count(t->optim); i++) {
        const abar_map_info m = *abar_optim_map(t->optim, i);
        if (i) ABAR_TRY(abar__text_append(t->ctx, &t->report, ", ", 2));
        ABAR_TRY(write_map(t, &m, &t->report));
        ABAR_TRY(abar__text_printf(t->ctx, &t->report, ", \"state_bytes\": %zu}", m.state_bytes));
    }
    ABAR_TRY(abar__text_append(t->ctx, &t->report, "]", 1));
    ABAR_TRY(write_real(t, &t->report, "observe_ms", 1e3 * times.observe));
    ABAR_TRY(write_real(t, &t->report, "refresh_ms", 1e3 * times.refresh));
    ABAR_TRY(write_real(t, &t->report, "apply_ms", 1e3 * times.apply));
    return abar__text_append(t->ctx, &t->report, "}", 1);
}
