/* Processes that train together. Each has a rank, 0 to n - 1. Who starts them: abar itself on one machine (--ranks), mpirun,
 * srun or torchrun. */
#ifndef ABAR_COMM_H
#define ABAR_COMM_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_comm abar_comm;

typedef struct abar_comm_config {
    size_t size;           /* sizeof(abar_comm_config) */
    int ranks;             /* forks so many processes on this machine; 0: as a launcher's environment says, else one rank */
    const char *transport; /* "auto", "local", "mpi" or "store"; NULL: auto */
    double timeout;        /* seconds that an exchange waits for the other ranks; 0: 30 */
    bool *told;            /* set where abar_comm_open fails on this rank with what rank 0 has to tell; NULL: not wanted */
} abar_comm_config;

/* Joins the ranks. To be called before threads are made and devices opened, by a thread that lives until the end: with ranks >
 * 1 it writes what stdio has buffered and forks, and every process returns from it with a rank of its own. The caller's is rank
 * 0; when it ends, the kernel ends the others. A comm is used by one thread at a time. */
abar_status abar_comm_open(abar_context *ctx, const abar_comm_config *config, abar_comm **out);
/* Of forked ranks, rank 0 waits for the others to end, at most the timeout, and then kills them. */
void abar_comm_close(abar_comm *comm);

int abar_comm_rank(const abar_comm *comm);                   /* NULL: 0 */
int abar_comm_size(const abar_comm *comm);                   /* NULL: 1 */
int abar_comm_local(const abar_comm *comm);                  /* the rank among those of this machine */
const char *abar_comm_name(const abar_comm *comm, int rank); /* "rank 2 on host7" */
const char *abar_comm_transport(const abar_comm *comm);      /* "self", "local", "mpi", "store" */

#ifdef __cplusplus
}
#endif
#endif
