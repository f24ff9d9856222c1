/* CRC-32 of metadata and tensors, for safetensors files. */
#include "io/checksum.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

uint32_t abar__crc_text(const char *text) { return (uint32_t)crc32_z(0, (const Bytef *)text, strlen(text)); }

uint32_t abar__crc_tensor(const abar_tensor *t, const void *data)
{
    char shape[32 + 24 * ABAR_MAX_DIM];
    int n = snprintf(shape, sizeof shape, "%s[", abar_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    n += snprintf(shape + n, sizeof shape - (size_t)n, "]");
    const size_t bytes = (size_t)abar_tensor_count(t) * abar_dtype_size(t->dtype);
    const uLong crc = crc32_z(0, (const Bytef *)shape, (size_t)n);
    return (uint32_t)(bytes > 0 ? crc32_z(crc, data, bytes) : crc); /* zlib takes NULL for a request to begin anew */
}

void abar__crc_format(uint32_t crc, char digits[ABAR_CRC_DIGITS + 1])
{
    snprintf(digits, ABAR_CRC_DIGITS + 1, "%08lx", (unsigned long)crc);
}
