/* The back ends of this build. A new one is a folder and a line here. */
#include "device/device_impl.h"

#include <string.h>

/* A build without CUDA contains cuda/core/cuda_absent.c, where abar__cuda_device is NULL. */
static const abar_device_ops *const *const devices[] = {&abar__cpu_device, &abar__ref_device, &abar__cuda_device};

const char *const *abar_device_names(void)
{
    static const char *const all[] = {"cpu", "ref", "cuda", NULL}, *const host[] = {"cpu", "ref", NULL};
    return abar__cuda_device ? all : host;
}

const abar_device_ops *abar__device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (*devices[i] && strcmp((*devices[i])->name, name) == 0) return *devices[i];
    return NULL;
}
