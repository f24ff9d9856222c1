/* The ranks' common part: opening, checks of calls, and the collectives, each made of a transport's exchanges. */
#include "base/clock.h"
#include "comm/comm_impl.h"
#include "comm/launch.h"
#include "comm/mpi.h"
#include "comm/tcp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT 30.0
#define MAX_TIMEOUT 1e6
#define SMALL ((size_t)64 << 10) /* a broadcast of fewer bytes goes from the root to each rank */

/* What ranks tell each other first. */
typedef struct greeting {
    char version[32];
    char host[ABAR_COMM_HOST];
    abar__core_set cores;
} greeting;

/* ---- the struct ------------------------------------------------------------------------------------------------------ */

abar_status abar__comm_create(abar_context *ctx, int rank, int size, double timeout, abar_comm **out)
{
    const size_t n = (size_t)size;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    abar_comm *c = memory;
    *c = (abar_comm){.ctx = ctx, .rank = rank, .size = size, .timeout = timeout};
    const struct {
        void **at;
        size_t bytes;
    } parts[] = {
        {(void **)&c->names, n * sizeof *c->names},
        {(void **)&c->send, n * sizeof *c->send},
        {(void **)&c->recv, n * sizeof *c->recv},
        {(void **)&c->send_bytes, n * sizeof *c->send_bytes},
        {(void **)&c->scratch, size > 1 ? ABAR_COMM_SCRATCH : 0},
        {(void **)&c->recv_bytes, n * sizeof *c->recv_bytes},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *part;
        const abar_status status = abar__alloc(ctx, parts[i].bytes, &part);
        if (status < 0) {
            abar__comm_free(c);
            return status;
        }
        memcpy(parts[i].at, &part, sizeof part);
    }
    for (int r = 0; r < size; r++) snprintf(c->names[r], sizeof c->names[r], "rank %d", r);
    *out = c;
    return ABAR_OK;
}

void abar__comm_free(abar_comm *c)
{
    const size_t n = (size_t)c->size;
    abar__free(c->ctx, c->names, n * sizeof *c->names);
    abar__free(c->ctx, (void *)c->send, n * sizeof *c->send);
    abar__free(c->ctx, (void *)c->recv, n * sizeof *c->recv);
    abar__free(c->ctx, c->send_bytes, n * sizeof *c->send_bytes);
    abar__free(c->ctx, c->recv_bytes, n * sizeof *c->recv_bytes);
    abar__free(c->ctx, c->scratch, ABAR_COMM_SCRATCH);
    abar__free(c->ctx, c, sizeof *c);
}

abar_status abar__comm_lost(abar_comm *c, const char *text)
{
    if (!c->failed) snprintf(c->failure, sizeof c->failure, "%s", text);
    c->failed = true;
    return abar__fail(c->ctx, ABAR_E_PEER, "%s", c->failure);
}

void abar__comm_silent_text(const abar_comm *c, int rank, char text[ABAR_COMM_FAILURE])
{
    snprintf(
        text, ABAR_COMM_FAILURE,
        "%s: no answer for %g seconds, it is stopped, hangs or has lost its network (a rank that computes for longer needs a "
        "longer timeout)",
        abar_comm_name(c, rank), c->timeout);
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

/* Names every rank after its host, shares the host's cores, and refuses ranks of another version. */
static abar_status greet(abar_comm *c)
{
    greeting own = {.cores = abar__cores_own()};
    abar__core_set together = own.cores;
    int neighbours = 0;
    snprintf(own.version, sizeof own.version, "%s", abar_version());
    if (gethostname(own.host, sizeof own.host - 1)) snprintf(own.host, sizeof own.host, "unknown");
    void *memory;
    const size_t bytes = (size_t)c->size * sizeof own;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    greeting *all = memory;
    abar_status status = abar__comm_gather(c, &own, sizeof own, all);
    for (int r = 0; r < c->size && status == ABAR_OK; r++) {
        all[r].version[sizeof own.version - 1] = all[r].host[sizeof own.host - 1] = 0;
        snprintf(c->names[r], sizeof c->names[r], "rank %d on %s", r, all[r].host);
        if (strcmp(all[r].host, own.host)) continue;
        abar__cores_join(&together, &all[r].cores);
        neighbours++;
        c->local += r < c->rank;
    }
    c->cores = abar__cores_each(&together, &own.cores, neighbours > 0 ? neighbours : 1);
    for (int r = 1; r < c->size && status == ABAR_OK; r++)
        if (strcmp(all[r].version, all[0].version))
            status = abar__fail(c->ctx, ABAR_E_ARGUMENT, "%s: runs abar %s and rank 0 %s, install the same version everywhere",
                                c->names[r], all[r].version, all[0].version);
    abar__free(c->ctx, memory, bytes);
    return status;
}

static abar_status check_config(abar_context *ctx, const abar_comm_config *config, abar_comm_config *out)
{
    ABAR_TRY(abar__struct_read(ctx, "abar_comm_config", config, out, sizeof *out));
    if (!out->transport) out->transport = "auto";
    if (out->timeout == 0) out->timeout = DEFAULT_TIMEOUT;
    if (!(out->timeout > 0 && out->timeout <= MAX_TIMEOUT))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "timeout %g: give seconds above 0, at most %g", out->timeout, MAX_TIMEOUT);
    if (out->ranks < 0 || out->ranks > ABAR_COMM_LOCAL)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "ranks %d: give 1 to %d on one machine", out->ranks, ABAR_COMM_LOCAL);
    return ABAR_OK;
}

static const char *from_environment(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

/* As --ranks asks: this process and forked ones. */
static abar_status open_ranks(abar_context *ctx, const abar_comm_config *config, const abar__launch *launch, abar_comm **out)
{
    if (strcmp(config->transport, "auto") && strcmp(config->transport, "local"))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "ranks %d: forked ranks exchange over 'local', not '%s'; leave one of them out",
                          config->ranks, config->transport);
    if (config->ranks == 1) return abar__comm_open_self(ctx, config->timeout, out);
    if (launch->size > 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "ranks %d: %s has started %d ranks already, leave --ranks out", config->ranks,
                          launch->name, launch->size);
    return abar__comm_open_local(ctx, config->ranks, config->timeout, out);
}

static abar_status open_store(abar_context *ctx, const abar_comm_config *config, const abar__launch *launch, bool *told,
                              abar_comm **out)
{
    if (!launch->host[0] || !launch->port)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "store: rank 0's address is unknown, set MASTER_ADDR and MASTER_PORT on all ranks");
    const abar__store_request request = {.rank = launch->rank,
                                         .size = launch->size,
                                         .host = launch->host,
                                         .port = launch->port,
                                         .timeout = config->timeout,
                                         .local = launch->local,
                                         .apart = launch->apart};
    *told = false;
    return abar__comm_open_store(ctx, &request, told, out);
}

/* As a launcher has started this process: MPI where the launcher is MPI's and there is a module, else the store. */
static abar_status open_launched(abar_context *ctx, const abar_comm_config *config, const abar__launch *launch, bool *told,
                                 abar_comm **out)
{
    const char *transport = config->transport;
    const bool automatic = !strcmp(transport, "auto");
    char why[ABAR_COMM_FAILURE];
    if (launch->size == 1 && automatic) return abar__comm_open_self(ctx, config->timeout, out);
    if (!strcmp(transport, "local"))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "transport 'local': is for forked ranks, give --ranks N, too");
    if (launch->by == ABAR_LAUNCH_NONE)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "transport '%s': no launcher has started this process, use mpirun, srun or torchrun", transport);
    if (!strcmp(transport, "mpi") || (automatic && launch->mpi)) {
        const abar__mpi_calls *calls = abar__mpi_load(launch, why, sizeof why);
        if (launch->local >= 0) *told = launch->local > 0; /* what a machine lacks */
        if (calls) return abar__comm_open_mpi(ctx, calls, launch, config->timeout, out);
        if (!automatic || !launch->host[0] || !launch->port)
            return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                              "transport 'mpi': %s, build abar with -DABAR_MPI=ON, or set MASTER_ADDR and MASTER_PORT for "
                              "'store'",
                              why);
    }
    return open_store(ctx, config, launch, told, out);
}

/* *told: of a failure, that rank 0 has it, too: its settings are the same. */
static abar_status open_transport(abar_context *ctx, const abar_comm_config *config, bool *told, abar_comm **out)
{
    static const char *const known[] = {"auto", "local", "mpi", "store", NULL};
    int i = 0;
    while (known[i] && strcmp(known[i], config->transport)) i++;
    if (!known[i])
        return abar__fail(ctx, ABAR_E_ARGUMENT, "transport '%s': is none of auto, local, mpi, store", config->transport);
    abar__launch launch;
    ABAR_TRY(abar__launch_read(ctx, from_environment, NULL, &launch));
    *told = launch.rank > 0;
    return config->ranks > 0 ? open_ranks(ctx, config, &launch, out) : open_launched(ctx, config, &launch, told, out);
}

abar_status abar_comm_open(abar_context *ctx, const abar_comm_config *config, abar_comm **out)
{
    if (!ctx || !out) return ABAR_E_ARGUMENT;
    *out = NULL;
    abar_comm_config checked;
    ABAR_TRY(check_config(ctx, config, &checked));
    abar_comm *c = NULL;
    bool told = false;
    abar_status status = open_transport(ctx, &checked, &told, &c);
    if (status == ABAR_OK) {
        told = c->rank > 0;
        status = greet(c);
    }
    if (checked.told) *checked.told = status < 0 && told;
    if (status < 0) {
        abar_comm_close(c);
        return status;
    }
    *out = c;
    return ABAR_OK;
}

void abar_comm_close(abar_comm *comm)
{
    if (!comm) return;
    comm->ops->close(comm);
    abar__comm_free(comm);
}

int abar_comm_rank(const abar_comm *comm) { return comm ? comm->rank : 0; }
int abar_comm_size(const abar_comm *comm) { return comm ? comm->size : 1; }
int abar_comm_local(const abar_comm *comm) { return comm ? comm->local : 0; }
int abar__comm_cores(const abar_comm *c) { return c ? c->cores : abar__cores_allowed(); }
const char *abar_comm_name(const abar_comm *comm, int rank)
{
    return !comm ? "rank 0" : rank < 0 || rank >= comm->size ? "no such rank" : comm->names[rank];
}
const char *abar_comm_transport(const abar_comm *comm) { return comm ? comm->ops->name : "self"; }
uint64_t abar__comm_sent(const abar_comm *c) { return c ? c->sent : 0; }
double abar__comm_seconds(const abar_comm *c) { return c ? c->seconds : 0.0; }

/* ---- collectives ----------------------------------------------------------------------------------------------------- */

void abar__comm_clear(abar_comm *c)
{
    memset(c->send_bytes, 0, (size_t)c->size * sizeof *c->send_bytes);
    memset(c->recv_bytes, 0, (size_t)c->size * sizeof *c->recv_bytes);
}

/* The own part has been copied, and its sizes are 0. */
static abar_status run(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                       const size_t *recv_bytes)
{
    if (c->failed) return abar__fail(c->ctx, ABAR_E_PEER, "%s", c->failure);
    const double began = abar__seconds();
    const abar_status status = c->ops->exchange(c, send, send_bytes, recv, recv_bytes);
    c->seconds += abar__seconds() - began;
    ABAR_TRY(status);
    for (int r = 0; r < c->size; r++) c->sent += r == c->rank ? 0 : send_bytes[r];
    return ABAR_OK;
}

abar_status abar__comm_exchange_scratch(abar_comm *c) { return run(c, c->send, c->send_bytes, c->recv, c->recv_bytes); }

abar_status abar__comm_exchange(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                                const size_t *recv_bytes)
{
    if (!c) {
        if (send_bytes[0]) memmove(recv[0], send[0], send_bytes[0]);
        return ABAR_OK;
    }
    const size_t own = send_bytes[c->rank];
    if (own != recv_bytes[c->rank])
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "exchange: rank %d sends %zu bytes to itself and receives %zu", c->rank, own,
                          recv_bytes[c->rank]);
    if (own && recv[c->rank] != send[c->rank]) memmove(recv[c->rank], send[c->rank], own);
    for (int r = 0; r < c->size; r++) {
        c->send[r] = send[r], c->recv[r] = recv[r];
        c->send_bytes[r] = r == c->rank ? 0 : send_bytes[r], c->recv_bytes[r] = r == c->rank ? 0 : recv_bytes[r];
    }
    return abar__comm_exchange_scratch(c);
}

void abar__comm_tell(abar_comm *c, const char *text)
{
    if (!c || c->failed) return;
    if (c->ops->tell) c->ops->tell(c, text);
    snprintf(c->failure, sizeof c->failure, "%s", text);
    c->failed = true;
}

void abar__comm_tell_error(abar_comm *c, const abar_context *ctx)
{
    char text[ABAR_COMM_FAILURE];
    if (!c) return;
    snprintf(text, sizeof text, "%s: %s", abar_comm_name(c, c->rank), abar_context_error(ctx));
    abar__comm_tell(c, text);
}

abar_status abar__comm_hear(abar_comm *c)
{
    if (!c) return ABAR_OK;
    if (c->failed) return abar__fail(c->ctx, ABAR_E_PEER, "%s", c->failure);
    return c->ops->hear ? c->ops->hear(c) : ABAR_OK;
}

/* Rounds of one byte: in round k to the rank 2^k after this one and from the one before, so that after the last round every
 * rank has heard, through others, from all (the dissemination barrier). */
abar_status abar__comm_barrier(abar_comm *c)
{
    uint8_t out = 1, in;
    for (int step = 1; c && step < c->size; step *= 2) {
        const int to = (c->rank + step) % c->size, from = (c->rank + c->size - step) % c->size;
        abar__comm_clear(c);
        c->send[to] = &out, c->send_bytes[to] = 1;
        c->recv[from] = &in, c->recv_bytes[from] = 1;
        ABAR_TRY(abar__comm_exchange_scratch(c));
    }
    return c && c->failed ? abar__comm_lost(c, c->failure) : ABAR_OK;
}

/* Every rank's part of `bytes` bytes: [begin, end). */
static void part_of(const abar_comm *c, size_t bytes, int r, size_t *begin, size_t *end)
{
    const size_t part = abar__round_up((bytes + (size_t)c->size - 1) / (size_t)c->size, ABAR_ALIGN), at = part * (size_t)r;
    *begin = at < bytes ? at : bytes;
    *end = at + part < bytes ? at + part : bytes;
}

/* Sends the own part of data to all and receives theirs. */
static abar_status join_parts(abar_comm *c, uint8_t *data, size_t bytes)
{
    size_t own, own_end, begin, end;
    part_of(c, bytes, c->rank, &own, &own_end);
    abar__comm_clear(c);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        part_of(c, bytes, r, &begin, &end);
        c->send[r] = data + own, c->send_bytes[r] = own_end - own;
        c->recv[r] = data + begin, c->recv_bytes[r] = end - begin;
    }
    return abar__comm_exchange_scratch(c);
}

/* A long broadcast is two steps, each rank's part to it and then all parts to all: no rank sends the data more than twice. */
abar_status abar__comm_broadcast(abar_comm *c, int root, void *data, size_t bytes)
{
    if (!c) return ABAR_OK;
    if (root < 0 || root >= c->size)
        return abar__fail(c->ctx, ABAR_E_ARGUMENT, "broadcast: there is no rank %d of %d", root, c->size);
    const bool split = bytes >= SMALL && c->size > 2;
    abar__comm_clear(c);
    for (int r = 0; r < c->size; r++) {
        size_t begin = 0, end = bytes;
        if (split) part_of(c, bytes, r, &begin, &end);
        if (c->rank == root && r != root) c->send[r] = (uint8_t *)data + begin, c->send_bytes[r] = end - begin;
        if (c->rank == r && r != root) c->recv[root] = (uint8_t *)data + begin, c->recv_bytes[root] = end - begin;
    }
    ABAR_TRY(abar__comm_exchange_scratch(c));
    return split ? join_parts(c, data, bytes) : ABAR_OK;
}

abar_status abar__comm_gather(abar_comm *c, const void *own, size_t bytes, void *all)
{
    const int rank = abar_comm_rank(c);
    uint8_t *place = (uint8_t *)all + (size_t)rank * bytes;
    if (bytes && place != own) memmove(place, own, bytes);
    if (!c) return ABAR_OK;
    abar__comm_clear(c);
    for (int r = 0; r < c->size; r++) {
        if (r == rank) continue;
        c->send[r] = place, c->send_bytes[r] = bytes;
        c->recv[r] = (uint8_t *)all + (size_t)r * bytes, c->recv_bytes[r] = bytes;
    }
    return abar__comm_exchange_scratch(c);
}

abar_status abar__comm_gather_parts(abar_comm *c, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes)
{
    if (!c) return ABAR_OK;
    abar__comm_clear(c);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        c->send[r] = own, c->send_bytes[r] = bytes;
        c->recv[r] = recv[r], c->recv_bytes[r] = recv_bytes[r];
    }
    return abar__comm_exchange_scratch(c);
}

/* ---- sums in any order ----------------------------------------------------------------------------------------------- */

static void add_floats(void *to, const void *from, size_t bytes)
{
    float *restrict x = to;
    const float *restrict y = from;
    for (size_t i = 0; i < bytes / sizeof *x; i++) x[i] += y[i];
}

static void add_doubles(void *to, const void *from, size_t bytes)
{
    double *restrict x = to;
    const double *restrict y = from;
    for (size_t i = 0; i < bytes / sizeof *x; i++) x[i] += y[i];
}

/* One piece: every rank receives the others' values of its part, adds them, and sends the sum to all. One rank computes each
 * sum, so that all have the same bits. */
static abar_status sum_piece(abar_comm *c, uint8_t *data, size_t bytes, void (*add)(void *, const void *, size_t))
{
    size_t own, own_end, begin, end;
    part_of(c, bytes, c->rank, &own, &own_end);
    abar__comm_clear(c);
    uint8_t *at = c->scratch;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        part_of(c, bytes, r, &begin, &end);
        c->send[r] = data + begin, c->send_bytes[r] = end - begin;
        c->recv[r] = at, c->recv_bytes[r] = own_end - own;
        at += own_end - own;
    }
    ABAR_TRY(abar__comm_exchange_scratch(c));
    at = c->scratch;
    for (int r = 1; r < c->size; r++, at += own_end - own) add(data + own, at, own_end - own);
    return join_parts(c, data, bytes);
}

static abar_status sum(abar_comm *c, void *data, size_t bytes, void (*add)(void *, const void *, size_t))
{
    if (!c || c->size == 1) return ABAR_OK;
    const size_t most = ABAR_COMM_SCRATCH / ((size_t)c->size * ABAR_ALIGN) * (size_t)c->size * ABAR_ALIGN; /* whole parts */
    for (size_t at = 0; at < bytes; at += most)
        ABAR_TRY(sum_piece(c, (uint8_t *)data + at, bytes - at < most ? bytes - at : most, add));
    return c->failed ? abar__comm_lost(c, c->failure) : ABAR_OK;
}

abar_status abar__comm_sum_floats(abar_comm *c, float *data, int64_t n)
{
    return sum(c, data, (size_t)n * sizeof *data, add_floats);
}

abar_status abar__comm_sum_doubles(abar_comm *c, double *data, int64_t n)
{
    return sum(c, data, (size_t)n * sizeof *data, add_doubles);
}
