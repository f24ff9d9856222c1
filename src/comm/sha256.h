/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104): ranks prove to each other that they know the token without sending it. */
#ifndef ABAR_SRC_COMM_SHA256_H
#define ABAR_SRC_COMM_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ABAR_SHA256 32 /* bytes of a digest */

typedef struct abar__sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[64];
} abar__sha256;

void abar__sha256_start(abar__sha256 *s);
void abar__sha256_add(abar__sha256 *s, const void *data, size_t n);
void abar__sha256_end(abar__sha256 *s, uint8_t digest[ABAR_SHA256]);

void abar__hmac(const void *key, size_t key_bytes, const void *data, size_t n, uint8_t mac[ABAR_SHA256]);
/* In a time that does not depend on where they differ. */
bool abar__same_bytes(const uint8_t *a, const uint8_t *b, size_t n);

#endif
