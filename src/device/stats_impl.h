/* Statistics of one linear map and the dense algebra that curvature needs: part of a device's core.
 *
 * A map sees its layer's inputs and output gradients as *rows* (methods.md section 0): one per example for vectors, per token
 * for sequences, per output position for convolutions, where the row is the flattened patch. Patches are never built. Sums are
 * added to accumulators of the device's dtype in device memory; the caller clears them. */
#ifndef ABAR_STATS_IMPL_H
#define ABAR_STATS_IMPL_H

#include "abar/tensor.h"
#include "device/orthogonalise.h"

typedef struct abar__rows {
    abar_tensor input;             /* (N, C, H, W), (N, T, I) or (N, I); any layout; F64, F32 or BF16 */
    abar_tensor output_grad;       /* (N, O, P, Q), (N, T, O) or (N, O) */
    double grad_scale;             /* p = grad_scale * output_grad */
    abar_window window;            /* of a convolution; unit for a linear layer */
    bool convolution;              /* input is (N, C, H, W) and rows are patches */
    bool bias;                     /* rows end in a 1: d = in + 1 */
    int64_t group;                 /* which of window.groups */
    int64_t examples, per_example; /* N, R */
    int64_t in, out;               /* patch length C/groups*kh*kw, outputs of this map */
    abar_tensor columns;           /* rows that feed attention: (N, heads, T), its column means; ndim 0: others */
} abar__rows;

/* What is summed over the rows of sequences that attention weighs (methods.md section 2); input is (N, T, I). A sequence is an
 * example, or one of its windows; t of a sequence sums to 1, so that the homogeneous entries add up to the sequences exactly.
 */
typedef struct abar__value_sums {
    int64_t parts;    /* heads: each with its own columns; 1: with their mean */
    double sequences; /* of all examples */
    void *sum;        /* (d) of the first part; the others each sum_stride elements further */
    int64_t sum_stride;
    double *square;       /* one number likewise, square_stride bytes apart: sum of t |a|^2; NULL: not wanted */
    size_t square_stride; /* in host memory, or a queued device's */
} abar__value_sums;

/* Sums over sequences for every token of a sequence: X, mean over heads of t, and |x|^2, without homogeneous entries. */
typedef struct abar__position_sums {
    int64_t positions;            /* tokens of a sequence */
    int64_t grid[2], side, shift; /* where its windows are (abar_attention); side 0: all tokens are one sequence */
    void *sum;                    /* (positions, I) */
    void *columns;                /* (positions) */
    double *square;               /* (positions), in the device's memory; NULL: not wanted */
} abar__position_sums;

/* Where in its window token t is: the grid is rolled back by shift, then cut. */
static inline int64_t abar__position(const int64_t grid[2], int64_t side, int64_t shift, int64_t t)
{
    if (side == 0) return t;
    const int64_t y = (t / grid[1] + grid[0] - shift) % grid[0], x = (t % grid[1] + grid[1] - shift) % grid[1];
    return y % side * side + x % side;
}

/* The same over examples first .. first + count - 1; first is a multiple of 16. */
abar__rows abar__rows_slice(const abar__rows *r, int64_t first, int64_t count);

static inline int64_t abar__rows_d(const abar__rows *r) { return r->in + (r->bias ? 1 : 0); }

/* How the update turns row o of a gradient into its preconditioned form, in the same pass:
 *     scale * row_scale[o] * (G_o - c_o * right),   c_o = <G_o, right>, or coefficient[o] where given.
 * Vectors are of the device's dtype; right is as long as a row with its bias. */
typedef struct abar__precondition {
    const void *right;       /* NULL: nothing is subtracted */
    const void *coefficient; /* (rows) */
    const void *row_scale;   /* (rows); NULL: 1 */
    double scale;
} abar__precondition;

/* A map's gradient between two factors: G^ = diag(row_scale) L G R. */
typedef struct abar__dense_gradient {
    int64_t out, in, d;       /* d: in, and the bias */
    void *weight, *bias;      /* G: (out, in), and the bias's column (out); NULL: none, or zeros */
    const void *left, *right; /* (out, out; NULL: the identity), (d, d) */
    const void *row_scale;    /* (out); NULL: 1 */
    double largest;           /* that G^ may be multiplied by later: it must be finite then, too */
} abar__dense_gradient;

/* A symmetric (d, d) statistic is kept by triangles, row-major with d columns: what is pending in the lower one of its square
 * (row i, columns 0..i), the average in the upper one of its own. The two squares interleave without touching in (d + 1) rows
 * of memory: average at row 0, pending at row 1. */
typedef struct abar__stats_ops {
    void (*input_sum)(abar_device *dev, const abar__rows *r, void *sum); /* (d): sum of a */
    /* *sum += sum of |a|^2; sum is in host memory, or a queued device's */
    void (*input_square_add)(abar_device *dev, const abar__rows *r, double *sum);
    void (*value_sums)(abar_device *dev, const abar__rows *r, const abar__value_sums *v);
    void (*position_sums)(abar_device *dev, const abar__rows *r, const abar__position_sums *v);
    /* sum (d) += columnsT X / sequences, *square likewise of the squares (where p has them), with the homogeneous entries;
     * the sums by position become 0. square: in host memory, or a queued device's */
    void (*position_product)(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences, void *sum,
                             double *square);
    void (*grad_sum)(abar_device *dev, const abar__rows *r, void *sum); /* (out): sum of p */
    /* Of every example n: a[n] = |mean over r of a|^2 / R, p[n] likewise; *number += sum over n of |..|^2 |..|^2. These and all
     * weights below, (N), are in host memory, or a queued device's. */
    void (*example_weights)(abar_device *dev, const abar__rows *r, double *a, double *p, double *number);
    /* (out): sum over n of weight[n] * (sum over r of p * p); NULL: 1 */
    void (*grad_squares)(abar_device *dev, const abar__rows *r, const double *weight, void *sum);
    /* input_sum, and grad_sum or (without weights) grad_squares, where one call is cheaper than two; NULL: it is not */
    void (*both_sums)(abar_device *dev, const abar__rows *r, void *sum_a, bool squares, void *sum_p);

    /* Sums of outer products, added to the lower triangle of a square. scratch: product_scratch bytes, which depend on the
     * map (in, out, bias, window, convolution) but not on how many examples of what size come. */
    void (*input_product)(abar_device *dev, const abar__rows *r, const double *weight, void *square,
                          void *scratch);                                                           /* w_n a aT */
    void (*grad_product)(abar_device *dev, const abar__rows *r, void *square, void *scratch);       /* p pT */
    void (*input_mean_product)(abar_device *dev, const abar__rows *r, void *square, void *scratch); /* of examples' means */
    void (*grad_mean_product)(abar_device *dev, const abar__rows *r, void *square, void *scratch);
    /* The last two, where one call is cheaper; NULL: it is not */
    void (*both_mean_products)(abar_device *dev, const abar__rows *r, void *square_a, void *square_p, void *scratch);
    size_t (*product_scratch)(abar_device *dev, const abar__rows *r);

    /* Rows of single examples for the natural gradient (natural.h). p NULL: a (N, out * d) = sum over r of p aT, else a (N, d)
     * and p (N, out), of maps with one row per example. scratch: example_rows_scratch bytes, which depend on the map alone. */
    void (*example_rows)(abar_device *dev, const abar__rows *r, void *a, void *p, void *scratch);
    size_t (*example_rows_scratch)(abar_device *dev, const abar__rows *r);
    /* sums (rows, rows; the lower triangle, pitch numbers from row to row) += x xT, x (rows, numbers); pitch: rows rounded up
     * to 8. panels: pitch * 512 numbers. NULL on cuda, like the next. */
    void (*rows_gram)(abar_device *dev, int64_t rows, int64_t numbers, const double *x, double *panels, double *sums);
    /* x (n) = (K + shift I)^-1 x by Cholesky's factor, which is left in factor (n, n); K by its lower triangle, pitch numbers
     * from row to row. False, x as it was, where that is not positive definite. */
    bool (*solve_shifted)(abar_device *dev, int64_t n, const double *k, int64_t pitch, double shift, double *factor, double *x);

    /* Whether n elements, or the lower triangle of a square of side n, are finite, and still are times scale. */
    bool (*all_finite)(abar_device *dev, int64_t n, bool square, const void *pending, double scale);
    /* average = beta * average + add * pending; pending = 0. n elements, or the two triangles of a square of side n. */
    void (*commit)(abar_device *dev, int64_t n, bool square, void *average, void *pending, double beta, double add);

    void (*clear)(abar_device *dev, int64_t n, bool square, void *pending);

    double (*trace)(abar_device *dev, int64_t d, const void *average);
    /* inverse (d, d; full) of scale * average + shift * I. in_double: factorise in double precision. False, leaving inverse
     * as it was, when the matrix is not positive definite or the result not finite. */
    bool (*invert)(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double, void *inverse,
                   void *scratch);
    size_t (*invert_scratch)(abar_device *dev, int64_t d);
    /* Eigenvalues (d, ascending) and vectors (d, d; row i is the i-th) of scale * average. False, leaving
     * both as they were, when it does not converge. */
    bool (*eigen)(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors, void *scratch);
    size_t (*eigen_scratch)(abar_device *dev, int64_t d);

    /* y (m, n) = L x R with L = left or its transpose (m, m), R likewise (n, n); NULL: the identity. scratch: (m, n). y may be
     * x. */
    void (*sandwich)(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x, const void *right,
                     bool right_t, void *y, void *scratch);

    /* Replaces G by G^ in one call, where that is cheaper than gather, sandwich and scatter; NULL: it is not. products: <G, G>,
     * <G^, G>, <G^, G^>; NULL: not wanted. False, leaving G as it was, where G^ is not finite. scratch: three of (out, d),
     * d at least 8. */
    bool (*precondition)(abar_device *dev, const abar__dense_gradient *g, void *scratch, double *products);

    /* (m, n) matrices and vectors of the device's dtype; sums in double. */
    double (*dot)(abar_device *dev, int64_t n, const void *x, const void *y);
    double (*bilinear)(abar_device *dev, int64_t m, int64_t n, const void *left, const void *x,
                       const void *right); /* l^T x r */
    void (*scale_rows)(abar_device *dev, int64_t m, int64_t n, void *x, const void *factor,
                       double scale);                                                                /* x_i *= scale f_i */
    void (*affine)(abar_device *dev, int64_t n, const void *x, double scale, double shift, void *y); /* y = scale x + shift */
    void (*reciprocal)(abar_device *dev, int64_t n, const void *x, double scale, double shift,
                       void *y); /* 1 / (scale x + shift) */
    /* x_ij /= rows_i * columns_j + shift, negative rows and columns (rounding) taken as 0; with a least above 0 as they are,
     * and the divisor is at least that */
    void (*divide_outer)(abar_device *dev, int64_t m, int64_t n, void *x, const void *rows, const void *columns, double shift,
                         double least);
    double (*sum)(abar_device *dev, int64_t n, const void *x);
    /* <G, G>, <G^, G> and <G^, G^> of a map (out, in) with bias (out; NULL: none), G^ as pre describes it. */
    void (*compare)(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias,
                    const abar__precondition *pre, double result[3]);
    /* Between a map's rows in weight (out, in) and bias (out; NULL: none) and the joined matrix (out, d). */
    void (*gather)(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias, void *joined);
    void (*scatter)(abar_device *dev, int64_t out, int64_t in, const void *joined, void *weight, void *bias);

    /* Newton-Schulz of n blocks (orthogonalise.h); normuon_beta is that of v, verdict (n). scratch: orthogonalise_scratch
     * bytes. NULL on cuda, whose step keeps an object for it (cuda/step/orthogonalise.h). */
    void (*orthogonalise)(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n, double normuon_beta,
                          int32_t *verdict, void *scratch);
    size_t (*orthogonalise_scratch)(const abar_device *dev, const abar__ns_block *blocks, int n);

    /* Rows that are kept (host/rows.c). NULL on cuda, whose step has no such stage.
     * (examples, d) or, of output gradients, (examples, out): the mean row of each example. */
    void (*example_means)(abar_device *dev, const abar__rows *r, bool of_grads, void *means);
    /* y (m, n) = scale * A B + keep * y; A = a (m, k) or its transposed a (k, m), B = b (k, n) or b (n, k). y is neither. keep
     * 0: y is not read. */
    void (*multiply)(abar_device *dev, int64_t m, int64_t n, int64_t k, double scale, const void *a, bool a_t, const void *b,
                     bool b_t, double keep, void *y);
    /* solved (n, d) = L^-1 X, X = scale * rows (n, d), L LT = X XT + shift I: all in double. False, leaving solved as it was,
     * where that is not positive definite or solved not finite. */
    bool (*solve_rows)(abar_device *dev, int64_t n, int64_t d, const void *rows, double scale, double shift, void *solved,
                       void *scratch);
    size_t (*solve_rows_scratch)(abar_device *dev, int64_t n, int64_t d);

    /* Of a ring (host/ring.c): rows (n, d) of the device's dtype, or bf16 where narrow. NULL on cuda, which has none.
     * products[i] = <row i, row j>, in double. */
    void (*row_products)(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, int64_t j, double *products);
    /* y (d) = sum over i of c[i] row i, added up in double. */
    void (*combine_rows)(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, const double *c, void *y);
    /* c (n) = (scale * gram + shift I)^-1 e_j, gram (n, stride). False where that is not positive definite or c not finite.
     * scratch: (n, n). */
    bool (*solve_gram)(abar_device *dev, int64_t n, const double *gram, int64_t stride, double scale, double shift, int64_t j,
                       double *c, double *scratch);

    /* Of blocks (blocks.h), x dense as (before, n, behind). NULL on cuda, whose step has them (cuda/step/blocks.cu).
     * The upper triangle of average (n, n) = beta * average + add * sum over the first and the last index of x xT. */
    void (*average_mode)(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *x, double beta, double add,
                         void *average);
    /* root (n, n; full) = (scale * average + eps I)^-exponent by its eigenvalues, in double; where the least is below eps, all
     * are shifted so that it is eps. ridge: NULL, or this part of the largest of these eigenvalues is added to all; it becomes
     * what was added. False, leaving root as it was, where it is not finite. */
    bool (*inverse_root)(abar_device *dev, int64_t n, const void *average, double scale, double eps, double *ridge,
                         double exponent, void *root, void *scratch);
    size_t (*inverse_root_scratch)(abar_device *dev, int64_t n);
    /* y (before, n, behind) = x times factor (n, n), or its transpose, along the middle index; y is not x. */
    void (*multiply_mode)(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, bool transposed,
                          const void *x, void *y);
    /* basis (n, n) by rows: the eigenvectors of the average, the largest eigenvalue first. In double, as turn_basis. False,
     * leaving basis as it was, where there are none. scratch: basis_scratch bytes. */
    bool (*eigenbasis)(abar_device *dev, int64_t n, const void *average, void *basis, void *scratch);
    /* A step of orthogonal iteration: the rows of basis * average, made orthonormal one after the other (Q of its QR). order
     * (n), NULL: they stay in their order: row i of the new basis comes of row order[i], whose quotient is the i-th largest.
     * False, leaving both as they were, where the new basis is not finite. */
    bool (*turn_basis)(abar_device *dev, int64_t n, const void *average, void *basis, int64_t *order, void *scratch);
    size_t (*basis_scratch)(abar_device *dev, int64_t n);
} abar__stats_ops;

#endif
