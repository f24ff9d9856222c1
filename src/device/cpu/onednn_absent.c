/* Replaces conv_onednn.c in a build without oneDNN: accepts nothing, so that the next implementation is tried. */
#include "device/nn_impl.h"

static abar_status create(abar__op *op)
{
    (void)op;
    return ABAR_E_UNSUPPORTED;
}

const abar__op_impl abar__cpu_conv_onednn = {"onednn-conv", ABAR_OP_CONV2D, create, NULL, NULL, NULL};
