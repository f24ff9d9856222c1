/* TensorBoard's event files: records (length, CRC of the length, bytes, CRC of the bytes) that hold Event protobufs.
 * Only what a scalar needs is encoded: Event{1: wall_time, 2: step, 3: file_version, 5: Summary{1: Value{1: tag, 2:
 * simple_value}}}. */
#include "io/io.h"
#include "io/files_impl.h"

#include <string.h>

#define FLUSH_AT 65536 /* bytes buffered before they are written */

struct abar__tfevents {
    abar__growing file;
    abar__text record, pending; /* one event; framed events not written yet */
    uint32_t table[256];        /* of the CRC */
};

/* ---- CRC-32C (Castagnoli), bit-reversed polynomial 0x82F63B78 ---------------------------------------------------- */

static void crc_table(uint32_t table[256])
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        table[byte] = crc;
    }
}

/* Masked as TFRecord wants it, since a CRC of data that holds CRCs is weak. */
static uint32_t masked_crc(const uint32_t table[256], const char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) crc = crc >> 8 ^ table[(crc ^ (unsigned char)bytes[i]) & 0xFF];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ---- bytes of a protobuf ----------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types */

static void put_little(char *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (char)(value >> 8 * i & 0xFF);
}

static size_t put_varint(char *out, uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) out[n++] = (char)((value & 0x7F) | 0x80);
    out[n++] = (char)value;
    return n;
}

static abar_status add_fixed(abar_context *ctx, abar__text *out, int field, uint64_t value, int bytes)
{
    char buffer[9] = {(char)(field << 3 | (bytes == 8 ? FIXED64 : FIXED32))};
    put_little(buffer + 1, value, bytes);
    return abar__text_append(ctx, out, buffer, 1 + (size_t)bytes);
}

static abar_status add_varint(abar_context *ctx, abar__text *out, int field, int wire, uint64_t value)
{
    char buffer[11] = {(char)(field << 3 | wire)};
    return abar__text_append(ctx, out, buffer, 1 + put_varint(buffer + 1, value));
}

static abar_status add_text(abar_context *ctx, abar__text *out, int field, const char *text)
{
    ABAR_TRY(add_varint(ctx, out, field, BYTES, strlen(text)));
    return abar__text_append(ctx, out, text, strlen(text));
}

static abar_status add_double(abar_context *ctx, abar__text *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return add_fixed(ctx, out, field, bits, 8);
}

static abar_status add_float(abar_context *ctx, abar__text *out, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return add_fixed(ctx, out, field, bits, 4);
}

static size_t varint_size(uint64_t value)
{
    char buffer[10];
    return put_varint(buffer, value);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* The first record of a file names its version. */
static abar_status encode_version(abar_context *ctx, abar__text *out, double wall_time)
{
    out->length = 0;
    ABAR_TRY(add_double(ctx, out, 1, wall_time));
    return add_text(ctx, out, 3, "brain.Event:2");
}

static abar_status encode_scalar(abar_context *ctx, abar__text *out, const char *tag, int64_t step, double wall_time,
                                 double value)
{
    size_t n = strlen(tag), inner = 1 + varint_size(n) + n + 5; /* Value: tag, simple_value */
    out->length = 0;
    ABAR_TRY(add_double(ctx, out, 1, wall_time));
    if (step != 0) ABAR_TRY(add_varint(ctx, out, 2, VARINT, (uint64_t)step)); /* protobuf leaves a zero out */
    ABAR_TRY(add_varint(ctx, out, 5, BYTES, 1 + varint_size(inner) + inner)); /* Summary */
    ABAR_TRY(add_varint(ctx, out, 1, BYTES, inner));
    ABAR_TRY(add_text(ctx, out, 1, tag));
    return add_float(ctx, out, 2, (float)value);
}

/* Appends log->record to log->pending as a TFRecord; all of it or nothing. */
static abar_status frame(abar__tfevents *log)
{
    char head[12], tail[4];
    put_little(head, log->record.length, 8);
    put_little(head + 8, masked_crc(log->table, head, 8), 4);
    put_little(tail, masked_crc(log->table, log->record.data, log->record.length), 4);
    abar_context *ctx = log->file.ctx;
    size_t before = log->pending.length;
    abar_status status = abar__text_append(ctx, &log->pending, head, sizeof head);
    if (status == ABAR_OK) status = abar__text_append(ctx, &log->pending, log->record.data, log->record.length);
    if (status == ABAR_OK) status = abar__text_append(ctx, &log->pending, tail, sizeof tail);
    if (status < 0) log->pending.length = before;
    return status;
}

static abar_status write_pending(abar__tfevents *log)
{
    if (log->pending.length == 0) return ABAR_OK;
    ABAR_TRY(abar__growing_write(&log->file, log->pending.data, log->pending.length));
    log->pending.length = 0;
    return ABAR_OK;
}

/* ---- the face ---------------------------------------------------------------------------------------------------- */

abar_status abar__tfevents_open(abar_context *ctx, const char *path, uint64_t keep, abar__tfevents **out)
{
    *out = NULL;
    abar__tfevents *log;
    ABAR_TRY(abar__alloc(ctx, sizeof *log, (void **)&log));
    crc_table(log->table);
    abar_status status = abar__growing_open(ctx, path, keep, &log->file);
    if (status < 0)
        abar__free(ctx, log, sizeof *log);
    else
        *out = log;
    return status;
}

abar_status abar__tfevents_scalar(abar__tfevents *log, const char *tag, int64_t step, double wall_time, double value)
{
    abar_context *ctx = log->file.ctx;
    if (log->file.bytes == 0 && log->pending.length == 0) { /* here, since TensorBoard takes the run's start from it */
        ABAR_TRY(encode_version(ctx, &log->record, wall_time));
        ABAR_TRY(frame(log));
    }
    ABAR_TRY(encode_scalar(ctx, &log->record, tag, step, wall_time, value));
    ABAR_TRY(frame(log));
    return log->pending.length < FLUSH_AT ? ABAR_OK : write_pending(log);
}

abar_status abar__tfevents_flush(abar__tfevents *log)
{
    ABAR_TRY(write_pending(log));
    return abar__growing_sync(&log->file);
}

uint64_t abar__tfevents_bytes(const abar__tfevents *log) { return log->file.bytes; }

abar_status abar__tfevents_close(abar__tfevents *log)
{
    if (!log) return ABAR_OK;
    abar_context *ctx = log->file.ctx;
    abar_status written = write_pending(log);
    abar_status closed = abar__growing_close(&log->file);
    abar__text_free(ctx, &log->record);
    abar__text_free(ctx, &log->pending);
    abar__free(ctx, log, sizeof *log);
    return written < 0 ? written : closed;
}
