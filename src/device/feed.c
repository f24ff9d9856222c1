/* Which back ends have a feed. */
#include "device/feed_impl.h"

#include <string.h>

/* A build without CUDA contains cuda/feed/cuda_feed_absent.c, where abar__cuda_feed is NULL. */
const abar__feed_ops *abar__feed_of(const abar_device *dev)
{
    return strcmp(dev->ops->name, "cuda") == 0 ? abar__cuda_feed : NULL;
}
