/* Newton-Schulz of all of Muon's blocks on the device (device/orthogonalise.h), with NorMuon's row normalisation: an object
 * that is created once, for blocks of given sizes, and whose run can be captured. */
#ifndef ABAR_CUDA_ORTHOGONALISE_H
#define ABAR_CUDA_ORTHOGONALISE_H

#ifdef __cplusplus
#include "device/cuda/core/cuda_impl.h"
#else
#include "device/device_impl.h" /* tests are C */
#endif

typedef struct abar__cuda_orthogonaliser abar__cuda_orthogonaliser;

#ifdef __cplusplus
extern "C" {
#endif
/* blocks: (n) host memory, copied; in, out and row_moment are float32 in device memory. exact: products in float32; otherwise
 * of bfloat16 numbers with float32 sums. Times cuBLASLt's algorithms, unless the device is deterministic. Fails where there
 * are large blocks and cuBLASLt cannot be loaded. */
abar_status abar__cuda_orthogonaliser_create(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n,
                                             bool exact, abar__cuda_orthogonaliser **out);
void abar__cuda_orthogonaliser_destroy(abar_device *dev, abar__cuda_orthogonaliser *o);
size_t abar__cuda_orthogonaliser_bytes(const abar__cuda_orthogonaliser *o);
/* New addresses and scales for blocks of the same sizes, (n) host memory; graphs captured before use them, too. A block has a
 * row_moment if it had one at creation. Waits for nothing but its own earlier call. */
abar_status abar__cuda_orthogonaliser_rebind(abar_device *dev, abar__cuda_orthogonaliser *o, const abar__ns_block *blocks);
/* skip: device memory; where it is not 0, neither out nor row_moment nor verdict is written. NULL: never. verdict: (n) device
 * memory. */
abar_status abar__cuda_orthogonaliser_run(abar_device *dev, abar__cuda_orthogonaliser *o, double normuon_beta,
                                          const int32_t *skip, int32_t *verdict);
#ifdef __cplusplus
}
#endif

#endif
