/* Augmentation of CIFAR's recipe, as torchvision's RandomCrop(padding) and RandomHorizontalFlip do it, drawn as integers
 * and done on bytes; and the table that normalises bytes. */
#include "data/data_impl.h"

#include "base/rng.h"

#include <string.h>

abar__augmentation abar__augment_draw(uint64_t seed, int64_t epoch, int64_t sample, int64_t pad, bool flip)
{
    abar__draw d = abar__random(seed, ABAR_DRAW_AUGMENT, (uint32_t)epoch, (uint64_t)sample);
    uint32_t places = 2 * (uint32_t)pad + 1;
    return (abar__augmentation){.dx = (int32_t)(abar__below(d.u[0], places) - (uint32_t)pad),
                                .dy = (int32_t)(abar__below(d.u[1], places) - (uint32_t)pad),
                                .flip = flip && d.u[2] >> 31};
}

static void copy_mirrored(uint8_t *restrict out, const uint8_t *restrict in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = in[n - 1 - i];
}

void abar__augment_apply(abar__augmentation a, int64_t channels, int64_t height, int64_t width, const uint8_t *in, uint8_t *out)
{
    /* out[y][x] = in[y + dy][x + dx], mirrored after that; columns from..to of out lie inside the image */
    int64_t from = a.dx < 0 ? -a.dx : 0, to = a.dx > 0 ? width - a.dx : width;
    if (from >= to || a.dy <= -height || a.dy >= height) {
        memset(out, 0, (size_t)(channels * height * width));
        return;
    }
    int64_t left = a.flip ? width - to : from, n = to - from;
    for (int64_t c = 0; c < channels; c++, in += height * width)
        for (int64_t y = 0; y < height; y++, out += width) {
            int64_t row = y + a.dy;
            if (row < 0 || row >= height) {
                memset(out, 0, (size_t)width);
                continue;
            }
            const uint8_t *from_row = in + row * width + from + a.dx;
            memset(out, 0, (size_t)left);
            if (a.flip)
                copy_mirrored(out + left, from_row, n);
            else
                memcpy(out + left, from_row, (size_t)n);
            memset(out + left + n, 0, (size_t)(width - left - n));
        }
}

void abar__normalise_table(const abar_dataset_info *info, int channel, double out[256])
{
    int i = channel < 2 ? channel : 2;
    for (int v = 0; v < 256; v++) out[v] = (v / 255.0 - info->mean[i]) / info->std[i];
}

/* rows of n values each; in and out both have them stride apart */
static void look_up_f32(const double table[256], const uint8_t *restrict in, float *restrict out, int64_t rows, int64_t stride,
                        int64_t n)
{
    float narrow[256];
    for (int v = 0; v < 256; v++) narrow[v] = (float)table[v];
    for (int64_t r = 0; r < rows; r++, in += stride, out += stride)
        for (int64_t i = 0; i < n; i++) out[i] = narrow[(size_t)in[i]]; /* with an int index gcc takes twice as long */
}

static void look_up_f64(const double table[256], const uint8_t *restrict in, double *restrict out, int64_t rows, int64_t stride,
                        int64_t n)
{
    for (int64_t r = 0; r < rows; r++, in += stride, out += stride)
        for (int64_t i = 0; i < n; i++) out[i] = table[in[i]];
}

abar_status abar_batch_normalise(abar_context *ctx, const abar_dataset_info *info, const abar_batch *batch, int64_t rows,
                                 const abar_tensor *input)
{
    abar_batch known;
    ABAR_TRY(abar__struct_read(ctx, "abar_batch", batch, &known, sizeof known));
    const uint8_t *images = known.images;
    int64_t channels = info->channels, plane = info->height * info->width;
    const int64_t *dim = input->dim;
    bool fits = (input->ndim == 2 && dim[1] == channels * plane) ||
                (input->ndim == 4 && dim[1] == channels && dim[2] == info->height && dim[3] == info->width);
    if (!fits || rows < 1 || dim[0] != rows)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "normalise: the input is not %lld images of %lld x %lld x %lld, give it that shape", (long long)rows,
                          (long long)channels, (long long)info->height, (long long)info->width);
    if ((input->dtype != ABAR_F32 && input->dtype != ABAR_F64) || !abar_tensor_is_dense(input))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "normalise: the input is not a dense F32 or F64 tensor, copy to it from one");
    for (int64_t c = 0; c < channels; c++) {
        double table[256];
        abar__normalise_table(info, (int)c, table);
        if (input->dtype == ABAR_F32)
            look_up_f32(table, images + c * plane, (float *)input->data + c * plane, rows, channels * plane, plane);
        else
            look_up_f64(table, images + c * plane, (double *)input->data + c * plane, rows, channels * plane, plane);
    }
    return ABAR_OK;
}
