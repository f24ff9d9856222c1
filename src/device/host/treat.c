/* Gradients between dense factors: inverses, eigenvectors, rows or pairs that stand for an inverse. */
#include "device/host/treat.h"

#include "device/host/rows.h"
#include "device/host/secant.h"

#include <math.h>

static size_t vector_bytes(const abar_device *dev, int64_t n)
{
    return abar__round_up((size_t)n * abar_dtype_size(dev->ops->dtype), ABAR_ALIGN);
}

size_t abar__treat_scratch(const abar_device *dev, const abar__plan *p)
{
    const int64_t columns = p->d > 8 ? p->d : 8;
    if (!abar__plan_is_dense(p)) return 0;
    const size_t rows = abar__rows_treat_scratch(dev, p), secant = abar__secant_scratch(dev, p);
    return 3 * vector_bytes(dev, p->out * columns) + (rows > secant ? rows : secant); /* G, its new form, and one more */
}

bool abar__treat_joined(abar_device *dev, const abar__plan *p, const abar__dense_gradient *g, bool counts, void *scratch,
                        double *products)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__treatment *t = &p->apply;
    const int64_t m = p->out, d = p->d, count = m * d;
    char *joined = scratch, *result = joined + vector_bytes(dev, count), *spare = result + vector_bytes(dev, count);
    void *bias = d > p->columns && !g->bias ? spare : g->bias;
    if (bias == spare) stats->clear(dev, m, false, spare);
    stats->gather(dev, m, p->columns, g->weight, bias, joined);
    if (p->derived[t->right].values >= 0 && !abar__plan_treats_by_rows(p)) { /* by rows: V_P G V_A^T is G in their basis */
        const void *rows = p->derived[p->derived[t->left].values].data, *columns = p->derived[p->derived[t->right].values].data;
        stats->sandwich(dev, m, d, g->left, false, joined, g->right, true, result, spare);
        stats->divide_outer(dev, m, d, result, rows, columns, t->shift, t->least);
        stats->sandwich(dev, m, d, g->left, true, result, g->right, false, result, spare);
    } else if (abar__plan_treats_by_rows(p)) {
        abar__rows_treat(dev, p, joined, result, spare, spare + vector_bytes(dev, count));
    } else {
        stats->sandwich(dev, m, d, g->left, false, joined, g->right, false, result, spare);
        if (p->secant.pairs > 0) abar__secant_multiply(dev, p, result, spare + vector_bytes(dev, count));
    }
    if (g->row_scale) stats->scale_rows(dev, m, d, result, g->row_scale, 1.0);
    if (!stats->all_finite(dev, count, false, result, g->largest)) return false;
    if (products) {
        products[0] = stats->dot(dev, count, joined, joined);
        products[1] = stats->dot(dev, count, joined, result);
        products[2] = stats->dot(dev, count, result, result);
        if (counts && !isfinite(products[1])) return false;
    }
    stats->scatter(dev, m, p->columns, result, g->weight, bias);
    return true;
}
