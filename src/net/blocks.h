/* The memory of a net's tensors as whole blocks, for what treats all of them alike. */
#ifndef ABAR_NET_BLOCKS_H
#define ABAR_NET_BLOCKS_H

#include "abar/net.h"

/* Of a compiled net. Gaps between tensors are zero. The gradients have the values' layout; NULL: it is not trained. Evaluation
 * reads pending, which is equal to running between steps. */
typedef struct abar__net_blocks {
    void *values, *grads;
    size_t value_bytes; /* of each of the two */
    void *running, *pending;
    size_t running_bytes; /* likewise */
} abar__net_blocks;

abar__net_blocks abar__net_blocks_of(const abar_net *net);

/* Called between two steps of a backward pass: gradients from this byte on are complete, and are not read any more. */
typedef struct abar__grad_watcher {
    abar_status (*complete)(void *user, size_t from);
    void *user;
} abar__grad_watcher;

/* abar_net_backward with a watcher; NULL: none. Its last call has 0, where any parameter has a gradient. */
abar_status abar__net_backward_watched(abar_net *net, bool accumulate, const abar_observer *observer,
                                       const abar__grad_watcher *watcher);

/* Averages the statistics of n batches, (n, running_bytes) as passes with abar_run_config.own_statistics leave them in pending,
 * into pending in their order: as n training passes would. For devices that compute in host memory. */
void abar__net_add_statistics(abar_net *net, const void *batches, int64_t n);
/* The same enqueued on a queued device, in whose memory batches are. */
abar_status abar__net_enqueue_statistics(abar_net *net, const void *batches, int64_t n);

#endif
