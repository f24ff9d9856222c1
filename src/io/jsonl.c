/* Lines of JSON: a line is written whole or not at all. */
#include "io/io.h"
#include "io/files_impl.h"

#include <string.h>

struct abar__jsonl {
    abar__growing file;
    abar__text line; /* kept, so that writing rarely allocates */
};

abar_status abar__jsonl_open(abar_context *ctx, const char *path, uint64_t keep, abar__jsonl **out)
{
    *out = NULL;
    abar__jsonl *log;
    ABAR_TRY(abar__alloc(ctx, sizeof *log, (void **)&log));
    abar_status status = abar__growing_open(ctx, path, keep, &log->file);
    if (status < 0)
        abar__free(ctx, log, sizeof *log);
    else
        *out = log;
    return status;
}

abar_status abar__jsonl_write(abar__jsonl *log, const char *object)
{
    log->line.length = 0;
    ABAR_TRY(abar__text_append(log->file.ctx, &log->line, object, strlen(object)));
    ABAR_TRY(abar__text_append(log->file.ctx, &log->line, "\n", 1));
    return abar__growing_write(&log->file, log->line.data, log->line.length);
}

abar_status abar__jsonl_flush(abar__jsonl *log) { return abar__growing_sync(&log->file); }

uint64_t abar__jsonl_bytes(const abar__jsonl *log) { return log->file.bytes; }

abar_status abar__jsonl_close(abar__jsonl *log)
{
    if (!log) return ABAR_OK;
    abar_context *ctx = log->file.ctx;
    abar_status status = abar__growing_close(&log->file);
    abar__text_free(ctx, &log->line);
    abar__free(ctx, log, sizeof *log);
    return status;
}
