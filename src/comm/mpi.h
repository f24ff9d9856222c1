/* The transport over MPI. */
#ifndef ABAR_SRC_COMM_MPI_H
#define ABAR_SRC_COMM_MPI_H

#include "comm/comm_impl.h"
#include "comm/launch.h"
#include "comm/mpi_module.h"

/* Opens the module of the launcher's MPI. NULL: there is none; why says where it was looked for. Modules stay loaded. */
const abar__mpi_calls *abar__mpi_load(const abar__launch *launch, char *why, size_t why_bytes);
abar_status abar__comm_open_mpi(abar_context *ctx, const abar__mpi_calls *calls, const abar__launch *launch, double timeout,
                                abar_comm **out);

#endif
