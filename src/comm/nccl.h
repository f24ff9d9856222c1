/* Exchanges between GPUs in device memory, by NVIDIA's NCCL, which is loaded when it is wanted: libnccl.so.2, or the file that
 * ABAR_NCCL names. Calls are enqueued on a CUDA stream, and may be captured. Beside it the ranks have the abar_comm that
 * started them: over it they find each other, and learn of failures. */
#ifndef ABAR_SRC_COMM_NCCL_H
#define ABAR_SRC_COMM_NCCL_H

#include "comm/comm.h"

typedef struct abar__nccl abar__nccl;

/* Whether the library is there and new enough; else the error says what to do. */
abar_status abar__nccl_find(abar_context *ctx);
/* All ranks, each with a GPU of its own, which enter makes the current one of the thread that calls it. comm NULL: one rank.
 * Fails when the ranks have not connected within the comm's timeout. */
abar_status abar__nccl_open(abar_context *ctx, abar_comm *comm, abar_status (*enter)(void *user), void *user, abar__nccl **out);
void abar__nccl_close(abar__nccl *n); /* after a failure, too; NULL: nothing */

/* As those of comm/comm.h, of device memory. */
abar_status abar__nccl_exchange(abar__nccl *n, const void *const *send, const size_t *send_bytes, void *const *recv,
                                const size_t *recv_bytes, void *stream);
abar_status abar__nccl_gather(abar__nccl *n, const void *own, size_t bytes, void *all, void *stream);
/* Of one rank: what several do, in the queue. */
abar_status abar__nccl_gather_parts(abar__nccl *n, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes,
                                    void *stream);
abar_status abar__nccl_sum(abar__nccl *n, void *data, int64_t count, bool wide, void *stream);
/* Whether enqueued calls have failed meanwhile; the status of it, with what is known of it, ends them. */
bool abar__nccl_has_failed(const abar__nccl *n);
abar_status abar__nccl_failure(abar__nccl *n);
double abar__nccl_timeout(const abar__nccl *n); /* seconds that a step may wait for other ranks */
/* Ends calls that wait for ranks which do not come. give_up: because they do not; returns ABAR_E_PEER. */
void abar__nccl_abort(abar__nccl *n);
abar_status abar__nccl_give_up(abar__nccl *n);

#endif
