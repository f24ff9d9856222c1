/* The settings of image sets whose files are decoded when they are needed (docs/images.md): their table, what must hold between
 * them, and the part of them that a loader takes. */
#include "base/json.h"
#include "base/number.h"
#include "data/data_impl.h"
#include "data/images/draws.h"
#include "data/images/index.h"
#include "train/train_impl.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(abar_train_config, field)
#define FILTERS "style|nearest|bilinear|bicubic"

static const abar_option image_options[] = {
    {"style", ABAR_OPTION_CHOICE, AT(style), "torchvision", 0, 0, "torchvision|timm",
     "family of references: order and details of the augmentations"},
    {"size", ABAR_OPTION_INT, AT(size), "224", 1, ABAR_VIEW_MAX, NULL, "pixels a side of a training image"},
    {"test-resize", ABAR_OPTION_INT, AT(test_resize), "256", 1, ABAR_VIEW_MAX, NULL,
     "pixels of a test image's short side, before its centre is cut out"},
    {"test-size", ABAR_OPTION_INT, AT(test_size), "224", 1, ABAR_VIEW_MAX, NULL, "pixels a side of that centre"},
    {"test-filter", ABAR_OPTION_CHOICE, AT(test_filter), "style", 0, 0, "style|bilinear|bicubic",
     "that resizes test images; style: bilinear of torchvision, bicubic of timm"},
    {"area-low", ABAR_OPTION_REAL, AT(area_low), "0.08", 1e-6, 1, NULL, "smallest share of an image's area that a crop has"},
    {"area-high", ABAR_OPTION_REAL, AT(area_high), "1", 1e-6, 1, NULL, "largest share"},
    {"flip", ABAR_OPTION_BOOL, AT(flip), "true", 0, 0, NULL, "mirror half of the training images at random"},
    {"policy", ABAR_OPTION_CHOICE, AT(policy), "none", 0, 0, "none|trivial|rand|rand-timm|jitter",
     "operations on training images: TrivialAugment, RandAugment of torchvision or of timm, colour jitter"},
    {"policy-magnitude", ABAR_OPTION_INT, AT(policy_magnitude), "9", 0, 30, NULL, "of --policy rand"},
    {"policy-filter", ABAR_OPTION_CHOICE, AT(policy_filter), "style", 0, 0, FILTERS,
     "of rotations, shears and translations; style: bilinear of torchvision, bilinear or bicubic of timm"},
    {"jitter", ABAR_OPTION_REAL, AT(jitter), "0.4", 0, 1e3, NULL, "strength of --policy jitter"},
    {"erase", ABAR_OPTION_REAL, AT(erase), "0", 0, 1, NULL, "probability that a box of a training image is erased"},
    {"mixup", ABAR_OPTION_REAL, AT(mixup), "0", 0, 1e3, NULL, "parameter of the Beta distribution of mixup, 0: off"},
    {"cutmix", ABAR_OPTION_REAL, AT(cutmix), "0", 0, 1e3, NULL, "parameter of the Beta distribution of cutmix, 0: off"},
    {"mix-group", ABAR_OPTION_INT, AT(mix_group), "0", 0, 1e6, NULL,
     "images that are mixed with each other by one draw; 0: 256, or the batch if smaller"},
    {"repeat", ABAR_OPTION_INT, AT(repeat), "1", 1, 255, NULL, "copies of an image in an epoch, each augmented for itself"},
    {"damaged", ABAR_OPTION_CHOICE, AT(damaged), "fail", 0, 0, "fail|skip",
     "a damaged file ends the run, or another image takes its place"},
    {"classes", ABAR_OPTION_TEXT, AT(classes), "", 0, 0, NULL, "file with the order of the classes, one name a line"},
    {"val-labels", ABAR_OPTION_TEXT, AT(labels), "", 0, 0, NULL, "file with the labels of the test images"},
    {"decode", ABAR_OPTION_CHOICE, AT(decode), "cpu", 0, 0, "cpu|gpu",
     "where training images are decoded; gpu: faster, but not the same pixels"},
    {0},
};

const abar_option *abar_image_options(void) { return image_options; }

bool abar__is_streamed(const abar_train_config *train)
{
    static const char *const names[] = {"imagenet", "imagefolder", "tiny-imagenet"};
    const size_t n = strcspn(train->data, ":");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], train->data, n) == 0) return true;
    return false;
}

bool abar__mixes(const abar_train_config *train)
{
    return abar__is_streamed(train) && train->augment && (train->mixup > 0.0 || train->cutmix > 0.0);
}

int64_t abar__mix_group(const abar_train_config *train) { return abar__mix_group_of(train->mix_group, train->batch); }

/* ---- checking ------------------------------------------------------------------------------------------------- */

static abar_status check_policy(abar_context *ctx, const abar_train_config *train)
{
    const abar_option *magnitude = abar_options_find(image_options, "policy-magnitude");
    double jitter = 0.0; /* the default, read as the options are: strtod would read it as the locale says */
    (void)abar__real_parse(abar_options_find(image_options, "jitter")->fallback, &jitter);
    if (train->policy != ABAR_POLICY_RAND && train->policy_magnitude != strtoll(magnitude->fallback, NULL, 10))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--policy-magnitude: is for --policy rand, leave it out");
    if (train->policy != ABAR_POLICY_JITTER && train->jitter != jitter)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--jitter: is for --policy jitter, leave it out");
    return ABAR_OK;
}

abar_status abar__images_check(abar_context *ctx, const abar_train_config *train)
{
    if (!abar__is_streamed(train)) return ABAR_OK;
    if (train->test_resize < train->test_size)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--test-resize %lld: less than --test-size %lld, which is cut out of it, choose at least as much",
                          (long long)train->test_resize, (long long)train->test_size);
    if (train->area_low > train->area_high)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--area-low %g: above --area-high %g, choose less", train->area_low,
                          train->area_high);
    if (train->decode == ABAR_DECODE_GPU && !abar__is_cuda(train))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--decode gpu: device %s does not decode images, use --decode cpu",
                          train->device);
    ABAR_TRY(check_policy(ctx, train));
    if (!abar__mixes(train)) return ABAR_OK;
    return abar__mix_group_check(ctx, train->style, abar__mix_group(train), train->batch, abar__passes_of(train));
}

/* ---- loading -------------------------------------------------------------------------------------------------- */

static int64_t test_filter_of(const abar_train_config *train)
{
    static const int64_t filters[] = {ABAR_FILTER_STYLE, ABAR_FILTER_BILINEAR, ABAR_FILTER_BICUBIC};
    if (train->test_filter > 0) return filters[train->test_filter];
    return train->style == ABAR_STYLE_TIMM ? ABAR_FILTER_BICUBIC : ABAR_FILTER_BILINEAR;
}

void abar__request_images(const abar_train_config *train, abar_loader_config *out)
{
    out->crop_pad = 0;
    out->flip = false;
    out->augment = (abar_augment_config){.on = train->augment,
                                         .style = train->style,
                                         .area_low = train->area_low,
                                         .area_high = train->area_high,
                                         .flip = train->flip,
                                         .policy = train->policy,
                                         .policy_magnitude = train->policy_magnitude,
                                         .policy_filter = train->policy_filter,
                                         .jitter = train->jitter,
                                         .erase = train->erase,
                                         .mixup = train->mixup,
                                         .cutmix = train->cutmix,
                                         .mix_group = abar__mix_group(train),
                                         .repeat = train->repeat};
    out->test_resize = train->test_resize;
    out->test_size = train->test_size;
    out->test_filter = test_filter_of(train);
    out->skip_damaged = train->damaged == ABAR_DAMAGED_SKIP;
    out->encoded = train->decode == ABAR_DECODE_GPU && !out->test;
}

/* ---- what a run says of its data ------------------------------------------------------------------------------- */

uint64_t abar__images_fingerprint(const abar_dataset *data)
{
    return abar_dataset_info_of(data)->streamed ? abar__images_summary_of(data->images)->fingerprint : 0;
}

abar_status abar__class_names_write(abar_context *ctx, const abar_dataset *data, abar__text *out)
{
    for (int64_t c = 0; abar_dataset_class(data, c); c++) {
        ABAR_TRY(abar__text_append(ctx, out, c ? ", " : "[", c ? 2 : 1));
        ABAR_TRY(abar__json_string(ctx, out, abar_dataset_class(data, c)));
    }
    return out->length ? abar__text_append(ctx, out, "]", 1) : ABAR_OK;
}

abar_status abar__damage_tell(abar_context *ctx, const abar_loader *loader, bool test, abar_damage *told)
{
    abar_damage now = {.size = sizeof now};
    ABAR_TRY(abar_loader_damage(loader, &now));
    if (now.files == told->files) return ABAR_OK;
    abar__log(ctx, ABAR_LOG_WARNING, "%lld damaged file%s so far in the %s part, `abar data` names all", (long long)now.files,
              now.files == 1 ? "" : "s", test ? "test" : "training");
    *told = now;
    return ABAR_OK;
}
