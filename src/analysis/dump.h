/* What an analysis has read of a batch, as a file that another program can check it with (`abar analyze --dump`). */
#ifndef ABAR_ANALYSIS_DUMP_H
#define ABAR_ANALYSIS_DUMP_H

#include "io/io.h"
#include "train/train_impl.h"

typedef struct abar__dump abar__dump;

abar_status abar__dump_create(abar_context *ctx, abar__dump **out);
void abar__dump_destroy(abar__dump *d);
abar_status abar__dump_note(abar__dump *d, const char *key, const char *value);
/* Keeps a copy as LAYER.WHAT, F32. */
abar_status abar__dump_tensor(abar__dump *d, const char *layer, const char *what, const abar_tensor *tensor);
/* Notes how the layer reads its input, as one JSON object under its name. causal: of the attention it feeds. */
abar_status abar__dump_layer(abar__dump *d, const abar_layer *layer, bool homogeneous, bool causal);
abar_status abar__dump_write(const abar__dump *d, const char *path);

#endif
