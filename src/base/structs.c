/* Structs that begin with their size: how callers built for an earlier library are served (docs/abi.md). */
#include "base/base_impl.h"

#include <string.h>

static size_t size_of(const void *caller)
{
    size_t size;
    memcpy(&size, caller, sizeof size);
    return size;
}

abar_status abar__struct_check(abar_context *ctx, const char *name, const void *from, size_t bytes)
{
    if (!from) return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: is NULL, give one whose size is sizeof(%s)", name, name);
    const size_t size = size_of(from);
    if (size < sizeof size) return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: size is %zu, set it to sizeof(%s)", name, size, name);
    if (size > bytes)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "%s: size is %zu and libabar %s knows %zu bytes of it, set it to sizeof(%s) or use the library that "
                          "the program was built for",
                          name, size, abar_version(), bytes, name);
    return ABAR_OK;
}

abar_status abar__struct_read(abar_context *ctx, const char *name, const void *from, void *out, size_t bytes)
{
    ABAR_TRY(abar__struct_check(ctx, name, from, bytes));
    memset(out, 0, bytes);
    memcpy(out, from, size_of(from));
    memcpy(out, &bytes, sizeof bytes);
    return ABAR_OK;
}

void abar__struct_write(const void *from, size_t bytes, void *out)
{
    const size_t size = size_of(out), known = size < bytes ? size : bytes;
    memcpy((char *)out + sizeof size, (const char *)from + sizeof size, known - sizeof size);
}
