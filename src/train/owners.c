/* What ranks divide among them in the optimizer's step (device/host/owners.h, optim/zero.c), over the ranks' transport. */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

static abar_status gather(void *comm, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes)
{
    return abar__comm_gather_parts(comm, own, bytes, recv, recv_bytes);
}

static abar_status exchange(void *comm, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes)
{
    return abar__comm_exchange(comm, send, send_bytes, recv, recv_bytes);
}

static abar__owners owners_of(abar_comm *comm)
{
    return (abar__owners){abar_comm_rank(comm), abar_comm_size(comm), comm, gather, exchange};
}

abar_status abar__ranks_divide(abar_comm *comm, abar_optim *optim)
{
    const abar__owners owners = owners_of(comm);
    return abar__optim_divide(optim, &owners);
}

abar_status abar__ranks_make_optim(abar_trainer *t)
{
    const abar__owners owners = owners_of(t->comm);
    ABAR_TRY(
        abar__optim_build_on(t->ctx, t->setup, t->dev, t->net, t->extra_net, t->setup->train.zero ? &owners : NULL, &t->optim));
    return abar__optim_divide(t->optim, &owners);
}

/* ---- the state of all parameters on rank 0 ------------------------------------------------------------------------------ */

abar_status abar__ranks_hold(abar_trainer *t) { return abar__zero_open(t->optim); }

void abar__ranks_let_go(abar_trainer *t) { abar__zero_close(t->optim); }

abar_status abar__ranks_collect(abar_trainer *t)
{
    if (!t->optim->zero) return ABAR_OK;
    ABAR_TRY(abar_ranks_agree(t->ctx, t->comm, abar__zero_open(t->optim), NULL));
    return abar__zero_move(t->optim, true);
}

abar_status abar__ranks_spread(abar_trainer *t)
{
    const abar_status status = t->resumes ? abar__zero_move(t->optim, false) : ABAR_OK;
    abar__zero_close(t->optim);
    return status;
}
