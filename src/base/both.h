/* Small functions that are compiled for the host and for kernels. */
#ifndef ABAR_BOTH_H
#define ABAR_BOTH_H

#ifdef __CUDACC__
#define ABAR_BOTH __host__ __device__ static inline
#else
#define ABAR_BOTH static inline
#endif

#endif
