/* The calls of oneDNN 2.x that allocate. Its C interface lets std::bad_alloc through, which ends a process that is in C; these
 * return dnnl_out_of_memory instead. A handle is set on success only. */
#ifndef ABAR_ONEDNN_CALLS_H
#define ABAR_ONEDNN_CALLS_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

dnnl_status_t abar__dnnl_engine(dnnl_engine_t *out); /* of the CPU */
dnnl_status_t abar__dnnl_stream(dnnl_stream_t *out, dnnl_engine_t engine);
/* Scratchpads are given by the caller; relu: applied to the result; add: the result is added to what is there. */
dnnl_status_t abar__dnnl_attributes(dnnl_primitive_attr_t *out, bool relu, bool add);
dnnl_status_t abar__dnnl_desc(dnnl_primitive_desc_t *out, const_dnnl_op_desc_t op, const_dnnl_primitive_attr_t attributes,
                              dnnl_engine_t engine, const_dnnl_primitive_desc_t hint);
dnnl_status_t abar__dnnl_reorder_desc(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                                      dnnl_engine_t engine, const_dnnl_primitive_attr_t attributes);
dnnl_status_t abar__dnnl_primitive(dnnl_primitive_t *out, const_dnnl_primitive_desc_t desc);
dnnl_status_t abar__dnnl_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc, dnnl_engine_t engine);
dnnl_status_t abar__dnnl_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int n, const dnnl_exec_arg_t *args);
dnnl_status_t abar__dnnl_wait(dnnl_stream_t stream);
/* c = op(a) op(b) + beta c, row-major. */
dnnl_status_t abar__dnnl_sgemm(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, const float *a,
                               dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc);
/* Makes the kernels of products, unless they are there: the first product would do so, without asking for memory. */
dnnl_status_t abar__dnnl_sgemm_ready(void);

#ifdef __cplusplus
}
#endif

#endif
