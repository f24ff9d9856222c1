/* Messages between ranks over TCP. Each begins with 16 bytes: "ab", the protocol's version, the kind, the number of bytes that
 * follow (4) and a number (8). Numbers are little-endian. Reading them is pure: bytes in, a message or an error out. */
#ifndef ABAR_SRC_COMM_WIRE_H
#define ABAR_SRC_COMM_WIRE_H

#include "comm/sha256.h"

#define ABAR_WIRE_VERSION 1
#define ABAR_WIRE_HEADER 16
#define ABAR_WIRE_NONCE 16
#define ABAR_WIRE_TEXT 511                /* longest text */
#define ABAR_WIRE_PIECE ((size_t)1 << 20) /* most bytes of one DATA */
#define ABAR_WIRE_ENTRY 20                /* bytes of a rank in the TABLE */
#define ABAR_WIRE_RANKS 1024

typedef enum abar__wire_kind {
    ABAR_WIRE_CHALLENGE = 1, /* who accepts a connection: a nonce */
    ABAR_WIRE_JOIN,          /* who connects: its rank, and a proof that it knows the token */
    ABAR_WIRE_WELCOME,       /* who accepts: a proof that it knows the token, too */
    ABAR_WIRE_TABLE,         /* rank 0: the session's nonce, and the address of every rank */
    ABAR_WIRE_REFUSED,       /* why a rank cannot join */
    ABAR_WIRE_DATA,          /* bytes of call `number`; the header alone is a message, they follow */
    ABAR_WIRE_BEAT,          /* "I wait, too" */
    ABAR_WIRE_FAIL,          /* the run has failed: the text */
    ABAR_WIRE_BYE,           /* the sender closes */
    ABAR_WIRE_KINDS
} abar__wire_kind;

typedef struct abar__wire_join {
    uint32_t rank, to, size; /* the sender, the receiver, the number of ranks */
    uint16_t port;           /* where the sender listens */
    uint8_t nonce[ABAR_WIRE_NONCE];
    uint8_t mac[ABAR_SHA256];
} abar__wire_join;

typedef struct abar__wire_address {
    uint8_t family; /* 4 or 6; 0: none (rank 0, to which all are connected) */
    uint8_t bytes[16];
    uint16_t port;
} abar__wire_address;

typedef struct abar__wire {
    abar__wire_kind kind;
    uint32_t length; /* of what follows the header */
    uint64_t number;
    const uint8_t *body; /* in the bytes that were read: nonce, mac, text or table */
    abar__wire_join join;
} abar__wire;

/* The message at the start of n bytes. Returns how many it has, 0 if it is not complete, -1 if it is none. DATA: the header. */
int abar__wire_read(const uint8_t *bytes, size_t n, abar__wire *out);
/* Entry i of a TABLE of `ranks`; its body begins with the session's nonce. */
bool abar__wire_entry(const abar__wire *table, int ranks, int i, abar__wire_address *out);

void abar__wire_header(abar__wire_kind kind, size_t length, uint64_t number, uint8_t out[ABAR_WIRE_HEADER]);
#define ABAR_WIRE_JOIN_BYTES (ABAR_WIRE_HEADER + 16 + ABAR_WIRE_NONCE + ABAR_SHA256)
void abar__wire_write_join(const abar__wire_join *join, uint8_t out[ABAR_WIRE_JOIN_BYTES]);
void abar__wire_write_entry(const abar__wire_address *a, uint8_t out[ABAR_WIRE_ENTRY]);

#endif
