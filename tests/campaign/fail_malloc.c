/* Preloaded (LD_PRELOAD), lets an allocation of the process fail, whichever library asks: malloc, calloc, realloc and the
 * aligned ones; C++'s operator new calls malloc.
 *
 *     FAIL_AT=N      the N-th fails, counted from 1
 *     FAIL_FROM=N    the N-th and all after it fail
 *     FAIL_MAPS=1    anonymous mappings that libraries ask for fail
 *     FAIL_COUNT=F   how many there were is written to the file F at the end
 *
 * A crash prints its call stack, innermost first, as lines "frame MODULE(SYMBOL+OFFSET) [ADDRESS]". */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static atomic_ulong calls;
static unsigned long fail_at, fail_from, fail_maps;

static unsigned long number_in(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : 0;
}

static void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0) _exit(99);
}

static void crashed(int signal)
{
    void *frame[64];
    const int n = backtrace(frame, 64);
    for (int i = 0; i < n; i++) {
        say("frame ");
        backtrace_symbols_fd(&frame[i], 1, 2);
    }
    raise(signal); /* its default action, now */
}

__attribute__((constructor)) static void begin(void)
{
    /* a stack of its own: LLVM's OpenMP runtime recurses without end when it has no memory at exit */
    static char stack[1 << 16];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_handler = crashed, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER | SA_ONSTACK)};
    void *frame[1];
    sigaltstack(&other, NULL);
    (void)backtrace(frame, 1); /* loads what it needs now */
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGABRT, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    fail_at = number_in("FAIL_AT");
    fail_from = number_in("FAIL_FROM");
    fail_maps = number_in("FAIL_MAPS");
    atomic_store(&calls, 0); /* the loader's own calls came before */
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAIL_COUNT");
    char text[32];
    if (!path) return;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    const int length = snprintf(text, sizeof text, "%lu\n", atomic_load(&calls));
    if (fd >= 0 && write(fd, text, (size_t)length) != length) _exit(99);
    if (fd >= 0) close(fd);
}

static int fails(void)
{
    const unsigned long call = atomic_fetch_add(&calls, 1) + 1;
    if (call != fail_at && (fail_from == 0 || call < fail_from)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return fails() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *memory, size_t bytes) { return fails() ? NULL : __libc_realloc(memory, bytes); }
void *memalign(size_t align, size_t bytes) { return fails() ? NULL : __libc_memalign(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return fails() ? NULL : __libc_memalign(align, bytes); }

int posix_memalign(void **out, size_t align, size_t bytes)
{
    if (fails()) return ENOMEM;
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}

/* malloc's own mappings do not come through here. */
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fail_maps && flags & MAP_ANONYMOUS) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}
