/* Devices: "ref" (plain C, double precision), "cpu" (float32, vectorised) and, in builds with CUDA, "cuda" (an NVIDIA GPU, in
 * float32, TF32 or bfloat16). */
#ifndef ABAR_DEVICE_H
#define ABAR_DEVICE_H

#include "abar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The precision of activations and matrix products. Parameters, statistics, reductions and optimizer state are float32 on cpu
 * and cuda, double on ref. */
typedef enum abar_precision { ABAR_PRECISION_FP32, ABAR_PRECISION_TF32, ABAR_PRECISION_BF16 } abar_precision;

typedef struct abar_device_config {
    size_t size;              /* sizeof(abar_device_config) */
    int threads;              /* 0: all cores that this process may use */
    bool deterministic;       /* fixed kernel choices instead of measured ones */
    abar_precision precision; /* cuda; others: FP32 */
    void *stream;             /* cuda: the cudaStream_t to use; NULL: the device creates one */
} abar_device_config;

/* name: "ref", "cpu", "cuda" or "cuda:N" for the N-th GPU. config may be NULL. */
abar_status abar_device_open(abar_context *ctx, const char *name, const abar_device_config *config, abar_device **out);
void abar_device_close(abar_device *dev);

const char *abar_device_name(const abar_device *dev);
const char *abar_device_describe(const abar_device *dev); /* "cpu: avx512, 2 threads, oneDNN 2.6.3" */
abar_dtype abar_device_dtype(const abar_device *dev);     /* of parameters, gradients and optimizer state */
int abar_device_threads(const abar_device *dev);
/* A queued device (cuda) runs work asynchronously: this waits for all of it, and returns what failed meanwhile. */
abar_status abar_device_wait(abar_device *dev);
/* cuda: uses this cudaStream_t from now on. */
abar_status abar_device_set_stream(abar_device *dev, void *stream);

/* The number of devices of this name: 1 for ref and cpu, that of GPUs for cuda (0: none, or a build without CUDA). */
int abar_device_count(const char *name);

/* The names of all back ends in this build, NULL-terminated. */
const char *const *abar_device_names(void);

/* What the environment variable OPENBLAS_CORETYPE should be on this processor, where OpenBLAS does not know its model and uses
 * kernels for old ones, which take several times as long. NULL: OpenBLAS chose well, or the variable is set. OpenBLAS reads it
 * when it is loaded: to have an effect it must be set before the program starts. */
const char *abar_blas_coretype(void);

/* Zeroed device memory, aligned for the widest vector. */
abar_status abar_device_alloc(abar_device *dev, size_t bytes, void **out);
void abar_device_free(abar_device *dev, void *memory, size_t bytes);

/* Gradients beside that of the batch, which some update rules and methods need (abar/optim.h). */
typedef enum abar_extra { ABAR_EXTRA_NONE, ABAR_EXTRA_DIFFERENCE, ABAR_EXTRA_SAMPLED, ABAR_EXTRA_ROWS } abar_extra;

/* The result of a forward pass. */
typedef struct abar_loss {
    double loss;            /* mean over the valid samples */
    int64_t correct, count; /* valid samples (of sequences: tokens) classified correctly, and all of them */
} abar_loss;

/* Copies between tensors of equal shape, on the host or a device, of any layout and any floating dtype. Integer tensors must
 * have equal dtypes. */
abar_status abar_tensor_copy(abar_context *ctx, const abar_tensor *dst, const abar_tensor *src);

/* What is left to do to a row of a batch of images when it becomes a net's input: erase a box, mix with another row. The same
 * for every device. */
typedef struct abar_row {
    int16_t erase[4];      /* top, left, height, width; height 0: nothing is erased */
    int16_t box[4];        /* cutmix: the same, of the pixels that are the partner's; height 0: no cutmix */
    int32_t partner;       /* the row of the batch that it is mixed with; itself: none */
    int32_t partner_label; /* not mixed: the row's own */
    float share, rest;     /* lambda and 1 - lambda, each rounded: of the row and of its partner in the target, and in mixup */
    uint32_t epoch, sample, repetition; /* of the noise in an erased box */
    int32_t label;
} abar_row;

/* One axis of a resize with Pillow's weights: output i is the sum of count[i] pixels from begin[i] on, with the weights from
 * i * taps on, in units of 2^-22. */
typedef struct abar_resampling {
    const int32_t *begin, *count, *weights;
    int32_t taps;
} abar_resampling;

/* A JPEG file that the device decodes, and the part of it that is the row of a batch. */
typedef struct abar_encoded {
    const uint8_t *file; /* NULL: the row's pixels are in the batch already */
    size_t bytes;
    int32_t width, height; /* of the whole image */
    abar_resampling x, y;  /* of the row's columns and rows */
} abar_encoded;

#ifdef __cplusplus
}
#endif
#endif
