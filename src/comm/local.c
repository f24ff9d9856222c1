/* Ranks of one machine: forked processes that exchange through shared memory. Every ordered pair of ranks has a ring of bytes,
 * so that a message of any length passes in pieces while both sides copy. local_watch.c notices ranks that end. */
#include "comm/local_impl.h"

#include "base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RINGS_BYTES ((size_t)32 << 20) /* of all rings together, about */
#define RING_MOST ((size_t)256 << 10)
#define RING_LEAST ((size_t)8 << 10)
#define SPINS 300        /* polls before a rank sleeps, where there is a core for each rank */
#define TEXT_LIMIT 0.5   /* seconds to write the text of a failure */
#define NAP_NS 50000000L /* longest sleep: a waiting rank shows that it is alive so often */

typedef atomic_uint_fast64_t counter;

/* Bytes from one rank to another. Counters only grow; they are on cache lines of their own because each has one writer. */
typedef struct ring {
    _Alignas(ABAR_ALIGN) counter written;
    _Alignas(ABAR_ALIGN) counter read;
} ring;

/* What is left of one call: the unsent and the unreceived bytes of every other rank. */
typedef struct transfer {
    const void *const *send;
    const size_t *send_bytes;
    void *const *recv;
    const size_t *recv_bytes;
} transfer;

static size_t rings_at(int n) { return abar__round_up(sizeof(shared) + (size_t)n * sizeof(seat), ABAR_ALIGN); }
static size_t bytes_at(int n) { return rings_at(n) + (size_t)n * (size_t)n * sizeof(ring); }

static ring *ring_of(const abar__local *l, int from, int to)
{
    return (ring *)(void *)((uint8_t *)l->shared + rings_at(l->size)) + from * l->size + to;
}

static uint8_t *ring_bytes(const abar__local *l, int from, int to)
{
    return (uint8_t *)l->shared + bytes_at(l->size) + (size_t)(from * l->size + to) * l->ring;
}

/* ---- sleeping and waking ----------------------------------------------------------------------------------------------- */

static void futex(void *word, int operation, uint32_t value, const struct timespec *limit)
{
    (void)syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

/* Something that the rank may wait for has changed. */
static void ring_bell(seat *s)
{
    atomic_fetch_add(&s->bell, 1);
    if (atomic_load(&s->sleeping)) futex(&s->bell, FUTEX_WAKE, INT32_MAX, NULL);
}

void abar__local_fail(abar__local *l, const char *text)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&l->shared->failed, &none, 1)) {
        snprintf(l->shared->text, sizeof l->shared->text, "%s", text);
        atomic_store(&l->shared->failed, 2);
    }
    for (int r = 0; r < l->size; r++) ring_bell(&l->shared->seats[r]);
}

/* The first failure's text, as every rank reports it. A rank that died while it wrote one leaves none. */
static abar_status lost(abar_comm *c)
{
    const abar__local *l = c->impl;
    const double end = abar__seconds() + TEXT_LIMIT;
    while (atomic_load(&l->shared->failed) != 2 && abar__seconds() < end) sched_yield();
    const bool whole = atomic_load(&l->shared->failed) == 2;
    return abar__comm_lost(c, whole ? l->shared->text : "a rank on this machine: ended while it reported a failure");
}

/* ---- moving bytes ------------------------------------------------------------------------------------------------------ */

/* Copies between memory and the ring's bytes from position `at` on, around its end. */
static void copy_in(uint8_t *bytes, size_t ring_size, uint64_t at, const uint8_t *from, size_t n)
{
    const size_t offset = (size_t)(at % ring_size), first = n < ring_size - offset ? n : ring_size - offset;
    memcpy(bytes + offset, from, first);
    memcpy(bytes, from + first, n - first);
}

static void copy_out(const uint8_t *bytes, size_t ring_size, uint64_t at, uint8_t *to, size_t n)
{
    const size_t offset = (size_t)(at % ring_size), first = n < ring_size - offset ? n : ring_size - offset;
    memcpy(to, bytes + offset, first);
    memcpy(to + first, bytes, n - first);
}

/* At most half a ring at a time: the other side copies one half while this one fills the other. */
static size_t push(abar__local *l, int to, const uint8_t *from, size_t n)
{
    ring *r = ring_of(l, l->rank, to);
    const uint64_t written = atomic_load_explicit(&r->written, memory_order_relaxed);
    const size_t space = l->ring - (size_t)(written - atomic_load_explicit(&r->read, memory_order_acquire));
    n = n < space ? n : space;
    n = n < l->ring / 2 ? n : l->ring / 2;
    if (!n) return 0;
    copy_in(ring_bytes(l, l->rank, to), l->ring, written, from, n);
    atomic_store(&r->written, written + n);
    ring_bell(&l->shared->seats[to]);
    return n;
}

static size_t pull(abar__local *l, int from, uint8_t *to, size_t n)
{
    ring *r = ring_of(l, from, l->rank);
    const uint64_t read = atomic_load_explicit(&r->read, memory_order_relaxed);
    const size_t there = (size_t)(atomic_load_explicit(&r->written, memory_order_acquire) - read);
    n = n < there ? n : there;
    n = n < l->ring / 2 ? n : l->ring / 2;
    if (!n) return 0;
    copy_out(ring_bytes(l, from, l->rank), l->ring, read, to, n);
    atomic_store(&r->read, read + n);
    ring_bell(&l->shared->seats[from]);
    return n;
}

/* One turn over all ranks, beginning with the next one so that not all write to the same. Returns the bytes moved. */
static size_t move(abar__local *l, const transfer *t, bool *complete)
{
    size_t moved = 0, left = 0;
    for (int i = 1; i < l->size; i++) {
        const int to = (l->rank + i) % l->size, from = (l->rank + l->size - i) % l->size;
        size_t *sent = &l->sent[to], *received = &l->received[from];
        if (*sent < t->send_bytes[to]) {
            const size_t n = push(l, to, (const uint8_t *)t->send[to] + *sent, t->send_bytes[to] - *sent);
            *sent += n, moved += n, left += t->send_bytes[to] - *sent;
        }
        if (*received < t->recv_bytes[from]) {
            const size_t n = pull(l, from, (uint8_t *)t->recv[from] + *received, t->recv_bytes[from] - *received);
            *received += n, moved += n, left += t->recv_bytes[from] - *received;
        }
    }
    *complete = left == 0;
    return moved;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

static void beat(abar__local *l) { atomic_store(&l->shared->seats[l->rank].beat, (uint_fast64_t)(abar__seconds() * 1e9)); }

/* Nothing has moved for the timeout. Ranks that wait show that they are alive, so the one that has not shown it longest is
 * to blame. */
static void blame(abar_comm *c)
{
    abar__local *l = c->impl;
    int silent = l->rank;
    uint_fast64_t oldest = UINT_FAST64_MAX;
    for (int r = 0; r < l->size; r++) {
        const uint_fast64_t last = atomic_load(&l->shared->seats[r].beat);
        if (r != l->rank && last < oldest) silent = r, oldest = last;
    }
    char text[ABAR_COMM_FAILURE];
    abar__comm_silent_text(c, silent, text);
    abar__local_fail(l, text);
}

static void blame_left(abar_comm *c, int rank)
{
    char text[ABAR_COMM_FAILURE];
    snprintf(text, sizeof text, "%s: has left the run while others still exchange with it", abar_comm_name(c, rank));
    abar__local_fail(c->impl, text);
}

/* A rank that this one waits for has closed its side. It may have written all before: this is asked when nothing moves. */
static void find_left(abar_comm *c, const transfer *t)
{
    abar__local *l = c->impl;
    for (int r = 0; r < l->size; r++) {
        const bool waits = l->sent[r] < t->send_bytes[r] || l->received[r] < t->recv_bytes[r];
        const ring *in = ring_of(l, r, l->rank);
        if (r == l->rank || !waits || !atomic_load(&l->shared->seats[r].left)) continue;
        if (l->received[r] < t->recv_bytes[r] && atomic_load(&in->written) != atomic_load(&in->read)) continue;
        blame_left(c, r);
        return;
    }
}

/* Sleeps until the bell rings, unless something moves first. */
static size_t nap(abar__local *l, const transfer *t, bool *complete)
{
    seat *own = &l->shared->seats[l->rank];
    const unsigned bell = atomic_load(&own->bell);
    atomic_store(&own->sleeping, 1);
    const size_t moved = move(l, t, complete);
    if (!moved && !*complete && !atomic_load(&l->shared->failed))
        futex(&own->bell, FUTEX_WAIT, bell, &(struct timespec){.tv_nsec = NAP_NS});
    atomic_store(&own->sleeping, 0);
    return moved;
}

#if defined(__x86_64__)
static void pause_core(void) { __builtin_ia32_pause(); }
#else
static void pause_core(void) {}
#endif

static abar_status exchange(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes)
{
    abar__local *l = c->impl;
    const transfer t = {send, send_bytes, recv, recv_bytes};
    memset(l->sent, 0, (size_t)l->size * sizeof *l->sent);
    memset(l->received, 0, (size_t)l->size * sizeof *l->received);
    beat(l);
    bool complete = false;
    abar__waiting waiting = {.since = abar__seconds()};
    for (int idle = 0; !complete;) {
        if (atomic_load(&l->shared->failed) == 2) return lost(c);
        const size_t moved = idle < l->spins ? move(l, &t, &complete) : nap(l, &t, &complete);
        if (moved || complete) {
            idle = 0;
            waiting = (abar__waiting){.since = abar__seconds()};
        } else if (idle < l->spins) {
            idle++;
            pause_core();
        } else {
            beat(l);
            find_left(c, &t);
            if (abar__waiting_look(&waiting, abar__seconds(), c->timeout) > c->timeout) {
                blame(c);
                return lost(c);
            }
        }
    }
    beat(l);
    return ABAR_OK;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------------- */

static void close_local(abar_comm *c)
{
    abar__local *l = c->impl;
    abar_context *ctx = c->ctx;
    atomic_store(&l->shared->seats[l->rank].left, 1);
    for (int r = 0; r < l->size; r++) ring_bell(&l->shared->seats[r]);
    if (l->rank == 0) abar__local_unwatch(l, c->failed ? ABAR_LOCAL_GRACE : c->timeout);
    abar__local_free(ctx, l);
    c->impl = NULL;
}

static void tell(abar_comm *c, const char *text) { abar__local_fail(c->impl, text); }

static abar_status hear(abar_comm *c)
{
    abar__local *l = c->impl;
    beat(l);
    for (int r = 0; r < l->size && !atomic_load(&l->shared->failed); r++)
        if (r != l->rank && atomic_load(&l->shared->seats[r].left)) blame_left(c, r);
    return atomic_load(&l->shared->failed) ? lost(c) : ABAR_OK;
}

static const abar__comm_ops local_ops = {"local", exchange, close_local, tell, hear};

void abar__local_free(abar_context *ctx, abar__local *l)
{
    const size_t n = (size_t)l->size;
    if (l->shared) munmap(l->shared, l->mapped);
    abar__free(ctx, l->sent, n * sizeof *l->sent);
    abar__free(ctx, l->received, n * sizeof *l->received);
    abar__free(ctx, l->children, n * sizeof *l->children);
    abar__free(ctx, l, sizeof *l);
}

static abar_status create(abar_context *ctx, int ranks, abar__local **out)
{
    const size_t n = (size_t)ranks;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    abar__local *l = *out = memory;
    *l = (abar__local){.size = ranks, .stop = -1, .spins = abar__cores_allowed() >= ranks ? SPINS : 0};
    ABAR_TRY(abar__alloc(ctx, n * sizeof *l->sent, &memory));
    l->sent = memory;
    ABAR_TRY(abar__alloc(ctx, n * sizeof *l->received, &memory));
    l->received = memory;
    ABAR_TRY(abar__alloc(ctx, n * sizeof *l->children, &memory));
    l->children = memory;
    const size_t share = RINGS_BYTES / (n * n) / RING_LEAST * RING_LEAST;
    l->ring = share > RING_MOST ? RING_MOST : share < RING_LEAST ? RING_LEAST : share;
    l->mapped = bytes_at(ranks) + n * n * l->ring;
    void *map = mmap(NULL, l->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return abar__fail(ctx, ABAR_E_MEMORY, "%d ranks: %zu bytes of shared memory: %s", ranks, l->mapped, strerror(errno));
    l->shared = map; /* of zeros */
    return ABAR_OK;
}

/* The others end with rank 0, whatever ends it. */
static bool become_child(pid_t parent) { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent; }

/* Sets the rank of every process. In rank 0 the number of ranks that were made is l->forked. */
static abar_status fork_ranks(abar_context *ctx, abar__local *l)
{
    const pid_t parent = getpid();
    fflush(NULL); /* else every rank would write what is buffered */
    for (int r = 1; r < l->size; r++) {
        const pid_t pid = fork();
        if (pid < 0) return abar__fail(ctx, ABAR_E_IO, "%d ranks: fork: %s", l->size, strerror(errno));
        if (pid == 0) {
            l->rank = r;
            l->forked = 0;
            if (!become_child(parent)) _exit(1);
            return ABAR_OK;
        }
        l->children[r] = pid;
        l->forked = r;
    }
    return ABAR_OK;
}

abar_status abar__comm_open_local(abar_context *ctx, int ranks, double timeout, abar_comm **out)
{
    abar__local *l = NULL;
    abar_status status = create(ctx, ranks, &l);
    if (status == ABAR_OK) {
        const uint_fast64_t now = (uint_fast64_t)(abar__seconds() * 1e9);
        for (int r = 0; r < ranks; r++) atomic_store(&l->shared->seats[r].beat, now);
        status = abar__comm_create(ctx, 0, ranks, timeout, out);
    }
    if (status < 0) {
        if (l) abar__local_free(ctx, l);
        return status;
    }
    (*out)->impl = l;
    (*out)->ops = &local_ops;
    status = fork_ranks(ctx, l);
    (*out)->rank = l->rank;
    if (status == ABAR_OK && l->rank == 0) status = abar__local_watch(ctx, l);
    if (status < 0) {
        (*out)->failed = true;
        abar_comm_close(*out);
    }
    return status;
}
