/* FNV-1a, 64 bits: for names of cache files and for fingerprints, not against attackers. */
#ifndef ABAR_HASH_H
#define ABAR_HASH_H

#include <stddef.h>
#include <stdint.h>

#define ABAR_HASH_START 0xcbf29ce484222325u

static inline uint64_t abar__hash(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

#endif
