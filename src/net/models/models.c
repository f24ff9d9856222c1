/* The list of models. A new one is a file and a line here. */
#include "net/net_impl.h"
#include "net/models/models.h"

#include <stdlib.h>
#include <string.h>

static const abar_model *const models[] = {
    &abar__model_mlp,         &abar__model_lenet5,    &abar__model_resnet20,  &abar__model_resnet32,
    &abar__model_resnet44,    &abar__model_resnet56,  &abar__model_resnet110, &abar__model_wrn28_10,
    &abar__model_densenet121, &abar__model_resnet50,  &abar__model_resnet101, &abar__model_deit_tiny,
    &abar__model_deit_small,  &abar__model_swin_tiny, &abar__model_gpt2,      &abar__model_gpt_char,
};
static const char *const names[] = {"mlp",        "lenet5",    "resnet20",    "resnet32", "resnet44",  "resnet56",
                                    "resnet110",  "wrn28-10",  "densenet121", "resnet50", "resnet101", "deit-tiny",
                                    "deit-small", "swin-tiny", "gpt2",        "gpt-char", NULL};

const char *const *abar_model_names(void) { return names; }

const abar_model *abar_model_find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i]->name, name) == 0) return models[i];
    return NULL;
}

void abar_model_shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    memcpy(input, model->input, sizeof model->input);
    *classes = model->classes;
    if (model->shape) model->shape(model, config, input, classes);
}

abar_value abar_model_input(const abar_model *model, abar_net *net, const int64_t input[3])
{
    return model->text ? abar_input_tokens(net, input[0]) : abar_input(net, 3, input);
}

int abar__model_numbers(abar_net *net, const char *option, const char *text, int64_t *out, int max)
{
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        long long number = strtoll(at, &end, 10);
        if (end == at || number < 1 || number > 1 << 24 || (*end && *end != '-') || n == max) {
            abar__net_mistake(net, "--%s %s: give at most %d numbers joined by -", option, text, max);
            return 0;
        }
        out[n++] = number;
        if (!*end) return n;
        at = end;
    }
}
