/* The public functions of a device: check arguments, then call the back end. */
#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <stdlib.h>
#include <string.h>

/* "cuda:1" is back end cuda, ordinal 1. */
static const abar_device_ops *find_device(const char *name, int *ordinal)
{
    *ordinal = 0;
    const char *colon = strchr(name, ':');
    if (!colon) return abar__device_find(name);
    char backend[16], *end;
    long n = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || *end || n < 0 || n > 255 || (size_t)(colon - name) >= sizeof backend) return NULL;
    memcpy(backend, name, (size_t)(colon - name));
    backend[colon - name] = 0;
    *ordinal = (int)n;
    const abar_device_ops *ops = abar__device_find(backend);
    return ops && ops->stream ? ops : NULL; /* only GPUs are numbered */
}

abar_status abar_device_open(abar_context *ctx, const char *name, const abar_device_config *config, abar_device **out)
{
    *out = NULL;
    int ordinal;
    const abar_device_ops *ops = find_device(name, &ordinal);
    if (!ops && strncmp(name, "cuda", 4) == 0 && !abar__device_find("cuda"))
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "device %s: this build has no CUDA, build with ABAR_CUDA=ON or use cpu", name);
    if (!ops) {
        const char *near = abar_nearest_name(name, abar_device_names());
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "device %s: no such device in this build%s%s", name,
                          near ? ", did you mean " : "", near ? near : "");
    }
    abar_device_config c = {.size = sizeof c};
    if (config) ABAR_TRY(abar__struct_read(ctx, "abar_device_config", config, &c, sizeof c));
    if (!ops->stream && (c.precision != ABAR_PRECISION_FP32 || c.stream))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "device %s: computes in one precision and has no streams, use fp32", name);
    if (c.threads < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "device %s: %d threads are too few, give at least 1, or 0 for all", name,
                          c.threads);
    abar_device *dev;
    ABAR_TRY(abar__alloc(ctx, sizeof *dev, (void **)&dev));
    *dev = (abar_device){.ctx = ctx, .ops = ops, .config = c, .ordinal = ordinal, .activation = ops->dtype, .threads = 1};
    abar_status status = ops->open(dev);
    if (status < 0) {
        abar__free(ctx, dev, sizeof *dev);
        return status;
    }
    *out = dev;
    return ABAR_OK;
}

void abar_device_close(abar_device *dev)
{
    if (!dev) return;
    dev->ops->close(dev);
    abar__free(dev->ctx, dev, sizeof *dev);
}

int abar_device_count(const char *name)
{
    const abar_device_ops *ops = abar__device_find(name);
    if (!ops) return 0;
    return ops->count ? ops->count() : 1;
}

const char *abar_device_name(const abar_device *dev) { return dev->ops->name; }
const char *abar_device_describe(const abar_device *dev) { return dev->description; }
abar_dtype abar_device_dtype(const abar_device *dev) { return dev->ops->dtype; }
int abar_device_threads(const abar_device *dev) { return dev->threads; }

abar_status abar_device_wait(abar_device *dev) { return dev->ops->stream ? dev->ops->stream->wait(dev) : ABAR_OK; }

abar_status abar_device_set_stream(abar_device *dev, void *stream)
{
    if (dev->ops->stream) return dev->ops->stream->set_stream(dev, stream);
    return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device %s: has no streams, use cuda", dev->ops->name);
}

abar_status abar_device_alloc(abar_device *dev, size_t bytes, void **out) { return dev->ops->alloc(dev, bytes, out); }

void abar_device_free(abar_device *dev, void *memory, size_t bytes)
{
    if (memory) dev->ops->release(dev, memory, bytes);
}

static bool is_floating(abar_dtype dtype) { return dtype <= ABAR_F16; }

abar_status abar_tensor_copy(abar_context *ctx, const abar_tensor *dst, const abar_tensor *src)
{
    if (!abar__same_shape(dst, src)) return abar__fail(ctx, ABAR_E_ARGUMENT, "tensor copy: the shapes differ");
    if (dst->dtype != src->dtype && !(is_floating(dst->dtype) && is_floating(src->dtype)))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "tensor copy: cannot turn %s into %s", abar_dtype_name(src->dtype),
                          abar_dtype_name(dst->dtype));
    abar_device *dev = dst->dev ? dst->dev : src->dev;
    if (dst->dev && src->dev && dst->dev != src->dev)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "tensor copy: two different devices, go through the host");
    if (dev) return dev->ops->copy(dev, dst, src);
    abar__tensor_copy_host(dst, src);
    return ABAR_OK;
}

abar_status abar__device_copy(abar_device *dev, void *to, void *from, size_t bytes)
{
    const int64_t n = (int64_t)bytes;
    if (n == 0) return ABAR_OK;
    const abar_tensor dst = abar_tensor_wrap(dev, to, ABAR_U8, 1, &n), src = abar_tensor_wrap(dev, from, ABAR_U8, 1, &n);
    return abar_tensor_copy(dev->ctx, &dst, &src);
}

abar__rows abar__rows_slice(const abar__rows *r, int64_t first, int64_t count)
{
    abar__rows slice = *r;
    abar_tensor *const tensors[] = {&slice.input, &slice.output_grad, &slice.columns};
    for (int i = 0; i < 3; i++) {
        abar_tensor *t = tensors[i];
        if (!t->ndim) continue;
        int64_t index[ABAR_MAX_DIM] = {first};
        t->data = (char *)t->data + (size_t)abar__tensor_offset(t, index) * abar_dtype_size(t->dtype);
        t->dim[0] = count;
    }
    slice.examples = count;
    return slice;
}
