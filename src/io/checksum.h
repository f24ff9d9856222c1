/* Checksums in safetensors files. They are metadata, so that other readers ignore them:
 *
 *     "abar.crc32": "3"                             how many there are
 *     "abar.crc32.metadata.KEY": "0123abcd"         of a metadata value
 *     "abar.crc32.tensor.NAME": "0123abcd"          of a tensor: its dtype and shape, written F32[6,1,5,5], and its bytes
 *
 * CRC-32 as zlib computes it, in eight hexadecimal digits. Every single flipped bit of a file is found: where it falls into a
 * checksum's key, the count is wrong. */
#ifndef ABAR_CHECKSUM_H
#define ABAR_CHECKSUM_H

#include "abar/tensor.h"

#define ABAR_CRC_COUNT "abar.crc32"
#define ABAR_CRC_METADATA "abar.crc32.metadata."
#define ABAR_CRC_TENSOR "abar.crc32.tensor."
#define ABAR_CRC_DIGITS 8

uint32_t abar__crc_text(const char *text);
/* t: dtype and shape; data: its bytes, dense and row-major. */
uint32_t abar__crc_tensor(const abar_tensor *t, const void *data);
void abar__crc_format(uint32_t crc, char digits[ABAR_CRC_DIGITS + 1]);

#endif
