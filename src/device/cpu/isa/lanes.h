/* For the vector kernels: inner loops run over sixteen lanes, one AVX-512 vector, two AVX2 or four SSE2 ones. */
#ifndef ABAR_LANES_H
#define ABAR_LANES_H

#define ABAR_LANES 16

/* A loop body written once and specialised by the constants it is called with. */
#define ABAR_SPECIALIZED static inline __attribute__((always_inline))

/* In front of a loop whose turns are a constant after that: all of them are written out. */
#if defined(__clang__)
#define ABAR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ABAR_UNROLL _Pragma("GCC unroll 24")
#endif

#endif
