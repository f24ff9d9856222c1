/* `abar analyze complexity`: time and bytes of every curvature method on one linear layer of growing width (the paper's
 * complexity table, by measurement). */
#include "abar/optim.h"
#include "analysis/analyze_impl.h"
#include "analysis/sheet.h"
#include "base/json.h"
#include "base/rng.h"
#include "io/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(abar__complexity_settings, field)

const abar_option abar__complexity_options[] = {
    {"optim", ABAR_OPTION_TEXT, AT(methods), "mac,smac,eva,foof,kfac,lngd", 0, 0, NULL, "methods to measure, joined by commas"},
    {"largest", ABAR_OPTION_INT, AT(largest), "1024", 128, 8192, NULL, "largest width; from 64 on it doubles"},
    {"batch", ABAR_OPTION_INT, AT(batch), "128", 1, 65536, NULL, "rows"},
    {"repeat", ABAR_OPTION_INT, AT(repeat), "5", 1, 1000, NULL, "repetitions; the median counts"},
    {"device", ABAR_OPTION_TEXT, AT(device), "cpu", 0, 0, NULL, "where to compute: cpu, ref, cuda"},
    {"threads", ABAR_OPTION_INT, AT(threads), "0", 0, 1024, NULL, "threads, 0: all cores"},
    {"out", ABAR_OPTION_TEXT, AT(out), "analysis", 0, 0, NULL, "folder for the files"},
    {0},
};

enum { WIDTHS_MAX = 8, METHODS_MAX = 16, REPEAT_MAX = 1000 };

/* What one method takes at one width: seconds, and bytes beyond plain SGD's. */
typedef struct cost {
    double width, observe, refresh, apply, state, workspace;
} cost;

typedef struct subject {
    char method[32];
    int n;
    cost at[WIDTHS_MAX];
    double slope[4]; /* log-log over the upper half: observe, refresh, apply, state */
} subject;

typedef struct lab {
    abar_analysis *a;
    const abar__complexity_settings *o;
    abar_device *dev;
    void *memory; /* weight, gradient (d, d); input, output gradient (batch, d) */
    size_t bytes;
    int64_t d;
    bool queued; /* the device */
} lab;

/* ---- one layer ----------------------------------------------------------------------------------------------------- */

static abar_status fill(lab *l, void *to, int64_t n, uint32_t what)
{
    const size_t bytes = (size_t)n * sizeof(float);
    void *memory;
    ABAR_TRY(abar__alloc(l->a->ctx, bytes, &memory));
    float *x = memory;
    for (int64_t i = 0; i < n; i++) {
        double pair[2];
        abar__normal(abar__random(0, ABAR_DRAW_ANALYSIS, 16 + what, (uint64_t)i), pair);
        x[i] = (float)(what == 2 ? fabs(pair[0]) : 0.01 * pair[0]); /* inputs as behind a ReLU */
    }
    const abar_tensor host = abar_tensor_wrap(NULL, x, ABAR_F32, 1, &n),
                      dev = abar_tensor_wrap(l->dev, to, abar_device_dtype(l->dev), 1, &n);
    const abar_status status = abar_tensor_copy(l->a->ctx, &dev, &host);
    abar__free(l->a->ctx, memory, bytes);
    return status;
}

static abar_status set_up(lab *l, int64_t d)
{
    const size_t element = abar_dtype_size(abar_device_dtype(l->dev));
    const int64_t counts[4] = {d * d, d * d, l->o->batch * d, l->o->batch * d};
    l->d = d;
    l->bytes = (size_t)(2 * d * d + 2 * l->o->batch * d) * element;
    ABAR_TRY(abar_device_alloc(l->dev, l->bytes, &l->memory));
    char *at = l->memory;
    for (uint32_t i = 0; i < 4; at += (size_t)counts[i] * element, i++) ABAR_TRY(fill(l, at, counts[i], i));
    return ABAR_OK;
}

static void tear_down(lab *l)
{
    abar_device_free(l->dev, l->memory, l->memory ? l->bytes : 0);
    l->memory = NULL;
}

static abar_status make_optim(const lab *l, const char *method, const void *curvature, abar_layer *layer, abar_optim **out)
{
    const abar_dtype dtype = abar_device_dtype(l->dev);
    const size_t element = abar_dtype_size(dtype);
    const int64_t d = l->d, square[2] = {d, d}, rows[2] = {l->o->batch, d};
    char *at = l->memory;
    *layer = (abar_layer){.name = "layer",
                          .weight = abar_tensor_wrap(l->dev, at, dtype, 2, square),
                          .weight_grad = abar_tensor_wrap(l->dev, at + (size_t)(d * d) * element, dtype, 2, square),
                          .input = abar_tensor_wrap(l->dev, at + (size_t)(2 * d * d) * element, dtype, 2, rows),
                          .output_grad =
                              abar_tensor_wrap(l->dev, at + (size_t)(2 * d * d + l->o->batch * d) * element, dtype, 2, rows),
                          .output_grad_scale = 1.0,
                          .window = abar_window_unit()};
    const abar_optim_param param = {.name = "weight", .value = layer->weight, .grad = layer->weight_grad, .lr_scale = 1.0};
    const abar_optim_config config = {.size = sizeof config,
                                      .rule = "sgd",
                                      .method = method,
                                      .curvature = curvature,
                                      .params = &param,
                                      .n_params = 1,
                                      .layers = layer,
                                      .n_layers = 1,
                                      .base_lr = 0.1,
                                      .examples = l->o->batch};
    return abar_optim_create(l->dev, &config, out);
}

/* ---- measuring ----------------------------------------------------------------------------------------------------- */

static void insert(double *sorted, int n, double v)
{
    for (; n > 0 && sorted[n - 1] > v; n--) sorted[n] = sorted[n - 1];
    sorted[n] = v;
}

/* One step, which waits for the device; observe: with statistics. Learning rate 0. */
static abar_status run_step(const lab *l, abar_optim *optim, const abar_layer *layer, bool observe, double *observed,
                            double *stepped)
{
    const abar_step_config step = {.size = sizeof step};
    abar_step_report report = {.size = sizeof report};
    double began = abar__seconds();
    if (observe) ABAR_TRY(abar_optim_observe(optim, 0, layer));
    ABAR_TRY(abar_device_wait(l->dev));
    *observed = abar__seconds() - began;
    began = abar__seconds();
    ABAR_TRY(abar_optim_step(optim, &step, &report));
    ABAR_TRY(abar_device_wait(l->dev));
    *stepped = abar__seconds() - began;
    if (abar_optim_wants_pass(optim)) {
        ABAR_TRY(abar_optim_observe(optim, 0, layer));
        ABAR_TRY(abar_optim_end_pass(optim, true, 1.0, &report.skipped));
    }
    if (report.skipped) return abar__fail(l->a->ctx, ABAR_E_NUMERIC, "analyze complexity: a step was skipped");
    return ABAR_OK;
}

/* Steps that each take statistics and refresh: the times of their phases, medians. */
static abar_status time_phases(const lab *l, abar_optim *optim, const abar_layer *layer, cost *c)
{
    double observe[REPEAT_MAX], refresh[REPEAT_MAX], apply[REPEAT_MAX], observed, stepped;
    const int repeat = (int)l->o->repeat;
    abar_phase_times before = *abar_optim_times(optim);
    for (int i = -1; i < repeat; i++) { /* the first warms up */
        ABAR_TRY(run_step(l, optim, layer, true, &observed, &stepped));
        const abar_phase_times now = *abar_optim_times(optim);
        if (i >= 0) {
            insert(observe, i, observed);
            insert(refresh, i, now.refresh - before.refresh);
            insert(apply, i, now.apply - before.apply);
        }
        before = now;
    }
    c->observe = observe[repeat / 2];
    c->refresh = refresh[repeat / 2];
    c->apply = apply[repeat / 2];
    return ABAR_OK;
}

/* The median time of a step of plain SGD. */
static abar_status time_plain(const lab *l, double *median)
{
    double step[REPEAT_MAX] = {0.0}, observed, stepped;
    abar_layer layer;
    abar_optim *optim;
    ABAR_TRY(make_optim(l, NULL, NULL, &layer, &optim));
    abar_status status = ABAR_OK;
    for (int i = -1; i < (int)l->o->repeat && status >= 0; i++) {
        status = run_step(l, optim, &layer, false, &observed, &stepped);
        if (i >= 0) insert(step, i, stepped);
    }
    abar_optim_destroy(optim);
    *median = step[l->o->repeat / 2];
    return status;
}

/* What is left of a time that noise may exceed. NaN: nothing. */
static double positive(double seconds) { return seconds > 0.0 ? seconds : NAN; }

/* A queued device has no times of phases: whole steps are timed, every other one with statistics and a refresh, and steps of
 * plain SGD. The differences are refresh and apply. */
static abar_status time_differences(const lab *l, abar_optim *optim, const abar_layer *layer, cost *c)
{
    double observe[REPEAT_MAX], step[2][REPEAT_MAX], plain, observed, stepped;
    const int repeat = (int)l->o->repeat;
    for (int i = -2; i < 2 * repeat; i++) {
        const bool refreshes = abar_optim_observes(optim);
        ABAR_TRY(run_step(l, optim, layer, refreshes, &observed, &stepped));
        if (i < 0) continue;
        insert(step[refreshes], i / 2, stepped);
        if (refreshes) insert(observe, i / 2, observed);
    }
    ABAR_TRY(time_plain(l, &plain));
    c->observe = observe[repeat / 2];
    c->refresh = positive(step[1][repeat / 2] - step[0][repeat / 2]);
    c->apply = positive(step[0][repeat / 2] - plain);
    return ABAR_OK;
}

static void add_bytes(void *user, const abar_map_info *map) { *(size_t *)user += map->state_bytes; }

static abar_status measure(lab *l, const char *method, const void *curvature, cost *c)
{
    abar_layer layer;
    abar_optim *optim;
    size_t state = 0;
    ABAR_TRY(make_optim(l, method, curvature, &layer, &optim));
    for (int i = 0; i < abar_optim_map_count(optim); i++) add_bytes(&state, abar_optim_map(optim, i));
    c->width = (double)l->d;
    c->state = (double)state;
    c->workspace = (double)(abar_optim_state_bytes(optim) - state) -
                   (double)(l->d * l->d) * (double)abar_dtype_size(abar_device_dtype(l->dev));
    const abar_status status = l->queued ? time_differences(l, optim, &layer, c) : time_phases(l, optim, &layer, c);
    abar_optim_destroy(optim);
    return status;
}

/* Least squares of log y over log x; NaN where a number is missing. */
static double slope(const cost *c, int n, size_t offset)
{
    double sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0;
    const int first = n / 2, count = n - first;
    for (int i = first; i < n; i++) {
        const double x = log(c[i].width), y = log(*(const double *)((const char *)&c[i] + offset));
        sx += x;
        sy += y;
        sxx += x * x;
        sxy += x * y;
    }
    return count > 1 ? (count * sxy - sx * sy) / (count * sxx - sx * sx) : NAN;
}

/* ---- output -------------------------------------------------------------------------------------------------------- */

/* The paper's exponents of d: time of the inverse, memory; and what abar's algorithm has. */
typedef struct claim {
    const char *method, *time, *memory, *here;
} claim;

static const claim claims[] = {{"mac", "2", "1", "a refresh is O(d)"},
                               {"smac", "2", "1", "a refresh is O(d)"},
                               {"eva", "2", "1", "a refresh is O(d)"},
                               {"foof", "3", "2", ""},
                               {"kfac", "3", "2", ""},
                               {"lngd", "3", "2", "memory is O(d^2)"}};

static const claim *find_claim(const char *method)
{
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        if (strcmp(claims[i].method, method) == 0) return &claims[i];
    return NULL;
}

static abar_status save_table(const lab *l, const subject *s, int n)
{
    static const char *const columns[] = {"method",  "width",       "statistics s",   "refresh s",
                                          "apply s", "state bytes", "workspace bytes"};
    abar__sheet sheet;
    abar__sheet_begin(l->a->ctx, columns, 7, &sheet);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s[i].n; k++) {
            const cost *c = &s[i].at[k];
            abar__sheet_row(&sheet,
                            (const abar__cell[]){abar__word(s[i].method), abar__number(c->width), abar__number(c->observe),
                                                 abar__number(c->refresh), abar__number(c->apply), abar__number(c->state),
                                                 abar__number(c->workspace)});
        }
    const abar_status status = abar__sheet_save(&sheet, l->o->out, "complexity");
    abar__sheet_free(&sheet);
    return status;
}

static abar_status draw(const lab *l, const subject *s, int n)
{
    static const char *const titles[2] = {"Refresh, seconds", "State, bytes"};
    double x[METHODS_MAX][WIDTHS_MAX], y[2][METHODS_MAX][WIDTHS_MAX];
    abar__series series[2][METHODS_MAX];
    abar__panel panels[2];
    for (int p = 0; p < 2; p++) {
        double low = INFINITY, high = 0.0;
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < s[i].n; k++) {
                x[i][k] = s[i].at[k].width;
                y[p][i][k] = p == 0 ? s[i].at[k].refresh : s[i].at[k].state;
                if (!(y[p][i][k] > 0.0)) continue;
                low = fmin(low, y[p][i][k]);
                high = fmax(high, y[p][i][k]);
            }
            series[p][i] = (abar__series){.name = s[i].method, .x = x[i], .y = y[p][i], .n = s[i].n, .color = i, .dots = true};
        }
        panels[p] = (abar__panel){.title = titles[p],
                                  .x_label = "width",
                                  .x = abar__axis_make(x[0][0], x[0][s[0].n - 1], true),
                                  .y = high > 0.0 ? abar__axis_make(low, high, true) : abar__axis_make(1e-9, 1.0, true),
                                  .series = series[p],
                                  .n_series = n,
                                  .names = true};
    }
    return abar__save_picture(
        l->a->ctx, l->o->out, "complexity.svg",
        &(abar__picture){
            .title = "Cost of a curvature method over the width of a layer", .panels = panels, .n_panels = 2, .columns = 2});
}

static abar_status put_slope(abar_context *ctx, abar__text *text, int column, double slope)
{
    static const int width[4] = {11, 9, 7, 7};
    if (isnan(slope)) return abar__text_printf(ctx, text, "%*s", width[column], "-");
    return abar__text_printf(ctx, text, "%*.2f", width[column], slope);
}

static abar_status describe_times(const lab *l, abar__text *text)
{
    if (!l->queued) return ABAR_OK;
    return abar__text_printf(
        l->a->ctx, text,
        "\nTimes of refresh and apply on %s are differences of whole steps: with and without a refresh, and "
        "without a refresh and of plain SGD. A dash: too small to be measured so.\n",
        l->o->device);
}

static abar_status describe(lab *l, const subject *s, int n)
{
    abar_context *ctx = l->a->ctx;
    abar__text *text = &l->a->text, *json = &l->a->json;
    ABAR_TRY(abar__text_printf(ctx, text, "Exponents of the width (log-log slopes over the upper half of the range)\n\n"));
    ABAR_TRY(abar__text_printf(ctx, text, "method  statistics  refresh  apply  state  paper: time, memory\n"));
    ABAR_TRY(abar__text_printf(ctx, json, "{\"analysis\": \"complexity\", \"dir\": "));
    ABAR_TRY(abar__json_string(ctx, json, l->o->out));
    ABAR_TRY(abar__text_printf(ctx, json, ", \"slopes\": ["));
    for (int i = 0; i < n; i++) {
        const claim *c = find_claim(s[i].method);
        ABAR_TRY(abar__text_printf(ctx, text, "%-7s", s[i].method));
        for (int k = 0; k < 4; k++) ABAR_TRY(put_slope(ctx, text, k, s[i].slope[k]));
        if (c) ABAR_TRY(abar__text_printf(ctx, text, "  %s, %s%s%s", c->time, c->memory, c->here[0] ? "; here " : "", c->here));
        ABAR_TRY(abar__text_printf(ctx, text, "\n"));
        ABAR_TRY(abar__text_printf(ctx, json, "%s{\"method\": \"%s\"", i ? ", " : "", s[i].method));
        static const char *const keys[4] = {"statistics", "refresh", "apply", "state"};
        for (int k = 0; k < 4; k++) {
            ABAR_TRY(abar__text_printf(ctx, json, ", \"%s\": ", keys[k]));
            ABAR_TRY(abar__json_number(ctx, json, s[i].slope[k]));
        }
        ABAR_TRY(abar__text_printf(ctx, json, "}"));
    }
    ABAR_TRY(describe_times(l, text));
    return abar__text_printf(ctx, json, "]}");
}

/* ---- everything ---------------------------------------------------------------------------------------------------- */

/* The names in a list, each once. */
static abar_status read_methods(abar_analysis *a, const char *list, subject *s, int *n)
{
    for (const char *at = list; *at;) {
        const size_t length = strcspn(at, ",");
        if (*n == METHODS_MAX || length == 0 || length >= sizeof s->method)
            return abar__fail(a->ctx, ABAR_E_ARGUMENT, "--optim %s: give up to %d methods, joined by commas", list,
                              METHODS_MAX);
        snprintf(s[*n].method, sizeof s->method, "%.*s", (int)length, at);
        if (!abar_method_find(s[*n].method)) {
            const char *near = abar_nearest_name(s[*n].method, abar_method_names());
            return abar__fail(a->ctx, ABAR_E_ARGUMENT, "--optim %s: no such curvature method%s%s", s[*n].method,
                              near ? ", did you mean " : "", near ? near : "");
        }
        ++*n;
        at += length + (at[length] == ',');
    }
    return *n > 0 ? ABAR_OK : abar__fail(a->ctx, ABAR_E_ARGUMENT, "--optim: name at least one curvature method");
}

static abar_status measure_all(lab *l, const void *curvature, subject *s, int n)
{
    int64_t widths = 0, done = 0;
    for (int64_t d = 64; d <= l->o->largest; d *= 2) widths++;
    for (int64_t d = 64; d <= l->o->largest; d *= 2) {
        abar_status status = set_up(l, d);
        for (int i = 0; i < n && status == ABAR_OK; i++) {
            status = abar__analysis_tell(l->a, s[i].method, done++, widths * n);
            if (status == ABAR_OK) status = measure(l, s[i].method, curvature, &s[i].at[s[i].n++]);
        }
        tear_down(l);
        if (status != ABAR_OK) return status;
    }
    static const size_t offsets[4] = {offsetof(cost, observe), offsetof(cost, refresh), offsetof(cost, apply),
                                      offsetof(cost, state)};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) s[i].slope[k] = slope(s[i].at, s[i].n, offsets[k]);
    return ABAR_OK;
}

static abar_status run(lab *l)
{
    subject s[METHODS_MAX] = {0};
    int n = 0;
    const size_t bytes = abar_curvature_config_size();
    void *curvature;
    ABAR_TRY(read_methods(l->a, l->o->methods, s, &n));
    ABAR_TRY(abar__folder_make(l->a->ctx, l->o->out));
    ABAR_TRY(abar__alloc(l->a->ctx, bytes, &curvature));
    abar_options_default(abar_curvature_options(), curvature);
    const char *period = l->queued ? "2" : "1";
    abar_status status = abar_options_set(l->a->ctx, abar_curvature_options(), curvature, "tcov", period);
    if (status >= 0) status = abar_options_set(l->a->ctx, abar_curvature_options(), curvature, "tinv", period);
    if (status >= 0) status = measure_all(l, curvature, s, n);
    abar__free(l->a->ctx, curvature, bytes);
    if (status == ABAR_OK) status = save_table(l, s, n);
    if (status == ABAR_OK) status = draw(l, s, n);
    return status == ABAR_OK ? describe(l, s, n) : status;
}

abar_status abar__analyze_complexity(abar_analysis *a)
{
    lab l = {.a = a, .o = a->options};
    const abar_device_config config = {.size = sizeof config, .threads = (int)l.o->threads};
    ABAR_TRY(abar_device_open(a->ctx, l.o->device, &config, &l.dev));
    l.queued = l.dev->ops->stream != NULL;
    const abar_status status = run(&l);
    abar_device_close(l.dev);
    return status;
}
