/* Option tables: strict conversion between text and the fields of a config struct, with errors that help the user. */
#include "base/base_impl.h"
#include "base/number.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SHOWN 80         /* bytes of the user's text that an error repeats */
#define LONGEST_NAME 64  /* longer names are never suggested */
#define FAR_OFF SIZE_MAX /* too different to suggest */

typedef union value {
    int64_t integer;
    double real;
    bool flag;
} value;

/* ---- did you mean ---------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Damerau-Levenshtein distance (insert, delete, replace, swap two neighbours), ignoring case. n, m <= LONGEST_NAME. */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t rows[3][LONGEST_NAME + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) above[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            row[j] = least(above[j - 1] + (x != y), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) && y == tolower((unsigned char)a[i - 2]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[m];
}

/* How different a name (n bytes) is from a candidate (m bytes): the number of edits, or 1 where it is a prefix of the
 * candidate. */
static size_t unlikeness(const char *name, size_t n, const char *candidate, size_t m)
{
    if (n == 0 || n > LONGEST_NAME || m > LONGEST_NAME) return FAR_OFF;
    if (n < m && strncasecmp(name, candidate, n) == 0) return 1;
    size_t edits = edit_distance(name, n, candidate, m);
    size_t allowed = n / 3 > 2 ? n / 3 : 2, longer = n > m ? n : m;
    return edits <= allowed && edits < longer ? edits : FAR_OFF; /* edits == longer: nothing in common */
}

typedef struct nearest {
    const char *text;
    size_t length, distance;
} nearest;

/* Keeps the candidate if it is nearer than the best so far. */
static void consider(nearest *best, const char *name, const char *candidate, size_t length)
{
    size_t distance = unlikeness(name, strlen(name), candidate, length);
    if (distance < best->distance) *best = (nearest){candidate, length, distance};
}

const char *abar_nearest_name(const char *name, const char *const *names)
{
    nearest best = {NULL, 0, FAR_OFF};
    for (; *names; names++) consider(&best, name, *names, strlen(*names));
    return best.text;
}

/* ---- choices: "cosine|step|constant" --------------------------------------------------------------------------- */

/* The choice at *cursor, which moves on to the next one; NULL after the last. */
static const char *next_choice(const char **cursor, size_t *length)
{
    const char *choice = *cursor;
    if (!choice) return NULL;
    *length = strcspn(choice, "|");
    *cursor = choice[*length] ? choice + *length + 1 : NULL;
    return choice;
}

static const char *choice_at(const char *choices, int64_t index, size_t *length)
{
    const char *choice;
    for (int64_t i = 0; (choice = next_choice(&choices, length)); i++)
        if (i == index) return choice;
    return NULL;
}

/* ---- parsing: each returns what is wrong, NULL for nothing ------------------------------------------------------- */

static const char *parse_int(const abar_option *option, const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) return "not a whole number";
    errno = 0;
    long long parsed = strtoll(text, NULL, 10);
    if (errno || (double)parsed < option->min || (double)parsed > option->max) return "out of range";
    *out = parsed;
    return NULL;
}

static const char *parse_real(const abar_option *option, const char *text, double *out)
{
    const char *unsigned_text = text + (*text == '-' || *text == '+');
    if (strcasecmp(unsigned_text, "nan") == 0 || strcasecmp(unsigned_text, "inf") == 0 ||
        strcasecmp(unsigned_text, "infinity") == 0)
        return "not a finite number";
    double parsed;
    if (!abar__real_parse(text, &parsed)) return "not a number";
    if (!isfinite(parsed)) return "not a finite number";
    if (parsed < option->min || parsed > option->max) return "out of range";
    *out = parsed;
    return NULL;
}

static const char *parse_bool(const char *text, bool *out)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *out = i % 2 == 1;
        return NULL;
    }
    return "neither true nor false";
}

static const char *parse_choice(const char *choices, const char *text, int64_t *out)
{
    size_t length;
    const char *choice;
    for (int64_t i = 0; (choice = next_choice(&choices, &length)); i++) {
        if (strlen(text) != length || memcmp(choice, text, length) != 0) continue;
        *out = i;
        return NULL;
    }
    return "not one of";
}

static const char *parse(const abar_option *option, const char *text, void *config)
{
    char *field = (char *)config + option->offset;
    const char *wrong = NULL;
    size_t size = 0, length = strlen(text);
    value v;
    switch (option->type) {
    case ABAR_OPTION_INT:
        wrong = parse_int(option, text, &v.integer);
        size = sizeof v.integer;
        break;
    case ABAR_OPTION_REAL:
        wrong = parse_real(option, text, &v.real);
        size = sizeof v.real;
        break;
    case ABAR_OPTION_BOOL:
        wrong = parse_bool(text, &v.flag);
        size = sizeof v.flag;
        break;
    case ABAR_OPTION_CHOICE:
        wrong = parse_choice(option->choices, text, &v.integer);
        size = sizeof v.integer;
        break;
    case ABAR_OPTION_TEXT:
        if (length >= ABAR_OPTION_TEXT_MAX) return "too long";
        memmove(field, text, length);
        memset(field + length, 0, ABAR_OPTION_TEXT_MAX - length); /* equal texts must give equal structs */
        return NULL;
    }
    if (!wrong) memcpy(field, &v, size);
    return wrong;
}

/* ---- explaining -------------------------------------------------------------------------------------------------- */

static void describe_range(const abar_option *option, char *text, size_t size)
{
    int digits = option->type == ABAR_OPTION_INT ? 16 : 6; /* 16: all of 2^53 - 1 */
    bool no_min = option->min <= -DBL_MAX, no_max = option->max >= DBL_MAX;
    if (no_min && no_max)
        snprintf(text, size, "any finite number");
    else if (no_max)
        snprintf(text, size, "a value of at least %.*g", digits, option->min);
    else if (no_min)
        snprintf(text, size, "a value of at most %.*g", digits, option->max);
    else
        snprintf(text, size, "a value from %.*g to %.*g", digits, option->min, digits, option->max);
}

static void describe_choices(const char *choices, char *text, size_t size)
{
    size_t used = 0, length;
    const char *choice;
    text[0] = '\0';
    while ((choice = next_choice(&choices, &length)) && used < size) {
        int n = snprintf(text + used, size - used, "%s%.*s", used ? ", " : "", (int)length, choice);
        used += n > 0 ? (size_t)n : 0;
    }
}

static abar_status refuse_choice(abar_context *ctx, const abar_option *option, const char *text, const char *wrong)
{
    char allowed[512];
    describe_choices(option->choices, allowed, sizeof allowed);
    nearest best = {"", 0, FAR_OFF};
    size_t length;
    const char *cursor = option->choices, *choice;
    while ((choice = next_choice(&cursor, &length))) consider(&best, text, choice, length);
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s %.*s: %s %s%s%.*s", option->name, SHOWN, *text ? text : "\"\"", wrong,
                      allowed, best.length ? ", did you mean " : "", (int)best.length, best.text);
}

static abar_status refuse(abar_context *ctx, const abar_option *option, const char *text, const char *wrong)
{
    char allowed[128];
    switch (option->type) {
    case ABAR_OPTION_CHOICE: return refuse_choice(ctx, option, text, wrong);
    case ABAR_OPTION_INT:
    case ABAR_OPTION_REAL: describe_range(option, allowed, sizeof allowed); break;
    case ABAR_OPTION_BOOL: snprintf(allowed, sizeof allowed, "true or false"); break;
    case ABAR_OPTION_TEXT: snprintf(allowed, sizeof allowed, "at most %d bytes", ABAR_OPTION_TEXT_MAX - 1); break;
    }
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s %.*s: %s, give %s", option->name, SHOWN, *text ? text : "\"\"", wrong,
                      allowed);
}

static abar_status refuse_name(abar_context *ctx, const abar_option *table, const char *name)
{
    nearest best = {"", 0, FAR_OFF};
    for (; table->name; table++) consider(&best, name, table->name, strlen(table->name));
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "--%.*s: no such option%s%s", SHOWN, name, best.length ? ", did you mean --" : "",
                      best.text);
}

/* ---- the public face --------------------------------------------------------------------------------------------- */

const abar_option *abar_options_find(const abar_option *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

void abar_options_default(const abar_option *table, void *config)
{
    for (; table->name; table++) {
        const char *wrong = parse(table, table->fallback ? table->fallback : "", config);
        assert(!wrong && "the fallback of an option does not pass its own row of the table");
        (void)wrong;
    }
}

abar_status abar_options_set(abar_context *ctx, const abar_option *table, void *config, const char *name, const char *text)
{
    const abar_option *option = abar_options_find(table, name);
    if (!option) return refuse_name(ctx, table, name);
    if (!text) return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s: its value is missing, give one", name);
    const char *wrong = parse(option, text, config);
    return wrong ? refuse(ctx, option, text, wrong) : ABAR_OK;
}

abar_status abar_options_get(abar_context *ctx, const abar_option *table, const void *config, const char *name, char *text,
                             size_t size)
{
    const abar_option *option = abar_options_find(table, name);
    if (!option) return refuse_name(ctx, table, name);
    const char *field = (const char *)config + option->offset;
    char number[ABAR_REAL_TEXT_MAX];
    const char *found = number;
    size_t length = ABAR_OPTION_TEXT_MAX - 1; /* of found, an upper bound */
    value v;
    switch (option->type) {
    case ABAR_OPTION_INT:
        memcpy(&v.integer, field, sizeof v.integer);
        snprintf(number, sizeof number, "%lld", (long long)v.integer);
        break;
    case ABAR_OPTION_REAL:
        memcpy(&v.real, field, sizeof v.real);
        abar__real_format(v.real, number);
        break;
    case ABAR_OPTION_BOOL:
        memcpy(&v.flag, field, sizeof v.flag);
        found = v.flag ? "true" : "false";
        break;
    case ABAR_OPTION_CHOICE:
        memcpy(&v.integer, field, sizeof v.integer);
        found = choice_at(option->choices, v.integer, &length);
        break;
    case ABAR_OPTION_TEXT: found = field; break;
    }
    if (!found) return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s: holds no valid choice, set it by name", name);
    int n = snprintf(text, size, "%.*s", (int)length, found);
    if (n < 0 || (size_t)n >= size)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--%s: %zu bytes are too few for its value, give %d", name, size, n + 1);
    return ABAR_OK;
}

/* ---- checking what the caller filled by hand -------------------------------------------------------------------- */

static int64_t count_choices(const char *choices)
{
    int64_t n = 1;
    for (; *choices; choices++) n += *choices == '|';
    return n;
}

/* abar_options_set checks ranges; a struct that the caller filled by hand is checked here. */
static abar_status check_option(abar_context *ctx, const char *owner, const abar_option *o, const void *config)
{
    const void *field = (const char *)config + o->offset;
    double number = 0.0, min = o->min, max = o->max;
    switch (o->type) {
    case ABAR_OPTION_REAL: number = *(const double *)field; break;
    case ABAR_OPTION_INT: number = (double)*(const int64_t *)field; break;
    case ABAR_OPTION_CHOICE:
        number = (double)*(const int64_t *)field;
        min = 0.0;
        max = (double)(count_choices(o->choices) - 1);
        break;
    case ABAR_OPTION_BOOL:
    case ABAR_OPTION_TEXT: return ABAR_OK;
    }
    if (number >= min && number <= max) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: %s %g is out of range, choose from %g to %g", owner, o->name, number, min,
                      max);
}

abar_status abar__options_check(abar_context *ctx, const char *owner, const abar_option *table, const void *config)
{
    for (const abar_option *o = table; o->name; o++) ABAR_TRY(check_option(ctx, owner, o, config));
    return ABAR_OK;
}
