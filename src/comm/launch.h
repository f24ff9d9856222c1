/* Which launcher has started this process, as its environment says. */
#ifndef ABAR_SRC_COMM_LAUNCH_H
#define ABAR_SRC_COMM_LAUNCH_H

#include "abar/base.h"

#define ABAR_LAUNCH_HOST 256

/* MPI launchers come first: they may run inside a Slurm allocation, whose variables are then set, too. */
typedef enum abar__launcher {
    ABAR_LAUNCH_NONE,
    ABAR_LAUNCH_OPENMPI,  /* mpirun of Open MPI */
    ABAR_LAUNCH_PMI,      /* mpirun of MPICH and its relatives */
    ABAR_LAUNCH_TORCHRUN, /* torchrun, and everything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT */
    ABAR_LAUNCH_SLURM,    /* srun */
} abar__launcher;

typedef struct abar__launch {
    abar__launcher by;
    const char *name; /* "mpirun", "torchrun", "srun"; "": none */
    int rank, size;
    int local;                   /* the rank among those of its machine; -1: unknown */
    bool apart;                  /* the ranks are known to be on several machines */
    bool mpi;                    /* MPI_Init will find the other ranks */
    char host[ABAR_LAUNCH_HOST]; /* where rank 0 is; "": unknown */
    int port;                    /* where its store listens; 0: unknown */
} abar__launch;

/* get: getenv, or a test's. */
abar_status abar__launch_read(abar_context *ctx, const char *(*get)(void *user, const char *name), void *user,
                              abar__launch *out);
/* The first host of a Slurm node list, "gpu[03-05,9],login" -> "gpu03". False: it does not fit, or is no list. */
bool abar__launch_first_host(const char *list, char *out, size_t size);

#endif
