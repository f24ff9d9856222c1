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

#endif
