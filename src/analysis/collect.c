/* Collects sums over rows, output gradients and attention probabilities of every map while batches run. */
#include "analysis/collect.h"

#include "device/cpu/stats_gram.h"

#include <fnmatch.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    USUAL_FISHER = 256,
    NUMBERS_AT_ONCE = 1 << 20,  /* of rows: enough for all threads, and little beside the caches */
    GRADIENTS_AT_ONCE = 1 << 23 /* numbers of per-example gradients */
};
#define FISHER_MOST 0x1p31 /* bytes of per-example gradients at a time, or a quarter of the machine's memory */

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
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static bool wants_fisher(const abar__collection *c) { return c->config.wanted & ABAR_COLLECT_FISHER; }

static bool feeds_attention(const abar__collection *c, const abar__map_stats *m)
{
    return (c->config.wanted & ABAR_COLLECT_ATTENTION) && m->layout.heads > 0;
}

static size_t gram_bytes(const abar__collection *c)
{
    const int64_t side = abar__gram_side(c->config.fisher_samples);
    return (size_t)(side * side) * sizeof(double);
}

static size_t map_bytes(const abar__collection *c, const abar__map_stats *m)
{
    const unsigned wanted = c->config.wanted;
    const abar_tensor *input = &abar_net_layer(c->pass->net, m->layer)->input;
    size_t bytes = 0;
    if (wanted & ABAR_COLLECT_INPUTS) bytes += abar_moments_bytes(abar__map_side(m));
    if (wanted & ABAR_COLLECT_GRADS) bytes += 2 * abar_moments_bytes(m->shape.out);
    if (wants_fisher(c)) bytes += gram_bytes(c);
    if (feeds_attention(c, m))
        bytes += (size_t)((1 + c->threads) * sequence_of(&m->layout, input) * sequence_of(&m->layout, input)) * sizeof(double);
    return bytes;
}

static double machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (double)pages * (double)page : INFINITY;
}

/* The eigenproblem of the largest side comes on top: two squares and LAPACK's workspace. */
static abar_status announce(abar__collection *c)
{
    const double machine = machine_bytes(), side = (double)greater(c->d_max, c->out_max);
    double bytes = 5.0 * side * side * (double)sizeof(double) + (double)(c->host_bytes + c->rows_bytes);
    for (int i = 0; i < c->n; i++) bytes += (double)map_bytes(c, &c->maps[i]);
    if (bytes > 0.8 * machine)
        return abar__fail(
            c->pass->ctx, ABAR_E_MEMORY,
            "analyze: %d maps of side up to %.0f need %.1f GiB and this machine has %.1f, choose fewer by --layers", c->n, side,
            bytes / 0x1p30, machine / 0x1p30);
    char text[160];
    snprintf(text, sizeof text, "%d maps, rows of up to %lld numbers: %.0f MiB beside the network", c->n,
             (long long)(c->d_max - 1), bytes / 0x1p20);
    if (c->config.announce) c->config.announce(c->config.user, text);
    return ABAR_OK;
}

static abar_status make_map(abar__collection *c, abar__map_stats *m)
{
    abar_context *ctx = c->pass->ctx;
    const unsigned wanted = c->config.wanted;
    if (wanted & ABAR_COLLECT_INPUTS) ABAR_TRY(abar_moments_create(ctx, abar__map_side(m), &m->inputs));
    if (wanted & ABAR_COLLECT_GRADS) {
        ABAR_TRY(abar_moments_create(ctx, m->shape.out, &m->grads));
        ABAR_TRY(abar_moments_create(ctx, m->shape.out, &m->grad_means));
    }
    if (wants_fisher(c)) {
        void *memory;
        ABAR_TRY(abar__alloc(ctx, gram_bytes(c), &memory));
        m->gram = memory;
    }
    if (!feeds_attention(c, m)) return ABAR_OK;
    const int64_t tokens = sequence_of(&m->layout, &abar_net_layer(c->pass->net, m->layer)->input);
    return abar__attention_create(ctx, tokens, &m->attention);
}

static void free_map(const abar__collection *c, abar__map_stats *m)
{
    abar_moments_destroy(m->inputs);
    abar_moments_destroy(m->grads);
    abar_moments_destroy(m->grad_means);
    abar__free(c->pass->ctx, m->gram, m->gram ? gram_bytes(c) : 0);
    if (m->attention.sum) abar__attention_free(&m->attention);
    m->inputs = m->grads = m->grad_means = NULL;
    m->gram = NULL;
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

/* Examples whose rows are made at a time. */
static int64_t chunk_of(const abar__collection *c, const abar__map_stats *m)
{
    const int64_t fit = NUMBERS_AT_ONCE / (m->shape.rows * greater(abar__map_side(m), m->shape.out));
    return fit < 1 ? 1 : fit < c->pass->config.batch ? fit : c->pass->config.batch;
}

/* Outputs whose gradients are made at a time, in whole panels. */
static int64_t outputs_of(const abar__collection *c, const abar__map_stats *m)
{
    const int64_t panel = c->config.fisher_samples * abar__gram_side(abar__map_side(m)) * ABAR_GRAM_WIDTH;
    const int64_t fit = GRADIENTS_AT_ONCE / panel * ABAR_GRAM_WIDTH, all = abar__gram_side(m->shape.out);
    return fit < ABAR_GRAM_WIDTH ? ABAR_GRAM_WIDTH : fit < all ? fit : all;
}

/* Numbers that one thread needs for the gradient of an example: its rows, and the same in panels. */
static int64_t gradient_work(const abar__map_stats *m)
{
    return m->shape.rows *
           (abar__map_side(m) + m->shape.out + abar__gram_side(abar__map_side(m)) + abar__gram_side(m->shape.out));
}

/* Numbers for all gradients of some outputs, and a block of them in panels. */
static int64_t fisher_work(const abar__collection *c, const abar__map_stats *m)
{
    return c->config.fisher_samples * outputs_of(c, m) * abar__gram_side(abar__map_side(m)) +
           abar__gram_side(c->config.fisher_samples) * ABAR_GRAM_BLOCK;
}

static size_t largest_rows(const abar__collection *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->n; i++) {
        const abar__map_stats *m = &c->maps[i];
        most = greater(most, chunk_of(c, m) * m->shape.rows * greater(abar__map_side(m), m->shape.out));
        if (wants_fisher(c)) most = greater(most, c->threads * gradient_work(m) + fisher_work(c, m));
    }
    return (size_t)most * sizeof(double);
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
    c->rows_bytes = largest_rows(c);
    ABAR_TRY(announce(c));
    ABAR_TRY(abar__alloc(ctx, c->host_bytes, &memory));
    c->host = memory;
    ABAR_TRY(abar__alloc(ctx, c->rows_bytes, &memory));
    c->rows = memory;
    return abar__collection_reset(c);
}

static abar_status choose_fisher_samples(abar__collection *c)
{
    const int64_t batch = c->pass->config.batch, asked = c->config.fisher_samples;
    if (wants_fisher(c) && asked > batch)
        return abar__fail(c->pass->ctx, ABAR_E_ARGUMENT,
                          "--fisher-samples %lld: more than a batch of %lld, raise --batch (and --samples) or lower it",
                          (long long)asked, (long long)batch);
    if (asked == 0) c->config.fisher_samples = batch < USUAL_FISHER ? batch : USUAL_FISHER;
    return ABAR_OK;
}

abar_status abar__collection_create(abar__pass *pass, const abar__collect_config *config, abar__collection *out)
{
    *out = (abar__collection){.pass = pass, .config = *config, .threads = omp_get_max_threads()};
    abar_status status = choose_fisher_samples(out);
    if (status >= 0) status = create(out);
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

static float *second_half(const abar__collection *c) { return c->host + c->host_bytes / (2 * sizeof *c->host); }

static abar_status add_rows(abar_moments *m, double *rows, int64_t n)
{
    const abar_tensor t = abar_tensor_wrap(NULL, rows, ABAR_F64, 2, (int64_t[]){n, abar_moments_side(m)});
    return abar_moments_add(m, &t);
}

static abar_status add_inputs(abar__collection *c, abar__map_stats *m, const float *input)
{
    const int64_t batch = c->pass->config.batch, chunk = chunk_of(c, m), size = m->shape.rows * abar__map_side(m);
    for (int64_t first = 0; first < batch; first += chunk) {
        const int64_t n = batch - first < chunk ? batch - first : chunk;
#pragma omp parallel for schedule(static) num_threads(c->threads)
        for (int64_t i = 0; i < n; i++)
            abar__input_rows(&m->shape, input + (first + i) * m->shape.in_size, m->homogeneous, c->rows + i * size);
        ABAR_TRY(add_rows(m->inputs, c->rows, n * m->shape.rows));
    }
    return ABAR_OK;
}

static abar_status add_attention(abar__collection *c, abar__map_stats *m, const abar_layer_forward *forward)
{
    float *bias = second_half(c);
    if (forward->position_bias.ndim) ABAR_TRY(fetch(c, &forward->position_bias, bias));
    ABAR_TRY(fetch(c, &forward->output, c->host));
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
    return abar__attention_add_view(&m->attention, &view);
}

static abar_status dump_forward(abar__dump *d, const abar_layer *layer, const abar__map_stats *m,
                                const abar_layer_forward *forward)
{
    ABAR_TRY(abar__dump_layer(d, layer, m->homogeneous, forward->causal));
    ABAR_TRY(abar__dump_tensor(d, layer->name, "input", &forward->input));
    if (!m->attention.sum) return ABAR_OK;
    if (forward->position_bias.ndim) ABAR_TRY(abar__dump_tensor(d, layer->name, "position_bias", &forward->position_bias));
    return abar__dump_tensor(d, layer->name, "qkv", &forward->output);
}

static abar_status observe_inputs(void *user, int layer_index, const abar_layer *layer, const abar_layer_forward *forward)
{
    abar__collection *c = user;
    bool fetched = false;
    for (int i = 0; i < c->n; i++) {
        abar__map_stats *m = &c->maps[i];
        if (m->layer != layer_index) continue;
        if (c->dump && m->shape.group == 0) ABAR_TRY(dump_forward(c->dump, layer, m, forward));
        if (m->inputs && !fetched) ABAR_TRY(fetch(c, &forward->input, c->host));
        fetched = true;
        if (m->inputs) ABAR_TRY(add_inputs(c, m, c->host));
        if (m->attention.sum) ABAR_TRY(add_attention(c, m, forward)); /* a linear map: it has no other groups */
    }
    return ABAR_OK;
}

/* ---- output gradients ------------------------------------------------------------------------------------------------- */

/* g (outputs, side; in whole panels) = sum over rows of p a^T of one example, for some of the outputs. */
static void make_gradient(const abar_context *ctx, const abar__map_stats *m, const float *input, const float *grad,
                          double scale, int64_t first, int64_t outputs, double *work, double *g)
{
    const abar__row_shape *s = &m->shape;
    const int64_t side = abar__map_side(m), a_side = abar__gram_side(side);
    double *a = work, *p = a + s->rows * side, *a_panels = p + s->rows * s->out, *p_panels = a_panels + s->rows * a_side;
    abar__input_rows(s, input, m->homogeneous, a);
    abar__output_rows(s, grad, scale, p);
    abar__gram_pack(a, s->rows, side, side, 1, a_panels);
    abar__gram_pack(p + first, s->rows, s->out - first < outputs ? s->out - first : outputs, s->out, 1, p_panels);
    memset(g, 0, (size_t)(outputs * a_side) * sizeof *g);
    abar__gram_multiply(ctx, s->rows, outputs, p_panels, a_side, a_panels, g);
}

/* K_nm = <g_n, g_m>, g = sum over rows of p a^T, of the first examples of a batch: a few outputs at a time, because all
 * gradients of a layer may take gigabytes. */
static void add_fisher(abar__collection *c, abar__map_stats *m, const float *input, const float *grad, double scale)
{
    const abar__row_shape *s = &m->shape;
    const int64_t examples = c->config.fisher_samples, most = outputs_of(c, m), all = abar__gram_side(s->out);
    const int64_t work = gradient_work(m), side = abar__gram_side(abar__map_side(m));
    double *g = c->rows + c->threads * work, *panels = g + examples * most * side;
    for (int64_t first = 0; first < all; first += most) {
        const int64_t outputs = all - first < most ? all - first : most, size = outputs * side;
#pragma omp parallel for schedule(static) num_threads(c->threads)
        for (int64_t i = 0; i < examples; i++)
            make_gradient(c->pass->ctx, m, input + i * s->in_size, grad + i * s->out_size, scale, first, outputs,
                          c->rows + omp_get_thread_num() * work, g + i * size);
        abar__gram_add_rows(c->pass->ctx, examples, size, g, panels, m->gram);
    }
}

/* Means over the rows of each of n examples, in place: (n, rows, out) -> (n, out). */
static void average_rows(const abar__row_shape *s, int64_t n, double *p)
{
    for (int64_t i = 0; i < n; i++) {
        const double *rows = p + i * s->rows * s->out;
        double *mean = p + i * s->out;
        for (int64_t k = 0; k < s->out; k++) mean[k] = rows[k] / (double)s->rows;
        for (int64_t r = 1; r < s->rows; r++)
            for (int64_t k = 0; k < s->out; k++) mean[k] += rows[r * s->out + k] / (double)s->rows;
    }
}

static abar_status add_grads(abar__collection *c, abar__map_stats *m, const float *grad, double scale)
{
    const abar__row_shape *s = &m->shape;
    const int64_t batch = c->pass->config.batch, chunk = chunk_of(c, m);
    for (int64_t first = 0; first < batch; first += chunk) {
        const int64_t n = batch - first < chunk ? batch - first : chunk;
#pragma omp parallel for schedule(static) num_threads(c->threads)
        for (int64_t i = 0; i < n; i++)
            abar__output_rows(s, grad + (first + i) * s->out_size, scale, c->rows + i * s->rows * s->out);
        ABAR_TRY(add_rows(m->grads, c->rows, n * s->rows));
        average_rows(s, n, c->rows);
        ABAR_TRY(add_rows(m->grad_means, c->rows, n));
    }
    return ABAR_OK;
}

static abar_status dump_backward(abar__dump *d, const abar_layer *layer)
{
    ABAR_TRY(abar__dump_tensor(d, layer->name, "training_input", &layer->input));
    return abar__dump_tensor(d, layer->name, "output_grad", &layer->output_grad);
}

static abar_status observe_grads(void *user, int layer_index, const abar_layer *layer)
{
    abar__collection *c = user;
    const double scale = layer->output_grad_scale * (double)c->pass->config.batch;
    bool fetched = false;
    for (int i = 0; i < c->n; i++) {
        abar__map_stats *m = &c->maps[i];
        const bool fisher = m->gram && c->batch == 0;
        if (m->layer != layer_index || !(fisher || m->grads)) continue;
        if (c->dump && m->shape.group == 0) ABAR_TRY(dump_backward(c->dump, layer));
        if (!fetched) ABAR_TRY(fetch(c, &layer->output_grad, second_half(c)));
        if (!fetched && fisher) ABAR_TRY(fetch(c, &layer->input, c->host));
        fetched = true;
        if (fisher) add_fisher(c, m, c->host, second_half(c), scale);
        if (m->grads) ABAR_TRY(add_grads(c, m, second_half(c), scale));
    }
    return ABAR_OK;
}

/* ---- batches ------------------------------------------------------------------------------------------------------------ */

abar_status abar__collection_add(abar__collection *c, int64_t b)
{
    const abar_forward_observer inputs = {.size = sizeof inputs, .observe = observe_inputs, .user = c};
    const abar_observer grads = {.size = sizeof grads, .observe = observe_grads, .user = c};
    const bool forward = c->config.wanted & (ABAR_COLLECT_INPUTS | ABAR_COLLECT_ATTENTION);
    const bool backward = c->config.wanted & (ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER);
    const bool together = forward && backward && c->config.training; /* one forward pass serves both */
    abar_loss loss;
    c->batch = b;
    ABAR_TRY(abar__pass_fill(c->pass, b));
    if (forward && !together) ABAR_TRY(abar__pass_forward(c->pass, b, c->config.training, &inputs, &loss));
    return backward ? abar__pass_backward(c->pass, b, c->config.drawn, together ? &inputs : NULL, &grads) : ABAR_OK;
}
