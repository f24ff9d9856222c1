/* The store: ranks that no MPI connects gather at rank 0's address, learn where all others listen, and connect pairwise. Nobody
 * listens afterwards. Each connection begins with a proof of both sides that they know the token; what is sent later is neither
 * signed nor encrypted. */
#define _GNU_SOURCE /* SOCK_NONBLOCK, SOCK_CLOEXEC */
#include "comm/tcp.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOKEN_LEAST 8   /* characters */
#define TRY_AGAIN_MS 50 /* between two attempts to reach a rank that does not listen yet */
#define ONE_TRY 5.0     /* seconds for one handshake */
#define PROBE 2.0       /* seconds in which rank 0 listens, if it does */
#define MARGIN 2.0      /* others wait so much longer than rank 0, whose text says more */
#define NAME_MOST 300
#define TABLE_MOST (ABAR_WIRE_HEADER + ABAR_WIRE_NONCE + ABAR_WIRE_RANKS * ABAR_WIRE_ENTRY)

typedef struct address {
    struct sockaddr_storage any;
    socklen_t bytes;
} address;

typedef struct store {
    abar__door door;
    const char *host;
    int port, local;
    bool apart, told;
    double timeout, end;
    address master;
    uint8_t message[TABLE_MOST]; /* the last one that was read */
} store;

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

static bool is_loopback(const address *a)
{
    const struct sockaddr_in *four = (const void *)&a->any;
    const struct sockaddr_in6 *six = (const void *)&a->any;
    if (a->any.ss_family == AF_INET) return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    return a->any.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static abar_status find_master(store *s)
{
    char port[16];
    snprintf(port, sizeof port, "%d", s->port);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const int error = getaddrinfo(s->host, port, &hints, &found);
    if (error || !found)
        return abar__fail(s->door.ctx, ABAR_E_NOT_FOUND, "store: %s: %s, set MASTER_ADDR to rank 0's host", s->host,
                          gai_strerror(error));
    s->master.bytes = found->ai_addrlen;
    memcpy(&s->master.any, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return ABAR_OK;
}

/* Where Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, rank 0 would listen to itself. Of a machine's
 * ranks the first one tells. */
static abar_status check_address(store *s)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (!s->apart || !is_loopback(&s->master)) return ABAR_OK;
    (void)getnameinfo((const struct sockaddr *)&s->master.any, s->master.bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    s->told = s->local > 0;
    return abar__fail(s->door.ctx, ABAR_E_ARGUMENT,
                      "store: %s is %s on this machine, which others cannot reach: set MASTER_ADDR to the address of rank 0's "
                      "machine in their network, or correct the name in /etc/hosts",
                      s->host, text);
}

/* What is appended where ranks have not come to an address that may be wrong. */
static const char *hint_of(const store *s)
{
    const bool asked = strcmp(s->host, "localhost") == 0 || strncmp(s->host, "127.", 4) == 0 || strcmp(s->host, "::1") == 0;
    return is_loopback(&s->master) && !asked
               ? "; the name is a loopback address here, which other machines cannot reach: set MASTER_ADDR to another one"
               : "";
}

/* What this rank lacks: rank 0 tells of it where it lacks it, too, and so does not listen. */
static bool first_listens(const store *s);

static abar_status check_token(store *s)
{
    const char *token = getenv("ABAR_TOKEN");
    s->door.token = token ? token : "";
    const size_t n = strlen(s->door.token);
    const bool lacks = n < TOKEN_LEAST && !(n == 0 && is_loopback(&s->master));
    s->told = lacks && s->door.rank > 0 && !first_listens(s);
    if (n == 0 && !is_loopback(&s->master))
        return abar__fail(s->door.ctx, ABAR_E_ARGUMENT,
                          "store: %s can be reached from other machines, set ABAR_TOKEN to the same secret on all ranks "
                          "(export ABAR_TOKEN=$(openssl rand -hex 16))",
                          s->host);
    if (n > 0 && n < TOKEN_LEAST)
        return abar__fail(s->door.ctx, ABAR_E_ARGUMENT, "ABAR_TOKEN: has %zu characters, give %d or more", n, TOKEN_LEAST);
    return ABAR_OK;
}

static void set_port(address *a, uint16_t port)
{
    if (a->any.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&a->any)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)&a->any)->sin_port = htons(port);
}

static uint16_t port_of(const address *a)
{
    return ntohs(a->any.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&a->any)->sin6_port
                                              : ((const struct sockaddr_in *)(const void *)&a->any)->sin_port);
}

static address from_wire(const abar__wire_address *w)
{
    address a = {.bytes = sizeof(struct sockaddr_in)};
    if (w->family == 6) {
        struct sockaddr_in6 six = {.sin6_family = AF_INET6};
        memcpy(&six.sin6_addr, w->bytes, 16);
        a.bytes = sizeof six;
        memcpy(&a.any, &six, sizeof six);
    } else {
        struct sockaddr_in four = {.sin_family = AF_INET};
        memcpy(&four.sin_addr, w->bytes, 4);
        memcpy(&a.any, &four, sizeof four);
    }
    set_port(&a, w->port);
    return a;
}

/* A listening socket at the address; -1 with errno. */
static int listen_at(const address *a)
{
    const int fd = socket(a->any.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (const struct sockaddr *)&a->any, a->bytes) == 0 && listen(fd, 256) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* ---- reading with a limit ---------------------------------------------------------------------------------------------- */

static bool wait_readable(int fd, double end)
{
    const double left = end - abar__seconds();
    if (left <= 0) return false;
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, left < 1 ? (int)(left * 1e3) + 1 : 1000) >= 0 ||
           errno == EINTR;
}

/* One message, no byte more. False: it did not come until end, the connection was lost, or it is none. */
static bool read_message(store *s, int fd, double end, abar__wire *out)
{
    size_t have = 0, need = ABAR_WIRE_HEADER;
    while (have < need) {
        const ssize_t n = recv(fd, s->message + have, need - have, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n < 0 && !wait_readable(fd, end)) return false;
        if (n > 0) have += (size_t)n;
        const int read = abar__wire_read(s->message, have, out);
        if (read < 0 || (read > 0 && out->kind == ABAR_WIRE_DATA)) return false;
        if (read == 0 && have >= ABAR_WIRE_HEADER) need = ABAR_WIRE_HEADER + out->length;
    }
    return true;
}

/* ---- connecting -------------------------------------------------------------------------------------------------------- */

static int connect_to(const address *a, double end)
{
    const int fd = socket(a->any.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = connect(fd, (const struct sockaddr *)&a->any, a->bytes) ? errno : 0;
    while (error == EINPROGRESS) {
        const double left = end - abar__seconds();
        const int ready = left > 0 ? poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, (int)(left * 1e3) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        socklen_t bytes = sizeof error;
        if (ready <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes)) error = ETIMEDOUT;
    }
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

static bool first_listens(const store *s)
{
    const double most = abar__seconds() + PROBE;
    int fd = -1;
    for (const double end = s->end < most ? s->end : most; fd < 0 && abar__seconds() < end;) {
        fd = connect_to(&s->master, end);
        if (fd < 0) (void)poll(NULL, 0, TRY_AGAIN_MS);
    }
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* "rank 0 at HOST:PORT", "rank 3" */
static const char *name_of(const store *s, int rank, char *out, size_t size)
{
    if (rank == 0)
        snprintf(out, size, "rank 0 at %s:%d", s->host, s->port);
    else
        snprintf(out, size, "rank %d", rank);
    return out;
}

typedef enum outcome { JOINED, AGAIN, REFUSED } outcome;

/* Answers the challenge of rank `to`. REFUSED: the context has the reason. */
static outcome shake_hands(store *s, int fd, int to, uint16_t port, double end)
{
    abar__door *d = &s->door;
    abar__wire m;
    char name[NAME_MOST];
    uint8_t accepting[ABAR_WIRE_NONCE], message[ABAR_WIRE_JOIN_BYTES], mac[ABAR_SHA256];
    abar__wire_join join = {.rank = (uint32_t)d->rank, .to = (uint32_t)to, .size = (uint32_t)d->size, .port = port};
    if (!read_message(s, fd, end, &m) || m.kind != ABAR_WIRE_CHALLENGE) return AGAIN;
    memcpy(accepting, m.body, sizeof accepting);
    if (!abar__random_bytes(join.nonce, sizeof join.nonce)) return AGAIN;
    abar__door_mac(d, 'J', accepting, &join, join.mac);
    abar__wire_write_join(&join, message);
    if (!abar__send_all(fd, message, sizeof message, end) || !read_message(s, fd, end, &m)) return AGAIN;
    if (m.kind == ABAR_WIRE_REFUSED) {
        (void)abar__fail(d->ctx, ABAR_E_PEER, "%s: refused rank %d: %.*s", name_of(s, to, name, sizeof name), d->rank,
                         (int)m.length, (const char *)m.body);
        return REFUSED;
    }
    abar__door_mac(d, 'W', accepting, &join, mac);
    if (m.kind == ABAR_WIRE_WELCOME && abar__same_bytes(mac, m.body, sizeof mac)) return JOINED;
    (void)abar__fail(d->ctx, ABAR_E_PEER, "%s: does not know the token, is it another program's address?",
                     name_of(s, to, name, sizeof name));
    return REFUSED;
}

/* A listener where the connected socket is, for the ranks above. Its port is given in JOIN. */
static int listen_beside(int fd, uint16_t *port)
{
    address a = {.bytes = sizeof a.any};
    if (getsockname(fd, (struct sockaddr *)&a.any, &a.bytes)) return -1;
    set_port(&a, 0);
    const int listener = listen_at(&a);
    if (listener < 0) return -1;
    a.bytes = sizeof a.any;
    if (getsockname(listener, (struct sockaddr *)&a.any, &a.bytes) == 0) *port = port_of(&a);
    return listener;
}

/* Tries until the rank is there. The listener is made with the first connection. */
static abar_status join_rank(store *s, int to, const address *a)
{
    abar__door *d = &s->door;
    uint16_t port = 0;
    char name[NAME_MOST];
    while (abar__seconds() < s->end) {
        const double now = abar__seconds(), end = now + ONE_TRY < s->end ? now + ONE_TRY : s->end;
        const int fd = connect_to(a, end);
        if (fd >= 0 && to == 0) {
            if (d->listener >= 0) close(d->listener);
            d->listener = listen_beside(fd, &port);
        }
        const outcome result = fd < 0 || d->listener < 0 ? AGAIN : shake_hands(s, fd, to, port, end);
        if (result == JOINED) {
            d->fds[to] = fd;
            return ABAR_OK;
        }
        if (fd >= 0) close(fd);
        if (result == REFUSED) return ABAR_E_PEER;
        (void)poll(NULL, 0, TRY_AGAIN_MS);
    }
    return abar__fail(d->ctx, ABAR_E_PEER,
                      to == 0 && !is_loopback(a)
                          ? "%s: cannot be reached for %g seconds, is it running, the port open, and the "
                            "address in its own /etc/hosts not 127.0.1.1?"
                          : "%s: cannot be reached for %g seconds, is it running and the port open?",
                      name_of(s, to, name, sizeof name), s->timeout);
}

/* ---- gathering --------------------------------------------------------------------------------------------------------- */

static void send_to_all(store *s, const uint8_t *message, size_t n)
{
    for (int r = 1; r < s->door.size; r++)
        if (s->door.fds[r] >= 0) (void)abar__send_all(s->door.fds[r], message, n, abar__seconds() + 1);
}

static abar_status report_missing(store *s, int missing)
{
    const abar__door *d = &s->door;
    char text[ABAR_WIRE_TEXT + 1];
    int first = 1;
    while (d->fds[first] >= 0) first++;
    snprintf(text, sizeof text, "rank %d: has not come to %s:%d for %g seconds (%d of %d ranks are missing)%s", first, s->host,
             s->port, s->timeout, missing, d->size, hint_of(s));
    abar__wire_header(ABAR_WIRE_FAIL, strlen(text), 0, s->message);
    memcpy(s->message + ABAR_WIRE_HEADER, text, strlen(text));
    send_to_all(s, s->message, ABAR_WIRE_HEADER + strlen(text));
    return abar__fail(d->ctx, ABAR_E_PEER, "%s", text);
}

static abar_status gather_as_first(store *s)
{
    abar__door *d = &s->door;
    d->from = 1;
    d->listener = listen_at(&s->master);
    if (d->listener < 0)
        return abar__fail(d->ctx, ABAR_E_IO,
                          "store: %s:%d: %s, rank 0 has to run at MASTER_ADDR and MASTER_PORT has to be free", s->host, s->port,
                          strerror(errno));
    const int missing = abar__door_gather(d, s->end);
    if (missing) return report_missing(s, missing);
    const size_t bytes = ABAR_WIRE_NONCE + (size_t)d->size * ABAR_WIRE_ENTRY;
    abar__wire_header(ABAR_WIRE_TABLE, bytes, 0, s->message);
    if (!abar__random_bytes(s->message + ABAR_WIRE_HEADER, ABAR_WIRE_NONCE))
        return abar__fail(d->ctx, ABAR_E_IO, "store: no random bytes: %s", strerror(errno));
    for (int r = 0; r < d->size; r++)
        abar__wire_write_entry(&d->addresses[r], s->message + ABAR_WIRE_HEADER + ABAR_WIRE_NONCE + r * ABAR_WIRE_ENTRY);
    send_to_all(s, s->message, ABAR_WIRE_HEADER + bytes);
    return ABAR_OK;
}

/* Connects to the ranks below and accepts those above. */
static abar_status link_all(store *s, const abar__wire *table)
{
    abar__door *d = &s->door;
    memcpy(d->session, table->body, sizeof d->session);
    for (int r = 1; r < d->size; r++)
        if (!abar__wire_entry(table, d->size, r, &d->addresses[r]))
            return abar__fail(d->ctx, ABAR_E_PEER, "rank 0 at %s:%d: sent a table of other ranks", s->host, s->port);
    for (int r = 1; r < d->rank; r++) {
        const address a = from_wire(&d->addresses[r]);
        ABAR_TRY(join_rank(s, r, &a));
    }
    d->from = d->rank + 1;
    if (abar__door_gather(d, s->end) == 0) return ABAR_OK;
    int first = d->from;
    while (d->fds[first] >= 0) first++;
    return abar__fail(d->ctx, ABAR_E_PEER,
                      "rank %d: has not connected to rank %d for %g seconds, are the ports between them open?", first, d->rank,
                      s->timeout);
}

static abar_status gather_as_other(store *s)
{
    abar__door *d = &s->door;
    abar__wire m;
    ABAR_TRY(join_rank(s, 0, &s->master));
    s->end = abar__seconds() + s->timeout + MARGIN;
    if (!read_message(s, d->fds[0], s->end, &m))
        return abar__fail(d->ctx, ABAR_E_PEER, "rank 0 at %s:%d: the connection was lost before all ranks had come", s->host,
                          s->port);
    s->told = m.kind == ABAR_WIRE_FAIL;
    if (m.kind == ABAR_WIRE_FAIL) return abar__fail(d->ctx, ABAR_E_PEER, "%.*s", (int)m.length, (const char *)m.body);
    if (m.kind != ABAR_WIRE_TABLE)
        return abar__fail(d->ctx, ABAR_E_PEER, "rank 0 at %s:%d: sent something else than a table", s->host, s->port);
    return link_all(s, &m);
}

static abar_status gather(store *s)
{
    s->end = abar__seconds() + s->timeout;
    ABAR_TRY(find_master(s));
    ABAR_TRY(check_address(s));
    ABAR_TRY(check_token(s));
    s->end = abar__seconds() + s->timeout;
    return s->door.rank == 0 ? gather_as_first(s) : gather_as_other(s);
}

abar_status abar__comm_open_store(abar_context *ctx, const abar__store_request *request, bool *told, abar_comm **out)
{
    const int rank = request->rank, size = request->size;
    const size_t n = (size_t)size, fds_bytes = n * sizeof(int), addresses_bytes = n * sizeof(abar__wire_address);
    void *memory, *fds = NULL, *addresses = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(store), &memory));
    store *s = memory;
    s->host = request->host, s->port = request->port, s->timeout = request->timeout;
    s->local = request->local, s->apart = request->apart;
    s->door = (abar__door){.ctx = ctx, .rank = rank, .size = size, .listener = -1};
    abar_status status = abar__alloc(ctx, fds_bytes, &fds);
    for (int r = 0; status == ABAR_OK && r < size; r++) ((int *)fds)[r] = -1;
    if (status == ABAR_OK) status = abar__alloc(ctx, addresses_bytes, &addresses);
    s->door.fds = fds, s->door.addresses = addresses;
    if (status == ABAR_OK) status = gather(s);
    if (s->door.listener >= 0) close(s->door.listener);
    *told = status < 0 && s->told;
    if (status == ABAR_OK)
        status = abar__comm_open_tcp(ctx, rank, size, request->timeout, fds, out);
    else
        for (int r = 0; fds && r < size; r++)
            if (s->door.fds[r] >= 0) close(s->door.fds[r]);
    abar__free(ctx, addresses, addresses_bytes);
    abar__free(ctx, fds, fds_bytes);
    abar__free(ctx, s, sizeof *s);
    return status;
}
