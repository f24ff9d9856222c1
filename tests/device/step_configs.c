/* What the cases of the step run. */
#include "step_rig.h"

/* tcov and tinv are different, and neither divides the other: refreshes fall between commits. */
#define CADENCE .tcov = 2, .tinv = 3
#define SGD .rule = "sgd", .momentum = 0.9, .weight_decay = 0.01, .lr = 0.05
#define SHAMPOO .rule = "shampoo", .weight_decay = 0.1, .lr = 0.05
#define MUON .rule = "muon", .momentum = 0.95, .weight_decay = 0.1, .lr = 0.05

const rig_config rig_configs[] = {
    {SGD},
    {.rule = "sgd", .lr = 0.05},
    {SGD, .nesterov = true},
    {SGD, .decoupled = true},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01},
    {SGD, CADENCE, .method = "mac", .rho = 0.3},
    {SGD, CADENCE, .method = "mac", .rho = 0.2, .coupled = true},
    {SGD, CADENCE, .method = "mac"},
    {SGD, CADENCE, .method = "mac", .coupled = true},
    {SGD, .tcov = 1, .tinv = 1, .method = "mac", .rho = 0.3, .nesterov = true},
    {SGD, .tcov = 3, .tinv = 2, .method = "mac", .rho = 0.3, .spread = true},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "mac", .rho = 0.3},
    {SGD, CADENCE, .method = "smac", .rho = 0.1},
    {SGD, CADENCE, .method = "smac", .diagonal = 0.05},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "smac", .rho = 0.5},
    {SGD, CADENCE, .method = "eva", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, .tcov = 3, .tinv = 2, .method = "eva", .rho = 0.5},
    {SGD, CADENCE, .method = "foof", .rho = 0.2},
    {SGD, .tcov = 3, .tinv = 2, .method = "foof", .rho = 0.2, .spread = true},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .expand = true},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .eigen = true, .kl_clip = 1e-3},
    {.rule = "adamw", .weight_decay = 0.1, .lr = 0.01, CADENCE, .method = "kfac", .rho = 0.3},
    {SGD, CADENCE, .method = "lngd"},
    {SGD, CADENCE, .method = "mac", .rho = 0.3, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "mac", .coupled = true, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "smac", .rho = 0.2, .coupled = true},
    {SGD, CADENCE, .method = "smac", .diagonal = 0.05, .coupled = true, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "foof", .rho = 0.2, .kl_clip = 1e-3},
    {SGD, CADENCE, .method = "lngd", .kl_clip = 1e-4},
    {MUON},
    {MUON, .nesterov = true, .normuon = true, .take = "grouped.*"},
    {MUON, .nesterov = true, CADENCE, .method = "mac", .rho = 0.3},
    {MUON, .nesterov = true, CADENCE, .method = "foof", .rho = 0.2, .take = "grouped.*"},
    {MUON, .nesterov = true, CADENCE, .method = "kfac", .rho = 0.3, .kl_clip = 1e-3},
    {SHAMPOO, .options = {"shampoo-eps=0.1"}},
    {SHAMPOO, .decoupled = true, .options = {"shampoo-block=16", "shampoo-eps=0.1", "shampoo-beta=0.9", "shampoo-freq=3"}},
    {SHAMPOO, .options = {"shampoo-block=10", "shampoo-eps=0.01", "shampoo-beta=0.99", "shampoo-freq=2", "shampoo-start=5",
                          "graft=adam", "graft-eps=1e-4"}},
    {SHAMPOO, .options = {"shampoo-block=3", "shampoo-eps=0.1", "shampoo-freq=2", "graft=adagrad", "beta1=0"}},
    {SHAMPOO, .options = {"shampoo-block=16", "shampoo-eps=0.1", "shampoo-exponent=0.4", "graft=sgd", "beta3=0.5"}},
    {SHAMPOO, CADENCE, .method = "mac", .rho = 0.3, .options = {"shampoo-block=16", "shampoo-eps=0.1", "graft=rmsprop"}},
};

_Static_assert(sizeof rig_configs / sizeof *rig_configs == RIG_CONFIGS, "RIG_CONFIGS is not the number of rows");

int rig_stride(void) { return cuda_only("ABAR_TEST_SMALL") ? 3 : 1; }

bool rig_is_muon(const rig_config *config) { return strcmp(config->rule, "muon") == 0; }
