/* Numbers as text, with a '.' whatever locale the host program runs in. */
#ifndef ABAR_NUMBER_H
#define ABAR_NUMBER_H

#include <stdbool.h>

#define ABAR_REAL_TEXT_MAX 32

/* The shortest of %.15g, %.16g and %.17g that reads back to the same double; "nan", "inf" or "-inf" for the others. */
void abar__real_format(double value, char text[ABAR_REAL_TEXT_MAX]);

/* Reads text that is, from end to end, [+-]digits[.digits][e[+-]digits]; false for anything else. Too large: infinite. */
bool abar__real_parse(const char *text, double *out);

#endif
