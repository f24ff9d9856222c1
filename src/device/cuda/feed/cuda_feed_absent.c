/* Replaces the back end's feed in a build without CUDA. */
#include "device/feed_impl.h"

const abar__feed_ops *const abar__cuda_feed = NULL;
