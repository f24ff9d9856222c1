/* What the transport needs of an MPI library. libabar itself is not linked with MPI: it opens the module of the MPI whose
 * mpirun started it, libabar_mpi_openmpi.so or libabar_mpi_mpich.so, which is this table (mpi/mpi_module.c compiled by that
 * MPI's mpicc). */
#ifndef ABAR_SRC_COMM_MPI_MODULE_H
#define ABAR_SRC_COMM_MPI_MODULE_H

#include <stddef.h>

#define ABAR_MPI_MODULE_VERSION 1 /* of the table */

/* Nothing here waits, except start. A function that returns int has failed where that is negative. */
typedef struct abar__mpi_calls {
    int version;
    /* Initialises MPI, unless the program has done so. text: why that failed. state_bytes: memory that attach is given. */
    int (*start)(int *rank, int *size, size_t *state_bytes, char *text, size_t text_bytes);
    /* Begins to make a communicator of abar's own; test reports it as slot 0. state: zeros. */
    int (*attach)(void *state);
    /* Slots 0 to 2 size - 1 are the caller's: each has at most one transfer that is under way. */
    int (*send)(void *state, int slot, const void *data, int bytes, int to);
    int (*recv)(void *state, int slot, void *data, int bytes, int from);
    /* The slots whose transfers are complete; slots: (2 size). Returns how many. */
    int (*test)(void *state, int *slots);
    /* A short message beside the transfers, at most 1024 bytes; it is copied. Returns 0: dropped, because the last one to this
     * rank has not left yet. */
    int (*tell)(void *state, int to, const void *data, int bytes);
    int (*told)(void *state); /* messages of tell that have not left yet */
    /* The next such message from anybody. Returns its bytes; 0: none has come. */
    int (*hear)(void *state, int *from, void *data, int bytes);
    /* finalise: all ranks are here. Else MPI is left as it is: to finalise it would wait for a rank that is lost. */
    void (*detach)(void *state, int finalise);
} abar__mpi_calls;

/* The module's only function. */
typedef const abar__mpi_calls *abar__mpi_entry(void);
#define ABAR_MPI_ENTRY "abar_mpi_module"

#endif
