/* The exchange over TCP connections between all pairs of ranks. A call's bytes to a rank are DATA messages with the call's
 * number, so that a rank that is ahead is told from one that is behind. A rank that waits sends BEATs: when nothing moves for
 * the timeout, the one that has been silent longest is to blame, not one that waits for it, too. */
#define _GNU_SOURCE /* TCP_USER_TIMEOUT */
#include "comm/tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define BEATS 4.0     /* in a timeout */
#define GOODBYE 2.0   /* seconds that closing waits for the others */
#define LAST_WORD 1.0 /* seconds to tell the others of a failure */

typedef struct tcp {
    uint64_t call;
    abar__link *links;               /* (size) */
    struct pollfd *poll;             /* (size) */
    double beaten;                   /* when BEATs were sent last */
    char failure[ABAR_COMM_FAILURE]; /* of the present call; "": none */
} tcp;

typedef struct transfer {
    const void *const *send;
    const size_t *send_bytes;
    void *const *recv;
    const size_t *recv_bytes;
} transfer;

/* ---- failures ---------------------------------------------------------------------------------------------------------- */

static void blame(const abar_comm *c, int rank, const char *reason)
{
    tcp *t = c->impl;
    if (!t->failure[0]) snprintf(t->failure, sizeof t->failure, "%s: %s", abar_comm_name(c, rank), reason);
}

static void blame_left(const abar_comm *c, int rank) { blame(c, rank, "has left the run while others still exchange with it"); }

static void lose(const abar_comm *c, int rank)
{
    tcp *t = c->impl;
    abar__link *l = &t->links[rank];
    close(l->fd);
    l->fd = -1;
    if (!l->left) blame(c, rank, "the connection was lost, it has ended or its network is cut");
}

/* ---- sending ----------------------------------------------------------------------------------------------------------- */

static void add_control(abar__link *l, abar__wire_kind kind, const char *text)
{
    const size_t n = strlen(text), bytes = ABAR_WIRE_HEADER + n;
    if (l->control_sent == l->control_bytes) l->control_sent = l->control_bytes = 0;
    if (l->control_bytes + bytes > sizeof l->control) return; /* a receiver that takes nothing needs no more of them */
    abar__wire_header(kind, n, 0, l->control + l->control_bytes);
    memcpy(l->control + l->control_bytes + ABAR_WIRE_HEADER, text, n);
    l->control_bytes += bytes;
}

/* Between two DATA messages. Returns the bytes sent; -1: the connection is lost. */
static ssize_t send_control(abar__link *l)
{
    if (l->header_left || l->out_data || l->control_sent == l->control_bytes) return 0;
    const ssize_t n =
        send(l->fd, l->control + l->control_sent, l->control_bytes - l->control_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    l->control_sent += (size_t)n;
    return n;
}

/* The rest of the present DATA message and its header, or the next one. */
static ssize_t send_data(tcp *t, abar__link *l, const uint8_t *data, size_t bytes)
{
    if (!l->header_left && !l->out_data) {
        if (l->sent == bytes || l->control_sent < l->control_bytes) return 0;
        l->out_data = bytes - l->sent < ABAR_WIRE_PIECE ? bytes - l->sent : ABAR_WIRE_PIECE;
        abar__wire_header(ABAR_WIRE_DATA, l->out_data, t->call, l->header);
        l->header_left = ABAR_WIRE_HEADER;
    }
    struct iovec parts[2] = {{l->header + ABAR_WIRE_HEADER - l->header_left, l->header_left},
                             {(void *)(uintptr_t)(data + l->sent), l->out_data}};
    const ssize_t n = sendmsg(l->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    const size_t of_header = (size_t)n < l->header_left ? (size_t)n : l->header_left, of_data = (size_t)n - of_header;
    l->header_left -= of_header;
    l->out_data -= of_data;
    l->sent += of_data;
    return n;
}

/* ---- receiving --------------------------------------------------------------------------------------------------------- */

/* Takes what is in `in`, a complete message. Returns whether more can be read now. */
static bool take_message(const abar_comm *c, int rank, const abar__wire *m, size_t expected)
{
    tcp *t = c->impl;
    abar__link *l = &t->links[rank];
    switch (m->kind) {
    case ABAR_WIRE_DATA:
        if (m->number > t->call) return !(l->early = true); /* it stays in `in` */
        if (m->number < t->call || m->length > expected - l->received) {
            blame(c, rank, "sends other bytes than this rank expects, the ranks make different calls");
            return false;
        }
        l->in_data = m->length;
        break;
    case ABAR_WIRE_BEAT: break;
    case ABAR_WIRE_BYE: l->left = true; break;
    case ABAR_WIRE_FAIL:
        if (!t->failure[0]) snprintf(t->failure, sizeof t->failure, "%.*s", (int)m->length, (const char *)m->body);
        return false;
    default: blame(c, rank, "sends what is no message of abar"); return false;
    }
    l->in_bytes = 0;
    return true;
}

/* Reads a part of a header or text. Returns the bytes read; -1: the connection is lost. */
static ssize_t receive_message(const abar_comm *c, int rank, size_t expected)
{
    tcp *t = c->impl;
    abar__link *l = &t->links[rank];
    abar__wire m;
    size_t need = ABAR_WIRE_HEADER;
    if (l->in_bytes >= need && abar__wire_read(l->in, l->in_bytes, &m) == 0) need += m.length;
    if (need > sizeof l->in) {
        blame(c, rank, "sends what is no message of abar");
        return 0;
    }
    const ssize_t n = recv(l->fd, l->in + l->in_bytes, need - l->in_bytes, MSG_DONTWAIT);
    if (n == 0) return -1;
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    l->in_bytes += (size_t)n;
    const int read = abar__wire_read(l->in, l->in_bytes, &m);
    if (read < 0)
        blame(c, rank, "sends what is no message of abar");
    else if (read > 0)
        (void)take_message(c, rank, &m, expected);
    return n;
}

static ssize_t receive_data(abar__link *l, uint8_t *to)
{
    const ssize_t n = recv(l->fd, to + l->received, l->in_data, MSG_DONTWAIT);
    if (n == 0) return -1;
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    l->in_data -= (size_t)n;
    l->received += (size_t)n;
    return n;
}

/* ---- one turn ---------------------------------------------------------------------------------------------------------- */

/* All that can be sent and received now. Returns the bytes of DATA and messages; -1: the connection is lost. */
static ssize_t move_link(const abar_comm *c, int rank, const transfer *x)
{
    tcp *t = c->impl;
    abar__link *l = &t->links[rank];
    ssize_t moved = 0, n;
    const double now = abar__seconds();
    do {
        n = send_control(l);
        if (n >= 0) n = send_data(t, l, x->send[rank], x->send_bytes[rank]);
        moved += n > 0 ? n : 0;
    } while (n > 0);
    if (n < 0) return -1;
    if (l->early) return moved;
    do {
        const bool of_data = l->in_data > 0;
        n = of_data ? receive_data(l, x->recv[rank]) : receive_message(c, rank, x->recv_bytes[rank]);
        if (n > 0) l->heard = now;
        if (of_data && n > 0) moved += n;
    } while (n > 0 && !l->early && !t->failure[0]);
    return n < 0 ? -1 : moved;
}

/* Returns the bytes moved, and whether the call is complete. */
static size_t move_all(const abar_comm *c, const transfer *x, bool *complete)
{
    tcp *t = c->impl;
    size_t moved = 0;
    *complete = true;
    for (int i = 1; i < c->size && !t->failure[0]; i++) {
        const int r = (c->rank + i) % c->size;
        abar__link *l = &t->links[r];
        const ssize_t n = l->fd < 0 ? 0 : move_link(c, r, x);
        if (n < 0) lose(c, r);
        moved += n > 0 ? (size_t)n : 0;
        const bool waits = l->sent < x->send_bytes[r] || l->received < x->recv_bytes[r];
        if (waits && l->fd < 0) blame_left(c, r);
        if (waits) *complete = false;
    }
    return moved;
}

/* The next call's first message may be here already. */
static void begin_call(const abar_comm *c, const transfer *x)
{
    tcp *t = c->impl;
    t->call++;
    for (int r = 0; r < c->size; r++) {
        abar__link *l = &t->links[r];
        l->sent = l->received = 0;
        abar__wire m;
        if (!l->early || abar__wire_read(l->in, l->in_bytes, &m) <= 0) continue;
        l->early = false;
        (void)take_message(c, r, &m, x->recv_bytes[r]);
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

static void send_beats(const abar_comm *c, double now)
{
    tcp *t = c->impl;
    if (now - t->beaten < c->timeout / BEATS) return;
    t->beaten = now;
    for (int r = 0; r < c->size; r++)
        if (t->links[r].fd >= 0) add_control(&t->links[r], ABAR_WIRE_BEAT, "");
}

static void blame_silent(const abar_comm *c)
{
    tcp *t = c->impl;
    int silent = -1;
    for (int pass = 0; pass < 2 && silent < 0; pass++) /* first among those that are not ahead of this rank */
        for (int r = 0; r < c->size; r++) {
            const abar__link *l = &t->links[r];
            if (r == c->rank || l->left || (pass == 0 && l->early)) continue;
            if (silent < 0 || l->heard < t->links[silent].heard) silent = r;
        }
    abar__comm_silent_text(c, silent < 0 ? c->rank : silent, t->failure);
}

static void wait_for_links(const abar_comm *c, const transfer *x, double seconds)
{
    tcp *t = c->impl;
    for (int r = 0; r < c->size; r++) {
        const abar__link *l = &t->links[r];
        const bool sends = l->sent < x->send_bytes[r] || l->header_left || l->control_sent < l->control_bytes;
        const short events = (short)((l->early ? 0 : POLLIN) | (sends ? POLLOUT : 0));
        t->poll[r] = (struct pollfd){.fd = events ? l->fd : -1, .events = events};
    }
    (void)poll(t->poll, (nfds_t)c->size, (int)(seconds * 1e3) + 1);
}

/* Tells the others what has happened, for a short time. What is left of a DATA message goes first. */
static void tell_others(const abar_comm *c, const transfer *x)
{
    tcp *t = c->impl;
    const double end = abar__seconds() + LAST_WORD;
    for (int r = 0; r < c->size; r++) add_control(&t->links[r], ABAR_WIRE_FAIL, t->failure);
    for (bool waits = true; waits && abar__seconds() < end;) {
        waits = false;
        for (int r = 0; r < c->size; r++) {
            abar__link *l = &t->links[r];
            if (l->fd < 0) continue;
            const bool within = l->header_left || l->out_data;
            const ssize_t n = within ? send_data(t, l, x->send[r], x->send_bytes[r]) : send_control(l);
            if (n < 0) close(l->fd), l->fd = -1;
            waits |= l->fd >= 0 && (l->control_sent < l->control_bytes);
        }
        if (waits) (void)poll(NULL, 0, 5);
    }
}

static abar_status exchange(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes)
{
    tcp *t = c->impl;
    const transfer x = {send, send_bytes, recv, recv_bytes};
    abar__waiting waiting = {.since = abar__seconds()};
    begin_call(c, &x);
    t->beaten = waiting.since;
    for (;;) {
        bool complete;
        const size_t moved = move_all(c, &x, &complete);
        if (t->failure[0]) break;
        if (complete) return ABAR_OK;
        const double now = abar__seconds();
        if (moved) {
            waiting = (abar__waiting){.since = now};
            continue;
        }
        if (abar__waiting_look(&waiting, now, c->timeout) > c->timeout) {
            blame_silent(c);
            break;
        }
        send_beats(c, now);
        wait_for_links(c, &x, abar__look_seconds(c->timeout));
    }
    tell_others(c, &x);
    return abar__comm_lost(c, t->failure);
}

/* An exchange of nothing. */
static transfer nothing(abar_comm *c)
{
    abar__comm_clear(c);
    return (transfer){c->send, c->send_bytes, c->recv, c->recv_bytes};
}

static void tell(abar_comm *c, const char *text)
{
    tcp *t = c->impl;
    const transfer x = nothing(c);
    for (int r = 0; r < c->size; r++) t->links[r].sent = t->links[r].received = 0;
    snprintf(t->failure, sizeof t->failure, "%s", text);
    tell_others(c, &x);
}

/* What others send of the next call stays where it is. */
static abar_status hear(abar_comm *c)
{
    tcp *t = c->impl;
    const transfer x = nothing(c);
    bool complete;
    for (int r = 0; r < c->size; r++) t->links[r].sent = t->links[r].received = 0;
    (void)move_all(c, &x, &complete);
    for (int r = 0; r < c->size && !t->failure[0]; r++)
        if (t->links[r].left) blame_left(c, r);
    return t->failure[0] ? abar__comm_lost(c, t->failure) : ABAR_OK;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------------- */

/* Reads what still comes, so that closing does not reset the connection: a reset could take our last bytes with it. */
static bool drain(abar__link *l)
{
    uint8_t ignored[4096];
    ssize_t n;
    do n = recv(l->fd, ignored, sizeof ignored, MSG_DONTWAIT);
    while (n > 0);
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static void say_goodbye(const abar_comm *c)
{
    tcp *t = c->impl;
    const double end = abar__seconds() + (c->timeout < GOODBYE ? c->timeout : GOODBYE);
    uint8_t bye[ABAR_WIRE_HEADER];
    abar__wire_header(ABAR_WIRE_BYE, 0, 0, bye);
    for (int r = 0; r < c->size; r++) {
        abar__link *l = &t->links[r];
        if (l->fd < 0) continue;
        bool whole = true;
        while (whole && l->control_sent < l->control_bytes && abar__seconds() < end) whole = send_control(l) > 0;
        if (!c->failed && whole) (void)abar__send_all(l->fd, bye, sizeof bye, end);
        shutdown(l->fd, SHUT_WR);
    }
    for (bool waits = true; waits && !c->failed && abar__seconds() < end;) {
        waits = false;
        for (int r = 0; r < c->size; r++) {
            abar__link *l = &t->links[r];
            if (l->fd < 0) continue;
            if (drain(l))
                close(l->fd), l->fd = -1;
            else
                waits = true;
        }
        if (waits) (void)poll(NULL, 0, 2);
    }
}

static void free_tcp(abar_context *ctx, tcp *t, int size)
{
    const size_t n = (size_t)size;
    for (int r = 0; t->links && r < size; r++)
        if (t->links[r].fd >= 0) close(t->links[r].fd);
    abar__free(ctx, t->links, n * sizeof *t->links);
    abar__free(ctx, t->poll, n * sizeof *t->poll);
    abar__free(ctx, t, sizeof *t);
}

static void close_tcp(abar_comm *c)
{
    say_goodbye(c);
    free_tcp(c->ctx, c->impl, c->size);
    c->impl = NULL;
}

static const abar__comm_ops tcp_ops = {"store", exchange, close_tcp, tell, hear};

static void set_options(int fd, double timeout)
{
    const int on = 1, idle = timeout < 4 ? 1 : (int)(timeout / 4), probes = 3;
    const unsigned limit = (unsigned)(timeout < 4e6 ? timeout * 1e3 : 4e9); /* milliseconds that sent bytes stay unconfirmed */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

static abar_status create(abar_context *ctx, int rank, int size, double timeout, const int *fds, tcp **made, abar_comm **out)
{
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof **made, &memory));
    tcp *t = *made = memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)size * sizeof *t->poll, &memory));
    t->poll = memory;
    ABAR_TRY(abar__comm_create(ctx, rank, size, timeout, out));
    ABAR_TRY(abar__alloc(ctx, (size_t)size * sizeof *t->links, &memory));
    t->links = memory;
    const double now = abar__seconds();
    for (int r = 0; r < size; r++) {
        t->links[r].fd = fds[r];
        t->links[r].heard = now;
        if (fds[r] >= 0) set_options(fds[r], timeout);
    }
    return ABAR_OK;
}

abar_status abar__comm_open_tcp(abar_context *ctx, int rank, int size, double timeout, const int *fds, abar_comm **out)
{
    tcp *t = NULL;
    *out = NULL;
    const abar_status status = create(ctx, rank, size, timeout, fds, &t, out);
    if (status == ABAR_OK) {
        (*out)->ops = &tcp_ops, (*out)->impl = t;
        return ABAR_OK;
    }
    for (int r = 0; r < size; r++)
        if (fds[r] >= 0) close(fds[r]);
    if (*out) abar__comm_free(*out);
    if (t) free_tcp(ctx, t, size);
    return status;
}
