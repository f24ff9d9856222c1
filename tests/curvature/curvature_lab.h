/* What the tests of curvature share: layers of any shape on a device, batches drawn from a seed, an optimizer driven through
 * the public interface, and its whole state to keep, compare and put back. With sgd at rate 1 and weights of zero, what a step
 * takes off a weight is the preconditioned gradient. */
#ifndef CURVATURE_LAB_H
#define CURVATURE_LAB_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abar/optim.h"
#include "curvature/curvature_impl.h"

#define LAB_LAYERS_MAX 8
#define LAB_STATE_MAX 256

/* A layer on vectors (N, in); with tokens, on sequences (N, tokens, in), which may feed attention; with an image, a convolution
 * on (N, in, H, W). */
typedef struct lab_shape {
    const char *name;
    int64_t in, out;
    bool bias, first;
    int64_t tokens;
    int64_t image[2];
    abar_window window;
    abar_attention attention; /* all but its columns; heads 0: none */
} lab_shape;

typedef struct lab_layer {
    lab_shape shape;
    int64_t groups, rows;                             /* maps; rows per example */
    int64_t columns, outputs;                         /* of one map, columns with the bias */
    abar_tensor x, p, gw, gb;                         /* the batch: host memory, F64, dense; the test may write to it */
    abar_tensor attended;                             /* (N, heads, tokens), the columns where it feeds attention, likewise */
    abar_tensor weight, bias, weight_grad, bias_grad; /* on the device */
    abar_tensor x_stage, p_stage, attended_stage;     /* room for what is offered */
} lab_layer;

/* How the batch is in memory when it is offered. Blocked layouts are for images; other tensors are dense then. */
typedef enum lab_layout { LAB_DENSE, LAB_CHANNELS_LAST, LAB_GAPS, LAB_C8, LAB_C16, LAB_N16, LAB_LAYOUTS } lab_layout;

typedef struct lab {
    abar_context *ctx;
    abar_device *dev;
    abar_optim *optim;
    lab_layer layer[LAB_LAYERS_MAX];
    int n;
    int64_t examples;
    uint64_t noise;
    lab_layout lie;
    abar_dtype dtype; /* of what is offered; the device's unless a test says otherwise */
} lab;

/* For main, before its tests: with ABAR_TEST_DEVICE=cuda the cpu's tests run there instead, and the others are skipped. 0: go
 * on, otherwise what main returns. */
int lab_begin(void);

/* Between any two memories; a row-major copy in doubles that the caller frees. */
void lab_copy(const abar_tensor *dst, const abar_tensor *src);
abar_tensor lab_host_copy(const abar_tensor *t);

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* allocator NULL: the C library's. */
void lab_open(lab *l, const char *device, const abar_allocator *allocator, const lab_shape *shapes, int n, int64_t examples,
              uint64_t seed);
void lab_close(lab *l); /* fails the test when something is still held */

/* Everything create wants. method NULL: the rule alone. options: "damping=0.1 tcov=1", of method, curvature or rule, and
 * rule=NAME (sgd, without momentum unless asked for), base-lr=X, weight-decay=X, examples=N (those of the lab), classes=N. */
typedef struct lab_request {
    abar_optim_config config;
    abar__curvature_config common;
    void *own, *rule;
    abar_optim_param params[2 * LAB_LAYERS_MAX];
    abar_layer layers[LAB_LAYERS_MAX];
    char names[2 * LAB_LAYERS_MAX][512], rule_name[16];
    bool refused; /* an option's value was */
} lab_request;

void lab_request_make(lab *l, const char *method, const char *options, lab_request *out);
void lab_request_try(lab *l, const char *method, const char *options, lab_request *out); /* sets refused instead of failing */
void lab_request_drop(lab_request *request);
void lab_optimizer(lab *l, const char *method, const char *options);
void lab_need(const lab *l, abar_status status, const char *what);
#define NEED(l, expr) lab_need(l, expr, #expr)

/* ---- chance ------------------------------------------------------------------------------------------------------- */

int64_t lab_pick(uint64_t *noise, int64_t from, int64_t to); /* both included */
/* Vectors, a sequence or a convolution with any window. */
lab_shape lab_random_shape(uint64_t *noise, const char *name, bool bias);

/* ---- running ------------------------------------------------------------------------------------------------------ */

double lab_draw(lab *l);     /* in (-1, 1), exact in bfloat16 */
void lab_draw_batch(lab *l); /* x, p and gradients */
void lab_fill(lab *l, const abar_tensor *t, double scale);
void lab_observe(lab *l); /* all layers, the whole batch */
void lab_observe_layer(lab *l, int index, int64_t first, int64_t count, double offered, double scale);
void lab_load_gradients(lab *l);
abar_step_report lab_step(lab *l, double lr); /* loads the gradients first */
void lab_calibrate_part(lab *l, int64_t first, int64_t count);
void lab_calibrate(lab *l); /* with the batch, where it is wanted */
void lab_clear_weights(lab *l);
void lab_new_batch(lab *l);                      /* draws one, and clears the weights */
void lab_copy_batch(const lab *from, lab *to);   /* to a lab of the same shapes, and clears its weights */
void lab_observed_step(lab *l);                  /* at rate 1 */
double lab_get(const abar_tensor *t, int64_t i); /* of a dense tensor */
void lab_set(const abar_tensor *t, int64_t i, double value);

/* ---- looking ------------------------------------------------------------------------------------------------------ */

/* Matrices the caller frees: what was taken off zero weights, the gradient (outputs, columns); the rows of the batch
 * (examples x rows, columns), patches written out; p at the same rows (examples x rows, outputs). */
double *lab_taken(const lab *l, int layer, int64_t group);
double *lab_gradient(const lab *l, int layer, int64_t group);
double *lab_rows(const lab *l, int layer, int64_t group);
double *lab_row_grads(const lab *l, int layer, int64_t group);
int lab_map_index(const lab *l, const char *layer, int64_t group);
abar_map_info lab_map(const lab *l, const char *layer, int64_t group);

/* |a - b| / |b|, or |a| where b is 0. */
double lab_difference(const double *a, const double *b, int64_t n);
/* Fails unless a is near b: by `exact` on devices of double precision, by `rounded` on others. */
void lab_check(const lab *l, const char *what, const double *a, const double *b, int64_t n, double exact, double rounded);
/* Whether all that the two labs took off their weights is equal to rounding; of equal shapes. */
void lab_check_same(const lab *a, const lab *b, const char *what, double exact, double rounded);

/* x (n, n) such that m x = b (n, columns), by elimination with pivoting. Destroys both; b becomes x. */
void lab_solve(int64_t n, double *m, int64_t columns, double *b);

/* Weights and every tensor of abar_optim_visit. */
typedef struct lab_state {
    int n;
    char *name[LAB_STATE_MAX];
    abar_tensor tensor[LAB_STATE_MAX]; /* host copies */
} lab_state;

void lab_state_take(lab *l, lab_state *out);
void lab_state_put(lab *l, const lab_state *state);
void lab_state_drop(lab_state *state);
const abar_tensor *lab_state_find(const lab_state *state, const char *format, ...);
/* The first tensor that is not the same bit for bit; NULL: none. */
const char *lab_state_changed(const lab_state *a, const lab_state *b);
/* Weights and device tensors only; NULL when all numbers are finite. */
const char *lab_state_not_finite(const lab_state *state);

extern const char *lab_methods[];       /* NULL-terminated: those of the device */
extern const char *lab_cases[][2];      /* method, options: all of them in their variants; ends in NULL */
bool lab_has(const char *method);       /* whether the device of the tests has it */
extern const char *const lab_devices[]; /* NULL-terminated */
bool lab_uses_output_grad(const char *method);
bool lab_is_dense(const char *method);
const char *lab_with(char buffer[256], const char *options, const char *more); /* both, joined */

/* A test for each device, given as its state. */
#define ON(test, device)                                                     \
    {                                                                        \
        "" #test "(" device ")", test, NULL, NULL, (void *)(uintptr_t)device \
    }
#define ON_BOTH(test) ON(test, "ref"), ON(test, "cpu")

#endif
