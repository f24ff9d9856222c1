/* Where numbers live and who computes with them: "ref" (plain C, double), "cpu" (float32, vectorised), "cuda" (a GPU, in
 * float32, TF32 or bfloat16, where the build has it). */
#ifndef ABAR_DEVICE_H
#define ABAR_DEVICE_H

#include "abar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What activations and products are computed in. Parameters, statistics, reductions and optimizer state are float32 on every
 * device but ref. */
typedef enum abar_precision { ABAR_PRECISION_FP32, ABAR_PRECISION_TF32, ABAR_PRECISION_BF16 } abar_precision;

typedef struct abar_device_config {
    size_t size;              /* sizeof(abar_device_config) */
    int threads;              /* 0: all cores this process may use */
    bool deterministic;       /* fixed kernel choices instead of measured ones */
    abar_precision precision; /* cuda; the others know FP32 only */
    void *stream;             /* cuda: the caller's cudaStream_t to work in; NULL: one of its own */
} abar_device_config;

/* name: "ref", "cpu", "cuda" or "cuda:N" for the N-th GPU. config may be NULL. */
abar_status abar_device_open(abar_context *ctx, const char *name, const abar_device_config *config, abar_device **out);
void abar_device_close(abar_device *dev);

const char *abar_device_name(const abar_device *dev);
const char *abar_device_describe(const abar_device *dev); /* "cpu: avx512, 2 threads, oneDNN 2.6.3" */
abar_dtype abar_device_dtype(const abar_device *dev);     /* what it computes in */
int abar_device_threads(const abar_device *dev);
/* Work given to a queued device (cuda) runs later: this waits for it, and tells of what went wrong meanwhile. */
abar_status abar_device_wait(abar_device *dev);
/* cuda: from now on work in this cudaStream_t. */
abar_status abar_device_set_stream(abar_device *dev, void *stream);

/* How many devices of this name there are: 1 for ref and cpu, GPUs for cuda (0: none, or a build without it). */
int abar_device_count(const char *name);

/* The names of all back ends in this build, NULL-terminated. */
const char *const *abar_device_names(void);

/* Zeroed memory of the device, aligned for its widest vector. */
abar_status abar_device_alloc(abar_device *dev, size_t bytes, void **out);
void abar_device_free(abar_device *dev, void *memory, size_t bytes);

/* What a forward pass tells of its batch. */
typedef struct abar_loss {
    double loss; /* mean over the valid samples */
    int64_t correct, count;
} abar_loss;

/* Copies between tensors of equal shape: host or device, any floating dtype, any layout. Integers need equal dtypes. */
abar_status abar_tensor_copy(abar_context *ctx, const abar_tensor *dst, const abar_tensor *src);

#ifdef __cplusplus
}
#endif
#endif
