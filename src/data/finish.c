/* The last stage of a batch on the host: bytes to normalised values, boxes erased, rows mixed (docs/images.md). float32 has the
 * bits of device/finish_row.h, as the GPU; double rounds at the end alone, but mixes the same bytes. */
#include "data/data_impl.h"

#include "base/rng.h"
#include "data/images/draws.h"
#include "device/finish_row.h"

#include <string.h>

void abar__normalise_table(const abar_dataset_info *info, int channel, double out[256])
{
    int i = channel < 2 ? channel : 2;
    for (int v = 0; v < 256; v++) out[v] = (v / 255.0 - info->mean[i]) / info->std[i];
}

abar_batch abar__batch_part(const abar_dataset_info *info, const abar_batch *batch, int64_t first)
{
    abar_batch part = *batch;
    const int64_t image = info->channels * batch->height * batch->width;
    if (part.floats) part.floats += first * image;
    if (part.images) part.images += first * image;
    if (part.rows) part.rows += first;
    part.labels += first;
    part.first += first;
    return part;
}

/* ---- plain rows ----------------------------------------------------------------------------------------------- */

/* rows of n values; both in and out have them stride apart */
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

static void copy_floats(const float *from, const abar_tensor *to, int64_t n)
{
    if (to->dtype == ABAR_F32)
        memcpy(to->data, from, (size_t)n * sizeof *from);
    else
        for (int64_t i = 0; i < n; i++) ((double *)to->data)[i] = from[i];
}

/* ---- rows that are erased or mixed ------------------------------------------------------------------------------ */

/* One channel of one row, and its partner's. */
typedef struct plane {
    const abar_row *row, *other;
    const uint8_t *own, *partner; /* (height, width) */
    bool mixed;
    int32_t channel, height, width;
} plane;

static void finish_f32(const plane *p, const float table[256], float *out)
{
    for (int32_t y = 0, i = 0; y < p->height; y++)
        for (int32_t x = 0; x < p->width; x++, i++)
            out[i] = abar__finish_torchvision(p->row, p->other, p->mixed, y, x, table[(size_t)p->own[i]],
                                              table[(size_t)p->partner[i]]);
}

static void finish_f64(const plane *p, const double table[256], double *out)
{
    for (int32_t y = 0, i = 0; y < p->height; y++)
        for (int32_t x = 0; x < p->width; x++, i++) {
            const double own = abar__box_holds(p->row->erase, y, x) ? 0.0 : table[p->own[i]];
            const double partner = abar__box_holds(p->other->erase, y, x) ? 0.0 : table[p->partner[i]];
            if (!p->mixed)
                out[i] = own;
            else if (p->row->box[2] > 0)
                out[i] = abar__box_holds(p->row->box, y, x) ? partner : own;
            else
                out[i] = own * (double)p->row->share + partner * (double)p->row->rest;
        }
}

static uint8_t mixed_byte(const plane *p, int32_t y, int32_t x, int32_t i)
{
    return p->mixed ? abar__mix_bytes(p->row, y, x, p->own[i], p->partner[i]) : p->own[i];
}

/* Values of the table for a row whose bytes are mixed. */
static void mix_f32(const plane *p, const float table[256], float *out)
{
    for (int32_t y = 0, i = 0; y < p->height; y++)
        for (int32_t x = 0; x < p->width; x++, i++) out[i] = table[(size_t)mixed_byte(p, y, x, i)];
}

static void mix_f64(const plane *p, const double table[256], double *out)
{
    for (int32_t y = 0, i = 0; y < p->height; y++)
        for (int32_t x = 0; x < p->width; x++, i++) out[i] = table[mixed_byte(p, y, x, i)];
}

/* Fills the erased box with noise. One of f32 and f64 is NULL. */
static void add_noise(const plane *p, uint64_t seed, const float noise[ABAR_NOISE_COUNT], float *f32, double *f64)
{
    const abar_row *row = p->row;
    abar__draw draw = {{0}};
    for (int32_t y = row->erase[0]; y < row->erase[0] + row->erase[2]; y++)
        for (int32_t x = row->erase[1]; x < row->erase[1] + row->erase[3]; x++) {
            const uint32_t e = abar__noise_element(row, p->channel, y, x);
            const bool first = e % 8 == 0 || (y == row->erase[0] && x == row->erase[1]);
            if (first) draw = abar__random(seed, ABAR_DRAW_NOISE, row->epoch, abar__noise_index(row, e));
            const float value = noise[abar__noise_entry(draw.u[abar__noise_word(e)], e)];
            if (f32)
                f32[y * p->width + x] = value;
            else
                f64[y * p->width + x] = value;
        }
}

/* What all rows need. */
typedef struct finishing {
    const abar_batch *batch;
    double wide[3][256];
    float narrow[3][256];
    float noise[ABAR_NOISE_COUNT];
} finishing;

static void finish_plane(const finishing *f, const plane *p, float *f32, double *f64)
{
    const int c = p->channel < 2 ? p->channel : 2;
    if (!f->batch->timm) {
        if (f32)
            finish_f32(p, f->narrow[c], f32);
        else
            finish_f64(p, f->wide[c], f64);
        return;
    }
    if (f32)
        mix_f32(p, f->narrow[c], f32);
    else
        mix_f64(p, f->wide[c], f64);
    add_noise(p, f->batch->seed, f->noise, f32, f64);
}

static void finish_rows(const abar_dataset_info *info, const abar_batch *batch, int64_t rows, const abar_tensor *input)
{
    finishing f = {.batch = batch};
    const int64_t channels = info->channels, area = batch->height * batch->width;
    for (int c = 0; c < 3; c++) {
        abar__normalise_table(info, c, f.wide[c]);
        for (int v = 0; v < 256; v++) f.narrow[c][v] = (float)f.wide[c][v];
    }
    if (batch->timm) abar__noise_table(f.noise);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t partner = batch->rows[r].partner - batch->first;
        for (int64_t c = 0; c < channels; c++) {
            const int64_t at = (r * channels + c) * area;
            const plane p = {.row = &batch->rows[r],
                             .other = &batch->rows[partner],
                             .own = batch->images + at,
                             .partner = batch->images + (partner * channels + c) * area,
                             .mixed = partner != r,
                             .channel = (int32_t)c,
                             .height = (int32_t)batch->height,
                             .width = (int32_t)batch->width};
            finish_plane(&f, &p, input->dtype == ABAR_F32 ? (float *)input->data + at : NULL,
                         input->dtype == ABAR_F32 ? NULL : (double *)input->data + at);
        }
    }
}

/* ---- a batch -------------------------------------------------------------------------------------------------- */

static abar_status check_input(abar_context *ctx, const abar_dataset_info *info, const abar_batch *batch, int64_t rows,
                               const abar_tensor *input)
{
    const int64_t channels = info->channels, *dim = input->dim;
    const bool fits = (input->ndim == 2 && dim[1] == channels * batch->height * batch->width) ||
                      (input->ndim == 4 && dim[1] == channels && dim[2] == batch->height && dim[3] == batch->width);
    if (!fits || rows < 1 || dim[0] != rows)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "normalise: the input is not %lld images of %lld x %lld x %lld, give it that shape", (long long)rows,
                          (long long)channels, (long long)batch->height, (long long)batch->width);
    if ((input->dtype != ABAR_F32 && input->dtype != ABAR_F64) || !abar_tensor_is_dense(input))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "normalise: the input is not a dense F32 or F64 tensor, copy to it from one");
    for (int64_t r = 0; batch->rows && r < rows; r++)
        if (batch->rows[r].partner < batch->first || batch->rows[r].partner - batch->first >= rows)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "normalise: row %lld is mixed with row %d of the batch, which is not among the %lld rows, give "
                              "whole groups",
                              (long long)(batch->first + r), batch->rows[r].partner, (long long)rows);
    return ABAR_OK;
}

abar_status abar_batch_normalise(abar_context *ctx, const abar_dataset_info *info, const abar_batch *batch, int64_t rows,
                                 const abar_tensor *input)
{
    abar_batch known;
    ABAR_TRY(abar__struct_read(ctx, "abar_batch", batch, &known, sizeof known));
    if (known.height == 0) { /* made by a caller, or for an earlier library */
        known.height = info->height;
        known.width = info->width;
    }
    ABAR_TRY(check_input(ctx, info, &known, rows, input));
    const int64_t channels = info->channels, area = known.height * known.width;
    if (known.floats) {
        copy_floats(known.floats, input, rows * channels * area);
        return ABAR_OK;
    }
    if (known.rows) {
        finish_rows(info, &known, rows, input);
        return ABAR_OK;
    }
    for (int64_t c = 0; c < channels; c++) {
        double table[256];
        abar__normalise_table(info, (int)c, table);
        if (input->dtype == ABAR_F32)
            look_up_f32(table, known.images + c * area, (float *)input->data + c * area, rows, channels * area, area);
        else
            look_up_f64(table, known.images + c * area, (double *)input->data + c * area, rows, channels * area, area);
    }
    return ABAR_OK;
}
