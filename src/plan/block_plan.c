/* Building the plans of blocks. Nothing here computes: see device/host/blocks.c and device/cuda/step/blocks.cu. */
#include "plan/block_plan.h"

#include <string.h>

static void fail_blocks(abar__block_plan *p, const char *what)
{
    if (!p->wrong) p->wrong = what;
}

static int32_t state(abar__block_plan *p, const char *name, uint32_t modes, bool root)
{
    if (p->n_states == ABAR_BLOCK_STATES) {
        fail_blocks(p, "it keeps too many tensors, raise ABAR_BLOCK_STATES");
        return 0;
    }
    p->state[p->n_states] = (abar__block_state){.name = name, .modes = modes, .root = root};
    return p->n_states++;
}

static void stage(abar__block_plan *p, abar__block_stage s)
{
    if (p->n_stages == ABAR_BLOCK_STAGES)
        fail_blocks(p, "it has too many stages, raise ABAR_BLOCK_STAGES");
    else
        p->stage[p->n_stages++] = s;
}

/* The stage that renews a state; NULL: none. */
static const abar__block_stage *source(const abar__block_plan *p, int32_t of)
{
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].state == of) return &p->stage[i];
    return NULL;
}

abar__factors abar__blocks_average(abar__block_plan *p, const char *name, uint32_t modes, double beta)
{
    const abar__factors f = {state(p, name, modes, false)};
    if (modes == 0) fail_blocks(p, "it averages products of no mode");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_AVERAGE, .state = f.index, .beta = beta, .every = 1});
    return f;
}

abar__factors abar__blocks_sum_of_tensors(abar__block_plan *p, const char *name, int64_t every)
{
    const abar__factors f = abar__blocks_average(p, name, ABAR_EVERY_MODE, 1.0);
    if (every < 1) fail_blocks(p, "products are summed up at multiples of at least 1");
    p->state[f.index].of_tensors = true;
    if (p->n_stages > 0) p->stage[p->n_stages - 1].every = every;
    return f;
}

abar__moments abar__blocks_squares(abar__block_plan *p, const char *name, double beta)
{
    const abar__moments v = {state(p, name, 0, false)};
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_SQUARES, .state = v.index, .beta = beta});
    return v;
}

abar__factors abar__blocks_inverse_root(abar__block_plan *p, const char *name, abar__factors average, bool corrected,
                                        double exponent, double eps, int64_t start, int64_t every)
{
    const abar__block_stage *from = source(p, average.index);
    if (!from || from->kind != ABAR_BLOCK_AVERAGE) fail_blocks(p, "it takes the root of what is no average of products");
    if (start < 1 || every < 1) fail_blocks(p, "roots are taken from update 1 on, and at multiples of at least 1");
    const abar__factors f = {state(p, name, p->state[average.index].modes, true)};
    p->state[f.index].of_tensors = p->state[average.index].of_tensors;
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_ROOT,
                                 .state = f.index,
                                 .from = average.index,
                                 .beta = from && corrected ? from->beta : 1.0,
                                 .eps = eps,
                                 .exponent = exponent,
                                 .start = start,
                                 .every = every});
    return f;
}

void abar__blocks_ridge(abar__block_plan *p, double ridge)
{
    if (p->n_stages == 0 || p->stage[p->n_stages - 1].kind != ABAR_BLOCK_ROOT)
        fail_blocks(p, "it raises the eigenvalues of what it takes no root of");
    else
        p->stage[p->n_stages - 1].ridge = ridge;
}

void abar__blocks_momentum(abar__block_plan *p, const char *name, double beta, double ahead)
{
    if (beta == 0.0) return;
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_MOMENTUM, .state = state(p, name, 0, false), .beta = beta, .ahead = ahead});
}

void abar__blocks_heavy_ball(abar__block_plan *p, const char *name, double beta, double gain, double ahead, double rest)
{
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_HEAVY,
                                 .state = state(p, name, 0, false),
                                 .beta = beta,
                                 .gain = gain,
                                 .ahead = ahead,
                                 .rest = rest});
}

void abar__blocks_multiply(abar__block_plan *p, abar__factors factors)
{
    if (factors.index >= p->n_states || !p->state[factors.index].root) fail_blocks(p, "it multiplies by what is no root");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_MULTIPLY, .state = factors.index});
}

void abar__blocks_measure(abar__block_plan *p, abar__moments v, bool corrected, double eps, int64_t start)
{
    const abar__block_stage *from = v.index < 0 ? NULL : source(p, v.index);
    if (v.index >= 0 && (!from || from->kind != ABAR_BLOCK_SQUARES))
        fail_blocks(p, "it divides by the root of what are no squares");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_MEASURE,
                                 .state = v.index,
                                 .beta = from ? from->beta : 1.0,
                                 .corrected = corrected,
                                 .eps = eps,
                                 .start = start});
}

void abar__blocks_rescale(abar__block_plan *p)
{
    const abar__block_stage *measured = NULL;
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].kind == ABAR_BLOCK_MEASURE) measured = &p->stage[i];
    if (!measured) fail_blocks(p, "it rescales to a length that it never measures");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_RESCALE, .state = -1, .start = measured ? measured->start : 1});
}

void abar__blocks_rescale_whole(abar__block_plan *p)
{
    for (int i = 0; i < p->n_stages; i++)
        if (p->stage[i].kind == ABAR_BLOCK_RESCALE) fail_blocks(p, "it rescales before it rescales whole parameters");
    abar__blocks_rescale(p);
    if (p->n_stages > 0) p->stage[p->n_stages - 1].whole = true;
}

static abar__basis begin_basis(abar__block_plan *p, const char *average, const char *basis, const char *scales, int64_t longest)
{
    const abar__basis b = {.average = {state(p, average, ABAR_EVERY_MODE, false)},
                           .basis = {state(p, basis, ABAR_EVERY_MODE, true)},
                           .scales = {scales ? state(p, scales, ABAR_EVERY_MODE, false) : -1}};
    const int32_t own[] = {b.average.index, b.basis.index, b.scales.index};
    for (int i = 0; i < (scales ? 3 : 2); i++) {
        p->state[own[i]].of_tensors = true;
        p->state[own[i]].longest = longest;
        p->state[own[i]].vector = i == 2;
    }
    if (longest < 1) fail_blocks(p, "its bases are those of modes of no entries");
    return b;
}

abar__basis abar__blocks_basis(abar__block_plan *p, const char *average, const char *basis, int64_t longest, double beta)
{
    const abar__basis b = begin_basis(p, average, basis, NULL, longest);
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_AVERAGE, .state = b.average.index, .beta = beta, .every = 1});
    return b;
}

abar__basis abar__blocks_whitened_basis(abar__block_plan *p, const char *average, const char *basis, const char *scales,
                                        int64_t longest, double beta)
{
    const abar__basis b = begin_basis(p, average, basis, scales, longest);
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_WHITENED,
                                 .state = b.average.index,
                                 .basis = b.basis.index,
                                 .scales = b.scales.index,
                                 .beta = beta});
    return b;
}

void abar__blocks_rotate(abar__block_plan *p, abar__basis b)
{
    const abar__block_stage *from = source(p, b.average.index);
    abar__blocks_multiply(p, b.basis);
    if (b.scales.index >= 0)
        stage(p, (abar__block_stage){.kind = ABAR_BLOCK_SCALES, .state = b.scales.index, .beta = from ? from->beta : 1.0});
}

void abar__blocks_rotate_back(abar__block_plan *p, abar__basis b)
{
    abar__blocks_multiply(p, b.basis);
    if (p->n_stages > 0) p->stage[p->n_stages - 1].transposed = true;
}

abar__adam abar__blocks_adam(abar__block_plan *p, const char *mean, const char *squares, double beta1, double beta2, double eps)
{
    const abar__adam a = {{state(p, mean, 0, false)}, {state(p, squares, 0, false)}, beta1, beta2};
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_ADAM,
                                 .state = -1,
                                 .mean = a.mean.index,
                                 .squares = a.squares.index,
                                 .beta = beta1,
                                 .beta2 = beta2,
                                 .eps = eps});
    return a;
}

void abar__blocks_even(abar__block_plan *p) { stage(p, (abar__block_stage){.kind = ABAR_BLOCK_EVEN, .state = -1}); }

void abar__blocks_step(abar__block_plan *p, abar__adam adam, bool corrected)
{
    stage(p, (abar__block_stage){
                 .kind = ABAR_BLOCK_STEP, .state = -1, .beta = adam.beta1, .beta2 = adam.beta2, .corrected = corrected});
}

static abar__block_stage *last_step(abar__block_plan *p)
{
    abar__block_stage *s = p->n_stages > 0 ? &p->stage[p->n_stages - 1] : NULL;
    if (s && s->kind == ABAR_BLOCK_STEP) return s;
    fail_blocks(p, "it says how a step is made that it does not make");
    return NULL;
}

void abar__blocks_cautious(abar__block_plan *p)
{
    abar__block_stage *s = last_step(p);
    if (s) s->cautious = true;
}

void abar__blocks_ball(abar__block_plan *p)
{
    abar__block_stage *s = last_step(p);
    if (s) s->ball = true;
}

void abar__blocks_turn(abar__block_plan *p, abar__basis b, abar__adam adam, int64_t every)
{
    if (every < 1) fail_blocks(p, "bases are renewed at multiples of at least 1");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_BASIS,
                                 .state = b.basis.index,
                                 .from = b.average.index,
                                 .mean = adam.mean.index,
                                 .squares = b.scales.index >= 0 ? -1 : adam.squares.index,
                                 .every = every});
}

bool abar__blocks_agree(const abar__block_plan *a, const abar__block_plan *b)
{
    bool same = a->n_states == b->n_states;
    for (int i = 0; same && i < a->n_states; i++)
        same = a->state[i].modes == b->state[i].modes && a->state[i].longest == b->state[i].longest &&
               a->state[i].of_tensors == b->state[i].of_tensors && strcmp(a->state[i].name, b->state[i].name) == 0;
    return same;
}
