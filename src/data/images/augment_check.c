/* What an augmentation's settings must satisfy. */
#include "data/images/draws.h"

#include <stdio.h>

enum { REPEAT_MAX = 255, MAGNITUDE_MAX = 30 };
#define ALPHA_MIN 1e-6 /* all but a few of a million Beta numbers are then 0 or 1 */
#define STRENGTH_MAX 1e3
#define USUAL_GROUP 256

static abar_status check_choices(abar_context *ctx, const abar_augment_config *c)
{
    if (c->style < ABAR_STYLE_TORCHVISION || c->style > ABAR_STYLE_TIMM)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "style %lld: no such style, choose an abar_style", (long long)c->style);
    if (c->policy < ABAR_POLICY_NONE || c->policy > ABAR_POLICY_JITTER)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "policy %lld: no such policy, choose an abar_policy", (long long)c->policy);
    if (c->policy_filter < ABAR_FILTER_STYLE || c->policy_filter > ABAR_FILTER_BICUBIC)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "policy filter %lld: no such filter, choose an abar_filter",
                          (long long)c->policy_filter);
    if (c->policy == ABAR_POLICY_RAND && (c->policy_magnitude < 0 || c->policy_magnitude > MAGNITUDE_MAX))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "policy magnitude %lld: out of range, choose 0 to %d",
                          (long long)c->policy_magnitude, MAGNITUDE_MAX);
    if (c->policy == ABAR_POLICY_JITTER && !(c->jitter >= 0 && c->jitter <= STRENGTH_MAX))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "jitter %g: out of range, choose 0 to %g", c->jitter, STRENGTH_MAX);
    return ABAR_OK;
}

static abar_status check_alpha(abar_context *ctx, const char *name, double alpha)
{
    if (alpha == 0 || (alpha >= ALPHA_MIN && alpha <= STRENGTH_MAX)) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "%s %g: out of range, choose %g to %g, or 0 for none", name, alpha, ALPHA_MIN,
                      STRENGTH_MAX);
}

static abar_status check_mixing(abar_context *ctx, const abar_augment_config *c)
{
    ABAR_TRY(check_alpha(ctx, "mixup", c->mixup));
    ABAR_TRY(check_alpha(ctx, "cutmix", c->cutmix));
    if (c->mix_group < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "mix group %lld: is negative, choose a divisor of the batch, or 0 for the usual",
                          (long long)c->mix_group);
    if ((c->mixup > 0 || c->cutmix > 0) && c->style == ABAR_STYLE_TIMM && c->mix_group % 2 != 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "mix group %lld: timm's style mixes the first row with the last, the second with the last but one, "
                          "choose an even group",
                          (long long)c->mix_group);
    return ABAR_OK;
}

abar_status abar__augment_check(abar_context *ctx, const abar_augment_config *c, int32_t side)
{
    if (side < 1 || side > ABAR_VIEW_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "view of %d pixels a side: out of range, choose 1 to %d", (int)side,
                          ABAR_VIEW_MAX);
    if (!c->on) return ABAR_OK;
    ABAR_TRY(check_choices(ctx, c));
    const bool given = c->area_low != 0 || c->area_high != 0;
    if (given && !(c->area_low > 0 && c->area_low <= c->area_high && c->area_high <= 1))
        return abar__fail(
            ctx, ABAR_E_ARGUMENT,
            "crops of %g to %g of the area: no such range, choose shares above 0 and at most 1, the smaller first", c->area_low,
            c->area_high);
    if (!(c->erase >= 0 && c->erase <= 1))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "erase %g: is no probability, choose 0 to 1", c->erase);
    ABAR_TRY(check_mixing(ctx, c));
    if (c->repeat < 0 || c->repeat > REPEAT_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "repeat %lld: out of range, choose 1 to %d", (long long)c->repeat, REPEAT_MAX);
    return ABAR_OK;
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

int64_t abar__mix_group_of(int64_t request, int64_t batch)
{
    if (request != 0) return request;
    return batch < USUAL_GROUP ? batch : USUAL_GROUP;
}

/* The largest group that fits the rows; 0: none does. */
static int64_t fitting_group(int64_t rows, bool pairs)
{
    for (int64_t g = rows < USUAL_GROUP ? rows : USUAL_GROUP; g > 1; g--)
        if (rows % g == 0 && !(pairs && g % 2)) return g;
    return 0;
}

abar_status abar__mix_group_check(abar_context *ctx, int64_t style, int64_t group, int64_t batch, int64_t accumulate)
{
    const int64_t rows = batch / accumulate;
    const bool pairs = style == ABAR_STYLE_TIMM, divides = group > 0 && rows % group == 0;
    if (divides && !(pairs && group % 2)) return ABAR_OK;
    const int64_t better = fitting_group(rows, pairs);
    char where[128], remedy[64];
    if (accumulate > 1)
        snprintf(where, sizeof where, "micro-batch of %lld images (--batch %lld, --accumulate %lld)", (long long)rows,
                 (long long)batch, (long long)accumulate);
    else
        snprintf(where, sizeof where, "batch of %lld images", (long long)rows);
    if (better > 0)
        snprintf(remedy, sizeof remedy, "give --mix-group %lld", (long long)better);
    else
        snprintf(remedy, sizeof remedy, "and no other group fits, choose another --batch");
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--mix-group %lld: %s %s, %s", (long long)group,
                      divides ? "is odd, and --style timm mixes pairs of rows of a" : "does not divide the", where, remedy);
}
