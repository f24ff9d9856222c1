/* How wide products (products_wide.h) are shared out: tiles, boxes of positions, splits and where their sums go. */
#include "device/cuda/stats/products_wide.h"

#define DEPTH ABAR_WIDE_DEPTH
#define LEAST 128 /* columns of a */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool one_tap(const abar__products *s) { return s->columns == s->channels; }

/* Tiles of a part, N columns of a wide. */
static int count_tiles(const abar__product_part *q, int columns)
{
    int tiles = 0;
    for (int down = 0; down * ABAR_PANEL_TILE < q->columns; down++) tiles += tiles_across(*q, columns, down);
    return tiles;
}

/* N, such that tiles are the least that is multiplied, and boxes of a stay within a tap; 0: there is none. */
static int choose_columns(const abar__products *s)
{
    static const int choices[] = {192, 160, 128};
    int best = 0;
    int64_t least_work = 0;
    for (int n : choices) {
        if (!one_tap(s) && s->channels % (n == 160 ? 160 : 64) != 0) continue;
        abar__product_part q = s->part[0];
        q.across = s->parts == 1 ? 0 : (int)abar__cuda_blocks(s->columns, n);
        const int64_t work = (int64_t)count_tiles(&q, n) * n;
        if (best && work >= least_work) continue;
        best = n;
        least_work = work;
    }
    return best;
}

/* Positions of rows with themselves, one after the other in memory, become a line: boxes need not end where an example does. */
static void make_line(abar__wide_products *p)
{
    abar__products *s = &p->s;
    abar__product_part *q = &s->part[0];
    const int64_t apart[3] = {s->step[1] * s->stride[3], s->step[0] * s->stride[2], s->stride[0]};
    const int64_t n[3] = {q->wide, q->high, s->examples}, all = n[0] * n[1] * n[2];
    int64_t between = n[0] > 1 ? apart[0] : n[1] > 1 ? apart[1] : apart[2], ahead = between;
    bool line = s->parts == 1 && one_tap(s) && s->taps.pad[0] == 0 && s->taps.pad[1] == 0;
    for (int i = 0; i < 3; ahead *= n[i++]) line = line && (n[i] == 1 || apart[i] == ahead);
    if (!line || between < s->channels) return;
    p->line = (int)(n[0] * n[1]);
    s->examples = s->height = s->step[0] = s->step[1] = q->high = 1;
    s->width = q->wide = (int)all;
    s->stride[3] = between;
    s->stride[0] = s->stride[2] = between * all;
}

/* Whether boxes may end beyond a part's positions: only where what comes from there are zeros. */
static bool may_exceed(const abar__products *s, int first, int positions, int step, int pixels)
{
    return one_tap(s) && first == 0 && (int64_t)positions * step >= pixels;
}

/* The box with the fewest steps, the widest of these. */
static abar__cut cut_part(const abar__products *s, const abar__product_part *q)
{
    const bool wider = may_exceed(s, q->left, q->wide, s->step[1], s->width);
    const bool higher = may_exceed(s, q->top, q->high, s->step[0], s->height);
    abar__cut best = {};
    for (int wide = DEPTH; wide; wide /= 2)
        for (int high = DEPTH / wide; high; high /= 2) {
            const int examples = DEPTH / wide / high;
            const int64_t right = abar__cuda_blocks(q->wide, wide), down = abar__cuda_blocks(q->high, high);
            const int64_t steps = right * down * abar__cuda_blocks(s->examples, examples);
            if (wide * s->step[1] > 256 || high * s->step[0] > 256 || steps > ABAR_PRODUCT_ROWS) continue;
            if ((!wider && q->wide % wide) || (!higher && q->high % high)) continue;
            if (best.steps == 0 || steps < best.steps) best = {wide, high, examples, (int)right, (int)down, (int)steps, 0};
        }
    return best;
}

/* False: more kinds of boxes than there are maps, or none. */
static bool cut_parts(abar__wide_products *p)
{
    int maps = 0;
    for (int i = 0; i < p->s.parts; i++) {
        abar__cut *c = &p->cuts[i];
        *c = cut_part(&p->s, &p->s.part[i]);
        if (c->steps == 0) return false;
        c->map = maps++;
        for (int k = 0; k < i; k++)
            if (p->cuts[k].wide == c->wide && p->cuts[k].high == c->high) {
                c->map = p->cuts[k].map;
                maps--;
                break;
            }
        if (maps > ABAR_WIDE_MAPS) return false;
    }
    return true;
}

/* How a product is shared: splits of the first part; how many times shorter those of the others are; lanes at most. */
typedef struct sharing {
    int64_t splits, finer, lanes;
} sharing;

/* Returns the floats of all lanes. */
static int64_t split_parts(abar__wide_products *p, const sharing *h)
{
    int64_t at = 0;
    for (int i = 0; i < p->s.parts; i++) {
        abar__product_part *q = &p->s.part[i];
        const int64_t wanted = abar__cuda_blocks(p->cuts[i].steps * h->splits * h->finer, p->cuts[0].steps);
        q->splits = (int)(i == 0 ? h->splits : least(wanted, p->cuts[i].steps));
        q->lanes = (int)least(h->lanes, q->splits);
        q->at = at;
        at += q->lanes * q->floats;
    }
    return at;
}

#define ENDS 5000.0  /* nanoseconds of a block's first and last steps, */
#define SHARE 4500.0 /* flop in one of those between, */
#define ADDED 2500.0 /* and bytes that are added in one */
#define TIMES 32

/* Processors that will be free at the same time. */
typedef struct crowd {
    double when;
    int64_t count;
} crowd;

/* About when the last of a product's blocks will have ended, each beginning where a processor is free first. */
static double makespan(const abar__wide_products *p, int64_t processors, int columns)
{
    crowd crowds[TIMES] = {{0.0, processors}};
    int n = 1;
    double end = 0.0;
    for (int i = 0; i < p->s.parts; i++) {
        const abar__product_part *q = &p->s.part[i];
        const double step = 2.0 * ABAR_PANEL_TILE * columns * DEPTH / SHARE;
        const double adding = 0.6 * ENDS * (1.0 - (double)q->lanes / q->splits);
        const double length = (double)abar__cuda_blocks(p->cuts[i].steps, q->splits) * step + ENDS + adding;
        for (int64_t left = (int64_t)q->tiles * q->splits, taken; left > 0; left -= taken) {
            int first = 0;
            for (int k = 1; k < n; k++)
                if (crowds[k].when < crowds[first].when) first = k;
            const crowd next = {crowds[first].when + length, least(left, crowds[first].count)};
            taken = next.count;
            end = next.when > end ? next.when : end;
            crowds[first].count -= taken;
            if (crowds[first].count == 0 || n == TIMES)
                crowds[first] = {next.when, next.count + crowds[first].count};
            else
                crowds[n++] = next;
        }
    }
    return end;
}

/* About how many nanoseconds a product takes, with blocks that wait for each other's sums and sums that are added afterwards.
 */
static double cost_of(const abar__wide_products *p, int64_t processors, int columns)
{
    const abar__product_part *q = p->s.part;
    const int64_t at_once = least(q->splits, abar__cuda_blocks(processors, q->tiles));
    double floats = 0.0;
    for (int i = 0; i < p->s.parts; i++)
        if (q[i].lanes > 1) floats += (double)q[i].lanes * (double)q[i].floats;
    return makespan(p, processors, columns) + 0.6 * ENDS * (double)(abar__cuda_blocks(at_once, q->lanes) - 1) +
           (floats > 0.0 ? floats * 4.0 / ADDED + 3000.0 : 0.0);
}

/* As many lanes as fit; 0: not even one does. */
static int64_t most_lanes(abar__wide_products *p, sharing h, int64_t workspace)
{
    const int64_t at_most = workspace / p->s.part[0].floats; /* of the first part's */
    for (h.lanes = least(h.splits, at_most); h.lanes > 0 && split_parts(p, &h) > workspace; h.lanes--) continue;
    int64_t turns = 1;
    for (int i = 0; i < p->s.parts; i++) turns += (int64_t)p->s.part[i].tiles * p->s.part[i].lanes;
    return turns > ABAR_CUDA_TICKETS ? 0 : h.lanes;
}

/* The cheapest sharing whose sums fit; where none do, one split of one part does without. False: not even that. */
static bool choose_sharing(abar__wide_products *p, int64_t processors, int columns, int64_t workspace)
{
    const int64_t most = least(p->cuts[0].steps, 4 + 4 * processors / p->s.part[0].tiles);
    sharing best = {};
    double least_cost = 0.0;
    for (sharing h = {1, 1, 0}; h.splits <= most; h.splits++)
        for (h.finer = 1; h.finer <= (p->s.parts > 1 ? 16 : 1); h.finer *= 2) {
            h.lanes = most_lanes(p, h, workspace);
            if (h.lanes == 0) continue;
            const double cost = cost_of(p, processors, columns);
            if (best.splits && cost >= least_cost) continue;
            least_cost = cost;
            best = h;
        }
    if (!best.splits && p->s.parts == 1) best = {1, 1, 0};
    if (best.splits) split_parts(p, &best);
    return best.splits != 0;
}

static unsigned number_blocks(abar__wide_products *p)
{
    int turns = 1;
    unsigned blocks = 0;
    for (int i = 0; i < p->s.parts; i++) {
        abar__product_part *q = &p->s.part[i];
        p->turn[i] = turns;
        q->block = blocks;
        turns += q->tiles * q->lanes;
        blocks += (unsigned)(q->tiles * q->splits);
    }
    return blocks;
}

static int64_t lane_floats(const abar__product_part *q, int columns)
{
    const int panels = q->across ? q->across : (int)abar__cuda_blocks(q->columns, columns);
    switch (columns) {
    case 128: return panel_at<128>(*q, panels);
    case 160: return panel_at<160>(*q, panels);
    default: return panel_at<192>(*q, panels);
    }
}

extern "C" int64_t abar__cuda_wide_floats(const abar__products *s)
{
    const int columns = s->columns >= LEAST ? choose_columns(s) : 0;
    abar__product_part q = s->part[0];
    q.across = 0;
    return columns ? lane_floats(&q, columns) : 0;
}

/* Which products these are: many columns of whole taps, and steps enough for every processor; then how. 0: not this one. */
extern "C" int abar__cuda_plan_wide(const abar_device *dev, abar__wide_products *p, int64_t workspace, unsigned *blocks)
{
    abar__products *s = &p->s;
    const int64_t processors = abar__cuda_of(dev)->processors;
    bool fits = s->columns >= LEAST && s->examples * s->part[0].high * s->part[0].wide < ABAR_PRODUCT_ROWS;
    for (int i = 0; i < s->parts; i++)
        fits = fits && s->part[i].high > 0 && (s->part[i].columns == s->channels || s->channels % 32 == 0);
    for (int i = 0; i < 2; i++) fits = fits && s->step[i] <= 8;
    const int columns = fits && s->examples > 0 ? choose_columns(s) : 0;
    if (columns == 0) return 0;
    make_line(p);
    if (!cut_parts(p)) return 0;
    for (int i = 0; i < s->parts; i++) {
        abar__product_part *q = &s->part[i];
        q->across = s->parts == 1 ? 0 : (int)abar__cuda_blocks(s->columns, columns);
        q->tiles = count_tiles(q, columns);
        q->floats = lane_floats(q, columns);
    }
    if (s->parts == 1 && (int64_t)s->part[0].tiles * p->cuts[0].steps < 4 * processors) return 0;
    if (!choose_sharing(p, processors, columns, workspace)) return 0;
    *blocks = number_blocks(p);
    return columns;
}
