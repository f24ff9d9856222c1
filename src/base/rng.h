/* Counter-based random numbers: Philox4x32-10 keyed by seed, with (purpose, when, index) as the counter. A draw depends on
 * nothing else: not on threads, ranks or earlier draws. */
#ifndef ABAR_RNG_H
#define ABAR_RNG_H

#include <stdint.h>

typedef enum abar__purpose {                          /* the numbers are part of the checkpoint format: append only */
                             ABAR_DRAW_INIT = 1,      /* when: parameter, index: element */
                             ABAR_DRAW_ORDER = 2,     /* when: epoch,     index: position */
                             ABAR_DRAW_AUGMENT = 3,   /* when: epoch,     index: sample of the data set */
                             ABAR_DRAW_DROPOUT = 4,   /* when: see net,   index: element, sample or probability */
                             ABAR_DRAW_SYNTHETIC = 5, /* when: class or 0, index: element */
                             ABAR_DRAW_WINDOW = 6,    /* when: epoch,     index: place in the epoch */
                             ABAR_DRAW_SAMPLE = 7,    /* when: 0, index: token that is generated */
                             ABAR_DRAW_ANALYSIS = 8,  /* when: see analysis, index: element */
                             ABAR_DRAW_HOLD_OUT = 9,  /* when: 0, index: position */
                             /* when: epoch, index: sample | repetition << 32 | block << 40 (docs/images.md) */
                             ABAR_DRAW_CROP = 10,
                             ABAR_DRAW_POLICY = 11,
                             ABAR_DRAW_ERASE = 12,
                             ABAR_DRAW_NOISE = 13,
                             ABAR_DRAW_MIX = 14, /* sample: number of the group in the epoch */
                             ABAR_DRAW_JITTER = 15,
                             ABAR_DRAW_SIGNS = 16,  /* when: step, index: element / 128; a bit each */
                             ABAR_DRAW_LABELS = 17, /* when: step, index: row of the global batch | draw << 32 */
} abar__purpose;

typedef struct abar__draw {
    uint32_t u[4];
} abar__draw;

/* Round 0 to 9 of Philox4x32-10 on the counter c0 to c3; key0, key1: the key before the first round. */
static inline void abar__philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t key0, uint32_t key1,
                                      uint32_t round)
{
    const uint64_t p0 = (uint64_t)*c0 * 0xD2511F53u, p1 = (uint64_t)*c2 * 0xCD9E8D57u;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ (key0 + round * 0x9E3779B9u);
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ (key1 + round * 0xBB67AE85u);
    *c1 = (uint32_t)p1;
    *c3 = (uint32_t)p0;
}

/* The bare generator: 10 rounds over counter with key. */
abar__draw abar__philox(const uint32_t counter[4], const uint32_t key[2]);

/* Four independent 32-bit numbers. */
abar__draw abar__random(uint64_t seed, abar__purpose purpose, uint32_t when, uint64_t index);

/* A uniform number in [0, 1) with 32 bits; an integer in [0, n), its bias below 2^-32. */
static inline double abar__uniform(uint32_t u) { return (double)u * 0x1p-32; }
static inline uint32_t abar__below(uint32_t u, uint32_t n) { return (uint32_t)(((uint64_t)u * n) >> 32); }
/* Two standard normal numbers from four words (Box-Muller with 53-bit uniforms). */
void abar__normal(abar__draw d, double out[2]);

#endif
