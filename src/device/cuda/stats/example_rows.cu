/* Rows of single examples for the natural gradient (device/natural.h), one number a thread: networks that can have them are
 * small. Columns are in PyTorch's order. */
#include "device/cuda/stats/stats.h"

enum { THREADS = 256, RUN = 32 }; /* rows that are added up in float at a time */

/* Strides in elements; rows of an example are at (r / across, r % across). */
typedef struct side {
    const void *data;
    abar_dtype dtype;
    int64_t example, down, right, channel; /* from one to the next */
} side;

typedef struct example_rows {
    side input, grad;
    int64_t in, d, out, per_example, across; /* across: output positions of a line */
    int64_t height, width;                   /* of a convolution's input; 0: linear */
    int64_t first_channel, first_output;     /* of the group */
    int kernel[2], stride[2], pad[2], dilation[2];
    float scale;
} example_rows;

/* Element k of row r of example n; the 1 of the bias behind the others. */
__device__ static float input_at(const example_rows &e, int64_t n, int64_t r, int64_t k)
{
    if (k == e.in) return 1.0f;
    const side &s = e.input;
    if (e.height == 0) return (float)load_any(s.data, s.dtype, n * s.example + r * s.right + k * s.channel);
    const int64_t taps = e.kernel[0] * e.kernel[1], c = k / taps, i = k / e.kernel[1] % e.kernel[0], j = k % e.kernel[1];
    const int64_t y = r / e.across * e.stride[0] - e.pad[0] + i * e.dilation[0];
    const int64_t x = r % e.across * e.stride[1] - e.pad[1] + j * e.dilation[1];
    if (y < 0 || y >= e.height || x < 0 || x >= e.width) return 0.0f;
    return (float)load_any(s.data, s.dtype, n * s.example + (e.first_channel + c) * s.channel + y * s.down + x * s.right);
}

__device__ static float grad_at(const example_rows &e, int64_t n, int64_t r, int64_t o)
{
    const side &s = e.grad;
    const int64_t place = e.height == 0 ? r * s.right : r / e.across * s.down + r % e.across * s.right;
    return e.scale * (float)load_any(s.data, s.dtype, n * s.example + (e.first_output + o) * s.channel + place);
}

/* Block (b, n): the two vectors of example n. */
static __global__ void __launch_bounds__(THREADS) split_rows(const __grid_constant__ example_rows e, float *a, float *p)
{
    const int64_t n = blockIdx.y;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < e.d + e.out; i += (int64_t)gridDim.x * THREADS) {
        if (i < e.d)
            a[n * e.d + i] = input_at(e, n, 0, i);
        else
            p[n * e.out + i - e.d] = grad_at(e, n, 0, i - e.d);
    }
}

/* Block (b, n): elements of the sum over the rows of example n of p aT, (out, d). */
static __global__ void __launch_bounds__(THREADS) sum_rows(const __grid_constant__ example_rows e, float *a)
{
    const int64_t n = blockIdx.y, all = e.out * e.d;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += (int64_t)gridDim.x * THREADS) {
        const int64_t o = i / e.d, k = i % e.d;
        double sum = 0.0;
        for (int64_t first = 0; first < e.per_example; first += RUN) {
            const int64_t end = first + RUN < e.per_example ? first + RUN : e.per_example;
            float part = 0.0f;
            for (int64_t r = first; r < end; r++) part += grad_at(e, n, r, o) * input_at(e, n, r, k);
            sum += (double)part;
        }
        a[n * all + i] = (float)sum;
    }
}

static side side_of(const abar_tensor *tensor, bool convolution)
{
    const abar_tensor t = abar__cuda_strided(tensor);
    side s = {t.data, t.dtype, t.stride[0], 0, 0, t.stride[1]};
    if (convolution) {
        s.down = t.stride[2];
        s.right = t.stride[3];
    } else if (t.ndim == 3) {
        s.right = t.stride[1];
        s.channel = t.stride[2];
    }
    return s;
}

extern "C" void abar__cuda_example_rows(abar_device *dev, const abar__rows *r, void *a, void *p, void *scratch)
{
    (void)scratch;
    const int64_t d = abar__rows_d(r), taps = r->window.kernel[0] * r->window.kernel[1];
    example_rows e = {};
    e.input = side_of(&r->input, r->convolution);
    e.grad = side_of(&r->output_grad, r->convolution);
    e.in = r->in;
    e.d = d;
    e.out = r->out;
    e.per_example = r->per_example;
    e.across = 1;
    e.scale = (float)r->grad_scale;
    if (r->convolution) {
        e.height = r->input.dim[2];
        e.width = r->input.dim[3];
        e.across = r->output_grad.dim[3];
        e.first_channel = r->group * (r->in / taps);
        e.first_output = r->group * r->out;
        for (int i = 0; i < 2; i++) {
            e.kernel[i] = (int)r->window.kernel[i];
            e.stride[i] = (int)r->window.stride[i];
            e.pad[i] = (int)r->window.pad[i];
            e.dilation[i] = (int)r->window.dilation[i];
        }
    }
    const int64_t numbers = p ? d + r->out : d * r->out;
    const dim3 grid((unsigned)abar__cuda_blocks(numbers, THREADS), (unsigned)r->examples);
    if (p)
        abar__cuda_launch(dev, split_rows, grid, dim3(THREADS), 0, e, (float *)a, (float *)p);
    else
        abar__cuda_launch(dev, sum_rows, grid, dim3(THREADS), 0, e, (float *)a);
}

extern "C" size_t abar__cuda_example_rows_scratch(abar_device *dev, const abar__rows *r)
{
    (void)dev, (void)r;
    return 0;
}
