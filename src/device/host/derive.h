/* Deriving what a plan wants from its averages, driven by the host through a device's statistics table: in the steps of ref and
 * cpu, and on every device at the end of a calibration. */
#ifndef ABAR_HOST_DERIVE_H
#define ABAR_HOST_DERIVE_H

#include "device/device_impl.h"

/* What to derive: what rests on calibrated averages and everything else, or only what does not. */
typedef enum abar__derive_what { ABAR_DERIVE_ALL, ABAR_DERIVE_RUNNING } abar__derive_what;

/* unbias: what the averages are multiplied by to be read. scratch: abar__derive_scratch bytes. All matrices of the plan are
 * renewed, with all else, or nothing is: false. */
bool abar__derive(abar_device *dev, const abar__plan *p, abar__map_state *state, double unbias, abar__derive_what what,
                  void *scratch);
/* What it writes in ABAR_DERIVE_RUNNING: matrices with what belongs to them, and vectors. */
bool abar__is_renewed(const abar__plan *p, const abar__derived_tensor *d);
size_t abar__derive_scratch(abar_device *dev, const abar__plan *p, abar__derive_what what);

#endif
