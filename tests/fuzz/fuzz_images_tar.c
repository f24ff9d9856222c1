/* Any bytes as a tar archive: whatever it lists must lie inside it. */
#include "data/images/tar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar__tar tar;
    uint64_t before = 0;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    abar__tar_open_memory(&tar, ctx, "input", data, size);
    for (bool more = true; more;) {
        abar__tar_member m;
        const abar_status status = abar__tar_next(&tar, &m, &more);
        require(status == ABAR_OK || status == ABAR_E_FORMAT || status == ABAR_E_UNSUPPORTED);
        require(status == ABAR_OK || (abar_context_error(ctx)[0] != '\0' && !more));
        if (!more) break;
        uint8_t bytes[16];
        const size_t n = m.size < sizeof bytes ? (size_t)m.size : sizeof bytes;
        require(m.offset > before && m.offset <= size && m.size <= size - m.offset && strlen(m.name) < 4096);
        require(abar__tar_read(&tar, &m, bytes, n) == ABAR_OK && memcmp(bytes, data + m.offset, n) == 0);
        before = m.offset;
    }
    abar__tar_close(&tar);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
