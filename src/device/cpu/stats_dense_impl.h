/* What the files of the dense statistics share: one side of a map, input or output gradient, as rows to be multiplied. */
#ifndef ABAR_STATS_DENSE_IMPL_H
#define ABAR_STATS_DENSE_IMPL_H

#include "device/cpu/isa/stats_matrix_kernels.h"
#include "device/cpu/isa/stats_product_kernels.h"
#include "device/device_impl.h"

/* Inputs are seen through the layer's window, output gradients one pixel at a time: through a unit window. Without a tensor
 * (t NULL, extents 0) a field still tells how much scratch its map needs. */
typedef struct abar__field {
    const abar_tensor *t;
    abar_window window;
    bool convolution, bias;
    double scale;                                 /* rows are scale * t, but for the bias's 1 */
    int64_t examples, per_example;                /* N, R */
    int64_t channel, channels;                    /* of a convolution: the first of this map, and how many */
    int64_t height, width, out_height, out_width; /* of a convolution */
    int64_t in, d;                                /* length of a row, without and with the bias */
} abar__field;

typedef struct abar__range {
    int64_t begin, end;
} abar__range;

static inline int64_t abar__min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t abar__max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Part me of n things in parts of nearly equal size. */
static inline abar__range abar__share(int64_t n, int64_t parts, int64_t me)
{
    return (abar__range){n * me / parts, n * (me + 1) / parts};
}

/* Rows of a lower triangle of side n, cut at multiples of unit, with about one part in parts of its elements: there are about
 * i * i / 2 before row i. */
abar__range abar__triangle_share(int64_t n, int64_t unit, int64_t parts, int64_t me);

static inline int64_t abar__field_taps(const abar__field *f) { return f->window.kernel[0] * f->window.kernel[1]; }

abar__field abar__input_field(const abar__rows *r);
abar__field abar__grad_field(const abar__rows *r);

/* Element (y, x) of one channel of one image is element offset + y * row + x * column of the tensor. */
typedef struct abar__plane {
    int64_t offset, row, column;
} abar__plane;

abar__plane abar__field_plane(const abar__field *f, int64_t image, int64_t channel);
/* to[i * to_step] = element offset + i * step, i < n. */
void abar__field_read(const abar__field *f, int64_t offset, int64_t step, int64_t n, float *to, int64_t to_step);

/* Rows [rows.begin, rows.end) of all examples' rows, (count, d), times the root of their example's weight (NULL: 1), but not
 * times scale. */
void abar__field_rows(const abar__field *f, const double *weight, abar__range rows, float *to);

const abar__product_kernels *abar__product_pick(const abar_device *dev);
const abar__matrix_kernels *abar__matrix_pick(const abar_device *dev);

/* Sums of outer products, added to the lower triangle of square. Each file knows its scratch. */

/* Panels of rows, copied together where they are not laid out so, multiplied by BLAS. Takes everything. */
void abar__panel_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch);
size_t abar__panel_scratch(const abar__field *f);

/* Products of a convolution's input with its shifts. False, doing nothing, where that does not pay or does not fit. */
bool abar__shift_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch);
size_t abar__shift_scratch(const abar_device *dev, const abar__field *f);

/* Of every example's mean row. */
void abar__mean_product(const abar_device *dev, const abar__field *f, float *square, void *scratch);
size_t abar__mean_scratch(const abar__field *f);
void abar__mean_rows(const abar_device *dev, const abar__field *f, float *rows); /* (examples, d): the mean rows */
void abar__mean_squares(const abar_device *dev, const abar__field *f, double *out);

/* The calling thread's part of square += scale * xT x, x (rows, d) with row pitch, inside a parallel region. Only the first d
 * columns of square's rows, pitch wide, are touched. */
void abar__triangle_add(int64_t d, int64_t rows, const float *x, int64_t x_pitch, float scale, float *square, int64_t pitch);
/* Inside a team of several, OpenBLAS keeps to the calling thread; in a team of one it must be told, in every region. */
void abar__keep_blas_single(void);

#endif
