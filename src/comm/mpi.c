/* The exchange over MPI: transfers that do not block, and a loop that tests them, so that a rank that is lost is found by the
 * timeout. Beside the transfers, ranks tell each other that they wait, that the run has failed, or that they close. After a
 * failure MPI is not finalised, which would wait for the lost rank: mpirun ends what is left of the job. */
#include "comm/mpi.h"

#include "base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PIECE ((size_t)8 << 20) /* bytes of a transfer: its end shows progress, also on a slow network */
#define BEATS 4.0               /* in a timeout */
#define LAST_WORD 1.0           /* seconds to tell the others of a failure */
#define LEFT_PATIENCE 2.0       /* seconds for bytes that a rank sent before it left */
#define SPIN 0.001              /* seconds without progress before the loop sleeps */

enum { BEAT = 'b', FAIL = 'f', BYE = 'q' }; /* first byte of what ranks tell each other */

typedef struct peer {
    size_t sent, received;     /* bytes of the present call that are complete */
    size_t sending, receiving; /* bytes under way */
    double heard;
    bool left;
} peer;

typedef struct mpi {
    const abar__mpi_calls *calls;
    void *state;
    size_t state_bytes;
    bool own;    /* MPI was started here: it is finalised here */
    peer *peers; /* (size) */
    int *done;   /* (2 size) */
    double beaten;
    char failure[ABAR_COMM_FAILURE]; /* "": none */
} mpi;

typedef struct transfer {
    const void *const *send;
    const size_t *send_bytes;
    void *const *recv;
    const size_t *recv_bytes;
} transfer;

static void blame(const abar_comm *c, int rank, const char *reason)
{
    mpi *m = c->impl;
    if (!m->failure[0]) snprintf(m->failure, sizeof m->failure, "%s: %s", abar_comm_name(c, rank), reason);
}

static void blame_left(const abar_comm *c, int rank) { blame(c, rank, "has left the run while others still exchange with it"); }

static void blame_mpi(mpi *m, const char *call)
{
    if (!m->failure[0]) snprintf(m->failure, sizeof m->failure, "MPI: %s failed, a rank or its network is lost", call);
}

/* ---- what ranks tell each other ---------------------------------------------------------------------------------------- */

/* Also to a rank that has said BYE: it waits for ours. */
static void tell_all(const abar_comm *c, char kind, const char *text)
{
    mpi *m = c->impl;
    char message[1 + ABAR_COMM_FAILURE];
    const int n = snprintf(message, sizeof message, "%c%s", kind, text);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && (kind == BYE || !m->peers[r].left)) (void)m->calls->tell(m->state, r, message, n);
}

static void hear_all(const abar_comm *c)
{
    mpi *m = c->impl;
    char message[1 + ABAR_COMM_FAILURE + 1];
    int from, n;
    while ((n = m->calls->hear(m->state, &from, message, (int)sizeof message - 1)) > 0) {
        message[n] = 0;
        m->peers[from].heard = abar__seconds();
        if (message[0] == BYE) m->peers[from].left = true;
        if (message[0] == FAIL && !m->failure[0])
            snprintf(m->failure, sizeof m->failure, "%.*s", ABAR_COMM_FAILURE - 1, message + 1);
    }
    if (n < 0) blame_mpi(m, "MPI_Iprobe");
}

/* ---- transfers --------------------------------------------------------------------------------------------------------- */

/* Begins the next transfer with a rank in each direction where none is under way. */
static void begin(const abar_comm *c, const transfer *x, int r)
{
    mpi *m = c->impl;
    peer *p = &m->peers[r];
    const size_t to_receive = x->recv_bytes[r] - p->received, to_send = x->send_bytes[r] - p->sent;
    if (!p->receiving && to_receive) {
        p->receiving = to_receive < PIECE ? to_receive : PIECE;
        if (m->calls->recv(m->state, r, (uint8_t *)x->recv[r] + p->received, (int)p->receiving, r) < 0)
            blame_mpi(m, "MPI_Irecv");
    }
    if (!p->sending && to_send) {
        p->sending = to_send < PIECE ? to_send : PIECE;
        if (m->calls->send(m->state, c->size + r, (const uint8_t *)x->send[r] + p->sent, (int)p->sending, r) < 0)
            blame_mpi(m, "MPI_Isend");
    }
}

/* Counts complete transfers and begins the next ones. Returns how many were complete. */
static int advance(const abar_comm *c, const transfer *x)
{
    mpi *m = c->impl;
    const int done = m->calls->test(m->state, m->done);
    if (done < 0) blame_mpi(m, "MPI_Testsome");
    for (int i = 0; i < done; i++) {
        const int r = m->done[i] % c->size;
        peer *p = &m->peers[r];
        if (m->done[i] < c->size) {
            p->received += p->receiving, p->receiving = 0;
            p->heard = abar__seconds();
        } else {
            p->sent += p->sending, p->sending = 0;
        }
        begin(c, x, r);
    }
    return done;
}

static bool is_complete(const abar_comm *c, const transfer *x)
{
    const mpi *m = c->impl;
    for (int r = 0; r < c->size; r++)
        if (m->peers[r].sent < x->send_bytes[r] || m->peers[r].received < x->recv_bytes[r]) return false;
    return true;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

static void find_silent(const abar_comm *c)
{
    mpi *m = c->impl;
    int silent = -1;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && !m->peers[r].left && (silent < 0 || m->peers[r].heard < m->peers[silent].heard)) silent = r;
    abar__comm_silent_text(c, silent < 0 ? c->rank : silent, m->failure);
}

static void find_left(const abar_comm *c, const transfer *x)
{
    const mpi *m = c->impl;
    for (int r = 0; r < c->size; r++)
        if (m->peers[r].left && (m->peers[r].sent < x->send_bytes[r] || m->peers[r].received < x->recv_bytes[r]))
            blame_left(c, r);
}

/* MPI moves bytes while it is called: the loop sleeps little, and longer when nothing has happened for long. */
static void rest(double idle)
{
    if (idle < SPIN) {
        sched_yield();
        return;
    }
    const double most = 1e-3, sleep = idle / 20 < most ? idle / 20 : most;
    nanosleep(&(struct timespec){.tv_nsec = (long)(sleep * 1e9)}, NULL);
}

static void wait_a_little(const abar_comm *c, const transfer *x, double idle)
{
    mpi *m = c->impl;
    const double now = abar__seconds();
    hear_all(c);
    if (idle > c->timeout) find_silent(c);
    if (idle > LEFT_PATIENCE) find_left(c, x);
    if (now - m->beaten > c->timeout / BEATS) {
        m->beaten = now;
        tell_all(c, BEAT, "");
    }
    rest(idle);
}

static abar_status fail(abar_comm *c)
{
    mpi *m = c->impl;
    const double end = abar__seconds() + LAST_WORD;
    while (m->calls->told(m->state) > 0 && abar__seconds() < end) rest(SPIN); /* beats that are under way */
    tell_all(c, FAIL, m->failure);
    while (m->calls->told(m->state) > 0 && abar__seconds() < end) rest(SPIN);
    return abar__comm_lost(c, m->failure);
}

static abar_status exchange(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes)
{
    mpi *m = c->impl;
    const transfer x = {send, send_bytes, recv, recv_bytes};
    abar__waiting waiting = {.since = abar__seconds()};
    m->beaten = waiting.since;
    for (int r = 0; r < c->size; r++) {
        m->peers[r].sent = m->peers[r].received = m->peers[r].sending = m->peers[r].receiving = 0;
        begin(c, &x, r);
    }
    while (!m->failure[0]) {
        const bool moved = advance(c, &x) > 0;
        const double now = abar__seconds();
        if (moved) waiting = (abar__waiting){.since = now};
        if (!m->failure[0] && is_complete(c, &x)) return ABAR_OK;
        wait_a_little(c, &x, abar__waiting_look(&waiting, now, c->timeout));
    }
    return fail(c);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------------- */

/* All ranks close: then finalising does not wait for long. */
static bool all_close(const abar_comm *c)
{
    mpi *m = c->impl;
    const double start = abar__seconds();
    while (m->calls->told(m->state) > 0 && abar__seconds() - start < c->timeout) rest(SPIN); /* beats that are under way */
    tell_all(c, BYE, "");
    for (;;) {
        int missing = m->calls->told(m->state);
        hear_all(c);
        for (int r = 0; r < c->size; r++) missing += r != c->rank && !m->peers[r].left;
        if (!missing) return true;
        const double idle = abar__seconds() - start;
        if (idle > c->timeout || m->failure[0]) return false;
        rest(idle);
    }
}

static void free_mpi(abar_context *ctx, mpi *m, int size)
{
    const size_t n = (size_t)size;
    abar__free(ctx, m->state, m->state_bytes);
    abar__free(ctx, m->peers, n * sizeof *m->peers);
    abar__free(ctx, m->done, 2 * n * sizeof *m->done);
    abar__free(ctx, m, sizeof *m);
}

/* After a failure MPI may still write into its requests: their memory stays. */
static void close_mpi(abar_comm *c)
{
    mpi *m = c->impl;
    const bool whole = !c->failed && all_close(c);
    m->calls->detach(m->state, whole && m->own);
    if (!whole) m->state = NULL, m->state_bytes = 0;
    free_mpi(c->ctx, m, c->size);
    c->impl = NULL;
}

static void tell(abar_comm *c, const char *text)
{
    mpi *m = c->impl;
    snprintf(m->failure, sizeof m->failure, "%s", text);
    (void)fail(c);
}

static abar_status hear(abar_comm *c)
{
    const mpi *m = c->impl;
    hear_all(c);
    for (int r = 0; r < c->size; r++)
        if (m->peers[r].left) blame_left(c, r);
    return m->failure[0] ? abar__comm_lost(c, m->failure) : ABAR_OK;
}

static const abar__comm_ops mpi_ops = {"mpi", exchange, close_mpi, tell, hear};

static abar_status alloc_mpi(abar_context *ctx, const abar__mpi_calls *calls, int size, size_t state_bytes, mpi **out)
{
    const size_t n = (size_t)size;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    mpi *m = *out = memory;
    m->calls = calls;
    ABAR_TRY(abar__alloc(ctx, n * sizeof *m->peers, &memory));
    m->peers = memory;
    ABAR_TRY(abar__alloc(ctx, 2 * n * sizeof *m->done, &memory));
    m->done = memory;
    ABAR_TRY(abar__alloc(ctx, state_bytes, &m->state));
    m->state_bytes = state_bytes;
    return ABAR_OK;
}

/* The communicator of its own, which all ranks make. */
static abar_status attach(abar_comm *c)
{
    mpi *m = c->impl;
    const double start = abar__seconds();
    int done = m->calls->attach(m->state);
    for (int r = 0; r < c->size; r++) m->peers[r].heard = start;
    while (done == 0 && abar__seconds() - start < c->timeout) {
        done = m->calls->test(m->state, m->done);
        rest(abar__seconds() - start);
    }
    if (done > 0) return ABAR_OK;
    c->failed = true;
    return abar__fail(c->ctx, ABAR_E_PEER, "MPI: %s",
                      done < 0 ? "the ranks could not make a communicator" : "a rank has not come within the timeout");
}

abar_status abar__comm_open_mpi(abar_context *ctx, const abar__mpi_calls *calls, const abar__launch *launch, double timeout,
                                abar_comm **out)
{
    int rank, size;
    size_t state_bytes;
    char text[128];
    const int started = calls->start(&rank, &size, &state_bytes, text, sizeof text);
    if (started < 0) return abar__fail(ctx, ABAR_E_BACKEND, "MPI: %s", text);
    if (size != launch->size || rank != launch->rank)
        return abar__fail(ctx, ABAR_E_BACKEND,
                          "MPI: sees rank %d of %d and %s has started rank %d of %d, the module belongs to another MPI: set "
                          "ABAR_MPI_MODULE or use --transport store",
                          rank, size, launch->name, launch->rank, launch->size);
    mpi *m = NULL;
    *out = NULL;
    abar_status status = alloc_mpi(ctx, calls, size, state_bytes, &m);
    if (status == ABAR_OK) status = abar__comm_create(ctx, rank, size, timeout, out);
    if (status < 0) {
        if (m) free_mpi(ctx, m, size);
        return status;
    }
    m->own = started == 0;
    (*out)->ops = &mpi_ops, (*out)->impl = m;
    status = attach(*out);
    if (status < 0) abar_comm_close(*out);
    return status;
}
