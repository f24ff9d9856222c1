/* What a build without CUDA has in place of the back end's operations. */
#include "device/nn_impl.h"

const abar__op_impl *const abar__cuda_nn[] = {NULL};
