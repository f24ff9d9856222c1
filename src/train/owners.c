/* What ranks divide among them in the optimizer's step (device/host/owners.h), over the ranks' transport. */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

static abar_status gather(void *comm, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes)
{
    return abar__comm_gather_parts(comm, own, bytes, recv, recv_bytes);
}

abar_status abar__ranks_divide(abar_comm *comm, abar_optim *optim)
{
    const abar__owners owners = {abar_comm_rank(comm), abar_comm_size(comm), comm, gather};
    return abar__optim_divide(optim, &owners);
}
