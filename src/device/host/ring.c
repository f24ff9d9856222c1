/* M-FAC's step (optimizers.md section 8) on ref and cpu:
 *
 *     slot j of the ring Γ (m, P) becomes g;   Ĝ = Γᵀ c,   c = (λI + ΓΓᵀ/m)⁻¹ e_j
 *
 * ΓΓᵀ is kept in double and gets one new row a step. Slots that were never written are zero: c is zero there, too. */
#include "device/host/ring.h"

#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

#define LADDER 5 /* methods.md section 9: so often the damping is raised tenfold */

typedef struct ring {
    int64_t slots, length; /* m, P */
    int64_t filled, slot;  /* rows written so far with this one, and which one that is */
    char *rows;
    size_t row_bytes;
    double *gram;
} ring;

/* What a step works in. */
typedef struct work {
    double *products, *c, *factor; /* (slots), (slots), (slots, slots) */
    void *result;                  /* (length) */
} work;

static ring ring_of(const abar_device *dev, const abar__plan *p, const abar__map_state *state)
{
    const int64_t written = state->count[ABAR_COUNT_COMMITS], length = p->out * p->d;
    const abar_dtype dtype = abar__derived_dtype(p, &p->derived[0], dev->ops->dtype);
    return (ring){.slots = p->slots,
                  .length = length,
                  .filled = written < p->slots ? written + 1 : p->slots,
                  .slot = written % p->slots,
                  .rows = p->derived[0].data,
                  .row_bytes = (size_t)length * abar_dtype_size(dtype),
                  .gram = p->derived[1].data};
}

size_t abar__ring_scratch(const abar_device *dev, const abar__plan *p)
{
    const size_t slots = (size_t)p->slots, length = (size_t)(p->out * p->d);
    return slots == 0 ? 0 : slots * (slots + 2) * sizeof(double) + length * abar_dtype_size(dev->ops->dtype);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void write_piece(const abar_device *dev, const abar__ring_piece *piece, double scale, bool narrow, char *row)
{
    const bool wide = dev->ops->dtype == ABAR_F64;
    for (int64_t i = 0; i < piece->count; i++) {
        const double g = scale * (wide ? ((const double *)piece->grad)[i] : (double)((const float *)piece->grad)[i]);
        if (narrow)
            ((uint16_t *)(void *)row)[piece->at + i] = abar__bf16_round((float)g);
        else if (wide)
            ((double *)(void *)row)[piece->at + i] = g;
        else
            ((float *)(void *)row)[piece->at + i] = (float)g;
    }
}

/* Row and column of the slot in the Gram matrix. */
static void set_products(const ring *r, const double *products)
{
    for (int64_t i = 0; i < r->filled; i++)
        r->gram[r->slot * r->slots + i] = r->gram[i * r->slots + r->slot] = products ? products[i] : 0.0;
}

/* The gradients into their slot. False: their products overflow, and the slot is empty. */
static bool write_row(abar_device *dev, const abar__plan *p, const ring *r, const abar__ring_piece *pieces, int n, double scale,
                      double *products)
{
    char *row = r->rows + (size_t)r->slot * r->row_bytes;
    bool fine = true;
    memset(row, 0, r->row_bytes);
    for (int i = 0; i < n; i++) write_piece(dev, &pieces[i], scale, p->narrow, row);
    dev->ops->stats->row_products(dev, r->filled, r->length, r->rows, p->narrow, r->slot, products);
    for (int64_t i = 0; i < r->filled; i++) fine = fine && isfinite(products[i]);
    if (!fine) memset(row, 0, r->row_bytes);
    set_products(r, fine ? products : NULL);
    return fine;
}

/* ---- solving ------------------------------------------------------------------------------------------------------- */

static bool climb(abar_device *dev, const abar__plan *p, const ring *r, abar__map_state *state, const work *w)
{
    double trace = 0.0, damping = p->ring_damping;
    const double over = 1.0 / (double)r->slots;
    for (int64_t i = 0; i < r->filled; i++) trace += over * r->gram[i * r->slots + i];
    for (int raised = 0; raised <= LADDER; raised++) {
        if (dev->ops->stats->solve_gram(dev, r->filled, r->gram, r->slots, over, damping, r->slot, w->c, w->factor)) {
            state->real[ABAR_REAL_DAMPING] = damping;
            return true;
        }
        if (raised == LADDER) break;
        state->count[ABAR_COUNT_RAISED]++;
        damping = fmax(10.0 * damping, 1e-8 * trace / (double)r->filled);
    }
    return false;
}

/* Of the gradient, scale times as it is in memory: all from the Gram matrix. */
static void measure(const ring *r, const double *c, double products[3])
{
    const double *own = r->gram + r->slot * r->slots;
    products[0] = own[r->slot];
    products[1] = products[2] = 0.0;
    for (int64_t i = 0; i < r->filled; i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < r->filled; k++) sum += r->gram[i * r->slots + k] * c[k];
        products[1] += own[i] * c[i];
        products[2] += c[i] * sum;
    }
}

static void copy_out(const abar_device *dev, const abar__ring_piece *pieces, int n, const char *result)
{
    const size_t element = abar_dtype_size(dev->ops->dtype);
    for (int i = 0; i < n; i++)
        if (pieces[i].count > 0)
            memcpy(pieces[i].grad, result + (size_t)pieces[i].at * element, (size_t)pieces[i].count * element);
}

void abar__ring_run(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__ring_piece *pieces, int n,
                    double scale, double products[3], void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const ring r = ring_of(dev, p, state);
    double *numbers = scratch;
    const work w = {numbers, numbers + r.slots, numbers + 2 * r.slots, numbers + (r.slots + 2) * r.slots};
    products[0] = products[1] = products[2] = NAN;
    if (n == 0) return;
    if (!write_row(dev, p, &r, pieces, n, scale, w.products)) {
        state->count[ABAR_COUNT_KEPT]++;
        return;
    }
    state->count[ABAR_COUNT_COMMITS]++;
    bool fine = climb(dev, p, &r, state, &w);
    if (fine) {
        measure(&r, w.c, products);
        for (int64_t i = 0; i < r.filled; i++) w.c[i] /= scale;
        stats->combine_rows(dev, r.filled, r.length, r.rows, p->narrow, w.c, w.result);
        fine = stats->all_finite(dev, r.length, false, w.result, fmax(scale, 1.0));
    }
    if (fine)
        copy_out(dev, pieces, n, w.result);
    else
        state->count[ABAR_COUNT_KEPT]++;
}
