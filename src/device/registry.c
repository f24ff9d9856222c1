/* The back ends of this build. A new one is a folder and a line here. */
#include "device/device_impl.h"

#include <string.h>

static const abar_device_ops *const devices[] = {&abar__cpu_device, &abar__ref_device};
static const char *const names[] = {"cpu", "ref", NULL};

const char *const *abar_device_names(void) { return names; }

const abar_device_ops *abar__device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    return NULL;
}
