/* What a transport provides, and what it may use of comm.c. */
#ifndef ABAR_SRC_COMM_IMPL_H
#define ABAR_SRC_COMM_IMPL_H

#include "base/base_impl.h"
#include "comm/comm.h"

#define ABAR_COMM_RANKS 1024 /* at most */
#define ABAR_COMM_LOCAL 256  /* of one machine, forked */
#define ABAR_COMM_HOST 64    /* bytes of a host's name */
#define ABAR_COMM_NAME 96    /* "rank 1023 on HOST" */
#define ABAR_COMM_FAILURE ABAR_COMM_TEXT

/* A transport is one operation: everything else in comm.h is made of exchanges. Between two ranks bytes arrive in the order of
 * the calls, and a call returns when this rank's part is complete: what it sent may then be overwritten. It does not wait for
 * ranks with which it exchanges nothing. */
typedef struct abar__comm_ops {
    const char *name;
    /* c->size pointers and sizes each; those of the own rank are 0. A failure goes through abar__comm_lost. */
    abar_status (*exchange)(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes);
    void (*close)(abar_comm *c); /* frees impl; after a failure, too. It does not hang */
    /* Between exchanges: tells all others of a failure; whether another has, or has ended: then abar__comm_lost. NULL: there
     * are no others. */
    void (*tell)(abar_comm *c, const char *text);
    abar_status (*hear)(abar_comm *c);
} abar__comm_ops;

struct abar_comm {
    abar_context *ctx;
    const abar__comm_ops *ops;
    void *impl; /* the transport's */
    int rank, size, local;
    int cores;      /* of its machine, that this rank may take */
    double timeout; /* seconds */
    uint64_t sent;
    double seconds; /* spent in exchanges */
    bool failed;
    char failure[ABAR_COMM_FAILURE];
    char (*names)[ABAR_COMM_NAME]; /* (size) */
    /* Arguments of exchanges that comm.c and tree.c make, (size) each. */
    const void **send;
    void **recv;
    size_t *send_bytes, *recv_bytes;
    uint8_t *scratch; /* ABAR_COMM_SCRATCH bytes for sums; NULL: one rank */
};

#define ABAR_COMM_SCRATCH ((size_t)4 << 20)

/* How long a call has waited for others. Time in which this process did not run itself, because its job or its machine stood
 * still, counts as one look: the others may have stood still with it. */
typedef struct abar__waiting {
    double since, seconds;
} abar__waiting;

/* Seconds between two looks, at most. */
static inline double abar__look_seconds(double timeout) { return timeout < 4.0 ? timeout / 4.0 : 1.0; }

static inline double abar__waiting_look(abar__waiting *w, double now, double timeout)
{
    const double passed = now - w->since, most = abar__look_seconds(timeout);
    w->seconds += passed < most ? passed : most;
    w->since = now;
    return w->seconds;
}

/* Cores that a process may use, a bit each; none: not known. */
enum { ABAR_CORE_WORDS = 16 };
typedef struct abar__core_set {
    uint64_t word[ABAR_CORE_WORDS];
} abar__core_set;

abar__core_set abar__cores_own(void);
void abar__cores_join(abar__core_set *to, const abar__core_set *from);
/* What each of so many ranks of a machine may take: its share of what they may use together, at most what it may use itself. */
int abar__cores_each(const abar__core_set *together, const abar__core_set *own, int ranks);

/* Of a transport's open: allocates the struct, with names of ranks alone. The transport then sets ops and impl. */
abar_status abar__comm_create(abar_context *ctx, int rank, int size, double timeout, abar_comm **out);
/* Frees it; impl is gone. */
void abar__comm_free(abar_comm *c);
/* Records the failure: every later call repeats it. Returns ABAR_E_PEER. */
abar_status abar__comm_lost(abar_comm *c, const char *text);
/* "rank 1 on HOST: no answer for 30 seconds, ...": what every transport says of a rank that is silent. */
void abar__comm_silent_text(const abar_comm *c, int rank, char text[ABAR_COMM_FAILURE]);
/* Sets all sizes of the workspace's arguments to 0. */
void abar__comm_clear(abar_comm *c);
abar_status abar__comm_exchange_scratch(abar_comm *c); /* an exchange with the workspace's arguments */

/* The transports. Each sets out with its ops; on failure there is nothing to close. */
abar_status abar__comm_open_self(abar_context *ctx, double timeout, abar_comm **out);
abar_status abar__comm_open_local(abar_context *ctx, int ranks, double timeout, abar_comm **out);

#endif
