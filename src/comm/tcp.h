/* Ranks over TCP: the connections that store.c makes, and the exchange over them (tcp.c). */
#ifndef ABAR_SRC_COMM_TCP_H
#define ABAR_SRC_COMM_TCP_H

#include "comm/comm_impl.h"
#include "comm/wire.h"

/* One other rank. */
typedef struct abar__link {
    int fd;                /* -1: the own rank, or closed */
    bool left;             /* it has said BYE */
    double heard;          /* when something last came from it */
    size_t sent, received; /* bytes of the present call */
    /* A message being received: its header, and its text; a DATA header of a later call stays here until that call. */
    uint8_t in[ABAR_WIRE_HEADER + ABAR_WIRE_TEXT + 1];
    size_t in_bytes;
    bool early;
    size_t in_data; /* bytes of DATA that are still to come */
    /* A message being sent: DATA, or first what is in control. */
    uint8_t header[ABAR_WIRE_HEADER];
    size_t header_left, out_data;
    uint8_t control[2 * (ABAR_WIRE_HEADER + ABAR_WIRE_TEXT)];
    size_t control_bytes, control_sent;
} abar__link;

/* Takes the connected sockets of all ranks, also if it fails. (size); the own rank's is -1. */
abar_status abar__comm_open_tcp(abar_context *ctx, int rank, int size, double timeout, const int *fds, abar_comm **out);

typedef struct abar__store_request {
    int rank, size;
    const char *host; /* where rank 0 listens */
    int port;
    double timeout;
    int local;  /* the rank among those of its machine; -1: unknown */
    bool apart; /* the ranks are known to be on several machines */
} abar__store_request;

/* Gathers the ranks at host:port and connects each with all others. *told: it has failed, with what rank 0 tells, too. */
abar_status abar__comm_open_store(abar_context *ctx, const abar__store_request *request, bool *told, abar_comm **out);

/* ---- store_accept.c: connections of ranks that join -------------------------------------------------------------------- */

typedef struct abar__door {
    abar_context *ctx;
    const char *token;                /* "": none */
    uint8_t session[ABAR_WIRE_NONCE]; /* zeros while ranks gather at rank 0 */
    int rank, size;
    int listener;
    int from;                      /* ranks below are not expected here */
    int *fds;                      /* (size): each rank's connection; -1: not yet */
    abar__wire_address *addresses; /* (size): where each listens; NULL: not asked for */
} abar__door;

/* Accepts until all ranks from `from` on but the own one are there, or abar__seconds() reaches end. Strangers are refused.
 * Returns the number of ranks that are missing. */
int abar__door_gather(abar__door *d, double end);
/* The proof that a side knows the token. label: 'J' for JOIN, 'W' for WELCOME. */
void abar__door_mac(const abar__door *d, char label, const uint8_t accepting[ABAR_WIRE_NONCE], const abar__wire_join *join,
                    uint8_t mac[ABAR_SHA256]);
bool abar__random_bytes(uint8_t *out, size_t n);
/* Sends all, at most until end. */
bool abar__send_all(int fd, const void *data, size_t n, double end);

#endif
