/* The module: MPI's side of comm/mpi.c. It is compiled once for each MPI, and knows nothing else of abar. */
#include "comm/mpi_module.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { DATA = 1, TELL = 2, MESSAGE = 1024 };

typedef struct state {
    MPI_Comm comm;
    int size, begun;           /* begun: MPI was initialised here */
    MPI_Request *requests;     /* (2 size) */
    MPI_Request *tellings;     /* (size) */
    MPI_Status *ignored;       /* (2 size): MPI_STATUSES_IGNORE is not accepted by all with errors that are returned */
    char (*messages)[MESSAGE]; /* (size) */
} state;

const abar__mpi_calls *abar_mpi_module(void);

static int ok(int code) { return code == MPI_SUCCESS ? 0 : -1; }

static int start(int *rank, int *size, size_t *state_bytes, char *text, size_t text_bytes)
{
    int running = 0, over = 0, level;
    MPI_Finalized(&over);
    MPI_Initialized(&running);
    if (over) {
        snprintf(text, text_bytes, "MPI was finalised in this process, and can be started once");
        return -1;
    }
    if (!running && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) {
        snprintf(text, text_bytes, "MPI_Init_thread failed");
        return -1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    const size_t n = (size_t)*size;
    *state_bytes = sizeof(state) + n * (3 * sizeof(MPI_Request) + 2 * sizeof(MPI_Status) + MESSAGE) + 64;
    return running ? 1 : 0;
}

static int attach(void *memory)
{
    state *s = memory;
    MPI_Comm_size(MPI_COMM_WORLD, &s->size);
    const size_t n = (size_t)s->size;
    s->ignored = (MPI_Status *)(s + 1);
    s->requests = (MPI_Request *)(s->ignored + 2 * n);
    s->tellings = s->requests + 2 * n;
    s->messages = (char(*)[MESSAGE])(s->tellings + n);
    for (size_t i = 0; i < 3 * n; i++) s->requests[i] = MPI_REQUEST_NULL;
    return ok(MPI_Comm_idup(MPI_COMM_WORLD, &s->comm, &s->requests[0]));
}

static int send_bytes(void *memory, int slot, const void *data, int bytes, int to)
{
    state *s = memory;
    return ok(MPI_Isend(data, bytes, MPI_BYTE, to, DATA, s->comm, &s->requests[slot]));
}

static int recv_bytes(void *memory, int slot, void *data, int bytes, int from)
{
    state *s = memory;
    return ok(MPI_Irecv(data, bytes, MPI_BYTE, from, DATA, s->comm, &s->requests[slot]));
}

static int test(void *memory, int *slots)
{
    state *s = memory;
    int done = 0;
    if (MPI_Testsome(2 * s->size, s->requests, &done, slots, s->ignored) != MPI_SUCCESS) return -1;
    return done == MPI_UNDEFINED ? 0 : done;
}

static int tell(void *memory, int to, const void *data, int bytes)
{
    state *s = memory;
    int gone = 1;
    if (bytes > MESSAGE || MPI_Test(&s->tellings[to], &gone, s->ignored) != MPI_SUCCESS) return -1;
    if (!gone) return 0;
    memcpy(s->messages[to], data, (size_t)bytes);
    return ok(MPI_Isend(s->messages[to], bytes, MPI_BYTE, to, TELL, s->comm, &s->tellings[to])) < 0 ? -1 : 1;
}

static int told(void *memory)
{
    state *s = memory;
    int left = 0;
    for (int r = 0; r < s->size; r++) {
        int gone = 1;
        if (MPI_Test(&s->tellings[r], &gone, s->ignored) == MPI_SUCCESS && !gone) left++;
    }
    return left;
}

static int hear(void *memory, int *from, void *data, int bytes)
{
    state *s = memory;
    int there = 0, n = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TELL, s->comm, &there, &status) != MPI_SUCCESS) return -1;
    if (!there) return 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n > bytes || n < 1) return -1;
    *from = status.MPI_SOURCE;
    return MPI_Recv(data, n, MPI_BYTE, *from, TELL, s->comm, &status) == MPI_SUCCESS ? n : -1;
}

static void detach(void *memory, int finalise)
{
    state *s = memory;
    if (!finalise) return;
    MPI_Comm_free(&s->comm);
    MPI_Finalize();
}

const abar__mpi_calls *abar_mpi_module(void)
{
    static const abar__mpi_calls calls = {
        ABAR_MPI_MODULE_VERSION, start, attach, send_bytes, recv_bytes, test, tell, told, hear, detach};
    return &calls;
}
