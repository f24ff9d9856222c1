/* Axes: where numbers are placed, and where ticks go. */
#include "io/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* 1, 2 or 5 times a power of ten: the least of them that is at least x > 0. */
static double round_step(double x)
{
    double power = pow(10.0, floor(log10(x))), part = x / power;
    return power * (part <= 1.0 + 1e-9 ? 1.0 : part <= 2.0 + 1e-9 ? 2.0 : part <= 5.0 + 1e-9 ? 5.0 : 10.0);
}

static void linear_ticks(abar__axis *axis, double step)
{
    axis->ticks = axis->decimals = 0;
    if (!isfinite(step) || !(step > 0.0)) return; /* numbers at either end of their range */
    const int decimals = (int)-floor(log10(step) + 1e-9);
    axis->decimals = decimals > 0 ? decimals : 0;
    for (double k = ceil(axis->low / step - 1e-9); k * step <= axis->high + 1e-9 * step && axis->ticks < ABAR_TICKS_MAX; k++)
        axis->tick[axis->ticks++] = k * step;
}

/* Powers of ten that are multiples of 10^stride. */
static void decade_ticks(abar__axis *axis)
{
    const int first = (int)ceil(axis->low - 1e-9), last = (int)floor(axis->high + 1e-9), stride = 1 + (last - first) / 8;
    axis->ticks = 0;
    for (int k = first; k <= last; k++)
        if (k % stride == 0 && axis->ticks < ABAR_TICKS_MAX) axis->tick[axis->ticks++] = pow(10.0, k);
}

/* Powers of ten, with 2 and 5 times them where few of those fit. */
static void logarithmic_ticks(abar__axis *axis)
{
    static const double part[] = {1.0, 2.0, 5.0};
    axis->decimals = -1;
    axis->ticks = 0;
    if (axis->high - axis->low > 2.7) {
        decade_ticks(axis);
        return;
    }
    for (int k = (int)floor(axis->low); k <= (int)ceil(axis->high); k++)
        for (int i = 0; i < 3; i++) {
            const double at = k + log10(part[i]);
            if (at >= axis->low - 1e-9 && at <= axis->high + 1e-9 && axis->ticks < ABAR_TICKS_MAX)
                axis->tick[axis->ticks++] = part[i] * pow(10.0, k);
        }
}

/* An axis ends before the range of numbers does, so that its ticks are numbers, too. */
static void stay_in_range(abar__axis *axis)
{
    const double largest = axis->logarithmic ? 300.0 : 1e300;
    axis->low = fmin(fmax(axis->low, -largest), 0.9 * largest);
    axis->high = fmin(fmax(axis->high, -0.9 * largest), largest);
}

void abar__axis_ticks(abar__axis *axis, double least_step)
{
    stay_in_range(axis);
    if (axis->logarithmic) logarithmic_ticks(axis);
    if (axis->logarithmic && axis->ticks >= 2) return;
    if (axis->logarithmic) {
        axis->low = pow(10.0, axis->low);
        axis->high = pow(10.0, axis->high);
        axis->logarithmic = false;
    }
    linear_ticks(axis, fmax(least_step, round_step((axis->high - axis->low) / 7.0)));
}

abar__axis abar__axis_make(double low, double high, bool logarithmic)
{
    abar__axis axis = {.low = low, .high = high, .logarithmic = logarithmic && low > 0.0};
    if (!isfinite(low) || !isfinite(high)) axis = (abar__axis){.low = 0.0, .high = 1.0};
    if (axis.logarithmic) {
        axis.low = log10(low);
        axis.high = log10(high);
    }
    const double margin = axis.high > axis.low ? 0.04 * (axis.high - axis.low) : fmax(0.05 * fabs(axis.high), 1e-6);
    axis.low -= margin;
    axis.high += margin;
    abar__axis_ticks(&axis, 0.0);
    return axis;
}

/* 5·10⁻⁸, or 10⁻⁸ where the factor is 1. */
static void power_text(double value, char text[ABAR_REAL_TEXT_MAX])
{
    static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    const int power = (int)floor(log10(value) + 1e-9), factor = (int)lround(value / pow(10.0, power)), size = abs(power);
    char lead[8] = "";
    if (factor != 1) snprintf(lead, sizeof lead, "%d·", factor % 10);
    snprintf(text, ABAR_REAL_TEXT_MAX, "%s10%s%s%s%s", lead, power < 0 ? "⁻" : "", size >= 100 ? digits[size / 100 % 10] : "",
             size >= 10 ? digits[size / 10 % 10] : "", digits[size % 10]);
}

const char *abar__tick_text(const abar__axis *axis, int i, char text[ABAR_REAL_TEXT_MAX])
{
    const double value = axis->tick[i], least = axis->tick[0], most = axis->tick[axis->ticks - 1];
    const bool wide = least < 0.9e-3 || most > 1.1e4; /* then fewer are written out, so that neighbours look alike */
    if (!axis->logarithmic || (value > (wide ? 0.9e-2 : 0.9e-3) && value < (wide ? 1.1e2 : 1.1e4)))
        return abar__plot_number(value, axis->decimals, text);
    power_text(value, text);
    return text;
}

double abar__axis_place(const abar__axis *axis, double value)
{
    const double at = axis->logarithmic ? log10(fmax(value, 1e-300)) : value;
    return (at - axis->low) / (axis->high - axis->low);
}
