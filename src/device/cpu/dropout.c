/* Dropout of elements or of whole samples: zero with probability p, else scaled by 1 / (1 - p). The mask depends only on the
 * global sample and the element's position in it. So backward draws it again instead of reading a copy, and it is equal in
 * every layout: element g of all samples, row-major, uses word g % 4 of draw g / 4. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/dropout_kernels.h"

#include <math.h>
#include <string.h>

#define RUN 4096 /* elements of a dense value per run */

/* The value as runs of elements with consecutive numbers: pieces of a dense value, or one channel of one image. */
typedef struct dropout {
    const abar__dropout_kernels *kernels;
    abar__planes planes;
    int64_t runs, elements; /* elements: per sample */
    int parts;
} dropout;

static abar_status create(abar__op *op)
{
    static const abar__dropout_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__dropout);
    ABAR_TRY(abar__op_priv(op, sizeof(dropout)));
    dropout *d = op->priv;
    d->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    d->planes = abar__planes_of(&op->desc.in[0], op->in_layout[0]);
    d->elements = d->planes.channels * d->planes.pixels;
    int64_t images = d->planes.images;
    d->runs = d->planes.lanes == 1 ? (images * d->elements + RUN - 1) / RUN : images * d->planes.channels;
    d->parts = abar__parts(op->dev, abar__planes_floats(&d->planes), d->runs);
    op->out_layout = op->in_layout[0];
    return ABAR_OK;
}

abar__dropout_key abar__dropout_key_of(double drop, uint32_t number, uint64_t seed, uint32_t step)
{
    double least = ceil(drop * 0x1p32);
    abar__dropout_key key = {.seed = seed, .when = step * 256u + number};
    if (least >= 0x1p32) return key; /* all elements are dropped: every factor is the zero scale */
    key.least = (uint32_t)least;
    key.scale = (float)(1 / (1 - drop));
    return key;
}

/* A run in memory: its first float, its length, and the floats between its elements. */
static int64_t run_at(const dropout *d, int64_t run, int64_t *length, int64_t *stride, int64_t *number)
{
    const abar__planes *p = &d->planes;
    if (p->lanes == 1) {
        int64_t left = p->images * d->elements - run * RUN;
        *length = left < RUN ? left : RUN;
        *stride = 1;
        *number = run * RUN;
        return run * RUN;
    }
    int64_t n = run / p->channels, c = run % p->channels, lanes = p->lanes;
    *length = p->pixels;
    *stride = lanes;
    *number = n * d->elements + c * p->pixels;
    if (p->layout == ABAR_LAYOUT_N16) return (n / 16 * p->groups + c) * p->pixels * 16 + n % 16;
    return (n * p->groups + c / lanes) * p->pixels * lanes + c % lanes;
}

static void mask_run(const dropout *d, const abar__dropout_key *key, int64_t first, const float *restrict x, float *restrict y,
                     int64_t run)
{
    int64_t length, stride, number, at = run_at(d, run, &length, &stride, &number);
    for (int64_t i = 0; i < length;) {
        uint64_t g = (uint64_t)(first + number + i);
        float factor[ABAR_DROPOUT_FACTORS];
        d->kernels->factors(key, g / 4, factor);
        int64_t skip = (int64_t)(g % 4), n = ABAR_DROPOUT_FACTORS - skip;
        if (n > length - i) n = length - i;
        const float *from = x + at + i * stride;
        float *to = y + at + i * stride;
        if (stride == 1) /* a separate loop that the compiler can vectorise */
            for (int64_t k = 0; k < n; k++) to[k] = from[k] * factor[skip + k];
        else
            for (int64_t k = 0; k < n; k++) to[k * stride] = from[k * stride] * factor[skip + k];
        i += n;
    }
}

/* Stochastic depth: sample g is dropped by word g % 4 of draw g / 4. */
static void mask_samples(const dropout *d, const abar__dropout_key *key, int64_t first, const float *x, float *y)
{
    const int64_t floats = abar__planes_floats(&d->planes) / d->planes.outer; /* of a sample, or of sixteen in the lanes */
    const int64_t together = d->planes.layout == ABAR_LAYOUT_N16 ? 16 : 1;
#pragma omp parallel for num_threads(d->parts) schedule(static) if (d->parts > 1)
    for (int64_t o = 0; o < d->planes.outer; o++) {
        const uint64_t g = (uint64_t)(first + o * together);
        float drawn[ABAR_DROPOUT_FACTORS];
        const float *factor = drawn + g % 4;
        d->kernels->factors(key, g / 4, drawn);
        for (int64_t i = o * floats; i < (o + 1) * floats; i += together)
            for (int64_t l = 0; l < together; l++) y[i + l] = x[i + l] * factor[l];
    }
}

static void mask(const abar__op *op, const abar__run *run, const float *x, float *y)
{
    const dropout *d = op->priv;
    size_t bytes = (size_t)abar__planes_floats(&d->planes) * sizeof *y;
    if (!run->training) {
        memcpy(y, x, bytes);
        return;
    }
    abar__dropout_key key = abar__dropout_key_of(op->desc.drop, op->desc.number, run->seed, run->step);
    if (op->desc.per_sample) {
        mask_samples(d, &key, run->sample0, x, y);
        return;
    }
    if (abar__planes_padded(&d->planes)) memset(y, 0, bytes); /* the runs do not include padding lanes */
#pragma omp parallel for num_threads(d->parts) schedule(static) if (d->parts > 1)
    for (int64_t r = 0; r < d->runs; r++) mask_run(d, &key, run->sample0 * d->elements, x, y, r);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    mask(op, a->run, a->x[0], a->y);
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) mask(op, a->run, a->dy, a->dx[0]);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_dropout = {"cpu-dropout", ABAR_OP_DROPOUT, create, forward, backward, NULL};
