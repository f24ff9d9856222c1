/* What a setting may be: a list "0.1,0.3", a range of so many values "0.01:1:5log", or any number of a range "0.01:1:log". */
#include "base/number.h"
#include "train/sweep/sweep_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 4 /* of a number of a range: enough to tell values apart, few enough to read */

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static double rounded(double x)
{
    if (x == 0.0 || !isfinite(x)) return x;
    const int after = DIGITS - 1 - (int)floor(log10(fabs(x)));
    /* dividing by a power of ten, which is exact up to 10^22, gives the double nearest to the decimal number */
    return after >= 0 ? round(x * pow(10.0, after)) / pow(10.0, after) : round(x / pow(10.0, -after)) * pow(10.0, -after);
}

double abar__space_at(const abar__space *s, double place)
{
    if (place <= 0.0) return s->low;
    if (place >= 1.0) return s->high;
    const double x = s->logarithmic ? s->low * pow(s->high / s->low, place) : s->low + place * (s->high - s->low);
    return fmin(s->high, fmax(s->low, rounded(x)));
}

void abar__space_write(const abar_option *option, double number, char value[ABAR_VALUE_MAX])
{
    char text[ABAR_REAL_TEXT_MAX];
    abar__real_format(option->type == ABAR_OPTION_INT ? round(number) : number, text);
    snprintf(value, ABAR_VALUE_MAX, "%s", text);
}

/* Also as another text of the same number. */
static bool has_value(const abar__space *s, int n, const char *value)
{
    double x, y;
    const bool number = abar__real_parse(value, &x);
    for (int i = 0; i < n; i++)
        if (strcmp(s->value[i], value) == 0 || (number && abar__real_parse(s->value[i], &y) && x == y)) return true;
    return false;
}

/* The values of a range as an option of this type takes them: of whole numbers, rounded, each once. */
static void round_values(abar__space *s, const abar_option *option)
{
    int n = 0;
    for (int i = 0; s->range && i < s->values; i++) {
        char value[ABAR_VALUE_MAX];
        abar__space_write(option, abar__space_at(s, (double)i / (s->values - 1)), value);
        if (!has_value(s, n, value)) memcpy(s->value[n++], value, sizeof value);
    }
    if (s->range) s->values = n;
}

/* ---- parsing ------------------------------------------------------------------------------------------------------- */

static abar_status refuse(abar_context *ctx, const char *text, const char *why)
{
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %.80s: %s", text, why);
}

static abar_status parse_name(abar_context *ctx, const char *text, const char *const *labels, int n, abar__space *out)
{
    const char *equals = strchr(text, '='), *dot = memchr(text, '.', equals ? (size_t)(equals - text) : 0);
    if (!equals || equals == text)
        return refuse(ctx, text, "names no setting, give NAME=VALUES, as in lr=0.03,0.1,0.3 or damping=0.01:1:5log");
    const char *name = dot ? dot + 1 : text;
    const size_t length = (size_t)(equals - name);
    if (dot) {
        int k = 0;
        while (k < n && (strlen(labels[k]) != (size_t)(dot - text) || memcmp(labels[k], text, (size_t)(dot - text)) != 0)) k++;
        if (k == n)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %.80s: %.*s is none of the optimizers, see --optim", text,
                              (int)(dot - text), text);
        snprintf(out->label, sizeof out->label, "%s", labels[k]);
    }
    if (length == 0 || length >= sizeof out->name || strlen(equals + 1) >= sizeof out->text)
        return refuse(ctx, text, "names no setting, give NAME=VALUES, as in lr=0.03,0.1,0.3");
    memcpy(out->name, name, length);
    snprintf(out->text, sizeof out->text, "%s", equals + 1);
    if (!strncmp(out->name, "--", 2)) memmove(out->name, out->name + 2, strlen(out->name + 2) + 1);
    return ABAR_OK;
}

static abar_status parse_list(abar_context *ctx, const char *text, abar__space *out)
{
    for (const char *at = out->text; at;) {
        const size_t n = strcspn(at, ","), spaces = strspn(at, " ") < n ? strspn(at, " ") : n;
        char value[ABAR_VALUE_MAX] = "";
        if (n == spaces) return refuse(ctx, text, "a value is empty, give values between commas, as in lr=0.03,0.1,0.3");
        if (n - spaces >= sizeof value) return refuse(ctx, text, "a value is too long, give at most 63 letters");
        memcpy(value, at + spaces, n - spaces);
        if (has_value(out, out->values, value))
            return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %.80s: %s is listed twice, once is enough", text, value);
        if (out->values == ABAR_SWEEP_VALUES_MAX) return refuse(ctx, text, "too many values, give at most 256");
        memcpy(out->value[out->values++], value, sizeof value);
        at = at[n] ? at + n + 1 : NULL;
    }
    return ABAR_OK;
}

/* Whether text begins with "low:high". rest: what follows the second colon; NULL: there is none. */
static bool is_range(const char *text, double *low, double *high, const char **rest)
{
    char number[2][ABAR_VALUE_MAX];
    const size_t a = strcspn(text, ":"), b = text[a] ? strcspn(text + a + 1, ":") : 0;
    if (!text[a] || a >= ABAR_VALUE_MAX || b >= ABAR_VALUE_MAX) return false;
    snprintf(number[0], sizeof number[0], "%.*s", (int)a, text);
    snprintf(number[1], sizeof number[1], "%.*s", (int)b, text + a + 1);
    *rest = text[a + 1 + b] ? text + a + 2 + b : NULL;
    return abar__real_parse(number[0], low) && abar__real_parse(number[1], high);
}

static abar_status parse_range(abar_context *ctx, const char *text, const char *count, bool any, abar__space *out)
{
    char *end = NULL;
    const long n = count ? strtol(count, &end, 10) : 0;
    const bool none = !count || end == count; /* no number */
    out->range = true;
    out->logarithmic = count && strcmp(end, "log") == 0;
    if (count && *end && !out->logarithmic)
        return refuse(ctx, text,
                      any ? "is no range, give LOW:HIGH, LOW:HIGH:log or LOW:HIGH:Nlog, as in lr=0.01:1:log"
                          : "is no range, give LOW:HIGH:N or LOW:HIGH:Nlog, as in lr=0.01:1:5log");
    if (none && !any) return refuse(ctx, text, "how many values? give LOW:HIGH:N or LOW:HIGH:Nlog, as in lr=0.01:1:5log");
    if (!none && (n < 2 || n > ABAR_SWEEP_VALUES_MAX)) return refuse(ctx, text, "a range has 2 to 256 values");
    if (!(out->low < out->high) || !isfinite(out->low) || !isfinite(out->high))
        return refuse(ctx, text, "its low end must be below its high end");
    if (out->logarithmic && out->low <= 0.0) return refuse(ctx, text, "has no logarithms, start above 0 or leave log out");
    out->values = (int)n;
    return ABAR_OK;
}

abar_status abar__space_parse(abar_context *ctx, const char *text, const char *const *labels, int n, bool any, abar__space *out)
{
    const char *count;
    *out = (abar__space){0};
    ABAR_TRY(parse_name(ctx, text, labels, n, out));
    if (is_range(out->text, &out->low, &out->high, &count)) return parse_range(ctx, text, count, any, out);
    ABAR_TRY(parse_list(ctx, text, out));
    return ABAR_OK;
}

/* ---- settings ------------------------------------------------------------------------------------------------------ */

const abar_option *abar__setup_option(const abar_setup *setup, const char *name, const void **config)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    for (int i = abar_setup_tables(setup, tables) - 1; i >= 0; i--) {
        const abar_option *option = abar_options_find(tables[i].options, name);
        if (!option) continue;
        if (config) *config = tables[i].config;
        return option;
    }
    return NULL;
}

int abar__space_for(const abar__space *space, int n, const char *label, const char *name)
{
    int found = -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(space[i].name, name) != 0) continue;
        if (strcmp(space[i].label, label) == 0) return i;
        if (!space[i].label[0]) found = i;
    }
    return found;
}

static bool is_for(const abar__space *space, const char *label) { return !space->label[0] || !strcmp(space->label, label); }

/* The option that varies, of the first optimizer that has it; NULL: none has. */
static const abar_option *option_of(const abar__space *space, const abar__subjects *of)
{
    const abar_option *found = NULL;
    for (int i = 0; i < of->n && !found; i++)
        if (is_for(space, of->labels[i])) found = abar__setup_option(of->setups[i], space->name, NULL);
    return found;
}

/* ", did you mean --lr" where an option has a similar name; "" otherwise. */
static abar_status guess(abar_context *ctx, const abar_setup *setup, const char *name, char *meant, size_t size)
{
    abar_setup *copy;
    ABAR_TRY(abar__setup_copy(ctx, setup, &copy));
    abar_setup_set(ctx, copy, name, "0"); /* fails, and says what may be meant */
    abar_setup_destroy(ctx, copy);
    const char *said = strstr(abar_context_error(ctx), ", ");
    snprintf(meant, size, "%s", said ? said : "");
    return ABAR_OK;
}

/* Refuses what cannot vary, and options that no optimizer has. */
static abar_status check_space(abar_context *ctx, const abar__space *space, const abar__subjects *of)
{
    static const char *const fixed[][2] = {{"model", "one model at a time, its settings depend on it"},
                                           {"data", "one data set at a time, settings depend on it"},
                                           {"optim", "--optim takes a list of optimizers"},
                                           {"seed", "--seeds runs every value with several"},
                                           {"out", "it is one folder"},
                                           {"snapshot", "a list cannot be a value here"},
                                           {"validation", "values are chosen on one validation part"},
                                           {"validation-seed", "values are chosen on one validation part"},
                                           {"accept-data", "all runs are on the same data"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (strcmp(space->name, fixed[i][0]) == 0)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %s: cannot vary, %s", space->name, fixed[i][1]);
    if (option_of(space, of)) return ABAR_OK;
    char meant[200] = "";
    for (int i = 0; i < of->n && !meant[0]; i++)
        if (is_for(space, of->labels[i])) ABAR_TRY(guess(ctx, of->setups[i], space->name, meant, sizeof meant));
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %s: none of the optimizers has such an option%s", space->name, meant);
}

abar_status abar__spaces_read(abar_context *ctx, const char *const *over, int n, const abar__subjects *of, bool any,
                              abar__space *out)
{
    for (int i = 0; i < n; i++) {
        abar__space *space = &out[i];
        ABAR_TRY(abar__space_parse(ctx, over[i], of->labels, of->n, any, space));
        ABAR_TRY(check_space(ctx, space, of));
        for (int k = 0; k < i; k++)
            if (strcmp(out[k].name, space->name) == 0 && strcmp(out[k].label, space->label) == 0)
                return abar__fail(ctx, ABAR_E_ARGUMENT, "--over %s: is given twice, join the two", space->name);
        round_values(space, option_of(space, of));
    }
    return ABAR_OK;
}

abar_status abar__spaces_axes(abar_context *ctx, const abar__space *space, int n, abar__sweep_axis axis[ABAR_SWEEP_AXES_MAX],
                              int *axes)
{
    *axes = 0;
    for (int i = 0; i < n; i++) {
        int a = 0;
        while (a < *axes && strcmp(axis[a].name, space[i].name) != 0) a++;
        if (a == ABAR_SWEEP_AXES_MAX)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "--over: more than %d settings are too many", ABAR_SWEEP_AXES_MAX);
        if (a == *axes) snprintf(axis[(*axes)++].name, ABAR_AXIS_NAME_MAX, "%s", space[i].name);
        axis[a].logarithmic = axis[a].logarithmic || space[i].logarithmic;
    }
    return ABAR_OK;
}
