/* Building the plans of blocks. Nothing here computes: see device/host/blocks.c and device/cuda/step/blocks.cu. */
#include "plan/block_plan.h"

#include <string.h>

static void fail(abar__block_plan *p, const char *what)
{
    if (!p->wrong) p->wrong = what;
}

static int32_t state(abar__block_plan *p, const char *name, uint32_t modes, bool root)
{
    if (p->n_states == ABAR_BLOCK_STATES) {
        fail(p, "it keeps too many tensors, raise ABAR_BLOCK_STATES");
        return 0;
    }
    p->state[p->n_states] = (abar__block_state){.name = name, .modes = modes, .root = root};
    return p->n_states++;
}

static void stage(abar__block_plan *p, abar__block_stage s)
{
    if (p->n_stages == ABAR_BLOCK_STAGES)
        fail(p, "it has too many stages, raise ABAR_BLOCK_STAGES");
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
    if (modes == 0) fail(p, "it averages products of no mode");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_AVERAGE, .state = f.index, .beta = beta});
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
    if (!from || from->kind != ABAR_BLOCK_AVERAGE) fail(p, "it takes the root of what is no average of products");
    if (start < 1 || every < 1) fail(p, "roots are taken from update 1 on, and at multiples of at least 1");
    const abar__factors f = {state(p, name, p->state[average.index].modes, true)};
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

void abar__blocks_momentum(abar__block_plan *p, const char *name, double beta, double ahead)
{
    if (beta == 0.0) return;
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_MOMENTUM, .state = state(p, name, 0, false), .beta = beta, .ahead = ahead});
}

void abar__blocks_multiply(abar__block_plan *p, abar__factors factors)
{
    if (factors.index >= p->n_states || !p->state[factors.index].root) fail(p, "it multiplies by what is no root");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_MULTIPLY, .state = factors.index});
}

void abar__blocks_measure(abar__block_plan *p, abar__moments v, bool corrected, double eps, int64_t start)
{
    const abar__block_stage *from = v.index < 0 ? NULL : source(p, v.index);
    if (v.index >= 0 && (!from || from->kind != ABAR_BLOCK_SQUARES)) fail(p, "it divides by the root of what are no squares");
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
    if (!measured) fail(p, "it rescales to a length that it never measures");
    stage(p, (abar__block_stage){.kind = ABAR_BLOCK_RESCALE, .state = -1, .start = measured ? measured->start : 1});
}

bool abar__blocks_agree(const abar__block_plan *a, const abar__block_plan *b)
{
    bool same = a->n_states == b->n_states;
    for (int i = 0; same && i < a->n_states; i++)
        same = a->state[i].modes == b->state[i].modes && strcmp(a->state[i].name, b->state[i].name) == 0;
    return same;
}
