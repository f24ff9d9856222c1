/* Any bytes as the log.jsonl of a run on the page of `abar report`: what the page embeds is valid JSON that cannot end its
 * element, and no byte is counted twice. The first byte: whether the log is still growing. */
#define _GNU_SOURCE /* memfd_create */
#include "base/json.h"
#include "train/report/report_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static size_t lines_in(const uint8_t *data, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++) lines += data[i] == '\n';
    return lines;
}

/* Bytes of whole lines. */
static size_t whole_bytes(const uint8_t *data, size_t n)
{
    while (n > 0 && data[n - 1] != '\n') n--;
    return n;
}

static void check(abar_context *ctx, int fd, bool growing, const uint8_t *log, size_t n)
{
    abar__text json = {0}, page = {0};
    int64_t damaged = 0;
    require(abar__text_append(ctx, &json, "{", 1) == ABAR_OK && abar__report_log(ctx, fd, growing, &json, &damaged) == ABAR_OK);
    require(abar__text_append(ctx, &json, "}", 1) == ABAR_OK && abar__report_harmless(ctx, &page, &json) == ABAR_OK);
    require(damaged >= 0 && (size_t)damaged <= lines_in(log, n) + 1);
    require(abar__json_valid(page.data, page.length) && abar__utf8_valid(page.data, page.length));
    require(strlen(page.data) == page.length && strcspn(page.data, "<>&") == page.length);
    cJSON *root = cJSON_ParseWithLength(page.data, page.length);
    require(root && abar__report_member(root, "log_bytes") == (double)whole_bytes(log, n));
    require(abar__report_member(root, "damaged_lines") == (double)damaged);
    cJSON_Delete(root);
    abar__text_free(ctx, &json);
    abar__text_free(ctx, &page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx = NULL;
    if (size < 1) return 0;
    const int fd = memfd_create("log", MFD_CLOEXEC);
    require(fd >= 0 && abar_context_create(NULL, &ctx) == ABAR_OK);
    require(pwrite(fd, data + 1, size - 1, 0) == (ssize_t)size - 1);
    check(ctx, fd, data[0] & 1, data + 1, size - 1);
    close(fd);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
