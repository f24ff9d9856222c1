/* How parameters are cut into blocks (methods.md section 11, optimizers.md sections 1 and 2), and what a chain keeps of a
 * parameter and its blocks.
 */
#include "optim/optim_impl.h"

#include "base/number.h"

#include <math.h>
#include <string.h>

#define BLOCKS_MAX 67108864.0 /* of an optimizer: 16 GiB of tables, and far from what an int counts */
#define FACTORS_MAX 0x1p54    /* elements: their bytes are far from what an int64_t counts */

/* ---- parts --------------------------------------------------------------------------------------------------------- */

/* heads:N; 0: it is not. */
static int64_t heads_of(const char *split)
{
    double n;
    if (strncmp(split, "heads:", 6) != 0 || !abar__real_parse(split + 6, &n) || !(n >= 1.0 && n <= 1e6) || n != floor(n))
        return 0;
    return (int64_t)n;
}

abar_status abar__split_check(abar_context *ctx, const char *split)
{
    if (strcmp(split, "qkv") != 0 && strcmp(split, "none") != 0 && heads_of(split) == 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--split %s: give qkv, none, or heads:N", split);
    return ABAR_OK;
}

int64_t abar__split_rows(const char *split, const abar__param_view *param)
{
    if (param->layers != 1 || strcmp(split, "none") == 0) return param->rows;
    if (param->heads == 0) return param->rows / param->groups;
    const int64_t heads = heads_of(split);
    return (heads > 0 && param->heads % heads == 0 ? heads : param->heads) * param->head_rows;
}

/* ---- tensors --------------------------------------------------------------------------------------------------------- */

static void begin(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece)
{
    chain->first = ABAR_UPDATE_MOMENTUM;
    if (part_rows < 1) part_rows = param->rows > 0 ? param->rows : 1;
    chain->cut = (abar__cut){.part_rows = part_rows, .piece = piece > 0 ? piece : INT64_MAX};
}

void abar__chain_matrix(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece)
{
    begin(chain, param, part_rows, piece);
    chain->cut.order = 2;
    chain->cut.dim[0] = chain->cut.part_rows;
    chain->cut.dim[1] = param->columns;
}

void abar__chain_tensor(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece)
{
    begin(chain, param, part_rows, piece);
    abar__cut *cut = &chain->cut;
    int64_t joined[ABAR_MAX_DIM], last = 0; /* the last dimensions first */
    int n = 0;
    for (int i = param->ndim - 1; i >= 0; i--) {
        const int64_t d = i == 0 ? cut->part_rows : param->dim[i];
        if (d == 1) continue;
        if (last > 0 && d * last <= cut->piece)
            joined[n - 1] = d * last;
        else
            joined[n++] = d;
        last = joined[n - 1];
    }
    if (n == 0) joined[n++] = 1;
    for (int i = 0; i < n; i++) cut->dim[i] = joined[n - 1 - i];
    cut->order = n;
}

void abar__chain_tensor_forwards(abar__chain *chain, const abar__param_view *param, int64_t part_rows, int64_t piece)
{
    begin(chain, param, part_rows, piece);
    abar__cut *cut = &chain->cut;
    int64_t product = 1;
    for (int i = 0; i < param->ndim; i++) {
        const int64_t d = i == 0 ? cut->part_rows : param->dim[i];
        if (product * d > cut->piece && product > 1) cut->dim[cut->order++] = product;
        product = product * d > cut->piece ? d : product * d;
    }
    if (product > 1 || cut->order == 0) cut->dim[cut->order++] = product;
}

void abar__chain_modes(abar__chain *chain, const abar__param_view *param, int64_t part_rows, bool flat)
{
    begin(chain, param, part_rows, 0);
    abar__cut *cut = &chain->cut;
    const int n = flat ? 2 : param->ndim;
    for (int i = 0; i < n; i++) {
        const int64_t d = i == 0 ? cut->part_rows : flat ? param->columns : param->dim[i];
        if (d != 1) cut->dim[cut->order++] = d;
    }
    if (cut->order == 0) cut->dim[cut->order++] = 1;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t pieces_of(const abar__cut *cut, int mode) { return (cut->dim[mode] - 1) / cut->piece + 1; }

static int blocks_of_part(const abar__cut *cut)
{
    int64_t n = 1;
    for (int m = 0; m < cut->order; m++) n *= pieces_of(cut, m);
    return (int)n;
}

/* The blocks of parameter i, also where they are too many to be counted by an int. */
static double count_blocks(const abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    const abar__param_view *view = &o->views[i];
    if (chain->orthogonalise) return (double)(view->rows / chain->block_rows);
    if (chain->cut.order == 0 || view->columns == 0) return 0.0;
    double n = (double)(view->rows / chain->cut.part_rows);
    for (int m = 0; m < chain->cut.order; m++) n *= (double)pieces_of(&chain->cut, m);
    return n;
}

/* Elements of a factor of every mode, each block taken as a whole one. */
static double count_factors(const abar__cut *cut, double blocks)
{
    double n = 0.0;
    for (int m = 0; m < cut->order; m++) {
        const double side = (double)least(cut->piece, cut->dim[m]);
        n += blocks * side * side;
    }
    return n;
}

abar_status abar__blocks_check(const abar_optim *o)
{
    double blocks = 0.0, factors = 0.0;
    for (int i = 0; i < o->n; i++) {
        const double more = count_blocks(o, i);
        blocks += more;
        factors += count_factors(&o->chains[i].cut, more);
        if (blocks <= BLOCKS_MAX && factors <= FACTORS_MAX) continue;
        const bool many = blocks > BLOCKS_MAX;
        return abar__fail(
            o->dev->ctx, ABAR_E_ARGUMENT, "optimizer %s: %s is cut into %.0f blocks%s, choose %s blocks or another optimizer",
            o->rule->rule.name, o->params[i].name, more,
            many ? ", more than an optimizer keeps" : ", whose factors no memory holds", many ? "larger" : "smaller");
    }
    return ABAR_OK;
}

/* Block k of a part whose first element is first; without addresses. */
static abar__block block_of(const abar__cut *cut, int64_t first, int k)
{
    abar__block b = {.order = cut->order, .first = first, .count = 1};
    int64_t stride = 1;
    for (int m = cut->order - 1; m >= 0; m--) {
        const int64_t pieces = pieces_of(cut, m), from = k % pieces * cut->piece;
        b.dim[m] = least(cut->piece, cut->dim[m] - from);
        b.stride[m] = stride;
        b.first += from * stride;
        b.count *= b.dim[m];
        stride *= cut->dim[m];
        k = (int)(k / pieces);
    }
    return b;
}

static void address(const abar_optim *o, int i, abar__block *b, int64_t factors[ABAR_BLOCK_STATES])
{
    const abar_tensor *value = &o->params[i].value;
    const size_t element = abar_dtype_size(o->dev->ops->dtype);
    b->columns = o->views[i].columns;
    b->kernel = !abar_tensor_is_dense(value) && value->ndim == 4 ? value->dim[2] * value->dim[3] : 1;
    b->grad = o->items[i].grad;
    b->weight = o->items[i].weight;
    b->decay = o->chains[i].coupled ? o->items[i].weight_decay : 0.0;
    b->late_decay = o->chains[i].late_decay ? o->items[i].weight_decay : 0.0;
    b->lr_scale = o->items[i].lr_scale;
    for (int k = 0; k < o->block_plan.n_states; k++) {
        const abar__block_state *s = &o->block_plan.state[k];
        b->state[k] = o->states[i][k];
        if (factors[k] > 0) b->state[k] = (char *)b->state[k] + (size_t)factors[k] * element;
        if (s->modes) factors[k] += abar__block_factor(b, s, b->order);
    }
}

int abar__param_blocks(const abar_optim *o, int i, abar__block *out)
{
    const abar__cut *cut = &o->chains[i].cut;
    const abar__param_view *view = &o->views[i];
    const int each = view->columns > 0 ? blocks_of_part(cut) : 0, parts = (int)(view->rows / cut->part_rows);
    int64_t factors[ABAR_BLOCK_STATES] = {0}; /* elements of each state in front of the block */
    for (int k = 0; out && k < each * parts; k++) {
        out[k] = block_of(cut, k / each * cut->part_rows * view->columns, k % each);
        address(o, i, &out[k], factors);
    }
    return each * parts;
}

/* ---- state -------------------------------------------------------------------------------------------------------------- */

int abar__optim_states(const abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    return chain->cut.order > 0 ? o->block_plan.n_states : abar__chain_states(chain, &o->scalars);
}

const char *abar__optim_state_name(const abar_optim *o, int i, int k)
{
    const abar__chain *chain = &o->chains[i];
    return chain->cut.order > 0 ? o->block_plan.state[k].name : abar__chain_state_name(chain, k);
}

bool abar__optim_is_like_param(const abar_optim *o, int i, int k)
{
    const abar__chain *chain = &o->chains[i];
    return chain->cut.order > 0 ? o->block_plan.state[k].modes == 0 : !(chain->row_moment && k == 1);
}

int64_t abar__optim_state_count(const abar_optim *o, int i, int k)
{
    const abar__chain *chain = &o->chains[i];
    if (k >= abar__optim_states(o, i)) return 0;
    if (abar__optim_is_like_param(o, i, k)) return abar_tensor_count(&o->params[i].value);
    if (chain->cut.order == 0) return o->params[i].value.dim[0];
    const int each = blocks_of_part(&chain->cut);
    int64_t count = 0;
    for (int n = 0; n < each; n++) {
        const abar__block b = block_of(&chain->cut, 0, n);
        count += abar__block_factor(&b, &o->block_plan.state[k], b.order);
    }
    return count * (o->views[i].rows / chain->cut.part_rows);
}
