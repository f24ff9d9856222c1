/* A text file as tokens: its characters or its bytes, the first nine tenths for training, the rest for testing, as nanoGPT
 * splits them. */
#include "data/data_impl.h"
#include "data/source.h"

#include <string.h>

#define TOKENS_MIN 20 /* two for testing: a window of one, and what follows it */

static abar_status make_vocabulary(abar_dataset *data, const abar_dataset_config *config, const char *bytes, size_t n)
{
    abar__vocabulary *v = &data->vocabulary;
    const char *path = data->info.where;
    data->tokens = (int64_t)n; /* an upper bound, unless they are counted */
    if (config->bytes) return abar__vocabulary_parse(data->ctx, path, NULL, v);
    if (config->vocabulary) return abar__vocabulary_parse(data->ctx, path, config->vocabulary, v);
    return abar__vocabulary_find(data->ctx, path, bytes, n, v, &data->tokens);
}

static abar_status make_tokens(abar_dataset *data, const abar_dataset_config *config, const char *bytes, size_t n)
{
    void *memory;
    int64_t count;
    ABAR_TRY(make_vocabulary(data, config, bytes, n));
    ABAR_TRY(abar__alloc(data->ctx, (size_t)data->tokens * sizeof(uint16_t), &memory));
    data->part[0].tokens = memory;
    ABAR_TRY(abar__text_encode(data->ctx, data->info.where, &data->vocabulary, bytes, n, memory, &count));
    if (count < TOKENS_MIN)
        return abar__fail(data->ctx, ABAR_E_FORMAT, "%s: only %lld %s, give a text of at least %d", data->info.where,
                          (long long)count, config->bytes ? "bytes" : "characters", TOKENS_MIN);
    int64_t train = count * 9 / 10;
    data->part[1].tokens = data->part[0].tokens + train;
    data->part[0].count = abar__limited(train, config->limit_train);
    data->part[1].count = abar__limited(count - train, config->limit_test);
    data->info.classes = data->vocabulary.count;
    return ABAR_OK;
}

abar_status abar__text_read(abar_dataset *data, const abar_dataset_config *config)
{
    uint8_t *bytes;
    size_t n;
    ABAR_TRY(abar__source_load(data->ctx, data->info.where, INT32_MAX, &bytes, &n)); /* windows begin at 32-bit indices */
    abar_status status = make_tokens(data, config, (const char *)bytes, n);
    abar__free(data->ctx, bytes, n);
    return status;
}
