/* Any bytes as a safetensors file: refused with a text, or every tensor it serves lies inside the bytes. */
#include "io/io.h"
#include "tensor/tensor_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void walk(const abar__safetensors *file, const uint8_t *data, size_t size)
{
    size_t total = 0;
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        abar_tensor t, found;
        const char *name = abar__safetensors_get(file, i, &t);
        require(abar__safetensors_find(file, name, &found) && found.data == t.data);
        require(t.ndim >= 0 && t.ndim <= ABAR_MAX_DIM && abar_tensor_is_dense(&t));
        size_t bytes = abar_tensor_bytes(&t), at = (size_t)((const uint8_t *)t.data - data);
        require(at <= size && bytes <= size - at);
        require(bytes == (size_t)abar_tensor_count(&t) * abar_dtype_size(t.dtype));
        if (bytes > 0) {
            (void)abar__tensor_load(&t, 0);
            (void)abar__tensor_load(&t, abar_tensor_count(&t) - 1);
        }
        total += bytes;
    }
    require(total < size); /* no two tensors share a byte */
    (void)abar__safetensors_metadata(file, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    abar__safetensors *file;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    abar_status status = abar__safetensors_open_memory(ctx, "input", data, size, &file);
    if (status == ABAR_OK) {
        walk(file, data, size);
        abar__safetensors_close(file);
    } else {
        require(status < 0 && status != ABAR_E_MEMORY && !file && strncmp(abar_context_error(ctx), "input: ", 7) == 0);
    }
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
