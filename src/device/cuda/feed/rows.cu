/* Staged images of three channels to a net's input in one pass: the table of normalised bytes, erasing, mixing, layout and
 * precision. The arithmetic is device/finish_row.h's, so float32 values are the host's to the bit.
 *
 * A value needs its own byte, its partner's, and the boxes of both rows. A thread makes V neighbouring pixels with all their
 * channels: 8 where the images and the output permit loads of 8 and stores of 16 bytes, else 1. */
#include "device/cuda/core/philox.h"
#include "device/cuda/feed/feed.h"

extern "C" {
#include "device/finish_row.h"
}

#define CHANNELS 3
#define THREADS 256

/* V pixels of one channel. */
template <int V> struct pixels {
    uint8_t v[V];
};

template <int V> __device__ static inline pixels<V> load_pixels(const uint8_t *from)
{
    pixels<V> p;
    if constexpr (V == 8) {
        const uint2 words = __ldg((const uint2 *)from);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p.v[i] = (uint8_t)(words.x >> (8 * i));
            p.v[4 + i] = (uint8_t)(words.y >> (8 * i));
        }
    } else {
        p.v[0] = __ldg(from);
    }
    return p;
}

/* One row of the batch, as a block sees it. */
typedef struct mixing {
    abar_row row, other; /* other: the partner's */
    bool rows, timm, mixed;
    uint64_t seed;
} mixing;

/* The last draw of noise, which has eight neighbouring values. */
typedef struct noise_draw {
    uint64_t index;
    uint4 u;
    bool made;
} noise_draw;

__device__ static inline float noise_value(const mixing &m, const float *noise, noise_draw &last, int c, int y, int x)
{
    const uint32_t e = abar__noise_element(&m.row, c, y, x), word = abar__noise_word(e);
    const uint64_t index = abar__noise_index(&m.row, e);
    if (!last.made || index != last.index) last = {index, abar__cuda_random(m.seed, ABAR_DRAW_NOISE, m.row.epoch, index), true};
    const uint32_t bits = word == 0 ? last.u.x : word == 1 ? last.u.y : word == 2 ? last.u.z : last.u.w;
    return __ldg(noise + abar__noise_entry(bits, e));
}

/* Channel c of V pixels from (y, x) on. table: of this channel. */
template <int V>
__device__ static inline void finish(const mixing &m, const float *table, const float *noise, int width, int c, int y, int x,
                                     const pixels<V> &own, const pixels<V> &partner, float out[V])
{
    noise_draw last = {};
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (!m.rows) {
            out[i] = table[own.v[i]];
        } else if (!m.timm) {
            out[i] = abar__finish_torchvision(&m.row, &m.other, m.mixed, y, x, table[own.v[i]], table[partner.v[i]]);
        } else if (abar__box_holds(m.row.erase, y, x)) {
            out[i] = noise_value(m, noise, last, c, y, x);
        } else {
            out[i] = table[m.mixed ? abar__mix_bytes(&m.row, y, x, own.v[i], partner.v[i]) : own.v[i]];
        }
        if (++x == width) x = 0, y++;
    }
}

/* n values to consecutive elements, of which the first is on a multiple of 16 bytes. */
template <typename T, int N> __device__ static inline void store_run(T *to, const float *values)
{
    constexpr int P = pack<T>::n;
#pragma unroll
    for (int k = 0; k < N; k += P) {
        pack<T> part;
#pragma unroll
        for (int i = 0; i < P; i++) part.v[i] = values[k + i];
        store_pack(to + k, part);
    }
}

template <typename T, int V>
__device__ static inline void write_pixels(const fill_output &out, int64_t i, int p, int width, const float v[CHANNELS][V])
{
    T *image = (T *)out.data + i * out.stride[0];
    if constexpr (V == 1) {
        const int64_t at = p / width * out.stride[2] + p % width * out.stride[3];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) store(image, at + c * out.stride[1], v[c][0]);
    } else if (out.stride[1] == 1) { /* channels last */
        float mixed[CHANNELS * V];
#pragma unroll
        for (int k = 0; k < CHANNELS * V; k++) mixed[k] = v[k % CHANNELS][k / CHANNELS];
        store_run<T, CHANNELS * V>(image + (int64_t)p * CHANNELS, mixed);
    } else {
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) store_run<T, V>(image + c * out.stride[1] + p, v[c]);
    }
}

__device__ static mixing mixing_of(const char *staged, const source &s, int64_t i)
{
    const staged_head *head = (const staged_head *)staged;
    const abar_row *rows = (const abar_row *)(staged + s.rows_at);
    mixing m = {};
    m.rows = head->rows != 0;
    if (!m.rows) return m;
    m.timm = head->timm != 0;
    m.seed = head->seed;
    m.row = rows[i];
    m.mixed = m.row.partner != i;
    m.other = rows[m.row.partner];
    return m;
}

/* blockIdx.x: the sample; blockIdx.y: THREADS * V pixels of it. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS)
    fill_rows(const __grid_constant__ source s, int64_t first, const __grid_constant__ fill_output out)
{
    __shared__ float table[CHANNELS][256];
    __shared__ mixing m;
    const char *staged = s.staged[s.at->staged - 1];
    const int64_t i = first + blockIdx.x;
    for (int k = threadIdx.x; k < CHANNELS * 256; k += THREADS) table[k / 256][k % 256] = __ldg(s.table + k);
    if (threadIdx.x == 0) m = mixing_of(staged, s, i);
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.y == 0) {
        const int32_t own = ((const int32_t *)(staged + s.labels_at))[i];
        write_target(out, blockIdx.x, own, m.rows ? m.row.partner_label : own, m.rows ? m.row.share : 1.0f);
    }
    const int width = (int)s.width, area = (int)(s.height * s.width), p = (int)(blockIdx.y * THREADS + threadIdx.x) * V;
    if (p >= area) return;
    const uint8_t *images = (const uint8_t *)(staged + s.samples_at) + p;
    float values[CHANNELS][V];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const pixels<V> own = load_pixels<V>(images + (i * CHANNELS + c) * area);
        const pixels<V> partner = m.mixed ? load_pixels<V>(images + ((int64_t)m.row.partner * CHANNELS + c) * area) : own;
        finish<V>(m, table[c], s.noise, width, c, p / width, p % width, own, partner, values[c]);
    }
    write_pixels<T, V>(out, blockIdx.x, p, width, values);
}

/* Whether eight pixels at a time keep to the alignment of loads and stores. */
static bool fits_eight(const source *s, const fill_output *out)
{
    const int64_t area = s->height * s->width, element = (int64_t)abar_dtype_size(out->dtype);
    const bool channels_last = out->stride[1] == 1 && out->stride[3] == CHANNELS && out->stride[2] == CHANNELS * s->width;
    const bool planes = out->stride[3] == 1 && out->stride[2] == s->width && out->stride[1] * element % 16 == 0;
    return area % 8 == 0 && (channels_last || planes) && out->stride[0] * element % 16 == 0 && (uintptr_t)out->data % 16 == 0;
}

template <typename T, int V>
static void launch(abar_device *dev, const source *s, int64_t first, int64_t batch, const fill_output *out)
{
    const int64_t blocks = abar__cuda_blocks(s->height * s->width, THREADS * V);
    abar__cuda_launch(dev, fill_rows<T, V>, dim3((unsigned)batch, (unsigned)blocks), dim3(THREADS), 0, *s, first, *out);
}

void abar__cuda_fill_rows(abar_device *dev, const source *s, int64_t first, int64_t batch, const fill_output *out)
{
    const bool narrow = out->dtype == ABAR_BF16;
    if (fits_eight(s, out))
        narrow ? launch<bf16, 8>(dev, s, first, batch, out) : launch<float, 8>(dev, s, first, batch, out);
    else
        narrow ? launch<bf16, 1>(dev, s, first, batch, out) : launch<float, 1>(dev, s, first, batch, out);
}
