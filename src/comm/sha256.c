/* SHA-256 and HMAC, for a few hundred bytes at the start of a run: plain loops. */
#include "comm/sha256.h"

#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void mix(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t t1 =
            v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + round_constants[i] + w[i];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

void abar__sha256_start(abar__sha256 *s)
{
    *s = (abar__sha256){
        {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, 0, {0}};
}

void abar__sha256_add(abar__sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) {
        s->block[s->bytes++ % 64] = p[i];
        if (s->bytes % 64 == 0) mix(s->state, s->block);
    }
}

void abar__sha256_end(abar__sha256 *s, uint8_t digest[ABAR_SHA256])
{
    const uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    abar__sha256_add(s, &(uint8_t){0x80}, 1);
    while (s->bytes % 64 != 56) abar__sha256_add(s, &(uint8_t){0}, 1);
    abar__sha256_add(s, length, sizeof length);
    for (int i = 0; i < ABAR_SHA256; i++) digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void abar__hmac(const void *key, size_t key_bytes, const void *data, size_t n, uint8_t mac[ABAR_SHA256])
{
    uint8_t block[64] = {0}, pad[64];
    abar__sha256 s;
    if (key_bytes > sizeof block) {
        abar__sha256_start(&s);
        abar__sha256_add(&s, key, key_bytes);
        abar__sha256_end(&s, block);
    } else if (key_bytes) {
        memcpy(block, key, key_bytes);
    }
    abar__sha256_start(&s);
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x36;
    abar__sha256_add(&s, pad, sizeof pad);
    abar__sha256_add(&s, data, n);
    abar__sha256_end(&s, mac);
    abar__sha256_start(&s);
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x5c;
    abar__sha256_add(&s, pad, sizeof pad);
    abar__sha256_add(&s, mac, ABAR_SHA256);
    abar__sha256_end(&s, mac);
}

bool abar__same_bytes(const uint8_t *a, const uint8_t *b, size_t n)
{
    volatile uint8_t difference = 0; /* a compiler must not end the loop early */
    for (size_t i = 0; i < n; i++) difference = (uint8_t)(difference | (a[i] ^ b[i]));
    return difference == 0;
}
