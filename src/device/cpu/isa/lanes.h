/* For the vector kernels: inner loops run over sixteen lanes, which are one AVX-512, two AVX2 or four SSE2 vectors. */
#ifndef ABAR_LANES_H
#define ABAR_LANES_H

#define ABAR_LANES 16

/* A function body that is written once and specialised by the constants it is called with. */
#define ABAR_SPECIALIZED static inline __attribute__((always_inline))

/* Before a loop with a constant number of iterations after inlining: unrolls it completely. */
#if defined(__clang__)
#define ABAR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ABAR_UNROLL _Pragma("GCC unroll 24")
#endif

#endif
