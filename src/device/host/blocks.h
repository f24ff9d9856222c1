/* The stages of blocks (device/blocks.h), driven by the host through a device's statistics table: in the steps of ref and cpu.
 */
#ifndef ABAR_HOST_BLOCKS_H
#define ABAR_HOST_BLOCKS_H

#include "device/device_impl.h"

size_t abar__blocks_scratch(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n);
/* lr: of this update. state: its t is that of this update; counts what happened to blocks. scratch: abar__blocks_scratch bytes.
 */
void abar__blocks_run(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n, double lr,
                      abar__step_state *state, void *scratch);

#endif
