/* Used by every file of the library: error texts, allocation through the context, growing strings. */
#ifndef ABAR_BASE_IMPL_H
#define ABAR_BASE_IMPL_H

#include "abar/base.h"

#include <stdarg.h>

#if defined(__GNUC__)
#define ABAR_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ABAR_PRINTF(text, first)
#endif

#define ABAR_ALIGN 64 /* of every allocation: a cache line, and the widest vector */

/* Returns a failure of expr to the caller. */
#define ABAR_TRY(expr)                         \
    do {                                       \
        abar_status try_status = (expr);       \
        if (try_status < 0) return try_status; \
    } while (0)

/* Stores the text in the context and returns status. Text: "subject: reason, and what to do". */
abar_status abar__fail(abar_context *ctx, abar_status status, const char *format, ...) ABAR_PRINTF(3, 4);
void abar__log(abar_context *ctx, abar_log_level level, const char *format, ...) ABAR_PRINTF(3, 4);

/* Structs that callers make and that begin with their size; name is the type's.
 *
 * Whether size is one that this library can work with. */
abar_status abar__struct_check(abar_context *ctx, const char *name, const void *from, size_t bytes);
/* Copies a caller's config into out, of bytes bytes; members that the caller's version lacks become 0. */
abar_status abar__struct_read(abar_context *ctx, const char *name, const void *from, void *out, size_t bytes);
/* Copies a result, of bytes bytes, into the caller's struct as far as its size reaches. The size has been checked. */
void abar__struct_write(const void *from, size_t bytes, void *out);

/* The value that the environment variable ABAR_ISA had when the context was created; "": none. */
const char *abar__context_isa(const abar_context *ctx);
/* A new context with the same allocator, for another thread (a context serves one thread at a time). It logs through log. */
abar_status abar__context_beside(const abar_context *ctx, void (*log)(void *user, abar_log_level level, const char *text),
                                 void *log_user, abar_context **out);

/* Zeroed memory, aligned to ABAR_ALIGN; 0 bytes yield NULL and ABAR_OK. The caller keeps the size. For the context's thread: a
 * failure sets the error text. */
abar_status abar__alloc(abar_context *ctx, size_t bytes, void **out);
/* The same for any thread: a failure sets no text. NULL: there is no memory, or bytes is 0. */
void *abar__alloc_in_thread(abar_context *ctx, size_t bytes);
/* Thread-safe. */
void abar__free(abar_context *ctx, void *memory, size_t bytes);
/* Count memory that was allocated elsewhere (on a GPU), so that abar_context_memory includes it. Thread-safe. */
void abar__count_memory(abar_context *ctx, size_t bytes);
void abar__uncount_memory(abar_context *ctx, size_t bytes);

/* A growing byte string, zero-terminated after the first append. Initialise with {0}; free with abar__text_free. */
typedef struct abar__text {
    char *data;
    size_t length, capacity;
} abar__text;

abar_status abar__text_append(abar_context *ctx, abar__text *text, const void *bytes, size_t n);
abar_status abar__text_printf(abar_context *ctx, abar__text *text, const char *format, ...) ABAR_PRINTF(3, 4);
void abar__text_free(abar_context *ctx, abar__text *text);

/* Refuses numbers outside their option's range; owner names the table in the text. */
abar_status abar__options_check(abar_context *ctx, const char *owner, const abar_option *table, const void *config);

static inline size_t abar__round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* A piece of a block of memory: the address of the pointer that gets it, and its bytes. */
typedef struct abar__piece {
    void *pointer;
    size_t bytes;
} abar__piece;
/* Hands out a block in n pieces, each aligned to ABAR_ALIGN, and returns its bytes. base NULL: only counts. */
size_t abar__hand_out(const abar__piece *pieces, int n, char *base);

#endif
