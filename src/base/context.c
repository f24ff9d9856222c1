/* The context: allocator with counters, log callback, text of the last failure. */
#include "base/base_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ERROR_MAX 1024
#define ISA_MAX 32
#define HUGE_PAGE ((size_t)2 << 20)

struct abar_context {
    abar_context_config config;
    atomic_size_t now, peak;
    atomic_uint_fast64_t allocations;
    char error[ERROR_MAX];
    char isa[ISA_MAX];
};

/* Large memory asks for huge pages, where the system gives them to those who ask: it is walked through from end to end, and
 * with small pages that misses the TLB. */
static void *libc_alloc(void *user, size_t bytes, size_t align)
{
    void *memory;
    (void)user;
    if (bytes < 2 * HUGE_PAGE || align > HUGE_PAGE) return aligned_alloc(align, abar__round_up(bytes, align));
    if (posix_memalign(&memory, HUGE_PAGE, bytes) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* no harm where it is refused */
#endif
    return memory;
}

static void libc_release(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

const char *abar_version(void) { return "0.1.0"; }

const char *abar_status_text(abar_status status)
{
    switch (status) {
    case ABAR_OK: return "ok";
    case ABAR_STOPPED: return "stopped on request";
    case ABAR_E_ARGUMENT: return "impossible argument";
    case ABAR_E_MEMORY: return "out of memory";
    case ABAR_E_IO: return "input or output failed";
    case ABAR_E_FORMAT: return "damaged or foreign file";
    case ABAR_E_NOT_FOUND: return "not found";
    case ABAR_E_UNSUPPORTED: return "not supported here";
    case ABAR_E_NUMERIC: return "numbers not finite";
    case ABAR_E_STATE: return "called in the wrong order";
    case ABAR_E_BUSY: return "in use by another process";
    case ABAR_E_BACKEND: return "a library underneath failed";
    case ABAR_E_PEER: return "another rank failed";
    }
    return "unknown status";
}

abar_status abar_context_create(const abar_context_config *config, abar_context **out)
{
    if (!out) return ABAR_E_ARGUMENT;
    *out = NULL;
    abar_context_config c = {.size = sizeof c};
    if (config && (config->size < sizeof(size_t) || config->size > sizeof c)) return ABAR_E_ARGUMENT;
    if (config) memcpy(&c, config, config->size);
    if (!c.allocator.alloc) c.allocator = (abar_allocator){libc_alloc, libc_release, NULL};
    if (!c.allocator.release) return ABAR_E_ARGUMENT;
    abar_context *ctx = c.allocator.alloc(c.allocator.user, sizeof *ctx, ABAR_ALIGN);
    if (!ctx) return ABAR_E_MEMORY;
    memset(ctx, 0, sizeof *ctx);
    ctx->config = c;
    const char *isa = getenv("ABAR_ISA"); /* once: another thread may change the environment later */
    if (isa) snprintf(ctx->isa, sizeof ctx->isa, "%s", isa);
    *out = ctx;
    return ABAR_OK;
}

abar_status abar__context_beside(const abar_context *ctx, void (*log)(void *user, abar_log_level level, const char *text),
                                 void *log_user, abar_context **out)
{
    abar_context_config config = {.size = sizeof config, .allocator = ctx->config.allocator, .log = log, .log_user = log_user};
    ABAR_TRY(abar_context_create(&config, out));
    memcpy((*out)->isa, ctx->isa, sizeof ctx->isa);
    return ABAR_OK;
}

void abar_context_destroy(abar_context *ctx)
{
    if (ctx) ctx->config.allocator.release(ctx->config.allocator.user, ctx, sizeof *ctx);
}

const char *abar_context_error(const abar_context *ctx) { return ctx->error; }

const char *abar__context_isa(const abar_context *ctx) { return ctx->isa; }

abar_memory_stats abar_context_memory(const abar_context *ctx)
{
    return (abar_memory_stats){atomic_load(&ctx->now), atomic_load(&ctx->peak), atomic_load(&ctx->allocations)};
}

void abar_context_reset_peak(abar_context *ctx) { atomic_store(&ctx->peak, atomic_load(&ctx->now)); }

abar_status abar__fail(abar_context *ctx, abar_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char text[ERROR_MAX]; /* the arguments may point into ctx->error */
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *p = text; *p; p++) /* names from files and users must not contain line breaks or terminal control codes */
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    memcpy(ctx->error, text, sizeof text);
    return status;
}

void abar__log(abar_context *ctx, abar_log_level level, const char *format, ...)
{
    if (!ctx->config.log) return;
    va_list args;
    va_start(args, format);
    char text[ERROR_MAX];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ctx->config.log(ctx->config.log_user, level, text);
}

void abar__count_memory(abar_context *ctx, size_t bytes)
{
    atomic_fetch_add(&ctx->allocations, 1);
    size_t now = atomic_fetch_add(&ctx->now, bytes) + bytes;
    size_t peak = atomic_load(&ctx->peak);
    while (now > peak && !atomic_compare_exchange_weak(&ctx->peak, &peak, now)) {}
}

void abar__uncount_memory(abar_context *ctx, size_t bytes) { atomic_fetch_sub(&ctx->now, bytes); }

void *abar__alloc_in_thread(abar_context *ctx, size_t bytes)
{
    void *memory = bytes > 0 ? ctx->config.allocator.alloc(ctx->config.allocator.user, bytes, ABAR_ALIGN) : NULL;
    if (!memory) return NULL;
    memset(memory, 0, bytes);
    abar__count_memory(ctx, bytes);
    return memory;
}

abar_status abar__alloc(abar_context *ctx, size_t bytes, void **out)
{
    *out = abar__alloc_in_thread(ctx, bytes);
    if (*out || bytes == 0) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_MEMORY, "memory: could not get %zu more bytes, use a smaller batch or model", bytes);
}

size_t abar__hand_out(const abar__piece *pieces, int n, char *base)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        void *here = base ? base + at : NULL;
        if (base) memcpy(pieces[i].pointer, &here, sizeof here);
        at = abar__round_up(at + pieces[i].bytes, ABAR_ALIGN);
    }
    return at;
}

void abar__free(abar_context *ctx, void *memory, size_t bytes)
{
    if (!memory) return;
    abar__uncount_memory(ctx, bytes);
    ctx->config.allocator.release(ctx->config.allocator.user, memory, bytes);
}

static abar_status text_reserve(abar_context *ctx, abar__text *text, size_t more)
{
    size_t need = text->length + more + 1;
    if (need <= text->capacity) return ABAR_OK;
    size_t capacity = abar__round_up(need + need / 2, 256);
    void *data;
    ABAR_TRY(abar__alloc(ctx, capacity, &data));
    if (text->data) memcpy(data, text->data, text->length);
    abar__free(ctx, text->data, text->capacity);
    text->data = data;
    text->capacity = capacity;
    return ABAR_OK;
}

abar_status abar__text_append(abar_context *ctx, abar__text *text, const void *bytes, size_t n)
{
    ABAR_TRY(text_reserve(ctx, text, n));
    if (n > 0) memcpy(text->data + text->length, bytes, n);
    text->length += n;
    text->data[text->length] = '\0';
    return ABAR_OK;
}

abar_status abar__text_printf(abar_context *ctx, abar__text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    abar_status status = n < 0 ? ABAR_E_ARGUMENT : text_reserve(ctx, text, (size_t)n);
    if (status == ABAR_OK) {
        vsnprintf(text->data + text->length, (size_t)n + 1, format, again);
        text->length += (size_t)n;
    }
    va_end(again);
    return status;
}

void abar__text_free(abar_context *ctx, abar__text *text)
{
    abar__free(ctx, text->data, text->capacity);
    *text = (abar__text){0};
}
