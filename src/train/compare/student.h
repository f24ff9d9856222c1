/* Student's t distribution, and Welch's comparison of two means: plain C, checked against SciPy's numbers. */
#ifndef ABAR_STUDENT_H
#define ABAR_STUDENT_H

#include <stdint.h>

/* The probability that T exceeds t, for df > 0 degrees of freedom, which need not be whole. */
double abar__student_above(double t, double df);
/* The t that T exceeds with this probability, 0 < above < 1. */
double abar__student_quantile(double above, double df);

/* Mean, sample standard deviation and number of the values of one sample. */
typedef struct abar__sample {
    double mean, std;
    int64_t n;
} abar__sample;

/* The difference a.mean - b.mean without assuming equal variances. NaN: there are fewer than two values, or they do not vary.
 */
typedef struct abar__welch {
    double difference, error, df; /* error: the standard error of the difference; df: Welch and Satterthwaite's */
    double p;                     /* two-sided */
} abar__welch;

abar__welch abar__welch_test(abar__sample a, abar__sample b);
/* Half the width of the interval that covers the difference with probability 1 - alpha. */
double abar__welch_margin(const abar__welch *w, double alpha);

/* Holm's correction of n tests: adjusted[i] for p[i], and the level of test i's interval, alpha divided by the number of tests
 * that Holm's procedure weighs it among. adjusted[i] <= alpha where, and only where, that interval excludes 0. order: scratch.
 */
void abar__holm(const double *p, int n, double alpha, double *adjusted, double *level, int *order);

/* The fewest values per sample with which a test at level alpha would tell two samples of these deviations apart, with a
 * probability of 0.8, if the true difference were this one; 0: more than ABAR_SEEDS_NEEDED_MAX, or no number would do. */
#define ABAR_SEEDS_NEEDED_MAX 10000
int64_t abar__seeds_needed(double difference, double std_a, double std_b, double alpha);

#endif
