/* Files: named tensors (safetensors), lines of JSON, TensorBoard events, and atomic replacement. Nothing here knows about
 * nets. */
#ifndef ABAR_IO_H
#define ABAR_IO_H

#include "abar/tensor.h"
#include "base/base_impl.h"

/* ---- safetensors ---------------------------------------------------------------------------------------------- */

/* Reading: the whole file is read, checked (header, offsets, overlaps, sizes, and the checksums where it has any) and then
 * served by name. */
typedef struct abar__safetensors abar__safetensors;

abar_status abar__safetensors_open(abar_context *ctx, const char *path, abar__safetensors **out);
/* The same over the caller's memory, which must outlive it: for tests and fuzzing. label names it in errors. */
abar_status abar__safetensors_open_memory(abar_context *ctx, const char *label, const void *bytes, size_t n,
                                          abar__safetensors **out);
void abar__safetensors_close(abar__safetensors *file);
int abar__safetensors_count(const abar__safetensors *file);
/* Host view of tensor i, in the order of the file's data; name lives as long as the file. The data may be unaligned. */
const char *abar__safetensors_get(const abar__safetensors *file, int i, abar_tensor *out);
bool abar__safetensors_find(const abar__safetensors *file, const char *name, abar_tensor *out);
const char *abar__safetensors_metadata(const abar__safetensors *file, const char *key); /* NULL: none */

/* Writing: add everything, then write; the file appears complete or not at all (temporary file, fsync, rename, fsync of
 * the folder). Every tensor and metadata value gets a checksum (checksum.h). Tensors are read at write time, so they must
 * live until then; they must be dense host tensors. Names, metadata keys and values are copied. */
typedef struct abar__safetensors_writer abar__safetensors_writer;

abar_status abar__safetensors_writer_create(abar_context *ctx, abar__safetensors_writer **out);
abar_status abar__safetensors_writer_metadata(abar__safetensors_writer *w, const char *key, const char *value);
abar_status abar__safetensors_writer_add(abar__safetensors_writer *w, const char *name, const abar_tensor *tensor);
abar_status abar__safetensors_writer_write(abar__safetensors_writer *w, const char *path);
/* Copies tensors that are not dense or not in host memory. Without it they are refused. */
typedef abar_status (*abar__tensor_fetch)(abar_context *ctx, const abar_tensor *dst, const abar_tensor *src);
void abar__safetensors_writer_fetch(abar__safetensors_writer *w, abar__tensor_fetch fetch);
void abar__safetensors_writer_destroy(abar__safetensors_writer *w);

/* ---- files ---------------------------------------------------------------------------------------------------- */

/* Replaces path by the given bytes, atomically and durably. */
abar_status abar__file_replace(abar_context *ctx, const char *path, const void *bytes, size_t n);
/* The whole file, zero-terminated; free with abar__text_free. Larger than max: ABAR_E_FORMAT. */
abar_status abar__file_read(abar_context *ctx, const char *path, size_t max, abar__text *out);
/* Whether the file, of any size, holds the text (under a kilobyte). A missing file holds none. */
abar_status abar__file_contains(abar_context *ctx, const char *path, const char *text, bool *out);
bool abar__path_exists(const char *path);
/* mkdir -p. */
abar_status abar__folder_make(abar_context *ctx, const char *path);
/* An exclusive lock on DIR/.lock that ends with the process. ABAR_E_BUSY when another process holds it. Temporary files of
 * killed processes in DIR are removed. */
abar_status abar__folder_lock(abar_context *ctx, const char *dir, int *out_fd);
void abar__folder_unlock(int fd);
/* Whether a process holds the lock. Creates nothing. */
bool abar__folder_locked(int folder);

/* ---- logs ----------------------------------------------------------------------------------------------------- */

/* A file that only grows: lines of JSON. keep: truncate to this many bytes first (resume), 0 starts anew. A missing or
 * shorter file than keep is an error. A failed write leaves the file as it was before. */
typedef struct abar__jsonl abar__jsonl;

abar_status abar__jsonl_open(abar_context *ctx, const char *path, uint64_t keep, abar__jsonl **out);
/* One complete JSON object without newline; written at once. */
abar_status abar__jsonl_write(abar__jsonl *log, const char *object);
/* fsync: before a checkpoint records the size. */
abar_status abar__jsonl_flush(abar__jsonl *log);
uint64_t abar__jsonl_bytes(const abar__jsonl *log);
abar_status abar__jsonl_close(abar__jsonl *log); /* NULL: ok */

/* TensorBoard scalars: TFRecord framing (masked CRC-32C) around hand-encoded Event protobufs. path is the whole file
 * name (events.out.tfevents....); keep as above. */
typedef struct abar__tfevents abar__tfevents;

abar_status abar__tfevents_open(abar_context *ctx, const char *path, uint64_t keep, abar__tfevents **out);
abar_status abar__tfevents_scalar(abar__tfevents *log, const char *tag, int64_t step, double wall_time, double value);
/* Scalars are buffered until a flush (with fsync), close or 64 KiB; bytes counts what was written. */
abar_status abar__tfevents_flush(abar__tfevents *log);
uint64_t abar__tfevents_bytes(const abar__tfevents *log);
abar_status abar__tfevents_close(abar__tfevents *log); /* NULL: ok */

#endif
