/* Copies a batch's inputs, output gradients, queries and keys out of the network, and writes them as safetensors. */
#include "analysis/dump.h"

#include "base/json.h"

#include <stdio.h>

/* Memory of one tensor, in a list: the writer reads tensors when it writes. */
typedef struct piece {
    struct piece *next;
    void *data;
    size_t bytes;
} piece;

struct abar__dump {
    abar_context *ctx;
    abar__safetensors_writer *writer;
    piece *pieces;
};

abar_status abar__dump_create(abar_context *ctx, abar__dump **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar__dump), &memory));
    abar__dump *d = memory;
    *d = (abar__dump){.ctx = ctx};
    const abar_status status = abar__safetensors_writer_create(ctx, &d->writer);
    if (status < 0)
        abar__dump_destroy(d);
    else
        *out = d;
    return status;
}

void abar__dump_destroy(abar__dump *d)
{
    if (!d) return;
    for (piece *p = d->pieces, *next; p; p = next) {
        next = p->next;
        abar__free(d->ctx, p->data, p->data ? p->bytes : 0);
        abar__free(d->ctx, p, sizeof *p);
    }
    if (d->writer) abar__safetensors_writer_destroy(d->writer);
    abar__free(d->ctx, d, sizeof *d);
}

abar_status abar__dump_note(abar__dump *d, const char *key, const char *value)
{
    return abar__safetensors_writer_metadata(d->writer, key, value);
}

abar_status abar__dump_tensor(abar__dump *d, const char *layer, const char *what, const abar_tensor *tensor)
{
    char name[320];
    void *memory;
    ABAR_TRY(abar__alloc(d->ctx, sizeof(piece), &memory));
    piece *p = memory;
    *p = (piece){.next = d->pieces};
    d->pieces = p;
    p->bytes = (size_t)abar_tensor_count(tensor) * sizeof(float);
    ABAR_TRY(abar__alloc(d->ctx, p->bytes, &p->data));
    const abar_tensor copy = abar_tensor_wrap(NULL, p->data, ABAR_F32, tensor->ndim, tensor->dim);
    ABAR_TRY(abar_tensor_copy(d->ctx, &copy, tensor));
    snprintf(name, sizeof name, "%.280s.%.32s", layer, what);
    return abar__safetensors_writer_add(d->writer, name, &copy);
}

static abar_status put_pair(abar_context *ctx, abar__text *out, const char *name, const int64_t pair[2])
{
    return abar__text_printf(ctx, out, ", \"%s\": [%lld, %lld]", name, (long long)pair[0], (long long)pair[1]);
}

static abar_status describe(abar_context *ctx, const abar_layer *layer, bool homogeneous, bool causal, abar__text *out)
{
    const abar_window *w = &layer->window;
    const abar_attention *a = &layer->attention;
    ABAR_TRY(abar__text_printf(ctx, out, "{\"convolution\": %s, \"homogeneous\": %s",
                               layer->weight.ndim == 4 ? "true" : "false", homogeneous ? "true" : "false"));
    if (layer->weight.ndim == 4) {
        ABAR_TRY(put_pair(ctx, out, "kernel", w->kernel));
        ABAR_TRY(put_pair(ctx, out, "stride", w->stride));
        ABAR_TRY(put_pair(ctx, out, "pad", w->pad));
        ABAR_TRY(put_pair(ctx, out, "dilation", w->dilation));
        ABAR_TRY(abar__text_printf(ctx, out, ", \"groups\": %lld", (long long)w->groups));
    }
    if (a->heads > 0) {
        ABAR_TRY(put_pair(ctx, out, "grid", a->grid));
        ABAR_TRY(abar__text_printf(ctx, out, ", \"heads\": %lld, \"side\": %lld, \"shift\": %lld, \"causal\": %s",
                                   (long long)a->heads, (long long)a->side, (long long)a->shift, causal ? "true" : "false"));
    }
    return abar__text_printf(ctx, out, "}");
}

abar_status abar__dump_layer(abar__dump *d, const abar_layer *layer, bool homogeneous, bool causal)
{
    abar__text text = {0};
    abar_status status = describe(d->ctx, layer, homogeneous, causal, &text);
    if (status >= 0) status = abar__dump_note(d, layer->name, text.data);
    abar__text_free(d->ctx, &text);
    return status;
}

abar_status abar__dump_write(const abar__dump *d, const char *path) { return abar__safetensors_writer_write(d->writer, path); }
