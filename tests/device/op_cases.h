/* One table of operation cases for every back end: shapes, settings, and how each is run. test_ops_gradient checks ref's
 * backward with it by differences, test_ops_cpu compares the cpu with ref. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include "device/nn_impl.h"

/* Fields left out are zero, which means: none, no, all samples; 1 for kernel, stride, dilation, groups and loss_scale. */
typedef struct op_case {
    const char *name; /* NULL ends the table */
    abar__op_kind kind;
    int64_t x[4];                 /* shape of the first input; zeros at the end are no dimensions */
    int64_t width;                /* LINEAR, CONV2D, SHORTCUT, EMBEDDING: outputs or output channels */
    int64_t more[ABAR_OP_MAX_IN]; /* CONCAT: channels of the further inputs */
    int64_t kernel[2], stride[2], pad[2], dilation[2], groups;
    bool bias, residual, average, soft_targets, label_pairs;
    bool padded;     /* LINEAR: its rows may be padded */
    bool scale_only; /* LAYER_NORM: without its shift */
    abar__activation activation;
    abar__activation input_activation; /* LINEAR: the GELU fused into what makes its input */
    bool dz_given;                     /* LINEAR with a GELU: its reader has applied the derivative */
    double smoothing, drop;
    uint32_t number;               /* DROPOUT, ATTENTION */
    bool per_sample;               /* DROPOUT */
    int64_t vocabulary, positions; /* EMBEDDING */
    bool table_written;            /* EMBEDDING: its table's gradient is added to, that of the positions written */
    int64_t heads;                 /* ATTENTION */
    bool causal;                   /* ATTENTION */
    int64_t grid[2], side, shift;  /* ATTENTION, PATCH_MERGE */
    bool unobserved;               /* ATTENTION: column means are not wanted */
    unsigned skip_dx;              /* bit i: no gradient is wanted for input i */
    bool evaluate;                 /* as in testing: running statistics, no dropout, no backward */
    bool accumulate;               /* parameter gradients are added to existing ones */
    bool second_dy;                /* the output's gradient comes in two parts */
    bool stream_dy;                /* LAYER_NORM with a residual: the sum has a gradient of its own */
    bool ties;                     /* inputs are small integers, so that maxima tie and a ReLU sees zeros */
    int64_t valid;                 /* losses: number of valid samples */
    double loss_scale;             /* losses */
} op_case;

extern const op_case op_cases[];

abar__op_desc op_case_desc(const op_case *c);
abar__run op_case_run(const op_case *c);

/* Small enough for gradients by differences. */
bool op_case_is_modest(const op_case *c);

#endif
