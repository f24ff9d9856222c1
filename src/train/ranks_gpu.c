/* Ranks on GPUs: which GPU a rank takes, how its ranks exchange, and the bytes of tensors that the host cannot read. Steps are
 * joined in join_queued.c. */
#include "train/train_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- GPUs --------------------------------------------------------------------------------------------------------------- */

/* "cuda": ranks of a machine take its GPUs in turn. "cuda:N" is taken as it is. */
abar_status abar__ranks_open_device(abar_trainer *t)
{
    char *const device = t->setup->train.device;
    char given[ABAR_OPTION_TEXT_MAX];
    const int gpus = abar_comm_size(t->comm) > 1 && strcmp(device, "cuda") == 0 ? abar_device_count("cuda") : 0;
    if (gpus < 1) return abar__device_open(t->ctx, t->setup, &t->dev);
    memcpy(given, device, sizeof given);
    snprintf(device, sizeof t->setup->train.device, "cuda:%d", abar_comm_local(t->comm) % gpus);
    const abar_status status = abar__device_open(t->ctx, t->setup, &t->dev);
    memcpy(device, given, sizeof given);
    return status;
}

/* ---- how they exchange ------------------------------------------------------------------------------------------------------
 */

/* What a rank tells the others. */
typedef struct gpu_word {
    int64_t found; /* 0: it has no NCCL */
    char host[96], gpu[ABAR_DEVICE_IDENTITY];
} gpu_word;

/* The first two ranks that have one GPU. */
static bool find_shared(const gpu_word *words, int n, int *a, int *b)
{
    for (*b = 1; *b < n; ++*b)
        for (*a = 0; *a < *b; ++*a)
            if (strcmp(words[*a].host, words[*b].host) == 0 && strcmp(words[*a].gpu, words[*b].gpu) == 0) return true;
    return false;
}

static const char *host_of_rank(const abar_comm *comm, int rank)
{
    const char *on = strstr(abar_comm_name(comm, rank), " on ");
    return on ? on + strlen(" on ") : "";
}

/* Why NCCL cannot be used, on all ranks alike; "": it can. */
static void explain_host(const abar_trainer *t, const gpu_word *words, char *why, size_t size)
{
    const int n = abar_comm_size(t->comm);
    int a, b;
    why[0] = '\0';
    for (int r = 0; r < n && !why[0]; r++)
        if (!words[r].found)
            snprintf(why, size, "%s has no NCCL 2.11 or newer (libnccl.so.2, or ABAR_NCCL)", abar_comm_name(t->comm, r));
    if (!why[0] && find_shared(words, n, &a, &b))
        snprintf(why, size, "%s and %s have one GPU, NCCL needs one for each rank", abar_comm_name(t->comm, a),
                 abar_comm_name(t->comm, b));
}

static abar_status compare_gpus(abar_trainer *t, char *why, size_t size)
{
    gpu_word own = {.found = abar__nccl_find(t->ctx) == ABAR_OK};
    const abar_status known = t->dev->ops->stream->identify(t->dev, own.gpu);
    const size_t bytes = (size_t)abar_comm_size(t->comm) * sizeof own;
    void *words;
    snprintf(own.host, sizeof own.host, "%s", host_of_rank(t->comm, abar_comm_rank(t->comm)));
    own.found = own.found && known == ABAR_OK;
    ABAR_TRY(abar__alloc(t->ctx, bytes, &words));
    abar_status status = abar__comm_gather(t->comm, &own, sizeof own, words);
    if (status == ABAR_OK) explain_host(t, words, why, size);
    abar__free(t->ctx, words, bytes);
    return known < 0 ? known : status; /* the other ranks learn of it when all agree */
}

abar_status abar__ranks_connect(abar_trainer *t)
{
    const int64_t transport = t->setup->train.transport;
    const bool alone = abar_comm_size(t->comm) == 1;
    char why[320] = "";
    if (!t->dev->ops->stream || transport == ABAR_TRANSPORT_HOST || (alone && transport != ABAR_TRANSPORT_NCCL)) return ABAR_OK;
    if (!alone) ABAR_TRY(compare_gpus(t, why, sizeof why));
    if (!why[0]) return abar__exchange_over_nccl(t->ctx, alone ? NULL : t->comm, t->dev, &t->nccl);
    if (transport == ABAR_TRANSPORT_NCCL)
        return abar__fail(t->ctx, ABAR_E_UNSUPPORTED,
                          "--transport nccl: %s; install it, start fewer ranks, or give --transport host", why);
    if (abar_comm_rank(t->comm) == 0) abar__log(t->ctx, ABAR_LOG_INFO, "the ranks exchange through the host's memory: %s", why);
    return ABAR_OK;
}

/* ---- bytes of tensors -------------------------------------------------------------------------------------------------------
 */

bool abar__rank_is_elsewhere(const abar_tensor *tensor) { return tensor->dev && tensor->dev->ops->stream; }

abar_status abar__rank_bytes_make(abar_trainer *t, size_t bytes)
{
    if (bytes == 0) return ABAR_OK;
    ABAR_TRY(t->dev->ops->stream->shared_alloc(t->dev, bytes, &t->rank_bytes));
    t->rank_bytes_size = bytes;
    return ABAR_OK;
}

void abar__rank_bytes_release(abar_trainer *t)
{
    if (t->rank_bytes) t->dev->ops->stream->shared_free(t->dev, t->rank_bytes, t->rank_bytes_size);
    t->rank_bytes = NULL;
}

abar_status abar__rank_bytes(const abar_trainer *t, const abar_tensor *tensor, void **out)
{
    *out = tensor->data;
    if (!abar__rank_is_elsewhere(tensor)) return ABAR_OK;
    *out = t->rank_bytes;
    ABAR_TRY(t->dev->ops->stream->copy_bytes(t->dev, *out, tensor->data, abar_tensor_bytes(tensor)));
    return abar_device_wait(t->dev);
}

abar_status abar__rank_bytes_back(const abar_trainer *t, const abar_tensor *tensor, const void *bytes)
{
    if (!abar__rank_is_elsewhere(tensor)) return ABAR_OK;
    ABAR_TRY(t->dev->ops->stream->copy_bytes(t->dev, tensor->data, bytes, abar_tensor_bytes(tensor)));
    return abar_device_wait(t->dev);
}
