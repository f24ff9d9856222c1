/* Calls of oneDNN, behind a catch. C++ for this alone. */
#include "device/cpu/onednn_calls.h"

#include <csignal>
#include <cstddef>
#include <new>
#include <sys/mman.h>

namespace
{

/* above what one call takes, code buffers of 256 KiB among it, and the first products, with 52 such buffers */
constexpr std::size_t RESERVE = std::size_t{2} << 20, RESERVE_PRODUCTS = std::size_t{24} << 20;

/* oneDNN writes to memory that it did not get. So a shortage is found before it is called: its code buffers are mapped, and
 * where the system maps no more, malloc finds nothing soon. */
bool has_reserve(std::size_t bytes = RESERVE)
{
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    munmap(memory, bytes);
    return true;
}

/* make(&handle) for a handle that is handed over on success. */
template <typename Handle, typename Make> dnnl_status_t made(Handle *out, Make make)
{
    *out = nullptr;
    if (!has_reserve()) return dnnl_out_of_memory;
    try {
        Handle handle = nullptr;
        const dnnl_status_t status = make(&handle);
        if (status == dnnl_success && !handle) return dnnl_out_of_memory;
        if (status == dnnl_success) *out = handle;
        return status;
    } catch (const std::bad_alloc &) {
        return dnnl_out_of_memory;
    } catch (...) {
        return dnnl_runtime_error;
    }
}

template <typename Call> dnnl_status_t done(Call call)
{
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return dnnl_out_of_memory;
    } catch (...) {
        return dnnl_runtime_error;
    }
}

dnnl_status_t add_post_ops(dnnl_primitive_attr_t attributes, dnnl_post_ops_t ops, bool relu, bool add)
{
    return done([&] {
        dnnl_status_t status = dnnl_success;
        if (relu) status = dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
        if (!status && add) status = dnnl_post_ops_append_sum(ops, 1.0f);
        return status ? status : dnnl_primitive_attr_set_post_ops(attributes, ops);
    });
}

/* Signals wait while this lives, but those that a fault raises. */
class without_signals
{
  public:
    without_signals()
    {
        static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
        sigset_t all;
        sigfillset(&all);
        for (const int fault : faults) sigdelset(&all, fault);
        pthread_sigmask(SIG_BLOCK, &all, &before);
    }
    ~without_signals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    without_signals(const without_signals &) = delete;
    without_signals &operator=(const without_signals &) = delete;

  private:
    sigset_t before;
};

} // namespace

dnnl_status_t abar__dnnl_engine(dnnl_engine_t *out)
{
    return made(out, [](dnnl_engine_t *engine) { return dnnl_engine_create(engine, dnnl_cpu, 0); });
}

dnnl_status_t abar__dnnl_stream(dnnl_stream_t *out, dnnl_engine_t engine)
{
    return made(out, [=](dnnl_stream_t *stream) { return dnnl_stream_create(stream, engine, dnnl_stream_default_flags); });
}

dnnl_status_t abar__dnnl_attributes(dnnl_primitive_attr_t *out, bool relu, bool add)
{
    dnnl_post_ops_t ops = nullptr;
    dnnl_status_t status = made(out, dnnl_primitive_attr_create);
    if (!status) status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (!status && (relu || add)) status = made(&ops, dnnl_post_ops_create);
    if (!status && ops) status = add_post_ops(*out, ops, relu, add);
    if (ops) dnnl_post_ops_destroy(ops);
    if (status && *out) {
        dnnl_primitive_attr_destroy(*out);
        *out = nullptr;
    }
    return status;
}

dnnl_status_t abar__dnnl_desc(dnnl_primitive_desc_t *out, const_dnnl_op_desc_t op, const_dnnl_primitive_attr_t attributes,
                              dnnl_engine_t engine, const_dnnl_primitive_desc_t hint)
{
    return made(out,
                [=](dnnl_primitive_desc_t *desc) { return dnnl_primitive_desc_create(desc, op, attributes, engine, hint); });
}

dnnl_status_t abar__dnnl_reorder_desc(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                                      dnnl_engine_t engine, const_dnnl_primitive_attr_t attributes)
{
    return made(out, [=](dnnl_primitive_desc_t *desc) {
        return dnnl_reorder_primitive_desc_create(desc, from, engine, to, engine, attributes);
    });
}

dnnl_status_t abar__dnnl_primitive(dnnl_primitive_t *out, const_dnnl_primitive_desc_t desc)
{
    return made(out, [=](dnnl_primitive_t *primitive) { return dnnl_primitive_create(primitive, desc); });
}

dnnl_status_t abar__dnnl_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc, dnnl_engine_t engine)
{
    return made(out, [=](dnnl_memory_t *memory) { return dnnl_memory_create(memory, desc, engine, DNNL_MEMORY_NONE); });
}

dnnl_status_t abar__dnnl_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int n, const dnnl_exec_arg_t *args)
{
    return done([=] { return dnnl_primitive_execute(primitive, stream, n, args); });
}

dnnl_status_t abar__dnnl_wait(dnnl_stream_t stream)
{
    return done([=] { return dnnl_stream_wait(stream); });
}

dnnl_status_t abar__dnnl_sgemm(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, const float *a,
                               dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc)
{
    /* oneDNN 2.6's kernels keep the stack pointer in the heap, where a signal handler would write. */
    const without_signals quiet;
    return done([=] { return dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc); });
}

dnnl_status_t abar__dnnl_sgemm_ready()
{
    const float a[4] = {}, b[4] = {};
    float c[4];
    if (!has_reserve(RESERVE_PRODUCTS)) return dnnl_out_of_memory;
    const dnnl_status_t status = abar__dnnl_sgemm('N', 'N', 2, 2, 2, a, 2, b, 2, 0.0f, c, 2);
    return status ? status : abar__dnnl_sgemm('N', 'T', 2, 2, 2, a, 2, b, 2, 0.0f, c, 2); /* few rows: kernels of their own */
}
