/* A net's tensors in safetensors files: reading ours and PyTorch's, strictly by name and shape, and writing the export. */
#include "base/number.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <string.h>

#define COUNTER "num_batches_tracked" /* missing from files of older PyTorch versions and other exporters */

static bool is_floating(abar_dtype dtype) { return dtype <= ABAR_F16; }

static bool is_counter(const char *name)
{
    size_t n = strlen(name), m = strlen(COUNTER);
    return n >= m && strcmp(name + n - m, COUNTER) == 0;
}

/* "(6, 1, 5, 5)" */
static void shape_text(const abar_tensor *t, char text[160])
{
    int used = snprintf(text, 160, "(");
    for (int i = 0; i < t->ndim; i++)
        used += snprintf(text + used, 160 - (size_t)used, i ? ", %lld" : "%lld", (long long)t->dim[i]);
    snprintf(text + used, 160 - (size_t)used, ")");
}

static bool same_shape(const abar_tensor *a, const abar_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim) == 0;
}

static abar_status check_fit(abar_context *ctx, const char *path, const char *name, const abar_tensor *dst,
                             const abar_tensor *src)
{
    if (!same_shape(dst, src)) {
        char has[160], wants[160];
        shape_text(src, has);
        shape_text(dst, wants);
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: tensor %s has shape %s, the model wants %s, is it of another model?", path,
                          name, has, wants);
    }
    if (dst->dtype != src->dtype && !(is_floating(dst->dtype) && is_floating(src->dtype)))
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: tensor %s is %s, expected %s, is it of another model?", path, name,
                          abar_dtype_name(src->dtype), abar_dtype_name(dst->dtype));
    return ABAR_OK;
}

static abar_status fail_missing(abar_context *ctx, const char *path, const char *name)
{
    return abar__fail(ctx, ABAR_E_FORMAT, "%s: tensor %s is missing, is it of another model?", path, name);
}

abar_status abar__weights_copy(abar_context *ctx, const char *path, const char *name, const abar_tensor *dst,
                               const abar_tensor *src)
{
    ABAR_TRY(check_fit(ctx, path, name, dst, src));
    return abar_tensor_copy(ctx, dst, src);
}

abar_status abar__weights_load(abar_context *ctx, const abar__safetensors *file, const char *path, abar_net *net, bool counters)
{
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor dst, src;
        abar_net_tensor(net, i, &name, &dst);
        if (abar__safetensors_find(file, name, &src)) {
            ABAR_TRY(abar__weights_copy(ctx, path, name, &dst, &src));
        } else if (counters || !is_counter(name)) {
            return fail_missing(ctx, path, name);
        }
    }
    abar_net_rollback(net); /* discards running statistics of an earlier forward pass */
    return abar_net_weights_changed(net);
}

/* ---- checkpoints of rules that average ---------------------------------------------------------------------------- */

#define APART ABAR_STATE_PREFIX "z_minus_y." /* z - y of a parameter (optimizers.md section 4) */

/* dst = y + factor (z - y). */
static abar_status combine(abar_context *ctx, const abar_tensor *y, const abar_tensor *apart, double factor,
                           const abar_tensor *dst)
{
    const int64_t n = abar_tensor_count(dst);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, 2 * (size_t)n * sizeof(double), &memory));
    double *x = memory, *d = x + n;
    const abar_tensor to = abar_tensor_wrap(NULL, x, ABAR_F64, dst->ndim, dst->dim);
    const abar_tensor by = abar_tensor_wrap(NULL, d, ABAR_F64, dst->ndim, dst->dim);
    abar_status status = abar_tensor_copy(ctx, &to, y);
    if (status == ABAR_OK) status = abar_tensor_copy(ctx, &by, apart);
    for (int64_t i = 0; i < n; i++) x[i] += factor * d[i];
    if (status == ABAR_OK) status = abar_tensor_copy(ctx, dst, &to);
    abar__free(ctx, memory, 2 * (size_t)n * sizeof(double));
    return status;
}

/* 1 - 1 / beta1 of the run that made the checkpoint. */
static abar_status read_factor(abar_context *ctx, const char *path, double *out)
{
    char text[ABAR_OPTION_TEXT_MAX];
    abar_setup *setup;
    double beta1;
    ABAR_TRY(abar_setup_load_file(ctx, path, &setup));
    abar_status status = abar_options_get(ctx, setup->rule->options, setup->rule_config, "beta1", text, sizeof text);
    if (status == ABAR_OK && (!abar__real_parse(text, &beta1) || !(beta1 > 0.0)))
        status = abar__fail(ctx, ABAR_E_FORMAT, "%s: its optimizer has no beta1 above 0, the checkpoint is damaged", path);
    if (status == ABAR_OK) *out = 1.0 - 1.0 / beta1;
    abar_setup_destroy(ctx, setup);
    return status;
}

/* A checkpoint has the weights that are trained, y; wanted are those that are tested, x. */
static abar_status load_tested(abar_context *ctx, const abar__safetensors *file, const char *path, abar_net *net)
{
    double factor = 0.0;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        char full[256];
        abar_tensor dst, y, apart;
        abar_net_tensor(net, i, &name, &dst);
        snprintf(full, sizeof full, APART "%s", name);
        if (!abar__safetensors_find(file, full, &apart) || !abar__safetensors_find(file, name, &y)) continue;
        if (abar__net_blocks_of(net).running_bytes > 0)
            return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                              "%s: its statistics of batch norms belong to the weights that are trained, not to those that are "
                              "tested; take model.safetensors of the same folder",
                              path);
        if (!same_shape(&apart, &dst))
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: tensor %s has another shape than %s, the checkpoint is damaged", path,
                              full, name);
        if (factor == 0.0) ABAR_TRY(read_factor(ctx, path, &factor));
        ABAR_TRY(combine(ctx, &y, &apart, factor, &dst));
    }
    return abar_net_weights_changed(net);
}

abar_status abar__weights_read(abar_context *ctx, const char *path, abar_net *net)
{
    abar__safetensors *file;
    ABAR_TRY(abar__safetensors_open(ctx, path, &file));
    abar_status status = abar__weights_exact(ctx, file, path, net);
    if (status == ABAR_OK) status = abar__weights_load(ctx, file, path, net, false);
    if (status == ABAR_OK) status = load_tested(ctx, file, path, net);
    abar__safetensors_close(file);
    return status;
}

static bool net_has(const abar_net *net, const char *wanted)
{
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor tensor;
        abar_net_tensor(net, i, &name, &tensor);
        if (strcmp(name, wanted) == 0) return true;
    }
    return false;
}

static bool has_prefix(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

abar_status abar__weights_exact(abar_context *ctx, const abar__safetensors *file, const char *path, const abar_net *net)
{
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        abar_tensor tensor;
        const char *name = abar__safetensors_get(file, i, &tensor);
        if (has_prefix(name, ABAR_STATE_PREFIX) || has_prefix(name, ABAR_EMA_PREFIX) || net_has(net, name)) continue;
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: tensor %.160s is not one of the model's, is it of another model?", path,
                          name);
    }
    return ABAR_OK;
}

abar_status abar__weights_check(abar_context *ctx, const char *path, const abar_net *net)
{
    abar__safetensors *file;
    ABAR_TRY(abar__safetensors_open(ctx, path, &file));
    abar_status status = net ? abar__weights_exact(ctx, file, path, net) : ABAR_OK;
    for (int i = 0; net && status == ABAR_OK && i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor dst, src;
        abar_net_tensor(net, i, &name, &dst);
        if (abar__safetensors_find(file, name, &src))
            status = check_fit(ctx, path, name, &dst, &src);
        else if (!is_counter(name))
            status = fail_missing(ctx, path, name);
    }
    abar__safetensors_close(file);
    return status;
}

/* ---- the export ------------------------------------------------------------------------------------------------ */

abar_tensor abar__host_view(const abar_tensor *t)
{
    abar_tensor view = *t;
    if (t->dev && !t->dev->ops->stream) view.dev = NULL;
    return view;
}

/* The tensor as it is exported: itself, or its F32 copy in the stage. */
static abar_status stage_tensor(abar_context *ctx, const abar_tensor *t, char *stage, size_t *used, abar_tensor *out)
{
    *out = abar__host_view(t);
    if (!is_floating(t->dtype) || t->dtype == ABAR_F32) return ABAR_OK;
    *out = abar_tensor_wrap(NULL, stage + *used, ABAR_F32, t->ndim, t->dim);
    *used += abar_tensor_bytes(out);
    return abar_tensor_copy(ctx, out, t);
}

abar_status abar__notes_add(abar__safetensors_writer *writer, const abar__notes *notes)
{
    if (notes->config) ABAR_TRY(abar__safetensors_writer_metadata(writer, ABAR_NOTE_CONFIG, notes->config));
    if (notes->vocabulary) ABAR_TRY(abar__safetensors_writer_metadata(writer, ABAR_NOTE_VOCABULARY, notes->vocabulary));
    return notes->classes ? abar__safetensors_writer_metadata(writer, ABAR_NOTE_CLASSES, notes->classes) : ABAR_OK;
}

static abar_status add_all(abar_context *ctx, const abar_net *net, const abar__ema *average, void *stage,
                           const abar__notes *notes, abar__safetensors_writer *writer)
{
    size_t used = 0;
    abar__safetensors_writer_fetch(writer, abar_tensor_copy);
    ABAR_TRY(abar__safetensors_writer_metadata(writer, "format", "pt"));
    ABAR_TRY(abar__notes_add(writer, notes));
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor tensor, view;
        if (average)
            abar__ema_tensor(average, i, &name, &tensor);
        else
            abar_net_tensor(net, i, &name, &tensor);
        ABAR_TRY(stage_tensor(ctx, &tensor, stage, &used, &view));
        ABAR_TRY(abar__safetensors_writer_add(writer, name, &view));
    }
    return ABAR_OK;
}

abar_status abar__weights_export(abar_context *ctx, const abar_net *net, const abar__ema *average, void *stage,
                                 const abar__notes *notes, const char *path)
{
    abar__safetensors_writer *writer;
    ABAR_TRY(abar__safetensors_writer_create(ctx, &writer));
    abar_status status = add_all(ctx, net, average, stage, notes, writer);
    if (status == ABAR_OK) status = abar__safetensors_writer_write(writer, path);
    abar__safetensors_writer_destroy(writer);
    return status;
}

size_t abar__weights_stage_bytes(const abar_net *net)
{
    size_t bytes = 0;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(net, i, &name, &t);
        if (is_floating(t.dtype) && t.dtype != ABAR_F32) bytes += (size_t)abar_tensor_count(&t) * sizeof(float);
    }
    return bytes;
}
