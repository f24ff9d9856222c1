/* Statistics of the rows that make v, by the definitions of methods.md section 2:
 *
 *     m = E_b[X_bᵀ t̄_b],  E_b[Σ_j t̄_b[j] |a_{b,j}|²];  factored: E_b[X_b]ᵀ E_b[t̄_b],  Σ_j E_b[t̄_b[j]] E_b|a_{b,j}|²
 *
 * with t̄ of one head or their mean. */
#include "device/ref/ref_stats.h"

#include "tensor/tensor_impl.h"

static double input_at(const abar__rows *r, int64_t n, int64_t t, int64_t k)
{
    return abar__tensor_load(&r->input, abar__tensor_offset(&r->input, (int64_t[]){n, t, k}));
}

static double column_at(const abar__rows *r, int64_t n, int64_t head, int64_t t)
{
    return abar__tensor_load(&r->columns, abar__tensor_offset(&r->columns, (int64_t[]){n, head, t}));
}

static double column_mean(const abar__rows *r, int64_t n, int64_t t)
{
    double sum = 0.0;
    for (int64_t h = 0; h < r->columns.dim[1]; h++) sum += column_at(r, n, h, t);
    return sum / (double)r->columns.dim[1];
}

void abar__ref_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v)
{
    (void)dev;
    for (int64_t h = 0; h < v->parts; h++) {
        double *sum = (double *)v->sum + h * v->sum_stride, square = 0.0;
        for (int64_t n = 0; n < r->examples; n++)
            for (int64_t t = 0; t < r->per_example; t++) {
                const double w = v->parts > 1 ? column_at(r, n, h, t) : column_mean(r, n, t);
                for (int64_t k = 0; k < r->in; k++) {
                    sum[k] += w * input_at(r, n, t, k);
                    square += w * input_at(r, n, t, k) * input_at(r, n, t, k);
                }
            }
        if (r->bias) sum[r->in] += v->sequences;
        if (v->square)
            *(double *)(void *)((char *)v->square + (size_t)h * v->square_stride) += square + (r->bias ? v->sequences : 0.0);
    }
}

void abar__ref_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v)
{
    (void)dev;
    double *sum = v->sum, *columns = v->columns;
    for (int64_t n = 0; n < r->examples; n++)
        for (int64_t t = 0; t < r->per_example; t++) {
            const int64_t p = abar__position(v->grid, v->side, v->shift, t);
            columns[p] += column_mean(r, n, t);
            for (int64_t k = 0; k < r->in; k++) {
                sum[p * r->in + k] += input_at(r, n, t, k);
                if (v->square) v->square[p] += input_at(r, n, t, k) * input_at(r, n, t, k);
            }
        }
}

void abar__ref_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                void *out, double *square)
{
    (void)dev;
    double *sum = out, *x = p->sum, *columns = p->columns;
    for (int64_t j = 0; j < p->positions; j++) {
        for (int64_t k = 0; k < in; k++) {
            sum[k] += columns[j] * x[j * in + k] / sequences;
            x[j * in + k] = 0.0;
        }
        if (p->square) *square += columns[j] * p->square[j] / sequences;
        if (p->square) p->square[j] = 0.0;
        columns[j] = 0.0;
    }
    if (bias) sum[in] += sequences;
    if (bias && p->square) *square += sequences;
}
