/* Reading and writing the messages of wire.h. */
#include "comm/wire.h"

#include <string.h>

enum { JOIN_BODY = ABAR_WIRE_JOIN_BYTES - ABAR_WIRE_HEADER };

static void put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)from[i] << 8 * i;
    return value;
}

static bool length_is_possible(abar__wire_kind kind, uint32_t n)
{
    switch (kind) {
    case ABAR_WIRE_CHALLENGE: return n == ABAR_WIRE_NONCE;
    case ABAR_WIRE_JOIN: return n == JOIN_BODY;
    case ABAR_WIRE_WELCOME: return n == ABAR_SHA256;
    case ABAR_WIRE_TABLE:
        return n > ABAR_WIRE_NONCE && n <= ABAR_WIRE_NONCE + ABAR_WIRE_RANKS * ABAR_WIRE_ENTRY &&
               (n - ABAR_WIRE_NONCE) % ABAR_WIRE_ENTRY == 0;
    case ABAR_WIRE_REFUSED:
    case ABAR_WIRE_FAIL: return n > 0 && n <= ABAR_WIRE_TEXT;
    case ABAR_WIRE_DATA: return n > 0 && n <= ABAR_WIRE_PIECE;
    case ABAR_WIRE_BEAT:
    case ABAR_WIRE_BYE: return n == 0;
    default: return false;
    }
}

static void read_join(const uint8_t *b, abar__wire_join *out)
{
    out->rank = (uint32_t)get(b, 4);
    out->to = (uint32_t)get(b + 4, 4);
    out->size = (uint32_t)get(b + 8, 4);
    out->port = (uint16_t)get(b + 12, 2);
    memcpy(out->nonce, b + 16, sizeof out->nonce);
    memcpy(out->mac, b + 16 + sizeof out->nonce, sizeof out->mac);
}

/* A text is shown to people: printable bytes, nothing that moves a terminal's cursor. */
static bool is_text(const uint8_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (b[i] < 0x20 || b[i] == 0x7f) return false;
    return true;
}

int abar__wire_read(const uint8_t *bytes, size_t n, abar__wire *out)
{
    static const uint8_t start[] = {'a', 'b', ABAR_WIRE_VERSION};
    if (memcmp(bytes, start, n < sizeof start ? n : sizeof start)) return -1; /* before more is read */
    if (n < ABAR_WIRE_HEADER) return 0;
    *out = (abar__wire){.kind = (abar__wire_kind)bytes[3], .length = (uint32_t)get(bytes + 4, 4), .number = get(bytes + 8, 8)};
    if (!length_is_possible(out->kind, out->length)) return -1;
    if (out->kind == ABAR_WIRE_DATA) return ABAR_WIRE_HEADER;
    if (n < ABAR_WIRE_HEADER + out->length) return 0;
    out->body = bytes + ABAR_WIRE_HEADER;
    if (out->kind == ABAR_WIRE_JOIN) read_join(out->body, &out->join);
    if ((out->kind == ABAR_WIRE_REFUSED || out->kind == ABAR_WIRE_FAIL) && !is_text(out->body, out->length)) return -1;
    return (int)(ABAR_WIRE_HEADER + out->length);
}

bool abar__wire_entry(const abar__wire *table, int ranks, int i, abar__wire_address *out)
{
    if (i < 0 || i >= ranks || table->length != ABAR_WIRE_NONCE + (uint32_t)ranks * ABAR_WIRE_ENTRY) return false;
    const uint8_t *b = table->body + ABAR_WIRE_NONCE + i * ABAR_WIRE_ENTRY;
    out->family = b[0];
    out->port = (uint16_t)get(b + 2, 2);
    memcpy(out->bytes, b + 4, sizeof out->bytes);
    return out->family == 4 || out->family == 6 || (out->family == 0 && i == 0);
}

void abar__wire_header(abar__wire_kind kind, size_t length, uint64_t number, uint8_t out[ABAR_WIRE_HEADER])
{
    out[0] = 'a', out[1] = 'b', out[2] = ABAR_WIRE_VERSION, out[3] = (uint8_t)kind;
    put(out + 4, length, 4);
    put(out + 8, number, 8);
}

void abar__wire_write_join(const abar__wire_join *join, uint8_t out[ABAR_WIRE_JOIN_BYTES])
{
    uint8_t *b = out + ABAR_WIRE_HEADER;
    abar__wire_header(ABAR_WIRE_JOIN, JOIN_BODY, 0, out);
    put(b, join->rank, 4);
    put(b + 4, join->to, 4);
    put(b + 8, join->size, 4);
    put(b + 12, join->port, 4); /* with two zeros */
    memcpy(b + 16, join->nonce, sizeof join->nonce);
    memcpy(b + 16 + sizeof join->nonce, join->mac, sizeof join->mac);
}

void abar__wire_write_entry(const abar__wire_address *a, uint8_t out[ABAR_WIRE_ENTRY])
{
    put(out, a->family, 2);
    put(out + 2, a->port, 2);
    memcpy(out + 4, a->bytes, sizeof a->bytes);
}
