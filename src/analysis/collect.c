/* Collects sums over rows, output gradients and attention probabilities of every map while batches run. */
#include "analysis/collect.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- which maps ------------------------------------------------------------------------------------------------------- */

static bool is_wanted(const abar__collect_config *c, const char *name)
{
    return !c->layers[0] || fnmatch(c->layers, name, 0) == 0;
}

static int64_t groups_of(const abar_layer *layer) { return layer->window.groups > 0 ? layer->window.groups : 1; }

static abar_status no_layer(const abar__collection *c)
{
    const abar_net *net = c->pass->net;
    const int n = abar_net_layer_count(net);
    const char *near = NULL;
    const size_t bytes = (size_t)(n + 1) * sizeof(char *);
    void *memory;
    ABAR_TRY(abar__alloc(c->pass->ctx, bytes, &memory));
    const char **names = memory;
    for (int i = 0; i < n; i++) names[i] = abar_net_layer(net, i)->name;
    near = abar_nearest_name(c->config.layers, names);
    const abar_status status =
        abar__fail(c->pass->ctx, ABAR_E_ARGUMENT, "--layers %s: fits no layer of %s%s%s; they are called %s, %s, ..., %s",
                   c->config.layers, c->pass->setup->train.model, near ? ", did you mean " : "", near ? near : "", names[0],
                   names[n > 1 ? 1 : 0], names[n - 1]);
    abar__free(c->pass->ctx, memory, bytes);
    return status;
}

static abar_status count_maps(abar__collection *c)
{
    const abar_net *net = c->pass->net;
    for (int i = 0; i < abar_net_layer_count(net); i++)
        if (is_wanted(&c->config, abar_net_layer(net, i)->name)) c->capacity += (int)groups_of(abar_net_layer(net, i));
    return c->capacity > 0 ? ABAR_OK : no_layer(c);
}

static int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

/* Tokens that attend to each other: of a window, or all. */
static int64_t sequence_of(const abar_attention *a, const abar_tensor *input)
{
    return a->side ? a->side * a->side : input->dim[1];
}

static void describe(abar__collection *c, int layer_index, int64_t group, abar__map_stats *m)
{
    const abar_layer *layer = abar_net_layer(c->pass->net, layer_index);
    *m = (abar__map_stats){.layer = layer_index,
                           .shape = abar__row_shape_of(layer, &layer->input, &layer->output_grad, group),
                           .homogeneous = c->config.homogeneous && layer->bias.ndim > 0,
                           .layout = layer->attention};
    if (groups_of(layer) > 1)
        snprintf(m->name, sizeof m->name, "%s#%lld", layer->name, (long long)group);
    else
        snprintf(m->name, sizeof m->name, "%s", layer->name);
    c->d_max = greater(c->d_max, m->shape.d + 1);
    c->out_max = greater(c->out_max, m->shape.out);
    c->rows_max = greater(c->rows_max, m->shape.rows);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static int64_t side_of(const abar__map_stats *m) { return m->shape.d + m->homogeneous; }
static size_t fisher_bytes(const abar__collection *c, const abar__map_stats *m)
{
    return (size_t)(c->config.fisher_samples * m->shape.out * m->shape.d) * sizeof(double);
}

/* Layers whose gradients would take more than this are left out of the Fisher matrices. */
static const size_t fisher_most = (size_t)256 << 20;

static bool wants_fisher(const abar__collection *c, const abar__map_stats *m)
{
    return (c->config.wanted & ABAR_COLLECT_FISHER) && fisher_bytes(c, m) <= fisher_most;
}

static bool feeds_attention(const abar__collection *c, const abar__map_stats *m)
{
    return (c->config.wanted & ABAR_COLLECT_ATTENTION) && m->layout.heads > 0;
}

static size_t map_bytes(const abar__collection *c, const abar__map_stats *m)
{
    const unsigned wanted = c->config.wanted;
    const abar_tensor *input = &abar_net_layer(c->pass->net, m->layer)->input;
    size_t bytes = 0;
    if (wanted & ABAR_COLLECT_INPUTS) bytes += abar_moments_bytes(side_of(m));
    if (wanted & ABAR_COLLECT_GRADS) bytes += 2 * abar_moments_bytes(m->shape.out);
    if (wants_fisher(c, m)) bytes += fisher_bytes(c, m);
    if (feeds_attention(c, m))
        bytes += (size_t)(2 * sequence_of(&m->layout, input) * sequence_of(&m->layout, input)) * sizeof(double);
    return bytes;
}

/* The eigenproblem of the largest side comes on top: two squares and LAPACK's workspace. */
static abar_status announce(abar__collection *c)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const double machine = pages > 0 && page > 0 ? (double)pages * (double)page : INFINITY;
    const double side = (double)greater(c->d_max, c->out_max);
    double bytes = 5.0 * side * side * (double)sizeof(double) + (double)(c->host_bytes + c->rows_bytes);
    for (int i = 0; i < c->n; i++) bytes += (double)map_bytes(c, &c->maps[i]);
    if (bytes > 0.8 * machine)
        return abar__fail(
            c->pass->ctx, ABAR_E_MEMORY,
            "analyze: %d maps of side up to %.0f need %.1f GiB and this machine has %.1f, choose fewer by --layers", c->n, side,
            bytes / 0x1p30, machine / 0x1p30);
    abar__log(c->pass->ctx, ABAR_LOG_INFO, "%d maps, rows of up to %lld numbers, %.0f MiB beside the network", c->n,
              (long long)(c->d_max - 1), bytes / 0x1p20);
    int left_out = 0;
    for (int i = 0; i < c->n; i++) left_out += (c->config.wanted & ABAR_COLLECT_FISHER) && !wants_fisher(c, &c->maps[i]);
    if (left_out > 0)
        abar__log(c->pass->ctx, ABAR_LOG_WARNING,
                  "%d of %d layers are too large for their Fisher matrix, lower --fisher-samples to have it", left_out, c->n);
    return ABAR_OK;
}

static abar_status make_map(abar__collection *c, abar__map_stats *m)
{
    abar_context *ctx = c->pass->ctx;
    const unsigned wanted = c->config.wanted;
    void *memory = NULL;
    if (wanted & ABAR_COLLECT_INPUTS) ABAR_TRY(abar_moments_create(ctx, side_of(m), &m->inputs));
    if (wanted & ABAR_COLLECT_GRADS) {
        ABAR_TRY(abar_moments_create(ctx, m->shape.out, &m->grads));
        ABAR_TRY(abar_moments_create(ctx, m->shape.out, &m->grad_means));
    }
    if (wants_fisher(c, m)) ABAR_TRY(abar__alloc(ctx, fisher_bytes(c, m), &memory));
    m->gradients = memory;
    if (!feeds_attention(c, m)) return ABAR_OK;
    const int64_t tokens = sequence_of(&m->layout, &abar_net_layer(c->pass->net, m->layer)->input);
    return abar__attention_create(ctx, tokens, &m->attention);
}

static void free_map(abar__collection *c, abar__map_stats *m)
{
    abar_moments_destroy(m->inputs);
    abar_moments_destroy(m->grads);
    abar_moments_destroy(m->grad_means);
    abar__free(c->pass->ctx, m->gradients, m->gradients ? fisher_bytes(c, m) : 0);
    if (m->attention.sum) abar__attention_free(&m->attention);
    m->inputs = m->grads = m->grad_means = NULL;
    m->gradients = NULL;
    m->fisher_done = 0;
}

static size_t largest_tensor(const abar__collection *c)
{
    size_t most = 0;
    for (int i = 0; i < c->n; i++) {
        const abar_layer *layer = abar_net_layer(c->pass->net, c->maps[i].layer);
        const size_t in = (size_t)abar_tensor_count(&layer->input), out = (size_t)abar_tensor_count(&layer->output_grad);
        most = in > most ? in : most;
        most = out > most ? out : most;
    }
    return most * sizeof(float);
}

static abar_status create(abar__collection *c)
{
    abar_context *ctx = c->pass->ctx;
    void *memory;
    ABAR_TRY(count_maps(c));
    ABAR_TRY(abar__alloc(ctx, (size_t)c->capacity * sizeof *c->maps, &memory));
    c->maps = memory;
    for (int i = 0; i < abar_net_layer_count(c->pass->net); i++) {
        const abar_layer *layer = abar_net_layer(c->pass->net, i);
        for (int64_t g = 0; is_wanted(&c->config, layer->name) && g < groups_of(layer); g++)
            describe(c, i, g, &c->maps[c->n++]);
    }
    c->host_bytes = 2 * largest_tensor(c);
    c->rows_bytes = (size_t)(c->rows_max * (c->d_max + c->out_max)) * sizeof(double);
    ABAR_TRY(announce(c));
    ABAR_TRY(abar__alloc(ctx, c->host_bytes, &memory));
    c->host = memory;
    ABAR_TRY(abar__alloc(ctx, c->rows_bytes, &memory));
    c->rows = memory;
    return abar__collection_reset(c);
}

abar_status abar__collection_create(abar__pass *pass, const abar__collect_config *config, abar__collection *out)
{
    *out = (abar__collection){.pass = pass, .config = *config};
    const abar_status status = create(out);
    if (status < 0) abar__collection_free(out);
    return status;
}

void abar__collection_free(abar__collection *c)
{
    abar_context *ctx = c->pass->ctx;
    for (int i = 0; i < c->n; i++) free_map(c, &c->maps[i]);
    abar__free(ctx, c->maps, c->maps ? (size_t)c->capacity * sizeof *c->maps : 0);
    abar__free(ctx, c->host, c->host ? c->host_bytes : 0);
    abar__free(ctx, c->rows, c->rows ? c->rows_bytes : 0);
    c->maps = NULL;
    c->host = NULL;
    c->rows = NULL;
    c->n = 0;
}

abar_status abar__collection_reset(abar__collection *c)
{
    for (int i = 0; i < c->n; i++) {
        free_map(c, &c->maps[i]);
        ABAR_TRY(make_map(c, &c->maps[i]));
    }
    return ABAR_OK;
}

/* ---- inputs ----------------------------------------------------------------------------------------------------------- */

static abar_status fetch(const abar__collection *c, const abar_tensor *from, float *to)
{
    const abar_tensor host = abar_tensor_wrap(NULL, to, ABAR_F32, from->ndim, from->dim);
    return abar_tensor_copy(c->pass->ctx, &host, from);
}

static abar_status add_rows(abar_moments *m, double *rows, int64_t n)
{
    const abar_tensor t = abar_tensor_wrap(NULL, rows, ABAR_F64, 2, (int64_t[]){n, abar_moments_side(m)});
    return abar_moments_add(m, &t);
}

static abar_status add_inputs(abar__collection *c, abar__map_stats *m, const float *input)
{
    for (int64_t n = 0; n < c->pass->config.batch; n++) {
        abar__input_rows(&m->shape, input + n * m->shape.in_size, m->homogeneous, c->rows);
        ABAR_TRY(add_rows(m->inputs, c->rows, m->shape.rows));
    }
    return ABAR_OK;
}

static abar_status observe_inputs(void *user, int layer_index, const abar_layer *layer, const abar_layer_forward *forward)
{
    abar__collection *c = user;
    bool fetched = false;
    (void)layer;
    for (int i = 0; i < c->n; i++) {
        abar__map_stats *m = &c->maps[i];
        if (m->layer != layer_index) continue;
        if (m->inputs && !fetched) ABAR_TRY(fetch(c, &forward->input, c->host));
        fetched = true;
        if (m->inputs) ABAR_TRY(add_inputs(c, m, c->host));
        if (!m->attention.sum) continue;
        float *bias = c->host + c->host_bytes / (2 * sizeof *c->host);
        if (forward->position_bias.ndim) ABAR_TRY(fetch(c, &forward->position_bias, bias));
        ABAR_TRY(fetch(c, &forward->output, c->host));
        fetched = false;
        const abar__attention_view view = {.qkv = c->host,
                                           .samples = forward->output.dim[0],
                                           .tokens = forward->output.dim[1],
                                           .width = forward->output.dim[2] / 3,
                                           .heads = m->layout.heads,
                                           .grid = {m->layout.grid[0], m->layout.grid[1]},
                                           .side = m->layout.side,
                                           .shift = m->layout.shift,
                                           .causal = forward->causal,
                                           .bias = forward->position_bias.ndim ? bias : NULL};
        ABAR_TRY(abar__attention_add_view(&m->attention, &view));
    }
    return ABAR_OK;
}

/* ---- output gradients ------------------------------------------------------------------------------------------------- */

/* g = sum over rows of p a^T, (out, d) without the homogeneous 1. */
static void keep_gradient(abar__map_stats *m, const double *a, const double *p)
{
    double *g = m->gradients + m->fisher_done++ * m->shape.out * m->shape.d;
    for (int64_t r = 0; r < m->shape.rows; r++)
        for (int64_t k = 0; k < m->shape.out; k++) {
            const double pk = p[r * m->shape.out + k];
            for (int64_t j = 0; pk != 0.0 && j < m->shape.d; j++) g[k * m->shape.d + j] += pk * a[r * m->shape.d + j];
        }
}

static abar_status add_grads(abar__collection *c, abar__map_stats *m, const float *input, const float *grad, double scale)
{
    const abar__row_shape *s = &m->shape;
    double *a = c->rows, *p = a + s->rows * s->d;
    for (int64_t n = 0; n < c->pass->config.batch; n++) {
        abar__output_rows(s, grad + n * s->out_size, scale, p);
        if (m->gradients && m->fisher_done < c->config.fisher_samples) {
            abar__input_rows(s, input + n * s->in_size, false, a);
            keep_gradient(m, a, p);
        }
        if (!m->grads) continue;
        ABAR_TRY(add_rows(m->grads, p, s->rows));
        for (int64_t r = 1; r < s->rows; r++)
            for (int64_t k = 0; k < s->out; k++) p[k] += p[r * s->out + k];
        for (int64_t k = 0; k < s->out; k++) p[k] /= (double)s->rows;
        ABAR_TRY(add_rows(m->grad_means, p, 1));
    }
    return ABAR_OK;
}

static abar_status observe_grads(void *user, int layer_index, const abar_layer *layer)
{
    abar__collection *c = user;
    float *input = c->host, *grad = c->host + c->host_bytes / (2 * sizeof *c->host);
    const double scale = layer->output_grad_scale * (double)c->pass->config.batch;
    bool fetched = false;
    for (int i = 0; i < c->n; i++) {
        abar__map_stats *m = &c->maps[i];
        if (m->layer != layer_index) continue;
        if (!fetched) {
            if (m->gradients) ABAR_TRY(fetch(c, &layer->input, input));
            ABAR_TRY(fetch(c, &layer->output_grad, grad));
        }
        fetched = true;
        ABAR_TRY(add_grads(c, m, input, grad, scale));
    }
    return ABAR_OK;
}

abar_status abar__collection_add(abar__collection *c, int64_t b)
{
    const abar_forward_observer inputs = {.size = sizeof inputs, .observe = observe_inputs, .user = c};
    const abar_observer grads = {.size = sizeof grads, .observe = observe_grads, .user = c};
    abar_loss loss;
    ABAR_TRY(abar__pass_fill(c->pass, b));
    if (c->config.wanted & (ABAR_COLLECT_INPUTS | ABAR_COLLECT_ATTENTION))
        ABAR_TRY(abar__pass_forward(c->pass, b, c->config.training, &inputs, &loss));
    if (c->config.wanted & (ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER))
        ABAR_TRY(abar__pass_backward(c->pass, b, c->config.drawn, &grads));
    return ABAR_OK;
}
