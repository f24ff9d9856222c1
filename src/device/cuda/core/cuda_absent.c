/* Replaces the back end in a build without CUDA. */
#include "device/device_impl.h"

const abar_device_ops *const abar__cuda_device = NULL;
