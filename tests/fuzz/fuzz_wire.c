/* Bytes that come from the network are read as messages, one after another, in pieces of any length. What a message refers to
 * lies within the bytes that were given. */
#include "comm/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

/* A JOIN that was read is written as it was; its two bytes without meaning are zeros then. */
static void check_join(const abar__wire *m)
{
    uint8_t back[ABAR_WIRE_JOIN_BYTES];
    abar__wire again;
    abar__wire_write_join(&m->join, back);
    require(abar__wire_read(back, sizeof back, &again) == (int)sizeof back);
    require(memcmp(&again.join, &m->join, sizeof again.join) == 0);
}

static void check_table(const abar__wire *m)
{
    const int ranks = (int)((m->length - ABAR_WIRE_NONCE) / ABAR_WIRE_ENTRY);
    abar__wire_address a;
    for (int i = -1; i <= ranks; i++)
        if (abar__wire_entry(m, ranks, i, &a)) require(i >= 0 && i < ranks && (a.family == 4 || a.family == 6 || i == 0));
    require(!abar__wire_entry(m, ranks + 1, 0, &a));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        uint8_t *exact = malloc(size - at); /* the sanitizer sees a byte too many */
        require(exact != NULL);
        memcpy(exact, data + at, size - at);
        abar__wire m;
        const int read = abar__wire_read(exact, size - at, &m);
        require(read >= -1 && read <= (int)(size - at));
        /* with fewer bytes it is the same message, an incomplete one, or none, too */
        for (size_t n = 0; n < (read > 0 ? (size_t)read : 0); n++) {
            abar__wire part;
            require(abar__wire_read(exact, n, &part) == 0);
        }
        if (read > 0 && m.kind == ABAR_WIRE_JOIN) check_join(&m);
        if (read > 0 && m.kind == ABAR_WIRE_TABLE) check_table(&m);
        if (read > 0 && m.body) require(m.body == exact + ABAR_WIRE_HEADER && read == (int)(ABAR_WIRE_HEADER + m.length));
        free(exact);
        if (read <= 0) return 0;
        at += (size_t)read;
    }
    return 0;
}
