/* Stands in for libnccl.so.2 where there is no GPU: the calls that abar makes, between processes of one machine, on host memory
 * and at once. A message is a file that appears whole; a call waits for those it needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, FAILED = 2, INT8 = 0, FLOAT32 = 7, FLOAT64 = 8 };

typedef struct id {
    char folder[128];
} id;

typedef struct communicator {
    id folder;
    int rank, size;
    long sent[RANKS], received[RANKS];
} communicator;

int ncclGetVersion(int *out);
int ncclGetUniqueId(id *out);
int ncclCommInitRank(communicator **out, int ranks, id folder, int rank);
int ncclCommDestroy(communicator *c);
int ncclCommAbort(communicator *c);
int ncclCommGetAsyncError(communicator *c, int *out);
const char *ncclGetErrorString(int error);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *from, size_t n, int type, int peer, communicator *c, void *stream);
int ncclRecv(void *to, size_t n, int type, int peer, communicator *c, void *stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, communicator *c, void *stream);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation, communicator *c, void *stream);

static size_t bytes_of(size_t n, int type) { return n * (type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 1); }

int ncclGetVersion(int *out)
{
    *out = 22700;
    return 0;
}

int ncclGetUniqueId(id *out)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(out->folder, sizeof out->folder, "%.80s/fake-nccl-XXXXXX", temporary ? temporary : "/tmp");
    return mkdtemp(out->folder) ? 0 : FAILED;
}

int ncclCommInitRank(communicator **out, int ranks, id folder, int rank)
{
    if (getenv("FAKE_NCCL_FAILS")) return FAILED;
    if (getenv("FAKE_NCCL_HANGS")) rmdir(folder.folder);
    while (getenv("FAKE_NCCL_HANGS")) sleep(1); /* ranks that do not find each other */
    *out = calloc(1, sizeof **out);
    if (!*out || ranks > RANKS) return FAILED;
    **out = (communicator){.folder = folder, .rank = rank, .size = ranks};
    return 0;
}

/* The last rank removes the folder: while others exchange it may be empty, too. */
int ncclCommDestroy(communicator *c)
{
    char name[200];
    int left = c->size;
    snprintf(name, sizeof name, "%s/left-%d", c->folder.folder, c->rank);
    FILE *file = fopen(name, "wb");
    if (file) fclose(file);
    for (int r = 0; r < c->size; r++) {
        snprintf(name, sizeof name, "%s/left-%d", c->folder.folder, r);
        left -= access(name, F_OK) == 0;
    }
    for (int r = 0; r < c->size && left == 0; r++) {
        snprintf(name, sizeof name, "%s/left-%d", c->folder.folder, r);
        unlink(name);
    }
    rmdir(c->folder.folder);
    free(c);
    return 0;
}

int ncclCommAbort(communicator *c) { return ncclCommDestroy(c); }

int ncclCommGetAsyncError(communicator *c, int *out)
{
    (void)c;
    *out = 0;
    return 0;
}

const char *ncclGetErrorString(int error) { return error ? "failed" : "no error"; }
int ncclGroupStart(void) { return 0; } /* sending waits for nobody: calls need not be joined */
int ncclGroupEnd(void) { return 0; }

static void name_message(const communicator *c, int from, int to, long number, char name[200])
{
    snprintf(name, 200, "%s/%d-%d-%ld", c->folder.folder, from, to, number);
}

int ncclSend(const void *from, size_t n, int type, int peer, communicator *c, void *stream)
{
    char name[200], unfinished[210];
    (void)stream;
    name_message(c, c->rank, peer, c->sent[peer]++, name);
    snprintf(unfinished, sizeof unfinished, "%s.part", name);
    FILE *file = fopen(unfinished, "wb");
    if (!file || fwrite(from, 1, bytes_of(n, type), file) != bytes_of(n, type) || fclose(file)) return FAILED;
    return rename(unfinished, name) ? FAILED : 0;
}

int ncclRecv(void *to, size_t n, int type, int peer, communicator *c, void *stream)
{
    const struct timespec nap = {.tv_nsec = 100000};
    const time_t end = time(NULL) + 240; /* passes in a failure alone */
    char name[200], more;
    FILE *file;
    (void)stream;
    name_message(c, peer, c->rank, c->received[peer]++, name);
    while (!(file = fopen(name, "rb")) && time(NULL) < end) nanosleep(&nap, NULL);
    if (!file || fread(to, 1, bytes_of(n, type), file) != bytes_of(n, type) || fread(&more, 1, 1, file) != 0) return FAILED;
    fclose(file);
    return unlink(name) ? FAILED : 0;
}

int ncclAllGather(const void *from, void *to, size_t n, int type, communicator *c, void *stream)
{
    char *at = to;
    const size_t bytes = bytes_of(n, type);
    memmove(at + (size_t)c->rank * bytes, from, bytes);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && ncclSend(at + (size_t)c->rank * bytes, bytes, INT8, r, c, stream)) return FAILED;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && ncclRecv(at + (size_t)r * bytes, bytes, INT8, r, c, stream)) return FAILED;
    return 0;
}

/* In the order of ranks. */
int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation, communicator *c, void *stream)
{
    const size_t bytes = bytes_of(n, type);
    char *all = malloc((size_t)c->size * bytes + 1);
    if (!all || operation != 0 || type == INT8) return FAILED;
    if (ncclAllGather(from, all, bytes, INT8, c, stream)) return FAILED;
    memcpy(to, all, bytes);
    for (int r = 1; r < c->size; r++)
        for (size_t i = 0; i < n; i++)
            if (type == FLOAT64)
                ((double *)to)[i] += ((const double *)(const void *)(all + (size_t)r * bytes))[i];
            else
                ((float *)to)[i] += ((const float *)(const void *)(all + (size_t)r * bytes))[i];
    free(all);
    return 0;
}
