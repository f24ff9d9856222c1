/* Numbers as text. printf and strtod follow the host program's locale, whose decimal point may be ',' or several bytes long;
 * files and user input always use '.'. */
#include "base/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void abar__real_format(double value, char text[ABAR_REAL_TEXT_MAX])
{
    if (!isfinite(value)) {
        strcpy(text, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char local[ABAR_REAL_TEXT_MAX];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(local, sizeof local, "%.*g", digits, value);
        if (strtod(local, NULL) == value) break;
    }
    for (const char *p = local; *p;) {
        size_t plain = strspn(p, "0123456789+-e");
        memcpy(text, p, plain);
        text += plain;
        p += plain;
        size_t point = strcspn(p, "0123456789+-e");
        if (point > 0) *text++ = '.';
        p += point;
    }
    *text = '\0';
}

static const char *skip_digits(const char *p)
{
    while (isdigit((unsigned char)*p)) p++;
    return p;
}

/* The position of the decimal point in a well-formed number (its end where it has none); NULL where it is not well-formed. */
static const char *find_point(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    const char *whole = p, *point = skip_digits(p);
    int digits = point > whole;
    p = point;
    if (*p == '.') {
        const char *end = skip_digits(p + 1);
        digits += end > p + 1;
        p = end;
    } else {
        point = NULL;
    }
    if (!digits) return NULL;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        const char *end = skip_digits(p);
        if (end == p) return NULL;
        p = end;
    }
    if (*p) return NULL;
    return point ? point : p;
}

bool abar__real_parse(const char *text, double *out)
{
    const char *point = find_point(text);
    if (!point) return false;
    char sample[16], local[256];
    snprintf(sample, sizeof sample, "%.1f", 1.5); /* the locale's decimal point is between the 1 and the 5 */
    int before = (int)(point - text), width = *point ? (int)strlen(sample) - 2 : 0;
    int n = snprintf(local, sizeof local, "%.*s%.*s%s", before, text, width, sample + 1, *point ? point + 1 : "");
    if (n < 0 || (size_t)n >= sizeof local) return false;
    *out = strtod(local, NULL);
    return true;
}
