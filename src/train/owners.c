/* What ranks divide among them in the optimizer's step (device/owners.h, optim/zero.c), over the ranks' transport. */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

static abar_status gather(void *exchange, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes)
{
    const abar__exchange *x = exchange;
    if (!x->nccl) return abar__comm_gather_parts(x->comm, own, bytes, recv, recv_bytes);
    return abar__nccl_gather_parts(x->nccl, own, bytes, recv, recv_bytes, x->dev->ops->stream->current(x->dev));
}

/* Of host memory, between steps. */
static abar_status exchange(void *exchange, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes)
{
    const abar__exchange *x = exchange;
    return abar__comm_exchange(x->comm, send, send_bytes, recv, recv_bytes);
}

static abar_status enter(void *dev) { return abar_device_wait(dev); }

abar_status abar__exchange_over_nccl(abar_context *ctx, abar_comm *comm, abar_device *dev, abar__nccl **out)
{
    return abar__nccl_open(ctx, comm, enter, dev, out);
}

abar__owners abar__owners_of(abar__exchange *x)
{
    return (abar__owners){.rank = abar_comm_rank(x->comm),
                          .ranks = abar_comm_size(x->comm),
                          .queued = x->nccl != NULL,
                          .comm = x,
                          .gather = gather,
                          .exchange = exchange};
}

abar_status abar__ranks_divide(abar__exchange *x, abar_optim *optim)
{
    const abar__owners owners = abar__owners_of(x);
    return abar__optim_divide(optim, &owners);
}

abar_status abar__ranks_make_optim(abar_trainer *t)
{
    t->exchange = (abar__exchange){.comm = t->comm, .dev = t->dev};
    abar__owners owners = abar__owners_of(&t->exchange);
    owners.queued = t->dev->ops->stream && t->setup->train.transport == ABAR_TRANSPORT_NCCL; /* of one rank, too */
    return abar__optim_build_on(t->ctx, t->setup, t->dev, t->net, t->extra_net, t->setup->train.zero ? &owners : NULL,
                                &t->optim);
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
    abar_status status = ABAR_OK;
    if (t->optim->zero && t->resumes) status = abar_ranks_agree(t->ctx, t->comm, abar__zero_open(t->optim), NULL);
    if (status == ABAR_OK && t->resumes) status = abar__zero_move(t->optim, false);
    abar__zero_close(t->optim);
    return status;
}
