/* Any bytes as the cache of an image index: as a whole file, and with the right checksum. What is accepted must answer every
 * question. */
#include "data/images/index_impl.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void ask(abar__images_index *index)
{
    char name[256];
    int64_t bytes;
    int32_t width, height;
    const int64_t classes = (int64_t)(index->head.bytes[ABAR_SECTION_CLASSES] / sizeof(abar__class_row));
    uint8_t buffer[1];
    for (int64_t c = 0; c < classes; c++) {
        const char *readable = abar__images_readable(index, c);
        require(strlen(abar__images_class(index, c)) + (readable ? strlen(readable) : 0) < SIZE_MAX / 2);
    }
    for (int part = 0; part < 2; part++) {
        index->summary.count[part] = abar__images_all(index, part);
        for (int64_t i = 0; i < index->summary.count[part]; i++) {
            require(abar__images_label(index, part, i) < classes && abar__images_size(index, part, i) >= 0);
            abar__images_name(index, part, i, name, sizeof name);
            require(strlen(name) < sizeof name);
            (void)abar__images_known_of(index, part, i);
            if (abar__images_size(index, part, i) == 0 && index->head.layout <= ABAR_LAYOUT_TINY)
                require(abar__images_read(index, part, i, buffer) == ABAR_IMAGES_FAILED); /* the folder is not open */
        }
    }
    abar__images_largest(index, &bytes, &width, &height);
    require(bytes >= 0 && width >= 0 && height >= 0);
    (void)abar__images_trusted(index);
}

/* The bytes must be aligned, as those of a file are. */
static void parse(abar_context *ctx, const uint8_t *data, size_t size, bool sum)
{
    void *copy;
    abar__images_index index = {.ctx = ctx, .folder = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (size == 0 || abar__alloc(ctx, size, &copy) != ABAR_OK) return;
    memcpy(copy, data, size);
    if (sum && size >= sizeof index.head + sizeof(uint32_t)) {
        abar__images_head head;
        memcpy(&head, copy, sizeof head);
        abar__images_stamp(&head);
        memcpy(copy, &head, sizeof head);
        const uint32_t crc = (uint32_t)crc32_z(0, copy, size - sizeof crc);
        memcpy((char *)copy + size - sizeof crc, &crc, sizeof crc);
    }
    const abar_status status = abar__images_cache_parse(&index, copy, size);
    require(status == ABAR_OK ? index.block == copy : status == ABAR_E_FORMAT && !index.block);
    if (status == ABAR_OK) ask(&index);
    abar__free(ctx, copy, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    parse(ctx, data, size, false);
    parse(ctx, data, size, true);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
