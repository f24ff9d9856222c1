/* Tar shards of images, written one after another: FOLDER/PART-FIRST-END.tar has samples FIRST to END-1 of a part, each as
 * KEY.cls (its label) and KEY.jpg, where KEY is its number in nine digits. The range in the name is what an interrupted copy
 * continues from; so a shard has its name only when it is complete and on disk. */
#ifndef ABAR_IMAGES_SHARD_H
#define ABAR_IMAGES_SHARD_H

#include "io/files_impl.h"

#define ABAR_SHARD_BYTES ((int64_t)256 << 20)
#define ABAR_SHARD_PATH_MAX 4352

typedef struct abar__shards {
    abar_context *ctx;
    const char *folder, *part; /* part: "train" or "val"; both must outlive it */
    int64_t limit;             /* bytes of a shard, unless one image is larger: ABAR_SHARD_BYTES */
    int64_t next;              /* the sample to be added next */
    int64_t count;             /* shards that are complete */
    /* the shard being written */
    bool open;
    int64_t first, bytes;
    char path[ABAR_SHARD_PATH_MAX];
    abar__replacement file;
} abar__shards;

/* Continues after the shards that are in the folder. */
abar_status abar__shards_open(abar_context *ctx, const char *folder, const char *part, abar__shards *out);
/* Adds sample out->next. A failure leaves the complete shards as they are, and nothing else. */
abar_status abar__shards_add(abar__shards *s, int32_t label, const uint8_t *jpeg, size_t n);
/* Completes the shard being written, if any. */
abar_status abar__shards_finish(abar__shards *s);
void abar__shards_abandon(abar__shards *s); /* removes it instead */

#endif
