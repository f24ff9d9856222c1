/* NCCL by dlopen. Of its header this file needs these few declarations, so that abar is built without it. */
#include "comm/nccl.h"

#include "base/clock.h"
#include "comm/comm_impl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIBRARY "libnccl.so.2"
#define LEAST 21100 /* 2.11: calls of one capture are connected before they are recorded */

/* As nccl.h has them since 2.7. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8 };
enum { NCCL_SUM = 0 };

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

typedef struct ncclComm nccl_comm;

typedef struct calls {
    int (*version)(int *out);
    int (*make_id)(nccl_id *out);
    int (*init)(nccl_comm **out, int ranks, nccl_id id, int rank);
    int (*destroy)(nccl_comm *c);
    int (*abort)(nccl_comm *c);
    int (*error_of)(nccl_comm *c, int *out);
    const char *(*text)(int error);
    int (*begin)(void);
    int (*end)(void);
    int (*send)(const void *from, size_t n, int type, int peer, nccl_comm *c, void *stream);
    int (*receive)(void *to, size_t n, int type, int peer, nccl_comm *c, void *stream);
    int (*gather)(const void *from, void *to, size_t n, int type, nccl_comm *c, void *stream);
    int (*sum)(const void *from, void *to, size_t n, int type, int operation, nccl_comm *c, void *stream);
} calls;

struct abar__nccl {
    abar_context *ctx;
    abar_comm *comm;
    calls call;
    nccl_comm *nccl;
    int rank, size;
};

/* ---- the library ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
    {"ncclGetVersion", offsetof(calls, version)},  {"ncclGetUniqueId", offsetof(calls, make_id)},
    {"ncclCommInitRank", offsetof(calls, init)},   {"ncclCommDestroy", offsetof(calls, destroy)},
    {"ncclCommAbort", offsetof(calls, abort)},     {"ncclCommGetAsyncError", offsetof(calls, error_of)},
    {"ncclGetErrorString", offsetof(calls, text)}, {"ncclGroupStart", offsetof(calls, begin)},
    {"ncclGroupEnd", offsetof(calls, end)},        {"ncclSend", offsetof(calls, send)},
    {"ncclRecv", offsetof(calls, receive)},        {"ncclAllGather", offsetof(calls, gather)},
    {"ncclAllReduce", offsetof(calls, sum)},
};

/* Never closed: it registers kernels with the CUDA runtime. */
static abar_status load(abar_context *ctx, calls *out)
{
    const char *given = getenv("ABAR_NCCL"), *file = given && *given ? given : LIBRARY;
    int version = 0;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return abar__fail(ctx, ABAR_E_NOT_FOUND,
                          "NCCL: cannot load %s (%s), install it, set ABAR_NCCL to its file, or give --transport host", file,
                          dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function)
            return abar__fail(ctx, ABAR_E_UNSUPPORTED, "NCCL: %s has no %s, install NCCL 2.11 or newer", file, symbols[i].name);
        memcpy((char *)out + symbols[i].at, &function, sizeof function);
    }
    if (out->version(&version) != NCCL_SUCCESS || version < LEAST)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "NCCL: %s is version %d.%d, install 2.11 or newer", file,
                          version >= 10000 ? version / 10000 : version / 1000,
                          version >= 10000 ? version / 100 % 100 : version / 100 % 10);
    return ABAR_OK;
}

abar_status abar__nccl_find(abar_context *ctx)
{
    calls ignored;
    return load(ctx, &ignored);
}

static abar_status check(const abar__nccl *n, int error, const char *what)
{
    if (error == NCCL_SUCCESS) return ABAR_OK;
    return abar__fail(n->ctx, ABAR_E_BACKEND, "NCCL: %s (%s), NCCL_DEBUG=WARN tells more", n->call.text(error), what);
}

/* ---- opening and closing ---------------------------------------------------------------------------------------------- */

/* NCCL's own limit needs communicators that do not block, whose calls are launched by a thread of NCCL's: not what a recorded
 * step wants. So a thread of ours connects, and is left behind where it does not come back. */
typedef struct connecting {
    int (*init)(nccl_comm **out, int ranks, nccl_id id, int rank);
    abar_status (*enter)(void *user);
    void *user;
    nccl_id id;
    int rank, size, error;
    nccl_comm *nccl;
    abar_status entered;
    atomic_int done; /* by the thread: 1; by who waits no longer: 2. The second of them frees it */
} connecting;

static void connect_here(connecting *k)
{
    k->entered = k->enter(k->user);
    if (k->entered == ABAR_OK) k->error = k->init(&k->nccl, k->size, k->id, k->rank);
}

static void *connect_thread(void *argument)
{
    connecting *k = argument;
    connect_here(k);
    if (atomic_exchange(&k->done, 1) == 2) free(k);
    return NULL;
}

static bool start_thread(connecting *k)
{
    pthread_t thread;
    sigset_t all, before; /* the caller's handlers run in the caller's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, connect_thread, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 && pthread_detach(thread) == 0;
}

static abar_status time_out(const abar__nccl *n)
{
    char text[ABAR_COMM_FAILURE];
    snprintf(text, sizeof text,
             "NCCL: the ranks have not connected within %g seconds, check that their networks reach each other "
             "(NCCL_SOCKET_IFNAME names one, NCCL_DEBUG=INFO tells more), or give --transport host",
             n->comm->timeout);
    return abar__comm_lost(n->comm, text);
}

/* Until the thread is done; no longer than the timeout, and no longer than all ranks try: one that cannot connect tells why. */
static abar_status wait_for_thread(const abar__nccl *n, const connecting *k)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    const double began = abar__seconds();
    while (!atomic_load(&k->done)) {
        ABAR_TRY(abar__comm_hear(n->comm));
        if (abar__seconds() - began > n->comm->timeout) return time_out(n);
        nanosleep(&nap, NULL);
    }
    return ABAR_OK;
}

static abar_status take_connection(abar__nccl *n, const connecting *k)
{
    n->nccl = k->nccl;
    return k->entered < 0 ? k->entered : check(n, k->error, "ncclCommInitRank");
}

static abar_status connect_others(abar__nccl *n, const connecting *what)
{
    connecting *k = malloc(sizeof *k); /* not the context's: it may be left behind */
    if (!k) return abar__fail(n->ctx, ABAR_E_MEMORY, "NCCL: could not get %zu bytes", sizeof *k);
    *k = *what;
    if (!start_thread(k)) {
        free(k);
        return abar__fail(n->ctx, ABAR_E_BACKEND, "NCCL: could not start a thread");
    }
    abar_status status = wait_for_thread(n, k);
    if (status < 0 && atomic_exchange(&k->done, 2) == 0) return status; /* the thread frees it */
    if (status < 0)
        n->nccl = k->nccl; /* for closing */
    else
        status = take_connection(n, k);
    free(k);
    return status;
}

/* Rank 0's id, or its failure, goes to all. */
static abar_status connect_ranks(abar__nccl *n, abar_status (*enter)(void *user), void *user)
{
    struct {
        nccl_id id;
        int error;
    } word;
    memset(&word, 0, sizeof word);
    if (n->rank == 0) word.error = n->call.make_id(&word.id);
    ABAR_TRY(abar__comm_broadcast(n->comm, 0, &word, sizeof word));
    ABAR_TRY(check(n, word.error, "ncclGetUniqueId on rank 0"));
    connecting k = {.init = n->call.init, .enter = enter, .user = user, .id = word.id, .rank = n->rank, .size = n->size};
    if (n->size > 1) return connect_others(n, &k);
    connect_here(&k);
    return take_connection(n, &k);
}

abar_status abar__nccl_open(abar_context *ctx, abar_comm *comm, abar_status (*enter)(void *user), void *user, abar__nccl **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    abar__nccl *n = memory;
    *n = (abar__nccl){.ctx = ctx, .comm = comm, .rank = abar_comm_rank(comm), .size = abar_comm_size(comm)};
    abar_status status = load(ctx, &n->call);
    if (status == ABAR_OK) status = connect_ranks(n, enter, user);
    if (status < 0) {
        if (status != ABAR_E_PEER) abar__comm_tell_error(comm, ctx); /* others wait until all connect */
        abar__nccl_close(n);
        return status;
    }
    *out = n;
    return ABAR_OK;
}

void abar__nccl_abort(abar__nccl *n)
{
    if (n->nccl) (void)n->call.abort(n->nccl);
    n->nccl = NULL;
}

void abar__nccl_close(abar__nccl *n)
{
    if (!n) return;
    if (n->comm && n->comm->failed) abar__nccl_abort(n); /* destroying it would wait for the lost rank */
    if (n->nccl) (void)n->call.destroy(n->nccl);
    abar__free(n->ctx, n, sizeof *n);
}

/* ---- exchanges -------------------------------------------------------------------------------------------------------- */

/* each: 1, or 0 where all get what is first in send. */
static abar_status exchange(abar__nccl *n, const void *const *send, const size_t *send_bytes, int each, void *const *recv,
                            const size_t *recv_bytes, void *stream)
{
    ABAR_TRY(check(n, n->call.begin(), "ncclGroupStart"));
    int error = NCCL_SUCCESS;
    for (int r = 0; r < n->size && error == NCCL_SUCCESS; r++) {
        const int of = each * r;
        if (r == n->rank) continue;
        if (send_bytes[of]) error = n->call.send(send[of], send_bytes[of], NCCL_INT8, r, n->nccl, stream);
        if (recv_bytes[r] && error == NCCL_SUCCESS)
            error = n->call.receive(recv[r], recv_bytes[r], NCCL_INT8, r, n->nccl, stream);
    }
    const int ended = n->call.end();
    return check(n, error != NCCL_SUCCESS ? error : ended, "ncclSend and ncclRecv");
}

abar_status abar__nccl_exchange(abar__nccl *n, const void *const *send, const size_t *send_bytes, void *const *recv,
                                const size_t *recv_bytes, void *stream)
{
    return n->size == 1 ? ABAR_OK : exchange(n, send, send_bytes, 1, recv, recv_bytes, stream);
}

abar_status abar__nccl_gather(abar__nccl *n, const void *own, size_t bytes, void *all, void *stream)
{
    return check(n, n->call.gather(own, all, bytes, NCCL_INT8, n->nccl, stream), "ncclAllGather");
}

abar_status abar__nccl_gather_parts(abar__nccl *n, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes,
                                    void *stream)
{
    if (n->size == 1) return abar__nccl_gather(n, own, bytes, recv[0], stream);
    return exchange(n, &own, &bytes, 0, recv, recv_bytes, stream);
}

abar_status abar__nccl_sum(abar__nccl *n, void *data, int64_t count, bool wide, void *stream)
{
    const int type = wide ? NCCL_FLOAT64 : NCCL_FLOAT32;
    return check(n, n->call.sum(data, data, (size_t)count, type, NCCL_SUM, n->nccl, stream), "ncclAllReduce");
}

static int error_of(const abar__nccl *n)
{
    int error = NCCL_SUCCESS;
    const int asked = n->nccl ? n->call.error_of(n->nccl, &error) : NCCL_SUCCESS;
    return asked != NCCL_SUCCESS ? asked : error == NCCL_IN_PROGRESS ? NCCL_SUCCESS : error;
}

bool abar__nccl_has_failed(const abar__nccl *n) { return error_of(n) != NCCL_SUCCESS; }

static abar_status end_steps(abar__nccl *n, const char *text)
{
    abar__nccl_abort(n);
    return n->comm ? abar__comm_lost(n->comm, text) : abar__fail(n->ctx, ABAR_E_PEER, "%s", text);
}

abar_status abar__nccl_failure(abar__nccl *n)
{
    char text[ABAR_COMM_FAILURE];
    snprintf(text, sizeof text, "NCCL: %s in a step, a rank has ended or its network is cut", n->call.text(error_of(n)));
    return end_steps(n, text);
}

double abar__nccl_timeout(const abar__nccl *n) { return n->comm ? n->comm->timeout : 1e9; }

abar_status abar__nccl_give_up(abar__nccl *n)
{
    char text[ABAR_COMM_FAILURE];
    snprintf(text, sizeof text, "NCCL: a step has not ended for %g seconds, a rank has ended, hangs or lost its network",
             n->comm ? n->comm->timeout : 0.0);
    return end_steps(n, text);
}
