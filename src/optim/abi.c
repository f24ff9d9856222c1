/* The sizes of the structs that other languages lay out by hand. */
#include "abar/optim.h"

#include <string.h>

size_t abar_struct_size(const char *name)
{
    static const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"abar_option", sizeof(abar_option)},
                 {"abar_tensor", sizeof(abar_tensor)},
                 {"abar_window", sizeof(abar_window)},
                 {"abar_attention", sizeof(abar_attention)},
                 {"abar_layer", sizeof(abar_layer)},
                 {"abar_device_config", sizeof(abar_device_config)},
                 {"abar_method", sizeof(abar_method)},
                 {"abar_rule", sizeof(abar_rule)},
                 {"abar_map_info", sizeof(abar_map_info)},
                 {"abar_param_info", sizeof(abar_param_info)},
                 {"abar_block_counts", sizeof(abar_block_counts)},
                 {"abar_optim_param", sizeof(abar_optim_param)},
                 {"abar_optim_config", sizeof(abar_optim_config)},
                 {"abar_step_config", sizeof(abar_step_config)},
                 {"abar_step_report", sizeof(abar_step_report)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) return sizes[i].size;
    return 0;
}
