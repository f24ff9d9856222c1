/* The normal quantiles by which erased values are filled (docs/images.md). */
#include "data/images/draws.h"

#include <math.h>

/* (c[0] + c[1] x + ... + c[7] x^7) */
static double polynomial(const double c[8], double x)
{
    double sum = c[7];
    for (int i = 6; i >= 0; i--) sum = sum * x + c[i];
    return sum;
}

/* Algorithm AS 241, PPND16 (Wichura, Applied Statistics 37, 1988): relative accuracy 1e-16. 0 < p < 1. */
static double normal_quantile(double p)
{
    static const double a[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e+1,
                                6.8718700749205790830e+2,
                                5.3941960214247511077e+3,
                                2.1213794301586595867e+4,
                                3.9307895800092710610e+4,
                                2.8729085735721942674e+4,
                                5.2264952788528545610e+3};
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    const double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * polynomial(a, r) / polynomial(b, r);
    }
    /* the table's outermost p is 1/8192: the branch of AS 241 for p below exp(-25) is not needed */
    const double r = sqrt(-log(q < 0 ? p : 1 - p)) - 1.6;
    const double tail = polynomial(c, r) / polynomial(d, r);
    return q < 0 ? -tail : tail;
}

void abar__noise_table(float out[ABAR_NOISE_COUNT])
{
    for (int i = 0; i < ABAR_NOISE_COUNT; i++) out[i] = (float)normal_quantile((i + 0.5) / ABAR_NOISE_COUNT);
}
