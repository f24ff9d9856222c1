/* Sequences (N, T, D): made from texts (embedding), with a class token in front, merged by fours (Swin), and reduced to
 * their mean or first token. Sums over samples have one order for any number of threads: a thread has its own tokens or its
 * own columns of the result. */
#include "device/cpu/isa/combine_kernels.h"
#include "device/cpu/cpu_nn.h"

#include <string.h>

typedef struct sequence {
    const abar__combine_kernels *kernels;
    int64_t samples, tokens, width; /* of the output, or of the input where that is longer */
    int parts;
} sequence;

static abar_status create_for(abar__op *op, const abar__shape *shape)
{
    static const abar__combine_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__combine);
    ABAR_TRY(abar__op_priv(op, sizeof(sequence)));
    sequence *s = op->priv;
    s->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    s->samples = shape->dim[0];
    s->tokens = shape->dim[1];
    s->width = shape->dim[2];
    s->parts = abar__parts(op->dev, abar__shape_count(shape), s->samples * s->tokens);
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    return ABAR_OK;
}

static abar_status create_by_output(abar__op *op) { return create_for(op, &op->desc.out); }
static abar_status create_by_input(abar__op *op) { return create_for(op, &op->desc.in[0]); }

static void copy(float *to, const float *from, int64_t n) { memcpy(to, from, (size_t)n * sizeof *to); }

/* Sets `to` to the sum over the samples of token t, or adds it; x (N, T, D). */
static void sum_samples(const sequence *s, const float *x, int64_t t, bool add, float *to)
{
    if (!add) copy(to, x + t * s->width, s->width);
    for (int64_t n = add ? 0 : 1; n < s->samples; n++) s->kernels->add_to(x + (n * s->tokens + t) * s->width, to, s->width);
}

/* ---- embedding: table[token] + positions[t] -------------------------------------------------------------------------- */

static abar_status embedding_create(abar__op *op)
{
    op->backward_needs = ABAR_NEEDS_X; /* the tokens */
    return create_by_output(op);
}

static abar_status check_tokens(const abar__op *op, const int32_t *token)
{
    const sequence *s = op->priv;
    const int64_t vocabulary = op->desc.vocabulary;
    for (int64_t i = 0; i < s->samples * s->tokens; i++)
        if (token[i] < 0 || token[i] >= vocabulary)
            return abar__fail(op->dev->ctx, ABAR_E_ARGUMENT,
                              "embedding: token %d at place %lld of sample %lld is not among the %lld of the table, give the "
                              "net the vocabulary of the text",
                              (int)token[i], (long long)(i % s->tokens), (long long)(i / s->tokens), (long long)vocabulary);
    return ABAR_OK;
}

static abar_status embedding_forward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const int32_t *token = a->x[0];
    const float *table = a->param[0], *positions = a->param[1];
    float *y = a->y;
    ABAR_TRY(check_tokens(op, token));
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t i = 0; i < s->samples * s->tokens; i++)
        s->kernels->add(table + token[i] * s->width, positions + i % s->tokens * s->width, y + i * s->width, s->width);
    return ABAR_OK;
}

/* The same token may occur in any place, so a part handles some columns of all tokens. */
static void table_gradient(const sequence *s, const abar__op_args *a, int64_t vocabulary, int part)
{
    const int32_t *token = a->x[0];
    const float *dy = a->dy;
    float *dtable = a->dparam[0];
    const int64_t vectors = (s->width + 15) / 16, begin = abar__part_begin(vectors, s->parts, part) * 16;
    int64_t end = abar__part_begin(vectors, s->parts, part + 1) * 16;
    if (end > s->width) end = s->width;
    if (begin >= end) return;
    for (int64_t v = 0; v < vocabulary && !a->accumulate && !a->table_written; v++)
        memset(dtable + v * s->width + begin, 0, (size_t)(end - begin) * sizeof *dtable);
    for (int64_t i = 0; i < s->samples * s->tokens; i++)
        s->kernels->add_to(dy + i * s->width + begin, dtable + token[i] * s->width + begin, end - begin);
}

static abar_status embedding_backward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    float *dpositions = a->dparam[1];
    if (a->dparam[0]) {
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
        for (int part = 0; part < s->parts; part++) table_gradient(s, a, op->desc.vocabulary, part);
    }
    if (!dpositions) return ABAR_OK;
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t t = 0; t < s->tokens; t++) sum_samples(s, a->dy, t, a->accumulate, dpositions + t * s->width);
    const int64_t unused = (op->desc.positions - s->tokens) * s->width;
    if (!a->accumulate) memset(dpositions + s->tokens * s->width, 0, (size_t)unused * sizeof *dpositions);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_embedding = {"cpu-embedding",   ABAR_OP_EMBEDDING,  embedding_create,
                                           embedding_forward, embedding_backward, NULL};

/* ---- class token: [token; x] + positions ------------------------------------------------------------------------------- */

static abar_status class_forward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const float *x = a->x[0], *token = a->param[0], *positions = a->param[1];
    const int64_t rest = (s->tokens - 1) * s->width;
    float *y = a->y;
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t n = 0; n < s->samples; n++) {
        float *to = y + n * (s->width + rest);
        s->kernels->add(token, positions, to, s->width);
        s->kernels->add(x + n * rest, positions + s->width, to + s->width, rest);
    }
    return ABAR_OK;
}

static abar_status class_backward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const float *dy = a->dy;
    float *dx = a->dx[0], *dtoken = a->dparam[0], *dpositions = a->dparam[1];
    const int64_t rest = (s->tokens - 1) * s->width;
    if (dtoken) sum_samples(s, dy, 0, a->accumulate, dtoken);
#pragma omp parallel num_threads(s->parts) if (s->parts > 1)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < s->tokens; t++)
            if (dpositions) sum_samples(s, dy, t, a->accumulate, dpositions + t * s->width);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < s->samples; n++)
            if (dx) copy(dx + n * rest, dy + n * (s->width + rest) + s->width, rest);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_class_token = {"cpu-class-token", ABAR_OP_CLASS_TOKEN, create_by_output,
                                             class_forward,     class_backward,      NULL};

/* ---- patch merge: four neighbours become one token ------------------------------------------------------------------- */

/* Part 2x + y of an output token is the neighbour at row y, column x. merge: copies parts into merged tokens, otherwise
 * back. */
static void move_parts(const abar__op *op, bool merge, float *apart, float *together)
{
    const sequence *s = op->priv;
    const int64_t width = s->width / 4, columns = op->desc.grid[1], out_columns = columns / 2;
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t i = 0; i < s->samples * s->tokens; i++) {
        int64_t row = i / out_columns * 2, column = i % out_columns * 2; /* rows are counted across samples */
        for (int part = 0; part < 4; part++) {
            float *one = apart + ((row + part % 2) * columns + column + part / 2) * width,
                  *all = together + (4 * i + part) * width;
            copy(merge ? all : one, merge ? one : all, width);
        }
    }
}

static abar_status merge_forward(abar__op *op, const abar__op_args *a)
{
    move_parts(op, true, (float *)a->x[0], a->y);
    return ABAR_OK;
}

static abar_status merge_backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) move_parts(op, false, a->dx[0], a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_patch_merge = {"cpu-patch-merge", ABAR_OP_PATCH_MERGE, create_by_output,
                                             merge_forward,     merge_backward,      NULL};

/* ---- reading out: the mean of the tokens, or the first ---------------------------------------------------------------- */

static abar_status mean_forward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const float *x = a->x[0];
    float *y = a->y;
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t n = 0; n < s->samples; n++) {
        const float *from = x + n * s->tokens * s->width;
        float *to = y + n * s->width;
        copy(to, from, s->width);
        for (int64_t t = 1; t < s->tokens; t++) s->kernels->add_to(from + t * s->width, to, s->width);
        for (int64_t i = 0; i < s->width; i++) to[i] /= (float)s->tokens;
    }
    return ABAR_OK;
}

static abar_status mean_backward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const float *dy = a->dy;
    float *dx = a->dx[0];
    if (!dx) return ABAR_OK;
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t n = 0; n < s->samples; n++) {
        float *to = dx + n * s->tokens * s->width;
        for (int64_t i = 0; i < s->width; i++) to[i] = dy[n * s->width + i] / (float)s->tokens;
        for (int64_t t = 1; t < s->tokens; t++) copy(to + t * s->width, to, s->width);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_token_mean = {"cpu-token-mean", ABAR_OP_TOKEN_MEAN, create_by_input,
                                            mean_forward,     mean_backward,      NULL};

static abar_status first_forward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    for (int64_t n = 0; n < s->samples; n++)
        copy((float *)a->y + n * s->width, (const float *)a->x[0] + n * s->tokens * s->width, s->width);
    return ABAR_OK;
}

static abar_status first_backward(abar__op *op, const abar__op_args *a)
{
    const sequence *s = op->priv;
    const int64_t sample = s->tokens * s->width;
    float *dx = a->dx[0];
    if (!dx) return ABAR_OK;
    memset(dx, 0, (size_t)(s->samples * sample) * sizeof *dx);
    for (int64_t n = 0; n < s->samples; n++) copy(dx + n * sample, (const float *)a->dy + n * s->width, s->width);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_token_first = {"cpu-token-first", ABAR_OP_TOKEN_FIRST, create_by_input,
                                             first_forward,     first_backward,      NULL};
