/* Products while signals arrive. A handler runs on the stack of the thread that it interrupts, wherever a kernel has put that:
 * in oneDNN's products it is in the heap, where the handler's frame destroys what other code keeps there. */
#define _GNU_SOURCE
#include "device/cpu/cpu_nn.h"
#include "device/cpu/product.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

enum { M = 32, N = 16, K = 784, ROUNDS = 2000, SIGNALS = 500 };

static float a[M * K], b[N * K], c[M * N], alone[M * N];
static char *stack;
static size_t stack_bytes;
static volatile sig_atomic_t signals, elsewhere;

static void look(int number)
{
    const char here = (char)number;
    const uintptr_t at = (uintptr_t)&here - (uintptr_t)stack;
    signals++;
    elsewhere += at >= stack_bytes;
}

static void find_stack(void)
{
    pthread_attr_t attributes;
    void *from;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &from, &stack_bytes), 0);
    pthread_attr_destroy(&attributes);
    stack = from;
}

static void send_signals(int microseconds)
{
    const struct timeval every = {0, microseconds};
    assert_int_equal(setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL), 0);
}

static void product_is_the_same_and_handlers_run_on_the_threads_stack(void **state)
{
    (void)state;
    abar__product p = {.trans_b = true, .m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = K, .c = alone, .ldc = N};
    const struct sigaction handler = {.sa_handler = look, .sa_flags = SA_RESTART};
    for (int i = 0; i < M * K; i++) a[i] = (float)(i * 7 % 13 - 6);
    for (int i = 0; i < N * K; i++) b[i] = (float)(i * 5 % 11 - 5);
    abar__blas_single();
    assert_int_equal(abar__multiply(&p), ABAR_OK);
    find_stack();
    assert_int_equal(sigaction(SIGALRM, &handler, NULL), 0);
    p.c = c;
    send_signals(40);
    for (int i = 0; i < ROUNDS || signals < SIGNALS; i++) {
        memset(c, 0, sizeof c);
        assert_int_equal(abar__multiply(&p), ABAR_OK);
        assert_memory_equal(c, alone, sizeof c);
        assert_int_equal(elsewhere, 0);
    }
    send_signals(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(product_is_the_same_and_handlers_run_on_the_threads_stack)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
