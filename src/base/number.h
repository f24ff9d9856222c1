/* Numbers as text, with '.' as the decimal point in every locale. */
#ifndef ABAR_NUMBER_H
#define ABAR_NUMBER_H

#include <stdbool.h>

#define ABAR_REAL_TEXT_MAX 32

/* The shortest of %.15g, %.16g and %.17g that reads back to the same double; "nan", "inf" or "-inf" for the others. */
void abar__real_format(double value, char text[ABAR_REAL_TEXT_MAX]);

/* Reads text that is entirely [+-]digits[.digits][e[+-]digits]; false for anything else. Overflow yields infinity. */
bool abar__real_parse(const char *text, double *out);

#endif
