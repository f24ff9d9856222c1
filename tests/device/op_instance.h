/* One operation on one device, fed from dense host arrays of double and read back into them, whatever dtype and layouts the
 * device prefers. Everything an operation must write is poisoned with NaN first. */
#ifndef OP_INSTANCE_H
#define OP_INSTANCE_H

#include "op_cases.h"

/* What goes in. NULL: the operation has none. */
typedef struct op_inputs {
    double *x[ABAR_OP_MAX_IN], *param[ABAR_OP_MAX_PARAM], *buffer[ABAR_OP_MAX_BUFFER];
    double *dparam[ABAR_OP_MAX_PARAM]; /* NULL: the gradients do not accumulate */
    bool table_written;                /* of an embedding: dparam[0] is added to, whether or not the others accumulate */
    double *dstream;                   /* NULL: the stream has no other reader */
    double *z;                         /* a LINEAR's input_z */
    bool dz_given;                     /* of a LINEAR with a GELU */
    double *dy, *dy2;                  /* both NULL: forward only; losses need neither: for them it only asks for backward */
    double *target;
    int32_t *labels; /* of class labels, instead of target */
    float *share;    /* labels are pairs: of the first of each */
} op_inputs;

/* The results. dz: the contents of dy's memory after backward. */
typedef struct op_outputs {
    double *y, *dz, *dx[ABAR_OP_MAX_IN], *dparam[ABAR_OP_MAX_PARAM], *buffer[ABAR_OP_MAX_BUFFER];
    double *columns; /* an attention's, where observed */
    double *stream;  /* of a layer norm with a residual */
    abar_loss result;
} op_outputs;

/* Elements of an operation's parameters and buffers; 0: there is none. */
abar__shape op_param_shape(const abar__op_desc *d, int i);
int64_t op_param_count(const abar__op_desc *d, int i);
int64_t op_buffer_count(const abar__op_desc *d, int i);
int64_t op_column_count(const abar__op_desc *d);
bool op_is_loss(const abar__op_desc *d);
bool op_has_stream(const abar__op_desc *d);

/* Random inputs for a case, exact in float32. Free with op_inputs_free. */
void op_inputs_create(const op_case *c, op_inputs *out);
/* Rounds inputs to bfloat16 where dev computes in it, so that a comparison with ref is one of the arithmetic alone. */
void op_inputs_round(const abar_device *dev, const abar__op_desc *d, op_inputs *in);
void op_inputs_free(op_inputs *in);
void op_outputs_free(op_outputs *out);

#define OP_MAX_BLOCK 40

typedef struct op_instance {
    abar_device *dev;
    abar__op *op;
    abar__run run;
    /* device memory */
    void *x[ABAR_OP_MAX_IN], *dx[ABAR_OP_MAX_IN];
    void *param[ABAR_OP_MAX_PARAM], *dparam[ABAR_OP_MAX_PARAM], *buffer[ABAR_OP_MAX_BUFFER];
    void *shadow[ABAR_OP_MAX_PARAM]; /* the weight in bfloat16, where activations are */
    void *z, *y, *dy, *dy2, *stream, *dstream, *target, *share, *columns, *saved, *scratch;
    abar_loss result;
    abar_loss *shared; /* where a queued device writes it; NULL: the device writes result */
    struct {
        void *memory;
        size_t bytes;
    } blocks[OP_MAX_BLOCK];
    int n_blocks;
} op_instance;

/* These assert that every call succeeds. */
void op_instance_create(abar_device *dev, const abar__op_desc *d, const abar__run *run, op_instance *out);
/* The same with one implementation; false, with nothing created, where it does not accept the operation. */
bool op_instance_create_with(abar_device *dev, const abar__op_impl *impl, const abar__op_desc *d, const abar__run *run,
                             op_instance *out);
void op_instance_destroy(op_instance *t);

/* Poisons everything and copies the inputs in. */
void op_instance_load(op_instance *t, const op_inputs *in);
void op_instance_forward(op_instance *t);
/* Passes only those forward values that the operation declared to need. */
void op_instance_backward(op_instance *t, const op_inputs *in);
/* New arrays in out; where the operation has left it to the one before to multiply dx by the derivative at z, dx is multiplied
 * here. Also asserts that the padding of blocked outputs is zero and that no input was changed. */
void op_instance_read(op_instance *t, const op_inputs *in, op_outputs *out);

/* All of these: runs the operation once on dev. */
void op_run(abar_device *dev, const abar__op_desc *d, const abar__run *run, const op_inputs *in, op_outputs *out);

/* ReLU's derivative jumps: where two devices may disagree on the sign, the result being below this share of the largest, no
 * gradient is asked for. */
void op_quiet_kinks(abar_device *ref, const abar__op_desc *d, const abar__run *run, double share, op_inputs *in);

/* max |a - b| / max |b|; the plain difference where b is all zero; infinite when a is not finite. */
double op_difference(const double *a, const double *b, int64_t count);
/* Prints every output of a that is further than tolerance from b, where b has it; returns how many. */
int op_compare(const char *label, const abar__op_desc *d, const op_outputs *a, const op_outputs *b, double tolerance);

#endif
