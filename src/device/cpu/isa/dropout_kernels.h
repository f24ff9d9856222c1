/* Random factors of dropout, many at a time. */
#ifndef ABAR_DROPOUT_KERNELS_H
#define ABAR_DROPOUT_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

enum { ABAR_DROPOUT_DRAWS = 16, ABAR_DROPOUT_FACTORS = 4 * ABAR_DROPOUT_DRAWS };

/* An element is kept where its word of abar__random(seed, ABAR_DRAW_DROPOUT, when, draw) is at least `least`. */
typedef struct abar__dropout_key {
    uint64_t seed;
    uint32_t when, least;
    float scale; /* the factor of elements that are kept */
} abar__dropout_key;

typedef struct abar__dropout_kernels {
    /* The factor, scale or 0, for each word of ABAR_DROPOUT_DRAWS draws, beginning with this one. */
    void (*factors)(const abar__dropout_key *key, uint64_t draw, float *out);
} abar__dropout_kernels;

/* The key of dropout `number` of a net with this probability of zero. */
abar__dropout_key abar__dropout_key_of(double drop, uint32_t number, uint64_t seed, uint32_t step);

ABAR_ISA_EXTERN(abar__dropout_kernels, abar__dropout);

#endif
