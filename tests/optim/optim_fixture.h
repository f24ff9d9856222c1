/* Parameters to optimize, on a device of the caller's choice, with reproducible values and gradients. */
#ifndef OPTIM_FIXTURE_H
#define OPTIM_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "abar/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_MAX 16

typedef struct fixture {
    abar_context *ctx;
    abar_device *dev;
    int n;
    abar_optim_param params[FIXTURE_MAX];
    char names[FIXTURE_MAX][16];
    uint32_t noise;
} fixture;

/* Between -1 and 1, the same on every device. */
static inline double fixture_noise(fixture *f)
{
    f->noise = f->noise * 1664525u + 1013904223u;
    return (double)(f->noise >> 8) / 8388608.0 - 1.0;
}

static inline double fixture_get(const abar_tensor *t, int64_t i)
{
    return t->dtype == ABAR_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static inline void fixture_set(const abar_tensor *t, int64_t i, double value)
{
    if (t->dtype == ABAR_F64)
        ((double *)t->data)[i] = value;
    else
        ((float *)t->data)[i] = (float)value;
}

static inline void fixture_fill(fixture *f, const abar_tensor *t, double scale)
{
    for (int64_t i = 0; i < abar_tensor_count(t); i++) fixture_set(t, i, scale * fixture_noise(f));
}

static inline void fixture_fill_grads(fixture *f, double scale)
{
    for (int i = 0; i < f->n; i++) fixture_fill(f, &f->params[i].grad, scale);
}

static inline abar_tensor fixture_tensor(fixture *f, int64_t count)
{
    void *data;
    assert_int_equal(abar_device_alloc(f->dev, (size_t)count * abar_dtype_size(abar_device_dtype(f->dev)), &data), ABAR_OK);
    return abar_tensor_wrap(f->dev, data, abar_device_dtype(f->dev), 1, &count);
}

/* Parameters p0, p1, ... of these many elements; every second one decays, every third learns at half the rate. */
static inline void fixture_open(fixture *f, const char *device, int threads, const int64_t *counts, int n)
{
    *f = (fixture){.n = n, .noise = 7};
    assert_in_range(n, 1, FIXTURE_MAX);
    assert_int_equal(abar_context_create(NULL, &f->ctx), ABAR_OK);
    const abar_device_config config = {.size = sizeof config, .threads = threads};
    assert_int_equal(abar_device_open(f->ctx, device, &config, &f->dev), ABAR_OK);
    for (int i = 0; i < n; i++) {
        snprintf(f->names[i], sizeof f->names[i], "p%d", i);
        f->params[i] = (abar_optim_param){.name = f->names[i],
                                          .value = fixture_tensor(f, counts[i]),
                                          .grad = fixture_tensor(f, counts[i]),
                                          .lr_scale = i % 3 == 2 ? 0.5 : 1.0,
                                          .weight_decay = i % 2 == 0 ? 0.01 : 0.0};
        fixture_fill(f, &f->params[i].value, 1.0);
        fixture_fill(f, &f->params[i].grad, 1.0);
    }
}

static inline void fixture_close(fixture *f)
{
    for (int i = 0; i < f->n; i++) {
        abar_device_free(f->dev, f->params[i].value.data, abar_tensor_bytes(&f->params[i].value));
        abar_device_free(f->dev, f->params[i].grad.data, abar_tensor_bytes(&f->params[i].grad));
    }
    abar_device_close(f->dev);
    assert_int_equal(abar_context_memory(f->ctx).now, 0); /* nothing leaks */
    abar_context_destroy(f->ctx);
}

/* A configuration of a rule from "name=value" texts, NULL-terminated; free it. */
static inline void *fixture_config(fixture *f, const char *rule, const char *const *settings)
{
    const abar_rule *r = abar_rule_find(rule);
    assert_non_null(r);
    void *config = calloc(1, r->config_size);
    assert_non_null(config);
    abar_options_default(r->options, config);
    for (; settings && *settings; settings++) {
        char name[32];
        const char *equals = strchr(*settings, '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - *settings), *settings);
        assert_int_equal(abar_options_set(f->ctx, r->options, config, name, equals + 1), ABAR_OK);
    }
    return config;
}

/* An update rule alone, without a curvature method. */
static inline abar_status create_optim(abar_device *dev, const char *rule, const void *config, const abar_optim_param *params,
                                       int n, abar_optim **out)
{
    return abar_optim_create(
        dev,
        &(abar_optim_config){
            .size = sizeof(abar_optim_config), .rule = rule, .rule_config = config, .params = params, .n_params = n},
        out);
}

static inline abar_status plan_optim(const fixture *f, const char *rule, const void *config, size_t *out)
{
    return abar_optim_plan_bytes(
        f->dev, &ABAR_CONFIG(abar_optim_config, .rule = rule, .rule_config = config, .params = f->params, .n_params = f->n),
        out);
}

static inline abar_optim *fixture_optim(fixture *f, const char *rule, const char *const *settings)
{
    void *config = fixture_config(f, rule, settings);
    abar_optim *optim;
    assert_int_equal(create_optim(f->dev, rule, config, f->params, f->n, &optim), ABAR_OK);
    free(config);
    return optim;
}

static inline abar_step_report fixture_step(abar_optim *optim, double lr, double clip, double grad_scale)
{
    const abar_step_config step = {.size = sizeof step, .lr = lr, .clip = clip, .grad_scale = grad_scale};
    abar_step_report report = {.size = sizeof report};
    assert_int_equal(abar_optim_step(optim, &step, &report), ABAR_OK);
    return report;
}

static inline bool fixture_same_bits(const abar_tensor *a, const abar_tensor *b)
{
    size_t bytes = abar_tensor_bytes(a);
    return bytes == abar_tensor_bytes(b) && (bytes == 0 || memcmp(a->data, b->data, bytes) == 0);
}

#endif
