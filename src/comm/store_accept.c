/* The door: accepts connections while ranks gather. Everybody may knock, so a stranger gets little: one of a few places for a
 * few seconds, a nonce, and a closed connection; the log gets a bounded number of lines. */
#define _GNU_SOURCE /* accept4 */
#include "comm/tcp.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PLACES = 64,    /* connections that have not proved anything yet */
    MOST_LINES = 16 /* of the log about strangers */
};
#define PATIENCE 5.0 /* seconds for a proof */
#define CROWDED 0.25 /* the same when all places are taken */

typedef struct place {
    int fd;
    double since;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    uint8_t nonce[ABAR_WIRE_NONCE];
    uint8_t in[ABAR_WIRE_JOIN_BYTES];
    size_t in_bytes;
} place;

typedef struct hall {
    abar__door *door;
    place places[PLACES];
    int taken;
    int missing, lines;
} hall;

bool abar__random_bytes(uint8_t *out, size_t n) { return getrandom(out, n, 0) == (ssize_t)n; }

bool abar__send_all(int fd, const void *data, size_t n, double end)
{
    for (size_t at = 0; at < n;) {
        const ssize_t sent = send(fd, (const uint8_t *)data + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        const double left = end - abar__seconds();
        if (sent > 0)
            at += (size_t)sent;
        else if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        else if (left <= 0)
            return false;
        else
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, left < 1 ? (int)(left * 1e3) + 1 : 1000);
    }
    return true;
}

void abar__door_mac(const abar__door *d, char label, const uint8_t accepting[ABAR_WIRE_NONCE], const abar__wire_join *join,
                    uint8_t mac[ABAR_SHA256])
{
    uint8_t message[1 + 3 * ABAR_WIRE_NONCE + 16];
    const uint32_t numbers[4] = {join->rank, join->to, join->size, join->port};
    uint8_t *at = message;
    *at++ = (uint8_t)label;
    memcpy(at, d->session, ABAR_WIRE_NONCE), at += ABAR_WIRE_NONCE;
    memcpy(at, accepting, ABAR_WIRE_NONCE), at += ABAR_WIRE_NONCE;
    memcpy(at, join->nonce, ABAR_WIRE_NONCE), at += ABAR_WIRE_NONCE;
    for (int i = 0; i < 16; i++) *at++ = (uint8_t)(numbers[i / 4] >> 8 * (i % 4));
    abar__hmac(d->token, strlen(d->token), message, sizeof message, mac);
}

/* ---- one connection ---------------------------------------------------------------------------------------------------- */

static void log_refusal(hall *h, const place *p, const char *why)
{
    char host[NI_MAXHOST] = "?";
    if (h->lines >= MOST_LINES) return;
    (void)getnameinfo((const struct sockaddr *)&p->address, p->address_bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    abar__log(h->door->ctx, ABAR_LOG_WARNING, "store: refused a connection from %s: %s%s", host, why,
              ++h->lines == MOST_LINES ? " (further ones are not reported)" : "");
}

static void leave(hall *h, place *p) { *p = h->places[--h->taken]; /* the last one takes its place */ }

static void refuse(hall *h, place *p, const char *why)
{
    log_refusal(h, p, why);
    close(p->fd);
    leave(h, p);
}

/* To one who has sent a complete JOIN: the reason. */
static void refuse_with(hall *h, place *p, const char *why)
{
    uint8_t message[ABAR_WIRE_HEADER + ABAR_WIRE_TEXT];
    const size_t n = strlen(why);
    abar__wire_header(ABAR_WIRE_REFUSED, n, 0, message);
    memcpy(message + ABAR_WIRE_HEADER, why, n);
    (void)send(p->fd, message, ABAR_WIRE_HEADER + n, MSG_NOSIGNAL | MSG_DONTWAIT);
    refuse(h, p, why);
}

static abar__wire_address address_of(const place *p, uint16_t port)
{
    abar__wire_address a = {.port = port};
    if (p->address.ss_family == AF_INET6) {
        a.family = 6;
        memcpy(a.bytes, &((const struct sockaddr_in6 *)(const void *)&p->address)->sin6_addr, 16);
    } else {
        a.family = 4;
        memcpy(a.bytes, &((const struct sockaddr_in *)(const void *)&p->address)->sin_addr, 4);
    }
    return a;
}

static void admit(hall *h, place *p, const abar__wire_join *join)
{
    abar__door *d = h->door;
    uint8_t message[ABAR_WIRE_HEADER + ABAR_SHA256];
    abar__wire_header(ABAR_WIRE_WELCOME, ABAR_SHA256, 0, message);
    abar__door_mac(d, 'W', p->nonce, join, message + ABAR_WIRE_HEADER);
    if (send(p->fd, message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof message) {
        refuse(h, p, "the connection was lost");
        return;
    }
    d->fds[join->rank] = p->fd;
    if (d->addresses) d->addresses[join->rank] = address_of(p, join->port);
    h->missing--;
    leave(h, p);
}

/* Decides about a complete message. */
static void judge(hall *h, place *p, const abar__wire *m)
{
    const abar__door *d = h->door;
    const abar__wire_join *join = &m->join;
    uint8_t mac[ABAR_SHA256];
    char why[ABAR_WIRE_TEXT + 1];
    if (m->kind != ABAR_WIRE_JOIN) {
        refuse(h, p, "it is no rank of abar");
        return;
    }
    abar__door_mac(d, 'J', p->nonce, join, mac);
    if (!abar__same_bytes(mac, join->mac, sizeof mac)) {
        refuse_with(h, p, "its ABAR_TOKEN is another, or it belongs to another run");
        return;
    }
    if (join->size != (uint32_t)d->size || join->to != (uint32_t)d->rank)
        snprintf(why, sizeof why, "rank %u was started as one of %u ranks and rank %d as one of %d", (unsigned)join->rank,
                 (unsigned)join->size, d->rank, d->size);
    else if (join->rank < (uint32_t)d->from || join->rank >= (uint32_t)d->size || join->rank == (uint32_t)d->rank)
        snprintf(why, sizeof why, "rank %u is not expected here", (unsigned)join->rank);
    else if (d->fds[join->rank] >= 0)
        snprintf(why, sizeof why, "rank %u is there already, it was started twice", (unsigned)join->rank);
    else {
        admit(h, p, join);
        return;
    }
    refuse_with(h, p, why);
}

/* Reads what has come, no byte beyond the JOIN. */
static void listen_to(hall *h, place *p)
{
    const ssize_t n = recv(p->fd, p->in + p->in_bytes, sizeof p->in - p->in_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        refuse(h, p, "it ended the connection");
        return;
    }
    p->in_bytes += (size_t)n;
    abar__wire m;
    const int read = abar__wire_read(p->in, p->in_bytes, &m);
    if (read > 0)
        judge(h, p, &m);
    else if (read < 0 || p->in_bytes == sizeof p->in)
        refuse(h, p, "it is no rank of this version of abar");
}

/* ---- all of them ------------------------------------------------------------------------------------------------------- */

static void knock(hall *h)
{
    place *p = &h->places[h->taken];
    *p = (place){.since = abar__seconds(), .address_bytes = sizeof p->address};
    p->fd = accept4(h->door->listener, (struct sockaddr *)&p->address, &p->address_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (p->fd < 0) return;
    uint8_t message[ABAR_WIRE_HEADER + ABAR_WIRE_NONCE];
    abar__wire_header(ABAR_WIRE_CHALLENGE, ABAR_WIRE_NONCE, 0, message);
    if (!abar__random_bytes(p->nonce, sizeof p->nonce)) {
        close(p->fd);
        return;
    }
    memcpy(message + ABAR_WIRE_HEADER, p->nonce, sizeof p->nonce);
    h->taken++;
    if (send(p->fd, message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof message)
        refuse(h, p, "it ended the connection");
}

static void end_patience(hall *h)
{
    const double now = abar__seconds();
    for (int i = h->taken - 1; i >= 0; i--)
        if (now - h->places[i].since > (h->taken == PLACES ? CROWDED : PATIENCE))
            refuse(h, &h->places[i], "it did not prove itself in time");
}

static void turn(hall *h, double end)
{
    struct pollfd fds[PLACES + 1];
    const int n = h->taken;
    for (int i = 0; i < n; i++) fds[i] = (struct pollfd){.fd = h->places[i].fd, .events = POLLIN};
    fds[n] = (struct pollfd){.fd = n < PLACES ? h->door->listener : -1, .events = POLLIN};
    const double left = end - abar__seconds(), most = n < PLACES ? 0.2 : 0.02;
    (void)poll(fds, (nfds_t)n + 1, left <= 0 ? 0 : (int)((left < most ? left : most) * 1e3) + 1);
    for (int i = n - 1; i >= 0; i--) /* backwards: the last one takes the place of one that leaves */
        if (fds[i].revents) listen_to(h, &h->places[i]);
    end_patience(h);
    if (fds[n].revents && h->taken < PLACES) knock(h);
}

int abar__door_gather(abar__door *d, double end)
{
    hall h = {.door = d};
    for (int r = d->from; r < d->size; r++) h.missing += r != d->rank && d->fds[r] < 0;
    while (h.missing && abar__seconds() < end) turn(&h, end);
    for (int i = 0; i < h.taken; i++) close(h.places[i].fd);
    return h.missing;
}
