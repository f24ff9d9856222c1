/* What the cases of the step run. */
#include "step_rig.h"

/* tcov and tinv are different, and neither divides the other: refreshes fall between commits. */
#define CADENCE .tcov = 2, .tinv = 3
#define SGD .rule = "sgd", .momentum = 0.9, .weight_decay = 0.01, .lr = 0.05
#define SHAMPOO .rule = "shampoo", .weight_decay = 0.1, .lr = 0.05
#define ADAMS .weight_decay = 0.1, .lr = 0.01
#define HYPERBALL .rule = "muon", .momentum = 0.95, .lr = 0.05, .options = {"hyperball=true"}
#define SOAP .rule = "soap", .weight_decay = 0.1, .lr = 0.02
#define ADAHESSIAN .rule = "adahessian", .weight_decay = 0.05, .lr = 0.05
#define SOPHIA .rule = "sophia", .weight_decay = 0.1, .lr = 0.02
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
    {.rule = "nadamw", ADAMS},
    {.rule = "nadamw", ADAMS, CADENCE, .method = "mac", .rho = 0.3},
    {.rule = "sfadamw", ADAMS},
    {.rule = "sfadamw", ADAMS, .options = {"beta1=0.5", "beta2=0.9", "sf-time-power=0.5", "sf-rate-power=1"}},
    {.rule = "sfadamw", ADAMS, CADENCE, .method = "mac", .rho = 0.3},
    {.rule = "sfadamw", ADAMS, CADENCE, .method = "kfac", .rho = 0.3},
    {.rule = "adamw", ADAMS, CADENCE, .method = "mac", .rho = 0.3, .options = {"cautious=true"}},
    {MUON, .nesterov = true, .take = "grouped.*", .options = {"cautious=true"}},
    {HYPERBALL, .nesterov = true, .take = "grouped.*"},
    {MUON, .nesterov = true, CADENCE, .method = "foof", .rho = 0.2, .options = {"damping=trace:0.2", "ns=exact"}},
    {HYPERBALL, .nesterov = true, CADENCE, .method = "foof", .rho = 0.2, .normuon = true},
    /* Sides that are rotated are at most one longer than the rest of their tensor: the null space of the first gradient has no
     * basis in particular. */
    {SOAP, .options = {"max-dim=6", "eps=1e-2", "soap-freq=2"}},
    {SOAP, .options = {"max-dim=16", "eps=1e-2", "soap-freq=3", "soap-conv=modes", "normalize=true"}},
    {SOAP, .options = {"max-dim=6", "eps=1e-2", "soap-freq=1", "soap-factors=kl", "correct-bias=false"}},
    {SOAP, .options = {"max-dim=0", "eps=1e-2", "beta1=0.9"}},
    {SOAP, CADENCE, .method = "mac", .rho = 0.3, .options = {"max-dim=6", "eps=1e-2", "soap-freq=4", "shampoo-beta=0.8"}},
    /* mac-paper's sums are singular here, and float32 has other eigenvalues than 0: its stages are in test_block_stages */
    {SHAMPOO, .options = {"shampoo-preset=mac-paper-intended"}},
    {ADAHESSIAN, .options = {"fd-step=0.5", "eps=0.01"}},
    {ADAHESSIAN, .options = {"fd-step=0.3", "eps=0.1", "hessian-every=3", "hessian-power=0.7", "beta2=0.9"}},
    {SOPHIA, .options = {"hessian-every=1", "sophia-rho=2"}},
    /* without momentum: before the first diagonal the step is a sign, and rounding decides that of a sum of gradients near 0 */
    {SOPHIA, .options = {"hessian-every=3", "beta1=0", "beta2=0.5", "sophia-rho=1"}},
    {SGD, .tcov = 1, .tinv = 1, .method = "ngd", .rho = 50},
    {SGD, .tcov = 1, .tinv = 1, .method = "ngd", .rho = 50, .kl_clip = 1e-4, .options = {"fisher-blocks=layer"}},
    {SGD, .tcov = 1, .tinv = 1, .method = "ngd", .rho = 50, .options = {"fisher=mc:2"}},
    {.rule = "adamw",
     .weight_decay = 0.1,
     .lr = 0.01,
     .tcov = 1,
     .tinv = 1,
     .method = "ngd",
     .rho = 50,
     .options = {"fisher=exact", "fisher-blocks=layer"}},
    {SGD, CADENCE, .method = "foof", .rho = 0.2, .options = {"stat-init=0.3"}},
    {SGD, CADENCE, .method = "foof", .options = {"damping=trace:0.2", "foof-width=5"}},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .options = {"stat-init=0.3", "toffset=1", "homogeneous=false"}},
    {SOAP, .options = {"max-dim=6", "eps=1e-2", "soap-freq=2", "cautious=true"}},
    {.rule = "soap",
     .lr = 0.02,
     .options = {"max-dim=6", "eps=1e-2", "soap-freq=1", "soap-factors=kl", "correct-bias=false", "hyperball=true"}},
    {.rule = "soap", .lr = 0.02, CADENCE, .method = "mac", .rho = 0.3, .options = {"max-dim=6", "eps=1e-2", "hyperball=true"}},
    {SGD, CADENCE, .method = "mac", .rho = 0.3, .apart = {"damping=0.02", "damping-form=coupled"}},
    {SGD, CADENCE, .method = "kfac", .rho = 0.3, .kl_clip = 1e-3, .apart = {"damping=0.5", "kfac-inverse=eigen"}},
    {SGD, CADENCE, .method = "foof", .rho = 0.2, .apart = {"damping=trace:0.2"}},
};

_Static_assert(sizeof rig_configs / sizeof *rig_configs == RIG_CONFIGS, "RIG_CONFIGS is not the number of rows");

int rig_stride(void) { return cuda_only("ABAR_TEST_SMALL") ? 3 : 1; }

bool rig_is_muon(const rig_config *config) { return strcmp(config->rule, "muon") == 0; }
