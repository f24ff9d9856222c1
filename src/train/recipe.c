/* Recipes: the settings for a model on its data, per optimizer. The networks of CIFAR and ImageNet have the published ones,
 * small vision transformers those scaled to their batch, GPT nanoGPT's; the others were found by trying (LeNet-5 on Fashion-
 * MNIST: sgd 90.5 to 91.3 % over four seeds, adamw 90.8 %). */
#include "train/train_impl.h"

#include <string.h>
#include <unistd.h>

#define WORKERS_MAX 64

/* Models, data and rules are given by the beginnings of their names, separated by blanks, as in "deit swin"; "" matches all.
 * A method is given in full; "+" matches any. */
typedef struct recipe {
    const char *model, *data, *optim; /* optim: a rule or a method */
    int64_t epochs, batch;
    double lr, weight_decay;
    bool per_epoch; /* cosine held within each epoch, as in the paper */
    bool augment;
} recipe;

#define LARGE "imagenet imagefolder"   /* images of ImageNet's size */
#define FOLDERS LARGE " tiny-imagenet" /* all sets of image files */
#define ADAMS "adamw nadamw sfadamw"
#define RESNETS "resnet50 resnet101"

/* The first that fits wins. */
static const recipe recipes[] = {
    {"resnet", "cifar", ADAMS, 50, 128, 1e-3, 0.5, true, true},
    {"resnet", "cifar", "", 50, 128, 0.1, 5e-4, true, true},
    {RESNETS, LARGE, ADAMS, 100, 1024, 1e-3, 0.05, false, true},
    {RESNETS, LARGE, "", 100, 1024, 0.5, 2e-5, false, true},
    {RESNETS " wrn", "tiny-imagenet", ADAMS, 50, 256, 1e-3, 0.05, false, true},
    {RESNETS " wrn", "tiny-imagenet", "", 50, 256, 0.125, 5e-4, false, true},
    {"resnet", "", ADAMS, 5, 128, 1e-3, 0.5, false, false},
    {"resnet", "", "", 5, 128, 0.1, 5e-4, false, false},
    {"wrn densenet", "cifar", ADAMS, 50, 128, 1e-3, 0.5, true, true},
    {"wrn densenet", "cifar", "", 50, 128, 0.1, 5e-4, true, true},
    {"wrn densenet", "", ADAMS, 5, 128, 1e-3, 0.5, false, false},
    {"wrn densenet", "", "", 5, 128, 0.1, 5e-4, false, false},
    {"deit swin", LARGE, "lngd", 100, 1024, 0.005, 2e-5, false, true},
    {"deit swin", LARGE, ADAMS, 100, 1024, 1e-3, 0.05, false, true},
    {"deit swin", LARGE, "", 100, 1024, 0.5, 2e-5, false, true},
    {"deit swin", "tiny-imagenet", "lngd", 60, 256, 0.005, 2e-5, false, true},
    {"deit swin", "tiny-imagenet", ADAMS, 60, 256, 1e-3, 0.05, false, true},
    {"deit swin", "tiny-imagenet", "", 60, 256, 0.125, 2e-5, false, true},
    {"deit swin", "cifar", "lngd", 30, 256, 0.005, 2e-5, false, true},
    {"deit swin", "cifar", ADAMS, 30, 256, 1e-3, 0.05, false, true},
    {"deit swin", "cifar", "", 30, 256, 0.125, 2e-5, false, true},
    {"deit swin", "", "lngd", 30, 256, 0.005, 2e-5, false, false},
    {"deit swin", "", ADAMS, 30, 256, 1e-3, 0.05, false, false},
    {"deit swin", "", "", 30, 256, 0.125, 2e-5, false, false},
    {"gpt-char", "", ADAMS, 20, 64, 1e-3, 0.1, false, false},
    {"gpt-char", "", "lngd", 20, 64, 0.005, 1e-4, false, false},
    {"gpt-char", "", "", 20, 64, 0.1, 1e-4, false, false},
    {"gpt2", "", ADAMS, 20, 8, 6e-4, 0.1, false, false},
    {"gpt2", "", "lngd", 20, 8, 0.005, 1e-4, false, false},
    {"gpt2", "", "", 20, 8, 0.1, 1e-4, false, false},
    {"", "cifar", ADAMS, 50, 128, 1e-3, 0.05, false, true},
    {"", "cifar", "", 50, 128, 0.05, 5e-4, false, true},
    /* lngd sets its own step length per layer: without batch norm the usual rate is far too large */
    {"", "", "lngd", 10, 128, 0.005, 5e-4, false, false},
    {"", "synthetic", ADAMS, 5, 128, 1e-3, 0.05, false, false},
    {"", "synthetic", "", 5, 128, 0.05, 5e-4, false, false},
    {"", "", ADAMS, 10, 128, 2e-3, 0.05, false, false},
    {"", "", "", 10, 128, 0.05, 5e-4, false, false},
};

/* What else differs from the defaults, options by name. All that fit apply, in this order. */
typedef struct addition {
    const char *model, *data, *rule, *method, *settings;
} addition;

static const addition additions[] = {
    /* The rate of its authors, and their decay of 5e-4 a step, which is relative to it. The warm-up is ours: the first means of
     * few estimates are by chance near zero in places. Before what models have of their own. */
    {"", "", "adahessian", "", "lr=0.15 weight-decay=3.33e-3 warmup=1"},
    /* any model on image files: crops and mirrors; the published networks have their own augmentation (docs/images.md) */
    {"", FOLDERS, "", "", "augment=true"},
    {"", "tiny-imagenet", "", "", "size=64 test-resize=64 test-size=64 area-low=0.25"},
    {RESNETS, LARGE, "", "", "warmup=5 label-smoothing=0.1 decay-all=false ema=0.99998 repeat=4"},
    {RESNETS, LARGE, "", "", "size=176 test-resize=232 test-size=224"},
    {RESNETS " wrn", "tiny-imagenet", "", "", "warmup=2 label-smoothing=0.1 decay-all=false size=48"},
    {RESNETS, FOLDERS, "", "", "style=torchvision policy=trivial mixup=0.2 cutmix=1 erase=0.1"},
    {"wrn", "tiny-imagenet", "", "", "style=torchvision policy=trivial mixup=0.2 cutmix=1 erase=0.1"},
    {RESNETS, "tiny-imagenet", "", "", "stem=small"},
    {"deit swin", "", "", "", "warmup=1 label-smoothing=0.1 decay-all=false"},
    {"deit swin", "", "", "+", "tinv=5"},
    {"deit swin", "", "sgd", "mac", "weight-decay=1e-4 decay=decoupled"},
    {"deit swin", FOLDERS, "", "", "warmup=5 style=timm policy=rand-timm mixup=0.8 cutmix=1 erase=0.25"},
    {"deit swin", LARGE, "", "", "size=224 test-resize=248 test-size=224 repeat=3"},
    {"deit swin", LARGE, "", "mac", "damping=3"},
    {"deit swin", LARGE, "", "smac", "damping=3"},
    {"deit swin", LARGE, "", "foof", "damping=3"},
    {"deit swin", LARGE, "", "kfac", "damping=0.3"},
    {"deit swin", LARGE, "", "eva", "damping=0.3"},
    /* 5000 steps, 100 of them to warm up */
    {"gpt", "", "", "", "epoch-steps=250 warmup=0.4 decay-all=false"},
    {"gpt", "", "", "+", "tinv=5"},
    {"gpt", "", "sgd", "mac", "decay=decoupled"},
    {"gpt-char", "", "", "", "drop=0.2 attention-drop=0.2"},
    {"gpt-char", "", "adamw nadamw", "", "final-lr=1e-4 beta2=0.99"},
    {"gpt2", "", "adamw nadamw", "", "final-lr=6e-5 beta2=0.95"},
    /* x lags behind z, so that the rate can be larger than AdamW's; the average takes the place of the schedule. */
    {"", "", "sfadamw", "", "lr=0.0025 schedule=constant ema=0"},
    /* Muon's rate hardly depends on the model; what it leaves to AdamW learns as in the model's AdamW recipe. No KL clip: one
     * that varies reweights the momentum (methods.md section 11). */
    {"", "", "muon", "", "lr=0.02 weight-decay=0.01 aux-lr=1e-3"},
    {"gpt", "", "muon", "", "final-lr=0.002"},
    {"gpt-char", "", "muon", "", "aux-beta2=0.99"},
    {"gpt2", "", "muon", "", "aux-lr=6e-4 aux-beta2=0.95"},
    {"", "", "muon", "kfac", "kl-clip=0"},
    {"", "", "muon", "eva", "kl-clip=0"},
    {"", "", "muon", "kpsvd", "kl-clip=0"},
    /* skfac has not KFAC's small gradients: its steps are 1 / damping times as long, and without a KL clip small runs
     * explode */
    {"", "", "sgd", "skfac", "lr=0.005 kl-clip=1e-3"},
    /* K-BFGS's and M-FAC's authors' own settings; M-FAC's steps are up to m times as long as the gradient */
    {"", "", "sgd", "kbfgs", "lr=0.3 weight-decay=1e-5 stat-decay=0.9"},
    {"", "", "sgd", "mfac", "lr=1e-3 weight-decay=0 momentum=0 decay=inside"},
    /* Shampoo's steps are as long as Adam's: rates and decay are AdamW's. */
    {"", "", "shampoo", "", "lr=1e-3 weight-decay=0.05 graft=adam graft-eps=1e-8 shampoo-beta=0.99 shampoo-freq=50"},
    {"gpt", "", "shampoo", "", "weight-decay=0.1 final-lr=1e-4"},
    {"gpt2", "", "shampoo", "", "lr=6e-4 final-lr=6e-5"},
    /* The rate and decay of its authors. */
    {"", "", "soap", "", "lr=3e-3 weight-decay=0.01"},
    {"gpt", "", "soap", "", "final-lr=3e-4"},
    {"", "", "sophia", "", "lr=1e-3 weight-decay=0.1"},
    {"gpt", "", "sophia", "", "lr=3e-4 final-lr=3e-5"},
    /* directions without curvature are divided by the damping alone */
    {"", "", "sgd", "ngd", "lr=0.003"},
};

static bool begins(const char *name, const char *with)
{
    for (; *with; with += strspn(with, " ")) {
        const size_t n = strcspn(with, " ");
        if (strncmp(name, with, n) == 0) return true;
        with += n;
    }
    return false;
}

static bool fits(const char *name, const char *with) { return !*with || begins(name, with); }

static bool is_for(const recipe *r, const abar_setup *setup)
{
    return fits(setup->rule->name, r->optim) || (setup->method && strcmp(setup->method->name, r->optim) == 0);
}

static bool adds_to(const addition *a, const abar_setup *setup)
{
    const abar_train_config *train = &setup->train;
    if (!fits(train->model, a->model) || !fits(train->data, a->data) || !fits(setup->rule->name, a->rule)) return false;
    if (!*a->method) return true;
    return setup->method && (strcmp(a->method, "+") == 0 || strcmp(a->method, setup->method->name) == 0);
}

/* Sets "name=value name=value ...". */
static abar_status apply(abar_context *ctx, abar_setup *setup, const char *settings)
{
    char text[ABAR_OPTION_TEXT_MAX], *rest = text;
    strcpy(text, settings);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        ABAR_TRY(abar_setup_set(ctx, setup, word, equals + 1));
    }
    return ABAR_OK;
}

/* Decoding takes all cores but one, which runs the steps. */
static int64_t usual_workers(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores <= 2 ? 1 : cores - 1 < WORKERS_MAX ? cores - 1 : WORKERS_MAX;
}

abar_status abar__recipe_apply(abar_context *ctx, abar_setup *setup)
{
    abar_train_config *train = &setup->train;
    const recipe *r = recipes;
    while (!fits(train->model, r->model) || !fits(train->data, r->data) || !is_for(r, setup)) r++;
    train->epochs = r->epochs;
    train->batch = r->batch;
    train->lr = r->lr;
    train->weight_decay = r->weight_decay;
    train->schedule_per_epoch = r->per_epoch;
    train->augment = r->augment;
    if (abar_device_count("cuda") > 0) strcpy(train->device, "cuda");
    if (abar__is_streamed(train)) train->workers = usual_workers();
    for (size_t i = 0; i < sizeof additions / sizeof *additions; i++)
        if (adds_to(&additions[i], setup)) ABAR_TRY(apply(ctx, setup, additions[i].settings));
    train->recipe_warmup = train->warmup;
    return ABAR_OK;
}
