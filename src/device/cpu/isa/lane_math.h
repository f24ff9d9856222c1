/* exp, tanh and the normal distribution for vector kernels: straight-line float code that the compiler vectorises.
 * Polynomials are minimax fits; the stated errors are the largest found in a dense sweep against double precision. */
#ifndef ABAR_LANE_MATH_H
#define ABAR_LANE_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t abar__float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float abar__bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* e^x = 2^k e^r, k = round(x / ln 2), |r| <= ln 2 / 2, e^r = 1 + r + r^2 P(r). Relative error 1e-7. 0 below -87.3 (the
 * smallest normal float); e^88.3 above 88.3; NaN stays NaN. */
static inline float abar__lane_exp(float x)
{
    const float round = 0x1.8p23f; /* adding it puts k into the low bits of the mantissa */
    float c = x < -87.3f ? -87.3f : x;
    c = c > 88.3f ? 88.3f : c;
    float shifted = c * 1.44269504f + round, k = shifted - round;
    float r = c - k * 0.693359375f - k * -2.12194440e-4f; /* ln 2 in two parts; k times the first is exact */
    float p = 0.00138144672f;
    p = p * r + 0.00836878084f;
    p = p * r + 0.0416683927f;
    p = p * r + 0.166665196f;
    p = p * r + 0.49999994f;
    p = p * r * r + r + 1.0f;
    float e = p * abar__bits_float((abar__float_bits(shifted) + 127u) << 23);
    return x < -87.3f ? 0.0f : e;
}

/* tanh x = x + x^3 P(x^2) for |x| < 0.55, else 1 - 2 / (e^2|x| + 1) with the sign of x. Relative error 2e-7. */
static inline float abar__lane_tanh(float x)
{
    float s = x * x, a = fabsf(x);
    float p = -0.00628247345f;
    p = p * s + 0.0210777577f;
    p = p * s + -0.0538538583f;
    p = p * s + 0.133326024f;
    p = p * s + -0.333333194f;
    float small = x + x * s * p, large = copysignf(1.0f - 2.0f / (abar__lane_exp(2.0f * a) + 1.0f), x);
    return a < 0.55f ? small : large;
}

/* The normal density at x, and its distribution function. Below zero the latter is density(a) M(a), a = |x|, with Mills'
 * ratio M(a) = t P(t), t = 1 / (1 + 0.35 a) (a fit to 4e-8); above zero, one minus that. Nothing cancels, and one
 * exponential serves both. Relative error 5e-7 for x > -1; below, e^(-x^2/2) loses a few digits of a tiny number: 2e-7
 * absolute. */
static inline void abar__lane_normal(float x, float *density, float *below)
{
    float t = 1.0f / (1.0f + 0.35f * fabsf(x));
    float p = -0.0730579942f;
    p = p * t + 0.360883445f;
    p = p * t + -0.640980422f;
    p = p * t + 0.398990244f;
    p = p * t + -0.0579276308f;
    p = p * t + 0.264469296f;
    p = p * t + 0.300376475f;
    p = p * t + 0.350581706f;
    p = p * t + 0.349978954f;
    float d = 0.398942280f * abar__lane_exp(-0.5f * x * x), tail = d * t * p;
    *density = d;
    *below = x < 0 ? tail : 1.0f - tail;
}

#endif
