/* Attention, softmax(q kᵀ / sqrt(d) + bias) v for every head of every sequence or window, and its gradient.
 *
 * The products are computed for a tile of queries and a block of keys at a time. Forward keeps the running maximum and sum
 * of each query (online softmax) and saves only log-sum-exp; backward computes the probabilities again from it:
 *     p = e^(s - log_sum),  ds = p (dp - dy·y),  dq = ds k,  dk = dsᵀ q,  dv = pᵀ dy  (dropout's factors on p and dp).
 * The largest buffers are one tile per thread and a few copies of one head of one sequence. Each thread has its own
 * sequences and calls OpenBLAS on its tiles. Keys and values are transposed first, because OpenBLAS multiplies by a
 * transposed right operand at half the speed. */
#include "device/cpu/isa/attention_kernels.h"
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/dropout_kernels.h"
#include "device/cpu/reorder.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

enum {
    KEYS = 128,         /* of a block */
    TURNED = KEYS + 16, /* floats from row to row of a transposed block: not a power of two, which would use few cache sets */
    QUERIES = 64,       /* of a tile, */
    CAUSAL_QUERIES = 32 /* smaller, as half of the last block is wasted */
};

/* The buffers of a part of the work, in floats (or int32_t). The last ones are for windows, whose tokens are not evenly
 * spaced in memory and are gathered first. */
enum buffer {
    SCORES,   /* (QUERIES, KEYS) */
    SLOPES,   /* the same */
    TURNED_K, /* (blocks, d, TURNED) */
    TURNED_V,
    TOPS, /* (QUERIES); backward: dy·y */
    SUMS,
    FACTORS, /* (KEYS) */
    COLUMN,  /* (L) in whole vectors */
    TOKEN,   /* (L), the number of each token in its sample */
    CODE,    /* (L) */
    REGION,  /* (L) */
    TABLE,   /* bias of the head */
    TABLE_SLOPE,
    QKV, /* (L, 3d) */
    OUT, /* (L, d) */
    QKV_SLOPE,
    OUT_SLOPE,
    BUFFERS
};

typedef struct attention {
    const abar__attention_kernels *kernels;
    const abar__dropout_kernels *dropout;
    const abar__reorder_kernels *reorder;
    int64_t tokens, width, heads, head; /* T, D, the number of heads and the width d of each */
    int64_t length, windows, sequences; /* L: T or side^2; windows of a sample; (sample, window, head) */
    int64_t queries, blocks, entries;   /* entries: of the bias table */
    int64_t at[BUFFERS + 1];
    float scale;
    int parts;
} attention;

/* One head of one sequence or window. */
typedef struct sequence {
    const attention *t;
    const abar__op_desc *desc;
    float *own; /* the buffers of this part */
    int64_t sample, window, head;
    int64_t in_row, out_row; /* floats from token to token */
    const float *q, *k, *v, *dy;
    float *y, *dq, *dk, *dv, *log_sum;
    const abar__dropout_key *drop; /* NULL: none */
    uint64_t global;               /* number of the sample, for dropout */
} sequence;

static float *own(const sequence *s, enum buffer b) { return s->own + s->t->at[b]; }
static int32_t *own_int(const sequence *s, enum buffer b) { return (int32_t *)(void *)own(s, b); }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t whole(int64_t n) { return (n + 15) / 16 * 16; }

/* ---- creation ------------------------------------------------------------------------------------------------------ */

static void lay_out(attention *t, bool windowed, bool drop)
{
    const int64_t rows = windowed ? t->length : 0, turned = t->blocks * t->head * TURNED;
    const int64_t size[BUFFERS] = {
        [SCORES] = t->queries * KEYS,
        [SLOPES] = t->queries * KEYS,
        [TURNED_K] = turned,
        [TURNED_V] = turned,
        [TOPS] = t->queries,
        [SUMS] = t->queries,
        [FACTORS] = drop ? KEYS : 0,
        [COLUMN] = t->length,
        [TOKEN] = t->length,
        [CODE] = rows,
        [REGION] = rows,
        [TABLE] = t->entries,
        [TABLE_SLOPE] = t->entries,
        [QKV] = rows * 3 * t->head,
        [OUT] = rows * t->head,
        [QKV_SLOPE] = rows * 3 * t->head,
        [OUT_SLOPE] = rows * t->head,
    };
    for (int b = 0; b < BUFFERS; b++) t->at[b + 1] = t->at[b] + whole(size[b]);
}

static abar_status create(abar__op *op)
{
    static const abar__attention_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__attention);
    static const abar__dropout_kernels *const dropout_by_isa[] = ABAR_ISA_TABLE(abar__dropout);
    static const abar__reorder_kernels *const reorder_by_isa[] = ABAR_ISA_TABLE(abar__reorder);
    const abar__op_desc *d = &op->desc;
    const int64_t samples = d->out.dim[0], reach = 2 * d->side - 1;
    ABAR_TRY(abar__op_priv(op, sizeof(attention)));
    attention *t = op->priv;
    t->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    t->dropout = dropout_by_isa[abar__isa_best(op->dev->ctx)];
    t->reorder = reorder_by_isa[abar__isa_best(op->dev->ctx)];
    t->tokens = d->out.dim[1];
    t->width = d->out.dim[2];
    t->heads = d->heads;
    t->head = t->width / t->heads;
    t->length = d->side ? d->side * d->side : t->tokens;
    t->windows = t->tokens / t->length;
    t->sequences = samples * t->windows * t->heads;
    t->queries = d->causal ? CAUSAL_QUERIES : QUERIES;
    t->blocks = (t->length + KEYS - 1) / KEYS;
    t->entries = d->side ? reach * reach : 0;
    t->scale = (float)(1 / sqrt((double)t->head));
    t->parts = abar__parts(op->dev, t->sequences * t->length * t->length, t->sequences);
    lay_out(t, d->side > 0, d->drop > 0);
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X | ABAR_NEEDS_Y;
    op->saved_bytes = (size_t)(t->sequences * t->length) * sizeof(float); /* log-sum-exp of every query */
    op->scratch_bytes = (size_t)t->parts * ((size_t)t->at[BUFFERS] * sizeof(float) +
                                            (size_t)(t->heads * t->entries) * sizeof(double)); /* gradient of the bias table */
    return ABAR_OK;
}

/* ---- a sequence and its window -------------------------------------------------------------------------------------- */

/* The region of a position in the rolled grid along one axis: positions of different regions were not adjacent before the
 * roll. */
static int32_t region_of(int64_t place, int64_t extent, int64_t side, int64_t shift)
{
    if (shift == 0) return 0;
    return place < extent - side ? 0 : place < extent - shift ? 1 : 2;
}

/* The tokens of a window, the bias of each pair, and which pairs see each other. */
static void place_window(const sequence *s)
{
    const abar__op_desc *d = s->desc;
    const int64_t side = d->side, across = d->grid[1] / side;
    int32_t *token = own_int(s, TOKEN), *code = own_int(s, CODE), *region = own_int(s, REGION);
    for (int64_t i = 0; i < s->t->length; i++) {
        int64_t y = s->window / across * side + i / side, x = s->window % across * side + i % side; /* rolled */
        token[i] = (int32_t)((y + d->shift) % d->grid[0] * d->grid[1] + (x + d->shift) % d->grid[1]);
        code[i] = (int32_t)(i / side * (2 * side - 1) + i % side);
        region[i] = 3 * region_of(y, d->grid[0], side, d->shift) + region_of(x, d->grid[1], side, d->shift);
    }
}

/* Copies the tokens of a window, token[i] from or to row i of a dense buffer; a token has so many parts (q, k and v, or
 * one). */
static const float *gather(const sequence *s, const float *from, int64_t row, int parts, float *to)
{
    const int32_t *token = own_int(s, TOKEN);
    const int64_t d = s->t->head;
    for (int64_t i = 0; i < s->t->length; i++)
        for (int p = 0; p < parts; p++, to += d) memcpy(to, from + token[i] * row + p * s->t->width, (size_t)d * sizeof *to);
    return to - s->t->length * parts * d;
}

static void scatter(const sequence *s, const float *from, float *to, int64_t row, int parts)
{
    const int32_t *token = own_int(s, TOKEN);
    const int64_t d = s->t->head;
    for (int64_t i = 0; i < s->t->length; i++)
        for (int p = 0; p < parts; p++, from += d) memcpy(to + token[i] * row + p * s->t->width, from, (size_t)d * sizeof *to);
}

static void copy_table(const sequence *s, const float *table)
{
    float *to = own(s, TABLE);
    for (int64_t e = 0; e < s->t->entries; e++) to[e] = table[e * s->t->heads + s->head];
}

static sequence sequence_of(const abar__op *op, const abar__op_args *a, int part, int64_t number)
{
    const attention *t = op->priv;
    sequence s = {.t = t, .desc = &op->desc, .own = (float *)a->scratch + part * t->at[BUFFERS]};
    s.sample = number / t->heads / t->windows;
    s.window = number / t->heads % t->windows;
    s.head = number % t->heads;
    s.in_row = 3 * t->width;
    s.out_row = t->width;
    s.global = (uint64_t)(a->run->sample0 + s.sample);
    if (a->saved) s.log_sum = (float *)a->saved + number * t->length;
    const int64_t in = s.sample * t->tokens * s.in_row + s.head * t->head;
    const int64_t out = s.sample * t->tokens * s.out_row + s.head * t->head;
    s.q = (const float *)a->x[0] + in;
    s.y = (float *)a->y + out;
    s.dy = a->dy ? (const float *)a->dy + out : NULL;
    s.dq = a->dx[0] ? (float *)a->dx[0] + in : NULL;
    return s;
}

/* Prepares the buffers of a sequence before its tiles, and sets its pointers to the tokens. */
static void begin(sequence *s, const abar__op_args *a, bool backward)
{
    const attention *t = s->t;
    int64_t apart = t->width; /* from q to k to v */
    for (int64_t i = 0; i < t->length; i++) own_int(s, TOKEN)[i] = (int32_t)i;
    if (s->desc->side) {
        place_window(s);
        copy_table(s, a->param[0]);
        s->q = gather(s, s->q, s->in_row, 3, own(s, QKV));
        if (backward) {
            s->dy = gather(s, s->dy, s->out_row, 1, own(s, OUT_SLOPE));
            gather(s, s->y, s->out_row, 1, own(s, OUT));
            memset(own(s, TABLE_SLOPE), 0, (size_t)t->entries * sizeof(float));
        }
        s->y = own(s, OUT);
        s->dq = own(s, QKV_SLOPE);
        s->in_row = 3 * t->head;
        s->out_row = apart = t->head;
    }
    s->k = s->q + apart;
    s->v = s->k + apart;
    if (backward && s->dq) {
        s->dk = s->dq + apart;
        s->dv = s->dk + apart;
    }
    if (backward) memset(own(s, COLUMN), 0, (size_t)whole(t->length) * sizeof(float));
}

/* (L, d) -> blocks of (d, KEYS), so that a block can be the right operand of a product. */
static void turn(const sequence *s, const float *from, float *to)
{
    const attention *t = s->t;
    for (int64_t k0 = 0; k0 < t->length; k0 += KEYS, to += t->head * TURNED) {
        int64_t n = least(KEYS, t->length - k0);
        t->reorder->transpose(from + k0 * s->in_row, s->in_row, to, TURNED, n, t->head, n);
    }
}

/* A tile of queries [q0, q0 + rows) and a block of keys [k0, k0 + n); width: n rounded up to whole vectors. */
typedef struct meeting {
    int64_t q0, rows, k0, n, width;
} meeting;

/* The end of the keys that a tile of queries sees. */
static int64_t keys_end(const sequence *s, const meeting *m) { return s->desc->causal ? m->q0 + m->rows : s->t->length; }

static void set_block(const sequence *s, meeting *m, int64_t k0)
{
    m->k0 = k0;
    m->n = least(KEYS, keys_end(s, m) - k0);
    m->width = whole(m->n);
}

/* The number of keys of the block that row r sees. */
static int64_t seen(const sequence *s, const meeting *m, int64_t r)
{
    return s->desc->causal ? least(m->n, m->q0 + r + 1 - m->k0) : m->n;
}

/* to (rows, KEYS) = alpha from (rows, d) turned (d, n) */
static void meet(const sequence *s, const meeting *m, const float *from, int64_t row, float alpha, const float *turned,
                 float *to)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m->rows, (blasint)m->n, (blasint)s->t->head, alpha,
                from + m->q0 * row, (blasint)row, turned + m->k0 / KEYS * s->t->head * TURNED, TURNED, 0.0f, to, KEYS);
}

static abar__window_row window_row(const sequence *s, const meeting *m, int64_t r)
{
    const int32_t *code = own_int(s, CODE), *region = own_int(s, REGION);
    const int64_t side = s->desc->side, i = m->q0 + r;
    return (abar__window_row){.table = own(s, TABLE),
                              .code = code + m->k0,
                              .region = region + m->k0,
                              .here = code[i] + (int32_t)(2 * side * (side - 1)), /* so that it is never negative */
                              .mine = region[i]};
}

/* Dropout's factors for the first n keys of row r, in whole vectors. Sixty-four tokens are drawn together. */
static const float *draw_row(const sequence *s, const meeting *m, int64_t r, int64_t n)
{
    if (!s->drop) return NULL;
    const attention *t = s->t;
    const int32_t *token = own_int(s, TOKEN);
    const uint64_t query = (s->global * (uint64_t)t->heads + (uint64_t)s->head) * (uint64_t)t->tokens;
    const uint64_t first = (query + (uint64_t)token[m->q0 + r]) * (uint64_t)((t->tokens + 3) / 4);
    float *factor = own(s, FACTORS), drawn[ABAR_DROPOUT_FACTORS] = {0};
    if (!s->desc->side) {
        for (int64_t j = 0; j < n; j += ABAR_DROPOUT_FACTORS)
            t->dropout->factors(s->drop, first + (uint64_t)(m->k0 + j) / 4, factor + j);
        return factor;
    }
    int32_t from = -ABAR_DROPOUT_FACTORS; /* token of drawn[0] */
    for (int64_t j = 0; j < n; j++) {
        int32_t key = token[m->k0 + j];
        if (key < from || key >= from + ABAR_DROPOUT_FACTORS) {
            from = key / 4 * 4;
            t->dropout->factors(s->drop, first + (uint64_t)key / 4, drawn);
        }
        factor[j] = drawn[key - from];
    }
    for (int64_t j = n; j < whole(n); j++) factor[j] = 0.0f;
    return factor;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* Scores to probabilities, not yet divided by their sum; the earlier sums are rescaled to the new maximum. */
static void softmax_rows(const sequence *s, const meeting *m)
{
    const abar__attention_kernels *k = s->t->kernels;
    float *top = own(s, TOPS), *sum = own(s, SUMS);
    for (int64_t r = 0; r < m->rows; r++) {
        float *score = own(s, SCORES) + r * KEYS, before = m->k0 ? top[r] : -INFINITY;
        const int64_t n = seen(s, m, r);
        if (s->desc->side) {
            abar__window_row w = window_row(s, m, r);
            k->window(&w, score, n);
        }
        top[r] = before;
        float more = k->softmax(&top[r], score, n, m->width);
        if (m->k0 && top[r] > before) {
            float fade = expf(before - top[r]);
            sum[r] *= fade;
            k->times(fade, s->y + (m->q0 + r) * s->out_row, s->t->head);
        }
        sum[r] = m->k0 ? sum[r] + more : more;
        const float *factor = draw_row(s, m, r, n);
        if (factor) k->times_each(factor, score, whole(n));
    }
}

static void forward_tile(const sequence *s, meeting *m)
{
    const attention *t = s->t;
    const float *top = own(s, TOPS), *sum = own(s, SUMS);
    for (int64_t k0 = 0; k0 < keys_end(s, m); k0 += KEYS) {
        set_block(s, m, k0);
        meet(s, m, s->q, s->in_row, t->scale, own(s, TURNED_K), own(s, SCORES));
        softmax_rows(s, m);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m->rows, (blasint)t->head, (blasint)m->n, 1.0f,
                    own(s, SCORES), KEYS, s->v + k0 * s->in_row, (blasint)s->in_row, k0 ? 1.0f : 0.0f,
                    s->y + m->q0 * s->out_row, (blasint)s->out_row);
    }
    for (int64_t r = 0; r < m->rows; r++) {
        t->kernels->times(1.0f / sum[r], s->y + (m->q0 + r) * s->out_row, t->head);
        if (s->log_sum) s->log_sum[m->q0 + r] = top[r] + logf(sum[r]);
    }
}

static void forward_sequence(sequence *s, const abar__op_args *a)
{
    float *y = s->y;
    begin(s, a, false);
    turn(s, s->k, own(s, TURNED_K));
    for (int64_t q0 = 0; q0 < s->t->length; q0 += s->t->queries)
        forward_tile(s, &(meeting){.q0 = q0, .rows = least(s->t->queries, s->t->length - q0)});
    if (s->desc->side) scatter(s, s->y, y, s->t->width, 1);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const attention *t = op->priv;
    const abar__dropout_key key = abar__dropout_key_of(op->desc.drop, op->desc.number, a->run->seed, a->run->step);
#pragma omp parallel for num_threads(t->parts) schedule(static)
    for (int part = 0; part < t->parts; part++) {
        abar__blas_single();
        int64_t end = abar__part_begin(t->sequences, t->parts, part + 1);
        for (int64_t i = abar__part_begin(t->sequences, t->parts, part); i < end; i++) {
            sequence s = sequence_of(op, a, part, i);
            if (a->run->training && op->desc.drop > 0) s.drop = &key;
            forward_sequence(&s, a);
        }
    }
    return ABAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

static void slope_rows(const sequence *s, const meeting *m, bool observing)
{
    const abar__attention_kernels *k = s->t->kernels;
    const float *delta = own(s, TOPS);
    for (int64_t r = 0; r < m->rows; r++) {
        float *score = own(s, SCORES) + r * KEYS, *ds = own(s, SLOPES) + r * KEYS;
        const int64_t n = seen(s, m, r);
        const abar__slope_row row = {.log_sum = s->log_sum[m->q0 + r],
                                     .delta = delta[r],
                                     .factor = draw_row(s, m, r, n),
                                     .column = observing ? own(s, COLUMN) + m->k0 : NULL};
        abar__window_row w = {0};
        if (s->desc->side) {
            w = window_row(s, m, r);
            k->window(&w, score, n);
        }
        k->slope(&row, score, ds, n, m->width);
        if (s->desc->side) k->window_slope(&w, ds, own(s, TABLE_SLOPE), n);
    }
}

/* to (n, d) of the block's keys = alpha from (rows, KEYS)ᵀ times (rows, d) of the tile's queries, added up over the tiles */
static void to_keys(const sequence *s, const meeting *m, float alpha, const float *from, const float *with, int64_t row,
                    float *to)
{
    const bool first = m->q0 + m->rows == s->t->length; /* the last tile, which sees all keys, comes first */
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m->n, (blasint)s->t->head, (blasint)m->rows, alpha, from,
                KEYS, with + m->q0 * row, (blasint)row, first ? 0.0f : 1.0f, to + m->k0 * s->in_row, (blasint)s->in_row);
}

static void backward_tile(const sequence *s, meeting *m, bool observing)
{
    const attention *t = s->t;
    float *delta = own(s, TOPS);
    for (int64_t r = 0; r < m->rows; r++) {
        const int64_t at = (m->q0 + r) * s->out_row;
        delta[r] = t->kernels->dot(s->dy + at, s->y + at, t->head);
    }
    for (int64_t k0 = 0; k0 < keys_end(s, m); k0 += KEYS) {
        set_block(s, m, k0);
        meet(s, m, s->q, s->in_row, t->scale, own(s, TURNED_K), own(s, SCORES));
        meet(s, m, s->dy, s->out_row, 1.0f, own(s, TURNED_V), own(s, SLOPES));
        slope_rows(s, m, observing);
        if (!s->dq) continue;
        to_keys(s, m, 1.0f, own(s, SCORES), s->dy, s->out_row, s->dv);
        to_keys(s, m, t->scale, own(s, SLOPES), s->q, s->in_row, s->dk);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m->rows, (blasint)t->head, (blasint)m->n, t->scale,
                    own(s, SLOPES), KEYS, s->k + k0 * s->in_row, (blasint)s->in_row, k0 ? 1.0f : 0.0f,
                    s->dq + m->q0 * s->in_row, (blasint)s->in_row);
    }
}

/* Where a part adds up its gradient of the bias table, (heads, entries). */
static double *part_table(const attention *t, const abar__op_args *a, int part)
{
    double *tables = (double *)(void *)((float *)a->scratch + t->parts * t->at[BUFFERS]);
    return tables + part * t->heads * t->entries;
}

static void backward_sequence(sequence *s, const abar__op_args *a, double *table)
{
    const attention *t = s->t;
    float *dx = s->dq;
    begin(s, a, true);
    turn(s, s->k, own(s, TURNED_K));
    turn(s, s->v, own(s, TURNED_V));
    const bool observing = a->run->observing && a->columns;
    for (int64_t q0 = (t->length - 1) / t->queries * t->queries; q0 >= 0; q0 -= t->queries)
        backward_tile(s, &(meeting){.q0 = q0, .rows = least(t->queries, t->length - q0)}, observing);
    if (s->desc->side && dx) scatter(s, s->dq, dx, 3 * t->width, 3);
    for (int64_t e = 0; e < t->entries; e++) table[s->head * t->entries + e] += (double)own(s, TABLE_SLOPE)[e];
    float *column = observing ? (float *)a->columns + (s->sample * t->heads + s->head) * t->tokens : NULL;
    for (int64_t j = 0; column && j < t->length; j++) column[own_int(s, TOKEN)[j]] = own(s, COLUMN)[j] / (float)t->length;
}

static void join_tables(const attention *t, const abar__op_args *a)
{
    float *d = a->dparam[0]; /* (entries, heads) */
    for (int64_t i = 0; d && i < t->heads * t->entries; i++) {
        float *to = d + i % t->entries * t->heads + i / t->entries;
        double sum = a->accumulate ? (double)*to : 0;
        for (int part = 0; part < t->parts; part++) sum += part_table(t, a, part)[i];
        *to = (float)sum;
    }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const attention *t = op->priv;
    const abar__dropout_key key = abar__dropout_key_of(op->desc.drop, op->desc.number, a->run->seed, a->run->step);
#pragma omp parallel for num_threads(t->parts) schedule(static)
    for (int part = 0; part < t->parts; part++) {
        abar__blas_single();
        double *table = part_table(t, a, part);
        memset(table, 0, (size_t)(t->heads * t->entries) * sizeof *table);
        int64_t end = abar__part_begin(t->sequences, t->parts, part + 1);
        for (int64_t i = abar__part_begin(t->sequences, t->parts, part); i < end; i++) {
            sequence s = sequence_of(op, a, part, i);
            if (a->run->training && op->desc.drop > 0) s.drop = &key;
            backward_sequence(&s, a, table);
        }
    }
    join_tables(t, a);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_attention = {"cpu-attention", ABAR_OP_ATTENTION, create, forward, backward, NULL};
