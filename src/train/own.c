/* A program's own network and data in a setup. The network is a model like any other whose config is the program's function; it
 * is not among those that abar_model_find knows. */
#include "train/train_impl.h"

#include <string.h>

typedef struct own_config {
    abar_network_builder build; /* NULL: not given yet */
    void *user;
} own_config;

static abar_value build_own(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    const own_config *own = config;
    return own->build ? own->build(own->user, net, x, classes) : (abar_value){-1};
}

const abar_model abar__own_model = {.name = ABAR_OWN_MODEL,
                                    .summary = "a network that a program builds",
                                    .config_size = sizeof(own_config),
                                    .input = {1, 28, 28}, /* of synthetic data */
                                    .classes = 10,
                                    .build = build_own};

abar_status abar_setup_set_network(abar_context *ctx, abar_setup *setup, abar_network_builder builder, void *user)
{
    if (setup->model != &abar__own_model)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "setup: was made for the model %s, make it for \"" ABAR_OWN_MODEL "\"",
                          setup->train.model);
    if (!builder) return abar__fail(ctx, ABAR_E_ARGUMENT, "setup: the builder of a network is NULL");
    *(own_config *)setup->model_config = (own_config){builder, user};
    return ABAR_OK;
}

abar_status abar_setup_set_data(abar_context *ctx, abar_setup *setup, const abar_dataset *data)
{
    const abar_dataset_info *info = data ? abar_dataset_info_of(data) : NULL;
    if (!abar__is_own_data(setup))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "setup: was made for the data set %s, make it for \"" ABAR_OWN_DATA "\"",
                          setup->train.data);
    if (!info || strcmp(info->name, ABAR_OWN_DATA) != 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "setup: give it a data set of abar_dataset_wrap");
    setup->dataset = data;
    return ABAR_OK;
}

bool abar__is_own_data(const abar_setup *setup) { return strcmp(setup->train.data, ABAR_OWN_DATA) == 0; }

abar_status abar__own_check(abar_context *ctx, const abar_setup *setup)
{
    if (setup->model == &abar__own_model && !((const own_config *)setup->model_config)->build)
        return abar__fail(ctx, ABAR_E_STATE,
                          "--model " ABAR_OWN_MODEL
                          ": is a network that a program builds, give it by abar_setup_set_network, or to a "
                          "comparison by abar_compare_set_network");
    if (abar__is_own_data(setup) && !setup->dataset)
        return abar__fail(ctx, ABAR_E_STATE,
                          "--data " ABAR_OWN_DATA
                          ": is a data set in a program's memory, give it by abar_setup_set_data, or to a "
                          "comparison by abar_compare_set_data");
    return ABAR_OK;
}
