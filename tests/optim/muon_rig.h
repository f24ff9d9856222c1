/* Parameters with shapes and layers over them, and a muon (or another rule) that updates them. */
#ifndef MUON_RIG_H
#define MUON_RIG_H

#include "optim/optim_fixture.h"

#define LAYERS_MAX 8

typedef struct shape {
    int ndim;
    int64_t dim[4];
} shape;

typedef struct rig {
    fixture f;
    abar_layer layers[LAYERS_MAX];
    int n_layers;
    abar_optim *optim;
} rig;

static inline void rig_open(rig *r, const char *device, const shape *shapes, int n)
{
    int64_t counts[FIXTURE_MAX];
    for (int i = 0; i < n; i++) {
        counts[i] = 1;
        for (int k = 0; k < shapes[i].ndim; k++) counts[i] *= shapes[i].dim[k];
    }
    *r = (rig){0};
    fixture_open(&r->f, device, 2, counts, n);
    for (int i = 0; i < n; i++) {
        abar_optim_param *p = &r->f.params[i];
        p->lr_scale = 1.0;
        p->weight_decay = 0.1;
        p->value = abar_tensor_wrap(r->f.dev, p->value.data, p->value.dtype, shapes[i].ndim, shapes[i].dim);
        p->grad = abar_tensor_wrap(r->f.dev, p->grad.data, p->grad.dtype, shapes[i].ndim, shapes[i].dim);
    }
}

static inline void rig_close(rig *r)
{
    abar_optim_destroy(r->optim);
    fixture_close(&r->f);
}

/* A layer whose weight is params[weight]; a convolution where that has four dimensions. bias: another one, -1: none. */
static inline abar_layer *rig_layer(rig *r, int weight, int bias)
{
    abar_layer *l = &r->layers[r->n_layers++];
    const abar_optim_param *w = &r->f.params[weight];
    *l = (abar_layer){.name = w->name, .weight = w->value, .weight_grad = w->grad, .window = abar_window_unit()};
    if (bias >= 0) {
        l->bias = r->f.params[bias].value;
        l->bias_grad = r->f.params[bias].grad;
    }
    if (w->value.ndim == 4) {
        l->window.kernel[0] = w->value.dim[2];
        l->window.kernel[1] = w->value.dim[3];
    }
    return l;
}

/* What makes the rig's optimizer; config: the rule's. */
static inline abar_optim_config rig_config(const rig *r, const char *rule, const void *config)
{
    return ABAR_CONFIG(abar_optim_config, .rule = rule, .rule_config = config, .params = r->f.params, .n_params = r->f.n,
                       .layers = r->layers, .n_layers = r->n_layers, .base_lr = 0.02);
}

static inline abar_status rig_try_rule(rig *r, const char *rule, const char *const *settings)
{
    void *config = fixture_config(&r->f, rule, settings);
    const abar_optim_config c = rig_config(r, rule, config);
    const abar_status status = abar_optim_create(r->f.dev, &c, &r->optim);
    free(config);
    return status;
}

static inline abar_status rig_try(rig *r, const char *const *settings) { return rig_try_rule(r, "muon", settings); }

static inline void rig_optim(rig *r, const char *const *settings) { assert_int_equal(rig_try(r, settings), ABAR_OK); }

/* A linear layer with bias, and a convolution. */
static const shape mixed[] = {{2, {12, 20}}, {1, {12}}, {4, {8, 3, 3, 3}}};

static inline void rig_open_mixed(rig *r, const char *device, const char *rule, const char *const *settings)
{
    rig_open(r, device, mixed, 3);
    rig_layer(r, 0, 1);
    rig_layer(r, 2, -1);
    if (rig_try_rule(r, rule, settings) != ABAR_OK) fail_msg("%s", abar_context_error(r->f.ctx));
}

/* On one device: what is planned for the mixed parameters is what an optimizer takes and says, and its steps take no more. */
static inline void rig_check_bytes(const char *device, const char *rule, const char *const *settings)
{
    rig r;
    size_t planned, names_bytes = 3 * 3 + 16 + 1 + 2 + 1; /* "p0", ... and the longest label */
    rig_open_mixed(&r, device, rule, settings);
    void *config = fixture_config(&r.f, rule, settings);
    const abar_optim_config c = rig_config(&r, rule, config);
    assert_int_equal(abar_optim_plan_bytes(r.f.dev, &c, &planned), ABAR_OK);
    assert_int_equal(planned + names_bytes, abar_optim_bytes(r.optim));
    const size_t before = abar_context_memory(r.f.ctx).now;
    for (int k = 0; k < 3; k++) fixture_step(r.optim, 0.02, 0.0, 0.0);
    assert_int_equal(abar_context_memory(r.f.ctx).now, before);
    abar_optim_destroy(r.optim);
    r.optim = NULL;
    const size_t without = abar_context_memory(r.f.ctx).now;
    assert_int_equal(abar_optim_create(r.f.dev, &c, &r.optim), ABAR_OK);
    assert_int_equal(abar_context_memory(r.f.ctx).now - without, abar_optim_bytes(r.optim));
    free(config);
    rig_close(&r);
}

/* Whether a made optimizer takes these settings of its rule. */
static inline abar_status rig_set(rig *r, const char *rule, const char *const *settings)
{
    void *config = fixture_config(&r->f, rule, settings);
    const abar_status status = abar_optim_set_rule(r->optim, config);
    free(config);
    return status;
}

/* Largest difference of b's elements and those of a from `first` on, relative to the largest of b. */
static inline double rig_difference(const abar_tensor *a, int64_t first, const abar_tensor *b)
{
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(b); i++) {
        error = fmax(error, fabs(fixture_get(a, first + i) - fixture_get(b, i)));
        largest = fmax(largest, fabs(fixture_get(b, i)));
    }
    return error / largest;
}

/* Parameter 0 of a is made of the parameters of b, one below the other: after some steps it still is. */
static inline void rig_check_pieces(rig *a, rig *b, double tolerance)
{
    for (int k = 0; k < 6; k++) {
        int64_t at = 0;
        for (int i = 0; i < b->f.n; i++) {
            const abar_optim_param *whole = &a->f.params[0], *piece = &b->f.params[i];
            fixture_fill(&b->f, &piece->grad, 1.0);
            for (int64_t j = 0; j < abar_tensor_count(&piece->value); j++, at++) {
                if (k == 0) fixture_set(&whole->value, at, fixture_get(&piece->value, j));
                fixture_set(&whole->grad, at, fixture_get(&piece->grad, j));
            }
        }
        fixture_step(a->optim, 0.02, 0.0, 0.0);
        fixture_step(b->optim, 0.02, 0.0, 0.0);
    }
    int64_t at = 0;
    for (int i = 0; i < b->f.n; i++) {
        assert_true(rig_difference(&a->f.params[0].value, at, &b->f.params[i].value) <= tolerance);
        at += abar_tensor_count(&b->f.params[i].value);
    }
}

/* A sum over four micro-batches, divided by the step, gives what their mean gives. */
static inline void rig_check_divided(rig *sums, rig *means, double tolerance)
{
    for (int k = 0; k < 4; k++) {
        fixture_fill_grads(&means->f, 1.0);
        fixture_fill_grads(&sums->f, 4.0);
        fixture_step(means->optim, 0.02, 0.0, 0.0);
        fixture_step(sums->optim, 0.02, 0.0, 0.25);
    }
    for (int i = 0; i < means->f.n; i++)
        assert_true(rig_difference(&means->f.params[i].value, 0, &sums->f.params[i].value) <= tolerance);
}

#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
