/* What a build without CUDA has in place of the back end. */
#include "device/device_impl.h"

const abar_device_ops *const abar__cuda_device = NULL;
