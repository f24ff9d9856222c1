/* Tensor views: sizes, strides, and the general element-wise copy between dtypes and layouts. */
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

size_t abar_dtype_size(abar_dtype dtype)
{
    switch (dtype) {
    case ABAR_F64:
    case ABAR_I64: return 8;
    case ABAR_F32:
    case ABAR_I32: return 4;
    case ABAR_BF16:
    case ABAR_F16: return 2;
    case ABAR_U8: return 1;
    }
    return 0;
}

const char *abar_dtype_name(abar_dtype dtype)
{
    static const char *const names[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8"};
    return names[dtype];
}

abar_tensor abar_tensor_wrap(abar_device *dev, void *data, abar_dtype dtype, int ndim, const int64_t *dim)
{
    abar_tensor t = {.dev = dev, .data = data, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        stride *= dim[i];
    }
    return t;
}

int64_t abar_tensor_count(const abar_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

static int64_t blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

size_t abar_tensor_bytes(const abar_tensor *t)
{
    size_t element = abar_dtype_size(t->dtype);
    const int64_t *d = t->dim;
    switch (t->layout) {
    case ABAR_LAYOUT_C8: return element * (size_t)(d[0] * blocks(d[1], 8) * d[2] * d[3] * 8);
    case ABAR_LAYOUT_C16: return element * (size_t)(d[0] * blocks(d[1], 16) * d[2] * d[3] * 16);
    case ABAR_LAYOUT_N16: return element * (size_t)(blocks(d[0], 16) * d[1] * d[2] * d[3] * 16);
    case ABAR_LAYOUT_NHWC: return element * (size_t)abar_tensor_count(t);
    case ABAR_LAYOUT_PADDED:
    case ABAR_LAYOUT_STRIDED: break;
    }
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (d[i] == 0) return 0;
        last += (d[i] - 1) * t->stride[i];
    }
    return element * (size_t)(last + 1);
}

bool abar_tensor_is_dense(const abar_tensor *t)
{
    if (t->layout != ABAR_LAYOUT_STRIDED) return false;
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != stride) return false;
        stride *= t->dim[i];
    }
    return true;
}

abar_tensor abar_tensor_wrap_channels_last(abar_device *dev, void *data, abar_dtype dtype, const int64_t dim[4])
{
    abar_tensor t = abar_tensor_wrap(dev, data, dtype, 4, dim);
    t.stride[1] = 1;
    t.stride[3] = dim[1];
    t.stride[2] = dim[1] * dim[3];
    return t;
}

bool abar_tensor_is_channels_last(const abar_tensor *t)
{
    if (t->layout != ABAR_LAYOUT_STRIDED || t->ndim != 4 || abar_tensor_is_dense(t)) return false;
    const abar_tensor like = abar_tensor_wrap_channels_last(t->dev, t->data, t->dtype, t->dim);
    for (int i = 0; i < 4; i++)
        if (t->dim[i] != 1 && t->stride[i] != like.stride[i]) return false;
    return true;
}

abar_window abar_window_unit(void)
{
    return (abar_window){.kernel = {1, 1}, .stride = {1, 1}, .pad = {0, 0}, .dilation = {1, 1}, .groups = 1};
}

int64_t abar_window_out(const abar_window *w, int axis, int64_t in)
{
    int64_t room = in + 2 * w->pad[axis] - w->dilation[axis] * (w->kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / w->stride[axis] + 1;
}

bool abar__same_shape(const abar_tensor *a, const abar_tensor *b)
{
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t abar__tensor_offset(const abar_tensor *t, const int64_t *index)
{
    const int64_t *d = t->dim;
    int64_t block = 0;
    switch (t->layout) {
    case ABAR_LAYOUT_C8: block = 8; break;
    case ABAR_LAYOUT_C16: block = 16; break;
    case ABAR_LAYOUT_N16: return (((index[0] / 16 * d[1] + index[1]) * d[2] + index[2]) * d[3] + index[3]) * 16 + index[0] % 16;
    case ABAR_LAYOUT_NHWC: return ((index[0] * d[2] + index[2]) * d[3] + index[3]) * d[1] + index[1];
    case ABAR_LAYOUT_PADDED:
    case ABAR_LAYOUT_STRIDED: break;
    }
    if (block) {
        int64_t plane = index[0] * blocks(d[1], block) + index[1] / block;
        return ((plane * d[2] + index[2]) * d[3] + index[3]) * block + index[1] % block;
    }
    int64_t offset = 0;
    for (int i = 0; i < t->ndim; i++) offset += index[i] * t->stride[i];
    return offset;
}

float abar__bf16_load(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t abar__bf16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); /* a NaN stays a NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float abar__f16_load(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)mantissa, -24)
                                  : ldexpf((float)(mantissa + 1024), exponent - 25);
    return bits & 0x8000 ? -value : value;
}

uint16_t abar__f16_round(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float size = fabsf(value);
    if (isnan(value)) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return (uint16_t)(sign | (int)lrintf(size * 0x1p24f)); /* subnormal; rounds up into normal */
    int exponent;
    float fraction = frexpf(size, &exponent); /* size = fraction * 2^exponent, fraction in [1/2, 1) */
    long mantissa = lrintf(fraction * 2048.0f);
    return (uint16_t)(sign + (((exponent + 14) << 10) + (int)mantissa - 1024));
}

double abar__tensor_load(const abar_tensor *t, int64_t offset)
{
    /* data in files may be unaligned: go through memcpy */
    const char *p = (const char *)t->data + (size_t)offset * abar_dtype_size(t->dtype);
    union {
        double f64;
        float f32;
        uint16_t u16;
        int64_t i64;
        int32_t i32;
        uint8_t u8;
    } v = {0};
    memcpy(&v, p, abar_dtype_size(t->dtype));
    switch (t->dtype) {
    case ABAR_F64: return v.f64;
    case ABAR_F32: return (double)v.f32;
    case ABAR_BF16: return (double)abar__bf16_load(v.u16);
    case ABAR_F16: return (double)abar__f16_load(v.u16);
    case ABAR_I64: return (double)v.i64;
    case ABAR_I32: return (double)v.i32;
    case ABAR_U8: return (double)v.u8;
    }
    return 0.0;
}

void abar__tensor_store(const abar_tensor *t, int64_t offset, double value)
{
    char *p = (char *)t->data + (size_t)offset * abar_dtype_size(t->dtype);
    switch (t->dtype) {
    case ABAR_F64: memcpy(p, &value, 8); break;
    case ABAR_F32: memcpy(p, &(float){(float)value}, 4); break;
    case ABAR_BF16: memcpy(p, &(uint16_t){abar__bf16_round((float)value)}, 2); break;
    case ABAR_F16: memcpy(p, &(uint16_t){abar__f16_round((float)value)}, 2); break;
    case ABAR_I64: memcpy(p, &(int64_t){(int64_t)value}, 8); break;
    case ABAR_I32: memcpy(p, &(int32_t){(int32_t)value}, 4); break;
    case ABAR_U8: *p = (char)(uint8_t)value; break;
    }
}

/* Elements along the last dimension, which are equally far apart in every layout: step elements, from offset on. */
typedef struct line {
    const abar_tensor *t;
    int64_t offset, step;
} line;

static line line_at(const abar_tensor *t, int64_t *index)
{
    line l = {.t = t, .offset = abar__tensor_offset(t, index)};
    if (t->ndim == 0 || t->dim[t->ndim - 1] < 2) return l;
    index[t->ndim - 1] = 1;
    l.step = abar__tensor_offset(t, index) - l.offset;
    index[t->ndim - 1] = 0;
    return l;
}

/* Elements of one dtype of four bytes, whatever they are. */
static void copy_words(const line *to, const line *from, int64_t n)
{
    char *y = (char *)to->t->data + to->offset * 4;
    const char *x = (const char *)from->t->data + from->offset * 4;
    for (int64_t i = 0; i < n; i++) memcpy(y + i * to->step * 4, x + i * from->step * 4, 4);
}

static void widen(const line *to, const line *from, int64_t n)
{
    float *y = (float *)to->t->data + to->offset;
    const uint16_t *x = (const uint16_t *)from->t->data + from->offset;
    for (int64_t i = 0; i < n; i++) y[i * to->step] = abar__bf16_load(x[i * from->step]);
}

static void copy_line(const line *to, const line *from, int64_t n)
{
    const abar_tensor *dst = to->t, *src = from->t;
    const size_t element = abar_dtype_size(src->dtype);
    if (dst->dtype == src->dtype && element == 4) {
        copy_words(to, from, n);
        return;
    }
    if (dst->dtype == ABAR_F32 && src->dtype == ABAR_BF16) {
        widen(to, from, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = to->offset + i * to->step, of = from->offset + i * from->step;
        if (dst->dtype == src->dtype)
            memcpy((char *)dst->data + (size_t)at * element, (const char *)src->data + (size_t)of * element, element);
        else
            abar__tensor_store(dst, at, abar__tensor_load(src, of));
    }
}

void abar__tensor_copy_host(const abar_tensor *dst, const abar_tensor *src)
{
    const int64_t count = abar_tensor_count(src), n = src->ndim > 0 ? src->dim[src->ndim - 1] : 1;
    if (count == 0) return;
    if (dst->dtype == src->dtype && abar_tensor_is_dense(dst) && abar_tensor_is_dense(src)) {
        memcpy(dst->data, src->data, (size_t)count * abar_dtype_size(src->dtype));
        return;
    }
    if (dst->layout != ABAR_LAYOUT_STRIDED) memset(dst->data, 0, abar_tensor_bytes(dst)); /* the padding */
    int64_t index[ABAR_MAX_DIM] = {0};
    for (int64_t done = 0; done < count; done += n) {
        const line to = line_at(dst, index), from = line_at(src, index);
        copy_line(&to, &from, n);
        for (int i = src->ndim - 2; i >= 0 && ++index[i] == src->dim[i]; i--) index[i] = 0;
    }
}
