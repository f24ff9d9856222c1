/* Steps of a rule on given gradients against a golden file whose metadata lists cases: lr, weight_decay, options of the rule,
 * and whether the case is for double precision alone (exact); optional rates replace lr step by step. Tensors: initial.P,
 * grad.P (steps, ...), CASE.P; optional CASE.tested.P: after abar_optim_average. */
#ifndef GOLDEN_STEPS_H
#define GOLDEN_STEPS_H

#include "optim/muon_rig.h"

#include "io/io.h"

#include <cjson/cJSON.h>

#define GOLDEN_STEPS 20
#define GOLDEN_OPTIONS_MAX 24

typedef struct golden_set {
    const char *rule, *file;
    const char *const *names; /* (n) */
    const shape *shapes;
    int n, layers;      /* the first so many parameters are weights of layers */
    int cases, options; /* at least so many cases, and options of each */
    int steps;          /* 0: GOLDEN_STEPS */
} golden_set;

static inline abar_tensor golden(const abar__safetensors *file, const char *prefix, const char *name)
{
    char full[96];
    abar_tensor t;
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    assert_true(abar__safetensors_find(file, full, &t));
    return t;
}

/* Element i of a golden tensor, which may be unaligned. */
static inline double golden_get(const abar_tensor *t, int64_t i)
{
    float single;
    double value;
    if (t->dtype == ABAR_F32) {
        memcpy(&single, (const char *)t->data + (size_t)i * sizeof single, sizeof single);
        return (double)single;
    }
    memcpy(&value, (const char *)t->data + (size_t)i * sizeof value, sizeof value);
    return value;
}

static inline void golden_optim(const golden_set *g, rig *r, const cJSON *settings)
{
    const char *options[GOLDEN_OPTIONS_MAX] = {NULL};
    int n = 0;
    const cJSON *option;
    cJSON_ArrayForEach(option, cJSON_GetObjectItem(settings, "options")) options[n++] = option->valuestring;
    assert_in_range(n, g->options, GOLDEN_OPTIONS_MAX - 1);
    for (int i = 0; i < r->f.n; i++) r->f.params[i].weight_decay = cJSON_GetObjectItem(settings, "weight_decay")->valuedouble;
    if (rig_try_rule(r, g->rule, options) != ABAR_OK) fail_msg("%s", abar_context_error(r->f.ctx));
}

static inline double golden_rate(const cJSON *settings, int k)
{
    const cJSON *rates = cJSON_GetObjectItem(settings, "rates");
    return (rates ? cJSON_GetArrayItem(rates, k) : cJSON_GetObjectItem(settings, "lr"))->valuedouble;
}

/* The largest difference of any weight from those in the file, relative to the largest. */
static inline double golden_difference(const golden_set *g, const rig *r, const abar__safetensors *file, const char *name)
{
    double error = 0.0, largest = 0.0;
    for (int i = 0; i < g->n; i++) {
        const abar_tensor expected = golden(file, name, g->names[i]);
        for (int64_t j = 0; j < abar_tensor_count(&expected); j++) {
            error = fmax(error, fabs(fixture_get(&r->f.params[i].value, j) - golden_get(&expected, j)));
            largest = fmax(largest, fabs(golden_get(&expected, j)));
        }
    }
    return error / largest;
}

static inline double golden_error(const golden_set *g, rig *r, const abar__safetensors *file, const char *name,
                                  const cJSON *settings)
{
    char tested[64], first[96];
    abar_tensor t;
    golden_optim(g, r, settings);
    for (int k = 0; k < (g->steps ? g->steps : GOLDEN_STEPS); k++) {
        for (int i = 0; i < g->n; i++) {
            const abar_tensor initial = golden(file, "initial", g->names[i]), grads = golden(file, "grad", g->names[i]);
            const abar_optim_param *p = &r->f.params[i];
            const int64_t count = abar_tensor_count(&p->value);
            for (int64_t j = 0; j < count; j++) {
                if (k == 0) fixture_set(&p->value, j, golden_get(&initial, j));
                fixture_set(&p->grad, j, golden_get(&grads, k * count + j));
            }
        }
        assert_false(fixture_step(r->optim, golden_rate(settings, k), 0.0, 0.0).skipped);
    }
    double error = golden_difference(g, r, file, name);
    snprintf(tested, sizeof tested, "%s.tested", name);
    snprintf(first, sizeof first, "%s.%s", tested, g->names[0]);
    if (abar__safetensors_find(file, first, &t)) {
        assert_int_equal(abar_optim_average(r->optim), ABAR_OK);
        error = fmax(error, golden_difference(g, r, file, tested));
    }
    abar_optim_destroy(r->optim);
    r->optim = NULL;
    return error;
}

/* The largest difference after all steps, relative to the largest weight, is at most the tolerance in every case. */
static inline void golden_check(const golden_set *g, const char *device, double tolerance)
{
    const bool exact = strcmp(device, "ref") == 0;
    rig r;
    rig_open(&r, device, g->shapes, g->n);
    for (int i = 0; i < g->layers; i++) rig_layer(&r, i, -1);
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(r.f.ctx, g->file, &file), ABAR_OK);
    cJSON *cases = cJSON_Parse(abar__safetensors_metadata(file, "cases"));
    assert_in_range(cJSON_GetArraySize(cases), g->cases, 64);
    const cJSON *one;
    cJSON_ArrayForEach(one, cases)
    {
        cJSON *settings = cJSON_Parse(abar__safetensors_metadata(file, one->valuestring));
        if (exact || !cJSON_IsTrue(cJSON_GetObjectItem(settings, "exact"))) {
            const double error = golden_error(g, &r, file, one->valuestring, settings);
            if (!(error <= tolerance)) fail_msg("%s on %s: error %g", one->valuestring, device, error);
        }
        cJSON_Delete(settings);
    }
    cJSON_Delete(cases);
    abar__safetensors_close(file);
    rig_close(&r);
}

#endif
