/* What is refused before the first run begins. Otherwise an optimizer that does not fit the network would be met when those
 * before it have been trained. */
#include "train/compare/compare_impl.h"

static bool is_pending(const abar_compare *c, int method)
{
    for (int i = 0; i < c->runs; i++)
        if (c->record[i].run.method == method && !c->record[i].run.ended && !c->record[i].elsewhere) return true;
    return false;
}

/* What nobody but the user can mend. */
static bool is_refusal(abar_status status)
{
    return status == ABAR_E_ARGUMENT || status == ABAR_E_NOT_FOUND || status == ABAR_E_UNSUPPORTED || status == ABAR_E_FORMAT;
}

abar_status abar__compare_check(abar_compare *c)
{
    for (int m = 0; m < c->methods && !c->checked; m++) {
        if (!is_pending(c, m)) continue;
        const abar_status status = abar__setup_try(c->ctx, c->method[m].setup, false);
        if (!is_refusal(status)) continue;
        c->failed = c->method[m].label;
        return status;
    }
    c->checked = true;
    return ABAR_OK;
}
