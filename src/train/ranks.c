/* Several ranks that train together: what they must have in common before the first step, the state that rank 0 has read, and
 * whether their replicas still are the same. Steps are joined in join.c. */
#include "base/hash.h"
#include "data/data_impl.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <string.h>

#define WORD_MAX 504 /* bytes of a rank's error */

/* ---- failing together --------------------------------------------------------------------------------------------------- */

typedef struct rank_word {
    int64_t status;
    char text[WORD_MAX];
} rank_word;

static abar_status heed(abar_context *ctx, abar_comm *comm, const rank_word *words, abar_status status)
{
    for (int r = 0; r < abar_comm_size(comm) && status >= 0; r++)
        if (words[r].status < 0)
            return abar__fail(ctx, (abar_status)words[r].status, "%s: %.*s", abar_comm_name(comm, r), WORD_MAX - 1,
                              words[r].text);
    return status;
}

abar_status abar_ranks_agree(abar_context *ctx, abar_comm *comm, abar_status status, const char *text)
{
    rank_word own = {.status = status < 0 ? status : 0};
    const size_t bytes = (size_t)abar_comm_size(comm) * sizeof own;
    void *words;
    if (abar_comm_size(comm) == 1 || status == ABAR_E_PEER) return status;
    if (status < 0) snprintf(own.text, sizeof own.text, "%s", text ? text : abar_context_error(ctx));
    ABAR_TRY(abar__alloc(ctx, bytes, &words));
    const abar_status sent = abar__comm_gather(comm, &own, sizeof own, words);
    status = sent < 0 && status >= 0 ? sent : heed(ctx, comm, words, status);
    abar__free(ctx, words, bytes);
    return own.status < 0 ? abar__fail(ctx, status, "%s", own.text) : status; /* a failed exchange has another text */
}

/* ---- shares ---------------------------------------------------------------------------------------------------------------
 */

static abar_status check_share(abar_context *ctx, const abar_comm *comm, const abar_train_config *train)
{
    const long long ranks = abar_comm_size(comm), n = abar__passes_of(train), batch = train->batch;
    if (n % ranks == 0) return ABAR_OK;
    long long fits = ranks;
    while (fits > 1 && n % fits != 0) fits--;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "%lld ranks: do not divide the %lld micro-batches of --batch %lld, --micro %lld, use %lld, or another "
                      "--micro",
                      ranks, n, batch, (long long)abar__micro_of(train), fits);
}

void abar__ranks_settle_threads(const abar_comm *comm, abar_train_config *train)
{
    if (train->threads == 0 && abar_comm_size(comm) > 1) train->threads = abar__comm_cores(comm);
}

abar_status abar__ranks_settle(abar_context *ctx, abar_comm *comm, abar_setup *setup)
{
    abar_train_config *train = &setup->train;
    const int ranks = abar_comm_size(comm);
    if (train->transport == ABAR_TRANSPORT_NCCL && train->micro == 0 && ranks == 1)
        train->micro = train->batch / train->accumulate; /* what is exchanged are micro-batches, of one rank, too */
    if (ranks == 1) return ABAR_OK;
    if (setup->method && abar_method_takes_whole_batch(setup->method->name))
        return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                          "--optim %s: needs the gradients of all examples in one process, train it on one rank", train->optim);
    if (train->micro == 0) {
        const int64_t n = train->accumulate > 1 ? train->accumulate : ranks;
        if (train->batch % n != 0)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--batch %lld: is not a multiple of the %d ranks, choose a batch or a number of ranks that fits",
                              (long long)train->batch, ranks);
        train->micro = train->batch / n;
    }
    abar__ranks_settle_threads(comm, train);
    return check_share(ctx, comm, train);
}

/* ---- what must be equal ---------------------------------------------------------------------------------------------------
 */

/* What a rank may have on its own: where things are, and what is rank 0's alone. */
static bool may_differ(const char *name)
{
    static const char *const own[] = {"model",    "optim",   "out",        "workers",     "data", "init",
                                      "snapshot", "classes", "val-labels", "accept-data", NULL};
    for (const char *const *n = own; *n; n++)
        if (strcmp(*n, name) == 0) return true;
    return false;
}

/* Lines "what<tab>value". */
static abar_status describe_settings(abar_context *ctx, const abar_setup *setup, abar__text *out)
{
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    const int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n; i++)
        for (const abar_option *o = tables[i].options; o->name; o++) {
            char value[ABAR_OPTION_TEXT_MAX];
            if (may_differ(o->name)) continue;
            ABAR_TRY(abar_options_get(ctx, tables[i].options, tables[i].config, o->name, value, sizeof value));
            ABAR_TRY(abar__text_printf(ctx, out, "--%s\t%s\n", o->name, value));
        }
    return ABAR_OK;
}

/* As they were given. */
static abar_status describe_given(abar_context *ctx, const abar_setup *setup, bool resume, abar__text *out)
{
    const abar_train_config *train = &setup->train;
    ABAR_TRY(abar__text_printf(ctx, out, "the version of abar\t%s\n", abar_version()));
    ABAR_TRY(abar__text_printf(ctx, out, "--model\t%s\n--optim\t%s\n", train->model, train->optim));
    ABAR_TRY(abar__text_printf(ctx, out, "--data\t%.*s\n", (int)strcspn(train->data, ":"), train->data));
    ABAR_TRY(abar__text_printf(ctx, out, "--resume\t%s\n", resume ? "given" : "not given"));
    return describe_settings(ctx, setup, out);
}

static abar_status describe_found(abar_trainer *t, abar__text *out)
{
    const char *vocabulary = abar_dataset_vocabulary(t->data);
    abar__digest_take(t);
    ABAR_TRY(abar__text_printf(t->ctx, out, "the device\t%s\n", abar_device_describe(t->dev)));
    for (int i = 0; i < 2; i++)
        ABAR_TRY(abar__text_printf(t->ctx, out, "the %s data\t%lld samples with CRC-32 %08llx\n", i ? "test" : "training",
                                   (long long)t->digest[i].count, (unsigned long long)t->digest[i].crc));
    ABAR_TRY(abar__text_printf(t->ctx, out, "the fingerprint of the images\t%016llx\n", (unsigned long long)t->fingerprint));
    return abar__text_printf(
        t->ctx, out, "the vocabulary\t%016llx\n",
        (unsigned long long)abar__hash(ABAR_HASH_START, vocabulary ? vocabulary : "", vocabulary ? strlen(vocabulary) : 0));
}

/* The first line that differs. */
static abar_status compare_lines(abar_context *ctx, const char *own, const char *first)
{
    while (*own || *first) {
        const size_t n = strcspn(own, "\n"), m = strcspn(first, "\n"), what = strcspn(own, "\t\n"),
                     tab = strcspn(first, "\t\n");
        if (n == m && memcmp(own, first, n) == 0) {
            own += n + (own[n] == '\n');
            first += m + (first[m] == '\n');
            continue;
        }
        if (what != tab || memcmp(own, first, what) != 0)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "has other options than rank 0, --model and --optim must be the same");
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%.*s is %.*s, on rank 0 it is %.*s, all ranks must have the same", (int)what,
                          own, (int)(n > what ? n - what - 1 : 0), n > what ? own + what + 1 : "",
                          (int)(m > tab ? m - tab - 1 : 0), m > tab ? first + tab + 1 : "");
    }
    return ABAR_OK;
}

static abar_status compare_with_first(abar_context *ctx, abar_comm *comm, const abar__text *own)
{
    uint64_t length = own->length;
    void *first;
    ABAR_TRY(abar__comm_broadcast(comm, 0, &length, sizeof length));
    const size_t bytes = (size_t)length + 1;
    ABAR_TRY(abar__alloc(ctx, bytes, &first));
    if (abar_comm_rank(comm) == 0) memcpy(first, own->data, (size_t)length);
    ((char *)first)[length] = '\0';
    abar_status status = abar__comm_broadcast(comm, 0, first, (size_t)length);
    if (status == ABAR_OK) status = compare_lines(ctx, own->data, first);
    abar__free(ctx, first, bytes);
    return status;
}

static abar_status compare_texts(abar_context *ctx, abar_comm *comm, abar_status status, abar__text own)
{
    status = abar_ranks_agree(ctx, comm, status, NULL);
    if (status == ABAR_OK) status = compare_with_first(ctx, comm, &own);
    abar__text_free(ctx, &own);
    return abar_ranks_agree(ctx, comm, status, NULL);
}

abar_status abar__ranks_compare_settings(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume)
{
    abar__text own = {0};
    if (abar_comm_size(comm) == 1) return ABAR_OK;
    const abar_status status = describe_given(ctx, setup, resume, &own);
    return compare_texts(ctx, comm, status, own);
}

abar_status abar__ranks_compare_data(abar_trainer *t, abar_status status)
{
    abar__text own = {0};
    if (abar_comm_size(t->comm) == 1) return status;
    if (status == ABAR_OK) status = describe_found(t, &own);
    return compare_texts(t->ctx, t->comm, status, own);
}

/* Of an evaluation. */
static abar_status describe_tested(abar_context *ctx, const abar_dataset *data, const abar_device *dev, const abar_net *net,
                                   abar__text *out)
{
    uint64_t hash = ABAR_HASH_START;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor tensor;
        abar_net_tensor(net, i, &name, &tensor);
        hash = abar__hash(hash, tensor.data, abar_tensor_bytes(&tensor));
    }
    return abar__text_printf(ctx, out,
                             "the device\t%s\nthe test data\t%lld samples with CRC-32 %08llx\nthe checkpoint\t%016llx\n",
                             abar_device_describe(dev), (long long)abar_dataset_info_of(data)->test,
                             (unsigned long long)abar__data_crc(data, true), (unsigned long long)hash);
}

abar_status abar__ranks_compare_tested(abar_context *ctx, abar_comm *comm, const abar_dataset *data, const abar_device *dev,
                                       const abar_net *net, abar_status status)
{
    abar__text own = {0};
    if (abar_comm_size(comm) == 1) return status;
    if (status == ABAR_OK) status = describe_tested(ctx, data, dev, net, &own);
    return compare_texts(ctx, comm, status, own);
}

/* ---- state ----------------------------------------------------------------------------------------------------------------
 */

typedef abar_status (*tensor_visitor)(void *user, const char *name, const abar_tensor *tensor);

/* All tensors of a checkpoint. */
static abar_status visit_all(abar_trainer *t, tensor_visitor visit, void *user)
{
    for (int average = 0; average < (t->average.net ? 2 : 1); average++)
        for (int i = 0; i < abar_net_tensor_count(t->net); i++) {
            const char *name;
            char label[160];
            abar_tensor tensor;
            if (average)
                abar__ema_tensor(&t->average, i, &name, &tensor);
            else
                abar_net_tensor(t->net, i, &name, &tensor);
            snprintf(label, sizeof label, "%s%s", average ? "average of " : "", name);
            ABAR_TRY(visit(user, label, &tensor));
        }
    return abar_optim_visit(t->optim, visit, user);
}

static abar_status broadcast_tensor(void *user, const char *name, const abar_tensor *tensor)
{
    const abar_trainer *t = user;
    void *bytes;
    (void)name;
    if (!tensor->data) return ABAR_OK; /* its owner's */
    ABAR_TRY(abar__rank_bytes(t, tensor, &bytes));
    ABAR_TRY(abar__comm_broadcast(t->comm, 0, bytes, abar_tensor_bytes(tensor)));
    return abar_comm_rank(t->comm) == 0 ? ABAR_OK : abar__rank_bytes_back(t, tensor, bytes);
}

abar_status abar__ranks_share_state(abar_trainer *t)
{
    if (abar_comm_size(t->comm) == 1) return ABAR_OK;
    bool flags[2] = {t->resumes, t->started_over};
    ABAR_TRY(abar__comm_broadcast(t->comm, 0, flags, sizeof flags));
    t->resumes = flags[0];
    t->started_over = flags[1];
    ABAR_TRY(abar__comm_broadcast(t->comm, 0, &t->at, sizeof t->at));
    ABAR_TRY(abar__comm_broadcast(t->comm, 0, t->history, (size_t)t->at.epoch * sizeof *t->history));
    ABAR_TRY(abar__ranks_spread(t));
    ABAR_TRY(visit_all(t, broadcast_tensor, t));
    abar_net_rollback(t->net); /* evaluation reads the provisional statistics */
    return abar_net_weights_changed(t->net);
}

/* ---- replicas -------------------------------------------------------------------------------------------------------------
 */

typedef struct hashes {
    const abar_trainer *t;
    uint64_t *at;
    size_t largest; /* bytes of a tensor that is not in host memory */
    int64_t n, wanted;
    char name[160]; /* of tensor `wanted` */
} hashes;

static abar_status hash_tensor(void *user, const char *name, const abar_tensor *tensor)
{
    hashes *h = user;
    void *bytes;
    const size_t size = abar_tensor_bytes(tensor);
    if (h->at) h->at[h->n] = 0; /* of state that one rank has: it is compared with nothing */
    if (h->at && tensor->data) {
        ABAR_TRY(abar__rank_bytes(h->t, tensor, &bytes));
        h->at[h->n] = abar__hash(ABAR_HASH_START, bytes, size);
    }
    if (abar__rank_is_elsewhere(tensor) && size > h->largest) h->largest = size;
    if (h->n == h->wanted) snprintf(h->name, sizeof h->name, "%s", name);
    h->n++;
    return ABAR_OK;
}

abar_status abar__ranks_make(abar_trainer *t)
{
    hashes h = {.t = t, .wanted = -1};
    void *memory;
    if (abar_comm_size(t->comm) == 1) return ABAR_OK;
    ABAR_TRY(visit_all(t, hash_tensor, &h));
    t->hash_count = h.n;
    ABAR_TRY(abar__alloc(t->ctx, (size_t)(h.n * abar_comm_size(t->comm)) * sizeof *t->hashes, &memory));
    t->hashes = memory;
    return abar__rank_bytes_make(t, h.largest);
}

void abar__ranks_release(abar_trainer *t)
{
    abar__rank_bytes_release(t);
    if (t->hashes) abar__free(t->ctx, t->hashes, (size_t)(t->hash_count * abar_comm_size(t->comm)) * sizeof *t->hashes);
}

/* Which tensor of which rank is not that of rank 0; -1: none. */
static int64_t find_difference(const abar_trainer *t, int *rank)
{
    for (int64_t i = 0; i < t->hash_count; i++)
        for (*rank = 1; *rank < abar_comm_size(t->comm); (*rank)++)
            if (t->hashes[*rank * t->hash_count + i] != t->hashes[i]) return i;
    return -1;
}

abar_status abar__ranks_check_replicas(abar_trainer *t)
{
    const int own = abar_comm_rank(t->comm);
    int rank;
    if (!t->hashes) return ABAR_OK;
    hashes h = {.t = t, .at = t->hashes + own * t->hash_count, .wanted = -1};
    ABAR_TRY(visit_all(t, hash_tensor, &h));
    ABAR_TRY(abar__comm_gather(t->comm, h.at, (size_t)t->hash_count * sizeof *h.at, t->hashes));
    const int64_t differs = find_difference(t, &rank);
    if (differs < 0) return ABAR_OK;
    h = (hashes){.t = t, .wanted = differs};
    ABAR_TRY(visit_all(t, hash_tensor, &h));
    return abar__fail(t->ctx, ABAR_E_STATE,
                      "%s: its %s is not that of rank 0 in epoch %lld, step %lld, nothing was saved; check the memory and the "
                      "libraries of the machines, and go on from the last checkpoint with --resume",
                      abar_comm_name(t->comm, rank), h.name, (long long)t->at.epoch + 1, (long long)t->at.step);
}
